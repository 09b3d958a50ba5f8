"""The whole training loop, inside one compiled ``while_loop``."""

import enum
import functools
import math
from collections.abc import Callable
from typing import Any, Generic, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.checks import check_integer, check_one_number
from gradtx.composition.nearest import nearest_in
from gradtx.composition.searches import Evaluation, Searches
from gradtx.core.pair import GradientTransformation, with_extra_args_support
from gradtx.core.traits import Links
from gradtx.declarations.declaration import read_by_people
from gradtx.declarations.scheduled import ScheduledState
from gradtx.engine.leaves import parameter
from gradtx.inspection.iterations import is_accumulation
from gradtx.leaves.packed import packed_like, unpack
from gradtx.leaves.paths import Where, leaves_with_path, merge, select
from gradtx.leaves.rows import is_rows
from gradtx.numerics import widen
from gradtx.programs.derivatives import forward_only, has_while, without_derivative
from gradtx.programs.tracing import is_tracer
from gradtx.training.estimated import estimator_of
from gradtx.training.implicit import Implicit, checked, differentiable
from gradtx.training.loss_scale import scale_in, unscaled
from gradtx.training.minimize import (
    LossFn,
    apply_gradients,
    check_order,
    compute_gradients,
    scalar_loss,
)
from gradtx.training.plots import plot_runs
from gradtx.tree import global_norm, sub
from gradtx.tree.sums import all_finite, any_nan
from gradtx.types import Array, DType, Params, ParamsT, PyTree, Scalar, State


class Status(enum.IntEnum):
    """Why :func:`solve` stopped."""

    MAX_STEPS = 0
    CONVERGED = 1
    DIVERGED = 2


class StopReason(enum.IntEnum):
    """Which rule stopped :func:`solve`.

    `TOL`, `FTOL` (with `fatol`) and `XTOL` (with `xatol`) are the tolerances of these names; with
    `STILL` nothing changed any more. `MAX_STEPS` and `DIVERGED` are as in `Status`.
    """

    MAX_STEPS = 0
    STILL = 1
    TOL = 2
    FTOL = 3
    XTOL = 4
    DIVERGED = 5


class Path(NamedTuple, Generic[ParamsT]):
    """The path that a solution took; entry `i` is the point before step `i + 1`.

    params: stacked parameters, ``max_steps + 1`` of them; values: the losses there. Entries after
    the last step repeat the last point.
    """

    params: ParamsT
    values: Array


class Solution(NamedTuple, Generic[ParamsT]):
    """The result of :func:`solve`.

    params: where it stopped; state: the optimizer's; value: the loss at `params`, without the
    penalty of :func:`proximal`; steps: i32[], steps taken (where it diverged, the step at which it
    did); status: i32[], a `Status`; path: a `Path` if it was recorded; reason: i32[], a
    `StopReason`. It is printed without the arrays of parameters, state and path.
    """

    params: ParamsT
    state: State
    value: Array
    steps: Array
    status: Array
    path: Path[ParamsT] | None
    reason: Array

    def __repr__(self) -> str:
        status, reason = _named(Status, self.status), _named(StopReason, self.reason)
        return (
            f"Solution(status={status}, reason={reason}, steps={self.steps}, value={self.value}, "
            f"fields={', '.join(self._fields)})"
        )

    def plot(self, loss_fn: Callable[..., Any] | None = None) -> Any:
        """A matplotlib figure of the loss over the steps, and of the path of few parameters.

        Args:
            loss_fn: drawn behind the path, as in :func:`plot_runs`, which shows several solutions.

        Raises:
            ImportError, ValueError: as :func:`plot_runs`.
        """
        return plot_runs({"": self}, loss_fn)


def _named(names: type[enum.IntEnum], number: Any) -> str:
    """The name of a number that is known; the text of a tracer or of several numbers."""
    known = isinstance(number, int | np.integer | np.ndarray | jax.Array) and not is_tracer(number)
    return names(int(number)).name if known and np.ndim(number) == 0 else str(number)


class _Tolerances(NamedTuple):
    """The arguments of :func:`solve` of these names, each a number or None."""

    tol: Any
    ftol: Any
    xtol: Any
    fatol: Any
    xatol: Any

    def value(self, now: Array, before: Array) -> Array:
        """Whether the loss has changed little enough; never where one of them is NaN."""
        size = jnp.maximum(jnp.abs(now), jnp.abs(before))
        return _little(jnp.abs(now - before), size, self.ftol, self.fatol)

    def params(self, now: Params, before: Params) -> Array:
        """Whether the parameters have changed little enough."""
        change = jax.tree.map(lambda a, b: widen(a) - widen(b), now, before)
        return _little(global_norm(change), global_norm(before), self.xtol, self.xatol)


def _little(change: Array, size: Array, relative: Any, absolute: Any) -> Array:
    if relative is None and absolute is None:
        return jnp.array(False)
    return change <= _number(absolute) + _number(relative) * size


def _number(tolerance: Any) -> Any:
    return 0 if tolerance is None else tolerance


class _Run(NamedTuple):
    """The arguments of :func:`solve` for which its program is compiled."""

    max_steps: int
    record: bool
    trainable: "_SameObject"
    unrolled: bool


_WINDOW = 10  # Steps within which something has to move.

_NO_REVERSE = (
    "solve: with unrolled=True, what has a loop of unknown length, as a line search has, is "
    "differentiated in forward mode alone: use jax.jvp or jax.jacfwd, or implicit=True"
)

_NO_DERIVATIVE = (
    "solve: the derivative of its steps is not that of the solution, and may be anything once "
    "nothing moves. For the derivative of the minimizer, pass implicit=True; for none, put "
    "jax.lax.stop_gradient around what solve and its loss are given; for that of the steps, pass "
    "unrolled=True"
)


def _every(holds: Callable[[Any, Any], Array], tree: PyTree, other: PyTree) -> Array:
    each = jax.tree.leaves(jax.tree.map(holds, tree, other))
    return functools.reduce(jnp.logical_and, each, jnp.array(True))


def _same(tree: PyTree, other: PyTree) -> Array:
    return _every(lambda a, b: jnp.all(a == b), tree, other)


def _close(tree: PyTree, other: PyTree) -> Array:
    """Whether each leaf is within a few roundings of the other."""

    def within(a: Array, b: Array) -> Array:
        return global_norm(widen(a) - widen(b)) <= 4 * jnp.finfo(a.dtype).eps * global_norm(a)

    return _every(within, tree, other)


def _waits(
    tx: GradientTransformation, grads: PyTree, state: State, params: Params, extra: dict[str, Any]
) -> Array:
    """Whether this step's updates are zero, and a window goes on or the next step's are not."""

    def step(state: State, _: None) -> tuple[State, tuple[Array, Array]]:
        updates, state = tx.update(grads, state, params, **extra)
        leaves = jax.tree.leaves(updates, is_leaf=is_rows)
        moving = [jnp.any((u.values if is_rows(u) else u) != 0) for u in leaves]
        return state, (functools.reduce(jnp.logical_or, moving, jnp.array(False)), _collects(state))

    _, (moving, collecting) = jax.lax.scan(step, state, length=2)
    return (moving[1] | collecting[0]) & ~moving[0]


def _collects(state: State) -> Array:
    """Whether a window of :func:`accumulate` has begun and not ended."""
    within = filter(is_accumulation, jax.tree.leaves(state, is_leaf=is_accumulation))
    return functools.reduce(jnp.logical_or, [x.mini_step > 0 for x in within], jnp.array(False))


def _as_arrays(params: ParamsT, where: Where | None) -> ParamsT:
    """`params` with arrays for the trained leaves."""
    leaves, treedef = leaves_with_path(select(params, where))
    arrays = [p if p is None else parameter(p, path) for path, p in leaves]
    return merge(treedef.unflatten(arrays), params)


def _check_tolerance(name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(
        value, int | float | np.number | np.ndarray | Array
    ):
        raise TypeError(f"solve: {name} must be a number or None, not {value!r}")
    check_one_number("solve", name, value)
    if not is_tracer(value) and not value >= 0:
        raise ValueError(f"solve: {name} must be at least 0, not {value!r}")


def _start(tx: GradientTransformation, params: ParamsT, where: Where | None) -> ParamsT:
    """The nearest point of the set to which `tx` keeps `params`, if it does."""
    nearest, trained = nearest_in(tx), select(params, where)
    if nearest is None:
        return params
    return merge(packed_like(nearest(unpack(trained), 0), trained), params)


def _arrived(tx: GradientTransformation, tol: Any, params: Params, grads: PyTree) -> Array:
    """Whether the gradient is short enough, or the change that it would make within that set."""
    nearest = nearest_in(tx)
    if tol is None:
        return jnp.array(False)
    if nearest is None:
        return global_norm(grads) <= tol
    params, grads = unpack(params), unpack(grads)
    ahead = sub(params, grads)
    # An entry that the map leaves alone changes by its gradient, though rounding may lose that.
    change = jax.tree.map(
        lambda p, g, to, at: jnp.where(at == to, g, p - at), params, grads, ahead, nearest(ahead, 1)
    )
    return global_norm(change) <= tol


@read_by_people
def solve(
    loss_fn: LossFn[ParamsT, Scalar],
    params: ParamsT,
    tx: GradientTransformation,
    *args: Any,
    max_steps: int = 1000,
    tol: Any = None,
    record: bool = False,
    trainable: Where | None = None,
    inside: Where | bool | None = None,
    ftol: Any = None,
    xtol: Any = None,
    fatol: Any = None,
    xatol: Any = None,
    implicit: bool | Implicit = False,
    unrolled: bool = False,
) -> Solution[ParamsT]:
    r"""Minimize a loss until it converges, the whole loop inside one compiled ``while_loop``.

    It stops when the parameters stop changing (or, with `tol`, when the norm of the gradient is at
    most `tol`), when it diverges, or after `max_steps`. It has diverged at the first step that
    starts from parameters or a loss that are not finite, or whose gradient has a NaN, or if the
    last step ends at such parameters or at such a loss; an infinite gradient is a direction, from
    which a clip can make a step.

    A step that changes nothing stops it, unless its updates are zero and those of the next step are
    not, or a window of :func:`accumulate` goes on; what waits longer, as under a schedule that
    begins with several rates of 0, is taken to have converged. Ten steps stop it too if
    after the last two of them each array is within four roundings of where it was, and neither the
    loss nor the norm of the gradient is lower.

    An optimizer that keeps the parameters between bounds, such as :func:`lbfgsb`, starts from the
    point between them that is nearest, and `tol` is on the norm of the change that a step of the
    negative gradient, projected back between them, would make. The same holds for :func:`project`,
    and with the proximal map for :func:`proximal` and :func:`proximal_gradient_descent`.

    No point is evaluated twice: if the last link of a chain is a line search that keeps its value
    and gradient, as in :func:`lbfgs`, the next step starts from these.

    With `implicit`, ``jax.grad``, ``jvp`` and the others differentiate the solution, in both modes
    and to any order, in memory that does not grow with the steps: for any `tx` the solution is a
    fixed point of a projected or proximal gradient step. These derivatives are as exact as the
    solution. State, steps and path have no derivative.

    With `unrolled`, the derivatives are those of the steps that were taken, with respect to
    `params`, `tx` and `args`. The loop then has `max_steps` turns, of which those after the end do
    nothing. The backward pass keeps about :math:`2 \sqrt{n}` states for :math:`n` = `max_steps`,
    and computes the steps between them again. A line search ends there at the first step that moves
    parameters by no more than roundings and does not lower the loss.

    Args:
        loss_fn: ``(params, *args) -> value``. As with ``jax.jit``, a call with an equal function
            reuses the compiled program: pass data that changes between calls in `args`, not in an
            attribute that a method reads.
        params: where to start: a tree of floating-point or complex arrays.
        tx: the optimizer.
        args: passed to `loss_fn` after the parameters.
        max_steps: the largest number of steps, at least 0.
        tol: the norm of the gradient at which to stop; None to continue until nothing changes.
        record: whether to keep the path of parameters and values.
        trainable: which leaves to train, as in :func:`select`.
        inside: None or False. The loop of `solve` takes no step inside of the backward pass, as
            that of :func:`make_step` does: it returns to the parameters before a gradient that has
            a NaN, and asks whether a step changed them.
        ftol: the change of the loss at which to stop, relative to the larger of both losses.
        xtol: the change of the parameters at which to stop, relative to their norm over all leaves.
        fatol: the absolute change of the loss at which to stop; with `ftol`, the sum of both.
        xatol: the absolute change of the parameters at which to stop, likewise.
        implicit: whether the parameters and the value have the derivatives of the solution: with
            respect to `args`, arrays that the loss closes over, frozen parameters, and bounds and
            strengths in `tx` that are arrays. The derivative with respect to the starting point is
            zero. True, or an `Implicit` with the method.
        unrolled: whether derivatives are those of the steps. If a step has a loop of unknown
            length, as line searches have, they exist in forward mode alone.

    Returns:
        A `Solution`. If it diverged, `steps` is the step at which it did, and `params` are the
        parameters before it.

    Raises:
        ValueError: `max_steps` or a tolerance is negative; a tolerance is several numbers; `inside`
            is given; the gradients of `tx` are estimated; `implicit` has a field out of range, or
            is not possible with `tx` or `unrolled`.
        TypeError: a tolerance is no number; a trained parameter is an array of integers; the
            solution is differentiated without `implicit` or `unrolled`, or with
            `unrolled` in reverse mode where there is a loop of unknown length.

    >>> import gradtx
    >>> result = solve(lambda x: (x - 3.0) ** 2, 0.0, gradtx.sgd(0.25))
    >>> float(result.params), int(result.status) == Status.CONVERGED
    (3.0, True)
    """
    check_order("solve", loss_fn=loss_fn, params=params, tx=tx)
    check_integer("solve", "max_steps", max_steps, least=0)
    tolerances = _Tolerances(tol, ftol, xtol, fatol, xatol)
    for name, value in tolerances._asdict().items():
        _check_tolerance(name, value)
    if inside is not None and inside is not False:
        raise ValueError(
            "solve: inside= is not possible. Where it diverges or nothing changes, solve needs "
            "the parameters before the step and all gradients, and a step inside of the backward "
            "pass keeps neither: write a loop around minimize(..., inside=True), or use make_step"
        )
    tx, params = with_extra_args_support(tx), _as_arrays(params, trainable)
    if estimator_of(tx) is not None:
        raise ValueError(
            "solve: the gradients of the optimizer are estimated, and solve judges by gradients "
            "whether it has arrived: write a loop around minimize, or use make_step"
        )
    options = checked(implicit, tx, select(params, trainable))
    if unrolled and options is not None:
        raise ValueError(
            "solve: implicit= has the derivative of the solution, unrolled= that of the steps: "
            "pass one of them"
        )
    run = _Run(max_steps, bool(record), _SameObject(trainable), bool(unrolled))
    loss_fn = _static(loss_fn)
    if options is None:
        return _solve(loss_fn, run, tx, params, args, tolerances)
    return _solve_implicitly(loss_fn, run, options, tx, params, args, tolerances)


def _static(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function as an argument that `jit` takes as static.

    One without a hash, such as a dataclass that is compared by its fields, is as the new object
    around it, so that each call compiles what its fields now are.
    """
    try:
        hash(function)
    except TypeError:
        return functools.partial(function)
    return function


class _SameObject:
    """A static argument of the program, compared by identity."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SameObject) and other.value is self.value


class _Anchor(NamedTuple):
    """The trained parameters of a step, their loss, and the norm of its gradient.

    still: whether the last step but one of the window came back to them; a cycle within
    a window comes back at one of two steps alone.
    """

    params: Params
    value: Array
    slope: Array
    still: Array

    def no_better(self, before: "_Anchor") -> Array:
        """Whether nothing has moved since a point, but for rounding."""
        higher = (self.value >= before.value) & (self.slope >= before.slope)
        return higher & _close(self.params, before.params)


class _Loop(NamedTuple):
    """The carry of the loop of :func:`solve`; `value` is the current loss if `evaluated`.

    before: the loss before the last step, NaN if that changed nothing; reason: why it stops, if it
    does; anchor: where the window of steps began within which something has to move.
    """

    params: Params
    state: State
    value: Array
    evaluated: Array
    before: Array
    steps: Array
    reason: Array
    anchor: _Anchor
    path: Any


def _first(
    params: Params, state: State, trained: Params, dtype: DType, recorded: int | None
) -> _Loop:
    """The carry before the first step, with room for a path of so many steps."""
    path = None
    if recorded is not None:
        path = Path(
            jax.tree.map(lambda p: jnp.broadcast_to(p, (recorded + 1, *p.shape)), params),
            jnp.full(recorded + 1, jnp.nan, dtype),
        )
    start = jnp.zeros([], jnp.int32)
    unknown = jnp.full([], jnp.nan, dtype), jnp.array(False)
    slope = jnp.zeros_like(global_norm(trained))
    anchor = _Anchor(trained, jnp.full([], jnp.inf, dtype), slope, jnp.array(False))
    return _Loop(params, state, *unknown, unknown[0], start, start, anchor, path)


def _in_window(now: _Loop, point: _Anchor) -> tuple[Array, _Anchor]:
    """Whether nothing has moved within a window that ends at this point, and the next anchor."""

    def ends(_: None) -> tuple[Array, _Anchor]:
        return now.anchor.still & point.no_better(now.anchor), point

    def is_about_to_end(_: None) -> tuple[Array, _Anchor]:
        return jnp.array(False), now.anchor._replace(still=point.no_better(now.anchor))

    def goes_on(_: None) -> tuple[Array, _Anchor]:
        return jnp.array(False), now.anchor

    left = jnp.clip(-now.steps % _WINDOW, 0, 2)
    return jax.lax.switch(left, (ends, is_about_to_end, goes_on), None)


class _Descent(NamedTuple):
    """The problem of :func:`solve`, and a turn of its loop.

    trained: the trained parameters at the start, for the forms of its leaves.
    """

    loss_fn: Callable[..., Any]
    run: _Run
    tx: GradientTransformation
    args: Any
    tolerances: _Tolerances
    trained: PyTree

    def selected(self, params: Params) -> PyTree:
        """The trained leaves of some parameters."""
        return select(params, self.run.trainable.value)

    def value_at(self, params: Params, leaves: PyTree) -> Array:
        """The loss with some trained leaves in place of those of `params`."""
        # A search in a group gives the leaves of its group alone.
        merged = merge(packed_like(leaves, self.trained), params)
        return scalar_loss(self.loss_fn, False, False)(merged, *self.args)[0]

    def value_and_gradient(self, now: _Loop, scale: Array | None) -> tuple[Array, PyTree]:
        """The loss and its gradient, times `scale`; those of a line search where it keeps both."""

        def evaluate(_: None) -> tuple[Array, PyTree]:
            options: Any = {"grad_loss": scale, "trainable": self.run.trainable.value}
            return compute_gradients(self.loss_fn, now.params, *self.args, **options)

        search = _evaluation(self.tx, now.state, now.value.dtype)
        if search is None or scale is not None:
            return evaluate(None)
        stored = search.value.astype(now.value.dtype), packed_like(search.grad, self.trained)
        return jax.lax.cond(now.evaluated, lambda _: stored, evaluate, None)

    def goes_on(self, now: _Loop) -> Array:
        return (now.reason == StopReason.MAX_STEPS) & (now.steps < self.run.max_steps)

    def turn(self, now: _Loop) -> _Loop:
        """One step, unless the loop ends where it would start."""
        tx, tolerances = self.tx, self.tolerances
        scale = scale_in(tx, now.state)
        value, scaled = self.value_and_gradient(now, scale)
        grads = unscaled(scaled, scale)
        at = self.selected(now.params)
        finite, nan = jnp.isfinite(value) & all_finite(at), any_nan(grads)
        point = _Anchor(at, value, global_norm(grads), jnp.array(False))
        stuck, anchor = _in_window(now, jax.lax.stop_gradient(point))
        arrived, flat = _arrived(tx, tolerances.tol, at, grads), tolerances.value(value, now.before)
        done = finite & ~nan & (arrived | flat | stuck)

        value_fn = functools.partial(self.value_at, now.params)
        extra = {"value": value, "grad": grads, "value_fn": value_fn}
        moves = finite & ~done & (~nan | (scale is not None))
        new, state = jax.lax.cond(
            moves,
            lambda _: apply_gradients(tx, scaled, now.params, now.state, **extra),
            lambda _: (now.params, now.state),
            None,
        )
        steps = now.steps + jnp.where(done, 0, 1)
        fell = _fell(scale, scale_in(tx, state))
        anchor = anchor._replace(value=jnp.where(fell, jnp.inf, anchor.value))
        still = _same(self.selected(new), at) & ~fell
        # The first update of ADOPT or of a warm-up is zero, as is Rprop's where all signs change.
        waiting = jax.lax.cond(
            still & moves,
            lambda _: _waits(tx, scaled, now.state, at, extra),
            lambda _: jnp.array(False),
            None,
        )
        near = moves & ~still & ~fell & tolerances.params(self.selected(new), at)
        evaluated = _evaluated(tx, state, value, still, moves)
        still |= moves & _goes_by_roundings(self.run, evaluated, value, self.selected(new), at)
        reason = _first_that_holds(
            (~finite | (nan & ~fell), StopReason.DIVERGED),
            (done & arrived, StopReason.TOL),
            (done & flat, StopReason.FTOL),
            (done | (still & ~waiting), StopReason.STILL),
            (near, StopReason.XTOL),
        )
        before, path = jnp.where(still | fell, jnp.nan, value), _recorded(now, new, value)
        return _Loop(new, state, *evaluated, before, steps, reason, anchor, path)

    def solution(self, last: _Loop) -> Solution[Any]:
        """The solution at the end of the loop, with the loss at its parameters."""
        value = jax.lax.cond(
            last.evaluated,
            lambda _: last.value,
            lambda _: self.value_at(last.params, self.selected(last.params)),
            None,
        )
        sound = jnp.isfinite(value) & all_finite(self.selected(last.params))
        ended = last.reason != StopReason.MAX_STEPS
        reason = jnp.where(ended | sound, last.reason, StopReason.DIVERGED).astype(jnp.int32)
        path = _to_the_end(last, value) if self.run.record else None
        status = _status(reason)
        return Solution(last.params, last.state, value, last.steps, status, path, reason)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _solve(
    loss_fn: Callable[..., Any],
    run: _Run,
    tx: GradientTransformation,
    params: ParamsT,
    args: Any,
    tolerances: _Tolerances,
) -> Solution[ParamsT]:
    where = run.trainable.value
    if not run.unrolled:
        tx, params, args = without_derivative((tx, params, args), _NO_DERIVATIVE)
    params = _start(tx, params, where)
    trained = select(params, where)
    descent = _Descent(loss_fn, run, tx, args, tolerances, trained)
    dtype = jax.eval_shape(descent.value_at, params, trained).dtype
    recorded = run.max_steps if run.record else None
    first = _first(params, tx.init(trained), trained, dtype, recorded)
    loop = _unrolled(run.max_steps) if run.unrolled else jax.lax.while_loop
    solution = descent.solution(loop(descent.goes_on, descent.turn, first))
    return solution if run.unrolled else without_derivative(solution, _NO_DERIVATIVE)


def _first_that_holds(*cases: tuple[Array, StopReason]) -> Array:
    """The reason of the first case that holds, `MAX_STEPS` if none does."""
    conditions, reasons = zip(*cases, strict=True)
    return jnp.select(conditions, [jnp.int32(r) for r in reasons], jnp.int32(StopReason.MAX_STEPS))


def _status(reason: Array) -> Array:
    status = jnp.where(reason == StopReason.DIVERGED, Status.DIVERGED, Status.CONVERGED)
    return jnp.where(reason == StopReason.MAX_STEPS, Status.MAX_STEPS, status).astype(jnp.int32)


def _unrolled(most: int) -> Callable[..., _Loop]:
    """``while_loop`` of at most so many turns, which can be differentiated in reverse too.

    The turns are in groups of as many as there are groups. The backward pass keeps the carry before
    each group, and then those within one.
    """

    def loop(go_on: Callable[[_Loop], Array], body: Callable[[_Loop], _Loop], now: _Loop) -> _Loop:
        def turn(now: _Loop, _: None) -> tuple[_Loop, None]:
            return jax.lax.cond(go_on(now), body, lambda now: now, now), None

        def group(now: _Loop, _: None) -> tuple[_Loop, None]:
            return jax.lax.scan(checkpoint(turn), now, length=length)

        checkpoint = functools.partial(jax.checkpoint, prevent_cse=False)  # within a scan
        length = math.isqrt(max(most - 1, 0)) + 1
        last, _ = jax.lax.scan(checkpoint(group), now, length=-(-most // length))
        return forward_only(last, _NO_REVERSE) if has_while(body, now) else last

    return loop


def _recorded(now: _Loop, new: Params, value: Array) -> Path[Any] | None:
    """The path, if there is one, with the loss of a step and the parameters after it."""
    if now.path is None:
        return None
    params = jax.tree.map(lambda a, x: a.at[now.steps + 1].set(x), now.path.params, new)
    return Path(params, now.path.values.at[now.steps].set(value))


def _to_the_end(last: _Loop, value: Array) -> Path[Any]:
    """The path, with the last point after the last step."""
    is_step = jnp.arange(last.path.values.shape[0]) < last.steps
    repeat = functools.partial(_repeat_last, is_step)
    params = jax.tree.map(repeat, last.path.params, last.params)
    return Path(params, jnp.where(is_step, last.path.values, value))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _solve_implicitly(
    loss_fn: Callable[..., Any],
    run: _Run,
    options: Implicit,
    tx: GradientTransformation,
    params: ParamsT,
    args: Any,
    tolerances: _Tolerances,
) -> Solution[ParamsT]:
    """:func:`_solve`, whose parameters and value have the derivatives of the solution."""
    where = run.trainable.value

    def loss(trained: PyTree) -> Array:
        return scalar_loss(loss_fn, False, False)(merge(trained, params), *args)[0]

    def find() -> tuple[PyTree, Array, Any]:
        solution = _solve(loss_fn, run, tx, params, args, tolerances)
        sound = solution.reason != StopReason.DIVERGED
        return select(solution.params, where), sound, solution._replace(params=None, value=None)

    trained, rest = differentiable(find, loss, nearest_in(tx), select(params, where), options)
    return rest._replace(params=merge(trained, params), value=loss(trained))


def _evaluation(tx: GradientTransformation, state: State, dtype: DType) -> Evaluation | None:
    """The loss and its gradient of a line search at the end of the chain, if it keeps both.

    Only the last link counts: any link after it would have moved the point.
    """
    while (searches := tx.facet(Searches)) is None:
        links = tx.expansion.facet(Links)  # also where a hyperparameter is a schedule
        if links is None or not links.each or isinstance(state, ScheduledState):
            return None
        tx, state = links.each[-1], links.states(state)[-1]
    if isinstance(state, ScheduledState):
        return None
    after = searches.evaluation(state)
    wide = jnp.promote_types(after.value.dtype, dtype) == after.value.dtype
    return after if wide and after.grad is not None else None


def _evaluated(
    tx: GradientTransformation, state: State, value: Array, still: Array, go: Array
) -> tuple[Array, Array]:
    """The loss at which the next iteration starts, and whether it is known."""
    after = _evaluation(tx, state, value.dtype)
    if after is None:
        return value, still
    searched = go & jnp.isfinite(after.value)
    return jnp.where(searched, after.value.astype(value.dtype), value), still | searched


def _goes_by_roundings(
    run: _Run, evaluated: tuple[Array, Array], before: Array, new: PyTree, at: PyTree
) -> Array:
    """Whether the steps of a search, which are differentiated, have come to where roundings lead.

    Their derivatives would be noise from there on.
    """
    if not run.unrolled:
        return jnp.array(False)
    value, is_known = evaluated
    return is_known & (value >= before) & _close(new, at)


def _fell(scale: Array | None, after: Array | None) -> Array:
    """Whether the scale of the loss fell: gradients overflowed, and may not at the next step."""
    return jnp.array(False) if scale is None or after is None else after < scale


def _repeat_last(is_step: Array, path: Array, last: Array) -> Array:
    return jnp.where(is_step.reshape((-1,) + (1,) * last.ndim), path, last)
