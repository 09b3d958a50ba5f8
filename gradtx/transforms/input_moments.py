"""Gradients times the inverse second moment of the inputs of their layers: Newton-Muon."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve

from gradtx.checks import (
    Decay,
    InitialNonNegative,
    NonNegative,
    Positive,
    PositiveCount,
    PositiveInt,
)
from gradtx.composition.matrices import MuonDimensionNumbers, dimension_numbers
from gradtx.core.pair import GradientTransformation, GradientTransformationExtraArgs, transformation
from gradtx.engine.lift import refused_rows
from gradtx.leaves.matrix_layout import Matrices, MatrixDimensions, as_matrices
from gradtx.leaves.paths import aligned, leaves_with_path, matches, path_string
from gradtx.leaves.rows import is_rows
from gradtx.numerics import cast, compute_dtype, ema, increment, precise, widen
from gradtx.numerics.control import branch
from gradtx.transforms.qk_clip import of_path
from gradtx.types import (
    Array,
    Counter,
    DimensionNumbers,
    Params,
    Slots,
    State,
    Updates,
)


class InputMomentsState(NamedTuple):
    """count: i32[]; average: `K`, (n, d, d) for `n` blocks of `d` rows; inverse: `P`, likewise.

    A leaf that is not a matrix has None.
    """

    count: Counter
    average: Slots
    inverse: Slots


@precise
def input_moments(inputs: Array, block_size: int | None = None) -> Array:
    r"""The second moment of the inputs of a layer, :math:`\frac{1}{N} \sum_i \bar z_i z_i^\top`.

    Args:
        inputs: the matrix multiplies them from the right, ``(..., d)``; the mean is over all
            axes but the last.
        block_size: divides `d`; then only the blocks of this size on the diagonal are computed. If
            `d` is not larger, there is one block.

    Returns:
        ``(d, d)``, or ``(blocks, block_size, block_size)``, in float32 or wider.

    Raises:
        ValueError: `block_size` does not divide a larger `d`.

    >>> input_moments(jnp.array([[1.0, 2.0], [3.0, 0.0]])).tolist()
    [[5.0, 1.0], [1.0, 2.0]]
    """
    z = widen(jax.lax.stop_gradient(inputs))
    *before, d = z.shape
    z = z.reshape(math.prod(before), d)
    if block_size is None:
        return z.conj().T @ z / len(z)
    if d > block_size and d % block_size:
        raise ValueError(f"input_moments: block_size={block_size} does not divide {d} inputs")
    z = z.reshape(len(z), max(d // block_size, 1), min(d, block_size))
    return jnp.einsum("nbi,nbj->bij", z.conj(), z) / len(z)


@transformation
def scale_by_input_moments(
    decay: Decay = 0.95,
    ridge: Positive = 0.2,
    eps: NonNegative = 1e-8,
    initial: InitialNonNegative = 1e-3,
    every: PositiveCount = 32,
    *,
    block_size: PositiveInt | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""Multiply gradients of matrices by the inverse second moment of their layers' inputs.

    For a layer :math:`y = z W` with inputs `z` and a matrix `W` of :math:`d \times n`,

    .. math::
        K &\leftarrow \beta K + (1 - \beta) \tfrac{1}{N} \textstyle\sum_i \bar z_i z_i^\top, \qquad
            P \leftarrow \Bigl(K + \bigl(\gamma \tfrac{\operatorname{tr} K}{d}
            + \epsilon\bigr) I\Bigr)^{-1} \qquad \text{at every } T \text{-th step}, \\
        u_t &= P g_t

    which, but for the average and the ridge, is Newton's step for a quadratic loss.
    :func:`newton_muon` is Muon after this transformation.

    Args:
        decay: :math:`\beta` in :math:`[0, 1)`.
        ridge: :math:`\gamma > 0`, relative to the mean of the diagonal.
        eps: :math:`\epsilon \ge 0`.
        initial: `K` begins as this number times the identity, and `P` as the identity.
        every: `T`, at least 1; a number, or a schedule.
        block_size: divides `d`; `K` then consists of blocks of this size on the diagonal. A side
            that is not longer is one block.
        weight_dimension_numbers: as in :func:`scale_by_muon`; the rows are the inputs.

    ``update`` takes the moments as the extra argument ``input_moments``: a dict of results of
    the function :func:`input_moments`, by the path pattern of the matrices with these inputs,
    ``{"*/attention/qkv": ...}``; ``(layers, d, d)`` for stacked layers. They are read at every
    `T`-th step, counted from 1, and need not be measured at the others. A matrix without moments,
    or with None for them, keeps its `P`. On several devices, average the moments first; under
    :func:`accumulate`, over the micro-batches of a window, of which only the last call is read.

    State: `InputMomentsState`, in float32 or wider.

    Raises:
        ValueError: a pattern matches neither a matrix nor a leaf without a gradient, a matrix has
            moments by two patterns or of another shape, or `block_size` does not divide a longer
            side.
        TypeError: the gradient of a matrix is `Rows`, or ``input_moments`` is no dict.

    A `P` that is not finite becomes the identity, as the authors intend (their code changes only a
    copy). A `K` that is not finite stays so.

    Source: Z. Du and W. Su, The Newton-Muon Optimizer, 2026, arXiv:2604.01472, algorithm 1, with
    the constants, the initial values and the steps at which `K` is updated from the authors' code,
    https://github.com/zhehangdu/Newton-Muon.

    >>> tx = scale_by_input_moments(ridge=0.5, every=1, decay=0.0)
    >>> g, z = jnp.ones((2, 1)), jnp.array([[2.0, 0.0], [0.0, 0.0]])
    >>> moments = {"*": input_moments(z)}  # 2 for the first input, and the ridge is 0.5
    >>> tx.update(g, tx.init(g), input_moments=moments)[0].round(3).ravel().tolist()
    [0.4000000059604645, 2.0]
    """
    name = "scale_by_input_moments"
    dimensions = MatrixDimensions(dimension_numbers(weight_dimension_numbers), MuonDimensionNumbers)

    def init(params: Params) -> State:
        leaves, treedef = leaves_with_path(params)
        numbers = dimensions.of(name, params)
        inverses = [
            None if p is None or number is None else _identities(name, path, p, number, block_size)
            for (path, p), number in zip(leaves, numbers, strict=True)
        ]
        averages = [None if inverse is None else initial * inverse for inverse in inverses]
        slots = map(treedef.unflatten, (averages, inverses))
        return InputMomentsState(jnp.zeros([], jnp.int32), *slots)

    def refresh(average: Array, inverse: Array, new: Array) -> tuple[Array, Array]:
        return _refreshed(ema(new, average, decay), ridge, eps)

    def update(
        updates: Updates,
        state: State,
        params: Params | None = None,
        *,
        input_moments: Mapping[str, Any] | None = None,
        **extra_args: Any,
    ) -> tuple[Updates, State]:
        del params, extra_args
        count = increment(state.count)
        due = count % every == 0
        leaves, treedef = leaves_with_path(updates)
        averages, inverses = (
            aligned(f"{name}: gradients and state are different trees", updates, treedef, x)
            for x in (state.average, state.inverse)
        )
        moments = _moments_of_leaves(name, input_moments, leaves, averages)
        numbers = dimensions.of(name, updates)
        out = [g for _, g in leaves]
        for i, (path, g) in enumerate(leaves):
            if g is None or averages[i] is None:
                continue
            matrices = as_matrices(name, path, g.shape, numbers[i])
            if moments[i] is not None:
                new = _blocks(name, path_string(path), moments[i], averages[i], matrices)
                averages[i], inverses[i] = branch(
                    due, refresh, lambda *slots: slots[:2], averages[i], inverses[i], new
                )
            out[i] = _multiplied(inverses[i], matrices, g)
        slots = map(treedef.unflatten, (averages, inverses))
        return treedef.unflatten(out), InputMomentsState(count, *slots)

    return GradientTransformationExtraArgs(init, update)


def _identities(name: str, path: Any, p: Array, numbers: Any, block_size: int | None) -> Array:
    """The first inverse for the matrices of a leaf: an identity for each block of their rows."""
    matrices = as_matrices(name, path, p.shape, numbers)
    rows, blocks = matrices.rows, 1
    if block_size is not None and rows > block_size:
        if rows % block_size:
            raise ValueError(
                f"{name}: block_size={block_size} does not divide the {rows} rows of the matrix at "
                f"{path_string(path)!r}"
            )
        blocks = rows // block_size
    identity = jnp.eye(rows // blocks, dtype=compute_dtype(p.dtype))
    return jnp.tile(identity, (matrices.sizes[0] * blocks, 1, 1))


def _moments_of_leaves(
    name: str, moments_by_pattern: Any, leaves: list[tuple[Any, Any]], averages: list[Any]
) -> list[Any]:
    """The moments of the inputs of each matrix with a gradient; None where none are passed."""
    moments_by_pattern = {} if moments_by_pattern is None else moments_by_pattern
    if not isinstance(moments_by_pattern, Mapping):
        raise TypeError(f"{name}: input_moments must be a dict of moments by path pattern")
    used: set[str] = set()
    moments = []
    for (path, g), average in zip(leaves, averages, strict=True):
        where, leaf_moments = path_string(path), None
        if g is None or average is not None:
            # A leaf without a gradient may be a matrix of another group, or a frozen one.
            used |= {pattern for pattern in moments_by_pattern if matches(where, pattern)}
        if g is not None and average is not None:
            if is_rows(g):
                raise refused_rows(name, path)
            argument = f"{name}: input_moments"
            leaf_moments = of_path(argument, moments_by_pattern, where, required=False)
        moments.append(leaf_moments)
    if unused := sorted(set(moments_by_pattern) - used):
        raise ValueError(f"{name}: input_moments: {unused[0]!r} matches no matrix")
    return moments


@precise
def _refreshed(average: Array, ridge: Any, eps: Any) -> tuple[Array, Array]:
    """The average, and the inverse of the average with the ridge on its diagonal."""
    _, side, _ = average.shape
    identity = jnp.eye(side, dtype=average.dtype)
    mean = jnp.trace(average, axis1=-2, axis2=-1).real / max(side, 1)
    root = jnp.linalg.cholesky(average + (ridge * mean + eps)[:, None, None] * identity)
    inverse = cho_solve((root, True), jnp.broadcast_to(identity, average.shape))
    works = jnp.all(jnp.isfinite(inverse), (-2, -1), keepdims=True)
    return average, jnp.where(works, inverse, identity)


@precise
def _multiplied(inverse: Array, matrices: Matrices, g: Array) -> Array:
    """The product of the inverse moments and a gradient."""
    count, side, _ = inverse.shape
    x = matrices.take(widen(g)).reshape(count, side, matrices.columns)
    return cast(matrices.put((inverse @ x).reshape(matrices.sizes)), g.dtype)


def _blocks(name: str, path: str, moments: Any, like: Array, matrices: Matrices) -> Array:
    """The moments of the matrices of a leaf, as its average has them."""
    moments, (_, side, _) = jnp.asarray(moments), like.shape
    _, rows, columns = matrices.axes
    batch = tuple(matrices.split[axis] for axis in matrices.order[: -len(rows) - len(columns)])
    count = max(matrices.rows, 1) // max(side, 1)
    shape = (*batch, count, side, side)
    if moments.shape not in (shape, (*batch, side, side) if count == 1 else shape):
        raise ValueError(
            f"{name}: the moments of {path!r} have the shape {moments.shape}; its {len(like)} "
            f"blocks have {like.shape[1:]} each, so that {shape} would fit"
        )
    return cast(moments.reshape(like.shape), like.dtype)
