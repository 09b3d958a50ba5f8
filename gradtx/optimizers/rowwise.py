"""Row-wise Adagrad and Adam: one second moment for each row of a table."""

from typing import Any, NamedTuple

from gradtx.checks import Decay, InitialNonNegative, LearningRate, NonNegative
from gradtx.composition.chain import chain
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import rowwise
from gradtx.engine.zero_gradients import ZeroGradient
from gradtx.numerics import (
    Step,
    abs_sq,
    accumulator_dtype,
    debias,
    divide,
    ema,
    full_like,
    one_per_row,
    root,
    row_mean,
    zero_mean,
    zeros_like,
)
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array, Counter, DType, NonNegativeSlots, Slots


class ScaleByRowwiseRssState(NamedTuple):
    """sum_of_squares: a number for each row, real and in float32 or wider."""

    sum_of_squares: NonNegativeSlots


@transformation
def scale_by_rowwise_rss(
    initial_accumulator_value: InitialNonNegative = 0.0, eps: NonNegative = 1e-8
) -> GradientTransformation:
    r"""Divide each row by the root of the sum of its mean squared gradients.

    .. math:: s_i \leftarrow s_i + \frac1d \sum_j |g_{ij}|^2, \qquad
        u_{ij} = \frac{g_{ij}}{\sqrt{s_i} + \epsilon}\;(0 \text{ for } 0/0)

    Args:
        initial_accumulator_value: :math:`s_i` at the start, at least 0.
        eps: :math:`\epsilon \ge 0`, outside the root.

    State: `ScaleByRowwiseRssState`, of shape ``(n, 1)`` for a table of shape ``(n, d)``. Each entry
    of a vector is a row. A gradient that touches few rows of a table may be `Rows`.

    Source: D. Mudigere et al., Software-Hardware Co-design for Fast and Scalable Training of Deep
    Learning Recommendation Models, 2022, arXiv:2104.05158, section 4.1.4; as in FBGEMM.

    >>> import jax.numpy as jnp
    >>> tx = scale_by_rowwise_rss(eps=0.0)
    >>> g = jnp.array([[3.0, 3.0], [0.0, 0.0]])
    >>> tx.update(g, tx.init(g))[0].tolist()
    [[1.0, 1.0], [0.0, 0.0]]
    """

    def slots(p: Array) -> dict[str, Array]:
        start = full_like(one_per_row(p), initial_accumulator_value, accumulator_dtype(p))
        return {"sum_of_squares": start}

    def rule(g: Array, s: Any, t: Any) -> Any:
        total = s.sum_of_squares + row_mean(abs_sq(g))
        return divide(g, root(total) + eps), {"sum_of_squares": total}

    return rowwise(
        ScaleByRowwiseRssState, slots, rule, zero_gradient=ZeroGradient({"sum_of_squares": 1})
    )


@optimizer
def rowwise_adagrad(
    learning_rate: LearningRate,
    initial_accumulator_value: InitialNonNegative = 0.0,
    eps: NonNegative = 1e-8,
) -> GradientTransformation:
    r"""Row-wise Adagrad: one sum of squares for each row of a table.

    .. math:: s_i \leftarrow s_i + \frac1d \sum_j |g_{ij}|^2, \qquad
        \theta_{ij} \leftarrow \theta_{ij} - \eta \frac{g_{ij}}{\sqrt{s_i} + \epsilon}

    The state is one number for each row, where :func:`adagrad` keeps a whole table.

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        initial_accumulator_value: :math:`s_i` at the start, at least 0.
        eps: :math:`\epsilon \ge 0`, added to its root.

    Source: D. Mudigere et al., 2022, arXiv:2104.05158; FBGEMM's ``EXACT_ROWWISE_ADAGRAD``.

    >>> import gradtx, jax.numpy as jnp
    >>> tx = rowwise_adagrad(0.5)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros((3, 2)), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return chain(
        scale_by_rowwise_rss(initial_accumulator_value, eps), scale_by_learning_rate(learning_rate)
    )


class ScaleByRowwiseAdamState(NamedTuple):
    """count: i32[]; mu: like the parameters; nu: a number for each row, float32 or wider."""

    count: Counter
    mu: Slots
    nu: NonNegativeSlots


@transformation
def scale_by_rowwise_adam(
    b1: Decay = 0.9, b2: Decay = 0.999, eps: NonNegative = 1e-8, mu_dtype: DType | None = None
) -> GradientTransformation:
    r"""Adam with one second moment for each row.

    .. math::
        \mu &\leftarrow \beta_1 \mu + (1 - \beta_1) g, \qquad
            \nu_i \leftarrow \beta_2 \nu_i + \frac{1 - \beta_2}{d} \sum_j |g_{ij}|^2, \\
        u_{ij} &= \frac{\hat\mu_{ij}}{\sqrt{\hat\nu_i} + \epsilon}, \qquad
            \hat\mu = \frac{\mu}{1 - \beta_1^t}, \quad
            \hat\nu_i = \frac{\nu_i}{1 - \beta_2^t}

    Args:
        b1: :math:`\beta_1` in :math:`[0, 1)`; this and the next two: a number, an array, or a
            schedule.
        b2: :math:`\beta_2` in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`, outside the root.
        mu_dtype: the type of :math:`\mu`; the parameter's unless given.

    State: `ScaleByRowwiseAdamState`, where `nu` of a table of shape ``(n, d)`` is ``(n, 1)``. The
    bias corrections count all steps, including those at which a row was not touched.

    Source: FBGEMM's ``PARTIAL_ROWWISE_ADAM``; D. P. Kingma and J. Ba, 2015, arXiv:1412.6980.

    >>> import jax.numpy as jnp
    >>> tx = scale_by_rowwise_adam(eps=0.0)
    >>> g = jnp.array([[3.0, 3.0]])
    >>> tx.update(g, tx.init(g))[0].round(5).tolist()
    [[1.0, 1.0]]
    """

    def slots(p: Array) -> dict[str, Array]:
        nu = zeros_like(one_per_row(p), accumulator_dtype(p))
        return {"mu": zero_mean(p, mu_dtype), "nu": nu}

    def rule(g: Array, s: Any, t: Step) -> Any:
        mu = ema(g, s.mu, b1)
        nu = ema(row_mean(abs_sq(g)), s.nu, b2)
        u = divide(debias(mu, b1, t), root(debias(nu, b2, t)) + eps)
        return u, {"mu": mu, "nu": nu}

    zero_gradient = ZeroGradient({"mu": b1, "nu": b2}, lambda: b1 / b2**0.5)
    return rowwise(ScaleByRowwiseAdamState, slots, rule, zero_gradient=zero_gradient)


@optimizer
def rowwise_adam(
    learning_rate: LearningRate,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    mu_dtype: DType | None = None,
) -> GradientTransformation:
    r"""Partially row-wise Adam: one second moment for each row of a table.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \qquad
            \nu_{t,i} = \beta_2 \nu_{t-1,i} + \frac{1 - \beta_2}{d} \sum_j |g_{t,ij}|^2, \\
        \theta_{t,ij} &= \theta_{t-1,ij} - \eta \frac{\mu_{t,ij} / (1 - \beta_1^t)}
            {\sqrt{\nu_{t,i} / (1 - \beta_2^t)} + \epsilon}

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        b1: decay of the first moment; this and the rest as in :func:`scale_by_rowwise_adam`.
        b2: decay of the second moment.
        eps: added to the root of the second moment.
        mu_dtype: the type of the first moment.

    Source: FBGEMM's ``PARTIAL_ROWWISE_ADAM``; D. P. Kingma and J. Ba, 2015, arXiv:1412.6980.

    >>> import gradtx, jax.numpy as jnp
    >>> tx = rowwise_adam(0.05)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros((3, 2)), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return chain(
        scale_by_rowwise_adam(b1, b2, eps, mu_dtype), scale_by_learning_rate(learning_rate)
    )
