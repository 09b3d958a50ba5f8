"""AdamP."""

import math
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.checks import Decay, Fraction, LearningRate, NonNegative
from gradtx.composition.chain import chain
from gradtx.composition.masking import split_by_mask
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import leafwise
from gradtx.leaves.paths import Where
from gradtx.numerics import Step, abs_sq, debias, divide, ema, moments, root
from gradtx.numerics.compiler_hints import Recomputed, delay, planned, recompute
from gradtx.optimizers.adam import ScaleByAdamState
from gradtx.transforms.decay import decayed
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array, DType


def _total(channels: Array) -> Array:
    """The sum over channels. XLA would take it anew, and store the products for both sums."""
    return jnp.sum(delay(channels, after=channels))


class _RadialProjection(NamedTuple):
    """The hyperparameters that decide which weights are projected."""

    delta: Any
    wd_ratio: Any
    channel_axis: int

    def channels(self, x: Array, y: Array) -> Array:
        """The inner product of each channel, real also for complex numbers."""
        axes = tuple(axis for axis in range(x.ndim) if axis != self.channel_axis % x.ndim)
        return jnp.sum((jnp.conj(x) * y).real, axis=axes, keepdims=True)

    def orthogonal(self, inner: Array, size: Array, length: Array, entries: int) -> Array:
        """Whether the cosines of weights and gradients are small."""
        cosines = divide(jnp.abs(inner), root(size) * root(length))
        return jnp.all(cosines < self.delta / math.sqrt(max(entries, 1)))

    def step(self, g: Array, p: Array, along: Array, direction: Array, weight_decay: Any) -> Array:
        """The step, from the inner products `along` of its direction with the channels of `p`."""
        of_g, of_p, both = self.channels(g, g), self.channels(p, p), self.channels(p, g)
        channels = self.orthogonal(both, of_g, of_p, p.size // max(both.size, 1))
        length = _total(of_p)
        layer = self.orthogonal(_total(both), _total(of_g), length, p.size)
        share = jnp.where(layer, divide(_total(along), length), 0)
        share = jnp.where(channels, divide(along, of_p), share)
        ratio = jnp.where(channels | layer, self.wd_ratio, 1)
        return decayed(direction - share * p, weight_decay, ratio * p)


@transformation
def scale_by_adamp(
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    *,
    delta: NonNegative = 0.1,
    wd_ratio: Fraction = 0.1,
    nesterov: bool = False,
    channel_axis: int = -1,
    mu_dtype: DType | None = None,
) -> GradientTransformation:
    r"""AdamW's direction, without its part along a weight whose length does not matter.

    .. math::
        d = \frac{\hat\mu}{\sqrt{\hat\nu} + \epsilon}, \qquad
        u = \begin{cases}
            \Pi_c(d) + \rho\lambda\theta & \text{if } \max_c \lvert\cos(\theta_c, g_c)\rvert
                < \delta / \sqrt{n_c} \\
            \Pi(d) + \rho\lambda\theta & \text{else if } \lvert\cos(\theta, g)\rvert
                < \delta / \sqrt{n} \\
            d + \lambda\theta & \text{else}
        \end{cases}

    with Adam's bias-corrected moments, where :math:`\Pi(d) = d - \theta\,
    \langle\theta, d\rangle / \lVert\theta\rVert^2` is the part of `d` orthogonal to the leaf, of
    `n` entries, and :math:`\Pi_c` the same for each output channel `c` by itself, of :math:`n_c`
    entries. Where a normalization follows a weight, its gradient is orthogonal to it, and a step
    along it only makes it longer, and later steps shorter. Leaves of fewer than two dimensions take
    Adam's direction.

    Args:
        b1: decay of the first moment, in :math:`[0, 1)`.
        b2: decay of the second moment, in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`.
        weight_decay: :math:`\lambda \ge 0`.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        delta: :math:`\delta \ge 0`, how far from orthogonal a gradient may be; 0 for AdamW.
        wd_ratio: :math:`\rho` in :math:`[0, 1]`, the part of the decay that a projected leaf gets.
        nesterov: take :math:`\beta_1 \mu_t + (1 - \beta_1) g_t` in place of :math:`\mu_t`, as in
            the authors' code.
        channel_axis: the dimension whose indices are the output channels: the last for kernels of
            shape (in, out) or (height, width, in, out). The authors' code takes the first, as
            PyTorch has it.
        mu_dtype: the type of the first moment; the parameter's unless given.

    State: `ScaleByAdamState`.

    The projection is exact, and a cosine with 0 is 0; the authors' code adds :math:`\epsilon` to
    the norms.

    Raises:
        TypeError: `channel_axis` is not an integer.
        ValueError: a parameter has no such axis, or ``update`` is called without parameters.

    Source: B. Heo et al., AdamP: Slowing Down the Slowdown for Momentum Optimizers on
    Scale-invariant Weights, 2021, arXiv:2006.08217, algorithm 2.

    >>> tx = scale_by_adamp()
    >>> p = jnp.array([[3.0], [0.0]])
    >>> state = tx.update(jnp.array([[1.0], [0.0]]), tx.init(p), p)[1]
    >>> tx.update(jnp.array([[0.0], [1.0]]), state, p)[0].round(3).tolist()
    [[0.0], [0.7440000176429749]]
    """
    if type(channel_axis) is not int:
        raise TypeError(f"scale_by_adamp: channel_axis must be an integer, not {channel_axis!r}")

    def slots(p: Array) -> dict[str, Array]:
        if p.ndim > 1 and not -p.ndim <= channel_axis < p.ndim:
            raise ValueError(f"scale_by_adamp: no channel_axis {channel_axis} in shape {p.shape}")
        return moments(p, mu_dtype)

    projection = _RadialProjection(delta, wd_ratio, channel_axis)

    def with_decay(weight_decay: Any) -> GradientTransformation:
        def direction(t: Step, mu: Array, nu: Array, g: Array) -> Array:
            m = ema(g, mu, b1) if nesterov else mu
            return debias(m, b1, t) / (root(debias(nu, b2, t)) + eps)

        def formula(g: Array, s: Any, t: Step, p: Array) -> Any:
            mu, nu = ema(g, s.mu, b1), ema(abs_sq(g), s.nu, b2)
            d = direction(t, mu, nu, g)
            u = projection.step(g, p, projection.channels(p, d), d, weight_decay)
            return u, {"mu": mu, "nu": nu}

        def plan(g: Array, s: Any, t: Step, p: Array) -> Any:
            """The direction is computed for its sums, and again for the step, not stored."""
            # Each square is computed for its sum and for the moment, not stored.
            mu, nu = ema(g, s.mu, b1), ema(recompute(abs_sq, g, after=t), s.nu, b2)
            d = Recomputed(partial(direction, t), mu, nu, g)
            along = projection.channels(p, d(after=t))
            u = projection.step(g, p, along, d(after=_total(along)), weight_decay)
            return u, {"mu": mu, "nu": nu}

        of_matrix = planned(formula, plan)

        def rule(g: Array, s: Any, t: Step, p: Array) -> Any:
            if p.ndim > 1:
                return of_matrix(g, s, t, p)
            mu, nu = ema(g, s.mu, b1), ema(abs_sq(g), s.nu, b2)
            return decayed(direction(t, mu, nu, g), weight_decay, p), {"mu": mu, "nu": nu}

        return leafwise(ScaleByAdamState, slots, rule)

    return split_by_mask(mask, with_decay(weight_decay), with_decay(0.0))


@optimizer
def adamp(
    learning_rate: LearningRate,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    *,
    delta: NonNegative = 0.1,
    wd_ratio: Fraction = 0.1,
    nesterov: bool = False,
    channel_axis: int = -1,
    mu_dtype: DType | None = None,
) -> GradientTransformation:
    r"""AdamP: AdamW that does not lengthen weights whose length does not matter.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \qquad
            \nu_t = \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t|^2, \\
        d_t &= \frac{\mu_t / (1 - \beta_1^t)}{\sqrt{\nu_t / (1 - \beta_2^t)} + \epsilon}, \qquad
            \Pi(d) = d - \frac{\langle\theta, d\rangle}{\lVert\theta\rVert^2}\, \theta, \\
        \theta_t &= \theta_{t-1} - \eta \begin{cases}
            \Pi_c(d_t) + \rho\lambda\theta_{t-1} & \text{if }
                \max_c \lvert\cos(\theta_{t-1,c}, g_{t,c})\rvert < \delta / \sqrt{n_c} \\
            \Pi(d_t) + \rho\lambda\theta_{t-1} & \text{else if }
                \lvert\cos(\theta_{t-1}, g_t)\rvert < \delta / \sqrt{n} \\
            d_t + \lambda\theta_{t-1} & \text{else}
        \end{cases}

    where :math:`\Pi_c` projects each of a leaf's output channels `c`, of :math:`n_c` entries, and
    :math:`\Pi` the whole leaf, of `n` entries. Leaves of fewer than two dimensions are not
    projected.

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        b1: :math:`\beta_1`, decay of the first moment; this and the rest as in
            :func:`scale_by_adamp`.
        b2: :math:`\beta_2`, decay of the second moment.
        eps: :math:`\epsilon \ge 0`, added to the root.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        delta: :math:`\delta \ge 0`, how far from orthogonal a gradient may be.
        wd_ratio: :math:`\rho` in :math:`[0, 1]`, the part of the decay that a projected leaf gets.
        nesterov: whether to use Nesterov momentum.
        channel_axis: the dimension whose indices are the output channels.
        mu_dtype: the type of the first moment.

    Source: B. Heo et al., AdamP: Slowing Down the Slowdown for Momentum Optimizers on
    Scale-invariant Weights, 2021, arXiv:2006.08217, algorithm 2.

    >>> import gradtx
    >>> tx = adamp(0.1)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return chain(
        scale_by_adamp(
            b1,
            b2,
            eps,
            weight_decay,
            mask,
            delta=delta,
            wd_ratio=wd_ratio,
            nesterov=nesterov,
            channel_axis=channel_axis,
            mu_dtype=mu_dtype,
        ),
        scale_by_learning_rate(learning_rate),
    )
