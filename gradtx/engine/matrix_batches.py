"""The matrices of all leaves as batches, one for each shape and type, on which a rule runs.

Where it is known how leaves are sharded, each batch is divided over the devices that own its
matrices, and slots may stay there as stacks. Matrices whose batch axes are divided stay where
they are.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from gradtx.engine.leaves import load, store
from gradtx.engine.lift import (
    Leaves,
    RuleFn,
    Transform,
    check_result,
    checked_result,
    on_array,
)
from gradtx.engine.places import Place
from gradtx.leaves.matrix_layout import Matrices, MatrixDimensions, as_matrices
from gradtx.leaves.paths import path_string
from gradtx.leaves.shardings import is_open, known_sharding, open_sharding, shardings_are_known
from gradtx.numerics import cast, widen
from gradtx.ownership.own_batches import (
    axes_of_stack,
    has_own_batches,
    on_own_batches,
    own_batches,
)
from gradtx.ownership.owned_slots import Owned, Share, is_owned, stacked
from gradtx.ownership.owners import Divided, beginnings, divided_sharding, owned, owners
from gradtx.types import Array

OnLeafFn = Callable[[Array, Array, Matrices], Array]


@dataclass(frozen=True)
class Batched:
    """A rule that runs on a batch of matrices.

    Attributes:
        rule: the rule.
        factors: the names of the slots that belong to a matrix and not to its entries.
        takes_slots: whether the rule sees all slots, and not these factors alone.
        on_leaf: changes the direction of a leaf afterwards; None for nothing.
    """

    rule: RuleFn
    factors: tuple[str, ...]
    takes_slots: bool
    on_leaf: OnLeafFn | None

    def of_batches(self, slots: Mapping[str, Any]) -> list[str]:
        """The names of the slots that the rule sees as batches."""
        there = [n for n, slot in slots.items() if slot is not None]
        return there if self.takes_slots else [n for n in there if n in self.factors]


def with_owners(
    label: str,
    batched: Batched,
    numbers: list[Any],
    leaves: list[Any],
    paths: list[Any],
    initial_slots: list[Any],
) -> None:
    """Put the initial slots of matrices that have an owner into stacks."""
    alike: dict[Any, list[int]] = {}
    for i, (number, p) in enumerate(zip(numbers, leaves, strict=True)):
        if number is None or p is None or not p.size:
            continue
        how, path = as_matrices(label, paths[i], p.shape, number), path_string(paths[i])
        sharding = _known_sharding_of(path, how)
        if sharding is not None:
            alike.setdefault((how, p.dtype, sharding), []).append(i)
    to_owners = [
        (*owners(sharding, how.axes), how.stacked(len(members)).sizes)
        for (how, _, sharding), members in alike.items()
        if not has_own_batches(sharding, how)
    ]
    over = iter(zip(to_owners, beginnings(to_owners), strict=True))
    for stack, ((how, _, sharding), members) in enumerate(alike.items()):
        division = own_batches(sharding, how, len(members))
        if division is None:
            (axes, devices, _), begin = next(over)
        else:
            axes, devices, begin = axes_of_stack(division, how), division.devices, None
        for n in batched.of_batches(initial_slots[members[0]]):
            slots = [initial_slots[i][n] for i in members]
            of_entries = None if n in batched.factors else how
            shares = [
                Share(stack, k, len(members), x.shape, of_entries, axes, begin, division)
                for k, x in enumerate(slots)
            ]
            for i, slot in zip(members, stacked(slots, shares, devices), strict=True):
                initial_slots[i][n] = slot


def in_batches(
    batched: Batched, dimensions: MatrixDimensions, alone: RuleFn | None, *, every: bool
) -> Transform:
    """The function that runs the rule on batches of matrices.

    Before it the rule `alone` runs on `every` leaf, or only on the leaves that are no matrices.
    """

    def transform(leaves: Leaves) -> tuple[list[Any], dict[str, Any]]:
        out: list[Any] = [None] * len(leaves.gradients)
        slots = {n: list(column) for n, column in leaves.slots.items()}
        numbers = dimensions.of(leaves.label, leaves.treedef.unflatten(leaves.gradients))
        dtypes: dict[int, Any] = {}
        alike: dict[Any, list[int]] = {}
        for i in leaves.there():
            factors = () if numbers[i] is None else batched.factors
            slots_of_leaf = {
                n: s for n, s in leaves.held(i).items() if n not in factors and s is not None
            }
            g = leaves.checked(i, slots_of_leaf)
            dtypes[i] = g.dtype
            out[i] = widen(g)
            if not g.size:
                continue
            if alone is not None and (every or numbers[i] is None):
                leaf = out[i], slots_of_leaf, leaves.params[i], leaves.drawn[i]
                out[i], new = on_array(alone, leaves, leaf, functools.partial(leaves.path, i))
                for n, slot in new.items():
                    slots[n][i] = slot
            if numbers[i] is not None:
                how = as_matrices(leaves.label, leaves.paths[i], g.shape, numbers[i])
                share = _share_of(batched, leaves.held(i))
                sharding = _sharding_of(leaves, i, out[i], how, share)
                stack = None if share is None else (share.stack, share.of)
                alike.setdefault((how, jax.typeof(out[i]), sharding, stack), []).append(i)
        divided: list[tuple[MatrixBatch, NamedSharding]] = []
        for j, groups in enumerate(_by_shape(leaves.label, alike)):
            equal = MatrixBatch(batched, leaves, groups, j, out, slots)
            if equal.sharding is None:
                equal.put(*equal.here(), out, slots)
            elif equal.has_own_batches:
                equal.write(*equal.on_own_batches(slots), out, slots)
            else:
                divided.append((equal, equal.sharding))
        for equal, result in _by_owners(divided):
            equal.put(*result, out, slots)
        return [u if u is None else cast(u, dtypes[i]) for i, u in enumerate(out)], slots

    return transform


MatrixGroup = tuple[Matrices, NamedSharding | None, list[int]]
"""Leaves of one layout: that layout, their sharding if it is known, and their indices."""


def _sharding_of(leaves: Leaves, i: int, x: Array, how: Matrices, share: Share | None) -> Any:
    """The sharding of a leaf whose matrices are divided or on several devices; otherwise None."""
    division = None if share is None else share.own
    if not shardings_are_known():
        left_open = open_sharding(x)
        if left_open is None or share is None or division is None:
            return left_open
        if not {*share.axes} <= {*left_open.mesh.axis_names}:
            return left_open  # the stack is of another mesh, and `MatrixBatch.owners` refuses it
        # Of a leaf with a stack of what it has on each device, the stack says how it is divided.
        return NamedSharding(
            left_open.mesh, PartitionSpec(*(dims or None for dims in division.dims))
        )
    path = path_string(leaves.paths[i])
    if share is not None and division is None:  # these slots lie with owners, also those of experts
        return divided_sharding(path, how.axes)
    return _known_sharding_of(path, how)


def _known_sharding_of(path: str, how: Matrices) -> NamedSharding | None:
    """The known sharding of a leaf whose matrices are divided or on several devices, or None."""
    known = known_sharding(path)
    if known is not None and has_own_batches(known, how):
        return known
    return divided_sharding(path, how.axes)


def _share_of(batched: Batched, slots: Mapping[str, Any]) -> Share | None:
    """For a leaf whose slots are in a stack: the slice of the stack that is the leaf's."""
    shares = (slots[n].share for n in batched.of_batches(slots) if is_owned(slots[n]))
    return next(shares, None)


def _by_shape(label: str, alike: dict[Any, list[int]]) -> list[list[MatrixGroup]]:
    """Groups of leaves, of which those with matrices of one shape and type become one batch.

    Leaves that are sharded, or whose slots are in a stack, are a batch by themselves: they move
    between devices as one stack.
    """
    batches: dict[Any, list[MatrixGroup]] = {}
    for (how, kind, sharding, stack), members in alike.items():
        if stack is not None and len(members) != stack[1]:
            raise ValueError(
                f"{label}: the slots of {stack[1]} equal matrices are one stack, and gradients of "
                f"only {len(members)} are given, or of this type: give all of them, or a state "
                "whose slots are separate (StateSharding.whole)"
            )
        alone = None if sharding is None and stack is None else (how, sharding, stack)
        group = how, sharding, members
        batches.setdefault((how.rows, how.columns, kind.dtype, alone), []).append(group)
    return list(batches.values())


class MatrixBatch:
    """All matrices of one shape as one batch, and the slots of the rule."""

    def __init__(
        self,
        batched: Batched,
        leaves: Leaves,
        groups: list[MatrixGroup],
        number: int,
        out: list[Any],
        slots: dict[str, list[Any]],
    ) -> None:
        self.batched, self.leaves, self.groups = batched, leaves, groups
        self.place = Place([(how, members) for how, _, members in groups], batched.factors)
        how, self.sharding, members = groups[0]
        first, self.axes, self.sizes = members[0], how.axes, how.stacked(len(members)).sizes
        self.drawn = {"group": number, **leaves.drawn[first]}
        names = batched.of_batches({n: column[first] for n, column in slots.items()})
        self.owned = {n: slots[n][first] for n in names if is_owned(slots[n][first])}
        self.stacks = self.place.stacks(out)
        self.columns = {n: slots[n] for n in names}
        self.has_own_batches = (
            self.sharding is not None
            and not is_open(self.sharding)
            and all(slot.share.own is not None for slot in self.owned.values())
            and has_own_batches(self.sharding, how)
        )

    @functools.cached_property
    def batch(self) -> Array:
        """The matrices of all groups."""
        batch: Array = self.place.batch(self.stacks)
        return batch

    @functools.cached_property
    def batched_slots(self) -> dict[str, Array]:
        """The slots of the rule, batches like `batch`."""
        return {n: self._loaded(n) for n in self.columns}

    def _loaded(self, n: str) -> Array:
        if n in self.owned:
            stack: Array = load(self.owned[n].value)
            return stack
        batch: Array = self.place.batch(self.place.stacks(self.columns[n]), n)
        return batch

    def rule(self, batch: Array, slots: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
        """The rule on a batch, or on a device's shard of it."""
        leaves = self.leaves
        step = leaves.steps.of if self.sharding is None else leaves.steps.anew
        arguments = batch, leaves.view(slots, self.drawn), step(batch.dtype)
        path = functools.partial(leaves.path, self.place.first)
        direction, new = checked_result(leaves.label, self.batched.rule(*arguments), slots)
        check_result(leaves.label, batch, direction, slots, new, path)
        return direction, new

    def here(self) -> tuple[Array, dict[str, Array]]:
        """The direction and the new slots, computed without moving matrices to owners."""
        count = len(self.batch)
        in_order = {
            n: slot.share.in_order(self.batched_slots[n])[:count] for n, slot in self.owned.items()
        }
        direction, new = self.rule(self.batch, self.batched_slots | in_order)
        for n, slot in self.owned.items():
            new[n] = slot.share.laid_out(new[n], slot.value.shape[0])
        return direction, new

    def on_own_batches(
        self, slots: dict[str, list[Any]]
    ) -> tuple[list[Array], dict[str, list[Array]]]:
        """Direction and new slots as stacks of leaves, each device computing its own matrices.

        Slots that stay with the matrices are written to `slots`.
        """
        ((how, sharding, members),) = self.groups
        assert sharding is not None
        division = own_batches(sharding, how, len(members))
        for n, slot in self.owned.items():
            if slot.share.own != division:
                raise self._of_another_mesh(n, sharding, f"one with {division}")
        staying = {n: self._loaded(n) for n in self.owned}
        stacks = {
            n: self.place.stacks(column)[0]
            for n, column in self.columns.items()
            if n not in staying
        }
        factors = {n: stacks.pop(n) for n in self.batched.factors if n in stacks}
        u, new = on_own_batches(self.rule, self.stacks[0], stacks, factors, staying, how, sharding)
        self._write_stacks(new, slots)
        return [u], {n: [x] for n, x in new.items()}

    def owners(self, sharding: NamedSharding) -> tuple[tuple[str, ...], int]:
        """The axes of the mesh over which the batch is divided, and how many devices."""
        stack_axes = next((slot.share.axes for slot in self.owned.values()), None)
        names, devices = owners(sharding, self.axes, stack_axes)
        count = len(self.batch) + -len(self.batch) % devices
        each = count // devices
        for n, slot in self.owned.items():
            share = slot.share
            begins_amiss = share.own is not None or (share.begin or 0) % each
            if slot.value.shape[0] != count or share.axes != names or begins_amiss:
                would_be = f"one of {count} over {names}, {each} on each device"
                raise self._of_another_mesh(n, sharding, would_be)
        return names, devices

    def _of_another_mesh(self, n: str, sharding: NamedSharding, would_be: str) -> ValueError:
        slot = self.owned[n]
        where = f"from {slot.share.begin or 0} on"
        if slot.share.own is not None:
            where = f"with {slot.share.own}"
        return ValueError(
            f"{self.leaves.label}: {n!r} of {len(self.batch)} equal matrices is a stack of "
            f"{slot.value.shape[0]} over the axes {slot.share.axes} of a mesh, {where}, and on "
            f"{dict(sharding.mesh.shape)} it would be {would_be}: give a state that was made for "
            "this mesh (StateSharding.whole, then .put)"
        )

    def divided(
        self, sharding: NamedSharding, over: tuple[tuple[str, ...], int], begin: int | None
    ) -> Divided:
        """The batch, to be divided over devices. Slots in a stack say at which device it begins."""
        begin = next((slot.share.begin for slot in self.owned.values()), begin)
        staying = list(self.owned)
        return Divided(
            self.rule, self.batch, self.batched_slots, sharding, over, self.axes, staying, begin
        )

    def put(
        self,
        direction: Array,
        new: dict[str, Array],
        out: list[Any],
        slots: dict[str, list[Any]],
    ) -> None:
        """Write directions and slots where they belong."""
        self._write_stacks(new, slots)
        directions = self.place.apart(direction)
        self.write(directions, {n: self.place.apart(x, n) for n, x in new.items()}, out, slots)

    def _write_stacks(self, new: dict[str, Array], slots: dict[str, list[Any]]) -> None:
        """Write the slots that stay in a stack to the leaf that holds it, and take them away."""
        for n, old in self.owned.items():
            slots[n][self.place.first] = Owned(store(old.value, new.pop(n)), old.share)

    def write(
        self,
        directions: list[Array],
        new: dict[str, list[Array]],
        out: list[Any],
        slots: dict[str, list[Any]],
    ) -> None:
        """Write stacks of directions and slots, one for each group, to the leaves."""
        on_leaf = self.batched.on_leaf
        if on_leaf is not None:
            directions = [
                jax.vmap(lambda x, u, how=how: on_leaf(x, u, how))(x, u)
                for (how, *_), x, u in zip(self.groups, self.stacks, directions, strict=True)
            ]
        self.place.write(directions, out)
        for n, stacks in new.items():
            self.place.write(stacks, slots[n])


def _by_owners(
    divided: list[tuple[MatrixBatch, NamedSharding]],
) -> Iterator[tuple[MatrixBatch, tuple[Array, dict[str, Array]]]]:
    """The direction and the new slots of each batch; balanced batches are one ``shard_map``."""
    over = [equal.owners(sharding) for equal, sharding in divided]
    begins = beginnings(
        [(*each, equal.sizes) for each, (equal, _) in zip(over, divided, strict=True)]
    )
    together: dict[Any, list[tuple[MatrixBatch, Divided]]] = {}
    for k, (equal, sharding) in enumerate(divided):
        stack = equal.divided(sharding, over[k], begins[k])
        key = k if stack.begin is None else over[k]
        together.setdefault(key, []).append((equal, stack))
    for pairs in together.values():
        results = owned([stack for _, stack in pairs])
        yield from zip([equal for equal, _ in pairs], results, strict=True)
