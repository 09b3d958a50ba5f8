"""What is wrong with the arguments of a step that failed."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax

from gradtx.declarations.declaration import Declared
from gradtx.leaves.paths import first_difference, leaves_with_path, path_string, with_paths
from gradtx.programs.tracing import is_tracer
from gradtx.types import OTHER_STATE, PyTree, is_state


def explanation(updates: Any, state: Any, params: Any) -> str | None:
    """What the caller of a step mixed up, and what to do; None if nothing is seen."""
    if state is None:
        return (
            "the state is None: make it once by state = tx.init(params), and give each step the "
            "state that the step before it returned"
        )
    if callable(state) or callable(getattr(state, "init", None)):
        is_function = hasattr(state, "__name__") and not isinstance(state, type)
        kind = "function" if is_function else type(state).__name__
        return f"a {kind} stands in place of the state: make it by state = tx.init(params)"
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


def name_of(tx: Declared) -> str:
    """The name of a transformation's builder, or of its class; for messages alone."""
    return type(tx).__name__ if tx.declaration is None else tx.declaration.name


def public_name(tx: Declared) -> str:
    """A name by which users know a transformation; empty for a chain and for one made by hand."""
    name = "" if tx.declaration is None else tx.declaration.name
    return "" if name.startswith("_") or name in ("chain", "named_chain") else name


def check_alive(**trees: PyTree) -> None:
    """Raise ValueError if an array was donated, which names the tree and the leaf."""
    for what, tree in trees.items():
        leaves = jax.tree.leaves(tree)
        try:  # nearly all are arrays, which is quicker to try than to ask
            traced = bool(leaves) and is_tracer(leaves[0])  # asking one is slow
            deleted = not traced and any([x.is_deleted() for x in leaves])  # noqa: C419
        except (AttributeError, TypeError):  # of what is no array, and of a traced one
            deleted = any(map(_is_deleted, leaves))
        if deleted:
            path = next(path_string(path) for path, x in with_paths(tree)[0] if _is_deleted(x))
            raise ValueError(
                f"{what}: {path!r} was given up to an earlier step, which wrote into its memory: "
                "continue with what that returned (a model that holds the same array needs it "
                "too), copy it beforehand, or make the step with donate=False"
            )


def _is_deleted(x: Any) -> bool:
    return isinstance(x, jax.Array) and not is_tracer(x) and x.is_deleted()


def _different(error: Exception, updates: Any, params: Any) -> str | None:
    """How gradients and parameters differ, where JAX stopped at two trees that do."""
    if params is None or not re.search("pytree|mismatch", str(error), re.IGNORECASE):
        return None
    if leaves_with_path(updates)[1] == leaves_with_path(params)[1]:
        return None
    difference = first_difference(updates, params)
    return f"the gradients and the parameters are different trees: {difference}"


def explain(
    name: str,
    error: Exception,
    init: Callable[[Any], Any],
    updates: Any,
    state: Any,
    params: Any,
) -> None:
    """Raise a clearer error if that of a step comes from its arguments.

    It is a TypeError if they were mixed up, and a ValueError if an array was donated to an earlier
    step, or gradients and parameters are different trees.

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
    if not isinstance(error, RuntimeError | ValueError):
        return
    try:
        check_alive(gradients=updates, state=state, parameters=params)
    except ValueError as problem:
        raise ValueError(f"{name}: {problem}") from error.__cause__ or error
    if (difference := _different(error, updates, params)) is not None:
        raise ValueError(f"{name}: {difference}") from error


def _is_made(init: Callable[[Any], Any], params: Any, state: Any) -> bool:
    """Whether `init` makes states of this kind, such as None."""
    try:
        return type(jax.eval_shape(init, params)) is type(state)
    except Exception:
        return False
