"""Infrequent communication: devices train independently and synchronize from time to time."""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checks import PositiveCount
from gradtx.composition.views import OnPart
from gradtx.core.communication import Communication
from gradtx.core.pair import (
    GradientTransformation,
    reduced_axes,
    transformation,
    with_extra_args_support,
)
from gradtx.distributed.aggregation import aggregate, message_bytes, weight_among
from gradtx.engine.leaves import gradient
from gradtx.engine.lift import needed
from gradtx.inspection.description import communications, sent
from gradtx.leaves.paths import is_leaf, leaves_with_path, map_present, path_string
from gradtx.leaves.rows import dense, is_rows
from gradtx.numerics import cast, own_copy, widen
from gradtx.numerics.control import branch, in_form_of
from gradtx.programs.tracing import tracked, vary
from gradtx.sharding.axes import (
    AxisName,
    axes_of,
    bound_size,
    check_axis_name,
    communicating,
    same_on_all,
)
from gradtx.types import (
    Array,
    EmptyState,
    InnerState,
    Params,
    PyTree,
    Slots,
    State,
    StateOf,
    Updates,
)


class LocalSGDState(NamedTuple):
    """inner_state: this device's; until_sync: i32[], steps until the next synchronization."""

    inner_state: InnerState
    until_sync: Array


class DiLoCoState(NamedTuple):
    """inner_state: this device's; until_sync: i32[], steps until the next synchronization.

    outer_state: the outer optimizer's; anchor: the parameters after the last synchronization, in
    float32 or wider; both are the same on all devices, except for what a compressed aggregation in
    the outer optimizer has not sent yet.
    """

    inner_state: InnerState
    outer_state: Annotated[State, StateOf("outer")]
    anchor: Slots
    until_sync: Array


def _mean(label: str, axis_name: AxisName, values: PyTree, extra_args: Mapping[str, Any]) -> PyTree:
    """The mean over devices in one all-reduce.

    The values themselves where no axis is bound, or all devices have weight 0.
    """
    if bound_size(label, axis_name) is None:
        return values
    if "weight" not in extra_args:
        return jax.lax.pmean(values, axis_name)
    weight, one = extra_args["weight"], vary(jnp.ones([]), tracked(axes_of(axis_name)))
    # The mean of ones is 0 where the sum of weights is.
    both = aggregate(axis_name).update((values, one), EmptyState(), weight=weight)[0]
    return map_present(lambda m, mine: jnp.where(both[1] > 0, m, mine), both[0], values)


class Outer:
    """An outer optimizer, after a mean over devices unless it reduces over devices itself."""

    def __init__(self, outer: GradientTransformation, axis_name: AxisName) -> None:
        self.tx = with_extra_args_support(outer)
        self.init = self.tx.init
        axes = set(axes_of(axis_name))
        aggregates = axes <= _reduced_everywhere(self.tx)
        if not aggregates and axes <= set(reduced_axes(self.tx)):
            raise ValueError(
                f"outer reduces over {axis_name!r} only some of the leaves: let it begin with an "
                "aggregation of all, as chain(aggregate_int8(...), partition(...)) does"
            )
        self._mean = None if aggregates else aggregate(axis_name)
        self.gathers = aggregates and any(message.gathers for message in communications(self.tx))

    def update(
        self, change: PyTree, state: State, anchor: PyTree, extra_args: dict[str, Any]
    ) -> tuple[Updates, State]:
        """The change to add to the anchor, from this device's change, and the new state."""
        weight = weight_among(extra_args)
        if self._mean is not None:
            change, _ = self._mean.update(change, EmptyState(), **weight)
        step, new = self.tx.update(change, state, anchor, **weight)
        return step, in_form_of(new, state)

    def bytes_sent(self, params: Params) -> int:
        """The bytes that a device sends to synchronize parameters."""
        anchor = jax.tree.map(lambda p: jax.eval_shape(widen, p), params)
        link = self.tx if self._mean is None else self._mean
        return sum(each.bytes for each in sent(link, anchor))


def _reduced_everywhere(tx: GradientTransformation) -> set[str]:
    """The axes over which `tx` reduces the gradients of all leaves."""
    communication = tx.facet(Communication)
    if communication is not None and communication.reduces:
        return set(communication.reduces)
    below = [_reduced_everywhere(part) for part in tx.inside]
    if tx.facet(OnPart) is None or tx.parts is None:
        return set().union(*below)
    # Groups have all leaves between them; a mask chooses some.
    return set.intersection(*below) if len(below) > 1 else set()


def _per_step(every: Any, size: int) -> int:
    return -(-size // every) if isinstance(every, int) else size


def _check_own(axis_name: AxisName, updates: Updates) -> None:
    """Raise ValueError unless each device has gradients of its own."""
    present = [(path, g) for path, g in leaves_with_path(updates)[0] if g is not None]
    arrays = ((path, gradient(g.values if is_rows(g) else g, path)) for path, g in present)
    for path in same_on_all(axis_name, arrays):
        raise ValueError(
            f"local_sgd: the gradient at {path_string(path)!r} is the same on all devices of "
            f"{axis_name!r}, as where JAX has summed the gradients of parameters that devices "
            "share: give each device parameters of its own, params = jax.lax.pcast(params, "
            f"{axis_name!r}, to='varying'), or call shard_map with check_vma=False"
        )


@transformation
def local_sgd(
    inner: GradientTransformation, every: PositiveCount, axis_name: AxisName
) -> GradientTransformation:
    r"""Train on each device independently, and average the parameters every `H` steps.

    .. math:: \theta_i \leftarrow \theta_i + u_i, \qquad
        \theta_i \leftarrow \frac1n \sum_j \theta_j \text{ at every } H\text{-th step}

    Args:
        inner: the optimizer of each device. One that keeps a copy of the parameters, as
            ``gradtx.master_weights`` does, goes on from its copy, and undoes the averages: write
            ``master_weights(local_sgd(...))``.
        every: `H`, at least 1; at 1 the parameters are the same on all devices after every step.
        axis_name: the axis of ``pmap``, ``shard_map`` or ``vmap``, or several.

    Apply the updates unchanged. Each device has parameters and a state of its own: what a
    ``shard_map`` returns of them is not the same on all devices (see docs/distributed.md).
    Synchronizing costs one all-reduce of the parameters, in float32 or wider; other steps send
    nothing. If no axis is bound there is one device, and this is just `inner`. ``update`` takes an
    extra argument ``weight``, how much this device's parameters count in an average, 1 by default;
    with 0 they may be NaN. Where all weights are 0, each device keeps its own.

    State: `LocalSGDState`; the inner states stay with their devices.

    Raises:
        ValueError: axes are bound here, but not this one; the parameters are not given; or JAX
            knows that a gradient is the same on all devices.

    Source: S. U. Stich, Local SGD Converges Fast and Communicates Little, 2019, arXiv:1805.09767,
    algorithm 1.

    >>> import gradtx
    >>> tx = local_sgd(gradtx.sgd(1.0), 1, "data")
    >>> update = jax.vmap(
    ...     lambda g: tx.update(g, tx.init(0.0), jnp.float32(0.0))[0], axis_name="data"
    ... )
    >>> update(jnp.array([1.0, 3.0])).tolist()
    [-2.0, -2.0]
    """
    check_axis_name("local_sgd", axis_name)
    tx = with_extra_args_support(inner)

    def init(params: Params) -> State:
        return LocalSGDState(tx.init(params), own_copy(every, jnp.int32))

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        params = needed("local_sgd", updates, params)
        _check_own(axis_name, updates)
        out, inner_state = tx.update(updates, state.inner_state, params, **extra_args)
        out = dense(out)

        def meet() -> Updates:
            mine = map_present(lambda u, p: widen(jnp.asarray(p)) + widen(u), out, params)
            mean = _mean("local_sgd", axis_name, mine, extra_args)
            return map_present(
                lambda u, m, p: cast(m - widen(jnp.asarray(p)), u.dtype), out, mean, params
            )

        due = state.until_sync <= 1
        out = branch(due, meet, lambda: out)
        left = jnp.where(due, jnp.asarray(every, jnp.int32), state.until_sync - 1)
        return out, LocalSGDState(inner_state, left)

    return communicating(
        init,
        update,
        lambda params: _per_step(every, message_bytes(params)),
        axis_name,
        peak_bytes=message_bytes,
    )


@transformation
def diloco(
    inner: GradientTransformation,
    outer: GradientTransformation,
    every: PositiveCount,
    axis_name: AxisName,
) -> GradientTransformation:
    r"""Train on each device independently; every `H` steps the mean change is an outer gradient.

    With :math:`\phi` the parameters after the last synchronization,

    .. math:: \Delta = \phi - \frac1n \sum_i \theta_i, \qquad
        \phi \leftarrow \phi + \mathrm{outer}(\Delta), \qquad \theta_i \leftarrow \phi

    Args:
        inner: the optimizer of each device; AdamW in the paper. As for :func:`local_sgd`, one that
            keeps a copy of the parameters belongs around this.
        outer: the optimizer for synchronization; in the paper Nesterov momentum,
            ``sgd(0.7, momentum=0.9, nesterov=True)``. With ``sgd(1.0)`` this is :func:`local_sgd`.
            If it starts by aggregating over the axis, as
            ``chain(aggregate_int8("data"), sgd(0.7))`` does, that link takes the mean instead.
        every: `H`, at least 1; 500 in the paper.
        axis_name: the axis of ``pmap``, ``shard_map`` or ``vmap``, or several.

    Apply the updates unchanged. Each device has parameters and a state of its own, as for
    :func:`local_sgd`. Synchronizing costs one all-reduce of the parameters; other steps send
    nothing. If no axis is bound there is one device, whose change is the mean.

    ``update`` takes an extra argument ``weight``, how much this device's change counts when it
    synchronizes, 1 by default. A device of weight 0 counts for nothing, even if its parameters are
    NaN, and continues from where the others are, if they are finite; this is how devices drop out
    and join.

    State: `DiLoCoState`.

    Raises:
        ValueError: axes are bound here, but not this one; the parameters are not given; `outer`
            aggregates some leaves alone.

    Source: A. Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models,
    2023, arXiv:2311.08105, algorithm 1.

    >>> import gradtx
    >>> tx = diloco(gradtx.sgd(1.0), gradtx.sgd(0.5), 1, "data")
    >>> update = jax.vmap(
    ...     lambda g: tx.update(g, tx.init(0.0), jnp.float32(0.0))[0], axis_name="data"
    ... )
    >>> update(jnp.array([1.0, 3.0])).tolist()
    [-1.0, -1.0]
    """
    check_axis_name("diloco", axis_name)
    tx, outside = with_extra_args_support(inner), Outer(outer, axis_name)

    def init(params: Params) -> State:
        anchor = map_present(lambda p: widen(jnp.array(p)), params)
        return DiLoCoState(
            tx.init(params), outside.init(anchor), anchor, own_copy(every, jnp.int32)
        )

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        params = needed("diloco", updates, params)
        out, inner_state = tx.update(updates, state.inner_state, params, **extra_args)
        out = dense(out)

        def meet() -> tuple[Updates, State, PyTree]:
            mine = map_present(lambda u, p: widen(jnp.asarray(p)) + widen(u), out, params)
            seen = map_present(lambda u, a: a, out, state.anchor)
            change = map_present(lambda u, a, m: a - m, out, seen, mine)
            step, outer_state = outside.update(change, state.outer_state, seen, extra_args)
            anchor = jax.tree.map(
                lambda a, s: a if s is None else a + s, state.anchor, step, is_leaf=is_leaf
            )
            to = map_present(
                lambda u, a, p: cast(a - widen(jnp.asarray(p)), u.dtype), out, anchor, params
            )
            return to, outer_state, in_form_of(anchor, state.anchor)

        due = state.until_sync <= 1
        out, outer_state, anchor = branch(due, meet, lambda: (out, state.outer_state, state.anchor))
        left = jnp.where(due, jnp.asarray(every, jnp.int32), state.until_sync - 1)
        return out, DiLoCoState(inner_state, outer_state, anchor, left)

    return communicating(
        init,
        update,
        lambda params: _per_step(every, outside.bytes_sent(params)),
        axis_name,
        peak_bytes=outside.bytes_sent,
        gathers=outside.gathers,
    )
