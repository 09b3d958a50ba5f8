"""The first steps on sixteen vectors in place of many leaves, so that XLA compiles fewer kernels.

XLA compiles the kernels of a step anew for each shape, which takes 3 s for Adam on 150 leaves of 40
shapes. In its first steps a program therefore gets *blocks*: small leaves joined end to end, and
cut into vectors of one length. If the program computes each entry from the same entry of its
arguments and from scalars, its results have the same bits, since it consists of the same kernels
but for the lengths of their loops. That needs several blocks, and leaves whose rows fill registers:

- Scalars that a single kernel reads, such as a bias correction, become a part of that kernel, and
  are then rounded otherwise. Many leaves are many kernels, and so are sixteen blocks.
- A kernel of one entry has no loop. A product of scalars is computed before a loop; without one
  LLVM joins it to a sum, and rounds once instead of twice. Since jax 0.12 the entries of a row that
  do not fill a register are rounded otherwise too. Leaves whose rows are no multiple of 16 long
  therefore stay as they are.
"""

import math
from collections import Counter
from collections.abc import Callable
from itertools import compress
from typing import Any, NamedTuple

import jax
import numpy as np

from gradtx.programs.tracing import is_tracer

BLOCKS = 16
"""The number of blocks; fewer leaves are not joined."""

MOST = 1 << 20
"""Trees of at most so many entries are joined: more take longer to copy than to compile for."""

FIRST_STEPS = 16
"""So many steps of a program run on blocks. All their copies together take less time than compiling
for the leaves, which is done at the next step."""


WIDE = 16
"""What the last axis of a leaf is a multiple of, if it is joined: of the entries of a register."""


class OnBlocks:
    """A program whose first steps on a tree run on blocks, where leaves are small and on a CPU.

    Args:
        program: a function of ``jax.jit``, which computes each entry from the same entry of its
            arguments and from scalars.
        like: the position of an argument; all trees of its structure are joined. If something else
            is not a scalar, if shapes differ, or a tree has several types, leaves are not joined.
    """

    def __init__(self, program: Callable[..., Any], like: int) -> None:
        self._program, self._like = program, like
        # By the hash of a tree's structure, which may hold objects, and of its shapes.
        self._steps: Counter[int] = Counter()

    def __call__(self, /, *trees: Any, **named: Any) -> Any:
        structure: Any
        leaves, structure = jax.tree.flatten(trees[self._like])
        kind = structure, tuple([x.shape for x in leaves])
        key = hash(kind)
        if self._steps[key] < FIRST_STEPS:
            self._steps[key] += 1
            joint = _Joint(*kind)
            if joint.is_small and _runs_at_once():
                return self._on_blocks(joint, trees, named)
        return self._program(*trees, **named)

    def _on_blocks(self, joint: "_Joint", trees: tuple[Any, ...], named: dict[str, Any]) -> Any:
        outer: Any
        parts, outer = jax.tree.flatten((trees, named), is_leaf=joint.is_tree)
        if all(map(joint.takes, parts)):
            trees_of_blocks, named_blocks = outer.unflatten(map(joint.joined, parts))
            try:
                done = self._program(*trees_of_blocks, **named_blocks)
            except (TypeError, ValueError):
                return self._program(*trees, **named)  # the error tells the leaf
            return jax.tree.map(joint.restored, done, is_leaf=_is_joined)
        return self._program(*trees, **named)


def _runs_at_once() -> bool:
    """Whether a program that is called now runs, and is not a part of one that is traced."""
    config: Any = jax.config
    return not (config.jax_disable_jit or is_tracer(jax.device_put(np.int32(0))))


class _JoinedLeaves(NamedTuple):
    """A tree of which the leaves are blocks, but for those that stay as they are."""

    blocks: list[Any]
    others: list[Any]


def _is_joined(x: Any) -> bool:
    return isinstance(x, _JoinedLeaves)


class _Joint:
    """How trees of one structure and equal shapes become `_JoinedLeaves`, and trees again.

    Args:
        structure: of these trees.
        shapes: of their leaves.
    """

    def __init__(self, structure: Any, shapes: tuple[tuple[int, ...], ...]) -> None:
        self._structure, self._shapes = structure, shapes
        sizes = list(map(math.prod, shapes))
        self._are_joined = [
            size > 0 and shape != () and shape[-1] % WIDE == 0
            for size, shape in zip(sizes, shapes, strict=True)
        ]
        self._ends = np.cumsum(list(compress(sizes, self._are_joined)), dtype=int)

    @property
    def is_small(self) -> bool:
        """Whether there are as many leaves as blocks, and not too many entries."""
        return len(self._ends) >= BLOCKS and int(self._ends[-1]) <= MOST

    def is_tree(self, x: Any) -> bool:
        """Whether something has the structure."""
        return bool(jax.tree.structure(x) == self._structure)

    def takes(self, part: Any) -> bool:
        """Whether something is a known scalar, or a tree of the shapes, in one type, on a CPU."""
        if not self.is_tree(part):
            return not is_tracer(part) and bool(np.ndim(part) == 0)
        leaves = jax.tree.leaves(part)
        return (
            all(isinstance(x, jax.Array) and not x.weak_type for x in leaves)
            and tuple(x.shape for x in leaves) == self._shapes
            and len({x.dtype for x in compress(leaves, self._are_joined)}) == 1
            and all(device.platform == "cpu" for device in leaves[0].devices())
        )

    def joined(self, part: Any) -> Any:
        """A tree as `_JoinedLeaves`; a scalar as it is."""
        if not self.is_tree(part):
            return part
        leaves = jax.tree.leaves(part)
        joined = list(compress(leaves, self._are_joined))
        others = [x for x, is_joined in zip(leaves, self._are_joined, strict=True) if not is_joined]
        length = 1 << (-(-int(self._ends[-1]) // BLOCKS) - 1).bit_length()  # few for all trees
        vector = np.concatenate([np.asarray(x).reshape(-1) for x in joined])
        # What blocks have too much are entries once more, so that no value is a new one.
        return _JoinedLeaves(_placed(list(np.resize(vector, (BLOCKS, length))), leaves), others)

    def restored(self, part: Any) -> Any:
        """The tree of a `_JoinedLeaves`; something else as it is."""
        if not _is_joined(part):
            return part
        vector = np.concatenate([np.asarray(block) for block in part.blocks])
        shapes = compress(self._shapes, self._are_joined)
        pieces = [
            x.reshape(shape)
            for x, shape in zip(np.split(vector, self._ends)[:-1], shapes, strict=True)
        ]
        joined, others = iter(_placed(pieces, part.blocks)), iter(part.others)
        return self._structure.unflatten(
            [next(joined if is_joined else others) for is_joined in self._are_joined]
        )


def _placed(arrays: list[Any], like: list[Any]) -> list[Any]:
    """Arrays on the device of others, and bound to it if one of these is."""
    bound = next((x.sharding for x in like if x.committed), None)
    placed: list[Any] = jax.device_put(arrays, bound)
    return placed
