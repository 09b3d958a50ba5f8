"""EMA-Nesterov: gradients ahead of the parameters, where their average movement leads."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checks import Decay, NonNegative
from gradtx.core.pair import GradientTransformation, transformation
from gradtx.engine.lift import elementwise
from gradtx.leaves.paths import is_leaf
from gradtx.numerics import Step, cast, ema, widen, zero_mean
from gradtx.types import Array, DType, Params, Slots, TreeScalar


class EmaNesterovState(NamedTuple):
    """m: like the parameters; ahead: by how many times m the parameters in training lie ahead."""

    m: Slots
    ahead: TreeScalar

    def eval_params(self, params: Params) -> Params:
        """The parameters without the look ahead."""

        def behind(p: Any, m: Any) -> Any:
            if p is None or m is None:
                return p
            p = jnp.asarray(p)
            return cast(widen(p) - self.ahead * widen(m), p.dtype)

        return jax.tree.map(behind, params, self.m, is_leaf=is_leaf)


@transformation
def ema_nesterov(
    step_size: NonNegative = 0.3, decay: Decay = 0.99, m_dtype: DType | None = None
) -> GradientTransformation:
    r"""Take each step from a point ahead, in the direction in which the parameters have moved.

    To evaluate at an average and leave the run as it is, prefer :func:`ema_params`.

    .. math::
        x_{t+1} = y_t + u_t, \qquad
        m_{t+1} = \gamma m_t + (1 - \gamma)(x_{t+1} - x_t), \qquad
        y_{t+1} = x_{t+1} + \beta_{t+1} m_{t+1}

    where :math:`u_t` is the update from the links before it in a chain, for the gradient at
    :math:`y_t`. Put it last: ``chain(muon(0.02), ema_nesterov(0.3))``. The parameters being trained
    are :math:`y`; :func:`eval_params` returns :math:`x`.

    Args:
        step_size: :math:`\beta \ge 0`; a number, an array, or a schedule. The authors multiply 0.3
            or 0.6 by the schedule of the learning rate, and use 0 for the first few hundred steps
            and again from well before the last.
        decay: :math:`\gamma` in :math:`[0, 1)`.
        m_dtype: the type of `m`; the parameter's unless given.

    State: `EmaNesterovState`. A step looks ahead by the value of the schedule at that step, one
    number for all leaves: in a step in which the value changes, every leaf (and every row of a
    table) needs a gradient; where one is missing, :func:`eval_params` is wrong from then on. The
    authors' code holds a copy of `x`; this needs none.

    Source: C.-Y. Yau et al., EMA-Nesterov: Stabilizing Nesterov's Lookahead for Accelerated Deep
    Learning Optimization, 2026, arXiv:2605.25395.

    >>> import gradtx
    >>> tx = gradtx.chain(gradtx.sgd(1.0), ema_nesterov(1.0, 0.5))
    >>> params, state = jnp.zeros(1), tx.init(jnp.zeros(1))
    >>> for _ in range(2):
    ...     params, state = gradtx.apply_gradients(tx, jnp.ones(1), params, state)
    >>> params.tolist(), gradtx.eval_params(tx, state, params).tolist()
    ([-3.5], [-2.5])
    """

    def slots(p: Array) -> dict[str, Array]:
        return {"m": zero_mean(p, m_dtype)}

    def rule(u: Array, s: Any, t: Step) -> Any:
        m = ema(s.ahead * s.m + u, s.m, decay)
        return u + step_size * m, {"m": m}

    def advance(s: Any, t: Step) -> dict[str, Any]:
        return {"ahead": step_size}

    return elementwise(EmaNesterovState, slots, rule, start={"ahead": 0.0}, advance=advance)
