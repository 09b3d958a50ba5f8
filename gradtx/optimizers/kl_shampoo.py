"""KL-Shampoo and KL-SOAP."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.checks import Decay, InitialPositive, NonNegative, Positive, PositiveCount, PositiveInt
from gradtx.composition.matrices import MuonDimensionNumbers, dimension_numbers
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.matrices import (
    FactorFn,
    Matrices,
    MatrixDimensions,
    matrixwise,
)
from gradtx.leaves.paths import Where
from gradtx.linalg.eigenbasis import Basis, check_basis
from gradtx.linalg.products import product
from gradtx.numerics import (
    Step,
    abs_sq,
    accumulator_dtype,
    bounded,
    ema,
    full,
    moments,
    zero_mean,
    zeros_like,
)
from gradtx.optimizers.soap import adam_of, gram, in_eigenbases, squares
from gradtx.transforms.decay import descent
from gradtx.types import Array, Counter, DimensionNumbers, DType, Slots


class ScaleByKLState(NamedTuple):
    """count: i32[]; mu: like the parameters, a matrix's in its bases; nu: of entries, or None.

    left, right: the factors S and T; left_basis, right_basis: their eigenvectors; left_values,
    right_values: their eigenvalues. For a side without a factor they have size 0; for a leaf that
    is not a matrix they are None.
    """

    count: Counter
    mu: Slots
    nu: Slots
    left: Slots
    right: Slots
    left_basis: Slots
    right_basis: Slots
    left_values: Slots
    right_values: Slots


def _factors(largest: int, initial: Any) -> dict[str, FactorFn]:
    factors = squares(largest, one_sided=False)

    def values(side: str) -> FactorFn:
        def factor(matrices: Matrices, p: Array) -> Array:
            n, size, _ = factors[side](matrices, p).shape
            return full((n, size), initial, accumulator_dtype(p), beside=p)

        return factor

    return factors | {"left_values": values("left"), "right_values": values("right")}


def _inverse(values: Array) -> Array:
    """The inverses of eigenvalues; 1 for a side that has none."""
    return 1 / values if values.size else jnp.ones((len(values), 1), values.dtype)


def _times(x: Array, basis: Array) -> Array:
    return product(x, basis) if basis.size else x


def _curvature(beta: Any, largest_inverse_root: Any) -> Any:
    """The new factors, each from gradients whitened by the other one, and their eigenvalues."""

    def values(low: Array, other: Array, old: Array, t: Step) -> Array:
        if not old.size:
            return old
        limit = jnp.clip(old.shape[-1], 10, jnp.maximum(largest_inverse_root, 10))
        seen = bounded(abs_sq(low)) * _inverse(other)[..., None, :]
        new = ema(bounded(jnp.mean(seen, axis=-1)), old, beta)
        return jnp.where(t.count == 1, old, jnp.maximum(new, 1 / jnp.square(limit)))

    def factor(g: Array, basis: Array, other: Array, old: Array, t: Step) -> Array:
        white = _times(g, basis) * jnp.sqrt(_inverse(other))[..., None, :]
        seen = jnp.where(t.count == 1, g, white) / g.shape[-1] ** 0.5
        return gram(seen, old, beta)

    def curvature(g: Array, low: Array, s: Any, t: Step) -> dict[str, Array]:
        turned = g.mT.conj()
        return {
            "left": factor(g, s.right_basis, s.right_values, s.left, t),
            "right": factor(turned, s.left_basis, s.left_values, s.right, t),
            "left_values": values(low, s.right_values, s.left_values, t),
            "right_values": values(low.mT, s.left_values, s.right_values, t),
        }

    return curvature


@transformation
def scale_by_kl_shampoo(
    b1: Decay = 0.9,
    b2: Decay = 0.98,
    eps: NonNegative = 1e-8,
    precondition_frequency: PositiveCount = 10,
    max_precond_dim: PositiveInt = 10_000,
    initial_eigenvalue: InitialPositive = 0.1,
    max_inverse_root: Positive = 4000.0,
    *,
    staggered: bool = False,
    basis: Basis = "qr",
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""Shampoo whose two factors are fitted together, by their Kullback-Leibler divergence.

    With :math:`h_t = P^* g_t Q` and the means over the `n` columns and the `m` rows of a matrix,

    .. math::
        S_t &= \beta_2 S_{t-1} + \frac{1 - \beta_2}{n}\, g_t Q\, \mathrm{diag}(\tau)^{-1} Q^* g_t^*,
        \qquad \sigma_{t,i} = \beta_2 \sigma_{t-1,i} + (1 - \beta_2)\, \mathrm{mean}_j
            \frac{|h_{t,ij}|^2}{\tau_{t-1,j}}, \\
        T_t &= \beta_2 T_{t-1} + \frac{1 - \beta_2}{m}\, g_t^* P\, \mathrm{diag}(\sigma)^{-1}
            P^* g_t, \qquad \tau_{t,j} = \beta_2 \tau_{t-1,j} + (1 - \beta_2)\, \mathrm{mean}_i
            \frac{|h_{t,ij}|^2}{\sigma_{t-1,i}}, \\
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) h_t, \qquad
        u_t = P_{t-1} \frac{\mu_t}{\sqrt{\sigma_{t-1} \tau_{t-1}^\top} + \epsilon} Q_{t-1}^*

    The bases `P` and `Q`, and :math:`\tau` and :math:`\sigma`, are those before the step. At every
    `k`-th step after the first, :math:`P_t = \mathrm{QR}(S_t P_{t-1})` and
    :math:`Q_t = \mathrm{QR}(T_t Q_{t-1})`, and :math:`\mu` turns with them. The direction of the
    first step is 0: it only makes the bases, from the eigenvectors of :math:`g g^*` and
    :math:`g^* g`, and the eigenvalues start at :math:`\sigma = \tau = \lambda_0`. An eigenvalue is
    at least :math:`1 / c^2`, where `c` is `max_inverse_root` or the size of the side if that is
    less, but at least 10. Leaves that are not matrices take the steps of :func:`scale_by_adam`.

    Args:
        b1: :math:`\beta_1`, decay of the momentum, in :math:`[0, 1)`.
        b2: :math:`\beta_2`, decay of the factors and of other leaves' second moment.
        eps: :math:`\epsilon \ge 0`.
        precondition_frequency: `k`; this and the next as in :func:`scale_by_soap`.
        max_precond_dim: the largest side that has a factor. For a side without one, :math:`P = I`
            and :math:`\sigma = 1`.
        initial_eigenvalue: :math:`\lambda_0 > 0`.
        max_inverse_root: the most by which one factor may multiply a gradient; smaller sides have a
            lower limit, as above.
        staggered: new bases of different shapes at different steps, as in :func:`scale_by_soap`.
        basis: by QR decompositions or by products alone, as in :func:`scale_by_soap`.
        mu_dtype: the type of the momentum; the parameter's unless given.
        weight_dimension_numbers: as in :func:`scale_by_soap`.

    State: `ScaleByKLState`. A matrix has no second moment of entries: `nu` is None. The momentum
    has no bias correction, as in the authors' code, from which the limits are taken too.

    Source: W. Lin et al., Understanding and Improving Shampoo and SOAP via Kullback-Leibler
    Minimization, 2025, arXiv:2509.03378.

    >>> tx = scale_by_kl_shampoo()
    >>> state = tx.init({"w": jnp.zeros((4, 2)), "b": jnp.zeros(2)})
    >>> state.left_values["w"].shape, state.nu["w"], state.nu["b"].shape
    ((1, 4), None, (2,))
    """
    check_basis("scale_by_kl_shampoo", basis)

    def slots(p: Array) -> dict[str, Array]:
        return {"mu": zero_mean(p, mu_dtype)}

    def direction(low: Array, s: Any, t: Step) -> Any:
        mu = ema(low, s.mu, b1)
        inverses = _inverse(s.left_values)[..., None], _inverse(s.right_values)[..., None, :]
        return mu / (1 / jnp.sqrt(inverses[0] * inverses[1]) + eps), {"mu": mu}

    return matrixwise(
        ScaleByKLState,
        slots,
        in_eigenbases(
            direction,
            _curvature(b2, max_inverse_root),
            precondition_frequency,
            staggered=staggered,
            ordered=False,
            basis=basis,
        ),
        MatrixDimensions(dimension_numbers(weight_dimension_numbers), MuonDimensionNumbers),
        factors=_factors(max_precond_dim, initial_eigenvalue),
        on_others=adam_of(b1, b2, eps),
        slots_of_others=lambda p: {"nu": zeros_like(p, accumulator_dtype(p))},
    )


@optimizer
def kl_shampoo(
    learning_rate: NonNegative,
    b1: Decay = 0.9,
    b2: Decay = 0.98,
    eps: NonNegative = 1e-8,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    precondition_frequency: PositiveCount = 10,
    max_precond_dim: PositiveInt = 10_000,
    initial_eigenvalue: InitialPositive = 0.1,
    max_inverse_root: Positive = 4000.0,
    *,
    staggered: bool = False,
    basis: Basis = "qr",
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""KL-Shampoo: Shampoo whose two factors are fitted together; it needs no grafting.

    .. math::
        S_t &= \beta_2 S_{t-1} + \frac{1 - \beta_2}{n}\, g_t Q\, \mathrm{diag}(\tau)^{-1} Q^* g_t^*,
        \qquad
        T_t = \beta_2 T_{t-1} + \frac{1 - \beta_2}{m}\, g_t^* P\, \mathrm{diag}(\sigma)^{-1}
            P^* g_t, \\
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) P^* g_t Q, \qquad
        \theta_t = \theta_{t-1} - \eta \left( P \frac{\mu_t}{\sqrt{\sigma \tau^\top} + \epsilon} Q^*
            + \lambda \theta_{t-1} \right)

    with estimates :math:`\sigma, \tau` of the eigenvalues of `S` and `T`, updated at every step,
    and `P`, `Q` of their eigenvectors, at every `k`-th: see :func:`scale_by_kl_shampoo`. Leaves
    that are not matrices take the steps of :func:`adamw`.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        b1: :math:`\beta_1`, decay of the momentum; this and the next two as in
            :func:`scale_by_kl_shampoo`.
        b2: :math:`\beta_2`, decay of the factors.
        eps: :math:`\epsilon`, added to the root.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        precondition_frequency: `k`, steps from one basis to the next; this and the rest as in
            :func:`scale_by_kl_shampoo`.
        max_precond_dim: the largest side that has a factor.
        initial_eigenvalue: where the eigenvalues start.
        max_inverse_root: the most by which one factor multiplies a gradient.
        staggered: new bases of different shapes at different steps.
        basis: by QR decompositions or by products alone.
        mu_dtype: the type of the momentum.
        weight_dimension_numbers: which leaves are matrices, and how.

    Source: W. Lin et al., Understanding and Improving Shampoo and SOAP via Kullback-Leibler
    Minimization, 2025, arXiv:2509.03378.

    >>> import gradtx
    >>> tx = kl_shampoo(0.1)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros((2, 2)), tx, max_steps=300)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return descent(
        scale_by_kl_shampoo(
            b1,
            b2,
            eps,
            precondition_frequency,
            max_precond_dim,
            initial_eigenvalue,
            max_inverse_root,
            staggered=staggered,
            basis=basis,
            mu_dtype=mu_dtype,
            weight_dimension_numbers=weight_dimension_numbers,
        ),
        learning_rate,
        weight_decay,
        mask,
    )


@transformation
def scale_by_kl_soap(
    b1: Decay = 0.9,
    b2: Decay = 0.98,
    eps: NonNegative = 1e-8,
    precondition_frequency: PositiveCount = 10,
    max_precond_dim: PositiveInt = 10_000,
    initial_eigenvalue: InitialPositive = 0.1,
    max_inverse_root: Positive = 4000.0,
    *,
    bias_correction: bool = True,
    staggered: bool = False,
    basis: Basis = "qr",
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""Adam in the eigenbases of KL-Shampoo's factors.

    .. math::
        h_t &= P_{t-1}^* g_t Q_{t-1}, \qquad
        \mu_t = \beta_1 \mu_{t-1} + (1 - \beta_1) h_t, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1 - \beta_2) |h_t|^2, \\
        u_t &= P_{t-1} \frac{\mu_t / (1 - \beta_1^{t-1})}
            {\sqrt{\nu_t / (1 - \beta_2^{t-1})} + \epsilon} Q_{t-1}^*

    with the bases of :func:`scale_by_kl_shampoo`, which turn as they do there. Leaves that are not
    matrices take the steps of :func:`scale_by_adam`.

    Args:
        b1: :math:`\beta_1`, decay of the first moment, in :math:`[0, 1)`.
        b2: :math:`\beta_2`, decay of the second moment and of the factors, in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`, added to the root.
        precondition_frequency: steps from one basis to the next; this and the next three as in
            :func:`scale_by_kl_shampoo`.
        max_precond_dim: the largest side that has a factor.
        initial_eigenvalue: where the eigenvalues start.
        max_inverse_root: the most by which one factor multiplies a gradient.
        bias_correction: divide by :math:`1 - \beta^{t-1}`; the authors' code does not.
        staggered: new bases of different shapes at different steps, as in :func:`scale_by_soap`.
        basis: by QR decompositions or by products alone, as in :func:`scale_by_soap`.
        mu_dtype: the type of the first moment; the parameter's unless given.
        weight_dimension_numbers: as in :func:`scale_by_soap`.

    State: `ScaleByKLState`.

    Source: W. Lin et al., Understanding and Improving Shampoo and SOAP via Kullback-Leibler
    Minimization, 2025, arXiv:2509.03378.

    >>> tx = scale_by_kl_soap()
    >>> tx.init(jnp.zeros((4, 2))).nu.shape
    (4, 2)
    """
    check_basis("scale_by_kl_soap", basis)

    def slots(p: Array) -> dict[str, Array]:
        return moments(p, mu_dtype)

    return matrixwise(
        ScaleByKLState,
        slots,
        in_eigenbases(
            adam_of(b1, b2, eps, bias_correction=bias_correction),
            _curvature(b2, max_inverse_root),
            precondition_frequency,
            staggered=staggered,
            ordered=False,
            basis=basis,
        ),
        MatrixDimensions(dimension_numbers(weight_dimension_numbers), MuonDimensionNumbers),
        factors=_factors(max_precond_dim, initial_eigenvalue),
        on_others=adam_of(b1, b2, eps, bias_correction=bias_correction),
    )


@optimizer
def kl_soap(
    learning_rate: NonNegative,
    b1: Decay = 0.9,
    b2: Decay = 0.98,
    eps: NonNegative = 1e-8,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    precondition_frequency: PositiveCount = 10,
    max_precond_dim: PositiveInt = 10_000,
    initial_eigenvalue: InitialPositive = 0.1,
    max_inverse_root: Positive = 4000.0,
    *,
    bias_correction: bool = True,
    staggered: bool = False,
    basis: Basis = "qr",
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""KL-SOAP: Adam in the eigenbases of KL-Shampoo's factors.

    .. math::
        S_t &= \beta_2 S_{t-1} + \frac{1 - \beta_2}{n}\, g_t Q\, \mathrm{diag}(\tau)^{-1} Q^* g_t^*,
        \qquad
        T_t = \beta_2 T_{t-1} + \frac{1 - \beta_2}{m}\, g_t^* P\, \mathrm{diag}(\sigma)^{-1}
            P^* g_t, \\
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) P^* g_t Q, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1 - \beta_2) |P^* g_t Q|^2, \\
        \theta_t &= \theta_{t-1} - \eta \left( P \frac{\mu_t / (1 - \beta_1^{t-1})}
            {\sqrt{\nu_t / (1 - \beta_2^{t-1})} + \epsilon} Q^* + \lambda \theta_{t-1} \right)

    with eigenvalues and eigenvectors as in :func:`scale_by_kl_shampoo`. Leaves that are not
    matrices take the steps of :func:`adamw`.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        b1: :math:`\beta_1`, decay of the first moment; this and the next two as in
            :func:`scale_by_kl_soap`.
        b2: :math:`\beta_2`, decay of the second moment and of the factors.
        eps: :math:`\epsilon`, added to the root.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        precondition_frequency: steps from one basis to the next; this and the rest as in
            :func:`scale_by_kl_soap`.
        max_precond_dim: the largest side that has a factor.
        initial_eigenvalue: where the eigenvalues start.
        max_inverse_root: the most by which one factor multiplies a gradient.
        bias_correction: correct the moments for their start at zero.
        staggered: new bases of different shapes at different steps.
        basis: by QR decompositions or by products alone.
        mu_dtype: the type of the first moment.
        weight_dimension_numbers: which leaves are matrices, and how.

    Source: W. Lin et al., Understanding and Improving Shampoo and SOAP via Kullback-Leibler
    Minimization, 2025, arXiv:2509.03378.

    >>> import gradtx
    >>> tx = kl_soap(0.1)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros((2, 2)), tx, max_steps=300)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return descent(
        scale_by_kl_soap(
            b1,
            b2,
            eps,
            precondition_frequency,
            max_precond_dim,
            initial_eigenvalue,
            max_inverse_root,
            bias_correction=bias_correction,
            staggered=staggered,
            basis=basis,
            mu_dtype=mu_dtype,
            weight_dimension_numbers=weight_dimension_numbers,
        ),
        learning_rate,
        weight_decay,
        mask,
    )
