"""The pair: a gradient transformation, and the decorator that makes a builder declare it."""

import functools
import inspect
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple, ParamSpec, Protocol, Self, TypeAlias, cast, overload

import jax
import jax.numpy as jnp

from gradtx.checks import check_first_value, hyperparameter_range
from gradtx.declaration import Builder, Declaration, Declared, publish
from gradtx.eager import Eager, Program, on_vectors, one_by_one
from gradtx.host_values import HostValue
from gradtx.numerics import as_arrays, increment
from gradtx.packed import holds_packed, packed_like, unpack
from gradtx.types import (
    COUNTER,
    SLOT,
    Counter,
    EmptyState,
    Params,
    State,
    StateT,
    TransformInitFn,
    Updates,
    UpdatesT,
    fields_of,
    is_stored,
    slot_fields,
    state_fields,
)

_P = ParamSpec("_P")


class Scope(StrEnum):
    """What a rule reads to compute one entry of an update."""

    ENTRY = "entry"
    ROW = "row"
    LEAF = "leaf"
    MATRIX = "matrix"
    TREE = "tree"


class Rule:
    """A rule as the engine lifted it; code that acts on transformations reads here what it may do.

    Attributes:
        scope: what the rule reads.
        state: the state class, whose annotations say what its fields are.
        function: the rule itself.
        on_rows: whether it runs on `Rows`.
        zero_gradient: what it does while gradients are zero, if it declares that.
        of_tree: what it reads of the whole tree, if it reads entries otherwise.
    """

    # Not a dataclass, which would take longer to make than most modules to import.
    def __init__(
        self,
        scope: Scope,
        state: Any,
        function: Callable[..., Any],
        *,
        on_rows: bool,
        zero_gradient: Any = None,
        of_tree: Callable[[list[Any]], dict[str, Any]] | None = None,
    ) -> None:
        self.scope, self.state, self.function = scope, state, function
        self.on_rows, self.zero_gradient, self.of_tree = on_rows, zero_gradient, of_tree


StepFn: TypeAlias = Callable[..., tuple[Params, State]]
BeforeFn: TypeAlias = Callable[[Params, State, Callable[[], Updates]], tuple[Params, State]]


class UpdateFn(Protocol):
    """The type of a pair's ``update``, which keeps the types of the updates and the state."""

    def __call__(
        self, updates: UpdatesT, state: StateT, params: Params | None = None, **extra_args: Any
    ) -> tuple[UpdatesT, StateT]: ...


class _Pair(NamedTuple):
    init: TransformInitFn
    update: UpdateFn


class GradientTransformation(_Pair, Declared):
    """A pair of pure functions that together turn gradients into updates.

    ``init(params) -> state`` and ``update(updates, state, params=None, **extra_args) ->
    (updates, state)``. It unpacks to these two functions. Built by one of gradtx's builders it is
    also data: it prints, compares, hashes and pickles by its declaration, and it is a pytree whose
    leaves are the hyperparameters that are arrays.

    Args:
        init: makes the state for some parameters.
        update: takes updates (at first the gradients) and the state, returns updates and the new
            state.
        step: ``(updates, state, params, **extra_args) -> (params, state)``, ``update`` with the
            updates applied, if that saves memory; otherwise :func:`apply_gradients` adds them.
        before_gradients: ``(params, state, touched) -> (params, state)``, what must happen before
            gradients are taken, where ``touched()`` is a tree like the parameters with the `Rows`
            that the loss will look up. :func:`minimize` and :func:`apply_gradients` call it.
        rule: the `Rule` that was lifted, if one was.
        parts: the transformations it is made of, if it only passes updates through them.

    >>> import gradtx
    >>> gradtx.scale(0.5)
    scale(step_size=0.5)
    >>> gradtx.adam(1e-3) == gradtx.adam(1e-3)
    True
    """

    # Without __slots__ the subclass has a __dict__, in which these and a declaration are kept.
    _members: "_Members"
    _lazy: "_Lazy | None" = None

    def __new__(
        cls,
        init: Callable[..., State],
        update: Callable[..., Any],
        step: StepFn | None = None,
        *,
        before_gradients: BeforeFn | None = None,
        rule: Rule | None = None,
        parts: "tuple[GradientTransformation, ...] | None" = None,
    ) -> Self:
        pair = super().__new__(cls, init, update)
        pair._members = _Members(step, before_gradients, rule, parts)
        _tell_flax(cls)
        return pair

    @classmethod
    def declared(cls, declaration: Declaration) -> "GradientTransformation":
        """The transformation that `declaration` describes, built when it is first used."""
        lazy = _Lazy(declaration)
        pair = cls(lazy.init, lazy.update)
        pair.declaration = declaration
        pair._lazy = lazy
        return pair

    @property
    def expansion(self) -> "GradientTransformation":
        """What the builder returned: for an optimizer such as ``adam`` the chain behind it."""
        return self if self._lazy is None else self._lazy.expansion

    @property
    def scheduled(self) -> bool:
        """Whether a hyperparameter is evaluated at each step."""
        return self._lazy is not None and bool(self._lazy.schedules)

    @property
    def step(self) -> StepFn | None:
        """What takes a whole step, if applying the updates is more than adding them."""
        if self._lazy is None:
            return self._members.step
        return None if self._lazy.schedules else self._lazy.step

    @property
    def before_gradients(self) -> BeforeFn | None:
        """What must happen before gradients are taken."""
        if self._lazy is None:
            return self._members.before_gradients
        return self._lazy.expansion.before_gradients

    @property
    def rule(self) -> Rule | None:
        """The rule that the engine lifted, with its scope; None if it is composed or foreign."""
        return self._members.rule if self._lazy is None else self._lazy.expansion.rule

    @property
    def parts(self) -> "tuple[GradientTransformation, ...] | None":
        """The transformations that updates pass through; None if it does more than that."""
        return self._members.parts if self._lazy is None else self._lazy.expansion.parts

    @property
    def rules(self) -> tuple[Rule, ...] | None:
        """The rules that it consists of; None if it does more than these."""
        if self.rule is not None:
            return (self.rule,)
        below = None if self.parts is None else [part.rules for part in self.parts]
        if below is None or any(rules is None for rules in below):
            return None
        return tuple(rule for rules in below for rule in rules or ())

    def _replace(self, **fields: Any) -> Self:
        members = {**self._asdict(), **self._members._asdict(), **fields}
        return type(self)(**members)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """Optax's class of this name if Optax is loaded, so that `isinstance` takes a pair for one.

        The actual class is ``type(tx)``.
        """
        extra = issubclass(type(self), GradientTransformationExtraArgs)
        name = f"GradientTransformation{'ExtraArgs' if extra else ''}"
        return getattr(sys.modules.get("optax"), name, type(self))

    def __repr__(self) -> str:
        if self.declaration is not None:
            return repr(self.declaration)
        return f"{type(self).__name__}(init={self.init!r}, update={self.update!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GradientTransformation):
            return NotImplemented
        if self.declaration is None or other.declaration is None:
            return tuple.__eq__(self, other)
        return self.declaration == other.declaration

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return tuple.__hash__(self) if self.declaration is None else hash(self.declaration)

    def __reduce__(self) -> Any:
        if self.declaration is None:
            return _remade, (type(self), tuple(self), self._members)
        return _rebuild, (type(self), self.declaration.builder, self.declaration.arguments)

    def __deepcopy__(self, memo: Any) -> "GradientTransformation":
        return self  # immutable

    def __copy__(self) -> "GradientTransformation":
        return self


class _Members(NamedTuple):
    """What a pair has besides its two functions."""

    step: StepFn | None
    before_gradients: BeforeFn | None
    rule: Rule | None
    parts: tuple[GradientTransformation, ...] | None


class GradientTransformationExtraArgs(GradientTransformation):
    """A pair whose ``update`` takes ``**extra_args``: every one that gradtx builds does."""


def _tell_flax(cls: type[GradientTransformation]) -> None:
    """Let Flax's nnx, if it is loaded, hold pairs as data: as static values it refuses arrays."""
    register = getattr(sys.modules.get("flax.nnx"), "register_data_type", None)
    if register is not None:
        register(cls)


def _remade(cls: type[GradientTransformation], pair: Any, members: _Members) -> Any:
    return cls(*pair, **members._asdict())


def _rebuild(cls: type[GradientTransformation], builder: Builder, arguments: Any) -> Any:
    return cls.declared(Declaration(builder, arguments))


def _flatten(tx: GradientTransformation) -> tuple[Any, Any]:
    if tx.declaration is None:
        return (), (tuple(tx), tx._members)
    arrays, structure = tx.declaration.flatten()
    return arrays, (structure,)


def _register(cls: type[GradientTransformation]) -> None:
    def unflatten(structure: Any, children: Any) -> GradientTransformation:
        if len(structure) == 1:
            return cls.declared(Declaration.unflatten(structure[0], children))
        return _remade(cls, *structure)

    jax.tree_util.register_pytree_node(cls, _flatten, unflatten)


_register(GradientTransformation)
_register(GradientTransformationExtraArgs)


class ScheduledState(NamedTuple):
    """The state of a transformation that has a scheduled hyperparameter but keeps no count."""

    count: Counter
    inner_state: State


class _Lazy:
    """Builds the pair of a declaration when it is first needed, with its schedules evaluated."""

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self.schedules = declaration.builder.schedules(declaration.arguments)
        self._expansion: GradientTransformation | None = None
        self._eager = Eager(declaration)

    @property
    def expansion(self) -> GradientTransformation:
        if self._expansion is None:
            declaration = self.declaration
            if self.schedules:
                # It outlives a trace in which it may be built.
                with jax.ensure_compile_time_eval():
                    declaration = self._evaluated(0)
                self._check_start(declaration)
            self._expansion = declaration.builder.call(declaration.arguments)
        return self._expansion

    @property
    def step(self) -> StepFn | None:
        step = self.expansion.step
        if step is None:
            return None

        def stepped(
            updates: Updates, state: State, params: Params, **extra_args: Any
        ) -> tuple[Params, State]:
            run: Any = self._plain(step, state)
            if self._sees_leaves(updates):
                return _on_leaves(run, updates, state, params, extra_args)
            return cast(tuple[Params, State], run(updates, state, params, **extra_args))

        return stepped

    def _plain(self, function: Callable[..., Any], state: State) -> Callable[..., Any]:
        """`function`, written for slots that are arrays, made to take slots in other forms too.

        The engine handles such slots itself; what is built by hand does not.
        """
        names = slot_fields(type(state)) if self.expansion.rule is None else ()
        held = [getattr(state, name) for name in names]
        if not any(map(is_stored, jax.tree.leaves(held, is_leaf=is_stored))):
            return function

        def on_arrays(updates: Updates, state: State, *rest: Any, **extra_args: Any) -> Any:
            result, new = function(updates, _loaded(state, names), *rest, **extra_args)
            return result, _stored(state, new, names)

        return on_arrays

    def _sees_leaves(self, tree: Any) -> bool:
        """Whether a tree holds vectors of many leaves, and these are to be seen one by one."""
        expansion = self.expansion
        rule = None if expansion.declaration else expansion.rule
        by_entry = rule is not None and rule.scope is Scope.ENTRY
        joins = by_entry or expansion.declaration or self.declaration.builder.joins
        return not joins and holds_packed(tree)

    def _check_start(self, evaluated: Declaration) -> None:
        builder, given = self.declaration.builder, self.declaration.arguments
        for name in self.schedules:
            allowed = hyperparameter_range(builder.hints.get(name))
            if allowed is not None and not isinstance(given[name], HostValue):
                first = evaluated.arguments[name]
                check_first_value(builder.name, name, given[name], first, allowed)

    def _program(self, name: str, *trees: Any, **extra_args: Any) -> Any:
        arrays, structure = self.declaration.flatten()
        program = _program(structure, name)
        if self._goes_by_entry:
            return on_vectors(program, trees[0], arrays, *trees, **extra_args)
        return program(arrays, *trees, **extra_args)

    @functools.cached_property
    def _goes_by_entry(self) -> bool:
        """Whether it is a chain of rules in which each entry depends on that entry and a count.

        What wraps rules may look at paths and sizes, to which leaves they apply.
        """
        expansion = self.expansion
        if expansion.rule is not None:
            kinds = {*state_fields(expansion.rule.state).values()}
            return expansion.rule.scope is Scope.ENTRY and kinds <= {SLOT, COUNTER, None}
        if self.declaration.builder.in_sequence:
            return all(part._lazy and part._lazy._goes_by_entry for part in expansion.parts or ())
        return expansion._lazy is not None and expansion._lazy._goes_by_entry

    def _evaluated(self, count: Any) -> Declaration:
        arguments = dict(self.declaration.arguments)
        for name in self.schedules:
            try:
                arguments[name] = jnp.asarray(arguments[name](count))
            except jax.errors.ConcretizationTypeError as error:
                raise TypeError(
                    f"{self.declaration.name}: {name} is a function that needs the value of its "
                    "count, which is not known while JAX traces a step: choose with jnp.where, as "
                    "in lambda count: jnp.where(count < 10, 0.1, 0.01), or with "
                    "piecewise_constant_schedule"
                ) from error
        return Declaration(self.declaration.builder, arguments)

    def init(self, params: Params) -> State:
        self.declaration.check_numbers()
        if self._sees_leaves(params):
            params = unpack(params)
        program = self._eager.starts(params)
        if program:
            return self._program("init", params)
        with one_by_one(program is False):
            state = self.expansion.init(as_arrays(params))
        # A ScheduledState belongs to an inner transformation: this one has a clock of its own.
        clocked = _clock(state) is not None and not isinstance(state, ScheduledState)
        if not self.schedules or clocked:
            return state
        count = jnp.zeros([], jnp.int32)
        of_count = self.declaration.builder.scheduled_state
        return of_count(count) if of_count is not None else ScheduledState(count, state)

    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        self.declaration.check_numbers()
        if self._sees_leaves(updates):
            return _on_leaves(self.update, updates, state, params, extra_args)
        arrays = {n: v for n, v in extra_args.items() if not callable(v)}
        # A rule of the engine's calls no function, such as the `value_fn` that `minimize` passes.
        known = len(arrays) == len(extra_args) or self.expansion.rules is not None
        program = self._eager.steps(updates, state, params, arrays) if known else None
        if program:
            done: tuple[Updates, State] = self._program("update", updates, state, params, **arrays)
            return done
        with one_by_one(program is False):
            return self._updated(updates, state, params, **extra_args)

    def _updated(
        self, updates: Updates, state: State, params: Params | None, **extra_args: Any
    ) -> tuple[Updates, State]:
        updates, params = as_arrays(updates), as_arrays(params)
        if not self.schedules:
            run = self._plain(self.expansion.update, state)
            return run(updates, state, params, **extra_args)
        count = _clock(state)
        if count is None:
            raise TypeError(
                f"{self.declaration.name}: {', '.join(self.schedules)} is a schedule, and the "
                f"state, {type(state).__name__}, counts no steps: it was made for a constant; "
                "load_state_dict(tx, params, state_dict(state), strict=False) continues at its step"
            )
        evaluated = self._evaluated(count)
        tx = evaluated.builder.call(evaluated.arguments)
        of_count = self.declaration.builder.scheduled_state
        if isinstance(state, ScheduledState):
            updates, inner = tx.update(updates, state.inner_state, params, **extra_args)
            return updates, ScheduledState(increment(count), inner)
        if of_count is not None:
            updates, _ = tx.update(updates, EmptyState(), params, **extra_args)
            return updates, of_count(increment(count))
        return cast(tuple[Updates, State], tx.update(updates, state, params, **extra_args))


def _on_leaves(
    function: Callable[..., tuple[Any, State]],
    updates: Updates,
    state: State,
    params: Params | None,
    extra_args: dict[str, Any],
) -> tuple[Any, State]:
    """``function(updates, state, params, **extra_args)`` on leaves instead of their vectors."""
    seen, own, extra = unpack((updates, params, extra_args))
    done, state = function(seen, state, own, **extra)
    return packed_like(done, updates), state


@functools.lru_cache(maxsize=64)  # of the optimizers that ran last
def _program(structure: Any, name: str) -> Program:
    """A method of what a declaration describes, compiled; its array hyperparameters come first."""

    def run(arrays: Any, *trees: Any, **extra_args: Any) -> Any:
        lazy = _Lazy(Declaration.unflatten(structure, arrays))
        with one_by_one(True):  # for jax.disable_jit
            return getattr(lazy, name)(*trees, **extra_args)

    return Program(run)


def _loaded(state: State, names: tuple[str, ...]) -> State:
    """The state, with slots of these names that are stored in another form loaded as arrays."""

    def array(x: Any) -> Any:
        return x.load() if is_stored(x) else x

    return state._replace(
        **{n: jax.tree.map(array, getattr(state, n), is_leaf=is_stored) for n in names}
    )


def _stored(state: State, new: State, names: tuple[str, ...]) -> State:
    """`new` with slots in the form that they have in `state`."""

    def kept(old: Any, x: Any) -> Any:
        return old.store(x) if is_stored(old) else x

    trees = {
        n: jax.tree.map(kept, getattr(state, n), getattr(new, n), is_leaf=is_stored) for n in names
    }
    return new._replace(**trees)


def _clock(state: State) -> Any:
    """The steps that a state has counted, or None if it has no counter."""
    names = fields_of(type(state), COUNTER) or [
        name for name in getattr(state, "_fields", ()) if name == "count"
    ]
    return getattr(state, names[0]) if names else None


@overload
def transformation(
    function: Callable[_P, GradientTransformation],
) -> Callable[_P, GradientTransformationExtraArgs]: ...


@overload
def transformation(
    *,
    native_schedules: bool = False,
    scheduled_state: Any = None,
    joins: bool = False,
    in_sequence: bool = False,
) -> Callable[
    [Callable[_P, GradientTransformation]], Callable[_P, GradientTransformationExtraArgs]
]: ...


def transformation(
    function: Any = None,
    *,
    native_schedules: bool = False,
    scheduled_state: Any = None,
    joins: bool = False,
    in_sequence: bool = False,
) -> Any:
    """Make the result of a builder data: it carries the builder and the arguments.

    Annotations say what the arguments may be: one of the ranges of :mod:`gradtx.checks`
    (``b1: Decay = 0.9``) makes an argument a hyperparameter, which is checked, and which may be a
    number, an array, a schedule ``count -> value``, or a function without arguments. For a schedule
    the builder is called again at every step with the current value, so its body sees only numbers
    and arrays; a function without arguments is a schedule too, called at each step (see
    :func:`evaluated`).

    Args:
        function: the builder; it returns a pair (from :func:`elementwise`, :func:`leafwise`,
            :func:`chain`, or made by hand).
        native_schedules: the builder takes schedules itself, or passes them on to others.
        scheduled_state: for a stateless builder, the state class ``(count)`` to use when a
            hyperparameter is a schedule.
        joins: the result does the same if leaves are joined into longer ones, so that it may run on
            the vectors of :func:`pack`. A rule that treats each entry independently always does.
        in_sequence: the result is its `parts`, one after another, and nothing else.

    Returns:
        The builder, whose results are declared.

    >>> import gradtx
    >>> from gradtx.checks import NonNegative
    >>> @gradtx.transformation
    ... def halve_above(limit: NonNegative = 1.0):
    ...     def rule(g, s, t):
    ...         return jnp.where(jnp.abs(g) > limit, g / 2, g), {}
    ...
    ...     return gradtx.elementwise(gradtx.EmptyState, None, rule)
    >>> halve_above(limit=3.0)
    halve_above(limit=3.0)
    """
    marks = {
        "native": native_schedules,
        "scheduled_state": scheduled_state,
        "joins": joins,
        "in_sequence": in_sequence,
    }
    if function is None:
        return functools.partial(_transformation, marks)
    return _transformation(marks, function)


def _transformation(marks: dict[str, Any], function: Any) -> Any:
    builder = Builder(function, **marks)

    def build(*args: Any, **kwargs: Any) -> GradientTransformationExtraArgs:
        arguments = builder.bind(*args, **kwargs)
        tx = GradientTransformationExtraArgs.declared(Declaration(builder, arguments))
        if not builder.schedules(arguments):
            tx.expansion  # noqa: B018  # errors in the arguments belong to the call
        return cast(GradientTransformationExtraArgs, tx)

    return publish(build, builder)


def optimizer(
    function: Callable[_P, GradientTransformation],
) -> Callable[_P, GradientTransformationExtraArgs]:
    """A builder that names a composition and passes its hyperparameters on, such as ``adam``.

    Args:
        function: what returns the composition. Its annotations say the ranges of its arguments.

    >>> import gradtx
    >>> @optimizer
    ... def clipped_sgd(learning_rate: gradtx.checks.LearningRate):
    ...     return gradtx.chain(gradtx.clip(1.0), gradtx.sgd(learning_rate))
    >>> clipped_sgd(0.1)
    clipped_sgd(learning_rate=0.1)
    """
    return transformation(native_schedules=True)(function)


def with_extra_args_support(tx: Any) -> GradientTransformation:
    """`tx` with an ``update`` that takes ``**extra_args``, and ignores them if `tx` takes none.

    Args:
        tx: a pair, from gradtx or another library such as Optax, or any object with ``init`` and
            ``update``, such as `MultiSteps`. Its type or the signature of its ``update`` says
            whether it takes extra arguments.

    Returns:
        `tx` itself if its ``update`` takes extra arguments, otherwise a pair around it.

    Raises:
        TypeError: `tx` is not a pair; it may be a builder that was not called.

    >>> class Halve:
    ...     def init(self, params):
    ...         return ()
    ...
    ...     def update(self, updates, state, params=None):
    ...         return updates / 2, state
    >>> with_extra_args_support(Halve()).update(4.0, (), value=1.0)
    (2.0, ())
    """
    if isinstance(tx, GradientTransformationExtraArgs):
        return tx
    if hasattr(tx, "gradient_transformation"):  # MultiSteps, here and in Optax
        return with_extra_args_support(tx.gradient_transformation())
    is_pair = isinstance(tx, tuple) and len(tx) == 2
    init, update = tx if is_pair else (getattr(tx, name, None) for name in ("init", "update"))
    if not (callable(init) and callable(update)) or isinstance(tx, type):
        hint = ""
        if isinstance(getattr(tx, "builder", None), Builder):
            hint = f": call it, {tx.builder.name}(...)"
        elif isinstance(tx, list | tuple):
            hint = ": chain(*links) makes one of several"
        raise TypeError(
            f"expected a gradient transformation, not {type(tx).__name__} {tx!r:.200}{hint}"
        )
    parameters = inspect.signature(update).parameters.values()
    takes_more = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if takes_more and isinstance(tx, GradientTransformation):
        return tx
    return _adapted(init, update, takes_more)


@functools.lru_cache(maxsize=64)  # so that a program compiled for it is found again
def _adapted(
    init: Callable[..., State], update: Callable[..., Any], takes_more: bool
) -> GradientTransformation:
    """Another library's pair, which takes leaves, and extra arguments only if it says so."""

    def update_with(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        given = extra_args if takes_more else {}
        if holds_packed(updates):
            return _on_leaves(update, updates, state, params, given)
        return cast(tuple[Updates, State], update(updates, state, params, **given))

    return GradientTransformationExtraArgs(lambda params: init(unpack(params)), update_with)
