"""Segmentation losses: the overlap of regions."""

from typing import Any

import jax
import jax.numpy as jnp

from gradtx.checks import check_choice
from gradtx.losses.arguments import check_rank, check_shapes, floating, real
from gradtx.losses.probabilities import complement, log_softmax
from gradtx.numerics import divide
from gradtx.types import Array


def dice_loss(
    predictions: Any,
    targets: Any,
    *,
    class_weights: Any | None = None,
    smooth: Any = 1.0,
    alpha: Any = 0.5,
    beta: Any = 0.5,
    apply_softmax: bool = True,
    reduction: str = "mean",
    ignore_background: bool = False,
    axis: Any | None = None,
) -> Array:
    r"""One minus the overlap of the predicted and the true region, for each class.

    .. math:: 1 - \frac{I + s}{I + \alpha (P - I) + \beta (T - I) + s}, \qquad
        I = \sum p t, \quad P = \sum p, \quad T = \sum t

    The default weights give the Dice coefficient, others the Tversky index.

    Args:
        predictions: logits, ``(batch, ..., classes)``; for a binary segmentation with one class, or
            with one dimension fewer than the targets.
        targets: :math:`t`, of the same shape, one-hot or 0 and 1.
        class_weights: ``(classes,)``.
        smooth: :math:`s \ge 0`. With 0, a class that is neither present nor predicted costs 0.
        alpha: the weight of false positives.
        beta: the weight of false negatives.
        apply_softmax: whether the predictions are logits (of a sigmoid if there is one class) or
            probabilities, which are used as they are. Optax requires them to sum to 1, even with
            one class, and cannot then be compiled.
        reduction: over the classes: "mean", "sum" or "none".
        ignore_background: whether to leave out the first class.
        axis: the axes to sum over; all but the first and the last by default.

    Raises:
        ValueError: an unknown `reduction`.

    Source: F. Milletari, N. Navab and S.-A. Ahmadi, V-Net, 2016, arXiv:1606.04797.

    >>> p = jnp.array([[[1.0, 0.0], [1.0, 0.0]]])
    >>> t = jnp.array([[[1.0, 0.0], [0.0, 1.0]]])
    >>> dice_loss(p, t, apply_softmax=False, smooth=0.0, reduction="none").tolist()
    [[0.333..., 1.0]]
    """
    reduce = {"mean": jnp.mean, "sum": jnp.sum, "none": lambda x, axis: x}
    check_choice("dice_loss", "reduction", reduction, list(reduce))
    (x,), t = floating("dice_loss", predictions=predictions), real(targets)
    x = x[..., None] if x.ndim == t.ndim - 1 else x
    t = t[..., None] if t.ndim == x.ndim - 1 else t
    check_shapes("dice_loss", predictions=x, targets=t)
    p, missed = _probabilities(x) if apply_softmax else (x, 1 - x)
    axis = tuple(range(1, x.ndim - 1)) if axis is None else axis
    # The sums of errors: as differences from the sums of hits they would lose their digits.
    both, extra, lacking = (jnp.sum(a, axis) for a in (p * t, p * (1 - t), missed * t))
    wrong = alpha * extra + beta * lacking
    loss = divide(wrong, both + wrong + smooth)
    if class_weights is not None:
        check_rank("dice_loss", 1, class_weights=class_weights)
        loss = loss * jnp.asarray(class_weights)
    if ignore_background and loss.shape[-1] > 1:
        loss = loss[..., 1:]
    return reduce[reduction](loss, axis=-1)


def _probabilities(logits: Array) -> tuple[Array, Array]:
    """Probabilities from logits, and 1 minus them, each with the digits of a number near 0."""
    if logits.shape[-1] > 1:
        return _softmax(logits)
    log_p = jax.nn.log_sigmoid(logits)
    return jnp.exp(log_p), complement(log_p)


@jax.custom_jvp
def _softmax(x: Array) -> tuple[Array, Array]:
    log_p = log_softmax(x, -1)
    return jnp.exp(log_p), complement(log_p)


@_softmax.defjvp
def _changed_softmax(primals: Any, tangents: Any) -> Any:
    """The likeliest class changes by what the others lose.

    Backward, slopes are thus compared with that class's before they are summed: where wrong classes
    are equally likely, their slopes would cancel.
    """
    (x,), (change,) = primals, tangents
    p, missed = _softmax(x)
    moved = p * (change - jnp.sum(p * change, -1, keepdims=True))
    is_top = jax.nn.one_hot(jnp.argmax(x, -1), x.shape[-1], dtype=bool)
    others = jnp.sum(jnp.where(is_top, 0, moved), -1, keepdims=True)
    moved = jnp.where(is_top, -others, moved)
    return (p, missed), (moved, -moved)


def multiclass_generalized_dice_loss(
    predictions: Any,
    targets: Any,
    *,
    smooth: Any = 1.0,
    apply_softmax: bool = True,
    ignore_background: bool = False,
) -> Array:
    r"""The mean Dice loss, with weights :math:`w_c \propto 1 / T_c^2` in favor of rare classes.

    Args:
        predictions: logits, ``(batch, ..., classes)``.
        targets: one-hot, of the same shape.
        smooth: as in :func:`dice_loss`.
        apply_softmax: whether the predictions are logits or probabilities.
        ignore_background: whether to leave out the first class.

    Source: C. Sudre et al., Generalised Dice Overlap as a Deep Learning Loss Function for Highly
    Unbalanced Segmentations, 2017, arXiv:1707.03237.

    >>> t = jax.nn.one_hot(jnp.array([[0, 0, 1]]), 2)
    >>> float(multiclass_generalized_dice_loss(t, t, apply_softmax=False))
    0.0
    """
    t = real(targets)
    check_shapes("multiclass_generalized_dice_loss", predictions=predictions, targets=t)
    weights = 1 / (jnp.square(jnp.sum(t, tuple(range(t.ndim - 1)))) + 1e-7)
    losses = dice_loss(
        predictions,
        t,
        class_weights=weights / jnp.mean(weights),
        smooth=smooth,
        apply_softmax=apply_softmax,
        reduction="none",
        ignore_background=ignore_background,
    )
    return jnp.mean(losses)


def binary_dice_loss(
    predictions: Any, targets: Any, *, smooth: Any = 1.0, apply_sigmoid: bool = True
) -> Array:
    """The Dice loss of one class.

    Args:
        predictions: logits, ``(batch, ...)``, with or without a last dimension of 1.
        targets: 0 or 1, of the same shape.
        smooth: as in :func:`dice_loss`.
        apply_sigmoid: whether the predictions are logits or probabilities.

    Returns:
        One number for each example of the batch.

    >>> t = jnp.array([[0.0, 1.0, 1.0]])
    >>> binary_dice_loss(t, t, apply_sigmoid=False).tolist()
    [0.0]
    """
    x, t = jnp.asarray(predictions), jnp.asarray(targets)
    if x.ndim == t.ndim and x.shape[-1] != 1:
        x, t = x[..., None], t[..., None]
    return dice_loss(x, t, smooth=smooth, apply_softmax=apply_sigmoid)
