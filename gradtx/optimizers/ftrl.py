"""FTRL: follow the regularized leader."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx import numerics
from gradtx.checks import InitialNonNegative, NonNegative, Positive
from gradtx.core.pair import GradientTransformation, transformation
from gradtx.engine.lift import elementwise
from gradtx.numerics import (
    abs_sq,
    accumulator_dtype,
    bounded,
    compute_dtype,
    divide,
    full_like,
    squarable,
    zeros_like,
)
from gradtx.numerics.compiler_hints import delay
from gradtx.types import Array, NonNegativeSlots, Slots


class FtrlState(NamedTuple):
    """accumulator, linear: like the parameters, in float32 or wider; the first is real."""

    accumulator: NonNegativeSlots
    linear: Slots


@transformation
def ftrl(
    learning_rate: Positive,
    learning_rate_power: float = -0.5,
    initial_accumulator_value: InitialNonNegative = 0.1,
    l1_regularization_strength: NonNegative = 0.0,
    l2_regularization_strength: NonNegative = 0.0,
    l2_shrinkage_regularization_strength: NonNegative = 0.0,
    beta: NonNegative = 0.0,
) -> GradientTransformation:
    r"""FTRL-Proximal: the exact minimum of all linearised losses with L1 and L2 penalties.

    .. math::
        n_t &= n_{t-1} + |g_t|^2, \\
        z_t &= z_{t-1} + g_t + 2 \lambda_s \theta_{t-1}
            - \frac{n_t^{-k} - n_{t-1}^{-k}}{\eta}\, \theta_{t-1}, \\
        \theta_t &= -\frac{\mathrm{sign}(z_t) \max(|z_t| - \lambda_1, 0)}
            {(n_t^{-k} + \beta) / \eta + 2 \lambda_2}

    Args:
        learning_rate: :math:`\eta > 0`; a number, an array, or a schedule. Where an array or a
            schedule is 0, as at the start of a warm-up, nothing moves.
        learning_rate_power: :math:`k \le 0`, a number.
        initial_accumulator_value: :math:`n_0 \ge 0`.
        l1_regularization_strength: :math:`\lambda_1 \ge 0`; makes entries exactly 0.
        l2_regularization_strength: :math:`\lambda_2 \ge 0`.
        l2_shrinkage_regularization_strength: :math:`\lambda_s \ge 0`, a decay of the parameters.
        beta: :math:`\beta \ge 0`.

    Arguments and formula are those of Keras. As there, the first step forgets the initial
    parameters except for what :math:`z` keeps of them: start from zeros. Optax has no FTRL.

    State: `FtrlState`; with a schedule, inside a `ScheduledState`. A gradient whose square is more
    than the accumulator can hold counts as the largest whose square is not.

    Raises:
        ValueError: ``update`` is called without parameters, or `learning_rate_power` is positive.

    Source: H. B. McMahan et al., Ad Click Prediction: a View from the Trenches, 2013,
    doi:10.1145/2487575.2488200, algorithm 1.

    >>> import gradtx
    >>> tx = ftrl(0.5)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=100)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    if isinstance(learning_rate_power, bool) or not isinstance(learning_rate_power, float | int):
        raise TypeError(f"ftrl: learning_rate_power must be a number, not {learning_rate_power!r}")
    if not learning_rate_power <= 0:
        raise ValueError(f"ftrl: learning_rate_power must be at most 0, not {learning_rate_power}")

    def root(n: Array) -> Array:
        return numerics.root(n) if learning_rate_power == -0.5 else n**-learning_rate_power

    def slots(p: Array) -> dict[str, Array]:
        return {
            "accumulator": full_like(p, initial_accumulator_value, accumulator_dtype(p)),
            "linear": zeros_like(p, compute_dtype(p.dtype)),
        }

    def rule(g: Array, s: Any, t: Any, p: Array) -> Any:
        g = jnp.where(jnp.isfinite(g), squarable(g), g)
        square = abs_sq(g)
        pull = 2 * l2_shrinkage_regularization_strength
        growth = root(bounded(s.accumulator + square)) - root(s.accumulator)
        z = s.linear + g + (pull - growth * (1 / learning_rate)) * p
        n = bounded(s.accumulator + delay(square, after=z))  # z reads the old one
        curvature = (root(n) + beta) * (1 / learning_rate) + 2 * l2_regularization_strength
        size = jnp.maximum(jnp.abs(z) - l1_regularization_strength, 0)
        step = -jnp.sign(z) * divide(size, curvature) - p
        if isinstance(learning_rate, float | int):
            return step, {"accumulator": n, "linear": z}
        # A schedule may start at 0, by which this would divide: in the limit nothing moves.
        moves = jnp.asarray(learning_rate) > 0
        return jnp.where(moves, step, 0), {
            "accumulator": jnp.where(moves, n, s.accumulator),
            "linear": jnp.where(moves, z, s.linear),
        }

    return elementwise(FtrlState, slots, rule)
