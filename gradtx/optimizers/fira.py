"""Fira."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.checks import Decay, NonNegative, Number, Positive, PositiveCount, PositiveInt
from gradtx.composition.matrices import MuonDimensionNumbers, dimension_numbers
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.matrices import FactorFn, Matrices, MatrixDimensions, matrixwise
from gradtx.leaves.paths import Where
from gradtx.linalg.linear_algebra import frobenius_norm, right_singular_vectors
from gradtx.numerics import (
    Step,
    accumulator_dtype,
    compute_dtype,
    divide,
    mean_dtype,
    moments,
    precise,
)
from gradtx.numerics.control import branch
from gradtx.optimizers.soap import adam_of, finite_or
from gradtx.transforms.decay import descent
from gradtx.types import Array, Counter, DimensionNumbers, DType, Slots


class ScaleByFiraState(NamedTuple):
    """count: i32[]; mu, nu: Adam's moments, for a matrix those of its projection.

    For a matrix whose longer side has `n` entries and whose shorter one has `m`, mu and nu are
    ``(batch, n, r)``, projector is ``(batch, m, r)`` and size, real, ``(batch, 1, 1)``. For a leaf
    that is not a matrix, the last two are None.
    """

    count: Counter
    mu: Slots
    nu: Slots
    projector: Slots
    size: Slots


def of_low_rank(rank: int, mu_dtype: Any) -> dict[str, FactorFn]:
    """Adam's moments of the projection of a matrix, and a size."""

    def shape(matrices: Matrices) -> tuple[int, int, int]:
        count, *sides = matrices.sizes
        return count, max(sides), min(rank, *sides)

    def mu(matrices: Matrices, p: Array) -> Array:
        return jnp.zeros(shape(matrices), p.dtype if mu_dtype is None else mean_dtype(p, mu_dtype))

    def nu(matrices: Matrices, p: Array) -> Array:
        return jnp.zeros(shape(matrices), accumulator_dtype(p))

    def size(matrices: Matrices, p: Array) -> Array:
        return jnp.zeros((matrices.sizes[0], 1, 1), accumulator_dtype(p))

    return {"mu": mu, "nu": nu, "size": size}


def tall(x: Array) -> Array:
    """Matrices with at least as many rows as columns: the given ones, transposed if need be."""
    return x.mT if x.shape[-2] < x.shape[-1] else x


def limited(x: Array, before: Array, growth: Any) -> tuple[Array, Array]:
    """Matrices whose norm is at most `growth` times the previous one, if any; and the norms."""
    size = frobenius_norm(x)
    new = jnp.where(before > 0, jnp.minimum(size, growth * before), size)
    return x * divide(new, size), new


def is_due(count: Any, gap: Any, offset: int) -> Any:
    """Whether a basis is due: at the first step, and `offset` steps before every `gap`-th."""
    return (count == 0) | ((count + offset) % gap == 0)


@transformation
def scale_by_fira(
    rank: PositiveInt = 128,
    update_proj_gap: PositiveCount = 200,
    scale: Number = 1.0,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    growth: Positive = 1.01,
    *,
    staggered: bool = False,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""Adam in a low-rank subspace; outside it, gradients scaled as Adam scales them inside.

    For a matrix with at least as many rows as columns (others are transposed):

    .. math::
        h_t &= g_t P, \qquad a_t = \mathrm{Adam}(h_t), \qquad
        r_t = \mathrm{diag}\!\left(\frac{\lVert a_{t,i} \rVert}{\lVert h_{t,i} \rVert}\right)
            (g_t - \alpha h_t P^*), \\
        u_t &= \alpha\, a_t P^* + \frac{\rho_t}{\lVert r_t \rVert_F}\, r_t, \qquad
        \rho_t = \min(\lVert r_t \rVert_F, \gamma \rho_{t-1})

    with rows :math:`a_{t,i}`, and `P` the first `r` right singular vectors of :math:`g_t` at every
    `T`-th step from the first on. Leaves that are not matrices take the steps of
    :func:`scale_by_adam`.

    Args:
        rank: :math:`r \ge 1`, at most the shorter side of a matrix.
        update_proj_gap: :math:`T \ge 1`, steps from one projector to the next. Between them no
            decomposition is computed. Singular vectors that are not finite are discarded.
        scale: :math:`\alpha`.
        b1: decay of the first moment, in :math:`[0, 1)`.
        b2: decay of the second moment, in :math:`[0, 1)`.
        eps: added to the root of the second moment.
        growth: :math:`\gamma > 0`, the factor by which the norm of the part outside may grow in a
            step; after a step without that part it is not limited.
        staggered: each batch of matrices of one shape gets its later projectors one step earlier
            than the batch before it, so that no one of these steps computes them all.
        mu_dtype: the type of the first moment; the parameter's unless given.
        weight_dimension_numbers: as in :func:`scale_by_soap`.

    State: `ScaleByFiraState`. Products alone, as :func:`scale_by_soap` has them, find a whole
    basis, without an order; here only the first vectors of one gradient are wanted.

    Raises:
        ValueError: `rank` is less than 1.

    The authors' code adds epsilon before the bias correction, adds 1e-8 to norms that it divides
    by, and limits the growth before the bias correction, whose factor changes from step to step: by
    default it falls from 0.32 to 0.15 in ten steps, then rises to 1. So the steps outside the
    subspace are other ones while the limit acts.

    Source: X. Chen et al., Fira: Can We Achieve Full-rank Training of LLMs Under Low-rank
    Constraint?, 2024, arXiv:2410.01623.

    >>> tx = scale_by_fira(rank=1)
    >>> tx.init(jnp.zeros((6, 4))).mu.shape
    (1, 6, 1)
    """
    adam = adam_of(b1, b2, eps)

    def projector(matrices: Matrices, p: Array) -> Array:
        count, *sides = matrices.sizes
        return jnp.zeros((count, min(sides), min(rank, *sides)), compute_dtype(p.dtype))

    @precise
    def rule(g: Array, s: Any, t: Step) -> Any:
        x = tall(g)

        def fresh(old: Array) -> Array:
            return finite_or(right_singular_vectors(x)[..., : old.shape[-1]], old)

        due = is_due(t.count - 1, update_proj_gap, s.group if staggered else 0)
        p = branch(due, fresh, lambda old: old, s.projector)
        low = x @ p
        a, new = adam(low, s, t)
        grown = divide(frobenius_norm(a, -1), frobenius_norm(low, -1))
        rest, size = limited(grown * (x - scale * low @ p.mT.conj()), s.size, growth)
        u = scale * a @ p.mT.conj() + rest
        return u if x is g else u.mT, new | {"projector": p, "size": size}

    return matrixwise(
        ScaleByFiraState,
        None,
        rule,
        MatrixDimensions(dimension_numbers(weight_dimension_numbers), MuonDimensionNumbers),
        factors=of_low_rank(rank, mu_dtype) | {"projector": projector},
        on_others=adam,
        slots_of_others=lambda p: moments(p, mu_dtype),
    )


@optimizer
def fira(
    learning_rate: NonNegative,
    rank: PositiveInt = 128,
    update_proj_gap: PositiveCount = 200,
    scale: Number = 1.0,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    *,
    growth: Positive = 1.01,
    staggered: bool = False,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""Fira: Adam in a low-rank subspace, as in GaLore, with steps outside it too.

    .. math:: \theta_t = \theta_{t-1} - \eta \left( \alpha\, a_t P^* + \bar r_t
        + \lambda \theta_{t-1} \right), \qquad a_t = \mathrm{Adam}(g_t P)

    where :math:`\bar r_t` is the part of :math:`g_t` outside the subspace, with each row multiplied
    by :math:`\lVert a_{t,i} \rVert / \lVert (g_t P)_i \rVert` and the whole limited in growth; see
    :func:`scale_by_fira`. Leaves that are not matrices take the steps of :func:`adamw`.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        rank: as in :func:`scale_by_fira`, like all arguments that the two share.
        update_proj_gap: steps from one projector to the next.
        scale: :math:`\alpha`; the authors use 0.25 or 1.
        b1: decay of the first moment.
        b2: decay of the second moment.
        eps: added to the root.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate. The authors' code
            decays after the step.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        growth: the factor by which the norm of the part outside may grow in a step.
        staggered: later projectors of different shapes at different steps.
        mu_dtype: the type of the first moment.
        weight_dimension_numbers: which leaves are matrices, and how.

    Source: X. Chen et al., Fira: Can We Achieve Full-rank Training of LLMs Under Low-rank
    Constraint?, 2024, arXiv:2410.01623.

    >>> import gradtx
    >>> tx = fira(gradtx.linear_schedule(0.1, 0.0, 300), rank=1)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros((2, 2)), tx, max_steps=300)
    >>> bool(jnp.allclose(result.params, 1, atol=5e-2))
    True
    """
    return descent(
        scale_by_fira(
            rank,
            update_proj_gap,
            scale,
            b1,
            b2,
            eps,
            growth,
            staggered=staggered,
            mu_dtype=mu_dtype,
            weight_dimension_numbers=weight_dimension_numbers,
        ),
        learning_rate,
        weight_decay,
        mask,
    )
