"""What happens around a transformation: on entering it and on leaving it."""

import contextlib
from collections.abc import Callable
from typing import Any

from gradtx.pair import GradientTransformation, GradientTransformationExtraArgs
from gradtx.traits import StepFn
from gradtx.types import Params, State, Updates


def around(
    tx: GradientTransformation,
    init: Callable[[Params], State],
    enter: Callable[[Updates, State], tuple[Updates, State]],
    leave: Callable[[Any, State], tuple[Any, State]],
    *,
    step: StepFn | None,
    context: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    **traits: Any,
) -> GradientTransformation:
    """A transformation that changes the gradients before `tx` runs, and its results afterwards.

    Args:
        tx: the transformation.
        init: ``params -> state``, the state of the returned transformation.
        enter: ``(gradients, state) -> (gradients, state of tx)``.
        leave: ``(result, state of tx) -> (result, state)``, where the result is the updates or, in
            a whole step, the parameters.
        step: what takes a whole step of `tx`, such as ``tx.step``; None if the updates are added.
        context: makes the context in which `tx` runs.
        traits: what else the pair can do, as in `Traits`.

    >>> import gradtx
    >>> tx = gradtx.sgd(1.0)
    >>> halved = around(tx, tx.init, lambda g, s: (g / 2, s), lambda u, s: (u, s), step=None)
    >>> float(halved.update(4.0, halved.init(0.0))[0])
    -2.0
    """

    def between(run: Callable[..., tuple[Any, State]]) -> Callable[..., tuple[Any, State]]:
        def called(
            updates: Updates, state: State, params: Params | None = None, **extra_args: Any
        ) -> tuple[Any, State]:
            updates, inner = enter(updates, state)
            with context():
                result, inner = run(updates, inner, params, **extra_args)
            return leave(result, inner)

        return called

    whole = None if step is None else between(step)
    return GradientTransformationExtraArgs(init, between(tx.update), whole, **traits)
