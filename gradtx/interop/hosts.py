"""Transformations in training loops that pass on no extra arguments."""

from typing import Any

from gradtx.composition.around import InnerStep, around
from gradtx.composition.views import SameGradients
from gradtx.core.pair import GradientTransformation
from gradtx.types import Params, State, Updates


def with_extra_args(tx: GradientTransformation, **extra_args: Any) -> GradientTransformation:
    """`tx` with extra arguments of ``update`` already given, for a host that passes none.

    Args:
        tx: the transformation.
        extra_args: arguments of ``update`` that the host does not pass, such as ``value``.

    Returns:
        A pair with the same states. For the ``TrainState`` of Flax, inside the compiled step::

            new = state.replace(tx=with_extra_args(tx, value=loss)).apply_gradients(grads=grads)
            state = new.replace(tx=tx)

    >>> import gradtx, jax.numpy as jnp
    >>> tx = gradtx.chain(gradtx.sgd(1.0), gradtx.reduce_on_plateau(0.5, patience=1))
    >>> updates, state = jnp.float32(1.0), tx.init(0.0)
    >>> for _ in range(2):
    ...     updates, state = with_extra_args(tx, value=3.0).update(jnp.float32(1.0), state)
    >>> float(updates)
    -0.5
    """

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Updates, State]:
        return inner_step(updates, state, params, **{**extra_args, **inner_step.extra_args})

    return around(tx, None, run, same_steps=True, facets=(SameGradients(),))
