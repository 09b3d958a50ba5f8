"""Gradient noise."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checks import NonNegative
from gradtx.core.pair import (
    GradientTransformation,
    transformation,
)
from gradtx.engine.lift import leafwise
from gradtx.numerics import Step
from gradtx.types import Array, Counter, Key
from gradtx.types.keys import given_key, own_key


class AddNoiseState(NamedTuple):
    """count: i32[]; rng_key: a random key."""

    count: Counter
    rng_key: Key


@transformation
def add_noise(
    eta: NonNegative, gamma: NonNegative, key: Any = None, *, seed: Any = None
) -> GradientTransformation:
    r"""Add normal noise whose variance decreases.

    .. math:: u_t = g_t + \sqrt{\eta / t^\gamma}\; \xi_t, \qquad \xi_t \sim N(0, 1)

    Args:
        eta: :math:`\eta \ge 0`.
        gamma: :math:`\gamma \ge 0`.
        key: a random key or an integer seed; 0 by default.
        seed: Optax's old name for `key`.

    State: `AddNoiseState`. The noise is drawn in float32 and so is the same in every type (Optax
    draws in the gradient's type); for a complex gradient :math:`E|\xi|^2 = 1`.

    Raises:
        ValueError: both `key` and `seed` are given.
        TypeError: a gradient is `Rows` of a table: the noise belongs to all of its rows.

    Source: A. Neelakantan et al., Adding Gradient Noise Improves Learning for Very Deep Networks,
    2015, arXiv:1511.06807.

    >>> tx = add_noise(eta=0.0, gamma=0.55, key=1)
    >>> tx.update(jnp.array([4.0]), tx.init(jnp.zeros(1)))[0].tolist()
    [4.0]
    """
    noise_key = given_key("add_noise", key, seed)

    def rule(g: Array, s: Any, t: Step) -> Any:
        deviation = t.once("deviation", 0, lambda: jnp.sqrt(eta / t.number**gamma))
        kind = jnp.complex64 if jnp.iscomplexobj(g) else jnp.float32
        return g + deviation * jax.random.normal(s.rng_key, g.shape, kind), {}

    def start(params: list[Array]) -> dict[str, Array]:
        return {"rng_key": own_key(0 if noise_key is None else noise_key)}

    return leafwise(AddNoiseState, None, rule, start=start)
