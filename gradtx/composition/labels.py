"""Labels of leaves: by a tree, by a function, by patterns."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax

from gradtx.checks import check_chooser, check_patterns
from gradtx.leaves.paths import (
    is_leaf,
    is_prefix,
    leaves_with_path,
    matches,
    path_string,
    spread,
    takes_tree,
    with_paths,
)
from gradtx.leaves.whole import whole_of
from gradtx.types import PyTree

Labels: TypeAlias = Any
"""Gives each leaf a label: a tree of labels or a prefix of it, a function from the parameters to
such a tree, a function ``(path, leaf) -> label``, or pairs of a path pattern and a label."""


def _is_function(labels: Any) -> bool:
    # A callable that is a pytree, such as an Equinox module, is a tree of labels.
    return callable(labels) and bool(jax.tree_util.all_leaves([labels]))


def check_labels(labels: Labels, known: Any) -> None:
    """Raise ValueError if a label that can be found without a tree is not known."""
    if _is_function(labels):
        kinds = "labels, or a function of the tree, or of a path and a leaf"
        check_chooser(f"partition: param_labels must be {kinds}", labels)
        return
    _refuse_expressions(labels)
    pairs = labels
    if not _is_pairs(labels):
        keyed = with_paths(labels)[0]
        pairs = [(path_string(path), label) for path, label in keyed]
    for at, label in pairs:
        if not _is_in(label, known):
            raise ValueError(
                f"partition: param_labels: {at!r} has the label {label!r:.80}, for which there is "
                f"no transformation; there are {', '.join(map(repr, known))}"
            )


def _refuse_expressions(labels: Any) -> None:
    pairs = labels if isinstance(labels, list | tuple) else ()
    first = [pair[0] for pair in pairs if isinstance(pair, list | tuple) and len(pair) == 2]
    keys = labels if isinstance(labels, Mapping) else ()
    expressions = [x for x in (*first, *keys) if isinstance(x, re.Pattern)]
    check_patterns("partition: param_labels", expressions, ", or a function (path, leaf) -> label")


def _refuse_patterns_as_keys(labels: Mapping[Any, Any]) -> None:
    """Raise ValueError if keys of a dictionary, which is a tree of labels, look like patterns."""
    if any(isinstance(key, str) and "*" in key for key in labels):
        raise ValueError(
            "partition: param_labels: a dictionary is a tree of labels; patterns and their labels "
            f"are pairs: {list(labels.items())!r:.200}"
        )


def _is_in(label: Any, known: Any) -> bool:
    try:
        return label in known
    except TypeError:  # it is not hashable
        return False


def _is_pairs(labels: Any) -> bool:
    """Whether `labels` may be pairs of a pattern and a label."""
    return isinstance(labels, list | tuple) and all(
        isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str)
        for pair in labels
    )


def _is_patterns(labels: Any, tree: PyTree, known: Any) -> bool:
    """Whether `labels` are pairs of a pattern and a label, not a tree that looks like them."""
    if not _is_pairs(labels) or not labels:
        return False
    return not (set(jax.tree.leaves(labels)) <= set(known) and is_prefix(labels, tree))


def labels_of(tree: PyTree, labels: Labels, known: Any) -> PyTree:
    """The labels of a tree: a tree like it, or a prefix of one where `labels` gives that."""
    tree = whole_of(tree)
    keyed, treedef = leaves_with_path(tree)
    if not keyed:  # such as the placeholder that Optax's tree_map_params passes as parameters
        return tree
    named = [(path_string(path), leaf) for path, leaf in keyed]
    if _is_function(labels):
        if takes_tree(labels):
            labels = labels(tree)
        else:
            leaf_labels = [None if leaf is None else labels(path, leaf) for path, leaf in named]
            labels = treedef.unflatten(leaf_labels)
    elif _is_patterns(labels, tree, known):
        labels = treedef.unflatten(_matched(labels, named))
    elif isinstance(labels, Mapping) and not is_prefix(labels, tree):
        _refuse_patterns_as_keys(labels)
    full = spread("partition: the labels are", labels, tree)
    full_labels = jax.tree.leaves(full, is_leaf=is_leaf)
    for (path, leaf), label in zip(named, full_labels, strict=True):
        if leaf is not None and label not in known:
            raise ValueError(
                f"partition: {path!r} has the label {label!r}, for which there is no "
                f"transformation; there are {', '.join(map(repr, known))}"
            )
    return labels if is_prefix(labels, tree) else full


def _matched(pairs: Sequence[tuple[str, Any]], named: Sequence[tuple[str, Any]]) -> list[Any]:
    """The label of each leaf, from the one pattern that matches its path or a final ``"*"``."""
    paths = [path for path, _ in named]
    rest = pairs[-1] if pairs[-1][0] == "*" else None
    pairs = pairs[:-1] if rest else pairs
    for pattern, _ in pairs:
        if not any(matches(path, pattern) for path in paths):
            raise ValueError(
                f"partition: the pattern {pattern!r} matches no leaf; the leaves are "
                f"{', '.join(paths)}"
            )
    leaf_labels: list[Any] = []
    for path, leaf in named:
        if leaf is None:
            leaf_labels.append(None)
            continue
        matching = [pair for pair in pairs if matches(path, pair[0])]
        matching = matching or ([rest] if rest else [])
        if len(matching) != 1:
            patterns = ", ".join(repr(pattern) for pattern, _ in matching)
            raise ValueError(
                f"partition: {path!r} matches "
                + (f"several patterns: {patterns}" if matching else "no pattern")
                + "; each leaf must match one ('*' in the last place takes the rest)"
            )
        leaf_labels.append(matching[0][1])
    return leaf_labels
