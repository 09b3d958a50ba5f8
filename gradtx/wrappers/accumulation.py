"""Accumulation: one step of the optimizer for a window of micro-batches."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx import tree
from gradtx.checks import PositiveCount
from gradtx.numerics import accumulator_dtype as wide_dtype, cast, divide, increment, widen
from gradtx.pair import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    transformation,
    with_extra_args_support,
)
from gradtx.paths import aligned, is_leaf, leaves_with_path, path_string
from gradtx.rows import dense
from gradtx.types import Array, DType, Params, PyTree, Slots, State, Updates
from gradtx.wrappers.branching import _like

Skip = Callable[[Updates, Array, Params | None], tuple[Array, PyTree]]


class MultiStepsState(NamedTuple):
    """The state of `MultiSteps`, as in Optax.

    mini_step: i32[], micro-batches in this window; gradient_step: i32[], windows so far;
    inner_opt_state: the inner state; acc_grads: like the parameters, the mean (or sum) so far,
    of the last window where mini_step is 0; skip_state: what `should_skip_update_fn` told last.
    """

    mini_step: Any
    gradient_step: Any
    inner_opt_state: State
    acc_grads: Slots
    skip_state: Any = ()


class AccumulateState(NamedTuple):
    """`MultiStepsState` with the weights in this window and whether the last call made a step.

    compensation: what rounding has taken from `acc_grads`, or None.
    """

    mini_step: Any
    gradient_step: Any
    inner_opt_state: State
    acc_grads: Slots
    acc_weight: Any
    emitted: Any
    skip_state: Any = ()
    compensation: Slots = None


def _never(updates: Updates, gradient_step: Array, params: Params | None) -> tuple[Array, PyTree]:
    return jnp.array(False), ()


def zeros(p: Any, dtype: DType | None) -> Any:
    """The accumulator of one parameter."""
    if p is None:
        return None
    p = jnp.asarray(p)
    real = wide_dtype(p, dtype)
    return jnp.zeros_like(
        p, dtype=jnp.promote_types(real, jnp.complex64) if jnp.iscomplexobj(p) else real
    )


def map_accumulated(
    function: Callable[..., Any], updates: Updates, acc: PyTree, *trees: PyTree, keep: bool = True
) -> PyTree:
    """``function(g, a, ...)`` on each leaf; where there is no gradient `a` if `keep`, else None."""
    structure: Any
    leaves, structure = leaves_with_path(updates)
    problem = "the gradients and the accumulator are different trees"
    columns = [aligned(problem, updates, structure, tree) for tree in (acc, *trees)]
    out = []
    for (path, g), a, *others in zip(leaves, *columns, strict=True):
        if g is not None and (a is None or jnp.shape(g) != a.shape):
            raise ValueError(
                f"at {path_string(path)!r} the gradient is {jnp.shape(g)} and the accumulator "
                f"{None if a is None else a.shape}; for the gradients of single examples see "
                "differentially_private"
            )
        out.append((a if keep else None) if g is None else function(g, a, *others))
    return structure.unflatten(out)


def accumulating(
    inner: GradientTransformation,
    every: Any,
    use_grad_mean: bool,
    skip: Skip | None,
    dtype: DType | None,
    *,
    weighted: bool,
    compensated: bool = False,
) -> GradientTransformation:
    """Both :func:`accumulate` (`weighted`) and `MultiSteps`."""
    tx = with_extra_args_support(inner)
    should_skip = skip or _never

    def init(params: Params) -> State:
        # Each count its own buffer: an array that is in a state twice cannot be donated.
        mini_step, gradient_step = (jnp.zeros([], jnp.int32) for _ in range(2))
        acc = jax.tree.map(lambda p: zeros(p, dtype), params, is_leaf=is_leaf)
        told = should_skip(tree.zeros_like(params), jnp.zeros([], jnp.int32), params)[1]
        common = (mini_step, gradient_step, tx.init(params), acc)
        if not weighted:
            return MultiStepsState(*common, told)
        lost = tree.zeros_like(acc) if compensated else None
        return AccumulateState(*common, jnp.zeros([], jnp.float32), jnp.array(False), told, lost)

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        # A window touches the rows of all its micro-batches, which have no fixed number.
        updates = dense(updates)
        window = every(state.gradient_step) if callable(every) else every
        bad, told = should_skip(updates, state.gradient_step, params)
        if jnp.shape(bad) != () or jnp.asarray(bad).dtype != bool:
            raise ValueError("should_skip_update_fn must return one boolean and a tree")
        given = weighted and "weight" in extra_args
        weight = jnp.asarray(extra_args.pop("weight") if given else 1.0, jnp.float32)
        before = state.acc_weight if weighted else state.mini_step.astype(jnp.float32)
        total = before + weight
        if given:  # what stands inside, such as `aggregate`, weighs the window
            extra_args["weight"] = total
        # The mean is kept, not the sum: it needs no range, and is right for any window.
        share = divide(weight, total) if use_grad_mean else weight

        first = state.mini_step == 0

        def start(a: Array) -> Array:
            # A window starts by forgetting the last one. Writing zeros when that ends would cost a
            # copy, and a product with zero would keep a NaN.
            return jnp.where(first, 0, a)

        def part(g: Any, a: Array, lost: Array | None) -> Array:
            """What is to be added: the gradient's share, and what rounding took before."""
            g = widen(jnp.asarray(g))
            new = (g - start(a) if use_grad_mean else g) * share
            return new if lost is None else new - start(lost)

        def add(g: Any, a: Array, lost: Array | None = None) -> Array:
            new = cast(start(a) + part(g, a, lost), a.dtype)
            return new if skip is None else jnp.where(bad, a, new)

        def rounding(g: Any, lost: Array, a: Array, new: Array) -> Array:
            excess = cast((new - start(a)) - part(g, a, lost), lost.dtype)
            return excess if skip is None else jnp.where(bad, lost, excess)

        if compensated:
            acc = map_accumulated(add, updates, state.acc_grads, state.compensation)
            lost = map_accumulated(rounding, updates, state.compensation, state.acc_grads, acc)
            state = state._replace(compensation=lost)
        else:
            acc = map_accumulated(add, updates, state.acc_grads)
        last = ~bad & (state.mini_step + 1 >= window)

        def step() -> tuple[Updates, State]:
            grads = map_accumulated(
                lambda g, a: cast(a, jnp.asarray(g).dtype), updates, acc, keep=False
            )
            extra = {**extra_args, "weight": total} if weighted else extra_args
            out, new = tx.update(grads, state.inner_opt_state, params, **extra)
            return _like(out, updates), _like(new, state.inner_opt_state)

        # Only what a step changes goes through the condition: XLA copies what passes it unchanged.
        out, inner_state = jax.lax.cond(
            last, step, lambda: (tree.zeros_like(updates), state.inner_opt_state)
        )
        seen = jnp.where(bad, state.mini_step, increment(state.mini_step))
        state = state._replace(
            mini_step=jnp.where(last, 0, seen),
            gradient_step=jnp.where(last, increment(state.gradient_step), state.gradient_step),
            inner_opt_state=inner_state,
            acc_grads=acc,
            skip_state=told,
        )
        if weighted:
            weights = jnp.where(last, 0, jnp.where(bad, before, total))
            state = state._replace(acc_weight=weights, emitted=last)
        return out, state

    return GradientTransformationExtraArgs(init, update)


@transformation(native_schedules=True)
def accumulate(
    inner: GradientTransformation,
    every: PositiveCount,
    *,
    use_grad_mean: bool = True,
    should_skip_update_fn: Skip | None = None,
    accumulator_dtype: DType | None = None,
    compensated: bool = False,
) -> GradientTransformation:
    r"""Collect the gradients of a window of micro-batches and step with their mean.

    .. math:: g = \frac{\sum_i w_i g_i}{\sum_i w_i}

    In between the updates are zero, and `inner` is not run: it costs its work and its memory once
    in a window.

    Args:
        inner: the optimizer; it is run on the mean, with the extra arguments of the last call and
            as ``weight`` the sum of the window's.
        every: the number of micro-batches in a window, at least 1, or a schedule of the number of
            windows so far.
        use_grad_mean: take the mean, else the sum :math:`\sum_i w_i g_i`.
        should_skip_update_fn: ``(updates, gradient_step, params) -> (bool, tree)``, which
            micro-batches to leave out, such as :func:`skip_not_finite`: as if they had not been.
        accumulator_dtype: the type of the accumulator; float32 or wider unless given.
        compensated: keep beside the accumulator what rounding took from it, and add it again: for
            windows of thousands of micro-batches, or for an accumulator in bfloat16.

    ``update`` takes an extra argument ``weight``, :math:`w_i \ge 0`, such as the number of examples
    in a micro-batch; 1 unless given. `inner` gets their sum as its ``weight``.

    State: `AccumulateState`; :func:`has_updated` tells whether the last call made a step. `Rows`
    are accumulated as whole tables.

    Optax's `MultiSteps` runs its optimizer at every micro-step and then selects, and a NaN stays in
    its accumulator for ever, since it is reset by a multiplication with zero.

    >>> import gradtx
    >>> tx = accumulate(gradtx.sgd(1.0), every=2)
    >>> state = tx.init(jnp.zeros(1))
    >>> for g in (1.0, 3.0):
    ...     updates, state = tx.update(jnp.array([g]), state)
    >>> updates.tolist(), bool(has_updated(state))
    ([-2.0], True)
    """
    return accumulating(
        inner,
        every,
        use_grad_mean,
        should_skip_update_fn,
        accumulator_dtype,
        weighted=True,
        compensated=compensated,
    )


def has_updated(state: State) -> Array:
    """Whether the last call of :func:`accumulate` or `MultiSteps` made a step.

    Args:
        state: the state that the call returned. That of `MultiSteps` cannot tell a step from a
            skipped micro-batch after it.
    """
    if isinstance(state, AccumulateState):
        return state.emitted
    return (state.mini_step == 0) & (state.gradient_step > 0)
