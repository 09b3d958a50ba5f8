"""One vector instead of many small leaves."""

from collections.abc import Callable
from typing import Any

from gradtx.composition.around import InnerStep, around
from gradtx.composition.views import OnPart
from gradtx.core.pair import GradientTransformation, transformation, with_extra_args_support
from gradtx.tree.vectors import Vectors
from gradtx.types import Params, PyTree, State, Updates


@transformation
def flatten(inner: GradientTransformation) -> GradientTransformation:
    """Run a transformation on all leaves as one vector.

    With many small leaves this compiles and runs faster. It costs a copy of the gradients, and a
    rule that works leaf by leaf (a norm, a matrix product) sees a single leaf.

    Args:
        inner: the transformation.

    A leaf without a gradient counts as zeros in ``update``. :func:`apply_gradients` and
    :func:`minimize` leave such leaves out of the parameters, and the vector would be too short:
    give them zeros there.

    State: the inner transformation's, for the vector. Leaves of several types make one vector per
    type, in a dict; Optax widens them all to one type.

    >>> import gradtx, jax.numpy as jnp
    >>> tx, params = flatten(gradtx.adam(0.1)), {"a": jnp.zeros(2), "b": jnp.zeros((2, 2))}
    >>> gradtx.get_slot(tx.init(params), "mu").shape
    (6,)
    """
    tx = with_extra_args_support(inner)

    def init(params: Params) -> State:
        layout = Vectors(params)
        return tx.init(layout.pack(params))

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Updates, State]:
        layout = Vectors(updates if params is None else params)
        seen = None if params is None else layout.pack(params)
        inner_step = inner_step.seen_as(lambda x: layout.unpack(x, params), layout.pack)
        packed, state = inner_step(layout.pack(updates), state, seen)
        return layout.unpack(packed, updates), state

    def on_part(_: int, function: Callable[[Any], Any], tree: PyTree) -> PyTree:
        layout = Vectors(tree)
        return layout.unpack(function(layout.pack(tree)), tree)

    return around(tx, init, run, facets=(OnPart(on_part),))
