"""Fenchel-Young losses: a loss for each regularized maximum."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from gradtx.checks import check_function
from gradtx.losses.arguments import real
from gradtx.types import Array


def make_fenchel_young_loss(max_fun: Callable[..., Any]) -> Callable[..., Array]:
    r"""A loss whose gradient is the regularized argmax minus the target.

    .. math:: \ell(x, y) = \max_\Omega(x) - \langle y, x \rangle

    Args:
        max_fun: :math:`\max_\Omega`, a function of a vector such as logsumexp.

    Returns:
        ``(scores, targets, *args, **kwargs) -> losses``, along the last axis; further arguments
        are those of `max_fun`.

    Raises:
        TypeError: `max_fun` is no function.
        ValueError: in the loss, the last axes of scores and targets differ in length.

    Source: M. Blondel, A. Martins and V. Niculae, Learning with Fenchel-Young Losses, 2020,
    arXiv:1901.02324.

    >>> from jax.scipy.special import logsumexp
    >>> loss = make_fenchel_young_loss(logsumexp)
    >>> float(loss(jnp.zeros(2), jnp.array([1.0, 0.0])))
    0.693147...
    """
    check_function("make_fenchel_young_loss", "max_fun", max_fun)

    def fenchel_young_loss(scores: Any, targets: Any, *args: Any, **kwargs: Any) -> Array:
        x, y = real(scores), real(targets)
        if x.shape[-1:] != y.shape[-1:]:
            raise ValueError(
                f"make_fenchel_young_loss: targets of the shape {y.shape} do not fit scores of "
                f"{x.shape}"
            )
        largest = jnp.vectorize(lambda v: max_fun(v, *args, **kwargs), signature="(n)->()")(x)
        return largest - jnp.sum(y * x, -1)

    return fenchel_young_loss
