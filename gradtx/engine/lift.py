"""The engine: it lifts a rule, array mathematics on what it reads, over trees of gradients.

A rule is a function ``(g, s, t)`` or ``(g, s, t, p)`` of a gradient `g`, its slots `s`
(``s.mu``), the step `t` (a :class:`~gradtx.numerics.Step`, counted from 1) and, if it asks for it,
the parameter `p`. It returns the direction and a dict of new slots. Its scope is what it reads: an
entry, a row, a leaf (here), matrices (:mod:`gradtx.engine.matrices`) or the tree
(:mod:`gradtx.engine.tree`). The engine widens what it passes to at least float32, rounds the
results to the types in which gradient and slots are kept, and handles the forms that a leaf may
have: an array, `Rows` of a table, a slot stored in another form, no gradient at all (`None`).

Annotations say what the fields of a state are: `Slots`, `Counter` (each counts steps, the first is
`t`), `TreeScalar` (a scalar of the whole tree), `Key` (split at every step; a rule sees a key for
each leaf, a rule of the tree a single key).
"""

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, cast as typed

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.core.pair import GradientTransformation, GradientTransformationExtraArgs
from gradtx.core.traits import Rule, Scope, runs_steps
from gradtx.engine.leaves import (
    SlotsOfLeaf,
    Steps,
    as_array,
    fits,
    gradient,
    load,
    parameter,
    put,
    store,
    take,
)
from gradtx.engine.scopes import scope
from gradtx.engine.zero_gradients import SkippedSteps, ZeroGradient
from gradtx.leaves.paths import aligned, is_leaf, leaves_with_path, path_string, with_paths
from gradtx.leaves.rows import Rows, is_rows, take_rows
from gradtx.names.namespace import warn
from gradtx.numerics import cast, increment, own_copy, scalar_dtype, widen, zeros_like
from gradtx.programs.tracing import traced_once
from gradtx.types import (
    COUNTER,
    INNER,
    KEY,
    OTHER_STATE,
    SLOT,
    TREE_SCALAR,
    Array,
    Params,
    State,
    Updates,
    slot_fields,
    state_fields,
)

SlotsFn = Callable[[Array], dict[str, Any]]
RuleFn = Callable[..., tuple[Any, dict[str, Any]]]
PathFn = Callable[[], Any]
Start = Mapping[str, Any] | Callable[[list[Array]], Mapping[str, Any]]
AdvanceFn = Callable[[Any, Any], Mapping[str, Any]]
OfTreeFn = Callable[[list[Any]], dict[str, Any]]


@scope
def elementwise(
    state: type,
    slots: SlotsFn | None,
    rule: RuleFn,
    *,
    start: Start | None = None,
    advance: AdvanceFn | None = None,
    zero_gradient: ZeroGradient | None = None,
    of_tree: OfTreeFn | None = None,
) -> GradientTransformation:
    """Lift a rule that treats each entry independently.

    It runs on whole leaves, on the rows of a table, on shards, and on stacked leaves.

    Args:
        state: a NamedTuple class whose fields are annotated `Slots`, `Counter` (if the rule uses
            the step), `TreeScalar` or `Key`.
        slots: ``p -> {name: array}``, the initial slots of one parameter; None if each begins as
            zeros like the parameter, or there are none.
        rule: ``(g, s, t[, p]) -> (direction, {name: new slot})``; see :mod:`gradtx.engine.lift`.
        start: ``{name: value}``, the initial values of the fields other than slots and counters,
            or a function from the list of parameters to that. Numbers are kept in at least float32.
        advance: ``(s, t) -> {name: value}``, the tree's scalars after the step; the rule sees the
            scalars before it.
        zero_gradient: what the rule does while gradients are zero, if that has a closed form; it
            saves :func:`exact_rows` steps.
        of_tree: ``[g] -> {name: value}``, what the rule reads of the whole tree, such as a norm, as
            ``s.name``: from the gradients, which may be `Rows`, in at least float32.

    Returns:
        The pair. Decorate the function that calls this with :func:`transformation`.

    Raises:
        TypeError: an argument is of another kind, or the state class does not say what a field is.

    >>> import gradtx
    >>> from typing import NamedTuple
    >>> class HeavyBallState(NamedTuple):
    ...     velocity: gradtx.Slots
    >>> @gradtx.transformation
    ... def heavy_ball(decay: gradtx.checks.Decay = 0.9):
    ...     def rule(g, s, t):
    ...         velocity = g + decay * s.velocity
    ...         return velocity, {"velocity": velocity}
    ...
    ...     return gradtx.elementwise(HeavyBallState, None, rule)
    >>> tx = heavy_ball(0.5)
    >>> updates, state = tx.update(jnp.ones(2), tx.init(jnp.zeros(2)))
    >>> tx.update(jnp.ones(2), state)[0].tolist()
    [1.5, 1.5]
    """
    scope = Scope.ENTRY if of_tree is None else Scope.TREE
    lifted = Rule(scope, state, rule, on_rows=True, zero_gradient=zero_gradient, of_tree=of_tree)
    return lift(lifted, each_slots(state, slots), each_leaf(lifted), start=start, advance=advance)


@scope
def rowwise(
    state: type,
    slots: SlotsFn | None,
    rule: RuleFn,
    *,
    zero_gradient: ZeroGradient | None = None,
) -> GradientTransformation:
    """Lift a rule that treats each row, along the first dimension of a leaf, independently.

    It may reduce over the other dimensions, and runs on whole leaves, `Rows` of tables and shards
    of the first dimension. A slot may keep one number for each row, in the shape of
    :func:`gradtx.numerics.row_mean`.

    Args:
        state: a state class; this and the rest are as in :func:`elementwise`.
        slots: the initial slots of one parameter; None for zeros.
        rule: the rule.
        zero_gradient: what the rule does while gradients are zero.

    >>> import gradtx
    >>> @gradtx.transformation
    ... def centered_rows():
    ...     rule = lambda g, s, t: (g - gradtx.numerics.row_mean(g), {})
    ...     return rowwise(gradtx.EmptyState, None, rule)
    >>> tx = centered_rows()
    >>> tx.update(jnp.array([[1.0, 3.0]]), tx.init(jnp.zeros((1, 2))))[0].tolist()
    [[-1.0, 1.0]]
    """
    lifted = Rule(Scope.ROW, state, rule, on_rows=True, zero_gradient=zero_gradient)
    return lift(lifted, each_slots(state, slots), each_leaf(lifted))


@scope
def leafwise(
    state: type,
    slots: SlotsFn | None,
    rule: RuleFn,
    *,
    rows: bool = False,
    start: Start | None = None,
) -> GradientTransformation:
    """Lift a rule that treats each leaf independently and may reduce over it, as for a norm.

    Args:
        state: a state class; this, `slots`, `rule` and `start` are as in :func:`elementwise`.
        slots: the initial slots of one parameter; None for zeros.
        rule: the rule.
        rows: whether the rule runs on `Rows`. It then sees the values of these rows instead of the
            leaf, and all of the slots, which is right if rows of zeros change nothing. Otherwise
            `Rows` are refused, since the rule would have to see the missing rows.
        start: the initial values of the fields other than slots and counters.

    >>> import gradtx
    >>> @gradtx.transformation
    ... def of_length_one():
    ...     rule = lambda g, s, t: (g / jnp.linalg.norm(g), {})
    ...     return leafwise(gradtx.EmptyState, None, rule)
    >>> tx = of_length_one()
    >>> tx.update(jnp.array([0.0, 2.0]), tx.init(jnp.zeros(2)))[0].tolist()
    [0.0, 1.0]
    """
    lifted = Rule(Scope.LEAF, state, rule, on_rows=rows)
    return lift(lifted, each_slots(state, slots), each_leaf(lifted), start=start)


@dataclass(eq=False, repr=False)
class Leaves:
    """The inputs of one update: gradients, and what belongs to each of them."""

    rule: Rule
    label: str
    treedef: Any
    gradients: list[Any]
    slots: dict[str, list[Any]]
    params: list[Any]
    steps: Steps
    scalars: dict[str, Any]
    keys: dict[str, Any]
    takes_params: bool
    skipped: SkippedSteps | None
    extra_args: dict[str, Any]
    next: dict[str, Any]  # the counters and keys of the new state

    @functools.cached_property
    def paths(self) -> list[Any]:
        """The path of each leaf, for errors."""
        tree = self.treedef.unflatten(range(len(self.gradients)))
        return [path for path, _ in with_paths(tree)[0]]

    def path(self, i: int) -> Any:
        """The path of a leaf."""
        return self.paths[i]

    def checked(self, i: int, slots: Mapping[str, Any] | None = None) -> Any:
        """The gradient of a leaf, an array or `Rows`, which suits the leaf's slots and parameter.

        Args:
            i: the index of the leaf.
            slots: those in whose shapes the gradient's is; None for all of the leaf.

        Raises:
            TypeError: the gradient is of another kind, or `Rows` of which the rule cannot see some.
            ValueError: a slot or the parameter is missing, or of another shape.
        """
        g = self.gradients[i]
        if is_rows(g):
            if not self.rule.on_rows:
                raise refused_rows(self.label, self.paths[i])
        elif not (isinstance(g, jax.Array) and jnp.issubdtype(g.dtype, jnp.inexact)):
            g = self.gradients[i] = gradient(g, self.paths[i])  # paths are made for errors
        shape = tuple(g.shape)
        whole = self.rule.scope is Scope.TREE and self.rule.of_tree is None
        unlike = [
            (f"slot {n}", slot)
            for n, slot in (self.held(i) if slots is None else slots).items()
            if not fits(slot, shape, whole=whole)
        ]
        p = self.params[i]
        if self.takes_params and (p is None or np.shape(p) != shape):
            unlike.append(("parameter", p))
        for name, x in unlike:
            raise ValueError(
                f"{self.label}: at {path_string(self.paths[i])!r} the gradient has the shape "
                f"{shape} and the {name} {None if x is None else tuple(np.shape(x))}"
            )
        return g

    def there(self) -> list[int]:
        """The indices of the leaves that have a gradient."""
        return [i for i, g in enumerate(self.gradients) if g is not None]

    @functools.cached_property
    def drawn(self) -> dict[int, dict[str, Any]]:
        """For each leaf with a gradient, by its index, a random key from each key of the state."""
        there = self.there()
        keys = {n: jax.random.split(k, len(there)) for n, k in self.keys.items()}
        return {i: {n: k[j] for n, k in keys.items()} for j, i in enumerate(there)}

    def held(self, i: int) -> dict[str, Any]:
        """The slots of a leaf in the types and codecs in which the state keeps them."""
        return {name: column[i] for name, column in self.slots.items()}

    def view(self, loaded: dict[str, Any], drawn: Mapping[str, Any] = MappingProxyType({})) -> Any:
        """The argument `s` of a rule: slots, scalars of the tree and random keys as attributes."""
        return SlotsOfLeaf(self.label, loaded, {**self.scalars, **drawn})


FirstFn = Callable[[Params, list[Any], list[Any]], list[Any]]
Transform = Callable[[Leaves], tuple[list[Any], dict[str, Any]]]


@runs_steps
class Lifted(Rule):
    """A rule as the engine runs it on an update, between taking its arguments apart and its end.

    Attributes:
        label: the name of the transformation in errors.
        fields: what each field of the state is.
        slots: the names of the fields that are slots.
        counters: those that count steps.
        scalars: those that are numbers of the whole tree.
        keys: those that are random keys.
        advance: the tree's scalars after the step, if the rule does not return them.
        takes_params: whether the rule reads the parameters.
    """

    def __init__(self, rule: Rule, advance: AdvanceFn | None, takes_params: bool | None) -> None:
        super().__init__(**vars(rule))
        self.label, self.advance = label_of(rule.function), advance
        self.fields = checked_fields(self.label, rule.state)
        self.slots, self.counters, self.scalars, self.keys = (
            [name for name, kind in self.fields.items() if kind == each]
            for each in (SLOT, COUNTER, TREE_SCALAR, KEY)
        )
        self.takes_params = reads_params(rule.function) if takes_params is None else takes_params

    def initial_state(self, params: Params, first: FirstFn, start: Start | None) -> State:
        """The state before the first step; `first` and `start` are as in :func:`lift`."""
        leaves, treedef = leaves_with_path(params)
        # A tree may also hold what is never trained, if nothing is to be kept for it.
        keeps = self.slots or self.scalars
        checked = [parameter(p, path) if keeps and p is not None else None for path, p in leaves]
        slots = first(params, checked, [path for path, _ in leaves])
        for slots_of_leaf in slots:
            if slots_of_leaf is not None:
                check_names(
                    f"{self.label}: the slots at the start", slots_of_leaf, self.slots, self.state
                )
        trees = {
            n: treedef.unflatten([None if m is None else m[n] for m in slots]) for n in self.slots
        }
        rest = self._scalars_and_keys([widen(p) for p in checked if p is not None], start)
        counts = {n: jnp.zeros([], jnp.int32) for n in self.counters}
        return typed(State, self.state(**trees, **rest, **counts))

    def _scalars_and_keys(self, params: list[Array], start: Start | None) -> dict[str, Any]:
        values = start(params) if callable(start) else start or {}
        names = [*self.scalars, *self.keys]
        check_names(f"{self.label}: what starts beside the slots", values, names, self.state)
        dtype = scalar_dtype(params)
        scalars = {
            n: own_copy(v, bool if isinstance(v, bool) else dtype)
            for n, v in values.items()
            if n in self.scalars
        }
        return scalars | {n: values[n] for n in self.keys}

    def begin(
        self,
        /,
        updates: Updates,
        state: State,
        params: Params | None = None,
        *,
        skipped: SkippedSteps | None = None,
        **extra_args: Any,
    ) -> Leaves:
        """The arguments of an update, leaf by leaf."""
        if self.fields:
            check_state(self.label, state, self.state)
        if self.takes_params:
            params = needed(self.label, updates, params)
        treedef: Any
        leaves, treedef = jax.tree.flatten(updates, is_leaf=is_leaf)

        def column(name: str, tree: Any) -> list[Any]:
            problem = f"{self.label}: the gradients and {name} are different trees"
            return aligned(problem, updates, treedef, tree)

        counts = {n: increment(getattr(state, n)) for n in self.counters}
        drawn = {n: jax.random.split(getattr(state, n)) for n in self.keys}
        return Leaves(
            self,
            self.label,
            treedef,
            leaves,
            {n: column(n, getattr(state, n)) for n in self.slots},
            column("the parameters", params) if self.takes_params else [None] * len(leaves),
            Steps(self.label, self.state, next(iter(counts.values()), None)),
            {n: as_array(getattr(state, n)) for n in self.scalars},
            {n: pair[1] for n, pair in drawn.items()},
            self.takes_params,
            skipped,
            extra_args,
            {**counts, **{n: pair[0] for n, pair in drawn.items()}},
        )

    def end(self, leaves: Leaves, state: State, new: dict[str, Any]) -> State:
        """The state after an update, from the new slots and scalars."""
        if self.advance is not None:
            step = leaves.steps.of(scalar_dtype([g for g in leaves.gradients if g is not None]))
            new = {**new, **self.advance(leaves.view({}), step)}
        if not self.fields:
            return state
        fresh = {n: leaves.treedef.unflatten(new[n]) for n in self.slots}
        for n in self.scalars:
            check_scalar(self.label, n, getattr(state, n), new.get(n, getattr(state, n)))
        fresh |= {
            n: cast(jnp.asarray(new[n]), getattr(state, n).dtype) for n in self.scalars if n in new
        }
        return state._replace(**fresh, **leaves.next)


def lift(
    rule: Rule,
    first: FirstFn,
    transform: Transform,
    *,
    start: Start | None = None,
    advance: AdvanceFn | None = None,
    takes_params: bool | None = None,
) -> GradientTransformation:
    """The gradient transformation that runs a rule on the leaves of a tree, for every scope.

    Args:
        rule: the rule with its scope.
        first: ``(params, leaves, paths) -> [{name: slot}]``, the initial slots of each leaf.
        transform: applies the rule to `Leaves` and returns their directions and, by name, the new
            slots of each (as they are kept) and the tree's new scalars.
        start: the initial values of the fields other than slots and counters.
        advance: the tree's scalars after the step, if the rule does not return them.
        takes_params: whether the rule reads the parameters; None to go by its signature.
    """
    lifted = Lifted(rule, advance, takes_params)

    def init(params: Params) -> State:
        return lifted.initial_state(params, first, start)

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        leaves = lifted.begin(updates, state, params, **extra_args)
        directions, new = transform(leaves)
        return leaves.treedef.unflatten(directions), lifted.end(leaves, state, new)

    return GradientTransformationExtraArgs(init, update, rule=rule, facets=(lifted,))


def each_slots(state: type, slots: SlotsFn | None) -> FirstFn:
    """The initial slots of each leaf, made from that leaf alone; None for a leaf that is None."""

    def zeros(p: Array) -> dict[str, Any]:
        return {name: zeros_like(p) for name in slot_fields(state)}

    def first(params: Params, leaves: list[Any], paths: list[Any]) -> list[Any]:
        return [None if p is None else (slots or zeros)(p) for p in leaves]

    return first


def each_leaf(rule: Rule) -> Transform:
    """The function that applies a rule of entries, rows or leaves to one leaf after another."""

    def transform(leaves: Leaves) -> tuple[list[Any], dict[str, Any]]:
        directions, (slots,) = _leaf_by_leaf([rule], [leaves])
        return directions, slots

    return transform


class Last(NamedTuple):
    """A function of each parameter and its update, applied after the last rule.

    Attributes:
        function: ``(p, u) -> result``.
        params: the leaves `p` of the parameters, in the order of the updates.
    """

    function: Callable[[Any, Any], Any]
    params: list[Any]


def in_turn(
    rules: Sequence[Lifted],
    updates: Updates,
    states: Sequence[State],
    params: Params | None,
    extra_args: dict[str, Any],
    last: Last | None = None,
) -> tuple[Updates, list[State]]:
    """Apply several rules of entries, rows or a leaf to each leaf, before going on to the next.

    Each rule gets the updates of the rule before it. Only the first may read the whole tree.
    """
    leaves_of_rules = [
        rule.begin(updates, state, params, **extra_args)
        for rule, state in zip(rules, states, strict=True)
    ]
    directions, new = _leaf_by_leaf(rules, leaves_of_rules, last)
    ended = zip(rules, leaves_of_rules, states, new, strict=True)
    return leaves_of_rules[0].treedef.unflatten(directions), [r.end(*rest) for r, *rest in ended]


Beside = tuple[dict[str, Any], dict[str, Any]]
"""The slots, in the form in which they are kept, and the random keys of one leaf for one rule."""

OneLeaf = tuple[Any, dict[str, Any], Any, dict[str, Any]]
"""Gradient, slots, parameter, keys."""


def _leaf_by_leaf(
    rules: Sequence[Rule], leaves_of_rules: Sequence[Leaves], last: Last | None = None
) -> tuple[list[Any], list[dict[str, Any]]]:
    """The directions of the last rule for all leaves, and the new slots of each rule.

    Each rule gets the directions of the rule before it. All rules are traced together, once for
    leaves of the same shapes and types.
    """
    joined = JoinedRules(rules, leaves_of_rules, last)
    first, there = leaves_of_rules[0], leaves_of_rules[0].there()
    calls = {i: joined.arguments(i) for i in there}
    if rules[0].of_tree is not None:
        first.scalars |= rules[0].of_tree([widened(g) for _, g, *_ in calls.values()])
    dense = [i for i, (_, g, *_) in calls.items() if not is_rows(g)]
    name = "_".join(leaves.label for leaves in leaves_of_rules)
    results = traced_once(
        name,
        joined.on_leaf,
        [calls[i] for i in dense],
        lambda k: joined.by_itself(dense[k]),
    )
    by_leaf = dict(zip(dense, results, strict=True))
    by_leaf |= {i: joined.on_leaf(*calls[i]) for i in there if i not in by_leaf}
    directions: list[Any] = [None] * len(first.gradients) if last is None else [*last.params]
    slots = [{n: list(column) for n, column in leaves.slots.items()} for leaves in leaves_of_rules]
    for i, (direction, new) in by_leaf.items():
        directions[i] = direction
        for columns, of_rule in zip(slots, new, strict=True):
            for n, column in columns.items():
                column[i] = of_rule[n]
    return directions, slots


class JoinedRules:
    """Rules of entries, rows or leaves as one function of a leaf, in which one follows the other.

    Attributes:
        rules: the rules.
        inputs: the arguments of the update of each rule.
        last: what is applied to the direction of the last rule.
        functions: those of the rules, which take the steps that were skipped too.
        params: the parameters, for the rules that read them or for the last function.
        example: the index of the leaf for which the joined function was last traced by itself.
    """

    def __init__(self, rules: Sequence[Rule], inputs: Sequence[Leaves], last: Last | None) -> None:
        self.rules, self.inputs, self.last, self.example = rules, inputs, last, 0
        self.functions = [
            rule.function
            if leaves.skipped is None
            else leaves.skipped.over(rule.function, rule.zero_gradient, reads_params(rule.function))
            for rule, leaves in zip(rules, inputs, strict=True)
        ]
        read = (leaves.params for leaves in inputs if leaves.takes_params)
        self.params: list[Any] | None = next(read, last.params if last else None)

    def arguments(self, i: int) -> tuple[Any, ...]:
        """The arguments of `on_leaf` for a leaf, whose shapes are checked."""
        g, *_ = (leaves.checked(i) for leaves in self.inputs)
        p = None if self.params is None else self.params[i]
        # A rule of whole leaves may want what each leaf computes by itself, by the leaf's number.
        by_number = any(rule.scope is Scope.LEAF for rule in self.rules)
        number = np.int32(i) if by_number else None
        return number, g, p, *((leaves.held(i), leaves.drawn[i]) for leaves in self.inputs)

    def on_leaf(
        self, number: Any, gradient: Any, p: Any, *beside: Beside
    ) -> tuple[Any, list[dict[str, Any]]]:
        """The direction of the last rule for a leaf, and the new slots of each rule."""
        g, slots = gradient, []
        path = functools.partial(self._path, gradient)
        u: Any
        steps = zip(self.rules, self.functions, self.inputs, beside, strict=True)
        for rule, function, leaves, (slots_of_leaf, drawn) in steps:
            leaf = g, slots_of_leaf, p if leaves.takes_params else None, drawn
            if is_rows(g):
                whole_slots = rule.scope is Scope.LEAF
                u, new = on_rows(function, leaves, leaf, path, whole_slots=whole_slots)
            else:
                u, new = on_array(function, leaves, leaf, path, number)
            g = u
            slots.append(new)
        return g if self.last is None else self.last.function(p, g), slots

    def _path(self, gradient: Any) -> Any:
        """The path of a leaf, for errors."""
        gradients = enumerate(self.inputs[0].gradients)
        return self.inputs[0].paths[next((i for i, g in gradients if g is gradient), self.example)]

    def by_itself(self, example: int) -> Callable[..., Any]:
        """The function in a trace of its own, for leaves like an example."""

        def on_leaf(*arguments: Any) -> tuple[Any, list[dict[str, Any]]]:
            self.example = example
            with contextlib.ExitStack() as stack:
                for leaves in self.inputs:
                    stack.enter_context(leaves.steps.in_another_trace())
                return self.on_leaf(*arguments)

        return on_leaf


def on_array(
    rule: RuleFn, leaves: Leaves, leaf: OneLeaf, path: PathFn, number: Any = None
) -> tuple[Array, dict[str, Any]]:
    """The rule on a leaf whose gradient is an array; an empty leaf stays as it is."""
    g, slots, p, drawn = leaf
    if not g.size:  # its largest entry does not exist, and its mean would be NaN
        return g, slots
    loaded = {n: load(s) for n, s in slots.items()}
    direction, new = call(rule, leaves, widen(g), loaded, p, path, drawn, number)
    return cast(direction, g.dtype), {n: store(s, new[n]) for n, s in slots.items()}


def on_rows(
    rule: RuleFn, leaves: Leaves, leaf: OneLeaf, path: PathFn, *, whole_slots: bool
) -> tuple[Rows, dict[str, Any]]:
    """The rule on a gradient that is `Rows`, with these rows of the slots or `whole_slots`."""
    g, slots, p, drawn = leaf
    g = g.coalesce()
    if not whole_slots:
        warn_of_blocks(leaves.label, slots, path)
    loaded = {n: load(s) if whole_slots else take(s, g.indices) for n, s in slots.items()}
    p = None if p is None else take_rows(p, g.indices)
    direction, new = call(rule, leaves, widen(g.values), loaded, p, path, drawn)
    new_slots = {
        n: store(s, new[n]) if whole_slots else put(s, g.indices, new[n]) for n, s in slots.items()
    }
    return g.with_values(cast(direction, g.dtype)), new_slots


def call(
    rule: RuleFn,
    leaves: Leaves,
    g: Array,
    loaded: dict[str, Any],
    p: Any,
    path: PathFn,
    drawn: Mapping[str, Any] = MappingProxyType({}),
    number: Any = None,
) -> tuple[Array, dict[str, Any]]:
    """The result of a rule for a leaf or some of its rows, with slots and random keys.

    Args:
        rule: the rule.
        leaves: all leaves.
        g: the gradient, in the type in which the rule computes.
        loaded: the slots.
        p: the parameter; None for a rule that takes none.
        path: that of the leaf, for errors.
        drawn: the random keys.
        number: that of the leaf, see :meth:`Step.of_leaf`.
    """
    arguments = [g, leaves.view(loaded, drawn), leaves.steps.of(g.dtype, number)]
    if p is not None:
        arguments.append(widen(jnp.asarray(p)))
    direction, new = checked_result(leaves.label, rule(*arguments), loaded)
    check_result(leaves.label, g, direction, loaded, new, path)
    return direction, new


def checked_result(label: str, result: Any, names: Iterable[str]) -> tuple[Any, dict[str, Any]]:
    """What a rule returned, checked to be a direction and exactly these slots."""
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
        raise TypeError(
            f"{label}: a rule returns (direction, {{slot: new value}}), not {result!r:.80}"
        )
    check_names(f"{label}: the new slots", result[1], list(names), None)
    return result[0], dict(result[1])


def widened(g: Any) -> Any:
    """A gradient, an array or `Rows`, in the type in which a rule computes."""
    return g.with_values(widen(g.values)) if is_rows(g) else widen(g)


def label_of(function: Any) -> str:
    """The name of a transformation in errors: that of the function that defines its rule.

    That is the decorated function of a module, or else the one around the rule.
    """
    while isinstance(function, functools.partial):
        function = function.func
    names = getattr(function, "__qualname__", type(function).__name__).split(".<locals>.")
    module = sys.modules.get(getattr(function, "__module__", ""))
    if hasattr(getattr(module, names[0], None), "builder"):
        return str(names[0])
    return str(names[-2:][0].split(".")[-1].lstrip("_"))


def reads_params(function: Any) -> bool:
    """Whether a rule takes a fourth argument, the parameter."""
    positional = [
        p
        for p in inspect.signature(function).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    return len(positional) > 3


def checked_fields(label: str, state: Any) -> dict[str, Any]:
    """What each field of a state class is; raises TypeError if one does not say so."""
    fields = dict(state_fields(state))
    if fields.get("count", SLOT) is None:
        fields["count"] = COUNTER
    silent = [name for name, kind in fields.items() if kind in (None, INNER)]
    if silent:
        raise TypeError(
            f"{label}: {state.__name__} does not say what {', '.join(silent)} is: annotate each "
            "field as gradtx.Slots, gradtx.Counter, gradtx.TreeScalar or gradtx.types.Key"
        )
    return fields


def check_names(what: str, names: Mapping[str, Any], wanted: Sequence[str], state: Any) -> None:
    """Raise ValueError unless exactly these names are given."""
    if set(names) == set(wanted):
        return
    missing = [n for n in wanted if n not in names]
    extra = [n for n in names if n not in wanted]
    problem = [f"{', '.join(map(repr, missing))} missing"] if missing else []
    problem += [f"{', '.join(map(repr, extra))} unknown"] if extra else []
    where = f" ({state.__name__})" if state is not None else ""
    raise ValueError(f"{what}: {', '.join(problem)}; they are {', '.join(wanted) or 'none'}{where}")


def check_state(label: str, state: State, state_class: Any) -> None:
    """Raise TypeError if a state is of another class than the transformation makes."""
    if getattr(state, "_fields", None) != state_class._fields:
        raise TypeError(
            f"{label}: expected the state {state_class.__name__}{state_class._fields}, which its "
            f"init makes, not {type(state).__name__}{OTHER_STATE}"
        )


def check_result(
    label: str,
    g: Any,
    direction: Any,
    slots: Mapping[str, Any],
    new: Mapping[str, Any],
    path: PathFn,
) -> None:
    """Raise ValueError unless what a rule returns for a leaf or a batch is as it was before."""
    for name, slot in slots.items():
        check_slot(label, name, slot, new[name], path)
    check_direction(label, g, direction, path)


def check_direction(label: str, g: Any, direction: Any, path: PathFn) -> None:
    """Raise ValueError unless the update of a leaf or a batch has the gradient's shape."""
    before, after = np.shape(g), np.shape(direction)
    if after != before:
        raise ValueError(
            f"{label}: at {path_string(path())!r} a gradient of shape {before} became an update of "
            f"shape {after}; is a hyperparameter or a parameter of another shape?"
        )


def check_scalar(label: str, name: str, before: Any, new: Any) -> None:
    """Raise ValueError unless a new number of the whole tree has the shape of the one before."""
    if np.shape(new) != np.shape(before):
        raise ValueError(
            f"{label}: the rule returned {name} in the shape {np.shape(new)}, and it is kept in "
            f"the shape {np.shape(before)}"
        )


def check_slot(label: str, name: str, slot: Any, new: Any, path: PathFn) -> None:
    """Raise ValueError unless the arrays of a new slot have the shapes of those before."""
    pairs = [(slot, new)]
    if not isinstance(slot, jax.Array):
        pairs = list(zip(jax.tree.leaves(slot), jax.tree.leaves(new), strict=False))
    for old, after in pairs:
        before, shape = np.shape(old), np.shape(after)
        if shape != before:
            raise ValueError(
                f"{label}: at {path_string(path())!r} the rule returned the slot {name} in the "
                f"shape {shape}, and it is kept in the shape {before}"
            )


def warn_of_blocks(label: str, slots: dict[str, Any], path: PathFn) -> None:
    """Warn of slots in codes of which a few rows cannot be read and written alone."""
    for name, slot in slots.items():
        if not getattr(slot, "in_rows", True):
            warn(
                f"{label}: the gradient at {path_string(path())!r} is Rows, and its slot {name} "
                "is in codes that cannot be read row by row, so that each step reads and writes "
                'all of it: store it with blocks within rows, as in Codec("int8", axis=-1), or '
                "leave it out by `exempt`"
            )


def needed(label: str, updates: Updates, params: Params | None) -> Params:
    """The parameters; raises ValueError if ``update`` was called without them.

    None beside updates of None is a tree by itself: an array that a mask does not choose.
    """
    if params is None and updates is not None:
        name = label.lstrip("_")  # of an inner builder that nobody calls by its name
        raise ValueError(f"{name} needs the parameters: call update(updates, state, params)")
    return params


def refused_rows(label: str, path: Any) -> TypeError:
    """The error about a transformation that cannot run on `Rows`."""
    return TypeError(
        f"{label} looks at whole leaves and cannot run on the Rows at {path_string(path)!r}: use "
        "an elementwise transformation there (see partition), or make the gradient dense with "
        "dense_rows or to_dense()"
    )
