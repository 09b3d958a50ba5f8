"""Leaves that hold several parameters beside each other, as if each were a leaf of its own."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Self, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from gradtx.checks import check_patterns
from gradtx.composition.around import InnerStep, around
from gradtx.composition.roles import Role, RolesOfLeaves
from gradtx.composition.views import OnPart
from gradtx.core.pair import GradientTransformation, transformation, with_extra_args_support
from gradtx.declarations.declaration import Kept, in_order
from gradtx.engine.lift import refused_rows
from gradtx.inspection.description import roles_in
from gradtx.leaves.matrix_layout import axes_of
from gradtx.leaves.paths import aligned, leaves_with_path, mask_tree, matches, path_string
from gradtx.leaves.rows import is_rows
from gradtx.leaves.shardings import automatic, explicit_mesh, known_of_parts
from gradtx.leaves.whole import part_of_whole
from gradtx.leaves.written import written_by_names
from gradtx.transforms.parameter_averages import averaged
from gradtx.types import InnerState, Params, PyTree, State, Updates


class SplitLeaf(NamedTuple):
    """How several parameters lie beside each other in an array.

    axis: along which they do; sizes: their lengths in order, or a dict of these by the names that
    the parts are to have; repeated: whether the axis repeats this sequence of lengths (interleaved
    parts), so that a part is joined from all repetitions.

    >>> grouped_heads = SplitLeaf(1, {"q": 512, "k": 128, "v": 128})
    >>> gate_and_up = SplitLeaf(-1, (1, 1), repeated=True)  # columns 0, 2, 4... and 1, 3, 5...
    >>> group_after_group = SplitLeaf(1, {"q": 256, "k": 64, "v": 64}, repeated=True)
    """

    axis: int
    sizes: Sequence[int] | Mapping[str, int]
    repeated: bool = False


Splits: TypeAlias = Mapping[str, SplitLeaf] | Callable[[str, Any], SplitLeaf | None]


class _Parts(NamedTuple):
    """The parts of one leaf.

    axis: along which they lie, not negative; names: theirs, none if they have none; lengths:
    theirs; turns: how often the sequence of lengths is repeated.
    """

    axis: int
    names: tuple[str, ...]
    lengths: tuple[int, ...]
    turns: int

    @property
    def keys(self) -> tuple[str, ...]:
        """The last part of the paths of the parts."""
        return self.names or tuple(map(str, range(len(self.lengths))))

    def tree(self, parts: Sequence[Any]) -> PyTree:
        """What stands in the leaf's place."""
        return dict(zip(self.names, parts, strict=True)) if self.names else tuple(parts)

    def taken(self, path: Any, x: Any) -> PyTree:
        """The parts of a leaf."""
        if x is None:
            return self.tree([None] * len(self.lengths))
        if is_rows(x):
            raise refused_rows("split_leaves", path)
        before, after = x.shape[: self.axis], x.shape[self.axis + 1 :]
        apart = jnp.reshape(x, (*before, self.turns, sum(self.lengths), *after))
        parts, start = [], 0
        for n in self.lengths:
            part = jax.lax.slice_in_dim(apart, start, start + n, axis=self.axis + 1)
            parts.append(part.reshape(*before, self.turns * n, *after))
            start += n
        return self.tree(parts)

    def joined(self, tree: PyTree) -> Any:
        """The leaf of which these are the parts; None where none of them has a value."""
        parts = [tree[name] for name in self.names] if self.names else list(tree)
        if all(x is None for x in parts):
            return None
        before, after = parts[0].shape[: self.axis], parts[0].shape[self.axis + 1 :]
        apart = [
            x.reshape(*before, self.turns, n, *after)
            for x, n in zip(parts, self.lengths, strict=True)
        ]
        concatenated = jnp.concatenate(apart, self.axis + 1)
        return concatenated.reshape(*before, self.turns * sum(self.lengths), *after)

    def shardings(self, sharding: NamedSharding) -> list[NamedSharding]:
        """Those of the parts: the leaf's, but not along their axis where it would divide a part."""
        spec = list(sharding.spec)
        over = spec[self.axis] if self.axis < len(spec) else None
        if over is None:
            return [sharding] * len(self.lengths)
        names = over if isinstance(over, tuple) else (over,)
        devices = math.prod(sharding.mesh.shape[name] for name in names)
        shardings = []
        for n in self.lengths:
            spec[self.axis] = None if self.turns * n % devices else over
            shardings.append(NamedSharding(sharding.mesh, PartitionSpec(*spec)))
        return shardings


@written_by_names
@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class _Parted:
    """Which leaves have parts, by path: a node without children."""

    of: tuple[tuple[str, _Parts], ...]

    def tree_flatten(self) -> tuple[tuple[()], Any]:
        return (), self.of

    @classmethod
    def tree_unflatten(cls, of: Any, children: Any) -> Self:
        return cls(of)

    @staticmethod
    def from_json(data: Any) -> Any:
        """What `tree_flatten` says, once it was written as JSON."""
        return tuple(
            (at, _Parts(axis, tuple(names), tuple(lengths), turns))
            for at, (axis, names, lengths, turns) in data
        )

    @classmethod
    def found(cls, splits: Splits, params: Params) -> Self:
        """The layout that `splits` gives parameters."""
        if not callable(splits):
            mask_tree(params, tuple(splits))  # checks that each pattern matches a leaf
        leaves = [(path_string(path), p) for path, p in leaves_with_path(params)[0]]
        pairs = [(at, p, _split_of(splits, at, p)) for at, p in leaves if p is not None]
        return cls(tuple((at, _parts(at, p.shape, how)) for at, p, how in pairs if how))

    def apart(self, tree: PyTree) -> PyTree:
        """A tree like the parameters with the parts of leaves in their places."""
        leaves, treedef = leaves_with_path(tree)
        of = dict(self.of)
        at = [(of.get(path_string(path)), path, x) for path, x in leaves]
        return treedef.unflatten(
            [x if leaf_parts is None else leaf_parts.taken(path, x) for leaf_parts, path, x in at]
        )

    def divided(self, params: Params) -> PyTree:
        """The parts of parameters on a mesh, explicit axes too, where `init` is not compiled."""
        if explicit_mesh(params) is None:
            return self.apart(params)
        leaves, treedef = leaves_with_path(params)
        of = dict(self.of)
        like = []
        for path, x in leaves:
            leaf_parts = of.get(path_string(path))
            like.append(
                x
                if leaf_parts is None
                else leaf_parts.tree(leaf_parts.shardings(jax.typeof(x).sharding))
            )
        return jax.jit(lambda p: automatic(self.apart, treedef.unflatten(like), p))(params)

    def joined(self, tree: PyTree, like: PyTree) -> PyTree:
        """The inverse of `apart`, for a tree like `like`."""
        leaves, treedef = leaves_with_path(like)
        of = dict(self.of)
        parts = aligned("split_leaves: the inner result is another tree", like, treedef, tree)
        at = [(of.get(path_string(path)), x) for (path, _), x in zip(leaves, parts, strict=True)]
        return treedef.unflatten(
            [x if leaf_parts is None else leaf_parts.joined(x) for leaf_parts, x in at]
        )

    def shardings(self, known: Mapping[str, NamedSharding]) -> dict[str, NamedSharding]:
        """Those of the parts, from those of the leaves."""
        shardings: dict[str, NamedSharding] = {}
        for path, leaf_parts in self.of:
            if path in known:
                places = zip(leaf_parts.keys, leaf_parts.shardings(known[path]), strict=True)
                shardings |= {"/".join(filter(None, (path, key))): place for key, place in places}
        return shardings


class SplitLeavesState(NamedTuple):
    """inner_state: the inner transformation's, on the parts; layout: which leaves have parts."""

    inner_state: InnerState
    layout: Any

    def eval_params(self, params: Params) -> Params:
        """The parameters with the averages of their parts."""
        apart = self.layout.apart(params)
        return self.layout.joined(averaged(self.inner_state, apart), params)


def _split_of(splits: Splits, path: str, p: Any) -> SplitLeaf | None:
    if callable(splits):
        return splits(path, p)
    matching = [pattern for pattern in splits if matches(path, pattern)]
    if len(matching) > 1:
        names = " and ".join(map(repr, matching))
        raise ValueError(f"split_leaves: {path!r} matches the patterns {names}")
    return splits[matching[0]] if matching else None


def _parts(path: str, shape: tuple[int, ...], split: SplitLeaf) -> _Parts:
    """The parts of a leaf of some shape.

    Raises:
        ValueError: the lengths do not make up the axis, or there is no such axis.
        TypeError: `split` is something else.
    """
    where = f"split_leaves: {path!r}, of shape {tuple(shape)}"
    if not isinstance(split, SplitLeaf):
        raise TypeError(f"{where}: the leaf is split by a SplitLeaf, not by {split!r:.80}")
    sizes, names = split.sizes, tuple[str, ...]()
    if isinstance(sizes, Mapping):
        names, sizes = tuple(sizes), tuple(sizes.values())
    lengths = tuple(sizes)
    try:
        (axis,) = axes_of(split.axis, len(shape))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if not lengths or any(not isinstance(n, int) or n < 1 for n in lengths):
        raise ValueError(f"{where}: the sizes must be whole numbers of at least 1, not {lengths}")
    turns, left = divmod(shape[axis], sum(lengths))
    if left or (turns != 1 and not split.repeated):
        often = "a multiple of " if split.repeated else ""
        raise ValueError(
            f"{where}: axis {axis} must be as long as {often}the sizes {lengths}, {sum(lengths)}"
        )
    return _Parts(axis, names, lengths, turns)


@transformation
def split_leaves(
    inner: GradientTransformation, splits: Annotated[Splits, Kept(in_order)]
) -> GradientTransformation:
    r"""Run a transformation on the parts of leaves that hold several parameters beside each other.

    Queries, keys and values in one array, or the gate of an MLP and what it gates, with interleaved
    columns: `inner` sees each as a leaf of its own, so that a matrix optimizer orthogonalizes or
    decomposes each by itself, whatever their sizes, and factors that depend on the shape are those
    of the parts. The numbers are those of a model that has these leaves.

    Args:
        inner: the transformation.
        splits: by path pattern, how the leaves that it matches are to be split; or a function
            ``(path, leaf) -> SplitLeaf`` or None, for what depends on their shapes.

    In place of a leaf `inner` sees a dict of its parts, or a tuple where the sizes have no names:
    ``qkv/kernel/q`` is the path of a part, for patterns inside, and for :func:`get_slot`. What
    calls the loss, as a line search does, calls it with the leaves joined.

    On a mesh, parts are sharded like the leaf. If the axis of the parts is sharded, entries move
    between devices at each step where parts lie as blocks beside each other, and none where they
    are repeated and each device has whole repetitions. A part that the mesh axis does not divide
    evenly is whole on each device along it.

    State: `SplitLeavesState`; it also holds which leaves have parts, outside of its arrays.

    Raises:
        ValueError: a pattern matches no leaf, or two match one; the sizes do not make up the axis.
        TypeError: a leaf is split by something other than a `SplitLeaf`, or the update of a leaf
            with parts is `Rows`.

    >>> import gradtx
    >>> tx = split_leaves(gradtx.muon(0.1), {"qkv": SplitLeaf(1, {"q": 4, "k": 2, "v": 2})})
    >>> params = {"qkv": jnp.ones((3, 8)), "out": jnp.ones((4, 3))}
    >>> slots = gradtx.get_slot(tx.init(params), "muon.0.mu")
    >>> {name: part.shape for name, part in slots["qkv"].items()}
    {'k': (3, 2), 'q': (3, 4), 'v': (3, 2)}
    """
    if not callable(splits):
        if not isinstance(splits, Mapping):
            raise TypeError(
                "split_leaves: splits must be {path pattern: SplitLeaf} or a function "
                f"(path, leaf) -> SplitLeaf or None, not {splits!r:.80}"
            )
        check_patterns("split_leaves: splits", splits)
    tx = with_extra_args_support(inner)

    def init(params: Params) -> State:
        layout = _Parted.found(splits, params)
        with known_of_parts(layout.shardings), part_of_whole(layout.apart):
            return SplitLeavesState(tx.init(layout.divided(params)), layout)

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Any, State]:
        layout = state.layout
        split_params = None if params is None else layout.apart(params)
        inner_step = inner_step.seen_as(lambda x: layout.joined(x, params), layout.apart)
        with known_of_parts(layout.shardings):
            new, inner_state = inner_step(layout.apart(updates), state.inner_state, split_params)
        joined = layout.joined(new, params if inner_step.whole else updates)
        return joined, SplitLeavesState(inner_state, layout)

    def roles(params: Params) -> dict[str, Role]:
        return roles_in(tx, jax.eval_shape(_Parted.found(splits, params).apart, params))

    def on_part(_: int, function: Callable[[Any], Any], tree: PyTree) -> PyTree:
        layout = _Parted.found(splits, tree)
        return layout.joined(function(layout.apart(tree)), tree)

    return around(tx, init, run, step=tx.step, facets=(OnPart(on_part), RolesOfLeaves(roles)))
