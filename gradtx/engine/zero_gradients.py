"""Many steps with zero gradients at once: what rows that no step touches have missed."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.numerics import real_dtype
from gradtx.types import Array


class Idle(NamedTuple):
    """What a rule does while gradients are zero, so that many such steps can be taken at once.

    factors: by name of the slot, what a step multiplies it by; fade: ``() -> number``, what a step
    multiplies the direction by, at most.
    """

    factors: Mapping[str, Any]
    fade: Callable[[], Any] = lambda: 0.0


class CannotPause(Exception):
    """A rule does not say what many steps with zero gradients do."""


class Pause:
    """Steps with zero gradients taken at once, as the extra argument ``pause`` of an update.

    Attributes:
        steps: how many.
        slots: how many slots were taken over them.
        horizon: after how many steps the directions are below 2^-32 of the first.
    """

    def __init__(self, steps: Array) -> None:
        self.steps, self.slots, self.horizon = steps, 0, 0

    def over(self, rule: Any, idle: Idle | None, takes_params: bool) -> Any:
        """What takes the place of `rule` for that long."""

        def pausing(g: Array, s: Any, t: Any, *p: Array) -> tuple[Array, dict[str, Array]]:
            names = list(vars(s))
            if takes_params or (names and idle is None):
                raise CannotPause
            self.slots += len(names)
            if idle is None:
                return rule(g, s, t)
            self.horizon += _fading(idle)
            return g, {n: getattr(s, n) * self._power(idle.factors[n], g) for n in names}

        return pausing

    def _power(self, factor: Any, like: Array) -> Any:
        if isinstance(factor, float | int) and factor == 1:
            return 1
        dtype = real_dtype(like.dtype)
        return jnp.asarray(factor, dtype) ** self.steps.astype(dtype)


def _fading(idle: Idle) -> int:
    try:
        fade = idle.fade()
    except ZeroDivisionError:
        raise CannotPause from None
    if not isinstance(fade, float | int) or fade >= 1:
        raise CannotPause
    return math.ceil(-32 * math.log(2) / math.log(fade)) if fade > 0 else 0
