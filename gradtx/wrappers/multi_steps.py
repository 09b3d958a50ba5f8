"""Accumulation under Optax's names."""

from typing import Any

import jax.numpy as jnp

from gradtx.checks import PositiveCount
from gradtx.core.pair import GradientTransformation, transformation, with_extra_args_support
from gradtx.types import Array, DType, Params, State, Updates
from gradtx.wrappers.accumulation import (
    MicroBatches,
    MultiStepsState,
    Skip,
    accumulating,
    has_updated,
)


class MultiSteps:
    """:func:`accumulate` under Optax's name, without weights.

    Kept for code written for Optax; :func:`accumulate` is preferred.

    Args:
        opt: the optimizer.
        every_k_schedule: the number of micro-batches in a window, at least 1, or a schedule of the
            number of windows so far.
        use_grad_mean: take the mean, otherwise the sum.
        should_skip_update_fn: which micro-batches to leave out, as in :func:`accumulate`.
        accumulator_dtype: the type of the accumulator.

    Raises:
        ValueError: the window is below 1.

    >>> import gradtx
    >>> tx = MultiSteps(gradtx.sgd(1.0), 2)
    >>> updates, state = tx.update(jnp.ones(1), tx.init(jnp.zeros(1)))
    >>> updates.tolist(), bool(tx.has_updated(state))
    ([0.0], False)
    """

    def __init__(
        self,
        opt: GradientTransformation,
        every_k_schedule: Any,
        use_grad_mean: bool = True,
        should_skip_update_fn: Skip | None = None,
        accumulator_dtype: DType = jnp.float32,
    ) -> None:
        self.inner_opt = with_extra_args_support(opt)
        self._pair = multi_steps(
            opt,
            every_k_schedule,
            use_grad_mean=use_grad_mean,
            should_skip_update_fn=should_skip_update_fn,
            accumulator_dtype=accumulator_dtype,
        )

    def init(self, params: Params) -> MultiStepsState:
        return self._pair.init(params)

    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, MultiStepsState]:
        return self._pair.update(updates, state, params, **extra_args)

    def __repr__(self) -> str:
        return repr(self._pair)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MultiSteps) and self._pair == other._pair

    def __hash__(self) -> int:
        return hash(self._pair)

    def has_updated(self, state: State) -> Array:
        return has_updated(state)

    def gradient_transformation(self) -> GradientTransformation:
        return self._pair


@transformation(native_schedules=True, update_size="proportional")
def multi_steps(
    opt: GradientTransformation,
    every_k_schedule: PositiveCount,
    *,
    use_grad_mean: bool = True,
    should_skip_update_fn: Skip | None = None,
    accumulator_dtype: DType | None = jnp.float32,
) -> GradientTransformation:
    """What ``MultiSteps(...).gradient_transformation()`` is: Optax's state, and no weights.

    Kept for code written for Optax; :func:`accumulate` is preferred.

    Args:
        opt: the optimizer.
        every_k_schedule: this and the rest as in :func:`accumulate`.
        use_grad_mean: take the mean, otherwise the sum.
        should_skip_update_fn: which micro-batches to leave out.
        accumulator_dtype: the type of the accumulator.

    State: `MultiStepsState`.

    >>> import gradtx
    >>> tx = multi_steps(gradtx.sgd(1.0), 2)
    >>> state = tx.init(jnp.zeros(1))
    >>> for g in (1.0, 3.0):
    ...     updates, state = tx.update(jnp.array([g]), state)
    >>> updates.tolist()
    [-2.0]
    """
    window = MicroBatches(
        every_k_schedule, use_grad_mean, should_skip_update_fn, accumulator_dtype, weighted=False
    )
    return accumulating(opt, window)
