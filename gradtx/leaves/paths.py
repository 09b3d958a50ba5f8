"""Leaves by path: how they are named in errors, patterns and configurations."""

import fnmatch
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from gradtx.checks import check_patterns, refuse_expressions
from gradtx.declarations.declaration import read_by_people
from gradtx.leaves.packed import holds_packed, uniform
from gradtx.leaves.rows import is_rows
from gradtx.leaves.whole import whole_of
from gradtx.names.libraries import is_box
from gradtx.types import PyTree, TreeT, Where as Where

MaskOrFn: TypeAlias = Where | None
"""Optax's name for a choice of leaves, or none."""


def path_string(path: Any) -> str:
    """A leaf's path as a string: ``"head/0/bias"``.

    >>> [path_string(p) for p, _ in leaves_with_path({"head": [1.0, 2.0]})[0]]
    ['head/0', 'head/1']
    """
    return jax.tree_util.keystr(path, simple=True, separator="/")


def is_leaf(x: Any) -> bool:
    """Leaves of a tree of gradients: arrays, `Rows`, and `None` for a leaf without a gradient."""
    return x is None or is_rows(x)


_CONTENT = jax.tree_util.GetAttrKey("value")


def with_paths(
    tree: PyTree, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[list[tuple[Any, Any]], Any]:
    """The leaves of any tree with their paths, and its structure.

    Paths are the same whether or not a library keeps the parameters in objects of its own, so that
    a leaf has one name in parameters, gradients and states.

    Args:
        tree: the tree.
        is_leaf: what else is a leaf, as for ``jax.tree.flatten``.
    """
    keyed, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)
    if not {type(key) for path, _ in keyed for key in path} & {type(_CONTENT)}:
        return keyed, treedef
    nodes = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_box)[0]
    boxes = {path for path, x in nodes if is_box(x)}

    def name(path: Any) -> Any:
        return tuple(key for i, key in enumerate(path) if key != _CONTENT or path[:i] not in boxes)

    return [(name(path), leaf) for path, leaf in keyed], treedef


def map_with_paths(
    function: Callable[[Any, Any], Any],
    tree: PyTree,
    is_leaf: Callable[[Any], bool] | None = None,
) -> PyTree:
    """``function(path, leaf)`` on each leaf of a tree, with paths as `with_paths` gives them."""
    keyed, treedef = with_paths(tree, is_leaf)
    return treedef.unflatten([function(path, leaf) for path, leaf in keyed])


def unboxed(tree: PyTree) -> PyTree:
    """A tree with the content of boxes in their place."""

    def content(x: Any) -> Any:
        return jax.tree.leaves(x, is_leaf=lambda y: y is not x)[0] if is_box(x) else x

    return jax.tree.map(content, tree, is_leaf=is_box)


def leaves_with_path(tree: PyTree) -> tuple[list[tuple[Any, Any]], Any]:
    """The leaves of a tree of gradients with their paths, and its structure."""
    return with_paths(tree, is_leaf)


def are_alike(tree: PyTree, other: PyTree) -> bool:
    """Whether two trees have one structure, in which `Rows` and None are leaves."""
    structure: Any = jax.tree.structure(tree, is_leaf=is_leaf)
    return bool(structure == jax.tree.structure(other, is_leaf=is_leaf))


def first_difference(tree: PyTree, other: PyTree) -> str:
    """Where two trees first differ, for an error message."""
    ours = {path_string(path): None for path, _ in leaves_with_path(tree)[0]}
    theirs = {path_string(path): None for path, _ in leaves_with_path(other)[0]}
    for path in ours:
        if path not in theirs:
            return f"{path!r} is only in the first"
    for path in theirs:
        if path not in ours:
            return f"{path!r} is only in the second"
    at, first, second = next(_containers(tree, other))
    return f"{at!r} is a {first} in the first and a {second} in the second"


def _containers(tree: Any, other: Any, at: Any = ()) -> Iterator[tuple[str, str, str]]:
    """Where two trees, or their nodes, are containers of different kinds, and of which."""
    kind = type(tree).__name__
    if type(tree) is not type(other):
        if not jax.tree_util.all_leaves([tree, other]):  # of leaves the types do not matter
            yield path_string(at), kind, type(other).__name__
        return
    structure: Any
    ours, structure = _children(tree)
    theirs, different = _children(other)
    if is_leaf(tree) or not ours or ours[0][0] == ():
        return
    for (path, x), (_, y) in zip(ours, theirs, strict=False):
        yield from _containers(x, y, (*at, *path))
    if structure != different:
        yield path_string(at), f"{kind} of one form", f"{kind} of another"


def _children(node: Any) -> tuple[list[tuple[Any, Any]], Any]:
    return jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)


def aligned(problem: str, tree: PyTree, treedef: Any, other: PyTree) -> list[Any]:
    """The parts of `other` that belong to the leaves of `tree`, whose structure is `treedef`.

    Raises:
        ValueError: the trees differ: `problem`, and where they first do.
    """
    try:
        return list(treedef.flatten_up_to(other))
    except ValueError:
        raise ValueError(f"{problem}: {first_difference(tree, other)}") from None


def spread(problem: str, prefix: PyTree, tree: PyTree) -> PyTree:
    """`prefix`, a tree like `tree` or a prefix of one, with its values spread to every leaf.

    In other containers, such as the objects of Flax around parameters, values go by their paths.

    Raises:
        ValueError: it is neither: `problem`, and where they first differ.
    """
    try:
        return jax.tree.map(
            lambda said, below: jax.tree.map(lambda _: said, below, is_leaf=is_leaf), prefix, tree
        )
    except ValueError:
        values = _by_path(prefix, tree, None)
        if values is None:
            raise no_prefix(problem, prefix, tree) from None
        return leaves_with_path(tree)[1].unflatten(values)


def is_prefix(prefix: PyTree, tree: PyTree) -> bool:
    """Whether one tree is like another, or a prefix of it, in the same containers."""
    try:
        jax.tree.map(lambda _, part: None, prefix, tree)
    except ValueError:
        return False
    return True


def _by_path(prefix: PyTree, tree: PyTree, stop: Callable[[Any], bool] | None) -> list[Any] | None:
    """The values of `prefix` for the leaves, by their paths; None if one or the other is left."""
    said = {path_string(path): value for path, value in with_paths(prefix, stop)[0]}
    used: set[str] = set()
    values = []
    for path, leaf in leaves_with_path(tree)[0]:
        above = [path_string(path[:i]) for i in range(len(path), -1, -1)]
        at = next((name for name in above if name in said), None)
        if at is None and leaf is not None:
            return None
        used |= {at} if at is not None else set()
        values.append(None if at is None else said[at])
    return values if used == said.keys() else None


def spread_leaves(
    problem: str, prefix: PyTree, tree: PyTree, stop: Callable[[Any], bool]
) -> list[Any]:
    """The values of `prefix`, as :func:`spread` gives them to the leaves, in a list.

    Args:
        problem: the start of an error.
        prefix: a tree like `tree` or a prefix of one.
        tree: the parameters.
        stop: what is a value.

    Raises:
        ValueError: it is neither: `problem`, and where they first differ.
    """
    leaf_values: list[Any] = []

    def note(said: Any, below: PyTree) -> None:
        leaf_values.extend([said] * len(jax.tree.leaves(below, is_leaf=is_leaf)))

    try:
        jax.tree.map(note, prefix, tree, is_leaf=stop)
    except ValueError:
        values = _by_path(prefix, tree, stop)
        if values is None:
            raise no_prefix(problem, prefix, tree, stop) from None
        return values
    return leaf_values


def no_prefix(
    problem: str, prefix: PyTree, tree: PyTree, stop: Callable[[Any], bool] = is_leaf
) -> ValueError:
    """The error for a tree of values that is not like the parameters nor a prefix of them.

    Args:
        problem: the start of the error.
        prefix: the tree of values.
        tree: the parameters.
        stop: what is a value.
    """
    difference = _prefix_difference(prefix, tree, stop)
    return ValueError(f"{problem} not a tree like the parameters or a prefix of it: {difference}")


def _prefix_difference(prefix: PyTree, tree: PyTree, stop: Callable[[Any], bool]) -> str:
    """Why `prefix` is no prefix of `tree`, for an error message."""
    said = [path_string(path) for path, _ in with_paths(prefix, stop)[0]]
    leaf_paths = [path_string(path) for path, _ in leaves_with_path(tree)[0]]
    for path in said:
        if path and not any(at == path or at.startswith(f"{path}/") for at in leaf_paths):
            above = next((at for at in leaf_paths if not at or path.startswith(f"{at}/")), None)
            if above is not None:
                at = f"at {above!r} they are" if above else "they are"
                return (
                    f"it has {path!r}, and {at} one array: pass one value, or numbers as an array, "
                    "such as jnp.array([0.0, 1.0]) in place of a list"
                )
            return f"they have no {path!r}, their leaves are {', '.join(leaf_paths)}"
    for at in leaf_paths:
        if not any(not path or at == path or at.startswith(f"{path}/") for path in said):
            return f"it says nothing of {at!r}"
    at, kind, needed = next(_containers(prefix, tree), ("", "tree", "tree of another form"))
    return (
        f"at {at!r} it has a {kind}, and they a {needed}; jax.tree.map over the parameters makes "
        "one that fits"
    )


def matches(path: str, pattern: str) -> bool:
    """Whether `pattern` names the leaf at `path` or a part of the tree that holds it.

    >>> matches("head/0/bias", "head"), matches("head/0/bias", "*/bias"), matches("header", "head")
    (True, True, False)
    """
    check_patterns("a path", [pattern])
    if path == pattern or path.startswith(f"{pattern}/"):  # a name may have brackets
        return True
    return fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path, pattern + "/*")


def mask_tree(tree: PyTree, where: Where) -> PyTree:
    """A tree of booleans like `tree`: which leaves `where` chooses.

    Raises:
        ValueError: a pattern matches no leaf, or a tree of booleans does not fit `tree`.
        TypeError: `where` is a regular expression.
    """
    mask, is_whole = _given_mask(tree, where)
    return mask if is_whole else _broadcast(mask, tree)


def mask_prefix(tree: PyTree, where: Where) -> PyTree:
    """The booleans of `mask_tree`, with one for a part of the tree where `where` gives it one."""
    mask, is_whole = _given_mask(tree, where)
    if is_whole:
        return mask
    full_mask = _broadcast(mask, tree)  # says what does not fit
    short = jax.tree.map(lambda m: m is not None and _boolean(m), mask, is_leaf=is_leaf)
    return short if is_prefix(short, tree) else full_mask


def _given_mask(tree: PyTree, where: Where) -> tuple[PyTree, bool]:
    """A mask of `tree`, and whether it has a boolean for each leaf or is to be checked for that."""
    refuse_expressions("the choice of leaves", where)
    if holds_packed(tree):
        return uniform(lambda leaves: mask_tree(leaves, where), tree), True
    if isinstance(where, str):
        where = (where,)
    tree = whole_of(tree)
    leaves, treedef = leaves_with_path(tree)
    if not leaves:  # such as the placeholder that Optax's tree_map_params passes as parameters
        return tree, True
    named = [(path_string(path), leaf) for path, leaf in leaves]
    if isinstance(where, list | tuple) and where and all(isinstance(w, str) for w in where):
        _check_patterns_match(where, [path for path, _ in named])
        return treedef.unflatten([any(matches(p, w) for w in where) for p, _ in named]), True
    if callable(where) and jax.tree_util.all_leaves([where]):
        if takes_tree(where):
            return where(tree), False
        chosen = [leaf is not None and bool(where(path, leaf)) for path, leaf in named]
        return treedef.unflatten(chosen), True
    return where, False


def takes_tree(function: Callable[..., Any]) -> bool:
    """Whether a mask function takes the whole tree, as Optax's do, not a path and a leaf."""
    parameters = inspect.signature(function).parameters.values()
    # ``partial(jax.tree.map, f)`` takes a tree too, and further ones.
    named = [p for p in parameters if p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD}]
    return sum(p.default is p.empty for p in named) < 2


def _check_patterns_match(patterns: Iterable[str], paths: Sequence[str]) -> None:
    for pattern in patterns:
        if not any(matches(path, pattern) for path in paths):
            raise ValueError(
                f"the pattern {pattern!r} matches no leaf; the leaves are {', '.join(paths)}"
            )


def _broadcast(mask: PyTree, tree: PyTree) -> PyTree:
    """A mask with a boolean for each leaf; where both have None, as of ``jax.tree.map``, False."""
    leaves, treedef = leaves_with_path(tree)
    values = spread_leaves("the mask is", mask, tree, lambda x: x is None)
    pairs = zip(values, leaves, strict=True)
    return treedef.unflatten([not (m is x is None) and _boolean(m) for m, (_, x) in pairs])


def _boolean(leaf: Any) -> bool:
    """A leaf of a mask, which may also be a NumPy or JAX boolean."""
    if isinstance(leaf, bool):
        return leaf
    one = getattr(leaf, "shape", None) == () and leaf.dtype == np.bool_
    if not one or isinstance(leaf, jax.core.Tracer):
        raise ValueError(f"the leaves of a mask must be True or False, not {leaf!r:.80}")
    return bool(leaf)


@read_by_people
def select(tree: TreeT, where: Where | None) -> TreeT:
    """`tree` with `None` in place of every leaf that `where` does not choose.

    A `None` leaf has no slots, no gradient and no update: ``tx.init(select(params, "head"))`` is
    the state for training only the head.

    Args:
        tree: parameters, or a tree like them.
        where: a path pattern (``"head"``, ``"*/bias"``), a list of them, a predicate
            ``(path, leaf) -> bool``, a tree of booleans (a prefix will do, and in other containers,
            such as nnx's variables, they go by path), or None for all.

    >>> select({"body": 1.0, "head": 2.0}, "head")
    {'body': None, 'head': 2.0}
    """
    return tree if where is None else chosen(tree, mask_tree(tree, where))


def chosen(tree: TreeT, mask: PyTree) -> TreeT:
    """`tree` with `None` in place of all for which its `mask_tree` or `mask_prefix` is False."""
    return jax.tree.map(lambda m, part: part if m else None, mask, tree)


def present_leaves(tree: PyTree) -> list[Any]:
    """The leaves that are not None; `Rows` are one leaf."""
    return [leaf for leaf in jax.tree.leaves(tree, is_leaf=is_leaf) if leaf is not None]


def map_present(function: Callable[..., Any], tree: PyTree, *others: PyTree) -> PyTree:
    """`function` on each leaf of `tree` that is not None, with what other trees have there.

    >>> map_present(lambda u, p: u + p, {"a": 1.0, "b": None}, {"a": 2.0, "b": 3.0})
    {'a': 3.0, 'b': None}
    """
    return jax.tree.map(
        lambda x, *rest: None if x is None else function(x, *rest), tree, *others, is_leaf=is_leaf
    )


def merge(tree: PyTree, other: PyTree) -> PyTree:
    """`tree` with the leaves of `other` where it has `None`."""
    return jax.tree.map(lambda a, b: b if a is None else a, tree, other, is_leaf=is_leaf)


def _kind(leaf: Any) -> Any:
    return getattr(leaf, "dtype", type(leaf))


def _is_trainable(kind: Any) -> bool:
    if isinstance(kind, type):  # a type of NumPy's is equal to Python's
        return kind in (int, float, complex)
    return bool(jax.numpy.issubdtype(kind, jax.numpy.inexact))


def without_objects(updates: PyTree, params: PyTree) -> PyTree:
    """Parameters with `None` for each leaf that no step could train, as those of a whole module.

    A module of Equinox has functions, integers and random keys among its leaves, and numbers, which
    are no parameters if they have no gradient.

    >>> without_objects({"f": None, "w": 1.0}, {"f": abs, "w": 2.0})
    {'f': None, 'w': 2.0}
    """
    kinds = set(map(_kind, jax.tree.leaves(params, is_leaf=is_rows)))
    trainable = {kind: _is_trainable(kind) for kind in kinds}
    if all(trainable.values()):
        return params
    leaves, treedef = leaves_with_path(params)
    gradients, other = jax.tree.flatten(updates, is_leaf=is_leaf)
    if other != treedef:
        gradients = leaves  # another error says so

    def parameter(p: Any, g: Any) -> Any:
        untrained = g is None and isinstance(p, int | float | complex)
        return None if p is None or untrained or not trainable[_kind(p)] else p

    return treedef.unflatten([parameter(p, g) for (_, p), g in zip(leaves, gradients, strict=True)])
