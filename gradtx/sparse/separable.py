"""Whether a step treats table rows independently, so that a row can take it by itself, later."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.core.pair import GradientTransformation
from gradtx.core.traits import Scope
from gradtx.leaves.paths import is_leaf, map_present, path_string, with_paths
from gradtx.leaves.rows import Rows, is_rows
from gradtx.leaves.whole import whole_leaves
from gradtx.programs.contexts import for_comparison
from gradtx.programs.dataflow import Lattice, follow
from gradtx.programs.interpreter import is_in, uses
from gradtx.programs.separate import (
    OUTSIDE,
    Kind,
    Layered,
    Mixed,
    Owners,
    check_owner,
    formula,
    free,
    in_layers,
    owned_by,
)
from gradtx.tree.search import children_of, map_params
from gradtx.types import (
    COUNTER,
    SLOT,
    Params,
    PyTree,
    State,
    Stored,
    Updates,
    fields_of,
    state_fields,
)
from gradtx.types.keys import is_key


def treats_rows_alone(tx: GradientTransformation) -> bool:
    """Whether all rules of `tx` declare that rows are independent, and keep no other state."""
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
    rows = map_present(lambda t, p: p, tables, params)
    _check_state(tx, rows, state)

    def check_slot(slot: Any, p: Any, table: Any) -> None:
        if table is not None and not (hasattr(p, "shape") and slot.shape[:1] == p.shape[:1]):
            raise ValueError(
                f"exact_rows: a slot of the shape {slot.shape} belongs to more than a row of a "
                f"table; {_ADVICE}"
            )

    _on_slots(tx, check_slot, state, rows, tables)
    try:
        _StepOfRows(tx, params, rows, state).check()
    except Mixed as mixed:
        raise ValueError(
            "exact_rows: something is computed from the updates of all rows, such as their norm, "
            "and what it was at the steps that a row missed is not kept "
            f"({str(mixed).replace('layer', 'row')}): take the norm of the gradients, before all "
            f"else; or {_ADVICE}"
        ) from None


_ADVICE = "use the lazy update, or dense_rows"


def _on_slots(
    tx: GradientTransformation, function: Any, state: State, *rest: Any, others: Any = None
) -> State:
    """The state with `function` of each slot, and `others` of each other part."""
    return map_params(
        tx,
        function,
        state,
        *rest,
        transform_non_params=others,
        is_leaf=lambda x: isinstance(x, Stored),
    )


def _check_state(tx: GradientTransformation, rows: Params, state: State) -> None:
    """Raise unless `tx` runs on rows, and a step needs no state but slots and the step number."""
    counters = {"count", *_counters(state)}
    marked = _on_slots(tx, lambda _: None, state, others=_Other)
    others, _ = with_paths(marked, is_leaf=lambda x: isinstance(x, _Other))
    slots: list[Any] = []
    _on_slots(tx, slots.append, state)

    def update(values: list[Any], slots: list[Any], params: Params) -> Any:
        numbers, arrays = iter(values), iter(slots)
        old = _on_slots(tx, lambda _: next(arrays), state, others=lambda _: next(numbers))
        updates, new = tx.update(jax.tree.map(_two_rows, params), old, params)
        new_values: list[Any] = []
        _on_slots(tx, lambda _: None, new, others=new_values.append)
        return new_values, _still_rows(params, updates)

    try:
        jaxpr = jax.make_jaxpr(update)([other.value for _, other in others], slots, rows).jaxpr
    except ValueError as problem:
        raise ValueError(
            f"exact_rows: a row cannot take the steps that it missed: {problem}; {_ADVICE}"
        ) from problem
    except TypeError as problem:
        raise TypeError(
            f"{problem}. To exact_rows each parameter of two or more dimensions is a table, unless "
            'they are named: exact_rows(tx, "table")'
        ) from problem
    computed, read = uses(jaxpr.eqns)
    for (path, _), old, new in zip(others, jaxpr.invars, jaxpr.outvars, strict=False):
        name = path_string(path)
        if is_in(new, computed) and old in read and name.split("/")[-1] not in counters:
            raise ValueError(
                f"exact_rows: {name!r} in the state changes from step to step, and what it was at "
                f"the steps that a row missed is not kept; {_ADVICE}"
            )


def _two_rows(p: Any) -> Rows:
    """A gradient of two rows of a table."""
    return Rows(jnp.arange(2), jnp.zeros((2, *p.shape[1:]), p.dtype), p.shape)


def _still_rows(params: Params, updates: Updates) -> Updates:
    """The updates; raises TypeError if rows have become whole tables."""
    dense = jax.tree.map(
        lambda p, u: p is not None and not is_rows(u), params, updates, is_leaf=is_leaf
    )
    if any(jax.tree.leaves(dense)):
        raise TypeError(
            "exact_rows: the transformation inside makes whole tables of rows, so that no row ever "
            "misses a step; leave exact_rows out"
        )
    return updates


class _Facts(NamedTuple):
    """The facts of an array, in a step in which a row gets no gradient.

    Attributes:
        kind: which row each entry belongs to.
        of_gradients: whether it is computed from gradients alone.
        zero: whether the row's entries are zero, since its gradient is.
    """

    kind: Kind
    of_gradients: bool
    zero: bool


class _RowsAlone(Lattice[_Facts]):
    """The facts of arrays in a step on rows.

    A number of all rows may be computed from gradients alone, and may differ at each step: where it
    multiplies a row without a gradient, the result is zero all the same.
    """

    owners = Owners()

    def enters(self, eqn: Any) -> bool:
        return self.owners.enters(eqn)

    def number(self, x: Any) -> _Facts:
        return _Facts(self.owners.number(x), True, False)

    def join(self, a: _Facts, b: _Facts, shape: Sequence[int]) -> _Facts:
        of_gradients = a.of_gradients and b.of_gradients
        kind = _or_random(lambda: self.owners.join(a.kind, b.kind, shape), of_gradients, shape)
        zero = a.zero and b.zero and a.kind == b.kind
        return _Facts(kind, of_gradients, zero)

    def taken(self, facts: _Facts) -> _Facts:
        kind, of_gradients, zero = facts
        of_part = _or_random(lambda: self.owners.taken(kind), of_gradients)
        return _Facts(of_part, of_gradients, zero and isinstance(of_part, Layered))

    def stacked(self, facts: _Facts) -> _Facts:
        return facts._replace(kind=self.owners.stacked(facts.kind))

    def chosen(self, by: _Facts, facts: list[_Facts], name: str) -> list[_Facts]:
        def one(x: _Facts) -> _Facts:
            of_gradients = by.of_gradients and x.of_gradients
            if x.zero:
                return x._replace(of_gradients=of_gradients)
            kind = _or_random(lambda: self.owners.chosen(by.kind, [x.kind], name)[0], of_gradients)
            return _Facts(kind, of_gradients, False)

        return list(map(one, facts))

    def results(self, eqn: Any, facts: list[_Facts]) -> list[_Facts]:
        of_gradients = all(x.of_gradients for x in facts if isinstance(x.kind, Layered))
        kind = _zeros(eqn, facts)
        if kind is not None:
            return [_Facts(kind, of_gradients, True)] * len(eqn.outvars)
        try:
            kinds = self.owners.results(eqn, [x.kind for x in facts])
        except Mixed as mixed:
            if not of_gradients:
                raise Mixed(eqn.primitive.name) from mixed
            kinds = [free(v.aval.shape, is_random=True) for v in eqn.outvars]
        return [_Facts(kind, of_gradients, False) for kind in kinds]


def _or_random(kind: Callable[[], Kind], of_gradients: bool, shape: Sequence[int] = ()) -> Kind:
    """A kind; that of a random number where rows are mixed that are computed from gradients."""
    try:
        return kind()
    except Mixed:
        if not of_gradients:
            raise
        return free(shape, is_random=True)


def _zeros(eqn: Any, facts: list[_Facts]) -> Kind | None:
    """The kind of a result that is zero because operands are; None where it may not be zero."""
    name, shapes = eqn.primitive.name, [v.aval.shape for v in eqn.outvars]
    zeros = [
        x.kind if x.zero and [v.aval.shape] == shapes else None
        for x, v in zip(facts, eqn.invars, strict=True)
    ]
    if name == "mul":
        return zeros[0] or zeros[1]
    if name in ("div", *_OF_ONE) or (name == "integer_pow" and eqn.params["y"] > 0):
        return zeros[0]
    each = zeros[1:] if name == "select_n" else zeros
    if name in ("select_n", *_OF_ALL) and all(kind == each[0] for kind in each):
        return each[0]  # of other rows one may be zero where the other is not
    return None


_OF_ONE = (
    *("neg", "abs", "sign", "root", "sqrt", "cbrt", "square", "tanh", "sin", "asinh"),
    *("convert_element_type", "reduce_precision", "copy", "real", "imag", "conj", "expm1", "log1p"),
)
_OF_ALL = ("add", "sub", "add_any", "max", "min", "copy_p")


class _StepOfRows:
    """A step on tables of a few rows, followed with each row as an owner.

    Args:
        tx: the transformation.
        params: the parameters.
        tables: the tables among them, None for other leaves.
        state: the state.
    """

    def __init__(
        self, tx: GradientTransformation, params: Params, tables: Params, state: State
    ) -> None:
        self.tx, self.params, self.tables, self.state = tx, params, tables, state
        treedef: Any
        leaves, treedef = jax.tree.flatten(tables, is_leaf=is_leaf)
        self.index = treedef.unflatten(range(len(leaves)))
        self.is_table = [p is not None for p in leaves]

    def check(self) -> None:
        """Raise Mixed unless each row takes its step alone, and would in a table of any length."""
        # An array may be cut into as many parts as there are rows, but elsewhere: with one row more
        # this shows.
        formulas = [self._followed(rows) for rows in (4, 5)]
        formulas += [formula(self._traced(rows)[0]) for rows in (None, 2, 1)]
        if any(each != formulas[0] for each in formulas):
            raise Mixed("its formula depends on the number of rows")

    def _abstract(self, rows: int | None) -> tuple[Params, State]:
        """The tables and the state as they are, or with so many rows."""

        def cut(x: Any, i: int) -> Any:
            shape = (rows, *x.shape[1:]) if self.is_table[i] and rows is not None else x.shape
            return jax.ShapeDtypeStruct(shape, x.dtype)

        tables = map_present(cut, self.tables, self.index)
        return tables, _on_slots(self.tx, cut, self.state, self.index)

    def _traced(self, rows: int | None) -> tuple[Any, Any]:
        """The program of a step on tables of so many rows, and the form of its results."""

        def step(grads: Any, state: Any, params: Any) -> Any:
            with whole_leaves(self.params), for_comparison(True):
                return self.tx.update(grads, state, params)

        tables, state = self._abstract(rows)
        try:
            return jax.make_jaxpr(step, return_shape=True)(tables, state, tables)
        except (TypeError, ValueError) as error:
            raise Mixed(str(error)) from error

    def _followed(self, rows: int) -> list[Any]:
        """The formula of a step on tables of so many rows; raises Mixed if it mixes them."""

        def owner(x: Any, i: int) -> Kind:
            return in_layers(i << 32, rows, rows) if self.is_table[i] else owned_by(OUTSIDE)

        facts: list[_Facts] = []

        def of_row(x: Any, i: int) -> Any:
            facts.append(_Facts(owner(x, i), False, False))
            return x

        def of_gradient(x: Any, i: int) -> Any:
            facts.append(_Facts(owner(x, i), True, True))
            return x

        def of_number(x: Any) -> Any:
            facts.append(_Facts(free(jnp.shape(x), is_key(x)), True, False))
            return x

        tables, state = self._abstract(rows)
        map_present(of_gradient, tables, self.index)
        _on_slots(self.tx, of_row, state, self.index, others=of_number)
        map_present(of_row, tables, self.index)
        closed, out = self._traced(rows)
        results = iter(follow(closed, facts, _RowsAlone()))

        def check(x: Any, i: int) -> Any:
            check_owner(next(results).kind, owner(x, i))
            return x

        def skip(x: Any) -> Any:
            next(results)
            return x

        map_present(check, out[0], self.index)
        _on_slots(self.tx, check, out[1], self.index, others=skip)
        return formula(closed)
