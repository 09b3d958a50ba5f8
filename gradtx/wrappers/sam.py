"""Sharpness-aware minimization: gradients taken at the worst point nearby."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx import tree
from gradtx.apply import apply_updates
from gradtx.checks import PositiveCount
from gradtx.numerics import cast, divide, widen
from gradtx.pair import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    transformation,
    with_extra_args_support,
)
from gradtx.paths import is_leaf
from gradtx.rows import is_rows
from gradtx.types import EmptyState, Params, Slots, State, Updates
from gradtx.wrappers.branching import _like


@transformation
def normalize() -> GradientTransformation:
    r"""Divide the updates by their global norm: :math:`u = g / \lVert g \rVert`, 0 for no norm.

    The norm is summed in at least float32. A zero gradient stays zero; in Optax it becomes NaN.

    >>> tx = normalize()
    >>> tx.update(jnp.array([3.0, 4.0]), tx.init(jnp.zeros(2)))[0].round(6).tolist()
    [0.6000000238418579, 0.800000011920929]
    """

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        factor = divide(jnp.ones([]), tree.global_norm(updates))
        return tree.map_updates(lambda g: cast(widen(g) * factor, g.dtype), updates), state

    return GradientTransformationExtraArgs(lambda params: EmptyState(), update)


class SAMState(NamedTuple):
    """The states of the two optimizers, and where the outer one stands.

    steps_since_sync: i32[], adversarial steps since the last outer one; cache: the outer
    parameters, or None in opaque mode.
    """

    steps_since_sync: Any
    opt_state: State
    adv_state: State
    cache: Slots


@transformation
def sam(
    optimizer: GradientTransformation,
    adv_optimizer: GradientTransformation,
    sync_period: PositiveCount = 2,
    reset_state: bool = True,
    opaque_mode: bool = False,
    batch_axis_name: str | None = None,
) -> GradientTransformation:
    r"""Climb to a worse point nearby, and step from where one was with the gradient found there.

    .. math:: \theta' = \theta + \rho \frac{\nabla f(\theta)}{\lVert \nabla f(\theta) \rVert},
        \qquad \theta \leftarrow \theta - \eta \nabla f(\theta')

    with ``sam(sgd(eta), chain(normalize(), sgd(rho)))``.

    Args:
        optimizer: the optimizer of the parameters.
        adv_optimizer: the optimizer whose updates are gone against.
        sync_period: one step of `optimizer` for so many calls, the others climb; at least 1.
        reset_state: start `adv_optimizer` anew after each step of `optimizer`.
        opaque_mode: climb inside one call of ``update``, which then needs an extra argument
            ``grad_fn``, ``(params, i) -> gradients``, and makes a whole step. Else every call makes
            one move, and the parameters between the steps are the worse ones.
        batch_axis_name: in opaque mode, an axis over which to average the gradients.

    State: `SAMState`. `Rows` become whole tables.

    Source: P. Foret et al., Sharpness-Aware Minimization for Efficiently Improving Generalization,
    2021, arXiv:2010.01412, algorithm 1.

    >>> import gradtx
    >>> tx = sam(gradtx.sgd(1.0), gradtx.chain(normalize(), gradtx.sgd(0.5)))
    >>> params, state = jnp.array([2.0]), tx.init(jnp.array([2.0]))
    >>> for _ in range(2):
    ...     params, state = gradtx.apply_gradients(tx, params, params, state)
    >>> params.tolist()
    [-0.5]
    """
    outer, adversary = with_extra_args_support(optimizer), with_extra_args_support(adv_optimizer)

    def init(params: Params) -> State:
        cache = None if opaque_mode else jax.tree.map(jnp.array, params)
        count = jnp.zeros([], jnp.int32)
        return SAMState(count, outer.init(params), adversary.init(params), cache)

    def climb(updates: Updates, state: State, params: Params) -> tuple[Updates, State]:
        against, state = adversary.update(updates, state, params)
        return tree.scale(-1, against), state

    def transparent(
        updates: Updates, state: State, params: Params, extra_args: dict[str, Any]
    ) -> tuple[Updates, State]:
        first = state.steps_since_sync == 0
        last = state.steps_since_sync + 1 >= sync_period
        cache = tree.where(first, params, state.cache)

        def step() -> tuple[Updates, State, State]:
            new, opt_state = outer.update(updates, state.opt_state, cache, **extra_args)
            back = jax.tree.map(
                lambda u, c, p: None if u is None else widen(c) - widen(p) + widen(u),
                new,
                cache,
                params,
                is_leaf=is_leaf,
            )
            adv_state = adversary.init(params) if reset_state else state.adv_state
            return _like(back, updates), _like(opt_state, state.opt_state), adv_state

        def worsen() -> tuple[Updates, State, State]:
            new, adv_state = climb(updates, state.adv_state, params)
            return _like(new, updates), state.opt_state, _like(adv_state, state.adv_state)

        new, opt_state, adv_state = jax.lax.cond(last, step, worsen)
        count = jnp.where(last, 0, state.steps_since_sync + 1)
        return new, SAMState(count, opt_state, adv_state, cache)

    def opaque(
        updates: Updates,
        state: State,
        params: Params,
        extra_args: dict[str, Any],
        grad_fn: Callable[..., Any] | None,
    ) -> tuple[Updates, State]:
        if grad_fn is None:
            raise ValueError("sam in opaque mode needs update(..., grad_fn=(params, i) -> grads)")
        worse, grads, adv_state = params, updates, state.adv_state
        for i in range(sync_period - 1):
            uphill, adv_state = climb(grads, adv_state, worse)
            worse = apply_updates(worse, uphill)
            grads = grad_fn(worse, i)
            if batch_axis_name is not None:
                grads = jax.lax.pmean(grads, batch_axis_name)
        if reset_state:
            adv_state = adversary.init(params)
        new, opt_state = outer.update(grads, state.opt_state, params, **extra_args)
        return new, SAMState(state.steps_since_sync, opt_state, adv_state, None)

    def update(
        updates: Updates,
        state: State,
        params: Params | None = None,
        *,
        grad_fn: Callable[..., Any] | None = None,
        **extra_args: Any,
    ) -> tuple[Updates, State]:
        if params is None:
            raise ValueError("sam needs the parameters: call update(updates, state, params)")
        updates = jax.tree.map(
            lambda g: g.to_dense() if is_rows(g) else g, updates, is_leaf=is_leaf
        )
        if opaque_mode:
            return opaque(updates, state, params, extra_args, grad_fn)
        return transparent(updates, state, params, extra_args)

    return GradientTransformationExtraArgs(init, update)
