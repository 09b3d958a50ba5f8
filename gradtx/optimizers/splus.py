"""SPlus."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.checks import Decay, NonNegative, PositiveCount, PositiveInt
from gradtx.composition.chain import chain
from gradtx.composition.matrices import MuonDimensionNumbers, dimension_numbers
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.matrices import FactorFn, Matrices, MatrixDimensions, matrixwise
from gradtx.leaves.paths import Where
from gradtx.linalg.linear_algebra import eigenbasis, identity_like, rotated, rotated_back
from gradtx.numerics import Step, ema, precise, zero_mean
from gradtx.numerics.control import branch
from gradtx.optimizers.soap import finite_or, gram, squares
from gradtx.transforms.decay import add_decayed_weights
from gradtx.transforms.parameter_averages import ema_params
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array, Counter, DimensionNumbers, DType, Slots


class ScaleBySplusState(NamedTuple):
    """count: i32[]; mu: like the parameters; the rest for matrices, None for other leaves.

    left, right: moving averages of g g* and g* g; left_basis, right_basis: their eigenvectors. For
    a side without a basis they have the shape (n, 0, 0).
    """

    count: Counter
    mu: Slots
    left: Slots
    right: Slots
    left_basis: Slots
    right_basis: Slots


def _factors(largest: int) -> dict[str, FactorFn]:
    """The slots of :func:`squares`, with the identity as the first bases."""
    factors = squares(largest, one_sided=False)

    def identity(side: FactorFn) -> FactorFn:
        def factor(matrices: Matrices, p: Array) -> Array:
            zeros = side(matrices, p)
            return zeros + identity_like(zeros)

        return factor

    return {n: identity(side) if n.endswith("basis") else side for n, side in factors.items()}


@transformation
def scale_by_splus(
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    precondition_frequency: PositiveCount = 100,
    max_precond_dim: PositiveInt = 10_000,
    other_scale: NonNegative = 0.001,
    *,
    staggered: bool = False,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""The signs of the momentum in the eigenbases of Shampoo's preconditioners.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \qquad
        u_t = \frac{2}{m + n}\, P_{t-1} \operatorname{sign}(P_{t-1}^* \mu_t Q_{t-1}) Q_{t-1}^*, \\
        L_t &= \beta_2 L_{t-1} + (1 - \beta_2) g_t g_t^*, \qquad
        R_t = \beta_2 R_{t-1} + (1 - \beta_2) g_t^* g_t

    for a matrix with `m` rows and `n` columns. At the first step and at every `T`-th,
    :math:`P_t` and :math:`Q_t` become the eigenvectors of :math:`L_t` and :math:`R_t`, and
    :math:`P_0 = Q_0 = I`. For a leaf that is not a matrix, or has a side that is too large for a
    basis, the factor is `c`: :math:`u_t = c \operatorname{sign} \mu_t` for the former.

    Args:
        b1: :math:`\beta_1`, decay of the momentum, in :math:`[0, 1)`.
        b2: :math:`\beta_2`, decay of `L` and `R`, in :math:`[0, 1)`.
        precondition_frequency: :math:`T \ge 1`. Between these steps no decomposition is computed.
            Bases that are not finite are discarded.
        max_precond_dim: a side of more than this many rows or columns has no basis
            (:math:`P = I`).
        other_scale: :math:`c \ge 0`.
        staggered: each batch of matrices of one shape gets its new bases one step earlier than the
            batch before it, so that no one step computes them all.
        mu_dtype: the type of the momentum; the parameter's unless given.
        weight_dimension_numbers: as in :func:`scale_by_soap`; the authors leave embeddings out.

    State: `ScaleBySplusState`; bases in float32 or wider. Products alone, as
    :func:`scale_by_soap` has them, would be another method: they improve the bases of the step
    before, and these are of `T` steps before.

    Source: K. Frans, S. Levine and P. Abbeel, A Stable Whitening Optimizer for Efficient Neural
    Network Training, 2025, arXiv:2506.07254, algorithm 1, and
    https://github.com/kvfrans/splus.

    >>> tx, g = scale_by_splus(), jnp.array([[3.0, -1.0], [3.0, 1.0]])
    >>> state = tx.update(g, tx.init(g))[1]
    >>> other = jnp.array([[1.0, 1.0], [0.0, 0.0]])
    >>> (20 * tx.update(other, state)[0]).astype(int).tolist()
    [[14, 0], [0, 14]]
    """

    def slots(p: Array) -> dict[str, Array]:
        return {"mu": zero_mean(p, mu_dtype)}

    @precise
    def rule(g: Array, s: Any, t: Step) -> Any:
        mu, old = ema(g, s.mu, b1), (s.left_basis, s.right_basis)
        two_sided = all(basis.size for basis in old)
        factor = 2 / (g.shape[-2] + g.shape[-1]) if two_sided else other_scale
        u = factor * rotated_back(jnp.sign(rotated(mu, *old)), *old)
        grams = gram(g, s.left, b2), gram(g.mT.conj(), s.right, b2)

        def fresh(old: tuple[Array, Array]) -> tuple[Array, Array]:
            new = map(finite_or, map(eigenbasis, grams), old)
            left, right = new
            return left, right

        offset = s.group if staggered else 0
        due = (t.count == 1) | ((t.count + offset) % precondition_frequency == 0)
        bases = branch(due, fresh, lambda old: old, old)
        factors = {"left": grams[0], "right": grams[1]}
        return u, {"mu": mu, **factors, "left_basis": bases[0], "right_basis": bases[1]}

    def signs(g: Array, s: Any, t: Step) -> Any:
        mu = ema(g, s.mu, b1)
        return other_scale * jnp.sign(mu), {"mu": mu}

    return matrixwise(
        ScaleBySplusState,
        slots,
        rule,
        MatrixDimensions(dimension_numbers(weight_dimension_numbers), MuonDimensionNumbers),
        factors=_factors(max_precond_dim),
        on_others=signs,
    )


@optimizer
def splus(
    learning_rate: NonNegative,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    weight_decay: NonNegative = 0.01,
    mask: Where | None = None,
    precondition_frequency: PositiveCount = 100,
    max_precond_dim: PositiveInt = 10_000,
    other_scale: NonNegative = 0.001,
    ema_rate: Decay = 0.999,
    *,
    staggered: bool = False,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""SPlus: signs of the momentum in Shampoo's eigenbases, and an average of the parameters.

    .. math::
        \mu_t = \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \qquad
        \theta_t = \theta_{t-1} - \eta \left( \frac{2}{m + n}\, P
            \operatorname{sign}(P^* \mu_t Q) Q^* + \lambda \theta_{t-1} \right)

    with the eigenvectors `P` and `Q` of moving averages of :math:`g g^*` and :math:`g^* g`,
    recomputed at every `T`-th step. Other leaves take steps :math:`c \operatorname{sign} \mu_t`.
    See :func:`scale_by_splus`. Evaluate at the average, which :func:`eval_params` returns.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule. The authors use a
            constant 0.1 for all sizes: the average takes the place of a schedule.
        b1: as in :func:`scale_by_splus`, like all arguments that the two share.
        b2: decay of the Gram matrices.
        weight_decay: :math:`\lambda \ge 0`. In the authors' code it is multiplied by the factor of
            the shape too.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        precondition_frequency: `T`, steps from one basis to the next.
        max_precond_dim: the largest side that has a basis.
        other_scale: `c`.
        ema_rate: :math:`\rho` in :math:`[0, 1)`, decay of the average of the parameters,
            :math:`\sum_i \rho^{t-i} \theta_i / \sum_i \rho^{t-i}`. The authors' average lags a step
            behind.
        staggered: new bases of different shapes at different steps.
        mu_dtype: the type of the momentum.
        weight_dimension_numbers: which leaves are matrices, and how.

    Source: K. Frans, S. Levine and P. Abbeel, A Stable Whitening Optimizer for Efficient Neural
    Network Training, 2025, arXiv:2506.07254, algorithm 1.

    >>> import gradtx
    >>> tx = splus(gradtx.linear_schedule(0.1, 0.0, 300), weight_decay=0.0)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros((2, 2)), tx, max_steps=300)
    >>> bool(jnp.allclose(result.params, 1, atol=5e-2))
    True
    """
    return chain(
        scale_by_splus(
            b1,
            b2,
            precondition_frequency,
            max_precond_dim,
            other_scale,
            staggered=staggered,
            mu_dtype=mu_dtype,
            weight_dimension_numbers=weight_dimension_numbers,
        ),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
        ema_params(ema_rate, debias=True),
    )
