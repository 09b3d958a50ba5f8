"""Steps that wait to be run on simulated devices, which share the threads of the host."""

import collections
import warnings
from typing import Any

import jax

from gradtx.programs.tracing import is_tracer

MOST = 24  # of the 32 programs that JAX lets wait on a CPU


class Backlog:
    """The results of started steps; a warning comes once if too many of them are not there yet.

    The simulated devices of a CPU take their threads from one pool. If more steps wait than the
    host has cores for, a device may miss a collective for so long that XLA ends the process:
    "Termination timeout for all reduce".
    """

    def __init__(self) -> None:
        self._waiting: collections.deque[Any] = collections.deque()
        self._looks: bool | None = None  # until JAX is asked, which starts it

    def add(self, value: Any) -> None:
        """Remember what a step returned besides parameters and state."""
        if self._looks is None:
            self._looks = jax.default_backend() == "cpu" and jax.local_device_count() > 1
        arrays = jax.tree.leaves(value) if self._looks else []
        if not arrays or is_tracer(arrays[0]) or len(arrays[0].sharding.device_set) < 2:
            return
        waiting = self._waiting
        waiting.append(arrays[0])
        while waiting and waiting[0].is_ready():
            waiting.popleft()
        if len(waiting) > MOST:
            waiting.clear()
            self._looks = False
            warnings.warn(
                f"make_step: {MOST} steps wait on simulated devices, which share the threads of "
                "this host: XLA may end the process with 'Termination timeout for all reduce'. "
                "Wait for each step with jax.block_until_ready(value), or read the value",
                UserWarning,
                stacklevel=3,
            )
