"""CAME."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.checks import Decay, LearningRate, NonNegative, Positive
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import leafwise
from gradtx.kernels.both_sides import written_and_summed
from gradtx.leaves.paths import Where
from gradtx.numerics import (
    abs_sq,
    accumulator_dtype,
    bounded,
    ema,
    inverse_root,
    plain_rms,
    shrink_factor,
    zero_mean,
)
from gradtx.numerics.compiler_hints import planned, recompute
from gradtx.optimizers.adafactor import (
    clipped_factor,
    factored_dims,
    factored_shapes,
    root_factors,
)
from gradtx.transforms.decay import descent
from gradtx.types import Array, DType, NonNegativeSlots, Slots


def _momentum(mu: Array, g: Array, by_row: Array, by_col: Array, keep: Any, add: Any) -> Array:
    return keep * mu + add * (g * by_row * by_col)


def _instability(mu: Array, g: Array, by_row: Array, by_col: Array, *_: Any) -> Array:
    return abs_sq(g * by_row * by_col - mu)


class ScaleByCameState(NamedTuple):
    """mu: like the parameters; v: squares of a vector; the rest: means of a matrix.

    A slot that a leaf does not use has shape (1,). All but mu are real and in float32 or wider.
    """

    mu: Slots
    v_row: NonNegativeSlots
    v_col: NonNegativeSlots
    v: NonNegativeSlots
    residual_row: NonNegativeSlots
    residual_col: NonNegativeSlots


class _CameOptions(NamedTuple):
    """Hyperparameters under the names of `scale_by_came`, and the equations that leaves share."""

    b1: Any
    b2: Any
    b3: Any
    eps: Any
    eps_residual: Any
    clipping_threshold: Any

    def clipped(self, u: Array) -> Array:
        r"""The scaled gradient, its root mean square clipped: :math:`\hat u`."""
        return u * shrink_factor(plain_rms(u), self.clipping_threshold)

    def second_moment(self, mean: Array, old: Array, g: Array) -> Array:
        """The moving average of means of squares of the gradient."""
        # Infinite means would be divided by each other, at this step and all later ones.
        return ema(bounded(mean, g.size) + self.eps, old, self.b2)

    def instability(self, mean: Array, old: Array, g: Array) -> Array:
        """The moving average of means of the instability."""
        return ema(bounded(mean, g.size) + self.eps_residual, old, self.b3)


def _unfactored(g: Array, s: Any, options: _CameOptions) -> Any:
    """A leaf that keeps the squares of all entries."""
    v = ema(abs_sq(g) + options.eps, s.v, options.b2)
    mu = ema(options.clipped(g * inverse_root(v)), s.mu, options.b1)
    return mu, {"mu": mu, "v": v}


def _factored_formula(g: Array, s: Any, dims: tuple[int, int], options: _CameOptions) -> Any:
    """A leaf that keeps their means over rows and columns."""
    v_row = options.second_moment(jnp.mean(abs_sq(g), -1), s.v_row, g)
    v_col = options.second_moment(jnp.mean(abs_sq(g), -2), s.v_col, g)
    by_row, by_col = root_factors(v_row, v_col, dims)
    u = options.clipped(g * by_row * by_col)
    mu = ema(u, s.mu, options.b1)
    row = options.instability(jnp.mean(abs_sq(u - mu), -1), s.residual_row, g)
    col = options.instability(jnp.mean(abs_sq(u - mu), -2), s.residual_col, g)
    by_row, by_col = root_factors(row, col, dims)
    new = {"v_row": v_row, "v_col": v_col, "residual_row": row, "residual_col": col}
    return mu * by_row * by_col, {"mu": mu, **new}


def _factored_plan(g: Array, s: Any, dims: tuple[int, int], options: _CameOptions) -> Any:
    """Each mean computes the squares for itself; the clip shrinks the factors of rows.

    The momentum is written and the instability summed in one pass, where a kernel can.
    """
    v_row = options.second_moment(jnp.mean(abs_sq(g), -1), s.v_row, g)
    square = recompute(abs_sq, g, after=jnp.max(v_row))
    v_col = options.second_moment(jnp.mean(square, -2), s.v_col, g)
    by_row, by_col = root_factors(v_row, v_col, dims)
    by_row, length = clipped_factor(g, by_row, by_col, dims[1], options.clipping_threshold)
    mu, row, col = written_and_summed(
        _momentum,
        _instability,
        s.mu,
        *(g, by_row, by_col, options.b1, 1 - options.b1),
        after=(length, jnp.max(v_col)),
    )
    row = options.instability(row / g.shape[-1], s.residual_row, g)
    col = options.instability(col / g.shape[-2], s.residual_col, g)
    by_row, by_col = root_factors(row, col, dims)
    new = {"v_row": v_row, "v_col": v_col, "residual_row": row, "residual_col": col}
    return mu * by_row * by_col, {"mu": mu, **new}


_factored = planned(_factored_formula, _factored_plan)


@transformation
def scale_by_came(
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    b3: Decay = 0.9999,
    eps: NonNegative = 1e-30,
    eps_residual: NonNegative = 1e-16,
    clipping_threshold: Positive = 1.0,
    mu_dtype: DType | None = None,
) -> GradientTransformation:
    r"""Adafactor's scaling with momentum, scaled again by a factored instability.

    .. math::
        u &= \frac{g}{\sqrt{F_{\beta_2}(|g|^2 + \epsilon)}}, \qquad
            \hat u = \frac{u}{\max(1, \mathrm{rms}(u) / d)}, \\
        \mu &\leftarrow \beta_1 \mu + (1 - \beta_1)\, \hat u, \qquad
            \text{direction} = \frac{\mu}{\sqrt{F_{\beta_3}(|\hat u - \mu|^2 + \bar\epsilon)}}

    :math:`F_\beta(X) = R\, C^T / \mathrm{mean}(R)` of the moving averages of the row and column
    means of `X` over the last two dimensions. A leaf with fewer dimensions keeps the average of
    :math:`|g|^2` whole, and its direction is :math:`\mu`.

    Args:
        b1: decay of the momentum, in :math:`[0, 1)`.
        b2: decay of the second moment, in :math:`[0, 1)`.
        b3: decay of the instability, in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`.
        eps_residual: :math:`\bar\epsilon \ge 0`.
        clipping_threshold: :math:`d > 0`.
        mu_dtype: the type in which :math:`\mu` is kept; the parameter's unless given.

    State: `ScaleByCameState`. Means of squares are bounded: infinite ones, from a gradient of 1e30,
    would be divided by each other.

    Source: Y. Luo et al., CAME: Confidence-guided Adaptive Memory Efficient Optimization, 2023,
    arXiv:2307.02047, algorithm 2; vectors are treated as in the authors' code.

    >>> tx = scale_by_came()
    >>> state = tx.init(jnp.zeros((8, 4)))
    >>> state.v_row.shape, state.residual_col.shape, state.v.shape
    ((8,), (4,), (1,))
    """
    options = _CameOptions(b1, b2, b3, eps, eps_residual, clipping_threshold)

    def slots(p: Array) -> dict[str, Array]:
        row, col, full = factored_shapes(p.shape, factored_dims(p.shape, 1, last=True))
        dtype = accumulator_dtype(p)
        return {
            "mu": zero_mean(p, mu_dtype),
            "v_row": jnp.zeros(row, dtype),
            "v_col": jnp.zeros(col, dtype),
            "v": jnp.zeros(full, dtype),
            "residual_row": jnp.zeros(row, dtype),
            "residual_col": jnp.zeros(col, dtype),
        }

    def rule(g: Array, s: Any, t: Any) -> Any:
        dims = factored_dims(g.shape, 1, last=True)
        u, new = _unfactored(g, s, options) if dims is None else _factored(g, s, dims, options)
        return u, {n: new.get(n, getattr(s, n)) for n in s.names()}

    return leafwise(ScaleByCameState, slots, rule)


@optimizer
def came(
    learning_rate: LearningRate,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    b3: Decay = 0.9999,
    eps: NonNegative = 1e-30,
    eps_residual: NonNegative = 1e-16,
    clipping_threshold: Positive = 1.0,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    *,
    mu_dtype: DType | None = None,
) -> GradientTransformation:
    r"""CAME: Adafactor with momentum, in steps that shrink where the momentum is unreliable.

    .. math::
        u_t &= \frac{g_t}{\sqrt{F_{\beta_2}(|g_t|^2 + \epsilon)}}, \qquad
        \hat u_t = \frac{u_t}{\max(1, \mathrm{rms}(u_t) / d)}, \\
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, \hat u_t, \\
        \theta_t &= \theta_{t-1} - \eta \left(
            \frac{\mu_t}{\sqrt{F_{\beta_3}(|\hat u_t - \mu_t|^2 + \bar\epsilon)}}
            + \lambda \theta_{t-1}\right)

    Here :math:`F_\beta(X_t) = R_t C_t^\top / \mathrm{mean}(R_t)`, with the row and column means

    .. math::
        R_t = \beta R_{t-1} + (1 - \beta)\, \mathrm{mean}_j(X_t), \qquad
        C_t = \beta C_{t-1} + (1 - \beta)\, \mathrm{mean}_i(X_t)

    over the last two dimensions. For a leaf with fewer dimensions, :math:`F_{\beta_2}` is the
    moving average itself, and the second root is 1.

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        b1: :math:`\beta_1`, decay of the momentum; this and the rest as in :func:`scale_by_came`.
        b2: :math:`\beta_2`, decay of the second moment.
        b3: :math:`\beta_3`, decay of the instability.
        eps: :math:`\epsilon`, added to the squared gradient.
        eps_residual: :math:`\bar\epsilon`, added to the instability.
        clipping_threshold: :math:`d`, the largest root mean square of the scaled gradient.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        mu_dtype: the type of the momentum.

    Source: Y. Luo et al., CAME: Confidence-guided Adaptive Memory Efficient Optimization, 2023,
    arXiv:2307.02047, algorithm 2.

    >>> import gradtx
    >>> tx = came(0.05)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros((2, 3)), tx, max_steps=300)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return descent(
        scale_by_came(b1, b2, b3, eps, eps_residual, clipping_threshold, mu_dtype),
        learning_rate,
        weight_decay,
        mask,
    )
