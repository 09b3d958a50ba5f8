"""Mathematics on trees, under Optax's names: `None` leaves are skipped, `Rows` count as one leaf.

A leaf that is `None` in any of the trees, such as a parameter that has no gradient, is `None` in
the result and adds nothing to a sum. On `Rows` a function acts on the rows that are there. Sums,
norms and inner products are taken in at least float32; Optax takes them in the leaves' type.
"""

import builtins
import inspect
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp

from gradtx import search
from gradtx.numerics import Step, abs_sq, debias, real_dtype, sum_sq, widen
from gradtx.paths import first_difference, is_leaf, leaves_with_path, path_string
from gradtx.rows import Rows, is_rows, take_rows
from gradtx.types import Array, DType, PyTree

NamedTupleKey = search.NamedTupleKey
get = search.get
get_all_with_path = search.get_all_with_path
map_params = search.map_params
set = search.set


def map_updates(function: Callable[..., Any], updates: PyTree, *trees: PyTree) -> PyTree:
    """`function` on every leaf that has a gradient, with the parts of `trees` that belong to it.

    On `Rows` the function sees the values, each row once, and those rows of the other trees.
    """

    def on_leaf(g: Any, *others: Any) -> Any:
        if g is None:
            return None
        if is_rows(g):
            g = g.coalesce()
            rows = [o if o is None else take_rows(jnp.asarray(o), g.indices) for o in others]
            return g.with_values(function(g.values, *rows))
        return function(g, *others)

    return jax.tree.map(on_leaf, updates, *trees, is_leaf=is_leaf)


# Leaves of at most so many entries, of one shape, are summed together: one kernel for all of them.
_SMALL = 1 << 14


def norm_sq(tree: PyTree) -> Array:
    """The sum of the squared absolute values of all entries, in at least float32."""
    groups: dict[Any, list[Array]] = {}
    for i, leaf in enumerate(_leaves(tree)):
        x = leaf.coalesce().values if isinstance(leaf, Rows) else jnp.asarray(leaf)
        groups.setdefault(jax.typeof(x) if x.size <= _SMALL else i, []).append(x)
    sums = [sum_sq(jnp.stack(xs) if len(xs) > 1 else xs[0]) for xs in groups.values()]
    return reduce(jnp.add, sums, jnp.zeros([], jnp.float32))


def global_norm(updates: PyTree) -> Array:
    """The Euclidean norm of all entries together, summed in at least float32.

    >>> float(global_norm({"a": jnp.array([3.0]), "b": jnp.array([4.0]), "c": None}))
    5.0
    """
    return jnp.sqrt(norm_sq(updates))


def _together(*trees: PyTree) -> tuple[list[tuple[Any, ...]], Any]:
    """The leaves of trees that are alike, side by side, and their structure."""
    keyed, treedef = leaves_with_path(trees[0])
    columns = [[leaf for _, leaf in keyed]]
    for tree in trees[1:]:
        # A leaf may be None in one tree only, which for JAX is another structure.
        leaves, other = jax.tree.flatten(tree, is_leaf=is_leaf)
        if other != treedef:
            raise ValueError(f"the trees are different: {first_difference(trees[0], tree)}")
        columns.append(leaves)
    return list(zip(*columns, strict=True)), treedef


def _map(function: Callable[..., Any], *trees: PyTree) -> PyTree:
    """`function` on the leaves side by side; None where one of them is None."""
    leaves, treedef = _together(*trees)
    return treedef.unflatten([function(*x) if _present(*x) else None for x in leaves])


def _present(*leaves: Any) -> bool:
    return all(leaf is not None for leaf in leaves)


def _dense(leaf: Any) -> Array:
    return leaf.to_dense() if isinstance(leaf, Rows) else jnp.asarray(leaf)


def _each(function: Callable[..., Any], *trees: PyTree) -> PyTree:
    """`function` on arrays: under `Rows` in the first tree it sees those rows of the others."""

    def on_leaf(x: Any, *others: Any) -> Any:
        if not isinstance(x, Rows):
            return function(x, *(o.to_dense() if isinstance(o, Rows) else o for o in others))
        x = x.coalesce()
        rows = [take_rows(d, x.indices) if (d := _dense(o)).ndim else d for o in others]
        return x.with_values(function(x.values, *rows))

    return _map(on_leaf, *trees)


def add(tree_x: PyTree, tree_y: PyTree, *other_trees: PyTree) -> PyTree:
    """The sum of two or more trees.

    >>> add({"a": 1.0, "b": None}, {"a": 2.0, "b": 5.0})
    {'a': 3.0, 'b': None}
    """
    return _map(lambda *leaves: reduce(operator.add, leaves), tree_x, tree_y, *other_trees)


def sub(tree_x: PyTree, tree_y: PyTree) -> PyTree:
    """The difference of two trees."""
    return _map(operator.sub, tree_x, tree_y)


def mul(tree_x: PyTree, tree_y: PyTree) -> PyTree:
    """The product of two trees, entry by entry."""
    return _each(operator.mul, tree_x, tree_y)


def div(tree_x: PyTree, tree_y: PyTree) -> PyTree:
    """The quotient of two trees, entry by entry."""
    return _each(operator.truediv, tree_x, tree_y)


def scale(scalar: Any, tree: PyTree) -> PyTree:
    """A number times a tree.

    >>> scale(2.0, {"a": 1.0})
    {'a': 2.0}
    """
    return _map(lambda x: scalar * x, tree)


def add_scale(tree_x: PyTree, scalar: Any, tree_y: PyTree) -> PyTree:
    r"""A tree plus a number times another: :math:`x + s y`."""
    return _map(lambda x, y: x + scalar * y, tree_x, tree_y)


def vdot(tree_x: PyTree, tree_y: PyTree) -> Array:
    r"""The inner product :math:`\sum_i \bar x_i y_i` of all entries.

    >>> float(vdot({"a": jnp.array([1.0, 2.0])}, {"a": jnp.array([3.0, 4.0])}))
    11.0
    """

    def of(x: Any, y: Any) -> Array:
        if jnp.shape(x) != jnp.shape(y):
            raise ValueError(f"the inner product of shapes {jnp.shape(x)} and {jnp.shape(y)}")
        return jnp.sum(jnp.conj(widen(jnp.asarray(x))) * widen(jnp.asarray(y)))

    def on_leaf(x: Any, y: Any) -> Array:
        if isinstance(x, Rows):
            x = x.coalesce()
            return of(x.values, take_rows(_dense(y), x.indices))
        return jnp.conj(on_leaf(y, x)) if isinstance(y, Rows) else of(x, y)

    return _total([on_leaf(x, y) for x, y in _together(tree_x, tree_y)[0] if _present(x, y)])


def _total(terms: list[Array]) -> Array:
    return reduce(operator.add, terms) if terms else jnp.zeros([])


def _leaves(tree: PyTree) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(tree, is_leaf=is_leaf) if leaf is not None]


def sum(tree: PyTree, associative_reduction: bool = False) -> Array:
    """The sum of all entries.

    Args:
        tree: a tree of numbers or arrays.
        associative_reduction: add the leaves' sums in pairs, which compiles faster for many leaves
            and rounds otherwise.
    """
    sums = [jnp.sum(widen(_dense(leaf))) for leaf in _leaves(tree)]
    if associative_reduction and sums:
        return jax.tree.reduce_associative(operator.add, sums)
    return _total(sums)


def _extreme(tree: PyTree, reduction: Any, combine: Any, initial: float) -> Array:
    arrays = [array for leaf in _leaves(tree) if (array := _dense(leaf)).size]
    return reduce(combine, map(reduction, arrays), jnp.asarray(initial))


def max(tree: PyTree) -> Array:
    """The largest entry, or minus infinity where there is none."""
    return _extreme(tree, jnp.max, jnp.maximum, -jnp.inf)


def min(tree: PyTree) -> Array:
    """The smallest entry, or infinity where there is none."""
    return _extreme(tree, jnp.min, jnp.minimum, jnp.inf)


def norm(tree: PyTree, ord: int | str | float | None = None, squared: bool = False) -> Array:
    r"""A norm of all entries together.

    Args:
        tree: a tree of numbers or arrays.
        ord: 2 or None, 1, or infinity (also written ``"inf"`` or ``"infinity"``).
        squared: return the square.

    Raises:
        ValueError: another order.

    >>> float(norm({"a": jnp.array([3.0, -4.0])}, ord=1))
    7.0
    """
    if ord is None or ord == 2:
        return norm_sq(tree) if squared else global_norm(tree)
    if ord == 1:
        result = _total([jnp.sum(jnp.abs(widen(_dense(leaf)))) for leaf in _leaves(tree)])
    elif ord in (jnp.inf, "inf", "infinity"):
        result = max([jnp.abs(_dense(leaf)) for leaf in _leaves(tree)])
    else:
        raise ValueError(f"norm: ord must be 1, 2, inf or None, not {ord!r}")
    return jnp.square(result) if squared else result


def size(tree: PyTree) -> int:
    """The number of entries of all leaves; of `Rows` those of the whole table.

    >>> size({"a": jnp.zeros((2, 3)), "b": 1.0, "c": None})
    7
    """
    return builtins.sum(map(_size, _leaves(tree)))


def _size(leaf: Any) -> int:
    return reduce(operator.mul, leaf.shape if isinstance(leaf, Rows) else jnp.shape(leaf), 1)


def conj(tree: PyTree) -> PyTree:
    """The complex conjugate of every entry."""
    return _each(jnp.conj, tree)


def real(tree: PyTree) -> PyTree:
    """The real part of every entry."""
    return _each(jnp.real, tree)


def clip(tree: PyTree, min_value: Any = None, max_value: Any = None) -> PyTree:
    """Every entry clipped to an interval; None for no bound."""
    return _each(lambda x: jnp.clip(x, min_value, max_value), tree)


def where(condition: Any, tree_x: PyTree, tree_y: PyTree) -> PyTree:
    """The entries of one tree where a condition holds, of the other elsewhere.

    Args:
        condition: a boolean, or an array of them that fits every leaf.
        tree_x: chosen where it is true.
        tree_y: chosen where it is false.
    """

    def choose(x: Any, y: Any) -> Any:
        if isinstance(x, Rows) and isinstance(y, Rows) and jnp.ndim(condition) == 0:
            x = x.with_values(jnp.where(condition, x.values, 0))
            return x + y.with_values(jnp.where(condition, 0, y.values))
        return jnp.where(condition, *(a.to_dense() if is_rows(a) else a for a in (x, y)))

    return _map(choose, tree_x, tree_y)


def zeros_like(tree: PyTree, dtype: DType | None = None) -> PyTree:
    """A tree of zeros, of another type if one is given."""
    return _each(lambda x: jnp.zeros_like(x, dtype=dtype), tree)


def ones_like(tree: PyTree, dtype: DType | None = None) -> PyTree:
    """A tree of ones, of another type if one is given."""
    return _each(lambda x: jnp.ones_like(x, dtype=dtype), tree)


def full_like(tree: PyTree, fill_value: Any, dtype: DType | None = None) -> PyTree:
    """A tree filled with one value, of another type if one is given."""
    return _each(lambda x: jnp.full_like(x, fill_value, dtype=dtype), tree)


def batch_shape(tree: PyTree, shape: tuple[int, ...] = ()) -> PyTree:
    """Every leaf repeated along new leading dimensions of the given lengths.

    >>> batch_shape({"a": jnp.zeros(3)}, (2,))["a"].shape
    (2, 3)
    """
    return _map(lambda x: jnp.broadcast_to(_dense(x), (*shape, *jnp.shape(_dense(x)))), tree)


def cast(tree: PyTree, dtype: DType | None) -> PyTree:
    """Every leaf in one type, or the tree as it is for None."""
    return tree if dtype is None else _each(lambda x: jnp.asarray(x).astype(dtype), tree)


def cast_like(tree: PyTree, other_tree: PyTree) -> PyTree:
    """Every leaf in the type of another tree's, where that has one."""

    def on_leaf(x: Any, other: Any) -> Any:
        if not hasattr(other, "dtype"):
            return x
        to = other.dtype
        return x.with_values(x.values.astype(to)) if is_rows(x) else jnp.asarray(x).astype(to)

    return _map(on_leaf, tree, other_tree)


def dtype(tree: PyTree, mixed_dtype_handler: str | None = None) -> DType:
    """The type of the leaves; JAX's default type where there are none.

    Args:
        tree: a tree of numbers or arrays.
        mixed_dtype_handler: what to do where types differ: None to refuse, ``"promote"`` for the
            type that holds all, ``"highest"`` or ``"lowest"`` for that end of the order in which a
            type is above those that promote to it.

    Raises:
        ValueError: types differ and none is asked for, or two cannot be ordered.

    >>> str(dtype({"a": jnp.zeros(1, jnp.bfloat16), "b": jnp.zeros(1)}, "lowest"))
    'bfloat16'
    """
    if mixed_dtype_handler not in (None, "promote", "highest", "lowest"):
        raise ValueError(
            f"dtype: mixed_dtype_handler must be None, 'promote', 'highest' or 'lowest', not "
            f"{mixed_dtype_handler!r}"
        )
    keyed = [(path, leaf) for path, leaf in leaves_with_path(tree)[0] if leaf is not None]
    found = [jnp.asarray(x.values if is_rows(x) else x).dtype for _, x in keyed]
    if not found:
        return jnp.asarray([]).dtype
    if mixed_dtype_handler is None:
        for (path, _), kind in zip(keyed, found, strict=True):
            if kind != found[0]:
                raise ValueError(
                    f"dtype: {path_string(path)!r} is {kind} and {path_string(keyed[0][0])!r} is "
                    f"{found[0]}; say how to settle it with mixed_dtype_handler"
                )
        return found[0]
    if mixed_dtype_handler == "promote":
        return reduce(jnp.promote_types, found)

    def pick(a: Any, b: Any) -> Any:
        above = jnp.promote_types(a, b)
        if above not in (a, b):
            raise ValueError(f"dtype: neither of {a} and {b} promotes to the other")
        low = b if above == a else a
        return above if mixed_dtype_handler == "highest" else low

    return reduce(pick, found)


def split_key_like(rng_key: Array, target_tree: PyTree) -> PyTree:
    """A random key for every leaf of a tree."""
    leaves, treedef = leaves_with_path(target_tree)
    keys = iter(jax.random.split(rng_key, len(_leaves(target_tree))))
    return treedef.unflatten([leaf if leaf is None else next(keys) for _, leaf in leaves])


def random_like(
    rng_key: Array,
    target_tree: PyTree,
    sampler: Callable[..., Any] = jax.random.normal,
    dtype: DType | None = None,
) -> PyTree:
    """Random entries in the shapes, types and shardings of a tree.

    Args:
        rng_key: the key; every leaf gets its own part of it.
        target_tree: the tree to imitate.
        sampler: ``(key, shape, dtype) -> array``; if it takes ``out_sharding`` it is told.
        dtype: the type to draw in; the leaf's unless given.
    """
    sharded = "out_sharding" in inspect.signature(sampler).parameters

    def draw(leaf: Any, key: Array) -> Any:
        if isinstance(leaf, Rows):
            return leaf.with_values(draw(leaf.values, key))
        x = jnp.asarray(leaf)
        kwargs = {"out_sharding": jax.typeof(x).sharding} if sharded else {}
        return sampler(key, x.shape, x.dtype if dtype is None else dtype, **kwargs)

    return _map(draw, target_tree, split_key_like(rng_key, target_tree))


def unwrap_random_key_data(input_tree: PyTree) -> PyTree:
    """The tree with typed random keys replaced by the integers behind them."""

    def unwrap(x: Any) -> Any:
        is_key = isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(x) if is_key else x

    return jax.tree.map(unwrap, input_tree)


def update_moment(updates: PyTree, moments: PyTree, decay: Any, order: int) -> PyTree:
    r"""The moving average of powers: :math:`\beta m + (1 - \beta) g^k`."""
    return _each(lambda g, m: (1 - decay) * g**order + decay * m, updates, moments)


def update_infinity_moment(updates: PyTree, moments: PyTree, decay: Any, eps: Any) -> PyTree:
    r"""The decaying maximum of Adamax: :math:`\max(|g| + \epsilon, \beta m)`."""
    return _each(lambda g, m: jnp.maximum(jnp.abs(g) + eps, decay * m), updates, moments)


def update_moment_per_elem_norm(updates: PyTree, moments: PyTree, decay: Any, order: int) -> PyTree:
    r"""The moving average of powers of the absolute value, real also for complex updates."""

    def power(g: Any) -> Any:
        if jnp.isrealobj(g):
            return g**order
        return abs_sq(g) ** (order // 2 if order % 2 == 0 else order / 2)

    return _each(lambda g, m: (1 - decay) * power(g) + decay * m, updates, moments)


def bias_correction(moment: PyTree, decay: Any, count: Any) -> PyTree:
    r"""Adam's bias correction :math:`m / (1 - \beta^t)`, in the types of the moments.

    Args:
        moment: the moving averages.
        decay: :math:`\beta`.
        count: :math:`t`, the steps taken, from 1.

    >>> round(float(bias_correction(jnp.float32(0.1), 0.9, 1)), 6)
    1.0
    """

    def correct(m: Any) -> Array:
        wide = widen(jnp.asarray(m))
        t = Step(jnp.asarray(count), real_dtype(wide.dtype))
        return debias(wide, decay, t).astype(jnp.asarray(m).dtype)

    return _each(correct, moment)


def allclose(
    a: PyTree, b: PyTree, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False
) -> Array:
    """Whether two trees agree within ``atol + rtol * |b|``, entry by entry."""
    close = [
        jnp.allclose(_dense(x), _dense(y), rtol=rtol, atol=atol, equal_nan=equal_nan)
        for x, y in _together(a, b)[0]
        if _present(x, y)
    ]
    return reduce(operator.and_, close, jnp.asarray(True))
