"""A report of what guards have seen and done, in numbers."""

from typing import NamedTuple

import jax

from gradtx.leaves.paths import unboxed
from gradtx.types import Array, State


class GuardReport(NamedTuple):
    """The decisions of :func:`guard` since the state was made, and the numbers of its last step.

    Counts, i32[]:

    - steps: gradients seen; every one was taken or skipped.
    - taken: steps taken.
    - not_finite: skipped because the gradient's norm, or the loss, was NaN or infinite.
    - loss_spikes, norm_spikes: skipped because the loss, or else the norm, exceeded its limit.
    - zero: skipped because the gradient was zero.
    - consecutive: skipped since the last step that was taken.
    - clipped: taken with a gradient that the guard's own `clip_quantile` clipped.
    - broken: taken from a finite gradient, with an update that was not finite.

    Numbers of the last step, f32[]: gradient_norm, before the guard's own clipping; clip_factor, of
    that clipping; update_norm and update_ratio, that norm over the parameters', both 0 if the step
    was skipped; learning_rate, 0 if the optimizer has none or several, which :func:`hyperparams`
    lists; loss_scale, 1 without :func:`dynamic_loss_scale`.
    """

    steps: Array
    taken: Array
    not_finite: Array
    loss_spikes: Array
    norm_spikes: Array
    zero: Array
    consecutive: Array
    clipped: Array
    broken: Array
    gradient_norm: Array
    clip_factor: Array
    update_norm: Array
    update_ratio: Array
    learning_rate: Array
    loss_scale: Array

    def __str__(self) -> str:
        return "\n".join(f"{name:14} {value:.6g}" for name, value in self._asdict().items())


def scales_losses(x: object) -> bool:
    """Whether an object is the state of a transformation that scales the loss."""
    return "loss_scale" in getattr(type(x), "_fields", ()) and not isinstance(x, GuardReport)


def holds_loss_scale(state: State) -> bool:
    """Whether the state of a transformation that scales the loss is in a state."""
    return any(map(scales_losses, jax.tree.leaves(state, is_leaf=scales_losses)))


def guard_report(state: State) -> GuardReport:
    """The report of the guard in a state.

    Args:
        state: a state that contains that of one :func:`guard`, in a chain, a group or a wrapper,
            or in `opt_state` of Flax's ``nnx.Optimizer``.

    Returns:
        The report, in arrays.

    Raises:
        ValueError: it contains none, or more than one.

    >>> import gradtx
    >>> tx = gradtx.guard(gradtx.sgd(0.5))
    >>> params, state = gradtx.apply_gradients(tx, 2.0, 1.0, tx.init(1.0))
    >>> params, state = gradtx.apply_gradients(tx, float("nan"), params, state)
    >>> report = guard_report(state)
    >>> int(report.steps), int(report.taken), int(report.not_finite), float(report.learning_rate)
    (2, 1, 1, 0.5)
    """

    def reports(x: object) -> bool:
        return isinstance(getattr(x, "report", None), GuardReport)

    guard_states = [x for x in jax.tree.leaves(state, is_leaf=reports) if reports(x)]
    if len(guard_states) != 1:
        raise ValueError(
            f"guard_report: the state holds {len(guard_states)} states of guard, not one: put "
            "gradtx.guard around the optimizer"
        )
    report: GuardReport = guard_states[0].report
    scaled = [x for x in jax.tree.leaves(state, is_leaf=scales_losses) if scales_losses(x)]
    report = report._replace(loss_scale=scaled[0].loss_scale) if scaled else report
    return GuardReport(*unboxed(tuple(report)))  # in nnx.Optimizer they are in variables
