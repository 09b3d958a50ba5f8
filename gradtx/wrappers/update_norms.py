"""The norms of an update and of the parameters that it moves, measured while the step is taken.

Where a transformation reads entries alone, the sums are in the kernel of its step.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx import tree
from gradtx.composition.apply import apply_updates
from gradtx.composition.gate import Case, Cases, in_cases, reads_entries
from gradtx.core.pair import GradientTransformation, GradientTransformationExtraArgs
from gradtx.leaves.paths import aligned, leaves_with_path, map_present
from gradtx.leaves.rows import is_rows, take_rows
from gradtx.numerics import abs_sq, cast, widen
from gradtx.numerics.compiler_hints import Recomputed, sums_in_one_pass
from gradtx.programs.tracing import as_call
from gradtx.types import Array, InnerState, Params, State, TreeScalar, Updates
from gradtx.types.keys import is_key


class MeasuredState(NamedTuple):
    """The inner state, and squared norms of the last update and of the parameters before it."""

    inner_state: InnerState
    update_sq: TreeScalar
    params_sq: TreeScalar


def unmeasured(inner_state: State) -> MeasuredState:
    """The state before a step is taken: nothing has been measured."""
    return MeasuredState(inner_state, *(jnp.zeros([], jnp.float32) for _ in range(2)))


def with_norms(
    tx: GradientTransformation, norm: Array, factor: Array | None
) -> GradientTransformation:
    """`tx` on gradients times a factor, with squared norms of updates and parameters in the state.

    Where `tx` treats each entry by itself, the kernel of the step sums them too: see
    :func:`recompute`, without which updates and parameters would be read once more.

    Args:
        tx: the transformation.
        norm: the norm of the gradients, after which the sums are computed.
        factor: what gradients are multiplied by; None to leave them.
    """

    def shortened(updates: Updates) -> Updates:
        if factor is None:
            return updates
        return tree.map_updates(lambda g: cast(widen(g) * factor, g.dtype), updates)

    def run(updates: Updates, state: State, params: Params | None, extra_args: Any) -> Any:
        return tx.update(shortened(updates), state, params, **extra_args)

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        inner = functools.partial(run, extra_args=extra_args)
        if reads_entries(tx):
            return _measured_again(inner, updates, state.inner_state, params, norm)
        return _measured(inner, updates, state.inner_state, params)

    def step(
        updates: Updates, state: State, params: Params, **extra_args: Any
    ) -> tuple[Params, State]:
        if tx.step is None:
            updates, state = update(updates, state, params, **extra_args)
            return apply_updates(params, updates), state
        new, inner_state = tx.step(shortened(updates), state.inner_state, params, **extra_args)
        moves = map_present(lambda n, p: widen(n) - widen(p), new, params)
        return new, MeasuredState(inner_state, *_squares(moves, params))

    inner_cases: Any = tx.facet(Cases)

    def cases(state: State) -> list[Case]:
        return [
            case._replace(tx=with_norms(case.tx, norm, factor))
            for case in inner_cases.of(state.inner_state)
        ]

    return GradientTransformationExtraArgs(
        lambda params: MeasuredState(tx.init(params), jnp.zeros([]), jnp.zeros([])),
        update,
        step if inner_cases is None else in_cases(cases),
    )


_Run = Callable[[Updates, State, Params | None], tuple[Updates, State]]


def _measured(
    run: _Run, updates: Updates, state: State, params: Params | None
) -> tuple[Updates, State]:
    """An update by `run`, with its norms and those of the parameters."""
    out, inner_state = run(updates, state, params)
    return out, MeasuredState(inner_state, *_squares(out, params))


def _measured_again(
    run: _Run, updates: Updates, state: State, params: Params | None, norm: Array
) -> tuple[Updates, State]:
    """The same, where chips other than a CPU compute the update again for its norm, after `norm`.

    Where there are random keys, it is not computed again.
    """
    structure: Any
    leaves, structure = jax.tree.flatten((updates, state, params))
    if any(map(is_key, leaves)):
        return _measured(run, updates, state, params)

    def taken(*leaves: Any) -> Any:
        updates, state, params = structure.unflatten(leaves)
        return *run(updates, state, params), params

    taking = Recomputed(taken, *leaves)
    out, inner_state, _ = taking.at_once()

    def of_the_same_again() -> list[Array]:
        again, _, waiting = taking(after=norm, on="all")
        return _squares(again, waiting)

    measured = jax.lax.platform_dependent(
        cpu=lambda: _squares(out, params), default=of_the_same_again
    )
    return out, MeasuredState(inner_state, *measured)


@as_call
def _squares(updates: Updates, params: Params | None) -> list[Array]:
    """The squared norms of updates and of parameters; where an update is `Rows`, of these rows."""
    leaves, treedef = leaves_with_path(updates)
    problem = "the updates and the parameters are different trees"
    others = [None] * len(leaves) if params is None else aligned(problem, updates, treedef, params)
    totals = [jnp.zeros([], jnp.float32)] * 2
    for (_, u), p in zip(leaves, others, strict=True):
        if is_rows(u):
            u = u.coalesce()
            u, p = u.values, None if p is None else take_rows(p, u.indices)
        if u is not None:
            totals = list(map(jax.lax.add, totals, _sums_of_squares(u, p)))
    return totals


@as_call
def _sums_of_squares(u: Array, p: Array | None) -> list[Array]:
    pair = jnp.asarray(u), jnp.zeros_like(u) if p is None else jnp.asarray(p)
    squares = [[cast(abs_sq(widen(x)), jnp.float32)] for x in pair]
    return [cast(x, jnp.float32) for x in sums_in_one_pass(*squares)]
