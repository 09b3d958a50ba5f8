"""SOAP-Muon."""

from typing import Any

import jax.numpy as jnp

from gradtx.checks import Decay, NonNegative, PositiveCount, PositiveInt
from gradtx.composition.matrices import MuonDimensionNumbers, dimension_numbers
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.matrices import MatrixDimensions, matrixwise
from gradtx.leaves.paths import Where
from gradtx.linalg.eigenbasis import Basis, check_basis
from gradtx.numerics import Step, abs_sq, divide, moments, root
from gradtx.optimizers.soap import (
    ScaleBySoapState,
    adam_of,
    grams_of,
    in_eigenbases,
    squares,
)
from gradtx.transforms.decay import descent
from gradtx.transforms.orthogonal import STANDARD, coefficients, orthogonalized
from gradtx.types import Array, DimensionNumbers, DType

# Five fast iterations and two that bring the singular values to 1.
_TO_ONE = (*(STANDARD,) * 5, *((1.5, -0.5, 0.0),) * 2)


@transformation
def scale_by_soap_muon(
    b1: Decay = 0.95,
    b2: Decay = 0.98,
    eps: NonNegative = 1e-15,
    shampoo_beta: Decay | None = None,
    precondition_frequency: PositiveCount = 10,
    max_precond_dim: PositiveInt = 10_000,
    ns_coeffs: Any = _TO_ONE,
    ns_steps: PositiveInt = 5,
    *,
    entry_root: bool = True,
    one_sided: bool = False,
    staggered: bool = False,
    basis: Basis = "qr",
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""SOAP's direction with its singular values brought to 1, and a root mean square of 1.

    With the moments and bases of :func:`scale_by_soap`,

    .. math::
        a_t = \frac{\mu_t / (1 - \beta_1^{t-1})}{\sqrt{\nu_t / (1 - \beta_2^{t-1})} + \epsilon},
        \qquad o_t = \mathrm{NS}(a_t), \qquad
        r_t = \mathrm{sign}(o_t) \sqrt{|o_t|}, \qquad
        u_t = P_{t-1} \frac{r_t}{\mathrm{rms}(r_t)} Q_{t-1}^*

    `NS` is the Newton-Schulz iteration of :func:`scale_by_muon`. Since it whitens what stale or
    one-sided bases leave, the bases may turn less often. Leaves that are not matrices take the
    steps of :func:`scale_by_adam`.

    Args:
        b1: :math:`\beta_1`, decay of the first moment, in :math:`[0, 1)`.
        b2: :math:`\beta_2`, decay of the second moment, in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`, added to the root.
        shampoo_beta: decay of the Gram matrices; this and the next two as in
            :func:`scale_by_soap`.
        precondition_frequency: steps from one basis to the next.
        max_precond_dim: the largest side that has a basis.
        ns_coeffs: coefficients of the iteration, as in :func:`scale_by_muon`; unless given, five
            standard iterations and two cubic ones.
        ns_steps: iterations, if there is one triple of coefficients.
        entry_root: take the root of each entry; otherwise :math:`r_t = o_t`.
        one_sided: this and the rest as in :func:`scale_by_soap`.
        staggered: new bases of different shapes at different steps.
        basis: by QR decompositions or by products alone.
        mu_dtype: the type of the first moment.
        weight_dimension_numbers: which leaves are matrices, and how.

    State: `ScaleBySoapState`.

    Source: N. Vyas et al., Improving SOAP using Iterative Whitening and Muon, 2025,
    https://nikhilvyas.github.io/SOAP_Muon.pdf.

    >>> tx = scale_by_soap_muon(eps=1e-3, entry_root=False)
    >>> g = jnp.array([[3.0, -1.0], [3.0, 1.0]])
    >>> state = tx.update(g, tx.init(g))[1]
    >>> tx.update(g, state)[0].round(1).tolist()
    [[1.0, -1.0], [1.0, 1.0]]
    """
    check_basis("scale_by_soap_muon", basis)
    coeffs = coefficients("scale_by_soap_muon", ns_coeffs, ns_steps, "frobenius")
    beta, adam = b2 if shampoo_beta is None else shampoo_beta, adam_of(b1, b2, eps)

    def slots(p: Array) -> dict[str, Array]:
        return moments(p, mu_dtype)

    def direction(low: Array, s: Any, t: Step) -> Any:
        a, moments = adam(low, s, t)
        o = orthogonalized(a, jnp.asarray(coeffs), ns_steps, "frobenius", 1e-7)
        r = divide(o, root(jnp.abs(o))) if entry_root else o
        return divide(r, root(jnp.mean(abs_sq(r), (-2, -1), keepdims=True))), moments

    return matrixwise(
        ScaleBySoapState,
        slots,
        in_eigenbases(
            direction, grams_of(beta), precondition_frequency, staggered=staggered, basis=basis
        ),
        MatrixDimensions(dimension_numbers(weight_dimension_numbers), MuonDimensionNumbers),
        factors=squares(max_precond_dim, one_sided),
        on_others=adam,
    )


@optimizer
def soap_muon(
    learning_rate: NonNegative,
    b1: Decay = 0.95,
    b2: Decay = 0.98,
    eps: NonNegative = 1e-15,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    shampoo_beta: Decay | None = None,
    precondition_frequency: PositiveCount = 10,
    max_precond_dim: PositiveInt = 10_000,
    ns_coeffs: Any = _TO_ONE,
    ns_steps: PositiveInt = 5,
    *,
    entry_root: bool = True,
    one_sided: bool = False,
    staggered: bool = False,
    basis: Basis = "qr",
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""SOAP-Muon: SOAP's direction, orthogonalized as Muon does.

    .. math::
        a_t &= \frac{\mu_t / (1 - \beta_1^{t-1})}{\sqrt{\nu_t / (1 - \beta_2^{t-1})} + \epsilon},
        \qquad o_t = \mathrm{NS}(a_t), \qquad r_t = \mathrm{sign}(o_t) \sqrt{|o_t|}, \\
        \theta_t &= \theta_{t-1} - \eta \left( P_{t-1} \frac{r_t}{\mathrm{rms}(r_t)} Q_{t-1}^*
            + \lambda \theta_{t-1} \right)

    with the moments and the bases of :func:`scale_by_soap`, as :func:`scale_by_soap_muon` says.
    Steps are as large as Adam's. Leaves that are not matrices take those of :func:`adamw`.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        b1: :math:`\beta_1`, decay of the first moment.
        b2: :math:`\beta_2`, decay of the second moment.
        eps: :math:`\epsilon`, added to the root.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        shampoo_beta: decay of the Gram matrices; this and the rest as in
            :func:`scale_by_soap_muon`.
        precondition_frequency: steps from one basis to the next.
        max_precond_dim: the largest side that has a basis.
        ns_coeffs: coefficients of the iteration.
        ns_steps: iterations, if there is one triple of coefficients.
        entry_root: take the root of each entry.
        one_sided: only the smaller side has a basis.
        staggered: new bases of different shapes at different steps.
        basis: by QR decompositions or by products alone.
        mu_dtype: the type of the first moment.
        weight_dimension_numbers: which leaves are matrices, and how.

    Source: N. Vyas et al., Improving SOAP using Iterative Whitening and Muon, 2025,
    https://nikhilvyas.github.io/SOAP_Muon.pdf.

    >>> import gradtx
    >>> tx = soap_muon(gradtx.linear_schedule(0.1, 0.0, 300))
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros((2, 2)), tx, max_steps=300)
    >>> bool(jnp.allclose(result.params, 1, atol=5e-2))
    True
    """
    return descent(
        scale_by_soap_muon(
            b1,
            b2,
            eps,
            shampoo_beta,
            precondition_frequency,
            max_precond_dim,
            ns_coeffs,
            ns_steps,
            entry_root=entry_root,
            one_sided=one_sided,
            staggered=staggered,
            basis=basis,
            mu_dtype=mu_dtype,
            weight_dimension_numbers=weight_dimension_numbers,
        ),
        learning_rate,
        weight_decay,
        mask,
    )
