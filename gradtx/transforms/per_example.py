"""Per-example gradients, with examples in the first dimension, clipped one by one and summed."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from gradtx.leaves.paths import leaves_with_path, path_string
from gradtx.leaves.rows import is_rows
from gradtx.numerics import Norm, cast, norm, shrink_factors, widen
from gradtx.numerics.norms import Chip, Scales, norm_of_sums, sums_of_squares, with_derivative
from gradtx.tree import map_updates
from gradtx.types import Array, PyTree


def examples(grads: PyTree) -> list[Any]:
    """The leaves, each with the same number of examples in the first dimension."""
    leaves = [(path_string(path), x) for path, x in leaves_with_path(grads)[0] if x is not None]
    for path, x in leaves:
        if is_rows(x):
            raise TypeError(
                f"per-example gradients are arrays, and the one at {path!r} is Rows: make it dense "
                "with to_dense()"
            )
    lengths = {path: jnp.shape(x)[:1] for path, x in leaves}
    if len(set(lengths.values())) > 1 or () in lengths.values():
        raise ValueError(
            "per-example gradients have one length, the number of examples, in their first "
            f"dimension; these have {lengths}"
        )
    return [x for _, x in leaves]


def _as_floats(grads: PyTree) -> PyTree:
    """Integers as floats, since clipped values are not integers."""

    def on_leaf(x: Any) -> Any:
        exact = hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.integer)
        return jnp.asarray(x, float) if exact else x

    return jax.tree.map(on_leaf, grads, is_leaf=is_rows)


Factors = tuple[Array, Array]
"""For each example a power of two and a factor that together shorten it."""


def clipped_sum(x: Array, factors: Factors) -> Array:
    """The sum over examples, each multiplied by its factors, in at least float32."""
    power, factor = (f.reshape((-1,) + (1,) * (x.ndim - 1)) for f in factors)
    return jnp.sum(widen(x) * power * factor, axis=0)


def global_factors(leaves: list[Any], l2_norm_clip: Any) -> Factors:
    """The factors of each example, from its norm over all leaves."""

    def sums(scales: Scales, *leaves: Array, on: Chip | None = None) -> list[Array]:
        del on
        every = [jnp.broadcast_to(1.0 if s is None else s, len(leaves[0])) for s in scales]
        each = [jax.vmap(sums_of_squares)(every, x) for x in leaves]
        return [jnp.sum(jnp.stack(of_scale), axis=0) for of_scale in zip(*each, strict=True)]

    def differentiable(value: Array, unit: Array, *one: Array) -> Norm:
        return with_derivative(Norm(value, unit), one)

    norms = norm_of_sums(sums, tuple(leaves))
    return shrink_factors(jax.vmap(differentiable)(*norms, *leaves), l2_norm_clip)


def _is_clipped(factors: Factors) -> Array:
    return factors[0] * factors[1] < 1


def clipped_mean(grads: PyTree, l2_norm_clip: Any) -> tuple[PyTree, int]:
    """The mean over examples of their clipped gradients, 0 for none, and how many there are."""
    grads = _as_floats(grads)
    leaves = examples(grads)
    if not leaves:
        return grads, 1
    count = leaves[0].shape[0]
    factors = global_factors(leaves, l2_norm_clip)
    mean = map_updates(lambda x: cast(clipped_sum(x, factors) / max(count, 1), x.dtype), grads)
    return mean, count


def per_example_global_norm_clip(grads: PyTree, l2_norm_clip: Any) -> tuple[PyTree, Array]:
    r"""The sum over examples of their gradients, each clipped by its global norm.

    .. math:: \sum_i g_i \min\left(1, \frac{C}{\lVert g_i \rVert}\right)

    Args:
        grads: a tree of gradients with the examples in the first dimension.
        l2_norm_clip: :math:`C \ge 0`.

    Returns:
        The sum, and the number of examples that were clipped.

    Raises:
        ValueError: the leaves have no common first dimension.

    Source: M. Abadi et al., Deep Learning with Differential Privacy, 2016, arXiv:1607.00133,
    algorithm 1.

    >>> total, clipped = per_example_global_norm_clip([jnp.array([[0.0, 0.0], [3.0, 4.0]])], 1.0)
    >>> total[0].round(6).tolist(), int(clipped)
    ([0.6000000238418579, 0.800000011920929], 1)
    """
    grads = _as_floats(grads)
    factors = global_factors(examples(grads), l2_norm_clip)
    summed = jax.tree.map(lambda x: cast(clipped_sum(x, factors), x.dtype), grads)
    return summed, jnp.sum(_is_clipped(factors))


def per_example_layer_norm_clip(
    grads: PyTree, global_l2_norm_clip: Any, uniform: bool = True
) -> tuple[PyTree, PyTree]:
    r"""The sum over examples of their gradients, each leaf clipped by its own norm.

    .. math:: \sum_i g_{il} \min\left(1, \frac{C_l}{\lVert g_{il} \rVert}\right), \qquad
        C_l = \frac{C}{\sqrt K} \;\text{ or }\; C \sqrt{\frac{D_l}{D}}

    Args:
        grads: a tree of gradients with the examples in the first dimension.
        global_l2_norm_clip: :math:`C \ge 0`, for all `K` leaves together.
        uniform: whether :math:`C_l` is the same for all; otherwise it depends on the number of
            entries, :math:`D_l` of `D`.

    Returns:
        The sums, and for each leaf the number of examples that were clipped.

    Raises:
        ValueError: the leaves have no common first dimension.

    Source: H. B. McMahan et al., Learning Differentially Private Recurrent Language Models, 2018,
    arXiv:1710.06963.

    >>> total, clipped = per_example_layer_norm_clip([jnp.array([[0.0, 0.0], [3.0, 4.0]])], 1.0)
    >>> total[0].round(6).tolist(), int(clipped[0])
    ([0.6000000238418579, 0.800000011920929], 1)
    """
    grads = _as_floats(grads)
    leaves = examples(grads)
    entries = sum(math.prod(x.shape[1:]) for x in leaves)

    def factors(x: Array) -> Factors:
        share = 1 / len(leaves) if uniform else math.prod(x.shape[1:]) / max(entries, 1)
        lengths = norm(x, tuple(range(1, x.ndim)))
        return shrink_factors(lengths, global_l2_norm_clip * math.sqrt(share))

    summed = jax.tree.map(lambda x: cast(clipped_sum(x, factors(x)), x.dtype), grads)
    return summed, jax.tree.map(lambda x: jnp.sum(_is_clipped(factors(x))), grads)
