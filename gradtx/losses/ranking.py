"""Ranking losses: the scores of the items of a list against their relevance."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from gradtx.losses.arguments import floating, real
from gradtx.losses.probabilities import log_softmax, product
from gradtx.types import Array


def ranking_softmax_loss(
    logits: Any,
    labels: Any,
    *,
    where: Any | None = None,
    weights: Any | None = None,
    reduce_fn: Callable[..., Any] | None = jnp.mean,
) -> Array:
    r"""ListNet's loss: the cross entropy between the softmax of a list's scores and its relevances.

    .. math:: -\sum_i w_i y_i \log \frac{\exp x_i}{\sum_j \exp x_j}

    Args:
        logits: :math:`x`, scores, ``(..., items)``, floating-point.
        labels: :math:`y`, relevances.
        where: which items count. A list with none costs 0 and is left out of the mean.
        weights: :math:`w`, one for each item.
        reduce_fn: ``(losses, where) -> number``; None for one number for each list.

    Source: Z. Cao et al., Learning to Rank: From Pairwise Approach to Listwise Approach, 2007.

    >>> scores, relevant = jnp.array([2.0, 1.0, 3.0]), jnp.array([1.0, 0.0, 0.0])
    >>> float(ranking_softmax_loss(scores, relevant))
    1.40760...
    """
    (x,) = floating("ranking_softmax_loss", logits=logits)
    y = real(labels) if weights is None else real(labels) * real(weights)
    where = None if where is None else jnp.asarray(where)
    y = y if where is None else jnp.where(where, y, 0)
    losses = -jnp.sum(product(y, log_softmax(x, -1, where)), -1)
    if where is None:
        return losses if reduce_fn is None else reduce_fn(losses, where=None)
    lists = jnp.any(where, -1)
    if reduce_fn is None:
        return jnp.where(lists, losses, 0)
    # A mean over no lists is 0, and not NaN.
    return jnp.where(jnp.any(lists), reduce_fn(losses, where=lists | ~jnp.any(lists)), 0)
