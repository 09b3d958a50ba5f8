"""Rules that look at all leaves together, and keep numbers of the whole tree beside the slots."""

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast as typed

import jax.numpy as jnp

from gradtx.engine.lift import SlotsFn, _column, check_state, gradient, load, parameter, store
from gradtx.numerics import Step, cast, increment, scalar_dtype, widen
from gradtx.pair import GradientTransformation, GradientTransformationExtraArgs
from gradtx.paths import leaves_with_path, path_string
from gradtx.rows import Rows, is_rows
from gradtx.types import Array, Params, State, Updates, slot_fields

NumbersFn = Callable[[list[Array]], dict[str, Any]]
Rule = Callable[..., tuple[list[Any], dict[str, Any]]]


def treewise(
    state: type, slots: SlotsFn | None, numbers: NumbersFn | None, rule: Rule, *, rows: bool = False
) -> GradientTransformation:
    """Lift a rule that looks at all leaves together, such as one that takes a global norm.

    Args:
        state: a NamedTuple class: a field for each slot (annotated `Slots`), one for each number of
            the whole tree and, if the rule uses the step, ``count``.
        slots: ``p -> {name: array}``, the slots of one parameter at the start; None for none.
        numbers: ``[p, ...] -> {name: number}``, the numbers at the start; None for none. They are
            kept in float32, or wider where a parameter is; a boolean stays one.
        rule: ``(g, s, t[, p][, *, value]) -> (directions, {name: new slots or number})``. Gradients
            `g`, parameters `p` and each slot are lists of the leaves that have a gradient, to which
            ``jax.tree.map`` and :mod:`gradtx.tree` apply; a number is a scalar. What a rule does
            not return stays as it is. A rule with an argument `value` gets the loss, a scalar.
        rows: the rule takes `Rows` among the gradients; else they are refused.

    Returns:
        The pair. Decorate the function that calls this with :func:`transformation`.

    >>> import gradtx
    >>> @gradtx.transformation
    ... def normalize_all():
    ...     def rule(g, s, t):
    ...         return gradtx.tree.scale(1 / gradtx.global_norm(g), g), {}
    ...
    ...     return treewise(gradtx.EmptyState, None, None, rule)
    >>> tx = normalize_all()
    >>> {
    ...     k: float(u)
    ...     for k, u in tx.update({"a": 6.0, "b": 8.0}, tx.init({"a": 0.0, "b": 0.0}))[0].items()
    ... }
    {'a': 0.6000000238418579, 'b': 0.800000011920929}
    """
    fields: tuple[str, ...] = state._fields  # type: ignore[attr-defined]
    slotted = [n for n in fields if n in slot_fields(state)]
    counted = "count" in fields
    whole = [n for n in fields if n not in slotted and n != "count"]
    wanted = inspect.signature(rule).parameters
    label = rule.__qualname__.split(".<locals>.")[-2].split(".")[-1]

    def init(params: Params) -> State:
        leaves, treedef = leaves_with_path(params)
        checked = [None if p is None else parameter(p, path) for path, p in leaves]
        made = [None if p is None or slots is None else slots(p) for p in checked]
        trees = {n: treedef.unflatten([m if m is None else m[n] for m in made]) for n in slotted}
        there = [widen(p) for p in checked if p is not None]
        start = {} if numbers is None else numbers(there)
        kinds = {n: bool if isinstance(v, bool) else scalar_dtype(there) for n, v in start.items()}
        kept = {n: jnp.asarray(start[n], kinds[n]) for n in whole}
        count = {"count": jnp.zeros([], jnp.int32)} if counted else {}
        return typed(State, state(**trees, **kept, **count))

    def update(
        updates: Updates, now: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        check_state(label, now, state)
        if "p" in wanted and params is None and updates is not None:
            raise ValueError(f"{label} needs the parameters: call update(updates, state, params)")
        leaves, treedef = leaves_with_path(updates)
        columns = {n: _column(label, n, updates, getattr(now, n), treedef) for n in slotted}
        beside = dict(columns)
        if "p" in wanted:
            beside["parameter"] = _column(label, "the parameters", updates, params, treedef)
        there = [i for i, (_, g) in enumerate(leaves) if g is not None]
        given = [
            _checked(label, *leaves[i], {n: c[i] for n, c in beside.items()}, rows) for i in there
        ]
        g = [_widened(x) for x in given]
        dtype = scalar_dtype(g)
        arguments: dict[str, Any] = {}
        if "p" in wanted:
            arguments["p"] = [load(jnp.asarray(beside["parameter"][i])) for i in there]
        if "value" in wanted:
            arguments["value"] = loss_value(label, extra_args).astype(dtype)
        count = increment(now.count) if counted else None
        held = SimpleNamespace(
            **{n: [load(c[i]) for i in there] for n, c in columns.items()},
            **{n: getattr(now, n) for n in whole},
        )
        step = None if count is None else Step(count, dtype)
        directions, new = rule(g, held, step, **arguments)

        out: list[Any] = [None] * len(leaves)
        for i, x, u in zip(there, given, directions, strict=True):
            out[i] = _rounded(u, x.dtype)
        fresh: dict[str, Any] = {"count": count} if counted else {}
        for n in new:
            if n in columns:
                for i, slot in zip(there, new[n], strict=True):
                    columns[n][i] = store(columns[n][i], slot)
                fresh[n] = treedef.unflatten(columns[n])
            else:
                fresh[n] = cast(jnp.asarray(new[n]), getattr(now, n).dtype)
        return treedef.unflatten(out), now._replace(**fresh) if fresh else now

    return GradientTransformationExtraArgs(init, update)


def loss_value(label: str, extra_args: dict[str, Any]) -> Array:
    """The loss among the extra arguments of an update, a scalar.

    Raises:
        ValueError: it is missing, or no scalar.
    """
    value = extra_args.get("value")
    if value is None:
        raise ValueError(
            f"{label} needs the loss: call update(updates, state, params, value=loss), or use "
            "minimize, make_step or solve, which pass it"
        )
    if jnp.ndim(value) != 0:
        raise ValueError(f"{label}: value must be one number, not of shape {jnp.shape(value)}")
    return jnp.real(jnp.asarray(value))


def _checked(label: str, path: Any, g: Any, beside: dict[str, Any], rows: bool) -> Any:
    """A gradient that fits what lies beside it."""
    if not is_rows(g):
        g = gradient(g, path)
    elif not rows:
        raise TypeError(
            f"{label} looks at whole leaves and cannot run on the Rows at {path_string(path)!r}: "
            "use an elementwise transformation there (see partition), or make the gradient dense "
            "with to_dense()"
        )
    for name, x in beside.items():
        shape = None if x is None else jnp.shape(x)
        if shape != tuple(g.shape):
            raise ValueError(
                f"{label}: at {path_string(path)!r} the gradient has the shape {tuple(g.shape)} "
                f"and the {name} {shape}"
            )
    return g


def _widened(g: Any) -> Any:
    return g.with_values(widen(g.values)) if isinstance(g, Rows) else widen(g)


def _rounded(u: Any, dtype: Any) -> Any:
    return u.with_values(cast(u.values, dtype)) if isinstance(u, Rows) else cast(u, dtype)
