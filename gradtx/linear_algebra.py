"""Norms with finite gradients, and the largest eigenvalue of a matrix."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gradtx import tree
from gradtx.numerics import abs_sq, compute_dtype, divide, widen
from gradtx.types import Array, PyTree


def safe_norm(
    x: Any,
    min_norm: Any,
    ord: int | float | str | None = None,
    axis: tuple[int, ...] | int | None = None,
    keepdims: bool = False,
) -> Array:
    """The larger of a norm and a limit, with a gradient of 0 where that is the limit.

    Args:
        x: an array.
        min_norm: the limit.
        ord: the order of the norm, as in ``jnp.linalg.norm``.
        axis: the axis of vectors, or the two of matrices.
        keepdims: whether to keep their dimensions, of length 1.

    In at least float32, also for halves. With ``axis=None`` and ``keepdims=False``, an `x` of any
    number of dimensions gives one number.

    >>> jax.grad(safe_norm)(jnp.zeros(2), 0.0).tolist()
    [0.0, 0.0]
    """
    x = widen(jnp.asarray(x))

    def norm(y: Array) -> Array:
        return jnp.linalg.norm(y, ord=ord, axis=axis, keepdims=True)

    small = norm(x) <= min_norm
    # Beside zeros the gradient of a norm is NaN, also where it is not chosen: ones have one.
    found = jnp.where(small, min_norm, norm(jnp.where(small, 1, x)))
    return found if keepdims else jnp.squeeze(found, axis)


def safe_root_mean_squares(x: Any, min_rms: Any) -> Array:
    """The larger of the root mean square and a limit, with a gradient of 0 where that is the limit.

    Args:
        x: an array.
        min_rms: the limit.

    >>> jax.grad(safe_root_mean_squares)(jnp.zeros(2), 0.0).tolist()
    [0.0, 0.0]
    """
    mean = jnp.mean(abs_sq(widen(jnp.asarray(x))))
    small = jnp.sqrt(mean) <= min_rms
    return jnp.where(small, min_rms, jnp.sqrt(jnp.where(small, 1, mean)))


def with_root_mean_square(x: Array, rms: Any) -> Array:
    """Each matrix of a batch scaled to this root mean square; a matrix of zeros stays one.

    >>> with_root_mean_square(jnp.array([[[1.0, 7.0]]]), 5.0).tolist()
    [[[1.0, 7.0]]]
    """
    size = jnp.sqrt(jnp.mean(abs_sq(x), (-2, -1), keepdims=True))
    return x * divide(rms, size)


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
        v0: where to start; a tree if `matrix` is a function of trees, which needs it.
        num_iters: how many iterations at most.
        error_tolerance: :math:`\epsilon`.
        precision: of the products.
        key: makes `v0` where it is not given.

    Returns:
        The eigenvalue and the eigenvector. A product of 0 ends it with the eigenvalue 0, where
        Optax has NaN.

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
            v0 = jax.random.uniform(key, a.shape[-1:], compute_dtype(a.dtype), -1.0, 1.0)

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
