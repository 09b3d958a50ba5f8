"""Slots that stay where matrices are transformed: those of equal leaves are one divided stack."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.types import Array, PyTree


class Share(NamedTuple):
    """The part of a stack that belongs to one leaf.

    stack: numbers the stacks of a tree; at: which of the `of` leaves of the stack this is;
    shape: of the slot by itself; matrices: how it is a batch of matrices, None if it is a batch of
    factors already; axes: those of the mesh over which the stack is divided.
    """

    stack: int
    at: int
    of: int
    shape: tuple[int, ...]
    matrices: Any
    axes: tuple[str, ...]

    def take(self, x: Array) -> Array:
        """The slot as a part of the stack."""
        return x if self.matrices is None else self.matrices.take(x)

    def put(self, stack: Array) -> Array:
        """The slot, from the stack."""
        n = self.shape[0] if self.matrices is None else self.matrices.sizes[0]
        part = stack[self.at * n : (self.at + 1) * n]
        return part if self.matrices is None else self.matrices.put(part)


@jax.tree_util.register_pytree_with_keys_class
class Owned:
    """A slot of one of several equal leaves. The first of them has the stack, the others None.

    Args:
        value: the stack, ``(n, ...)``, with zeros at its end so that devices hold equal parts.
        share: which part of it is this leaf's.
    """

    def __init__(self, value: Any, share: Share) -> None:
        self.value, self.share = value, share

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the slot by itself."""
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


def stacked(slots: list[Array], shares: list[Share], devices: int) -> list[Owned]:
    """The slots of equal leaves as one stack, padded so that the devices can divide it."""
    parts = [share.take(x) for x, share in zip(slots, shares, strict=True)]
    stack = padded(jnp.concatenate(parts), devices)
    return [Owned(None if share.at else stack, share) for share in shares]


def padded(x: Array, devices: int) -> Array:
    """With zeros at the end of the first dimension, up to a multiple of the devices."""
    return jnp.pad(x, ((0, -x.shape[0] % devices), *((0, 0),) * (x.ndim - 1)))


def together(slots: list[Any], like: list[Any]) -> list[Any]:
    """The leaves of a state, of which some are `Owned` in `like`, with these in stacks."""
    made, found = list(slots), dict[int, list[int]]()
    for i, slot in enumerate(like):
        if not is_owned(slot):
            continue
        members = found.setdefault(slot.share.stack, [])
        members.append(i)
        if len(members) == slot.share.of:  # all leaves of one field come before the next field
            del found[slot.share.stack]
            size = len(like[members[0]].value)
            in_one = stacked([made[k] for k in members], [like[k].share for k in members], size)
            for k, each in zip(members, in_one, strict=True):
                made[k] = each
    return made


def apart(state: PyTree) -> PyTree:
    """A state with every slot by itself, in its own shape."""
    stacks: dict[int, Array] = {}  # of one field after another: the first leaf comes first

    def one(x: Any) -> Any:
        if not is_owned(x):
            return x
        if x.value is not None:
            stacks[x.share.stack] = x.value
        return x.share.put(stacks[x.share.stack])

    return jax.tree.map(one, state, is_leaf=is_owned)
