"""Masks: a transformation on some of the leaves."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from gradtx.composition.around import InnerStep, around
from gradtx.composition.views import OnPart
from gradtx.core.pair import GradientTransformation, transformation, with_extra_args_support
from gradtx.leaves.paths import (
    Where,
    are_alike,
    chosen,
    is_leaf,
    mask_prefix,
    mask_tree,
    merge,
    select,
)
from gradtx.leaves.whole import part_of_whole
from gradtx.types import COUNTER, MaskedInnerState, Params, PyTree, State, Updates, fields_of


class MaskedState(NamedTuple):
    """inner_state: the inner transformation's, with `None` for the leaves that it does not see."""

    inner_state: MaskedInnerState


def restrict(inner: GradientTransformation, where: Where | None) -> GradientTransformation:
    """A transformation that runs `inner` on the leaves that `where` chooses, and keeps others."""
    if where is None:
        return inner
    tx = with_extra_args_support(inner)

    def init(params: Params) -> State:
        mask = mask_prefix(params, where)
        with part_of_whole(lambda whole_tree: chosen(whole_tree, mask)):
            return tx.init(chosen(params, mask))

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Updates, State]:
        asked = _asked(updates, params)
        mask = mask_prefix(asked, where)  # once: a function of the user's may take long
        seen = params
        if params is not None:
            seen = chosen(params, mask if asked is params else mask_prefix(params, where))
        with part_of_whole(lambda whole_tree: chosen(whole_tree, mask)):
            new, state = inner_step(chosen(updates, mask), state, seen)
        return merge(new, updates), state

    def on_part(_: int, function: Callable[[Any], Any], tree: PyTree) -> PyTree:
        return merge(function(chosen(tree, mask_prefix(tree, where))), tree)

    return around(tx, init, run, parts=(tx,), facets=(OnPart(on_part),))


def _asked(updates: Updates, params: Params | None) -> PyTree:
    """The tree that a mask sees: the parameters, or the updates if no parameters fit these."""
    if params is None:
        return updates
    return params if are_alike(params, updates) else updates


def refusing(tx: GradientTransformation, where: Where | None) -> Callable[[Params], State]:
    """The `init` of a transformation, with an error for a mask that does not fit the parameters."""

    def init(params: Params) -> State:
        select(params, where)
        return tx.init(params)

    return init


def split_by_mask(
    where: Where | None, tx: GradientTransformation, other: GradientTransformation
) -> GradientTransformation:
    """A transformation with one state that runs `tx` on chosen leaves, and `other` on others."""
    if where is None:
        return tx
    first, second = map(with_extra_args_support, (tx, other))

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Updates, State]:
        mask = mask_tree(_asked(updates, params), where)
        rest = jax.tree.map(lambda g, m: None if m else g, updates, mask, is_leaf=is_leaf)
        new, after = inner_step(chosen(updates, mask), state, params)
        counters = fields_of(type(after), COUNTER)  # both parts belong to one step
        if counters:
            after = after._replace(**{n: getattr(state, n) for n in counters})
        others, after = second.update(rest, after, params, **inner_step.extra_args)
        return merge(new, others), after

    return around(first, refusing(first, where), run, parts=(first, second))


@transformation(update_size="proportional")
def masked(
    inner: GradientTransformation, mask: Where, *, mask_compatible_extra_args: bool = False
) -> GradientTransformation:
    """Transform the leaves that a mask chooses, and pass the others on unchanged.

    Args:
        inner: the transformation.
        mask: a tree of booleans like the parameters or a prefix of it, a function from the
            parameters to such a tree, a path pattern or a list of them (``"*/kernel"``), or a
            predicate ``(path, leaf) -> bool``.
        mask_compatible_extra_args: also mask extra arguments that are trees like the updates.

    State: `MaskedState`. What is not chosen has no slots: `None` stands where Optax puts a
    ``MaskedNode``, one for all leaves below where a tree of booleans has one False for them.

    Raises:
        ValueError: a pattern matches no leaf, or the mask does not fit the parameters.
        TypeError: the mask is something else, such as a regular expression.

    >>> import gradtx, jax.numpy as jnp
    >>> tx = gradtx.masked(gradtx.scale(2.0), "w")
    >>> params = {"w": jnp.ones(1), "b": jnp.ones(1)}
    >>> tx.update(params, tx.init(params))[0]
    {'b': Array([1.], dtype=float32), 'w': Array([2.], dtype=float32)}
    """
    restricted = restrict(inner, mask)

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Updates, State]:
        chosen_too = {}
        if mask_compatible_extra_args:
            chosen_too = {
                name: chosen(value, mask_prefix(value, mask))
                for name, value in inner_step.extra_args.items()
                if are_alike(value, updates)
            }
        # Without state, any state is accepted; with one, the error says what was expected.
        inner_state = getattr(state, "inner_state", state)
        updates, inner_state = inner_step(updates, inner_state, params, **chosen_too)
        return updates, MaskedState(inner_state)

    def init(params: Params) -> State:
        return MaskedState(restricted.init(params))

    return around(restricted, init, run, parts=(restricted,))
