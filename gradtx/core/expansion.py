"""What a declaration stands for: the pair that its builder returns, and the one way into that pair.

`ADAPTERS` lists what happens around a pair, in its order, and whether it does around ``update`` or
``step``. The links of a chain are not entered: what the chain has done for itself holds for them,
and it checks their numbers (`composition/sequence.py`).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from gradtx.core.eager import EagerStep, count_of_arrays, eager_programs, is_ours
from gradtx.core.explanations import check_alive, explain
from gradtx.core.loss_functions import of_all_leaves
from gradtx.core.materialized import holds_stored, on_arrays
from gradtx.core.traits import Links, Scope, not_handed_on
from gradtx.declarations.declaration import Declaration, StaticPart
from gradtx.declarations.scheduled import Schedules
from gradtx.leaves.packed import holds_packed, on_leaves, unpack
from gradtx.leaves.paths import without_objects
from gradtx.leaves.shardings import explicit_mesh, on_explicit_axes
from gradtx.leaves.whole import of_form, whole_form, whole_leaves
from gradtx.names.libraries import tell_libraries
from gradtx.numerics import as_arrays
from gradtx.programs.tracing import is_shape, where_known
from gradtx.types import KEY, Params, State, Updates, state_fields


@not_handed_on
class Clock(NamedTuple):
    """What counts steps where a transformation without a state has schedules among its arguments.

    state: ``count -> state``, a state class of a count alone.
    """

    state: Callable[[Any], State]


class Expansion:
    """The pair of a declaration, built when it is first needed.

    Args:
        declaration: what was declared.
    """

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self.schedules = Schedules(declaration)

    @functools.cached_property
    def pair(self) -> Any:
        """The `GradientTransformation` that the builder returned, for the first step's values."""
        declaration = self.schedules.at_start() if self.schedules else self.declaration
        return declaration.builder.call(declaration.arguments)

    @property
    def is_built(self) -> bool:
        """Whether that pair is there."""
        return "pair" in vars(self)

    @functools.cached_property
    def traits(self) -> Any:
        """The `Traits` of that pair, with the way into its ``step``.

        A pair that is built anew at each step, for its schedules, is only an update to others.
        """
        traits = self.pair.traits
        if self.schedules:
            return traits.of_first_values()
        return traits if traits.step is None else traits._replace(step=self._step)

    @functools.cached_property
    def clock(self) -> Callable[[Any], State] | None:
        """The state class of a count alone, where a pair without a state has schedules."""
        facet = self.pair.facet(Clock)
        return None if facet is None else facet.state

    @functools.cached_property
    def is_ours(self) -> bool:
        """Whether only gradtx's own functions run."""
        return is_ours(self.declaration)

    @functools.cached_property
    def reads_entries(self) -> bool:
        """Whether it computes each entry from the same entry of its arguments, and from scalars."""
        return _reads_entries(self.pair)

    def init(self, params: Params) -> State:
        tell_libraries()  # some may have been imported since the pair was built
        self.declaration.check_numbers()
        if self.sees_leaves(params):
            params = unpack(params)
        if any(map(is_shape, jax.tree.leaves(params))):
            return where_known(self.init, params)
        try:
            state = self.pair.init(as_arrays(params))
        except (RuntimeError, ValueError):
            check_alive(**{f"{self.declaration.name}: the parameters": params})
            raise
        return self.schedules.counted(state, self.clock) if self.schedules else state

    def update(
        self, /, updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        return _enter_update(self, updates, state, params, **extra_args)

    def _step(
        self, /, updates: Updates, state: State, params: Params, **extra_args: Any
    ) -> tuple[Params, State]:
        return _enter_step(self, updates, state, params, **extra_args)

    def sees_leaves(self, tree: Any) -> bool:
        """Whether a tree holds vectors of many leaves, and these are to be seen one by one."""
        # What a declared pair sees is decided where it is entered.
        takes_vectors = self.pair.declaration is not None or self.pair.takes_vectors
        return not takes_vectors and holds_packed(tree)


def _reads_entries(tx: Any) -> bool:
    """Whether it is a rule of entries that draws nothing, or a chain of these."""
    links, rule = tx.facet(Links), tx.rule
    if links is not None:
        # Of these `identity` has no rule, and does nothing.
        return all(each.rules == () or _reads_entries(each) for each in links.each)
    if rule is None or rule.scope is not Scope.ENTRY or rule.of_tree is not None:
        return False
    return KEY not in state_fields(rule.state).values()  # leaves draw other numbers than blocks


class _PairCall:
    """A call of ``update`` or ``step``: what is entered, and the arguments as it gets them."""

    def __init__(
        self, entered: Expansion, updates: Any, state: Any, params: Any, extra_args: dict[str, Any]
    ) -> None:
        self.entered, self.updates, self.state = entered, updates, state
        self.params, self.extra_args = params, extra_args


_Rest = Callable[..., Any]
"""``(entered, updates, state, params, **extra_args)``: the adapters that are left, and the pair."""


def _explained(call: _PairCall, rest: _Rest) -> Any:
    """An error from arguments that were mixed up says so."""
    entered, trees = call.entered, (call.updates, call.state, call.params)
    try:
        if jax.device_count() > 1:  # where JAX 0.10 aborts the process, given a donated array
            check_alive(gradients=call.updates, state=call.state, parameters=call.params)
        return rest(entered, *trees, **call.extra_args)
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        explain(entered.declaration.name, error, entered.init, *trees)
        raise


def _single_numbers(call: _PairCall, rest: _Rest) -> None:
    """Each hyperparameter is one number."""
    call.entered.declaration.check_numbers()


def _whole_losses(call: _PairCall, rest: _Rest) -> None:
    """A loss among the extra arguments may be called with some of the leaves."""
    call.extra_args = of_all_leaves(call.extra_args, call.params)


def _parameters_alone(call: _PairCall, rest: _Rest) -> None:
    """`None` stands for parameters that are no arrays, such as the functions of a module."""
    call.params = without_objects(call.updates, call.params)


def _leaves_of_vectors(call: _PairCall, rest: _Rest) -> Any:
    """Vectors of packed leaves are taken apart, unless the pair takes vectors."""
    if not call.entered.sees_leaves(call.updates):
        return None
    run = functools.partial(rest, call.entered)
    return on_leaves(run, call.updates, call.state, call.params, call.extra_args)


def _one_program(call: _PairCall, rest: _Rest) -> Any:
    """Outside of ``jit``, an update by gradtx's own rules is one compiled program."""
    arrays = {n: v for n, v in call.extra_args.items() if not callable(v)}
    # A rule of the engine's calls no function, such as the `value_fn` that `minimize` passes.
    known = len(arrays) == len(call.extra_args) or call.entered.pair.rules is not None
    trees = call.updates, call.state, call.params
    # A number, such as a loss that was printed, is an argument of the program, as of `jax.jit`.
    each = [x for x in jax.tree.leaves(arrays) if not _is_number(x)]
    if not (known and count_of_arrays(*trees, each) and call.entered.is_ours):
        return None
    numbers, structure = call.entered.declaration.flatten()
    return _program(structure, whole_form(), call.entered.reads_entries)(numbers, *trees, **arrays)


def _is_number(x: Any) -> bool:
    """Whether it is a number that a program takes as an argument: JAX takes no larger integers."""
    if isinstance(x, int):
        return not isinstance(x, bool) and abs(x) < 2**31
    return isinstance(x, float | np.number)


def _numbers_as_arrays(call: _PairCall, rest: _Rest) -> None:
    """Python numbers among updates and parameters become arrays."""
    call.updates, call.params = as_arrays(call.updates), as_arrays(call.params)


def _automatic_axes(call: _PairCall, rest: _Rest) -> Any:
    """On a mesh with explicit axes, no axis is explicit inside."""
    trees = call.updates, call.state, call.params
    if explicit_mesh((*trees, list(call.extra_args.values()))) is None:
        return None
    numbers, structure = call.entered.declaration.flatten()

    def run(seen: Any, /, *trees: Any, **extra_args: Any) -> Any:
        same = seen is numbers
        entered = call.entered if same else Expansion(Declaration.unflatten(structure, seen))
        return rest(entered, *trees, **extra_args)

    like = call.updates, call.state
    return on_explicit_axes(run, like, numbers, *trees, call.extra_args)


def _values_of_schedules(call: _PairCall, rest: _Rest) -> Any:
    """Hyperparameters that are schedules get their values at this step."""
    schedules = call.entered.schedules
    if not schedules:
        return None

    def run(evaluated: Declaration, state: State) -> tuple[Updates, State]:
        done = rest(Expansion(evaluated), call.updates, state, call.params, **call.extra_args)
        return cast(tuple[Updates, State], done)

    return schedules.update(call.entered.clock, run, call.state)


def _arrays_of_slots(call: _PairCall, rest: _Rest) -> Any:
    """Slots in another form than an array are loaded, unless the engine does so."""
    traits = call.entered.pair.traits
    # A pair that only hands its state on leaves this to the pairs inside of it.
    hands_on = traits.parts is not None and all(p.declaration is not None for p in traits.parts)
    if traits.rule is not None or hands_on or not holds_stored(call.state):
        return None
    run = functools.partial(rest, call.entered)
    return on_arrays(run, call.updates, call.state, call.params, call.extra_args)


def _pair_update(call: _PairCall, rest: _Rest) -> Any:
    return _results(call, call.entered.pair.update)


def _pair_step(call: _PairCall, rest: _Rest) -> Any:
    return _results(call, call.entered.pair.traits.step)


def _results(call: _PairCall, function: Any) -> Any:
    done = function(call.updates, call.state, call.params, **call.extra_args)
    if done is None:  # of an adapter None means that the next one is to go on
        name = call.entered.declaration.name
        raise TypeError(f"{name}: it returned None in place of its results and a new state")
    return done


_Adapter = Callable[[_PairCall, _Rest], Any]

ADAPTERS: tuple[tuple[_Adapter, str], ...] = (
    (_explained, "update step"),
    (_single_numbers, "update step"),
    (_whole_losses, "update step"),
    (_parameters_alone, "update"),
    (_leaves_of_vectors, "update step"),
    (_one_program, "update"),
    (_numbers_as_arrays, "update"),
    (_automatic_axes, "update"),
    (_values_of_schedules, "update"),
    (_arrays_of_slots, "update step"),
    (_pair_update, "update"),
    (_pair_step, "step"),
)
"""What happens around a pair, from the outside to the pair itself, and which calls it serves.

An adapter changes the call and returns None, or it returns the result, for which it does the rest
in its own way. A pair with schedules has no step. Arrays and automatic axes are made for a step by
`take_step` in `composition/apply.py`, which may add updates to parameters in the same place.
"""


def _enter(
    adapters: tuple[tuple[_Adapter, _Rest], ...],
    entered: Expansion,
    updates: Any,
    state: Any,
    params: Any,
    /,  # extra arguments may have any names
    **extra_args: Any,
) -> Any:
    """A call of what was declared, through one adapter after another."""
    call = _PairCall(entered, updates, state, params, extra_args)
    for adapter, rest in adapters:
        done = adapter(call, rest)
        if done is not None:
            break
    return done


def _serving(called: str) -> _Rest:
    """The way through the adapters that serve this call."""
    adapters: tuple[tuple[_Adapter, _Rest], ...] = ()
    for adapter, serves in reversed(ADAPTERS):
        if called in serves.split():
            adapters = ((adapter, functools.partial(_enter, adapters)), *adapters)
    return functools.partial(_enter, adapters)


_enter_update, _enter_step = _serving("update"), _serving("step")


@functools.lru_cache(maxsize=64)  # of the optimizers that ran last
def _program(structure: StaticPart, form: Any, by_entry: bool) -> EagerStep:
    """The step of what a declaration describes, compiled; its array hyperparameters come first.

    Args:
        structure: of the declaration.
        form: the :func:`whole_form` of the leaves that it is asked of.
        by_entry: whether it computes each entry from the same entry of all trees.
    """

    def run(*call: Any, **extra_args: Any) -> Any:
        numbers, *trees = call  # a name of its own could be that of an extra argument
        # The first for jax.disable_jit.
        with eager_programs(False), whole_leaves(of_form(form)):
            expansion = Expansion(Declaration.unflatten(structure, numbers))
            return expansion.update(*trees, **extra_args)

    printed = repr(Declaration.unflatten(structure, [None] * structure.arrays))
    return EagerStep(printed, run, by_entry)
