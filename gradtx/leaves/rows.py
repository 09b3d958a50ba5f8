"""Rows: the gradient, or the update, of the few rows of a table that a step touches."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.numerics import cast, round_to, widen
from gradtx.programs.contexts import check_indices
from gradtx.programs.dataflow import Lattice, follow
from gradtx.programs.tracing import is_tracer
from gradtx.types import Array, PyTree


@jax.tree_util.register_pytree_with_keys_class
class Rows:
    """Some rows of a table: ``table[indices[i]]`` has the value ``values[i]``, every other row 0.

    An index may occur several times (the values are summed), and an index outside the table, or a
    negative one, names no row: see :data:`gradtx.sparse.check_indices`. Transformations treat
    `Rows` as one leaf. There may be more rows than the table has, or none.

    `Rows` can be added to `Rows` of the same table or to an array of its shape (which gives an
    array), and multiplied or divided by a number.

    Args:
        indices: integers of shape ``(n,)``, or of any shape.
        values: a floating-point or complex array of that shape followed by ``shape[1:]``.
        shape: the shape of the whole table.

    Raises:
        TypeError: the indices are not integers, or the values are.
        ValueError: the shapes do not fit, or an index needs 64 bits, which JAX truncates unless
            ``jax_enable_x64`` is set.

    >>> rows = Rows(jnp.array([2, 0, 2]), jnp.ones((3, 2)), (4, 2))
    >>> rows.to_dense().tolist()
    [[1.0, 1.0], [0.0, 0.0], [2.0, 2.0], [0.0, 0.0]]
    """

    # So that NumPy arrays leave arithmetic with `Rows` to this class.
    __array_ufunc__ = None

    def __init__(self, indices: Any, values: Any, shape: tuple[int, ...]) -> None:
        values = values if hasattr(values, "dtype") else np.asarray(values)
        if not jnp.issubdtype(values.dtype, jnp.inexact):
            raise TypeError(f"Rows: values must be floating point or complex, not {values.dtype}")
        values = jnp.asarray(values) if isinstance(values, np.ndarray) else values
        self._hold(row_indices("Rows", "indices", indices), values, shape)

    def _hold(self, indices: Any, values: Any, shape: tuple[int, ...]) -> None:
        self.indices, self.values, self.shape = indices, values, tuple(shape)
        # Lost when JAX rebuilds the tree, which costs only another sum.
        self._coalesced = False
        if not hasattr(values, "shape") or not hasattr(indices, "dtype"):
            return  # a placeholder, such as JAX puts into pytrees
        if not jnp.issubdtype(indices.dtype, jnp.integer):
            raise TypeError(
                f"Rows: indices must be integers, not {indices.dtype}; a tree.map over gradients "
                "multiplies the indices too: use gradtx.tree, which takes Rows as one leaf"
            )
        if not self.shape:
            raise ValueError("Rows: a table has at least one dimension, and its shape is ()")
        row = self.shape[1:]
        if values.shape[values.ndim - len(row) :] != row:
            raise ValueError(
                f"Rows: values of shape {values.shape} do not fit rows of a table of shape "
                f"{self.shape}: the trailing shape must be {row}"
            )
        if indices.shape != values.shape[: values.ndim - len(row)]:
            raise ValueError(
                f"Rows: indices of shape {indices.shape} do not go with values of shape "
                f"{values.shape}: there must be an index for each row of shape {row}"
            )

    def tree_flatten_with_keys(self) -> tuple[tuple[Any, Any], tuple[int, ...]]:
        key = jax.tree_util.GetAttrKey
        return ((key("indices"), self.indices), (key("values"), self.values)), self.shape

    @classmethod
    def tree_unflatten(cls, shape: tuple[int, ...], children: Any) -> "Rows":
        rows = cls.__new__(cls)
        rows._hold(children[0], children[1], shape)
        return rows

    @classmethod
    def from_bcoo(cls, matrix: Any) -> "Rows":
        """The rows of a ``jax.experimental.sparse.BCOO`` sparse in the first dimension only.

        Raises:
            ValueError: it has batch dimensions, or entries rather than rows (see its ``n_dense``).
        """
        if matrix.n_batch or matrix.n_sparse != 1:
            raise ValueError(
                f"Rows: a BCOO of rows has n_batch=0 and n_sparse=1, not {matrix.n_batch} and "
                f"{matrix.n_sparse}; make it with n_dense={matrix.ndim - 1}"
            )
        return cls(matrix.indices[:, 0], matrix.data, matrix.shape)

    def to_bcoo(self) -> Any:
        """A ``jax.experimental.sparse.BCOO`` of these rows, duplicates included."""
        from jax.experimental.sparse import BCOO

        indices, values = self.flat()
        return BCOO((values, indices[:, None]), shape=self.shape)

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __repr__(self) -> str:
        return f"Rows({np.size(self.indices)} of {self.shape}, {self.dtype})"

    def with_values(self, values: Any) -> "Rows":
        """The same rows with other values; rows left over by :meth:`coalesce` stay 0."""
        new = Rows(self.indices, values, self.shape)
        return new._in_table() if self._coalesced else new

    def flat(self) -> tuple[Array, Array]:
        """Flat indices and values; an index outside the table becomes that past the last row."""
        past = self.shape[0]
        values = jnp.asarray(self.values).reshape(-1, *self.shape[1:])
        indices = jnp.asarray(self.indices).reshape(-1)
        # The type must also hold as many numbers past the last row as there are indices.
        dtype = index_dtype(past + indices.size)
        inside = is_inside(indices, past)
        refuse_outside("Rows", inside, past)
        return jnp.where(inside, indices.astype(dtype), jnp.asarray(past, dtype)), values

    def coalesce(self) -> "Rows":
        """Rows of the same sum with every index once and in order, and as many rows as before.

        The rows left over have values of zero and indices past the last row. The sums are taken in
        at least float32.
        """
        if self._coalesced:
            return self
        past = self.shape[0]
        named, values = self.flat()
        if named.size > 1:
            ordered, at = _sorted(named)
            first = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])
            place = jnp.cumsum(first, dtype=named.dtype) - 1
            # Indices past the last row are unique too, so that scatters may rely on it.
            indices = (
                (past + jnp.arange(named.size, dtype=named.dtype))
                .at[place]
                .set(jnp.where(ordered < past, ordered, past + place), indices_are_sorted=True)
            )
            values = jax.ops.segment_sum(widen(values), place[at], named.size).astype(self.dtype)
            named = indices
        return Rows(named, values, self.shape)._in_table()

    def _in_table(self) -> "Rows":
        """These rows, each index once, with zeros where it is past the last row."""
        inside = (self.indices < self.shape[0]).reshape((-1,) + (1,) * (self.ndim - 1))
        new = Rows(self.indices, jnp.where(inside, self.values, 0), self.shape)
        new._coalesced = True
        return new

    def to_dense(self) -> Array:
        """The whole table."""
        return add_rows(jnp.zeros(self.shape, self.dtype), self)

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, Rows):
            return add_rows(jnp.asarray(other), self)
        if self.shape != other.shape:
            raise ValueError(
                f"Rows of tables of shapes {self.shape} and {other.shape} cannot be added"
            )
        (ours, values), (theirs, others) = self.flat(), other.flat()
        return Rows(jnp.concatenate([ours, theirs]), jnp.concatenate([values, others]), self.shape)

    __radd__ = __add__

    def __neg__(self) -> "Rows":
        return self.with_values(-self.values)

    def __sub__(self, other: Any) -> Any:
        return self + (-other)

    def __rsub__(self, other: Any) -> Any:
        return other + (-self)

    def __mul__(self, scalar: Any) -> "Rows":
        if jnp.ndim(scalar):
            raise ValueError(f"Rows are multiplied by a number, not by shape {jnp.shape(scalar)}")
        return self.with_values(self.values * scalar)

    __rmul__ = __mul__

    def __truediv__(self, scalar: Any) -> "Rows":
        if jnp.ndim(scalar):
            raise ValueError(f"Rows are divided by a number, not by shape {jnp.shape(scalar)}")
        return self.with_values(self.values / scalar)


def _sorted(x: Array) -> tuple[Array, Array]:
    """The integers sorted, and for each of `x` a position at which it occurs there."""

    def searched(x: Array) -> tuple[Array, Array]:
        # This takes a third of the time that a CPU needs to sort pairs.
        ordered = jnp.sort(x)
        return ordered, jnp.searchsorted(ordered, x).astype(x.dtype)

    def in_pairs(x: Array) -> tuple[Array, Array]:
        number = jnp.arange(x.size, dtype=x.dtype)
        ordered, order = jax.lax.sort((x, number), num_keys=1)
        return ordered, jnp.zeros_like(x).at[order].set(number, unique_indices=True)

    return jax.lax.platform_dependent(x, cpu=searched, default=in_pairs)


def is_rows(x: Any) -> bool:
    """Whether `x` is `Rows`."""
    return isinstance(x, Rows)


def dense(updates: Any) -> Any:
    """A tree of updates with whole tables in place of `Rows`."""
    return jax.tree.map(lambda g: g.to_dense() if is_rows(g) else g, updates, is_leaf=is_rows)


def holds_rows(tree: PyTree) -> bool:
    """Whether there are `Rows` in a tree."""
    return any(map(is_rows, jax.tree.leaves(tree, is_leaf=is_rows)))


def refuse_changed_indices(function: Callable[[PyTree], PyTree], tree: PyTree) -> None:
    """Raise TypeError if a function of a tree with `Rows` computes new indices from theirs.

    A ``tree.map`` that multiplies by an integer does. What is looked up, sorted or summed by
    indices may be.

    >>> rows = {"table": Rows(jnp.array([2, 0]), jnp.ones((2, 2)), (4, 2))}
    >>> refuse_changed_indices(lambda x: x, rows)
    >>> try:
    ...     refuse_changed_indices(lambda x: jax.tree.map(lambda x: -1 * x, x), rows)
    ... except TypeError as error:
    ...     print(error)
    Rows: at 'table' there are new indices, computed from those of the gradient...
    """
    try:
        program, after = jax.make_jaxpr(function, return_shape=True)(tree)
    except Exception:  # what cannot be traced says so itself
        return
    before = [_KEPT if at is not None else _NONE for at in _places_of_indices(tree)]
    marks = follow(program, before, _Indices())
    for mark, at in zip(marks, _places_of_indices(after), strict=True):
        if at is not None and mark == _CHANGED:
            raise TypeError(
                f"Rows: at {at!r} there are new indices, computed from those of the gradient: a "
                "tree.map over gradients multiplies the indices too; use gradtx's transformation "
                "of the same name, gradtx.tree, which takes Rows as one leaf, or put dense_rows "
                "around it"
            )


_NONE, _KEPT, _CHANGED = range(3)
_ARITHMETIC = frozenset({"abs", "add", "div", "integer_pow", "max", "min", "mul", "neg", "sub"})
_PASSING = frozenset(["convert_element_type", "copy", "select_n"])


def _places_of_indices(tree: PyTree) -> list[str | None]:
    """For each array of a tree the path of the `Rows` whose indices it is, or None."""
    places: list[str | None] = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_rows)[0]:
        if is_rows(leaf):
            places.append(jax.tree_util.keystr(path, simple=True, separator="/"))
        places.append(None)
    return places


class _Indices(Lattice[int]):
    """Whether an array has indices as they were, or is computed from indices."""

    def number(self, x: Any) -> int:
        return _NONE

    def join(self, a: int, b: int, shape: Any) -> int:
        return max(a, b)

    def results(self, eqn: Any, known: list[int]) -> list[int]:
        mark, name = max(known, default=_NONE), eqn.primitive.name
        if name in _ARITHMETIC:
            mark = _CHANGED if mark else _NONE
        elif name not in _PASSING:
            mark = _NONE
        return [mark] * len(eqn.outvars)


def row_indices(where: str, name: str, indices: Any) -> Any:
    """Indices of rows as an array of integers, none of which JAX truncates.

    Raises:
        TypeError: they are not integers.
        ValueError: one needs 64 bits, and they are not enabled.
    """
    if not hasattr(indices, "dtype"):
        indices = np.asarray(indices)
        indices = indices if indices.size else indices.astype(np.int32)
    if not jnp.issubdtype(indices.dtype, jnp.integer):
        raise TypeError(f"{where}: {name} must be integers, not {indices.dtype}")
    if not isinstance(indices, np.ndarray | np.generic):
        return indices
    exact = np.asarray(indices)
    truncated = exact.astype(jax.dtypes.canonicalize_dtype(exact.dtype))
    lost = truncated != exact
    if lost.any():
        raise ValueError(
            f"{where}: {name} must fit into 32 bits unless jax_enable_x64 is set, and "
            f"{exact[lost][0]} does not: JAX would make {truncated[lost][0]} of it"
        )
    return truncated


def index_dtype(largest: int) -> Any:
    """The type of indices that hold `largest`.

    Raises:
        ValueError: that needs 64 bits, and they are not enabled.
    """
    if largest <= np.iinfo(np.int32).max:
        return jnp.dtype(jnp.int32)
    if not jax.config.read("jax_enable_x64"):
        raise ValueError(f"a table of {largest} rows needs jax_enable_x64 for its indices")
    return jnp.dtype(jnp.int64)


def is_inside(indices: Array, size: int) -> Array:
    """Which indices name one of `size` rows."""
    if size > np.iinfo(indices.dtype).max:  # JAX would keep only the lower bits of `size`
        return indices >= 0
    return (indices >= 0) & (indices < size)


def refuse_outside(where: str, inside: Array, size: int) -> None:
    """Under `check_indices` raise IndexError unless all are inside; if compiled, by a callback.

    Args:
        where: what was called.
        inside: which indices are in the table.
        size: how many rows it has.
    """
    if not check_indices.value:
        return

    def refuse(ok: Any) -> None:
        if not np.all(ok):
            raise IndexError(
                f"{where}: {np.size(ok) - np.sum(ok)} of {np.size(ok)} indices are outside a table "
                f"of {size} rows"
            )

    if is_tracer(inside):
        jax.debug.callback(refuse, inside)
    else:
        refuse(inside)


def gather_rows(table: Array, indices: Array, **known: Any) -> Array:
    """The rows of `table` at indices of at least 0; zeros for those past the last.

    Args:
        table: at least one dimension.
        indices: integers of any shape.
        known: ``indices_are_sorted`` and ``unique_indices``, as ``table.at[indices].get`` has them.
    """
    named = indices < table.shape[0]

    def gather(indices: Array) -> Array:
        return table.at[indices].get(mode="clip", wrap_negative_indices=False, **known)

    def alone(indices: Array) -> Array:
        # XLA for CPUs fuses a gather with what reads it, into a kernel that loads rows number by
        # number. Inside a conditional it is a separate kernel, which copies whole rows: for rows
        # that are in no cache, in a third of the time.
        return jax.lax.cond(jnp.any(named), gather, lambda i: gather(i - i), indices)

    rows = jax.lax.platform_dependent(indices, cpu=alone, default=gather)
    return jnp.where(jnp.expand_dims(named, range(indices.ndim, rows.ndim)), rows, 0)


def take_rows(table: Array, indices: Array) -> Array:
    """The rows of `table` at indices from :meth:`Rows.coalesce`; zeros past the last row."""
    return gather_rows(table, indices, indices_are_sorted=True, unique_indices=True)


def put_rows(table: Array, indices: Array, values: Array) -> Array:
    """`table` with `values` at `indices` from :meth:`Rows.coalesce`; none past the last row."""
    return table.at[indices].set(
        cast(values, table.dtype),
        mode="drop",
        wrap_negative_indices=False,
        indices_are_sorted=True,
        unique_indices=True,
    )


def add_rows(table: Array, rows: Rows, key: Any = None) -> Array:
    """`table` with `rows` added, computed in at least float32 and rounded once per row.

    With a random `key` it is rounded stochastically, as by :func:`gradtx.numerics.round_to`.
    """
    if table.shape != rows.shape:
        raise ValueError(f"Rows of a table of shape {rows.shape} cannot be added to {table.shape}")
    dtype = jnp.result_type(table.dtype)
    rows = rows.coalesce()
    if rows.dtype == dtype and widen(table[:0]).dtype == dtype:
        return table.at[rows.indices].add(
            rows.values,
            mode="drop",
            wrap_negative_indices=False,
            indices_are_sorted=True,
            unique_indices=True,
        )
    new = widen(take_rows(table, rows.indices)) + widen(rows.values)
    new = new if key is None else round_to(new, dtype, key)
    return put_rows(table, rows.indices, new)
