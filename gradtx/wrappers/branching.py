"""Running a transformation or not, depending on a value: shared by the wrappers."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from gradtx.engine.leaves import parameter
from gradtx.numerics import cast
from gradtx.numerics.steering import is_tracer, true_after
from gradtx.pair import GradientTransformation, Scope
from gradtx.paths import is_leaf
from gradtx.rows import is_rows
from gradtx.training.apply import take_step
from gradtx.types import Array, Params, PyTree, State, Updates, is_stored

_T = TypeVar("_T")


def in_form_of(new: PyTree, old: PyTree) -> PyTree:
    """`new` in the types of `old`: the branches of a conditional must agree."""
    return jax.tree.map(lambda n, o: cast(n, o.dtype) if hasattr(n, "dtype") else n, new, old)


def _strong(x: Any) -> Array:
    x = x if hasattr(x, "dtype") else jnp.asarray(x)
    return cast(x, x.dtype)


def run_if(
    condition: Array, run: Callable[[_T, Array], _T], now: _T, *, anyway: bool = False
) -> _T:
    """``run(now, turn)`` if `condition` holds, otherwise `now`, in the memory of `now`.

    It is a loop of one iteration or none; outside of ``jit`` an ``if``. XLA gives the results of a
    ``lax.cond`` separate memory, and on a GPU turns it into a selection between results that are
    both computed. A loop has no reverse-mode derivative, so derivatives are those of a
    ``lax.cond``.

    Args:
        condition: a boolean.
        run: returns a tree like `now`. Pass what XLA should not compute before the loop, and store,
            through :func:`inside`.
        now: a tree of arrays.
        anyway: whether chips other than a CPU compute both, without a loop, and select: for what
            they then fuse with its readers, and what is seldom left out.
    """
    now = jax.tree.map(_strong, now)

    def body(now: _T, turn: Array) -> _T:
        return in_form_of(run(now, turn), now)

    if not is_tracer(condition):
        return body(now, jnp.int32(0)) if condition else now

    # What `body` closes over, integers too, is passed to the loop: it can then be differentiated.
    # JAX keeps the functions below for longer than their trace, so they must hold no tracers.
    closed = jax.make_jaxpr(body)(now, jnp.int32(0))
    anyway = anyway and not closed.effects
    of, held = closed.jaxpr, list(closed.consts)  # since jax 0.12 `of` holds the constants too
    jaxpr = Jaxpr(of.constvars, of.invars, of.outvars, of.eqns, of.effects, of.debug_info)
    structure: Any = jax.tree.structure(now)

    def converted(now: _T, turn: Array, *held: Array) -> _T:
        alone = jaxpr_as_fun(ClosedJaxpr(jaxpr, held))
        return structure.unflatten(alone(*jax.tree.leaves(now), turn))

    def loop(condition: Array, now: _T, held: list[Array]) -> _T:
        turns = condition.astype(jnp.int32)
        return jax.lax.fori_loop(0, turns, lambda i, x: converted(x, i, *held), now)

    def select(condition: Array, now: _T, held: list[Array]) -> _T:
        new = converted(now, jnp.int32(0), *held)
        return jax.tree.map(lambda n, o: jnp.where(condition, n, o), new, now)

    @jax.custom_jvp
    def either(condition: Array, now: _T, held: list[Array]) -> _T:
        if not anyway:
            return loop(condition, now, held)
        chosen: _T = jax.lax.platform_dependent(condition, now, held, cpu=loop, default=select)
        return chosen

    @either.defjvp
    def differentiate(primals: Any, tangents: Any) -> Any:
        def choose(condition: Array, now: _T, held: list[Array]) -> _T:
            return jax.lax.cond(condition, lambda: converted(now, jnp.int32(0), *held), lambda: now)

        return jax.jvp(choose, primals, tangents)

    return either(condition, now, held)


def inside(tree: PyTree, turn: Array) -> PyTree:
    """`tree`, computed inside the loop of :func:`run_if`, not before it."""
    return jax.lax.optimization_barrier((tree, turn))[0]


def step_if(
    condition: Array,
    tx: GradientTransformation,
    grads: Callable[[Array], Updates],
    state: State,
    params: Params,
    extra_args: dict[str, Any],
) -> tuple[Params, State, Array]:
    """A step of `tx` with ``grads(turn)``, or parameters and state unchanged.

    The third result says which; XLA knows it only after the step.
    """
    if extra_args.get("value") is not None:
        # The loss must read the parameters before they are overwritten.
        condition = condition & true_after(extra_args["value"])

    def run(now: tuple[Params, State, Array], turn: Array) -> tuple[Params, State, Array]:
        return *take_step(tx, grads(turn), now[1], now[0], **extra_args), jnp.array(True)

    return run_if(condition, run, (jax.tree.map(parameter, params), state, jnp.array(False)))


def update_if(
    condition: Array,
    tx: GradientTransformation,
    updates: Updates,
    state: State,
    params: Params | None,
    extra_args: dict[str, Any],
    otherwise: Callable[[Updates], Updates],
    *,
    anyway: bool = False,
) -> tuple[Updates, State]:
    """The update of `tx`, or ``otherwise(updates)`` and the old state.

    Only one is computed; with `anyway` the update always is, except on a CPU, so that one kernel
    computes, selects and applies it: for what reads entries alone, and a condition that mostly
    holds. A loop stores the update.
    """

    def run(now: tuple[Updates, State], turn: Array) -> tuple[Updates, State]:
        return tx.update(inside(updates, turn), now[1], params, **extra_args)

    now = in_form_of(otherwise(updates), updates), state
    return run_if(condition, run, now, anyway=anyway and _are_arrays(updates, state))


def reads_entries(tx: GradientTransformation) -> bool:
    """Whether each entry of an update, and of a slot, depends on no other entry."""
    rules = tx.rules
    return rules is not None and all(rule.scope is Scope.ENTRY for rule in rules)


def _are_arrays(*trees: PyTree) -> bool:
    """Whether all leaves are arrays.

    A selection between two `Rows` would be one of whole tables, and slots in codes have kernels
    of their own.
    """
    leaves = jax.tree.leaves(trees, is_leaf=lambda x: is_leaf(x) or is_stored(x))
    return not any(is_rows(x) or is_stored(x) for x in leaves)
