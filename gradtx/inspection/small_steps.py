"""Whether parameters in bfloat16 or float16 lose steps that are small beside them."""

from typing import Any

import jax
import jax.numpy as jnp

from gradtx.numerics import is_narrow
from gradtx.paths import leaves_with_path, path_string
from gradtx.types import Params, State


def loses_small_steps(params: Params, state: State) -> str | None:
    """The warning about parameters that rounding to nearest holds in place; None if there are none.

    Args:
        params: the parameters that are trained.
        state: the state of their optimizer, in which :func:`stochastic_rounding`,
            ``gradtx.compensated`` or ``gradtx.master_weights`` leaves a part.
    """

    def cures(x: Any) -> bool:
        return hasattr(type(x), "keeps_small_steps")

    leaves = leaves_with_path(params)[0]
    narrow = [(path, p.dtype) for path, p in leaves if hasattr(p, "dtype") and is_narrow(p.dtype)]
    if not narrow or any(map(cures, jax.tree.leaves(state, is_leaf=cures))):
        return None
    path, dtype = narrow[0]
    share = int(2 / jnp.finfo(dtype).eps)
    others = f" and {len(narrow) - 1} more" if narrow[1:] else ""
    return (
        f"the parameter {path_string(path)!r}{others} in {dtype} is rounded to nearest after each "
        f"step: an update below 1/{2 * share} of it is lost, one below 1/{share} may be. Pass "
        "rounding_key to make_step or minimize, or put gradtx.stochastic_rounding, "
        "gradtx.compensated or gradtx.master_weights around the optimizer"
    )
