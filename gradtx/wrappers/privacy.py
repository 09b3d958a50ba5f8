"""Differential privacy: each example's gradient is clipped, and noise is added to their sum."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checks import Fraction, LearningRate, NonNegative, PositiveCount
from gradtx.composition.around import InnerStep, around
from gradtx.composition.chain import chain, identity
from gradtx.core.pair import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    optimizer,
    transformation,
)
from gradtx.leaves.paths import leaves_with_path
from gradtx.numerics import cast, widen
from gradtx.transforms.momentum import trace
from gradtx.transforms.per_example import clipped_mean
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array, Key, Params, State, Updates
from gradtx.types.keys import given_key, own_key
from gradtx.wrappers.accumulation import accumulate


class DifferentiallyPrivateAggregateState(NamedTuple):
    """rng_key: a random key."""

    rng_key: Key


def _noisy(updates: Updates, deviation: Any, key: Array) -> tuple[Updates, Array]:
    """The updates with normal noise, each leaf's own, and the next key."""
    leaves, treedef = leaves_with_path(updates)
    next_key, *keys = jax.random.split(key, sum(g is not None for _, g in leaves) + 1)

    def on_leaf(g: Any, key: Array) -> Array:
        # The two parts of a complex number each need the full variance; as drawn, they share 1.
        kind, scale = (jnp.complex64, math.sqrt(2)) if jnp.iscomplexobj(g) else (jnp.float32, 1.0)
        return cast(widen(g) + deviation * scale * jax.random.normal(key, g.shape, kind), g.dtype)

    rest = iter(keys)
    noised = [None if g is None else on_leaf(g, next(rest)) for _, g in leaves]
    return treedef.unflatten(noised), next_key


@transformation
def differentially_private_aggregate(
    l2_norm_clip: NonNegative, noise_multiplier: NonNegative, key: Any = None, *, seed: Any = None
) -> GradientTransformation:
    r"""The mean of the examples' clipped gradients, with noise; it comes first in a chain.

    Kept for code written for Optax; :func:`differentially_private` is preferred.

    .. math:: u = \frac{1}{B} \left(\sum_{i=1}^{B} g_i
        \min\left(1, \frac{C}{\lVert g_i \rVert}\right) + C \sigma \xi\right), \qquad
        \xi \sim N(0, 1)

    Args:
        l2_norm_clip: :math:`C \ge 0`.
        noise_multiplier: :math:`\sigma \ge 0`.
        key: a random key or an integer seed.
        seed: Optax's old name for `key`.

    ``update`` takes gradients with the examples in the first dimension, as ``jax.vmap`` of a
    gradient gives them, and returns updates in the shapes of the parameters. For windows of several
    micro-batches, which need noise once, see :func:`differentially_private`.

    State: `DifferentiallyPrivateAggregateState`. The noise is drawn in float32 whatever the type.

    Raises:
        ValueError: there is no key (Optax then uses a known key, so that the noise can be
            subtracted again), or the leaves have no common first dimension.
        TypeError: a gradient is `Rows`.

    Source: M. Abadi et al., Deep Learning with Differential Privacy, 2016, arXiv:1607.00133,
    algorithm 1.

    >>> tx = differentially_private_aggregate(1.0, noise_multiplier=0.0, key=1)
    >>> grads = jnp.array([[3.0, 4.0], [0.0, 0.0]])
    >>> tx.update(grads, tx.init(jnp.zeros(2)))[0].round(6).tolist()
    [0.30000001192092896, 0.4000000059604645]
    """
    noise_key = _required("differentially_private_aggregate", key, seed)

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        del params, extra_args
        mean, count = clipped_mean(updates, l2_norm_clip)
        deviation = l2_norm_clip * noise_multiplier / max(count, 1)
        noised, key = _noisy(mean, deviation, state.rng_key)
        return noised, DifferentiallyPrivateAggregateState(key)

    return GradientTransformationExtraArgs(
        lambda params: DifferentiallyPrivateAggregateState(own_key(noise_key)), update
    )


def _required(name: str, key: Any, seed: Any = None) -> Any:
    noise_key = given_key(name, key, seed)
    if noise_key is None:
        raise ValueError(f"{name} needs a key: noise from a known one gives no privacy")
    return noise_key


def _window_noise(key: Any) -> GradientTransformation:
    """Noise for the mean over a window; `accumulate` passes the number of examples in it.

    The deviation of a sum is the extra argument ``noise_deviation``.
    """

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        deviation = extra_args["noise_deviation"] / jnp.maximum(extra_args["weight"], 1)
        noised, key = _noisy(updates, deviation, state.rng_key)
        return noised, DifferentiallyPrivateAggregateState(key)

    return GradientTransformationExtraArgs(
        lambda params: DifferentiallyPrivateAggregateState(own_key(key)), update
    )


@transformation(native_schedules=True)
def differentially_private(
    inner: GradientTransformation,
    l2_norm_clip: NonNegative,
    noise_multiplier: NonNegative,
    key: Any,
    *,
    every: PositiveCount = 1,
) -> GradientTransformation:
    """Any optimizer on clipped and noised gradients, with noise once per window of micro-batches.

    Args:
        inner: the optimizer.
        l2_norm_clip: this and the next as in :func:`differentially_private_aggregate`; a number, an
            array, or a schedule of the number of windows so far.
        noise_multiplier: the noise's standard deviation divided by `l2_norm_clip`.
        key: a random key or an integer seed.
        every: the number of micro-batches in a window, as in :func:`accumulate`. They may
            differ in size, and some have no example: the mean is over examples.

    ``update`` takes gradients with the examples in the first dimension. The clipped gradients of a
    window are added up and noised together, so that noise and step are those of one batch with the
    same examples; in Optax, where ``MultiSteps`` wraps the whole, every micro-batch is noised.

    State: for ``every=1`` a pair of `DifferentiallyPrivateAggregateState` and the inner state, else
    an `AccumulateState`, for which :func:`has_updated` says whether the last call made a step.

    >>> import gradtx
    >>> tx = differentially_private(gradtx.sgd(1.0), 1.0, noise_multiplier=0.0, key=1, every=2)
    >>> params, state = jnp.zeros(1), tx.init(jnp.zeros(1))
    >>> for grads in (jnp.array([[0.5], [4.0]]), jnp.array([[0.0], [0.0]])):
    ...     updates, state = tx.update(grads, state, params)
    >>> updates.tolist()
    [-0.375]
    """
    if isinstance(every, int) and every == 1:
        return chain(differentially_private_aggregate(l2_norm_clip, noise_multiplier, key), inner)
    noise_key = _required("differentially_private", key)

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Updates, State]:
        window = state.gradient_step
        clip, noise = (x(window) if callable(x) else x for x in (l2_norm_clip, noise_multiplier))
        mean, count = clipped_mean(updates, clip)
        return inner_step(mean, state, params, weight=count, noise_deviation=clip * noise)

    return around(accumulate(chain(_window_noise(noise_key), inner), every), None, run)


@optimizer
def dpsgd(
    learning_rate: LearningRate,
    l2_norm_clip: NonNegative,
    noise_multiplier: NonNegative,
    key: Any = None,
    momentum: Fraction | None = None,
    nesterov: bool = False,
    *,
    every: PositiveCount = 1,
    seed: Any = None,
) -> GradientTransformation:
    r"""Differentially private SGD: :func:`differentially_private_aggregate` and :func:`sgd`.

    Kept for code written for Optax; :func:`differentially_private`, around any optimizer, is
    preferred.

    .. math::
        u &= \frac{1}{B} \left(\sum_{i=1}^{B} g_i
            \min\left(1, \frac{C}{\lVert g_i \rVert}\right) + C \sigma \xi\right), \qquad
            \xi \sim N(0, 1), \\
        m &\leftarrow \mu m + u, \qquad
            \theta \leftarrow \theta - \eta m
            \;\text{ or, with Nesterov momentum, }\; \theta - \eta (u + \mu m)

    where :math:`g_i` is the gradient of example `i` of `B`. Without momentum :math:`m = u`.

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        l2_norm_clip: :math:`C \ge 0`, the norm to which each example's gradient is clipped.
        noise_multiplier: :math:`\sigma \ge 0`, the noise's standard deviation divided by `C`.
        key: a random key or an integer seed.
        momentum: :math:`\mu` in :math:`[0, 1]`; None for none.
        nesterov: use Nesterov momentum.
        every: how many micro-batches get noise together, as in :func:`differentially_private`.
        seed: Optax's name for `key`.

    ``update`` takes gradients with the examples in the first dimension.

    Raises:
        ValueError: there is no key (for a seed of None Optax uses a known one).

    Source: M. Abadi et al., Deep Learning with Differential Privacy, 2016, arXiv:1607.00133,
    algorithm 1.

    >>> import gradtx
    >>> tx = dpsgd(0.1, l2_norm_clip=1.0, noise_multiplier=0.1, key=1)
    >>> grad = jax.grad(lambda params, example: jnp.sum((params - example) ** 2))
    >>> data = jnp.array([[0.5, 1.5], [1.5, 0.5]])
    >>> @jax.jit
    ... def step(params, state):
    ...     grads = jax.vmap(grad, in_axes=(None, 0))(params, data)
    ...     updates, state = tx.update(grads, state, params)
    ...     return gradtx.apply_updates(params, updates), state
    >>> params, state = jnp.zeros(2), tx.init(jnp.zeros(2))
    >>> for _ in range(100):
    ...     params, state = step(params, state)
    >>> bool(jnp.allclose(params, 1, atol=1e-1))
    True
    """
    noise_key = _required("dpsgd", key, seed)
    links = (
        identity() if momentum is None else trace(momentum, nesterov),
        scale_by_learning_rate(learning_rate),
    )
    if isinstance(every, int) and every == 1:
        private = differentially_private_aggregate(l2_norm_clip, noise_multiplier, noise_key)
        return chain(private, *links)
    return differentially_private(
        chain(*links), l2_norm_clip, noise_multiplier, noise_key, every=every
    )
