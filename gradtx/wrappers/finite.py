"""Guards: skipping steps whose gradients are not finite, or too large."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx import tree
from gradtx.checks import Count
from gradtx.composition.gate import Decision, gate, reads_entries
from gradtx.core.pair import (
    GradientTransformation,
    transformation,
    with_extra_args_support,
)
from gradtx.numerics import increment
from gradtx.sharding.axes import on_all_devices
from gradtx.tree.sums import all_finite, floating_entries
from gradtx.types import Array, InnerState, Params, PyTree, State, Updates


class ApplyIfFiniteState(NamedTuple):
    """The inner state, and a record of the skipped steps.

    notfinite_count, total_notfinite: i32[], steps skipped since the last good one, and in total;
    last_finite: bool[], whether the last gradient was finite.
    """

    notfinite_count: Any
    last_finite: Any
    total_notfinite: Any
    inner_state: InnerState


@transformation(update_size="proportional")
def apply_if_finite(
    inner: GradientTransformation,
    max_consecutive_errors: Count,
    *,
    accept_at_limit: bool = False,
) -> GradientTransformation:
    """Skip a step whose gradients hold a NaN or an infinity: zero updates, an unchanged state.

    Kept for code written for Optax; :func:`guard` is preferred.

    Args:
        inner: the transformation to guard. Where it aggregates gradients, all devices skip a step
            if one does.
        max_consecutive_errors: how many such steps in a row are acceptable, at least 0. With more,
            something is wrong: a training loop can compare ``state.notfinite_count`` with it.
        accept_at_limit: beyond the limit, run `inner` on the gradients as they are, as Optax does,
            which leaves NaNs in parameters and slots for good. Otherwise they never get there.

    State: `ApplyIfFiniteState`.

    >>> import gradtx
    >>> tx = apply_if_finite(gradtx.adam(0.1), 5)
    >>> updates, state = tx.update(jnp.array([jnp.nan]), tx.init(jnp.zeros(1)))
    >>> updates.tolist(), int(state.notfinite_count)
    ([0.0], 1)
    """
    tx = with_extra_args_support(inner)

    def init(params: Params) -> State:
        now, total = (jnp.zeros([], jnp.int32) for _ in range(2))
        return ApplyIfFiniteState(now, jnp.array(True), total, tx.init(params))

    def decide(
        updates: Updates, state: State, params: Params | None, extra_args: dict[str, Any]
    ) -> Decision:
        del params
        finite = on_all_devices("apply_if_finite", tx, all_finite(updates))
        errors = jnp.where(finite, 0, increment(state.notfinite_count))
        total = jnp.where(finite, state.total_notfinite, increment(state.total_notfinite))
        run = finite | (errors > max_consecutive_errors) if accept_at_limit else finite

        def close(inner_state: State, taken: Array) -> State:
            return ApplyIfFiniteState(errors, finite, total, inner_state)

        return Decision(run, tx, state.inner_state, close, extra_args)

    return gate(init, decide, anyway=reads_entries(tx), takes_vectors=True)


def _not_finite(updates: PyTree) -> Array:
    """The number of entries of a tree that are not finite."""

    def whole(x: Array) -> Array:
        return jnp.sum(~jnp.isfinite(x), dtype=jnp.int32)

    def in_parts(x: Array) -> Array:
        # XLA for CPUs stores the terms of a long sum, but not those of short ones.
        if not x.ndim or not x.size or any(jax.typeof(x).sharding.spec):
            return whole(x)  # an array sharded in its type cannot be reshaped freely
        even = x.shape[-1] - x.shape[-1] % 32
        short = x[..., :even].reshape(*x.shape[:-1], -1, 32)
        parts = jnp.sum(~jnp.isfinite(short), axis=-1, dtype=jnp.int32)
        parts = jax.lax.optimization_barrier(parts)  # otherwise XLA makes one long sum of them
        return jnp.sum(parts, dtype=jnp.int32) + whole(x[..., even:])

    counts = [
        jax.lax.platform_dependent(x, cpu=in_parts, default=whole)
        for x in floating_entries(updates)
    ]
    return sum(counts, jnp.int32(0))


def skip_not_finite(
    updates: Updates, gradient_step: Any, params: Params | None
) -> tuple[Array, PyTree]:
    """Whether to skip a micro-batch, for :func:`accumulate`: its gradient is not finite.

    To skip whole steps, prefer :func:`guard`.

    Args:
        updates: the gradient.
        gradient_step: steps taken so far; not used.
        params: the parameters; not used.

    Returns:
        A boolean, and ``{"should_skip": bool[], "num_not_finite": i32[]}``.

    >>> bool(skip_not_finite({"a": jnp.array([1.0, jnp.inf])}, 0, None)[0])
    True
    """
    del gradient_step, params
    count = _not_finite(updates)
    return count > 0, {"should_skip": count > 0, "num_not_finite": count}


def skip_large_updates(
    updates: Updates, gradient_step: Any, params: Params | None, max_squared_norm: Any
) -> tuple[Array, PyTree]:
    """Whether to skip a micro-batch, for :func:`accumulate`: its gradient is too large, or NaN.

    To skip whole steps, prefer :func:`guard`, which sets the limit by itself.

    Args:
        updates: the gradient.
        gradient_step: steps taken so far; not used.
        params: the parameters; not used.
        max_squared_norm: the squared global norm at and above which to skip; set it with
            ``functools.partial``. The norm is summed in at least float32.

    Returns:
        A boolean, and ``{"should_skip": bool[], "norm_squared": f32[]}``.

    >>> bool(skip_large_updates({"a": jnp.array([3.0])}, 0, None, max_squared_norm=4.0)[0])
    True
    """
    del gradient_step, params
    norm_squared = tree.norm_sq(updates)
    skip = ~(norm_squared < max_squared_norm)
    return skip, {"should_skip": skip, "norm_squared": norm_squared}
