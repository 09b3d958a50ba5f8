"""A state as a list of NumPy arrays, as in Keras: the iteration first, then the slots."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.inspection.iterations import step_counters
from gradtx.inspection.slots import walk_slots
from gradtx.types import State


def get_weights(state: State) -> list[np.ndarray]:
    """A state as a list of NumPy arrays.

    Args:
        state: a state of any transformation of gradtx.

    Returns:
        The iteration first (0 if the state counts none, as :func:`count_steps` in the chain does),
        then the slots in the order in which they were made, leaf by leaf, then whatever else the
        state holds. Random keys become the integers behind them. For files use
        :func:`state_dict`, which names its arrays.

    >>> import gradtx
    >>> [w.tolist() for w in get_weights(gradtx.adam(0.1).init(jnp.ones(2)))]
    [0, [0.0, 0.0], [0.0, 0.0]]
    """
    leaves = jax.tree.leaves(state)
    (count, start), order = _order(state)
    first = np.zeros([], np.int32) if count is None else np.asarray(leaves[count]) - start
    return [first, *(_numbers(leaves[i]) for i in order)]


def set_weights(state: State, weights: Sequence[Any]) -> State:
    """A state with the values that :func:`get_weights` returned.

    Args:
        state: a state of the same transformation and parameters, such as ``tx.init(params)``.
        weights: the arrays; the iteration has 32 bits or is a Python integer. Weights of Keras or
            TensorFlow have an order and signs of their own, and hold a learning rate:
            :func:`from_keras` reads these, with the configuration.

    Returns:
        The new state.

    Raises:
        ValueError: the number of arrays or the shape of one is wrong; there is an iteration and the
            state counts none; or the iteration has 64 bits, as TensorFlow's do.
        TypeError: an array has the wrong type.

    >>> import gradtx
    >>> state = gradtx.adam(0.1).init(jnp.ones(2))
    >>> int(set_weights(state, [7, *get_weights(state)[1:]])[0].count)
    7
    """
    if weights and getattr(weights[0], "dtype", None) == np.int64:
        # Slots are often alike in shape: nothing else would show that their order differs.
        raise ValueError(
            "set_weights: the iteration has 64 bits, as TensorFlow's get_weights gives it, whose "
            "slots have another order and other signs: from_keras(config, params, weights) reads "
            "them; a list that get_weights gave here has np.int32(iteration) in the first place"
        )
    leaves, treedef = jax.tree.flatten(state)
    structure: Any = treedef
    (count, start), order = _order(state)
    if len(weights) != len(order) + 1:
        raise ValueError(f"set_weights: {len(weights)} arrays, where {len(order) + 1} are needed")
    new = list(leaves)
    if count is not None:
        new[count] = _checked(0, leaves[count], weights[0]) + start
    elif np.any(np.asarray(weights[0]) != 0):
        raise ValueError(
            f"set_weights: the state counts no steps, so that the iteration {weights[0]} would be "
            "lost; chain(count_steps(), ...) counts them"
        )
    for position, i in enumerate(order, start=1):
        new[i] = _checked(position, leaves[i], weights[position])
    return structure.unflatten(new)


def _order(state: State) -> tuple[tuple[int | None, int], list[int]]:
    """The leaf that counts steps with its first number, and the other leaves, slots first."""
    positions: Any = jax.tree.structure(state)
    numbered = positions.unflatten(range(positions.num_leaves))
    slots = [i for _, _, tree in walk_slots(numbered) for i in jax.tree.leaves(tree)]
    count, start = next(step_counters(numbered), (None, 0))
    others = {*slots, count}
    rest = [i for i in range(positions.num_leaves) if i not in others]
    return (count, start), [*slots, *rest]


def _is_key(leaf: Any) -> bool:
    return bool(jnp.issubdtype(jnp.asarray(leaf).dtype, jax.dtypes.prng_key))


def _numbers(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _checked(position: int, leaf: Any, value: Any) -> Any:
    old, new = _numbers(leaf), np.asarray(value)
    if new.shape != old.shape:
        raise ValueError(
            f"set_weights: array {position} has the shape {new.shape}, not {old.shape}"
        )
    same_kind = new.dtype == old.dtype or np.can_cast(new.dtype, old.dtype, "same_kind")
    if not same_kind and not (new.ndim == 0 and new.dtype.kind == old.dtype.kind == "i"):
        raise TypeError(f"set_weights: array {position} is {new.dtype}, not {old.dtype}")
    loaded = jnp.array(new, old.dtype, copy=True)
    if _is_key(leaf):
        return jax.random.wrap_key_data(loaded, impl=jax.random.key_impl(leaf))
    return loaded
