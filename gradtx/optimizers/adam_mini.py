"""Adam-mini."""

from typing import Any

import jax.numpy as jnp

from gradtx.checks import Decay, LearningRate, NonNegative
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import leafwise
from gradtx.leaves.paths import Where
from gradtx.numerics import Step, abs_sq, accumulator_dtype, debias, divide, ema, root, zero_mean
from gradtx.optimizers.adam import ScaleByAdamState
from gradtx.transforms.decay import descent
from gradtx.types import Array, DType


@transformation
def scale_by_adam_mini(
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    block_axis: int | None = -1,
    *,
    mu_dtype: DType | None = None,
) -> GradientTransformation:
    r"""Adam with one second moment for each block of a leaf.

    .. math:: \nu_b \leftarrow \beta_2 \nu_b + (1 - \beta_2)\, \mathrm{mean}_{i \in b} |g_i|^2,
        \qquad u_i = \frac{\hat\mu_i}{\sqrt{\hat\nu_{b(i)}} + \epsilon}

    Args:
        b1: decay of the first moment, in :math:`[0, 1)`.
        b2: decay of the second moment, in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`.
        block_axis: the dimension whose indices are the blocks: the last, an output neuron, for
            kernels of shape (in, out); 0, a token, for embeddings; the heads for queries and keys;
            None for one block per leaf. Use ``partition`` to give different leaves different axes.
            A leaf of one dimension is one block.
        mu_dtype: the type of the first moment; the parameter's unless given.

    State: `ScaleByAdamState`, :math:`\nu` with one real number per block, in float32 or wider.

    Raises:
        TypeError: `block_axis` is not an integer.
        ValueError: a parameter has no such axis.

    Source: Y. Zhang et al., Adam-mini: Use Fewer Learning Rates To Gain More, 2024,
    arXiv:2406.16793, algorithm 1.

    >>> tx = scale_by_adam_mini(b1=0.0, eps=0.0)
    >>> updates, state = tx.update(jnp.array([[1.0], [7.0]]), tx.init(jnp.zeros((2, 1))))
    >>> [round(float(u), 4) for u in updates[:, 0]], state.nu.shape
    ([0.2, 1.4], (1, 1))
    """
    if not (block_axis is None or type(block_axis) is int):
        raise TypeError(f"scale_by_adam_mini: block_axis must be an integer, not {block_axis!r}")

    def averaged(p: Array) -> tuple[int, ...]:
        if p.ndim < 2 or block_axis is None:
            return tuple(range(p.ndim))
        if not -p.ndim <= block_axis < p.ndim:
            raise ValueError(f"scale_by_adam_mini: no block_axis {block_axis} in shape {p.shape}")
        return tuple(axis for axis in range(p.ndim) if axis != block_axis % p.ndim)

    def slots(p: Array) -> dict[str, Array]:
        axes = averaged(p)
        shape = [1 if axis in axes else n for axis, n in enumerate(p.shape)]
        return {"mu": zero_mean(p, mu_dtype), "nu": jnp.zeros(shape, accumulator_dtype(p))}

    def rule(g: Array, s: Any, t: Step) -> Any:
        mu = ema(g, s.mu, b1)
        nu = ema(jnp.mean(abs_sq(g), axis=averaged(g), keepdims=True), s.nu, b2)
        square = debias(nu, b2, t)
        scale = divide(jnp.ones_like(square), root(square) + eps)
        mean = debias(mu, b1, t)
        # A block without a gradient rests; the derivative where the mean is 0 is that of the scale.
        return jnp.where((square > 0) | (mean == 0), mean, 0) * scale, {"mu": mu, "nu": nu}

    return leafwise(ScaleByAdamState, slots, rule)


@optimizer
def adam_mini(
    learning_rate: LearningRate,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    *,
    block_axis: int | None = -1,
    mu_dtype: DType | None = None,
) -> GradientTransformation:
    r"""Adam-mini: Adam with one second moment per block of a leaf, hence about half the state.

    For entry `i` in block `b`,

    .. math::
        \mu_{t,i} &= \beta_1 \mu_{t-1,i} + (1 - \beta_1) g_{t,i}, &
        \nu_{t,b} &= \beta_2 \nu_{t-1,b} + (1 - \beta_2)\, \mathrm{mean}_{j \in b} |g_{t,j}|^2, \\
        \hat\mu_{t,i} &= \frac{\mu_{t,i}}{1 - \beta_1^t}, &
        \hat\nu_{t,b} &= \frac{\nu_{t,b}}{1 - \beta_2^t}, \\
        \theta_{t,i} &= \theta_{t-1,i} - \eta \left(
            \frac{\hat\mu_{t,i}}{\sqrt{\hat\nu_{t,b}} + \epsilon} + \lambda \theta_{t-1,i}\right)

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        b1: :math:`\beta_1`, decay of the first moment; this and the rest as in
            :func:`scale_by_adam_mini`.
        b2: :math:`\beta_2`, decay of the second moment.
        eps: :math:`\epsilon`, added to the root.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        block_axis: the dimension whose indices are the blocks.
        mu_dtype: the type of the first moment.

    Source: Y. Zhang et al., Adam-mini: Use Fewer Learning Rates To Gain More, 2024,
    arXiv:2406.16793, algorithm 1.

    >>> import gradtx
    >>> tx = adam_mini(0.1)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    >>> tx.init(jnp.zeros((8, 4)))[0].nu.shape
    (1, 4)
    """
    return descent(
        scale_by_adam_mini(b1, b2, eps, block_axis, mu_dtype=mu_dtype),
        learning_rate,
        weight_decay,
        mask,
    )
