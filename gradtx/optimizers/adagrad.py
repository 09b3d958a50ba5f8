"""Adagrad."""

from typing import Any, NamedTuple

from gradtx.checks import InitialNonNegative, LearningRate, NonNegative
from gradtx.composition.chain import chain
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import elementwise
from gradtx.engine.zero_gradients import ZeroGradient
from gradtx.numerics import abs_sq, accumulator_dtype, full_like, root_plus
from gradtx.transforms.scaling import scale_by_learning_rate, scale_by_schedule
from gradtx.types import Array, NonNegativeSlots


class ScaleByRssState(NamedTuple):
    """sum_of_squares: like the parameters, real and in float32 or wider."""

    sum_of_squares: NonNegativeSlots


@transformation(update_size="adam")
def scale_by_rss(
    initial_accumulator_value: InitialNonNegative = 0.1,
    eps: NonNegative = 1e-7,
    *,
    eps_in_sqrt: bool = True,
) -> GradientTransformation:
    r"""Divide by the root of the sum of all squared gradients.

    .. math:: s \leftarrow s + |g|^2, \qquad u = g / \sqrt{s + \epsilon}\;(0 \text{ where } s = 0)

    Args:
        initial_accumulator_value: :math:`s_0 \ge 0`.
        eps: :math:`\epsilon \ge 0`.
        eps_in_sqrt: whether :math:`\epsilon` stands inside the root, as in Keras; PyTorch adds it
            outside.

    State: `ScaleByRssState`.

    Source: J. Duchi, E. Hazan and Y. Singer, Adaptive Subgradient Methods for Online Learning and
    Stochastic Optimization, 2011, JMLR 12, figure 1 (diagonal).

    >>> import jax.numpy as jnp
    >>> tx = scale_by_rss(0.0, 0.0)
    >>> tx.update(jnp.array([3.0, 0.0]), tx.init(jnp.zeros(2)))[0].tolist()
    [1.0, 0.0]
    """

    def slots(p: Array) -> dict[str, Array]:
        return {"sum_of_squares": full_like(p, initial_accumulator_value, accumulator_dtype(p))}

    def rule(g: Array, s: Any, t: Any) -> Any:
        total = s.sum_of_squares + abs_sq(g)
        inside = total + (eps if eps_in_sqrt else 0)
        return g / root_plus(inside, 0 if eps_in_sqrt else eps, g), {"sum_of_squares": total}

    return elementwise(
        ScaleByRssState, slots, rule, zero_gradient=ZeroGradient({"sum_of_squares": 1})
    )


@optimizer(update_size="adam")
def adagrad(
    learning_rate: LearningRate,
    initial_accumulator_value: InitialNonNegative = 0.1,
    eps: NonNegative = 1e-7,
    *,
    lr_decay: NonNegative = 0.0,
    eps_in_sqrt: bool = True,
) -> GradientTransformation:
    r"""Adagrad: steps along the gradient, divided by the root of the sum of all squared gradients.

    .. math::
        s_t = s_{t-1} + |g_t|^2, \qquad
        \theta_t = \theta_{t-1} - \frac{\eta}{1 + d\,(t - 1)}\,
            \frac{g_t}{\sqrt{s_t + \epsilon}}
            \;(\text{no step where } s_t = 0)

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        initial_accumulator_value: :math:`s_0 \ge 0`, the sum of squares at the start.
        eps: :math:`\epsilon`, added to the sum of squares, or to its root.
        lr_decay: :math:`d \ge 0`, as in PyTorch. Unless it is 0, the chain has another link, which
            counts the steps.
        eps_in_sqrt: whether `eps` stands inside the root; PyTorch adds it outside.

    Source: J. Duchi, E. Hazan and Y. Singer, Adaptive Subgradient Methods for Online Learning and
    Stochastic Optimization, 2011, JMLR 12.

    >>> import gradtx, jax.numpy as jnp
    >>> tx = adagrad(0.5)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    links = (
        scale_by_rss(initial_accumulator_value, eps, eps_in_sqrt=eps_in_sqrt),
        scale_by_learning_rate(learning_rate),
    )
    if isinstance(lr_decay, float | int) and lr_decay == 0:
        return chain(*links)

    def slower(count: Any) -> Any:
        return 1 / (1 + (lr_decay(count) if callable(lr_decay) else lr_decay) * count)

    return chain(*links, scale_by_schedule(slower))
