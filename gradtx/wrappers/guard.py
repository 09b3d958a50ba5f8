"""One guard: steps that are not finite, or are out of the ordinary, are skipped and counted.

:mod:`gradtx.wrappers.rolling_window` says what is out of the ordinary, and
:mod:`gradtx.wrappers.update_norms` measures the steps that are taken.
"""

import functools
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax.numpy as jnp

from gradtx import tree
from gradtx.checks import Fraction, Positive, Size
from gradtx.composition.gate import Decision, gate, reads_entries
from gradtx.core.pair import (
    GradientTransformation,
    transformation,
    with_extra_args_support,
)
from gradtx.inspection.guards import GuardReport, holds_loss_scale
from gradtx.inspection.hyperparams import hyperparams
from gradtx.numerics import cast, increment, root, widen
from gradtx.sharding.axes import on_all_devices
from gradtx.types import Array, InnerState, Params, State, Updates
from gradtx.wrappers.rolling_window import Rolling, entered, quantile_factor
from gradtx.wrappers.update_norms import MeasuredState, unmeasured, with_norms

_Several = Annotated[int, Size(2)]


class GuardState(NamedTuple):
    """The inner state; the last losses and norms; the report, a `GuardReport`."""

    inner_state: InnerState
    losses: Rolling
    norms: Rolling
    report: GuardReport


@transformation(update_size="proportional")
def guard(
    inner: GradientTransformation,
    deviations: Positive | None = 6.0,
    *,
    window: _Several = 128,
    warmup: _Several = 32,
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
    in float32 counts as not finite, since optimizers keep squares. Under ``shard_map`` each device
    has a loss of its own: write ``chain(aggregate("data"), share_value(guard(...), "data"))``, and
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
    if warmup > window:
        raise ValueError(f"guard: warmup is {warmup}, more than the window of {window} remembers")
    tx = with_extra_args_support(inner)
    limits = _Limits(deviations, warmup, clip_quantile, skip_zero)

    def init(params: Params) -> State:
        return _initial_state(tx.init(params), window)

    def decide(
        updates: Updates, state: State, params: Params | None, extra_args: dict[str, Any]
    ) -> Decision:
        del params
        norm = cast(tree.global_norm(updates), jnp.float32)
        rate = _learning_rate(tx, state.inner_state)
        common = functools.partial(on_all_devices, "guard", tx)
        loss = extra_args.get("value")
        take, factor, judged = _judged(limits, state, norm, loss, rate, common)
        run = with_norms(tx, norm, factor if clip_quantile is not None else None)

        def close(measured: State, _: Array) -> State:
            return _closed(take, measured, judged)

        return Decision(take, run, unmeasured(state.inner_state), close, extra_args)

    return gate(init, decide, anyway=reads_entries(tx), takes_vectors=True)


class _Limits(NamedTuple):
    """What is out of the ordinary; the arguments of :func:`guard`."""

    deviations: float | None
    warmup: int
    clip_quantile: float | None
    skip_zero: bool


# The counts come first.
_KINDS = {n: jnp.int32 if i < 9 else jnp.float32 for i, n in enumerate(GuardReport._fields)}


def _initial_state(inner_state: State, window: int) -> GuardState:
    if holds_loss_scale(inner_state):
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


def _judged(
    limits: _Limits,
    state: GuardState,
    norm: Array,
    value: Any,
    rate: Array,
    common: Callable[[Array], Array],
) -> tuple[Array, Array, GuardState]:
    """Whether a step is taken, the factor of its gradients, and the state before it is taken.

    Args:
        limits: what is out of the ordinary.
        state: the state before this step.
        norm: the norm of the gradients.
        value: the loss; None to judge by the norm alone.
        rate: the learning rate, for the report.
        common: whether a step is taken, from whether this device would take it.
    """
    deviations, warmup, clip_quantile, skip_zero = limits
    loss = norm if value is None else cast(jnp.sum(widen(jnp.asarray(value))), jnp.float32)
    finite = jnp.isfinite(jnp.square(norm)) & jnp.isfinite(loss)
    zero = finite & (norm == 0) & skip_zero
    known = finite & ~zero
    losses, loss_spike = state.losses, jnp.array(False)
    if value is not None:
        losses, loss_spike = entered(state.losses, loss, known, deviations, warmup)
    norms, norm_spike = entered(state.norms, norm, known, deviations, warmup)
    norm_spike = norm_spike & ~loss_spike
    take = common(known & ~loss_spike & ~norm_spike)
    factor = quantile_factor(state.norms, norm, clip_quantile, warmup)
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
        learning_rate=rate,
    )
    return take, factor, GuardState(state.inner_state, losses, norms, report)


def _closed(take: Array, measured: MeasuredState, state: GuardState) -> GuardState:
    """The state of the guard after a step, with the norms that the step measured."""
    update_norm, params_norm = (
        jnp.where(take, root(x), 0) for x in (measured.update_sq, measured.params_sq)
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


def _learning_rate(tx: GradientTransformation, state: State) -> Array:
    """The learning rate of the next step; 0 if there is none, or more than one."""
    named = hyperparams(tx, state).items()
    rates = [v for path, v in named if path.endswith("learning_rate") and v is not None]
    return cast(jnp.asarray(rates[0] if len(rates) == 1 else 0.0), jnp.float32)
