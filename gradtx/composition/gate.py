"""Gates: at each step a decision says whether a transformation takes its step, or nothing moves.

A gate states its decision once; its update and its whole step follow from that. In a compiled step
the transformation runs in a loop of one iteration or none, which works in the memory of what it
carries: the parameters and the state in a whole step (`step_if`), the updates and the state
otherwise.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx import tree
from gradtx.composition.apply import take_step
from gradtx.core.pair import GradientTransformation, GradientTransformationExtraArgs
from gradtx.core.traits import Scope, StepFn, runs_steps
from gradtx.engine.leaves import parameter
from gradtx.leaves.paths import is_leaf
from gradtx.leaves.rows import Rows, dense, holds_rows, is_rows
from gradtx.numerics.compiler_hints import true_after
from gradtx.numerics.control import inside, loop_once_if
from gradtx.programs.tracing import is_tracer, vary, varying_axes
from gradtx.types import Array, Params, PyTree, State, Updates, is_stored


class Decision(NamedTuple):
    """A gate's decision: whether a transformation takes this step, with its state and arguments.

    Attributes:
        condition: bool[], whether the step is taken.
        tx: the transformation that takes the step.
        state: the state of `tx`.
        close: ``(state of tx, taken) -> state``, the gate's state after the step; `taken` is the
            condition, which is known only after the step.
        extra_args: the extra arguments of `tx`.
        gradients: ``turn -> gradients``, the gradients that `tx` sees, computed inside the loop
            (see :func:`inside`); None for the gradients that the gate sees.
        otherwise: the updates if the step is not taken, from whose `Rows` the gate makes tables
            where a step returns tables; None for updates that change nothing.
    """

    condition: Array
    tx: GradientTransformation
    state: State
    close: Callable[[State, Array], State]
    extra_args: dict[str, Any]
    gradients: Callable[[Array], Updates] | None = None
    otherwise: Updates | None = None

    def seen(self, updates: Updates, turn: Array) -> Updates:
        """The gradients that `tx` sees, computed inside of the loop in which it takes its step."""
        return inside(updates, turn) if self.gradients is None else self.gradients(turn)


DecideFn = Callable[[Updates, State, Params | None, dict[str, Any]], Decision]


def gate(
    init: Callable[[Params], State],
    decide: DecideFn,
    *,
    still: bool = True,
    anyway: bool = False,
    **traits: Any,
) -> GradientTransformation:
    """A transformation that takes the step of another one whenever a decision says so.

    Args:
        init: ``params -> state``.
        decide: ``(updates, state, params, extra_args) -> Decision``.
        still: whether the parameters stay as they are where the step is not taken. The gate then
            has a whole step, in which nothing is stored.
        anyway: whether to compute the update in any case, except on a CPU, so that one kernel
            computes, selects and applies it: for what reads entries alone, and a condition that
            mostly holds.
        traits: what else the pair can do: fields of `Traits`, such as its facets.

    >>> import gradtx
    >>> def every_other(tx):
    ...     def decide(updates, state, params, extra_args):
    ...         count, inner = state
    ...         return Decision(
    ...             count % 2 == 0, tx, inner, lambda inner, _: (count + 1, inner), extra_args
    ...         )
    ...
    ...     return gate(lambda params: (jnp.int32(0), tx.init(params)), decide)
    >>> tx = every_other(gradtx.sgd(1.0))
    >>> updates, state = tx.update(jnp.ones(1), tx.init(jnp.zeros(1)))
    >>> updates.tolist(), tx.update(jnp.ones(1), state)[0].tolist()
    ([-1.0], [0.0])
    """

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        decision = decide(updates, state, params, extra_args)

        def run(now: tuple[Updates, State, Array], turn: Array) -> tuple[Updates, State, Array]:
            seen = decision.seen(updates, turn)
            # XLA would compute the decay of all parameters before the loop, and store it.
            at = None if params is None else inside(params, turn)
            return *decision.tx.update(seen, now[1], at, **decision.extra_args), jnp.array(True)

        state_and_taken = decision.state, jnp.array(False)
        rest = _unless_taken(
            decision, updates, lambda: run((None, *state_and_taken), jnp.int32(0))[0]
        )
        select = anyway and _are_arrays(updates, decision.state)
        out, inner, taken = loop_once_if(
            decision.condition, run, (rest, *state_and_taken), anyway=select
        )
        return out, decision.close(inner, taken)

    def step(
        updates: Updates, state: State, params: Params, **extra_args: Any
    ) -> tuple[Params, State]:
        decision = decide(updates, state, params, extra_args)
        params, inner, taken = step_if(
            decision.condition,
            decision.tx,
            lambda turn: decision.seen(updates, turn),
            decision.state,
            params,
            decision.extra_args,
        )
        return params, decision.close(inner, taken)

    return GradientTransformationExtraArgs(init, update, step if still else None, **traits)


def _unless_taken(decision: Decision, updates: Updates, run: Callable[[], Updates]) -> Updates:
    """The updates if the step is not taken, in the form of those that `run` returns.

    A step may return a table for rows, and for what differs between devices what they share.
    """
    given = decision.otherwise
    if not is_tracer(decision.condition) and decision.condition:
        return updates if given is None else given  # which is not returned
    if given is None:
        return _nothing_like(updates, run)
    if not holds_rows(given):
        return given
    returned = jax.eval_shape(run)
    return jax.tree.map(
        lambda u, r: u if is_rows(r) else dense(u), given, returned, is_leaf=is_rows
    )


def _nothing_like(updates: Updates, run: Callable[[], Updates]) -> Updates:
    """Updates that change nothing, of the types that `run` returns for `updates`."""
    leaves = jax.tree.leaves(updates, is_leaf=is_rows)
    if not any(is_rows(g) or varying_axes(jax.typeof(g)) for g in leaves):
        return _zeros_like(updates)

    def zeros(x: Any) -> Array:
        return vary(jnp.zeros(x.shape, x.dtype), varying_axes(x))

    def of(u: Any) -> Any:
        if not is_rows(u):
            return zeros(u)
        return Rows(zeros(u.indices) + u.shape[0], zeros(u.values), u.shape)

    return jax.tree.map(of, jax.eval_shape(run), is_leaf=is_rows)


def _zeros_like(updates: Updates) -> Updates:
    """Zeros; in a program, the same value for leaves of a kind, which is traced once."""
    of_kind: dict[Any, Array] = {}

    def zeros(x: Array) -> Array:
        if not is_tracer(x):
            return jnp.zeros_like(x)
        kind = jax.typeof(x)
        if kind not in of_kind:
            of_kind[kind] = jnp.zeros_like(x)
        return of_kind[kind]

    return tree.map_updates(zeros, updates)


def step_if(
    condition: Array,
    tx: GradientTransformation,
    grads: Callable[[Array], Updates],
    state: State,
    params: Params,
    extra_args: dict[str, Any],
) -> tuple[Params, State, Array]:
    """A step of `tx` with ``grads(turn)`` if a condition holds, or no change.

    The third result is the condition, in a form that XLA knows only after the step.
    """
    if extra_args.get("value") is not None:
        # The loss must read the parameters before they are overwritten.
        condition = condition & true_after(extra_args["value"])

    def run(now: tuple[Params, State, Array], turn: Array) -> tuple[Params, State, Array]:
        return *take_step(tx, grads(turn), now[1], now[0], **extra_args), jnp.array(True)

    return loop_once_if(condition, run, (jax.tree.map(parameter, params), state, jnp.array(False)))


class Case(NamedTuple):
    """A condition, and the transformation with extra arguments that is used if it holds."""

    condition: Array
    tx: GradientTransformation
    extra_args: dict[str, Any]


CasesFn = Callable[[State], list[Case]]
"""``state -> cases``, of which one condition holds; their states are alike."""


@runs_steps
class Cases(NamedTuple):
    """The transformations of which a pair is one at each step.

    of: the cases, by a state that has not seen the gradients yet.
    """

    of: CasesFn


def in_cases(cases: CasesFn) -> StepFn:
    """The ``step`` of a pair that uses one of several transformations at each step.

    Each case has a loop of its own. The links before the pair in a chain are in the loops too (see
    :func:`chain`): otherwise their updates would be stored.
    """

    def step(
        updates: Updates, state: State, params: Params, **extra_args: Any
    ) -> tuple[Params, State]:
        for case in cases(state):
            params, state, _ = step_if(
                case.condition,
                case.tx,
                lambda turn: inside(updates, turn),
                state,
                params,
                {**extra_args, **case.extra_args},
            )
        return params, state

    return step


def reads_entries(tx: GradientTransformation) -> bool:
    """Whether all rules in a transformation treat each entry independently."""
    rules = tx.rules
    return rules is not None and all(rule.scope is Scope.ENTRY for rule in rules)


def _are_arrays(*trees: PyTree) -> bool:
    """Whether all leaves are arrays.

    A selection between two `Rows` would be one of whole tables, and slots in codes have kernels
    of their own.
    """
    leaves = jax.tree.leaves(trees, is_leaf=lambda x: is_leaf(x) or is_stored(x))
    return not any(is_rows(x) or is_stored(x) for x in leaves)
