"""Weight decay before the step: the parameters decay first, then the step is taken."""

from typing import Any

import jax.numpy as jnp

from gradtx import tree
from gradtx.checks import Fraction
from gradtx.composition.around import InnerStep, around
from gradtx.composition.masking import refusing
from gradtx.composition.nearest import Penalty
from gradtx.core.pair import GradientTransformation, transformation
from gradtx.engine.lift import needed
from gradtx.leaves.paths import Where, merge, select
from gradtx.numerics import cast, widen
from gradtx.types import Array, Params, State, Updates


@transformation(update_size="proportional")
def decay_first(
    inner: GradientTransformation, decay: Fraction, mask: Where | None = None
) -> GradientTransformation:
    r"""Let the parameters decay, then take a step from there.

    .. math:: \theta' = (1 - d)\, \theta, \qquad \theta \leftarrow \theta' + u(g, \theta')

    Args:
        inner: the optimizer, whose step `u` sees the decayed parameters.
        decay: :math:`d` in :math:`[0, 1]`, learning rate included; a number, an array, or a
            schedule.
        mask: which leaves decay, as in :func:`masked`.

    This is how Keras decays weights in every optimizer, with :math:`d = \eta\lambda`. If `u` does
    not read the parameters, it is the decay of :func:`adamw`; with LAMB, FTRL or Adafactor it is
    not. In a table whose gradient is `Rows`, only these rows decay.

    A number is independent weight decay: unlike that of :func:`adamw` and of Optax's optimizers, it
    does not follow the schedule of the learning rate :math:`\eta_t`. The corrected decay of AdamC,
    for layers that are followed by a normalization, is

    .. math:: d_t = \lambda\, \eta_t^2 / \max_t \eta_t

    which ``multiply_schedules(rate, rate, weight_decay / peak)`` gives to any optimizer.

    Source: I. Loshchilov and F. Hutter, Decoupled Weight Decay Regularization, 2019,
    arXiv:1711.05101, algorithm 2, for independent decay, where the learning rate of the step is
    constant and one schedule multiplies both; A. Defazio, Why Gradients Rapidly Increase Near the
    End of Training, 2025, arXiv:2506.02285, for AdamC.

    State: that of `inner`, in a `ScheduledState` for a schedule.

    Raises:
        ValueError: ``update`` is called without parameters; in ``init`` a path pattern of `mask`
            matches no leaf, or the mask does not fit the parameters.

    >>> import gradtx, jax.numpy as jnp
    >>> tx = decay_first(gradtx.sgd(0.5), 0.25)
    >>> tx.update(jnp.ones(1), tx.init(jnp.zeros(1)), jnp.full(1, 4.0))[0].tolist()
    [-1.5]
    """

    def _shrunk(p: Any) -> Array:
        p = jnp.asarray(p)
        return cast(widen(p) * (1 - decay), p.dtype)

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Updates, State]:
        params = needed("decay_first", updates, params)
        chosen = select(params, mask)
        decayed = tree.map_updates(_shrunk, chosen)
        updates, state = inner_step.elsewhere()(updates, state, merge(decayed, params))
        moved = tree.map_updates(
            lambda u, p: cast(widen(u) - decay * widen(p), u.dtype), select(updates, mask), chosen
        )
        return merge(moved, updates), state

    return around(inner, refusing(inner, mask), run).with_facets(Penalty({"decay": decay}))
