"""A loss along a line, and the value and gradient that a line search leaves behind."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gradtx.checks import ArgumentError
from gradtx.composition.apply import apply_updates
from gradtx.core.loss_functions import is_elsewhere
from gradtx.leaves.paths import is_leaf, leaves_with_path, map_present, path_string
from gradtx.leaves.rows import is_rows
from gradtx.numerics import as_arrays, real_dtype, scalar_dtype, widen
from gradtx.numerics.control import branch
from gradtx.transforms.bounds import Box
from gradtx.tree import map_updates, vdot
from gradtx.types import Array, DType, Params, State, Updates


def value_dtype(params: Params) -> DType:
    """The type in which the values of a loss of `params` are compared: real, at least float32."""
    return scalar_dtype([jnp.asarray(x) for x in jax.tree.leaves(params)])


class Line:
    """The loss at ``params + rate * updates`` for rates to be tried."""

    def __init__(
        self,
        where: str,
        updates: Updates,
        params: Params | None,
        extra: dict[str, Any],
        box: Box | None = None,
    ) -> None:
        self.box = box
        missing = [name for name in ("value", "grad", "value_fn") if extra.get(name) is None]
        if params is None:
            missing.append("params")
        if missing:
            raise ArgumentError(
                f"{where}: a line search evaluates the loss, so its update needs {missing}; "
                "minimize, make_step and solve pass them"
            )
        for path, u in leaves_with_path(updates)[0]:
            if is_rows(u):
                raise TypeError(
                    f"{where}: the gradient at {path_string(path)!r} is Rows, and a line search "
                    "needs all rows; use to_dense()"
                )
        self.updates = updates
        self.params = map_present(lambda u, p: p, updates, params)
        value_fn = extra["value_fn"]
        taken = inspect.signature(value_fn).parameters
        # The rest of `extra` is for other transformations.
        own = {"value", "grad", "value_fn"}
        self.arguments = {n: v for n, v in extra.items() if n in taken and n not in own}
        self.value_fn = value_fn
        self.dtype = value_dtype(self.params)
        value, grad = extra["value"], as_arrays(extra["grad"])
        if is_elsewhere(value_fn):
            value, grad = jax.value_and_grad(self.loss)(self.params)
            grad = conjugate(grad)
        self.value = jnp.asarray(value).astype(self.dtype)
        self.grad = map_present(lambda u, g: g, updates, grad)
        self.slope = self.slope_of(self.grad)

    def loss(self, params: Params) -> Array:
        value = jnp.asarray(self.value_fn(params, **self.arguments))
        return value.astype(self.dtype)

    def step(self, rate: Array) -> Updates:
        step = map_updates(
            lambda u: (rate.astype(real_dtype(widen(u).dtype)) * widen(u)).astype(u.dtype),
            self.updates,
        )
        return step if self.box is None else self.box.within(self.params, step)

    def reach(self, most: Any) -> Array:
        """The largest rate up to `most` that the bounds allow, if there are any."""
        most = jnp.asarray(most, self.dtype)
        return most if self.box is None else self.box.reach(self.params, self.updates, most)

    def point(self, rate: Array) -> Params:
        """The exact result of `apply_updates` for this rate."""
        return apply_updates(self.params, self.step(rate))

    def evaluate(self, rate: Array) -> tuple[Array, Updates]:
        value, grad = jax.value_and_grad(self.loss)(self.point(rate))
        return value, conjugate(grad)

    def slope_of(self, grad: Updates) -> Array:
        return vdot(grad, self.updates).real.astype(self.dtype)

    def stored(self, grad: Updates, old: Updates) -> Updates:
        """`grad` in the types of the state, with the old leaves where there is no gradient."""
        return jax.tree.map(
            lambda o, g: o if g is None else g.astype(o.dtype), old, grad, is_leaf=is_leaf
        )


def conjugate(grad: Updates) -> Updates:
    """Gradients as directions of ascent, complex ones included."""
    return jax.tree.map(lambda g: g.conj() if jnp.iscomplexobj(g) else g, grad)


def _evaluations(state: State) -> list[Any]:
    """The parts of a state that hold a value and a gradient."""
    if {"value", "grad"} <= set(getattr(state, "_fields", ())):
        return [state]
    if isinstance(state, dict):
        state = tuple(state.values())
    return [e for part in state for e in _evaluations(part)] if isinstance(state, tuple) else []


def value_and_grad_from_state(value_fn: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """The value and gradient of a loss, taken from a line search's state if it has them.

    A line search evaluates the loss at the point that it chooses, which is where the next step
    starts. :func:`solve` does not need this function: it reads the state itself.

    Args:
        value_fn: ``(params, *args, **kwargs) -> value``, a scalar.

    Returns:
        ``(params, *args, state, **kwargs) -> (value, gradient)``. It evaluates `value_fn` only if
        the value in the state is not finite, as before the first step. The gradient of a
        complex leaf is conjugated, as in :func:`compute_gradients`; Optax's is not.

    Raises:
        ValueError: the state holds no value and gradient, or the gradient covers only some of the
            parameters.
        KeyError: there are several line searches, and not just one of them stores a gradient.

    The line search must come last in its chain: what follows it would move the point.

    >>> import gradtx
    >>> def loss(x):
    ...     return jnp.sum((x - 1.0) ** 2)
    >>> tx, x = gradtx.lbfgs(), jnp.zeros(2)
    >>> state = tx.init(x)
    >>> evaluate = value_and_grad_from_state(loss)
    >>> for _ in range(3):
    ...     value, grad = evaluate(x, state=state)
    ...     updates, state = tx.update(grad, state, x, value=value, grad=grad, value_fn=loss)
    ...     x = gradtx.apply_updates(x, updates)
    >>> x.round(4).tolist()
    [1.0, 1.0]
    """

    def value_and_grad(
        params: Params, *fn_args: Any, state: State, **fn_kwargs: Any
    ) -> tuple[Any, Any]:
        evaluations = _evaluations(state)
        with_gradient = [e for e in evaluations if e.grad is not None]
        if len(with_gradient) != 1:
            error = KeyError if len(evaluations) > 1 else ValueError
            raise error(
                f"value_and_grad_from_state: the state holds {len(with_gradient)} values with a "
                "gradient; it takes one line search (a backtracking one with store_grad=True)"
            )

        theirs: Any = jax.tree.structure(with_gradient[0].grad)
        ours: Any = jax.tree.structure(params)
        if theirs != ours:
            raise ValueError(
                "value_and_grad_from_state: the gradient in the state does not cover all the "
                f"parameters: {theirs} against {ours}. A search inside a mask or a group sees only "
                "some of them: evaluate the loss"
            )

        def evaluate(params: Params) -> tuple[Any, Any]:
            value, grad = jax.value_and_grad(value_fn)(params, *fn_args, **fn_kwargs)
            grad = jax.tree.map(
                lambda g, k: g.astype(k.dtype), conjugate(grad), with_gradient[0].grad
            )
            return jnp.asarray(value, with_gradient[0].value.dtype), grad

        known = jnp.isfinite(with_gradient[0].value)
        return branch(
            known, lambda p: (with_gradient[0].value, with_gradient[0].grad), evaluate, params
        )

    return value_and_grad
