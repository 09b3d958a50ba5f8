"""The leaves at one place in equal tuples, as one batch for a rule, and back.

A matrix is a tuple of one: matrices are the batch of the only place.
"""

import functools
import itertools
from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gradtx.engine.leaves import load, store
from gradtx.leaves.matrix_layout import Matrices
from gradtx.types import Array


class Place:
    """Leaves that are stacked, and become one batch.

    Args:
        groups: of each group of equal leaves the layout by which one of them is a batch of
            matrices, None if the stacked leaves are the batch, and the indices of the leaves.
        factors: the names of slots that are batches already: of a matrix, not of its entries.

    Attributes:
        stacked: of each group the layout of its stack, and the indices.
        first: the index of the first leaf.
    """

    def __init__(
        self,
        groups: Sequence[tuple[Matrices | None, Sequence[int]]],
        factors: Collection[str] = (),
    ) -> None:
        self.stacked = [
            (None if how is None else how.stacked(len(members)), members) for how, members in groups
        ]
        self.first, self.factors = groups[0][1][0], factors

    def stacks(self, column: Sequence[Any]) -> list[Any]:
        """For each group a stack of what `column` has for its leaves, widened."""
        return [
            jax.tree.map(lambda *xs: jnp.stack(xs), *(load(column[i]) for i in members))
            for _, members in self.stacked
        ]

    def batch(self, stacks: Sequence[Any], slot: str = "") -> Any:
        """The stacks of all groups, those of leaves or of a slot of this name, as one batch."""
        batches = [
            jax.tree.map(functools.partial(self._taken, how, slot), stack)
            for (how, _), stack in zip(self.stacked, stacks, strict=True)
        ]
        if len(batches) == 1:
            return batches[0]
        return jax.tree.map(lambda *xs: jnp.concatenate(xs), *batches)

    def apart(self, batch: Any, slot: str = "") -> list[Any]:
        """The inverse of `batch`: the stack of each group."""
        if len(self.stacked) == 1:
            parts = [batch]
        else:
            ends = [0, *itertools.accumulate(how.sizes[0] for how, _ in self.stacked if how)]
            parts = [
                jax.tree.map(lambda x, cut=slice(*ends): x[cut], batch)
                for ends in itertools.pairwise(ends)
            ]
        return [
            jax.tree.map(functools.partial(self._put, how, len(members), slot), part)
            for (how, members), part in zip(self.stacked, parts, strict=True)
        ]

    def write(self, stacks: Sequence[Any], column: list[Any]) -> None:
        """Put the parts of stacks into `column`, in the forms and types of what is there."""
        for (_, members), stack in zip(self.stacked, stacks, strict=True):
            treedef: Any
            arrays, treedef = jax.tree.flatten(stack)
            for i, each in zip(members, zip(*map(jnp.unstack, arrays), strict=True), strict=True):
                column[i] = store(column[i], treedef.unflatten(each))

    def _taken(self, how: Matrices | None, slot: str, stack: Array) -> Array:
        if how is None:
            return stack
        if slot in self.factors:
            return stack.reshape(stack.shape[0] * stack.shape[1], *stack.shape[2:])
        return how.take(stack)

    def _put(self, how: Matrices | None, count: int, slot: str, batch: Array) -> Array:
        if how is None:
            return batch
        if slot in self.factors:
            return batch.reshape(count, batch.shape[0] // count, *batch.shape[1:])
        return how.put(batch)
