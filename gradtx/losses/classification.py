"""Classification losses, from logits or from scores."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.losses.arguments import (
    check_floating,
    check_labels,
    check_shapes,
    counted,
    floating,
    real,
)
from gradtx.losses.probabilities import (
    Axis,
    at_label,
    complement,
    has_z_loss,
    log_softmax,
    over_classes,
    product,
    shifted,
    z_penalty,
)
from gradtx.numerics import compute_dtype, widen
from gradtx.projections import projection_simplex
from gradtx.types import Array


def sigmoid_binary_cross_entropy(logits: Any, labels: Any) -> Array:
    r"""The cross entropy of independent yes-or-no predictions.

    .. math:: -y \log \sigma(x) - (1 - y) \log \sigma(-x)

    Args:
        logits: :math:`x`, floating-point.
        labels: :math:`y`, 0 or 1, or a probability; broadcast with the logits.

    A logit of :math:`\pm\infty` that agrees with its label costs 0; in Optax it gives NaN.

    >>> sigmoid_binary_cross_entropy(jnp.array([0.0, 100.0]), jnp.array([1, 0])).tolist()
    [0.693147..., 100.0]
    """
    (x,) = floating("sigmoid_binary_cross_entropy", logits=logits)
    y = real(labels)
    return product(y, jax.nn.softplus(-x)) + product(1 - y, jax.nn.softplus(x))


def sigmoid_focal_loss(
    logits: Any, labels: Any, *, alpha: Any | None = None, gamma: Any = 2.0
) -> Array:
    r"""Binary cross entropy with less weight on examples that are already predicted well.

    .. math:: -\alpha_t (1 - p_t)^\gamma \log p_t, \qquad p_t = \sigma(x) \text{ if } y = 1,
        \quad \sigma(-x) \text{ if } y = 0

    Args:
        logits: :math:`x`, floating-point.
        labels: :math:`y`, 0 or 1, or a probability.
        alpha: the weight :math:`\alpha` of a label of 1; a label of 0 has :math:`1 - \alpha`. No
            weights by default.
        gamma: :math:`\gamma \ge 0`; 0 gives the cross entropy.

    Source: T.-Y. Lin et al., Focal Loss for Dense Object Detection, 2017, arXiv:1708.02002.

    >>> sigmoid_focal_loss(jnp.array([0.0, 5.0]), jnp.array([1.0, 1.0])).tolist()
    [0.173286..., 3.00...e-07]
    """
    (x,) = floating("sigmoid_focal_loss", logits=logits)
    x, y, _ = jnp.broadcast_arrays(x, real(labels), 0.0 if alpha is None else alpha)
    weight = 1.0 if alpha is None else alpha * y + (1 - alpha) * (1 - y)
    # An entry of weight 0 has no loss and no gradient, at an infinite logit too.
    x = jnp.where(weight == 0, 0, x)
    # At an infinite logit the logarithm's gradient would be NaN.
    most = jnp.finfo(x.dtype).max
    near = jnp.clip(x, -most, most)
    both = jnp.stack([jax.nn.log_sigmoid(near), jax.nn.log_sigmoid(-near)])
    # 1 - p may underflow, and its power then has no finite gradient; by its logarithm it has.
    log_missed = jax.nn.logsumexp(both, axis=0, b=jnp.stack([1 - y, y]))
    return weight * jnp.exp(gamma * log_missed) * sigmoid_binary_cross_entropy(x, y)


def softmax_cross_entropy(
    logits: Any,
    labels: Any,
    axis: Axis = -1,
    where: Any | None = None,
    *,
    z_loss: Any = 0.0,
) -> Array:
    r"""The cross entropy between a softmax and a distribution over the classes.

    .. math:: -\sum_i y_i \log \frac{\exp x_i}{\sum_j \exp x_j}
        + \zeta \Big(\log \sum_j \exp x_j\Big)^2

    Args:
        logits: :math:`x`, floating-point, ``(..., classes)``.
        labels: :math:`y`, one-hot or probabilities, broadcast with the logits.
        axis: the axis or axes of the classes.
        where: which entries count, or which examples; an example with none costs 0.
        z_loss: :math:`\zeta`, which keeps the logarithm of the sum near 0; PaLM takes 1e-4.

    A logit of :math:`-\infty` whose label is 0 adds nothing; in Optax it gives NaN. Optax has no
    z-loss.

    Source of the z-loss: A. Chowdhery et al., PaLM: Scaling Language Modeling with Pathways, 2022,
    arXiv:2204.02311, section 5.

    >>> x = jnp.array([[0.0, 0.0, -jnp.inf], [2.0, 1.0, 1.0]])
    >>> softmax_cross_entropy(x, jnp.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])).tolist()
    [0.693147..., 0.551444...]
    """
    (x,) = floating("softmax_cross_entropy", logits=logits)
    where = over_classes(where, x, axis)
    y = real(labels) if where is None else jnp.where(where, real(labels), 0)
    loss = -jnp.sum(product(y, log_softmax(x, axis, where)), axis)
    return loss + _z_loss(z_loss, x, axis, where) if has_z_loss(z_loss) else loss


def _z_loss(z_loss: Any, x: Array, axis: Axis, where: Any | None) -> Array:
    """The penalty for each example; 0 for one without entries that count."""
    _, log_sum, largest = shifted(x, axis, where)
    log_sum += largest
    if where is not None:
        log_sum = jnp.where(jnp.any(where, axis, keepdims=True), log_sum, 0)
    return z_penalty(z_loss, jnp.squeeze(log_sum, axis))


def safe_softmax_cross_entropy(logits: Any, labels: Any) -> Array:
    """The same as :func:`softmax_cross_entropy`, which here is already safe.

    Args:
        logits: floating-point, ``(..., classes)``.
        labels: one-hot or probabilities.

    >>> logits, labels = jnp.array([0.0, 0.0, -jnp.inf]), jnp.array([1.0, 0.0, 0.0])
    >>> float(safe_softmax_cross_entropy(logits, labels))
    0.693147...
    """
    return softmax_cross_entropy(logits, labels)


def softmax_cross_entropy_with_integer_labels(
    logits: Any,
    labels: Any,
    axis: int | tuple[int, ...] = -1,
    where: Any | None = None,
    *,
    z_loss: Any = 0.0,
    ignore_index: int | None = None,
) -> Array:
    r"""The cross entropy of a softmax, with the right class given by its index.

    .. math:: \log \sum_j \exp x_j - x_y + \zeta \Big(\log \sum_j \exp x_j\Big)^2

    Args:
        logits: :math:`x`, floating-point, ``(..., classes)``.
        labels: :math:`y`, integers from 0 to the number of classes - 1. A label that is too large
            gives NaN; one below 0 counts from the end, as an index does.
        axis: the axis of the classes. With several axes a label is an index into all of them,
            flattened.
        where: which entries count, or which examples; an example with none costs 0.
        z_loss: :math:`\zeta`, which keeps the logarithm of the sum near 0, as in
            :func:`softmax_cross_entropy`.
        ignore_index: the label of examples that do not count: they cost 0, and have no gradient.
            PyTorch's default is -100; here there is none. PyTorch's mean is over the others:
            ``loss.sum() / (labels != ignore_index).sum()``, where ``loss.mean()`` counts all.

    Raises:
        TypeError: labels are not integers, or `ignore_index` is not one.
        ValueError: `axis` is neither an integer nor a tuple of them, or shapes do not fit.

    Where the logits are those of a linear layer, :func:`linear_softmax_cross_entropy` needs a
    fraction of the memory. Optax has no z-loss, and no index to ignore.

    >>> logits = jnp.array([[0.0, 0.0], [5.0, 1.0]])
    >>> softmax_cross_entropy_with_integer_labels(logits, jnp.array([1, 0])).tolist()
    [0.693147..., 0.018149...]
    >>> labels = jnp.array([1, -100])
    >>> softmax_cross_entropy_with_integer_labels(logits, labels, ignore_index=-100).tolist()
    [0.693147..., 0.0]
    """
    name = "softmax_cross_entropy_with_integer_labels"
    x, y = jnp.asarray(logits), jnp.asarray(labels)
    check_floating(name, logits=x)
    check_labels(name, y)
    if not isinstance(axis, int | tuple):
        raise ValueError(f"{name}: axis must be an integer or a tuple of them, not {axis!r}")
    entries = where is not None and jnp.ndim(where) == x.ndim
    where = over_classes(where, x, axis)
    if ignore_index is not None:
        counts = counted(name, y, ignore_index)
        y = jnp.where(counts, y, 0)
        counts = jnp.expand_dims(counts, axis)
        where = counts if where is None else counts & (where != 0)
    if where is not None:
        classes = {i % x.ndim for i in (axis if isinstance(axis, tuple) else (axis,))}
        alike = set() if entries else classes  # a mask of examples has length 1 there
        shape = [1 if i in alike else n for i, n in enumerate(x.shape)]
        where = jnp.broadcast_to(where != 0, shape)
    if isinstance(axis, tuple):
        last = tuple(range(-len(axis), 0))
        x = jnp.moveaxis(x, axis, last)
        if y.shape != x.shape[: -len(axis)]:
            raise ValueError(
                f"{name}: the labels have the shape {y.shape}, the logits without {axis} "
                f"{x.shape[: -len(axis)]}"
            )
        x = x.reshape(*y.shape, -1)
        if where is not None:
            where = jnp.moveaxis(where, axis, last).reshape(*y.shape, -1)
        axis = -1
    weight = None
    if has_z_loss(z_loss):
        weight = jnp.asarray(z_loss, compute_dtype(x.dtype))
    loss = _of_labels(axis, x, y, where, weight)
    return loss if where is None else jnp.where(jnp.any(where, axis), loss, 0)


class _LabelSums(NamedTuple):
    """Sums over the classes, which have length 1.

    less: the logits minus the largest one, -inf where masked; is_label: which is the label's;
    others: the sum of the exponentials of all but the label's; log_sum: the logarithm of the sum of
    all; largest: the largest logit; chosen: the label's logit minus the largest one.
    """

    less: Array
    is_label: Array
    others: Array
    log_sum: Array
    largest: Array
    chosen: Array


def _sums(axis: int, x: Array, y: Array, where: Array | None) -> _LabelSums:
    """Two passes over the logits, which store nothing of their size.

    The label's term is left out of the sum: a sum near 0 then is the loss, and also the slope.
    """
    y = y.astype(jnp.promote_types(y.dtype, jnp.int32))
    place = jnp.expand_dims(jnp.where(y < 0, y + x.shape[axis], y), axis)
    is_label = jax.lax.broadcasted_iota(place.dtype, x.shape, axis % x.ndim) == place
    counts = _is_class(axis, x, y)
    if where is not None:
        label = jnp.where(counts, y, 0) if where.shape[axis] > 1 else jnp.zeros_like(y)
        counts &= at_label(where, label, axis)
    wide = widen(x if where is None else jnp.where(where, x, -jnp.inf))
    largest = jnp.max(jax.lax.stop_gradient(wide), axis, keepdims=True, initial=-jnp.inf)
    finite = jnp.isfinite(largest)
    less = wide - jnp.where(finite, largest, 0)
    others = jnp.sum(jnp.where(is_label, 0, jnp.exp(less)), axis, keepdims=True)
    chosen = widen(jnp.expand_dims(at_label(x, y, axis), axis)) - largest
    # A label that does not count has no term.
    label_logit = jnp.where(finite & jnp.expand_dims(counts, axis), chosen, -jnp.inf)
    less_one = jnp.where(finite, others + jnp.expm1(label_logit), 0)
    of_infinite = jnp.where(largest == -jnp.inf, 0, largest)
    log_sum = jnp.where(finite, jnp.log1p(less_one), of_infinite)
    return _LabelSums(less, is_label, others, log_sum, largest, chosen)


def _of_log_sum(sums: _LabelSums, where: Array | None, axis: int) -> Array:
    """The logarithm of the sum itself; 0 of an example without entries that count."""
    log_sum = sums.log_sum + sums.largest
    return log_sum if where is None else jnp.where(jnp.any(where, axis, keepdims=True), log_sum, 0)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _of_labels(axis: int, x: Array, y: Array, where: Array | None, z_loss: Array | None) -> Array:
    """The cross entropy; its derivative keeps one array like the logits."""
    sums = _sums(axis, x, y, where)
    loss = jnp.squeeze(sums.log_sum - sums.chosen, axis)
    if z_loss is not None:
        loss += z_penalty(z_loss, jnp.squeeze(_of_log_sum(sums, where, axis), axis))
    return loss


@_of_labels.defjvp
def _slope_of_labels(axis: int, primals: Any, tangents: Any) -> tuple[Array, Array]:
    x, y, where, z_loss = primals
    sums = _sums(axis, x, y, where)
    p = jnp.exp(sums.less - sums.log_sum)
    # The slope at the label is the sum of the others, without cancellation.
    slopes = jnp.where(sums.is_label, -sums.others * jnp.exp(-sums.log_sum), p)
    change: Any = 0
    if z_loss is not None:
        log_sum = _of_log_sum(sums, where, axis)
        slopes += 2 * z_loss * log_sum * p
        change = tangents[3] * jnp.square(jnp.squeeze(log_sum, axis))
    return _of_labels(axis, *primals), change + jnp.sum(slopes * tangents[0], axis)


def _is_class(axis: int, x: Array, y: Array) -> Array:
    return (y >= -x.shape[axis]) & (y < x.shape[axis])


def poly_loss_cross_entropy(
    logits: Any,
    labels: Any,
    *,
    epsilon: Any = 2.0,
    axis: Axis = -1,
    where: Any | None = None,
) -> Array:
    r"""Poly-1: cross entropy with a different first coefficient in its series in :math:`1 - p_t`.

    .. math:: -\sum_i y_i \log p_i + \epsilon \sum_i y_i (1 - p_i), \qquad p = \mathrm{softmax}(x)

    Args:
        logits: :math:`x`, floating-point, ``(..., classes)``.
        labels: :math:`y`, floating-point: one-hot or probabilities.
        epsilon: the number added to that coefficient; the paper uses 2 for ImageNet and -1 for
            detection.
        axis: the axis or axes of the classes.
        where: which entries count, or which examples.

    Source: Z. Leng et al., PolyLoss: A Polynomial Expansion Perspective of Classification Loss
    Functions, 2022, arXiv:2204.12511.

    >>> float(poly_loss_cross_entropy(jnp.zeros(2), jnp.array([1.0, 0.0]), epsilon=1.0))
    1.193147...
    """
    x, y = floating("poly_loss_cross_entropy", logits=logits, labels=labels)
    where = over_classes(where, x, axis)
    y = y if where is None else jnp.where(where, y, 0)
    log_p = log_softmax(x, axis, where)
    return jnp.sum(epsilon * y * complement(log_p) - product(y, log_p), axis)


def hinge_loss(predictor_outputs: Any, targets: Any) -> Array:
    r"""The hinge loss :math:`\max(0, 1 - x y)` of support-vector machines.

    Args:
        predictor_outputs: :math:`x`, scores.
        targets: :math:`y`, -1 or 1.

    >>> hinge_loss(jnp.array([0.5, 2.0]), jnp.array([1, 1])).tolist()
    [0.5, 0.0]
    """
    return jnp.maximum(0, 1 - real(predictor_outputs) * real(targets))


def perceptron_loss(predictor_outputs: Any, targets: Any) -> Array:
    r"""The loss of the perceptron, :math:`\max(0, -x y)`.

    Args:
        predictor_outputs: :math:`x`, scores.
        targets: :math:`y`, -1 or 1, of the same shape.

    >>> perceptron_loss(jnp.array([0.5, 2.0]), jnp.array([-1, 1])).tolist()
    [0.5, 0.0]
    """
    check_shapes("perceptron_loss", predictor_outputs=predictor_outputs, targets=targets)
    return jnp.maximum(0, -real(predictor_outputs) * real(targets))


def sparsemax_loss(logits: Any, labels: Any) -> Array:
    r"""The binary sparsemax loss: 0 beyond the margin, quadratic within it, linear short of it.

    .. math:: \ell(z) = 0 \text{ if } z \le -1, \quad z \text{ if } z \ge 1, \quad
        \tfrac14 (z + 1)^2 \text{ else}, \qquad z = -x \text{ if } y = 1 \text{ else } x

    Args:
        logits: :math:`x`, scores.
        labels: :math:`y`, 0 or 1.

    Source: M. Blondel, A. Martins and V. Niculae, Learning with Fenchel-Young Losses, 2020,
    arXiv:1901.02324, section 4.4.

    >>> sparsemax_loss(jnp.array([3.0, 0.0, -3.0]), jnp.array([1, 1, 1])).tolist()
    [0.0, 0.25, 3.0]
    """
    x = real(logits)
    z = jnp.where(jnp.asarray(labels), -x, x)
    return jnp.square(jnp.clip(z, -1, 1) + 1) / 4 + jnp.maximum(z - 1, 0)


def multiclass_hinge_loss(scores: Any, labels: Any) -> Array:
    r"""The multiclass hinge loss, :math:`\max_i (x_i + [i \ne y]) - x_y`.

    Args:
        scores: :math:`x`, ``(..., classes)``.
        labels: :math:`y`, integers.

    >>> float(multiclass_hinge_loss(jnp.array([0.5, 0.0]), jnp.array(0)))
    0.5
    """
    x, y = real(scores), jnp.asarray(labels)
    check_labels("multiclass_hinge_loss", y)
    margins = x - at_label(x, y)[..., None] + 1  # of the right class it is exactly 0
    return jnp.max(jnp.where(_is_label(x, y), 0, margins), -1)


def _is_label(x: Array, y: Array) -> Array:
    """Whether each class is the right one, which counts from the end if it is below 0."""
    y = y.astype(jnp.promote_types(y.dtype, jnp.int32))
    index = jnp.where(y < 0, y + x.shape[-1], y)
    return jax.nn.one_hot(index, x.shape[-1], dtype=bool)


def multiclass_perceptron_loss(scores: Any, labels: Any) -> Array:
    r"""The multiclass perceptron loss, :math:`\max_i x_i - x_y`.

    Args:
        scores: :math:`x`, ``(..., classes)``.
        labels: :math:`y`, integers.

    Source: M. Collins, Discriminative Training Methods for Hidden Markov Models, 2002.

    >>> float(multiclass_perceptron_loss(jnp.array([0.5, 2.0]), jnp.array(0)))
    1.5
    """
    x, y = real(scores), jnp.asarray(labels)
    check_labels("multiclass_perceptron_loss", y)
    return jnp.max(x, -1) - at_label(x, y)


def multiclass_sparsemax_loss(scores: Any, labels: Any) -> Array:
    r"""The loss whose gradient is the sparsemax minus the one-hot label.

    .. math:: \langle p, z \rangle + \tfrac12 (1 - \lVert p \rVert^2), \qquad z_i = x_i - x_y,
        \quad p \text{ the projection of } x \text{ onto the simplex}

    Args:
        scores: :math:`x`, ``(..., classes)``.
        labels: :math:`y`, integers.

    Source: A. Martins and R. Astudillo, From Softmax to Sparsemax, 2016, arXiv:1602.02068.

    >>> multiclass_sparsemax_loss(jnp.array([[0.0, 0.0], [3.0, 0.0]]), jnp.array([0, 0])).tolist()
    [0.25, 0.0]
    """
    x, y = real(scores), jnp.asarray(labels)
    check_labels("multiclass_sparsemax_loss", y)
    return _of_sparsemax(x, y)


def _sparsemax(x: Array) -> Array:
    return jnp.vectorize(projection_simplex, signature="(n)->(n)")(x)


@jax.custom_jvp
def _of_sparsemax(x: Array, y: Array) -> Array:
    # The same as the docstring's, whose terms cancel near 0: half the squared distance of the
    # label from p, and how far its score is below the threshold.
    p = _sparsemax(x)
    others = jnp.where(_is_label(x, y), 0, p)
    far = jnp.sum(jnp.square(others), -1) + jnp.square(jnp.sum(others, -1))
    return far / 2 + jnp.maximum(jnp.max(x, -1) - at_label(x, y) - jnp.max(p, -1), 0)


@_of_sparsemax.defjvp
def _slope_of_sparsemax(primals: Any, tangents: Any) -> Any:
    # The loss has a derivative everywhere; the sparsemax has none where an entry is just at 0.
    (x, y), (dx, _) = primals, tangents
    return _of_sparsemax(x, y), jnp.sum(_sparsemax(x) * dx, -1) - at_label(dx, y)
