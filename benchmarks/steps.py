"""One donated step on 16M float32 parameters in one leaf: time and temporary bytes.

python -m benchmarks.steps [LABEL or EXPRESSION ...]
"""

import math
import statistics
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks.pairs import Library, Pair, chosen, libraries
from benchmarks.tables import markdown, size
from benchmarks.timing import Donated, interleaved, ratio

SHAPE = (4096, 4096)
PARAMETERS = math.prod(SHAPE)
ALLOCATIONS = 6
ROUNDS = 7  # on each allocation


def gradient() -> jax.Array:
    return jax.random.normal(jax.random.key(0), SHAPE)


def compiled(library: Library, params: Any) -> Any:
    state = jax.eval_shape(library.tx.init, params)
    return jax.jit(library.step, donate_argnums=(0, 1)).lower(params, state, params).compile()


def stream(params: jax.Array, state: Any) -> tuple[Any, list[jax.Array]]:
    """What the bytes alone cost: gradient and parameter read, parameter written; every slot read
    and written. Each array is its own loop, as fast as this machine streams."""

    def touch(carry: list[jax.Array], g: jax.Array) -> tuple[list[jax.Array]]:
        first, *others = carry
        return ([first + 1e-6 * g, *(x * 0.999 for x in others)],)

    slots = [x for x in jax.tree.leaves(state) if x.size > 1]
    carry = [params, *(jnp.zeros(x.shape, x.dtype) for x in slots)]
    return jax.jit(touch, donate_argnums=0).lower(carry, params).compile(), carry


class Measured(NamedTuple):
    """Temporary bytes of each library's step, and the seconds of every step taken, by name."""

    temporary: dict[str, int]
    seconds: dict[str, list[float]]

    def ms(self, name: str) -> float:
        return 1e3 * statistics.median(self.seconds[name])

    def ratio(self, of: str, to: str) -> float:
        return ratio(self.seconds[of], self.seconds[to])


def measure(pair: Pair, rounds: int, streamed: bool = False) -> Measured:
    """Both libraries' steps, and on request a pass over the same bytes, in turns."""
    params = gradient()
    make: dict[str, Callable[[], Donated]] = {}
    temporary = {}
    for library in libraries(pair):
        step = compiled(library, params)
        temporary[library.name] = step.memory_analysis().temp_size_in_bytes

        def fresh(library: Library = library, step: Any = step) -> Donated:
            return Donated(step, (params, library.tx.init(params)), params)

        make[library.name] = fresh
    if streamed:
        streaming, carry = stream(params, jax.eval_shape(library.tx.init, params))
        make["stream"] = lambda: Donated(streaming, (carry,), params)

    names = list(make)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(ALLOCATIONS):
        # Where the arrays lie in memory changes the time of one and the same program by 5 %:
        # lay them out anew, in another order, several times.
        first = turn % len(names)
        order = names[first:] + names[:first]
        for name, times in interleaved({name: make[name]() for name in order}, rounds).items():
            seconds[name] += times
    return Measured(temporary, seconds)


def row(pair: Pair, rounds: int) -> list[object]:
    found = measure(pair, rounds, streamed=True)
    return [
        pair.label,
        *(size(found.temporary[name]) for name in ("gradtx", "optax")),
        found.ms("gradtx"),
        found.ms("optax"),
        found.ratio("optax", "gradtx"),
        1e6 * found.ms("gradtx") / PARAMETERS,
        found.ratio("gradtx", "stream"),
        found.ratio("optax", "stream"),
    ]


def table(pairs: list[Pair], rounds: int = ROUNDS) -> str:
    return markdown(
        f"A donated step on {PARAMETERS >> 20}M float32 parameters, on {jax.default_backend()}",
        [
            "optimizer",
            "temp",
            "temp, optax",
            "ms",
            "ms, optax",
            "optax / gradtx",
            "ns / parameter",
            "over streaming",
            "over streaming, optax",
        ],
        [row(pair, rounds) for pair in pairs if pair.optax],
    )


if __name__ == "__main__":
    print(table(chosen(sys.argv[1:])))
