"""Rules that look at all leaves together, and keep scalars of the whole tree beside the slots."""

import functools
import inspect
import itertools
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from gradtx.checks import ArgumentError, check_one_number
from gradtx.core.pair import GradientTransformation
from gradtx.core.traits import Rule, Scope
from gradtx.engine.leaves import load, store
from gradtx.engine.lift import (
    Leaves,
    RuleFn,
    SlotsFn,
    Start,
    Transform,
    check_direction,
    check_names,
    check_slot,
    each_slots,
    lift,
    widened,
)
from gradtx.engine.scopes import scope
from gradtx.leaves.paths import Where, mask_tree, select, spread
from gradtx.leaves.rows import Rows
from gradtx.numerics import cast, scalar_dtype
from gradtx.types import Array, Params, PyTree


@scope
def treewise(
    state: type,
    slots: SlotsFn | None,
    rule: RuleFn,
    *,
    start: Start | None = None,
    rows: bool = False,
    mask: Where | None = None,
    beside: Mapping[str, PyTree] | None = None,
) -> GradientTransformation:
    """Lift a rule that looks at all leaves together, such as one that takes a global norm.

    Args:
        state: a NamedTuple class whose fields are annotated `Slots`, `Counter` (if the rule uses
            the step), `TreeScalar` (for each scalar of the whole tree) or `Key`.
        slots: ``p -> {name: array}``, the initial slots of one parameter; None if each begins
            as zeros like it, or there are none.
        rule: ``(g, s, t[, p][, *, value, chosen, places, ...]) -> (directions, {name: new slots or
            scalar})``.
            Gradients `g`, parameters `p` and each slot are lists of the leaves that have a
            gradient, to which ``jax.tree.map`` and :mod:`gradtx.tree` apply. What a rule does not
            return stays as it is. A rule with an argument `value` gets the loss, a scalar; one with
            `chosen` a list of booleans; one with `places` where each leaf begins in a vector of all
            entries of the parameters, those of leaves without a gradient included.
        start: ``{name: number}``, the initial scalars, or a function from the list of parameters
            to that; None for none. They are kept in float32, or wider if a parameter is wider; a
            boolean stays a boolean.
        rows: the rule takes `Rows` among the gradients; otherwise they are refused.
        mask: which leaves are `chosen`, as in :func:`masked`; None for all.
        beside: by the name of an argument of the rule, a tree like the parameters or a prefix of
            one; the rule gets its part for each leaf in a list.

    Returns:
        The pair. Decorate the function that calls this with :func:`transformation`.

    >>> import gradtx
    >>> @gradtx.transformation
    ... def normalize_all():
    ...     def rule(g, s, t):
    ...         return gradtx.tree.scale(1 / gradtx.global_norm(g), g), {}
    ...
    ...     return treewise(gradtx.EmptyState, None, rule)
    >>> tx = normalize_all()
    >>> {
    ...     k: float(u)
    ...     for k, u in tx.update({"a": 6.0, "b": 8.0}, tx.init({"a": 0.0, "b": 0.0}))[0].items()
    ... }
    {'a': 0.6000000238418579, 'b': 0.800000011920929}
    """
    lifted = Rule(Scope.TREE, state, rule, on_rows=rows)
    wanted = inspect.signature(rule).parameters
    transform = _all_leaves(lifted, mask, beside or {}, frozenset(wanted))
    slots_of_each = each_slots(state, slots)

    def first(params: Params, leaves: list[Any], paths: list[Any]) -> list[Any]:
        select(params, mask)  # a mask that does not fit is refused before the first step
        return slots_of_each(params, leaves, paths)

    return lift(lifted, first, transform, start=start, takes_params="p" in wanted)


def _all_leaves(
    rule: Rule, mask: Where | None, beside: Mapping[str, PyTree], wanted: frozenset[str]
) -> Transform:
    """A rule of the tree applied to all leaves that have a gradient."""

    def transform(leaves: Leaves) -> tuple[list[Any], dict[str, Any]]:
        there = leaves.there()
        gradients = [leaves.checked(i) for i in there]
        g = [widened(x) for x in gradients]
        arguments: dict[str, Any] = {}
        if leaves.takes_params:
            arguments["p"] = [load(jnp.asarray(leaves.params[i])) for i in there]
        if "value" in wanted:
            value = loss_value(leaves.label, leaves.extra_args)
            arguments["value"] = value.astype(scalar_dtype(g))
        if "chosen" in wanted:
            chosen = _chosen(leaves, mask)
            arguments["chosen"] = [chosen[i] for i in there]
        if "places" in wanted:
            places = _places(leaves.params)
            arguments["places"] = [places[i] for i in there]
        for name, prefix in beside.items():
            parts = _spread(leaves, name, prefix)
            arguments[name] = [parts[i] for i in there]
        columns = {n: [load(c[i]) for i in there] for n, c in leaves.slots.items()}
        s = leaves.view(columns, leaves.keys)
        step = leaves.steps.of(scalar_dtype(g))
        result, new = rule.function(g, s, step, **arguments)
        known = [*leaves.slots, *leaves.scalars]
        if unknown := set(new) - set(known):
            check_names(
                f"{leaves.label}: what the rule returns",
                dict.fromkeys([*known, *unknown]),
                known,
                rule.state,
            )

        directions: list[Any] = [None] * len(leaves.gradients)
        for i, x, u in zip(there, gradients, result, strict=True):
            check_direction(leaves.label, x, u, functools.partial(leaves.path, i))
            directions[i] = _rounded(u, x.dtype)
        slots = {n: list(column) for n, column in leaves.slots.items()}
        for n in new:
            if n in slots:
                for i, old, slot in zip(there, columns[n], new[n], strict=True):
                    check_slot(leaves.label, n, old, slot, functools.partial(leaves.path, i))
                    slots[n][i] = store(slots[n][i], slot)
        return directions, {**slots, **{n: v for n, v in new.items() if n not in slots}}

    return transform


def _chosen(leaves: Leaves, mask: Where | None) -> list[Any]:
    """A boolean for each leaf: whether `mask` chooses it.

    A mask sees the parameters if the rule does, and otherwise the gradients.
    """
    if mask is None:
        return [True] * len(leaves.gradients)
    seen = leaves.treedef.unflatten(leaves.params if leaves.takes_params else leaves.gradients)
    return list(leaves.treedef.flatten_up_to(mask_tree(seen, mask)))


def _places(params: list[Any]) -> list[int]:
    """Where each parameter begins in a vector of all their entries."""
    sizes = (0 if p is None else jnp.size(p) for p in params)
    return [0, *itertools.accumulate(sizes)]


def _spread(leaves: Leaves, name: str, prefix: PyTree) -> list[Any]:
    """The values of a tree or a prefix of one, one value for each leaf."""
    seen = leaves.treedef.unflatten(leaves.gradients)
    values = spread(f"{leaves.label}: {name} is", prefix, seen)
    return list(leaves.treedef.flatten_up_to(values))


def loss_value(label: str, extra_args: dict[str, Any]) -> Array:
    """The loss among the extra arguments of an update, a scalar.

    Raises:
        ArgumentError: it is missing.
        ValueError: it is not a scalar.
    """
    value = extra_args.get("value")
    if value is None:
        raise ArgumentError(
            f"{label} needs the loss: call update(updates, state, params, value=loss), or use "
            "minimize, make_step or solve, which pass it"
        )
    check_one_number(label, "value", value)
    return jnp.real(jnp.asarray(value))


def _rounded(u: Any, dtype: Any) -> Any:
    return u.with_values(cast(u.values, dtype)) if isinstance(u, Rows) else cast(u, dtype)
