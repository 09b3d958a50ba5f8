"""What a call from Python costs: `make_step` against the same step under a bare `jax.jit`.

python -m benchmarks.dispatch [COUNT ...]
"""

import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

import gradtx
from benchmarks.tables import markdown
from benchmarks.timing import interleaved, ratio

COUNTS = (10, 150, 2000)
TOGETHER = 10  # steps in one call
CALLS = 10  # in a round
ROUNDS = 30


def loss(params: Any, x: Any) -> Any:
    return x * params["0"][0]


class Calls:
    """Some calls, one after another, of a step that donates its arguments."""

    def __init__(self, step: Any, params: Any, state: Any, x: Any, calls: int) -> None:
        self._step, self._x, self._calls = step, x, calls
        self._carry = jax.tree.map(jnp.copy, (params, state))

    def __call__(self) -> None:
        for _ in range(self._calls):
            self._carry = self._step(*self._carry, self._x)[:2]
        jax.block_until_ready(self._carry)


def measure(count: int) -> list[object]:
    tx = gradtx.sgd(1e-3, momentum=0.9)
    params = {str(i): jnp.ones(1) for i in range(count)}

    def bare(params: Any, state: Any, x: Any) -> Any:
        return gradtx.minimize(loss, tx, params, state, x)

    made = gradtx.make_step(loss, tx)
    together = gradtx.make_step(loss, tx, steps=TOGETHER)
    state, x = made.init(params), jnp.float32(1.0)
    packed = gradtx.pack(params)
    seconds = interleaved(
        {
            "jit": Calls(jax.jit(bare, donate_argnums=(0, 1)), params, state, x, CALLS),
            "made": Calls(made, params, state, x, CALLS),
            "together": Calls(together, params, state, jnp.full(TOGETHER, x), CALLS // TOGETHER),
            "packed": Calls(made, packed, made.init(packed), x, CALLS),
        },
        ROUNDS,
        clock=time.process_time,  # what calls cost Python, whatever else the machine does
    )
    beside = [ratio(seconds[name], seconds["jit"]) for name in ("made", "together", "packed")]
    return [count, 1e6 * statistics.median(seconds["jit"]) / CALLS, *beside]


def table(counts: Sequence[int] = COUNTS) -> str:
    return markdown(
        f"Time of a step on leaves of one number, on {jax.default_backend()}",
        ["leaves", "jax.jit, us", "make_step", f"with steps={TOGETHER}", "packed"],
        map(measure, counts),
    )


if __name__ == "__main__":
    print(table([int(word) for word in sys.argv[1:]] or COUNTS))
