"""Slots that stay where matrices are transformed: those of equal leaves are one divided stack."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.leaves.shardings import in_one_program, sliceable
from gradtx.storage import Encoded, is_encoded
from gradtx.types import Array, PyTree


class OwnBatches(NamedTuple):
    """Where the matrices of a stack lie if batch axes of the leaves, such as experts, are divided.

    A device's own matrices are next to one another, so that the stack is divided along its first
    axis. If these axes were merged in their order, a divided one would come after one that is not,
    and no sharding could say which entries a device has.

    sizes: of the axes that the stack merges, the leaves and the batch axes of a leaf; shards: into
    how many parts each of these is divided; sharers: how many devices have the same matrices, of
    which each transforms some; dims: the mesh axes along each axis of a leaf.
    """

    sizes: tuple[int, ...]
    shards: tuple[int, ...]
    sharers: int
    dims: tuple[tuple[str, ...], ...]

    @property
    def devices(self) -> int:
        """The number of devices over which the stack is divided."""
        return math.prod(self.shards) * self.sharers

    @property
    def even(self) -> tuple[int, ...]:
        """The sizes, padded so that the shards are equal."""
        return tuple(n + -n % d for n, d in zip(self.sizes, self.shards, strict=True))

    def laid_out(self, x: Array) -> Array:
        """A stack with each device's matrices together, padded so that sharers have equally many.

        Args:
            x: the matrices in the order of the axes, ``(n, ...)``.
        """
        rest, each = x.shape[1:], math.prod(self.even) // math.prod(self.shards)
        # Only shapes that nothing is computed for, those of a probe, do not divide.
        uneven = [(0, a - b) for a, b in zip(self.even, self.sizes, strict=True)]
        x = jnp.pad(x.reshape(*self.sizes, *rest), [*uneven, *((0, 0),) * len(rest)])
        pairs = zip(self.shards, self.even, strict=True)
        x = x.reshape(*(size for d, n in pairs for size in (d, n // d)), *rest)
        x = x.transpose(*self._order, *range(2 * len(self.sizes), x.ndim))
        x = x.reshape(-1, each, *rest)
        x = jnp.pad(x, ((0, 0), (0, -each % self.sharers), *((0, 0),) * len(rest)))
        return x.reshape(-1, *rest)

    def in_order(self, x: Array) -> Array:
        """The inverse of `laid_out`."""
        rest, each = x.shape[1:], math.prod(self.even) // math.prod(self.shards)
        x = x.reshape(math.prod(self.shards), -1, *rest)[:, :each]
        inner = (n // d for n, d in zip(self.even, self.shards, strict=True))
        x = x.reshape(*self.shards, *inner, *rest)
        back = np.argsort(self._order)
        x = x.transpose(*back, *range(len(back), x.ndim)).reshape(*self.even, *rest)
        return x[tuple(map(slice, self.sizes))].reshape(-1, *rest)

    @property
    def _order(self) -> list[int]:
        """The axes, each cut in two, with the shards before what is in one."""
        both = range(2 * len(self.sizes))
        return [*both[::2], *both[1::2]]


class Share(NamedTuple):
    """The slice of a stack that belongs to one leaf.

    stack: numbers the stacks of a tree; at: which of the `of` leaves of the stack this is;
    shape: of the slot by itself; matrices: how it is a batch of matrices, None if it is a batch of
    factors already; axes: those of the mesh over which the stack is divided; begin: where in the
    padded stack its first matrix is, None if the stack is not balanced with others; own: how the
    matrices lie in the stack if they are divided along their batch axes.
    """

    stack: int
    at: int
    of: int
    shape: tuple[int, ...]
    matrices: Any
    axes: tuple[str, ...]
    begin: int | None
    own: OwnBatches | None = None

    def laid_out(self, x: Array, devices: int) -> Array:
        """The matrices of all leaves, in order, as the stack has them: with padding."""
        return padded(x, devices, self.begin) if self.own is None else self.own.laid_out(x)

    def in_order(self, stack: Array) -> Array:
        """The matrices of a stack in the order of the leaves, perhaps with padding at the end."""
        return in_order(stack, self.begin) if self.own is None else self.own.in_order(stack)

    def take(self, x: Any) -> Any:
        """The slot as a slice of the stack, in a codec if it is in one."""
        how = self.matrices
        if how is None:
            return x
        if not is_encoded(x):
            return how.take(x)
        parts = {n: how.of_shape(part.shape).take(part) for n, part in x.parts.items()}
        return x.of_parts(parts, how.sizes, self.along(x))

    def put(self, stack: Any) -> Any:
        """The slot, from the matrices of all leaves in order."""
        how = self.matrices
        n = self.shape[0] if how is None else how.sizes[0]
        matrices = slice(self.at * n, (self.at + 1) * n)
        if not is_encoded(stack):
            return stack[matrices] if how is None else how.put(stack[matrices])
        parts, along = {n: part[matrices] for n, part in stack.parts.items()}, stack.codec.axis
        if how is None:
            return stack.of_parts(parts, self.shape, along)
        shape, axis = list(self.shape), None if along is None else how.axes[along][0]
        for name, part in parts.items():
            if axis is not None:
                shape[axis] = part.shape[along]  # of scales there is one for each block
            parts[name] = how.of_shape(tuple(shape)).put(part)
        return stack.of_parts(parts, self.shape, axis)

    def along(self, x: Encoded) -> int | None:
        """The axis of the stack along which blocks of a codec lie; None if there are no blocks."""
        axis, how = x.codec.axis, self.matrices
        if axis is None or how is None:
            return axis
        return next(i for i, axes in enumerate(how.axes) if axis in axes)

    def fits(self, x: Any) -> bool:
        """Whether a slot can be a slice of the stack: a block of a codec must not be divided."""
        if not is_encoded(x):
            return True
        along, how = self.along(x), self.matrices
        if x.key is not None or along == 0:
            return False
        if along is None or how is None:
            return True
        return how.split == how.shape and len(how.axes[along]) == 1


@jax.tree_util.register_pytree_with_keys_class
class Owned:
    """A slot of a leaf that shares a stack with equal leaves; the first leaf holds the stack.

    Args:
        value: the stack, ``(n, ...)``, as :func:`padded` makes it.
        share: which slice of it is this leaf's.
    """

    def __init__(self, value: Any, share: Share) -> None:
        self.value, self.share = value, share

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of this leaf's slot alone."""
        return self.share.shape

    def __repr__(self) -> str:
        return f"Owned({self.shape}, {self.share.at + 1} of {self.share.of})"

    def tree_flatten_with_keys(self) -> tuple[Any, Share]:
        return ((jax.tree_util.GetAttrKey("value"), self.value),), self.share

    @classmethod
    def tree_unflatten(cls, share: Share, children: Any) -> "Owned":
        return cls(children[0], share)


def is_owned(x: Any) -> bool:
    """Whether `x` is `Owned`."""
    return isinstance(x, Owned)


def stacked(slots: list[Any], shares: Sequence[Share], devices: int) -> list[Owned]:
    """The slots of equal leaves as one stack, padded so that the devices can divide it."""
    parts = [share.take(x) for x, share in zip(slots, shares, strict=True)]
    lay_out = shares[0].laid_out
    stack = jax.tree.map(lambda *xs: lay_out(jnp.concatenate(xs), devices), *parts)
    if is_encoded(stack):
        # No block lies along the first axis, so that all parts are as long.
        shape = len(next(iter(stack.parts.values()))), *stack.shape[1:]
        stack = stack.of_parts(stack.parts, shape, stack.codec.axis)
    return [Owned(None if share.at else stack, share) for share in shares]


def padded(x: Array, devices: int, begin: int | None) -> Array:
    """A stack with zeros, so that the devices hold equal parts: its first entry is at `begin`.

    The last entries may be in front of it, and the zeros between.
    """
    whole = jnp.pad(x, ((0, -x.shape[0] % devices), *((0, 0),) * (x.ndim - 1)))
    return jnp.roll(whole, begin, axis=0) if begin else whole


def in_order(x: Array, begin: int | None) -> Array:
    """A padded stack from its first entry on, with all zeros at the end."""
    return jnp.roll(x, -begin, axis=0) if begin else x


def together(slots: list[Any], like: list[Any]) -> list[Any]:
    """The leaves of a state, with slots in stacks wherever `like` has a slot that is `Owned`.

    Slots in codecs that differ, or with blocks that a stack would divide, stay separate.
    """
    members_of_stacks, whole = (
        dict[int, list[int]](),
        list[tuple[list[int], tuple[Share, ...], int]](),
    )
    for i, slot in enumerate(like):
        if not is_owned(slot):
            continue
        members = members_of_stacks.setdefault(slot.share.stack, [])
        members.append(i)
        if len(members) == slot.share.of:  # all leaves of one field come before the next field
            del members_of_stacks[slot.share.stack]
            members_slots, shares = (
                [slots[k] for k in members],
                tuple(like[k].share for k in members),
            )
            alike = len(set(map(jax.tree.structure, members_slots))) == 1
            if alike and all(s.fits(x) for s, x in zip(shares, members_slots, strict=True)):
                whole.append((members, shares, like[members[0]].value.shape[0]))
    made = list(slots)
    forms = tuple((shares, size) for _, shares, size in whole)
    stacks = _each_stacked([[slots[k] for k in members] for members, *_ in whole], forms)
    for (members, *_), stack in zip(whole, stacks, strict=True):
        for k, each in zip(members, stack, strict=True):
            made[k] = each
    return made


@functools.partial(jax.jit, static_argnames="forms")  # as in `in_one_program`
def _each_stacked(
    slots: list[list[Any]], forms: tuple[tuple[tuple[Share, ...], int], ...]
) -> list[list[Owned]]:
    return [
        stacked(members, shares, size) for members, (shares, size) in zip(slots, forms, strict=True)
    ]


def apart(state: PyTree) -> PyTree:
    """A state in which slots that were in stacks are separate arrays of their own shapes."""
    return in_one_program(_each_alone, state, is_owned)


def _each_alone(slots: list[Owned]) -> list[Any]:
    stacks: dict[int, Array] = {}  # of one field after another: the first leaf comes first
    separate = []
    for x in slots:
        if x.value is not None:
            share = x.share
            stacks[share.stack] = jax.tree.map(
                lambda part, share=share: share.in_order(sliceable(part)), x.value
            )
        separate.append(x.share.put(stacks[x.share.stack]))
    return separate


def in_stacks(state: PyTree, like: PyTree) -> PyTree:
    """A state of separate slots, with those slots in stacks that are in stacks in `like`."""
    treedef: Any
    kept, treedef = jax.tree.flatten(like, is_leaf=is_owned)
    return treedef.unflatten(together(treedef.flatten_up_to(state), kept))
