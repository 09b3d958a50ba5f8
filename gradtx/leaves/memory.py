"""Arrays in the memory of the host."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import jax

HOST = jax.memory.Space.Host

_is_near: ContextVar[bool] = ContextVar("_is_near", default=False)


class OnHost:
    """The large slots of a transformation are in the memory of the host between steps."""


def is_on_host(x: Any) -> bool:
    """Whether an array, or one in a compiled program, is in the memory of the host."""
    return isinstance(x, jax.Array) and getattr(jax.typeof(x), "memory_space", None) == HOST


def brought_in(x: Any) -> Any:
    """An array on the device."""
    return jax.device_put(x, jax.memory.Space.Device) if is_on_host(x) else x


def in_memory_of(x: Any, other: Any) -> Any:
    """The array `x`, in the memory of the host if `other` is there."""
    return jax.device_put(x, HOST) if is_on_host(other) and not is_on_host(x) else x


@contextlib.contextmanager
def all_near() -> Iterator[None]:
    """A context in which a whole state is on the device, and its owner moves it."""
    before = _is_near.set(True)
    try:
        yield
    finally:
        _is_near.reset(before)


def is_all_near() -> bool:
    """Whether this runs in the context :func:`all_near`."""
    return _is_near.get()
