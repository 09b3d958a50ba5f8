"""Offloading: a state in the memory of the host, brought in while a step needs it."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checks import NonNegativeInt
from gradtx.composition.around import InnerStep, around
from gradtx.composition.views import SameGradients
from gradtx.core.pair import (
    GradientTransformation,
    transformation,
    with_extra_args_support,
)
from gradtx.leaves.memory import OnHost, is_all_near
from gradtx.leaves.shardings import committed
from gradtx.programs.tracing import is_tracer
from gradtx.training.loss_scale import if_divides
from gradtx.types import InnerState, Params, PyTree, State, Updates

HOST = "pinned_host"


class OffloadState(NamedTuple):
    """inner_state: the inner state, whose large arrays lie in the host's memory."""

    inner_state: InnerState


@transformation(update_size="proportional")
def offload(
    inner: GradientTransformation, *, min_size: NonNegativeInt = 4096, strict: bool = True
) -> GradientTransformation:
    """Keep a state in the pinned memory of the host, and bring it in inside the compiled step.

    Args:
        inner: the transformation.
        min_size: arrays with fewer entries stay on the device, as counters and random keys do.
        strict: whether to refuse a backend that has no pinned host memory; if not, the state stays
            on the device there.

    ``jax.jit(tx.init)(params)`` makes the state in the host's memory; without ``jit`` it is made on
    the device first. In a donated step the arrays are overwritten where they lie. Which are brought
    in when is XLA's choice: compiled for an H100, a few at a time; for a TPU, as many as there is
    room for. A state offloaded inside a loop, as in :func:`accumulate` or a guard, moves only when
    a step is taken, but XLA for GPUs does not compile that (jax 0.10.2): there, put `offload`
    around them. :func:`make_step` compiles once for such a state, new or loaded; with a ``jit`` of
    your own, bind the parameters to their device first, ``jax.device_put(params, device)``, or the
    second step is compiled again. Arrays that passed a pickle lie on the device, where JAX makes
    them: ``load_state_dict(tx, params, state_dict(state))`` brings such a state back to the host,
    without which its first step is compiled anew. :func:`state_sharding` keeps divided slots on the
    hosts of their devices. With ``make_step(inside=...)`` the slots of stacked layers come in layer
    by layer. Before jax 0.10.2, programs compiled for a CPU leave the whole state on the device,
    and a sharded state cannot be made there: XLA says "Side-effect HLO must have sharding".

    State: `OffloadState`.

    Raises:
        ValueError: the devices have no pinned host memory, and `strict` is true.

    Source: J. Ren et al., ZeRO-Offload: Democratizing Billion-Scale Model Training, 2021,
    arXiv:2101.06840.

    >>> import gradtx
    >>> state = offload(gradtx.adam(1e-3)).init({"w": jnp.zeros((64, 64))})
    >>> gradtx.get_slot(state, "mu", "w").sharding.memory_kind
    'pinned_host'
    """
    tx = with_extra_args_support(inner)

    def moved(state: State, to: str) -> State:
        if is_all_near():
            return state
        return jax.tree.map(lambda x: _moved(x, to, strict) if _is_large(x) else x, state)

    def _is_large(x: Any) -> bool:
        typed = hasattr(x, "dtype") and not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return typed and x.ndim > 0 and x.size >= min_size

    def init(params: Params) -> State:
        return OffloadState(committed(moved(tx.init(params), HOST))[0])

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Any, State]:
        result, new = inner_step(updates, moved(state.inner_state, "device"), params)
        return result, OffloadState(moved(new, HOST))

    return around(tx, init, run, step=tx.step, facets=(OnHost(), SameGradients(), *if_divides(tx)))


def _moved(x: Any, to: str, strict: bool) -> PyTree:
    """An array moved to the host's memory or to the device, as `to` says."""
    concrete = isinstance(x, jax.Array) and not is_tracer(x)
    device = next(iter(x.sharding.device_set if concrete else jax.devices()))
    kinds = [memory.kind for memory in device.addressable_memories()]
    if HOST not in kinds:
        if strict:
            raise ValueError(
                f"offload: {device.platform} devices have no {HOST} memory, only "
                f"{', '.join(kinds)}; with strict=False the state stays on them"
            )
        return x
    if concrete:
        kind = HOST if to == HOST else device.default_memory().kind
        return jax.device_put(x, x.sharding.with_memory_kind(kind))
    return jax.device_put(x, jax.memory.Space.Host if to == HOST else jax.memory.Space.Device)
