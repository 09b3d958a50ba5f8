"""Conda."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.checks import Decay, NonNegative, Number, PositiveCount
from gradtx.composition.matrices import MuonDimensionNumbers, dimension_numbers
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.matrices import Matrices, MatrixDimensions, matrixwise
from gradtx.leaves.paths import Where
from gradtx.linalg.linear_algebra import right_singular_vectors
from gradtx.numerics import Step, abs_sq, compute_dtype, debias, divide, ema, moments, precise, root
from gradtx.numerics.control import branch
from gradtx.optimizers.fira import is_due, tall
from gradtx.optimizers.soap import adam_of, finite_or
from gradtx.transforms.decay import descent
from gradtx.types import Array, Counter, DimensionNumbers, DType, Slots


class ScaleByCondaState(NamedTuple):
    """count: i32[]; mu, nu: like the parameters; for a matrix, nu is in its basis.

    basis: for a matrix whose shorter side has `m` entries, ``(batch, m, m)``; otherwise None.
    """

    count: Counter
    mu: Slots
    nu: Slots
    basis: Slots


@transformation
def scale_by_conda(
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    update_proj_gap: PositiveCount = 2000,
    scale: Number = 1.0,
    *,
    staggered: bool = False,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""Adam whose second moment is that of gradients in the basis of the momentum.

    For a matrix with at least as many rows as columns (others are transposed):

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t Q_t|^2, \\
        u_t &= \alpha\, \frac{\mu_t Q_t / (1 - \beta_1^t)}
            {\sqrt{\nu_t / (1 - \beta_2^t)} + \epsilon}\, Q_t^*

    where `Q` are the right singular vectors of :math:`\mu_t` at every `T`-th step from the first
    on. Leaves that are not matrices take the steps of :func:`scale_by_adam`.

    Args:
        b1: :math:`\beta_1`, decay of the first moment, in :math:`[0, 1)`.
        b2: :math:`\beta_2`, decay of the second moment, in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`, added to the root.
        update_proj_gap: :math:`T \ge 1`, steps from one basis to the next. Between them no
            decomposition is computed. Singular vectors that are not finite are discarded.
        scale: :math:`\alpha`.
        staggered: each batch of matrices of one shape gets its later bases one step earlier than
            the batch before it, so that no one of these steps computes them all.
        mu_dtype: the type of the first moment; the parameter's unless given.
        weight_dimension_numbers: as in :func:`scale_by_soap`.

    State: `ScaleByCondaState`; the basis in float32 or wider. Products alone, as
    :func:`scale_by_soap` has them, improve a basis that is nearly right; this one is `T` steps old.
    The authors' code adds epsilon before the bias correction.

    Source: J. Wang et al., Conda: Column-Normalized Adam for Training Large Language Models Faster,
    2025, arXiv:2509.24218, algorithm 1, and https://github.com/jie040109/Conda.

    >>> tx, g = scale_by_conda(eps=1e-3), jnp.array([[3.0, 3.0], [-1.0, 1.0]])
    >>> (10 * tx.update(g, tx.init(g))[0]).astype(int).tolist()
    [[7, 7], [-7, 7]]
    """
    adam = adam_of(b1, b2, eps)

    def slots(p: Array) -> dict[str, Array]:
        return moments(p, mu_dtype)

    def basis(matrices: Matrices, p: Array) -> Array:
        count, *sides = matrices.sizes
        return jnp.zeros((count, min(sides), min(sides)), compute_dtype(p.dtype))

    @precise
    def rule(g: Array, s: Any, t: Step) -> Any:
        mu = ema(g, s.mu, b1)

        def fresh(old: Array) -> Array:
            return finite_or(right_singular_vectors(tall(mu)), old)

        due = is_due(t.count - 1, update_proj_gap, s.group if staggered else 0)
        q = branch(due, fresh, lambda old: old, s.basis)
        same = tall(g) is g
        nu = ema(abs_sq(tall(g) @ q), s.nu if same else s.nu.mT, b2)
        a = divide(debias(tall(mu) @ q, b1, t), root(debias(nu, b2, t)) + eps)
        u = scale * a @ q.mT.conj()
        new = {"mu": mu, "nu": nu if same else nu.mT, "basis": q}
        return u if same else u.mT, new

    return matrixwise(
        ScaleByCondaState,
        slots,
        rule,
        MatrixDimensions(dimension_numbers(weight_dimension_numbers), MuonDimensionNumbers),
        factors={"basis": basis},
        on_others=adam,
    )


@optimizer
def conda(
    learning_rate: NonNegative,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    update_proj_gap: PositiveCount = 2000,
    scale: Number = 1.0,
    *,
    staggered: bool = False,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""Conda: Adam whose second moment is taken in the basis of the momentum's singular vectors.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t Q|^2, \\
        \theta_t &= \theta_{t-1} - \eta \left( \alpha\, \frac{\mu_t Q / (1 - \beta_1^t)}
            {\sqrt{\nu_t / (1 - \beta_2^t)} + \epsilon}\, Q^* + \lambda \theta_{t-1} \right)

    with the right singular vectors `Q` of :math:`\mu`, recomputed at every `T`-th step; see
    :func:`scale_by_conda`. Leaves that are not matrices take the steps of :func:`adamw`.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        b1: as in :func:`scale_by_conda`, like all arguments that the two share.
        b2: decay of the second moment.
        eps: :math:`\epsilon`, added to the root.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate. The authors' code
            decays after the step.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        update_proj_gap: `T`, steps from one basis to the next.
        scale: :math:`\alpha`; the authors use 0.25 with a learning rate of 0.01.
        staggered: later bases of different shapes at different steps.
        mu_dtype: the type of the first moment.
        weight_dimension_numbers: which leaves are matrices, and how.

    Source: J. Wang et al., Conda: Column-Normalized Adam for Training Large Language Models Faster,
    2025, arXiv:2509.24218, algorithm 1.

    >>> import gradtx
    >>> tx = conda(gradtx.linear_schedule(0.1, 0.0, 300))
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros((2, 2)), tx, max_steps=300)
    >>> bool(jnp.allclose(result.params, 1, atol=5e-2))
    True
    """
    return descent(
        scale_by_conda(
            b1,
            b2,
            eps,
            update_proj_gap,
            scale,
            staggered=staggered,
            mu_dtype=mu_dtype,
            weight_dimension_numbers=weight_dimension_numbers,
        ),
        learning_rate,
        weight_decay,
        mask,
    )
