"""Every optimizer on three small problems with real data, each with a short tuning.

    python -m benchmarks.convergence [NAME ...]

The learning rate is chosen from one grid for all, by the validation loss of one run each (the runs
of an optimizer are one program); the table shows the result on test data. Everything else stays at
its default, except for what `OPTIMIZERS` says.

- digits: scikit-learn's 1,797 handwritten digits, a hidden layer of 64, batches of 64.
- factors: scikit-learn's breast cancer table (569 x 30, standardized) as a product of rank 4, from
  60 % of its entries, all in every step; the loss has the factors' squares added.
- text: the next character from the last 8, in the descriptions of the data sets that scikit-learn
  carries (about 20,000 characters), batches of 64.
"""

import contextlib
import functools
import inspect
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from sklearn import datasets

import gradtx
from benchmarks.tables import markdown
from gradtx.names.namespace import homes

STEPS = 300
BATCH = 64
RATES = tuple(float(f"{10**e:.1g}") for e in np.arange(-5, 1.1, 0.5))  # 1e-5, 3e-5, ..., 3, 10

Params = Any


class Problem(NamedTuple):
    """What is trained, on which batches, and how the result is judged: smaller is better."""

    params: Params
    batches: Any  # stacked along the first axis, one for each step
    loss: Callable[[Params, Any], jax.Array]
    validation: Any
    test: Callable[[Params], jax.Array]


def dense(rng: np.random.Generator, rows: int, columns: int) -> jax.Array:
    return jnp.asarray(rng.normal(size=(rows, columns)) * np.sqrt(2 / rows), jnp.float32)


def layers(rng: np.random.Generator, *sizes: int) -> Params:
    return [{"w": dense(rng, a, b), "b": jnp.zeros(b)} for a, b in itertools.pairwise(sizes)]


def logits(params: Params, x: jax.Array) -> jax.Array:
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def cross_entropy(outputs: jax.Array, labels: jax.Array) -> jax.Array:
    chosen = jnp.take_along_axis(jax.nn.log_softmax(outputs), labels[:, None], axis=1)
    return -jnp.mean(chosen)


def drawn(rng: np.random.Generator, *arrays: Any) -> Any:
    """Batches with replacement, one for each step."""
    picks = rng.integers(len(arrays[0]), size=(STEPS, BATCH))
    return tuple(jnp.asarray(a[picks]) for a in arrays)


def digits() -> Problem:
    rng = np.random.default_rng(0)
    images, labels = datasets.load_digits(return_X_y=True)
    order = rng.permutation(len(images))
    images, labels = (images / 16).astype(np.float32)[order], labels[order]
    train, validation, test = (
        (images[part], labels[part]) for part in (slice(1197), slice(1197, 1497), slice(1497, None))
    )

    def loss(params: Params, batch: Any) -> jax.Array:
        return cross_entropy(logits(params, batch[0]), batch[1])

    def errors(params: Params) -> jax.Array:
        return 100 * jnp.mean(jnp.argmax(logits(params, test[0]), axis=1) != test[1])

    return Problem(layers(rng, 64, 64, 10), drawn(rng, *train), loss, validation, errors)


def factors() -> Problem:
    rng = np.random.default_rng(0)
    table = datasets.load_breast_cancer().data
    table = jnp.asarray((table - table.mean(0)) / table.std(0), jnp.float32)
    part = rng.choice(3, size=table.shape, p=(0.6, 0.2, 0.2))
    train, validation, test = (jnp.asarray(part == i, jnp.float32) for i in range(3))
    params = {
        "rows": jnp.asarray(0.1 * rng.normal(size=(table.shape[0], 4)), jnp.float32),
        "columns": jnp.asarray(0.1 * rng.normal(size=(table.shape[1], 4)), jnp.float32),
    }

    def error(params: Params, mask: jax.Array) -> jax.Array:
        residual = mask * (params["rows"] @ params["columns"].T - table)
        return jnp.sum(residual**2) / jnp.sum(mask)

    def loss(params: Params, mask: jax.Array) -> jax.Array:
        return error(params, mask) + gradtx.tree.norm(params, squared=True) / jnp.sum(mask)

    batches = jnp.broadcast_to(train, (STEPS, *train.shape))
    return Problem(params, batches, loss, validation, lambda p: jnp.sqrt(error(p, test)))


def text() -> Problem:
    rng = np.random.default_rng(0)
    names = ("digits", "iris", "wine", "breast_cancer", "diabetes", "linnerud")
    characters = "".join(getattr(datasets, f"load_{name}")().DESCR for name in names)
    alphabet = sorted(set(characters))
    codes = np.array([alphabet.index(c) for c in characters])
    windows = np.lib.stride_tricks.sliding_window_view(codes, 9)
    block = np.arange(len(windows)) // 200 % 10  # every ninth and tenth block is held out
    train, validation, test = windows[block < 8], windows[block == 8], windows[block == 9]
    params = {
        "embedding": jnp.asarray(rng.normal(size=(len(alphabet), 16)), jnp.float32),
        "layers": layers(rng, 8 * 16, 96, len(alphabet)),
    }

    def loss(params: Params, batch: Any) -> jax.Array:
        x = params["embedding"][batch[0][:, :-1]].reshape(len(batch[0]), -1)
        return cross_entropy(logits(params["layers"], x), batch[0][:, -1])

    bits = 1 / np.log(2)
    return Problem(
        params, drawn(rng, train), loss, (validation,), lambda p: bits * loss(p, (test,))
    )


PROBLEMS: dict[str, tuple[Callable[[], Problem], str]] = {
    "digits": (digits, "errors, %"),
    "factors": (factors, "RMSE"),
    "text": (text, "bits / character"),
}

# What differs from the defaults, and what is not an optimizer by itself.
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd, momentum": functools.partial(gradtx.sgd, momentum=0.9, nesterov=True),
    "adafactor": functools.partial(gradtx.adafactor, min_dim_size_to_factor=16),
    "apollo": functools.partial(gradtx.apollo, rank=4),
    "fira": functools.partial(gradtx.fira, rank=4),
    "galore": functools.partial(gradtx.galore, rank=4),
    "kl_shampoo": functools.partial(gradtx.kl_shampoo, max_precond_dim=128),
    "kl_soap": functools.partial(gradtx.kl_soap, max_precond_dim=128),
    "kron": functools.partial(gradtx.kron, max_size_triangular=128),
    "shampoo": functools.partial(gradtx.shampoo, block_size=128),
    "soap": functools.partial(gradtx.soap, max_precond_dim=128),
    "soap_muon": functools.partial(gradtx.soap_muon, max_precond_dim=128),
    "splus": functools.partial(gradtx.splus, max_precond_dim=128),
    "schedule_free_sgd": gradtx.schedule_free_sgd,
    "schedule_free_adamw": gradtx.schedule_free_adamw,
    "cautious adamw": lambda learning_rate: gradtx.cautious(gradtx.adamw(learning_rate)),
    "mechanize sgd": lambda: gradtx.mechanize(gradtx.sgd(1.0)),
}
# A processor takes many small decompositions one after another faster than as a batch.
ONE_BY_ONE = ("conda", "fira", "kl_shampoo", "kl_soap", "shampoo", "soap", "soap_muon", "splus")
NOT_ALONE = ("mars", "orthogonalize", "sizes_and_directions")


def optimizers() -> dict[str, Callable[..., Any]]:
    """Every optimizer that gradtx publishes, by name."""
    found: dict[str, Callable[..., Any]] = {}
    for name in homes("gradtx"):
        build = getattr(gradtx, name)
        builder = getattr(build, "builder", None)
        if builder is None or not builder.function.__module__.startswith("gradtx.optimizers."):
            continue
        if not name.startswith("scale_by_") and "estimator" not in name and name not in NOT_ALONE:
            found[name] = build
    return dict(sorted({**found, **OPTIMIZERS}.items()))


def rate_name(build: Callable[..., Any]) -> str | None:
    """The argument that is tuned; L-BFGS searches along a line instead."""
    names = inspect.signature(build).parameters
    if "memory_size" in names:
        return None
    return next((n for n in ("learning_rate", "max_learning_rate") if n in names), None)


def train(problem: Problem, build: Callable[[Any], Any], rate: Any) -> tuple[Any, Any, Any]:
    """The losses on validation and test data after training, and those on the way."""
    tx = gradtx.with_extra_args_support(build(rate))

    def step(carry: Any, batch: Any) -> tuple[Any, Any]:
        params, state = carry
        value, grads = jax.value_and_grad(problem.loss)(params, batch)
        updates, state = tx.update(
            grads,
            state,
            params,
            value=value,
            loss=value,
            grad=grads,
            value_fn=lambda p, **_: problem.loss(p, batch),
        )
        return (gradtx.apply_updates(params, updates), state), value

    start = problem.params, tx.init(problem.params)
    (params, state), path = jax.lax.scan(step, start, problem.batches)
    with contextlib.suppress(ValueError):  # it keeps no average
        params = gradtx.eval_params(tx, state, params)
    return problem.loss(params, problem.validation), problem.test(params), path


def tuned(name: str, problem: str) -> tuple[str, float]:
    """The learning rate that is best on validation data, and its result on test data."""
    build, made = optimizers()[name], PROBLEMS[problem][0]()
    argument = rate_name(build)
    if argument is None:
        _, result, _ = jax.jit(lambda: train(made, lambda rate: build(), None))()
        return "-", float(result)

    def run(rate: Any) -> tuple[Any, Any]:
        return train(made, lambda r: build(**{argument: r}), rate)[:2]

    rates = jnp.asarray(RATES)
    one_by_one = name in ONE_BY_ONE
    losses, results = jax.jit(lambda x: jax.lax.map(run, x) if one_by_one else jax.vmap(run)(x))(
        rates
    )
    best = int(np.argmin(np.nan_to_num(losses, nan=np.inf)))
    return f"{RATES[best]:g}", float(results[best])


def row(name: str) -> list[object]:
    cells: list[object] = [name]
    for problem in PROBLEMS:
        cells += reversed(tuned(name, problem))
    return cells


def rows(names: list[str]) -> Iterator[list[object]]:
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for cells in pool.map(row, names):
            print(*cells, file=sys.stderr, flush=True)
            yield cells


def table(names: list[str]) -> str:
    columns = [c for name, (_, unit) in PROBLEMS.items() for c in (f"{name}: {unit}", "rate")]
    return markdown(f"After {STEPS} steps, on test data", ["optimizer", *columns], rows(names))


if __name__ == "__main__":
    print(table(sys.argv[1:] or list(optimizers())))
