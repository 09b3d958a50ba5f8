"""The gradient noise scale: the batch size beyond which more examples help little."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from gradtx.numerics import log_of, widen
from gradtx.tree import norm_sq
from gradtx.types import Array, Updates


class NoiseScale(NamedTuple):
    """Averages from which the noise scale follows; arrays of no dimensions.

    estimates: i32[], how many; square: of the squared norm of the gradient of all data;
    noise: of the trace of the covariance of an example's gradient.
    """

    estimates: Array
    square: Array
    noise: Array

    @property
    def value(self) -> Array:
        """The noise scale, in examples; infinite where no gradient is seen through the noise."""
        return jnp.where(
            self.square > 0, self.noise / jnp.where(self.square > 0, self.square, 1), jnp.inf
        )


def noise_scale(
    small_square: Any,
    large_square: Any,
    small_batch: Any,
    large_batch: Any,
    average: NoiseScale | None = None,
    *,
    decay: float = 0.99,
) -> NoiseScale:
    r"""An estimate of the gradient noise scale from gradients of two batch sizes.

    .. math:: S = \frac{|g_b|^2 - |g_B|^2}{1/b - 1/B}, \qquad
        |G|^2 = \frac{B |g_B|^2 - b |g_b|^2}{B - b}, \qquad
        \mathcal{B} = \frac{\langle S \rangle}{\langle |G|^2 \rangle}

    Both are unbiased; their quotient is not, and so each is averaged by itself over steps, with
    weights that fall by `decay` and add up to 1.

    Args:
        small_square: :math:`|g_b|^2`, the squared norm of the gradient of a batch of `b` examples,
            or better the mean of it over the micro-batches, or devices, that make up the large one.
        large_square: :math:`|g_B|^2`, that of the gradient of `B` examples: their mean gradient.
        small_batch: `b`, at least 1.
        large_batch: `B`, above `b`.
        average: the result of the last step; None at the first.
        decay: in [0, 1).

    Returns:
        A `NoiseScale`, whose ``value`` is :math:`\mathcal{B}`. It is a pytree, and may be carried
        through compiled steps.

    Raises:
        ValueError: the batch sizes, or `decay`, are out of their range.

    Source: S. McCandlish et al., An Empirical Model of Large-Batch Training, 2018,
    arXiv:1812.06162, appendix A.1.

    >>> float(noise_scale(5.0, 2.0, 8, 32).value)
    32.0
    """
    known = all(isinstance(x, int | float | np.number) for x in (small_batch, large_batch))
    if known and not 1 <= small_batch < large_batch:
        raise ValueError(
            f"noise_scale: the batch sizes must be 1 <= {small_batch!r} < {large_batch!r}: the "
            "small one first"
        )
    if isinstance(decay, int | float | np.number) and not 0 <= decay < 1:
        raise ValueError(f"noise_scale: decay must be a number in [0, 1), not {decay!r}")
    b, large = jnp.asarray(small_batch, float), jnp.asarray(large_batch, float)
    noise = (small_square - large_square) / (1 / b - 1 / large)
    square = (large * large_square - b * small_square) / (large - b)
    if average is None:
        return NoiseScale(jnp.ones((), jnp.int32), jnp.asarray(square), jnp.asarray(noise))
    count = average.estimates + 1
    # The weights add up to 1, also for a decay that float32 would round to 1.
    new = (decay - 1) / jnp.expm1(count * log_of(decay))

    def averaged(old: Array, x: Array) -> Array:
        return (old + new * (x - old)).astype(old.dtype)

    return NoiseScale(count, averaged(average.square, square), averaged(average.noise, noise))


def no_estimates() -> NoiseScale:
    """The average of no estimates, each array with a buffer of its own."""
    return NoiseScale(
        jnp.zeros([], jnp.int32), jnp.zeros([], jnp.float32), jnp.zeros([], jnp.float32)
    )


def weighted_square(gradients: Updates, weight: Any) -> Array:
    """f32[2]: the squared norm of a part's gradients times its weight, and 1 if that is above 0.

    A part of weight 0 counts for nothing, whatever its gradients are.
    """
    counts = jnp.asarray(weight) > 0
    square = jnp.where(counts, norm_sq(gradients), 0)
    return jnp.stack([widen(1.0 * jnp.asarray(weight)) * square, counts.astype(square.dtype)])


def noise_scale_of_parts(
    squares: Array, parts: Any, mean_square: Array, weight: Any, average: NoiseScale, decay: Any
) -> NoiseScale:
    r"""The average with an estimate from the gradients of parts of a batch.

    The parts may have different weights: :math:`\sum_i w_i |g_i|^2 / W` of `n` parts is the
    expected square of one part of weight :math:`W / n`.

    Args:
        squares: :math:`\sum_i w_i |g_i|^2`.
        parts: `n`, how many parts have a weight.
        mean_square: :math:`|\bar g|^2`, of the weighted mean.
        weight: `W`, the sum of the weights.
        average: the average so far, which stays where there are fewer than two parts, or where
            something is not finite.
        decay: of the average.
    """
    parts, weight = jnp.asarray(parts, float), jnp.asarray(weight, float)
    counts = (parts > 1) & (weight > 0) & jnp.isfinite(squares) & jnp.isfinite(mean_square)
    parts, weight = jnp.where(counts, parts, 2), jnp.where(counts, weight, 1)
    new = noise_scale(squares / weight, mean_square, weight / parts, weight, average, decay=decay)
    return NoiseScale(*(jnp.where(counts, x, old) for x, old in zip(new, average, strict=True)))
