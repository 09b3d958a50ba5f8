"""To and from Optax: states, whose trees differ, and pairs of its own class."""

from typing import Any

import jax
import jax.numpy as jnp

from gradtx.core.pair import GradientTransformation, with_extra_args_support
from gradtx.inspection.iterations import is_accumulation
from gradtx.leaves.paths import is_leaf
from gradtx.types import Params, State


def to_optax(tx: GradientTransformation) -> Any:
    """`tx` as an ``optax.GradientTransformationExtraArgs``.

    A pair works in Optax as it is, extra arguments included, and `isinstance` says that it is
    Optax's. This is for code that compares the type itself.

    Args:
        tx: the transformation.

    >>> import gradtx, optax
    >>> isinstance(gradtx.adam(0.1), optax.GradientTransformation)
    True
    >>> type(to_optax(gradtx.adam(0.1))) is optax.GradientTransformationExtraArgs
    True
    """
    import optax

    return optax.GradientTransformationExtraArgs(*with_extra_args_support(tx))


def from_optax_state(state: Any, tx: GradientTransformation, params: Params) -> State:
    """The state of an Optax transformation, converted for the same transformation here.

    Args:
        state: the state in Optax.
        tx: the transformation here.
        params: the parameters.

    Returns:
        A state like ``tx.init(params)``: ``MaskedNode`` becomes `None`, raw random keys become
        typed ones, and types are those used here, such as float32 for the second moments of
        parameters in bfloat16.

    Raises:
        ValueError: the state belongs to another transformation or to other parameters (the error
            says where they differ).

    >>> import gradtx, optax
    >>> params = {"a": jnp.ones(2), "b": jnp.ones(2)}
    >>> theirs = optax.masked(optax.adam(0.1), {"a": True, "b": False})
    >>> ours = gradtx.masked(gradtx.adam(0.1), "a")
    >>> state = from_optax_state(theirs.init(params), ours, params)
    >>> gradtx.get_slot(state, "mu")
    {'a': Array([0., 0.], dtype=float32), 'b': None}
    """
    like = tx.init(jax.tree.map(jnp.asarray, params))
    return _restated(state, like, "from_optax_state", "the state")


def to_optax_state(state: State, tx: Any, params: Params) -> Any:
    """The state of a transformation here, converted for the same transformation of Optax.

    Args:
        state: the state here.
        tx: the transformation of Optax.
        params: the parameters.

    Returns:
        A state like ``tx.init(params)``.

    Raises:
        ValueError: the state belongs to another transformation or to other parameters.

    >>> import gradtx, optax
    >>> state = gradtx.adam(0.1).init(jnp.ones(2))
    >>> type(to_optax_state(state, optax.adam(0.1), jnp.ones(2))[0]) is optax.ScaleByAdamState
    True
    """
    return _restated(state, tx.init(params), "to_optax_state", "the state")


def _is_named(x: Any) -> bool:
    return isinstance(x, tuple) and hasattr(x, "_fields")


def _is_absent(x: Any) -> bool:
    return x is None or type(x).__name__ == "MaskedNode"


def _restated(state: Any, like: Any, where: str, path: str) -> Any:
    """`state` in the structure and the types of `like`."""
    if _is_absent(like) or not jax.tree.leaves(like):
        if jax.tree.leaves(state):
            raise ValueError(
                f"{where}: {path} is {type(state).__name__}, of which {type(like).__name__} keeps "
                "nothing: is it of another transformation?"
            )
        return like
    if _is_named(like):
        fields, known = getattr(state, "_fields", ()), like._fields
        missing = [n for n in known if n not in fields and not _is_absent(getattr(like, n))]
        if missing:
            raise ValueError(
                f"{where}: {path} is {type(state).__name__}, which has no {', '.join(missing)} as "
                f"{type(like).__name__} has: is it of another transformation?"
            )
        extra = [n for n in fields if n not in known and jax.tree.leaves(getattr(state, n))]
        if extra or type(state).__name__ != type(like).__name__:
            more = f", with {', '.join(extra)}" if extra else ""
            raise ValueError(
                f"{where}: {path} is {type(state).__name__}{more}, not {type(like).__name__}: "
                "is it of another transformation?"
            )
        if is_accumulation(like):
            # Optax adds to the sum, which states saved by early versions kept after a window.
            started = jnp.asarray(state.mini_step) > 0
            empty = jax.tree.map(lambda a: jnp.where(started, a, 0), state.acc_grads)
            state = state._replace(acc_grads=empty)
        parts = {n: (getattr(state, n, None), getattr(like, n)) for n in known}
        new = {n: _restated(a, b, where, f"{path}.{n}") for n, (a, b) in parts.items()}
        return type(like)(**new)
    if isinstance(like, dict):
        if not isinstance(state, dict) or set(state) != set(like):
            description = list(state) if isinstance(state, dict) else type(state).__name__
            raise ValueError(f"{where}: {path} is {description}, not a dict of {list(like)}")
        return type(like)(
            (k, _restated(state[k], v, where, f"{path}[{k!r}]")) for k, v in like.items()
        )
    if type(like) in (tuple, list):
        if not isinstance(state, tuple | list) or len(state) != len(like):
            raise ValueError(f"{where}: {path} does not have {len(like)} parts")
        pairs = enumerate(zip(state, like, strict=True))
        return type(like)(_restated(a, b, where, f"{path}[{i}]") for i, (a, b) in pairs)
    if not jax.tree_util.all_leaves([like]):  # a pytree of the user's
        leaves, treedef = jax.tree.flatten(like, is_leaf=is_leaf)
        structure: Any = treedef
        try:
            old = structure.flatten_up_to(state)
        except ValueError as error:
            raise ValueError(f"{where}: {path} is another tree: {error}") from None
        return structure.unflatten(
            [_restated(a, b, where, path) for a, b in zip(old, leaves, strict=True)]
        )
    return _leaf(state, like, where, path)


def _leaf(value: Any, like: Any, where: str, path: str) -> Any:
    if _is_absent(value):
        raise ValueError(f"{where}: {path} is masked there, and a slot here")
    value, like = jnp.asarray(value), jnp.asarray(like)
    keys = [jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in (value, like)]
    if keys == [False, True]:
        return jax.random.wrap_key_data(value)
    if keys == [True, False]:
        value = jax.random.key_data(value)
    if value.shape != like.shape:
        raise ValueError(f"{where}: {path} has the shape {value.shape}, not {like.shape}")
    return value if all(keys) else value.astype(like.dtype)
