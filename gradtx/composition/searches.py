"""Line searches: what their states keep of the point to which a step leads."""

from collections.abc import Callable
from typing import Any, NamedTuple

from gradtx.core.traits import not_handed_on
from gradtx.types import Array, State, Updates


class Evaluation(NamedTuple):
    """The loss at a point, and its gradient; None where that is not kept."""

    value: Array
    grad: Updates | None


def kept_in_fields(state: State) -> Evaluation:
    """The evaluation in a state with the fields `value` and `grad`."""
    return Evaluation(state.value, state.grad)


@not_handed_on
class Searches(NamedTuple):
    """Each step is as long as a search makes it, which evaluates the loss where it leads.

    evaluation: ``state -> Evaluation``, at the point to which the last step led.
    """

    evaluation: Callable[[Any], Evaluation] = kept_in_fields
