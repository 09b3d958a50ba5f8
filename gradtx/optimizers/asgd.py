"""Averaged stochastic gradient descent."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.checks import NonNegative
from gradtx.core.pair import GradientTransformation, transformation
from gradtx.engine.lift import elementwise
from gradtx.numerics import Step, compute_dtype, own_copy
from gradtx.types import Array, Counter, Slots


class AsgdState(NamedTuple):
    """count: i32[]; ax: the mean parameters, in float32 or wider, initially the parameters."""

    count: Counter
    ax: Slots


@transformation
def asgd(
    learning_rate: NonNegative,
    lambd: NonNegative = 1e-4,
    alpha: NonNegative = 0.75,
    t0: NonNegative = 1e6,
    weight_decay: NonNegative = 0.0,
) -> GradientTransformation:
    r"""Stochastic gradient descent that keeps the average of its iterates.

    .. math::
        \eta_t &= \frac{\eta}{(1 + \lambda \eta (t - 1))^{\alpha}}, \qquad
        \theta_t = (1 - \lambda \eta_t) \theta_{t-1} - \eta_t (g_t + w \theta_{t-1}), \\
        \bar\theta_t &= \bar\theta_{t-1}
            + \frac{\theta_t - \bar\theta_{t-1}}{\max(1, t - 1 - t_0)}

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        lambd: :math:`\lambda \ge 0`, decay of the parameters and of the learning rate.
        alpha: :math:`\alpha \ge 0`, the power of the learning rate's decay.
        t0: :math:`t_0 \ge 0`, the step at which averaging begins; before it the average is the
            parameter itself.
        weight_decay: :math:`w \ge 0`, an L2 penalty.

    State: `AsgdState`; ``get_slot(state, "ax")`` is the average. Arguments and formula are
    PyTorch's, whose default learning rate is 0.01.

    Raises:
        ValueError: ``update`` is called without parameters.

    Source: B. T. Polyak and A. B. Juditsky, Acceleration of Stochastic Approximation by Averaging,
    1992, doi:10.1137/0330046.

    >>> import gradtx
    >>> tx = asgd(0.1, t0=20)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(gradtx.get_slot(result.state, "ax"), 1, atol=1e-2))
    True
    """

    def slots(p: Array) -> dict[str, Array]:
        return {"ax": own_copy(p, compute_dtype(p.dtype))}

    def rule(g: Array, s: Any, t: Step, p: Array) -> Any:
        rate = learning_rate / (1 + lambd * learning_rate * (t.number - 1)) ** alpha
        u = g * -rate - (rate * (lambd + weight_decay)) * p
        part = 1 / jnp.maximum(1, t.number - 1 - t0)
        # As a sum of products: where part is 1 it is the new parameter to the last bit.
        return u, {"ax": (1 - part) * s.ax + part * (p + u)}

    return elementwise(AsgdState, slots, rule)
