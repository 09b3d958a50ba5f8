"""Accumulation: one step of the optimizer per window of micro-batches."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx import tree
from gradtx.checks import (
    Decay,
    PositiveCount,
    PositiveInt,
    check_integer,
    check_patterns,
    one_number,
)
from gradtx.composition.chain import chain
from gradtx.composition.gate import Decision, gate
from gradtx.core.pair import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    transformation,
    with_extra_args_support,
)
from gradtx.inspection.guards import holds_loss_scale
from gradtx.inspection.noise_scale import (
    NoiseScale,
    no_estimates,
    noise_scale_of_parts,
    weighted_square,
)
from gradtx.leaves.rows import is_rows
from gradtx.numerics import cast, divide, increment, scalar_dtype, widen
from gradtx.numerics.control import inside, loop_once_if
from gradtx.programs.tracing import vary, varying_axes
from gradtx.sharding.axes import on_all_devices
from gradtx.training.loss_scale import if_divides
from gradtx.transforms.accumulators import (
    accumulators,
    fitting,
    is_window,
    map_accumulated,
)
from gradtx.types import Array, DType, InnerState, Params, PyTree, Slots, State, Updates
from gradtx.wrappers.finite import skip_large_updates, skip_not_finite

Skip = Callable[[Updates, Array, Params | None], tuple[Array, PyTree]]


class MultiStepsState(NamedTuple):
    """The state of `MultiSteps`, as in Optax.

    mini_step: i32[], micro-batches in this window; gradient_step: i32[], windows so far;
    inner_opt_state: the inner state; acc_grads: like the parameters, the mean (or sum) so far, zero
    if mini_step is 0; skip_state: what `should_skip_update_fn` last returned.
    """

    mini_step: Any
    gradient_step: Any
    inner_opt_state: InnerState
    acc_grads: Slots
    skip_state: Any = ()


class AccumulateState(NamedTuple):
    """`MultiStepsState` with the weights in this window and whether the last call made a step.

    compensation: the rounding error of `acc_grads`, or None. noise_scale: a `NoiseScale` of the
    windows so far; micro_squares: f32[2], of this window the weighted squared norms of the
    gradients and how many have a weight; both None unless the noise is measured.
    """

    mini_step: Any
    gradient_step: Any
    inner_opt_state: InnerState
    acc_grads: Slots
    acc_weight: Any
    emitted: Any
    skip_state: Any = ()
    compensation: Slots = None
    noise_scale: NoiseScale | None = None
    micro_squares: Any = None


def _never(updates: Updates, gradient_step: Array, params: Params | None) -> tuple[Array, PyTree]:
    return jnp.array(False), ()


def _where(counts: Array, g: Any) -> Any:
    """A gradient, or zeros if its micro-batch does not count."""
    if is_rows(g):
        return g.with_values(_where(counts, g.values))
    return jnp.where(counts, g, jnp.zeros_like(g))


@dataclass(frozen=True)
class MicroBatches:
    """The collecting of micro-batches in a window, for :func:`accumulate` and `MultiSteps`."""

    every: Any
    use_grad_mean: bool
    skip: Skip | None
    dtype: DType | None
    weighted: bool
    compensated: bool = False
    rows: Mapping[str, int] | None = None
    noise_decay: Any = None
    up_to: int | None = None

    def init(self, params: Params, inner_state: State) -> State:
        known = getattr(self.skip, "func", self.skip)  # of a functools.partial
        if known in (skip_not_finite, skip_large_updates) and holds_loss_scale(inner_state):
            raise ValueError(
                "accumulate: dynamic_loss_scale is inside, where it would never see what "
                f"{known.__name__} leaves out: put it outside, dynamic_loss_scale(accumulate(...))"
            )
        # Each count has its own buffer: an array that is in a state twice cannot be donated.
        mini_step, gradient_step = (jnp.zeros([], jnp.int32) for _ in range(2))
        acc = accumulators(params, self.dtype, self.rows)
        told = (self.skip or _never)(tree.zeros_like(params), jnp.zeros([], jnp.int32), params)[1]
        common = (mini_step, gradient_step, inner_state, acc)
        if not self.weighted:
            return MultiStepsState(*common, told)
        lost = None
        if self.compensated:
            lost = jax.tree.map(
                lambda a: None if is_window(a) else jnp.zeros_like(a), acc, is_leaf=is_window
            )
        state = AccumulateState(*common, jnp.zeros([], jnp.float32), jnp.array(False), told, lost)
        if self.noise_decay is None:
            return state
        return state._replace(noise_scale=no_estimates(), micro_squares=jnp.zeros([2], jnp.float32))

    def collect(
        self,
        updates: Updates,
        state: State,
        params: Params | None,
        weight: Any,
        common: Callable[[Array], Array],
    ) -> tuple[State, Array, Array]:
        """Add a micro-batch to the state.

        Args:
            updates: the gradients.
            state: the state.
            params: the parameters.
            weight: that of the micro-batch; None for 1.
            common: whether something is true of all devices, from whether it is of this one.

        Returns:
            The state, whether this micro-batch is the window's last, and the weight of the window
            so far, to which each micro-batch adds `weight`, or 1.
        """
        window = self.every(state.gradient_step) if callable(self.every) else self.every
        bad, told = (self.skip or _never)(updates, state.gradient_step, params)
        bad = jnp.asarray(bad)
        if bad.shape != () or bad.dtype != bool:
            raise ValueError("should_skip_update_fn must return one boolean and a tree")
        if self.skip is not None:
            bad = ~common(~bad)
        if weight is not None:
            weight = one_number("accumulate", "weight", weight)
            # A micro-batch without examples has 0 / 0 for a gradient, which a product would keep.
            counts = jnp.asarray(weight) != 0
            updates = jax.tree.map(functools.partial(_where, counts), updates, is_leaf=is_rows)
        weight = jnp.asarray(1.0 if weight is None else weight, jnp.float32)
        before = state.acc_weight if self.weighted else state.mini_step.astype(jnp.float32)
        total = before + weight
        if self.noise_decay is not None:
            state = state._replace(micro_squares=self._squares(updates, state, bad, weight))
        state = self._added(updates, state, bad, weight, total)
        steps = increment(state.mini_step)
        last = ~bad & (steps >= window)
        if self.up_to is not None:
            noise = state.noise_scale
            wanted = jnp.where(noise.estimates > 0, noise.value, 0)
            last &= common((total >= wanted) | (steps >= self.up_to))
        seen = jnp.where(bad, state.mini_step, steps)
        state = state._replace(
            mini_step=jnp.where(last, 0, seen),
            gradient_step=jnp.where(last, increment(state.gradient_step), state.gradient_step),
            skip_state=told,
        )
        if self.weighted:
            weights = jnp.where(last, 0, jnp.where(bad, before, total))
            state = state._replace(acc_weight=weights, emitted=last)
        return state, last, total

    def _squares(self, updates: Updates, state: State, bad: Array, weight: Array) -> Array:
        old = jnp.where(state.mini_step == 0, 0, state.micro_squares)
        new = weighted_square(updates, weight)
        return jnp.where(bad, old, cast(old + new, old.dtype))

    def _added(
        self, updates: Updates, state: State, bad: Array, weight: Array, total: Array
    ) -> State:
        # The mean is kept, not the sum: it cannot overflow, and is right for any window. For rows
        # the sum is kept, since earlier rows are not touched again.
        @functools.cache
        def share(dtype: DType) -> Array:
            numerator, denominator = cast(weight, dtype), cast(total, dtype)
            return divide(numerator, denominator) if self.use_grad_mean else numerator

        first = state.mini_step == 0

        def start(a: Array) -> Array:
            # A window starts by forgetting the last one. Writing zeros when that ends would cost a
            # copy, and a product with zero would keep a NaN.
            return jnp.where(first, 0, a)

        def kept(old: Array, new: Array) -> Array:
            return new if self.skip is None else jnp.where(bad, old, new)

        def part(g: Any, a: Array, lost: Array | None) -> Array:
            """The number to add to the accumulator: a gradient's share, less the rounding error."""
            g = jnp.zeros_like(a) if g is None else g  # a missing gradient counts as zero
            g = widen(g)
            new = (g - start(a) if self.use_grad_mean else g) * share(scalar_dtype([g]))
            return new if lost is None else new - start(lost)

        def add(g: Any, a: Any, lost: Array | None = None) -> Any:
            if is_window(a):
                return a.with_rows(g, weight, first, bad)
            return kept(a, cast(start(a) + part(g, a, lost), a.dtype))

        def rounding(g: Any, lost: Any, a: Any, new: Any) -> Any:
            return kept(lost, cast((new - start(a)) - part(g, a, lost), lost.dtype))

        old = state.acc_grads
        if not self.compensated:
            return state._replace(acc_grads=map_accumulated(add, updates, old))
        lost = state.compensation
        acc = map_accumulated(add, updates, old, lost)
        lost = map_accumulated(rounding, updates, lost, old, acc)
        return state._replace(acc_grads=acc, compensation=lost)

    def collected(self, updates: Updates, acc: PyTree, total: Array) -> Updates:
        """The gradients for the step, in the types of the last micro-batch."""

        def of(g: Any, a: Any) -> Any:
            if is_window(a):
                return a.rows(g, total if self.use_grad_mean else 1.0)
            return cast(a, g.dtype)

        return map_accumulated(of, updates, acc, keep=False)

    def finished(self, state: State, done: Array) -> State:
        """The state after a micro-batch; if it was the window's last (`done`), without gradients.

        `MultiSteps` writes zeros, as in Optax, in a loop of its own: the step's would copy what it
        reads and overwrites.
        """
        if self.weighted:
            return state

        def zeros(acc: PyTree, turn: Array) -> PyTree:
            return jax.tree.map(lambda a: vary(jnp.zeros_like(a), varying_axes(jax.typeof(a))), acc)

        return state._replace(acc_grads=loop_once_if(done, zeros, state.acc_grads))


def accumulating(inner: GradientTransformation, window: MicroBatches) -> GradientTransformation:
    """A transformation that runs `inner` on the gradients that a window has collected."""
    tx = with_extra_args_support(inner)

    def decide(
        updates: Updates, state: State, params: Params | None, extra_args: dict[str, Any]
    ) -> Decision:
        updates = fitting(updates, state.acc_grads)
        weight = extra_args.get("weight") if window.weighted else None
        windows = state.gradient_step
        common = functools.partial(on_all_devices, "accumulate", tx)
        state, last, total = window.collect(updates, state, params, weight, common)
        if window.weighted:  # what is inside, such as `aggregate`, weighs the window
            extra_args = {**extra_args, "weight": total}

        def gradients(turn: Array) -> Updates:
            return window.collected(updates, inside(state.acc_grads, turn), total)

        def close(inner_state: State, taken: Array) -> State:
            if window.noise_decay is None:
                return window.finished(state._replace(inner_opt_state=inner_state), taken)
            noise, inner_state = inner_state
            new = state._replace(inner_opt_state=inner_state, noise_scale=noise)
            return window.finished(new, taken)

        run, inner_state = tx, state.inner_opt_state
        if window.noise_decay is not None:
            noise_decay = window.noise_decay
            decay = noise_decay(windows) if callable(noise_decay) else noise_decay
            run = chain(_measured(window, state.micro_squares, total, decay), tx)
            inner_state = state.noise_scale, inner_state
        return Decision(
            last,
            run,
            inner_state,
            close,
            extra_args,
            gradients,
        )

    return gate(
        lambda params: window.init(params, tx.init(params)),
        decide,
        takes_vectors=True,
        facets=if_divides(tx),
    )


def _measured(
    window: MicroBatches, micro_squares: Array, total: Array, decay: Any
) -> GradientTransformation:
    """A link that estimates the noise scale from a window; its state is the average so far."""

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        del params, extra_args
        size = tree.norm(updates, squared=True)
        mean = size if window.use_grad_mean else size / jnp.where(total > 0, total, 1) ** 2
        squares, parts = micro_squares
        noise_scale = noise_scale_of_parts(squares, parts, mean, total, state, decay)
        return updates, noise_scale

    return GradientTransformationExtraArgs(lambda params: no_estimates(), update)


@transformation(native_schedules=True, update_size="proportional")
def accumulate(
    inner: GradientTransformation,
    every: PositiveCount,
    *,
    use_grad_mean: bool = True,
    should_skip_update_fn: Skip | None = None,
    accumulator_dtype: DType | None = None,
    compensated: bool = False,
    rows: Mapping[str, int] | None = None,
    noise_decay: Decay | None = None,
    up_to: PositiveInt | None = None,
) -> GradientTransformation:
    r"""Collect the gradients of a window of micro-batches and step with their mean.

    .. math:: g = \frac{\sum_i w_i g_i}{\sum_i w_i}

    In between, the updates are zero and `inner` is not run: its work is done once per window. A
    missing gradient (None) counts as zero, except in the last micro-batch of a window: there the
    leaf does not move, and its gradients in this window are left out.

    Args:
        inner: the optimizer; it is run on the mean, with the extra arguments of the last call, and
            with the sum of the window's weights as ``weight``.
        every: the number of micro-batches in a window, at least 1, or a schedule of the number of
            windows so far. If it becomes smaller than what a window has, as when a run is loaded
            with another number, the next micro-batch is the window's last, and all count.
        use_grad_mean: take the mean; otherwise the sum :math:`\sum_i w_i g_i`.
        should_skip_update_fn: ``(updates, gradient_step, params) -> (bool, tree)``, which
            micro-batches to leave out entirely, such as :func:`skip_not_finite`. Where `inner`
            aggregates gradients, all devices leave out one that a single device does.
        accumulator_dtype: the type of the accumulator; float32 or wider by default.
        compensated: also keep the accumulator's rounding error, and add it back: for windows of
            thousands of micro-batches, or for an accumulator in bfloat16.
        rows: for tables whose gradients are `Rows`, by path pattern, how many rows a window has
            room for: the rows of its micro-batches, counting duplicates, are kept instead of the
            whole table. If they do not fit, the step is NaN.
        noise_decay: also measure the gradient's noise by the squared norms of a window's
            micro-batches and of their mean, as :func:`noise_scale` does, with this decay from
            window to window; None not to.
        up_to: with `noise_decay`, a window goes on until its weight is that of the noise scale, of
            at least `every` and at most so many micro-batches: where gradients are noisy, batches
            grow. `every` is then 2 or more, since one micro-batch says nothing of the noise. Where
            `inner` aggregates gradients, a window goes on until it is long enough on all devices.

    ``update`` takes an extra argument ``weight``, :math:`w_i \ge 0`, such as the number of examples
    in a micro-batch; 1 by default. `inner` gets their sum as its ``weight``. A micro-batch of
    weight 0 adds nothing, whatever its gradient; where all of a window weigh 0, its mean is 0.

    State: `AccumulateState`; :func:`has_updated` says whether the last call made a step. `Rows`
    are accumulated as whole tables unless `rows` names them. ``gradtx.tree.get(state,
    "noise_scale").value`` is the noise scale that `noise_decay` asks for, in the unit of the
    weights: examples where ``weight`` is their number, micro-batches where there are no weights. A
    window of fewer than two micro-batches, or with a gradient that is not finite, adds nothing to
    it. The updates are the same, bit for bit.

    :func:`minimize`, :func:`make_step` and :func:`apply_gradients` take no memory besides the
    parameters, the state and the gradient. A loop with ``update`` also holds the zero updates.

    Raises:
        ValueError: `every` or a number of rows is below 1, `up_to` is given without `noise_decay`
            or with an `every` of 1 or above it, a pattern matches no leaf, or a leaf is
            not a table; in ``init`` `inner` contains :func:`dynamic_loss_scale`, and what is not
            finite is left out before its scale sees it; in ``update`` a gradient has another shape
            than its parameter, or more rows than a window has room for, or `weight` is several
            numbers.

    Optax's `MultiSteps` runs its optimizer at every micro-step, then selects; and a NaN stays in
    its accumulator forever, since it is reset by a multiplication with zero.

    >>> import gradtx
    >>> tx = accumulate(gradtx.sgd(1.0), every=2)
    >>> state = tx.init(jnp.zeros(1))
    >>> for g in (1.0, 3.0):
    ...     updates, state = tx.update(jnp.array([g]), state)
    >>> updates.tolist(), bool(has_updated(state))
    ([-2.0], True)
    """
    check_patterns("accumulate: rows", rows or ())
    for pattern, room in (rows or {}).items():
        check_integer("accumulate", f"rows[{pattern!r}]", room)
    if up_to is not None and (
        noise_decay is None or (isinstance(every, int) and not 2 <= every <= up_to)
    ):
        raise ValueError(
            f"accumulate: up_to={up_to!r} goes by the noise: pass noise_decay, and an `every` from "
            f"2 to up_to, not {every!r}"
        )
    window = MicroBatches(
        every,
        use_grad_mean,
        should_skip_update_fn,
        accumulator_dtype,
        weighted=True,
        compensated=compensated,
        rows=rows,
        noise_decay=noise_decay,
        up_to=up_to,
    )
    return accumulating(inner, window)


def has_updated(state: State) -> Array:
    """Whether the last call of :func:`accumulate` or `MultiSteps` made a step.

    Args:
        state: the state that the call returned. The state of `MultiSteps` cannot tell a step from
            a skipped micro-batch that follows it.

    Raises:
        TypeError: this is the state of something else, such as a chain that contains one of them.

    >>> import gradtx
    >>> tx = accumulate(gradtx.sgd(1.0), every=2)
    >>> _, state = tx.update(jnp.ones(1), tx.init(jnp.zeros(1)))
    >>> bool(has_updated(state))
    False
    """
    if isinstance(state, AccumulateState):
        return state.emitted
    if not (hasattr(state, "mini_step") and hasattr(state, "gradient_step")):
        raise TypeError(
            f"has_updated takes the state of accumulate or MultiSteps, not {type(state).__name__}; "
            "where that is a part of another state, pass the part"
        )
    return (state.mini_step == 0) & (state.gradient_step > 0)
