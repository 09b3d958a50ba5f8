"""Adafactor."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from gradtx.checks import Count, Decay, Limit, NonNegative
from gradtx.composition.chain import chain, identity
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import leafwise
from gradtx.leaves.paths import Where
from gradtx.numerics import (
    Step,
    abs_sq,
    accumulator_dtype,
    bounded,
    divide,
    ema,
    inverse_root,
    plain_rms,
    root,
    shrink_factor,
)
from gradtx.numerics.compiler_hints import delay, planned, recompute
from gradtx.transforms.decay import add_decayed_weights
from gradtx.transforms.momentum import ema as moving_average
from gradtx.transforms.scaling import scale, scale_by_learning_rate
from gradtx.transforms.trust import scale_by_param_block_rms
from gradtx.types import Array, Counter, DType, NonNegativeSlots


class FactoredState(NamedTuple):
    """count: i32[]; v_row, v_col: mean squares of a factored leaf; v: squares of any other.

    A slot that a leaf does not use has shape (1,). All are real and in float32 or wider.
    """

    count: Counter
    v_row: NonNegativeSlots
    v_col: NonNegativeSlots
    v: NonNegativeSlots


def factored_dims(shape: tuple[int, ...], smallest: int, last: bool) -> tuple[int, int] | None:
    """The second largest and the largest dimension, or None if they are too small, or empty."""
    if len(shape) < 2:
        return None
    if last:
        second, first = len(shape) - 2, len(shape) - 1
    else:
        second, first = (int(axis) for axis in np.argsort(shape)[-2:])
    return (second, first) if min(shape[second], shape[first]) >= max(smallest, 1) else None


def factored_shapes(
    shape: tuple[int, ...], dims: tuple[int, int] | None
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The shapes of the row means, the column means and the squares: (1,) for an unused slot."""
    if dims is None:
        return (1,), (1,), shape
    d1, d0 = dims
    return shape[:d0] + shape[d0 + 1 :], shape[:d1] + shape[d1 + 1 :], (1,)


def mean_of_rows(row: Array, dims: tuple[int, int]) -> Array:
    """The mean of R, the means over ``dims[1]``."""
    d1, d0 = dims
    return jnp.mean(row, axis=d1 - (d1 > d0), keepdims=True)


def root_factors(row: Array, col: Array, dims: tuple[int, int]) -> tuple[Array, Array]:
    """The factors of 1 / sqrt(R C / mean(R)): R the means over ``dims[1]``, C over ``dims[0]``."""
    d1, d0 = dims
    by_row = jnp.expand_dims(inverse_root(row) * root(mean_of_rows(row, dims)), d0)
    return by_row, jnp.expand_dims(inverse_root(col), d1)


def clipped_factor(
    g: Array, by_row: Array, by_col: Array, d0: int, threshold: Any
) -> tuple[Array, Array]:
    """`by_row`, shrunk until ``rms(g * by_row * by_col) <= threshold``; and that RMS before."""
    rows = root(jnp.mean(abs_sq(g * by_col), axis=d0, keepdims=True)) * by_row
    length = root(jnp.mean(jnp.square(rows)))
    return by_row * shrink_factor(length, threshold), length


class _AdafactorOptions(NamedTuple):
    """Hyperparameters of `scale_by_factored_rms`, and the equations that leaves share.

    least: the smallest side of a factored matrix; None if nothing is factored.
    torch_eps: a lower bound in place of epsilon, as in PyTorch; None for none.
    """

    least: int | None
    factor_last_dims: bool
    decay_rate: Any
    decay_rate_fn: Callable[[Any, Any], Any] | None
    step_offset: Any
    epsilon: Any
    clipping_threshold: Any
    torch_eps: Any

    def dims(self, shape: tuple[int, ...]) -> tuple[int, int] | None:
        """The dimensions over which means are taken; None for a leaf that is not factored."""
        if self.least is None:
            return None
        return factored_dims(shape, self.least, self.factor_last_dims)

    def decay(self, t: Step) -> Any:
        r"""The decay of this step, :math:`\hat\beta_t`."""
        if self.decay_rate_fn is not None:
            return self.decay_rate_fn(t.number - 1 - self.step_offset, self.decay_rate)
        return 1 - jnp.maximum(t.number - self.step_offset, 1) ** -self.decay_rate

    def mean(self, square: Array, axis: int) -> Array:
        """The mean of squares over rows or columns."""
        # Infinite means would be divided by each other, at this step and all later ones. Added to
        # the squares, epsilon would cost a copy of the leaf.
        return bounded(jnp.mean(square, axis=axis), square.size) + self.epsilon

    def clipped(self, u: Array) -> Array:
        """The direction, its root mean square clipped."""
        threshold = self.clipping_threshold
        return u if threshold is None else u * shrink_factor(plain_rms(u), threshold)


def _unfactored(g: Array, s: Any, t: Step, options: _AdafactorOptions) -> Any:
    """A leaf that keeps the squares of all entries."""
    square, beta = abs_sq(g), options.decay(t)
    v = ema(square + options.epsilon, s.v, beta)
    under = v if options.torch_eps is None else jnp.maximum(v, options.torch_eps**2)
    return options.clipped(g * inverse_root(under)), {"v_row": s.v_row, "v_col": s.v_col, "v": v}


def _factored_formula(
    g: Array, s: Any, t: Step, dims: tuple[int, int], options: _AdafactorOptions
) -> Any:
    """A leaf that keeps their means over rows and columns."""
    d1, d0 = dims
    square, beta = abs_sq(g), options.decay(t)
    row = ema(options.mean(square, d0), s.v_row, beta)
    col = ema(options.mean(square, d1), s.v_col, beta)
    by_row, by_col = root_factors(row, col, dims)
    return options.clipped(g * by_row * by_col), {"v_row": row, "v_col": col, "v": s.v}


def _factored_plan(
    g: Array, s: Any, t: Step, dims: tuple[int, int], options: _AdafactorOptions
) -> Any:
    """Each mean computes the squares for itself; nothing of the size of the leaf is stored.

    The mean over rows is taken in one pass with the clip, which shrinks the factors of rows.
    """
    d1, d0 = dims
    square, beta = abs_sq(g), options.decay(t)
    col = ema(options.mean(square, d1), s.v_col, beta)
    row = ema(options.mean(recompute(abs_sq, g, after=jnp.max(col)), d0), s.v_row, beta)
    by_row, by_col = root_factors(row, col, dims)
    if options.clipping_threshold is not None:
        by_row, length = clipped_factor(g, by_row, by_col, d0, options.clipping_threshold)
        by_col = delay(by_col, after=length)  # or XLA writes it out for both products
    return g * by_row * by_col, {"v_row": row, "v_col": col, "v": s.v}


_factored = planned(_factored_formula, _factored_plan)


def _factored_within(
    g: Array, s: Any, t: Step, dims: tuple[int, int], options: _AdafactorOptions
) -> Any:
    """A leaf that keeps means, whose mean and whose estimates have PyTorch's lower bounds."""
    d1, d0 = dims
    square, beta, eps = abs_sq(g), options.decay(t), options.torch_eps
    row = ema(options.mean(square, d0), s.v_row, beta)
    col = ema(options.mean(square, d1), s.v_col, beta)
    mean = jnp.maximum(mean_of_rows(row, dims), eps)
    estimate = jnp.expand_dims(divide(row, mean), d0) * jnp.expand_dims(col, d1)
    u = g * inverse_root(jnp.maximum(estimate, eps**2))
    return options.clipped(u), {"v_row": row, "v_col": col, "v": s.v}


@transformation
def scale_by_factored_rms(
    factored: bool = True,
    decay_rate: NonNegative = 0.8,
    step_offset: Count = 0,
    min_dim_size_to_factor: int = 128,
    epsilon: NonNegative = 1e-30,
    decay_rate_fn: Callable[[Any, Any], Any] | None = None,
    *,
    factor_last_dims: bool = False,
    clipping_threshold: Limit | None = None,
    torch_eps: NonNegative | None = None,
) -> GradientTransformation:
    r"""Divide by the root of a moving average of squares, kept as its row and column means.

    For a matrix with mean squares :math:`R` over each row and :math:`C` over each column,

    .. math::
        R_t &= \hat\beta_t R_{t-1} + (1 - \hat\beta_t)\, \mathrm{mean}_j(|g_t|^2 + \epsilon), &
        C_t &= \hat\beta_t C_{t-1} + (1 - \hat\beta_t)\, \mathrm{mean}_i(|g_t|^2 + \epsilon), \\
        u_t &= g_t \Big/ \sqrt{\frac{R_t C_t}{\mathrm{mean}(R_t)}}, &
        \hat\beta_t &= 1 - (t - t_0)^{-c}

    Other leaves are scaled as in RMSProp. In a leaf with more than two dimensions the two largest
    are factored.

    Args:
        factored: whether to factor at all.
        decay_rate: :math:`c \ge 0`; a number, an array, or a schedule.
        step_offset: :math:`t_0 \ge 0`, the number of steps for which the state was trained earlier;
            the decay stays 0 up to the step after it (in Optax it is NaN there).
        min_dim_size_to_factor: leaves whose second largest dimension is smaller are not factored.
        epsilon: :math:`\epsilon \ge 0`.
        decay_rate_fn: ``(steps taken - step_offset, decay_rate) -> decay``, in place of
            :math:`\hat\beta`. Its default in Optax is a private function.
        factor_last_dims: factor the last two dimensions, as Keras and PyTorch do, not the two
            largest.
        clipping_threshold: the largest root mean square of :math:`u`, as in
            :func:`clip_by_block_rms`, here computed without storing :math:`u`; None for no
            clipping.
        torch_eps: :math:`\epsilon_1 \ge 0` as in PyTorch's Adafactor, for which also pass
            ``epsilon=0``: :math:`\mathrm{mean}(R_t)` is at least :math:`\epsilon_1`, and what is
            under the root at least :math:`\epsilon_1^2`. None for no such bounds.

    State: `FactoredState`; a matrix needs rows plus columns instead of their product. Optax keeps
    it in the parameter's type, where :math:`\epsilon` underflows in float16. Means of squares are
    bounded, so that one gradient of 1e30 does not make all later steps NaN, as it does in Optax.
    Parameters are not needed.

    Raises:
        TypeError: `min_dim_size_to_factor` is not an integer.

    Source: N. Shazeer and M. Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost,
    2018, arXiv:1804.04235, algorithms 4 and 5.

    >>> tx = scale_by_factored_rms(min_dim_size_to_factor=2)
    >>> g = jnp.array([[1.0, 2.0], [2.0, 4.0]])
    >>> updates, state = tx.update(g, tx.init(jnp.zeros((2, 2))))
    >>> updates.round(4).tolist(), state.v_row.shape
    ([[1.0, 1.0], [1.0, 1.0]], (2,))
    """
    if isinstance(min_dim_size_to_factor, bool) or not isinstance(min_dim_size_to_factor, int):
        raise TypeError(
            "scale_by_factored_rms: min_dim_size_to_factor must be an integer, not "
            f"{min_dim_size_to_factor!r}"
        )

    least = min_dim_size_to_factor if factored else None
    options = _AdafactorOptions(
        least,
        factor_last_dims,
        decay_rate,
        decay_rate_fn,
        step_offset,
        epsilon,
        clipping_threshold,
        torch_eps,
    )
    of_matrix = _factored if torch_eps is None else _factored_within

    def slots(p: Array) -> dict[str, Array]:
        shapes = factored_shapes(p.shape, options.dims(p.shape))
        slot_shapes = zip(("v_row", "v_col", "v"), shapes, strict=True)
        return {name: jnp.zeros(shape, accumulator_dtype(p)) for name, shape in slot_shapes}

    def rule(g: Array, s: Any, t: Step) -> Any:
        dims = options.dims(g.shape)
        return _unfactored(g, s, t, options) if dims is None else of_matrix(g, s, t, dims, options)

    return leafwise(FactoredState, slots, rule)


@optimizer
def adafactor(
    learning_rate: NonNegative | None = None,
    min_dim_size_to_factor: int = 128,
    decay_rate: NonNegative = 0.8,
    decay_offset: Count = 0,
    multiply_by_parameter_scale: bool = True,
    clipping_threshold: Limit | None = 1.0,
    momentum: Decay | None = None,
    dtype_momentum: DType = jnp.float32,
    weight_decay_rate: NonNegative | None = None,
    eps: NonNegative = 1e-30,
    factored: bool = True,
    weight_decay_mask: Where | None = None,
) -> GradientTransformation:
    r"""Adafactor: Adam's scaling in sublinear memory, with steps relative to the parameters.

    For a matrix with mean squares :math:`R` over each row and :math:`C` over each column,

    .. math::
        \hat\beta_t &= 1 - \max(t - t_0, 1)^{-c}, \\
        R_t &= \hat\beta_t R_{t-1} + (1 - \hat\beta_t)\, \mathrm{mean}_j(|g_t|^2 + \epsilon), \\
        C_t &= \hat\beta_t C_{t-1} + (1 - \hat\beta_t)\, \mathrm{mean}_i(|g_t|^2 + \epsilon), \\
        u_t &= g_t \Big/ \sqrt{\frac{R_t C_t}{\mathrm{mean}(R_t)}}, \qquad
        \hat u_t = \frac{u_t}{\max(1, \mathrm{rms}(u_t) / d)}, \\
        m_t &= \beta m_{t-1}
            + (1 - \beta)\, \eta \max(\mathrm{rms}(\theta_{t-1}), 10^{-3})\, \hat u_t, \\
        \theta_t &= \theta_{t-1} - m_t - \lambda \theta_{t-1}

    For a leaf that is not factored, :math:`u_t = g_t / \sqrt{\nu_t}` with :math:`\nu_t =
    \hat\beta_t \nu_{t-1} + (1 - \hat\beta_t)(|g_t|^2 + \epsilon)`.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, a schedule, or None for 1.
        min_dim_size_to_factor: the smallest dimension to factor, as in
            :func:`scale_by_factored_rms`.
        decay_rate: :math:`c \ge 0`, the exponent of the second moment's decay.
        decay_offset: :math:`t_0 \ge 0`, the ``step_offset`` there.
        multiply_by_parameter_scale: whether steps are relative to the parameters; otherwise the
            factor :math:`\max(\mathrm{rms}(\theta), 10^{-3})` is 1.
        clipping_threshold: :math:`d \ge 0`; None for no clipping.
        momentum: :math:`\beta` in :math:`[0, 1)`, decay of a moving average of the steps; None for
            none.
        dtype_momentum: the type in which it is kept.
        weight_decay_rate: :math:`\lambda \ge 0`, not multiplied by the learning rate; None for 0.
        eps: :math:`\epsilon`, added to the squared gradient.
        factored: whether to factor at all.
        weight_decay_mask: which parameters decay, as in :func:`add_decayed_weights`.

    State: `FactoredState`, and `EmaState` where there is momentum.

    Source: N. Shazeer and M. Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost,
    2018, arXiv:1804.04235, algorithms 4 and 5.

    >>> import gradtx
    >>> tx = adafactor(0.1)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    >>> state = tx.init(jnp.zeros((256, 512)))
    >>> state[0].v_row.shape, state[0].v_col.shape, state[0].v.shape
    ((256,), (512,), (1,))
    """
    links = [
        scale_by_factored_rms(
            factored,
            decay_rate,
            decay_offset,
            min_dim_size_to_factor,
            eps,
            clipping_threshold=clipping_threshold,
        )
    ]
    if clipping_threshold is not None:
        links.append(identity())  # where Optax clips, so that its states fit
    if learning_rate is not None:
        links.append(scale_by_learning_rate(learning_rate, flip_sign=False))
    if multiply_by_parameter_scale:
        links.append(scale_by_param_block_rms())
    if momentum is not None:
        links.append(moving_average(momentum, debias=False, accumulator_dtype=dtype_momentum))
    if weight_decay_rate is not None:
        links.append(add_decayed_weights(weight_decay_rate, weight_decay_mask))
    return chain(*links, scale(-1))
