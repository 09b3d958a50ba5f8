"""PolarGrad."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.checks import Decay, NonNegative, PositiveInt
from gradtx.composition.matrices import MuonDimensionNumbers
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.matrices import MatrixDimensions, matrixwise
from gradtx.leaves.paths import Where
from gradtx.numerics import Step, ema, zero_mean
from gradtx.optimizers.adam import adamw
from gradtx.optimizers.beside_adamw import beside_adamw
from gradtx.transforms.orthogonal import check_dtype, coefficients, orthogonalized
from gradtx.types import Array, DimensionNumbers, DType, Slots


class PolargradState(NamedTuple):
    """mu: like the parameters, in mu_dtype if given."""

    mu: Slots


@transformation
def scale_by_polargrad(
    decay: Decay = 0.95,
    eps: NonNegative = 1e-8,
    *,
    ns_coeffs: Any = "polar_express",
    ns_steps: PositiveInt = 8,
    ns_dtype: DType | None = None,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""The polar factor of the momentum, times the sum of its singular values.

    .. math:: \mu_t = \beta \mu_{t-1} + (1 - \beta) g_t, \qquad
        U_t H_t = \mu_t \;\text{(polar decomposition)}, \qquad
        u_t = \operatorname{tr}(H_t)\, U_t = \langle U_t, \mu_t \rangle\, U_t

    the direction of steepest descent in the spectral norm. :math:`U_t` comes from the iteration of
    :func:`scale_by_muon`.

    Args:
        decay: :math:`\beta` in :math:`[0, 1)`.
        eps: added to the norm by which the first iterate is divided.
        ns_coeffs: this and the next two as in :func:`scale_by_muon`.
        ns_steps: how many iterations; with the default eight, singular values of at least 1/1000 of
            the norm become 1.
        ns_dtype: the type in which to iterate.
        mu_dtype: the type in which :math:`\mu` is kept; the parameter's unless given.
        weight_dimension_numbers: as in :func:`scale_by_muon`.

    State: `PolargradState`.

    Raises:
        ValueError: as :func:`scale_by_muon` does.

    Source: T. Lau et al., PolarGrad: A Class of Matrix-Gradient Optimizers from a Unifying
    Preconditioning Perspective, 2025, arXiv:2505.21799, with momentum first.

    >>> tx, g = scale_by_polargrad(0.0), jnp.diag(jnp.array([3.0, 2.0]))
    >>> jnp.diag(tx.update(g, tx.init(g))[0]).round(3).tolist()
    [5.0, 5.0]
    """
    coeffs = coefficients("scale_by_polargrad", ns_coeffs, ns_steps, "frobenius")
    check_dtype("scale_by_polargrad", ns_dtype)

    def slots(p: Array) -> dict[str, Array]:
        return {"mu": zero_mean(p, mu_dtype)}

    def momentum(g: Array, s: Any, t: Step) -> Any:
        mu = ema(g, s.mu, decay)
        return mu, {"mu": mu}

    def rule(g: Array, s: Any, t: Step) -> Any:
        u = orthogonalized(g, jnp.asarray(coeffs), ns_steps, "frobenius", eps, ns_dtype)
        return jnp.sum((u.conj() * g).real, (-2, -1), keepdims=True) * u, {}

    return matrixwise(
        PolargradState,
        slots,
        rule,
        MatrixDimensions(weight_dimension_numbers, MuonDimensionNumbers),
        on_entries=momentum,
    )


@optimizer
def polargrad(
    learning_rate: NonNegative,
    decay: Decay = 0.95,
    eps: NonNegative = 1e-8,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    *,
    ns_coeffs: Any = "polar_express",
    ns_steps: PositiveInt = 8,
    ns_dtype: DType | None = None,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
    others: GradientTransformation | None = None,
) -> GradientTransformation:
    r"""PolarGrad: Muon whose steps shrink with the gradient; AdamW for the rest.

    .. math:: \mu_t = \beta \mu_{t-1} + (1 - \beta) g_t, \qquad U_t H_t = \mu_t, \qquad
        \theta_t = \theta_{t-1} - \eta (\operatorname{tr}(H_t)\, U_t + \lambda \theta_{t-1})

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        decay: as in :func:`scale_by_polargrad`, like all arguments that the two share.
        eps: added to the norm by which the first iterate is divided.
        weight_decay: :math:`\lambda \ge 0` for matrices.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        ns_coeffs: coefficients of the iteration.
        ns_steps: iterations.
        ns_dtype: the type in which to iterate.
        mu_dtype: the type of the momentum.
        weight_dimension_numbers: as in :func:`scale_by_muon`; a leaf whose numbers are None goes
            to `others`. Unless given, PolarGrad takes the leaves with two dimensions.
        others: the optimizer of the other leaves; ``adamw(learning_rate)`` unless given. Adam needs
            a different learning rate, since this one is multiplied by the gradient's size.

    State: `PartitionState` with the groups ``"matrices"`` and ``"others"``.

    Source: T. Lau et al., PolarGrad: A Class of Matrix-Gradient Optimizers from a Unifying
    Preconditioning Perspective, 2025, arXiv:2505.21799, with momentum first.

    >>> import gradtx
    >>> tx = polargrad(0.1, 0.5)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros((2, 2)), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-3))
    True
    """

    def direction(numbers: Any) -> GradientTransformation:
        return scale_by_polargrad(
            decay,
            eps,
            ns_coeffs=ns_coeffs,
            ns_steps=ns_steps,
            ns_dtype=ns_dtype,
            mu_dtype=mu_dtype,
            weight_dimension_numbers=numbers,
        )

    others = adamw(learning_rate) if others is None else others
    return beside_adamw(
        "polargrad", direction, learning_rate, weight_decay, mask, weight_dimension_numbers, others
    )
