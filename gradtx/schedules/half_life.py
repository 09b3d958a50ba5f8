"""A decay whose half-life grows evenly: how AdEMAMix warms up its slow momentum."""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from gradtx.checks import Decay, PositiveCount
from gradtx.declarations.declared_schedule import schedule


@schedule
def half_life_schedule(
    init_value: Decay, end_value: Decay, transition_steps: PositiveCount
) -> Callable[[Any], Any]:
    r"""From one decay to another, with a half-life that changes linearly.

    .. math:: \beta_t = 2^{-1 / h_t}, \qquad
        h_t = \left(1 - \tfrac{c}{n}\right) h(\beta_a) + \tfrac{c}{n}\, h(\beta_b), \qquad
        h(\beta) = -\frac{1}{\log_2 \beta}, \qquad c = \min(t, n)

    Args:
        init_value: :math:`\beta_a` in :math:`[0, 1)`.
        end_value: :math:`\beta_b` in :math:`[0, 1)`.
        transition_steps: :math:`n \ge 1`.

    AdEMAMix warms up :math:`\beta_3` in this way, from :math:`\beta_1`, and :math:`\alpha`
    linearly, over about as many steps as the run has. Its paper counts steps from 1:
    ``stretch_schedule(..., offset=1)``.

    Source: M. Pagliardini, P. Ablin and D. Grangier, The AdEMAMix Optimizer: Better, Faster, Older,
    2024, arXiv:2409.03137, section 3 and appendix A.1.

    >>> import gradtx
    >>> b3 = half_life_schedule(0.5, 0.9999, 1000)
    >>> [round(float(b3(t)), 4) for t in (0, 500, 1000)]
    [0.5, 0.9998, 0.9999]
    >>> tx = gradtx.ademamix(1e-3, b3=b3, alpha=gradtx.linear_schedule(0.0, 5.0, 1000))
    """

    def half_life(decay: Any) -> Any:
        if isinstance(decay, int | float):  # in double precision
            return -1 / math.log2(decay) if decay > 0 else 0.0
        return -1 / jnp.log2(decay)

    def value(count: Any) -> Any:
        done = jnp.clip(count, 0, transition_steps)
        left = (transition_steps - done).astype(float)
        done = done.astype(float)
        life = left * half_life(init_value) + done * half_life(end_value)
        between = jnp.exp2(-transition_steps / life)
        # The ends as they were given, whatever the logarithms rounded to.
        return jnp.where(done == 0, init_value, jnp.where(left == 0, end_value, between))

    return value
