"""Axes over which devices communicate: those that are bound here, and reductions over them."""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from gradtx.core.communication import Communication, sends
from gradtx.core.pair import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    reduced_axes,
)
from gradtx.leaves.paths import path_string
from gradtx.numerics import cast
from gradtx.programs.tracing import tracked, varying_axes
from gradtx.types import Array, Params, State

AxisName: TypeAlias = str | tuple[str, ...]
"""The name of an axis of ``pmap``, ``shard_map`` or ``vmap``, or several."""


def communicating(
    init: Any,
    update: Any,
    message_bytes: Callable[[Params], int],
    over: AxisName,
    *,
    reduces: bool = False,
    peak_bytes: Callable[[Params], int] | None = None,
    gathers: bool = False,
) -> GradientTransformationExtraArgs:
    """A pair whose devices communicate over some axes, as a `Communication` says it."""
    axes = axes_of(over)
    peak = peak_bytes or message_bytes
    communication = Communication(message_bytes, peak, axes, axes if reduces else (), gathers)

    def start(params: Params) -> State:
        with sends(communication, params):
            state: State = init(params)
        return state

    return GradientTransformationExtraArgs(start, update, facets=(communication,))


def axes_of(axis_name: AxisName) -> tuple[str, ...]:
    """The names of axes as a tuple, also where a single name is given."""
    return axis_name if isinstance(axis_name, tuple) else (axis_name,)


def check_axis_name(where: str, axis_name: Any) -> None:
    """Raise TypeError unless `axis_name` is a name or a tuple of names."""
    names = axes_of(axis_name)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise TypeError(
            f"{where}: axis_name must be the name of an axis or a tuple of names, not {axis_name!r}"
        )


def bound_size(where: str, axis_name: AxisName) -> int | None:
    """The number of devices along an axis; None outside of ``shard_map``, ``pmap`` and ``vmap``.

    Raises:
        ValueError: there are axes here, but not this one.
    """
    try:
        return int(jax.lax.axis_size(axis_name))
    except NameError:
        mesh = jax.sharding.get_abstract_mesh()
        names = axes_of(axis_name)
        unknown = [name for name in names if name not in mesh.axis_names]
        if mesh.axis_names and (unknown or mesh.manual_axes):
            at_hand = mesh.manual_axes or mesh.axis_names
            raise ValueError(
                f"{where}: there is no axis {', '.join(map(repr, unknown or names))} here; the "
                f"axes are {', '.join(map(repr, at_hand))}"
            ) from None
        return None


def varying(x: Any) -> frozenset[str]:
    """The axes along which JAX knows that `x` varies: none unless ``shard_map`` tracks them."""
    return varying_axes(jax.typeof(x))


def keeps_account(axis_name: AxisName) -> bool:
    """Whether the call is traced in a ``shard_map`` that tracks along which axes arrays vary."""
    return bool(tracked(axes_of(axis_name)))


def check_varying(where: str, axis_name: AxisName, leaves: list[tuple[Any, Any]]) -> None:
    """Raise if JAX has already summed these gradients over the axis.

    In a ``shard_map`` with ``check_vma`` the gradient of a replicated parameter is the sum over the
    devices. Reducing it again would be wrong by the number of devices, or count weights twice.
    """
    for path in same_on_all(axis_name, leaves):
        raise ValueError(
            f"{where}: the gradient at {path_string(path)!r} is the same on all devices of "
            f"{axis_name!r}: JAX has summed it already, when it differentiated a replicated "
            "parameter. Take the step with minimize, or differentiate with respect to "
            f"parameters that differ, params = jax.lax.pcast(params, {axis_name!r}, "
            "to='varying'), or call shard_map with check_vma=False"
        )


def same_on_all(axis_name: AxisName, leaves: Iterable[tuple[Any, Any]]) -> list[Any]:
    """The paths of leaves of which ``shard_map`` knows that devices along the axis share them.

    The leaves are not looked at where it keeps no account.
    """
    names = set(axes_of(axis_name))
    if not keeps_account(axis_name):
        return []
    return [path for path, leaf in leaves if not names <= varying(leaf)]


def on_all_devices(where: str, tx: GradientTransformation, holds: Array) -> Array:
    """Whether a condition holds on all devices over which `tx` reduces gradients.

    Devices that decided differently would wait for each other in the reduction.
    """
    axes = tuple(axis for axis in reduced_axes(tx) if bound_size(where, axis) is not None)
    return jax.lax.psum(cast(~holds, jnp.int32), axes) == 0 if axes else holds


def everyones(x: Array, axis_name: AxisName) -> Array:
    """The arrays `x` of all devices as one stack, which every device receives."""
    if not keeps_account(axis_name):
        return jax.lax.all_gather(x, axis_name)
    # There JAX takes the result of all_gather to vary between devices, but not that of a sum.
    here = jax.lax.axis_index(axis_name)
    placed = jnp.zeros((jax.lax.axis_size(axis_name), *x.shape), x.dtype).at[here].set(x)
    return jax.lax.psum(placed, axis_name)
