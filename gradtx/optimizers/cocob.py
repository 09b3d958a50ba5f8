"""COCOB: each entry finds its own step size by betting on its gradients."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.checks import InitialNonNegative, NonNegative, Positive
from gradtx.composition.chain import chain
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import elementwise
from gradtx.leaves.paths import Where
from gradtx.numerics import (
    accumulator_dtype,
    compute_dtype,
    divide,
    full_like,
    own_copy,
    zeros_like,
)
from gradtx.transforms.decay import add_decayed_weights
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array, Slots


class COCOBState(NamedTuple):
    r"""Five slots like the parameters, the last four in float32 or wider.

    init_particles: :math:`\theta_0`, in the parameter's type; cumulative_gradients: `C`; scale,
    subgradients, reward: `L`, `G` and `R`, real.
    """

    init_particles: Slots
    cumulative_gradients: Slots
    scale: Slots
    subgradients: Slots
    reward: Slots


@transformation
def scale_by_cocob(
    alpha: Positive = 100.0, eps: InitialNonNegative = 1e-8
) -> GradientTransformation:
    r"""Continuous coin betting: each entry bets part of its winnings on its next gradient.

    .. math::
        L_t &= \max(L_{t-1}, |g_t|), \quad G_t = G_{t-1} + |g_t|, \quad C_t = C_{t-1} - g_t, \\
        R_t &= \max(R_{t-1} - g_t (\theta_{t-1} - \theta_0), 0), \\
        u_t &= \theta_0 - \theta_{t-1} + \frac{C_t}{L_t \max(G_t + L_t, \alpha L_t)} (L_t + R_t)

    Args:
        alpha: :math:`\alpha > 0`; a number, an array, or a schedule. The first steps move an entry
            by about :math:`1 / \alpha`.
        eps: :math:`L_0 \ge 0`. With 0 an entry rests until its first gradient.

    The update is the step itself, sign included: no learning rate follows.

    State: `COCOBState`. Optax keeps the sums in the parameter's type, where in bfloat16 they stop
    growing after a few hundred steps. For a complex entry :math:`g_t (\theta - \theta_0)` is the
    real inner product.

    Raises:
        ValueError: ``update`` is called without parameters.

    Source: F. Orabona and T. Tommasi, Training Deep Networks without Learning Rates Through Coin
    Betting, 2017, arXiv:1705.07795, algorithm 2.

    >>> tx = scale_by_cocob(eps=0.0)
    >>> p = jnp.zeros(2)
    >>> tx.update(jnp.array([-3.0, 0.0]), tx.init(p), p)[0].tolist()
    [0.009999999776482582, 0.0]
    """

    def slots(p: Array) -> dict[str, Array]:
        real = accumulator_dtype(p)
        return {
            "init_particles": own_copy(p),
            "cumulative_gradients": zeros_like(p, compute_dtype(p.dtype)),
            "scale": full_like(p, eps, real),
            "subgradients": zeros_like(p, real),
            "reward": zeros_like(p, real),
        }

    def rule(g: Array, s: Any, t: Any, p: Array) -> Any:
        size = jnp.abs(g)
        scale = jnp.maximum(s.scale, size)
        total = s.subgradients + size
        won = (jnp.conj(g) * (p - s.init_particles)).real
        # max(R - w, 0), as an operation on two arrays: XLA repeats one on an array and a number
        # wherever its result is read, and so would read the old slot later and copy it.
        reward = jnp.maximum(s.reward, won) - won
        summed = s.cumulative_gradients - g
        stake = divide(scale + reward, scale * jnp.maximum(total + scale, alpha * scale))
        new = {
            "init_particles": s.init_particles,
            "cumulative_gradients": summed,
            "scale": scale,
            "subgradients": total,
            "reward": reward,
        }
        return s.init_particles - p + summed * stake, new

    return elementwise(COCOBState, slots, rule)


@optimizer
def cocob(
    learning_rate: NonNegative = 1.0,
    alpha: Positive = 100.0,
    eps: InitialNonNegative = 1e-8,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
) -> GradientTransformation:
    r"""COCOB: each entry sets its own step size by betting on its gradients.

    .. math::
        L_t &= \max(L_{t-1}, |g_t|), \quad G_t = G_{t-1} + |g_t|, \quad C_t = C_{t-1} - g_t, \\
        R_t &= \max(R_{t-1} - g_t (\theta_{t-1} - \theta_0), 0), \\
        \theta_t &= \theta_0 + \frac{C_t}{L_t \max(G_t + L_t, \alpha L_t)} (L_t + R_t)

    where :math:`g_t` is the gradient plus :math:`\lambda\theta_{t-1}`, times :math:`\eta`, and
    :math:`G_0 = C_0 = R_0 = 0`.

    Args:
        learning_rate: :math:`\eta \ge 0`, a factor of the *gradients*; a number, an array, or a
            schedule. Only its changes matter, since the steps do not depend on the gradients'
            scale.
        alpha: :math:`\alpha > 0`; the first steps move an entry by about :math:`1 / \alpha`.
        eps: :math:`L_0 \ge 0`.
        weight_decay: :math:`\lambda \ge 0`, added to the gradient as :math:`\lambda\theta`.
        mask: which parameters decay, as in :func:`add_decayed_weights`.

    Source: F. Orabona and T. Tommasi, Training Deep Networks without Learning Rates Through Coin
    Betting, 2017, arXiv:1705.07795, algorithm 2.

    >>> import gradtx
    >>> tx = cocob()
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=100)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return chain(
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate, flip_sign=False),
        scale_by_cocob(alpha, eps),
    )
