"""Momentum: a decaying sum, or a moving average, of the updates."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx import numerics
from gradtx.checks import Decay, Fraction
from gradtx.composition.scalings import Scaling
from gradtx.core.pair import GradientTransformation, transformation
from gradtx.engine.lift import elementwise
from gradtx.engine.zero_gradients import ZeroGradient
from gradtx.types import Array, Counter, DType, Slots


class TraceState(NamedTuple):
    """trace: like the parameters, in accumulator_dtype if given."""

    trace: Slots


class TraceWithCountState(NamedTuple):
    """count: i32[]; trace: like the parameters, in accumulator_dtype if given."""

    count: Counter
    trace: Slots


@transformation(update_size="proportional")
def trace(
    decay: Fraction,
    nesterov: bool = False,
    accumulator_dtype: DType | None = None,
    *,
    dampening: Fraction | None = None,
) -> GradientTransformation:
    r"""A decaying sum of the updates: momentum.

    .. math:: m \leftarrow (1 - d) g + \mu m, \qquad u = m \;\text{ or, with Nesterov, }\; g + \mu m

    Args:
        decay: :math:`\mu` in :math:`[0, 1]`. Optax takes any number.
        nesterov: take the direction after one more decay.
        accumulator_dtype: the type in which :math:`m` is kept; the parameters' by default.
        dampening: :math:`d` in :math:`[0, 1]`; not at the first step, as in PyTorch. Optax has
            none.

    State: `TraceState`; with dampening `TraceWithCountState`.

    Raises:
        ValueError: `nesterov` and `dampening` are combined.

    Source: B. T. Polyak, Some Methods of Speeding up the Convergence of Iteration Methods, 1964;
    I. Sutskever et al., On the Importance of Initialization and Momentum in Deep Learning, 2013.

    >>> import jax.numpy as jnp
    >>> tx = trace(0.5)
    >>> state = tx.init(jnp.zeros(1))
    >>> for _ in range(2):
    ...     updates, state = tx.update(jnp.ones(1), state)
    >>> updates.tolist()
    [1.5]
    """

    def slots(p: Array) -> dict[str, Array]:
        return {"trace": numerics.zero_mean(p, accumulator_dtype)}

    zero_gradient = ZeroGradient({"trace": decay}, lambda: decay, linear=True)
    if dampening is None or numerics.is_zero(dampening):

        def rule(g: Array, s: Any, t: Any) -> Any:
            m = g + decay * s.trace
            return (g + decay * m if nesterov else m), {"trace": m}

        lifted = elementwise(TraceState, slots, rule, zero_gradient=zero_gradient)
        return lifted.with_facets(Scaling("past"))

    if nesterov:
        raise ValueError("trace: nesterov has no dampening")

    def dampened(g: Array, s: Any, t: numerics.Step) -> Any:
        m = g * jnp.where(t.number == 1, 1, 1 - dampening) + decay * s.trace
        return m, {"trace": m}

    lifted = elementwise(TraceWithCountState, slots, dampened, zero_gradient=zero_gradient)
    return lifted.with_facets(Scaling("past"))


class EmaState(NamedTuple):
    """count: i32[]; ema: like the parameters, in accumulator_dtype if given."""

    count: Counter
    ema: Slots


@transformation
def ema(
    decay: Decay, debias: bool = True, accumulator_dtype: DType | None = None
) -> GradientTransformation:
    r"""An exponential moving average of the updates.

    For an average of the parameters, prefer :func:`ema_params`.

    .. math:: m_t = \beta m_{t-1} + (1 - \beta) g_t, \qquad u = m_t / (1 - \beta^t)

    Args:
        decay: :math:`\beta` in :math:`[0, 1)`.
        debias: divide by :math:`1 - \beta^t`; otherwise :math:`u = m_t`.
        accumulator_dtype: the type in which :math:`m` is kept; the parameters' by default.

    State: `EmaState`.

    >>> import jax.numpy as jnp
    >>> tx = ema(0.9)
    >>> updates, state = tx.update(jnp.ones(1), tx.init(jnp.zeros(1)))
    >>> round(float(updates[0]), 6)
    1.0
    """

    def slots(p: Array) -> dict[str, Array]:
        return {"ema": numerics.zero_mean(p, accumulator_dtype)}

    def rule(g: Array, s: Any, t: numerics.Step) -> Any:
        m = numerics.ema(g, s.ema, decay)
        return (numerics.debias(m, decay, t) if debias else m), {"ema": m}

    zero_gradient = ZeroGradient({"ema": decay}, lambda: decay, linear=True)
    return elementwise(EmaState, slots, rule, zero_gradient=zero_gradient)
