"""Every cell of docs/comparison.md."""

import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx

os.environ.setdefault("KERAS_BACKEND", "jax")  # Keras reads it when it is imported

PAGE = (Path(__file__).parents[1] / "docs" / "comparison.md").read_text(encoding="utf-8")
TABLE = PAGE[PAGE.index("\n| ") + 1 :].partition("\n\n")[0].splitlines()  # the first of the page
LINES = [[x.strip() for x in r.split("|")[1:-1]] for r in TABLE if r.startswith("| ")]
LIBRARIES = LINES[0][1:]
CELLS = {(row[0], name): row[i + 1] for row in LINES[1:] for i, name in enumerate(LIBRARIES)}
SIZE = 4096


class Pair:
    """Adam as a pair of functions, here and in Optax."""

    decay = "b1"

    def __init__(self, library):
        self.library = library

    def make(self, **options):
        return self.library.adam(1e-3, **options)

    def schedule(self):
        return self.library.linear_schedule(0.9, 0.8, 10)

    def moments(self, dtype, gradients, **options):
        """The parameters after steps along these gradients, and the second moments on the way."""
        tx, params = self.make(**options), jnp.ones(SIZE, dtype)
        state, found = tx.init(params), []
        for gradient in gradients:
            updates, state = tx.update(jnp.full(SIZE, gradient, dtype), state, params)
            params = optax.apply_updates(params, updates)
            found.append(float(jax.tree.leaves(state)[-1].reshape(-1)[0]))
        return np.asarray(params, np.float32), found

    def config(self):
        tx = self.make()
        return self.library.from_config(json.loads(json.dumps(self.library.to_config(tx)))) == tx

    def state_bytes(self):
        tx = self.make()
        if self.library is gradtx:
            tx = gradtx.store(tx, "int8")
        state = jax.eval_shape(tx.init, jnp.ones(SIZE))
        return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))


class Keras:
    decay = "beta_1"

    def __init__(self):
        self.library = pytest.importorskip("keras")
        if self.library.backend.backend() != "jax":
            pytest.skip("Keras runs on another backend here")

    def make(self, **options):
        return self.library.optimizers.Adam(1e-3, **options)

    def schedule(self):
        return self.library.optimizers.schedules.PolynomialDecay(0.9, 10, 0.8)

    def trained(self, dtype, gradients, **options):
        variable = self.library.Variable(np.ones(SIZE), dtype=dtype)
        optimizer, found = self.make(**options), []
        optimizer.build([variable])
        for gradient in gradients:
            optimizer.apply_gradients([(jnp.full(SIZE, gradient, dtype), variable)])
            found.append(float(np.asarray(optimizer.variables[-1].value, np.float32)[0]))
        return variable, optimizer, found

    def moments(self, dtype, gradients, **options):
        variable, _, found = self.trained(dtype, gradients, **options)
        return np.asarray(variable.value, np.float32), found

    def config(self):
        optimizers, made = self.library.optimizers, self.make()
        again = optimizers.deserialize(json.loads(json.dumps(optimizers.serialize(made))))
        return again.get_config() == made.get_config()

    def state_bytes(self):
        _, optimizer, _ = self.trained("float32", ())
        return sum(np.asarray(x.value).nbytes for x in optimizer.variables)


class Torch:
    decay = "betas"

    def __init__(self, path):
        self.torch = pytest.importorskip("torch")
        pytest.importorskip(path.partition(".")[0])
        self.builder = pytest.importorskip(path.rpartition(".")[0])
        self.builder = getattr(self.builder, path.rpartition(".")[2])

    def make(self, params=None, **options):
        params = self.torch.nn.Parameter(self.torch.ones(SIZE)) if params is None else params
        options = {k: (v, 0.999) if k == "betas" else v for k, v in options.items()}
        return self.builder([params], lr=1e-3, **options)

    def schedule(self):
        return lambda count: 0.9

    def trained(self, dtype, gradients, **options):
        ones = self.torch.ones(SIZE, dtype=getattr(self.torch, dtype))
        params, found = self.torch.nn.Parameter(ones), []
        optimizer = self.make(params, **options)
        for gradient in gradients:
            params.grad = self.torch.full_like(params, gradient)
            optimizer.step()
            state = optimizer.state[params]
            found.append(float(state["absmax2" if "absmax2" in state else "exp_avg_sq"][0]))
        return params, optimizer, found

    def moments(self, dtype, gradients, **options):
        params, _, found = self.trained(dtype, gradients, **options)
        return params.detach().float().numpy(), found

    def config(self):
        made = self.make()
        return json.loads(json.dumps(made.get_config())) == made.get_config()

    def state_bytes(self):
        params, optimizer, _ = self.trained("float32", (0.5,))
        state = {k: v for k, v in optimizer.state[params].items() if "qmap" not in k}  # tables
        return sum(x.nbytes for x in state.values() if hasattr(x, "nbytes") and x.ndim)


ADAMS = {
    "gradtx": lambda: Pair(gradtx),
    "Optax": lambda: Pair(optax),
    "Keras": Keras,
    "PyTorch": lambda: Torch("torch.optim.Adam"),
    "bitsandbytes": lambda: Torch("bitsandbytes.optim.Adam8bit"),
}


def refuses(adam):
    try:
        adam.make(**{adam.decay: 1.5})
    except (TypeError, ValueError):
        return True
    return False


def takes_schedule(adam):
    try:
        adam.moments("float32", (1.0, 1.0), **{adam.decay: adam.schedule()})
    except Exception:  # each fails in its own way
        return False
    return True


def has_config(adam):
    try:
        return adam.config()
    except (AttributeError, TypeError):
        return False


def decays(adam):
    _, found = adam.moments("bfloat16", (0.5, *[0.0] * 50))
    return found[-1] < 0.99 * found[0]


QUESTIONS = {
    "`repr` shows the learning rate": lambda adam: "0.001" in repr(adam.make()),
    "equal to another built by the same call": lambda adam: bool(adam.make() == adam.make()),
    "can be rebuilt from JSON": has_config,
    "refuses a decay of 1.5": refuses,
    "takes a schedule for the decay": takes_schedule,
    "finite after a gradient of zero in float16": lambda adam: bool(
        np.isfinite(adam.moments("float16", (0.0,))[0]).all()
    ),
    "the second moment decays in bfloat16": decays,
    "state in at most 2.1 bytes a parameter": lambda adam: adam.state_bytes() <= 2.1 * SIZE,
}


def test_each_row_has_a_test():
    assert list(ADAMS) == LIBRARIES
    assert [row[0] for row in LINES[1:]] == list(QUESTIONS)


@pytest.mark.slow
@pytest.mark.parametrize("library", ADAMS)
@pytest.mark.filterwarnings("ignore")  # of other libraries
def test_a_column_of_the_table(library):
    adam = ADAMS[library]()
    found = {question: asked(adam) for question, asked in QUESTIONS.items()}
    assert {q: "yes" if x else "no" for q, x in found.items()} == {
        q: CELLS[q, library] for q in QUESTIONS
    }
