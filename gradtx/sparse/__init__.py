"""Tables of which a step touches a few rows: an update that costs what it touches."""

from gradtx.rows import check_indices
from gradtx.sparse.lookup import take, value_and_grad

__all__ = ["check_indices", "take", "value_and_grad"]
