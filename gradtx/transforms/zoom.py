"""The line search for smooth losses: sufficient decrease and small curvature."""

from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checks import Limit, NonNegative, Positive, PositiveCount
from gradtx.composition.searches import Searches
from gradtx.core.pair import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    transformation,
)
from gradtx.numerics import infinity, zeros_like
from gradtx.numerics.control import branch, in_types_of, repeat_while
from gradtx.transforms.bounds import Box
from gradtx.transforms.interval import Point, choose, next_interval
from gradtx.transforms.linesearch import Line, value_dtype
from gradtx.types import Array, Params, PyTree, Slots, State, Updates

_LARGEST_STEP = 1e10


class ZoomLinesearchInfo(NamedTuple):
    """How a search ended.

    num_linesearch_steps: i32[], evaluations; decrease_error, curvature_error: by how much the
    chosen point misses the two conditions: 0 if it meets them, the largest number of their type if
    no point was found.
    """

    num_linesearch_steps: Array
    decrease_error: Array
    curvature_error: Array


class ScaleByZoomLinesearchState(NamedTuple):
    """learning_rate: the rate chosen last; value, grad: the loss and its gradient there; info."""

    learning_rate: Array
    value: Array
    grad: Slots
    info: ZoomLinesearchInfo


class _ZoomOptions(NamedTuple):
    """The hyperparameters of a search, under the names of `scale_by_zoom_linesearch`."""

    max_linesearch_steps: Any
    max_learning_rate: Any
    tol: Any
    increase_factor: Any
    slope_rtol: Any
    curv_rtol: Any
    approx_dec_rtol: Any
    stepsize_precision: Any


class _Bracket(NamedTuple):
    """A search between two evaluations.

    best: the lowest point so far; grad, errors: its gradient and by how much it misses the
    conditions; other: the far end of the interval; bracketed: whether the interval holds a minimum;
    width, width_before: of the interval, now and one evaluation earlier.
    """

    trial: Array
    best: Point
    grad: Updates
    other: Point
    bracketed: Array
    width: Array
    width_before: Array
    errors: tuple[Array, Array]
    count: Any
    running: Array


def _errors(line: Line, point: Point, options: _ZoomOptions) -> Any:
    """By how much a point misses the conditions of decrease and of curvature."""
    sound = jnp.isfinite(point.value) & jnp.isfinite(point.slope)
    decrease = point.value - line.value - options.slope_rtol * point.rate * line.slope
    if options.approx_dec_rtol is not None:
        approximate = jnp.maximum(
            point.slope - (2 * options.slope_rtol - 1) * line.slope,
            point.value - line.value - options.approx_dec_rtol * jnp.abs(line.value),
        )
        decrease = jnp.minimum(decrease, approximate)
    # An infinite factor requires nothing, even multiplied by a slope of zero.
    factor = options.curv_rtol
    asks = jnp.isfinite(factor)
    curvature = jnp.abs(point.slope) - jnp.where(asks, factor, 0) * jnp.abs(line.slope)
    curvature = jnp.where(asks, curvature, 0)
    largest = jnp.finfo(line.dtype).max
    errors = (jnp.where(sound, jnp.maximum(e, 0), largest) for e in (decrease, curvature))
    return tuple(e.astype(line.dtype) for e in errors)


def _first(line: Line, guess: Array, largest: Any) -> _Bracket:
    """The search before its first evaluation: the interval is the start alone."""
    # Numbers here are finite, for users who have JAX look for infinite ones.
    far = jnp.asarray(jnp.finfo(line.dtype).max, line.dtype)
    start = Point(jnp.zeros([], line.dtype), line.value, line.slope)
    return _Bracket(
        trial=jnp.minimum(guess, largest).astype(line.dtype),
        best=start,
        grad=line.grad,
        other=start,
        bracketed=jnp.array(False),
        width=far,
        width_before=far,
        errors=(far, far),
        count=jnp.zeros([], jnp.int32),
        running=line.slope <= 0,
    )


def _narrowed(search: _Bracket, point: Point, increase_factor: Any) -> tuple[Any, ...]:
    """The ends of the interval after an evaluation, if it holds a minimum, its width, and a trial.

    The interval and the trial rate are those of Moré and Thuente.
    """
    step = point.rate - search.best.rate
    least, most = point.rate + 1.1 * step, point.rate + 2 * increase_factor * step
    best, other, bracketed, trial = next_interval(
        search.best, search.other, point, search.bracketed, least, most
    )
    width = jnp.abs(other.rate - best.rate)
    # An interval that shrinks slowly is halved.
    halve = bracketed & (width >= 0.66 * search.width_before)
    trial = jnp.where(halve, (best.rate + other.rate) / 2, trial)
    return best, other, bracketed, width, trial


def _step(line: Line, options: _ZoomOptions, largest: Any, search: _Bracket) -> _Bracket:
    """The search after one more evaluation of value and gradient."""
    value, grad = line.evaluate(search.trial)
    point = Point(search.trial, value, line.slope_of(grad))
    errors = _errors(line, point, options)
    met = (errors[0] <= options.tol) & (errors[1] <= options.tol)
    count = search.count + 1
    best, other, bracketed, width, trial = _narrowed(search, point, options.increase_factor)
    trial = jnp.clip(trial, 0, largest).astype(line.dtype)

    lower = point.value <= search.best.value
    ends = best.rate, other.rate
    spent = (trial <= jnp.minimum(*ends)) | (trial >= jnp.maximum(*ends))
    short = options.stepsize_precision * jnp.minimum(1, jnp.maximum(*ends))
    spent |= (width <= short) & (best.rate > 0)
    spent = jnp.where(bracketed, spent, trial <= point.rate)

    lowest = best, *choose(lower, (grad, errors), (search.grad, search.errors))
    best, best_grad, best_errors = choose(met, (point, grad, errors), lowest)
    return _Bracket(
        trial,
        best,
        best_grad,
        other,
        bracketed,
        width=jnp.where(bracketed, width, search.width),
        width_before=jnp.where(bracketed, search.width, search.width_before),
        errors=best_errors,
        count=count,
        running=~met & ~spent & (count < options.max_linesearch_steps),
    )


def _print(final: _Bracket, slope: Array) -> None:
    """Print that a search failed."""
    jax.debug.print(
        "scale_by_zoom_linesearch: no sufficient decrease after {n} evaluations; the slope was "
        "{slope}, and the rate chosen is {rate}",
        n=final.count,
        slope=slope,
        rate=final.best.rate,
    )


def _init(params: Params) -> State:
    """The state before the first search."""
    dtype = value_dtype(params)
    value, decrease, curvature = (infinity(dtype) for _ in range(3))
    return ScaleByZoomLinesearchState(
        jnp.ones([], dtype),
        value,
        jax.tree.map(zeros_like, params),
        ZoomLinesearchInfo(jnp.zeros([], jnp.int32), decrease, curvature),
    )


@transformation
def scale_by_zoom_linesearch(
    max_linesearch_steps: PositiveCount,
    max_learning_rate: Positive | None = None,
    tol: NonNegative = 0.0,
    increase_factor: Positive = 2.0,
    slope_rtol: NonNegative = 1e-4,
    curv_rtol: Limit = 0.9,
    approx_dec_rtol: NonNegative | None = 1e-6,
    stepsize_precision: NonNegative = 1e-5,
    initial_guess_strategy: Literal["one", "keep"] = "keep",
    verbose: bool = False,
    lower: PyTree = None,
    upper: PyTree = None,
) -> GradientTransformation:
    r"""Scale the updates `u` so that the loss falls and its slope flattens.

    With :math:`\varphi(\eta) = f(\theta + \eta u)`, the rate :math:`\eta` should satisfy

    .. math:: \varphi(\eta) \le \varphi(0) + c_1 \eta \varphi'(0) + \epsilon, \qquad
        |\varphi'(\eta)| \le c_2 |\varphi'(0)| + \epsilon.

    If differences of the loss are lost in rounding,
    :math:`\varphi(\eta) \le \varphi(0) + c_3 |\varphi(0)|` with
    :math:`\varphi'(\eta) \le (2 c_1 - 1) \varphi'(0) + \epsilon` replaces the first condition.

    Args:
        max_linesearch_steps: at most this many evaluations of value and gradient.
        max_learning_rate: the largest rate; None for :math:`10^{10}`.
        tol: :math:`\epsilon \ge 0`.
        increase_factor: while the loss keeps falling, a rate exceeds the previous one by at most
            twice this factor times the distance between the last two.
        slope_rtol: :math:`c_1 \ge 0`.
        curv_rtol: :math:`c_2 \ge 0`; infinite to require only decrease.
        approx_dec_rtol: :math:`c_3 \ge 0`, or None not to use the approximate condition.
        stepsize_precision: an interval shorter than this is not searched further, if a lower loss
            was found; relative to its upper end where that is below 1 (Optax's is absolute).
        initial_guess_strategy: the first trial: ``"one"``, or ``"keep"`` for the last rate.
        verbose: print a line when a search fails.
        lower: a bound on the parameters, which must be within their bounds already: a number, an
            array, or a tree of these like the parameters or a prefix of one; None for no bound,
            also within the tree. No point outside is tried (not in Optax).
        upper: likewise.

    ``update`` takes `params` and the extra arguments `value`, `grad` and `value_fn`, and passes on
    to `value_fn` those of the others that it names.

    State: `ScaleByZoomLinesearchState`, value and rate in at least float32. As in Optax, the value
    and both errors are infinite before the first step, so under ``jax_debug_infs`` call ``init``
    outside of ``jit``; steps compute with finite numbers.

    Optax bisects and interpolates as Nocedal and Wright do; here trial rates are those of Moré and
    Thuente, which use the slopes of both ends and need fewer evaluations. Where nothing lower is
    found, or `u` does not descend, the step is zero (Optax's may climb), and the loss is traced
    once, not twice.

    Raises:
        ValueError: an unknown `initial_guess_strategy`; a lower bound above the upper one; bounds
            are for another tree, or do not fit a leaf.
        TypeError: there are bounds, and a parameter is complex.

    Source: J. J. Moré and D. J. Thuente, Line Search Algorithms with Guaranteed Sufficient
    Decrease, 1994, doi:10.1145/192115.192132; W. W. Hager and H. Zhang, Algorithm 851: CG_DESCENT,
    2006, doi:10.1145/1132973.1132979 (the approximate condition).

    >>> import gradtx
    >>> tx = gradtx.chain(gradtx.sgd(1.0), gradtx.scale_by_zoom_linesearch(15))
    >>> gradtx.solve(lambda x: jnp.sum(x**2), jnp.ones(2), tx).params.tolist()
    [0.0, 0.0]
    """
    if initial_guess_strategy not in ("one", "keep"):
        raise ValueError(
            "scale_by_zoom_linesearch: initial_guess_strategy must be 'one' or 'keep', not "
            f"{initial_guess_strategy!r}"
        )
    options = _ZoomOptions(
        max_linesearch_steps,
        _LARGEST_STEP if max_learning_rate is None else max_learning_rate,
        tol,
        increase_factor,
        slope_rtol,
        curv_rtol,
        approx_dec_rtol,
        stepsize_precision,
    )
    box = Box("scale_by_zoom_linesearch", lower, upper)
    bounded = None if lower is None and upper is None else box

    def search(line: Line, guess: Array) -> _Bracket:
        most = options.max_learning_rate
        largest = most if bounded is None else line.reach(most)
        step = partial(_step, line, options, largest)
        return repeat_while(lambda now: now.running, step, _first(line, guess, largest))

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        if not jax.tree.leaves(updates):
            return updates, state
        line = Line("scale_by_zoom_linesearch", updates, params, extra_args, bounded)
        one = jnp.ones_like(state.learning_rate)
        keep = initial_guess_strategy == "keep"
        guess = jnp.where(state.learning_rate > 0, state.learning_rate, one) if keep else one
        final = search(line, guess)
        if verbose:
            branch(final.errors[0] > tol, _print, lambda *_: None, final, line.slope)
        new = ScaleByZoomLinesearchState(
            final.best.rate,
            final.best.value,
            line.stored(final.grad, state.grad),
            ZoomLinesearchInfo(final.count, *final.errors),
        )
        return line.step(final.best.rate), in_types_of(new, state)

    init = _init if bounded is None else bounded.refusing(_init)
    return GradientTransformationExtraArgs(init, update, facets=(Searches(),))
