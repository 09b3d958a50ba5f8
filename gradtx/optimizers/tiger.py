"""Tiger."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.checks import Decay, LearningRate, NonNegative
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import elementwise
from gradtx.leaves.paths import Where
from gradtx.numerics import ema, zero_mean
from gradtx.transforms.decay import descent
from gradtx.types import Array, DType, Slots


class ScaleByTigerState(NamedTuple):
    """mu: like the parameters, in mu_dtype if given."""

    mu: Slots


@transformation(update_size="adam")
def scale_by_tiger(b1: Decay = 0.965, mu_dtype: DType | None = None) -> GradientTransformation:
    r"""The sign of a moving average of the gradients: Lion with one decay.

    .. math:: \mu \leftarrow \beta \mu + (1 - \beta) g, \qquad u = \mathrm{sign}(\mu)

    Args:
        b1: :math:`\beta` in :math:`[0, 1)`.
        mu_dtype: the type in which :math:`\mu` is kept; the parameter's unless given.

    State: `ScaleByTigerState`.

    Source: J. Su, Tiger: A Tight-fisted Optimizer, 2023, https://github.com/bojone/tiger.

    >>> tx = scale_by_tiger()
    >>> tx.update(jnp.array([-0.3, 0.0]), tx.init(jnp.zeros(2)))[0].tolist()
    [-1.0, 0.0]
    """

    def rule(g: Array, s: Any, t: Any) -> Any:
        mu = ema(g, s.mu, b1)
        return jnp.sign(mu), {"mu": mu}

    return elementwise(ScaleByTigerState, lambda p: {"mu": zero_mean(p, mu_dtype)}, rule)


@optimizer(update_size="adam")
def tiger(
    learning_rate: LearningRate,
    b1: Decay = 0.965,
    weight_decay: NonNegative = 0.01,
    mask: Where | None = None,
    *,
    mu_dtype: DType | None = None,
) -> GradientTransformation:
    r"""Tiger: the sign of a moving average of the gradients, with decoupled weight decay.

    .. math:: \mu_t = \beta \mu_{t-1} + (1 - \beta) g_t, \qquad
        \theta_t = \theta_{t-1} - \eta \left(\mathrm{sign}(\mu_t) + \lambda\theta_{t-1}\right)

    The author also scales the learning rate of a matrix by its root mean square: chain
    :func:`scale_by_param_block_rms` for that.

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        b1: :math:`\beta` in :math:`[0, 1)`, the decay of the momentum.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        mu_dtype: the type of the momentum.

    Source: J. Su, Tiger: A Tight-fisted Optimizer, 2023, https://github.com/bojone/tiger.

    >>> import gradtx
    >>> tx = tiger(0.01)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=300)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-1))
    True
    """
    return descent(scale_by_tiger(b1, mu_dtype), learning_rate, weight_decay, mask)
