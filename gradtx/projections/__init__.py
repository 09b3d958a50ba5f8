"""Euclidean projections: the point of a set that is nearest to a tree, under Optax's names.

Besides Optax's twelve there are Keras's norm constraints: ``max_norm``, ``min_max_norm`` and
``unit_norm`` (its ``NonNeg`` is `projection_non_negative`); and JAXopt's ``affine_set``,
``birkhoff``, ``box_section``, ``sparse_simplex`` and ``transport``.

All are exact up to rounding, but for `projection_birkhoff` and `projection_transport`, which have a
tolerance. They are computed in at least float32 and returned in the types of the leaves.
`None` leaves are skipped. An empty set is refused unless the arguments are traced.
"""

from typing import TYPE_CHECKING

from gradtx.names.namespace import lazy
from gradtx.projections.affine import projection_affine_set
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
from gradtx.projections.section import projection_box_section
from gradtx.projections.simplex import (
    projection_l1_ball,
    projection_l1_sphere,
    projection_simplex,
    projection_sparse_simplex,
)
from gradtx.projections.transport import projection_birkhoff, projection_transport

if not TYPE_CHECKING:
    __getattr__ = lazy(__name__)[1]  # its private modules: see gradtx._src

__all__ = [
    "projection_affine_set",
    "projection_birkhoff",
    "projection_box",
    "projection_box_section",
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
    "projection_sparse_simplex",
    "projection_transport",
    "projection_unit_norm",
    "projection_vector",
]
