"""Losses of embeddings: angles, distances and contrasts."""

from typing import Any

import jax
import jax.numpy as jnp

from gradtx.losses.arguments import check_rank, floating
from gradtx.losses.probabilities import Axis, shifted
from gradtx.numerics import divide
from gradtx.types import Array


def cosine_similarity(
    predictions: Any,
    targets: Any,
    *,
    epsilon: Any = 0.0,
    axis: Axis = -1,
    where: Any | None = None,
) -> Array:
    r"""The cosine of the angle between two vectors.

    .. math:: \frac{\langle x, y \rangle}{\lVert x \rVert \lVert y \rVert}

    Args:
        predictions: :math:`x`, floating-point.
        targets: :math:`y`, floating-point.
        epsilon: a lower bound on the squared norms.
        axis: the axis or axes of the vectors.
        where: which entries count.

    The cosine of a vector of zeros and any other is 0, with a gradient of 0 if `epsilon` is; Optax
    gives NaN. Norms neither overflow nor underflow.

    >>> cosine_similarity(jnp.array([[1.0, 1.0], [0.0, 0.0]]), jnp.array([2.0, 0.0])).tolist()
    [0.70710..., 0.0]
    """
    return _cosine("cosine_similarity", predictions, targets, epsilon, axis, where)[0]


def cosine_distance(
    predictions: Any,
    targets: Any,
    *,
    epsilon: Any = 0.0,
    axis: Axis = -1,
    where: Any | None = None,
) -> Array:
    r"""One minus the cosine of the angle between two vectors: see :func:`cosine_similarity`.

    Args:
        predictions: floating-point.
        targets: floating-point.
        epsilon: a lower bound on the squared norms.
        axis: the axis or axes of the vectors.
        where: which entries count.

    >>> float(cosine_distance(jnp.array([1.0, 0.0]), jnp.array([-3.0, 0.0])))
    2.0
    """
    return _cosine("cosine_distance", predictions, targets, epsilon, axis, where)[1]


def ntxent(embeddings: Any, labels: Any, temperature: Any = 0.07) -> Array:
    r"""The normalized, temperature-scaled cross entropy of SimCLR.

    The mean over all pairs :math:`i \ne j` with the same label of

    .. math:: -\log \frac{\exp(s_{ij} / \tau)}{\exp(s_{ij} / \tau) +
        \sum_{k : y_k \ne y_i} \exp(s_{ik} / \tau)}

    where :math:`s_{ij}` are cosine similarities, with squared norms of at least the type's machine
    epsilon, as in Optax.

    Args:
        embeddings: ``(batch, features)``, floating-point.
        labels: ``(batch,)``; equal labels are positive pairs.
        temperature: :math:`\tau > 0`.

    Returns:
        A number; 0 if there is no positive pair.

    Raises:
        ValueError: embeddings have not two dimensions, or labels not one; or there are not as many
            labels as embeddings.

    Source: T. Chen et al., A Simple Framework for Contrastive Learning of Visual Representations,
    2020, arXiv:2002.05709.

    >>> x = jnp.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> float(ntxent(x, jnp.array([0, 0, 1]), 1.0))
    0.31326...
    """
    (x,) = floating("ntxent", embeddings=embeddings)
    y = jnp.asarray(labels)
    check_rank("ntxent", 2, embeddings=x)
    check_rank("ntxent", 1, labels=y)
    if y.shape[:1] != x.shape[:1]:
        raise ValueError(f"ntxent: {x.shape[:1]} embeddings, but {y.shape[:1]} labels")
    unit, _ = _unit(x, -1, jnp.finfo(x.dtype).eps)
    similarity = jnp.matmul(unit, unit.T, precision=jax.lax.Precision.HIGHEST) / temperature
    same = y[:, None] == y
    pairs = same & ~jnp.eye(len(y), dtype=bool)
    _, log_sum, largest = shifted(similarity, -1, ~same)
    against = log_sum + largest  # -inf without any other label
    losses = jax.nn.softplus(against - similarity)
    return jnp.sum(jnp.where(pairs, losses, 0)) / jnp.maximum(jnp.sum(pairs), 1)


def triplet_margin_loss(
    anchors: Any,
    positives: Any,
    negatives: Any,
    axis: int = -1,
    norm_degree: Any = 2,
    margin: Any = 1.0,
    eps: Any = 1e-6,
) -> Array:
    r"""By how much a negative fails to be a margin farther from the anchor than a positive.

    .. math:: \max(d(a, p) - d(a, n) + m, 0), \qquad
        d(x, y) = \Big(\sum_i |x_i - y_i|^k + \epsilon\Big)^{1/k}

    Args:
        anchors: :math:`a`, ``(..., features)``, floating-point like the others.
        positives: :math:`p`, which should be near.
        negatives: :math:`n`, which should be far.
        axis: the axis of the features.
        norm_degree: :math:`k \ge 1`. Optax takes no absolute values, which an odd `k` needs.
        margin: :math:`m`.
        eps: :math:`\epsilon`, which keeps the gradient of a distance of 0 finite.

    Source: V. Balntas et al., Learning Shallow Convolutional Feature Descriptors with Triplet
    Losses, 2016.

    >>> far = jnp.array([3.0, 4.0])
    >>> float(triplet_margin_loss(jnp.zeros(2), far, jnp.zeros(2), eps=0.0))
    6.0
    """
    a, p, n = floating(
        "triplet_margin_loss", anchors=anchors, positives=positives, negatives=negatives
    )

    def distance(x: Array, y: Array) -> Array:
        gap = jnp.abs(x - y)
        largest = jax.lax.stop_gradient(jnp.max(gap, axis, keepdims=True, initial=0))
        unit = jnp.maximum(largest, 1)  # in which powers do not overflow
        powers = jnp.sum((gap / unit) ** norm_degree, axis, keepdims=True)
        powers = powers + eps / unit**norm_degree
        root = jnp.where(powers == 0, 1, powers) ** (1 / norm_degree)
        return jnp.squeeze(jnp.where(powers == 0, 0, unit * root), axis)

    near, far = distance(a, p), distance(a, n)
    if isinstance(norm_degree, int | float) and norm_degree == 2:
        # By the difference of squares, which keeps its digits where the anchor is far from both.
        mean = jnp.expand_dims(near / 2 + far / 2, axis)
        gap = jnp.sum((n - p) * divide((a - p) / 2 + (a - n) / 2, mean), axis)
    else:
        gap = near - far
    return jnp.maximum(gap + margin, 0)


def _cosine(
    name: str, predictions: Any, targets: Any, epsilon: Any, axis: Axis, where: Any | None
) -> tuple[Array, Array]:
    """The cosine, and 1 minus it."""
    x, y = floating(name, predictions=predictions, targets=targets)
    if where is not None:
        where = jnp.asarray(where)
        x, y = jnp.where(where, x, 0), jnp.where(where, y, 0)
    (x, x_lacks), (y, y_lacks) = _unit(x, axis, epsilon), _unit(y, axis, epsilon)
    cosine = jnp.sum(x * y, axis)
    # Near 1 the difference from 1 has no digits, nor has the gradient; the square of a chord has.
    chord = jnp.sum(jnp.square(x - y), axis)
    distance = (chord + jnp.squeeze(x_lacks + y_lacks, axis)) / 2
    near = cosine > 0.5
    return jnp.where(near, 1 - distance, cosine), jnp.where(near, distance, 1 - cosine)


def _unit(x: Array, axis: Axis, epsilon: Any) -> tuple[Array, Array]:
    """`x` divided by its norm, or by the root of `epsilon` if that is larger; 0 for zeros.

    The second result is 1 minus the squared norm of the first, without its rounding.
    """
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis, keepdims=True, initial=0))
    empty = largest == 0
    largest = jnp.where(empty, 1, largest)
    x = x / largest
    square = jnp.sum(jnp.square(x), axis, keepdims=True)
    norm = jnp.where(empty, 0, jnp.sqrt(jnp.where(empty, 1, square)))
    least = jnp.sqrt(epsilon) / largest
    part = divide(jnp.minimum(norm, least), least)
    lacks = jnp.where(norm < least, (1 - part) * (1 + part), 0)
    return divide(x, jnp.maximum(norm, least)), lacks
