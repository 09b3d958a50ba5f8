"""Whether a step treats table rows independently, so that a row can take it by itself, later."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.numerics.programs import inner_jaxprs, is_in, variables
from gradtx.pair import GradientTransformation
from gradtx.paths import is_leaf, map_present, path_string, with_paths
from gradtx.rows import Rows, is_rows
from gradtx.traits import Scope
from gradtx.tree.search import children_of, map_params
from gradtx.types import COUNTER, SLOT, Params, PyTree, State, Stored, fields_of, state_fields


def treats_rows_alone(tx: GradientTransformation) -> bool:
    """Whether all rules of `tx` declare that they treat rows independently, and keep no more."""
    return tx.rules is not None and all(
        rule.scope in (Scope.ENTRY, Scope.ROW)
        and set(state_fields(rule.state).values()) <= {SLOT, COUNTER}
        for rule in tx.rules
    )


def _counters(state: Any) -> set[str]:
    """The names of the step counters in a state."""
    below = [_counters(child) for _, child in children_of(state)]
    return set(fields_of(type(state), COUNTER)).union(*below)


class _Other(NamedTuple):
    """A part of a state that is not a slot."""

    value: Any


def check_separable(
    tx: GradientTransformation, params: Params, state: State, tables: PyTree
) -> None:
    """Raise unless a row can take a step of `tx` without a gradient by itself, and later.

    Such a step needs only the row, its slots and the step number. The rules declare this; for pairs
    without a rule, the program of `tx` is inspected.

    Args:
        tx: the transformation.
        params: the parameters.
        state: its state.
        tables: a tree like the parameters, None for those that are not tables.

    Raises:
        TypeError: `tx` does not run on rows, or makes whole tables of them.
        ValueError: it needs the loss, something from all rows, or a state in which more changes
            from step to step than slots and the step number.
    """
    if treats_rows_alone(tx):
        return
    advice = "use the lazy update, or dense_rows"
    params = map_present(lambda t, p: p, tables, params)

    def gradient(p: Any) -> Any:
        return Rows(jnp.arange(2), jnp.zeros((2, *p.shape[1:]), p.dtype), p.shape)

    def check_slot(slot: Any, p: Any, table: Any) -> None:
        if table is not None and not (hasattr(p, "shape") and slot.shape[:1] == p.shape[:1]):
            raise ValueError(
                f"exact_rows: a slot of the shape {slot.shape} belongs to more than a row of a "
                f"table; {advice}"
            )

    def on_slots(function: Any, state: State, *rest: Any, others: Any = None) -> State:
        return map_params(
            tx,
            function,
            state,
            *rest,
            transform_non_params=others,
            is_leaf=lambda x: isinstance(x, Stored),
        )

    clocks = {"count", *_counters(state)}
    marked = on_slots(lambda _: None, state, others=_Other)
    others, _ = with_paths(marked, is_leaf=lambda x: isinstance(x, _Other))

    def update(values: list[Any], slots: list[Any], params: Params) -> Any:
        given, held = iter(values), iter(slots)
        found: list[Any] = []
        whole = on_slots(lambda _: next(held), state, others=lambda _: next(given))
        grads = jax.tree.map(gradient, params)
        updates, new = tx.update(grads, whole, params)
        dense = jax.tree.map(
            lambda g, u: is_rows(g) and not is_rows(u), grads, updates, is_leaf=is_leaf
        )
        if any(jax.tree.leaves(dense)):
            raise TypeError(
                "exact_rows: the transformation inside makes whole tables of rows, so that no row "
                "ever misses a step; leave exact_rows out"
            )
        on_slots(lambda _: None, new, others=found.append)
        return found, updates

    slots: list[Any] = []
    on_slots(slots.append, state)
    try:
        jaxpr = jax.make_jaxpr(update)([other.value for _, other in others], slots, params).jaxpr
    except ValueError as problem:
        raise ValueError(
            f"exact_rows: a row cannot take the steps that it missed: {problem}; {advice}"
        ) from problem
    read = {v for eqn in jaxpr.eqns for v in variables(eqn.invars)}
    made = {v for eqn in jaxpr.eqns for v in eqn.outvars}
    for (path, _), old, new in zip(others, jaxpr.invars, jaxpr.outvars, strict=False):
        name = path_string(path)
        if is_in(new, made) and old in read and name.split("/")[-1] not in clocks:
            raise ValueError(
                f"exact_rows: {name!r} in the state changes from step to step, and what it was at "
                f"the steps that a row missed is not kept; {advice}"
            )
    on_slots(check_slot, state, params, tables)
    if _mixes(jaxpr, set(jaxpr.invars[len(others) :])):
        raise ValueError(
            "exact_rows: a number is computed from the updates of all rows, such as their norm, "
            "and what it was at the steps that a row missed is not kept: take the norm of the "
            f"gradients, before all else; or {advice}"
        )


def _mixes(jaxpr: Any, of_rows: set[Any]) -> bool:
    """Whether a scalar is computed from several entries of the variables `of_rows`.

    Variables computed from them are added to `of_rows`.
    """
    for eqn in jaxpr.eqns:
        found = [v for v in variables(eqn.invars) if v in of_rows]
        if not found:
            continue
        if any(v.aval.size > 1 for v in found) and any(v.aval.shape == () for v in eqn.outvars):
            return True
        for inner in inner_jaxprs(eqn):
            # The operands of a branch or a loop come last among the inputs.
            given = zip(reversed(eqn.invars), reversed(inner.invars), strict=False)
            if _mixes(inner, {x for v, x in given if v in found}):
                return True
        of_rows.update(eqn.outvars)
    return False
