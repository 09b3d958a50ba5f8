"""AdaHessian."""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.checks import Decay, Fraction, LearningRate, NonNegative
from gradtx.core.pair import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    optimizer,
    transformation,
)
from gradtx.engine.leaves import load, store
from gradtx.engine.lift import leafwise
from gradtx.leaves.paths import Where, leaves_with_path
from gradtx.numerics import Step, accumulator_dtype, debias, ema, widen, zero_mean
from gradtx.transforms.decay import descent
from gradtx.transforms.hessian import asked, chosen_estimator
from gradtx.types import (
    Array,
    Counter,
    DType,
    InnerState,
    NonNegativeSlots,
    Params,
    Slots,
    State,
    Updates,
)


class AdahessianState(NamedTuple):
    """count: i32[]; mu: like the parameters; nu: in float32 or wider; the estimator's state."""

    count: Counter
    mu: Slots
    nu: NonNegativeSlots
    hessian_fn_state: InnerState


class _AdahessianMoments(NamedTuple):
    """The part of `AdahessianState` on which the rule works."""

    count: Counter
    mu: Slots
    nu: NonNegativeSlots


@transformation
def scale_by_adahessian(
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-4,
    hessian_power: Fraction = 1.0,
    *,
    spatial_average: bool = True,
    hessian_diagonal_fn: GradientTransformation | None = None,
    mu_dtype: DType | None = None,
) -> GradientTransformation:
    r"""Adam with estimates of the Hessian's diagonal in place of the gradient's squares.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \qquad
            \nu_t = \beta_2 \nu_{t-1} + (1 - \beta_2)\, d_t^2, \\
        u_t &= \frac{\mu_t / (1 - \beta_1^t)}
            {\bigl(\nu_t / (1 - \beta_2^t)\bigr)^{k/2} + \epsilon}

    where :math:`d_t = |\hat h_t|`, averaged over the window of a convolution's kernel.

    Args:
        b1: :math:`\beta_1` in :math:`[0, 1)`.
        b2: :math:`\beta_2` in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`.
        hessian_power: `k` in :math:`[0, 1]`; 0 for momentum alone.
        spatial_average: whether to average :math:`|\hat h|` over all but the last two dimensions of
            a leaf of three or more: the window of kernels of shape (height, width, in, out).
        hessian_diagonal_fn: what estimates :math:`\hat h` from its extra arguments;
            :func:`hutchinson_estimator_diag_hessian` unless given.
        mu_dtype: the type in which :math:`\mu` is kept; the parameter's unless given.

    ``update`` passes its extra arguments on to the estimator: the loss as ``obj_fn``, or as
    ``value_fn``, which :func:`minimize`, :func:`make_step` and :func:`solve` pass. The estimate is
    made at every step, and costs about two gradients.

    State: `AdahessianState`; :math:`\nu` has one number for each window.

    The paper averages the estimates, the authors' code their magnitudes, as here. The code averages
    the kernels of two-dimensional convolutions, whose windows come last in PyTorch.

    Raises:
        ValueError: ``update`` is called without parameters, or without what the estimator needs.
        TypeError: a leaf is complex or `Rows`.

    Source: Z. Yao et al., ADAHESSIAN: An Adaptive Second Order Optimizer for Machine Learning,
    2021, arXiv:2006.00719, algorithm 1, and the authors' code.

    >>> import jax
    >>> tx = scale_by_adahessian(eps=0.0)
    >>> p = jnp.array([4.0, -4.0])
    >>> loss = lambda p: jnp.sum(jnp.array([1.0, 0.05]) * p**2) / 2
    >>> u, _ = tx.update(jax.grad(loss)(p), tx.init(p), p, value_fn=loss)
    >>> u.round(3).tolist()
    [4.0, -4.0]
    """
    estimator = chosen_estimator(hessian_diagonal_fn)

    def window(p: Array) -> tuple[int, ...]:
        return tuple(range(p.ndim - 2)) if spatial_average else ()

    def slots(p: Array) -> dict[str, Array]:
        shape = [1 if axis in window(p) else n for axis, n in enumerate(p.shape)]
        return {"mu": zero_mean(p, mu_dtype), "nu": jnp.zeros(shape, accumulator_dtype(p))}

    def rule(g: Array, s: Any, t: Step) -> Any:
        mu = ema(g, s.mu, b1)
        root = debias(s.nu, b2, t) ** (hessian_power / 2)
        return debias(mu, b1, t) / (root + eps), {"mu": mu, "nu": s.nu}

    lifted = leafwise(_AdahessianMoments, slots, rule)

    def init(params: Params) -> State:
        count, mu, nu = lifted.init(params)
        return AdahessianState(count, mu, nu, estimator.init(params))

    def averaged(h: Array, nu: Any) -> Any:
        d = jnp.abs(widen(h))
        if window(d):
            entries = math.prod(d.shape[axis] for axis in window(d))
            d = jnp.sum(d, axis=window(d), keepdims=True) / max(entries, 1)
        return store(nu, ema(jnp.square(d), load(nu), b2))

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        wide, params, extra_args = asked("scale_by_adahessian", updates, params, extra_args)
        h, inner = estimator.update(wide, state.hessian_fn_state, params, **extra_args)
        treedef: Any = leaves_with_path(updates)[1]
        pairs = zip(treedef.flatten_up_to(h), treedef.flatten_up_to(state.nu), strict=True)
        nu = treedef.unflatten([n if h is None else averaged(h, n) for h, n in pairs])
        moments: Any = _AdahessianMoments(state.count, state.mu, nu)
        out, moments = lifted.update(updates, moments)
        return out, AdahessianState(moments.count, moments.mu, nu, inner)

    return GradientTransformationExtraArgs(init, update)


@optimizer
def adahessian(
    learning_rate: LearningRate,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-4,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    hessian_power: Fraction = 1.0,
    *,
    spatial_average: bool = True,
    hessian_diagonal_fn: GradientTransformation | None = None,
    mu_dtype: DType | None = None,
) -> GradientTransformation:
    r"""AdaHessian: momentum divided by the mean size of the Hessian's diagonal, with decay.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \qquad
            \nu_t = \beta_2 \nu_{t-1} + (1 - \beta_2)\, d_t^2, \\
        \theta_t &= \theta_{t-1} - \eta \left(\frac{\mu_t / (1 - \beta_1^t)}
            {\bigl(\nu_t / (1 - \beta_2^t)\bigr)^{k/2} + \epsilon} + \lambda\theta_{t-1}\right)

    where :math:`d_t` is the magnitude of :math:`\hat h_t = z_t \odot \nabla^2 f(\theta_{t-1})\,
    z_t`, with :math:`z_{t,i} = \pm 1` at random, averaged over the window of a convolution's
    kernel.

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule. The
            authors' default is 0.15.
        b1: :math:`\beta_1`, decay of the momentum; this and the rest as in
            :func:`scale_by_adahessian`.
        b2: :math:`\beta_2`, decay of the Hessian's squared diagonal.
        eps: :math:`\epsilon \ge 0`, added to the power of the root.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        hessian_power: `k` in :math:`[0, 1]`.
        spatial_average: whether to average over the windows of convolutions.
        hessian_diagonal_fn: the estimator.
        mu_dtype: the type of the momentum.

    Source: Z. Yao et al., ADAHESSIAN: An Adaptive Second Order Optimizer for Machine Learning,
    2021, arXiv:2006.00719, algorithm 1, and the authors' code.

    >>> import gradtx
    >>> loss = lambda p: jnp.sum(jnp.array([1.0, 100.0]) * p**2)
    >>> step = gradtx.make_step(loss, adahessian(0.15))
    >>> params = jnp.ones(2)
    >>> state = step.init(params)
    >>> for _ in range(100):
    ...     params, state, value = step(params, state)
    >>> bool(value < 0.1)
    True
    """
    return descent(
        scale_by_adahessian(
            b1,
            b2,
            eps,
            hessian_power,
            spatial_average=spatial_average,
            hessian_diagonal_fn=hessian_diagonal_fn,
            mu_dtype=mu_dtype,
        ),
        learning_rate,
        weight_decay,
        mask,
    )
