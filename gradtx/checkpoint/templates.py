"""Saved leaves in a tree like another one, whose containers may be a library's own."""

from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from gradtx.leaves.paths import path_string, with_paths
from gradtx.types import PyTree

# How many paths a message lists.
_SHOWN = 6


def named(root: str, tree: PyTree) -> Iterator[tuple[str, Any]]:
    """The leaves of a tree with their names: the paths below `root`."""
    for path, leaf in with_paths(tree)[0]:
        yield f"{root}/{path_string(path)}" if path else root, leaf


def like(caller: str, root: str, saved: dict[str, Any], template: PyTree) -> PyTree:
    """The saved leaves, by the names that :func:`named` gives them, in a tree like `template`.

    Raises:
        ValueError: they are not those of this tree, or are of another shape or type.
    """
    wanted = dict(named(root, template))
    problems = {
        "missing": wanted.keys() - saved.keys(),
        "extra": saved.keys() - wanted.keys(),
        "of another shape or type": {
            name
            for name in wanted.keys() & saved.keys()
            if _form(saved[name]) != _form(wanted[name])
        },
    }
    if any(problems.values()):
        raise ValueError(
            f"{caller}: the saved {root} are not those of the tree that was given; "
            + "; ".join(f"{k}: {listed(sorted(v))}" for k, v in problems.items() if v)
        )
    leaves = [_placed(saved[name], leaf) for name, leaf in wanted.items()]
    return jax.tree.structure(template).unflatten(leaves)  # type: ignore[attr-defined]


def _form(leaf: Any) -> tuple[tuple[int, ...], str]:
    return np.shape(leaf), (leaf if hasattr(leaf, "dtype") else np.asarray(leaf)).dtype.name


def _placed(x: Any, like: Any) -> Any:
    """A saved leaf, on the devices of the one like it if that was put there by name."""
    where = getattr(like, "sharding", None)
    asked = isinstance(where, jax.sharding.NamedSharding) or getattr(like, "committed", False)
    return jax.device_put(x, where) if asked else x


def listed(paths: Iterable[str]) -> str:
    """Some paths for a message: the first of them, and how many more there are."""
    paths = list(paths)
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return (", ".join(paths[:_SHOWN]) or "nothing") + more
