"""Muon²."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx import numerics
from gradtx.checks import Decay, NonNegative, PositiveInt
from gradtx.composition.chain import chain
from gradtx.composition.matrices import MuonDimensionNumbers
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.matrices import (
    MatrixDimensions,
    matrixwise,
    one_for_each_column,
    one_for_each_row,
)
from gradtx.leaves.paths import Where
from gradtx.numerics import (
    Step,
    abs_sq,
    accumulator_dtype,
    bounded,
    divide,
    ema,
    moments,
    zero_mean,
    zeros_like,
)
from gradtx.optimizers.beside_adamw import beside_adamw
from gradtx.optimizers.muon import scale_by_shape, shape_factor
from gradtx.transforms.orthogonal import check_dtype, coefficients, orthogonalized
from gradtx.types import Array, DimensionNumbers, DType, NonNegativeSlots, Slots
from gradtx.types.update_size import UpdateSize


class Muon2State(NamedTuple):
    """mu, nu: like the parameters, nu real and in float32 or wider."""

    mu: Slots
    nu: NonNegativeSlots


class FactoredMuon2State(NamedTuple):
    """mu: like the parameters; v_row, v_col: real, ``(batch, rows)`` and ``(batch, columns)``.

    For a leaf that is not a matrix v_row and v_col are None and nu is like the parameters, real;
    for a matrix nu is None.
    """

    mu: Slots
    nu: NonNegativeSlots
    v_row: NonNegativeSlots
    v_col: NonNegativeSlots


@transformation
def scale_by_muon2(
    decay: Decay = 0.95,
    b2: Decay = 0.95,
    eps: NonNegative = 1e-8,
    *,
    factored: bool = False,
    nesterov: bool = False,
    ns_coeffs: Any = "polar_express",
    ns_steps: PositiveInt = 5,
    ns_dtype: DType | None = None,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""Divide the momentum by the root mean square of gradients, and orthogonalize the quotient.

    .. math::
        \mu_t = \beta \mu_{t-1} + g_t, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t|^2, \qquad
        u_t = \mathrm{NS}\!\left(\frac{\mu_t}{\sqrt{\nu_t} + \epsilon}\right)

    with the iteration of :func:`scale_by_muon`. Factored, as in Adafactor, :math:`\nu_t` is
    :math:`R_t C_t / \mathrm{mean}(R_t)` of the means over rows and over columns,

    .. math::
        R_t = \beta_2 R_{t-1} + (1 - \beta_2)\, \mathrm{mean}_j |g_t|^2, \qquad
        C_t = \beta_2 C_{t-1} + (1 - \beta_2)\, \mathrm{mean}_i |g_t|^2

    Args:
        decay: :math:`\beta` in :math:`[0, 1)`.
        b2: :math:`\beta_2` in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`; also added to the norm by which the first iterate is divided.
        factored: keep :math:`R` and :math:`C` instead of :math:`\nu`, as Muon²-F does.
        nesterov: divide :math:`\beta \mu_t + g_t` in place of :math:`\mu_t`.
        ns_coeffs: this and the next two as in :func:`scale_by_muon`.
        ns_steps: how many iterations. Five are the default of Muon and of the implementation
            below; the paper reports that three, 40 % fewer, are enough.
        ns_dtype: the type in which to iterate.
        mu_dtype: the type in which :math:`\mu` is kept; the parameter's unless given.
        weight_dimension_numbers: as in :func:`scale_by_muon`.

    State: `Muon2State`, or `FactoredMuon2State`. A leaf whose dimension numbers are None keeps
    :math:`\nu` itself in both, and is not orthogonalized.

    Raises:
        ValueError: as :func:`scale_by_muon` does.

    Source: Z. Liu et al., Muon²: Boosting Muon via Adaptive Second-Moment Preconditioning, 2026,
    arXiv:2604.09967. The defaults are those of an implementation that was proposed to
    https://github.com/microsoft/dion, but for its Polar Express, which has a safety factor of 1.02.
    Factored, that implementation keeps sums in place of means, and divides by the sum of :math:`R`
    or by :math:`\epsilon`, whichever is more.

    >>> tx, g = scale_by_muon2(), jnp.array([[9.0, 0.1], [9.0, -0.1]])
    >>> (tx.update(g, tx.init(g))[0] / 0.654).round(2).tolist()
    [[1.0, 1.0], [1.0, -1.0]]
    """
    coeffs = coefficients("scale_by_muon2", ns_coeffs, ns_steps, "frobenius")
    check_dtype("scale_by_muon2", ns_dtype)

    def momentum(g: Array, mu: Array) -> tuple[Array, Array]:
        mu = decay * mu + g
        return mu, decay * mu + g if nesterov else mu

    def divided(g: Array, s: Any, t: Step) -> Any:
        mu, m = momentum(g, s.mu)
        nu = ema(abs_sq(g), s.nu, b2)
        return divide(m, numerics.root(nu) + eps), {"mu": mu, "nu": nu}

    def orthogonal(u: Array) -> Array:
        return orthogonalized(u, jnp.asarray(coeffs), ns_steps, "frobenius", eps, ns_dtype)

    def rule(g: Array, s: Any, t: Step) -> Any:
        return orthogonal(g), {}

    def mean(square: Array, axis: int) -> Array:
        # Infinite means would be divided by each other, at this step and all later ones.
        return bounded(jnp.mean(square, axis), square.shape[-2] * square.shape[-1])

    def factored_rule(g: Array, s: Any, t: Step) -> Any:
        mu, m = momentum(g, s.mu)
        square = abs_sq(g)
        row, col = ema(mean(square, -1), s.v_row, b2), ema(mean(square, -2), s.v_col, b2)
        by_col = divide(numerics.root(col), numerics.root(jnp.mean(row, -1, keepdims=True)))
        root = numerics.root(row)[:, :, None] * by_col[:, None, :]
        return orthogonal(divide(m, root + eps)), {"mu": mu, "v_row": row, "v_col": col}

    dimensions = MatrixDimensions(weight_dimension_numbers, MuonDimensionNumbers)
    if factored:
        return matrixwise(
            FactoredMuon2State,
            lambda p: {"mu": zero_mean(p, mu_dtype)},
            factored_rule,
            dimensions,
            factors={"v_row": one_for_each_row, "v_col": one_for_each_column},
            on_others=divided,
            slots_of_others=lambda p: {"nu": zeros_like(p, accumulator_dtype(p))},
        )
    return matrixwise(
        Muon2State, lambda p: moments(p, mu_dtype), rule, dimensions, on_entries=divided
    )


@optimizer(
    update_size=UpdateSize(
        "spectral",
        "weight_dimension_numbers",
        factor=lambda arguments, rows, columns: float(shape_factor(rows, columns, "scion")),
        of_entries=True,
    )
)
def muon2(
    learning_rate: NonNegative,
    decay: Decay = 0.95,
    b2: Decay = 0.95,
    eps: NonNegative = 1e-8,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    *,
    factored: bool = False,
    nesterov: bool = False,
    ns_coeffs: Any = "polar_express",
    ns_steps: PositiveInt = 5,
    ns_dtype: DType | None = None,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
    others: GradientTransformation | None = None,
) -> GradientTransformation:
    r"""Muon²: Muon on a momentum that Adam's second moment has scaled; AdamW for the rest.

    .. math::
        \mu_t &= \beta \mu_{t-1} + g_t, \qquad
            \nu_t = \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t|^2, \\
        \theta_t &= \theta_{t-1} - \eta \left(\sqrt{\frac{d_{out}}{d_{in}}}\;
            \mathrm{NS}\!\left(\frac{\mu_t}{\sqrt{\nu_t} + \epsilon}\right)
            + \lambda \theta_{t-1}\right)

    Muon²-F is ``muon2(rate, factored=True)``: it keeps :math:`\nu` as its means over rows and over
    columns, as Adafactor does. See :func:`scale_by_muon2`.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        decay: as in :func:`scale_by_muon2`, like all arguments that the two share.
        b2: decay of the mean of squares.
        eps: :math:`\epsilon \ge 0`.
        weight_decay: :math:`\lambda \ge 0`, also of the other leaves.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        factored: keep means over rows and columns of the squares.
        nesterov: use Nesterov momentum.
        ns_coeffs: coefficients of the iteration.
        ns_steps: iterations.
        ns_dtype: the type in which to iterate.
        mu_dtype: the type of the momentum.
        weight_dimension_numbers: as in :func:`scale_by_muon`; a leaf whose numbers are None goes
            to `others`. Unless given, Muon² takes the leaves with two dimensions.
        others: the optimizer of the other leaves; unless given
            ``adamw(learning_rate, weight_decay=weight_decay, mask=mask)``.

    State: `PartitionState` with the groups ``"matrices"`` and ``"others"``.

    Source: Z. Liu et al., Muon²: Boosting Muon via Adaptive Second-Moment Preconditioning, 2026,
    arXiv:2604.09967, with the factor of the shape from an implementation that was proposed to
    https://github.com/microsoft/dion.

    >>> import gradtx
    >>> tx = muon2(gradtx.cosine_decay_schedule(0.3, 200))
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros((2, 2)), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=2e-2))
    True
    """

    def direction(numbers: Any) -> GradientTransformation:
        return chain(
            scale_by_muon2(
                decay,
                b2,
                eps,
                factored=factored,
                nesterov=nesterov,
                ns_coeffs=ns_coeffs,
                ns_steps=ns_steps,
                ns_dtype=ns_dtype,
                mu_dtype=mu_dtype,
                weight_dimension_numbers=numbers,
            ),
            scale_by_shape(None, numbers, scale="scion"),
        )

    return beside_adamw(
        "muon2", direction, learning_rate, weight_decay, mask, weight_dimension_numbers, others
    )
