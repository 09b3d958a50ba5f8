"""Connectionist temporal classification: labels whose times are not known."""

from typing import Any

import jax
import jax.numpy as jnp

from gradtx.losses.arguments import check_labels, check_rank, check_shapes, floating
from gradtx.losses.probabilities import shifted
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
        log_epsilon: the number used as the logarithm of 0, so that gradients are finite. Labels
            that do not fit into the frames cost about its absolute value.

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
        log_epsilon: the number used as the logarithm of 0.

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
    less, log_sum, _ = shifted(x, -1)
    less = jnp.maximum(less, log_epsilon)
    y = jnp.where(label_pads > 0, blank_id, y.astype(jnp.int32))  # -1 will be no label
    index = jnp.broadcast_to(y[:, None], (*x.shape[:2], y.shape[1]))
    by_frame = (
        jnp.swapaxes(less[:, :, blank_id, None], 0, 1),
        jnp.swapaxes(jnp.take_along_axis(less, index, -1), 0, 1),
        jnp.swapaxes(log_sum, 0, 1),
        jnp.swapaxes(frame_pads > 0, 0, 1)[..., None],
    )
    repeats = jnp.pad(y[:, 1:] == y[:, :-1], ((0, 0), (1, 0)))
    length = jnp.sum(label_pads == 0, 1)
    missing = _Missing(less - log_sum, y, length, blank_id)

    def frame(before: Any, now: Any) -> Any:
        blank, label, best, lost = before
        (log_blank, log_label, log_sum, padding), likely = now
        so_far = _said(blank, label)
        # A blank separates a label from an equal one before it.
        free = jnp.where(repeats, blank[:, :-1], so_far[:, :-1])
        new_blank, new_label = log_blank + so_far, log_label + jnp.logaddexp(free, label)
        # The best path is subtracted, as the likeliest class was: differences keep their digits.
        highest = jnp.maximum(jnp.max(new_blank, 1), jnp.max(new_label, 1, initial=-jnp.inf))
        highest = jax.lax.stop_gradient(highest)[:, None]
        p = jnp.exp(log_blank - log_sum), jnp.exp(log_label - log_sum)
        lost += missing.now(blank + best, label + best, *p, likely)
        after = new_blank - highest, new_label - highest, best + (highest - log_sum), lost
        after = jax.tree.map(lambda old, new: jnp.where(padding, old, new), before, after)
        return after, (after[0] + after[2], after[1] + after[2])

    nothing = jnp.full((len(y), y.shape[1] + 1), log_epsilon, less.dtype)
    zero = jnp.zeros((len(y), 1), less.dtype)
    start = nothing.at[:, 0].set(0), nothing[:, 1:], zero, zero
    last, (blank, label) = jax.lax.scan(frame, start, (by_frame, missing.likely))
    end = _said(*last[:2]) + last[2]
    blank = blank.at[-1:].set(end)  # a slice, which has nothing of no frames
    log_all = jnp.take_along_axis(end, length[:, None], 1)[:, 0]
    return _negative_log(log_all, last[3][:, 0] + missing.at_the_end(end)), blank, label


def _said(blank: Array, label: Array) -> Array:
    """The log-probability of each number `n` of labels so far, the last frame blank or not."""
    rest = jnp.logaddexp(blank[:, 1:], label)
    return jnp.concatenate([blank[:, :1], rest], 1)


def _negative_log(log_p: Array, missed: Array) -> Array:
    """The loss, from the log-probability, or from the probability of all else if that is less."""
    near = missed < 0.5
    return jnp.where(near, -jnp.log1p(-jnp.where(near, missed, 0)), -log_p)


class _Missing:
    """The probability that a path is lost: that it can no longer become the labels.

    A loss near 0 belongs to a probability of 1 minus a small number, and a sum of right paths has
    rounded that number away. This class sums the probability of wrong classes instead, without a
    difference of numbers of one size. At each frame a path may go on with at most three classes:
    the blank, the label that it emits, and the next label. The classes beside the three likeliest
    are summed once. For each path, those of the three likeliest that are wrong are added, and the
    right classes among the others are subtracted: none is larger than one that was added.
    """

    def __init__(self, log_p: Array, y: Array, length: Array, blank_id: int) -> None:
        classes = log_p.shape[-1]
        self.blank = blank_id % classes
        self.counts = jnp.arange(y.shape[1] + 1) <= length[:, None]
        self.length = length
        there = self.counts[:, 1:]
        none = jnp.full((len(y), 1), -1, y.dtype)
        y = jnp.where(there, y % classes, -1)
        self.last = jnp.concatenate([none, y], 1)  # the label that a path of n labels ends in
        self.next = jnp.concatenate([y, none], 1)
        p = jnp.exp(log_p)
        room = jnp.pad(p, [(0, 0), (0, 0), (0, max(0, 3 - classes))])
        top, which = jax.lax.top_k(room, 3)
        hit = jnp.any(jnp.arange(room.shape[-1]) == which[..., None], -2)
        rest = jnp.sum(jnp.where(hit, 0, room), -1, keepdims=True)
        self.likely = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (top, which, rest))

    def now(self, blank: Array, label: Array, p_blank: Array, p_label: Array, likely: Any) -> Array:
        """The probability that a path is lost at this frame, ``(batch, 1)``."""
        none = jnp.zeros_like(p_blank)
        p_last = jnp.concatenate([none, p_label], 1)
        p_next = jnp.concatenate([p_label, none], 1)
        of_blank = jnp.full_like(self.last, self.blank), p_blank
        of_next = self.next, p_next
        after_blank = self._wrong([of_blank, of_next], likely)
        other = jnp.where(self.next == self.last, -1, self.next), p_next
        after_label = self._wrong([of_blank, other, (self.last, p_last)], likely)
        lost = jnp.exp(blank) * after_blank
        lost += jnp.pad(jnp.exp(label), ((0, 0), (1, 0))) * after_label
        return jnp.sum(jnp.where(self.counts, lost, 0), 1, keepdims=True)

    def _wrong(self, allowed: list[tuple[Array, Array]], likely: Any) -> Array:
        """The probability of all classes but some, of which -1 is none, for each `n`."""
        top, which, rest = likely
        total = rest
        for i in range(3):
            free = [classes == which[:, i, None] for classes, _ in allowed]
            total = total + jnp.where(jnp.any(jnp.stack(free), 0), 0, top[:, i, None])
        for classes, p in allowed:
            seen = jnp.any(classes[..., None] == which[:, None], -1) | (classes < 0)
            total = total - jnp.where(seen, 0, p)
        return jnp.maximum(total, 0)

    def at_the_end(self, end: Array) -> Array:
        """The probability of fewer labels than there are."""
        fewer = jnp.arange(end.shape[1]) < self.length[:, None]
        return jnp.sum(jnp.where(fewer, jnp.exp(end), 0), 1)
