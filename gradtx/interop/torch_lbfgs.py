"""PyTorch's L-BFGS, whose state treats all parameters as one vector."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from gradtx.core.pair import GradientTransformation
from gradtx.interop.reading import Leaf, Options, array, filled, finite, steps_taken
from gradtx.leaves.paths import leaves_with_path, path_string
from gradtx.optimizers.lbfgs import lbfgs
from gradtx.transforms.zoom import scale_by_zoom_linesearch
from gradtx.types import Params, State

# When a call of PyTorch's step ends is up to who calls ours, which is one iteration.
_ENDS = ["max_iter", "max_eval", "tolerance_grad", "tolerance_change"]
_LARGEST = 10_000  # gradients to remember: a wrong number must not take all memory


def from_lbfgs(
    o: Options, leaves: list[Leaf], states: Sequence[Any], params: Params
) -> tuple[GradientTransformation, State]:
    """The transformation and its state, which PyTorch keeps with the first parameter."""
    rate, size = o.number("lr"), o.integer("history_size")
    if not 1 <= size <= _LARGEST:
        raise ValueError(f"{o.where}: history_size must be from 1 to {_LARGEST}, not {size}")
    tx = lbfgs(rate, size, linesearch=_line_search(o))
    o.skip(*_ENDS, "initial_lr", "param_names")
    o.finish()
    for entries in states:
        if not isinstance(entries, Mapping | None):
            raise TypeError(f"{o.where}: the state must be a dict, not {entries!r:.80}")
    entries_of_state = next((entries for entries in states if entries), None)
    state = tx.init(params)
    if entries_of_state is None:
        return tx, state
    read = Options(f"{o.where}: state", entries_of_state)
    count = steps_taken(f"{read.where}: n_iter", read.take("n_iter"))
    if count == 0:  # it was called where the gradient was small enough
        return tx, state
    moved = _leaves(read, "d", read.take("d"), leaves)
    rate_then = read.number("t")
    before = _leaves(read, "prev_flat_grad", read.take("prev_flat_grad"), leaves)
    # From the newest; at the next step the newest will be at the index count - 1.
    stacks = {key: _pairs(read, key, leaves) for key in ("old_stps", "old_dirs")}
    weights = [finite(f"{read.where}: ro", r) for r in _list(read, "ro")][::-1]
    if not len(weights) == len(stacks["old_stps"]) == len(stacks["old_dirs"]) <= size:
        raise ValueError(
            f"{read.where}: old_stps, old_dirs and ro must be of one length, at most {size}"
        )
    places = [(count - 2 - age) % size for age in range(len(weights))]
    now = {path_string(path): np.asarray(p) for path, p in leaves_with_path(params)[0]}

    def stacked(pairs: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        history = {leaf.path: np.zeros((size, *leaf.shape)) for leaf in leaves}
        for place, pair in zip(places, pairs, strict=True):
            for path, value in pair.items():
                history[path][place] = value
        return history

    with np.errstate(over="ignore", invalid="ignore"):  # Numbers that are not finite are refused.
        then = {path: now[path] - rate_then * d for path, d in moved.items()}
    slots = {
        "params": then,
        "updates": before,
        "diff_params_memory": stacked(stacks["old_stps"]),
        "diff_updates_memory": stacked(stacks["old_dirs"]),
    }
    weighted = jnp.zeros(size).at[jnp.array(places, int)].set(jnp.array(weights))
    return tx, filled(state, slots, {"count": count, "weights_memory": weighted})


def _line_search(o: Options) -> GradientTransformation | None:
    search = o.take("line_search_fn")
    if not isinstance(search, str | None) or search not in (None, "strong_wolfe"):
        raise ValueError(
            f"{o.where}: line_search_fn must be None or 'strong_wolfe', not {search!r:.80}"
        )
    if search is None:
        return None
    return scale_by_zoom_linesearch(25, slope_rtol=1e-4, initial_guess_strategy="one")


def _list(read: Options, key: str) -> list[Any]:
    value = read.take(key)
    if not isinstance(value, list | tuple):
        raise TypeError(f"{read.where}: {key} must be a list, not {value!r:.80}")
    return list(value)


def _pairs(read: Options, key: str, leaves: list[Leaf]) -> list[dict[str, np.ndarray]]:
    return [_leaves(read, key, row, leaves) for row in reversed(_list(read, key))]


def _leaves(read: Options, key: str, value: Any, leaves: list[Leaf]) -> dict[str, np.ndarray]:
    """A vector of all parameters cut into one array for each leaf."""
    row = array(f"{read.where}: {key}", value)
    sizes = [int(np.prod(leaf.shape, dtype=int)) for leaf in leaves]
    if row.shape != (sum(sizes),):
        raise ValueError(
            f"{read.where}: {key} must have the shape ({sum(sizes)},), not {row.shape}"
        )
    if np.iscomplexobj(row):
        raise ValueError(f"{read.where}: {key} must be real, not {row.dtype}")
    parts = np.split(row, np.cumsum(sizes)[:-1])
    return {leaf.path: x.reshape(leaf.shape) for leaf, x in zip(leaves, parts, strict=True)}
