"""A window of micro-batches on 16M float32 parameters: temporary bytes, and time by window length.

python -m benchmarks.accumulation
"""

import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

import gradtx
from benchmarks.tables import markdown, size
from benchmarks.timing import Donated, interleaved, ratio

SHAPE = (4096, 4096)
ROUNDS = 9
WINDOWS = (1, 4, 16)

Step = Callable[..., Any]


def by_hand(tx: Any, apply_updates: Step) -> Step:
    def step(params: Any, state: Any, gradient: Any) -> Any:
        updates, state = tx.update(gradient, state, params)
        return apply_updates(params, updates), state

    return step


def ways(every: int) -> dict[str, tuple[Any, Step]]:
    ours = gradtx.accumulate(gradtx.adam(1e-3), every)
    theirs = optax.MultiSteps(optax.adam(1e-3), every).gradient_transformation()
    return {
        "gradtx": (ours, lambda p, s, g: gradtx.apply_gradients(ours, g, p, s)),
        "gradtx, update by hand": (ours, by_hand(ours, gradtx.apply_updates)),
        "optax": (theirs, by_hand(theirs, optax.apply_updates)),
    }


def rows(every: int) -> list[list[object]]:
    """For every way its temporary bytes and the median time of a whole window."""
    gradient = jax.random.normal(jax.random.key(0), SHAPE)
    runs, temporary = {}, {}
    for name, (tx, step) in ways(every).items():
        state = tx.init(jnp.zeros(SHAPE))
        jitted = jax.jit(step, donate_argnums=(0, 1))
        compiled = jitted.lower(gradient, state, gradient).compile()
        temporary[name] = compiled.memory_analysis().temp_size_in_bytes
        micro_step = Donated(compiled, (gradient, state), gradient)

        def window(micro_step: Donated = micro_step) -> None:
            for _ in range(every):
                micro_step()

        runs[name] = window
    seconds = interleaved(runs, ROUNDS)
    return [
        [
            every,
            name,
            size(temporary[name]),
            1e3 * statistics.median(times) / every,
            ratio(seconds["optax"], times),
        ]
        for name, times in seconds.items()
    ]


def table() -> str:
    return markdown(
        f"Gradient accumulation: adam(1e-3), 16M parameters, on {jax.default_backend()}",
        ["window", "", "temporary", "ms a micro-batch", "optax / this"],
        [row for every in WINDOWS for row in rows(every)],
    )


if __name__ == "__main__":
    print(table())
