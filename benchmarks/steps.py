"""One donated step on 16M float32 parameters in one leaf: time and temporary bytes.

python -m benchmarks.steps [LABEL or EXPRESSION ...]
"""

import statistics
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.pairs import Library, Pair, chosen, libraries
from benchmarks.tables import markdown, size
from benchmarks.timing import Donated, interleaved, ratio

PARAMETERS = 1 << 24
ALLOCATIONS = 6
ROUNDS = 7  # on each allocation


def gradient() -> jax.Array:
    return jax.random.normal(jax.random.key(0), (PARAMETERS,))


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


def measure(pair: Pair, rounds: int) -> list[object]:
    params = gradient()
    ours, theirs = libraries(pair)
    ours_step, theirs_step = (compiled(library, params) for library in (ours, theirs))
    streaming, carry = stream(params, jax.eval_shape(theirs.tx.init, params))
    make: list[tuple[str, Callable[[], Donated]]] = [
        ("gradtx", lambda: Donated(ours_step, (params, ours.tx.init(params)), params)),
        ("optax", lambda: Donated(theirs_step, (params, theirs.tx.init(params)), params)),
        ("stream", lambda: Donated(streaming, (carry,), params)),
    ]
    seconds: dict[str, list[float]] = {name: [] for name, _ in make}
    for turn in range(ALLOCATIONS):
        # Where the arrays come to lie in memory moves the time of one and the same program by 5 %:
        # lay them out anew, in another order, several times.
        order = make[turn % 3 :] + make[: turn % 3]
        for name, times in interleaved({name: new() for name, new in order}, rounds).items():
            seconds[name] += times
    ms = {name: 1e3 * statistics.median(times) for name, times in seconds.items()}
    return [
        pair.label,
        size(ours_step.memory_analysis().temp_size_in_bytes),
        size(theirs_step.memory_analysis().temp_size_in_bytes),
        ms["gradtx"],
        ms["optax"],
        ratio(seconds["optax"], seconds["gradtx"]),
        1e6 * ms["gradtx"] / PARAMETERS,
        ratio(seconds["gradtx"], seconds["stream"]),
        ratio(seconds["optax"], seconds["stream"]),
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
        [measure(pair, rounds) for pair in pairs if pair.optax],
    )


if __name__ == "__main__":
    print(table(chosen(sys.argv[1:])))
