"""Bounds on each entry of the parameters, and updates that stay within them."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.checks import check_constant
from gradtx.leaves.paths import leaves_with_path, map_present, path_string, spread
from gradtx.numerics import widen
from gradtx.programs.tracing import is_tracer
from gradtx.types import Array, Params, PyTree, State, Updates


class Box:
    """The points between two bounds.

    Args:
        where: whose bounds they are, for errors.
        lower: a number, an array, or a tree of these like the parameters or a prefix of one; None
            for no bound, also within the tree.
        upper: likewise.

    Raises:
        ValueError: a lower bound is above the upper one (checked where both are known).
        TypeError: a bound is a schedule.
    """

    def __init__(self, where: str, lower: PyTree, upper: PyTree) -> None:
        self.where = where
        check_constant(where, {"lower": lower, "upper": upper})
        self.lower, self.upper = _filled(lower, -math.inf), _filled(upper, math.inf)
        _check_order(where, self.lower, self.upper)

    def of(self, params: Params) -> tuple[PyTree, PyTree]:
        """Both bounds of each leaf, in its shape and the type in which it is computed.

        Raises:
            ValueError: a bound is for another tree, or does not fit its leaf.
            TypeError: a leaf is complex.
        """
        keyed, treedef = leaves_with_path(params)

        def like(name: str, bound: PyTree) -> PyTree:
            bounds = spread(f"{self.where}: {name} is", bound, params)
            parts = treedef.flatten_up_to(bounds)
            return treedef.unflatten(
                [
                    None if p is None else self._fitted(name, path, p, part)
                    for (path, p), part in zip(keyed, parts, strict=True)
                ]
            )

        return like("lower", self.lower), like("upper", self.upper)

    def refusing(self, init: Callable[[Params], State]) -> Callable[[Params], State]:
        """`init`, with the errors of :meth:`of` for bounds that do not fit its parameters."""

        def checked(params: Params) -> State:
            jax.eval_shape(self.of, params)
            return init(params)

        return checked

    def _fitted(self, name: str, path: Any, p: Any, bound: Any) -> Array:
        p = widen(jnp.asarray(p))
        if jnp.iscomplexobj(p):
            raise TypeError(
                f"{self.where}: complex numbers such as those at {path_string(path)!r} have no "
                "order, and so no bounds"
            )
        shape = jnp.shape(bound)
        if len(shape) > p.ndim or any(
            a not in (1, b) for a, b in zip(shape[::-1], p.shape[::-1], strict=False)
        ):
            raise ValueError(
                f"{self.where}: {name} at {path_string(path)!r} is {shape}, which does not fit "
                f"{p.shape}"
            )
        return jnp.broadcast_to(jnp.asarray(bound, p.dtype), p.shape)

    def nearest(self, params: Params, rate: Any = 0) -> Params:
        """The point between the bounds that is nearest to `params`, whatever the rate."""
        del rate

        def clipped(p: Any, low: Array, high: Array) -> Array:
            p = jnp.asarray(p)
            return jnp.clip(widen(p), low, high).astype(p.dtype)

        return map_present(clipped, params, *self.of(params))

    def reach(self, params: Params, updates: Updates, most: Array) -> Array:
        """The largest factor, up to `most`, with which `updates` stay between the bounds."""

        def factor(u: Any, p: Any, low: Array, high: Array) -> Array:
            p, u = widen(jnp.asarray(p)), widen(u)
            room = jnp.where(u > 0, high - p, p - low)
            moving = (u != 0) & jnp.isfinite(room)
            rate = jnp.maximum(room, 0) / jnp.where(moving, jnp.abs(u), 1)
            # A step to the bound itself has the factor 1, and not a little less for rounding.
            rate = jnp.where((p + u >= low) & (p + u <= high), jnp.maximum(rate, 1), rate)
            # Of a leaf without entries the largest number there is.
            return jnp.min(jnp.where(moving, rate, most), initial=jnp.finfo(rate.dtype).max)

        factors = jax.tree.leaves(map_present(factor, updates, params, *self.of(params)))
        for each in factors:
            most = jnp.minimum(most, each.astype(most.dtype))
        return most

    def within(self, params: Params, updates: Updates) -> Updates:
        """`updates`, except that none leads out of the bounds once it is added and rounded."""

        def kept(u: Any, p: Any, low: Array, high: Array) -> Array:
            p = jnp.asarray(p)
            wide = widen(p)
            u = jnp.clip(widen(u), jnp.minimum(low - wide, 0), jnp.maximum(high - wide, 0))
            u = u.astype(p.dtype)
            # The difference is rounded: the sum may be the number next to the bound.
            end = (wide + widen(u)).astype(p.dtype)
            u = jnp.where((end > high) & (u > 0), _smaller(u), u)
            u = jnp.where((end < low) & (u < 0), _smaller(u), u)
            return u

        return map_present(kept, updates, params, *self.of(params))


@jax.custom_jvp
def _smaller(u: Array) -> Array:
    """The next number towards zero, with the derivative of `u`."""
    return jnp.nextafter(u, jnp.zeros_like(u))


@_smaller.defjvp
def _differentiated(primals: Any, tangents: Any) -> Any:
    return _smaller(*primals), tangents[0]


def _filled(bound: PyTree, value: float) -> PyTree:
    """`bound` with `value` in place of each None."""
    return jax.tree.map(lambda b: value if b is None else b, bound, is_leaf=lambda b: b is None)


def _check_order(where: str, lower: PyTree, upper: PyTree) -> None:
    of_lower: Any
    of_upper: Any
    lows, of_lower = jax.tree.flatten(lower)
    highs, of_upper = jax.tree.flatten(upper)
    if jax.tree_util.treedef_is_leaf(of_lower):
        lows *= len(highs)
    elif jax.tree_util.treedef_is_leaf(of_upper):
        highs *= len(lows)
    elif of_lower != of_upper:
        return  # prefixes of different depths meet at the parameters, which are not known yet
    for low, high in zip(lows, highs, strict=True):
        known = not is_tracer(low) and not is_tracer(high)
        if known and not np.all(np.asarray(low) <= np.asarray(high)):
            raise ValueError(f"{where}: the bound lower={low} is above upper={high}")
