"""Slots kept in another form than an array, for functions that were written for arrays."""

from collections.abc import Callable
from typing import Any

import jax

from gradtx.types import Params, State, Updates, is_stored, slot_fields


def holds_stored(state: State) -> bool:
    """Whether a slot of a state is kept in another form than an array."""
    slots = [getattr(state, name) for name in slot_fields(type(state))]
    return any(map(is_stored, jax.tree.leaves(slots, is_leaf=is_stored)))


def on_arrays(
    function: Callable[..., tuple[Any, State]],
    updates: Updates,
    state: State,
    params: Params | None,
    extra_args: dict[str, Any],
) -> tuple[Any, State]:
    """``function(updates, state, params, **extra_args)`` on arrays instead of slots in other forms.

    The engine loads and stores such slots itself, leaf by leaf; this is for what is built by hand.
    """
    names = slot_fields(type(state))
    done, new = function(updates, _loaded(state, names), params, **extra_args)
    return done, _stored(state, new, names)


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
