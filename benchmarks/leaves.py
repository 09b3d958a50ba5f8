"""What a tree of many small leaves costs: tracing, compiling and running a step.

python -m benchmarks.leaves [EXPRESSION] [COUNT ...]
"""

import functools
import statistics
import sys
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from benchmarks.pairs import Library, Pair, libraries, same
from benchmarks.tables import markdown
from benchmarks.timing import Donated, interleaved, once, ratio

COUNTS = (10, 50, 200, 500, 1000, 2000)
LEAF = (64,)
TRACES = 3
EXPRESSION = "adam(1e-3)"


class Built(NamedTuple):
    step: Donated
    tracing: float  # seconds, lowering included
    compiling: float


def build_step(library: Library, count: int) -> Built:
    params = {f"layer{i}": jnp.full(LEAF, 0.5) for i in range(count)}
    gradients = jax.tree.map(jnp.ones_like, params)
    state = library.tx.init(params)
    tracing = []
    for _ in range(TRACES):
        # A copy of the library has a step of its own: jax would remember the trace of the same one.
        step = jax.jit(library._replace().step, donate_argnums=(0, 1))
        lowered, elapsed = once(functools.partial(step.lower, params, state, gradients))
        tracing.append(elapsed)
    executable, compiling = once(lowered.compile)
    return Built(Donated(executable, (params, state), gradients), min(tracing), compiling)


def measure(pair: Pair, count: int) -> list[object]:
    ours, theirs = (build_step(library, count) for library in libraries(pair))
    seconds = interleaved({"gradtx": ours.step, "optax": theirs.step}, rounds=50)
    row: list[object] = [count]
    for mine, other in ((ours.tracing, theirs.tracing), (ours.compiling, theirs.compiling)):
        row += [1e3 * mine, 1e3 * other, other / mine]
    row += [1e3 * statistics.median(seconds[name]) for name in ("gradtx", "optax")]
    return [*row, ratio(seconds["optax"], seconds["gradtx"])]


def table(expression: str = EXPRESSION, counts: Sequence[int] = COUNTS) -> str:
    pair = same(expression, expression)
    measure(pair, 2)  # the first trace in a process pays for what jax imports and caches
    columns = [
        f"{what}{column}"
        for what in ("trace", "compile", "step")
        for column in (", ms", ", ms, optax", ", optax / gradtx")
    ]
    return markdown(
        f"{expression} on equal leaves of {LEAF[0]}, on {jax.default_backend()}",
        ["leaves", *columns],
        [measure(pair, count) for count in counts],
    )


if __name__ == "__main__":
    words = sys.argv[1:]
    numbers = [int(word) for word in words if word.isdigit()]
    named = [word for word in words if not word.isdigit()]
    print(table(named[0] if named else EXPRESSION, numbers or COUNTS))
