"""The step that a state has reached."""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp

from gradtx.types import Array, State, counters, slot_fields

# Names of step counters in classes without annotations for them, such as Optax's.
_NAMES = ("count", "gradient_step", "step", "t")
_FROM_ONE = ("step_count",)


def step_counters(state: State) -> Iterator[tuple[Any, int]]:
    """The counters of steps in a state, each with the number from which it counts."""
    if hasattr(state, "_fields"):
        cls = type(state)
        clocks = counters(cls, _NAMES)
        for name in cls._fields:
            if name in clocks:
                yield getattr(state, name), 0
            elif name in _FROM_ONE:
                yield getattr(state, name), 1
            elif name not in slot_fields(cls):
                yield from step_counters(getattr(state, name))
    elif isinstance(state, dict | list | tuple):
        for part in state.values() if isinstance(state, dict) else state:
            yield from step_counters(part)


def is_accumulation(state: State) -> bool:
    """Whether a state is that of :func:`accumulate`, of `MultiSteps`, or of Optax's."""
    return {"mini_step", "gradient_step", "acc_grads"} <= set(getattr(state, "_fields", ()))


def iterations(state: State) -> Array:
    """How many steps a state has seen, Keras's ``optimizer.iterations``.

    Args:
        state: a state of any transformation, in a chain, a group or a wrapper, or of Optax's.

    Returns:
        The largest of the counts in it, an ``i32[]``. A transformation inside :func:`accumulate`
        counts windows, one beside it micro-batches.

    Raises:
        ValueError: nothing in the state counts steps, as with ``sgd`` at a constant rate; with
            :func:`count_steps` in the chain it does.

    >>> import gradtx
    >>> tx = gradtx.chain(gradtx.adam(gradtx.linear_schedule(0.1, 0.0, 10)), gradtx.ema_params())
    >>> params, state = gradtx.apply_gradients(tx, 1.0, 0.0, tx.init(0.0))
    >>> int(iterations(state))
    1
    """
    counts = [jnp.asarray(count) - start for count, start in step_counters(state)]
    if not counts:
        raise ValueError(
            f"iterations: {type(state).__name__} counts no steps; chain(count_steps(), ...) does"
        )
    return jnp.max(jnp.stack(counts))
