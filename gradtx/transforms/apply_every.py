"""Updates collected over several steps."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checks import PositiveCount
from gradtx.core.pair import GradientTransformation, GradientTransformationExtraArgs, transformation
from gradtx.leaves.paths import is_leaf
from gradtx.numerics import cast, increment, widen
from gradtx.transforms.accumulators import fitting, map_accumulated, zeros
from gradtx.types import Array, Params, Slots, State, Updates, WindowCounter


class ApplyEvery(NamedTuple):
    """count: i32[], steps in this window; grad_acc: like the parameters."""

    count: WindowCounter
    grad_acc: Slots


@transformation
def apply_every(k: PositiveCount = 1) -> GradientTransformation:
    """Collect updates and pass on their sum at every `k`-th step, zero at the others.

    Kept for code written for Optax; :func:`accumulate` is preferred.

    Args:
        k: the length of a window, at least 1; a schedule is called with the number of all steps.

    State: `ApplyEvery`. The transformations before it run at every step; to run the optimizer once
    per window, see :func:`accumulate`. The sum is kept in float32 or wider, and each window starts
    afresh, even after a NaN. `Rows` are collected as whole tables. A leaf that has no gradient at
    the step that passes the sum on gets no update, and its sum is dropped.

    >>> tx = apply_every(2)
    >>> state = tx.init(jnp.zeros(1))
    >>> for g in (1.0, 3.0):
    ...     updates, state = tx.update(jnp.array([g]), state)
    >>> updates.tolist()
    [4.0]
    """

    def init(params: Params) -> State:
        acc = jax.tree.map(lambda p: zeros(p, None), params, is_leaf=is_leaf)
        return ApplyEvery(jnp.zeros([], jnp.int32), acc)

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        del params, extra_args
        count = increment(state.count)
        emit, first = count >= k, state.count == 0

        def add(g: Any, a: Array) -> Array:
            before = jnp.where(first, 0, a)
            return before if g is None else cast(widen(g) + before, a.dtype)

        def pick(g: Any, a: Array) -> Array:
            return cast(jnp.where(emit, a, 0), g.dtype)

        updates = fitting(updates, state.grad_acc)
        acc = map_accumulated(add, updates, state.grad_acc)
        updates = map_accumulated(pick, updates, acc, keep=False)
        return updates, ApplyEvery(jnp.where(emit, 0, count), acc)

    return GradientTransformationExtraArgs(init, update)
