"""Transformations that keep nothing: each is a function of the updates and the parameters."""

from collections.abc import Callable
from typing import Any

from gradtx.core.pair import GradientTransformation, GradientTransformationExtraArgs
from gradtx.types import EmptyState, Params, State, Updates


def without_state(
    function: Callable[..., Updates],
    check: Callable[[Params], Any] | None = None,
    **traits: Any,
) -> GradientTransformation:
    """A transformation whose updates are a function of the updates and parameters it is given.

    Args:
        function: ``(updates, params or None, **extra_args) -> updates``.
        check: called with the parameters by ``init``; raises an error for those that are refused.
        traits: what else the pair can do: fields of `Traits`, such as its facets.

    >>> tx = without_state(lambda updates, params, *, factor=1.0, **extra_args: factor * updates)
    >>> tx.update(2.0, tx.init(0.0), factor=0.5)
    (1.0, EmptyState())
    """

    def init(params: Params) -> State:
        if check is not None:
            check(params)
        return EmptyState()

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        return function(updates, params, **extra_args), state

    return GradientTransformationExtraArgs(init, update, **traits)
