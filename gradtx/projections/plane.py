"""Projections onto the line, hyperplane or half-space that a vector defines."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from gradtx.numerics import abs_sq, divide
from gradtx.projections import leaves
from gradtx.types import Array, PyTree, TreeT


def _vectors(name: str, x: PyTree, a: PyTree, b: Any) -> tuple[list[Array], list[Array]]:
    """The leaves of `x` and `a`.

    Raises:
        ValueError: they differ, or `b` is not a number.
        TypeError: `a` is complex where `x` is real.
    """
    xs = leaves.arrays(name, x)
    parts = leaves.parts_like(name, "a", a, x)
    if np.ndim(b) != 0:
        raise ValueError(f"{name}: b must be a number, not an array of {np.shape(b)}")
    for path, u, v in zip(leaves.paths(x), xs, parts, strict=True):
        if v is None or u.shape != np.shape(v):
            raise ValueError(
                f"{name}: at {path!r} a has the shape {np.shape(v)} where x has {u.shape}"
            )
        if jnp.iscomplexobj(v) and not jnp.iscomplexobj(u):
            raise TypeError(f"{name}: at {path!r} a is complex and x is real")
    return xs, leaves.arrays(name, parts)


def _products(xs: list[Array], normal: list[Array]) -> tuple[Any, Any, list[Array]]:
    r"""A rescaled normal `a`, :math:`\langle a, x \rangle` and :math:`\langle a, a \rangle`."""
    top = leaves.largest(normal)
    scaled = [v / jnp.where(top > 0, top, 1) for v in normal]
    inner: Any = 0
    for v, u in zip(scaled, xs, strict=True):
        inner = inner + jnp.sum(jnp.conj(v) * u)
    return inner, sum(jnp.sum(abs_sq(v)) for v in scaled), scaled


def projection_vector(x: TreeT, a: PyTree) -> TreeT:
    r"""The nearest multiple of a vector: :math:`a\, \langle a, x \rangle / \langle a, a \rangle`.

    Args:
        x: the tree to project; all its leaves form one vector.
        a: the vector, a tree like `x`. If it is zero so is the result; Optax returns NaN.

    Raises:
        ValueError: `a` is a different tree or has other shapes.
        TypeError: `a` is complex where `x` is real.

    >>> projection_vector(jnp.array([1.0, 3.0]), jnp.array([2.0, 2.0])).tolist()
    [2.0, 2.0]
    """
    xs, normal = _vectors("projection_vector", x, a, 0)
    inner, square, scaled = _products(xs, normal)
    factor = divide(jnp.asarray(inner), jnp.asarray(square))
    return leaves.rebuild(x, [factor * v for v in scaled])


def projection_hyperplane(x: TreeT, a: PyTree, b: Any) -> TreeT:
    r"""The nearest point in a hyperplane :math:`\langle a, y \rangle = b`.

    .. math:: y = x + a\, (b - \langle a, x \rangle) / \langle a, a \rangle

    Args:
        x: the tree to project; all its leaves form one vector.
        a: the normal of the plane, a tree like `x`.
        b: :math:`b`.

    Raises:
        ValueError: `a` is a different tree or has other shapes; or it is zero and `b` is not, so
            that the set is empty (checked unless one of them is traced).
        TypeError: `a` is complex where `x` is real.

    >>> projection_hyperplane(jnp.array([1.0, 3.0]), jnp.array([2.0, 0.0]), 0.0).tolist()
    [0.0, 3.0]
    """
    return _towards("projection_hyperplane", x, a, b, half=False)


def projection_halfspace(x: TreeT, a: PyTree, b: Any) -> TreeT:
    r"""The nearest point in a half-space :math:`\langle a, y \rangle \le b`.

    .. math:: y = x - a \max(\langle a, x \rangle - b,\, 0) / \langle a, a \rangle

    Args:
        x: the tree to project; all its leaves form one vector. Only the real part of a complex
            inner product counts.
        a: the outer normal, a tree like `x`.
        b: :math:`b`, real.

    Raises:
        ValueError: `a` is a different tree or has other shapes; or it is zero and `b` is negative,
            so that the set is empty (checked unless one of them is traced).
        TypeError: `a` is complex where `x` is real.

    >>> projection_halfspace(jnp.array([1.0, 3.0]), jnp.array([2.0, 0.0]), 0.0).tolist()
    [0.0, 3.0]
    """
    return _towards("projection_halfspace", x, a, b, half=True)


def _towards(name: str, x: PyTree, a: PyTree, b: Any, *, half: bool) -> PyTree:
    xs, normal = _vectors(name, x, a, b)
    known = leaves.known(normal, b)
    if known and (b < 0 if half else b != 0) and not any(np.any(np.asarray(v)) for v in normal):
        raise ValueError(f"{name}: the set is empty, since a is zero and b is {b}")
    inner, square, scaled = _products(xs, normal)
    # The normal was divided by its largest entry, so b has to be as well.
    top = leaves.largest(normal)
    missing = jnp.asarray(b / jnp.where(top > 0, top, 1) - inner)
    if half:
        missing = jnp.minimum(missing.real, 0)
    factor = divide(missing, jnp.asarray(square))
    return leaves.rebuild(x, [u + factor * v for u, v in zip(xs, scaled, strict=True)])
