"""Chains of transformations, and the simplest links."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.eager import count_of_arrays
from gradtx.engine.lift import Last, Lifted, elementwise, in_turn
from gradtx.packed import holds_packed
from gradtx.pair import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    Links,
    Scope,
    Traits,
    transformation,
    with_extra_args_support,
)
from gradtx.types import OTHER_STATE, Array, EmptyState, Params, State, Updates


@transformation
def chain(*args: GradientTransformation) -> GradientTransformation:
    """Apply transformations in sequence.

    Args:
        args: the transformations, from gradtx or another library; without any, the identity.

    Returns:
        A transformation whose state is the tuple of their states.

    Raises:
        ValueError: in ``update``, the state is not one that its ``init`` makes.

    >>> import gradtx
    >>> gradtx.chain(gradtx.clip(1.0), gradtx.scale(-0.1))
    chain(clip(max_delta=1.0), scale(step_size=-0.1))
    """
    links = tuple(map(with_extra_args_support, args))

    def states(state: State) -> tuple[State, ...]:
        if not isinstance(state, tuple) or len(state) != len(links):
            raise ValueError(
                f"chain: expected a state of {len(links)} parts, one for each transformation, "
                f"which its init makes, not {type(state).__name__} {jax.tree.structure(state)}"
                f"{OTHER_STATE}"
            )
        return state

    return _in_sequence(Links(links, states, tuple))


def _in_sequence(links: Links) -> GradientTransformation:
    """The chain of some links."""

    def init(params: Params) -> State:
        return links.joined([tx.init(params) for tx in links.each])

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        updates, new, _ = through(links.each, updates, links.states(state), params, extra_args)
        return updates, links.joined(new)

    def step(
        updates: Updates, state: State, params: Params, **extra_args: Any
    ) -> tuple[Params, State]:
        *before, own = links.states(state)
        updates, new, _ = through(links.each[:-1], updates, before, params, extra_args)
        params, own = last.step(updates, own, params, **extra_args)
        return params, links.joined([*new, own])

    def cases(state: State) -> list[Case]:
        return [
            case._replace(tx=_in_sequence(links._replace(each=(*links.each[:-1], case.tx))))
            for case in last.cases.cases(links.states(state)[-1])
        ]

    # The first values of schedules are not needed yet.
    known = bool(links.each) and not links.each[-1].scheduled
    last: Any = links.each[-1].traits if known else Traits()
    of_cases: Any = last.cases and type(last.cases)(cases)
    whole = of_cases or (last.step and step)
    return GradientTransformationExtraArgs(
        init, update, whole, parts=links.each, links=links, cases=of_cases
    )


class Case(NamedTuple):
    """When `condition` holds, updates are those of `tx`, called with more arguments."""

    condition: Array
    tx: GradientTransformation
    extra_args: dict[str, Any]


class Cases:
    """The step of a transformation that is one of several, on states that are alike.

    Args:
        cases: ``state -> cases``, of which one condition holds.
    """

    def __init__(self, cases: Callable[[State], list[Case]]) -> None:
        self.cases = cases


class _Link(NamedTuple):
    """A transformation that sees all updates, its state, and its rule if that is all it is."""

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
    whole = not holds_packed(updates)
    pairs = list(zip(links, states, strict=True))
    each = [_Link(tx, state, None) for tx, state in pairs]
    if not apart:
        each = [link for tx, state in pairs for link in _links(tx, state, whole)]
    new: list[State] = []
    done = False
    for run in _runs(each):
        rules = [link.rule for link in run if link.rule is not None]
        if rules:
            here = last() if run[-1] is each[-1] else None
            held = [link.state for link in run]
            updates, made = in_turn(rules, updates, held, params, extra_args, here)
            new, done = new + made, here is not None
        else:
            ((tx, state, _),) = run
            updates, state = tx.update(updates, state, params, **extra_args)
            new.append(state)
    if not apart:
        rest = iter(new)
        new = [_nested(tx, rest) for tx in links]
    return updates, new, done


def _links(tx: GradientTransformation, state: State, whole: bool) -> list[_Link]:
    """The links of a chain, and of the chains within it.

    A rule takes part only if it reads no more than what leaves consist of: of `whole` leaves
    entries or rows, of vectors that leaves were joined into entries alone.
    """
    tx.check_numbers()
    links = tx.traits.links
    if links is not None:
        inner = zip(links.each, links.states(state), strict=True)
        return [link for tx, state in inner for link in _links(tx, state, whole)]
    rule: Lifted | None = tx.traits.lifted
    if rule is not None:
        fits = rule.of_tree or rule.scope in (Scope.ENTRY, Scope.ROW) if whole else tx.takes_vectors
        rule = rule if fits else None
    return [_Link(tx, state, rule)]


def _nested(tx: GradientTransformation, states: Iterator[State]) -> State:
    """The state of a transformation from those of its links."""
    links = tx.traits.links
    return next(states) if links is None else links.joined([_nested(x, states) for x in links.each])


def _runs(links: Sequence[_Link]) -> list[list[_Link]]:
    """Links cut into neighbours that one function can be."""
    runs: list[list[_Link]] = []
    for link in links:
        before = runs[-1][-1].rule if runs else None
        if before is None or link.rule is None or link.rule.of_tree is not None:
            runs.append([link])
        else:
            runs[-1].append(link)
    return runs


@jax.tree_util.register_pytree_with_keys_class
class NamedStates(dict[str, State]):
    """The states of a `named_chain` in order: ``state["clip"]`` and ``state[0]`` are the same."""

    def __getitem__(self, key: str | int) -> State:
        return super().__getitem__(list(self)[key] if isinstance(key, int) else key)

    def tree_flatten_with_keys(self) -> tuple[Any, tuple[str, ...]]:
        return tuple((jax.tree_util.DictKey(k), v) for k, v in self.items()), tuple(self)

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], states: Any) -> "NamedStates":
        return cls(zip(names, states, strict=True))


@transformation
def named_chain(*args: tuple[str, GradientTransformation]) -> GradientTransformation:
    """A chain whose transformations have names.

    Args:
        args: pairs of a name and a transformation.

    Returns:
        A transformation whose state is addressed by name and by position: ``state["adam"]``,
        ``state[1]``. In Optax it is a dict, addressed by name only.

    Raises:
        ValueError: a name occurs twice.

    >>> import gradtx
    >>> tx = gradtx.named_chain(("clip", gradtx.clip(1.0)), ("adam", gradtx.scale_by_adam()))
    >>> state = tx.init(jnp.zeros(2))
    >>> state["adam"] is state[1]
    True
    """
    for pair in args:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise TypeError(f"named_chain takes pairs (name, transformation), not {pair!r}")
    names = [name for name, _ in args]
    if len(set(names)) < len(names):
        raise ValueError(f"named_chain: a name occurs twice in {names}")
    links = tuple(with_extra_args_support(tx) for _, tx in args)

    def states(state: State) -> tuple[State, ...]:
        if not isinstance(state, dict) or list(state) != names:
            raise ValueError(f"named_chain: expected a state for {names}, not {state!r:.80}")
        return tuple(state.values())

    return _in_sequence(Links(links, states, lambda new: NamedStates(zip(names, new, strict=True))))


@transformation
def identity() -> GradientTransformation:
    """Leave the updates as they are.

    >>> tx = identity()
    >>> tx.update(jnp.ones(2), tx.init(jnp.ones(2)))[0].tolist()
    [1.0, 1.0]
    """
    return GradientTransformationExtraArgs(
        lambda params: EmptyState(),
        lambda updates, state, params=None, **extra_args: (updates, state),
        parts=(),
        takes_vectors=True,
    )


@transformation
def set_to_zero() -> GradientTransformation:
    """Set every update to zero, so that the parameters do not change.

    >>> tx = set_to_zero()
    >>> tx.update(jnp.ones(2), tx.init(jnp.ones(2)))[0].tolist()
    [0.0, 0.0]
    """
    return elementwise(EmptyState, None, lambda g, s, t: (jnp.zeros_like(g), {}))


@transformation
def stateless(f: Callable[[Updates, Params | None], Updates]) -> GradientTransformation:
    """A transformation from a function of the whole trees of updates and parameters.

    Args:
        f: ``(updates, params or None) -> updates``.

    >>> tx = stateless(lambda updates, params: jax.tree.map(lambda g: g / 2, updates))
    >>> float(tx.update(4.0, tx.init(0.0))[0])
    2.0
    """
    return GradientTransformationExtraArgs(
        lambda params: EmptyState(),
        lambda updates, state, params=None, **extra_args: (f(updates, params), state),
    )


@transformation
def stateless_with_tree_map(f: Callable[[Any, Any], Any]) -> GradientTransformation:
    """A transformation from a function of one leaf's update and parameter.

    Args:
        f: ``(update, parameter or None) -> update``. `Rows` and leaves without a gradient are
            handled; for `Rows` the function sees only the touched rows of the parameter.

    >>> tx = stateless_with_tree_map(lambda g, p: g + 0.1 * p)
    >>> float(tx.update(jnp.float32(1.0), tx.init(0.0), jnp.float32(10.0))[0])
    2.0
    """
    from gradtx.tree import map_updates  # which no other chain needs

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        del extra_args
        if params is None:
            return map_updates(lambda g: f(g, None), updates), state
        return map_updates(f, updates, params), state

    return GradientTransformationExtraArgs(lambda params: EmptyState(), update)
