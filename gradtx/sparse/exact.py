"""The dense update for rows that a step does not touch, at once or when they are next touched.

A rule on `Rows` is lazy by itself: an untouched row keeps its slots and its value. With momentum or
weight decay the dense update would have moved it. `dense_rows` makes the gradients dense;
`exact_rows` records when each row was last touched and takes the steps that it missed before it is
looked up again, so that the result is the dense one.
"""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.composition.apply import apply_updates
from gradtx.composition.around import InnerStep, around, not_outermost
from gradtx.composition.scalings import beyond_scalings
from gradtx.core.pair import GradientTransformation, transformation, with_extra_args_support
from gradtx.declarations.declared_schedule import reads_host
from gradtx.engine.zero_gradients import CannotSkip, SkippedSteps
from gradtx.leaves.paths import Where, is_leaf, mask_tree, path_string
from gradtx.leaves.rows import dense, is_rows, put_rows
from gradtx.leaves.whole import whole_leaves
from gradtx.numerics import increment, one_per_row
from gradtx.sparse.separable import check_separable
from gradtx.tree.search import map_params
from gradtx.types import (
    Array,
    Counter,
    InnerState,
    Params,
    PyTree,
    Slots,
    State,
    Stored,
    Updates,
    is_stored,
)


@transformation
def dense_rows(inner: GradientTransformation) -> GradientTransformation:
    """Make `Rows` dense before `inner` sees them: the dense semantics, at the dense cost.

    Args:
        inner: any transformation, even one that looks at whole leaves, such as :func:`lamb`.

    State: that of `inner`.

    >>> import gradtx
    >>> tx = dense_rows(gradtx.sgd(1.0))
    >>> rows = gradtx.Rows(jnp.array([1]), jnp.ones((1, 1)), (3, 1))
    >>> tx.update(rows, tx.init(jnp.zeros((3, 1))))[0].ravel().tolist()
    [-0.0, -1.0, -0.0]
    """

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Updates, State]:
        extra_args = inner_step.extra_args
        for_line_searches = {"grad": dense(extra_args["grad"])} if "grad" in extra_args else {}
        return inner_step(dense(updates), state, params, **for_line_searches)

    return around(inner, None, run)


class ExactRowsState(NamedTuple):
    """count: i32[], steps taken; last: i32, for each row how many it has seen; inner_state."""

    count: Counter
    last: Slots
    inner_state: InnerState

    @property
    def outermost(self) -> str:
        """The transformation of this state, which must be outermost to run before gradients."""
        return "exact_rows"


@transformation(update_size="proportional")
def exact_rows(
    inner: GradientTransformation, tables: Where | None = None
) -> GradientTransformation:
    """Let untouched rows catch up when they are next touched: equal to the dense update.

    For a row that misses a step only the step at which it was last touched is kept. Before it is
    looked up again, `inner` itself takes the missed steps, with zero gradients and on such rows
    only. This is right for any transformation that treats each entry, or each row, independently,
    decay, momentum and schedules included. A step costs the update of the rows touched, plus one
    such update for each step missed by the row that waited longest.

    If all rules of `inner` declare what many zero gradients do to their slots (Adam, momentum, EMA,
    RMSProp, Adagrad, and their row-wise forms, with any learning rate), steps are taken one by one
    only while they move a parameter by more than 2^-32 of the first (212 for Adam with its
    defaults, 0 for RMSProp and Adagrad), and the others at once. If an update depends on the
    parameters, as with weight decay, or does not fade with the momentum, as its sign
    (:func:`signum`), all steps are taken one by one.

    Before you change a hyperparameter by hand, call :func:`catch_up`: otherwise rows that are
    behind take the steps that they missed with the new value.

    Args:
        inner: the optimizer; it may hold state for each entry or row, and counters.
        tables: the leaves that may have `Rows` for gradients, as in :func:`select`; all of two or
            more dimensions by default. Naming them saves work if there are other matrices. `Rows`
            of leaves that are not named are updated lazily.

    :func:`minimize` and :func:`make_step` let rows catch up before the loss looks them up, and
    :func:`apply_gradients` before it applies the update. If you call ``update`` yourself, call
    :func:`catch_up` before the gradient is taken. Call it without rows before the parameters are
    used as a whole: evaluated, saved, averaged. This wrapper must be the outermost:
    ``exact_rows(chain(clip_by_global_norm(1.0), adam(1e-2)))``, and ``exact_rows(partition(...),
    "table")`` where the tables have an optimizer of their own.

    A step in which a table has no gradient (None) does not count for its rows, which never catch up
    on it. Rows that are behind then take the steps that they missed with the counts of as many
    steps later, which is the dense update unless a schedule or a correction of bias reads the
    count.

    State: `ExactRowsState`.

    Raises:
        TypeError: when rows first catch up: `inner` does not run on rows.
        ValueError: `tables` is not given, and the gradient of a vector is `Rows`. When rows first
            catch up: a row cannot take a step by itself. The step needs the loss
            (:func:`polyak_sgd`), a number of several rows after a rule with momentum, such as a
            norm of all updates or of a column (a norm of the gradients, before all else, will do),
            or a state that does more than count (:func:`schedule_free`, :func:`accumulate`,
            :func:`apply_if_finite`). At once: a hyperparameter is a function without arguments,
            whose value at an earlier step is not known.

    >>> import gradtx
    >>> tx, table = gradtx.exact_rows(gradtx.sgd(1.0, momentum=0.5)), jnp.zeros((3, 1))
    >>> state = tx.init(table)
    >>> for row in (0, 1):
    ...     g = gradtx.Rows(jnp.array([row]), jnp.ones((1, 1)), (3, 1))
    ...     table, state = gradtx.apply_gradients(tx, g, table, state)
    >>> table, state = gradtx.sparse.catch_up(tx, table, state)
    >>> table[:, 0].tolist()  # row 0 moved on by its momentum
    [-1.5, -1.0, 0.0]
    """
    tx = with_extra_args_support(inner)
    if reads_host(tx):
        raise ValueError(
            "exact_rows: a hyperparameter is a function without arguments, whose value at the "
            "steps that a row missed is not known: use a schedule of the count, or the lazy update"
        )

    def init(params: Params) -> State:
        if tables is None:
            chosen = jax.tree.map(
                lambda p: p is not None and jnp.ndim(p) > 1, params, is_leaf=is_leaf
            )
        else:
            chosen = mask_tree(params, tables)
        last = jax.tree.map(
            lambda p, c: (
                jnp.zeros_like(one_per_row(jnp.asarray(p)), jnp.int32)
                if c and p is not None
                else None
            ),
            params,
            chosen,
            is_leaf=is_leaf,
        )
        return ExactRowsState(jnp.zeros([], jnp.int32), last, tx.init(params))

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Updates, State]:
        updates = jax.tree.map(
            lambda g: g.coalesce() if is_rows(g) else g, updates, is_leaf=is_leaf
        )
        count = increment(state.count)
        if tables is None:
            _check_rows(updates, state.last)
        seen = partial(_seen, before=state.count, count=count)
        last = jax.tree.map(seen, updates, state.last, is_leaf=is_leaf)
        updates, inner_state = inner_step(updates, state.inner_state, params)
        return updates, ExactRowsState(count, last, inner_state)

    def before_gradients(
        params: Params, state: State, touched: Callable[[], PyTree]
    ) -> tuple[Params, State]:
        return _caught_up(tx, params, state, touched)

    return around(tx, init, run, before_gradients=before_gradients)


def _check_rows(updates: Updates, last: Slots) -> None:
    """Raise ValueError if a gradient is `Rows` of a leaf that is no table."""

    def check(path: Any, g: Any, last: Any) -> None:
        if last is None and is_rows(g):
            raise ValueError(
                f"exact_rows: the gradient at {path_string(path)!r} is Rows, and the leaf is not "
                "among the tables, which have two dimensions or more: name them in tables"
            )

    jax.tree.map_with_path(check, updates, last, is_leaf=is_leaf)


def _seen(g: Any, last: Any, before: Array, count: Array) -> Any:
    """The number of steps that each row has seen, after a step with the gradient `g`."""
    if last is None:
        return None
    if g is None:  # no step for this table
        return last + (count - before)
    if is_rows(g):
        values = jnp.full((g.indices.size, *last.shape[1:]), count)
        return put_rows(last, g.indices, values)
    return jnp.full_like(last, count)


def catch_up(
    tx: GradientTransformation, params: Params, state: State, rows: PyTree | None = None
) -> tuple[Params, State]:
    """Take the steps that rows have missed under :func:`exact_rows`.

    Args:
        tx: what :func:`exact_rows` returned.
        params: the parameters.
        state: its state.
        rows: a tree like the parameters with the `Rows` to catch up, of which only the indices
            matter, and whole tables for other leaves; None for all rows of all tables.

    Returns:
        The parameters and the state, as if these rows had been updated at every step.

    Raises:
        TypeError: the state is not of :func:`exact_rows`, or `inner` does not run on rows.
        ValueError: a row cannot take a step of `inner` by itself; or `exact_rows` is not outermost.

    >>> import gradtx
    >>> tx, table = gradtx.exact_rows(gradtx.sgd(1.0, momentum=0.5)), jnp.zeros((2, 1))
    >>> state = tx.init(table)
    >>> for row in (0, 1):
    ...     grads = gradtx.Rows(jnp.array([row]), jnp.ones((1, 1)), (2, 1))
    ...     table, state = gradtx.apply_gradients(tx, grads, table, state)
    >>> table.ravel().tolist()
    [-1.0, -1.0]
    >>> catch_up(tx, table, state)[0].ravel().tolist()
    [-1.5, -1.0]
    """
    if not isinstance(state, ExactRowsState) or tx.before_gradients is None:
        raise TypeError(f"catch_up: expected a state of exact_rows, not {type(state).__name__}")
    return tx.before_gradients(params, state, lambda: params if rows is None else rows)


def _caught_up(
    inner: GradientTransformation, params: Params, state: State, touched: Callable[[], PyTree]
) -> tuple[Params, State]:
    """The parameters and the state with the steps that the rows have missed."""
    if not isinstance(state, ExactRowsState):
        raise TypeError(f"exact_rows: expected its own state, not {type(state).__name__}")
    stored_last = state.last  # padded where the state is divided between devices
    last = jax.tree.map(lambda x: x.load() if is_stored(x) else x, stored_last, is_leaf=is_stored)
    at = jax.tree.map(_indices, last, touched(), is_leaf=is_leaf)
    if not jax.tree.leaves(at, is_leaf=_is_all):
        return params, state
    if inner.before_gradients is not None:
        raise not_outermost("exact_rows")
    check_separable(inner, params, state.inner_state, last)
    state = state._replace(last=last)
    treedef: Any
    every, treedef = jax.tree.flatten(at, is_leaf=lambda x: x is None or _is_all(x))
    for i, place in enumerate(every):
        if place is not None:
            only = treedef.unflatten([x if j == i else None for j, x in enumerate(every)])
            with whole_leaves(params):  # masks see all parameters, not a few rows
                params, state = _catch_up_table(inner, params, state, only)
    last = jax.tree.map(
        lambda x, new: x.store(new) if is_stored(x) else new,
        stored_last,
        state.last,
        is_leaf=is_stored,
    )
    return params, state._replace(last=last)


def _catch_up_table(
    inner: GradientTransformation, params: Params, state: ExactRowsState, at: PyTree
) -> tuple[Params, ExactRowsState]:
    """:func:`catch_up` for the one table at which the tree `at` has indices, or all rows."""
    slots, count = _SlotsOfRows(inner, state.inner_state, at), state.count
    last = jax.tree.map(lambda x, i: _take(x, i, _NEVER), state.last, at, is_leaf=is_leaf)
    few = jax.tree.map(_take, params, at, is_leaf=is_leaf)
    row_slots = slots.take()
    horizon = _horizon(inner, few, row_slots, slots)

    def update(ago: Array, row: PyTree, row_slots: list[Array], **extra: Any) -> tuple[PyTree, Any]:
        # A row is a table of one, since a rule may take means over rows.
        table, table_slots = jax.tree.map(lambda x: x[None], (row, row_slots))
        zeros = jax.tree.map(jnp.zeros_like, table)
        updates, new = inner.update(zeros, slots.state(table_slots, ago), table, **extra)
        moved = apply_updates(table, updates), slots.within(new)
        return jax.tree.map(lambda x: x[0], moved)

    def take_missed(last: Array, row: PyTree, row_slots: list[Array]) -> tuple[PyTree, list[Array]]:
        missed = count - last
        taken = missed if horizon is None else jnp.minimum(missed, horizon)

        def step(now: tuple[Array, PyTree, list[Array]]) -> tuple[Array, PyTree, list[Array]]:
            j, row, row_slots = now
            return j + 1, *update(missed - j, row, row_slots)

        start = jnp.zeros_like(count), row, row_slots
        _, row, row_slots = jax.lax.while_loop(lambda now: now[0] < taken, step, start)
        if horizon is not None:
            rest = missed - taken
            row_slots = update(rest, row, row_slots, skipped=SkippedSteps(rest))[1]
        return row, row_slots

    seen = jax.tree.leaves(last)[0].reshape(-1)

    def all_rows(now: tuple[Array, PyTree, list[Array]]) -> tuple[Array, PyTree, list[Array]]:
        return jnp.array(False), *jax.vmap(take_missed)(seen, *now[1:])

    # A loop of one iteration or none: unlike a conditional, it copies nothing if no row is behind.
    start = jnp.any(seen < count), few, row_slots
    _, few, row_slots = jax.lax.while_loop(lambda now: now[0], all_rows, start)
    # Never below its old value: so it is read before it is written, and need not be copied.
    last = jax.tree.map(lambda x: jnp.maximum(x, count), last)
    return jax.tree.map(_put, params, at, few, is_leaf=is_leaf), ExactRowsState(
        count, jax.tree.map(_put, state.last, at, last, is_leaf=is_leaf), slots.put(row_slots)
    )


def _horizon(
    inner: GradientTransformation, params: Params, row_slots: list[Array], slots: "_SlotsOfRows"
) -> int | None:
    """After how many steps with zero gradients nothing moves any more; None if that is unknown."""
    probe = SkippedSteps(jnp.zeros([], jnp.int32))

    def paused(params: Params, row_slots: list[Array]) -> Any:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return inner.update(zeros, slots.state(row_slots, probe.steps), params, skipped=probe)[0]

    try:
        jax.eval_shape(paused, params, row_slots)
    except CannotSkip:
        return None
    horizon = probe.advanced.horizon
    if probe.advanced.slots != len(row_slots) or (horizon and _has_more_after_slots(inner)):
        return None
    return horizon


def _has_more_after_slots(tx: GradientTransformation) -> bool:
    """Whether something that is no rule, and more than a factor, comes after a rule with slots."""
    links = list(beyond_scalings(tx))
    after = itertools.dropwhile(lambda link: link.rule is None, links)
    groups = [part for link in links for part in link.parts or ()]
    return any(link.rule is None for link in after) or any(map(_has_more_after_slots, groups))


_NEVER = np.iinfo(np.int32).max


class _SlotsOfRows:
    """The slots of some rows in a state, as a list.

    Args:
        tx: the transformation; state: its state; at: the rows, a tree like the parameters.
    """

    def __init__(self, tx: GradientTransformation, state: State, at: PyTree) -> None:
        self._tx, self._state, self._at = tx, state, at

    def _map(self, function: Any, state: State, others: Any = None) -> State:
        return map_params(
            self._tx,
            function,
            state,
            self._at,
            transform_non_params=others,
            is_leaf=lambda x: isinstance(x, Stored),
        )

    def _list(self, function: Any, state: State) -> list[Any]:
        row_slots: list[Any] = []

        def on_slot(x: Any, i: Any) -> None:
            if i is not None:
                row_slots.append(function(x, i))

        self._map(on_slot, state)
        return row_slots

    def take(self) -> list[Array]:
        """The slots of the rows."""
        return self._list(_take, self._state)

    def within(self, state: State) -> list[Array]:
        """The slots of a state made by :meth:`state`."""
        return self._list(lambda x, i: x, state)

    def put(self, row_slots: list[Array]) -> State:
        """The whole state with other slots for the rows."""
        new = iter(row_slots)
        return self._map(lambda x, i: x if i is None else _put(x, i, next(new)), self._state)

    def state(self, row_slots: list[Array], ago: Array) -> State:
        """A state for these rows only, with its counters set back."""
        new = iter(row_slots)

        def counter(x: Any) -> Any:
            is_count = jnp.ndim(x) == 0 and jnp.issubdtype(jnp.result_type(x), jnp.integer)
            return x - ago.astype(x.dtype) if is_count else x

        return self._map(lambda x, i: None if i is None else next(new), self._state, others=counter)


class _All:
    """In place of indices: every row."""


def _is_all(x: Any) -> bool:
    return isinstance(x, _All)


def _indices(last: Any, touched: Any) -> Any:
    if last is None or touched is None or not last.size:
        return None
    return touched.coalesce().indices if is_rows(touched) else _All()


def _take(x: Any, at: Any, past: Any = 0) -> Any:
    """The rows of a table, or of a slot, at some indices; `past` for those past the last."""
    if x is None or at is None:
        return None
    if _is_all(at):
        return x.load() if isinstance(x, Stored) else x
    return x.take(at) if isinstance(x, Stored) else x.at[at].get(mode="fill", fill_value=past)


def _put(x: Any, at: Any, new: Any) -> Any:
    if x is None or at is None:
        return x
    if _is_all(at):
        return x.store(new) if isinstance(x, Stored) else new
    return x.put(at, new) if isinstance(x, Stored) else put_rows(x, at, new)
