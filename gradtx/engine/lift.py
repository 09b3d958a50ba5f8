"""The engine: it lifts a rule, array mathematics on one leaf, over trees of gradients.

A rule is a function ``(g, s, t)`` or ``(g, s, t, p)`` of the leaf's gradient `g`, its slots `s`
(``s.mu``), the step `t` (a :class:`~gradtx.numerics.Step`, counted from 1, or None where the state
has no count) and, if it asks for it, the parameter `p`. It returns the direction and a dict of new
slots. The engine widens what it passes to at least float32, rounds what comes back to the types in
which gradient and slots are kept, and knows the forms that a leaf may have: an array, `Rows` of a
table, a slot that is stored in another form, no gradient at all (`None`).
"""

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp

from gradtx import numerics
from gradtx.engine.zero_gradients import Idle, Pause
from gradtx.numerics import Step, cast, increment, widen
from gradtx.pair import GradientTransformation, GradientTransformationExtraArgs
from gradtx.paths import aligned, leaves_with_path, path_string
from gradtx.rows import Rows, is_rows, put_rows, take_rows
from gradtx.types import Array, Params, State, Updates

SlotsFn = Callable[[Array], dict[str, Any]]
Rule = Callable[..., tuple[Array, dict[str, Any]]]


@runtime_checkable
class Stored(Protocol):
    """A slot kept in another form than an array, such as 8-bit blocks.

    It is a pytree. The engine loads it before the rule and stores the rule's result after it;
    `take` and `put` do the same for some rows and are needed only where rows are used.
    """

    shape: tuple[int, ...]

    def load(self) -> Array: ...
    def store(self, value: Array) -> "Stored": ...
    def take(self, indices: Array) -> Array: ...
    def put(self, indices: Array, values: Array) -> "Stored": ...


def elementwise(
    state: type, slots: SlotsFn | None, rule: Rule, *, idle: Idle | None = None
) -> GradientTransformation:
    """Lift a rule that treats every entry alone.

    It runs on whole leaves, on the rows of a table, on shards, on several leaves stacked.

    Args:
        state: a NamedTuple class: a field for each slot (annotated `Slots`) and, if the rule uses
            the step, ``count``.
        slots: ``p -> {name: array}``, the slots of one parameter at the start; None for none.
        rule: ``(g, s, t[, p]) -> (direction, {name: new slot})``; see :mod:`gradtx.engine`.
        idle: what the rule does while gradients are zero, if that is so simple; it saves
            :func:`exact_rows` steps.

    Returns:
        The pair. Decorate the function that calls this with :func:`transformation`.

    >>> import gradtx
    >>> from typing import NamedTuple
    >>> class HeavyBallState(NamedTuple):
    ...     velocity: gradtx.Slots
    >>> @gradtx.transformation
    ... def heavy_ball(decay: gradtx.Decay = 0.9):
    ...     def rule(g, s, t):
    ...         velocity = g + decay * s.velocity
    ...         return velocity, {"velocity": velocity}
    ...
    ...     return gradtx.elementwise(
    ...         HeavyBallState, lambda p: {"velocity": jnp.zeros_like(p)}, rule
    ...     )
    >>> tx = heavy_ball(0.5)
    >>> updates, state = tx.update(jnp.ones(2), tx.init(jnp.zeros(2)))
    >>> tx.update(jnp.ones(2), state)[0].tolist()
    [1.5, 1.5]
    """
    return _lift(state, slots, rule, rows=True, idle=idle)


def rowwise(
    state: type, slots: SlotsFn | None, rule: Rule, *, idle: Idle | None = None
) -> GradientTransformation:
    """Lift a rule that treats every row alone, along the first dimension of a leaf.

    It may reduce over the other dimensions, and runs on whole leaves, `Rows` of tables and shards
    of the first dimension. The arguments are those of :func:`elementwise`. A slot may keep one
    number for each row, in the shape of :func:`gradtx.numerics.row_mean`.
    """
    return _lift(state, slots, rule, rows=True, idle=idle)


def leafwise(state: type, slots: SlotsFn | None, rule: Rule) -> GradientTransformation:
    """Lift a rule that treats every leaf alone and may reduce over it (a norm, a matrix product).

    The arguments are those of :func:`elementwise`. It does not run on `Rows`, whose missing rows
    the rule would have to see.
    """
    return _lift(state, slots, rule, rows=False)


def _lift(
    state_class: type, slots: SlotsFn | None, rule: Rule, *, rows: bool, idle: Idle | None = None
) -> GradientTransformation:
    fields: tuple[str, ...] = state_class._fields  # type: ignore[attr-defined]
    counted = "count" in fields
    names = tuple(name for name in fields if name != "count")
    takes_params = len(inspect.signature(rule).parameters) == 4
    label = ([rule.__qualname__, *rule.__qualname__.split(".<locals>.")])[-2].split(".")[-1]

    def init(params: Params) -> State:
        leaves, treedef = leaves_with_path(params)
        checked = [None if p is None else parameter(p, path) for path, p in leaves]
        made = [None if p is None or slots is None else slots(p) for p in checked]
        count = {"count": jnp.zeros([], jnp.int32)} if counted else {}
        trees = {n: treedef.unflatten([m if m is None else m[n] for m in made]) for n in names}
        return state_class(**count, **trees)

    def update(
        updates: Updates,
        state: State,
        params: Params | None = None,
        *,
        pause: Pause | None = None,
        **extra_args: Any,
    ) -> tuple[Updates, State]:
        del extra_args
        applied = rule if pause is None else pause.over(rule, idle, takes_params)
        check_state(label, state, state_class)
        leaves, treedef = leaves_with_path(updates)
        if takes_params and params is None and updates is not None:
            raise ValueError(f"{label} needs the parameters: call update(updates, state, params)")
        columns = [_column(label, n, updates, getattr(state, n), treedef) for n in names]
        values = (
            _column(label, "the parameters", updates, params, treedef)
            if takes_params
            else [None] * len(leaves)
        )
        count = increment(state.count) if counted else None
        steps = _Steps(count)
        out: list[Any] = []
        new: list[list[Any]] = [[] for _ in names]
        direction: Any
        for i, (path, g) in enumerate(leaves):
            held = {n: column[i] for n, column in zip(names, columns, strict=True)}
            if g is None:
                direction, kept = None, held
            elif is_rows(g):
                if not rows:
                    raise TypeError(
                        f"{label} looks at whole leaves and cannot run on the Rows at "
                        f"{path_string(path)!r}: use an elementwise transformation there (see "
                        "partition), or make the gradient dense with dense_rows or to_dense()"
                    )
                direction, kept = _on_rows(applied, g, held, steps, values[i])
            else:
                direction, kept = _on_array(applied, label, path, g, held, steps, values[i])
            out.append(direction)
            for n, column in zip(names, new, strict=True):
                column.append(kept[n])
        trees = {n: treedef.unflatten(c) for n, c in zip(names, new, strict=True)}
        if counted:
            trees["count"] = count
        return treedef.unflatten(out), state._replace(**trees) if trees else state

    return GradientTransformationExtraArgs(init, update)


def check_state(label: str, state: State, state_class: Any) -> None:
    """Raise TypeError if a state is of another class than the transformation makes."""
    if getattr(state, "_fields", None) != state_class._fields:
        raise TypeError(
            f"{label}: expected the state {state_class.__name__}{state_class._fields}, which its "
            f"init makes, not {type(state).__name__}"
        )


class _Steps:
    """The step in each of the types in which leaves are computed."""

    def __init__(self, count: Array | None) -> None:
        self.count = count
        self.made: dict[Any, Step] = {}

    def of(self, g: Array) -> Step | None:
        if self.count is None:
            return None
        dtype = numerics.real_dtype(g.dtype)
        if dtype not in self.made:
            self.made[dtype] = Step(self.count, dtype)
        return self.made[dtype]


def parameter(p: Any, path: Any = ()) -> Array:
    """A trained parameter as an array: Python numbers count as floats.

    Raises:
        TypeError: it is an integer or boolean array, or no array at all.
    """
    if isinstance(p, int | float) and not isinstance(p, bool):
        p = jnp.asarray(p, float)
    if not hasattr(p, "dtype") or not jnp.issubdtype(p.dtype, jnp.inexact):
        kind = getattr(p, "dtype", type(p).__name__)
        raise TypeError(
            f"the parameter at {path_string(path)!r} is {kind}: only floating-point and complex "
            "arrays can be trained; leave it out with `trainable` or `select`"
        )
    return cast(p, p.dtype)  # weak types would become strong, and compile again


def gradient(g: Any, path: Any) -> Array:
    """A gradient as an array; raises TypeError if it is none of a trained parameter."""
    if isinstance(g, int | float) and not isinstance(g, bool):
        g = jnp.asarray(g, float)
    if not hasattr(g, "dtype") or not jnp.issubdtype(g.dtype, jnp.inexact):
        kind = getattr(g, "dtype", type(g).__name__)
        raise TypeError(f"the gradient at {path_string(path)!r} is {kind}, not floating point")
    return g


def _column(label: str, name: str, updates: Any, tree: Any, treedef: Any) -> list[Any]:
    """The parts of `tree` that belong to the leaves of `updates`."""
    return aligned(f"{label}: the gradients and {name} are different trees", updates, treedef, tree)


def load(slot: Any) -> Any:
    """A slot as the rule sees it: an array in the type in which it computes."""
    if isinstance(slot, list):
        return [load(part) for part in slot]
    if isinstance(slot, Stored):
        return widen(slot.load())
    return widen(slot) if hasattr(slot, "dtype") else slot


def store(slot: Any, value: Any) -> Any:
    """`value` in the form and type in which `slot` is kept."""
    if isinstance(slot, list):
        return [store(part, v) for part, v in zip(slot, value, strict=True)]
    if isinstance(slot, Stored):
        return slot.store(value)
    return cast(value, slot.dtype)


def _on_array(
    rule: Rule, label: str, path: Any, g: Any, held: dict[str, Any], steps: _Steps, p: Any
) -> tuple[Array, dict[str, Any]]:
    g = gradient(g, path)
    for name, slot in held.items():
        if isinstance(slot, list):
            continue
        if slot is None or (len(slot.shape) == g.ndim and not _fits(slot.shape, g.shape)):
            raise ValueError(
                f"{label}: at {path_string(path)!r} the gradient has the shape {g.shape} and the "
                f"slot {name} {None if slot is None else slot.shape}"
            )
    wide = widen(g)
    arguments = (wide, SimpleNamespace(**{n: load(s) for n, s in held.items()}), steps.of(wide))
    direction, new = rule(*arguments) if p is None else rule(*arguments, widen(jnp.asarray(p)))
    if direction.shape != g.shape:
        raise ValueError(
            f"{label}: at {path_string(path)!r} a gradient of shape {g.shape} became an update of "
            f"shape {direction.shape}; is a hyperparameter or a parameter of another shape?"
        )
    return cast(direction, g.dtype), {n: store(s, new[n]) for n, s in held.items()}


def _fits(slot: tuple[int, ...], g: tuple[int, ...]) -> bool:
    # A slot that is reduced over a dimension keeps it with length 1.
    return all(a in (1, b) for a, b in zip(slot, g, strict=True))


def _on_rows(
    rule: Rule, g: Rows, held: dict[str, Any], steps: _Steps, p: Any
) -> tuple[Rows, dict[str, Any]]:
    """Gather the rows' slots, apply the rule to them, and scatter the slots back."""
    g = g.coalesce()
    taken = {
        n: widen(s.take(g.indices) if isinstance(s, Stored) else take_rows(s, g.indices))
        for n, s in held.items()
    }
    wide = widen(g.values)
    arguments = (wide, SimpleNamespace(**taken), steps.of(wide))
    direction, new = (
        rule(*arguments) if p is None else rule(*arguments, widen(take_rows(p, g.indices)))
    )
    kept = {
        n: s.put(g.indices, new[n]) if isinstance(s, Stored) else put_rows(s, g.indices, new[n])
        for n, s in held.items()
    }
    return g.with_values(cast(direction, g.dtype)), kept
