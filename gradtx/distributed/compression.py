"""Compression: aggregation that sends fewer bytes, and sends the rest later."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checks import PositiveFraction, PositiveInt
from gradtx.core.pair import GradientTransformation, transformation
from gradtx.distributed.aggregation import divide_by, own_weight, total_weight, weigh
from gradtx.engine.leaves import gradient, parameter
from gradtx.leaves.paths import aligned, leaves_with_path, path_string
from gradtx.leaves.rows import is_rows
from gradtx.numerics import cast, widen
from gradtx.sharding.axes import (
    AxisName,
    bound_size,
    check_axis_name,
    check_varying,
    communicating,
    everyones,
)
from gradtx.types import Array, Params, Slots, State, Updates


class CompressionState(NamedTuple):
    """error: like the parameters, in float32 or wider: this device's part that is not sent yet."""

    error: Slots


class PowerSGDState(NamedTuple):
    """error: as in `CompressionState`; q: the right factor of each compressed leaf."""

    error: Slots
    q: Slots


Exchange = Callable[[list[Array], Any, int], tuple[list[Array], list[Array], Any]]
"""``(contributions, slots, devices) -> (means, this device's message, new slots)``, in lists."""


def compressed(
    label: str,
    axis_name: AxisName,
    op: str,
    init: Callable[[list[Array]], tuple[type, dict[str, list[Any]]]],
    exchange: Exchange,
    message: Callable[[tuple[int, ...]], int],
    decay: Any = 1.0,
    gathers: bool = False,
    ops: tuple[str, ...] = ("mean", "sum"),
) -> GradientTransformation:
    """A transformation that reduces compressed gradients, with error feedback and weights.

    Where the axis is not bound, as on one device, it passes gradients on.

    Args:
        label: the name for errors.
        axis_name: the axis over which to reduce.
        op: one of `ops`.
        init: ``arrays -> (state class, initial values of its fields other than the error)``.
        exchange: the collectives, from one device's contributions to the means.
        message: the bytes that a device sends for a leaf of this shape.
        decay: the factor of the error at each step.
        gathers: whether every device receives the whole message of every other.
        ops: the reductions that `op` may name.
    """
    check_axis_name(label, axis_name)
    if op not in ops:
        raise ValueError(f"{label}: op must be {' or '.join(map(repr, ops))}, not {op!r}")

    compression = _Compression(label, axis_name, op, init, exchange, message, decay)
    return communicating(
        compression.init,
        compression.update,
        compression.bytes_sent,
        axis_name,
        reduces=True,
        gathers=gathers,
    )


class _Compression(NamedTuple):
    """The arguments of :func:`compressed`, and the steps of a reduction."""

    label: str
    axis_name: AxisName
    op: str
    first: Callable[[list[Array]], tuple[type, dict[str, list[Any]]]]
    exchange: Exchange
    message: Callable[[tuple[int, ...]], int]
    decay: Any

    def init(self, params: Params) -> State:
        leaves, treedef = leaves_with_path(params)
        arrays = [parameter(p, path) for path, p in leaves if p is not None]
        for path, p in leaves:
            if jnp.iscomplexobj(p):
                raise TypeError(
                    f"{self.label}: the parameter at {path_string(path)!r} is complex; aggregate "
                    "it uncompressed (see partition)"
                )
        state_class, slots = self.first(arrays)
        slots["error"] = [jnp.zeros_like(widen(p)) for p in arrays]
        all_leaves = [p for _, p in leaves]
        return state_class(
            **{n: treedef.unflatten(_filled(all_leaves, x)) for n, x in slots.items()}
        )

    def update(
        self,
        updates: Updates,
        state: State,
        params: Params | None = None,
        *,
        weight: Any = None,
        **extra_args: Any,
    ) -> tuple[Updates, State]:
        del params, extra_args
        leaves, treedef = leaves_with_path(updates)
        problem = f"{self.label}: the gradients and the state are different trees"
        columns = {n: aligned(problem, updates, treedef, getattr(state, n)) for n in state._fields}
        devices = bound_size(self.label, self.axis_name)
        if devices is None:
            return updates, state
        present = self.gradients(leaves)
        all_leaves = [g for _, g in leaves]
        slots = {
            n: [x for x, g in zip(column, all_leaves, strict=True) if g is not None]
            for n, column in columns.items()
        }
        weighed = self.weighed(present, own_weight(weight), devices)
        contributions = [x + self.decay * e for x, e in zip(weighed, slots["error"], strict=True)]
        means, sent, new = self.exchange(contributions, slots, devices)
        new["error"] = [x - s for x, s in zip(contributions, sent, strict=True)]
        trees = {}
        for n, values in new.items():
            new_column = [cast(x, old.dtype) for x, old in zip(values, slots[n], strict=True)]
            trees[n] = treedef.unflatten(_filled(all_leaves, new_column, columns[n]))
        factor = devices if self.op == "sum" else 1
        reduced = [cast(m * factor, g.dtype) for m, g in zip(means, present, strict=True)]
        return treedef.unflatten(_filled(all_leaves, reduced)), state._replace(**trees)

    def gradients(self, leaves: list[tuple[Any, Any]]) -> list[Array]:
        """The gradients that are present, each checked.

        Raises:
            TypeError: one is `Rows`.
            ValueError: one is the same on all devices.
        """
        for path, g in leaves:
            if is_rows(g):
                raise TypeError(
                    f"{self.label} does not take the Rows at {path_string(path)!r}, which are few "
                    "already: use aggregate there (see partition)"
                )
        present = [(path, gradient(g, path)) for path, g in leaves if g is not None]
        check_varying(self.label, self.axis_name, present)
        return [g for _, g in present]

    def weighed(self, gradients: list[Array], weight: Any, devices: int) -> list[Array]:
        """Gradients whose mean over the devices is the weighted mean; of a sum, the weighted ones.

        What a step fails to send is added to later steps, whose weights may differ: for a sum the
        error is therefore in units of the sum. A device without weight sends nothing of its own,
        and does not make others' entries larger in a mean of senders.
        """
        weighed = [weigh(widen(g), weight) for g in gradients]
        if weight is None or self.op == "sum":
            return weighed
        total = total_weight(self.axis_name, weight)
        counted = devices
        if self.op == "mean_of_senders":
            has_weight = jnp.where(jnp.asarray(weight) == 0, 0.0, 1.0)
            counted = total_weight(self.axis_name, has_weight)
        return [divide_by(x * counted, total) for x in weighed]

    def bytes_sent(self, params: Params) -> int:
        return sum(self.message(tuple(p.shape)) for p in jax.tree.leaves(params))


def _filled(like: list[Any], values: list[Any], otherwise: list[Any] | None = None) -> list[Any]:
    """A list with `values` where `like` is not None, and with `otherwise` or None elsewhere."""
    rest = iter(values)
    others = otherwise or [None] * len(like)
    return [o if x is None else next(rest) for x, o in zip(like, others, strict=True)]


def error_only(arrays: list[Array]) -> tuple[type, dict[str, list[Any]]]:
    """The state class of a compression that keeps only the error, and no other slots."""
    return CompressionState, {}


Encode = Callable[[Array], tuple[Array, ...]]
Decode = Callable[..., Array]


def _in_two_steps(axis_name: AxisName, unit: int, encode: Encode, decode: Decode) -> Exchange:
    """A reduce-scatter and an all-gather of encoded shards: each device averages one shard."""

    def exchange(contributions: list[Array], slots: Any, devices: int) -> Any:
        del slots
        if not contributions:
            return [], [], {}
        # One vector of all leaves: two messages a step, however many leaves there are.
        flat = jnp.concatenate([x.reshape(-1) for x in contributions])
        size = flat.size
        parts = jnp.pad(flat, (0, -size % (devices * unit))).reshape(devices, -1)
        codes = encode(parts)
        sent = decode(*codes)
        received = [jax.lax.all_to_all(c, axis_name, 0, 0, tiled=True) for c in codes]
        mean = jnp.mean(decode(*received), axis=0)
        result = encode(mean[None])
        # The error of the second message, times the number of devices, is sent later too.
        device = jax.lax.axis_index(axis_name)
        sent = sent.at[device].add(-devices * (mean - jnp.squeeze(decode(*result), 0)))
        means = decode(*(everyones(jnp.squeeze(c, 0), axis_name) for c in result))
        means_of_leaves = split(means.reshape(-1)[:size], contributions)
        return means_of_leaves, split(sent.reshape(-1)[:size], contributions), {}

    return exchange


def split(flat: Array, like: list[Array]) -> list[Array]:
    """The leaves, shaped like `like`, of a vector in which they stand one after another."""
    ends = [0]
    for x in like:
        ends.append(ends[-1] + x.size)
    return [flat[ends[i] : ends[i + 1]].reshape(x.shape) for i, x in enumerate(like)]


def _summed(leaves: list[Array], axis_name: AxisName) -> list[Array]:
    """The sums over the axis, in one all-reduce."""
    if not leaves:
        return []
    flat = jnp.concatenate([x.reshape(-1) for x in leaves])
    return split(jax.lax.psum(flat, axis_name), leaves)


@transformation
def aggregate_bf16(axis_name: AxisName, op: str = "mean") -> GradientTransformation:
    r"""Like :func:`aggregate`, but sends bfloat16.

    With :math:`e` the error fed back and :math:`C` the compression,

    .. math:: c_i = g_i + e_i, \qquad \bar g = \frac{1}{n} \sum_i C(c_i), \qquad
        e_i \leftarrow c_i - C(c_i)

    so that the means of all steps add up to the means of all gradients, except for the last errors.
    Sums are taken in float32: an all-to-all gives every device one part of all gradients, and an
    all-gather sends the parts' means, in bfloat16 too.

    Args:
        axis_name: the axis over which to reduce, as in :func:`aggregate`, as is the extra argument
            ``weight``.
        op: ``"mean"`` or ``"sum"``.

    A message has 2 bytes per entry; uncompressed it has 4. State: `CompressionState`, which differs
    between devices. In a ``shard_map`` with ``check_vma`` more is sent, since JAX has no gather
    there whose result counts as replicated.

    Raises:
        TypeError: a parameter is complex, or a gradient is `Rows`.
        ValueError: as in :func:`aggregate`; or an argument is out of its range.

    Source: S. P. Karimireddy et al., Error Feedback Fixes SignSGD and other Gradient Compression
    Schemes, 2019, arXiv:1901.09847, algorithm 2.

    >>> tx = aggregate_bf16("data")
    >>> update = jax.jit(jax.vmap(lambda g: tx.update(g, tx.init(g))[0], axis_name="data"))
    >>> update(jnp.array([1.0, 3.0])).tolist()
    [2.0, 2.0]
    """

    def encode(x: Array) -> tuple[Array, ...]:
        # As integers: some backends would send a bfloat16 as float32.
        return (jax.lax.bitcast_convert_type(x.astype(jnp.bfloat16), jnp.uint16),)

    def decode(codes: Array) -> Array:
        return jax.lax.bitcast_convert_type(codes, jnp.bfloat16).astype(jnp.float32)

    exchange = _in_two_steps(axis_name, 1, encode, decode)
    return compressed(
        "aggregate_bf16", axis_name, op, error_only, exchange, lambda shape: 2 * math.prod(shape)
    )


@transformation
def aggregate_int8(
    axis_name: AxisName, op: str = "mean", block_size: PositiveInt = 256
) -> GradientTransformation:
    r"""Like :func:`aggregate_bf16`, but sends 8-bit integers and one scale for each block.

    .. math:: C(c) = s \cdot \mathrm{round}(c / s), \qquad s = \max_{\text{block}} |c| / 127

    Args:
        axis_name: the axis over which to reduce.
        op: ``"mean"`` or ``"sum"``.
        block_size: entries per block, at least 1.

    A message has 1 byte per entry and 4 per block. State: `CompressionState`. The rest, including
    what it raises, is as in :func:`aggregate_bf16`.

    Source: the blocks of T. Dettmers et al., 8-bit Optimizers via Block-wise Quantization, 2022,
    arXiv:2110.02861, with the error feedback of arXiv:1901.09847.

    >>> tx = aggregate_int8("data")
    >>> update = jax.jit(jax.vmap(lambda g: tx.update(g, tx.init(g))[0], axis_name="data"))
    >>> update(jnp.array([127.0, 3.0])).tolist()
    [65.0, 65.0]
    """

    def encode(x: Array) -> tuple[Array, ...]:
        blocks = x.reshape(x.shape[0], -1, block_size)
        largest = jnp.max(jnp.abs(blocks), axis=-1, keepdims=True)
        # Integers cannot be NaN, and XLA's maximum on a CPU may ignore one.
        finite = jnp.all(jnp.isfinite(blocks), axis=-1, keepdims=True)
        scales = jnp.where(finite, largest / 127, jnp.nan)
        codes = jnp.round(blocks / jnp.where(scales == 0, 1, scales))
        return codes.astype(jnp.int8), scales.astype(jnp.float32)

    def decode(codes: Array, scales: Array) -> Array:
        return (codes.astype(jnp.float32) * scales).reshape(codes.shape[0], -1)

    def message(shape: tuple[int, ...]) -> int:
        size = math.prod(shape)
        return size + 4 * -(-size // block_size)

    exchange = _in_two_steps(axis_name, block_size, encode, decode)
    return compressed("aggregate_int8", axis_name, op, error_only, exchange, message)


@transformation
def aggregate_top_k(
    axis_name: AxisName, fraction: PositiveFraction = 0.01, op: str = "mean"
) -> GradientTransformation:
    r"""Like :func:`aggregate_bf16`, but sends only the largest entries of every leaf.

    Args:
        axis_name: the axis over which to reduce.
        fraction: the part of a leaf's entries that is sent, in :math:`(0, 1]`; at least one is.
        op: ``"mean"`` or ``"sum"``.

    A message has 8 bytes, an index and a float32, for each entry sent; all reach all devices in one
    all-gather. State: `CompressionState`. The rest, including what it raises, is as in
    :func:`aggregate_bf16`.

    Source: Y. Lin et al., Deep Gradient Compression, 2018, arXiv:1712.01887, algorithm 1, without
    its momentum correction; S. U. Stich et al., Sparsified SGD with Memory, 2018, arXiv:1809.07599.

    >>> tx = aggregate_top_k("data", 0.5)
    >>> update = jax.jit(jax.vmap(lambda g: tx.update(g, tx.init(g))[0], axis_name="data"))
    >>> update(jnp.array([[4.0, 1.0], [2.0, -6.0]]))[0].tolist()
    [2.0, -3.0]
    """

    def entries_sent(shape: tuple[int, ...]) -> int:
        return max(1, math.ceil(fraction * math.prod(shape))) if math.prod(shape) else 0

    def exchange(contributions: list[Array], slots: Any, devices: int) -> Any:
        del slots
        if not contributions:
            return [], [], {}
        indices = [
            jax.lax.top_k(jnp.abs(x.reshape(-1)), entries_sent(x.shape))[1] for x in contributions
        ]
        pairs = zip(contributions, indices, strict=True)
        values = [x.reshape(-1)[i].astype(jnp.float32) for x, i in pairs]
        as_integers = [jax.lax.bitcast_convert_type(v, jnp.int32) for v in values]
        messages = everyones(jnp.concatenate(indices + as_integers), axis_name)
        means, begin = [], 0
        half = messages.shape[1] // 2
        for x, i in zip(contributions, indices, strict=True):
            end = begin + i.size
            places = messages[:, begin:end].reshape(-1)
            entries = messages[:, half + begin : half + end].reshape(-1)
            entries = jax.lax.bitcast_convert_type(entries, jnp.float32) / devices
            means.append(jnp.zeros(x.size, x.dtype).at[places].add(entries).reshape(x.shape))
            begin = end
        sent = [
            jnp.zeros(x.size, x.dtype).at[i].set(v).reshape(x.shape)
            for x, i, v in zip(contributions, indices, values, strict=True)
        ]
        return means, sent, {}

    return compressed(
        "aggregate_top_k",
        axis_name,
        op,
        error_only,
        exchange,
        lambda shape: 8 * entries_sent(shape),
        gathers=True,
    )


@transformation
def aggregate_power_sgd(
    axis_name: AxisName, rank: PositiveInt = 4, op: str = "mean"
) -> GradientTransformation:
    r"""Like :func:`aggregate_bf16`, but sends two low-rank factors for every matrix.

    With :math:`M_i = g_i + e_i`, and :math:`Q` from the previous step,

    .. math:: P = \mathrm{orth}\Big(\frac1n \sum_i M_i Q\Big), \qquad
        Q = \frac1n \sum_i M_i^\top P, \qquad \bar g = P Q^\top, \qquad
        e_i = M_i - P P^\top M_i

    Args:
        axis_name: the axis over which to reduce.
        rank: the number of columns of :math:`P` and :math:`Q`, at least 1.
        op: ``"mean"`` or ``"sum"``.

    The first dimension of a leaf gives the rows of its matrix, the others the columns. Leaves whose
    factors would not be smaller are sent whole. A message has 4 bytes for each entry of the
    factors, or of a whole leaf; there are two all-reduces per step. State: `PowerSGDState`; if a
    column of :math:`Q` became 0, the old one is kept, so that it survives a zero gradient. The
    rest, including what it raises, is as in :func:`aggregate_bf16`.

    Source: T. Vogels et al., PowerSGD: Practical Low-Rank Gradient Compression, 2019,
    arXiv:1905.13727, algorithms 1 and 2.

    >>> tx = aggregate_power_sgd("data", rank=1)
    >>> update = jax.jit(jax.vmap(lambda g: tx.update(g, tx.init(g))[0], axis_name="data"))
    >>> update(jnp.stack([jnp.ones((4, 4)), jnp.full((4, 4), 3.0)]))[0, 0].round(4).tolist()
    [2.0, 2.0, 2.0, 2.0]
    """

    def matrix(shape: tuple[int, ...]) -> tuple[int, int] | None:
        """The rows and columns of a leaf that is sent as factors; None if it is sent whole."""
        if len(shape) < 2 or not math.prod(shape):
            return None
        m, n = shape[0], math.prod(shape[1:])
        return (m, n) if rank * (m + n) < m * n else None

    def init(arrays: list[Array]) -> tuple[type, dict[str, list[Any]]]:
        q = []
        for i, p in enumerate(arrays):
            sides = matrix(p.shape)
            shape = (0, 0) if sides is None else (sides[1], rank)
            q.append(jax.random.normal(jax.random.key(i), shape, jnp.float32))
        return PowerSGDState, {"q": q}

    def exchange(contributions: list[Array], slots: Any, devices: int) -> Any:
        uncompressed = [matrix(x.shape) is None for x in contributions]
        matrices = [
            x if is_whole else x.reshape(matrix(x.shape))
            for x, is_whole in zip(contributions, uncompressed, strict=True)
        ]
        old = slots["q"]
        products = [
            x if is_whole else x @ q
            for x, q, is_whole in zip(matrices, old, uncompressed, strict=True)
        ]
        products = [x / devices for x in _summed(products, axis_name)]
        left = [
            x if is_whole else jnp.linalg.qr(x)[0]
            for x, is_whole in zip(products, uncompressed, strict=True)
        ]
        right = [
            m.T @ p
            for m, p, is_whole in zip(matrices, left, uncompressed, strict=True)
            if not is_whole
        ]
        sums, right_factors = iter(_summed(right, axis_name)), iter(right)
        means, sent, new = [], [], []
        for x, p, q, is_whole in zip(contributions, left, old, uncompressed, strict=True):
            if is_whole:
                means.append(p)
                sent.append(x)
                new.append(q)
                continue
            mean_right = next(sums) / devices
            means.append((p @ mean_right.T).reshape(x.shape))
            sent.append((p @ next(right_factors).T).reshape(x.shape))
            new.append(jnp.where(jnp.any(mean_right != 0, axis=0), mean_right, q))
        return means, sent, {"q": new}

    def message(shape: tuple[int, ...]) -> int:
        sides = matrix(shape)
        return 4 * (math.prod(shape) if sides is None else rank * sum(sides))

    return compressed("aggregate_power_sgd", axis_name, op, init, exchange, message)
