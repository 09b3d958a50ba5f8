"""Connectionist temporal classification: labels whose times are not known."""

from typing import Any

import jax
import jax.numpy as jnp

from gradtx.losses.arguments import check_labels, check_rank, check_shapes, floating
from gradtx.losses.probabilities import log_softmax
from gradtx.types import Array


def ctc_loss(
    logits: Any,
    logit_paddings: Any,
    labels: Any,
    label_paddings: Any,
    *,
    blank_id: int = 0,
    log_epsilon: Any = -1e5,
) -> Array:
    r"""The negative log probability of a sequence of labels, summed over all alignments.

    .. math:: -\log \sum_{\pi \in \mathcal{B}^{-1}(y)} \prod_t p_t(\pi_t)

    where :math:`\mathcal{B}` removes repetitions from a path, and then blanks.

    Args:
        logits: ``(batch, frames, classes)``, floating-point; the blank is one of the classes.
        logit_paddings: ``(batch, frames)``, 1 for a frame of padding, otherwise 0.
        labels: ``(batch, length)``, integers.
        label_paddings: ``(batch, length)``, 1 for a label of padding, else 0; all padding comes
            last.
        blank_id: the class of the blank.
        log_epsilon: what is used as the logarithm of 0, so that gradients are finite. Labels that
            do not fit into the frames cost about its absolute value.

    Returns:
        The loss of each sequence, ``(batch,)``.

    Source: A. Graves et al., Connectionist Temporal Classification, 2006.

    >>> one_frame = jnp.log(jnp.array([[[0.2, 0.8]]]))
    >>> ctc_loss(one_frame, jnp.zeros((1, 1)), jnp.array([[1]]), jnp.zeros((1, 1)))
    Array([0.22314...], dtype=float32)
    """
    loss, _, _ = ctc_loss_with_forward_probs(
        logits,
        logit_paddings,
        labels,
        label_paddings,
        blank_id=blank_id,
        log_epsilon=log_epsilon,
    )
    return loss


def ctc_loss_with_forward_probs(
    logits: Any,
    logit_paddings: Any,
    labels: Any,
    label_paddings: Any,
    *,
    blank_id: int = 0,
    log_epsilon: Any = -1e5,
) -> tuple[Array, Array, Array]:
    """The loss of :func:`ctc_loss`, and the forward probabilities from which it is computed.

    Args:
        logits: as in :func:`ctc_loss`, like the other arguments.
        logit_paddings: 1 for a frame of padding.
        labels: integers.
        label_paddings: 1 for a label of padding.
        blank_id: the class of the blank.
        log_epsilon: what is used as the logarithm of 0.

    Returns:
        The loss ``(batch,)`` and two arrays of log probabilities. The first, ``(frames, batch,
        length + 1)``, has for each frame and each number of labels: that so many have been emitted
        by the end of the frame, and that it is a blank (for the last frame, blank or not). The
        second, ``(frames, batch, length)``: that the frame emits a label.

    Raises:
        ValueError: shapes do not fit.

    >>> frames = jnp.zeros((1, 4, 3))
    >>> none = jnp.zeros((1, 4)), jnp.array([[1, 2]]), jnp.zeros((1, 2))
    >>> [x.shape for x in jax.eval_shape(ctc_loss_with_forward_probs, frames, *none)]
    [(1,), (4, 1, 3), (4, 1, 2)]
    """
    name = "ctc_loss"
    (x,) = floating(name, logits=logits)
    y, frame_pads, label_pads = map(jnp.asarray, (labels, logit_paddings, label_paddings))
    check_labels(name, y)
    check_rank(name, 3, logits=x)
    check_rank(name, 2, labels=y)
    check_shapes(name, labels=y, label_paddings=label_pads)
    check_shapes(name, **{"a class of logits": x[..., 0], "logit_paddings": frame_pads})
    if not -x.shape[2] <= blank_id < x.shape[2]:
        raise ValueError(f"{name}: blank_id is {blank_id}, but there are {x.shape[2]} classes")
    if len(y) != len(x):
        raise ValueError(f"{name}: a batch of {len(x)} logits, but of {len(y)} labels")
    x = jnp.where(frame_pads[..., None] > 0, 0, x)
    log_p = jnp.maximum(log_softmax(x, -1), log_epsilon)
    y = jnp.where(label_pads > 0, blank_id, y)
    index = jnp.broadcast_to(y[:, None], (*x.shape[:2], y.shape[1]))
    by_frame = (
        jnp.swapaxes(log_p[:, :, blank_id, None], 0, 1),
        jnp.swapaxes(jnp.take_along_axis(log_p, index, -1), 0, 1),
        jnp.swapaxes(frame_pads > 0, 0, 1)[..., None],
    )
    repeats = jnp.pad(y[:, 1:] == y[:, :-1], ((0, 0), (1, 0)))

    def said(blank: Array, label: Array) -> Array:
        """For each `n`, the log-probability of `n` labels so far, the last frame blank or not."""
        rest = jnp.logaddexp(blank[:, 1:], label)
        return jnp.concatenate([blank[:, :1], rest], 1)

    def frame(before: Any, now: Any) -> Any:
        blank, label = before
        log_blank, log_label, padding = now
        so_far = said(blank, label)
        # A blank separates a label from an equal one before it.
        free = jnp.where(repeats, blank[:, :-1], so_far[:, :-1])
        after = log_blank + so_far, log_label + jnp.logaddexp(free, label)
        after = jax.tree.map(lambda old, new: jnp.where(padding, old, new), before, after)
        return after, after

    nothing = jnp.full((len(y), y.shape[1] + 1), log_epsilon, log_p.dtype)
    start = nothing.at[:, 0].set(0), nothing[:, 1:]
    last, (blank, label) = jax.lax.scan(frame, start, by_frame)
    end = said(*last)
    blank = blank.at[-1:].set(end)  # a slice, which has nothing of no frames
    length = jnp.sum(label_pads == 0, 1)
    return -jnp.take_along_axis(end, length[:, None], 1)[:, 0], blank, label
