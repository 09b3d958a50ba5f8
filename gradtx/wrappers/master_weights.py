"""Master weights: parameters in few bits follow a float32 copy that is trained."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx import tree
from gradtx.composition.around import InnerStep, around
from gradtx.core.pair import GradientTransformation, transformation, with_extra_args_support
from gradtx.engine.leaves import parameter
from gradtx.engine.lift import needed
from gradtx.leaves.paths import is_leaf, merge
from gradtx.numerics import cast, is_narrow, widen
from gradtx.training.loss_scale import if_divides
from gradtx.training.rounding import each_leaf, toward, whole_step, widened
from gradtx.types import Array, DType, InnerState, Params, Slots, State, Updates


class MasterWeightsState(NamedTuple):
    """master: float32 copies of the parameters, None for those as precise; inner_state."""

    inner_state: InnerState
    master: Slots

    @property
    def keeps_small_steps(self) -> bool:
        """Whether a small step counts, though the parameters are rounded."""
        return True


@transformation(update_size="proportional")
def master_weights(inner: GradientTransformation) -> GradientTransformation:
    r"""Train a float32 copy of the parameters; the parameters are the copy, rounded.

    .. math:: w_0 = \theta_0, \qquad w_{t+1} = w_t + u_t(w_t), \qquad
        \theta_{t+1} = \mathrm{round}(w_{t+1})

    Args:
        inner: the optimizer; put this around all of it, inside of :func:`accumulate` and guards,
            but around :func:`dynamic_loss_scale` and what that holds, which divides gradients. It
            sees the copy as its parameters, and keeps its slots as for float32.

    Leaves in float32 and wider have no copy. The updates that ``update`` returns lead to the
    rounded copy: add them as they are. Any other change to the parameters is undone by the next
    step.

    State: `MasterWeightsState`; `master` is a slot: ``gradtx.get_slot(state, "master")``.

    Source: P. Micikevicius et al., Mixed Precision Training, 2018, arXiv:1710.03740, section 3.1.

    >>> import gradtx, jax.numpy as jnp
    >>> tx, params = master_weights(gradtx.sgd(0.001)), jnp.full(1, 2.0, jnp.bfloat16)
    >>> state = tx.init(params)
    >>> for _ in range(100):
    ...     params, state = gradtx.apply_gradients(tx, jnp.ones_like(params), params, state)
    >>> params.tolist(), round(float(state.master[0]), 3)
    ([1.8984375], 1.9)
    """
    tx = with_extra_args_support(inner)

    def copy(p: Any) -> Array | None:
        narrow = p is not None and is_narrow(parameter(p).dtype)
        return widen(p) if narrow else None

    def init(params: Params) -> State:
        master = jax.tree.map(copy, params, is_leaf=is_leaf)
        return MasterWeightsState(tx.init(merge(master, params)), master)

    def rule(u: Array, p: Array, master: Array | None, dtype: DType) -> tuple[Array, Any]:
        if master is None:
            return u, None
        new = master + u
        return toward(new, p, dtype)[0], new

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Updates, State]:
        params = needed("master_weights", updates, params)
        trained = merge(state.master, params)

        def rounded(master: Params) -> Params:
            return jax.tree.map(lambda m, p: cast(m, jnp.result_type(p)), master, params)

        inner_step = inner_step.seen_as(rounded, lambda grads: tree.map_updates(widen, grads))
        wide, inner_state = widened(inner_step, updates, state.inner_state, trained)
        moves, master = each_leaf(rule, wide, params, state.master, updates)
        return moves, MasterWeightsState(inner_state, master)

    pair = around(tx, init, run, facets=if_divides(tx))
    return pair._replace(step=whole_step(pair.update))
