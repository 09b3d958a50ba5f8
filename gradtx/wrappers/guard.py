"""One guard: steps that are not finite, or are out of the ordinary, are skipped and counted."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx import tree
from gradtx.checks import Fraction, Positive, check_integer
from gradtx.composition.apply import apply_updates
from gradtx.composition.gate import Case, Decision, gate, in_cases, reads_entries
from gradtx.inspection.guards import GuardReport
from gradtx.inspection.hyperparams import hyperparams
from gradtx.numerics import abs_sq, cast, increment, widen
from gradtx.numerics.compiler_hints import recompute, sums_in_one_pass
from gradtx.numerics.keys import is_key
from gradtx.numerics.tracing import traced_once
from gradtx.pair import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    transformation,
    with_extra_args_support,
)
from gradtx.paths import aligned, is_leaf, leaves_with_path
from gradtx.rows import is_rows, take_rows
from gradtx.transforms.clipping import shrink_factor
from gradtx.types import Array, InnerState, Params, State, TreeScalar, Updates

# Equal numbers have no deviation, so that anything larger would be a spike.
_LEAST_DEVIATION = 0.01
_LARGEST = float(jnp.finfo(jnp.float32).max)


class Rolling(NamedTuple):
    """values: f32[window], the last finite ones, none above its limit; seen: i32[], how many."""

    values: Array
    seen: Array


class GuardState(NamedTuple):
    """The inner state; the last losses and norms; the report, a `GuardReport`."""

    inner_state: InnerState
    losses: Rolling
    norms: Rolling
    report: GuardReport


class MeasuredState(NamedTuple):
    """The inner state, and squared norms of the last update and of the parameters before it."""

    inner_state: InnerState
    update_sq: TreeScalar
    params_sq: TreeScalar


@transformation
def guard(
    inner: GradientTransformation,
    deviations: Positive | None = 6.0,
    *,
    window: int = 128,
    warmup: int = 32,
    clip_quantile: Fraction | None = None,
    skip_zero: bool = False,
) -> GradientTransformation:
    r"""Skip what is not finite, and spikes of the loss or of the gradient's norm; count both.

    .. math:: \text{skip if } x_t \text{ is not finite, or } x_t > L_t, \qquad
        L_t = \mathrm{mean}(w) + k \max(\mathrm{std}(w), 0.01\, |\mathrm{mean}(w)|)

    where `x` is the loss or the norm of all gradients together, and `w` holds the last `window` of
    them, each as :math:`\min(x_s, L_s)`. A spike thus counts for no more than its limit: it does
    not hide the next one, and the limit still follows a loss that has risen for good. If a step is
    skipped, parameters and the inner state stay as they are. A step that is not finite is never
    taken, however many have been skipped.

    Args:
        inner: the optimizer. :func:`accumulate` may be inside, and then each micro-batch is
            guarded, or outside; :func:`dynamic_loss_scale` must be outside, as it has to see what
            is not finite.
        deviations: `k`, above 0; None to skip no spikes.
        window: how many losses and norms are remembered, at least 2.
        warmup: how many there must be before spikes are skipped and gradients clipped, 2 to
            `window`.
        clip_quantile: shorten gradients to this quantile of the norms in the window, in
            :math:`[0, 1]`; None for no clipping.
        skip_zero: skip gradients that are zero everywhere, as from a batch without examples.

    The loss is the extra argument ``value``, which :func:`minimize` and :func:`make_step` pass;
    without it, only the norm is considered. A gradient so large that its squared norm is infinite
    in float32 counts as not finite. Under ``shard_map`` put :func:`aggregate` before it, so that
    all devices make the same decision.

    State: `GuardState`. :func:`guard_report` reads it; ``make_step(..., report=True)`` returns the
    report with each step. Norms of updates and parameters are summed in the pass that applies an
    elementwise optimizer; on a TPU and a GPU nothing is read twice.

    Raises:
        ValueError: `warmup` or `window` is too small, or `warmup` is above `window`; in ``init``
            `inner` contains :func:`dynamic_loss_scale`.

    Source: skipping beyond deviations, Team OLMo, 2 OLMo 2 Furious, 2025, arXiv:2501.00656;
    limited values in the statistics, A. Kumar et al., ZClip: Adaptive Spike Mitigation for LLM
    Pre-Training, 2025, arXiv:2504.02507; clipping, P. Seetharaman et al., AutoClip: Adaptive
    Gradient Clipping for Source Separation Networks, 2020, arXiv:2007.14469.

    >>> import gradtx
    >>> tx = guard(gradtx.sgd(1.0), window=8, warmup=4)
    >>> params, state = jnp.zeros(1), tx.init(jnp.zeros(1))
    >>> for g in (1.0, 1.1, 0.9, 1.0, 1000.0, jnp.inf, 1.0):
    ...     params, state = gradtx.apply_gradients(tx, jnp.array([g]), params, state)
    >>> report = gradtx.guard_report(state)
    >>> params.tolist(), int(report.norm_spikes), int(report.not_finite)
    ([-5.0], 1, 1)
    """
    check_integer("guard", "window", window, 2)
    check_integer("guard", "warmup", warmup, 2)
    if warmup > window:
        raise ValueError(f"guard: warmup is {warmup}, more than the window of {window} remembers")
    whole = with_extra_args_support(inner)

    def init(params: Params) -> State:
        inner_state = whole.init(params)
        if any(map(_scales_losses, jax.tree.leaves(inner_state, is_leaf=_scales_losses))):
            raise ValueError(
                "guard: dynamic_loss_scale is inside, where it would never see what is not finite: "
                "put it outside, dynamic_loss_scale(guard(...))"
            )
        losses, norms = (
            Rolling(jnp.zeros(window, jnp.float32), jnp.zeros([], jnp.int32)) for _ in range(2)
        )
        one = jnp.ones([], jnp.float32)
        report = GuardReport(*(jnp.zeros([], kind) for kind in _KINDS.values()))
        return GuardState(inner_state, losses, norms, report._replace(loss_scale=one))

    def decide(
        updates: Updates, state: State, params: Params | None, extra_args: dict[str, Any]
    ) -> Decision:
        del params
        norm_sq = cast(tree.norm_sq(updates), jnp.float32)
        norm = jnp.sqrt(norm_sq)
        value = extra_args.get("value")
        loss = norm if value is None else cast(jnp.sum(widen(jnp.asarray(value))), jnp.float32)
        finite = jnp.isfinite(norm_sq) & jnp.isfinite(loss)
        zero = finite & (norm == 0) & skip_zero
        known = finite & ~zero
        losses, loss_spike = state.losses, jnp.array(False)
        if value is not None:
            losses, loss_spike = _entered(state.losses, loss, known, deviations, warmup)
        norms, norm_spike = _entered(state.norms, norm, known, deviations, warmup)
        norm_spike = norm_spike & ~loss_spike
        take = known & ~loss_spike & ~norm_spike
        factor = _shortening(state.norms, norm, clip_quantile, warmup)
        old = state.report
        events = {
            "steps": jnp.array(True),
            "taken": take,
            "not_finite": ~finite,
            "loss_spikes": loss_spike,
            "norm_spikes": norm_spike,
            "zero": zero,
            "clipped": take & (factor < 1),
        }
        report = old._replace(
            **{n: _counted(getattr(old, n), event) for n, event in events.items()},
            consecutive=jnp.where(take, 0, increment(old.consecutive)),
            gradient_norm=norm,
            clip_factor=jnp.where(take, factor, 1.0),
            learning_rate=_learning_rate(whole, state.inner_state),
        )
        run = _measured(whole, norm, factor if clip_quantile is not None else None)
        seen = GuardState(state.inner_state, losses, norms, report)

        def close(measured: State, taken: Array) -> State:
            return _closed(take, measured, seen)

        return Decision(take, run, _unmeasured(seen), close, extra_args)

    return gate(init, decide, anyway=reads_entries(whole), takes_vectors=True)


# The counts come first.
_KINDS = {n: jnp.int32 if i < 9 else jnp.float32 for i, n in enumerate(GuardReport._fields)}


def _entered(
    window: Rolling, x: Array, counts: Array, deviations: Any, warmup: int
) -> tuple[Rolling, Array]:
    """The remembered values with `x` among them, if it counts, and whether `x` is a spike."""
    values, seen = map(jnp.asarray, window)
    limit = jnp.array(_LARGEST, jnp.float32)
    if deviations is not None:
        limit = jnp.where(seen >= warmup, _limit(window, deviations), limit)
    put = values.at[seen % len(values)].set(jnp.minimum(x, limit))
    later = seen + 1
    # It wraps around long before it overflows.
    later = jnp.where(later >= 2 * len(values), later - len(values), later)
    kept = Rolling(jnp.where(counts, put, values), jnp.where(counts, later, seen))
    return kept, counts & (x > limit)


def _shortening(norms: Rolling, norm: Array, quantile: Any, warmup: int) -> Array:
    """The factor that shortens a gradient to a quantile of the norms."""
    if quantile is None:
        return jnp.ones([], jnp.float32)
    limit = _quantile(norms.values, jnp.minimum(norms.seen, len(norms.values)), quantile)
    return cast(jnp.where(norms.seen >= warmup, shrink_factor(norm, limit), 1.0), jnp.float32)


def _closed(take: Array, measured: MeasuredState, state: GuardState) -> GuardState:
    """The state with what was measured while the step was taken."""
    update_norm, params_norm = (
        jnp.where(take, jnp.sqrt(x), 0) for x in (measured.update_sq, measured.params_sq)
    )
    broken = take & ~jnp.isfinite(update_norm)
    report = state.report._replace(
        update_norm=update_norm,
        update_ratio=jnp.where(params_norm > 0, update_norm / params_norm, 0),
        broken=_counted(state.report.broken, broken),
    )
    return state._replace(inner_state=measured.inner_state, report=report)


def _counted(count: Array, event: Array) -> Array:
    return jnp.where(event, increment(count), count)


def _scales_losses(x: Any) -> bool:
    return "loss_scale" in getattr(type(x), "_fields", ()) and not isinstance(x, GuardReport)


def _limit(window: Rolling, deviations: Any) -> Array:
    values, seen = window
    there = jnp.arange(len(values)) < seen
    n = jnp.maximum(jnp.sum(there, dtype=jnp.float32), 1)
    mean = jnp.sum(jnp.where(there, values, 0)) / n
    std = jnp.sqrt(jnp.sum(jnp.where(there, jnp.square(values - mean), 0)) / n)
    limit = mean + deviations * jnp.maximum(std, _LEAST_DEVIATION * jnp.abs(mean))
    return cast(limit, jnp.float32)


def _quantile(values: Array, n: Array, q: Any) -> Array:
    """The quantile of the first `n`, between two of them in proportion."""
    ordered = jnp.sort(jnp.where(jnp.arange(len(values)) < n, values, _LARGEST))
    last = jnp.maximum(n - 1, 0)
    at = q * last.astype(jnp.float32)
    low = jnp.floor(at).astype(jnp.int32)
    high = jnp.minimum(low + 1, last)
    share = at - low.astype(at.dtype)
    return (1 - share) * ordered[low] + share * ordered[high]


def _learning_rate(tx: GradientTransformation, state: State) -> Array:
    """The learning rate of the next step; 0 if there is none, or more than one."""
    rates = [v for path, v in hyperparams(tx, state).items() if path.endswith("learning_rate")]
    known = len(rates) == 1 and rates[0] is not None
    return cast(jnp.asarray(rates[0] if known else 0.0), jnp.float32)


def _unmeasured(state: GuardState) -> MeasuredState:
    return MeasuredState(state.inner_state, *(jnp.zeros([], jnp.float32) for _ in range(2)))


def _measured(
    tx: GradientTransformation, norm: Array, factor: Array | None
) -> GradientTransformation:
    """`tx` on gradients times a factor, with squared norms of updates and parameters in the state.

    Where `tx` treats each entry by itself, the kernel of the step sums them too: see
    :func:`recompute`, without which they would be read once more.
    """

    def shortened(updates: Updates) -> Updates:
        if factor is None:
            return updates
        return tree.map_updates(lambda g: cast(widen(g) * factor, g.dtype), updates)

    def run(updates: Updates, state: State, params: Params | None, extra_args: Any) -> Any:
        return tx.update(shortened(updates), state, params, **extra_args)

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        out, inner_state = run(updates, state.inner_state, params, extra_args)
        before = updates, state.inner_state, params
        structure: Any
        leaves, structure = jax.tree.flatten(before)

        def sums(*leaves: Any) -> Any:
            updates, state, params = structure.unflatten(leaves)
            return _squares(run(updates, state, params, extra_args)[0], params)

        if reads_entries(tx) and not any(map(is_key, leaves)):
            measured = recompute(sums, *leaves, after=norm, on="all but cpu")
        else:
            measured = _squares(out, params)
        return out, MeasuredState(inner_state, *measured)

    def step(
        updates: Updates, state: State, params: Params, **extra_args: Any
    ) -> tuple[Params, State]:
        if tx.step is None:
            updates, state = update(updates, state, params, **extra_args)
            return apply_updates(params, updates), state
        new, inner_state = tx.step(shortened(updates), state.inner_state, params, **extra_args)
        moves = jax.tree.map(
            lambda n, p: None if n is None else widen(n) - widen(p), new, params, is_leaf=is_leaf
        )
        return new, MeasuredState(inner_state, *_squares(moves, params))

    one_of = tx.traits.cases

    def cases(state: State) -> list[Case]:
        return [
            case._replace(tx=_measured(case.tx, norm, factor)) for case in one_of(state.inner_state)
        ]

    return GradientTransformationExtraArgs(
        lambda params: MeasuredState(tx.init(params), jnp.zeros([]), jnp.zeros([])),
        update,
        step if one_of is None else in_cases(cases),
    )


def _squares(updates: Updates, params: Params | None) -> list[Array]:
    """The squared norms of an update and of the parameters it is for, on `Rows` of those rows."""
    leaves, treedef = leaves_with_path(updates)
    problem = "the updates and the parameters are different trees"
    others = [None] * len(leaves) if params is None else aligned(problem, updates, treedef, params)
    calls = []
    for (_, u), p in zip(leaves, others, strict=True):
        if is_rows(u):
            u = u.coalesce()
            u, p = u.values, None if p is None else take_rows(p, u.indices)
        if u is not None:
            calls.append((jnp.asarray(u), p))
    totals = [jnp.zeros([], jnp.float32)] * 2
    for sums in traced_once("squares", _sums_of_squares, calls):
        totals = list(map(jax.lax.add, totals, sums))
    return totals


def _sums_of_squares(u: Array, p: Array | None) -> list[Array]:
    pair = u, jnp.zeros_like(u) if p is None else jnp.asarray(p)
    squares = [[cast(abs_sq(widen(x)), jnp.float32)] for x in pair]
    return [cast(x, jnp.float32) for x in sums_in_one_pass(*squares)]
