"""Tables of which a step touches a few rows: the cost of an update depends only on these."""

from gradtx.backward.lookup import take, value_and_grad
from gradtx.programs.contexts import check_indices
from gradtx.sparse.exact import catch_up, dense_rows, exact_rows
from gradtx.sparse.formats import row_major

__all__ = [
    "catch_up",
    "check_indices",
    "dense_rows",
    "exact_rows",
    "row_major",
    "take",
    "value_and_grad",
]
