"""Euclidean projections: the point of a set that is nearest to a tree, under Optax's names.

Besides Optax's twelve there are Keras's norm constraints: ``max_norm``, ``min_max_norm`` and
``unit_norm`` (its ``NonNeg`` is `projection_non_negative`).

All are exact up to rounding, computed in at least float32 and returned in the types of the leaves.
`None` leaves are skipped. An empty set is refused unless the arguments are traced.
"""

from gradtx.projections.ball import projection_l2_ball, projection_l2_sphere
from gradtx.projections.box import (
    projection_box,
    projection_hypercube,
    projection_linf_ball,
    projection_non_negative,
)
from gradtx.projections.norms import (
    projection_max_norm,
    projection_min_max_norm,
    projection_unit_norm,
)
from gradtx.projections.plane import (
    projection_halfspace,
    projection_hyperplane,
    projection_vector,
)
from gradtx.projections.simplex import (
    projection_l1_ball,
    projection_l1_sphere,
    projection_simplex,
)

__all__ = [
    "projection_box",
    "projection_halfspace",
    "projection_hypercube",
    "projection_hyperplane",
    "projection_l1_ball",
    "projection_l1_sphere",
    "projection_l2_ball",
    "projection_l2_sphere",
    "projection_linf_ball",
    "projection_max_norm",
    "projection_min_max_norm",
    "projection_non_negative",
    "projection_simplex",
    "projection_unit_norm",
    "projection_vector",
]
