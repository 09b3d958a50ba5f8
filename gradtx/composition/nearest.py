"""Where steps end: the set to which a transformation keeps the parameters, and other reasons."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from gradtx.composition.views import OnPart
from gradtx.core.pair import GradientTransformation
from gradtx.leaves.paths import Where
from gradtx.types import Params

NearestFn: TypeAlias = Callable[[Params, Any], Params]
"""``(params, rate) -> params``: a projection, or the proximal map of a penalty at a rate."""


class Nearest(NamedTuple):
    """The nearest point of the set to which the parameters are kept, or the map of a penalty.

    The points where steps end are fixed points of a gradient step followed by this map.

    Attributes:
        map: ``(params, rate) -> params``: a projection, or the proximal map of a penalty that is
            added to the loss, times `rate`, the rate of the gradient step. At the rate 0 the latter
            is the identity.
        where: which leaves it maps, as in :func:`masked`.
        by_entry: whether it bounds each entry by itself.
        at_own_rate: whether it is the map of a penalty, at the rate of its transformation's steps.
        rate: the argument of its transformation that is this rate, and no part of the map.
    """

    map: NearestFn
    where: Where | None = None
    by_entry: bool = False
    at_own_rate: bool = False
    rate: str | None = None


class Penalty(NamedTuple):
    """A penalty that moves the solution, but is neither in the loss nor in a `Nearest`.

    strengths: by the names of the arguments; the penalty is none where they are 0.
    """

    strengths: Mapping[str, Any]


class EndsElsewhere(NamedTuple):
    """Steps may end where the gradient of a leaf is not zero.

    why: the reason, and what to do, after the name and "which".
    """

    why: str


def nearest_in(tx: GradientTransformation) -> NearestFn | None:
    """The map by which `tx`, or what is within it, keeps parameters to a set or penalizes them.

    Args:
        tx: the transformation.

    Returns:
        ``(params, rate) -> params``; None if there is no such map.

    >>> import gradtx, jax.numpy as jnp
    >>> tx = gradtx.guard(gradtx.chain(gradtx.scale_by_lbfgsb(lower=0.0), gradtx.scale(0.5)))
    >>> nearest_in(tx)({"w": jnp.array([-1.0, 2.0])}, 1.0)["w"].tolist()
    [0.0, 2.0]
    """
    nearest = tx.facet(Nearest)
    if nearest is not None:
        return nearest.map
    # What an optimizer stands for has the same record.
    expanded = tx.expansion if tx.expansion.declaration is not None else tx
    if expanded is not tx:
        return nearest_in(expanded)
    maps, on_part = [], tx.facet(OnPart)
    for i, part in enumerate(tx.inside):
        inner = nearest_in(part)
        if inner is not None:
            maps.append(inner if on_part is None else _on_part(on_part, i, inner))
    return functools.reduce(_after, maps) if maps else None


def _after(first: NearestFn, second: NearestFn) -> NearestFn:
    return lambda params, rate: second(first(params, rate), rate)


def _on_part(on_part: OnPart, i: int, nearest: NearestFn) -> NearestFn:
    return lambda params, rate: on_part.function(i, lambda part: nearest(part, rate), params)
