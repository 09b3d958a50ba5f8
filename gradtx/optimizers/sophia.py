"""Sophia."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx import tree
from gradtx.checks import Count, Decay, LearningRate, NonNegative, Positive, PositiveCount
from gradtx.composition.chain import chain, chain_reading_old
from gradtx.composition.gate import Case, Cases, in_cases
from gradtx.core.pair import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    optimizer,
    transformation,
)
from gradtx.engine.leaves import load, store
from gradtx.engine.lift import elementwise
from gradtx.leaves.paths import Where, leaves_with_path
from gradtx.numerics import Step, cast, debias, ema, moments
from gradtx.numerics.compiler_hints import delay
from gradtx.numerics.control import branch, inside
from gradtx.transforms.decay import add_decayed_weights
from gradtx.transforms.hessian import asked, chosen_estimator
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array, Counter, DType, InnerState, Params, PyTree, Slots, State, Updates


class SophiaState(NamedTuple):
    """count: i32[]; mu, nu: like the parameters, nu in float32 or wider; the estimator's state."""

    count: Counter
    mu: Slots
    nu: Slots
    hessian_fn_state: InnerState


class _Moments(NamedTuple):
    """The part of `SophiaState` on which the rule works."""

    count: Counter
    mu: Slots
    nu: Slots


class _Estimates(NamedTuple):
    """The estimate of the diagonal that a step makes or leaves out.

    Attributes:
        compute: ``() -> (estimates, state)``, an estimate for each leaf and the estimator's state.
        average: ``estimates -> nu``, the new average.
        gradients: those of the step, in whose types the estimates are.
    """

    compute: Callable[[], tuple[list[Any], State]]
    average: Callable[[list[Any]], PyTree]
    gradients: list[Any]


class _Curvature(NamedTuple):
    """The diagonal before and after a step.

    Attributes:
        old, nu: the averages before and after the step.
        inner: the estimator's state after the step.
        readers: for each leaf an array that is known once the loss has been read, or None.
    """

    old: PyTree
    nu: PyTree
    inner: State
    readers: list[Any]


def _at_every(update_interval: Any, state: SophiaState, estimates: _Estimates) -> _Curvature:
    """The formula: an estimate is averaged at steps 1, 1 + k, 1 + 2k, and so on."""
    old, inner = state.nu, state.hessian_fn_state

    def averaged() -> tuple[PyTree, State, Array]:
        h, inner = estimates.compute()
        return estimates.average(h), inner, jnp.ones([])

    due = state.count % update_interval == 0
    nu, now, read = branch(due, averaged, lambda: (old, inner, jnp.zeros([])))
    return _Curvature(old, nu, now, [read] * len(estimates.gradients))


def _if_due(state: SophiaState, estimates: _Estimates) -> _Curvature:
    """The plan for a loop in which an estimate is due."""
    # XLA for CPUs is not to know that it is: it then stores the estimate, which two kernels read,
    # and computes nothing of it before the loop.
    holds = delay(jnp.ones([]), after=cast(state.count, jnp.float32)) > 0
    inner, gradients = state.hessian_fn_state, estimates.gradients
    h, now = branch(holds, estimates.compute, lambda: (tree.zeros_like(gradients), inner))
    return _Curvature(state.nu, estimates.average(h), now, h)


def _if_not_due(state: SophiaState, estimates: _Estimates) -> _Curvature:
    """The plan for a loop in which none is due: the divisor is computed in the loop too."""
    old, readers = inside(state.nu, state.count), [None] * len(estimates.gradients)
    return _Curvature(old, state.nu, state.hessian_fn_state, readers)


def _estimates(
    estimator: GradientTransformation,
    b2: Any,
    updates: Updates,
    state: SophiaState,
    params: Params,
    extra_args: dict[str, Any],
) -> _Estimates:
    """The estimates at this step's parameters, from its gradients in float32 or wider."""
    treedef: Any = leaves_with_path(updates)[1]
    gradients = treedef.flatten_up_to(updates)

    def compute() -> tuple[list[Any], State]:
        h, inner = estimator.update(updates, state.hessian_fn_state, params, **extra_args)
        pairs = zip(treedef.flatten_up_to(h), gradients, strict=True)
        return [None if g is None else cast(h, g.dtype) for h, g in pairs], inner

    def average(estimates: list[Any]) -> PyTree:
        pairs = zip(estimates, treedef.flatten_up_to(state.nu), strict=True)
        return treedef.unflatten(
            [n if h is None else store(n, ema(h, load(n), b2)) for h, n in pairs]
        )

    return _Estimates(compute, average, gradients)


def _native_state(state: State, estimator: GradientTransformation, params: Params) -> SophiaState:
    """The state, or Optax's as one of gradtx: the branches must agree on one class."""
    if isinstance(state, SophiaState):
        return state
    structure: Any = jax.tree.structure(jax.eval_shape(estimator.init, params))
    inner = structure.unflatten(jax.tree.leaves(state.hessian_fn_state))
    return SophiaState(state.count, state.mu, state.nu, inner)


def _after(updates: Updates, readers: list[Any]) -> Updates:
    """Updates that wait for the loss to read the parameters: overwritten later, without a copy."""
    treedef: Any = leaves_with_path(updates)[1]
    pairs = zip(treedef.flatten_up_to(updates), readers, strict=True)
    return treedef.unflatten([u if u is None or h is None else delay(u, after=h) for u, h in pairs])


@transformation
def scale_by_sophia(
    b1: Decay = 0.965,
    b2: Decay = 0.99,
    eps: Positive = 1e-8,
    gamma: NonNegative = 0.01,
    clip_threshold: Positive | None = 1.0,
    update_interval: PositiveCount = 10,
    hessian_diagonal_fn: GradientTransformation | None = None,
    mu_dtype: DType | None = None,
    verbose: bool = False,
    print_win_rate_every_n_steps: Count = 0,
    *,
    hessian_first: bool = False,
    bias_correction: bool = True,
) -> GradientTransformation:
    r"""Divide the momentum by the diagonal of the Hessian, and clip.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \\
        u_t &= \mathrm{clip}\left(\frac{\hat\mu_t}{\max(\gamma \nu_{t-1}, \epsilon)},
            -\rho, \rho\right), \\
        \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2) \hat h_t \text{ at } t = 1, 1 + k, 1 + 2k,
            \dots, \text{ else } \nu_{t-1}

    Args:
        b1: :math:`\beta_1` in :math:`[0, 1)`.
        b2: :math:`\beta_2` in :math:`[0, 1)`, applied at every `k`-th step.
        eps: :math:`\epsilon > 0`.
        gamma: :math:`\gamma \ge 0`; choose it so that a tenth to a half of the entries are not
            clipped.
        clip_threshold: :math:`\rho > 0`, or None for no clip.
        update_interval: :math:`k \ge 1`, steps from one estimate to the next.
        hessian_diagonal_fn: the estimator of :math:`\hat h`, which reads the extra arguments;
            :func:`hutchinson_estimator_diag_hessian` unless given.
        mu_dtype: the type in which :math:`\mu` is kept; the parameter's unless given.
        verbose: whether to print the fraction of entries that are not clipped.
        print_win_rate_every_n_steps: how often; 0 for never.
        hessian_first: use :math:`\nu_t` in :math:`u_t`, as in the paper: the estimate comes before
            the step. In the authors' code and Optax it comes after, and the first step is the
            sign of the gradient.
        bias_correction: divide :math:`\mu_t` by :math:`1 - \beta_1^t`, as Optax does; not in the
            paper.

    ``update`` passes its extra arguments on to the estimator: the loss as ``obj_fn``, or as
    ``value_fn``, which :func:`minimize`, :func:`make_step` and :func:`solve` pass.

    State: `SophiaState`. :math:`\nu` is kept in float32 or wider; Optax keeps it in the
    parameter's type.

    Raises:
        ValueError: ``update`` is called without parameters, or without the estimator's arguments.
        TypeError: a leaf is complex or `Rows`.

    Source: H. Liu et al., Sophia: A Scalable Stochastic Second-order Optimizer for Language Model
    Pre-training, 2023, arXiv:2305.14342, algorithm 3.

    >>> tx = scale_by_sophia(gamma=1.0, b2=0.0, hessian_first=True, bias_correction=False)
    >>> p = jnp.array([4.0, -4.0])
    >>> loss = lambda p: jnp.sum(jnp.array([1.0, 0.05]) * p**2) / 2
    >>> u, _ = tx.update(jax.grad(loss)(p), tx.init(p), p, obj_fn=loss)
    >>> u.round(4).tolist()
    [0.14000000059604645, -0.14000000059604645]
    """
    hessian = chosen_estimator(hessian_diagonal_fn)

    def slots(p: Array) -> dict[str, Array]:
        return moments(p, mu_dtype)

    def rule(g: Array, s: Any, t: Step) -> Any:
        mu = ema(g, s.mu, b1)
        mean = debias(mu, b1, t) if bias_correction else mu
        u = mean / jnp.maximum(gamma * s.nu, eps)
        if clip_threshold is not None:
            u = jnp.clip(u, -clip_threshold, clip_threshold)
        return u, {"mu": mu, "nu": s.nu}

    lifted = elementwise(_Moments, slots, rule)

    def init(params: Params) -> State:
        count, mu, nu = lifted.init(params)
        return SophiaState(count, mu, nu, hessian.init(params))

    def update(
        updates: Updates,
        state: State,
        params: Params | None = None,
        *,
        hessian_due: bool | None = None,
        **extra_args: Any,
    ) -> tuple[Updates, State]:
        wide, params, extra_args = asked("scale_by_sophia", updates, params, extra_args)
        state = _native_state(state, hessian, params)
        estimates = _estimates(hessian, b2, wide, state, params, extra_args)
        if hessian_due is None:
            curvature = _at_every(update_interval, state, estimates)
        else:  # in one of the loops of `sophia`
            curvature = (_if_due if hessian_due else _if_not_due)(state, estimates)
        nu = curvature.nu if hessian_first else curvature.old
        out, (count, mu, _) = lifted.update(updates, _Moments(state.count, state.mu, nu))
        out = _after(out, curvature.readers)
        if verbose and clip_threshold is not None:
            _print_win_rate(out, clip_threshold, count, print_win_rate_every_n_steps)
        return out, SophiaState(count, mu, curvature.nu, curvature.inner)

    return GradientTransformationExtraArgs(init, update)


def _print_win_rate(updates: Updates, threshold: Any, count: Array, every: Any) -> None:
    """Print the fraction of entries below the clip, at every so many steps."""
    won = tree.sum(jax.tree.map(lambda u: jnp.sum(jnp.abs(u) < threshold), updates))
    due = (every > 0) & (count % jnp.maximum(every, 1) == 0)
    branch(
        due,
        lambda: jax.debug.print("Sophia: win rate {}", won / max(tree.size(updates), 1)),
        lambda: None,
    )


@optimizer
def sophia(
    learning_rate: LearningRate,
    b1: Decay = 0.965,
    b2: Decay = 0.99,
    eps: Positive = 1e-8,
    weight_decay: NonNegative = 1e-4,
    weight_decay_mask: Where | None = None,
    gamma: NonNegative = 0.01,
    clip_threshold: Positive | None = 1.0,
    update_interval: PositiveCount = 10,
    hessian_diagonal_fn: GradientTransformation | None = None,
    mu_dtype: DType | None = None,
    verbose: bool = False,
    print_win_rate_every_n_steps: Count = 0,
    *,
    hessian_first: bool = False,
    bias_correction: bool = True,
) -> GradientTransformation:
    r"""Sophia: momentum divided by the diagonal of the Hessian and clipped, with decoupled decay.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \qquad
            \hat\mu_t = \frac{\mu_t}{1 - \beta_1^t}, \\
        u_t &= \mathrm{clip}\left(\frac{\hat\mu_t}{\max(\gamma \nu_{t-1}, \epsilon)},
            -\rho, \rho\right), \qquad
            \theta_t = \theta_{t-1} - \eta (u_t + \lambda\theta_{t-1}), \\
        \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2) \hat h_t \text{ at } t = 1, 1 + k, 1 + 2k,
            \dots, \text{ else } \nu_{t-1}

    where :math:`\hat h_t` is the estimate of the Hessian's diagonal at :math:`\theta_{t-1}`.

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        b1: decay of the momentum; this and those not listed below as in :func:`scale_by_sophia`.
        b2: decay of the Hessian's diagonal.
        eps: :math:`\epsilon > 0`, the least divisor.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.
        weight_decay_mask: which parameters decay, as in :func:`add_decayed_weights`.
        gamma: :math:`\gamma \ge 0`, a factor on the Hessian's diagonal.
        clip_threshold: :math:`\rho > 0`, the largest entry of `u`; None for no clip.
        update_interval: :math:`k \ge 1`, steps from one estimate to the next.
        hessian_diagonal_fn: the estimator; this is Sophia-G with
            :func:`gnb_estimator_diag_hessian`, else Sophia-H.
        mu_dtype: the type of the momentum.
        verbose: whether to print the fraction of entries that are not clipped.
        print_win_rate_every_n_steps: how often; 0 for never.
        hessian_first: whether the estimate comes before the step, which then uses :math:`\nu_t`, as
            in the paper.
        bias_correction: whether the momentum is corrected for its start at 0; if not,
            :math:`\hat\mu_t = \mu_t`.

    Source: H. Liu et al., Sophia: A Scalable Stochastic Second-order Optimizer for Language Model
    Pre-training, 2023, arXiv:2305.14342, algorithm 3.

    >>> import gradtx
    >>> loss = lambda p: jnp.sum(jnp.array([1.0, 100.0]) * p**2)
    >>> step = gradtx.make_step(loss, sophia(0.1, b2=0.5, gamma=1.0))
    >>> params = jnp.ones(2)
    >>> state = step.init(params)
    >>> for _ in range(100):
    ...     params, state, value = step(params, state)
    >>> bool(value < 0.1)
    True
    """
    links = (
        scale_by_sophia(
            b1,
            b2,
            eps,
            gamma,
            clip_threshold,
            update_interval,
            hessian_diagonal_fn,
            mu_dtype,
            verbose,
            print_win_rate_every_n_steps,
            hessian_first=hessian_first,
            bias_correction=bias_correction,
        ),
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate),
    )
    tx, reading_old = chain(*links), chain_reading_old("nu", *links)
    # An estimate before the step needs no copy; the value of a schedule only the link knows.
    if hessian_first or callable(update_interval):
        return tx

    def cases(state: State) -> list[Case]:
        due = state[0].count % update_interval == 0
        return [
            Case(due, reading_old, {"hessian_due": True}),
            Case(~due, tx, {"hessian_due": False}),
        ]

    # The estimate reads the parameters, which the step overwrites, and overwrites the slot that
    # the step reads: where both are in one loop, nothing is copied.
    return tx.expansion._replace(step=in_cases(cases)).with_facets(Cases(cases))
