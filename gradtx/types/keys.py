"""Random keys as arguments of builders, and in states."""

from typing import Any

import jax
import jax.numpy as jnp

from gradtx.types import Array


def given_key(name: str, key: Any, seed: int | None) -> Any:
    """The one of the two that is given, or None."""
    if key is not None and seed is not None:
        raise ValueError(f"{name}: seed is the old name of key: give one of the two")
    key = seed if key is None else key
    if key is not None:
        check_key(name, "key", key)
    return key


def check_key(where: str, name: str, key: Any) -> None:
    """Raise TypeError unless `key` is a random key or an integer seed."""
    is_integer = isinstance(key, int) and not isinstance(key, bool)
    if not is_integer and not hasattr(key, "dtype"):
        raise TypeError(f"{where}: {name} must be a random key or an integer, not {key!r}")


def is_key(x: Any) -> bool:
    """Whether `x` is a typed random key, or a tracer or shape of one."""
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def own_key(key: Any) -> Array:
    """A random key for a state, made from `given_key`; a copy, since the state may be donated."""
    return jnp.array(key, copy=True) if is_key(key) else jax.random.key(key)
