"""The cross entropy of a linear layer in chunks of words, against the loss from whole logits.

    python -m benchmarks.linear_loss [memory] [times] [errors]

The value and the gradients of the mean over tokens. Temporary bytes are XLA's, compiled for chips
that this machine may lack (see benchmarks.aot); times are taken on a CPU in turns; errors are those
of the gradients in bfloat16, in the norm of each, against NumPy's double precision.
"""

import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from benchmarks import aot  # first: it tells jax what to assume

# isort: split
import jax
import jax.numpy as jnp
import numpy as np
import scipy.special as sp
from jax.sharding import SingleDeviceSharding

import gradtx
from benchmarks.tables import markdown, size
from benchmarks.timing import interleaved, ratio

Loss = Callable[..., jax.Array]


class Case(NamedTuple):
    tokens: int
    words: int
    features: int
    dtype: str = "bfloat16"
    masked: bool = False

    @property
    def label(self) -> str:
        return f"{self.tokens:,} x {self.words:,} x {self.features:,}" + ", masked" * self.masked

    def arguments(self) -> list[jax.ShapeDtypeStruct]:
        floats = ((self.tokens, self.features), (self.words, self.features))
        return [
            *(jax.ShapeDtypeStruct(shape, self.dtype) for shape in floats),
            jax.ShapeDtypeStruct((self.tokens,), jnp.int32),
        ]

    def numbers(self) -> list[jax.Array]:
        """Inputs of size 1 and weights that make logits of size 1."""
        rng = np.random.default_rng(0)
        x, w, y = self.arguments()
        return [
            jnp.asarray(rng.normal(size=x.shape), x.dtype),
            jnp.asarray(rng.normal(size=w.shape) / self.features**0.5, w.dtype),
            jnp.asarray(rng.integers(0, self.words, y.shape), y.dtype),
        ]

    def step(self, loss: Loss) -> Callable[..., Any]:
        def mean(x: jax.Array, w: jax.Array, y: jax.Array) -> jax.Array:
            where = y != -100 if self.masked else None
            return jnp.mean(loss(x, w, y, where=where))

        return jax.value_and_grad(mean, (0, 1))


def whole(x: jax.Array, w: jax.Array, y: jax.Array, where: Any = None) -> jax.Array:
    return gradtx.softmax_cross_entropy_with_integer_labels(x @ w.T, y, where=where)


TOKENS = 8192
# 128K words; the vocabulary of Llama 3; that of GPT-2, which no multiple of 128 divides.
ASSERTED = [
    Case(TOKENS, 131_072, 2048),
    Case(TOKENS, 131_072, 4096),
    Case(TOKENS, 128_256, 4096),
    Case(TOKENS, 50_257, 4096, masked=True),
]
TIMED = [
    Case(1024, 32_768, features, dtype)
    for dtype in ("bfloat16", "float32")
    for features in (256, 512, 1024)
]
ERRORS = Case(512, 32_768, 256)


def temporary(case: Case, loss: Loss, device: Any) -> int:
    here = SingleDeviceSharding(device)
    step = jax.jit(case.step(loss), in_shardings=here, out_shardings=here)
    memory: Any = step.lower(*case.arguments()).compile().memory_analysis()
    return int(memory.temp_size_in_bytes)


def figures(cases: Iterable[Case]) -> Iterator[tuple[str, str, int]]:
    """For every case and chip the temporary bytes of the loss in chunks."""
    devices = aot.available()
    for case in cases:
        for chip, device in devices.items():
            yield case.label, chip, temporary(case, gradtx.linear_softmax_cross_entropy, device)


def memory() -> str:
    devices = aot.available()
    losses = {"chunks": gradtx.linear_softmax_cross_entropy, "whole": whole}
    rows = [
        [
            case.label,
            *(
                size(temporary(case, loss, device))
                for device in devices.values()
                for loss in losses.values()
            ),
        ]
        for case in ASSERTED
    ]
    header = [f"{chip}: {name}" for chip in devices for name in losses]
    title = "Temporary bytes of the loss of a linear layer and its gradients, in bfloat16"
    return markdown(title, ["tokens x words x features", *header], rows)


def times() -> str:
    rows: list[list[object]] = []
    for case in TIMED:
        numbers = case.numbers()

        def run(loss: Loss, case: Case = case, numbers: Any = numbers) -> Callable[[], None]:
            compiled = jax.jit(case.step(loss)).lower(*numbers).compile()
            return lambda: jax.block_until_ready(compiled(*numbers)) and None

        runs = {"chunks": run(gradtx.linear_softmax_cross_entropy), "whole": run(whole)}
        seconds = interleaved(runs, rounds=7)
        medians = [1e3 * statistics.median(taken) for taken in seconds.values()]
        rows.append([case.label, case.dtype, *medians, ratio(seconds["chunks"], seconds["whole"])])
    header = ["tokens x words x features", "type", "chunks, ms", "whole, ms", "chunks / whole"]
    return markdown("Time of the loss of a linear layer and its gradients, on cpu", header, rows)


def exact(x: np.ndarray, w: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The gradients with respect to inputs and weights."""
    logits = x @ w.T
    d = (sp.softmax(logits, -1) - np.eye(len(w))[y]) / len(x)
    return d @ w, d.T @ x


def errors() -> str:
    x, w, y = ERRORS.numbers()
    want = exact(np.asarray(x, np.float64), np.asarray(w, np.float64), np.asarray(y))

    def off(gradients: Iterable[Any]) -> list[object]:
        return [
            float(np.linalg.norm(np.asarray(g, np.float64) - v) / np.linalg.norm(v))
            for g, v in zip(gradients, want, strict=True)
        ]

    losses = {"chunks": gradtx.linear_softmax_cross_entropy, "whole": whole}
    rows = [[name, *off(jax.jit(ERRORS.step(loss))(x, w, y)[1])] for name, loss in losses.items()]
    rows.append(["exact, rounded to bfloat16", *off([v.astype(jnp.bfloat16) for v in want])])
    wide = [v.astype(jnp.float32) for v in (x, w)]
    step = jax.jit(ERRORS.step(gradtx.linear_softmax_cross_entropy))
    rows.append(["chunks, in float32", *off(step(*wide, y)[1])])
    title = f"Relative errors of gradients, {ERRORS.label}, in bfloat16"
    return markdown(title, ["", "inputs", "weights"], rows)


TABLES = {"memory": memory, "times": times, "errors": errors}

if __name__ == "__main__":
    for name in sys.argv[1:] or TABLES:
        print(TABLES[name](), flush=True)
