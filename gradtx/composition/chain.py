"""Chains of transformations, and the simplest links."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gradtx.engine.lift import by_itself, elementwise, in_turn
from gradtx.numerics.steering import is_tracer
from gradtx.packed import holds_packed
from gradtx.pair import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    transformation,
    with_extra_args_support,
)
from gradtx.types import OTHER_STATE, EmptyState, Params, State, Updates


@transformation(in_sequence=True)
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
    links = [with_extra_args_support(tx) for tx in args]

    def init(params: Params) -> State:
        return tuple(tx.init(params) for tx in links)

    def check(state: State) -> None:
        if not isinstance(state, tuple) or len(state) != len(links):
            raise ValueError(
                f"chain: expected a state of {len(links)} parts, one for each transformation, "
                f"which its init makes, not {type(state).__name__} {jax.tree.structure(state)}"
                f"{OTHER_STATE}"
            )

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        check(state)
        return _through(links, updates, state, params, extra_args)

    parts = tuple(links)
    last = links[-1].step if links else None
    if last is None:
        return GradientTransformationExtraArgs(init, update, parts=parts)

    def step(
        updates: Updates, state: State, params: Params, **extra_args: Any
    ) -> tuple[Params, State]:
        check(state)
        updates, new = _through(links[:-1], updates, state[:-1], params, extra_args)
        params, part = last(updates, state[-1], params, **extra_args)
        return params, (*new, part)

    return GradientTransformationExtraArgs(init, update, step, parts=parts)


def _through(
    links: Sequence[GradientTransformation],
    updates: Updates,
    state: State,
    params: Params | None,
    extra_args: dict[str, Any],
) -> tuple[Updates, tuple[State, ...]]:
    new: list[State] = []
    joins = any(map(is_tracer, jax.tree.leaves(updates))) and not holds_packed(updates)
    rules = [by_itself(tx) if joins else None for tx in links]
    # Neighbours that need nothing but a leaf are one function of it, which is traced once.
    steps = zip(links, state, rules, strict=True)
    for alone, group in itertools.groupby(steps, lambda step: step[2] is None):
        run = list(group)
        if alone:
            for tx, part, _ in run:
                updates, part = tx.update(updates, part, params, **extra_args)
                new.append(part)
        else:
            together = [rule for _, _, rule in run if rule is not None]
            parts = [part for _, part, _ in run]
            updates, parts = in_turn(together, updates, parts, params, extra_args)
            new += parts
    return updates, tuple(new)


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


@transformation(in_sequence=True)
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
    links = chain(*(tx for _, tx in args))

    def init(params: Params) -> State:
        return NamedStates(zip(names, links.init(params), strict=True))

    def parts(state: State) -> tuple[State, ...]:
        if not isinstance(state, dict) or list(state) != names:
            raise ValueError(f"named_chain: expected a state for {names}, not {state!r:.80}")
        return tuple(state.values())

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        updates, new = links.update(updates, parts(state), params, **extra_args)
        return updates, NamedStates(zip(names, new, strict=True))

    whole = links.step
    if whole is None:
        return GradientTransformationExtraArgs(init, update, parts=links.parts)

    def step(
        updates: Updates, state: State, params: Params, **extra_args: Any
    ) -> tuple[Params, State]:
        params, new = whole(updates, parts(state), params, **extra_args)
        return params, NamedStates(zip(names, new, strict=True))

    return GradientTransformationExtraArgs(init, update, step, parts=links.parts)


@transformation(in_sequence=True)
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
