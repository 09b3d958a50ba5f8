"""A step inside of the backward pass: stacked parameters are updated layer by layer.

The derivative of a scan over stacked parameters (:mod:`gradtx.backward.scans`) hands over the
gradients of one layer at a time. The optimizer runs on that layer, as a stack of one, and the new
parameters and slots are written in place, so that the gradients of all layers are never there at
once. The optimizer must compute each layer separately, which its program tells
(:mod:`gradtx.programs.separate`).
"""

import functools
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.backward.layer_stacks import (
    as_it_was,
    divides_rows,
    in_slices,
    is_one_stack,
    key_of_layer,
    layer_of,
    with_layer,
)
from gradtx.backward.layerwise import in_its_place, norm_for, refuse_by_kind
from gradtx.backward.scans import Evaluated, Loops, Stage
from gradtx.composition.apply import take_step
from gradtx.core.explanations import public_name
from gradtx.core.pair import GradientTransformation
from gradtx.leaves.memory import HOST, OnHost, all_near, brought_in, is_on_host
from gradtx.leaves.packed import holds_packed
from gradtx.leaves.paths import Where, map_present, mask_tree, path_string, with_paths
from gradtx.leaves.shardings import dividing_axes, explicit_mesh, known_shardings
from gradtx.leaves.whole import whole_leaves
from gradtx.numerics import cast, scalar_dtype
from gradtx.numerics.compiler_hints import true_after
from gradtx.numerics.control import in_form_of, inside
from gradtx.programs.separate import (
    OUTSIDE,
    Kind,
    Mixed,
    check_owner,
    formula,
    free,
    in_layers,
    owned_by,
    owners_after,
)
from gradtx.programs.tracing import vary, varying_axes
from gradtx.sharding.resharding import Shardings, put
from gradtx.storage import is_encoded
from gradtx.tree.search import map_params
from gradtx.tree.sums import norm_of_parts, sums_for_norm
from gradtx.types import Array, Params, PyTree, State, is_stored
from gradtx.types.keys import is_key

_BITS = 32  # of the number of a layer in its owner, above which is the number of the scan

ClosedLoss = Callable[[Params], tuple[Array, Any]]


@dataclass(frozen=True)
class InsidePlan:
    """The leaves that are updated inside of the backward pass, and those that are not.

    Attributes:
        inside: the number of layers of each leaf that is updated inside, by path.
        bytes: the bytes of gradients that are never held, of all layers but one.
        outside: the reason why each other leaf is not updated inside, by path.
        refused: why the optimizer cannot run on one layer at a time, so that the step raises an
            error; None if nothing is known against it.
        host_bytes: the bytes of slots that come in from the memory of the host for one layer, and
            go out again; if there are several scans, for a layer of the scan with most.
    """

    inside: Mapping[str, int]
    bytes: int
    outside: Mapping[str, str]
    refused: str | None = None
    host_bytes: int = 0

    def __str__(self) -> str:
        lines = [f"{path}: {layers} layers" for path, layers in self.inside.items()]
        lines += [f"{path}: ordinary step, {why}" for path, why in self.outside.items()]
        lines.append(f"{self.bytes:,} bytes of gradients are never held")
        if self.host_bytes:
            lines.append(f"{self.host_bytes:,} bytes of slots come from the host at each layer")
        return "\n".join([*lines, *([] if self.refused is None else [self.refused])])


class _Problem(NamedTuple):
    """The reason why an optimizer cannot run on one layer at a time; None if it can.

    `certain` is whether an analysis found this, and not an error in it.
    """

    certain: bool
    why: str | None


class Inside:
    """A loss whose program has been read, and the leaves that can be updated inside.

    Args:
        loss: ``params -> (value, aux)``.
        tx: the optimizer.
        trained: the parameters.
        where: True for all leaves that qualify, or which of them, as in :func:`select`.
        sharding: the shardings of parameters and state, if they are given.

    Raises:
        ValueError: a leaf that `where` names does not qualify, or none does; the optimizer does
            something before gradients are taken, or reduces them over devices.
    """

    def __init__(
        self,
        loss: ClosedLoss,
        tx: GradientTransformation,
        trained: Params,
        where: Where | bool,
        sharding: Shardings | None = None,
    ) -> None:
        if holds_packed(trained):
            raise ValueError("inside: the parameters are packed; give the tree that was packed")
        refuse_by_kind(tx)
        self.norm_for = norm_for(tx)
        self.sharding_at = {} if sharding is None else dict(_by_path(sharding.params))
        self.tx, self.trained = tx, trained
        # `tx` itself is analysed; the form of it that takes the step knows where leaves lie.
        self.placed = tx if sharding is None else sharding.placed(tx)
        keyed, self.treedef = with_paths(trained)
        self.paths = [path_string(path) for path, _ in keyed]
        self.leaves = [leaf for _, leaf in keyed]
        if sharding is not None and self._is_divided_further(sharding):
            raise ValueError(
                "inside: the slots are divided further than the parameters (zero=), and each layer "
                "would be gathered besides the whole stack: shard the parameters themselves, or "
                "make the step without inside"
            )

        def flat(*leaves: Any) -> list[Any]:
            results, self.out = jax.tree.flatten(loss(self.treedef.unflatten(leaves)))
            return results

        self.loops = Loops(flat, self.leaves)
        if self.loops.looks_up:
            raise ValueError(
                "inside: the loss looks up rows of a table by sparse.take, whose gradients are "
                "rows; index the table instead, or make the step without inside"
            )
        self._choose(where)
        self.index = self.treedef.unflatten(range(len(self.leaves)))
        self.stage_of = {
            stack.leaf: k for k, stage in enumerate(self.loops.stages) for stack in stage.stacks
        }

    def _choose(self, where: Where | bool) -> None:
        why = {self.paths[i]: reason for i, reason in self.loops.why_not.items()}
        divided = {
            path
            for path, x in zip(self.paths, self.leaves, strict=True)
            for sharding in (self.sharding_at.get(path), getattr(jax.typeof(x), "sharding", None))
            if sharding is not None and any(dividing_axes(sharding, x.ndim)[:1])
        }
        for path in self.paths:
            if path in divided and path not in why:
                why[path] = "its layers are divided between devices: shard another axis"
        self.loops.keep(lambda i: self.paths[i] not in why)
        if where is not True:
            mask = mask_tree(self.trained, where)  # also of leaves that are not trained
            chosen = jax.tree.leaves(map_present(lambda _, c: c, self.trained, mask))
            for path, is_chosen in zip(self.paths, chosen, strict=True):
                if is_chosen and path in why:
                    raise ValueError(f"inside: {path!r} cannot be updated inside: {why[path]}")
            self.loops.keep(lambda i: chosen[i])
            others = [p for p, is_chosen in zip(self.paths, chosen, strict=True) if not is_chosen]
            why = dict.fromkeys(others, "it is not chosen")
        if not self.loops.stages:
            reasons = "; ".join(f"{path}: {reason}" for path, reason in why.items())
            raise ValueError(
                f"inside: no scan of the loss has stacked parameters for itself ({reasons})"
            )
        self.why = why

    def _is_divided_further(self, sharding: Shardings) -> bool:
        """Whether slots are divided over other axes of the mesh than their parameters."""
        ndims = {path: x.ndim for path, x in zip(self.paths, self.leaves, strict=True)}
        reduced = [pair for tree in sharding.reductions for pair in _by_path(tree)]
        return any(
            dividing_axes(on, ndims[path]) != dividing_axes(self.sharding_at[path], ndims[path])
            for path, on in reduced
            if path in ndims
        )

    @property
    def plan(self) -> InsidePlan:
        """The leaves that are updated inside of the backward pass, and the bytes thus saved."""
        stages = self.loops.stages
        layers = {self.paths[s.leaf]: stage.length for stage in stages for s in stage.stacks}
        saved = [
            self.leaves[s.leaf].nbytes // stage.length * (stage.length - 1)
            for stage in stages
            for s in stage.stacks
        ]
        value = self.loops.jaxpr.outvars[0].aval
        extra_args = {"value": jax.ShapeDtypeStruct(value.shape, value.dtype)}
        problem = self._problem(self.tx, jax.eval_shape(self.tx.init, self.trained), extra_args)
        refused = (
            self._refusal(problem.why, extra_args) if problem.certain and problem.why else None
        )
        return InsidePlan(layers, sum(saved), self.why, refused, self._from_host())

    def _from_host(self) -> int:
        """The bytes of slots that a turn of a loop brings in from the memory of the host."""
        if not self._offloads():
            return 0
        program, like = jax.make_jaxpr(self.tx.init, return_shape=True)(self.trained)
        form: Any = jax.tree.structure(like)
        state = form.unflatten(program.out_avals)
        turn_bytes = [0] * len(self.loops.stages)

        def add(slot: Any, i: int) -> Any:
            if i in self.stage_of:
                k = self.stage_of[i]
                for x in jax.tree.leaves(slot):
                    if x.memory_space == HOST:
                        turn_bytes[k] += x.size * x.dtype.itemsize // self.loops.stages[k].length
            return slot

        _on_slots(self.tx, add, state, self.index)
        return max(turn_bytes)

    def _offloads(self) -> bool:
        return bool(self.tx.saying(OnHost))

    def check(self, state: State, extra_args: Mapping[str, Any]) -> None:
        """Raise ValueError, naming the link, unless the step of a layer reads that layer alone."""
        why = self._problem(self.tx, state, extra_args).why
        if why is not None:
            raise ValueError(self._refusal(why, extra_args))

    def _refusal(self, why: str, extra_args: Mapping[str, Any]) -> str:
        name, how = self._innermost(self.tx, extra_args) or (public_name(self.tx), why)
        return (
            f"inside: {name or 'the transformation'} cannot run on one layer at a time, before the "
            f"gradients of the others are there: {how}. Leave it out, put something in its place "
            f"that reads each layer by itself{in_its_place(name)}, name other leaves by inside=, "
            "or make the step without inside"
        )

    def _innermost(
        self, tx: GradientTransformation, extra_args: Mapping[str, Any]
    ) -> tuple[str, str] | None:
        """The innermost transformation within `tx` that mixes layers, and how it mixes them."""
        for inner in tx.inside:
            mixing = self._innermost(inner, extra_args)
            if mixing is not None:
                return mixing if mixing[0] else (public_name(tx), mixing[1])
        try:
            state = jax.eval_shape(tx.init, self.trained)
        except Exception:  # one that cannot stand alone is not named
            return None
        problem = self._problem(tx, state, extra_args)
        return (
            (public_name(tx), problem.why) if problem.certain and problem.why is not None else None
        )

    def _problem(
        self, tx: GradientTransformation, state: State, extra_args: Mapping[str, Any]
    ) -> "_Problem":
        """The reason, if there is one, why `tx` cannot run on one layer at a time."""
        try:
            with known_shardings({}, balance=False):  # whether layers are mixed depends on no mesh
                _StepOfLayers(self, tx, state, extra_args).check()
        except Mixed as mixed:
            return _Problem(True, str(mixed))
        except (TypeError, ValueError) as error:
            return _Problem(False, str(error))
        return _Problem(True, None)

    def only(self, k: int | None, tree: PyTree) -> PyTree:
        """`tree` with only the leaves that scan `k` reads, or if None those that no scan reads."""
        leaves = self.treedef.flatten_up_to(tree)
        return self.treedef.unflatten(
            [x if self.stage_of.get(i) == k else None for i, x in enumerate(leaves)]
        )

    def run(
        self,
        state: State,
        seed: Callable[[Array], Array],
        extra_args_of: Callable[[Array], dict[str, Any]],
        evaluated: Evaluated | None = None,
    ) -> tuple[Params, State, Array, Any]:
        """Take the step: the new parameters and state, the value and the loss's other results.

        Args:
            state: the state.
            seed: ``value -> cotangent of the value``.
            extra_args_of: ``value -> extra arguments`` of the optimizer.
            evaluated: the loss, where its gradients are not those of a backward pass.
        """
        backward: Evaluated = self.loops.run(self.leaves) if evaluated is None else evaluated
        results = backward.results
        value, aux = jax.tree.unflatten(self.out, results)
        extra = extra_args_of(value)
        self.check(state, extra)
        state = self._at_home(state)
        slots = self._slots_of_scans(state)
        seeds = [seed(value), *[None] * (len(results) - 1)]
        stacks = [[self.leaves[s.leaf] for s in stage.stacks] for stage in self.loops.stages]
        zeros = [_zero_like(each) for each in stacks]
        is_late = self.norm_for == {"state"}
        if is_late:
            # No layer reads it, and the next step's state gets the sum.
            extra["grad_norm"] = jnp.float32(0)
        elif self.norm_for:
            first: list[tuple[Any, Carried]] = [
                (_add_squares, Carried(each, [], zero, []))
                for each, zero in zip(stacks, zeros, strict=True)
            ]
            extra["grad_norm"] = _norm(*backward.pull(seeds, first))
        turns: list[tuple[Any, Carried]] = [
            (
                _Turn(self, k, state, extra, value, is_late),
                Carried(stacks[k], slots[k], zeros[k], list(map(_key_of, slots[k]))),
            )
            for k in range(len(self.loops.stages))
        ]
        grads, carried = backward.pull(seeds, turns)
        if is_late:
            extra["grad_norm"] = _norm(grads, carried)
        other_grads = self.only(None, self.treedef.unflatten(map(_conjugate, grads)))
        with whole_leaves(self.trained):
            others = self.only(None, self.trained)
            params, state = take_step(self.placed, other_grads, state, others, **extra)
        leaves = self.treedef.flatten_up_to(params)
        for stage, new in zip(self.loops.stages, carried, strict=True):
            for stack, x in zip(stage.stacks, new.params, strict=True):
                leaves[stack.leaf] = x
        state = self._with_slots(state, carried)
        return self.treedef.unflatten(leaves), state, value, aux

    def _slots_of_scans(self, state: State) -> list[list[Any]]:
        """The slots of the leaves that each scan reads, in forms that its loop can carry."""
        slots: list[list[Any]] = [[] for _ in self.loops.stages]

        def collect(slot: Any, i: int) -> Any:
            if i in self.stage_of:
                divided = divides_rows(self.sharding_at.get(self.paths[i]), self.leaves[i].ndim)
                in_form = functools.partial(in_slices, rows_divided=divided)
                slots[self.stage_of[i]].append(jax.tree.map(in_form, slot))
            return slot

        _on_slots(self.tx, collect, state, self.index)
        return slots

    def _with_slots(self, state: State, carried: "list[Carried]") -> State:
        """The state with new slots, from each scan."""
        new = [zip(last.slots, last.keys, strict=True) for last in carried]

        def replaced(slot: Any, i: int) -> Any:
            if i not in self.stage_of:
                return slot
            stack, key = next(new[self.stage_of[i]])
            new_slot = jax.tree.map(as_it_was, slot, stack)
            return new_slot.with_key(key) if is_encoded(new_slot) else new_slot

        return _on_slots(self.tx, replaced, state, self.index)

    def _at_home(self, state: State) -> State:
        """The state, with the type of the host's memory on the arrays that `tx` keeps there.

        An array has its memory in its type, but an argument of a function that is compiled ahead
        has the type of an array on the device, even if it lies there.
        """
        if not self._offloads():
            return state
        program, like = jax.make_jaxpr(self.tx.init, return_shape=True)(self.trained)
        on_host = [x.memory_space == HOST for x in program.out_avals]
        form: Any = jax.tree.structure(state)
        if not any(on_host) or form != jax.tree.structure(like):
            return state
        return form.unflatten(map(_on_host_if, jax.tree.leaves(state), on_host))

    def in_place(self, layer: Array, leaf: int) -> Array:
        """A new layer in the sharding of its stack, so that no stack is moved after the loop."""
        sharding = self.sharding_at.get(self.paths[leaf])
        return layer if explicit_mesh(layer) is not None else put(layer, sharding)


class _StepOfLayers:
    """A step of a transformation on abstract arrays, followed with each layer as an owner.

    Args:
        inside: the loss, with its scans.
        tx: its optimizer, or a transformation within that.
        state: the state of `tx`.
        extra_args: more arguments of the step.

    Raises:
        Mixed: a slot does not have a part for each layer.
    """

    def __init__(
        self,
        inside: Inside,
        tx: GradientTransformation,
        state: State,
        extra_args: Mapping[str, Any],
    ) -> None:
        self.inside, self.tx, self.index = inside, tx, inside.index
        self.stages, self.stage_of = inside.loops.stages, inside.stage_of
        try:
            self.state = _on_slots(tx, self._abstract_slot, state, self.index)
        except ValueError as error:
            raise Mixed("it keeps something other than an array for a parameter") from error
        self.params = inside.treedef.unflatten([_abstract(x) for x in inside.leaves])
        self.extra_args = jax.tree.map(_abstract, dict(extra_args))
        if inside.norm_for:
            self.extra_args["grad_norm"] = jax.ShapeDtypeStruct((), scalar_dtype(inside.leaves))

    def check(self) -> None:
        """Raise Mixed unless the step of one layer gives that layer of the step of all layers."""
        self._follow([stage.length for stage in self.stages])
        # An array may be cut into as many parts as there are layers, but elsewhere: with one layer
        # more this shows.
        self._follow([stage.length + 1 for stage in self.stages])
        for k, stage in enumerate(self.stages):
            if self._formula(k, stage.length) != self._formula(k, 1):
                raise Mixed("its formula for a stack depends on the number of layers")

    def _abstract_slot(self, slot: Any, i: int) -> Any:
        if i in self.stage_of:
            _check_slot(self.inside.paths[i], self.stages[self.stage_of[i]].length, slot)
        return jax.ShapeDtypeStruct(slot.shape, slot.dtype)

    def _step(self, grads: Any, state: Any, params: Any, extra_args: Any) -> Any:
        with all_near(), whole_leaves(self.inside.trained):
            return take_step(self.tx, grads, state, params, **extra_args)

    def _cut(self, x: Any, k: int, layers: int) -> Any:
        """The form of an array of so many layers, in place of those of scan `k`."""
        size = x.shape[0] // self.stages[k].length * layers
        return jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype)

    def _formula(self, k: int, layers: int) -> Any:
        """The formula of a step on the leaves of scan `k` alone, with so many layers."""

        def cut(x: Any, i: int) -> Any:
            return self._cut(x, k, layers) if self.stage_of.get(i) == k else x

        params = self.inside.only(k, jax.tree.map(cut, self.params, self.index))
        state = _on_slots(self.tx, cut, self.state, self.index)
        return formula(jax.make_jaxpr(self._step)(params, state, params, self.extra_args))

    def _follow(self, layers: list[int]) -> None:
        """Raise Mixed unless a step with so many layers in each scan computes them separately."""

        def owner(x: Any, i: int) -> Kind:
            k = self.stage_of.get(i)
            if k is None:
                return owned_by(OUTSIDE)
            return in_layers(k << _BITS, layers[k], x.shape[0])

        def cut(x: Any, i: int) -> Any:
            k = self.stage_of.get(i)
            return x if k is None else self._cut(x, k, layers[k])

        kinds: list[Kind] = []

        def of_leaf(x: Any, i: int) -> Any:
            kinds.append(owner(x, i))
            return x

        def of_number(x: Any) -> Any:
            kinds.append(free(jnp.shape(x), is_key(x)))
            return x

        def of_extra_arg(x: Any) -> Any:
            kinds.append(free(jnp.shape(x)))
            return x

        params = jax.tree.map(cut, self.params, self.index)
        state = _on_slots(self.tx, cut, self.state, self.index)
        jax.tree.map(of_leaf, params, self.index)
        _on_slots(self.tx, of_leaf, state, self.index, of_number)
        jax.tree.map(of_leaf, params, self.index)
        jax.tree.map(of_extra_arg, self.extra_args)
        traced = jax.make_jaxpr(self._step, return_shape=True)
        closed, out = traced(params, state, params, self.extra_args)
        results = iter(owners_after(closed, kinds))

        def check(x: Any, i: int) -> Any:
            check_owner(next(results), owner(x, i))
            return x

        def check_number(x: Any) -> Any:
            check_owner(next(results), owned_by(OUTSIDE))
            return x

        jax.tree.map(check, out[0], self.index)
        _on_slots(self.tx, check, out[1], self.index, check_number)


def _check_slot(path: str, layers: int, slot: Any) -> None:
    """Raise Mixed unless a slot of a stacked parameter has an equal part for each layer."""
    where = f"a slot of {path!r}"
    if is_encoded(slot):
        if slot.blocks is not None and slot.blocks.axis == 0:
            raise Mixed(f"{where} is kept in blocks that cross layers: choose another axis")
    elif is_stored(slot):
        raise Mixed(f"{where} is kept as {type(slot).__name__}, in which layers are not apart")
    if not slot.shape or slot.shape[0] % layers or not slot.shape[0]:
        raise Mixed(f"{where}, of shape {slot.shape}, is not one for each of {layers} layers")


Layer = tuple[list[Any], list[Any]]
"""Parameters and slots, of a layer or of all of them."""


class Carried(NamedTuple):
    """What the loop of a scan carries.

    Attributes:
        params: the parameters of all layers.
        slots: their slots. Those in codecs keep the random keys with which the layers still to come
            are read.
        squares: the sums of the squares of the gradients so far (see :func:`sums_for_norm`).
        keys: the random keys of the slots after the latest layer, None for those without.
    """

    params: list[Any]
    slots: list[Any]
    squares: Array
    keys: list[Array | None]


def _key_of(slot: Any) -> Array | None:
    """The random key of a slot, without the number for its place that some rows of one have too."""
    return slot.key[:2] if is_encoded(slot) and slot.key is not None else None


class _Turn(NamedTuple):
    """A turn of the loop of scan `k`, which updates one layer with its gradients.

    state: the state of all leaves; value: of the loss; sums_squares: whether the squares of
    gradients are added up.
    """

    inside: Inside
    k: int
    state: State
    extra_args: dict[str, Any]
    value: Array
    sums_squares: bool

    @property
    def stage(self) -> Stage:
        return self.inside.loops.stages[self.k]

    def __call__(self, layer: Array, carried: Carried, grads: list[Array]) -> Carried:
        stacks = carried.params, carried.slots
        old = jax.tree.map(
            lambda x: layer_of(x, layer, self.stage.length), stacks, is_leaf=is_one_stack
        )
        step = functools.partial(self.step, layer)
        new = _apart(step, old, [_conjugate(g) for g in grads], self.value)
        params, slots = jax.tree.map(
            lambda x, n: with_layer(x, n, layer), stacks, new, is_leaf=is_one_stack
        )
        keys = list(map(_key_of, new[1]))  # of a step that is not taken, those that were there
        now = Carried(params, slots, carried.squares, keys)
        return _add_squares(layer, now, grads) if self.sums_squares else now

    def step(self, layer: Array, old: Layer, grads: list[Array]) -> Layer:
        """The new parameters and slots of one layer."""
        inside, stacks = self.inside, self.stage.stacks
        params, slots = old
        old_slots, new_slots = iter(slots), []
        name = zlib.crc32(inside.paths[stacks[0].leaf].encode())

        def of_layer(slot: Any, i: int) -> Any:
            return next(old_slots) if inside.stage_of.get(i) == self.k else slot

        def of_number(x: Any) -> Any:
            return key_of_layer(x, name, layer) if is_key(x) else brought_in(x)

        def collect(slot: Any, i: int) -> Any:
            if inside.stage_of.get(i) == self.k:
                new_slots.append(slot)
            return slot

        state = _on_slots(inside.tx, of_layer, self.state, inside.index, of_number)
        with all_near(), whole_leaves(inside.trained):
            new_params, state = take_step(
                inside.placed, self._tree(grads), state, self._tree(params), **self.extra_args
            )
        _on_slots(inside.tx, collect, state, inside.index)
        leaves = inside.treedef.flatten_up_to(new_params)
        layers = [inside.in_place(leaves[stack.leaf], stack.leaf) for stack in stacks]
        return in_form_of((layers, new_slots), old)

    def _tree(self, arrays: list[Any]) -> PyTree:
        """A tree of the arrays of the scan's leaves, with None for other leaves."""
        by_leaf = {stack.leaf: x for stack, x in zip(self.stage.stacks, arrays, strict=True)}
        return self.inside.treedef.unflatten(map(by_leaf.get, range(len(self.inside.leaves))))


def _add_squares(layer: Array, carried: Carried, grads: list[Array]) -> Carried:
    """Add the squares of a layer's gradients to the sums, and change nothing else."""
    before = carried.squares
    return carried._replace(squares=before + cast(sums_for_norm(grads), before.dtype))


def _zero_like(leaves: list[Array]) -> Array:
    """Zeros to begin sums with, which within ``shard_map`` vary over devices like leaves."""
    axes = set().union(*(varying_axes(jax.typeof(x)) for x in leaves))
    return vary(jnp.zeros([3], scalar_dtype(leaves)), axes)


def _norm(grads: list[Any], carried: list[Carried]) -> Array:
    """The norm of all gradients, from those of other leaves and the sums of squares of layers."""
    return norm_of_parts(sum((last.squares for last in carried), sums_for_norm(grads)))


def _apart(
    step: Callable[[Layer, list[Array]], Layer], now: Layer, grads: list[Array], value: Array
) -> Layer:
    """The result of ``step(now, grads)``, computed on a CPU in a loop of one iteration.

    A CPU's compiler would write a layer's slots into the stacks before the kernel of the parameters
    has read their old values, and so copy whole stacks at each layer::

        %copy.38 = f32[5,16,32] copy(%get-tuple-element.315)

    Inside of a loop it sees arrays of one layer, and compiles them as it compiles leaves, with the
    same bits. That there is one iteration it learns only from the value of the loss.
    """

    def loop(now: Layer, grads: list[Array]) -> Layer:
        turns = true_after(value.reshape(-1)[0]).astype(jnp.int32)

        def body(i: Array, now: Layer) -> Layer:
            return step(now, inside(grads, i))  # else g * g would be computed, and rounded, before

        done: Layer = jax.lax.fori_loop(0, turns, body, now)
        return done

    if any(map(is_encoded, now[1])):  # which a kernel reads and writes, in a loop of its own
        return step(now, grads)
    done: Layer = jax.lax.platform_dependent(now, grads, cpu=loop, default=step)
    return done


def _conjugate(g: Any) -> Any:
    return g.conj() if g is not None and jnp.iscomplexobj(g) else g


def _abstract(x: Any) -> Any:
    return jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x))


def _by_path(tree: PyTree) -> list[tuple[str, Any]]:
    return [(path_string(path), leaf) for path, leaf in with_paths(tree)[0]]


def _on_slots(
    tx: GradientTransformation,
    function: Callable[[Any, int], Any],
    state: State,
    index: PyTree,
    others: Callable[[Any], Any] | None = None,
) -> State:
    """The state with each slot replaced by `function` of the slot and of its leaf's number."""
    return map_params(tx, function, state, index, transform_non_params=others, is_leaf=is_stored)


def _on_host_if(x: Any, wanted: bool) -> Any:
    return jax.device_put(x, HOST) if wanted and not is_on_host(x) else x
