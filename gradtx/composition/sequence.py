"""Transformations one after another: neighbours that need little but a leaf are one function."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from gradtx.core.eager import count_of_arrays
from gradtx.core.pair import GradientTransformation
from gradtx.core.traits import Links, Scope
from gradtx.engine.lift import Last, Lifted, in_turn
from gradtx.leaves.packed import holds_packed
from gradtx.types import Params, State, Updates


class _Passed(NamedTuple):
    """A link of a chain with its state, and the rule of the link if others may be joined to it."""

    tx: GradientTransformation
    state: State
    rule: Lifted | None


def through(
    links: Sequence[GradientTransformation],
    updates: Updates,
    states: Sequence[State],
    params: Params | None,
    extra_args: dict[str, Any],
    last: Callable[[], Last | None] = lambda: None,
) -> tuple[Any, list[State], bool]:
    """Updates after transformations one after another, with new states.

    Neighbours that need little but a leaf are one function of it, which is traced once.

    Args:
        links: the transformations.
        updates: the updates.
        states: their states.
        params: the parameters.
        extra_args: more arguments of an update.
        last: makes what is done with each update after the last link; called only if that can be
            a part of its function.

    Returns:
        The updates, the new states, and whether `last` has been done.
    """
    # Outside of a compiled step, transformations within may be run as programs: see `eager`.
    apart = count_of_arrays(updates) > 0
    whole_leaves = not holds_packed(updates)
    pairs = list(zip(links, states, strict=True))
    each = [_Passed(tx, state, None) for tx, state in pairs]
    if not apart:
        each = [link for tx, state in pairs for link in _links(tx, state, whole_leaves)]
    new: list[State] = []
    done = False
    for run in _runs(each):
        rules = [link.rule for link in run if link.rule is not None]
        if rules:
            here = last() if run[-1] is each[-1] else None
            rule_states = [link.state for link in run]
            updates, new_states = in_turn(rules, updates, rule_states, params, extra_args, here)
            new, done = new + new_states, here is not None
        else:
            ((tx, state, _),) = run
            updates, state = tx.update(updates, state, params, **extra_args)
            new.append(state)
    if not apart:
        rest = iter(new)
        new = [_nested(tx, rest) for tx in links]
    return updates, new, done


def _links(tx: GradientTransformation, state: State, whole_leaves: bool) -> list[_Passed]:
    """The links of a chain, and of the chains within it, with their states and rules.

    A rule can be joined to others if it reads entries, rows or a leaf; if leaves are packed into
    vectors, and not `whole_leaves`, only if it reads entries.
    """
    tx.check_numbers()
    links = tx.facet(Links)
    if links is not None:
        inner = zip(links.each, links.states(state), strict=True)
        return [link for tx, state in inner for link in _links(tx, state, whole_leaves)]
    rule = tx.facet(Lifted)
    if rule is not None:
        fits = (
            rule.of_tree or rule.scope in (Scope.ENTRY, Scope.ROW, Scope.LEAF)
            if whole_leaves
            else tx.takes_vectors
        )
        rule = rule if fits else None
    return [_Passed(tx, state, rule)]


def _nested(tx: GradientTransformation, states: Iterator[State]) -> State:
    """The state of a transformation, built from the next states of its links at every depth."""
    links = tx.facet(Links)
    return next(states) if links is None else links.joined([_nested(x, states) for x in links.each])


def _runs(links: Sequence[_Passed]) -> list[list[_Passed]]:
    """Links in lists of neighbours, of which each list becomes one function of a leaf."""
    runs: list[list[_Passed]] = []
    for link in links:
        before = runs[-1][-1].rule if runs else None
        if before is None or link.rule is None or link.rule.of_tree is not None:
            runs.append([link])
        else:
            runs[-1].append(link)
    return runs
