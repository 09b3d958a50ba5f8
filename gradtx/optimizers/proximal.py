"""Proximal descent: steps under L1 and L2 penalties that make entries exactly zero."""

from typing import Any, NamedTuple

from gradtx.checks import InitialNonNegative, InitialPositive, NonNegative
from gradtx.composition.nearest import Nearest
from gradtx.core.pair import GradientTransformation, transformation
from gradtx.engine.lift import elementwise
from gradtx.leaves.paths import map_present
from gradtx.numerics import (
    Step,
    abs_sq,
    accumulator_dtype,
    compute_dtype,
    divide,
    full_like,
    root,
    shrink,
    zeros_like,
)
from gradtx.optimizers.adagrad import ScaleByRssState
from gradtx.types import Array, Counter, EmptyState, NonNegativeSlots, Params, Slots


def _shrunk(l1: Any, l2: Any) -> Nearest:
    """The proximal map of both penalties, on each leaf."""

    def nearest(params: Params, rate: Any) -> Params:
        return map_present(lambda p: shrink(p, rate * l1, rate * l2), params)

    return Nearest(nearest, at_own_rate=True, rate="learning_rate")


@transformation
def proximal_gradient_descent(
    learning_rate: NonNegative,
    l1_regularization_strength: NonNegative = 0.0,
    l2_regularization_strength: NonNegative = 0.0,
) -> GradientTransformation:
    r"""Gradient descent, then the proximal step of L1 and L2 penalties.

    .. math:: x = \theta - \eta g, \qquad
        \theta \leftarrow \mathrm{sign}(x)\, \frac{\max(|x| - \eta\lambda_1, 0)}{1 + \eta\lambda_2}

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        l1_regularization_strength: :math:`\lambda_1 \ge 0`.
        l2_regularization_strength: :math:`\lambda_2 \ge 0`.

    State: none. After another optimizer see :func:`shrink_params`.

    Raises:
        ValueError: ``update`` is called without parameters.

    Source: J. Duchi and Y. Singer, Efficient Online and Batch Learning Using Forward Backward
    Splitting, 2009, JMLR 10, section 5. TensorFlow's ``ProximalGradientDescentOptimizer``.

    >>> import gradtx, jax.numpy as jnp
    >>> tx = proximal_gradient_descent(0.1, l1_regularization_strength=1.0)
    >>> target = jnp.array([1.0, 0.1])
    >>> result = gradtx.solve(lambda x: jnp.sum((x - target) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> result.params.round(4).tolist()
    [0.5, 0.0]
    """

    def rule(g: Array, s: Any, t: Any, p: Array) -> Any:
        l1 = learning_rate * l1_regularization_strength
        l2 = learning_rate * l2_regularization_strength
        return shrink(p - learning_rate * g, l1, l2) - p, {}

    lifted = elementwise(EmptyState, None, rule)
    return lifted.with_facets(_shrunk(l1_regularization_strength, l2_regularization_strength))


@transformation
def proximal_adagrad(
    learning_rate: NonNegative,
    initial_accumulator_value: InitialPositive = 0.1,
    l1_regularization_strength: NonNegative = 0.0,
    l2_regularization_strength: NonNegative = 0.0,
) -> GradientTransformation:
    r"""Adagrad whose penalties are scaled entry by entry, as its steps are.

    .. math:: s \leftarrow s + |g|^2, \quad \eta_s = \eta / \sqrt{s}, \quad
        x = \theta - \eta_s g, \quad
        \theta \leftarrow \mathrm{sign}(x)\,
        \frac{\max(|x| - \eta_s\lambda_1, 0)}{1 + \eta_s\lambda_2}

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        initial_accumulator_value: :math:`s_0 > 0`.
        l1_regularization_strength: :math:`\lambda_1 \ge 0`.
        l2_regularization_strength: :math:`\lambda_2 \ge 0`.

    State: `ScaleByRssState`.

    Raises:
        ValueError: ``update`` is called without parameters.

    Source: J. Duchi, E. Hazan and Y. Singer, Adaptive Subgradient Methods for Online Learning and
    Stochastic Optimization, 2011, JMLR 12, section 5. TensorFlow's ``ProximalAdagradOptimizer``.

    >>> import gradtx, jax.numpy as jnp
    >>> tx = proximal_adagrad(0.5, l1_regularization_strength=1.0)
    >>> target = jnp.array([1.0, 0.1])
    >>> result = gradtx.solve(lambda x: jnp.sum((x - target) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> result.params.round(4).tolist()
    [0.5, 0.0]
    """

    def slots(p: Array) -> dict[str, Array]:
        return {"sum_of_squares": full_like(p, initial_accumulator_value, accumulator_dtype(p))}

    def rule(g: Array, s: Any, t: Any, p: Array) -> Any:
        total = s.sum_of_squares + abs_sq(g)
        rate = learning_rate / root(total)
        l1, l2 = rate * l1_regularization_strength, rate * l2_regularization_strength
        return shrink(p - rate * g, l1, l2) - p, {"sum_of_squares": total}

    lifted = elementwise(ScaleByRssState, slots, rule)
    return lifted.with_facets(_shrunk(l1_regularization_strength, l2_regularization_strength))


class AdagradDaState(NamedTuple):
    """count: i32[]; gradient_sum, sum_of_squares: like the parameters, in float32 or wider."""

    count: Counter
    gradient_sum: Slots
    sum_of_squares: NonNegativeSlots


@transformation
def adagrad_da(
    learning_rate: NonNegative,
    initial_accumulator_value: InitialNonNegative = 0.1,
    l1_regularization_strength: NonNegative = 0.0,
    l2_regularization_strength: NonNegative = 0.0,
) -> GradientTransformation:
    r"""Adagrad by dual averaging: the parameters follow from the sum of all gradients.

    .. math::
        z_t = z_{t-1} + g_t, \qquad s_t = s_{t-1} + |g_t|^2, \qquad
        \theta_t = -\eta\, \frac{\mathrm{sign}(z_t) \max(|z_t| - \lambda_1 t, 0)}
            {\sqrt{s_t} + \eta \lambda_2 t}

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        initial_accumulator_value: :math:`s_0 \ge 0`.
        l1_regularization_strength: :math:`\lambda_1 \ge 0`; many entries become exactly 0.
        l2_regularization_strength: :math:`\lambda_2 \ge 0`.

    The first step forgets the initial parameters: start from zeros.

    State: `AdagradDaState`.

    Raises:
        ValueError: ``update`` is called without parameters.

    Source: J. Duchi, E. Hazan and Y. Singer, Adaptive Subgradient Methods for Online Learning and
    Stochastic Optimization, 2011, JMLR 12, equation 3. TensorFlow's ``AdagradDAOptimizer``.

    >>> import gradtx, jax.numpy as jnp
    >>> tx = adagrad_da(1.0, l1_regularization_strength=1.0)
    >>> target = jnp.array([1.0, 0.1])
    >>> result = gradtx.solve(lambda x: jnp.sum((x - target) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, jnp.array([0.5, 0.0]), atol=1e-1))
    True
    """

    def slots(p: Array) -> dict[str, Array]:
        return {
            "gradient_sum": zeros_like(p, compute_dtype(p.dtype)),
            "sum_of_squares": full_like(p, initial_accumulator_value, accumulator_dtype(p)),
        }

    def rule(g: Array, s: Any, t: Step, p: Array) -> Any:
        z, total = s.gradient_sum + g, s.sum_of_squares + abs_sq(g)
        curvature = root(total) + learning_rate * l2_regularization_strength * t.number
        shrunk = shrink(z, l1_regularization_strength * t.number)
        new = {"gradient_sum": z, "sum_of_squares": total}
        return divide(-learning_rate * shrunk, curvature) - p, new

    lifted = elementwise(AdagradDaState, slots, rule)
    return lifted.with_facets(_shrunk(l1_regularization_strength, l2_regularization_strength))
