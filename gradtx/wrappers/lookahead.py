"""Lookahead: slow parameters that follow fast ones."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx import tree
from gradtx.checks import Fraction, PositiveCount
from gradtx.composition.apply import apply_updates
from gradtx.composition.around import InnerStep, around
from gradtx.core.pair import GradientTransformation, transformation, with_extra_args_support
from gradtx.engine.leaves import parameter
from gradtx.engine.lift import needed
from gradtx.leaves.paths import is_leaf, map_present, merge
from gradtx.leaves.rows import dense
from gradtx.leaves.whole import whole_of
from gradtx.numerics import cast, increment, own_copy, widen
from gradtx.numerics.control import branch, in_form_of
from gradtx.types import Array, InnerState, Params, PyTree, Slots, State, Updates


class LookaheadParams(NamedTuple):
    """A pair of parameters: `fast` ones to train, `slow` ones to evaluate."""

    fast: Params
    slow: Params

    @classmethod
    def init_synced(cls, params: Params) -> "LookaheadParams":
        """A pair with both parts equal to `params`."""
        return cls(fast=params, slow=params)


class LookaheadState(NamedTuple):
    """The fast optimizer's state, the steps (i32[]) since the last synchronization, and `slow`.

    slow: the slow parameters in float32 or wider, or None where they come with the parameters.
    """

    fast_state: InnerState
    steps_since_sync: Any
    slow: Slots = None

    def eval_params(self, params: Params) -> Params:
        """The slow parameters."""
        if _is_pair(params):
            return params.slow
        return params if self.slow is None else tree.cast_like(self.slow, params)


@transformation(update_size="proportional")
def lookahead(
    fast_optimizer: GradientTransformation,
    sync_period: PositiveCount,
    slow_step_size: Fraction,
    reset_state: bool = False,
) -> GradientTransformation:
    r"""Every `k` steps, move slow parameters towards the fast ones, which continue from there.

    To evaluate at an average and leave the run as it is, prefer :func:`ema_params`.

    .. math::
        \theta &\leftarrow \theta + u \text{ at every step, } \\
        \phi &\leftarrow \phi + \alpha (\theta - \phi), \qquad \theta \leftarrow \phi
            \qquad \text{after every } k \text{ steps}

    where :math:`\theta` are the fast parameters, :math:`\phi` the slow ones and `u` the update of
    the fast optimizer.

    Args:
        fast_optimizer: the optimizer of the fast parameters.
        sync_period: `k`, at least 1.
        slow_step_size: :math:`\alpha` in :math:`[0, 1]`.
        reset_state: restart the fast optimizer after each synchronization, at the parameters from
            which training goes on; in Optax at those before the step, which only an optimizer that
            keeps a copy of them sees.

    The parameters are either a `LookaheadParams`, gradtx's or Optax's, and then so are the updates;
    or, more simply, the fast parameters alone, and then the state holds the slow ones. In both
    cases :func:`eval_params` returns the slow ones. The updates must be applied as they are.

    State: `LookaheadState`.

    Raises:
        ValueError: `LookaheadParams` with a state for the fast parameters alone.

    Source: M. R. Zhang et al., Lookahead Optimizer: k Steps Forward, 1 Step Back, 2019,
    arXiv:1907.08610, algorithm 1.

    >>> import gradtx
    >>> tx = lookahead(gradtx.sgd(0.1), sync_period=5, slow_step_size=0.5)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> slow = gradtx.eval_params(tx, result.state, result.params)
    >>> bool(jnp.allclose(slow, 1, atol=1e-2))
    True
    """
    tx = with_extra_args_support(fast_optimizer)

    def init(params: Params) -> State:
        count = jnp.zeros([], jnp.int32)
        if _is_pair(params):
            return LookaheadState(tx.init(params.fast), count)
        slow = map_present(lambda p: own_copy(widen(parameter(p))), params)
        return LookaheadState(tx.init(params), count, slow)

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Updates, State]:
        params = needed("lookahead", updates, params)
        paired = _is_pair(params)
        fast, slow = _fast_and_slow(state, params)
        if paired:
            inner_step = inner_step.seen_as(
                lambda at: type(params)(at, slow), lambda grads: getattr(grads, "fast", grads)
            )
        updates = dense(updates)
        new, fast_state = inner_step(updates, state.fast_state, fast)

        def sync() -> tuple[Updates, PyTree, State]:
            target = _next_slow(slow_step_size, new, fast, slow)
            to_fast = map_present(lambda u, t, p: cast(t - widen(p), u.dtype), new, target, fast)
            new_fast_state = fast_state
            if reset_state:  # at the parameters from which training goes on
                synced = merge(apply_updates(fast, to_fast), whole_of(fast))
                new_fast_state = in_form_of(tx.init(synced), fast_state)
            if paired:
                to_slow = map_present(
                    lambda u, t, s: cast(t - widen(s), s.dtype), new, target, slow
                )
                return to_fast, to_slow, new_fast_state
            return to_fast, _where_slot(target, slow), new_fast_state

        def wait() -> tuple[Updates, PyTree, State]:
            if paired:
                zeros = map_present(lambda u, s: jnp.zeros_like(s), new, slow)
                return new, zeros, fast_state
            return new, slow, fast_state

        steps = increment(state.steps_since_sync)
        due = steps >= sync_period
        out, other, fast_state = branch(due, sync, wait)
        count = jnp.where(due, 0, steps)
        if paired:
            return type(params)(out, other), LookaheadState(fast_state, count)
        return out, LookaheadState(fast_state, count, other)

    return around(tx, init, run)


def _is_pair(params: Params) -> bool:
    """Whether these are a `LookaheadParams`, gradtx's or Optax's."""
    return getattr(params, "_fields", None) == LookaheadParams._fields


def _fast_and_slow(state: Any, params: Params) -> tuple[Params, Params]:
    """The fast parameters and the slow ones, which come with them or are in the state."""
    slow = getattr(state, "slow", None)  # an Optax state has no such field
    if not _is_pair(params):
        return params, slow
    if slow is not None:
        raise ValueError(
            "lookahead: the state is for the fast parameters alone; make it with "
            "tx.init(LookaheadParams.init_synced(params))"
        )
    return params.fast, params.slow


def _next_slow(step_size: Any, updates: Updates, fast: Params, slow: Params) -> Params:
    """The slow parameters after a step towards the fast ones, in float32 or wider."""

    def on_leaf(u: Any, p: Any, s: Array) -> Any:
        if u is None:
            return s
        s = widen(s)
        return s + step_size * (widen(p) + widen(u) - s)

    return jax.tree.map(on_leaf, updates, fast, slow, is_leaf=is_leaf)


def _where_slot(new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(
        lambda n, o: o if o is None or n is None else cast(n, o.dtype), new, old, is_leaf=is_leaf
    )
