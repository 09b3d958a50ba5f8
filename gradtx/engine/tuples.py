"""Rules that look at several leaves that belong together, such as the two factors of a product."""

import collections
import functools
import itertools
import re
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from gradtx.checks import check_patterns
from gradtx.core.pair import GradientTransformation
from gradtx.core.traits import Rule, Scope
from gradtx.engine.lift import (
    Leaves,
    RuleFn,
    Start,
    Transform,
    check_result,
    checked_result,
    label_of,
    lift,
    on_array,
    on_rows,
    reads_params,
)
from gradtx.engine.matrices import MatrixDimensions, as_matrices
from gradtx.engine.places import Place
from gradtx.engine.scopes import scope
from gradtx.leaves.paths import leaves_with_path, path_string
from gradtx.leaves.rows import is_rows
from gradtx.types import Array, Params, PyTree, slot_fields

Related: TypeAlias = Any
"""Which leaves belong together: patterns, one for each place in a tuple, whose wildcards stand for
the same; a list of several such; or a function from a tree to the tuples of paths in it."""

SlotsOfTupleFn = Callable[[tuple[Array, ...]], dict[str, tuple[Any, ...]]]


@scope
def tuplewise(
    state: type,
    slots: SlotsOfTupleFn | None,
    rule: RuleFn,
    related: Related,
    *,
    dimensions: MatrixDimensions | None = None,
    on_others: RuleFn | None = None,
    start: Start | None = None,
) -> GradientTransformation:
    """Lift a rule that looks at two leaves, or more, that belong together.

    Tuples whose leaves have the same shapes and types go through the rule as one batch: what is
    traced, compiled and launched does not grow with their number.

    Args:
        state: a state class, as in :func:`elementwise`.
        slots: ``ps -> {name: slots}``, the initial slots of one tuple of parameters, each name
            with a tuple of an array, or None, for each leaf; None for no slots.
        rule: ``(g, s, t[, p]) -> (directions, {name: new slots})``. Gradients `g`, parameters `p`,
            each slot and what is returned are tuples with an entry for each leaf, a batch of shape
            ``(n, *shape)``. A leaf without a gradient is None in `g`; its direction is dropped, and
            its slots stay.
        related: which leaves belong together: path patterns, one for each place, in which ``*``
            stands for the same, ``("*/lora_a", "*/lora_b")``; a list of several such; or a function
            from a tree to the tuples of paths in it.
        dimensions: which axes are rows and columns, if every leaf of a tuple is a matrix: the rule
            sees batches ``(n, rows, columns)``, and slots, which have the shape of the parameter,
            in the same way.
        on_others: a rule without slots, as in :func:`leafwise`, for the other leaves; they are left
            as they are unless it is given.
        start: the initial values of the fields other than slots and counters.

    Returns:
        The pair. Decorate the function that calls this with :func:`transformation`.

    Raises:
        ValueError: a pattern matches no leaf; a leaf lacks another that belongs to it, or only one
            of them is there; a leaf belongs to two tuples. The errors name the path.
        TypeError: a gradient is `Rows`; a pattern is no string.

    >>> import gradtx
    >>> @gradtx.transformation
    ... def share_length():
    ...     def rule(g, s, t):
    ...         length = sum(jnp.sum(x**2, axis=1, keepdims=True) for x in g) ** 0.5
    ...         return tuple(x / length for x in g), {}
    ...
    ...     return tuplewise(gradtx.EmptyState, None, rule, ("*/a", "*/b"))
    >>> tx, g = share_length(), {"layer": {"a": jnp.array([3.0]), "b": jnp.array([0.0, 4.0])}}
    >>> {k: u.round(1).tolist() for k, u in tx.update(g, tx.init(g))[0]["layer"].items()}
    {'a': [0.6000000238418579], 'b': [0.0, 0.800000011920929]}
    """
    label = label_of(rule)
    check_related(label, related)
    lifted = Rule(Scope.TUPLE, state, rule, on_rows=False)

    def first(params: Params, leaves: list[Any], paths: list[Any]) -> list[Any]:
        flat_params = [p for _, p in leaves_with_path(params)[0]]
        initial_slots: list[Any] = [dict.fromkeys(slot_fields(state)) for _ in flat_params]
        for members in tuples_of(label, params, related):
            if all(flat_params[i] is None for i in members):
                continue
            _check_parameters(label, paths, members, flat_params)
            slots_of = {} if slots is None else slots(tuple(leaves[i] for i in members))
            for place, i in enumerate(members):
                initial_slots[i] = {name: each[place] for name, each in slots_of.items()}
        return [
            None if p is None else one for p, one in zip(flat_params, initial_slots, strict=True)
        ]

    takes_params = reads_params(rule) or (on_others is not None and reads_params(on_others))
    takes_params |= dimensions is not None  # a leaf without a gradient has no other shape
    transform = _by_tuples(rule, related, dimensions, on_others)
    return lift(lifted, first, transform, start=start, takes_params=takes_params)


def check_related(where: str, related: Related) -> None:
    """Raise if `related` is neither patterns whose wildcards are equally many, nor a function."""
    if callable(related):
        return
    for patterns in _sets(where, related):
        check_patterns(f"{where}: what belongs together", patterns)
        if len({len(_WILDCARD.findall(pattern)) for pattern in patterns}) > 1:
            raise ValueError(
                f"{where}: the wildcards of {', '.join(map(repr, patterns))} stand for the same "
                "parts of paths, so that each pattern must have as many"
            )


def _sets(where: str, related: Any) -> list[tuple[str, ...]]:
    """The patterns of each kind of tuple."""
    kinds = "patterns of at least two leaves, such as ('*/lora_a', '*/lora_b'), a list of several"
    if not isinstance(related, list | tuple) or not related:
        raise TypeError(
            f"{where}: what belongs together must be {kinds} such, or a function of the tree, not "
            f"{related!r:.80}"
        )
    several = all(isinstance(one, list | tuple) for one in related)
    sets = [tuple(one) for one in related] if several else [tuple(related)]
    if any(len(one) < 2 for one in sets):
        raise ValueError(f"{where}: what belongs together must be {kinds} such, not {related!r}")
    return sets


_WILDCARD = re.compile(r"\*|\?|\[!?[^\]]+\]")


def _expression(pattern: str) -> re.Pattern[str]:
    """A regular expression of a pattern: a group for each wildcard, and one for a path below."""
    texts = map(re.escape, _WILDCARD.split(pattern))
    groups = [_group(wildcard) for wildcard in _WILDCARD.findall(pattern)]
    parts = itertools.chain.from_iterable(itertools.zip_longest(texts, groups, fillvalue=""))
    return re.compile(f"{''.join(parts)}(/.*)?")


def _group(wildcard: str) -> str:
    if wildcard in ("*", "?"):
        return "(.*)" if wildcard == "*" else "(.)"
    negated, characters = wildcard[1] == "!", wildcard[1:-1].removeprefix("!")
    escaped = characters.replace("\\", r"\\").replace("^", r"\^")
    return f"([{'^' * negated}{escaped}])"


def _filled(pattern: str, said: tuple[str | None, ...]) -> str:
    """The path that a pattern names where its wildcards stand for the texts `said`."""
    texts = _WILDCARD.split(pattern)
    parts = itertools.zip_longest(texts, said[: len(texts) - 1], fillvalue="")
    return "".join(x or "" for pair in parts for x in pair) + (said[-1] or "")


def tuples_of(where: str, tree: PyTree, related: Related) -> list[tuple[int, ...]]:
    """The leaves that belong together, by their indices in the tree.

    Raises:
        ValueError: a pattern matches no leaf, a leaf lacks another that belongs to it, or belongs
            to two tuples.

    >>> tuples_of("", {"a": {"u": 1, "v": 2}, "b": 3, "c": {"u": 4, "v": 5}}, ("*/u", "*/v"))
    [(0, 1), (3, 4)]
    """
    leaves = leaves_with_path(tree)[0]
    if not leaves:  # such as the placeholder that Optax's tree_map_params passes as parameters
        return []
    paths = [path_string(path) for path, _ in leaves]
    if callable(related):
        named = [tuple(one) for one in related(tree)]
    else:
        named = [one for s in _sets(where, related) for one in _matched(where, s, paths)]
    index = {path: i for i, path in enumerate(paths)}
    if unknown := [path for one in named for path in one if path not in index]:
        raise ValueError(
            f"{where}: there is no leaf {unknown[0]!r}; the leaves are {', '.join(paths)}"
        )
    index_tuples = [tuple(index[path] for path in one) for one in named]
    counts = collections.Counter(i for one in index_tuples for i in one)
    if twice := [paths[i] for i, count in counts.items() if count > 1]:
        raise ValueError(f"{where}: {twice[0]!r} belongs to two tuples, or twice to one")
    return index_tuples


def _matched(where: str, patterns: tuple[str, ...], paths: list[str]) -> list[tuple[str, ...]]:
    """Tuples of paths, one for each pattern, in which the wildcards stand for the same texts."""
    columns = []
    for pattern in patterns:
        expression = _expression(pattern)
        matching = {path: expression.fullmatch(path) for path in paths}
        columns.append({match.groups(): path for path, match in matching.items() if match})
        if not columns[-1]:
            raise ValueError(
                f"{where}: the pattern {pattern!r} matches no leaf; the leaves are "
                f"{', '.join(paths)}"
            )
    for column in columns:
        for said, path in column.items():
            for pattern, other in zip(patterns, columns, strict=True):
                if said not in other:
                    raise ValueError(
                        f"{where}: {path!r} belongs to {_filled(pattern, said)!r}, and there is no "
                        "such leaf"
                    )
    return [tuple(column[said] for column in columns) for said in columns[0]]


def _check_parameters(
    label: str, paths: list[Any], members: tuple[int, ...], params: list[Any]
) -> None:
    """Raise ValueError if a leaf of a tuple has no parameter."""
    for i in members:
        if params[i] is None:
            others = ", ".join(repr(path_string(paths[j])) for j in members if j != i)
            raise ValueError(
                f"{label}: {path_string(paths[i])!r} is left out, and belongs to {others}: choose "
                "all of them or none, by `trainable`, a mask or the labels of a partition"
            )


def _by_tuples(
    rule: RuleFn,
    related: Related,
    dimensions: MatrixDimensions | None,
    on_others: RuleFn | None,
) -> Transform:
    """The rule on tuples of leaves, those that are alike as one batch."""

    def transform(leaves: Leaves) -> tuple[list[Any], dict[str, Any]]:
        reads = reads_params(rule)
        # The axes of a leaf without a gradient are known from its parameter.
        seen = [p if g is None else g for g, p in zip(leaves.gradients, leaves.params, strict=True)]
        tree = leaves.treedef.unflatten(seen)
        index_tuples = tuples_of(leaves.label, tree, related)
        there = set(leaves.there())
        slots = {n: list(column) for n, column in leaves.slots.items()}
        numbers = [None] * len(seen)
        if dimensions is not None:
            in_tuples = frozenset(itertools.chain(*index_tuples))
            numbers = dimensions.of(leaves.label, tree, in_tuples)
        alike: dict[Any, list[tuple[int, ...]]] = {}
        for members in index_tuples:
            present = [i for i in members if i in there]
            if reads and present:
                _check_parameters(leaves.label, leaves.paths, members, leaves.params)
            for i in present:
                leaves.checked(i, {n: s for n, s in leaves.held(i).items() if s is not None})
            if not any(leaves.gradients[i].size for i in present):
                continue
            key = tuple(_kind(leaves, i, seen[i], numbers[i], dimensions) for i in members)
            alike.setdefault(key, []).append(members)
        out = list(leaves.gradients)
        for key, tuples in alike.items():
            groups = zip((how for how, *_ in key), zip(*tuples, strict=True), strict=True)
            _apply(leaves, rule, [Place([group]) for group in groups], reads, out, slots)
        if on_others is not None:
            for i in there.difference(*index_tuples):
                out[i] = _alone(leaves, i, on_others)
        return out, slots

    return transform


def _kind(
    leaves: Leaves, i: int, x: Any, number: Any, dimensions: MatrixDimensions | None
) -> tuple[Any, ...]:
    """The layout, types and missing slots of a leaf; leaves of one batch have the same."""
    how = None
    if dimensions is not None and x is not None:
        if number is None:
            raise ValueError(
                f"{leaves.label}: {path_string(leaves.paths[i])!r}, of shape "
                f"{tuple(jnp.shape(x))}, is not a matrix, by the dimension numbers"
            )
        how = as_matrices(leaves.label, leaves.paths[i], tuple(jnp.shape(x)), number)
    kinds = [None if a is None else jax.typeof(a) for a in (leaves.gradients[i], leaves.params[i])]
    return how, *kinds, *(slot is None for slot in leaves.held(i).values())


def _alone(leaves: Leaves, i: int, rule: RuleFn) -> Any:
    """The direction of a leaf that belongs to no tuple."""
    g, p = leaves.gradients[i], leaves.params[i] if reads_params(rule) else None
    path = functools.partial(leaves.path, i)
    if is_rows(g):
        return on_rows(rule, leaves, (g, {}, p, {}), path, whole_slots=False)[0]
    return on_array(rule, leaves, (leaves.checked(i, {}), {}, p, {}), path)[0]


def _apply(
    leaves: Leaves,
    rule: RuleFn,
    places: list[Place],
    reads: bool,
    out: list[Any],
    slots: dict[str, list[Any]],
) -> None:
    """Write what the rule makes of tuples of equal leaves: directions to `out`, and new slots."""

    def batches(column: list[Any]) -> tuple[Any, ...]:
        return tuple(
            None if column[place.first] is None else place.batch(place.stacks(column))
            for place in places
        )

    gradients = batches(leaves.gradients)
    batched_slots = {n: batches(column) for n, column in leaves.slots.items()}
    firsts = [place.first for place in places]
    drawn = next(leaves.drawn[i] for i in firsts if leaves.gradients[i] is not None)
    dtype = jnp.result_type(*[g for g in gradients if g is not None])
    arguments = [gradients, leaves.view(batched_slots, drawn), leaves.steps.of(dtype)]
    if reads:
        arguments.append(batches(leaves.params))
    directions, new = checked_result(leaves.label, rule(*arguments), batched_slots)
    for k, place in enumerate(places):
        g, u = gradients[k], directions[k]
        if g is None:
            continue
        before = {n: each[k] for n, each in batched_slots.items() if each[k] is not None}
        after = {n: new[n][k] for n in before}
        path = functools.partial(leaves.path, place.first)
        check_result(leaves.label, g, u, before, after, path)
        place.write(place.apart(u), out)
        for n, slot in after.items():
            place.write(place.apart(slot), slots[n])
