"""Grokfast: gradients whose slow part is amplified."""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checks import Decay, NonNegative, PositiveInt
from gradtx.core.pair import GradientTransformation, transformation
from gradtx.engine.lift import elementwise, leafwise
from gradtx.numerics import Step, compute_dtype, ema, zero_mean, zeros_like
from gradtx.numerics.control import branch
from gradtx.types import Array, Counter, DType, Slots


class GrokfastEmaState(NamedTuple):
    """count: i32[]; mu: like the parameters, in mu_dtype if given."""

    count: Counter
    mu: Slots


@transformation
def grokfast_ema(
    alpha: Decay = 0.98, lamb: NonNegative = 2.0, mu_dtype: DType | None = None
) -> GradientTransformation:
    r"""Add a multiple of the gradients' moving average to the gradient.

    .. math:: \mu_t = \alpha \mu_{t-1} + (1 - \alpha) g_t, \quad \mu_0 = g_1, \qquad
        u_t = g_t + \lambda \mu_t

    Put it first in a chain, before the optimizer. A leaf whose first gradient comes at a later step
    starts from :math:`\mu = 0`.

    Args:
        alpha: :math:`\alpha` in :math:`[0, 1)`; 0.8 to 0.99.
        lamb: :math:`\lambda \ge 0`; 0.1 to 5.
        mu_dtype: the type in which :math:`\mu` is kept; the parameter's by default.

    State: `GrokfastEmaState`.

    Source: J. Lee et al., Grokfast: Accelerated Grokking by Amplifying Slow Gradients, 2024,
    arXiv:2405.20233, algorithm 2; the start is that of the authors' code.

    >>> tx = grokfast_ema(alpha=0.5, lamb=2.0)
    >>> state = tx.init(jnp.zeros(1))
    >>> for g in (1.0, 3.0):
    ...     updates, state = tx.update(jnp.array([g]), state)
    >>> updates.tolist()
    [7.0]
    """

    def slots(p: Array) -> dict[str, Array]:
        return {"mu": zero_mean(p, mu_dtype)}

    def rule(g: Array, s: Any, t: Step) -> Any:
        decay = t.once("grokfast", alpha, lambda: jnp.where(t.number == 1, 0, alpha))
        mu = ema(g, s.mu, decay)
        return g + lamb * mu, {"mu": mu}

    return elementwise(GrokfastEmaState, slots, rule)


class GrokfastMaState(NamedTuple):
    """count: i32[]; window: the last gradients of each leaf; total: their sum.

    Both are in float32 or wider; the sum is recomputed at the end of every window, so that it
    cannot drift.
    """

    count: Counter
    window: Slots
    total: Slots


@transformation
def grokfast_ma(
    window_size: PositiveInt = 100,
    lamb: NonNegative = 5.0,
    filter_type: Literal["mean", "sum"] = "mean",
    warmup: bool = True,
) -> GradientTransformation:
    r"""Add a multiple of the mean of the last gradients to the gradient.

    .. math:: u_t = g_t + \frac{\lambda}{w} \sum_{i=t-w+1}^{t} g_i

    Put it first in a chain, before the optimizer. The window is that of the last steps of all
    leaves: a leaf without a gradient at some of them keeps older gradients in their places.

    Args:
        window_size: :math:`w \ge 1`, the number of gradients to keep.
        lamb: :math:`\lambda \ge 0`.
        filter_type: ``"mean"``, or ``"sum"`` for no division.
        warmup: leave the gradient unchanged until there are :math:`w` of them; otherwise take the
            mean of those that there are.

    State: `GrokfastMaState`, :math:`w + 1` times the parameters.

    Raises:
        ValueError: `window_size` is below 1, or `filter_type` is unknown.
        TypeError: a leaf is `Rows` of a table.

    Source: J. Lee et al., Grokfast: Accelerated Grokking by Amplifying Slow Gradients, 2024,
    arXiv:2405.20233, algorithm 1.

    >>> tx = grokfast_ma(window_size=2, lamb=2.0)
    >>> state, seen = tx.init(jnp.zeros(1)), []
    >>> for g in (1.0, 3.0, 5.0):
    ...     updates, state = tx.update(jnp.array([g]), state)
    ...     seen += updates.tolist()
    >>> seen
    [1.0, 7.0, 13.0]
    """
    if filter_type not in ("mean", "sum"):
        raise ValueError(f"grokfast_ma: filter_type must be mean or sum, not {filter_type!r}")

    def slots(p: Array) -> dict[str, Array]:
        dtype = compute_dtype(p.dtype)
        window = jnp.zeros((window_size, *p.shape), dtype)
        return {"window": window, "total": zeros_like(p, dtype)}

    def rule(g: Array, s: Any, t: Step) -> Any:
        at = t.once("at", 0, lambda: (t.count - 1) % window_size)
        oldest = jax.lax.dynamic_index_in_dim(s.window, at, keepdims=False)
        window = jax.lax.dynamic_update_index_in_dim(s.window, g, at, 0)
        total = branch(
            at == window_size - 1, lambda: jnp.sum(window, 0), lambda: s.total + (g - oldest)
        )

        def weight() -> Array:
            there = jnp.minimum(t.number, window_size)
            of_sum = lamb / there if filter_type == "mean" else jnp.asarray(lamb, there.dtype)
            return jnp.where(there < window_size, 0, of_sum) if warmup else of_sum

        return g + t.once("weight", 0, weight) * total, {"window": window, "total": total}

    return leafwise(GrokfastMaState, slots, rule)
