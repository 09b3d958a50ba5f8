"""Many small leaves kept in a few vectors, between steps and during them.

A step starts a few kernels for each leaf, however small it is: two thousand leaves of 64 numbers
take as long as a hundred million numbers in one leaf. Packed parameters are a pytree of vectors,
one for each type, and so are the slots that an optimizer makes for them. A rule that treats each
entry independently runs on the vectors unchanged; everything else sees the leaves.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from gradtx.leaves.whole import part_of_whole
from gradtx.leaves.written import written_by_names
from gradtx.numerics import as_arrays
from gradtx.programs.tracing import is_tracer
from gradtx.types import Array, Params, PyTree, State, Updates, is_stored


class Layout(NamedTuple):
    """Where each leaf lies: the structure of the tree, and the vector and shape of each leaf."""

    structure: Any
    kinds: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def vectors(self) -> dict[str, list[int]]:
        """Which leaves make up each vector."""
        return {k: [i for i, kind in enumerate(self.kinds) if kind == k] for k in set(self.kinds)}


@written_by_names
@jax.tree_util.register_pytree_with_keys_class
class Packed:
    """A tree of arrays kept as one vector for each type: what :func:`pack` returns.

    Attributes:
        vectors: the vectors by the name of their type.
        layout: where each leaf lies in them.
    """

    def __init__(self, vectors: dict[str, Any], layout: Layout) -> None:
        self.vectors, self.layout = vectors, layout

    def tree_flatten_with_keys(self) -> tuple[Any, Layout]:
        return tuple((jax.tree_util.DictKey(k), v) for k, v in self.vectors.items()), self.layout

    @classmethod
    def tree_unflatten(cls, layout: Layout, vectors: Any) -> "Packed":
        return cls(dict(zip(sorted(set(layout.kinds)), vectors, strict=True)), layout)

    def __repr__(self) -> str:
        sizes = {k: getattr(v, "shape", v) for k, v in self.vectors.items()}
        return f"Packed({len(self.layout.kinds)} leaves in {sizes})"

    def unpack(self) -> PyTree:
        """The tree; what stands in place of a vector, such as None, stands for all its leaves."""
        leaves: list[Any] = [None] * len(self.layout.kinds)
        for kind, members in self.layout.vectors.items():
            shapes = [self.layout.shapes[i] for i in members]
            for i, leaf in zip(members, _parts(self.vectors[kind], shapes), strict=True):
                leaves[i] = leaf
        return self.layout.structure.unflatten(leaves)


def is_packed(x: Any) -> bool:
    """Whether `x` is `Packed`."""
    return isinstance(x, Packed)


def holds_packed(tree: PyTree) -> bool:
    """Whether there is a `Packed` in a tree."""
    return any(map(is_packed, jax.tree.leaves(tree, is_leaf=is_packed)))


def pack(params: PyTree) -> Packed:
    """Keep parameters in a few vectors, for models with hundreds of small leaves.

    :func:`minimize`, :func:`make_step` and :func:`solve` call the loss with the tree, and take the
    gradient with respect to the vectors; slots are packed as the parameters are. A rule that treats
    each entry independently, and one that only passes on or scales (:func:`chain`,
    :func:`accumulate`, :func:`clip_by_global_norm`, :func:`guard`), runs on the vectors, in as many
    kernels as for one leaf. Every other transformation, such as one that takes norms of leaves or
    is masked, sees leaves: its steps are the same as without packing, and not faster. A pair made
    by hand, without :func:`transformation`, sees the vectors.

    Args:
        params: a tree of arrays; Python numbers become float arrays.

    Returns:
        The `Packed`, a pytree with one vector for each type. :func:`unpack` returns the tree.
        :func:`get_slot`, :func:`set_slot` and checkpoints see leaves by their paths, so that a
        packed run can continue from the checkpoint of an unpacked one, and the other way round;
        only slots in a codec (:func:`store`) are saved as vectors. It is also possible to pack only
        part of a tree. A mask or `trainable` must choose all leaves of a vector or none.

    Raises:
        TypeError: a leaf is not an array of numbers.
        ValueError: `params` has no leaf, or holds a `Packed` already.

    The loss reads each leaf as a slice of a vector, which XLA compiles separately for each leaf:
    where the loss consists of many small operations, a step runs faster but compiles more slowly
    than without packing. :func:`flatten` keeps leaves between steps, and copies them at each step.

    >>> import gradtx
    >>> params = pack({"w": jnp.ones((2, 2)), "b": jnp.zeros(3)})
    >>> step = gradtx.make_step(lambda p: jnp.sum(p["w"] ** 2), gradtx.adam(0.5))
    >>> params, state, value = step(params, step.init(params))
    >>> jax.tree.map(jnp.shape, state[0].mu.vectors), gradtx.get_slot(state, "mu", "w").shape
    ({'float32': (7,)}, (2, 2))
    >>> unpack(params)["w"].tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    structure: Any
    if holds_packed(params):
        raise ValueError("pack: a part of this is packed already; unpack it first")
    leaves, structure = jax.tree.flatten(as_arrays(params))
    if not leaves:
        raise ValueError("pack: there is no leaf")
    for x in leaves:
        if not hasattr(x, "dtype") or jnp.issubdtype(x.dtype, jax.dtypes.extended):
            raise TypeError(f"pack: a leaf is not an array of numbers: {x!r:.80}")
    kinds = tuple(str(jax.dtypes.canonicalize_dtype(x.dtype)) for x in leaves)
    return _joined(leaves, Layout(structure, kinds, tuple(tuple(x.shape) for x in leaves)))


def unpack(tree: PyTree) -> PyTree:
    """A tree, such as parameters or a state, with the leaves in place of every `Packed` in it.

    Args:
        tree: any tree; one in which nothing is packed is returned as it is.

    >>> unpack((pack({"w": jnp.ones(2)}), 1.0))
    ({'w': Array([1., 1.], dtype=float32)}, 1.0)
    """
    if not holds_packed(tree):
        return tree
    return jax.tree.map(lambda x: x.unpack() if is_packed(x) else x, tree, is_leaf=is_packed)


def packed_like(tree: PyTree, like: PyTree) -> PyTree:
    """`tree` with those parts packed that are in `like`, and are not packed yet.

    Raises:
        ValueError: such a part is another tree, or its leaves have other shapes.
    """
    if not holds_packed(like):
        return tree

    def on_part(model: Any, part: Any) -> Any:
        if not is_packed(model) or is_packed(part):
            return part
        layout = model.layout
        leaves = layout.structure.flatten_up_to(as_arrays(part))
        if all(x is None for x in leaves):
            return Packed(dict.fromkeys(model.vectors), layout)
        for x, shape in zip(leaves, layout.shapes, strict=True):
            if getattr(x, "shape", None) != shape:
                raise ValueError(
                    f"a leaf of a packed tree has the shape {shape}, and there is {x!r:.80}"
                )
        return _joined(leaves, layout)

    return jax.tree.map(on_part, like, tree, is_leaf=is_packed)


def on_leaves(
    function: Callable[..., tuple[Any, State]],
    updates: Updates,
    state: State,
    params: Params | None,
    extra_args: dict[str, Any],
) -> tuple[Any, State]:
    """``function(updates, state, params, **extra_args)`` on leaves instead of their vectors."""
    seen, leaf_params, extra = unpack((updates, params, extra_args))
    with part_of_whole(unpack):
        done, state = function(seen, state, leaf_params, **extra)
    return packed_like(done, updates), state


def uniform(choose: Callable[[PyTree], PyTree], tree: PyTree) -> PyTree:
    """A mask for a tree that holds `Packed`, from what chooses among the leaves.

    Raises:
        ValueError: some leaves of a vector are chosen and others not.
    """

    def on_part(part: Any, chosen: Any) -> Any:
        if not is_packed(part):
            return chosen
        flags = jax.tree.leaves(chosen)
        said = {kind: {flags[i] for i in members} for kind, members in part.layout.vectors.items()}
        if any(len(flags) > 1 for flags in said.values()):
            raise ValueError(
                "a mask chooses some leaves of a packed tree and not others: pack them separately, "
                "as {'body': gradtx.pack(body), 'head': gradtx.pack(head)}"
            )
        return Packed({k: next(iter(said[k])) for k in part.vectors}, part.layout)

    with part_of_whole(unpack):
        mask = choose(jax.eval_shape(unpack, tree))
    return jax.tree.map(on_part, tree, mask, is_leaf=is_packed)


def _joined(leaves: list[Any], layout: Layout) -> Packed:
    vectors = {
        kind: _concatenated([leaves[i] for i in layout.vectors[kind]])
        for kind in sorted(set(layout.kinds))
    }
    return Packed(vectors, layout)


def _concatenated(parts: list[Any]) -> Array:
    if not _is_local(parts):
        return jnp.concatenate([jnp.reshape(x, -1) for x in parts])
    # A program of one operation would be compiled for hundreds of operands.
    (vector,) = _put([np.concatenate([np.asarray(x).reshape(-1) for x in parts])], parts)
    return vector


def _parts(vector: Any, shapes: list[tuple[int, ...]]) -> list[Any]:
    """The leaves that a vector consists of, behind whatever leading axes it has."""
    if not hasattr(vector, "shape") or is_stored(vector):
        return [vector] * len(shapes)
    if isinstance(vector, jax.ShapeDtypeStruct):
        return list(jax.eval_shape(lambda v: _parts(v, shapes), vector))
    sizes, lead = [math.prod(shape) for shape in shapes], vector.shape[:-1]
    local = _is_local([vector])
    pieces: Any
    if local:
        pieces = np.split(np.asarray(vector), np.cumsum(sizes)[:-1], axis=-1)
    else:  # one operation, whose derivative is a concatenation
        pieces = jax.lax.split(vector, sizes, axis=len(lead))
    leaves = [x.reshape((*lead, *shape)) for x, shape in zip(pieces, shapes, strict=True)]
    return _put(leaves, [vector]) if local else leaves


def _is_local(arrays: list[Any]) -> bool:
    """Whether arrays are concrete, and lie on one device or in NumPy."""
    if any(map(is_tracer, arrays)):
        return False
    places = {x.sharding for x in arrays if isinstance(x, jax.Array)}
    return len(places) <= 1 and all(isinstance(p, SingleDeviceSharding) for p in places)


def _put(values: list[Any], like: list[Any]) -> list[Any]:
    """NumPy arrays as JAX's, where others lie."""
    place = next((x.sharding for x in like if getattr(x, "committed", False)), None)
    return list(jax.device_put(values, place))
