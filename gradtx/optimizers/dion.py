"""Dion2 and Dion3."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checks import Decay, NonNegative, PositiveFraction, PositiveInt
from gradtx.composition.chain import chain
from gradtx.composition.matrices import MuonDimensionNumbers
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.matrices import MatrixDimensions, matrixwise, one_for_each_column
from gradtx.leaves.paths import Where
from gradtx.linalg.linear_algebra import with_root_mean_square
from gradtx.numerics import Step, abs_sq, ema, root, zero_mean
from gradtx.optimizers.beside_adamw import beside_adamw
from gradtx.optimizers.muon import scale_by_shape
from gradtx.transforms.orthogonal import check_dtype, coefficients, orthogonalized
from gradtx.types import Array, DimensionNumbers, DType, Slots


class Dion2State(NamedTuple):
    """mu: like the parameters, in mu_dtype if given."""

    mu: Slots


class Dion3State(NamedTuple):
    """mu: like the parameters, in mu_dtype if given; v: real, ``(batch, columns)``."""

    mu: Slots
    v: Slots


def _selected(mu: Array, fraction: float, axis: int) -> Array:
    """Which rows (-2) or columns (-1) of each matrix have the largest sums of absolute values."""
    sizes = jnp.sum(jnp.abs(mu), -3 - axis)
    return jax.lax.top_k(sizes, max(1, math.ceil(fraction * mu.shape[axis])))[1]


def _at(chosen: Array, axis: int) -> Any:
    return (chosen,) if axis == -2 else (slice(None), chosen)


def _taken(x: Array, chosen: Array, axis: int) -> Array:
    return jax.vmap(lambda x, k: x[_at(k, axis)])(x, chosen)


def _put(x: Array, chosen: Array, part: Array, axis: int) -> Array:
    """`x` with other values in the chosen rows or columns."""
    return jax.vmap(lambda x, k, part: x.at[_at(k, axis)].set(part))(x, chosen, part)


@transformation
def scale_by_dion2(
    fraction: PositiveFraction = 0.25,
    decay: Decay = 0.95,
    eps: NonNegative = 1e-8,
    *,
    ns_coeffs: Any = "polar_express",
    ns_steps: PositiveInt = 5,
    ns_dtype: DType | None = None,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""Orthogonalize a part of the momentum, and decay the part that was used.

    .. math::
        M_t = \mu_{t-1} + g_t, \qquad
        u_{t,K} = \mathrm{NS}(M_{t,K}), \qquad u_{t,\bar K} = 0, \qquad
        \mu_{t,K} = \beta M_{t,K}, \qquad \mu_{t,\bar K} = M_{t,\bar K}

    where `K` are the :math:`\lceil f n \rceil` of the `n` columns of a matrix, or of its rows if
    there are fewer of them, whose entries have the largest sums of absolute values. What was not
    chosen waits: that is the error feedback.

    Args:
        fraction: `f` in :math:`(0, 1]`, a number.
        decay: :math:`\beta` in :math:`[0, 1)`.
        eps: added to the norm by which the first iterate is divided.
        ns_coeffs: this and the next two as in :func:`scale_by_muon`. The authors' code
            uses five others, those of Polar Express for a safety factor of 1.02.
        ns_steps: how many iterations.
        ns_dtype: the type in which to iterate.
        mu_dtype: the type in which :math:`\mu` is kept; the parameter's unless given.
        weight_dimension_numbers: as in :func:`scale_by_muon`.

    State: `Dion2State`.

    Raises:
        ValueError: `fraction` is not a number in (0, 1]; or as :func:`scale_by_muon` does.

    Source: K. Ahn, N. Amsel and J. Langford, Dion2: A Simple Method to Shrink Matrix in Muon, 2025,
    arXiv:2512.16928, algorithm 1; rows or columns as in https://github.com/microsoft/dion on one
    device.

    >>> tx, g = scale_by_dion2(0.5), jnp.array([[3.0, 0.1], [3.0, -0.1]])
    >>> u, state = tx.update(g, tx.init(g))
    >>> u[:, 1].tolist(), bool(jnp.allclose(state.mu, g * jnp.array([0.95, 1.0])))
    ([0.0, 0.0], True)
    """
    coeffs = coefficients("scale_by_dion2", ns_coeffs, ns_steps, "frobenius")
    check_dtype("scale_by_dion2", ns_dtype)

    def rule(g: Array, s: Any, t: Step) -> Any:
        mu = s.mu + g
        axis = -1 if g.shape[-1] <= g.shape[-2] else -2
        chosen = _selected(mu, fraction, axis)
        part = _taken(mu, chosen, axis)
        o = orthogonalized(part, jnp.asarray(coeffs), ns_steps, "frobenius", eps, ns_dtype)
        u = _put(jnp.zeros_like(g), chosen, o, axis)
        return u, {"mu": _put(mu, chosen, decay * part, axis)}

    return matrixwise(
        Dion2State,
        lambda p: {"mu": zero_mean(p, mu_dtype)},
        rule,
        MatrixDimensions(weight_dimension_numbers, MuonDimensionNumbers),
    )


@transformation
def scale_by_dion3(
    fraction: PositiveFraction = 0.25,
    decay: Decay = 0.95,
    b2: Decay = 0.95,
    eps: NonNegative = 1e-8,
    *,
    ns_coeffs: Any = "polar_express",
    ns_steps: PositiveInt = 5,
    ns_dtype: DType | None = None,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""Dion2 on columns, each divided by the root of its mean square as in NorMuon.

    .. math::
        M_t &= \mu_{t-1} + g_t, \qquad O = \mathrm{NS}(M_{t,K}), \qquad
        \mu_{t,K} = \beta M_{t,K}, \qquad \mu_{t,\bar K} = M_{t,\bar K}, \\
        v_{t,K} &= \beta_2 v_{t-1,K} + (1 - \beta_2)\, \mathrm{mean}_{in}(O \odot O), \qquad
        \hat O = \frac{O}{\sqrt{v_{t,K}} + \epsilon}, \\
        u_{t,K} &= \frac{\lVert O \rVert_F}{\lVert \hat O \rVert_F}\, \hat O, \qquad
        u_{t,\bar K} = 0

    where `K` are the :math:`\lceil f n \rceil` of the `n` columns, the outputs, whose entries have
    the largest sums of absolute values.

    Args:
        fraction: `f` in :math:`(0, 1]`, a number.
        decay: :math:`\beta` in :math:`[0, 1)`.
        b2: :math:`\beta_2` in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`; also added to the norm by which the first iterate is divided.
        ns_coeffs: this and the next two as in :func:`scale_by_muon`. The authors' code
            uses five others, those of Polar Express for a safety factor of 1.02.
        ns_steps: how many iterations.
        ns_dtype: the type in which to iterate.
        mu_dtype: the type in which :math:`\mu` is kept; the parameter's unless given.
        weight_dimension_numbers: as in :func:`scale_by_muon`.

    State: `Dion3State`.

    Raises:
        ValueError: `fraction` is not a number in (0, 1]; or as :func:`scale_by_muon` does.

    Source: K. Ahn et al., Dion3, or NorDion2, in https://github.com/microsoft/dion, after Dion2,
    2025, arXiv:2512.16928, and Z. Li et al., NorMuon, 2025, arXiv:2510.05491.

    >>> tx, g = scale_by_dion3(0.5), jnp.array([[3.0, 0.1], [3.0, -0.1]])
    >>> tx.update(g, tx.init(g))[0][:, 1].tolist()
    [0.0, 0.0]
    """
    coeffs = coefficients("scale_by_dion3", ns_coeffs, ns_steps, "frobenius")
    check_dtype("scale_by_dion3", ns_dtype)

    def rule(g: Array, s: Any, t: Step) -> Any:
        mu = s.mu + g
        chosen = _selected(mu, fraction, -1)
        part = _taken(mu, chosen, -1)
        o = orthogonalized(part, jnp.asarray(coeffs), ns_steps, "frobenius", eps, ns_dtype)
        squares = abs_sq(o)
        v = ema(jnp.mean(squares, -2), _taken(s.v, chosen, -2), b2)
        size = root(jnp.mean(squares, (-2, -1), keepdims=True))
        scaled = with_root_mean_square(o / (root(v) + eps)[:, None], size)
        new = {"mu": _put(mu, chosen, decay * part, -1), "v": _put(s.v, chosen, v, -2)}
        return _put(jnp.zeros_like(g), chosen, scaled, -1), new

    return matrixwise(
        Dion3State,
        lambda p: {"mu": zero_mean(p, mu_dtype)},
        rule,
        MatrixDimensions(weight_dimension_numbers, MuonDimensionNumbers),
        factors={"v": one_for_each_column},
    )


@optimizer
def dion2(
    learning_rate: NonNegative,
    fraction: PositiveFraction = 0.25,
    decay: Decay = 0.95,
    eps: NonNegative = 1e-8,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    *,
    ns_coeffs: Any = "polar_express",
    ns_steps: PositiveInt = 5,
    ns_dtype: DType | None = None,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
    others: GradientTransformation | None = None,
) -> GradientTransformation:
    r"""Dion2: Muon that orthogonalizes a fraction of the rows or columns; AdamW for the rest.

    .. math::
        M_t = \mu_{t-1} + g_t, \qquad
        \theta_{t,K} = (1 - \eta \lambda)\, \theta_{t-1,K}
            - \eta \sqrt{\frac{d_{out}}{d_{in}}}\; \mathrm{NS}(M_{t,K}), \qquad
        \mu_{t,K} = \beta M_{t,K}

    where `K` are the rows or columns, whichever are fewer, with the largest entries; the others
    only decay, and keep their momentum :math:`M_t`. See :func:`scale_by_dion2`.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        fraction: as in :func:`scale_by_dion2`, like all arguments that the two share.
        decay: :math:`\beta`, how much is kept of the momentum that was used.
        eps: added to the norm by which the first iterate is divided.
        weight_decay: :math:`\lambda \ge 0`, also of the other leaves.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        ns_coeffs: coefficients of the iteration.
        ns_steps: iterations.
        ns_dtype: the type in which to iterate.
        mu_dtype: the type of the momentum.
        weight_dimension_numbers: as in :func:`scale_by_muon`; a leaf whose numbers are None goes
            to `others`. Unless given, Dion2 takes the leaves with two dimensions.
        others: the optimizer of the other leaves; unless given
            ``adamw(learning_rate, weight_decay=weight_decay, mask=mask)``.

    State: `PartitionState` with the groups ``"matrices"`` and ``"others"``.

    Source: K. Ahn, N. Amsel and J. Langford, Dion2: A Simple Method to Shrink Matrix in Muon, 2025,
    arXiv:2512.16928, algorithm 1, with the factor of the shape from
    https://github.com/microsoft/dion.

    >>> import gradtx
    >>> tx = dion2(gradtx.cosine_decay_schedule(0.3, 200), 0.5)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros((2, 2)), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=2e-2))
    True
    """

    def direction(numbers: Any) -> GradientTransformation:
        return chain(
            scale_by_dion2(
                fraction,
                decay,
                eps,
                ns_coeffs=ns_coeffs,
                ns_steps=ns_steps,
                ns_dtype=ns_dtype,
                mu_dtype=mu_dtype,
                weight_dimension_numbers=numbers,
            ),
            scale_by_shape(None, numbers, scale="scion"),
        )

    return beside_adamw(
        "dion2", direction, learning_rate, weight_decay, mask, weight_dimension_numbers, others
    )


@optimizer
def dion3(
    learning_rate: NonNegative,
    fraction: PositiveFraction = 0.25,
    decay: Decay = 0.95,
    b2: Decay = 0.95,
    eps: NonNegative = 1e-8,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    *,
    ns_coeffs: Any = "polar_express",
    ns_steps: PositiveInt = 5,
    ns_dtype: DType | None = None,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
    others: GradientTransformation | None = None,
) -> GradientTransformation:
    r"""Dion3: NorMuon that orthogonalizes a fraction of the outputs; AdamW for the rest.

    .. math::
        M_t = \mu_{t-1} + g_t, \qquad
        \theta_{t,K} = (1 - \eta \lambda)\, \theta_{t-1,K} - \eta \sqrt{\frac{d_{out}}{d_{in}}}\;
            \mathrm{Norm}(\mathrm{NS}(M_{t,K})), \qquad
        \mu_{t,K} = \beta M_{t,K}

    where `K` are the columns with the largest entries, and `Norm` divides each by the root of the
    mean of its squares; the others only decay, and keep their momentum :math:`M_t`. See
    :func:`scale_by_dion3`.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        fraction: as in :func:`scale_by_dion3`, like all arguments that the two share.
        decay: :math:`\beta`, how much is kept of the momentum that was used.
        b2: decay of the mean of squares.
        eps: :math:`\epsilon \ge 0`.
        weight_decay: :math:`\lambda \ge 0`, also of the other leaves.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        ns_coeffs: coefficients of the iteration.
        ns_steps: iterations.
        ns_dtype: the type in which to iterate.
        mu_dtype: the type of the momentum.
        weight_dimension_numbers: as in :func:`scale_by_muon`; a leaf whose numbers are None goes
            to `others`. Unless given, Dion3 takes the leaves with two dimensions.
        others: the optimizer of the other leaves; unless given
            ``adamw(learning_rate, weight_decay=weight_decay, mask=mask)``.

    State: `PartitionState` with the groups ``"matrices"`` and ``"others"``.

    Source: K. Ahn et al., Dion3, or NorDion2, in https://github.com/microsoft/dion, after Dion2,
    2025, arXiv:2512.16928, and Z. Li et al., NorMuon, 2025, arXiv:2510.05491.

    >>> import gradtx
    >>> tx = dion3(gradtx.cosine_decay_schedule(0.3, 200), 0.5)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros((2, 2)), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=2e-2))
    True
    """

    def direction(numbers: Any) -> GradientTransformation:
        return chain(
            scale_by_dion3(
                fraction,
                decay,
                b2,
                eps,
                ns_coeffs=ns_coeffs,
                ns_steps=ns_steps,
                ns_dtype=ns_dtype,
                mu_dtype=mu_dtype,
                weight_dimension_numbers=numbers,
            ),
            scale_by_shape(None, numbers, scale="scion"),
        )

    return beside_adamw(
        "dion3", direction, learning_rate, weight_decay, mask, weight_dimension_numbers, others
    )
