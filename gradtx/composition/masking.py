"""Masks: a transformation on some of the leaves."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from gradtx.pair import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    transformation,
    with_extra_args_support,
)
from gradtx.paths import Where, chosen, is_leaf, mask_prefix, mask_tree, merge
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
        return tx.init(chosen(params, mask_prefix(params, where)))

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        mask = mask_prefix(updates, where)  # once: a function of the user's may take long
        seen = params
        if params is not None:
            own: Any = jax.tree.structure(params)
            alike = own == jax.tree.structure(updates)
            seen = chosen(params, mask if alike else mask_prefix(params, where))
        new, state = tx.update(chosen(updates, mask), state, seen, **extra_args)
        return merge(new, updates), state

    def on_part(_: int, function: Callable[[Any], Any], tree: PyTree) -> PyTree:
        return merge(function(chosen(tree, mask_prefix(tree, where))), tree)

    return GradientTransformationExtraArgs(init, update, parts=(tx,), on_part=on_part)


def split_by_mask(
    where: Where | None, tx: GradientTransformation, other: GradientTransformation
) -> GradientTransformation:
    """A transformation with one state that runs `tx` on chosen leaves, and `other` on others."""
    if where is None:
        return tx

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        mask = mask_tree(updates, where)
        rest = jax.tree.map(lambda g, m: None if m else g, updates, mask, is_leaf=is_leaf)
        new, after = tx.update(chosen(updates, mask), state, params, **extra_args)
        counters = fields_of(type(after), COUNTER)  # both parts belong to one step
        if counters:
            after = after._replace(**{n: getattr(state, n) for n in counters})
        others, after = other.update(rest, after, params, **extra_args)
        return merge(new, others), after

    parts = tuple(map(with_extra_args_support, (tx, other)))
    return GradientTransformationExtraArgs(tx.init, update, parts=parts)


@transformation
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

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        if mask_compatible_extra_args:
            like: Any = jax.tree.structure(updates)
            extra_args = {
                name: chosen(value, mask_prefix(value, mask))
                if jax.tree.structure(value) == like
                else value
                for name, value in extra_args.items()
            }
        # Without state, any state is accepted; with one, the error says what was expected.
        inner_state = getattr(state, "inner_state", state)
        updates, inner_state = restricted.update(updates, inner_state, params, **extra_args)
        return updates, MaskedState(inner_state)

    return GradientTransformationExtraArgs(
        lambda params: MaskedState(restricted.init(params)), update, parts=(restricted,)
    )
