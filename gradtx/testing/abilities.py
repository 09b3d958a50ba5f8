"""Abilities that some transformations lack: each function tries one on a small case, or raises."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.composition.apply import apply_updates
from gradtx.leaves.rows import Rows
from gradtx.testing.contracts import Broken
from gradtx.testing.trial import (
    Trial,
    forms_differ,
    gradient_of,
    not_finite,
    shapes,
    some_params,
    values_differ,
)


def on_rows(t: Trial) -> None:
    """Raise unless rows of a table are moved as by a dense gradient, and the others stay."""
    table = {"table": jnp.asarray(np.random.default_rng(2).normal(size=(5, 2)), jnp.float32)}
    rows = Rows(jnp.array([3, 1, 3]), jnp.ones((3, 2)), (5, 2))

    def moved(gradient: Any) -> Any:
        (updates,), _ = t.eager(table, [{"table": gradient}])
        return apply_updates(table, updates)["table"]

    got, want, touched, others = moved(rows), moved(rows.to_dense()), [1, 3], [0, 2, 4]
    at = np.asarray
    if different := values_differ(at(got)[touched], at(want)[touched], 1e-5, 1e-6):
        raise Broken(f"rows and a dense gradient: {different}")
    if different := values_differ(at(got)[others], at(table["table"])[others]):
        raise Broken(f"rows without a gradient move: {different}")


def on_complex(t: Trial) -> None:
    """Raise unless complex parameters get finite updates of their type."""
    params = some_params(jnp.complex64)
    (updates,), _ = t.eager(params, [gradient_of(params)])
    if different := forms_differ(shapes(params), shapes(updates)) or not_finite(updates):
        raise Broken(different)


def on_strict_types(t: Trial) -> None:
    """Raise unless it can be traced where JAX promotes no types."""
    with jax.numpy_dtype_promotion("strict"):
        state = jax.eval_shape(t.tx.init, t.params)
        jax.eval_shape(t.step, t.gradient, state, t.params)


def on_huge_gradients(t: Trial) -> None:
    """Raise unless steps after a gradient of 1e30, whose square is infinite, are finite."""
    huge = jax.tree.map(lambda g: jnp.full_like(g, 1e30), t.gradient)
    updates, _ = t.compiled(t.params, [t.gradient, huge, t.gradient])
    if where := not_finite(updates):
        raise Broken(where)


ABILITIES: dict[str, Callable[[Trial], None]] = {
    "rows of a table": on_rows,
    "complex parameters": on_complex,
    "strict types": on_strict_types,
    "gradients of 1e30": on_huge_gradients,
}
