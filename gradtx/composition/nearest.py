"""The set to which a transformation keeps the parameters, wherever in it that is decided."""

import functools
from collections.abc import Callable

from gradtx.pair import GradientTransformation
from gradtx.types import Params


def nearest_in(tx: GradientTransformation) -> Callable[[Params], Params] | None:
    """The projection onto the set to which `tx`, or a transformation within it, keeps parameters.

    Args:
        tx: the transformation.

    Returns:
        ``params -> params``; None if there is no such set.

    >>> import gradtx, jax.numpy as jnp
    >>> tx = gradtx.guard(gradtx.chain(gradtx.scale_by_lbfgsb(lower=0.0), gradtx.scale(0.5)))
    >>> nearest_in(tx)({"w": jnp.array([-1.0, 2.0])})["w"].tolist()
    [0.0, 2.0]
    """
    traits = tx.traits
    if traits.nearest is not None:
        return traits.nearest
    # What an optimizer stands for has the same record.
    whole = tx.expansion if tx.expansion.declaration is not None else tx
    if whole is not tx:
        return nearest_in(whole)
    projections = []
    for i, part in enumerate(tx.inside):
        nearest = nearest_in(part)
        if nearest is not None:
            on_part = traits.on_part
            projections.append(
                nearest if on_part is None else functools.partial(on_part, i, nearest)
            )
    if not projections:
        return None
    return functools.reduce(lambda f, g: lambda p: g(f(p)), projections)
