"""Rules on matrices: which axes are rows and columns, and matrices of one shape as one batch."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from gradtx.engine.leaves import load, store
from gradtx.engine.lift import (
    Leaves,
    RuleFn,
    SlotsFn,
    Start,
    Transform,
    call,
    check_shapes,
    checked_result,
    each_slots,
    label_of,
    lift,
    reads_params,
    refused_rows,
)
from gradtx.engine.owned_slots import Owned, Share, in_order, is_owned, padded, stacked
from gradtx.engine.owners import (
    Divided,
    beginnings,
    divided_place,
    owned,
    owners,
)
from gradtx.numerics import cast, widen
from gradtx.pair import GradientTransformation, Rule, Scope
from gradtx.paths import is_leaf, path_string
from gradtx.rows import is_rows
from gradtx.shardings import shardings_are_known
from gradtx.types import Array, PyTree

FactorFn = Callable[["Matrices", Array], Array]
OnLeafFn = Callable[[Array, Array, "Matrices"], Array]


class Matrices(NamedTuple):
    """An array of some shape seen as a batch of matrices of one shape.

    order: the axes, batch first, then rows, then columns; sizes: the sizes of these three; shape:
    the array's own; split: the same with heads as an axis of their own, to which `order` refers.
    """

    order: tuple[int, ...]
    sizes: tuple[int, int, int]
    shape: tuple[int, ...]
    split: tuple[int, ...]

    @property
    def rows(self) -> int:
        """The number of rows of each matrix."""
        return self.sizes[1]

    @property
    def columns(self) -> int:
        """The number of columns of each matrix."""
        return self.sizes[2]

    @property
    def axes(self) -> tuple[tuple[int, ...], ...]:
        """The array's own axes that are batch, rows and columns; one with heads is in two."""
        heads = [i for i, size in enumerate(self.shape) if self.split[i] != size]
        shift = heads[0] if len(self.split) > len(self.shape) and heads else len(self.split)
        left = list(self.order)
        found = []
        for size in self.sizes:
            these: list[int] = []
            while math.prod(self.split[axis] for axis in these) < size:
                these.append(left.pop(0))
            found.append(tuple(axis - (axis > shift) for axis in these))
        return tuple(found)

    def stacked(self, count: int) -> "Matrices":
        """The layout of matrices in `count` such arrays, stacked along a new first axis."""
        order = (0, *(axis + 1 for axis in self.order))
        batches, height, width = self.sizes
        sizes = count * batches, height, width
        return Matrices(order, sizes, (count, *self.shape), (count, *self.split))

    def of_shape(self, shape: tuple[int, ...]) -> "Matrices":
        """The layout of matrices in an array with axes of other lengths, if there are no heads."""
        if shape == self.shape:
            return self
        batches, height, width = (math.prod(shape[axis] for axis in axes) for axes in self.axes)
        return Matrices(self.order, (batches, height, width), shape, shape)

    def take(self, x: Array) -> Array:
        """The array as a batch ``(n, rows, columns)``."""
        return x.reshape(self.split).transpose(self.order).reshape(self.sizes)

    def put(self, x: Array) -> Array:
        """A batch as an array of the original shape."""
        ordered = x.reshape([self.split[axis] for axis in self.order])
        back = sorted(range(len(self.order)), key=lambda axis: self.order[axis])
        return ordered.transpose(back).reshape(self.shape)


@dataclass(frozen=True)
class MatrixDimensions:
    """Which axes of each leaf are the rows and the columns of matrices.

    Attributes:
        given: dimension numbers with ``reduction_axis`` (rows), ``output_axis`` (columns) and
            perhaps ``heads``, an axis and how many matrices lie side by side along it; a tree of
            them or a prefix of it, or a function from the updates to such a tree. None for a leaf
            means that it is not a matrix.
        kind: the class of the numbers; its defaults are used if nothing is given.
    """

    given: Any
    kind: type

    def of(self, label: str, tree: PyTree) -> list[Any]:
        """The dimension numbers of each leaf of `tree`.

        Raises:
            ValueError: they are not a tree like it or a prefix of it.
            TypeError: a leaf of them is of another class.
        """
        numbers = self.kind() if self.given is None else self.given
        if callable(numbers) and not isinstance(numbers, self.kind):
            numbers = numbers(tree)
        found: list[Any] = []

        def note(number: Any, below: PyTree) -> None:
            found.extend([number] * len(jax.tree.leaves(below, is_leaf=is_leaf)))

        def stop(x: Any) -> bool:
            return x is None or isinstance(x, self.kind)

        try:
            jax.tree.map(note, numbers, tree, is_leaf=stop)
        except ValueError as error:
            raise ValueError(
                f"{label}: the dimension numbers are not a tree like the parameters or a prefix of "
                f"it: {error}"
            ) from None
        if not all(map(stop, found)):
            raise TypeError(
                f"{label}: the leaves of the dimension numbers must be {self.kind.__name__}"
            )
        return found


def as_matrices(label: str, path: Any, shape: tuple[int, ...], numbers: Any) -> Matrices:
    """How an array of some shape is a batch of matrices, by its dimension numbers.

    Raises:
        ValueError: the numbers name axes that it does not have, or one axis twice.
    """
    try:
        rows = axes_of(numbers.reduction_axis, len(shape))
        columns = axes_of(numbers.output_axis, len(shape))
        if len({*rows, *columns}) < len(rows) + len(columns):
            raise ValueError(f"an axis occurs twice in {numbers}")
        split, own = _apart(tuple(shape), getattr(numbers, "heads", None), (*rows, *columns))
    except ValueError as error:
        raise ValueError(
            f"{label}: at {path_string(path)!r}, of shape {tuple(shape)}: {error}; give dimension "
            "numbers, or None for a leaf that is not a matrix"
        ) from None
    rows, columns = (tuple(own[axis] for axis in axes) for axes in (rows, columns))
    batch = tuple(axis for axis in range(len(split)) if axis not in (*rows, *columns))
    batches, height, width = (
        math.prod(split[axis] for axis in axes) for axes in (batch, rows, columns)
    )
    return Matrices((*batch, *rows, *columns), (batches, height, width), tuple(shape), split)


def _apart(
    shape: tuple[int, ...], heads: tuple[int, int] | None, of_matrices: tuple[int, ...]
) -> tuple[tuple[int, ...], list[int]]:
    """The shape with heads as an axis of their own, and where each axis is then."""
    if heads is None:
        return shape, list(range(len(shape)))
    (axis,), count = axes_of(heads[0], len(shape)), heads[1]
    if axis not in of_matrices or count < 1 or shape[axis] % count:
        raise ValueError(f"axis {axis} is not rows or columns of {count} heads of equal size")
    split = (*shape[:axis], count, shape[axis] // count, *shape[axis + 1 :])
    return split, [i + (i >= axis) for i in range(len(shape))]


def axes_of(axes: Any, ndim: int) -> tuple[int, ...]:
    """One axis or several as a tuple of indices, of which none is negative."""
    given = (axes,) if isinstance(axes, int) else tuple(axes)
    if not all(-ndim <= axis < ndim for axis in given):
        raise ValueError(f"the axes {given} are not axes of an array with {ndim} dimensions")
    return tuple(axis % ndim for axis in given)


def matrixwise(
    state: type,
    rule: RuleFn,
    dimensions: MatrixDimensions,
    *,
    slots: SlotsFn | None = None,
    on_entries: RuleFn | None = None,
    factors: Mapping[str, FactorFn] | None = None,
    on_leaf: OnLeafFn | None = None,
    on_others: RuleFn | None = None,
    slots_of_others: SlotsFn | None = None,
    start: Start | None = None,
) -> GradientTransformation:
    """Lift a rule that treats each matrix independently: products, roots, singular values.

    Matrices of one shape and type go through the rule as one batch, whichever leaves they are in:
    what is traced, compiled and launched does not grow with their number.

    Args:
        state: a state class, as in :func:`elementwise`.
        rule: ``(g, s, t) -> (direction, {name: new factor})`` of a batch `g` of shape
            ``(n, rows, columns)``; each factor has the batch in front. ``s.group`` numbers the
            batches of a tree from 0, and each batch has its own `Key`, as has each leaf that goes
            through a rule by itself.
        dimensions: which axes of each leaf are rows and columns, and which leaves are not matrices:
            those go through `on_entries` or `on_others` only.
        slots: ``p -> {name: array}``, slots of the shape of the parameter: those of `on_entries` if
            there is one; otherwise of `rule`, which sees them as batches like the gradient's.
        on_entries: a rule as in :func:`elementwise`, such as a momentum, that every leaf goes
            through first, by itself.
        factors: ``{name: (matrices, p) -> array}``, the slots of `rule` for one leaf, with first
            dimension ``matrices.sizes[0]``: one number for each matrix, row or column, or square
            factors. A leaf that is not a matrix has None.
        on_leaf: ``(before, after, matrices) -> direction``, a final step on each leaf, in its own
            shape.
        on_others: without `on_entries`, a rule as in :func:`leafwise` for leaves that are not
            matrices; unless it is given, these are left as they are.
        slots_of_others: ``p -> {name: array}``, slots that `on_others` has besides `slots`. A leaf
            that is a matrix has None, or the factor of that name.
        start: the initial values of the fields other than slots and counters.

    Raises:
        ValueError: a leaf lacks axes that its numbers name.
        TypeError: a gradient is `Rows`, since a matrix is transformed as a whole.

    >>> import gradtx
    >>> from typing import NamedTuple
    >>> class Numbers(NamedTuple):
    ...     reduction_axis: int = 0
    ...     output_axis: int = 1
    >>> @gradtx.transformation
    ... def unit_columns():
    ...     def rule(g, s, t):
    ...         return g / jnp.linalg.norm(g, axis=1, keepdims=True), {}
    ...
    ...     return matrixwise(gradtx.EmptyState, rule, MatrixDimensions(None, Numbers))
    >>> tx = unit_columns()
    >>> tx.update(jnp.array([[3.0], [4.0]]), tx.init(jnp.zeros((2, 1))))[0].round(1).tolist()
    [[0.6000000238418579], [0.800000011920929]]
    """
    lifted = Rule(Scope.MATRIX, state, rule, on_rows=False)
    label = label_of(rule)
    held, of_others = dict(factors or {}), slots_of_others or (lambda p: {})
    some = bool(held or slots_of_others)

    def first(params: PyTree, leaves: list[Any], paths: list[Any]) -> list[Any]:
        made: list[Any] = each_slots(slots)(params, leaves, paths)
        for i, number in enumerate(dimensions.of(label, params) if some else ()):
            p = leaves[i]
            if p is not None:
                how = None if number is None else as_matrices(label, paths[i], p.shape, number)
                if how is None:
                    made[i] |= dict.fromkeys(held) | of_others(p)
                else:
                    made[i] |= dict.fromkeys(of_others(p)) | {n: f(how, p) for n, f in held.items()}
        if shardings_are_known() and (held or on_entries is None):
            _with_owners(label, batched, dimensions.of(label, params), leaves, paths, made)
        return made

    alone = on_entries or on_others
    batched = Batched(rule, tuple(held), on_entries is None, on_leaf)
    transform = _in_batches(batched, dimensions, alone, every=on_entries is not None)
    takes_params = alone is not None and reads_params(alone)
    return lift(lifted, first, transform, start=start, takes_params=takes_params)


@dataclass(frozen=True)
class Batched:
    """A rule of batches; its factors, whether other slots are batches too, and the final step."""

    rule: RuleFn
    factors: tuple[str, ...]
    takes_slots: bool
    on_leaf: OnLeafFn | None

    def of_batches(self, slots: Mapping[str, Any]) -> list[str]:
        """The names of the slots of a matrix that go through the rule."""
        there = [n for n, slot in slots.items() if slot is not None]
        return there if self.takes_slots else [n for n in there if n in self.factors]


def _with_owners(
    label: str,
    batched: Batched,
    numbers: list[Any],
    leaves: list[Any],
    paths: list[Any],
    made: list[Any],
) -> None:
    """Put the initial slots of matrices that have an owner into stacks."""
    alike: dict[Any, list[int]] = {}
    for i, (number, p) in enumerate(zip(numbers, leaves, strict=True)):
        if number is None or p is None or not p.size:
            continue
        how = as_matrices(label, paths[i], p.shape, number)
        place = divided_place(path_string(paths[i]), how.axes)
        if place is not None:
            alike.setdefault((how, p.dtype, place), []).append(i)
    over = [
        (*owners(place, how.axes), how.stacked(len(members)).sizes)
        for (how, _, place), members in alike.items()
    ]
    begins = beginnings(over)
    for stack, ((how, *_), members) in enumerate(alike.items()):
        axes, devices, _ = over[stack]
        for n in batched.of_batches(made[members[0]]):
            slots = [made[i][n] for i in members]
            of_entries = None if n in batched.factors else how
            shares = [
                Share(stack, k, len(members), x.shape, of_entries, axes, begins[stack])
                for k, x in enumerate(slots)
            ]
            for i, slot in zip(members, stacked(slots, shares, devices), strict=True):
                made[i][n] = slot


def _in_batches(
    batched: Batched, dimensions: MatrixDimensions, alone: RuleFn | None, *, every: bool
) -> Transform:
    """The rule on batches, after the one on leaves: on `every` leaf or on the others."""

    def transform(given: Leaves) -> tuple[list[Any], dict[str, Any]]:
        out: list[Any] = [None] * len(given.gradients)
        slots = {n: list(column) for n, column in given.slots.items()}
        numbers = dimensions.of(given.label, given.treedef.unflatten(given.gradients))
        dtypes: dict[int, Any] = {}
        alike: dict[Any, list[int]] = {}
        for i in given.there():
            if is_rows(given.gradients[i]):
                raise refused_rows(given.label, given.paths[i])
            g = given.gradient(i)
            dtypes[i] = g.dtype
            out[i] = widen(g)
            factors = () if numbers[i] is None else batched.factors
            held = {n: s for n, s in given.held(i).items() if n not in factors and s is not None}
            check_shapes(given, i, g.shape, held)
            if not g.size:
                continue
            if alone is not None and (every or numbers[i] is None):
                loaded = {n: load(s) for n, s in held.items()}
                out[i], new = call(alone, given, out[i], loaded, given.params[i], given.drawn[i])
                for n, s in held.items():
                    slots[n][i] = store(s, new[n])
            if numbers[i] is not None:
                how = as_matrices(given.label, given.paths[i], g.shape, numbers[i])
                place = (
                    divided_place(path_string(given.paths[i]), how.axes)
                    if shardings_are_known()
                    else None
                )
                stack = _stack_of(batched, given.held(i))
                alike.setdefault((how, jax.typeof(out[i]), place, stack), []).append(i)
        divided: list[tuple[MatrixBatch, NamedSharding]] = []
        for j, groups in enumerate(_by_shape(given.label, alike)):
            equal = MatrixBatch(batched, given, groups, j, out, slots)
            if equal.place is None:
                equal.put(*equal.here(), out, slots)
            else:
                divided.append((equal, equal.place))
        for equal, result in _by_owners(divided):
            equal.put(*result, out, slots)
        return [u if u is None else cast(u, dtypes[i]) for i, u in enumerate(out)], slots

    return transform


Group = tuple[Matrices, NamedSharding | None, list[int]]
"""Leaves that are alike: how they are matrices, where they lie if that is known, which they are."""


def _stack_of(batched: Batched, slots: Mapping[str, Any]) -> tuple[int, int] | None:
    """For a leaf whose slots are in a stack: the stack's number, and how many leaves it has."""
    shares = [slots[n].share for n in batched.of_batches(slots) if is_owned(slots[n])]
    return (shares[0].stack, shares[0].of) if shares else None


def _by_shape(label: str, alike: dict[Any, list[int]]) -> list[list[Group]]:
    """Leaves that are alike, grouped by the shape and type of their matrices.

    Those that lie on several devices stay by themselves, since they are moved as one stack.
    """
    found: dict[Any, list[Group]] = {}
    for (how, kind, place, stack), members in alike.items():
        if stack is not None and len(members) != stack[1]:
            raise ValueError(
                f"{label}: the slots of {stack[1]} equal matrices are one stack, and gradients of "
                f"only {len(members)} are given, or of this type: give all of them, or a state "
                "whose slots are separate (StateSharding.whole)"
            )
        alone = None if place is None and stack is None else (how, place, stack)
        group = how, place, members
        found.setdefault((how.rows, how.columns, kind.dtype, alone), []).append(group)
    return list(found.values())


class MatrixBatch:
    """All matrices of one shape as one batch, and the slots of the rule."""

    def __init__(
        self,
        batched: Batched,
        given: Leaves,
        groups: list[Group],
        number: int,
        out: list[Any],
        slots: dict[str, list[Any]],
    ) -> None:
        self.batched, self.given, self.groups = batched, given, groups
        self.hows = [how.stacked(len(members)) for how, _, members in groups]
        how, self.place, (first, *_) = groups[0]
        self.axes = how.axes
        self.drawn = {"group": number, **given.drawn[first]}
        names = batched.of_batches({n: column[first] for n, column in slots.items()})
        self.owned = {n: slots[n][first] for n in names if is_owned(slots[n][first])}
        self.stacks = [jnp.stack([out[i] for i in members]) for _, _, members in groups]
        self.batch = self._taken(self.stacks)
        self.held = {n: self._loaded(n, slots[n]) for n in names}

    def _taken(self, stacks: list[Array]) -> Array:
        return _joined([how.take(x) for how, x in zip(self.hows, stacks, strict=True)])

    def _loaded(self, n: str, column: list[Any]) -> Array:
        if n in self.owned:
            return load(self.owned[n].value)
        stacks = [jnp.stack([load(column[i]) for i in members]) for _, _, members in self.groups]
        whole = n in self.batched.factors
        return _joined([_in_one(x) for x in stacks]) if whole else self._taken(stacks)

    def rule(self, batch: Array, held: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
        """The rule on a batch, or on a device's part of it."""
        given = self.given
        step = given.steps.of if self.place is None else given.steps.anew
        arguments = batch, given.view(held, self.drawn), step(batch.dtype)
        return checked_result(given.label, self.batched.rule(*arguments), held)

    def here(self) -> tuple[Array, dict[str, Array]]:
        """The direction and the new slots, computed wherever the matrices are."""
        begins = {n: slot.share.begin for n, slot in self.owned.items()}
        held = {n: in_order(x, begins.get(n))[: len(self.batch)] for n, x in self.held.items()}
        direction, new = self.rule(self.batch, held)
        for n, slot in self.owned.items():
            new[n] = padded(new[n], slot.value.shape[0], slot.share.begin)
        return direction, new

    def divided(self, place: NamedSharding, begin: int | None) -> Divided:
        """The same for its owners. Where slots are with them, these say where the stack begins."""
        begin = next((slot.share.begin for slot in self.owned.values()), begin)
        return Divided(self.rule, self.batch, self.held, place, self.axes, list(self.owned), begin)

    def put(
        self,
        direction: Array,
        new: dict[str, Array],
        out: list[Any],
        slots: dict[str, list[Any]],
    ) -> None:
        """Write directions and slots where they belong."""
        for n, old in self.owned.items():
            slots[n][self.groups[0][2][0]] = Owned(store(old.value, new.pop(n)), old.share)
        sizes, on_leaf = [how.sizes[0] for how in self.hows], self.batched.on_leaf
        parts = {n: _parted(x, sizes) for n, x in new.items()}
        for k, u in enumerate(_parted(direction, sizes)):
            how, _, members = self.groups[k]
            u = self.hows[k].put(u)
            if on_leaf is not None:
                u = jax.vmap(lambda x, u, how=how: on_leaf(x, u, how))(self.stacks[k], u)
            for i, each in zip(members, jnp.unstack(u), strict=True):
                out[i] = each
            for n, of_part in parts.items():
                x = of_part[k]
                if n in self.batched.factors:
                    apart = x.reshape(len(members), how.sizes[0], *x.shape[1:])
                else:
                    apart = self.hows[k].put(x)
                for i, each in zip(members, jnp.unstack(apart), strict=True):
                    slots[n][i] = store(slots[n][i], each)


def _by_owners(
    found: list[tuple[MatrixBatch, NamedSharding]],
) -> Iterator[tuple[MatrixBatch, tuple[Array, dict[str, Array]]]]:
    """The direction and the new slots of each; stacks that are balanced go together."""
    over = [owners(place, equal.axes) for equal, place in found]
    begins = beginnings(
        [(*each, equal.hows[0].sizes) for each, (equal, _) in zip(over, found, strict=True)]
    )
    together: dict[Any, list[tuple[MatrixBatch, Divided]]] = {}
    for k, (equal, place) in enumerate(found):
        stack = equal.divided(place, begins[k])
        key = k if stack.begin is None else over[k]
        together.setdefault(key, []).append((equal, stack))
    for pairs in together.values():
        results = owned([stack for _, stack in pairs])
        yield from zip([equal for equal, _ in pairs], results, strict=True)


def _in_one(x: Array) -> Array:
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def _joined(parts: list[Array]) -> Array:
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts)


def _parted(x: Array, sizes: list[int]) -> list[Array]:
    if len(sizes) == 1:
        return [x]
    ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
    return [x[end - size : end] for end, size in zip(ends, sizes, strict=True)]
