"""Running a transformation or not, depending on a value: shared by the wrappers."""

from collections.abc import Callable
from typing import Any

import jax

from gradtx.numerics.control import in_form_of, inside, run_if
from gradtx.pair import GradientTransformation, Scope
from gradtx.paths import is_leaf
from gradtx.rows import is_rows
from gradtx.types import Array, Params, PyTree, State, Updates, is_stored


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
