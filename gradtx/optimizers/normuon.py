"""NorMuon."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.checks import Decay, NonNegative, PositiveInt
from gradtx.composition.matrices import MuonDimensionNumbers
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.matrices import MatrixDimensions, matrixwise, one_for_each_column
from gradtx.leaves.paths import Where
from gradtx.linalg.linear_algebra import with_root_mean_square
from gradtx.numerics import Step, abs_sq, ema, root, zero_mean
from gradtx.optimizers.beside_adamw import beside_adamw, longer_side
from gradtx.transforms.orthogonal import STANDARD, check_dtype, coefficients, orthogonalized
from gradtx.types import Array, DimensionNumbers, DType, Slots
from gradtx.types.update_size import UpdateSize


class NormuonState(NamedTuple):
    """mu: like the parameters; v: real, ``(batch, columns)`` for each leaf."""

    mu: Slots
    v: Slots


@transformation
def scale_by_normuon(
    b1: Decay = 0.95,
    b2: Decay = 0.95,
    eps: NonNegative = 1e-8,
    rms: NonNegative = 0.2,
    *,
    nesterov: bool = False,
    ns_coeffs: Any = STANDARD,
    ns_steps: PositiveInt = 5,
    ns_dtype: DType | None = None,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""Orthogonalized momentum, with each output divided by the root of its mean square.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \qquad O_t = \mathrm{NS}(\mu_t), \\
        v_t &= \beta_2 v_{t-1} + (1 - \beta_2)\, \mathrm{mean}_{in}(O_t \odot O_t), \qquad
            \hat O_t = \frac{O_t}{\sqrt{v_t} + \epsilon}, \\
        u_t &= r \sqrt{d_{in} d_{out}}\, \frac{\hat O_t}{\lVert \hat O_t \rVert_F}

    with one :math:`v` for each output (each column), and the iteration of :func:`scale_by_muon`.

    Args:
        b1: :math:`\beta_1` in :math:`[0, 1)`.
        b2: :math:`\beta_2` in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`; also added to the norm by which the first iterate is divided.
        rms: `r`, the root mean square of the direction.
        nesterov: orthogonalize :math:`\beta_1 \mu_t + (1 - \beta_1) g_t`, as the authors' code
            does; their algorithm does not.
        ns_coeffs: this and the next two as in :func:`scale_by_muon`.
        ns_steps: how many iterations.
        ns_dtype: the type in which to iterate.
        mu_dtype: the type in which :math:`\mu` is kept; the parameter's unless given.
        weight_dimension_numbers: as in :func:`scale_by_muon`.

    State: `NormuonState`.

    Raises:
        ValueError: as :func:`scale_by_muon` does.

    Source: Z. Li et al., NorMuon: Making Muon More Efficient and Scalable, 2025, arXiv:2510.05491,
    algorithm 1. The authors' code keeps the norm of :math:`O_t` instead and multiplies by Muon's
    factor of the shape.

    >>> tx, g = scale_by_normuon(), jnp.array([[3.0, 0.1], [3.0, -0.1]])
    >>> u = tx.update(g, tx.init(g))[0]
    >>> jnp.sqrt(jnp.mean(u**2, axis=0)).round(3).tolist()
    [0.20000000298023224, 0.20000000298023224]
    """
    coeffs = coefficients("scale_by_normuon", ns_coeffs, ns_steps, "frobenius")
    check_dtype("scale_by_normuon", ns_dtype)

    def slots(p: Array) -> dict[str, Array]:
        return {"mu": zero_mean(p, mu_dtype)}

    def momentum(g: Array, s: Any, t: Step) -> Any:
        mu = ema(g, s.mu, b1)
        return ema(g, mu, b1) if nesterov else mu, {"mu": mu}

    def rule(g: Array, s: Any, t: Step) -> Any:
        o = orthogonalized(g, jnp.asarray(coeffs), ns_steps, "frobenius", eps, ns_dtype)
        v = ema(jnp.mean(abs_sq(o), -2), s.v, b2)
        scaled = o / (root(v) + eps)[:, None]
        return with_root_mean_square(scaled, rms), {"v": v}

    return matrixwise(
        NormuonState,
        slots,
        rule,
        MatrixDimensions(weight_dimension_numbers, MuonDimensionNumbers),
        on_entries=momentum,
        factors={"v": one_for_each_column},
    )


@optimizer(update_size=UpdateSize("spectral", "weight_dimension_numbers", longer_side))
def normuon(
    learning_rate: NonNegative,
    b1: Decay = 0.95,
    b2: Decay = 0.95,
    eps: NonNegative = 1e-8,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    *,
    rms: NonNegative = 0.2,
    nesterov: bool = False,
    ns_coeffs: Any = STANDARD,
    ns_steps: PositiveInt = 5,
    ns_dtype: DType | None = None,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
    others: GradientTransformation | None = None,
) -> GradientTransformation:
    r"""NorMuon: Muon with steps of equal size for every output; AdamW for the rest.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \qquad O_t = \mathrm{NS}(\mu_t), \\
        v_t &= \beta_2 v_{t-1} + (1 - \beta_2)\, \mathrm{mean}_{in}(O_t \odot O_t), \qquad
            \hat O_t = \frac{O_t}{\sqrt{v_t} + \epsilon}, \\
        \theta_t &= \theta_{t-1} - \eta \Bigl(r \sqrt{d_{in} d_{out}}\,
            \frac{\hat O_t}{\lVert \hat O_t \rVert_F} + \lambda \theta_{t-1}\Bigr)

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        b1: as in :func:`scale_by_normuon`, like all arguments that the two share.
        b2: decay of the second moment.
        eps: :math:`\epsilon \ge 0`.
        weight_decay: :math:`\lambda \ge 0`, also of the other leaves.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        rms: `r`; 0.2 matches the size of Adam's updates.
        nesterov: orthogonalize the look-ahead momentum.
        ns_coeffs: coefficients of the iteration.
        ns_steps: iterations.
        ns_dtype: the type in which to iterate.
        mu_dtype: the type of the momentum.
        weight_dimension_numbers: as in :func:`scale_by_muon`; a leaf whose numbers are None goes
            to `others`. Unless given, NorMuon takes the leaves with two dimensions.
        others: the optimizer of the other leaves; unless given
            ``adamw(learning_rate, weight_decay=weight_decay, mask=mask)``.

    State: `PartitionState` with the groups ``"matrices"`` and ``"others"``.

    Source: Z. Li et al., NorMuon: Making Muon More Efficient and Scalable, 2025, arXiv:2510.05491,
    algorithm 1.

    >>> import gradtx
    >>> tx = normuon(gradtx.cosine_decay_schedule(0.3, 200))
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros((2, 2)), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """

    def direction(numbers: Any) -> GradientTransformation:
        return scale_by_normuon(
            b1,
            b2,
            eps,
            rms,
            nesterov=nesterov,
            ns_coeffs=ns_coeffs,
            ns_steps=ns_steps,
            ns_dtype=ns_dtype,
            mu_dtype=mu_dtype,
            weight_dimension_numbers=numbers,
        )

    return beside_adamw(
        "normuon", direction, learning_rate, weight_decay, mask, weight_dimension_numbers, others
    )
