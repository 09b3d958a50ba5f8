"""The line search that requires only sufficient decrease."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checks import Count, Fraction, Limit, NonNegative, Positive
from gradtx.composition.searches import Searches
from gradtx.core.pair import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    transformation,
)
from gradtx.numerics import infinity, zeros_like
from gradtx.numerics.control import branch, in_types_of, repeat_while
from gradtx.transforms.linesearch import Line, conjugate, value_dtype
from gradtx.types import Array, Params, Slots, State, Updates


class BacktrackingLinesearchInfo(NamedTuple):
    """How a search ended.

    num_linesearch_steps: i32[], evaluations; decrease_error: by how much the condition is missed at
    the last rate tried, 0 if it is met.
    """

    num_linesearch_steps: Array
    decrease_error: Array


class ScaleByBacktrackingLinesearchState(NamedTuple):
    """learning_rate: the rate chosen last; value, grad (or None): the loss there; info."""

    learning_rate: Array
    value: Array
    grad: Slots
    info: BacktrackingLinesearchInfo


class _BacktrackingOptions(NamedTuple):
    """Hyperparameters of a search, under the names of `scale_by_backtracking_linesearch`."""

    max_backtracking_steps: Any
    slope_rtol: Any
    decrease_factor: Any
    atol: Any
    rtol: Any
    store_grad: bool


class _Backtracking(NamedTuple):
    """The rate tried last, with the loss, its gradient, and by how much the condition is missed."""

    rate: Array
    value: Array
    grad: Updates
    error: Array
    count: Any


def _search(line: Line, guess: Array, options: _BacktrackingOptions) -> _Backtracking:
    """The search, from the first rate to one that meets the condition."""
    # Numbers here are finite, for users who have JAX look for infinite ones.
    far = jnp.asarray(jnp.finfo(line.dtype).max, line.dtype)

    def goes_on(now: _Backtracking) -> Array:
        return ~(now.error <= options.atol) & (now.count <= options.max_backtracking_steps)

    def step(now: _Backtracking) -> _Backtracking:
        rate = jnp.where(now.count > 0, options.decrease_factor * now.rate, now.rate)
        value, pull = jax.vjp(line.loss, line.point(rate))
        sufficient = (1 + options.rtol) * line.value
        error = value - sufficient - options.slope_rtol * rate * line.slope
        error = jnp.where(jnp.isfinite(value), jnp.maximum(error, 0), far)
        new = _Backtracking(rate, value, now.grad, error.astype(line.dtype), now.count + 1)
        if options.store_grad:
            # Only the last rate needs a gradient.
            grad = branch(
                goes_on(new),
                lambda: now.grad,
                lambda: conjugate(pull(jnp.ones_like(value))[0]),
            )
            new = new._replace(grad=grad)
        return new._replace(rate=rate.astype(line.dtype))

    grad = line.grad if options.store_grad else None
    first = _Backtracking(guess, line.value, grad, far, jnp.zeros([], jnp.int32))
    return repeat_while(goes_on, step, first)


@transformation
def scale_by_backtracking_linesearch(
    max_backtracking_steps: Count,
    slope_rtol: NonNegative = 1e-4,
    decrease_factor: Fraction = 0.8,
    increase_factor: Limit = 1.5,
    max_learning_rate: Positive = 1.0,
    atol: NonNegative = 0.0,
    rtol: NonNegative = 0.0,
    store_grad: bool = False,
    verbose: bool = False,
) -> GradientTransformation:
    r"""Scale the updates `u` until the loss falls enough (Armijo's condition).

    .. math:: f(\theta + \eta u) \le (1 + \delta) f(\theta)
        + c\, \eta \langle u, \nabla f(\theta) \rangle + \epsilon

    The first :math:`\eta` is the last one times the increase factor, at most
    `max_learning_rate`; each further one is the decrease factor times the previous one.

    Args:
        max_backtracking_steps: how often :math:`\eta` may be decreased; at least 0.
        slope_rtol: :math:`c \ge 0`.
        decrease_factor: in :math:`[0, 1]`.
        increase_factor: at least 0; 1 to start from the last rate, infinite to start from
            `max_learning_rate`.
        max_learning_rate: the largest rate.
        atol: :math:`\epsilon \ge 0`.
        rtol: :math:`\delta \ge 0`.
        store_grad: whether to keep the gradient at the chosen point, for the next step: see
            :func:`value_and_grad_from_state`. :func:`solve` then evaluates no point twice.
        verbose: print a line when a search fails.

    ``update`` takes `params` and the extra arguments `value`, `grad` and `value_fn`, and passes on
    to `value_fn` those of the others that it names.

    State: `ScaleByBacktrackingLinesearchState`, value and rate in at least float32. As in Optax,
    the value and the error are infinite before the first step, so under ``jax_debug_infs`` call
    ``init`` outside of ``jit``; steps compute with finite numbers.

    If no rate meets the condition, the last one is taken, as in Optax; if the loss is not finite
    there, the step is zero, the old value and gradient are kept, and the next search starts from
    `max_learning_rate` (Optax's rate stays zero forever).

    Source: L. Armijo, Minimization of Functions Having Lipschitz Continuous First Partial
    Derivatives, 1966, doi:10.2140/pjm.1966.16.1; S. Vaswani et al., Painless Stochastic Gradient,
    2019, arXiv:1905.09997.

    >>> import gradtx
    >>> tx = gradtx.chain(gradtx.sgd(1.0), gradtx.scale_by_backtracking_linesearch(15))
    >>> result = gradtx.solve(lambda x: jnp.sum(x**2), jnp.ones(2), tx, max_steps=30)
    >>> bool(result.value < 1e-3)
    True
    """
    options = _BacktrackingOptions(
        max_backtracking_steps, slope_rtol, decrease_factor, atol, rtol, store_grad
    )

    def init(params: Params) -> State:
        dtype = value_dtype(params)
        value, error = (infinity(dtype) for _ in range(2))
        return ScaleByBacktrackingLinesearchState(
            jnp.ones([], dtype),
            value,
            jax.tree.map(zeros_like, params) if store_grad else None,
            BacktrackingLinesearchInfo(jnp.zeros([], jnp.int32), error),
        )

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        if not jax.tree.leaves(updates):
            return updates, state
        line = Line("scale_by_backtracking_linesearch", updates, params, extra_args)
        larger = jnp.minimum(increase_factor * state.learning_rate, max_learning_rate)
        guess = jnp.where(state.learning_rate > 0, larger, max_learning_rate)
        final = _search(line, guess.astype(line.dtype), options)
        if verbose:
            branch(final.error > atol, _print, lambda *_: None, final, line.slope)
        failed = final.error == jnp.finfo(final.error.dtype).max
        rate = jnp.where(failed, 0, final.rate)
        grad = None
        if store_grad:
            grad = jax.tree.map(lambda n, o: jnp.where(failed, o, n), final.grad, line.grad)
            grad = line.stored(grad, state.grad)
        new = ScaleByBacktrackingLinesearchState(
            rate,
            jnp.where(failed, line.value, final.value),
            grad,
            BacktrackingLinesearchInfo(final.count, final.error),
        )
        return line.step(rate), in_types_of(new, state)

    return GradientTransformationExtraArgs(init, update, facets=(Searches(),))


def _print(final: _Backtracking, slope: Array) -> None:
    jax.debug.print(
        "scale_by_backtracking_linesearch: no sufficient decrease after {n} evaluations; the slope "
        "was {slope}, and the rate tried last {rate}",
        n=final.count,
        slope=slope,
        rate=final.rate,
    )
