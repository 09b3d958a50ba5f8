"""An estimate on a loss whose scans read stacked parameters: no direction is ever there as a whole.

The part of a direction that belongs to a layer is drawn where the layer is read: in the turns of
the loss's own scans, and once more in a loop that hands a layer's gradients to whoever uses them.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from gradtx.backward.scans import Loops, Stage, Turn
from gradtx.estimators.directions import moved
from gradtx.estimators.estimator import Estimator
from gradtx.numerics import cast
from gradtx.programs.interpreter import interpret, scan_sizes
from gradtx.training.estimated import scalar
from gradtx.types import Array


class EstimatedLoops:
    """A loss that has been evaluated around its parameters, and its gradient layer by layer.

    Args:
        gradients: the estimator.
        key: a random key, to be used once.
        loops: the loss, a function of the leaves with the value as its first result.
        leaves: the parameters.
        has_aux: whether the other results are wanted, for which it is evaluated once more.

    Attributes:
        results: those of the loss; None in place of the others if they are not wanted.
        flat: whether the values did not differ.
    """

    def __init__(
        self,
        gradients: Estimator,
        key: Array,
        loops: Loops,
        leaves: Sequence[Any],
        has_aux: bool,
    ) -> None:
        self.gradients, self.loops, self.leaves = gradients, loops, list(leaves)
        self.directions = gradients.directions(key, leaves)
        self.program = loops.closed
        self.stages = {id(stage.eqn): stage for stage in loops.stages}
        self.stacked = {stack.leaf for stage in loops.stages for stack in stage.stacks}
        value, self.weights, self.flat = gradients.measure(self._along)
        self.results = [value]
        if has_aux:
            self.results = interpret(self.program, self.leaves, lambda eqn, inputs: None)

    def _along(self, k: Any, step: Any) -> Array:
        """The loss with the parameters moved by `step` of direction `k`."""
        at = [
            p if i in self.stacked else moved(p, step, self.directions.leaf(i, k))
            for i, p in enumerate(self.leaves)
        ]

        def compute(eqn: Any, inputs: list[Any]) -> list[Any] | None:
            stage = self.stages.get(id(eqn))
            return None if stage is None else self._scanned(stage, inputs, k, step)

        return scalar(self.gradients, interpret(self.program, at, compute)[0])

    def _scanned(self, stage: Stage, inputs: list[Any], k: Any, step: Any) -> list[Any]:
        """The results of a scan whose turns move the parameters of their layer."""
        params = stage.eqn.params
        run = jaxpr_as_fun(params["jaxpr"])
        consts, carries = scan_sizes(stage.eqn)
        first = consts + carries
        stacks = {first + stack.at: stack for stack in stage.stacks}
        # Not the inputs: these may be stacks that were cast as a whole.
        inputs = [
            self.leaves[stacks[at].leaf] if at in stacks else x for at, x in enumerate(inputs)
        ]

        def body(carry: list[Any], of_turn: tuple[Array, list[Any]]) -> Any:
            j, xs = of_turn
            operands = [*inputs[:consts], *carry, *xs]
            for at, stack in stacks.items():
                z = self.directions.layer(stack.leaf, j, k)
                operands[at] = cast(moved(operands[at], step, z), stack.dtype)
            results = run(*operands)
            return results[:carries], results[carries:]

        last, ys = jax.lax.scan(
            body,
            inputs[consts:first],
            (jnp.arange(stage.length), inputs[first:]),
            length=stage.length,
            reverse=params["reverse"],
            unroll=params["unroll"],
        )
        return [*last, *ys]

    def pull(
        self, seeds: Sequence[Any], turns: Sequence[tuple[Turn, Any]]
    ) -> tuple[list[Any], list[Any]]:
        """The gradients of the leaves, and what the loop over each scan's layers carried.

        As :class:`gradtx.backward.scans.Backward` hands them over: conjugates of complex ones.
        """
        weights = self.weights * cast(seeds[0], self.weights.dtype)

        def gradient(i: int, part: Any) -> Array:
            return jnp.conj(self.gradients.gradient(weights, part, self.leaves[i].dtype))

        carried = []
        for stage, (turn, first) in zip(self.loops.stages, turns, strict=True):

            def body(j: Array, carried: Any, stage: Stage = stage, turn: Turn = turn) -> Any:
                grads = [
                    gradient(stack.leaf, functools.partial(self.directions.layer, stack.leaf, j))
                    for stack in stage.stacks
                ]
                return turn(j, carried, [g[None] for g in grads])

            carried.append(jax.lax.fori_loop(0, stage.length, body, first))
        grads = [
            None if i in self.stacked else gradient(i, functools.partial(self.directions.leaf, i))
            for i in range(len(self.leaves))
        ]
        return grads, carried
