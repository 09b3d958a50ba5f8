"""Sparse aggregation: the largest entries of every chunk of a leaf, in few bits."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.checks import Fraction, PositiveFraction, PositiveInt
from gradtx.core.pair import GradientTransformation, transformation
from gradtx.distributed.compression import compressed, error_only
from gradtx.sharding.axes import AxisName, everyones
from gradtx.types import Array

LARGEST_CHUNK = 128
"""The longest side of a chunk: 14 bits say where in it an entry is."""


class Chunks(NamedTuple):
    """A leaf as matrices `(matrices, rows, columns)` cut into chunks of `(height, width)` entries.

    The last two dimensions of a leaf are the rows and columns; a vector is a matrix of one row.
    """

    matrices: int
    rows: int
    columns: int
    height: int
    width: int

    @classmethod
    def of(cls, shape: tuple[int, ...], side: int, length: int) -> "Chunks":
        """The chunks of a leaf: squares, `length` entries of a vector, or the leaf if smaller."""
        rows, columns = (1, 1, *shape)[-2:]
        most = side if len(shape) > 1 else length
        height, width = (min(most, max(n, 1)) for n in (rows, columns))
        return cls(math.prod(shape[:-2]), rows, columns, height, width)

    @property
    def grid(self) -> tuple[int, int]:
        """The numbers of rows and of columns of chunks in a matrix; the last ones are padded."""
        return -(-self.rows // self.height), -(-self.columns // self.width)

    @property
    def total(self) -> int:
        """The number of chunks."""
        return self.matrices * math.prod(self.grid)

    def cut(self, x: Array) -> Array:
        """The chunks of a leaf, `(total, height, width)`."""
        down, across = self.grid
        x = x.reshape(self.matrices, self.rows, self.columns)
        more = down * self.height - self.rows, across * self.width - self.columns
        x = jnp.pad(x, ((0, 0), (0, more[0]), (0, more[1])))
        x = x.reshape(self.matrices, down, self.height, across, self.width)
        return x.swapaxes(2, 3).reshape(self.total, self.height, self.width)

    def joined(self, chunks: Array, shape: tuple[int, ...]) -> Array:
        """A leaf of some shape, put together from its chunks."""
        down, across = self.grid
        x = chunks.reshape(self.matrices, down, across, self.height, self.width).swapaxes(2, 3)
        x = x.reshape(self.matrices, down * self.height, across * self.width)
        return x[:, : self.rows, : self.columns].reshape(shape)


class Code(NamedTuple):
    """The encoding of the entries of a chunk that are sent, as words of 16 bits.

    Attributes:
        encode: ``(where, values) -> words``, from `(chunks, entries)` to `(chunks, words)`.
        decode: ``words -> (where, values)``; further dimensions may stand before these.
        words: ``entries -> words``, the number of words for a number of entries.
    """

    encode: Callable[[Array, Array], Array]
    decode: Callable[[Array], tuple[Array, Array]]
    words: Callable[[int], int]


def _as_words(x: Array) -> Array:
    words = jax.lax.bitcast_convert_type(x, jnp.uint16)
    return jax.lax.collapse(words, 1)


def _two_bits() -> Code:
    """An encoding in a word for each entry: its place, its sign, and one of two sizes.

    The two sizes of a chunk are the means of the entries below and above the mean size.
    """

    def encode(where: Array, values: Array) -> Array:
        sizes = jnp.abs(values)
        large = sizes > jnp.mean(sizes, axis=1, keepdims=True)

        def mean(these: Array) -> Array:
            total = jnp.sum(jnp.where(these, sizes, 0), axis=1)
            return total / jnp.maximum(jnp.sum(these, axis=1), 1)

        # A NaN is neither small nor large, and makes both sizes NaN.
        bad = jnp.isnan(jnp.sum(sizes, axis=1, keepdims=True))
        two = jnp.where(bad, jnp.nan, jnp.stack([mean(~large), mean(large)], axis=1))
        words = 4 * where + 2 * (values < 0) + large
        return jnp.concatenate([words.astype(jnp.uint16), _as_words(two)], axis=1)

    def decode(words: Array) -> tuple[Array, Array]:
        entries = words[..., :-4].astype(jnp.int32)
        two = words[..., -4:].reshape(*words.shape[:-1], 2, 2)
        sizes = jax.lax.bitcast_convert_type(two, jnp.float32)
        values = jnp.take_along_axis(sizes, entries & 1, axis=-1)
        return entries >> 2, jnp.where((entries & 2) != 0, -values, values)

    return Code(encode, decode, lambda entries: entries + 4)


def _bfloat16() -> Code:
    """An encoding in two words for each entry: its place, and its value in bfloat16."""

    def encode(where: Array, values: Array) -> Array:
        return jnp.concatenate(
            [where.astype(jnp.uint16), _as_words(values.astype(jnp.bfloat16))], axis=1
        )

    def decode(words: Array) -> tuple[Array, Array]:
        where, values = jnp.split(words, 2, axis=-1)
        values = jax.lax.bitcast_convert_type(values, jnp.bfloat16)
        return where.astype(jnp.int32), values.astype(jnp.float32)

    return Code(encode, decode, lambda entries: 2 * entries)


def _cosines(n: int) -> np.ndarray[Any, Any]:
    """The orthogonal matrix of the discrete cosine transform DCT-II."""
    k, i = np.mgrid[:n, :n]
    return np.sqrt((2 - (k == 0)) / n) * np.cos(np.pi * (2 * i + 1) * k / (2 * n))


class _LargestOfChunks(NamedTuple):
    """A reduction that sends the largest entries of every chunk.

    Attributes:
        axis_name: the axis over which to reduce.
        fraction: the part of a chunk's entries that is sent.
        chunks_of: ``shape -> chunks``.
        code: the encoding of these entries.
        cosines: whether the entries are cosine coefficients.
        of_senders: whether a sum is divided by the number of devices that sent the entry.
    """

    axis_name: AxisName
    fraction: float
    chunks_of: Callable[[tuple[int, ...]], Chunks]
    code: Code
    cosines: bool
    of_senders: bool = False

    def message(self, shape: tuple[int, ...]) -> int:
        """The bytes that are sent for a leaf."""
        chunks = self.chunks_of(shape)
        return 2 * chunks.total * self.code.words(self._entries_sent(chunks))

    def exchange(self, contributions: list[Array], slots: Any, devices: int) -> Any:
        del slots
        if not contributions:
            return [], [], {}
        chunks = [self.chunks_of(x.shape) for x in contributions]
        words = [self._encoded(x, c) for x, c in zip(contributions, chunks, strict=True)]
        message = jnp.concatenate([w.reshape(-1) for w in words])

        def mean(messages: Array, over: int | None) -> list[Array]:
            leaves, begin = [], 0
            for x, w, c in zip(contributions, words, chunks, strict=True):
                end = begin + w.size
                words_of_leaf = messages[:, begin:end].reshape(len(messages), *w.shape)
                leaves.append(self._mean(words_of_leaf, x, c, over))
                begin = end
            return leaves

        means = mean(everyones(message, self.axis_name), None if self.of_senders else devices)
        return means, mean(message[None], 1), {}

    def _entries_sent(self, chunks: Chunks) -> int:
        return math.ceil(self.fraction * chunks.height * chunks.width)

    def _encoded(self, x: Array, chunks: Chunks) -> Array:
        """The words that are sent for a leaf, `(chunks, words)`."""
        cut = chunks.cut(x)
        entries = jax.lax.collapse(_cosine_transform(cut, chunks) if self.cosines else cut, 1)
        where = jax.lax.top_k(jnp.abs(entries), self._entries_sent(chunks))[1]
        values = jnp.take_along_axis(entries, where, axis=1)
        return self.code.encode(where, values.astype(jnp.float32))

    def _mean(self, words: Array, x: Array, chunks: Chunks, over: int | None) -> Array:
        """The sum of messages for a leaf like `x`, divided by `over` or by each entry's senders."""
        where, values = self.code.decode(words)
        rows = jnp.arange(chunks.total)[:, None]
        zeros = jnp.zeros((chunks.total, chunks.height * chunks.width), x.dtype)
        entries = zeros.at[rows, where].add(values.astype(x.dtype))
        if over is None:
            senders = zeros.at[rows, where].add((values != 0).astype(x.dtype))
            entries /= jnp.maximum(senders, 1)
        else:
            entries /= over
        cut = entries.reshape(chunks.total, chunks.height, chunks.width)
        if self.cosines:
            cut = _cosine_transform(cut, chunks, inverse=True)
        return chunks.joined(cut, x.shape)


def _cosine_transform(x: Array, chunks: Chunks, inverse: bool = False) -> Array:
    """The cosine coefficients of chunks, or the chunks of such coefficients."""
    down, across = (
        jnp.asarray(c.T if inverse else c, x.dtype)
        for c in map(_cosines, (chunks.height, chunks.width))
    )
    return jnp.matmul(jnp.matmul(down, x, precision="highest"), across.T, precision="highest")


def _check(label: str, chunk: int) -> None:
    if chunk > LARGEST_CHUNK:
        raise ValueError(f"{label}: chunk must be at most {LARGEST_CHUNK}, not {chunk}")


@transformation
def aggregate_chunked_top_k(
    axis_name: AxisName,
    fraction: PositiveFraction = 1 / 32,
    chunk: PositiveInt = 64,
    decay: Fraction = 1.0,
    op: str = "mean",
) -> GradientTransformation:
    r"""Like :func:`aggregate_bf16`, but sends the largest entries of every chunk, in two bits each.

    .. math:: c_i = g_i + \beta e_i, \qquad
        \bar g = \frac1n \sum_i Q(\mathrm{top}_k(c_i)), \qquad
        e_i \leftarrow c_i - Q(\mathrm{top}_k(c_i))

    where :math:`\mathrm{top}_k` keeps `k` entries of every chunk, and `Q` keeps the sign of each
    and one of two sizes: of the sizes sent from its chunk, the mean of those below their mean, or
    the mean of those above.

    Args:
        axis_name: the axis over which to reduce.
        fraction: the part of a chunk's entries that is sent, in :math:`(0, 1]`; rounded up.
        chunk: `s` from 1 to 128: chunks are squares of `s` by `s` in the last two dimensions of a
            leaf, and `s^2` entries of a vector.
        decay: :math:`\beta` in :math:`[0, 1]`; at 1 all that is not sent now is sent later.
        op: ``"mean"``, ``"sum"``, or ``"mean_of_senders"``, which divides every entry by the number
            of devices that sent it.

    A message has 2 bytes for each entry sent, of which 14 bits say where it is, and 8 bytes for
    each chunk; one all-gather brings all messages to all devices. State: `CompressionState`. The
    rest, including what it raises, is as in :func:`aggregate_bf16`.

    Source: A. Sarfi et al., Communication Efficient LLM Pre-training with SparseLoCo, 2025,
    arXiv:2508.15706, whose authors' code cuts the range of a tensor into four bins instead.

    >>> tx = aggregate_chunked_top_k("data", 0.5)
    >>> update = jax.jit(jax.vmap(lambda g: tx.update(g, tx.init(g))[0], axis_name="data"))
    >>> update(jnp.array([[8.0, 4.0, 1.0, 0.5], [8.0, 0.0, 0.0, 0.0]]))[0].tolist()
    [8.0, 2.0, 0.0, 0.0]
    """
    _check("aggregate_chunked_top_k", chunk)
    largest = _LargestOfChunks(
        axis_name,
        fraction,
        lambda shape: Chunks.of(shape, chunk, chunk * chunk),
        _two_bits(),
        cosines=False,
        of_senders=op == "mean_of_senders",
    )
    return compressed(
        "aggregate_chunked_top_k",
        axis_name,
        op,
        error_only,
        largest.exchange,
        largest.message,
        decay,
        gathers=True,
        ops=("mean", "sum", "mean_of_senders"),
    )


@transformation
def aggregate_dct(
    axis_name: AxisName,
    fraction: PositiveFraction = 1 / 128,
    chunk: PositiveInt = 64,
    decay: Fraction = 0.999,
    op: str = "mean",
) -> GradientTransformation:
    r"""Like :func:`aggregate_bf16`, but sends the largest cosine coefficients of every chunk.

    .. math:: m_i \leftarrow \beta m_i + g_i, \qquad
        q_i = D^\top \mathrm{top}_k(D m_i D^\top) D, \qquad
        m_i \leftarrow m_i - q_i, \qquad \bar q = \frac1n \sum_i q_i

    on every chunk, with `D` the orthogonal discrete cosine transform DCT-II. The rest, which
    is not sent, stays on each device as a momentum of its own.

    Args:
        axis_name: the axis over which to reduce.
        fraction: the part of a chunk's coefficients that is sent, in :math:`(0, 1]`; rounded up.
        chunk: `s` from 1 to 128: chunks are squares of `s` by `s` in the last two dimensions of a
            leaf, and `s` entries of a vector.
        decay: :math:`\beta` in :math:`[0, 1]`.
        op: ``"mean"`` or ``"sum"``.

    A message has 4 bytes for each coefficient: its place, and its value in bfloat16. One all-gather
    brings all messages to all devices. Leaves that are not a whole number of chunks are padded with
    zeros; the authors' code chooses chunks that divide them, and averages a coefficient over the
    devices that sent it. State: `CompressionState`, whose error is `m`. The rest, including what it
    raises, is as in :func:`aggregate_bf16`.

    Source: B. Peng, J. Quesnelle, D. P. Kingma, DeMo: Decoupled Momentum Optimization, 2024,
    arXiv:2411.19870, algorithm 1.

    >>> tx = aggregate_dct("data", 0.5)
    >>> update = jax.jit(jax.vmap(lambda g: tx.update(g, tx.init(g))[0], axis_name="data"))
    >>> update(jnp.array([[4.0, 4.0], [0.0, 0.0]]))[0].round(2).tolist()
    [2.0, 2.0]
    """
    _check("aggregate_dct", chunk)
    largest = _LargestOfChunks(
        axis_name,
        fraction,
        lambda shape: Chunks.of(shape, chunk, chunk),
        _bfloat16(),
        cosines=True,
    )
    return compressed(
        "aggregate_dct",
        axis_name,
        op,
        error_only,
        largest.exchange,
        largest.message,
        decay,
        gathers=True,
    )
