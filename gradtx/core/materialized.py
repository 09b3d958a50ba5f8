"""Slots kept in another form than an array, for functions that were written for arrays."""

from collections.abc import Callable
from typing import Any

import jax

from gradtx.types import State, Updates, is_stored, slot_fields


def on_arrays(function: Callable[..., Any], state: State) -> Callable[..., Any]:
    """`function`, an update or a whole step, made to take slots in any form.

    The engine loads and stores such slots itself, leaf by leaf; this is for what is built by hand.

    Args:
        function: ``(updates, state, ...) -> (result, state)``.
        state: the state that it will be called with.
    """
    names = slot_fields(type(state))
    slots = [getattr(state, name) for name in names]
    if not any(map(is_stored, jax.tree.leaves(slots, is_leaf=is_stored))):
        return function

    def run(updates: Updates, state: State, *rest: Any, **extra_args: Any) -> Any:
        result, new = function(updates, _loaded(state, names), *rest, **extra_args)
        return result, _stored(state, new, names)

    return run


def _loaded(state: State, names: tuple[str, ...]) -> State:
    def array(x: Any) -> Any:
        return x.load() if is_stored(x) else x

    return state._replace(
        **{n: jax.tree.map(array, getattr(state, n), is_leaf=is_stored) for n in names}
    )


def _stored(state: State, new: State, names: tuple[str, ...]) -> State:
    """`new` with its slots in the forms that they have in `state`."""

    def kept(old: Any, x: Any) -> Any:
        return old.store(x) if is_stored(old) else x

    trees = {
        n: jax.tree.map(kept, getattr(state, n), getattr(new, n), is_leaf=is_stored) for n in names
    }
    return new._replace(**trees)
