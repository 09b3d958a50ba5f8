"""Many steps with zero gradients taken at once: those that untouched rows have missed."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.numerics import real_dtype
from gradtx.types import Array


class ZeroGradient(NamedTuple):
    """The effect of steps with zero gradients on slots and directions, in closed form.

    factors: for each slot, by name, the factor by which a step multiplies it; fade: ``() ->
    number``, the largest factor by which a step multiplies the direction; linear: whether the
    direction is linear in the gradients, so that it fades as these do.
    """

    factors: Mapping[str, Any]
    fade: Callable[[], Any] = lambda: 0.0
    linear: bool = False


SCALED = ZeroGradient({}, linear=True)
"""What a rule declares that multiplies gradients by a number."""


class CannotSkip(Exception):
    """The error where a rule does not say what many steps with zero gradients do."""


@dataclass(eq=False)
class Advanced:
    """A record of rules that took steps with zero gradients in closed form.

    Attributes:
        slots: the number of slots that such steps changed.
        horizon: after how many steps the directions are below 2^-32 of the first.
    """

    slots: int = 0
    horizon: int = 0


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["steps"], meta_fields=["advanced"]
)
@dataclass
class SkippedSteps:
    """Steps with zero gradients taken at once, as the extra argument ``skipped`` of an update.

    Attributes:
        steps: how many.
        advanced: a record that is written while rules are traced.
    """

    steps: Array
    advanced: Advanced = field(default_factory=Advanced)

    def over(self, rule: Any, zero_gradient: ZeroGradient | None, takes_params: bool) -> Any:
        """The rule that takes these steps with zero gradients at once, in place of `rule`."""

        def skipping(g: Array, s: Any, t: Any, *p: Array) -> tuple[Array, dict[str, Array]]:
            names = s.names()
            if takes_params or (names and zero_gradient is None):
                raise CannotSkip
            linear = zero_gradient is not None and zero_gradient.linear
            if self.advanced.horizon and not linear:  # a sign does not fade as its momentum does
                raise CannotSkip
            self.advanced.slots += len(names)
            if zero_gradient is None:
                return rule(g, s, t)
            self.advanced.horizon += _fading(zero_gradient)
            return g, {n: getattr(s, n) * self._power(zero_gradient.factors[n], g) for n in names}

        return skipping

    def _power(self, factor: Any, like: Array) -> Any:
        if isinstance(factor, float | int) and factor == 1:
            return 1
        dtype = real_dtype(like.dtype)
        return jnp.asarray(factor, dtype) ** self.steps.astype(dtype)


def _fading(zero_gradient: ZeroGradient) -> int:
    try:
        fade = zero_gradient.fade()
    except ZeroDivisionError:
        raise CannotSkip from None
    if not isinstance(fade, float | int) or fade >= 1:
        raise CannotSkip
    return math.ceil(-32 * math.log(2) / math.log(fade)) if fade > 0 else 0
