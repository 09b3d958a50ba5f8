"""The norm of matrices: how much a step may change it, and how large a step is relative to it."""

import jax.numpy as jnp

from gradtx.checks import NonNegative
from gradtx.composition.matrices import on_each_matrix
from gradtx.core.pair import GradientTransformation, transformation
from gradtx.linalg.linear_algebra import frobenius_norm, of_norm, real_inner
from gradtx.numerics import divide, norm
from gradtx.types import Array, DimensionNumbers


@transformation
def radial_brake(
    outward: NonNegative = 0.5,
    inward: NonNegative = 1.0,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""Scale the part of each matrix's update that only changes the size of the matrix.

    .. math:: u \leftarrow u - (1 - s)\, c\, W, \qquad
        c = \frac{\langle u, W \rangle}{\lVert W \rVert_F^2}, \qquad
        s = \begin{cases} s_{out} & c > 0 \\ s_{in} & c \le 0 \end{cases}

    Put it after the learning rate and before :func:`keep_radius`. If :func:`floor_update_ratio` is
    used too, it goes between them.

    Args:
        outward: :math:`s_{out} \ge 0`, where the matrix would grow.
        inward: :math:`s_{in} \ge 0`, where it would shrink.
        weight_dimension_numbers: as in :func:`scale_by_muon`; other leaves are left as they are.
            Unless given, the leaves with two dimensions are matrices.

    State: none.

    Raises:
        ValueError: ``update`` is called without parameters.
        TypeError: the update of a matrix is `Rows`.

    Source: https://github.com/KellerJordan/modded-nanogpt/pull/294, with these defaults; with 0 for
    both it is the projection of B. Heo et al., AdamP, 2020, arXiv:2006.08217.

    >>> tx, w = radial_brake(), jnp.array([[2.0, 0.0]])
    >>> tx.update(jnp.array([[1.0, 1.0]]), tx.init(w), w)[0].tolist()
    [[0.5, 1.0]]
    """

    def braked(u: Array, w: Array) -> Array:
        size = norm(w, (-2, -1))
        w = w / size.unit
        radial = divide(real_inner(w, u), size.value**2)
        return u - (1 - jnp.where(radial > 0, outward, inward)) * radial * w

    return on_each_matrix("radial_brake", weight_dimension_numbers, braked)


@transformation
def keep_radius(
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""Let the norm of each matrix change by the radial part of its update alone.

    .. math:: W \leftarrow R\, \frac{W + u}{\lVert W + u \rVert_F}, \qquad
        R = \max\Bigl(0, \lVert W \rVert_F + \frac{\langle u, W \rangle}{\lVert W \rVert_F}\Bigr)

    A step along the tangent would otherwise carry the matrix outward, by the square of its length.
    Put it last, after the learning rate.

    Args:
        weight_dimension_numbers: as in :func:`radial_brake`.

    State: none. A matrix of zeros takes its update as it is.

    Raises:
        ValueError: ``update`` is called without parameters.
        TypeError: the update of a matrix is `Rows`.

    Source: https://github.com/KellerJordan/modded-nanogpt/pull/294.

    >>> tx, w = keep_radius(), jnp.array([[3.0, 0.0]])
    >>> updates, _ = tx.update(jnp.array([[0.0, 4.0]]), tx.init(w), w)
    >>> (10 * (w + updates)).round().tolist()
    [[18.0, 24.0]]
    """

    def kept(u: Array, w: Array) -> Array:
        size, new = frobenius_norm(w), w + u
        radius = jnp.maximum(size + divide(real_inner(w, u), size), 0)
        return jnp.where(size > 0, of_norm(new, radius) - w, u)

    return on_each_matrix("keep_radius", weight_dimension_numbers, kept)


@transformation
def floor_update_ratio(
    ratio: NonNegative,
    *,
    each_output: bool = False,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""Enlarge updates that are too small relative to their matrix.

    .. math:: u \leftarrow u\, \max\Bigl(1, r \frac{\lVert W \rVert_F}{\lVert u \rVert_F}\Bigr)

    As matrices grow, so do the steps, and the angle by which a step turns a matrix does not fall
    below the one that `r` gives; this takes the place of weight decay.

    Args:
        ratio: :math:`r \ge 0`; placed after the learning rate, it has to include it:
            ``floor_update_ratio(multiply_schedules(rate, 0.35))``.
        each_output: floor each column of a matrix (the weights of one output) separately.
        weight_dimension_numbers: as in :func:`radial_brake`.

    State: none, or a `ScheduledState`. An update of zero stays one.

    Raises:
        ValueError: ``update`` is called without parameters.
        TypeError: the update of a matrix is `Rows`.

    Source: https://github.com/KellerJordan/modded-nanogpt/pull/274, with 0.35, and, for each
    output, https://github.com/KellerJordan/modded-nanogpt/pull/328, with 0.3825; there it comes
    before the learning rate.

    >>> tx, w = floor_update_ratio(0.5), jnp.array([[4.0, 0.0]])
    >>> tx.update(jnp.array([[0.0, 0.1]]), tx.init(w), w)[0].tolist()
    [[0.0, 2.0]]
    """
    axes = -2 if each_output else (-2, -1)

    def floored(u: Array, w: Array) -> Array:
        return u * jnp.maximum(1, ratio * divide(frobenius_norm(w, axes), frobenius_norm(u, axes)))

    return on_each_matrix("floor_update_ratio", weight_dimension_numbers, floored)
