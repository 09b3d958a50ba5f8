"""Projections onto the simplex, and onto the ball and the sphere of the 1-norm.

Source: C. Michelot, A Finite Algorithm for Finding the Projection of a Point onto the Canonical
Simplex of R^n, 1986; J. Duchi, S. Shalev-Shwartz, Y. Singer and T. Chandra, Efficient Projections
onto the L1-Ball for Learning in High Dimensions, 2008 (the ball by way of the simplex).
"""

from typing import Any

import jax
import jax.numpy as jnp

from gradtx.projections import leaves
from gradtx.types import Array, PyTree, TreeT


def _on_simplex(xs: list[Array], scale: Any) -> list[Array]:
    r"""The nearest non-negative vector with the sum `scale`: :math:`\max(x - \theta, 0)`.

    The excess of the sum over `scale` is taken evenly from the entries above :math:`\theta`. These
    are found in a few passes, without sorting: :math:`\theta` starts from a lower bound, and each
    pass drops the entries that would become negative.
    """
    # A constant added to all entries changes nothing; near zero the sums lose the least.
    top = leaves.highest(xs)
    near = [x - top.astype(x.dtype) for x in xs]
    fixed = jax.lax.stop_gradient(near)

    def sums(values: list[Array], theta: Array) -> tuple[Array, Array]:
        total, count = jnp.zeros([], top.dtype), jnp.zeros([], jnp.int32)
        for x, v in zip(fixed, values, strict=True):
            inside = x >= theta
            total = total + jnp.sum(jnp.where(inside, v, 0))
            count = count + jnp.sum(inside, dtype=jnp.int32)
        return total, count

    def shrinks(carry: Any) -> Array:
        _, count, before = carry
        return count < before

    def narrow(carry: Any) -> Any:
        theta, before, _ = carry
        total, count = sums(fixed, theta)
        return (total - fixed_scale) / count, count, before

    size = sum(x.size for x in xs)
    fixed_scale = jax.lax.stop_gradient(jnp.asarray(scale, top.dtype))
    start = -fixed_scale, jnp.int32(size + 1), jnp.int32(size + 2)
    theta, _, _ = jax.lax.while_loop(shrinks, narrow, start)
    # Given which entries are above it, theta is a mean, which can be differentiated.
    total, count = sums(near, theta)
    mean = (total - jnp.asarray(scale, top.dtype)) / count
    return [jax.nn.relu(x - mean.astype(x.dtype)) for x in near]


def projection_simplex(tree: TreeT, scale: Any = 1) -> TreeT:
    r"""The nearest point without negative entries whose entries sum to `scale`.

    .. math:: p = \max(x - \theta, 0), \qquad \textstyle\sum p = s

    Args:
        tree: the tree to project; all its leaves form one vector; real.
        scale: :math:`s \ge 0`, the sum.

    Raises:
        ValueError: the sum is negative, or there are no entries: the set is empty.

    Entries of any size keep their precision, since only differences matter. :math:`s = 0` gives
    zeros; Optax divides by it.

    >>> projection_simplex({"b": jnp.array(0.5), "w": jnp.array([2.5, 3.25])})["w"].tolist()
    [0.125, 0.875]
    """
    name = "projection_simplex"
    xs = _summands(name, tree, scale, real=True)
    return leaves.rebuild(tree, _on_simplex(xs, scale))


def projection_l1_sphere(tree: TreeT, scale: Any = 1) -> TreeT:
    r"""The nearest point whose absolute values sum to `scale`.

    .. math:: y = \mathrm{sign}(x)\, p, \qquad
        p \text{ the projection of } |x| \text{ onto the simplex}

    Args:
        tree: the tree to project; all its leaves form one vector.
        scale: :math:`s \ge 0`, the radius.

    Raises:
        ValueError: the radius is negative, or there are no entries: the set is empty.

    A zero entry that has to grow becomes positive (the negative is equally near); in Optax it stays
    zero, and the result is not on the sphere.

    >>> projection_l1_sphere(jnp.array([0.0, -0.5])).tolist()
    [0.25, -0.75]
    """
    name = "projection_l1_sphere"
    return leaves.rebuild(tree, _on_sphere(_summands(name, tree, scale), scale))


def _summands(name: str, tree: PyTree, scale: Any, *, real: bool = False) -> list[Array]:
    """The leaves as arrays; raises ValueError if there are no entries, to sum to `scale`."""
    leaves.check_scale(name, scale)
    xs = leaves.arrays(name, tree, real=real)
    if not any(x.size for x in xs):
        raise ValueError(f"{name}: the tree has no entries, so none sum to {scale}")
    return xs


def _on_sphere(xs: list[Array], scale: Any) -> list[Array]:
    parts = _on_simplex([jnp.abs(x) for x in xs], scale)
    signs = [jnp.where(x == 0, 1, jnp.sign(x)) for x in xs]
    return [sign * part for sign, part in zip(signs, parts, strict=True)]


def projection_l1_ball(tree: TreeT, scale: Any = 1) -> TreeT:
    r"""The nearest point whose absolute values sum to at most `scale`.

    Args:
        tree: the tree to project; all its leaves form one vector.
        scale: :math:`s \ge 0`, the radius.

    Raises:
        ValueError: the radius is negative.

    >>> projection_l1_ball(jnp.array([2.0, -1.5])).tolist()
    [0.75, -0.25]
    """
    name = "projection_l1_ball"
    leaves.check_scale(name, scale)
    xs = leaves.arrays(name, tree)
    if not any(x.size for x in xs):
        return tree
    inside = sum(jnp.sum(jnp.abs(x)) for x in xs) <= scale
    # Outside the ball the nearest point is on the sphere.
    moved = [jnp.where(inside, x, y) for x, y in zip(xs, _on_sphere(xs, scale), strict=True)]
    return leaves.rebuild(tree, moved)
