"""Hyperparameters that are schedules: their values at a step, and the count that says which step.

The builder is called again at each step with the current values: no rule knows of schedules. The
state's first counter is the clock; a state that counts no steps is kept beside one that does.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checks import check_first_value, hyperparameter_range
from gradtx.declarations.declaration import Declaration
from gradtx.declarations.host_values import HostValue
from gradtx.numerics import increment, signed
from gradtx.types import Counter, EmptyState, InnerState, State, Updates, counters


class ScheduledState(NamedTuple):
    """The state of a transformation that has a scheduled hyperparameter but keeps no count."""

    count: Counter
    inner_state: InnerState


class Schedules:
    """The hyperparameters of a declaration that are schedules.

    Args:
        declaration: the declaration.
    """

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self.names: Sequence[str] = declaration.builder.schedules(declaration.arguments)

    def __bool__(self) -> bool:
        return bool(self.names)

    def at(self, count: Any) -> Declaration:
        """The declaration with the values of its schedules after `count` steps."""
        arguments = dict(self.declaration.arguments)
        for name in self.names:
            try:
                arguments[name] = jnp.asarray(signed(arguments[name](count)))
            except jax.errors.ConcretizationTypeError as error:
                raise TypeError(
                    f"{self.declaration.name}: {name} is a function that needs the value of its "
                    "count, which is not known while JAX traces a step: choose with jnp.where, as "
                    "in lambda count: jnp.where(count < 10, 0.1, 0.01), or with "
                    "piecewise_constant_schedule"
                ) from error
        return Declaration(self.declaration.builder, arguments)

    def at_start(self) -> Declaration:
        """The declaration with the first values, which are checked against their ranges."""
        with jax.ensure_compile_time_eval():  # the values outlive a trace in which they are made
            evaluated = self.at(0)
        builder, arguments = self.declaration.builder, self.declaration.arguments
        for name in self.names:
            allowed = hyperparameter_range(builder.hints.get(name))
            if allowed is not None and not isinstance(arguments[name], HostValue):
                first = evaluated.arguments[name]
                check_first_value(builder.name, name, arguments[name], first, allowed)
        return evaluated

    def counted(self, state: State, clock: Callable[[Any], State] | None) -> State:
        """The initial `state` with a count of steps, if it has none of its own.

        Args:
            state: the state of the pair that was built with the first values.
            clock: the state class, of a count alone, that replaces an empty state.
        """
        # A ScheduledState belongs to an inner transformation: this one has a clock of its own.
        if count_of(state) is not None and not isinstance(state, ScheduledState):
            return state
        count = jnp.zeros([], jnp.int32)
        return ScheduledState(count, state) if clock is None else clock(count)

    def update(
        self,
        clock: Callable[[Any], State] | None,
        run: Callable[[Declaration, State], tuple[Updates, State]],
        state: State,
    ) -> tuple[Updates, State]:
        """An update with the values of the schedules at the count in `state`.

        Args:
            clock: as in `counted`.
            run: ``(declaration, state) -> (updates, state)``, of the declaration with these values.
            state: the state, which holds the count.
        """
        count = count_of(state)
        if count is None:
            raise TypeError(
                f"{self.declaration.name}: {', '.join(self.names)} is a schedule, and the "
                f"state, {type(state).__name__}, counts no steps: it was made for a constant; "
                "load_state_dict(tx, params, state_dict(state), strict=False) continues at its step"
            )
        evaluated = self.at(count)
        evaluated.check_numbers()  # a schedule of a sweep, that nothing maps over
        if isinstance(state, ScheduledState):
            updates, inner = run(evaluated, state.inner_state)
            return updates, ScheduledState(increment(count), inner)
        if clock is not None:
            return run(evaluated, EmptyState())[0], clock(increment(count))
        return run(evaluated, state)


def count_of(state: State) -> Any:
    """The steps that a state has counted, or None if it has no counter."""
    names = counters(type(state))
    return getattr(state, names[0]) if names else None
