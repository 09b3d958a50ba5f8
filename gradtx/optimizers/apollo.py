"""APOLLO."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checks import Decay, NonNegative, Number, Positive, PositiveCount, PositiveInt
from gradtx.composition.matrices import MuonDimensionNumbers, dimension_numbers
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.matrices import MatrixDimensions, matrixwise
from gradtx.leaves.paths import Where
from gradtx.linalg.linear_algebra import frobenius_norm
from gradtx.numerics import Step, divide, moments, precise
from gradtx.optimizers.fira import limited, of_low_rank, tall
from gradtx.optimizers.soap import adam_of
from gradtx.transforms.decay import descent
from gradtx.types import Array, Counter, DimensionNumbers, DType, Slots
from gradtx.types.keys import check_key, own_key


class ScaleByApolloState(NamedTuple):
    """count: i32[]; mu, nu: Adam's moments, for a matrix those of its projection.

    For a matrix whose longer side has `n` entries, mu and nu are ``(batch, n, r)``, and size is
    real, ``(batch, 1, 1)``. For a leaf that is not a matrix, size is None.
    """

    count: Counter
    mu: Slots
    nu: Slots
    size: Slots


@transformation
def scale_by_apollo(
    rank: PositiveInt = 256,
    update_proj_gap: PositiveCount = 200,
    scale: Number = 1.0,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    growth: Positive = 1.01,
    *,
    whole: bool = False,
    key: Any = 0,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""Scale the rows of a gradient as Adam scales them in a random low-rank subspace.

    For a matrix with at least as many rows as columns (others are transposed):

    .. math::
        h_t &= g_t P, \qquad P_{jk} \sim N(0, 1/r), \qquad a_t = \mathrm{Adam}(h_t), \qquad
        d_t = \mathrm{diag}\!\left(\frac{\lVert a_{t,i} \rVert}{\lVert h_{t,i} \rVert}\right) g_t,
            \\
        u_t &= \alpha \frac{\rho_t}{\lVert d_t \rVert_F}\, d_t, \qquad
        \rho_t = \min(\lVert d_t \rVert_F, \gamma \rho_{t-1})

    with rows :math:`a_{t,i}`. Leaves that are not matrices take the steps of
    :func:`scale_by_adam`.

    Args:
        rank: :math:`r \ge 1`, at most the shorter side of a matrix.
        update_proj_gap: :math:`T \ge 1`, after how many steps `P` is drawn anew.
        scale: :math:`\alpha`; the square root of what the authors call the scale.
        b1: decay of the first moment, in :math:`[0, 1)`.
        b2: decay of the second moment, in :math:`[0, 1)`.
        eps: added to the root of the second moment.
        growth: :math:`\gamma > 0`, the factor by which the norm of the direction may grow in a
            step; after a direction of zero it is not limited.
        whole: one factor :math:`\lVert a_t \rVert_F / \lVert h_t \rVert_F` for the whole matrix, as
            in APOLLO-Mini.
        key: a random key or an integer seed.
        mu_dtype: the type of the first moment; the parameter's unless given.
        weight_dimension_numbers: as in :func:`scale_by_soap`.

    State: `ScaleByApolloState`. `P` is not kept but drawn from `key`, the step and the shape, so
    matrices of one shape share it; in the authors' code each matrix has its own.

    Raises:
        ValueError: `rank` is less than 1.
        TypeError: `key` is neither a key nor an integer.

    The authors' code adds epsilon before the bias correction, adds 1e-8 to norms that it divides
    by, and limits the growth before the bias correction.

    Source: H. Zhu et al., APOLLO: SGD-like Memory, AdamW-level Performance, 2024,
    arXiv:2412.05270, algorithm 1, with the limit of X. Chen et al., Fira, 2024, arXiv:2410.01623.

    >>> tx = scale_by_apollo(rank=1)
    >>> tx.init(jnp.zeros((6, 4))).mu.shape
    (1, 6, 1)
    """
    check_key("scale_by_apollo", "key", key)
    adam = adam_of(b1, b2, eps)

    @precise
    def rule(g: Array, s: Any, t: Step) -> Any:
        x = tall(g)
        _, *sides = x.shape
        drawn = own_key(key)
        for number in (*sides, (t.count - 1) // update_proj_gap):
            drawn = jax.random.fold_in(drawn, number)
        r = s.mu.shape[-1]
        kind = jnp.complex64 if jnp.iscomplexobj(g) else jnp.float32
        low = x @ jax.random.normal(drawn, (sides[1], r), kind).astype(x.dtype) / r**0.5
        a, new = adam(low, s, t)
        axes = (-2, -1) if whole else -1
        grown = divide(frobenius_norm(a, axes), frobenius_norm(low, axes))
        d, size = limited(x * grown, s.size, growth)
        u = scale * d
        return u if x is g else u.mT, new | {"size": size}

    return matrixwise(
        ScaleByApolloState,
        None,
        rule,
        MatrixDimensions(dimension_numbers(weight_dimension_numbers), MuonDimensionNumbers),
        factors=of_low_rank(rank, mu_dtype),
        on_others=adam,
        slots_of_others=lambda p: moments(p, mu_dtype),
    )


@optimizer
def apollo(
    learning_rate: NonNegative,
    rank: PositiveInt = 256,
    update_proj_gap: PositiveCount = 200,
    scale: Number = 1.0,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    *,
    growth: Positive = 1.01,
    whole: bool = False,
    key: Any = 0,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""APOLLO: gradient descent whose rows are scaled as Adam scales a random projection of them.

    .. math:: \theta_t = \theta_{t-1} - \eta \left( \alpha\, \mathrm{diag}\!\left(
        \frac{\lVert a_{t,i} \rVert}{\lVert (g_t P)_i \rVert}\right) g_t + \lambda \theta_{t-1}
        \right), \qquad a_t = \mathrm{Adam}(g_t P)

    limited in growth; see :func:`scale_by_apollo`. Leaves that are not matrices take the steps
    of :func:`adamw`. APOLLO-Mini is ``apollo(rate, rank=1, scale=128**0.5, whole=True)``.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule. The authors use 0.01.
        rank: as in :func:`scale_by_apollo`, like all arguments that the two share.
        update_proj_gap: after how many steps `P` is drawn anew.
        scale: :math:`\alpha`.
        b1: decay of the first moment.
        b2: decay of the second moment.
        eps: added to the root.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate. The authors' code
            decays after the step.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        growth: the factor by which the norm of the direction may grow in a step.
        whole: one factor for the whole matrix.
        key: a random key or an integer seed.
        mu_dtype: the type of the first moment.
        weight_dimension_numbers: which leaves are matrices, and how.

    Source: H. Zhu et al., APOLLO: SGD-like Memory, AdamW-level Performance, 2024,
    arXiv:2412.05270, algorithm 1.

    >>> import gradtx
    >>> tx = apollo(gradtx.linear_schedule(0.1, 0.0, 300), rank=1)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros((2, 2)), tx, max_steps=300)
    >>> bool(jnp.allclose(result.params, 1, atol=5e-2))
    True
    """
    return descent(
        scale_by_apollo(
            rank,
            update_proj_gap,
            scale,
            b1,
            b2,
            eps,
            growth,
            whole=whole,
            key=key,
            mu_dtype=mu_dtype,
            weight_dimension_numbers=weight_dimension_numbers,
        ),
        learning_rate,
        weight_decay,
        mask,
    )
