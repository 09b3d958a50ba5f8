"""What is wrong with the arguments of a step that failed."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import jax

from gradtx.types import OTHER_STATE, is_state

_F = TypeVar("_F", bound=Callable[..., Any])


def explanation(updates: Any, state: Any, params: Any) -> str | None:
    """What the caller of a step mixed up, and what to do; None if nothing is seen."""
    if state is None:
        return (
            "the state is None: make it once by state = tx.init(params), and give each step the "
            "state that the step before it returned"
        )
    if callable(state) or callable(getattr(state, "init", None)):
        return (
            f"a {type(state).__name__} stands in place of the state: make it by "
            "state = tx.init(params)"
        )
    if isinstance(state, Mapping) and "gradtx" in state and not is_state(state["gradtx"]):
        return (
            "what state_dict returned stands in place of the state: make that by "
            "state = load_state_dict(tx, params, arrays)"
        )
    if not is_state(state):
        for what, x in (("gradients", updates), ("parameters", params)):
            if is_state(x):
                return (
                    f"the {what} and the state look swapped: the order is "
                    "tx.update(gradients, state, params)"
                )
    return None


def explain(
    name: str,
    error: Exception,
    init: Callable[[Any], Any],
    updates: Any,
    state: Any,
    params: Any,
) -> None:
    """Raise TypeError if an error of a step comes from arguments that were mixed up.

    Args:
        name: the name of the transformation.
        error: the error.
        init: what makes the state of the transformation.
        updates: the first argument of the step; `state` and `params` are the others.
        state: the state.
        params: the parameters.
    """
    wrong = explanation(updates, state, params)
    if wrong is not None and _is_made(init, updates if params is None else params, state):
        return
    if wrong is None and isinstance(error, AttributeError) and error.obj is state:
        wrong = f"the state, a {type(state).__name__}, is not one that its init makes{OTHER_STATE}"
    if wrong is not None:
        # A transformation inside of this one may have explained it first, by its own name.
        raise TypeError(f"{name}: {wrong}") from error.__cause__ or error


def _is_made(init: Callable[[Any], Any], params: Any, state: Any) -> bool:
    """Whether `init` makes states of this kind, such as None."""
    try:
        return type(jax.eval_shape(init, params)) is type(state)
    except Exception:
        return False


def explained(method: _F) -> _F:
    """A method that takes a step; of mixed-up arguments its error says which they are."""

    @functools.wraps(method)
    def run(self: Any, updates: Any, state: Any, params: Any = None, **extra_args: Any) -> Any:
        try:
            return method(self, updates, state, params, **extra_args)
        except (AttributeError, TypeError, ValueError) as error:
            explain(self.declaration.name, error, self.init, updates, state, params)
            raise

    return cast(_F, run)
