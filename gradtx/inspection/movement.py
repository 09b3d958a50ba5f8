"""Movement: which entries of a state have changed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.inspection.slots import slots_by_name
from gradtx.storage import is_encoded
from gradtx.types import Array, State


def unmoved(before: State, after: State) -> dict[str, float]:
    """The share of a state's entries that are the same as some steps earlier, by slot.

    A moving average that is rounded to few bits at every step stands still once a step is less than
    half the distance to the next number. Compare states between which it should have moved, a
    hundred steps apart for example. For a slot in a codec, the codes are compared: a scale that
    changes moves the entries of a block together, which is not counted.

    Args:
        before: a state.
        after: a later one of the same transformation, in the same codecs.

    Returns:
        ``{name: share}`` for each slot that has entries, with the names of :func:`slot_names`.

    Raises:
        ValueError: the states are different trees.

    >>> import gradtx
    >>> tx, state = gradtx.ema(0.999), gradtx.ema(0.999).init(jnp.zeros(4))
    >>> _, after = tx.update(jnp.array([0.0, 1.0, 1.0, 1.0]), state)
    >>> unmoved(state, after)
    {'ema': 0.25}
    """
    if jax.tree.structure(before) != jax.tree.structure(after):  # type: ignore[operator]
        raise ValueError("unmoved: the states are different trees")
    shares = {}
    later = slots_by_name(after)
    for name, tree in slots_by_name(before).items():
        pairs = zip(_entries(tree), _entries(later[name]), strict=True)
        same = [np.asarray(jnp.all(x == y, axis=-1)) for x, y in pairs]
        if total := sum(x.size for x in same):
            shares[name] = float(sum(x.sum() for x in same) / total)
    return shares


def _entries(tree: Any) -> list[Array]:
    """The numbers to compare for each leaf; a last axis holds the numbers of one entry."""
    return [
        jnp.stack(list(leaf.entries()), -1) if is_encoded(leaf) else jnp.asarray(leaf)[..., None]
        for leaf in jax.tree.leaves(tree, is_leaf=is_encoded)
    ]
