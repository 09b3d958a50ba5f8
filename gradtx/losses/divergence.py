"""Divergences of a predicted distribution from the true one."""

from typing import Any

import jax.numpy as jnp

from gradtx.losses.arguments import floating
from gradtx.losses.probabilities import Axis, product
from gradtx.names.namespace import warn
from gradtx.types import Array


def kl_divergence(
    log_predictions: Any, targets: Any, axis: Axis = -1, where: Any | None = None
) -> Array:
    r"""The Kullback-Leibler divergence of a prediction from the target.

    .. math:: \sum_i q_i (\log q_i - \log p_i)

    Args:
        log_predictions: :math:`\log p`, floating-point.
        targets: :math:`q \ge 0`, floating-point.
        axis: the axis or axes of the outcomes.
        where: which entries count.

    An outcome with probability 0 in the target adds nothing, even if the prediction is 0 there too.

    Source: S. Kullback and R. Leibler, On Information and Sufficiency, 1951.

    >>> float(kl_divergence(jnp.log(jnp.array([0.5, 0.5])), jnp.array([1.0, 0.0])))
    0.693147...
    """
    log_p, q = floating("kl_divergence", log_predictions=log_predictions, targets=targets)
    if where is not None:
        where = jnp.asarray(where)
        log_p, q = jnp.where(where, log_p, 0), jnp.where(where, q, 0)
    return jnp.sum(product(q, _log(q) - log_p), axis)


def kl_divergence_with_log_targets(
    log_predictions: Any, log_targets: Any, axis: Axis = -1, where: Any | None = None
) -> Array:
    r"""The Kullback-Leibler divergence, with the targets given as logarithms.

    .. math:: \sum_i q_i (\log q_i - \log p_i)

    Args:
        log_predictions: :math:`\log p`, floating-point.
        log_targets: :math:`\log q`, floating-point.
        axis: the axis or axes of the outcomes.
        where: which entries count.

    >>> p = jnp.log(jnp.array([0.5, 0.5]))
    >>> float(kl_divergence_with_log_targets(p, jnp.array([0.0, -jnp.inf])))
    0.693147...
    """
    log_p, log_q = floating(
        "kl_divergence_with_log_targets", log_predictions=log_predictions, log_targets=log_targets
    )
    if where is not None:
        log_q = jnp.where(jnp.asarray(where), log_q, -jnp.inf)
    q = jnp.exp(log_q)
    counts = q != 0
    log_p, log_q = jnp.where(counts, log_p, 0), jnp.where(counts, log_q, 0)
    return jnp.sum(q * (log_q - log_p), axis)


def generalized_kl_divergence(
    log_predictions: Any, targets: Any, axis: Axis = -1, where: Any | None = None
) -> Array:
    r"""The Kullback-Leibler divergence of measures that need not sum to 1.

    .. math:: \sum_i q_i (\log q_i - \log p_i) + p_i - q_i

    Args:
        log_predictions: :math:`\log p`, floating-point.
        targets: :math:`q \ge 0`, floating-point.
        axis: the axis or axes of the outcomes.
        where: which entries count.

    Source: L. M. Bregman, The Relaxation Method of Finding the Common Point of Convex Sets, 1967.

    >>> float(generalized_kl_divergence(jnp.zeros(2), jnp.ones(2)))
    0.0
    """
    name = "generalized_kl_divergence"
    log_p, q = floating(name, log_predictions=log_predictions, targets=targets)
    if where is not None:
        where = jnp.asarray(where)
        log_p, q = jnp.where(where, log_p, -jnp.inf), jnp.where(where, q, 0)
    log_q = _log(q)
    terms = product(q, log_q - log_p) + (jnp.exp(log_p) - q)
    near = (q > 0) & (jnp.abs(log_p - log_q) < 1)
    of_near = q * _exp_beyond_line(jnp.where(near, log_p - log_q, 0))
    return jnp.sum(jnp.where(near, of_near, terms), axis)


def _log(q: Array) -> Array:
    """The logarithm, and 0 where `q` is 0."""
    return jnp.log(jnp.where(q == 0, 1, q))


def _exp_beyond_line(x: Array) -> Array:
    """``exp(x) - 1 - x`` between -1 and 1, by its series: near 0 the difference has no digits."""
    series = jnp.ones_like(x)
    for n in range(18, 2, -1):  # enough for double precision
        series = 1 + x / n * series
    return jnp.square(x) / 2 * series


def convex_kl_divergence(
    log_predictions: Any, targets: Any, axis: Axis = -1, where: Any | None = None
) -> Array:
    """The older name of :func:`generalized_kl_divergence`, with a warning as in Optax.

    Args:
        log_predictions: the logarithms of the prediction.
        targets: the target.
        axis: the axis or axes of the outcomes.
        where: which entries count.

    >>> import warnings
    >>> with warnings.catch_warnings(action="ignore"):
    ...     float(convex_kl_divergence(jnp.zeros(2), jnp.ones(2)))
    0.0
    """
    warn("convex_kl_divergence: use generalized_kl_divergence", DeprecationWarning)
    return generalized_kl_divergence(log_predictions, targets, axis, where)
