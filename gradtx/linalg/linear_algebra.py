"""Norms with finite gradients, eigenvalues and bases of eigenvectors, roots of matrices."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradtx import tree
from gradtx.linalg.decompositions import eigenvectors, factorized, orthonormal, singular_vectors
from gradtx.linalg.products import hermitian_part, product
from gradtx.numerics import (
    Norm,
    abs_sq,
    as_inexact,
    compute_dtype,
    divide,
    norm,
    ratio_factors,
    real_dtype,
    rms,
    root_mean_square,
    widen,
)
from gradtx.numerics.control import branch, repeat_while
from gradtx.types import Array, PyTree


def safe_norm(
    x: Any,
    min_norm: Any,
    ord: int | float | str | None = None,
    axis: tuple[int, ...] | int | None = None,
    keepdims: bool = False,
) -> Array:
    """A norm, or a limit if the norm is not larger; the gradient is then 0.

    Args:
        x: an array.
        min_norm: the limit.
        ord: the order of the norm, as in ``jnp.linalg.norm``.
        axis: the axis of vectors, or the two of matrices.
        keepdims: whether to keep their dimensions, of length 1.

    It is computed in at least float32, also for half-precision inputs. With ``axis=None`` and
    ``keepdims=False``, an `x` of any number of dimensions gives one number.

    >>> jax.grad(safe_norm)(jnp.zeros(2), 0.0).tolist()
    [0.0, 0.0]
    """
    x = widen(jnp.asarray(x))
    axis = int(axis) if isinstance(axis, np.integer) else axis

    def of(y: Array) -> Array:
        if ord is None or (ord == 2 and isinstance(axis, int)):
            of_all = tuple(range(y.ndim)) if axis is None else axis
            return norm(y, of_all).number
        return jnp.linalg.norm(y, ord=ord, axis=axis, keepdims=True)

    small = of(x) <= min_norm
    # At zeros the gradient of a norm is NaN, even where it is not selected; at ones it is not.
    limited_norm = jnp.where(small, min_norm, of(jnp.where(small, 1, x)))
    return limited_norm if keepdims else jnp.squeeze(limited_norm, axis)


def safe_root_mean_squares(x: Any, min_rms: Any) -> Array:
    """The root mean square, or a limit if it is not larger than that; the gradient is then 0.

    Args:
        x: an array.
        min_rms: the limit.

    >>> jax.grad(safe_root_mean_squares)(jnp.zeros(2), 0.0).tolist()
    [0.0, 0.0]
    """
    size = rms(jnp.asarray(x))
    return jnp.where(size <= min_rms, min_rms, size)


def frobenius_norm(x: Array, axes: Any = (-2, -1)) -> Array:
    """The norm of each matrix, or over other `axes`, which are kept."""
    return norm(x, axes).number


def of_norm(x: Array, length: Any = 1.0) -> Array:
    """Matrices scaled to a Frobenius norm; a matrix of zeros stays one.

    >>> of_norm(jnp.array([[[3e38, 3e38]]])).round(3).tolist()
    [[[0.70..., 0.70...]]]
    """
    power, factor = ratio_factors(Norm.of(jnp.asarray(length, x.dtype)), norm(x, (-2, -1)))
    return x * power * factor


def real_inner(x: Array, y: Array) -> Array:
    """The real part of the inner product of each pair of matrices; both axes are kept."""
    return jnp.sum((x.conj() * y).real, (-2, -1), keepdims=True)


def identity_like(x: Array) -> Array:
    """The identity with as many axes as matrices `x`, in their type.

    >>> identity_like(jnp.zeros((5, 2, 2))).tolist()
    [[[1.0, 0.0], [0.0, 1.0]]]
    """
    one = jnp.eye(x.shape[-1], dtype=x.dtype)
    return one.reshape(*[1] * (x.ndim - 2), *one.shape)


def with_root_mean_square(x: Array, wanted: Any) -> Array:
    """Each matrix of a batch scaled to this root mean square; a matrix of zeros stays one.

    >>> with_root_mean_square(jnp.array([[[1.0, 7.0]]]), 5.0).tolist()
    [[[1.0, 7.0]]]
    """
    size = root_mean_square(x, (-2, -1))
    return x * (1 / size.unit) * divide(wanted, size.value)


def power_iteration(
    matrix: Any | Callable[[PyTree], PyTree],
    *,
    v0: PyTree | None = None,
    num_iters: Any = 100,
    error_tolerance: Any = 1e-6,
    precision: Any = jax.lax.Precision.HIGHEST,
    key: Array | None = None,
) -> tuple[Array, PyTree]:
    r"""The eigenvalue of the largest absolute value, and its eigenvector of norm 1.

    .. math:: v \leftarrow \frac{A v}{\lVert A v \rVert}, \quad \lambda = \langle v, A v \rangle
        \quad\text{until } \lVert A v - \lambda v \rVert < \epsilon\, |\lambda|

    Args:
        matrix: :math:`A`, square and diagonalizable, or the function :math:`v \mapsto A v`.
        v0: where to start; required if `matrix` is a function, and a tree if that is one of trees.
        num_iters: how many iterations at most.
        error_tolerance: :math:`\epsilon`.
        precision: of the products.
        key: from which `v0` is drawn if it is not given.

    Returns:
        The eigenvalue and the eigenvector. If a product is 0, the eigenvalue is 0, where Optax
        gives NaN.

    Raises:
        ValueError: `matrix` is a function, and `v0` is not given.

    >>> value, vector = power_iteration(jnp.array([[2.0, 1.0], [1.0, 2.0]]))
    >>> round(float(value), 4)
    3.0
    """
    if callable(matrix):
        multiply = matrix
        if v0 is None:
            raise ValueError("power_iteration: give v0, whose structure `matrix` takes")
    else:
        a = jnp.asarray(matrix)

        def multiply(v: PyTree) -> PyTree:
            return jnp.matmul(a, v, precision=precision)

        if v0 is None:
            key = jax.random.key(0) if key is None else key
            kind = real_dtype(compute_dtype(as_inexact(a).dtype))
            v0 = jax.random.uniform(key, a.shape[-1:], kind, -1.0, 1.0)
        v0 = v0 + jnp.zeros([], jnp.result_type(v0, a))

    def unit(v: PyTree) -> PyTree:
        size = tree.norm(v)
        return tree.scale(1 / jnp.where(size == 0, 1, size), v)

    def goes_on(state: Any) -> Array:
        v, product, value, count = state
        residual = tree.norm(tree.add_scale(product, -value, v))
        return (residual >= error_tolerance * jnp.abs(value)) & (count < num_iters)

    def once(state: Any) -> Any:
        v = unit(state[1])
        product = multiply(v)
        return v, product, tree.vdot(v, product), state[3] + 1

    v0 = unit(v0)
    product = multiply(v0)
    start = v0, product, tree.vdot(v0, product), jnp.zeros([], jnp.int32)
    _, product, value, _ = jax.lax.while_loop(goes_on, once, start)
    return value, unit(product)


def right_singular_vectors(x: Array) -> Array:
    """The right singular vectors of matrices, as columns; largest singular values first.

    >>> jnp.abs(right_singular_vectors(jnp.array([[0.0, 4.0], [1.0, 0.0]]))).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    return singular_vectors(x)[1]


def spectral_norm(x: Array) -> Array:
    """The largest singular values of matrices, of shape ``(..., 1, 1)``.

    >>> spectral_norm(jnp.array([[0.0, 4.0], [1.0, 0.0]])).tolist()
    [[4.0]]
    """
    values = factorized(functools.partial(jnp.linalg.svd, compute_uv=False), x)
    return jnp.max(values, -1)[..., None, None]


def rotated(x: Array, left: Array, right: Array) -> Array:
    r"""Matrices in the bases that are the columns of `left` and `right`: :math:`L^* X R`.

    A basis of size 0 stands for the identity.

    >>> swap = jnp.array([[0.0, 1.0], [1.0, 0.0]])
    >>> rotated(jnp.array([[1.0], [2.0]]), swap, jnp.zeros((0, 0))).tolist()
    [[2.0], [1.0]]
    """
    x = x if left.size == 0 else product(left.mT.conj(), x)
    return x if right.size == 0 else product(x, right)


def rotated_back(x: Array, left: Array, right: Array) -> Array:
    r"""The inverse of :func:`rotated` for unitary bases: :math:`L X R^*`."""
    x = x if left.size == 0 else product(left, x)
    return x if right.size == 0 else product(x, right.mT.conj())


def eigenbasis(x: Array) -> Array:
    """The eigenvectors of Hermitian matrices, those of the largest eigenvalues first.

    >>> jnp.abs(eigenbasis(jnp.diag(jnp.array([1.0, 4.0])))).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    return x if x.size == 0 else eigenvectors(x)[..., ::-1]


def by_eigenvalue(x: Array, basis: Array) -> Array:
    """The order of the columns of `basis` by falling Rayleigh quotients of `x`.

    >>> by_eigenvalue(jnp.diag(jnp.array([1.0, 4.0])), jnp.eye(2)).tolist()
    [1, 0]
    """
    quotients = jnp.sum((basis.conj() * (x @ basis)).real, axis=-2)
    return jnp.argsort(quotients, axis=-1, descending=True)


def orthogonal_iteration(x: Array, basis: Array) -> Array:
    """One step from `basis` towards the eigenvectors of `x`: the `Q` of ``x @ basis``."""
    return x if x.size == 0 else orthonormal(x @ basis)


def spectral_norm_bound(x: Array) -> Array:
    r"""A lower bound of the spectral norms of Hermitian matrices, rarely below 0.7 of them.

    .. math:: \frac{\lVert X^3 e_j \rVert}{\lVert X^2 e_j \rVert}, \qquad
        j = \arg\max_j \lVert X e_j \rVert

    Its shape is ``(..., 1, 1)``. Source: the bound of X.-L. Li, Stochastic Hessian Fittings with
    Lie Groups, 2024, arXiv:2402.11858, for matrices that are not Hermitian.

    >>> float(spectral_norm_bound(jnp.diag(jnp.array([3.0, 4.0])))[0, 0])
    4.0
    """
    largest = jnp.max(jnp.abs(x), (-2, -1), keepdims=True)
    x = divide(x, largest)
    most = jnp.argmax(jnp.sum(abs_sq(x), -2, keepdims=True), -1, keepdims=True)
    v = x @ jnp.take_along_axis(x, most, -1)
    size, longer = map(frobenius_norm, (v, x @ v))
    return largest * divide(longer, size)


def eigen_inverse_root(x: Array, root: int, eps: Any) -> Array:
    r""":math:`(x + \epsilon I)^{-1/p}` of positive matrices, by their eigenvalues.

    Eigenvalues that rounding made negative count as 0.

    >>> eigen_inverse_root(jnp.diag(jnp.array([1.0, 16.0])), 4, 0.0).round(2).tolist()
    [[1.0, 0.0], [0.0, 0.5]]
    """
    # 1 unless an eigenvalue, or a sum on the way to them, could overflow.
    bound = jnp.finfo(x.dtype).max / (4 * x.shape[-1])
    over = jnp.maximum(jnp.max(jnp.abs(x), (-2, -1), keepdims=True) / bound, 1)
    return _inverse_root(root, x / over, eps / over[..., 0]) * over ** (-1 / root)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _inverse_root(root: int, x: Array, eps: Array) -> Array:
    values, vectors = factorized(jnp.linalg.eigh, x)
    scales = (jnp.maximum(values, 0) + eps) ** (-1 / root)
    inverse_root: Array = (vectors * scales[..., None, :]) @ vectors.mT.conj()
    return inverse_root


@_inverse_root.defjvp
def _changed_inverse_root(root: int, primals: Any, tangents: Any) -> tuple[Array, Array]:
    """The slope of the root between each pair of eigenvalues, also where they are equal."""
    (x, eps), (change, of_eps) = primals, tangents
    v = eigenvectors(x)
    values = jnp.maximum(jnp.sum((v.conj() * (x @ v)).real, -2), 0) + eps
    scales = values ** (-1 / root)
    mean = (values[..., None, :] + values[..., :, None]) / 2
    gaps = values[..., None, :] - values[..., :, None]
    near = jnp.abs(gaps) <= jnp.finfo(gaps.dtype).eps ** (1 / 3) * mean
    chords = (scales[..., None, :] - scales[..., :, None]) / jnp.where(near, 1, gaps)
    slopes = jnp.where(near, -(mean ** (-1 / root - 1)) / root, chords)
    one = identity_like(x)
    moved = v.mT.conj() @ hermitian_part(change) @ v + one * of_eps[..., None, :]
    return _inverse_root(root, x, eps), v @ (slopes * moved) @ v.mT.conj()


def damped_inverse(x: Array, damping: Any) -> Array:
    r""":math:`(x + \delta I)^{-1}` of positive matrices.

    Eigenvalues that are 0 within the precision of the type, beside the largest, have the inverse 0,
    so that rounding is not amplified. Matrices that may have such ones are inverted by their
    eigenvalues; while there are none, all are inverted by Cholesky's factors, which is faster.

    >>> damped_inverse(jnp.diag(jnp.array([1.0, 0.0])), 1e-12).round(2).tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    x = x + damping * identity_like(x)
    precision = x.shape[-1] * jnp.finfo(x.dtype).eps
    root = factorized(jnp.linalg.cholesky, x)
    pivots = jnp.diagonal(root, axis1=-2, axis2=-1).real ** 2
    clear = (jnp.min(pivots, -1) > 10 * precision * jnp.max(pivots, -1))[..., None, None]

    def inverted(root: Array) -> Array:
        one = jnp.broadcast_to(identity_like(root), root.shape)
        return jax.lax.linalg.triangular_solve(root, one, left_side=True, lower=True)

    def by_eigenvalues(x: Array, inverse: Array) -> Array:
        values, vectors = factorized(jnp.linalg.eigh, x)
        least = precision * jnp.max(values, -1, keepdims=True)
        inverses = jnp.where(values <= least, 0, 1 / jnp.maximum(values, least))
        other = (vectors * inverses[..., None, :].astype(x.dtype)) @ vectors.mT.conj()
        return jnp.where(clear, inverse, other)

    half: Array = factorized(inverted, jnp.where(clear, root, identity_like(root)))
    inverse = half.mT.conj() @ half
    return branch(jnp.all(clear), lambda x, inverse: inverse, by_eigenvalues, x, inverse)


def newton_inverse_root(x: Array, root: int, eps: Any, most: int = 100) -> Array:
    r""":math:`(x + \epsilon I)^{-1/p}` of positive matrices, by the coupled Newton iteration.

    .. math:: F = \tfrac{p + 1}{p} I - \tfrac1p M, \qquad X \leftarrow X F, \qquad
        M \leftarrow F^p M

    from :math:`M = z (x + \epsilon I)` and :math:`X = z^{1/p} I` with
    :math:`z = (p + 1) / (2 \lVert x + \epsilon I \rVert_F)`, as long as an entry of `M - I` exceeds
    the root of the type's precision, and then once more, which squares the rest. `x` is divided by
    its largest entry first. :math:`\epsilon` is at least 8 times the precision times
    :math:`\lVert x \rVert_F`: rounding makes an average of Gram matrices indefinite, by up to 5
    times as much for rank 1, decays of 0.9 and 0.999 and sizes from 2 to 256. Matrices for which an
    entry still exceeds the root after `most` iterations become NaN.

    >>> newton_inverse_root(jnp.diag(jnp.array([1.0, 16.0])), 4, 0.0).round(2).tolist()
    [[1.0, 0.0], [0.0, 0.5]]
    """
    precision = jnp.finfo(x.dtype).eps
    one = identity_like(x)
    largest = jnp.maximum(jnp.max(jnp.abs(x), (-2, -1), keepdims=True), eps)
    # XLA multiplies by the reciprocal, and that of a larger number is 0.
    scale = jnp.minimum(largest, 0.5 / jnp.finfo(x.dtype).tiny)
    x = x / scale

    def factor(m: Array) -> Array:
        return ((root + 1) * one - m) / root

    def off(state: Any) -> Array:
        return jnp.max(jnp.abs(state[1] - one), (-2, -1), keepdims=True) > precision**0.5

    def going(state: Any) -> Array:
        return jnp.any(off(state)) & (state[2] < most)

    def once(state: Any) -> Any:
        y, m, count = state
        f = factor(m)
        new = y @ f, jnp.linalg.matrix_power(f, root) @ m
        still_off = off(state)
        return *(jnp.where(still_off, a, b) for a, b in zip(new, (y, m), strict=True)), count + 1

    ridged = x + jnp.maximum(eps / scale, 8 * precision * frobenius_norm(x)) * one
    z = (root + 1) / (2 * frobenius_norm(ridged))
    start = z ** (1 / root) * one, z * ridged, jnp.zeros([], jnp.int32)
    final_state = repeat_while(going, once, start)
    last = final_state[0] @ factor(final_state[1])
    return jnp.where(off(final_state), jnp.nan, last * scale ** (-1 / root))
