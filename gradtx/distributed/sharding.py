"""Sharding: where every leaf of a state lies, from where the parameters lie."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gradtx.distributed.padding import Padded, is_padded, unpadded
from gradtx.distributed.placement import (
    Placement,
    dims_of,
    divides,
    inherited,
    sharding_of,
    spread,
)
from gradtx.inspection import _slot_fields
from gradtx.pair import GradientTransformation, with_extra_args_support
from gradtx.paths import aligned, first_difference, is_leaf, leaves_with_path, path_string
from gradtx.search import _children, _rebuilt
from gradtx.types import Params, PyTree, State

MIN_SIZE = 16_384
"""Slots with fewer entries are not divided further: a message costs more than they do."""


@dataclass(frozen=True)
class LeafSharding:
    """One line of a report: a leaf of the state, where it lies and why, its bytes on a device."""

    path: str
    shape: tuple[int, ...]
    spec: PartitionSpec
    note: str
    bytes: int


@dataclass(frozen=True)
class StateSharding:
    """Where parameters, gradients and state lie, as :func:`state_sharding` found it.

    Attributes:
        params: a tree of shardings like the parameters.
        gradients: where the optimizer works on each gradient; other than `params` under `zero`.
        state: a tree of shardings like the state, with `Padded` in the place of padded slots.
        abstract: the state as `jax.ShapeDtypeStruct`, for compiling ahead of time.
        leaves: what was done with every leaf of the state; ``print`` shows it.
    """

    params: PyTree
    gradients: PyTree
    state: PyTree
    abstract: PyTree
    leaves: tuple[LeafSharding, ...]

    @property
    def bytes_per_device(self) -> int:
        """The bytes of the state on one device."""
        return sum(leaf.bytes for leaf in self.leaves)

    def init(self, tx: GradientTransformation, params: Params) -> State:
        """The state for `params`, made where it belongs and never whole on one device."""
        return jax.jit(lambda p: self._padded(tx.init(p)), out_shardings=self.state)(params)

    def put(self, state: State) -> State:
        """A whole state, such as one that was loaded, moved to where it belongs.

        Raises:
            ValueError: it is another tree, or a leaf has another shape (the error names it).
        """
        return jax.tree.map(_put, self._padded(state), self.state)

    def whole(self, state: State) -> State:
        """A state without padding, as for saving it: a run on any number of devices can load it."""
        return unpadded(state)

    def _padded(self, state: State) -> State:
        treedef: Any
        given: Any
        ours, treedef = jax.tree_util.tree_flatten_with_path(self.abstract, is_leaf=is_padded)
        theirs, given = jax.tree.flatten(state)
        if given != treedef:
            problem = first_difference(treedef.unflatten([x for _, x in ours]), state)
            raise ValueError(f"the state is not one of this sharding: {problem}")
        for (path, place), x in zip(ours, theirs, strict=True):
            if tuple(x.shape) != tuple(place.shape):
                raise ValueError(
                    f"the state is not one of this sharding: {path_string(path)!r} has the shape "
                    f"{x.shape}, not {place.shape}"
                )
        pairs = zip(ours, theirs, strict=True)
        return treedef.unflatten(
            [Padded.of(x, p.value.shape) if is_padded(p) else x for (_, p), x in pairs]
        )

    def __str__(self) -> str:
        rows = [("leaf", "shape", "sharding", "bytes per device", "")]
        rows += [(x.path, str(x.shape), str(x.spec), f"{x.bytes:,}", x.note) for x in self.leaves]
        rows.append(("all", "", "", f"{self.bytes_per_device:,}", ""))
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = ["  ".join(f"{c:{w}}" for c, w in zip(r, [*widths, 0], strict=True)) for r in rows]
        return "\n".join(line.rstrip() for line in lines)


def state_sharding(
    tx: GradientTransformation,
    params: Params,
    params_sharding: PyTree | None = None,
    *,
    zero: str | None = None,
    min_size: int = MIN_SIZE,
) -> StateSharding:
    """Where every leaf of a state belongs, given where the parameters lie. Allocates nothing.

    A slot lies as its parameter does; one of another shape (factored, reduced, projected, stored in
    blocks) as those dimensions do that it shares with the parameter. Counters and random keys are
    on every device.

    Args:
        tx: any transformation, also of another library.
        params: the parameters, or `jax.ShapeDtypeStruct` in their place; `None` where a leaf is not
            trained.
        params_sharding: a `jax.sharding.NamedSharding` for each leaf or one for all; that of the
            arrays unless given.
        zero: the name of a mesh axis over which to divide slots further (ZeRO stage 1, and with
            :func:`make_step` stage 2): along the largest dimension that it divides, else by padding
            one, if the transformation can run on padded slots.
        min_size: slots with fewer entries are not divided further.

    Returns:
        A `StateSharding`: shardings of parameters, gradients and state, and a report.

    Raises:
        TypeError: a parameter has no `jax.sharding.NamedSharding`.
        ValueError: the trees differ, shardings are on different meshes or do not divide a parameter
            (the error names it), or `zero` is not an axis of the mesh.

    Source: S. Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter
    Models, 2020, arXiv:1910.02054, sections 5.1 and 5.2.

    >>> import gradtx
    >>> mesh = jax.make_mesh((1,), ("data",))
    >>> everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    >>> sharding = state_sharding(gradtx.adam(1e-3), {"w": jnp.zeros((4, 2))}, everywhere)
    >>> sharding.bytes_per_device, sharding.leaves[1].path, sharding.leaves[1].note
    (68, '0/mu/w', 'as the parameter')
    """
    leaves, treedef = leaves_with_path(params)
    shardings = _aligned(params, params_sharding)
    mesh = _common_mesh(leaves, shardings)
    if zero is not None and zero not in mesh.shape:
        raise ValueError(
            f"state_sharding: zero={zero!r} is not an axis of the mesh; its axes are "
            f"{', '.join(map(repr, mesh.shape))}"
        )
    plan = _Plan(tx, leaves, treedef, shardings, mesh, zero, min_size)
    placed = plan.place(frozenset())
    if zero is not None:
        # Padding is for those slots on which the transformation then still runs.
        tried = plan.place(None)
        runs = {f for f in tried.padded if plan.runs(plan.place(frozenset({f})))}
        if runs and plan.runs(tried := plan.place(frozenset(runs))):
            placed = tried
    return StateSharding(
        params=treedef.unflatten(shardings),
        gradients=treedef.unflatten(plan.gradients()),
        state=jax.tree.map(lambda x: x.sharding, placed.state),
        abstract=placed.state,
        leaves=tuple(placed.leaves),
    )


def _put(x: Any, sharding: Any) -> Any:
    if sharding.is_fully_addressable:
        return jax.device_put(x, sharding)
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        data = _put(jax.random.key_data(x), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    # Every process has the whole and keeps what is its own.
    whole = np.asarray(x)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


def init_sharded(
    tx: GradientTransformation, params: Params, *, zero: str | None = None, min_size: int = MIN_SIZE
) -> State:
    """``tx.init(params)``, made in its sharding and never whole on one device.

    Args:
        tx: any transformation.
        params: the parameters, as `jax.Array` with a `jax.sharding.NamedSharding`.
        zero: this and `min_size` as in :func:`state_sharding`, which tells the sharding.
        min_size: slots with fewer entries are not divided further.

    >>> import gradtx
    >>> mesh = jax.make_mesh((1,), ("data",))
    >>> rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    >>> state = init_sharded(gradtx.adam(1e-3), jax.device_put(jnp.zeros(4), rows))
    >>> state[0].mu.sharding.spec
    P('data',)
    """
    return state_sharding(tx, params, zero=zero, min_size=min_size).init(tx, params)


def _aligned(params: Params, params_sharding: PyTree | None) -> list[Any]:
    """The sharding of each parameter."""
    leaves, treedef = leaves_with_path(params)
    if params_sharding is None:
        given = [getattr(p, "sharding", None) for _, p in leaves]
    elif isinstance(params_sharding, jax.sharding.Sharding):
        given = [params_sharding] * len(leaves)
    else:
        problem = "state_sharding: the parameters and their shardings are different trees"
        given = aligned(problem, params, treedef, params_sharding)
    return given


def _common_mesh(leaves: list[tuple[Any, Any]], shardings: list[Any]) -> Mesh:
    mesh: Any = None
    for (path, p), sharding in zip(leaves, shardings, strict=True):
        if p is None:
            continue
        where = path_string(path)
        if not isinstance(sharding, NamedSharding):
            raise TypeError(
                f"state_sharding: the parameter at {where!r} has the sharding {sharding}, not a "
                "NamedSharding: put it on a mesh with jax.device_put, or pass params_sharding"
            )
        if mesh is not None and sharding.mesh != mesh:
            raise ValueError(
                f"state_sharding: the parameter at {where!r} is on {sharding.mesh}, others on "
                f"{mesh}"
            )
        mesh = sharding.mesh
        if len(sharding.spec) > len(p.shape) or not divides(
            mesh, p.shape, dims_of(sharding.spec, len(p.shape))
        ):
            raise ValueError(
                f"state_sharding: {sharding.spec} on {dict(mesh.shape)} does not divide the "
                f"parameter at {where!r}, of shape {tuple(p.shape)}"
            )
    if mesh is None:
        raise ValueError("state_sharding: there are no parameters")
    return mesh


def _probe(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes that all differ, in the same order, and little larger: the same choices are made."""
    sizes = list(shape)
    for rank, i in enumerate(sorted(range(len(shape)), key=lambda i: (shape[i], i))):
        sizes[i] += rank
    return tuple(sizes)


class _Placed:
    """The state with a sharding on every leaf, a report, and the slots that were padded."""

    def __init__(self) -> None:
        self.state: PyTree = None
        self.leaves: list[LeafSharding] = []
        self.padded: set[str] = set()


class _Plan:
    """Walks a state as `init` would make it, beside the state of probes."""

    def __init__(
        self,
        tx: GradientTransformation,
        leaves: list[tuple[Any, Any]],
        treedef: Any,
        shardings: list[Any],
        mesh: Mesh,
        zero: str | None,
        min_size: int,
    ) -> None:
        self.tx, self.treedef, self.mesh = with_extra_args_support(tx), treedef, mesh
        self.zero, self.min_size = zero, min_size
        self.shapes = [None if p is None else tuple(p.shape) for _, p in leaves]
        self.probes = [() if s is None else _probe(s) for s in self.shapes]
        self.dims = [
            () if s is None else dims_of(sharding.spec, len(s))
            for s, sharding in zip(self.shapes, shardings, strict=True)
        ]
        self.dtypes = [None if p is None else p.dtype for _, p in leaves]
        self.params = self._abstract(self.shapes)
        self.state = jax.eval_shape(self.tx.init, self.params)
        try:
            probe = jax.eval_shape(self.tx.init, self._abstract(self.probes))
        except Exception:  # whatever an `init` raises that knows its parameters' shapes
            probe = None
        like: Any = jax.tree.structure(self.state)
        self.probe = probe if jax.tree.structure(probe) == like else None

    def _abstract(self, shapes: list[Any]) -> PyTree:
        pairs = zip(shapes, self.dtypes, strict=True)
        return self.treedef.unflatten(
            [None if d is None else jax.ShapeDtypeStruct(s, d) for s, d in pairs]
        )

    def gradients(self) -> list[Any]:
        """Where each gradient goes: where a slot of its shape goes that is not padded."""
        return [
            None if s is None else sharding_of(self.mesh, self._further(s, d, "", frozenset()).dims)
            for s, d in zip(self.shapes, self.dims, strict=True)
        ]

    def place(self, pads: frozenset[str] | None) -> _Placed:
        """Place every leaf, padding those slots (None for all) that nothing divides."""
        placed = _Placed()

        def put(path: str, x: Any, where: Placement) -> Any:
            kept = jax.ShapeDtypeStruct(
                where.shape, x.dtype, sharding=sharding_of(self.mesh, where.dims)
            )
            shard: Any = kept.sharding
            n = math.prod(shard.shard_shape(where.shape)) * x.dtype.itemsize
            placed.leaves.append(LeafSharding(path, tuple(x.shape), shard.spec, where.note, n))
            return kept if where.shape == tuple(x.shape) else Padded(kept, x.shape)

        def on_slot(path: str, tree: Any, probe: Any) -> Any:
            try:
                columns = self.treedef.flatten_up_to(tree)
                probes = self.treedef.flatten_up_to(tree if probe is None else probe)
            except ValueError:  # one flat vector, for example
                return on_others(path, tree, spreading=True)
            paths = [path_string(p) for p, _ in leaves_with_path(self.params)[0]]
            new = []
            for i, (column, like) in enumerate(zip(columns, probes, strict=True)):
                structure: Any
                parts, structure = jax.tree_util.tree_flatten_with_path(column)
                likes = jax.tree.leaves(like)
                below = "/".join(filter(None, (path, paths[i])))
                made = []
                for (p, x), y in zip(parts, likes, strict=True):
                    at = "/".join(filter(None, (below, path_string(p))))
                    whole = structure == jax.tree.structure(0)
                    where = self._inherited(i, x, y, whole)
                    if self.zero is not None:
                        allowed = frozenset() if not whole else pads
                        where = self._further(where.shape, where.dims, path, allowed, where)
                    if where.shape != tuple(x.shape):
                        placed.padded.add(path)
                    made.append(put(at, x, where))
                new.append(structure.unflatten(made))
            return self.treedef.unflatten(new)

        def on_others(path: str, tree: Any, spreading: bool = False) -> Any:
            def one(p: Any, x: Any) -> Any:
                where = Placement(((),) * len(x.shape), tuple(x.shape), "replicated")
                if spreading and self.zero is not None:
                    where = self._further(where.shape, where.dims, path, frozenset(), where)
                return put("/".join(filter(None, (path, path_string(p)))), x, where)

            return jax.tree_util.tree_map_with_path(one, tree)

        def walk(path: str, node: Any, probe: Any) -> Any:
            if self._mirrors(node):
                return on_slot(path, node, probe)
            children = _children(node)
            if not children:
                return on_others(path, node)
            others: Any = _children(probe) if probe is not None else [(None, None)] * len(children)
            cls: Any = type(node)
            slots = _slot_fields(cls) if hasattr(node, "_fields") else frozenset()
            new = []
            for (key, child), (_, other) in zip(children, others, strict=True):
                name = getattr(key, "name", None) or path_string((key,))
                below = "/".join(filter(None, (path, name)))
                new.append((on_slot if name in slots else walk)(below, child, other))
            return _rebuilt(node, new)

        placed.state = walk("", self.state, self.probe)
        return placed

    def _mirrors(self, node: Any) -> bool:
        """Whether a part of a state of another library looks like the parameters."""
        structure: Any = jax.tree.structure(node, is_leaf=is_leaf)
        if jax.tree_util.all_leaves([node]):
            one = len(self.shapes) == 1 and self.treedef == jax.tree.structure(0)
            return bool(one and node.shape == self.shapes[0] and node.shape)
        return bool(structure == self.treedef)

    def _inherited(self, i: int, x: Any, probe: Any, whole: bool) -> Placement:
        """Where a leaf of the slot of parameter `i` goes; `whole` if it is all of that slot."""
        shape, dims = self.shapes[i], self.dims[i]
        everywhere = Placement(((),) * len(x.shape), tuple(x.shape), "replicated")
        if shape is None:
            return everywhere
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
        if where is None and x.shape and not whole and divides(self.mesh, x.shape, blocks):
            # Blocks of numbers: consecutive ones together.
            return Placement(blocks, tuple(x.shape), "blocks, over the parameter's axes")
        return where or everywhere

    def _further(
        self,
        shape: tuple[int, ...],
        dims: Any,
        path: str,
        pads: frozenset[str] | None,
        otherwise: Placement | None = None,
    ) -> Placement:
        if self.zero is None:
            return otherwise or Placement(dims, shape, "")
        pad = pads is None or path in pads
        return spread(shape, dims, self.mesh, self.zero, self.min_size, pad)

    def runs(self, placed: _Placed) -> bool:
        """Whether the transformation takes such a state and returns one like it."""

        def update(g: PyTree, state: State, p: Params) -> State:
            value: Callable[[Any], Any] = lambda _: jnp.zeros([])  # noqa: E731
            extra = {"value": jnp.zeros([]), "grad": g, "value_fn": value}
            return self.tx.update(g, state, p, **extra)[1]

        try:
            new = jax.eval_shape(update, self.params, placed.state, self.params)
        except Exception:  # whatever a transformation raises that takes arrays only
            return False
        like: Any = jax.tree.structure(placed.state)
        pairs = zip(jax.tree.leaves(placed.state), jax.tree.leaves(new), strict=False)
        return bool(jax.tree.structure(new) == like) and all(
            (x.shape, x.dtype) == (y.shape, y.dtype) for x, y in pairs
        )
