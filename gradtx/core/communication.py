"""What devices send to each other: the record of a pair, and the account of an ``init``."""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import NamedTuple

from gradtx.types import Params


class Communication(NamedTuple):
    """What a device sends to others in a step.

    Attributes:
        bytes: ``params -> bytes``, on average over steps.
        peak_bytes: the same for the step in which a device sends most.
        over: the axes over which the device sends.
        reduces: the axes over which gradients are reduced: :func:`minimize` takes each device's
            own.
        gathers: whether every device receives the whole message of every other.
    """

    bytes: Callable[[Params], int]
    peak_bytes: Callable[[Params], int]
    over: tuple[str, ...]
    reduces: tuple[str, ...] = ()
    gathers: bool = False


class Sent(NamedTuple):
    """What a device sends for some parameters: on average over steps, and at most in one.

    communication: over which axes, and how; bytes, peak_bytes: how many.
    """

    communication: Communication
    bytes: int
    peak_bytes: int


_sent: ContextVar[list[Sent] | None] = ContextVar("sent", default=None)


@contextlib.contextmanager
def all_sent() -> Iterator[list[Sent]]:
    """A list to which every ``init`` that is called within adds what its transformation sends."""
    sent: list[Sent] = []
    token = _sent.set(sent)
    try:
        yield sent
    finally:
        _sent.reset(token)


@contextlib.contextmanager
def sends(communication: Communication, params: Params) -> Iterator[None]:
    """Around an ``init``: add what the transformation sends to the list of :func:`all_sent`.

    Transformations inside of it add what they send over other axes: the rest is counted in that.
    """
    messages = _sent.get()
    if messages is None:
        yield
        return
    of = communication.bytes(params), communication.peak_bytes(params)
    messages.append(Sent(communication, *of))
    with all_sent() as below:
        yield
    messages += [sent for sent in below if is_apart(sent.communication, communication)]


def is_apart(one: Communication, other: Communication) -> bool:
    """Whether messages go over axes over which the others do not."""
    return not set(one.over) <= set(other.over)
