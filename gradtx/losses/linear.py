"""The cross entropy of a linear layer, computed without its logits ever being whole."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from gradtx.leaves.shardings import automatic, explicit_mesh
from gradtx.losses.arguments import check_floating, check_labels, check_rank, check_shapes, counted
from gradtx.losses.probabilities import complement, has_z_loss, z_penalty
from gradtx.numerics import compute_dtype
from gradtx.programs.tracing import vary, varying_axes
from gradtx.types import Array

# Words in a chunk: few enough that a CPU keeps their weights and logits in its caches.
_WORDS = 512
# Logits in a chunk: 16 MB in float32.
_ENTRIES = 2**22
# Slices and products of so many words fill the registers of every chip.
_LANES = 128

AxisName = str | tuple[str, ...]


class _Plan(NamedTuple):
    """axis: that of the words in the weights; chunk: how many words are taken at a time, if given.

    over: the axes over which words are sharded.
    """

    axis: int
    chunk: int | None
    over: tuple[str, ...] = ()


class _Sums(NamedTuple):
    """Over words: the largest logit, the log-sum-exp of all less that, and the label's loss.

    The loss is separate from the log-sum-exp: their slopes, if added, would nearly cancel.
    """

    largest: Array
    log_sum: Array
    loss: Array


def linear_softmax_cross_entropy(
    inputs: Any,
    weights: Any,
    labels: Any,
    *,
    bias: Any | None = None,
    where: Any | None = None,
    z_loss: Any = 0.0,
    vocabulary_axis: int = 0,
    axis_name: AxisName | None = None,
    chunk: int | None = None,
    ignore_index: int | None = None,
) -> Array:
    r"""The cross entropy of a linear layer over a vocabulary, whose logits are never whole.

    .. math:: \log \sum_j \exp x_j - x_y + \zeta \Big(\log \sum_j \exp x_j\Big)^2, \qquad
        x_j = \langle h, w_j \rangle + b_j

    The same as :func:`softmax_cross_entropy_with_integer_labels` of ``inputs @ weights.T + bias``,
    one loss for each token. The words are taken in chunks: once for the loss, with the largest
    logit and the sum updated from chunk to chunk, and once more for the gradients with respect to
    inputs, weights and bias. Only a chunk of the logits exists at a time. This costs a fourth
    product of matrices beside the three of the loss from whole logits.

    Args:
        inputs: :math:`h`, floating-point, ``(..., features)``: the last hidden states of tokens.
        weights: :math:`w`, floating-point, ``(words, features)``, as in a table of embeddings.
        labels: :math:`y`, integers from 0 to the number of words - 1, ``(...)``. A label that is
            too large gives NaN; one below 0 counts from the end, as an index does.
        bias: :math:`b`, ``(words,)``; -inf for a word that is only padding.
        where: which tokens count, ``(...)``; the others cost 0. Their inputs must be finite, or the
            gradient of the weights is NaN.
        z_loss: :math:`\zeta`, which keeps the logarithm of the sum near 0; PaLM takes 1e-4.
        vocabulary_axis: 1 if the weights are ``(features, words)``, as in a dense layer's kernel.
        axis_name: the axis over which words are sharded, or several: of a ``shard_map`` that this
            is in, where weights and bias are a device's own and labels count through all words; or
            of the mesh that ``jax.set_mesh`` sets, where arrays are whole. On explicit axes it is
            known from the type of the weights. Without it XLA gathers the weights.
        chunk: how many words are taken at a time: by default 512, and fewer from 8,192 tokens on,
            at least 128. A GPU or TPU is faster with more where there are few tokens.
        ignore_index: the label of tokens that do not count either, such as -100; see
            :func:`softmax_cross_entropy_with_integer_labels`.

    Returns:
        The losses, ``(...)``, in float32 or wider. Gradients have the types of their arguments.

    Raises:
        TypeError: inputs, weights or bias are not floating-point, or labels or `ignore_index` not
            integers.
        ValueError: shapes do not fit, or there is no axis of this name.

    Products take their factors as they are, and are summed in float32. For 8,192 tokens in
    bfloat16, 128K words and up to 4,096 features, the loss and its gradients need less than 150 MB
    beside the gradients on a TPU v5e and an H100 (docs/measurements.md), nearly all for the
    gradient of the inputs in float32.

    Second derivatives are those of ``jax.grad`` of a gradient, or of ``jax.jvp`` of one, and need
    as much memory as whole logits. ``jax.jvp`` of the loss itself is an error of JAX. In a
    ``shard_map`` with ``check_vma=False``, differentiate outside of it.

    Optax has no such loss.

    Source: E. Wijmans et al., Cut Your Losses in Large-Vocabulary Language Models, 2024,
    arXiv:2411.09009. The z-loss: A. Chowdhery et al., PaLM: Scaling Language Modeling with
    Pathways, 2022, arXiv:2204.02311, section 5.

    >>> hidden, table = jnp.array([[1.0, 0.0], [0.0, 2.0]]), jnp.eye(3, 2)
    >>> linear_softmax_cross_entropy(hidden, table, jnp.array([0, 2])).tolist()
    [0.551444..., 2.239544...]
    """
    name = "linear_softmax_cross_entropy"
    x, w, y = jnp.asarray(inputs), jnp.asarray(weights), jnp.asarray(labels)
    b = None if bias is None else jnp.asarray(bias)
    keep = None if where is None else jnp.broadcast_to(jnp.asarray(where) != 0, y.shape)
    _check(name, x, w, b, y, vocabulary_axis, chunk)
    if ignore_index is not None:
        counts = counted(name, y, ignore_index)
        keep, y = counts if keep is None else keep & counts, jnp.where(counts, y, 0)
    over = _tuple(axis_name)
    mesh = explicit_mesh((x, w))
    if mesh is not None and not over:
        over = _tuple(jax.typeof(w).sharding.spec[vocabulary_axis])
    plan = _Plan(vocabulary_axis, chunk, over)
    y = y.astype(jnp.promote_types(y.dtype, jnp.int32))
    arrays = (x, w, b, y, keep, jnp.asarray(z_loss) if has_z_loss(z_loss) else None)
    if not over or _bound(over):
        run = _losses
    else:
        here = jax.sharding.get_abstract_mesh() if mesh is None else mesh
        _check_mesh(name, here, over, w.shape[vocabulary_axis])
        run = _of_sharded
    if mesh is None:
        return run(plan, *arrays)
    return _on_explicit_axes(run, plan, NamedSharding(mesh, jax.typeof(y).sharding.spec), *arrays)


def _tuple(names: AxisName | None) -> tuple[str, ...]:
    if names is None:
        return ()
    return names if isinstance(names, tuple) else (names,)


def _check(
    name: str, x: Array, w: Array, b: Array | None, y: Array, axis: int, chunk: int | None
) -> None:
    check_floating(name, inputs=x, weights=w, **({} if b is None else {"bias": b}))
    check_labels(name, y)
    check_rank(name, 2, weights=w)
    if axis not in (0, 1):
        raise ValueError(f"{name}: vocabulary_axis must be 0 or 1, not {axis!r}")
    if x.ndim == 0 or x.shape[-1] != w.shape[1 - axis]:
        raise ValueError(
            f"{name}: inputs {x.shape} must end in the features of weights {w.shape}, of which "
            f"vocabulary_axis={axis} counts the words"
        )
    check_shapes(name, **{"inputs without features": x[..., 0], "labels": y})
    if w.shape[axis] == 0:
        raise ValueError(f"{name}: the weights have no words")
    if b is not None and b.shape != (w.shape[axis],):
        raise ValueError(f"{name}: the bias must be ({w.shape[axis]},), not {b.shape}")
    if chunk is not None and (not isinstance(chunk, int) or chunk < 1):
        raise ValueError(f"{name}: chunk must be a positive integer, not {chunk!r}")


def _check_mesh(name: str, mesh: Any, over: tuple[str, ...], words: int) -> None:
    if unknown := [axis for axis in over if axis not in mesh.axis_names]:
        raise ValueError(
            f"{name}: there is no axis {', '.join(map(repr, unknown))} here; call this in a "
            "shard_map, or set the mesh by jax.set_mesh"
        )
    devices = math.prod(mesh.shape[axis] for axis in over)
    if words % devices:
        raise ValueError(f"{name}: {words} words cannot be shared by {devices} devices")


def _bound(axes: tuple[str, ...]) -> bool:
    """Whether the axes are bound here, as inside ``shard_map`` and ``vmap``."""
    try:
        jax.lax.axis_size(axes)
    except NameError:
        return False
    return True


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _on_explicit_axes(run: Callable[..., Array], plan: _Plan, place: Any, *arrays: Any) -> Array:
    return automatic(functools.partial(run, plan), place, *arrays)


@functools.partial(jax.jit, static_argnums=0)
def _of_sharded(plan: _Plan, *arrays: Any) -> Array:
    """`_losses` of whole arrays, where each device has its own words."""
    every = PartitionSpec()
    by_words = PartitionSpec(*[None] * plan.axis, plan.over)
    return jax.shard_map(
        functools.partial(_losses, plan),
        in_specs=(every, by_words, PartitionSpec(plan.over), every, every, every),
        out_specs=every,
        axis_names=set(plan.over),
    )(*arrays)


@functools.partial(jax.jit, static_argnums=0)
def _losses(
    plan: _Plan,
    x: Array,
    w: Array,
    b: Array | None,
    y: Array,
    keep: Array | None,
    z_loss: Array | None,
) -> Array:
    """The losses, from all words or from a device's own."""
    words, first, over = w.shape[plan.axis], jnp.int32(0), plan.over
    chunk = min(plan.chunk or _chunk(y.size, words), words)
    if over:
        first = jax.lax.axis_index(over) * words
        words *= jax.lax.axis_size(over)
    y = jnp.where(y < 0, y + words, y)
    is_word = (y >= 0) & (y < words)
    arrays = (x, w, b, y - first.astype(y.dtype), keep)
    differ = frozenset().union(*(varying_axes(jax.typeof(v)) for v in jax.tree.leaves(arrays)))
    # All vary alike inside: JAX then sums the gradients of arrays that do not, where it is marked.
    arrays = vary(arrays, differ)
    largest, log_sum, loss = _sums(plan.axis, chunk, *arrays)
    largest = jax.lax.stop_gradient(largest)
    if over:
        largest_here, largest = largest, jax.lax.pmax(largest, over)
        is_here = (arrays[3] >= 0) & (arrays[3] < w.shape[plan.axis])
        loss = _with_others(over, is_here, log_sum + (largest_here - largest), loss)
        # Less 1, as in `_forward`, for the largest logit.
        is_top = largest_here == largest
        rest = jnp.where(is_top, jnp.expm1(log_sum), jnp.exp(log_sum + (largest_here - largest)))
        others = jax.lax.psum(is_top.astype(rest.dtype), over) - 1
        log_sum = jnp.log1p(jax.lax.psum(rest, over) + others)
    # A label that is none has the gradient of the logarithm of the sum.
    loss = jnp.where(is_word, loss, log_sum + jnp.nan)
    if z_loss is not None:
        loss += z_penalty(z_loss, log_sum + largest)
    return loss if keep is None else jnp.where(keep, loss, 0)


def _with_others(over: Any, is_here: Array, log_sum: Array, loss: Array) -> Array:
    """The loss from that over the words of the label's device, and the sums of all devices.

    The words of the others add the logarithm of 1 plus their share over that of this device.
    """
    others = jax.lax.psum(jnp.where(is_here, 0, jnp.exp(log_sum)), over)
    some = others > 0
    ratio = jnp.log(jnp.where(some, others, 1)) - jnp.where(is_here, log_sum, 0)
    loss = jnp.where(some & (log_sum == -jnp.inf), 0, loss)
    loss += jnp.where(some, jax.nn.softplus(jnp.where(some, ratio, 0)), 0)
    return jax.lax.psum(jnp.where(is_here, loss, 0), over)


def _chunk(tokens: int, words: int) -> int:
    """The words in a chunk, whose logits are then few; if possible, chunks are all alike."""
    most = min(_WORDS, max(_ENTRIES // max(tokens, 1) // _LANES, 1) * _LANES)
    sizes = range(most, most // 2, -_LANES)
    return next((size for size in sizes if words % size == 0), most)


def _logits(axis: int, x: Array, w: Array, b: Array | None, first: Any, size: int) -> Any:
    """The weights of some words, in the type of products, and the logits of these words."""
    part = jax.lax.dynamic_slice_in_dim(w, first, size, axis)
    part = part.astype(jnp.result_type(x, w))
    logits = _product(x.astype(part.dtype), part, (x.ndim - 1,), (1 - axis,))
    if b is not None:
        logits += jax.lax.dynamic_slice_in_dim(b, first, size, 0).astype(logits.dtype)
    return part, logits


def _product(a: Array, b: Array, over: tuple[int, ...], of: tuple[int, ...]) -> Array:
    """Sums over axes of `a` and `b`, in float32 or wider."""
    kind = compute_dtype(a.dtype)
    return jax.lax.dot_general(a, b, ((over, of), ((), ())), preferred_element_type=kind)


def _over_chunks(add: Callable[[Any, int, Any], Any], start: Any, words: int, chunk: int) -> Any:
    """``add(first, size, sums)`` for all words; the last chunk has as many as are left."""
    full_chunks, rest = divmod(words, chunk)
    # The rest comes first: after the loop it would need a second array of gradients.
    sums = add(full_chunks * chunk, rest, start) if rest else start
    return jax.lax.fori_loop(0, full_chunks, lambda i, sums: add(i * chunk, chunk, sums), sums)


def _hits(y: Array, first: Any, size: int) -> Array:
    """Whether each label is each of the words from `first` on: a mask (labels, words)."""
    return y[..., None] == first + jnp.arange(size, dtype=y.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _sums(
    axis: int, chunk: int, x: Array, w: Array, b: Array | None, y: Array, keep: Array | None
) -> _Sums:
    return _forward(axis, chunk, x, w, b, y, keep)[0]


def _forward(
    axis: int, chunk: int, x: Array, w: Array, b: Array | None, y: Array, keep: Array | None
) -> Any:
    kind = compute_dtype(jnp.result_type(x, w))
    # Where every logit is -inf or one is inf, the number subtracted must be finite.
    least, most = jnp.finfo(kind).min, jnp.finfo(kind).max

    def add(first: Any, size: int, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        before, rest, chosen = sums
        _, logits = _logits(axis, x, w, b, first, size)
        largest = jnp.minimum(jnp.maximum(before, jnp.max(logits, -1)), most)
        largest = jax.lax.stop_gradient(largest)
        # The sum less 1, the largest logit's term: near 0 it keeps its digits. The number
        # subtracted is constant, so that derivatives are those of the sum.
        terms = jnp.exp(logits - largest[..., None])
        is_top = terms == 1
        is_higher = largest > before
        rest = jnp.where(is_higher, (1 + rest) * jnp.exp(before - largest), rest)
        rest += jnp.sum(is_top, -1, dtype=kind) - is_higher.astype(kind)
        rest += jnp.sum(jnp.where(is_top, terms - 1, terms), -1)
        chosen += jnp.sum(jnp.where(_hits(y, first, size), logits, 0), -1)
        return largest, rest, chosen

    axes = varying_axes(jax.typeof(x))
    start = vary(tuple(jnp.full(y.shape, v, kind) for v in (least, -1, 0)), axes)
    largest, rest, chosen = _over_chunks(add, start, w.shape[axis], chunk)
    nothing = rest == -1
    log_sum = jnp.log1p(jnp.where(nothing, 0, rest))
    top = jnp.where(nothing, -jnp.inf, largest)
    # Subtracting the largest first keeps the digits of large logits.
    sums = _Sums(top, log_sum, log_sum - (chosen - top))
    return sums, (x, w, b, y, keep, largest, log_sum, chosen)


def _backward(axis: int, chunk: int, residuals: Any, slopes: _Sums) -> Any:
    x, w, b, y, keep, largest, log_sum, chosen = residuals
    # The label's log-probability; the probability may be near 1.
    log_p = chosen - largest - log_sum
    log_p = jnp.where(log_p > 0, 0, log_p)  # of a label that is not here
    of_label = slopes.log_sum * jnp.exp(log_p) - slopes.loss * complement(log_p)
    of_all = slopes.log_sum + slopes.loss
    tokens = tuple(range(y.ndim))
    axes = varying_axes(jax.typeof(x))

    def add(first: Any, size: int, sums: tuple[Any, ...]) -> tuple[Any, ...]:
        dx, dw, db = sums
        part, logits = _logits(axis, x, w, b, first, size)
        p = jnp.exp(logits - largest[..., None] - log_sum[..., None])
        d = of_all[..., None] * p
        d = jnp.where(_hits(y, first, size), of_label[..., None], d)
        if keep is not None:
            # A slope of 0 times a number that is not finite is NaN.
            d = jnp.where(keep[..., None], d, 0)
        if db is not None:
            here = jnp.sum(d, tokens).astype(b.dtype)
            db = jax.lax.dynamic_update_slice_in_dim(db, here, first, 0)
        d = d.astype(part.dtype)
        dx += _product(d, part, (y.ndim,), (axis,))
        inner = x.astype(d.dtype)
        a, c = (inner, d) if axis else (d, inner)
        here = _product(a, c, tokens, tokens).astype(w.dtype)
        dw = jax.lax.dynamic_update_slice_in_dim(dw, here, first, axis)
        return dx, dw, db

    start = (
        jnp.zeros(x.shape, log_sum.dtype),
        jnp.zeros(w.shape, w.dtype),
        None if b is None else jnp.zeros(b.shape, b.dtype),
    )
    start = vary(start, axes)
    dx, dw, db = _over_chunks(add, start, w.shape[axis], chunk)
    return dx.astype(x.dtype), dw, db, None, None


_sums.defvjp(_forward, _backward)
