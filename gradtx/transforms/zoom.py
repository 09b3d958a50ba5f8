"""The line search for smooth losses: sufficient decrease and small curvature."""

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


class _ZoomSearch(NamedTuple):
    """best: the lowest point so far, with its gradient; other: the far end of the interval."""

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


def _print(final: _ZoomSearch, slope: Array) -> None:
    jax.debug.print(
        "scale_by_zoom_linesearch: no sufficient decrease after {n} evaluations; the slope was "
        "{slope}, and the rate chosen is {rate}",
        n=final.count,
        slope=slope,
        rate=final.best.rate,
    )


def _missed(line: Line, at: Point, slope_rtol: Any, curv_rtol: Any, approx: Any) -> Any:
    """By how much a point misses the conditions of decrease and of curvature."""
    sound = jnp.isfinite(at.value) & jnp.isfinite(at.slope)
    decrease = at.value - line.value - slope_rtol * at.rate * line.slope
    if approx is not None:
        approximate = jnp.maximum(
            at.slope - (2 * slope_rtol - 1) * line.slope,
            at.value - line.value - approx * jnp.abs(line.value),
        )
        decrease = jnp.minimum(decrease, approximate)
    # An infinite factor requires nothing, even multiplied by a slope of zero.
    asks = jnp.isfinite(curv_rtol)
    curvature = jnp.abs(at.slope) - jnp.where(asks, curv_rtol, 0) * jnp.abs(line.slope)
    curvature = jnp.where(asks, curvature, 0)
    far = jnp.finfo(line.dtype).max
    missed = (jnp.where(sound, jnp.maximum(e, 0), far) for e in (decrease, curvature))
    return tuple(e.astype(line.dtype) for e in missed)


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
        initial_guess_strategy: what to try first: ``"one"``, or ``"keep"`` for the last rate.
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
        ValueError: an unknown `initial_guess_strategy`; a lower bound above the upper one.

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
    most = _LARGEST_STEP if max_learning_rate is None else max_learning_rate
    box = Box("scale_by_zoom_linesearch", lower, upper)
    bounded = None if lower is None and upper is None else box

    def init(params: Params) -> State:
        dtype = value_dtype(params)
        value, decrease, curvature = (infinity(dtype) for _ in range(3))
        return ScaleByZoomLinesearchState(
            jnp.ones([], dtype),
            value,
            jax.tree.map(zeros_like, params),
            ZoomLinesearchInfo(jnp.zeros([], jnp.int32), decrease, curvature),
        )

    def search(line: Line, guess: Array) -> _ZoomSearch:
        largest = most if bounded is None else line.reach(most)

        def body(now: _ZoomSearch) -> _ZoomSearch:
            value, grad = line.evaluate(now.trial)
            at = Point(now.trial, value, line.slope_of(grad))
            missed = _missed(line, at, slope_rtol, curv_rtol, approx_dec_rtol)
            met = (missed[0] <= tol) & (missed[1] <= tol)
            count = now.count + 1

            step = at.rate - now.best.rate
            least, most = at.rate + 1.1 * step, at.rate + 2 * increase_factor * step
            best, other, bracketed, trial = next_interval(
                now.best, now.other, at, now.bracketed, least, most
            )
            ends = best.rate, other.rate
            width = jnp.abs(other.rate - best.rate)
            # An interval that shrinks slowly is halved.
            halve = bracketed & (width >= 0.66 * now.width_before)
            trial = jnp.where(halve, (best.rate + other.rate) / 2, trial)
            trial = jnp.clip(trial, 0, largest).astype(line.dtype)

            lower = at.value <= now.best.value
            spent = (trial <= jnp.minimum(*ends)) | (trial >= jnp.maximum(*ends))
            short = stepsize_precision * jnp.minimum(1, jnp.maximum(*ends))
            spent |= (width <= short) & (best.rate > 0)
            spent = jnp.where(bracketed, spent, trial <= at.rate)
            chosen = at, grad, missed
            best, best_grad, best_errors = choose(
                met, chosen, (best, *choose(lower, chosen[1:], (now.grad, now.errors)))
            )
            return _ZoomSearch(
                trial,
                best,
                best_grad,
                other,
                bracketed,
                jnp.where(bracketed, width, now.width),
                jnp.where(bracketed, now.width, now.width_before),
                best_errors,
                count,
                ~met & ~spent & (count < max_linesearch_steps),
            )

        # Numbers here are finite, for users who have JAX look for infinite ones.
        far = jnp.asarray(jnp.finfo(line.dtype).max, line.dtype)
        start = Point(jnp.zeros([], line.dtype), line.value, line.slope)
        first = _ZoomSearch(
            jnp.minimum(guess, largest).astype(line.dtype),
            start,
            line.grad,
            start,
            jnp.array(False),
            far,
            far,
            (far, far),
            jnp.zeros([], jnp.int32),
            line.slope <= 0,
        )
        return repeat_while(lambda now: now.running, body, first)

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
            line.kept(final.grad, state.grad),
            ZoomLinesearchInfo(final.count, *final.errors),
        )
        return line.step(final.best.rate), in_types_of(new, state)

    return GradientTransformationExtraArgs(init, update, facets=(Searches(),))
