"""Steps of a transformation on small parameters, and comparisons of their results."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.composition.apply import apply_updates
from gradtx.core.eager import eager_programs
from gradtx.core.pair import GradientTransformation
from gradtx.leaves.paths import first_difference, path_string
from gradtx.types import Params, PyTree, State, Updates
from gradtx.types.keys import is_key

STEPS = 3
# One side of the matrix is longer by one: bases of the space its gradients miss are then unique.
SHAPES = {"b": (4,), "w": (3, 2)}


def some_params(dtype: Any = jnp.float32) -> Params:
    """A vector and a matrix."""
    rng = np.random.default_rng(0)
    return {name: jnp.asarray(rng.normal(size=shape), dtype) for name, shape in SHAPES.items()}


def value_fn(params: Params) -> Any:
    """A quadratic loss whose curvature differs from entry to entry."""
    terms = [jnp.sum(_curvatures(x) * jnp.abs(x).astype(jnp.float32) ** 2) for x in _arrays(params)]
    return sum(terms, jnp.float32(0)) / 2


def gradient_of(params: Params) -> Updates:
    """The gradient of that loss."""
    return jax.tree.map(lambda x: (_curvatures(x) * x).astype(x.dtype), params)


def _arrays(params: Params) -> list[Any]:
    return [x for x in jax.tree.leaves(params) if x.size]


def _curvatures(x: Any) -> Any:
    return jnp.asarray(np.linspace(0.5, 2.0, x.size).reshape(x.shape), jnp.float32)


class Trial:
    """A transformation with parameters and gradients, on which the contracts are tried.

    Args:
        tx: the transformation, with an ``update`` that takes extra arguments.
        params: the parameters.
        gradient: the gradient of every step; unless given, that of the loss at its parameters.
    """

    def __init__(
        self, tx: GradientTransformation, params: Params, gradient: Updates | None = None
    ) -> None:
        self.tx, self.params = tx, params
        self.gradient = gradient_of(params) if gradient is None else gradient
        self.gradients = [gradient] * STEPS

    def step(self, grads: Updates, state: State, params: Params) -> tuple[Updates, State]:
        """One update, with the extra arguments that a step from the loss has."""
        extra = {"value": value_fn(params), "grad": grads, "value_fn": value_fn}
        return self.tx.update(grads, state, params, **extra)

    def eager(
        self, params: Params, gradients: Sequence[Updates | None], state: State | None = None
    ) -> tuple[list[Updates], State]:
        """Steps operation by operation: the updates of each, and the last state."""
        with eager_programs(False):
            return self._run(self.step, params, gradients, state)

    def compiled(
        self, params: Params, gradients: Sequence[Updates | None], state: State | None = None
    ) -> tuple[list[Updates], State]:
        """The same in compiled steps."""
        return self._run(self.jitted, params, gradients, state)

    def _run(
        self, step: Any, params: Params, gradients: Sequence[Updates | None], state: State | None
    ) -> tuple[list[Updates], State]:
        state = self.tx.init(params) if state is None else state
        every: list[Updates] = []
        for g in gradients:
            g = gradient_of(params) if g is None else g
            updates, state = step(g, state, params)
            params = apply_updates(params, updates)
            every.append(updates)
        return every, state

    @functools.cached_property
    def jitted(self) -> Any:
        """The compiled step."""
        return jax.jit(self.step)

    @functools.cached_property
    def eager_run(self) -> tuple[list[Updates], State]:
        """Some steps from the start."""
        return self.eager(self.params, self.gradients)

    @functools.cached_property
    def compiled_run(self) -> tuple[list[Updates], State]:
        """The same in compiled steps."""
        return self.compiled(self.params, self.gradients)


def numbers(tree: PyTree) -> PyTree:
    """A tree's arrays as NumPy's, random keys as their bits."""
    return jax.tree.map(
        lambda x: np.asarray(jax.random.key_data(x) if is_key(x) else x),
        tree,
    )


def from_numbers(arrays: PyTree, like: PyTree) -> PyTree:
    """The inverse of :func:`numbers`."""

    def one(x: Any, y: Any) -> Any:
        if is_key(y):
            return jax.random.wrap_key_data(x, impl=jax.random.key_impl(y))
        return jnp.asarray(x)

    return jax.tree.map(one, arrays, like)


def shapes(tree: PyTree) -> PyTree:
    """The shapes and types of a tree's leaves, in which weak types are as others."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), tree)


def forms_differ(before: PyTree, after: PyTree) -> str:
    """Where two trees differ in structure, shapes or types; empty if they do not."""
    structure: Any = jax.tree.structure(before)
    if structure != jax.tree.structure(after):
        return first_difference(before, after)
    pairs = zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True)
    for (path, x), y in pairs:
        if jax.typeof(x) != jax.typeof(y):
            return f"{_at(path)} is {_form(x)} in the first and {_form(y)} in the second"
    return ""


def values_differ(got: PyTree, want: PyTree, rtol: float = 0.0, atol: float = 0.0) -> str:
    """Where two trees of one form differ in their values; empty if they do not."""
    if other := forms_differ(got, want):
        return other
    got, want = numbers(got), numbers(want)
    pairs = zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True)
    for (path, x), y in pairs:
        if x.dtype.kind in "biu":
            same = np.array_equal(x, y)
        else:
            wide = np.complex128 if np.iscomplexobj(x) else np.float64
            x, y = x.astype(wide), y.astype(wide)
            same = np.allclose(x, y, rtol, atol, equal_nan=True)
        if not same:
            return (
                f"{_at(path)} is {_entry(x, x, y)} in the first and {_entry(y, x, y)} in the second"
            )
    return ""


def not_finite(tree: PyTree) -> str:
    """The first leaf with an infinity or a NaN; empty if there is none."""
    for path, x in jax.tree_util.tree_leaves_with_path(tree):
        if jnp.issubdtype(jax.typeof(x).dtype, jnp.inexact) and not bool(jnp.all(jnp.isfinite(x))):
            return f"{_at(path)} is {_shown(np.asarray(x))}"
    return ""


def _at(path: Any) -> str:
    return repr(path_string(path)) if path else "it"


def _form(x: Any) -> str:
    form = jax.typeof(x)
    return f"{form.str_short()}{' (weak)' * getattr(form, 'weak_type', False)}"


def _entry(x: Any, first: Any, second: Any) -> str:
    """The entry of `x` where the two differ most."""
    if x.dtype.kind in "biu":
        far = first != second
    else:
        far = np.nan_to_num(np.abs(first - second), nan=np.inf)
    return f"{np.ravel(x)[np.argmax(far)]:.4g}" if np.size(x) else "empty"


def _shown(x: Any) -> str:
    flat = np.ravel(x)
    cells = ", ".join(f"{v:.4g}" for v in flat[:4])
    return f"[{cells}{', ...' * (flat.size > 4)}]" if np.ndim(x) else cells
