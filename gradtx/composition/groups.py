"""Groups: every leaf has a label, and every label has its own transformation."""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax

from gradtx.composition.chain import set_to_zero
from gradtx.composition.labels import Labels, check_labels, labels_of
from gradtx.composition.masking import MaskedState, masked
from gradtx.composition.views import OnPart
from gradtx.core.pair import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    transformation,
    with_extra_args_support,
)
from gradtx.leaves.paths import (
    Where,
    aligned,
    are_alike,
    leaves_with_path,
    mask_tree,
    path_string,
    with_paths,
)
from gradtx.leaves.whole import part_of_whole
from gradtx.names.namespace import warn
from gradtx.types import InnerState, Params, PyTree, State, Updates


class PartitionState(NamedTuple):
    """inner_states: for each label a `MaskedState`, `None` where another label stands."""

    inner_states: InnerState


MultiTransformState: TypeAlias = PartitionState


class _Groups:
    """The label of each leaf of a tree, found once and used for other trees of this structure."""

    def __init__(self, tree: PyTree, labels: Labels, known: Any) -> None:
        self.tree = tree
        self.treedef: Any = leaves_with_path(tree)[1]
        self.labels = labels_of(tree, labels, known)

    def check(self, tree: PyTree) -> None:
        aligned(
            "partition: gradients and parameters are different trees",
            self.tree,
            self.treedef,
            tree,
        )

    def pick(self, tree: PyTree, label: Any) -> PyTree:
        """`tree` with `None` in place of the leaves that have another label."""
        return jax.tree.map(
            lambda leaf_label, part: part if leaf_label == label else None, self.labels, tree
        )

    def put(self, mine: PyTree, label: Any, tree: PyTree) -> PyTree:
        """`tree` with the leaves of `mine` in place of those that have the label."""
        return jax.tree.map(
            lambda leaf_label, a, b: a if leaf_label == label else b, self.labels, mine, tree
        )


@transformation
def partition(
    transforms: Mapping[Any, GradientTransformation],
    param_labels: Labels,
    *,
    mask_compatible_extra_args: bool = False,
) -> GradientTransformation:
    """Give each group of leaves its own transformation.

    Args:
        transforms: ``{label: transformation}``. To freeze leaves use ``set_to_zero()``, which has
            no slots.
        param_labels: a tree of labels like the parameters or a prefix of it; a function from the
            parameters to such a tree; a function ``(path, leaf) -> label``; or a list of pairs of a
            path pattern and a label, of which each leaf must match exactly one; a final ``"*"``
            takes the rest. A callable pytree, such as a module, is a tree of labels.
        mask_compatible_extra_args: also divide extra arguments that are trees like the updates.

    State: `PartitionState`. `None` stands where Optax puts a ``MaskedNode``: for a leaf of another
    group, and for all leaves below where a tree of labels gives them one of another group.

    Raises:
        ValueError: a label has no transformation, a pattern matches no leaf, or a leaf matches none
            or several (the error names the path).
        TypeError: a pattern is a regular expression, or labels such as 0 and "0" have no order.

    >>> import gradtx, jax.numpy as jnp
    >>> tx = partition(
    ...     {"slow": gradtx.sgd(0.1), "fast": gradtx.sgd(1.0)}, [("head", "fast"), ("*", "slow")]
    ... )
    >>> grads = {"body": {"w": jnp.float32(1.0)}, "head": jnp.float32(1.0)}
    >>> updates, _ = tx.update(grads, tx.init(grads))
    >>> float(updates["body"]["w"]), float(updates["head"])
    (-0.10000000149011612, -1.0)
    """
    if not isinstance(transforms, Mapping):
        raise TypeError(f"partition: transforms must be a dict, not {type(transforms).__name__}")
    _check_order(transforms)
    links = {label: with_extra_args_support(tx) for label, tx in transforms.items()}
    check_labels(param_labels, links)

    def init(params: Params) -> State:
        groups = _Groups(params, param_labels, links)
        states = {}
        for label, tx in links.items():
            with part_of_whole(functools.partial(groups.pick, label=label)):
                states[label] = MaskedState(tx.init(groups.pick(params, label)))
        return PartitionState(states)

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        # By its field, not by its class: Optax's state has the same one.
        if set(getattr(state, "inner_states", ())) != set(links):
            raise ValueError(
                f"partition: expected the state of the groups {', '.join(map(repr, links))}, "
                "which its init makes; see regroup for a state with other groups"
            )
        groups = _Groups(updates if params is None else params, param_labels, links)
        if params is not None:
            groups.check(updates)
        divided = {
            name: value
            for name, value in extra_args.items()
            if mask_compatible_extra_args and are_alike(value, updates)
        }
        new, states = updates, {}
        for label, tx in links.items():
            extra = {name: groups.pick(value, label) for name, value in divided.items()}
            with part_of_whole(functools.partial(groups.pick, label=label)):
                mine, inner = tx.update(
                    groups.pick(updates, label),
                    state.inner_states[label].inner_state,
                    None if params is None else groups.pick(params, label),
                    **{**extra_args, **extra},
                )
            states[label] = MaskedState(inner)
            new = groups.put(mine, label, new)
        return new, PartitionState(states)

    def on_part(i: int, function: Callable[[Any], Any], tree: PyTree) -> PyTree:
        groups, label = _Groups(tree, param_labels, links), tuple(links)[i]
        return groups.put(function(groups.pick(tree, label)), label, tree)

    parts = tuple(links.values())
    return GradientTransformationExtraArgs(init, update, parts=parts, facets=(OnPart(on_part),))


def _check_order(labels: Iterable[Any]) -> None:
    """Raise TypeError if labels are of kinds that have no order, such as 0 and "0".

    JAX sorts the keys of a dict, as the state has them, wherever it takes it apart.
    """
    try:
        sorted(labels)
    except TypeError:
        raise TypeError(
            f"partition: labels must have an order, as strings do, and "
            f"{', '.join(map(repr, labels))} have none"
        ) from None


multi_transform = partition


@transformation
def freeze(mask: Where) -> GradientTransformation:
    """Set the updates of some leaves to zero and pass the others on.

    Args:
        mask: the leaves to freeze: True, a tree of booleans or a prefix of it, a path pattern or
            a list of them, or a predicate ``(path, leaf) -> bool``.

    To also save the slots and gradients of frozen leaves, see :func:`selective_transform` and the
    argument ``trainable`` of :func:`minimize`.

    >>> import jax.numpy as jnp
    >>> tx, params = freeze("a"), {"a": jnp.float32(1.0), "b": jnp.float32(1.0)}
    >>> {k: float(u) for k, u in tx.update(params, tx.init(params))[0].items()}
    {'a': 0.0, 'b': 1.0}
    """
    return masked(set_to_zero(), mask)


@transformation
def selective_transform(
    optimizer: GradientTransformation, *, freeze_mask: Where
) -> GradientTransformation:
    """Optimize some leaves only; the others are frozen and have no slots.

    Args:
        optimizer: the transformation of the leaves that are not frozen.
        freeze_mask: the leaves to freeze, as in :func:`freeze`.

    State: `PartitionState` with the groups ``"train"`` and ``"freeze"``.

    >>> import gradtx, jax.numpy as jnp
    >>> tx = selective_transform(gradtx.adam(0.1), freeze_mask="a")
    >>> state = tx.init({"a": jnp.zeros(2), "b": jnp.zeros(2)})
    >>> gradtx.get_slot(state, "mu")["a"] is None
    True
    """

    def labels(tree: PyTree) -> PyTree:
        mask = mask_tree(tree, freeze_mask)
        return jax.tree.map(lambda frozen: "freeze" if frozen else "train", mask)

    return partition({"train": optimizer, "freeze": set_to_zero()}, labels)


def reset_group(tx: GradientTransformation, params: Params, state: State, label: Any) -> State:
    """The state with one group reset and all others unchanged.

    Args:
        tx: a transformation with a :func:`partition` somewhere in it.
        params: the parameters.
        state: the state so far.
        label: the label of the group.

    Raises:
        ValueError: there is no group with that label, or the state is one of other groups.

    >>> import gradtx, jax.numpy as jnp
    >>> tx = partition({"a": gradtx.adam(0.1), "b": gradtx.adam(0.1)}, {"x": "a", "y": "b"})
    >>> params = {"x": jnp.float32(1.0), "y": jnp.float32(2.0)}
    >>> _, state = tx.update(params, tx.init(params))
    >>> [s.inner_state[0].count.item() for s in state.inner_states.values()]
    [1, 1]
    >>> state = reset_group(tx, params, state, "a")
    >>> [s.inner_state[0].count.item() for s in state.inner_states.values()]
    [0, 1]
    """
    matching_keys: list[Any] = []

    def on_group(old: Any, new: Any) -> Any:
        if not isinstance(old, PartitionState):
            return old
        if set(old.inner_states) != set(new.inner_states):
            raise ValueError(
                f"reset_group: the state has the groups {', '.join(map(repr, old.inner_states))}, "
                f"and `tx` has {', '.join(map(repr, new.inner_states))}; see regroup"
            )
        matching_keys.extend(key for key in old.inner_states if key == label)
        return PartitionState(
            {
                key: new.inner_states[key] if key == label else walk(part, new.inner_states[key])
                for key, part in old.inner_states.items()
            }
        )

    def walk(old: State, new: State) -> State:
        return jax.tree.map(on_group, old, new, is_leaf=lambda x: isinstance(x, PartitionState))

    result = walk(state, tx.init(params))
    if not matching_keys:
        raise ValueError(f"reset_group: there is no group {label!r} in the state")
    return result


def regroup(tx: GradientTransformation, params: Params, state: State) -> State:
    """A state for `tx` that keeps what `state` holds at the same paths, for use after regrouping.

    It goes by paths alone, so that a group goes on only under its own label, and only in a run that
    had groups before. :func:`match_state_dict` also carries over what has moved, such as to a first
    :func:`partition`: ``match_state_dict(tx, params, state_dict(state)).state``.

    Args:
        tx: the transformation to continue with, which has more or fewer groups than the previous.
        params: the parameters.
        state: the state of the previous transformation.

    Returns:
        ``tx.init(params)`` with every array of `state` that has the same path, shape and type.
        A warning names slots that start anew although `state` has them at another path.

    Raises:
        ValueError: no array of `state` is at a path of the new one.

    >>> import gradtx
    >>> old = partition({"a": gradtx.sgd(0.1, 0.9)}, "a").init({"x": 1.0, "y": 2.0})
    >>> tx = partition({"a": gradtx.sgd(0.1, 0.9), "b": gradtx.sgd(1.0)}, {"x": "a", "y": "b"})
    >>> state = regroup(tx, {"x": 1.0, "y": 2.0}, old)
    >>> [type(s.inner_state[0]).__name__ for s in state.inner_states.values()]
    ['TraceState', 'EmptyState']
    """
    old = dict(with_paths(state)[0])
    keyed, treedef = with_paths(tx.init(params))
    new = dict(keyed)
    stay = {path for path in new if path in old and _alike(old[path], new[path])}
    left, fresh = ({p: x for p, x in tree.items() if p not in stay} for tree in (old, new))
    moved = _moved(left, fresh, {path for path, _ in leaves_with_path(params)[0]})
    if old and new and not stay:
        raise ValueError(f"regroup: no array of the state is at a path of the new one{moved}")
    if moved:
        warn(f"regroup: slots start anew, since the state has them{moved}")
    return treedef.unflatten([old[path] if path in stay else x for path, x in keyed])


def _alike(old: Any, new: Any) -> bool:
    return getattr(old, "shape", None) == new.shape and old.dtype == new.dtype


def _moved(old: dict[Any, Any], new: dict[Any, Any], params: set[Any]) -> str:
    """What a message says of slots of the same name and parameter at other paths; or nothing."""

    def slot(path: Any) -> Any:
        starts = (i for i in range(1, len(path) + 1) if path[i:] in params)
        return next((path[i - 1 :] for i in starts), None)

    before = {slot(path): path for path in old}
    pairs = [(before[slot(path)], path) for path in new if slot(path) and slot(path) in before]
    pairs = [(was, path) for was, path in pairs if _alike(old[was], new[path])]
    if not pairs:
        return ""
    was, path = map(path_string, pairs[0])
    return (
        f" at other paths, {len(pairs)} in all: {was!r} would be {path!r}. To carry them over: "
        "match_state_dict(tx, params, state_dict(state)).state"
    )
