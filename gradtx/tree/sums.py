"""Sums, norms and extremes of all entries of a tree, in at least float32."""

import builtins
import math
import operator
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp

from gradtx.leaves.paths import present_leaves
from gradtx.leaves.rows import Rows, take_rows
from gradtx.numerics import Norm, as_inexact, mathematics, widen
from gradtx.numerics.compiler_hints import delay
from gradtx.numerics.norms import (
    Again,
    Chip,
    Scales,
    norm_in_units,
    norm_of_sums,
    sums_in_units,
    sums_of_squares,
    with_derivative,
)
from gradtx.programs.contexts import for_comparison
from gradtx.programs.tracing import as_call, is_tracer, traced_once
from gradtx.tree.leaves import dense, present, together
from gradtx.types import Array, PyTree

# Leaves of one shape, of at most this many entries, are summed together: one kernel for all.
_SMALL = 1 << 14

# On a CPU, up to this many leaves are summed one by one.
_FEW = 16


def norm_sq(tree: PyTree) -> Array:
    """The sum of the squared absolute values of all entries, in at least float32.

    It is infinite, or 0, where that is no number of the type: the norm is :func:`global_norm`.
    """
    return _sums((None,), *_numbers(tree))[0]


def entries(tree: PyTree) -> list[Array]:
    """The arrays of a tree; of `Rows` the values, duplicates summed and rows outside left out."""
    return [
        leaf.coalesce().values if isinstance(leaf, Rows) else jnp.asarray(leaf)
        for leaf in present_leaves(tree)
    ]


def _numbers(tree: PyTree) -> list[Array]:
    return list(map(as_inexact, entries(tree)))


def _sums(scales: Scales, *xs: Array, on: Chip | None = None) -> list[Array]:
    """The sum of the squares of all entries times each scale."""
    groups: dict[Any, list[Array]] = {}
    for i, x in enumerate(xs):
        small = x.size <= _SMALL and not for_comparison.value
        groups.setdefault(jax.typeof(x) if small else i, []).append(x)
    totals = [jnp.zeros([], jnp.float32)] * len(scales)
    for group in groups.values():
        # Sums that share a scale would have it stored at the size of a leaf.
        one_by_one = zip(scales, totals, strict=True)
        now = [delay(s, after=y, on="all") if is_tracer(s) else s for s, y in one_by_one]
        totals = list(map(jnp.add, totals, _sums_of(now, group, on)))
    return totals


def _sums_of(scales: Scales, xs: list[Array], on: Chip | None) -> list[Array]:
    """The same sums, of arrays of one shape."""

    def sums_of_stack(*xs: Array) -> list[Array]:
        return sums_of_squares(scales, _stack(*xs), on=on)

    def separate_sums(*xs: Array) -> list[Array]:
        each = [sums_of_squares(scales, x, on=on) for x in xs]
        return [reduce(jnp.add, sums) for sums in zip(*each, strict=True)]

    if len(xs) == 1:
        (x,) = xs
        return _sums_of_large[on](scales, x) if x.size > _SMALL else separate_sums(x)
    if len(xs) > _FEW or not is_tracer(xs[0]) or on == "other":
        return sums_of_stack(*xs)
    # XLA's CPU client hands a program to its threads, which costs more than such a step, if it has
    # an array larger than 512 bytes: a stack of smaller leaves may be one.
    if on == "cpu":
        return separate_sums(*xs)
    return jax.lax.platform_dependent(*xs, cpu=separate_sums, default=sums_of_stack)


# By the kind of chip: many large leaves of one shape are traced once.
_sums_of_large = {on: as_call(partial(sums_of_squares, on=on)) for on in (None, "cpu", "other")}


@as_call
def _stack(*xs: Array) -> Array:  # quicker to trace than with jnp.stack
    def stacked(*xs: Array) -> Array:
        return jax.lax.concatenate([jax.lax.expand_dims(x, (0,)) for x in xs], 0)

    size = math.isqrt(len(xs))
    parts = [xs[i : i + size] for i in range(0, len(xs), size)]
    return jax.lax.concatenate(traced_once("stacked", stacked, parts), 0)


def norm_of_all(tree: PyTree, *, again: Again | None = None, costly: bool = False) -> Norm:
    """The norm of :func:`global_norm`, in parts that are numbers where it is none.

    Args:
        tree: as in :func:`global_norm`.
        again: how to compute a tree that is not stored once more.
        costly: as in :func:`gradtx.numerics.norm`.
    """
    xs = _numbers(tree)
    if again is not None:
        of_tree, trees = again
        again = (lambda *trees: _numbers(of_tree(*trees))), trees
    return with_derivative(norm_of_sums(_sums, tuple(xs), again, costly), xs)


def global_norm(updates: PyTree) -> Array:
    """The Euclidean norm of all entries together, summed in at least float32.

    It is right wherever it is a number: where squares overflow or vanish, they are summed again in
    another unit.

    Args:
        updates: a tree of arrays, `Rows` and None.

    >>> float(global_norm({"a": jnp.array([3.0]), "b": jnp.array([4.0]), "c": None}))
    5.0
    >>> float(global_norm([jnp.array([3 * 2.0**100, 4 * 2.0**100])])) / 2**100
    5.0
    """
    return norm_of_all(updates).number


def sums_for_norm(tree: PyTree) -> Array:
    """Three sums over a part of a tree, to be added to those of the other parts.

    >>> first, second = jnp.array([3 * 2.0**100]), jnp.array([4 * 2.0**100])
    >>> float(norm_of_parts(sums_for_norm(first) + sums_for_norm(second))) / 2**100
    5.0
    """
    return sums_in_units(_sums, _numbers(tree))


def norm_of_parts(totals: Array) -> Array:
    """The norm of :func:`global_norm`, from the totals of :func:`sums_for_norm` of all parts."""
    return norm_in_units(totals).number


def vdot(tree_x: PyTree, tree_y: PyTree) -> Array:
    r"""The inner product :math:`\sum_i \bar x_i y_i` of all entries, of integers as floats.

    >>> float(vdot({"a": jnp.array([1.0, 2.0])}, {"a": jnp.array([3.0, 4.0])}))
    11.0
    """

    def of(x: Any, y: Any) -> Array:
        if jnp.shape(x) != jnp.shape(y):
            raise ValueError(f"the inner product of shapes {jnp.shape(x)} and {jnp.shape(y)}")
        x, y = (widen(as_inexact(jnp.asarray(each))) for each in (x, y))
        return jnp.sum(jnp.conj(x) * y)

    def on_leaf(x: Any, y: Any) -> Array:
        if isinstance(x, Rows):
            x = x.coalesce()
            return of(x.values, take_rows(dense(y), x.indices))
        return jnp.conj(on_leaf(y, x)) if isinstance(y, Rows) else of(x, y)

    return _total([on_leaf(x, y) for x, y in together(tree_x, tree_y)[0] if present(x, y)])


def _total(terms: list[Array]) -> Array:
    return reduce(operator.add, terms) if terms else jnp.zeros([])


def sum(tree: PyTree, associative_reduction: bool = False) -> Array:
    """The sum of all entries, of integers as integers of at least 32 bits.

    Args:
        tree: a tree of numbers or arrays.
        associative_reduction: whether to add the sums of leaves in pairs, which compiles faster for
            many leaves and rounds differently.
    """
    sums = [jnp.sum(widen(x)) for x in entries(tree)]
    if associative_reduction and sums:
        return jax.tree.reduce_associative(operator.add, sums)
    return _total(sums)


def _extreme(tree: PyTree, reduction: Any, combine: Any, initial: float) -> Array:
    arrays = [array for leaf in present_leaves(tree) if (array := dense(leaf)).size]
    return reduce(combine, map(reduction, arrays), jnp.asarray(initial))


def max(tree: PyTree) -> Array:
    """The largest entry, or minus infinity if there is none."""
    return _extreme(tree, jnp.max, jnp.maximum, -jnp.inf)


def min(tree: PyTree) -> Array:
    """The smallest entry, or infinity if there is none."""
    return _extreme(tree, jnp.min, jnp.minimum, jnp.inf)


def norm(tree: PyTree, ord: int | str | float | None = None, squared: bool = False) -> Array:
    r"""A norm of all entries together, of integers as floats.

    Args:
        tree: a tree of numbers or arrays.
        ord: 2 or None, 1, or infinity (also written ``"inf"`` or ``"infinity"``).
        squared: whether to return the square.

    Raises:
        ValueError: another order.

    >>> float(norm({"a": jnp.array([3.0, -4.0])}, ord=1))
    7.0
    """
    if ord is None or ord == 2:
        return norm_sq(tree) if squared else global_norm(tree)
    if ord == 1:
        result = _total([jnp.sum(jnp.abs(widen(x))) for x in _numbers(tree)])
    elif ord in (jnp.inf, "inf", "infinity"):
        result = _extreme([jnp.abs(x) for x in _numbers(tree)], jnp.max, jnp.maximum, 0.0)
    else:
        raise ValueError(f"norm: ord must be 1, 2, inf or None, not {ord!r}")
    return jnp.square(result) if squared else result


def size(tree: PyTree) -> int:
    """The number of entries of all leaves; `Rows` count as the whole table.

    >>> size({"a": jnp.zeros((2, 3)), "b": 1.0, "c": None})
    7
    """
    return builtins.sum(map(_size, present_leaves(tree)))


def _size(leaf: Any) -> int:
    return reduce(operator.mul, leaf.shape if isinstance(leaf, Rows) else jnp.shape(leaf), 1)


def allclose(
    a: PyTree, b: PyTree, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False
) -> Array:
    """Whether two trees agree within ``atol + rtol * |b|``, entry by entry."""
    close = [
        jnp.allclose(dense(x), dense(y), rtol=rtol, atol=atol, equal_nan=equal_nan)
        for x, y in together(a, b)[0]
        if present(x, y)
    ]
    return reduce(operator.and_, close, jnp.asarray(True))


def all_finite(tree: PyTree) -> Array:
    """Whether no entry of a tree is NaN or infinite; integers count as finite."""
    return jnp.all(jnp.array([mathematics.all_finite(x) for x in floating_entries(tree)], bool))


def any_nan(tree: PyTree) -> Array:
    """Whether an entry of a tree is NaN."""
    return jnp.any(jnp.array([mathematics.any_nan(x) for x in floating_entries(tree)], bool))


def floating_entries(tree: PyTree) -> list[Array]:
    """The arrays of :func:`entries` that are no integers."""
    return [x for x in entries(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
