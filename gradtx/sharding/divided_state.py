"""A state divided over a mesh: a walk over the state as `init` would make it."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from gradtx.checks import check_patterns
from gradtx.core.pair import GradientTransformation, with_extra_args_support
from gradtx.core.traits import Scope
from gradtx.leaves.paths import (
    is_leaf,
    leaves_with_path,
    map_with_paths,
    matches,
    path_string,
    with_paths,
)
from gradtx.ownership.owned_slots import Owned, is_owned
from gradtx.sharding.padding import Padded
from gradtx.sharding.placement import (
    SMALL,
    Dims,
    Placement,
    dims_of,
    divides,
    inherited,
    parts,
    sharding_of,
    spread,
)
from gradtx.sharding.resharding import resharded
from gradtx.storage import is_encoded
from gradtx.tree.search import children_of, rebuilt
from gradtx.types import Params, PyTree, State, slot_fields

SlotPlaces: TypeAlias = (
    Mapping[str, PartitionSpec] | Callable[[str, jax.ShapeDtypeStruct], PartitionSpec | None]
)
"""The specifications of some slots, by path pattern or as a function of the path and the slot."""


@dataclass(frozen=True)
class LeafSharding:
    """The sharding of one leaf of the state, the reason for it, and its bytes on a device."""

    path: str
    shape: tuple[int, ...]
    spec: PartitionSpec
    note: str
    bytes: int


def _probe(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape with slightly larger sizes that all differ, in the order of the sizes of `shape`.

    A rule makes the same choices by it, such as which side is longer, as by the shape itself.
    """
    sizes = list(shape)
    for rank, i in enumerate(sorted(range(len(shape)), key=lambda i: (shape[i], i))):
        sizes[i] += rank
    return tuple(sizes)


class ShardedState:
    """The state with a sharding on every leaf, a report, and the slots that were padded.

    Args:
        mesh: the devices.
        pads: the paths of the slots that are padded if no dimension can be divided; None for all.
    """

    def __init__(self, mesh: Mesh, pads: frozenset[str] | None) -> None:
        self.mesh, self.pads = mesh, pads
        self.state: PyTree = None
        self.leaves: list[LeafSharding] = []
        self.padded: set[str] = set()

    def leaf(self, path: str, x: Any, where: Placement) -> Any:
        """A leaf with its sharding, which is added to the report."""
        sharding = sharding_of(self.mesh, where.dims)
        array = jax.ShapeDtypeStruct(where.shape, x.dtype, sharding=sharding)
        shard: Any = array.sharding
        n = math.prod(shard.shard_shape(where.shape)) * x.dtype.itemsize
        self.leaves.append(LeafSharding(path, tuple(x.shape), shard.spec, where.note, n))
        return array if where.shape == tuple(x.shape) else Padded(array, x.shape)

    def in_codec(self, path: str, slot: Any, where: Placement) -> Any:
        """A slot in a codec, its arrays sharded like the slot, and its random key replicated."""

        def leaf(p: Any, x: Any) -> Any:
            is_divided = x is not slot.key
            dims = where.dims if is_divided else ()
            note = where.note if is_divided else "replicated"
            return self.leaf(_join(path, p), x, Placement(dims, tuple(x.shape), note))

        return map_with_paths(leaf, slot)

    def with_owners(self, path: str, slot: Owned) -> Owned:
        """A slot in a stack, which is sharded over the devices that own its matrices."""
        if (x := slot.value) is None:
            return slot
        note = f"stack of {slot.share.of}, with the owners of the matrices"
        where = Placement((slot.share.axes,), tuple(x.shape), note)
        stack = self.in_codec(path, x, where) if is_encoded(x) else self.leaf(path, x, where)
        return Owned(stack, slot.share)


def _join(path: str, keys: Any) -> str:
    """A path continued by the keys of a node below it."""
    return "/".join(filter(None, (path, path_string(keys))))


def next_state(tx: GradientTransformation, g: PyTree, state: State, p: Params) -> State:
    """The state after a step, for its shapes alone: a line search gets a loss that is 0."""
    value: Callable[[Any], Any] = lambda _: jnp.zeros([])  # noqa: E731
    return tx.update(g, state, p, value=jnp.zeros([]), grad=g, value_fn=value)[1]


def _up_to(treedef: Any, tree: PyTree) -> list[Any]:
    """The subtrees of a tree at the leaves of `treedef`; one None may stand for all below it.

    Raises:
        ValueError: it is another tree.
    """
    if tree is None:
        return [None] * treedef.num_leaves
    if jax.tree_util.treedef_is_leaf(treedef):
        return [tree]
    kind: Any
    children, kind = jax.tree.flatten(tree, is_leaf=lambda x: x is not tree)
    if kind.node_data() != treedef.node_data():
        raise ValueError("another tree")
    pairs = zip(treedef.children(), children, strict=True)
    return [x for below, child in pairs for x in _up_to(below, child)]


def _is_one(x: Any) -> bool:
    """Whether a node of a slot's tree is a whole slot, in a codec or in a stack."""
    return is_encoded(x) or is_owned(x)


def _part(shape: tuple[int, ...], of: tuple[int, ...], dims: Dims, mesh: Mesh) -> Placement | None:
    """The placement of a slot for some rows or columns of a parameter: that of the parameter.

    The shortened dimension is left whole where the mesh does not divide it evenly. None for a slot
    that is not shorter along one dimension and as long along all others.
    """
    shorter = [i for i, (a, b) in enumerate(zip(shape, of, strict=False)) if a != b]
    if len(shape) != len(of) or len(shorter) != 1 or not 1 < shape[shorter[0]] < of[shorter[0]]:
        return None
    (axis,) = shorter
    if not divides(mesh, shape, dims):
        dims = (*dims[:axis], (), *dims[axis + 1 :])
    return Placement(dims, shape, "as the parameter of which it is a part")


class ChosenSlots:
    """The slots whose shardings a user gives, in place of those of :func:`state_sharding`.

    Args:
        slots: path patterns of slots, with a specification for each, or a function
            ``(path, slot) -> specification or None``.
    """

    def __init__(self, slots: SlotPlaces | None) -> None:
        if slots is not None and not callable(slots):
            if not isinstance(slots, Mapping):
                raise TypeError(
                    "state_sharding: slots must be {path pattern: PartitionSpec} or a function "
                    f"(path, slot) -> PartitionSpec or None, not {slots!r:.80}"
                )
            check_patterns("state_sharding: slots", slots)
        self.places: SlotPlaces = {} if slots is None else slots
        self.seen: dict[str, str | None] = {}

    def of(self, path: str, x: Any, mesh: Mesh) -> Placement | None:
        """The sharding that is given for the slot at a path; None if there is none.

        Raises:
            TypeError: it is no `PartitionSpec`.
            ValueError: it does not divide the slot, or names an axis that the mesh does not have.
        """
        if callable(self.places):
            spec = self.places(path, jax.ShapeDtypeStruct(x.shape, x.dtype))
        else:
            pattern = next((p for p in self.places if matches(path, p)), None)
            self.seen[path] = pattern
            spec = None if pattern is None else self.places[pattern]
        if spec is None:
            return None
        if not isinstance(spec, PartitionSpec):
            raise TypeError(
                f"state_sharding: slots gives {spec!r:.80} for {path!r}, not a PartitionSpec"
            )
        dims = dims_of(spec, len(x.shape))
        known = {axis for axes in dims for axis in axes} <= set(mesh.shape)
        if not known or len(spec) > len(x.shape) or not divides(mesh, x.shape, dims):
            raise ValueError(
                f"state_sharding: {spec} on {dict(mesh.shape)} does not divide the slot at "
                f"{path!r}, of shape {tuple(x.shape)}"
            )
        return Placement(dims, tuple(x.shape), "as given by slots")

    def check(self) -> None:
        """Raise ValueError if a pattern chose no slot."""
        unused = [] if callable(self.places) else set(self.places) - set(self.seen.values())
        for pattern in sorted(unused):
            raise ValueError(
                f"state_sharding: the pattern {pattern!r} of slots chooses none of the slots that "
                f"are plain arrays; these are {', '.join(self.seen) or 'none'}"
            )


class DividedState:
    """The shapes of a state, and the shardings of its leaves.

    The state for probes, parameters of slightly larger shapes whose sizes all differ, tells from
    which dimension of a parameter each dimension of a slot comes.
    """

    def __init__(
        self,
        tx: GradientTransformation,
        leaves: list[tuple[Any, Any]],
        treedef: Any,
        shardings: list[Any],
        mesh: Mesh,
        zero: tuple[str, ...],
        min_size: int,
        balance: bool,
        chosen: ChosenSlots,
    ) -> None:
        self.tx, self.treedef, self.mesh = with_extra_args_support(tx), treedef, mesh
        self.zero, self.min_size, self.chosen = zero, min_size, chosen
        self.shapes = [None if p is None else tuple(p.shape) for _, p in leaves]
        self.probes = [() if s is None else _probe(s) for s in self.shapes]
        self.dims = [
            () if s is None else dims_of(sharding.spec, len(s))
            for s, sharding in zip(self.shapes, shardings, strict=True)
        ]
        self.dtypes = [None if p is None else p.dtype for _, p in leaves]
        self.params = self._abstract(self.shapes)
        init = resharded(self.tx, tuple(map(treedef.unflatten, self.reductions())), balance).init
        program: Any
        program, self.state = jax.make_jaxpr(init, return_shape=True)(self.params)
        self.on_host = [
            getattr(x, "memory_space", None) == jax.memory.Space.Host for x in program.out_avals
        ]
        rules = self.tx.rules
        self.probe = None
        if rules is not None and all(rule.scope is Scope.ENTRY for rule in rules):
            return  # every slot has its parameter's shape
        try:
            probe = jax.eval_shape(init, self._abstract(self.probes))
        except Exception:  # an `init` that expects its parameters' shapes may raise anything
            probe = None
        like: Any = jax.tree.structure(self.state, is_leaf=_is_one)
        alike = jax.tree.structure(probe, is_leaf=_is_one) == like
        self.probe = probe if alike else None

    def _abstract(self, shapes: list[Any]) -> PyTree:
        pairs = zip(shapes, self.dtypes, strict=True)
        return self.treedef.unflatten(
            [None if d is None else jax.ShapeDtypeStruct(s, d) for s, d in pairs]
        )

    def reductions(self) -> list[list[Any]]:
        """The shardings of each gradient after each axis of ZeRO; the last is that of its slots."""
        ends = range(1, len(self.zero) + 1) if self.zero else [None]
        return [
            [
                None
                if s is None
                else sharding_of(self.mesh, self._further(Placement(d, s, ""), end=end).dims)
                for s, d in zip(self.shapes, self.dims, strict=True)
            ]
            for end in ends
        ]

    def place(self, pads: frozenset[str] | None) -> ShardedState:
        """The state with a sharding for every leaf.

        Slots at the paths `pads` (None for all) are padded if no dimension can be divided.
        """
        sharded = ShardedState(self.mesh, pads)
        sharded.state = self._in_memory(self._walk(sharded, "", self.state, self.probe))
        return sharded

    def _walk(self, sharded: ShardedState, path: str, node: Any, probe: Any) -> Any:
        """A part of the state with shardings: slots, other arrays, or a node with children."""
        if self._mirrors(node):
            return self._slot(sharded, path, node, probe)
        children = children_of(node)
        if not children:
            return self._others(sharded, path, node)
        probes: Any = children_of(probe) if probe is not None else [(None, None)] * len(children)
        cls: Any = type(node)
        slots = slot_fields(cls) if hasattr(node, "_fields") else frozenset()
        new = []
        for (key, child), (_, child_probe) in zip(children, probes, strict=True):
            name = getattr(key, "name", None) or path_string((key,))
            below = "/".join(filter(None, (path, name)))
            place = self._slot if name in slots else self._walk
            new.append(place(sharded, below, child, child_probe))
        return rebuilt(node, new)

    def _slot(self, sharded: ShardedState, path: str, tree: Any, probe: Any) -> Any:
        """A slot with shardings: a tree like the parameters, each with some arrays."""
        try:
            columns = _up_to(self.treedef, tree)
            probes = _up_to(self.treedef, tree if probe is None else probe)
        except ValueError:  # one flat vector, for example
            return self._others(sharded, path, tree, spreading=True)
        paths = [_join(path, p) for p, _ in leaves_with_path(self.params)[0]]
        pads = sharded.pads is None or path in sharded.pads
        new = []
        for i, (column, like) in enumerate(zip(columns, probes, strict=True)):
            structure: Any
            leaves, structure = with_paths(column, is_leaf=_is_one)
            likes = jax.tree.leaves(like, is_leaf=_is_one)
            is_only = structure == jax.tree.structure(0)
            arrays = []
            for (p, x), y in zip(leaves, likes, strict=True):
                at = _join(paths[i], p)
                if is_owned(x):
                    arrays.append(sharded.with_owners(at, x))
                    continue
                where = self._inherited(i, x, y, is_only)
                if is_encoded(x):
                    arrays.append(sharded.in_codec(at, x, self._by_blocks(x, where)))
                    continue
                pad = is_only and pads
                where = self.chosen.of(at, x, self.mesh) or self._further(where, pad=pad)
                if where.shape != tuple(x.shape):
                    sharded.padded.add(path)
                arrays.append(sharded.leaf(at, x, where))
            new.append(structure.unflatten(arrays))
        return jax.tree.map(
            lambda x, placed: None if x is None else placed,
            tree,
            self.treedef.unflatten(new),
            is_leaf=lambda x: x is None,
        )

    def _others(self, sharded: ShardedState, path: str, tree: Any, spreading: bool = False) -> Any:
        """Arrays that are no slots of parameters, replicated, or spread over the axes of ZeRO."""

        def leaf(p: Any, x: Any) -> Any:
            where = Placement(((),) * len(x.shape), tuple(x.shape), "replicated")
            return sharded.leaf(_join(path, p), x, self._further(where) if spreading else where)

        return map_with_paths(leaf, tree)

    def _in_memory(self, state: PyTree) -> PyTree:
        """The state with shardings in the host's memory for leaves that `init` puts there."""
        structure: Any
        leaves, structure = jax.tree.flatten(state)
        for i, (x, on_host) in enumerate(zip(leaves, self.on_host, strict=True)):
            if on_host:
                place = x.sharding.with_memory_kind("pinned_host")
                leaves[i] = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)
        return structure.unflatten(leaves)

    def _mirrors(self, node: Any) -> bool:
        """Whether a part of a state is a tree like the parameters, as slots usually are."""
        structure: Any = jax.tree.structure(node, is_leaf=is_leaf)
        if jax.tree_util.all_leaves([node]):
            one = len(self.shapes) == 1 and self.treedef == jax.tree.structure(0)
            return bool(one and node.shape == self.shapes[0] and node.shape)
        return bool(structure == self.treedef)

    def _inherited(self, i: int, x: Any, probe: Any, is_only: bool) -> Placement:
        """The sharding of an array in the slot of parameter `i`, which may be the only one."""
        shape, dims = self.shapes[i], self.dims[i]
        everywhere = Placement(((),) * len(x.shape), tuple(x.shape), "replicated")
        if shape is None:
            return everywhere
        part = None if is_only else _part(tuple(x.shape), shape, dims, self.mesh)
        if part is not None:
            return part
        known = self.probe is not None and len(probe.shape) == len(x.shape)
        where = inherited(
            tuple(x.shape),
            tuple(probe.shape if known else x.shape),
            shape,
            self.probes[i] if known else shape,
            dims,
            self.mesh,
        )
        axes = tuple(axis for dim in dims for axis in dim)
        blocks = (axes, *((),) * (len(x.shape) - 1))
        if where is None and x.shape and not is_only and divides(self.mesh, x.shape, blocks):
            # Blocks of numbers: consecutive ones together.
            return Placement(blocks, tuple(x.shape), "blocks, over the parameter's axes")
        return where or everywhere

    def _by_blocks(self, slot: Any, where: Placement) -> Placement:
        """The sharding of a slot in a codec: that of an array, where it divides no block."""
        blocks, units, notes = slot.blocks, list(slot.shape), [where.note]
        if blocks is not None:
            units[blocks.axis] = blocks.number if blocks.fill(slot.shape) else 1
        dims = list(where.dims)
        for axis, over in enumerate(where.dims):
            if over and units[axis] % parts(self.mesh, over):
                dims[axis] = ()
                notes.append(f"not along dimension {axis}, where that would divide blocks")
        inside = Placement(tuple(dims), tuple(units), "; ".join(notes))
        if not self.zero:
            return inside
        if slot.size < self.min_size:
            return replace(inside, note=SMALL)
        as_array = self._further(replace(inside, shape=slot.shape))
        if divides(self.mesh, inside.shape, as_array.dims):
            return as_array
        return spread(inside, self.mesh, self.zero, 0, pad=False)

    def _further(self, where: Placement, *, pad: bool = False, end: int | None = None) -> Placement:
        """A placement divided further over the axes of ZeRO, or over those before index `end`."""
        axes = self.zero[:end]
        return spread(where, self.mesh, axes, self.min_size, pad) if axes else where

    def runs(self, sharded: ShardedState) -> bool:
        """Whether the transformation can take a step on a state that is padded like `sharded`."""
        try:
            step = functools.partial(next_state, self.tx)
            new = jax.eval_shape(step, self.params, sharded.state, self.params)
        except Exception:  # a transformation that takes only arrays may raise anything
            return False
        like: Any = jax.tree.structure(sharded.state)
        pairs = zip(jax.tree.leaves(sharded.state), jax.tree.leaves(new), strict=False)
        return bool(jax.tree.structure(new) == like) and all(
            (x.shape, x.dtype) == (y.shape, y.dtype) for x, y in pairs
        )
