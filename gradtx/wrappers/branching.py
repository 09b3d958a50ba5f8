"""Running a transformation or not, as a value decides: shared by the wrappers."""

from collections.abc import Callable
from typing import Any

import jax

from gradtx.numerics import cast
from gradtx.pair import GradientTransformation
from gradtx.types import Array, Params, PyTree, State, Updates


def _like(new: PyTree, old: PyTree) -> PyTree:
    """`new` in the types of `old`: the branches of a condition must agree."""
    return jax.tree.map(lambda n, o: cast(n, o.dtype) if hasattr(n, "dtype") else n, new, old)


def _update_if(
    condition: Array,
    tx: GradientTransformation,
    updates: Updates,
    state: State,
    params: Params | None,
    extra_args: dict[str, Any],
    otherwise: Callable[[Updates], Updates],
) -> tuple[Updates, State]:
    """The update of `tx`, or ``otherwise(updates)`` and the old state; only one of them is run."""

    def run() -> tuple[Updates, State]:
        new, inner = tx.update(updates, state, params, **extra_args)
        return _like(new, updates), _like(inner, state)

    return jax.lax.cond(condition, run, lambda: (_like(otherwise(updates), updates), state))
