"""Chains of transformations, and the simplest links."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gradtx.composition.apply import add_update, check_addable
from gradtx.composition.around import InnerStep, around
from gradtx.composition.gate import Case, Cases, in_cases
from gradtx.composition.nearest import EndsElsewhere
from gradtx.composition.sequence import through
from gradtx.composition.views import OtherLeaves
from gradtx.composition.without_state import without_state
from gradtx.core.pair import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    transformation,
    with_extra_args_support,
)
from gradtx.core.traits import Links
from gradtx.engine.lift import elementwise
from gradtx.leaves.paths import aligned, leaves_with_path
from gradtx.leaves.rows import is_rows
from gradtx.leaves.written import written_as_dict
from gradtx.numerics.compiler_hints import delay
from gradtx.types import OTHER_STATE, EmptyState, Params, State, Updates, is_stored


@transformation(update_size="proportional")
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
            of = f" of {len(state)}" if type(state) is tuple else ""
            raise ValueError(
                f"chain: expected a state of {len(links)} parts, one for each transformation, "
                f"which its init makes, not {type(state).__name__}{of}{OTHER_STATE}"
            )
        return state

    return _in_sequence(Links(links, states, tuple))


def _in_sequence(links: Links) -> GradientTransformation:
    """The transformation that passes updates through some links, one after another."""

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
        *before, last_state = links.states(state)
        updates, new, _ = through(links.each[:-1], updates, before, params, extra_args)
        params, last_state = last.step(updates, last_state, params, **extra_args)
        return params, links.joined([*new, last_state])

    def cases(state: State) -> list[Case]:
        return [
            case._replace(tx=_in_sequence(links._replace(each=(*links.each[:-1], case.tx))))
            for case in last_cases.of(links.states(state)[-1])
        ]

    # The first values of schedules are not needed yet.
    known = bool(links.each) and not links.each[-1].scheduled
    last: Any = links.each[-1] if known else None
    last_cases: Any = last.facet(Cases) if known else None
    if last_cases is not None:
        facets: Any = (links, Cases(cases))
        return GradientTransformationExtraArgs(
            init, update, in_cases(cases), parts=links.each, facets=facets
        )
    whole_step = step if known and last.step is not None else None
    return GradientTransformationExtraArgs(
        init, update, whole_step, parts=links.each, facets=(links,)
    )


@transformation
def chain_reading_old(slot: str, *links: GradientTransformation) -> GradientTransformation:
    """A chain whose updates read the old value of a slot: ``chain(*links)``.

    The kernel of the new parameters reads the old value, and nothing tells XLA for CPUs to run it
    before the kernel of the new slot: it copies the slot. ACProp's::

        %copy.3 = f32[N] copy(%state_nu)

    The new slot waits for the sum that `apply_updates` will compute; XLA merges the two. This has
    no effect without parameters, or if other links follow.

    Args:
        slot: the slot's name, a field of one link's state.
        links: the transformations to chain.
    """
    tx = chain(*links)

    def wait(path: Any, new: Any, p: Any, u: Any) -> Any:
        if u is None or is_rows(u) or is_stored(new) or not hasattr(new, "dtype"):
            return new
        check_addable(path, p, u)
        return delay(new, after=add_update(p, u))

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Updates, State]:
        updates, state = inner_step(updates, state, params)
        if params is None:
            return updates, state
        leaves, treedef = leaves_with_path(updates)

        def kept(part: State) -> State:
            if slot not in getattr(part, "_fields", ()):
                return part
            problem = "updates and slots or parameters are different trees"
            slots, values = (
                aligned(problem, updates, treedef, x) for x in (getattr(part, slot), params)
            )
            new = [wait(k, x, p, u) for (k, u), x, p in zip(leaves, slots, values, strict=True)]
            return part._replace(**{slot: treedef.unflatten(new)})

        return updates, tuple(kept(part) for part in state)

    return around(tx, None, run)


@written_as_dict
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


@transformation(update_size="proportional")
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
            kind = list(state) if isinstance(state, dict) else type(state).__name__
            raise ValueError(f"named_chain: expected a state for {names}, not {kind}{OTHER_STATE}")
        return tuple(state.values())

    return _in_sequence(Links(links, states, lambda new: NamedStates(zip(names, new, strict=True))))


@transformation(update_size="proportional")
def identity() -> GradientTransformation:
    """Leave the updates as they are.

    >>> tx = identity()
    >>> tx.update(jnp.ones(2), tx.init(jnp.ones(2)))[0].tolist()
    [1.0, 1.0]
    """
    return without_state(
        lambda updates, params, **extra_args: updates, parts=(), takes_vectors=True
    )


@transformation
def set_to_zero() -> GradientTransformation:
    """Set every update to zero, so that the parameters do not change.

    >>> tx = set_to_zero()
    >>> tx.update(jnp.ones(2), tx.init(jnp.ones(2)))[0].tolist()
    [0.0, 0.0]
    """
    ends = EndsElsewhere(
        "keeps leaves from moving: pass trainable= to solve, so that they are constants"
    )
    lifted = elementwise(EmptyState, None, lambda g, s, t: (jnp.zeros_like(g), {}))
    return lifted.with_facets(ends)


@transformation
def stateless(f: Callable[[Updates, Params | None], Updates]) -> GradientTransformation:
    """A transformation from a function of the whole trees of updates and parameters.

    Args:
        f: ``(updates, params or None) -> updates``.

    >>> tx = stateless(lambda updates, params: jax.tree.map(lambda g: g / 2, updates))
    >>> float(tx.update(4.0, tx.init(0.0))[0])
    2.0
    """
    return without_state(
        lambda updates, params, **extra_args: f(updates, params), facets=(OtherLeaves(),)
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

    def mapped(updates: Updates, params: Params | None, **extra_args: Any) -> Updates:
        del extra_args
        if params is None:
            return map_updates(lambda g: f(g, None), updates)
        return map_updates(f, updates, params)

    return without_state(mapped)
