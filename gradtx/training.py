"""The compiled step."""

from collections.abc import Mapping
from typing import Any

import jax

from gradtx.inspection import replace
from gradtx.minimizing import LossFn, minimize
from gradtx.numerics import cast
from gradtx.pair import GradientTransformation, with_extra_args_support
from gradtx.paths import Where, select
from gradtx.types import Params, State


class TrainStep:
    """A compiled step, called as ``params, state, value = step(params, state, *args)``.

    Attributes:
        tx: the optimizer.
    """

    def __init__(self, tx: GradientTransformation, trainable: Where | None, compiled: Any) -> None:
        self.tx = tx
        self._trainable = trainable
        self._compiled = compiled

    def __call__(
        self, params: Params, state: State, *args: Any, extra_args: Mapping[str, Any] | None = None
    ) -> tuple[Params, State, Any]:
        """Take one step. The buffers of `params` and `state` are given up: use what is returned."""
        # A weakly typed parameter, such as jnp.array(1.0), would be strong after the first step.
        params = jax.tree.map(lambda p: cast(p, p.dtype) if hasattr(p, "dtype") else p, params)
        return self._compiled(self.tx, params, state, args, extra_args)

    def init(self, params: Params) -> State:
        """The state for the parameters that are trained."""
        return self.tx.init(select(params, self._trainable))

    def replace(self, **hyperparameters: Any) -> "TrainStep":
        """The step with other hyperparameters, for the same state.

        Nothing is compiled again if the new ones are arrays where the old ones were.
        """
        return TrainStep(replace(self.tx, **hyperparameters), self._trainable, self._compiled)

    def lower(self, params: Params, state: State, *args: Any) -> Any:
        """The step lowered for these arguments, as ``jax.jit(...).lower`` does."""
        return self._compiled.lower(self.tx, params, state, args, None)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.tx!r})"


def make_step(
    loss_fn: LossFn,
    tx: GradientTransformation,
    *,
    has_aux: bool = False,
    grad_loss: Any = None,
    trainable: Where | None = None,
    donate: bool = True,
) -> TrainStep:
    """Compile :func:`minimize` once, with parameters and state donated.

    Args:
        loss_fn: ``(params, *args) -> value`` or, with `has_aux`, ``-> (value, aux)``.
        tx: the optimizer; its array hyperparameters are arguments of the compiled step, so that
            :meth:`TrainStep.replace` changes them without compiling again.
        has_aux: whether `loss_fn` returns something beside the value.
        grad_loss: the cotangent of the value; 1 unless given.
        trainable: which leaves to train, as in :func:`select`.
        donate: whether the step may write into the buffers of its arguments; then these must not be
            used after it.

    Returns:
        The step: ``params, state, value = step(params, state, *args)``, with ``step.init(params)``.

    >>> import gradtx
    >>> import jax.numpy as jnp
    >>> step = make_step(lambda p, x: (p["w"] * x - 6.0) ** 2, gradtx.sgd(0.1))
    >>> params = {"w": jnp.float32(0.0)}
    >>> state = step.init(params)
    >>> for _ in range(20):
    ...     params, state, value = step(params, state, 2.0)
    >>> round(float(params["w"]), 3)
    3.0
    """

    def run(
        tx: GradientTransformation, params: Params, state: State, args: Any, extra_args: Any
    ) -> Any:
        return minimize(
            loss_fn,
            tx,
            params,
            state,
            *args,
            has_aux=has_aux,
            grad_loss=grad_loss,
            trainable=trainable,
            extra_args=extra_args,
        )

    compiled = jax.jit(run, donate_argnums=(1, 2) if donate else ())
    return TrainStep(with_extra_args_support(tx), trainable, compiled)
