"""Rprop."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.checks import InitialNonNegative, NonNegative, Positive
from gradtx.composition.chain import chain
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import elementwise
from gradtx.numerics import full_like, zeros_like
from gradtx.transforms.scaling import scale
from gradtx.types import Array, Slots


class ScaleByRpropState(NamedTuple):
    """step_sizes, prev_updates: like the parameters."""

    step_sizes: Slots
    prev_updates: Slots


@transformation
def scale_by_rprop(
    learning_rate: InitialNonNegative,
    eta_minus: Positive = 0.5,
    eta_plus: Positive = 1.2,
    min_step_size: NonNegative = 1e-6,
    max_step_size: NonNegative = 50.0,
) -> GradientTransformation:
    r"""A step size for each entry, which grows while its gradient keeps its sign.

    .. math::
        \sigma_t &= \mathrm{sign}(g_t)\, \mathrm{sign}(u_{t-1}), \\
        \Delta_t &= \mathrm{clip}(\eta_+ \Delta_{t-1}),\; \mathrm{clip}(\eta_- \Delta_{t-1}),\;
        \Delta_{t-1} \;\text{ for }\; \sigma_t = 1, -1, 0, \\
        u_t &= \Delta_t\, \mathrm{sign}(g_t) \;\text{ if }\; \sigma_t \ge 0, \quad 0
        \;\text{ otherwise}

    where `clip` keeps the step size between its bounds.

    Args:
        learning_rate: :math:`\Delta_0 \ge 0`; a number or an array.
        eta_minus: :math:`\eta_- > 0`, below 1.
        eta_plus: :math:`\eta_+ > 0`, above 1.
        min_step_size: the least step size, at least 0.
        max_step_size: the largest step size, at least 0.

    State: `ScaleByRpropState`.

    The update is that of the current step, as in the paper and in PyTorch; Optax 0.2.8 returns that
    of the previous step, and so does not move at the first. Signs are multiplied here; Optax
    multiplies the numbers, whose product underflows where both are small.

    Raises:
        ValueError: `eta_minus` or `eta_plus` is a number on the wrong side of 1.
        TypeError: ``init`` is given complex parameters, which have no sign.

    Source: M. Riedmiller and H. Braun, A Direct Adaptive Method for Faster Backpropagation
    Learning: The RPROP Algorithm, 1993.

    >>> tx = scale_by_rprop(0.5)
    >>> state = tx.init(jnp.zeros(1))
    >>> for _ in range(2):
    ...     updates, state = tx.update(jnp.array([4.0]), state)
    >>> updates.round(6).tolist()
    [0.6000000238418579]
    """
    for name, eta, wrong in (("eta_minus", eta_minus, 1), ("eta_plus", eta_plus, -1)):
        if isinstance(eta, float | int) and (eta - 1) * wrong >= 0:
            side = "below" if wrong > 0 else "above"
            raise ValueError(f"scale_by_rprop: {name} must be {side} 1, not {eta!r}")

    def slots(p: Array) -> dict[str, Array]:
        if jnp.iscomplexobj(p):
            raise TypeError(
                "scale_by_rprop compares signs, which complex parameters do not have: split them "
                "into real and imaginary parts"
            )
        return {"step_sizes": full_like(p, learning_rate), "prev_updates": zeros_like(p)}

    def rule(g: Array, s: Any, t: Any) -> Any:
        sign = jnp.sign(g) * jnp.sign(s.prev_updates)
        factor = jnp.where(sign > 0, eta_plus, eta_minus)
        clipped = jnp.clip(s.step_sizes * factor, min_step_size, max_step_size)
        sizes = jnp.where(sign == 0, s.step_sizes, clipped)
        u = jnp.where(sign < 0, 0, sizes * jnp.sign(g))
        return u, {"step_sizes": sizes, "prev_updates": u}

    return elementwise(ScaleByRpropState, slots, rule)


@optimizer
def rprop(
    learning_rate: InitialNonNegative,
    eta_minus: Positive = 0.5,
    eta_plus: Positive = 1.2,
    min_step_size: NonNegative = 1e-6,
    max_step_size: NonNegative = 50.0,
) -> GradientTransformation:
    r"""Resilient backpropagation, for full batches: a step size for each entry.

    .. math::
        \sigma_t &= \mathrm{sign}(g_t)\, \mathrm{sign}(u_{t-1}), \\
        \Delta_t &= \mathrm{clip}(\eta_+ \Delta_{t-1}),\; \mathrm{clip}(\eta_- \Delta_{t-1}),\;
        \Delta_{t-1} \;\text{ for }\; \sigma_t = 1, -1, 0, \\
        u_t &= \Delta_t\, \mathrm{sign}(g_t) \;\text{ if }\; \sigma_t \ge 0, \quad 0
        \;\text{ otherwise}, \qquad \theta_t = \theta_{t-1} - u_t

    where `clip` keeps the step size between its bounds.

    Args:
        learning_rate: :math:`\Delta_0 \ge 0`, the step size of every entry at the start; a number
            or an array.
        eta_minus: :math:`\eta_-` in :math:`(0, 1)`, for an entry whose gradient changes its sign.
        eta_plus: :math:`\eta_+ > 1`, for an entry whose gradient keeps its sign.
        min_step_size: the least step size, at least 0.
        max_step_size: the largest step size, at least 0.

    Raises:
        TypeError: `learning_rate` is a schedule: after the start it has no effect.

    Source: M. Riedmiller and H. Braun, A Direct Adaptive Method for Faster Backpropagation
    Learning: The RPROP Algorithm, 1993.

    >>> import gradtx
    >>> step = gradtx.make_step(lambda x: jnp.sum((x - 1) ** 2), rprop(0.1))
    >>> params, state = jnp.zeros(2), step.init(jnp.zeros(2))
    >>> for _ in range(60):
    ...     params, state, value = step(params, state)
    >>> bool(jnp.allclose(params, 1, atol=1e-2))
    True
    """
    return chain(
        scale_by_rprop(learning_rate, eta_minus, eta_plus, min_step_size, max_step_size),
        scale(-1.0),
    )
