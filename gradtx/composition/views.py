"""What transformations see: some leaves or all, the gradients as they are, their common norm."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from gradtx.core.traits import not_handed_on


@not_handed_on
class OnPart(NamedTuple):
    """What the transformations inside see, where that is not the tree as it is.

    function: ``(i, function, tree) -> tree``, the tree with the function's result for the leaves
        that part `i` sees, or `i` of `inside` if there are no parts.
    """

    function: Callable[[int, Callable[[Any], Any], Any], Any]


@not_handed_on
class SameGradients:
    """The transformation inside sees the gradients of all leaves, as they are."""


class OtherLeaves:
    """The update of a leaf may depend on any other leaf: a user's function sees all of them."""


class LeafByLeaf:
    """The update of a leaf depends on no other leaf, whoever made the transformation."""


@not_handed_on
class TakesNorm(NamedTuple):
    """The norm of all gradients is taken, as the extra argument `grad_norm`.

    use: whether a leaf's update reads it, or the state of the next step alone.
    """

    use: Literal["update", "state"]
