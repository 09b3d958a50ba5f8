"""Micro-batches: evaluating a function of a batch part by part."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.checks import check_choice, check_function
from gradtx.leaves.rows import Rows, is_rows
from gradtx.numerics import cast, widen
from gradtx.types import Array, PyTree

_HOW = ("sum", "mean", "concat")


def microbatch(
    fun: Callable[..., Any],
    argnums: int | Sequence[int],
    microbatch_size: int | None,
    accumulator: PyTree = "sum",
    *,
    argnames: str | Sequence[str] = (),
    in_axes: int | Sequence[int] = 0,
    num_real_microbatches: Any = None,
) -> Callable[..., Any]:
    """A function that calls `fun` on one part of a batch after another, to save memory.

    For batches that come one after another, prefer :func:`accumulate`.

    Args:
        fun: any function, such as ``jax.value_and_grad(loss)``.
        argnums: the positions of the arguments that have a batch dimension, negative ones from the
            end; each may be a tree.
        microbatch_size: examples per part, at least 1; None for a single part. The remainder is a
            smaller part at the end; in Optax the size must divide the batch.
        accumulator: how results are combined: ``"sum"``, ``"mean"`` over examples (a smaller part
            counts less) or ``"concat"`` along the first dimension; or a tree of these like the
            result, or a prefix of it. Optax has an enumeration for them.
        argnames: the names of keyword arguments that have a batch dimension.
        in_axes: the batch dimension of each argument in `argnums`, then `argnames`.
        num_real_microbatches: stop after this many parts, a number that may be traced, and then is
            taken for at most all; the mean is then over their examples (Optax's
            ``RUNNING_MEAN``; NaN for none), and the rest of a concatenation is 0.

    Returns:
        The function. A part has every n-th example, so that a batch that is sharded over devices
        stays where it is. Sums and means are taken in float32 or wider; the sum of short integers
        is an int32 (int64 with x64). A concatenation is in the order of the examples; each may give
        several rows. The sum of `Rows` of a table has the rows of all parts.

    Raises:
        ValueError: an argument is not there, batch dimensions differ, an accumulator is unknown, a
            mean of integers or a concatenation of scalars or `Rows` is asked for,
            `num_real_microbatches` is given and a part is smaller, or it is a number that is known,
            below 1 or above that of the parts.

    >>> grad = microbatch(jax.grad(lambda p, x: jnp.mean(p * x)), 1, 2, "mean")
    >>> float(grad(1.0, jnp.arange(5.0)))
    2.0
    """
    if microbatch_size is None:
        return fun
    if isinstance(microbatch_size, bool) or not isinstance(microbatch_size, int):
        raise TypeError(f"microbatch_size must be an integer or None, not {microbatch_size!r}")
    if microbatch_size < 1:
        raise ValueError(f"microbatch_size must be at least 1, not {microbatch_size}")
    for how in jax.tree.leaves(accumulator):
        check_choice("microbatch", "accumulator", how, _HOW)
    check_function("microbatch", "fun", fun)
    several = (argnums,) if isinstance(argnums, int | np.integer) else argnums
    positions = tuple(map(int, several))
    names = (argnames,) if isinstance(argnames, str) else tuple(argnames)
    keys: list[Any] = [*positions, *names]
    axes = (in_axes,) * len(keys) if isinstance(in_axes, int | np.integer) else tuple(in_axes)
    if len(axes) != len(keys):
        raise ValueError(f"microbatch: {len(axes)} in_axes for {len(keys)} arguments")
    batch_axes = dict(zip(keys, axes, strict=True))

    def parted(*args: Any, **kwargs: Any) -> Any:
        batch = _Batch(fun, args, kwargs, batch_axes, microbatch_size)
        if num_real_microbatches is not None and batch.rest:
            raise ValueError(
                f"microbatch: num_real_microbatches needs a batch that {microbatch_size} divides, "
                f"not one of {batch.size}"
            )
        real = num_real_microbatches
        if isinstance(real, int | np.integer):
            if not 0 < real <= batch.parts:
                raise ValueError(
                    f"microbatch: num_real_microbatches must be from 1 to the {batch.parts} parts, "
                    f"not {real}"
                )
        elif real is not None:
            real = jnp.clip(jnp.asarray(real).astype(jnp.int32), 0, batch.parts)
        return batch.accumulated(accumulator, real)

    return parted


class _Batch:
    """A batch of examples in some arguments of a function, which is called on a part at a time.

    Args:
        fun: the function.
        args: its arguments.
        kwargs: its keyword arguments.
        axes: the batch dimension of each argument that has one, by its position, negative from the
            end, or by its name.
        part_size: examples per part.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        axes: dict[Any, int],
        part_size: int,
    ) -> None:
        self.fun, self.count, self.names = fun, len(args), list(kwargs)
        self.axes = {
            key + len(args) if isinstance(key, int) and key < 0 else key: axis
            for key, axis in axes.items()
        }
        self.arguments: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        missing = [key for key in self.axes if key not in self.arguments]
        if missing:
            raise ValueError(
                f"microbatch: there is no argument {missing[0]!r}, by position in argnums or by "
                "name in argnames"
            )
        self.size = _batch_size(
            {key: (self.arguments[key], axis) for key, axis in self.axes.items()}
        )
        self.part_size = part_size
        self.parts, self.rest = divmod(self.size, part_size)

    def accumulated(self, accumulator: PyTree, real: Any) -> PyTree:
        """The results of all parts, or of so many, combined as `accumulator` says."""
        shapes = jax.eval_shape(self._part, 0) if self.parts else jax.eval_shape(self._remainder)
        hows = jax.tree.map(
            lambda how, tree: jax.tree.map(lambda _: how, tree, is_leaf=is_rows),
            accumulator,
            shapes,
        )
        treedef: Any
        leaves, treedef = jax.tree.flatten(shapes, is_leaf=is_rows)
        ways = [
            _way(how, x, self.parts, self.part_size)
            for how, x in zip(treedef.flatten_up_to(hows), leaves, strict=True)
        ]

        if not self.parts:
            return self._remainder()
        real = self.parts if real is None else real

        def add(i: Any, totals: list[Any]) -> list[Any]:
            part = treedef.flatten_up_to(self._part(i))
            return [w.add(t, x, i) for w, t, x in zip(ways, totals, part, strict=True)]

        totals = jax.lax.fori_loop(0, real, add, [way.start() for way in ways])
        rest = treedef.flatten_up_to(self._remainder()) if self.rest else [None] * len(leaves)
        weights = real * self.part_size, self.part_size, self.rest
        ends = zip(ways, totals, rest, strict=True)
        return treedef.unflatten([way.finish(total, last, weights) for way, total, last in ends])

    def _call(self, take: Callable[[Array, int], Array]) -> Any:
        """The function of the examples that `take` takes along the batch dimension of an array."""
        new = dict(self.arguments)
        for key, axis in self.axes.items():
            new[key] = jax.tree.map(lambda x, axis=axis: take(x, axis), self.arguments[key])
        return self.fun(*(new[i] for i in range(self.count)), **{k: new[k] for k in self.names})

    def _part(self, i: Any) -> Any:
        return self._call(lambda x, axis: _every_nth(x, axis, i, self.parts, self.part_size))

    def _remainder(self) -> Any:
        """The function of the last examples, fewer than a part."""
        begin, end = self.size - self.rest, self.size
        return self._call(lambda x, axis: jax.lax.slice_in_dim(x, begin, end, axis=axis))


def _batch_size(arguments: dict[Any, tuple[PyTree, int]]) -> int:
    sizes = {
        f"{key}{jax.tree_util.keystr(path)}": jnp.shape(x)[axis]
        for key, (tree, axis) in arguments.items()
        for path, x in jax.tree_util.tree_flatten_with_path(tree)[0]
    }
    if len(set(sizes.values())) != 1:
        raise ValueError(f"microbatch: the batch dimensions must be of one size, not {sizes}")
    return int(next(iter(sizes.values())))


def _every_nth(x: Array, axis: int, i: Any, parts: int, size: int) -> Array:
    """Examples `i`, `i + parts`, `i + 2 parts`, ...: some of the examples of every device."""
    axis %= jnp.ndim(x)
    batch = jax.lax.slice_in_dim(jnp.asarray(x), 0, parts * size, axis=axis)
    split = batch.reshape(*batch.shape[:axis], size, parts, *batch.shape[axis + 1 :])
    return jax.lax.dynamic_index_in_dim(split, i, axis + 1, keepdims=False)


Weights = tuple[Any, int, int]
"""The number of examples in whole parts, in each of these, and in the smaller part at the end."""


class _Summed(NamedTuple):
    """The sum or the mean of arrays; `like` is that of a part."""

    how: str
    like: Any

    def start(self) -> Array:
        zero = jnp.zeros(self.like.shape, self.like.dtype)
        return widen(zero) if jnp.issubdtype(zero.dtype, jnp.inexact) else jnp.sum(zero[None], 0)

    def add(self, total: Array, x: Array, i: Any) -> Array:
        return total + cast(x, total.dtype)

    def finish(self, total: Array, last: Any, weights: Weights) -> Array:
        examples, size, rest = weights
        if self.how == "mean":
            total = total / ((examples + rest) / size)
            total = total if last is None else total + widen(last) / ((examples + rest) / rest)
            return cast(total, self.like.dtype)
        total = total if last is None else total + cast(last, total.dtype)
        inexact = jnp.issubdtype(self.like.dtype, jnp.inexact)
        return cast(total, self.like.dtype) if inexact else total


class _RowsInOrder(NamedTuple):
    """The rows of arrays in the order of the examples; each may give several."""

    like: Any
    parts: int
    size: int

    def _apart(self) -> tuple[int, ...]:
        """The shape of a part, its examples and the rows of each apart."""
        rows, *row = self.like.shape
        whole = rows % self.size == 0
        return (self.size, rows // self.size, *row) if whole else (rows, 1, *row)

    def start(self) -> Array:
        examples, *rest = self._apart()
        return jnp.zeros((examples, self.parts, *rest), self.like.dtype)

    def add(self, total: Array, x: Array, i: Any) -> Array:
        return jax.lax.dynamic_update_index_in_dim(total, x.reshape(self._apart()), i, 1)

    def finish(self, total: Array, last: Any, weights: Weights) -> Array:
        entries = total.reshape(-1, *self.like.shape[1:])
        return entries if last is None else jnp.concatenate([entries, last])


class _Gathered(NamedTuple):
    """The sum or the mean of `Rows`: those of all parts."""

    how: str
    like: Rows
    parts: int

    def start(self) -> Rows:
        indices, values = (
            jnp.zeros((self.parts, *x.shape), x.dtype)
            for x in (self.like.indices, self.like.values)
        )
        return Rows(indices, widen(values), self.like.shape)

    def add(self, total: Rows, x: Rows, i: Any) -> Rows:
        indices, values = (
            jax.lax.dynamic_update_index_in_dim(before, cast(new, before.dtype), i, 0)
            for before, new in ((total.indices, x.indices), (total.values, x.values))
        )
        return Rows(indices, values, self.like.shape)

    def finish(self, total: Rows, last: Rows | None, weights: Weights) -> Rows:
        examples, size, rest = weights
        # Of parts that were left out there are zeros, for the rows of the first part.
        there = jnp.arange(self.parts) * size < examples
        there = there.reshape(-1, *[1] * (total.indices.ndim - 1))
        indices = jnp.where(there, total.indices, total.indices[:1])
        total = Rows(indices, total.values, self.like.shape)
        last = None if last is None else last.with_values(widen(last.values))
        if self.how == "mean":
            total = total * (size / (examples + rest))
            last = None if last is None else last * (rest / (examples + rest))
        every = (total if last is None else total + last).coalesce()
        return every.with_values(cast(every.values, self.like.dtype))


def _way(how: str, x: Any, parts: int, size: int) -> Any:
    """How results like `x` are combined."""
    if how == "mean" and not jnp.issubdtype(x.dtype, jnp.inexact):
        raise ValueError(f"microbatch: the mean of {x.dtype} was asked for; use 'sum'")
    if how != "concat":
        return _Gathered(how, x, parts) if is_rows(x) else _Summed(how, x)
    if is_rows(x) or not x.shape:
        kind = "Rows" if is_rows(x) else "a scalar"
        raise ValueError(f"microbatch: {kind} cannot be concatenated; use 'sum' or 'mean'")
    return _RowsInOrder(x, parts, size)
