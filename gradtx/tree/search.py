"""Parts of a tree, such as a state, by name; public as functions of :mod:`gradtx.tree`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from gradtx.types import PyTree, slot_fields


class NamedTupleKey(NamedTuple):
    """The step of a path that leads into a field of a named tuple: which class, which field."""

    tuple_name: str
    name: str

    def __str__(self) -> str:
        return f"{self.tuple_name}.{self.name}"


Filter = Callable[[tuple[Any, ...], Any], bool]


def children_of(node: Any) -> list[tuple[Any, Any]]:
    """The children of a node of a tree, with the keys that lead to them."""
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        cls = type(node).__name__
        return [(NamedTupleKey(cls, name), getattr(node, name)) for name in node._fields]
    flat, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    return [(path[0], child) for path, child in flat if path]


def rebuilt(node: Any, children: list[Any]) -> Any:
    """A node like this one with other children."""
    treedef: Any = jax.tree.structure(node, is_leaf=lambda x: x is not node)
    return treedef.unflatten(children)


def _key_name(key: Any) -> Any:
    return getattr(key, "name", getattr(key, "key", None))


def _is_named(node: Any, name: Any) -> bool:
    return hasattr(node, "_fields") and type(node).__name__ == name


def get_all_with_path(
    tree: PyTree, key: Any, filtering: Filter | None = None
) -> list[tuple[Any, Any]]:
    """All subtrees of a tree, a state for example, that have a name.

    Args:
        tree: where to look.
        key: a key of a dict, a field of a named tuple or dataclass, or a named tuple's class name.
        filtering: ``(path, value) -> bool``, which subtrees to keep. In the path, a field of a
            named tuple is a `NamedTupleKey`, which also has the class.

    Returns:
        Pairs of a path and a subtree, outermost first, otherwise in the order of the tree.

    >>> import gradtx
    >>> state = gradtx.chain(gradtx.scale_by_adam(), gradtx.ema(0.9)).init(1.0)
    >>> [str(path[-1]) for path, _ in get_all_with_path(state, "count")]
    ['ScaleByAdamState.count', 'EmaState.count']
    """
    matches: list[tuple[Any, Any]] = []

    def look(path: tuple[Any, ...], node: Any) -> None:
        """Collect the outermost nodes that have the name first, then those inside them."""
        descendants: list[tuple[tuple[Any, ...], Any]] = []
        outermost(path, node, descendants)
        for at, child in descendants:
            look(at, child)

    def outermost(path: tuple[Any, ...], node: Any, descendants: list[Any]) -> None:
        children = [((*path, step), child) for step, child in children_of(node)]
        here = [(path, node)] if _is_named(node, key) else []
        here += [(at, child) for at, child in children if _key_name(at[-1]) == key]
        if here:
            matches.extend(here)
            descendants.extend(children)
        else:
            for at, child in children:
                outermost(at, child, descendants)

    look((), tree)
    return [(p, value) for p, value in matches if filtering is None or filtering(p, value)]


def get(tree: PyTree, key: Any, default: Any | None = None, filtering: Filter | None = None) -> Any:
    """The one subtree of a tree with a given name, or `default` if there is none.

    The arguments are those of :func:`get_all_with_path`.

    Raises:
        KeyError: several subtrees have the name (the error lists their paths).

    >>> import gradtx
    >>> int(get(gradtx.adam(1e-3).init(1.0), "count"))
    0
    """
    matches = get_all_with_path(tree, key, filtering)
    if len(matches) > 1:
        paths = ", ".join(jax.tree_util.keystr(path) for path, _ in matches)
        raise KeyError(f"there are several {key!r}, at {paths}: choose one with `filtering`")
    return matches[0][1] if matches else default


def set(tree: PyTree, filtering: Filter | None = None, /, **kwargs: Any) -> PyTree:
    """A tree with new values for the subtrees with the given names.

    Args:
        tree: the old tree.
        filtering: ``(path, value) -> bool``, as in :func:`get_all_with_path`.
        kwargs: the new values by name; all subtrees with a name get the same value.

    Raises:
        KeyError: no subtree has a name, or all that have it are filtered out.

    >>> import gradtx
    >>> set(gradtx.ema(0.9).init(0.0), count=3).count
    3
    """
    for key in kwargs:
        if not get_all_with_path(tree, key, filtering):
            raise KeyError(f"there is no {key!r} in the tree, or `filtering` leaves none")

    def chosen(path: tuple[Any, ...], node: Any) -> bool:
        return filtering is None or filtering(path, node)

    def replaced(path: tuple[Any, ...], node: Any) -> Any:
        name = type(node).__name__
        if name in kwargs and _is_named(node, name) and chosen(path, node):
            return kwargs[name]
        children = children_of(node)
        if not children:
            return node
        new = [
            kwargs[_key_name(step)]
            if _key_name(step) in kwargs and chosen((*path, step), child)
            else replaced((*path, step), child)
            for step, child in children
        ]
        return rebuilt(node, new)

    return replaced((), tree)


class _Placeholder:
    """Stands for the whole tree of parameters, to find out where a foreign `init` puts slots."""


jax.tree_util.register_pytree_node(
    _Placeholder, lambda _: ((), None), lambda aux, children: _Placeholder()
)


def map_params(
    initable: Any,
    f: Callable[..., Any],
    state: PyTree,
    /,
    *rest: PyTree,
    transform_non_params: Callable[[Any], Any] | None = None,
    is_leaf: Callable[[Any], bool] | None = None,
) -> PyTree:
    """`f` on every slot of a state that mirrors the parameters.

    gradtx's states say which of their fields are slots. In a state of another library, a slot is
    whatever becomes a placeholder when `initable` gets a placeholder for the parameters. Optax does
    this with every state, and fails where `init` looks at the parameters.

    Args:
        initable: a transformation, or its ``init``.
        f: ``(slot, *rest) -> value`` on each leaf; leaves without a slot stay `None`.
        state: the state.
        rest: trees like the parameters, such as shardings.
        transform_non_params: a function for all other leaves, counters for example.
        is_leaf: what counts as one leaf of a slot.

    Returns:
        The state with the results in the places of the leaves.

    >>> import gradtx
    >>> tx = gradtx.adam(1e-3)
    >>> map_params(tx, lambda m: "slot", tx.init({"w": 1.0}), transform_non_params=str)[0]
    ScaleByAdamState(count='0', mu={'w': 'slot'}, nu={'w': 'slot'})
    """
    try:
        mirror = getattr(initable, "init", initable)(_Placeholder())
    except Exception:  # an init that looks at the parameters gives no hint
        mirror = None

    def on_slot(tree: PyTree) -> PyTree:
        # None is a leaf here, so that a slot that is not there needs none in `rest`.
        def stop(x: Any) -> bool:
            return x is None or (is_leaf is not None and is_leaf(x))

        treedef: Any
        leaves, treedef = jax.tree.flatten(tree, is_leaf=stop)
        columns = zip(leaves, *(treedef.flatten_up_to(r) for r in rest), strict=True)
        return treedef.unflatten([x if x is None else f(x, *others) for x, *others in columns])

    def walk(node: Any, hint: Any) -> Any:
        if isinstance(hint, _Placeholder):
            return on_slot(node)
        children = children_of(node)
        if not children:
            leaf = jax.tree_util.all_leaves([node])
            return transform_non_params(node) if leaf and transform_non_params else node
        # States of other libraries have the fields of ours.
        fields = getattr(node, "_fields", ())
        alike = type(hint) is type(node) or (fields and getattr(hint, "_fields", None) == fields)
        hints = children_of(hint) if alike else []
        if [k for k, _ in hints] != [k for k, _ in children]:
            hints = [(k, None) for k, _ in children]
        cls: Any = type(node)
        slots = slot_fields(cls) if hasattr(node, "_fields") else frozenset()
        new = [
            on_slot(child) if _key_name(key) in slots else walk(child, hinted)
            for (key, child), (_, hinted) in zip(children, hints, strict=True)
        ]
        return rebuilt(node, new)

    return walk(state, mirror)
