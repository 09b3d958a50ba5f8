"""The set to which a transformation, or any part of it, keeps the parameters."""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

from gradtx.core.pair import GradientTransformation
from gradtx.types import Params

Nearest: TypeAlias = Callable[[Params, Any], Params]
"""``(params, rate) -> params``: a projection, or the proximal map of a penalty at a rate."""

OF_ENTRIES = ("box", "hypercube", "linf_ball", "non_negative")
"""The projections, by name, that treat each entry by itself."""


def nearest_in(tx: GradientTransformation) -> Nearest | None:
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
    traits = tx.traits
    if traits.nearest is not None:
        return traits.nearest
    # What an optimizer stands for has the same record.
    expanded = tx.expansion if tx.expansion.declaration is not None else tx
    if expanded is not tx:
        return nearest_in(expanded)
    maps = []
    for i, part in enumerate(tx.inside):
        nearest, on_part = nearest_in(part), traits.on_part
        if nearest is not None:
            maps.append(nearest if on_part is None else _on_part(on_part, i, nearest))
    return functools.reduce(_after, maps) if maps else None


def _after(first: Nearest, second: Nearest) -> Nearest:
    return lambda params, rate: second(first(params, rate), rate)


def _on_part(on_part: Callable[..., Params], i: int, nearest: Nearest) -> Nearest:
    return lambda params, rate: on_part(i, lambda part: nearest(part, rate), params)
