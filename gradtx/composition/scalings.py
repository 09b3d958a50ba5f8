"""Which parts of a transformation do more than multiply all updates by one number."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from gradtx.composition.views import OnPart
from gradtx.core.pair import GradientTransformation


class Scaling(NamedTuple):
    """All updates are multiplied by one number.

    by: what the number depends on: the ``"step"`` alone; the ``"norm"`` of all updates too; or
        earlier updates (``"past"``), so that it is one number only while updates are the same.
    """

    by: Literal["step", "norm", "past"]


def beyond_scalings(tx: GradientTransformation) -> Iterator[GradientTransformation]:
    """The parts of `tx` that do more than multiply all updates of a step by one number.

    >>> import gradtx
    >>> list(beyond_scalings(gradtx.sgd(0.1))), len(list(beyond_scalings(gradtx.adam(0.1))))
    ([], 1)
    """
    if tx.parts is not None and tx.facet(OnPart) is None:
        for part in tx.parts:
            yield from beyond_scalings(part)
        return
    scaling = tx.facet(Scaling)
    if scaling is None or scaling.by == "past":
        yield tx
