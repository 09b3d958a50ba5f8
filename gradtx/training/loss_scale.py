"""The scale of a loss: the number that multiplies a loss before the gradient is taken."""

from typing import Any

import jax

from gradtx.core.pair import GradientTransformation, with_extra_args_support
from gradtx.core.traits import Links
from gradtx.inspection.guards import scales_losses
from gradtx.numerics import cast, widen
from gradtx.tree import map_updates
from gradtx.types import Array, State, Updates


class ScalesLoss:
    """The gradients that are taken are those of a loss multiplied by `loss_scale` in the state."""


def scale_in(tx: GradientTransformation, state: State) -> Array | None:
    """The number that multiplies the loss, by which `tx` divides gradients; None if there is none.

    Raises:
        ValueError: the transformation that divides does not see the gradients of the loss.
    """
    scales = _scales(state)
    if not scales:
        return None
    if not divides(with_extra_args_support(tx)) or len(scales) > 1:
        raise ValueError(
            "dynamic_loss_scale must be the outermost transformation, once: it divides the "
            "gradients that it gets by the scale, and what is before it, or sees other leaves, "
            "would get them multiplied: write dynamic_loss_scale(chain(...)), "
            "dynamic_loss_scale(partition(...)) and so on"
        )
    return scales[0]


def _scales(state: State) -> list[Array]:
    """The scales in a state, the outermost first."""

    def inner(x: Any) -> bool:
        return x is not state and scales_losses(x)

    outermost = [state.loss_scale] if scales_losses(state) else []
    parts = filter(scales_losses, jax.tree.leaves(state, is_leaf=inner))
    return outermost + [scale for part in parts for scale in _scales(part)]


def divides(tx: GradientTransformation) -> bool:
    """Whether `tx`, or the first of its links, divides gradients by the scale of the loss."""
    links = tx.facet(Links)
    divides_first = links is not None and bool(links.each) and divides(links.each[0])
    return divides_first or tx.facet(ScalesLoss) is not None


def if_divides(tx: GradientTransformation) -> tuple[ScalesLoss, ...]:
    """The facets of a wrapper that shows the gradients to `tx` as they come, multiplied or not."""
    return (ScalesLoss(),) if divides(tx) else ()


def unscaled(updates: Updates, scale: Array | None) -> Updates:
    """Gradients divided by the scale of their loss."""
    if scale is None:
        return updates
    share = 1 / scale  # XLA recomputes a product where it is read, but stores a quotient
    return map_updates(lambda g: cast(widen(g) * share, g.dtype), updates)
