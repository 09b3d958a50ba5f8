"""Matrix optimizers that leave the other leaves to AdamW."""

from collections.abc import Callable
from typing import Any

from gradtx.composition.matrices import matrices_and_others
from gradtx.core.pair import GradientTransformation
from gradtx.leaves.paths import Where
from gradtx.optimizers.adam import adamw
from gradtx.transforms.decay import descent
from gradtx.types import DimensionNumbers


def longer_side(arguments: Any, rows: int, columns: int) -> float:
    """What `UpdateSize.factor` is where a matrix's updates have one root mean square."""
    return float(max(rows, columns) ** 0.5)


def beside_adamw(
    name: str,
    direction: Callable[[Any], GradientTransformation],
    learning_rate: Any,
    weight_decay: Any,
    mask: Where | None,
    weight_dimension_numbers: DimensionNumbers | None,
    others: GradientTransformation | None,
) -> GradientTransformation:
    """Weight decay and steps along a direction for matrices, `others` for the other leaves.

    Args:
        name: the optimizer's, for errors.
        direction: makes a transformation from a function that maps a tree to its dimension numbers.
        learning_rate: of the matrices and, unless `others` is given, of AdamW.
        weight_decay: of the same leaves as the learning rate.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        weight_dimension_numbers: as in :func:`matrices_and_others`.
        others: the optimizer of the other leaves.
    """

    def matrices(numbers: Any) -> GradientTransformation:
        return descent(direction(numbers), learning_rate, weight_decay, mask)

    if others is None:
        others = adamw(learning_rate, weight_decay=weight_decay, mask=mask)
    return matrices_and_others(name, matrices, others, weight_dimension_numbers)
