"""Sharding: the shardings of a state, derived from those of the parameters."""

import contextlib
import functools
import math
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from gradtx.core.pair import GradientTransformation
from gradtx.leaves.paths import aligned, first_difference, leaves_with_path, path_string, with_paths
from gradtx.leaves.shardings import automatic
from gradtx.names.namespace import warn
from gradtx.ownership.owned_slots import apart, is_owned, together
from gradtx.ownership.owners import Stack, stacks
from gradtx.sharding.axes import AxisName, axes_of, check_axis_name
from gradtx.sharding.divided_state import (
    ChosenSlots,
    DividedState,
    LeafSharding,
    SlotPlaces,
    next_state,
)
from gradtx.sharding.operations import owners_lines
from gradtx.sharding.padding import Padded, is_padded, unpadded
from gradtx.sharding.placement import SMALL, dims_of, divides
from gradtx.sharding.resharding import resharded
from gradtx.storage import is_encoded
from gradtx.types import Params, PyTree, State, Updates

MIN_SIZE = 16_384
"""Slots with fewer entries are not divided further: a message costs more than they do."""


@dataclass(frozen=True)
class StateSharding:
    """The shardings of parameters, gradients and state, from :func:`state_sharding`.

    Attributes:
        params: a tree of shardings like the parameters.
        reductions: where each gradient is brought, tree after tree, one for each axis of `zero`: a
            TPU scatters a reduction over one axis at a time.
        state: a tree of shardings like the state, with `Padded` in place of padded slots.
        abstract: the state as `jax.ShapeDtypeStruct`, for compiling ahead of time.
        leaves: the placement of every leaf of the state; ``print`` shows it, and `owned`.
        tx: the transformation.
        like: the parameters as `jax.ShapeDtypeStruct`.
        balance: whether stacks of matrices that do not divide begin at different devices.
        advice: what to do where `zero` divides nothing, since all slots are small; otherwise None.
    """

    params: PyTree
    reductions: tuple[PyTree, ...]
    state: PyTree
    abstract: PyTree
    leaves: tuple[LeafSharding, ...]
    tx: GradientTransformation = field(repr=False)
    like: Params = field(repr=False)
    balance: bool = False
    advice: str | None = None

    @property
    def gradients(self) -> PyTree:
        """The sharding of gradients for the optimizer; under `zero` not that of `params`."""
        return self.reductions[-1]

    @property
    def bytes_per_device(self) -> int:
        """The bytes of the state on one device."""
        return sum(leaf.bytes for leaf in self.leaves)

    @functools.cached_property
    def owned(self) -> tuple[Stack, ...]:
        """The stacks whose matrices devices share out and transform whole. Allocates nothing."""
        places = jax.tree.leaves(self.gradients)
        if not any(len(place.spec) for place in places):
            return ()
        step = functools.partial(next_state, self.placed(self.tx))

        def placed_step(g: Updates, state: State, p: Params) -> State:
            return automatic(step, self.state, g, state, p)

        with (
            stacks() as divided,
            contextlib.suppress(Exception),
        ):  # one of another library may raise
            jax.eval_shape(placed_step, self.like, self.abstract, self.like)
        return tuple(divided)

    def init(self, tx: GradientTransformation, params: Params) -> State:
        """The state for `params`, made in its sharding and never whole on one device."""

        def start(params: Params) -> State:
            return automatic(lambda p: self._formed(tx.init(p)), self.state, params)

        state: State = jax.jit(start, out_shardings=self.state)(params)
        return state

    def placed(self, tx: GradientTransformation) -> GradientTransformation:
        """`tx` for compiled steps of your own, working as in :func:`make_step` on this sharding.

        Gradients are brought to where their slots are, and updates back. Matrices whose rows or
        columns are divided, such as Muon's, are brought together, each on one device, and are
        transformed there without a message; equal ones go as one stack.
        """
        return resharded(tx, self.reductions, self.balance)

    def put(self, state: State) -> State:
        """A state, such as one that was loaded, in the sharding, padding and stacks of this.

        It may be whole, or have padding and stacks of this sharding or another.

        Raises:
            ValueError: it is another tree, or a leaf has another shape (the error names it).
        """
        return jax.tree.map(_device_put, self._formed(state), self.state)

    def whole(self, state: State) -> State:
        """A state without padding, as for saving it: a run on any number of devices can load it."""
        return unpadded(apart(state))

    def _formed(self, state: State) -> State:
        """A state with slots padded and in stacks, as this sharding has them."""
        treedef: Any
        theirs_treedef: Any

        def formed(x: Any) -> bool:
            return is_padded(x) or is_owned(x) or is_encoded(x)

        ours, treedef = with_paths(self.abstract, is_leaf=formed)
        theirs, theirs_treedef = jax.tree.flatten(self.whole(state), is_leaf=is_encoded)
        if theirs_treedef != treedef:
            alone = treedef.unflatten([0] * len(ours)), theirs_treedef.unflatten([0] * len(theirs))
            problem = first_difference(*alone)
            raise ValueError(f"the state is not one of this sharding: {problem}")
        for (path, place), x in zip(ours, theirs, strict=True):
            if tuple(x.shape) != tuple(place.shape):
                raise ValueError(
                    f"the state is not one of this sharding: {path_string(path)!r} has the shape "
                    f"{x.shape}, not {place.shape}"
                )
        places = [place for _, place in ours]
        padded = [
            Padded.of(x, place.value.shape) if is_padded(place) else x
            for x, place in zip(together(theirs, places), places, strict=True)
        ]
        new_state = treedef.unflatten(padded)
        expected: Any = jax.tree.structure(self.abstract)
        if jax.tree.structure(new_state) != expected:
            problem = first_difference(self.abstract, new_state)
            raise ValueError(f"the state is not one of this sharding: {problem}")
        return new_state

    def __str__(self) -> str:
        rows = [("leaf", "shape", "sharding", "bytes per device", "")]
        rows += [(x.path, str(x.shape), str(x.spec), f"{x.bytes:,}", x.note) for x in self.leaves]
        rows.append(("all", "", "", f"{self.bytes_per_device:,}", ""))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)) for row in rows]
        lines += owners_lines(self.owned)
        lines += [f"advice: {self.advice}"] * (self.advice is not None)
        return "\n".join(line.rstrip() for line in lines)


def state_sharding(
    tx: GradientTransformation,
    params: Params,
    params_sharding: PyTree | None = None,
    *,
    zero: AxisName | None = None,
    min_size: int = MIN_SIZE,
    balance: bool = False,
    slots: SlotPlaces | None = None,
) -> StateSharding:
    """The sharding of every leaf of a state, given those of the parameters. Allocates nothing.

    A slot is sharded like its parameter; one of another shape (factored, reduced, projected, stored
    in blocks) along the dimensions that it shares with the parameter. Counters and random keys are
    replicated.

    Args:
        tx: any transformation, also of another library.
        params: the parameters, or `jax.ShapeDtypeStruct` in their place; `None` where a leaf is not
            trained.
        params_sharding: a `jax.sharding.NamedSharding` for each leaf or one for all; that of the
            arrays by default.
        zero: the name of a mesh axis over which to divide slots further (ZeRO stage 1, and with
            :func:`make_step` stage 2): along the largest dimension that it divides, or by padding
            one, if the transformation can run on padded slots. With a tuple of names, over one
            after another.
        min_size: slots with fewer entries are not divided further. A warning says so where that is
            true of all slots, and `zero` divides nothing.
        balance: whether to balance stacks of equal matrices that do not divide, those of Muon for
            example. The busiest device then has less to do, and each keeps its part of all these
            stacks in memory at once; ``print`` shows the operations. Not for steps that are
            differentiated in reverse.
        slots: which slots lie otherwise, and where: ``{"*/mu/*": PartitionSpec("data")}``, with a
            path pattern for the paths that ``print`` shows (the first that fits counts), or a
            function ``(path, slot) -> PartitionSpec or None`` of a slot's path, and of its shape
            and dtype. They are not divided further. Slots in a codec, and stacks of matrices that
            devices share out, lie as ever.

    Returns:
        A `StateSharding`: shardings of parameters, gradients and state, and a report.

    Raises:
        TypeError: a parameter has no `jax.sharding.NamedSharding`.
        ValueError: the trees differ, shardings are on different meshes or do not divide a parameter
            (the error names it) or a slot, `zero` is not an axis of the mesh, or a pattern of
            `slots` chooses none.

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
    if zero:
        check_axis_name("state_sharding: zero", zero)
    over = () if zero is None else axes_of(zero)
    if unknown := [axis for axis in over if axis not in mesh.shape]:
        raise ValueError(
            f"state_sharding: zero={unknown[0]!r} is not an axis of the mesh; its axes are "
            f"{', '.join(map(repr, mesh.shape))}"
        )
    chosen = ChosenSlots(slots)
    plan = DividedState(tx, leaves, treedef, shardings, mesh, over, min_size, balance, chosen)
    placed = plan.place(frozenset())
    chosen.check()
    if over:
        # Only slots on which the transformation then still runs are padded.
        tried = plan.place(None)
        runs = {f for f in tried.padded if plan.runs(plan.place(frozenset({f})))}
        if runs and plan.runs(tried := plan.place(frozenset(runs))):
            placed = tried
    largest = max((math.prod(p.shape) for _, p in leaves if p is not None), default=0)
    advice = _if_all_are_small(placed.leaves, largest, over, mesh, min_size)
    if advice is not None:
        warn(f"state_sharding: {advice}")
    return StateSharding(
        params=treedef.unflatten(shardings),
        reductions=tuple(map(treedef.unflatten, plan.reductions())),
        state=jax.tree.map(lambda x: x.sharding, placed.state),
        abstract=placed.state,
        leaves=tuple(placed.leaves),
        tx=plan.tx,
        like=plan.params,
        balance=balance,
        advice=advice,
    )


def _if_all_are_small(
    leaves: list[LeafSharding], largest: int, over: tuple[str, ...], mesh: Mesh, min_size: int
) -> str | None:
    """The advice where ZeRO divides nothing, since all parameters and slots are small."""
    small = (math.prod(leaf.shape) for leaf in leaves if leaf.note == SMALL)
    sizes = [size for size in small if size > 1]
    specs = (dims_of(leaf.spec, len(leaf.spec)) for leaf in leaves)
    divided = any(axis in over for dims in specs for axes in dims for axis in axes)
    if not sizes or divided or largest >= min_size or all(mesh.shape[a] == 1 for a in over):
        return None
    most, least = max(sizes), min(sizes)
    return (
        f"zero={(over[0] if len(over) == 1 else over)!r} divides no slot, since all have fewer "
        f"than min_size={min_size} entries: min_size={most} divides the largest"
        + f", min_size={least} all"
        * (least < most)
    )


def _device_put(x: Any, sharding: Any) -> Any:
    if sharding.is_fully_addressable:
        return jax.device_put(x, sharding)
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        data = _device_put(jax.random.key_data(x), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    # Every process has the whole array and keeps its own part.
    array = np.asarray(x)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def init_sharded(
    tx: GradientTransformation,
    params: Params,
    *,
    zero: AxisName | None = None,
    min_size: int = MIN_SIZE,
) -> State:
    """``tx.init(params)``, made in its sharding and never whole on one device.

    Args:
        tx: any transformation.
        params: the parameters, as `jax.Array` with a `jax.sharding.NamedSharding`.
        zero: this and `min_size` as in :func:`state_sharding`, which chooses the sharding.
        min_size: slots with fewer entries are not divided further.

    >>> import gradtx
    >>> mesh = jax.make_mesh((1,), ("data",))
    >>> rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    >>> state = init_sharded(gradtx.adam(1e-3), jax.device_put(jnp.zeros(4), rows))
    >>> state[0].mu.sharding.spec == rows.spec
    True
    """
    return state_sharding(tx, params, zero=zero, min_size=min_size).init(tx, params)


def _aligned(params: Params, params_sharding: PyTree | None) -> list[Any]:
    """The sharding of each parameter."""
    leaves, treedef = leaves_with_path(params)
    if params_sharding is None:
        shardings = [getattr(p, "sharding", None) for _, p in leaves]
    elif isinstance(params_sharding, jax.sharding.Sharding):
        shardings = [params_sharding] * len(leaves)
    else:
        problem = "state_sharding: the parameters and their shardings are different trees"
        shardings = aligned(problem, params, treedef, params_sharding)
    return shardings


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
