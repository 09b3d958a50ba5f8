r"""Proximal maps of penalties: :math:`\arg\min_y \tfrac12 \lVert y - x \rVert^2 + \eta\, h(y)`.

Each is a function ``(tree, rate, ...) -> tree`` on every leaf by itself, in at least float32, and
has the derivatives of the map. At the rate 0 a penalty's map is the identity.
"""

from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp

from gradtx.numerics import norm, shrink
from gradtx.programs.tracing import is_tracer
from gradtx.projections import leaves
from gradtx.types import Array, TreeT

Groups = Literal["leaf", "row"]


def _check_strength(name: str, **strengths: Any) -> None:
    for argument, value in strengths.items():
        if jnp.ndim(value) != 0 or (not is_tracer(value) and not value >= 0):
            raise ValueError(f"{name}: {argument} must be a number of at least 0, not {value!r}")


def l1(tree: TreeT, rate: Any, strength: Any) -> TreeT:
    """Of ``strength * sum |x|``: entries of at most ``rate * strength`` become 0."""
    return elastic_net(tree, rate, strength, 0.0)


def l2(tree: TreeT, rate: Any, strength: Any) -> TreeT:
    """Of ``strength * sum |x|^2 / 2``: all entries become shorter by one factor."""
    return elastic_net(tree, rate, 0.0, strength)


def elastic_net(tree: TreeT, rate: Any, l1: Any, l2: Any) -> TreeT:
    """Of ``l1 * sum |x| + l2 * sum |x|^2 / 2``."""
    _check_strength("elastic_net", l1=l1, l2=l2)
    return leaves.each("elastic_net", lambda x: shrink(x, rate * l1, rate * l2), tree, real=False)


def group_lasso(tree: TreeT, rate: Any, strength: Any, groups: Groups = "leaf") -> TreeT:
    """Of ``strength`` times the sum of the norms of all groups: short ones become 0 as a whole.

    A group is a leaf, or a row of it: what it has at one index of the first axis.
    """
    _check_strength("group_lasso", strength=strength)
    if groups not in get_args(Groups):
        raise ValueError(f"group_lasso: groups must be 'leaf' or 'row', not {groups!r}")

    def shorter(x: Array) -> Array:
        axes = tuple(range(groups == "row" and x.ndim > 0, x.ndim))
        size = norm(x, axes).number
        length = jnp.where(size == 0, 1, size)
        return jnp.where(size == 0, 0, jnp.maximum(1 - rate * strength / length, 0) * x)

    return leaves.each("group_lasso", shorter, tree, real=False)


def nuclear_norm(tree: TreeT, rate: Any, strength: Any) -> TreeT:
    """Of ``strength`` times the sum of singular values: small ones become 0, which lowers the rank.

    Leaves are matrices, or stacks of them along leading axes.
    """
    _check_strength("nuclear_norm", strength=strength)
    for path, leaf in zip(leaves.paths(tree), leaves.arrays("nuclear_norm", tree), strict=True):
        if leaf.ndim < 2:
            raise ValueError(
                f"nuclear_norm: the leaf at {path!r} is {leaf.shape}, which is no matrix: leave "
                "it out with `where`"
            )

    def lower(x: Array) -> Array:
        u, s, v = jnp.linalg.svd(x, full_matrices=False)
        return jnp.matmul(u * shrink(s, rate * strength)[..., None, :], v, precision="highest")

    return leaves.each("nuclear_norm", lower, tree, real=False)


def isotonic(tree: TreeT, rate: Any) -> TreeT:
    """The nearest leaves that do not decrease along their last axis, whatever the rate."""
    del rate
    return leaves.each("isotonic", lambda x: _along_last(_ascending, x), tree, real=True)


def total_variation(tree: TreeT, rate: Any, strength: Any) -> TreeT:
    """Of ``strength * sum |x[i + 1] - x[i]|`` along the last axis: piecewise constant leaves."""
    _check_strength("total_variation", strength=strength)

    def constant_by_pieces(x: Array) -> Array:
        most = jnp.asarray(rate * strength, x.dtype)
        return _along_last(lambda row: _few_steps(row, most), x)

    return leaves.each("total_variation", constant_by_pieces, tree, real=True)


def _along_last(function: Callable[[Array], Array], x: Array) -> Array:
    if x.size == 0 or x.ndim == 0:
        return x
    return jax.vmap(function)(x.reshape(-1, x.shape[-1])).reshape(x.shape)


def _mean_by_piece(x: Array, values: Array, pull: Any = 0.0) -> Array:
    """The mean of `x` over each run of equal `values`.

    Args:
        x: what is differentiated.
        values: the means, as constants.
        pull: the number that a step up adds to the sum of the run before it, and takes from the sum
            of the run after it; a step down the reverse.
    """
    jump = jnp.diff(values) != 0
    piece = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(jump, dtype=jnp.int32)])
    edge = pull * jnp.sign(jnp.diff(values))
    x = x + jnp.pad(edge, (0, 1)) - jnp.pad(edge, (1, 0))
    sums, counts = (
        jax.ops.segment_sum(a, piece, x.size, indices_are_sorted=True)
        for a in (x, jnp.ones_like(x))
    )
    return (sums / jnp.maximum(counts, 1))[piece]


def _ascending(x: Array) -> Array:
    """Pool adjacent violators: blocks on a stack, of which two merge if they descend."""
    fixed = jax.lax.stop_gradient(x)

    def mean(stack: Any, i: Array) -> Array:
        sums, counts, _ = stack
        return sums[i] / counts[i]

    def merge(stack: Any) -> Any:
        sums, counts, top = stack
        sums = sums.at[top - 1].add(sums[top])
        return sums, counts.at[top - 1].add(counts[top]), top - 1

    def descends(stack: Any) -> Array:
        top = stack[2]
        return (top > 0) & (mean(stack, top - 1) >= mean(stack, top))

    def push(i: Array, stack: Any) -> Any:
        sums, counts, top = stack
        top = top + 1
        stack = sums.at[top].set(fixed[i]), counts.at[top].set(1), top
        return jax.lax.while_loop(descends, merge, stack)

    empty = jnp.zeros_like(x), jnp.ones_like(x), jnp.int32(-1)
    sums, counts, top = jax.lax.fori_loop(0, x.size, push, empty)
    ends = jnp.cumsum(jnp.where(jnp.arange(x.size) <= top, counts, 0))
    block = jnp.searchsorted(ends, jnp.arange(x.size) + 0.5)
    return _mean_by_piece(x, (sums / counts)[block])


def _few_steps(x: Array, most: Array) -> Array:
    r"""Denoising by total variation, exactly: a string pulled taut through a tube.

    The sums of the result lie within `most` of those of `x`, and meet them at both ends. From each
    bend the string goes straight as far as one slope stays within the tube. The next bend is where
    the highest slope that is allowed, or the lowest, was decided.

    Source: P. L. Davies and A. Kovac, Local Extremes, Runs, Strings and Multiresolution, 2001,
    doi:10.1214/aos/996986501.
    """
    fixed, size = jax.lax.stop_gradient(x), x.size
    width = jax.lax.stop_gradient(most)
    index = jnp.arange(1, size + 1)

    def bend(now: Any) -> Any:
        start, height, values = now
        # The sum of the string at `start` is `height` above that of x.
        ahead = index > start
        sums = jnp.cumsum(jnp.where(ahead, fixed, 0)) - height
        length = jnp.maximum(index - start, 1).astype(x.dtype)
        tube = jnp.where(index == size, 0, width)
        high = jnp.where(ahead, (sums + tube) / length, jnp.inf)
        low = jnp.where(ahead, (sums - tube) / length, -jnp.inf)
        most_yet, least_yet = jax.lax.cummin(high), jax.lax.cummax(low)
        crosses = least_yet > most_yet
        where = jnp.argmax(crosses)
        goes_on = jnp.any(crosses)
        # Where the lower side crosses, the string follows the upper one until then, and so on.
        rises = low[where] > most_yet[jnp.maximum(where - 1, 0)]
        slope = jnp.where(rises, most_yet[where - 1], least_yet[where - 1])
        side = jnp.where(rises, high, low)
        meets = (side == slope) & (index <= where)
        end = jnp.where(goes_on, size - jnp.argmax(meets[::-1]), size).astype(jnp.int32)
        slope = jnp.where(goes_on, slope, high[size - 1])
        values = jnp.where(ahead & (index <= end), slope, values)
        return end, jnp.where(rises, width, -width), values

    start = jnp.int32(0), jnp.zeros([], x.dtype), fixed
    _, _, values = jax.lax.while_loop(lambda now: now[0] < size, bend, start)
    return _mean_by_piece(x, values, most)


PENALTIES: dict[str, Callable[..., Any]] = {
    "l1": l1,
    "l2": l2,
    "elastic_net": elastic_net,
    "group_lasso": group_lasso,
    "nuclear_norm": nuclear_norm,
    "total_variation": total_variation,
    "isotonic": isotonic,
}
