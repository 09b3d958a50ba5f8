"""Lion."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp

from gradtx.checks import Decay, LearningRate, NonNegative, check_choice
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import elementwise
from gradtx.leaves.paths import Where
from gradtx.numerics import ema, zero_mean
from gradtx.numerics.compiler_hints import planned
from gradtx.transforms.decay import descent
from gradtx.types import Array, Counter, DType, Slots


class ScaleByLionState(NamedTuple):
    """count: i32[]; mu: like the parameters, in mu_dtype if given."""

    count: Counter
    mu: Slots

    @property
    def steps_by_sign(self) -> bool:
        """Whether an entry of the momentum counts in full however small it is."""
        return True


@transformation(update_size="adam")
def scale_by_lion(
    b1: Decay = 0.9,
    b2: Decay = 0.99,
    mu_dtype: DType | None = None,
    *,
    mode: Literal["hard", "smooth", "refined"] = "hard",
    smooth_beta: NonNegative = 1.0,
) -> GradientTransformation:
    r"""The sign of a blend of momentum and gradient.

    .. math:: u_t = \mathrm{sign}(c_t), \quad c_t = \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \qquad
        \mu_t = \beta_2 \mu_{t-1} + (1 - \beta_2) g_t

    Args:
        b1: :math:`\beta_1` in :math:`[0, 1)`, of the direction.
        b2: :math:`\beta_2` in :math:`[0, 1)`, of the momentum.
        mu_dtype: the type in which :math:`\mu` is kept; the parameter's unless given.
        mode: ``"hard"`` is the sign, ``"smooth"`` is :math:`\tanh(\beta c_t)`, ``"refined"`` is
            :math:`c_t` where it is below 1 in absolute value and its sign elsewhere.
        smooth_beta: :math:`\beta \ge 0` of ``"smooth"``.

    :math:`c_t` is computed as :math:`(\beta_1 \mu_t + (\beta_2 - \beta_1) g_t) / \beta_2`, the same
    but for rounding, which saves a copy of the momentum.

    State: `ScaleByLionState`.

    Raises:
        ValueError: an unknown `mode`.

    Source: X. Chen et al., Symbolic Discovery of Optimization Algorithms, 2023, arXiv:2302.06675,
    algorithm 2.

    >>> tx = scale_by_lion()
    >>> tx.update(jnp.array([-0.3, 0.0]), tx.init(jnp.zeros(2)))[0].tolist()
    [-1.0, 0.0]
    """
    shapes: dict[str, Callable[[Array], Array]] = {
        "hard": jnp.sign,
        "smooth": lambda c: jnp.tanh(smooth_beta * c),
        "refined": lambda c: jnp.where(jnp.abs(c) < 1, c, jnp.sign(c)),
    }
    check_choice("scale_by_lion", "mode", mode, list(shapes))

    # Of a smaller share of the old momentum in the new one rounding would leave little.
    invertible = isinstance(b2, float) and b2 >= 0.5

    def slots(p: Array) -> dict[str, Array]:
        return {"mu": zero_mean(p, mu_dtype)}

    def rule(g: Array, s: Any, t: Any) -> Any:
        return shapes[mode](ema(g, s.mu, b1)), {"mu": ema(g, s.mu, b2)}

    def plan(g: Array, s: Any, t: Any) -> Any:
        """The same blend in terms of the new momentum.

        XLA copies a donated slot whose old value is read after the new one is written.
        """
        mu = ema(g, s.mu, b2)
        blend = (b1 * mu + (b2 - b1) * g) / b2 if invertible else ema(g, s.mu, b1)
        return shapes[mode](blend), {"mu": mu}

    return elementwise(ScaleByLionState, slots, planned(rule, plan))


@optimizer(update_size="adam")
def lion(
    learning_rate: LearningRate,
    b1: Decay = 0.9,
    b2: Decay = 0.99,
    mu_dtype: DType | None = None,
    weight_decay: NonNegative = 1e-3,
    mask: Where | None = None,
) -> GradientTransformation:
    r"""Lion: the sign of a blend of momentum and gradient, with decoupled weight decay.

    .. math::
        c_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \qquad
            \mu_t = \beta_2 \mu_{t-1} + (1 - \beta_2) g_t, \\
        \theta_t &= \theta_{t-1}
            - \eta \left(\mathrm{sign}(c_t) + \lambda\theta_{t-1}\right)

    Args:
        learning_rate: :math:`\eta`, 3 to 10 times smaller than Adam's; a number, an array, or
            a schedule.
        b1: :math:`\beta_1` in :math:`[0, 1)`, of the direction.
        b2: :math:`\beta_2` in :math:`[0, 1)`, of the momentum.
        mu_dtype: the type of the momentum.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.
        mask: which parameters decay, as in :func:`add_decayed_weights`.

    Source: X. Chen et al., Symbolic Discovery of Optimization Algorithms, 2023, arXiv:2302.06675,
    algorithm 2.

    >>> import gradtx
    >>> tx = lion(0.01)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-1))
    True
    """
    return descent(scale_by_lion(b1, b2, mu_dtype), learning_rate, weight_decay, mask)
