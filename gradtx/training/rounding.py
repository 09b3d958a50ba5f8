"""Parameters in bfloat16 or float16: steps that rounding to nearest would lose."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from gradtx import tree
from gradtx.composition.apply import apply_updates
from gradtx.composition.around import InnerStep, around
from gradtx.composition.views import SameGradients
from gradtx.core.pair import GradientTransformation, transformation, with_extra_args_support
from gradtx.core.traits import StepFn
from gradtx.engine.leaves import load, put, store, take
from gradtx.engine.lift import needed
from gradtx.leaves.paths import aligned, leaves_with_path
from gradtx.leaves.rows import is_rows, take_rows
from gradtx.numerics import cast, round_to, widen
from gradtx.training.loss_scale import if_divides
from gradtx.types import Array, DType, InnerState, Key, Params, PyTree, State, Updates
from gradtx.types.keys import check_key, own_key

LeafFn = Callable[[Array, Array, Any, DType], tuple[Array, Any]]


class StochasticRoundingState(NamedTuple):
    """rounding_key: the random key of the next step; inner_state: the inner."""

    rounding_key: Key
    inner_state: InnerState

    @property
    def keeps_small_steps(self) -> bool:
        """Whether a small step counts, though the parameters are rounded."""
        return True


@transformation(update_size="proportional")
def stochastic_rounding(inner: GradientTransformation, key: Any = 0) -> GradientTransformation:
    r"""Round parameters in bfloat16 or float16 up or down at random, so that small steps count.

    .. math:: \theta_{t+1} = \begin{cases}
        \lceil x \rceil & \text{with probability } (x - \lfloor x \rfloor) / \mathrm{ulp}(x) \\
        \lfloor x \rfloor & \text{otherwise} \end{cases}
        \qquad x = \theta_t + u_t, \qquad E[\theta_{t+1}] = x

    where :math:`\lfloor x \rfloor` and :math:`\lceil x \rceil` are the neighbours of `x` in the
    parameter's type.

    Args:
        inner: the optimizer; put this around all of it, inside of :func:`accumulate` and guards.
        key: a random key or an integer seed.

    :func:`minimize`, :func:`make_step` and :func:`apply_gradients` round in this way. What
    ``update`` returns is the difference to the rounded parameter, to be added as it is. Parameters
    in float32 and wider are added to as usual. No memory is needed besides the key; each step adds
    noise of up to a unit in the last place to a parameter that it moves.

    State: `StochasticRoundingState`. The key is split at every step, so that a run that is stopped
    and resumed takes the same steps.

    Raises:
        TypeError: `key` is neither a random key nor an integer.

    Source: P. Zamirai, J. Zhang, C. R. Aberger and C. De Sa, Revisiting BFloat16 Training, 2020,
    arXiv:2010.06192, section 4.1.

    >>> import gradtx, jax.numpy as jnp
    >>> def trained(tx, params=jnp.full(1000, 2.0, jnp.bfloat16)):
    ...     step = gradtx.make_step(lambda p: jnp.sum(p.astype("float32")), tx, donate=False)
    ...     return float(step(params, step.init(params))[0].astype("float32").mean())
    >>> round(trained(stochastic_rounding(gradtx.sgd(0.001))), 3)
    1.999
    """
    check_key("stochastic_rounding", "key", key)

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Any, State]:
        params = needed("stochastic_rounding", updates, params)
        following, now = jax.random.split(state.rounding_key)
        moves, inner_state = widened(inner_step, updates, state.inner_state, params)
        new = apply_updates(params, moves, rounding_key=now)
        state = StochasticRoundingState(following, inner_state)
        if inner_step.whole:
            return new, state

        def moved(u: Array, p: Array, new: Array, dtype: DType) -> tuple[Array, Array]:
            return toward(new, p, dtype)[0], new

        return each_leaf(moved, moves, params, new, updates)[0], state

    tx = with_extra_args_support(inner)
    return around(
        tx,
        lambda params: StochasticRoundingState(own_key(key), tx.init(params)),
        run,
        step=tx.update,
        facets=(SameGradients(), *if_divides(tx)),
    )


def rounded_with(tx: GradientTransformation, key: Any) -> GradientTransformation:
    """`tx`, whose `step` rounds parameters at random with a key; the state is that of `tx`."""
    tx = with_extra_args_support(tx)

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Any, State]:
        if not inner_step.whole:
            return inner_step(updates, state, params)
        params = needed("stochastic_rounding", updates, params)
        moves, state = widened(inner_step, updates, state, params)
        return apply_updates(params, moves, rounding_key=key), state

    return around(tx, None, run, step=tx.update, same_steps=True, facets=(SameGradients(),))


def widened(
    inner_step: InnerStep, updates: Updates, state: State, params: Params
) -> tuple[Updates, State]:
    """The inner step's result on gradients in at least float32, whose updates stay so wide.

    The state keeps its types, also that of another library's transformation.
    """
    wide = tree.map_updates(widen, updates)
    out, new = inner_step(wide, state, params)
    return out, jax.tree.map(lambda n, o: cast(n, o.dtype), new, state)


def whole_step(update: Callable[..., tuple[Updates, State]]) -> StepFn:
    """The ``step`` of a pair whose ``update`` gets and makes float32, rounded once when added."""

    def step(
        updates: Updates, state: State, params: Params, **extra_args: Any
    ) -> tuple[Params, State]:
        wide = tree.map_updates(widen, updates)
        moves, state = update(wide, state, params, **extra_args)
        return apply_updates(params, moves), state

    return step


def toward(target: Array, p: Array, dtype: DType) -> tuple[Array, Array]:
    """The update of type `dtype` that brings `p` to the number of its own type nearest to `target`.

    Returns:
        The update and where it leads, in the type in which rules compute. That is not the nearest
        number if no update of type `dtype` leads there.
    """
    move = round_to(round_to(target, p.dtype) - widen(p), dtype)
    return cast(move, dtype), round_to(widen(p) + move, p.dtype)


def each_leaf(
    rule: LeafFn, updates: Updates, params: Params, slots: PyTree, gradients: Updates
) -> tuple[Updates, PyTree]:
    """A rule on each leaf that has an update: the new updates and slots.

    Args:
        rule: ``(u, p, slot, dtype) -> (update of this dtype, slot)``; on `Rows` it sees these rows.
        updates: in at least float32.
        params: the parameters, in their own types.
        slots: a tree like them; None where there is no slot.
        gradients: the gradients from which updates were made, in the types that updates get.
    """
    leaves, treedef = leaves_with_path(updates)
    problem = "the updates and the parameters, slots or gradients are different trees"
    columns = [aligned(problem, updates, treedef, t) for t in (params, slots, gradients)]
    moves, new_slots = [], []
    for (_, u), p, slot, g in zip(leaves, *columns, strict=True):
        new: tuple[Any, Any]
        if u is None or p is None:
            new = u, slot
        elif is_rows(u):
            u = u.coalesce()
            move, part = rule(u.values, take_rows(p, u.indices), take(slot, u.indices), g.dtype)
            new = u.with_values(move), put(slot, u.indices, part)
        else:
            move, part = rule(u, p, load(slot), g.dtype)
            new = move, store(slot, part)
        moves.append(new[0])
        new_slots.append(new[1])
    return treedef.unflatten(moves), treedef.unflatten(new_slots)
