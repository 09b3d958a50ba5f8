"""Planning: the memory and messages of an optimizer on a mesh, from shapes alone."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from gradtx.core.pair import GradientTransformation, with_extra_args_support
from gradtx.estimators.estimator import Estimator
from gradtx.inspection.description import communications, sent
from gradtx.leaves.paths import leaves_with_path
from gradtx.ownership.owners import Stack
from gradtx.sharding.axes import AxisName, axes_of, check_axis_name
from gradtx.sharding.operations import busiest, messages, owners_lines
from gradtx.sharding.placement import dims_of
from gradtx.sharding.sharding import MIN_SIZE, StateSharding, state_sharding
from gradtx.types import Params, PyTree


@dataclass(frozen=True)
class Link:
    """The links along an axis of a mesh: bytes a second into one device, seconds for a message."""

    bandwidth: float
    latency: float = 1e-6


TPU_V5E = Link(1600e9 / 8 / 2)
"""An axis of a TPU v5e's torus: two of the four links of a chip, 1,600 Gbit/s together each way."""
TPU_V5E_NETWORK = Link(6.4e12 / 8 / 256, 1e-5)
"""From pod to pod: 6.4 Tbit/s of a pod, shared by its 256 chips; the latency is assumed."""
TPU_V5E_MEMORY = 819e9
"""Bytes a second of a TPU v5e's memory."""


@dataclass(frozen=True)
class Message:
    """The messages of one kind that all devices send in a step.

    Attributes:
        what: gradients, parameters, matrices, losses where gradients are estimated from them, or
            the message of a link such as :func:`diloco`.
        kind: the collective.
        axes: the axes of the mesh over which it goes.
        bytes: the size of the whole arrays that one device reduces, scatters or gathers; for an
            all-to-all, of its part of them. XLA prints the same.
        received: the bytes that come to one device.
        seconds: the time on the given links, with nothing else on them.
    """

    what: str
    kind: str
    axes: tuple[str, ...]
    bytes: int
    received: int
    seconds: float


@dataclass(frozen=True)
class StepPlan:
    """The memory, messages and time of a step on a mesh, from :func:`plan_step`.

    ``print`` shows it as a table.

    Attributes:
        mesh: the sizes of its axes.
        parameters: their number.
        parameter_bytes: on one device.
        state_bytes: on one device.
        host_bytes: of these, those in the memory of the host (:func:`offload`); a step carries as
            many over the link to the host, each way.
        messages: those of a step, on average if not every step sends.
        update_seconds: the time to read and write parameters, gradients and state, and no more.
        owned: the stacks of matrices of which each device transforms some.
        sharding: the sharding of every leaf of the state.
    """

    mesh: dict[str, int]
    parameters: int
    parameter_bytes: int
    state_bytes: int
    host_bytes: int
    messages: tuple[Message, ...]
    update_seconds: float
    owned: tuple[Stack, ...]
    sharding: StateSharding

    @property
    def devices(self) -> int:
        """The number of devices."""
        return math.prod(self.mesh.values())

    @property
    def received(self) -> int:
        """The bytes that come to one device in a step."""
        return sum(message.received for message in self.messages)

    @property
    def seconds(self) -> float:
        """The time of the update and all messages, one after the other."""
        return self.update_seconds + sum(message.seconds for message in self.messages)

    @property
    def operations(self) -> int:
        """The operations of the busiest device in products of matrices that it transforms whole."""
        return busiest(self.owned)

    def __str__(self) -> str:
        axes = " x ".join(f"{name}={n}" for name, n in self.mesh.items())
        rows = [("", "over", "bytes", "received", "ms")]
        rows += [
            (
                f"{m.what}: {m.kind}",
                " x ".join(m.axes),
                f"{m.bytes:,}",
                f"{m.received:,}",
                f"{1e3 * m.seconds:.3g}",
            )
            for m in self.messages
        ]
        rows.append(("update", "", "", "", f"{1e3 * self.update_seconds:.3g}"))
        rows.append(("all", "", "", f"{self.received:,}", f"{1e3 * self.seconds:.3g}"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            f"{self.parameters:,} parameters, {self.devices:,} devices, {axes}",
            f"bytes of a device: parameters {self.parameter_bytes:,}, state {self.state_bytes:,}",
        ]
        if self.host_bytes:
            lines.append(f"of the state {self.host_bytes:,} on the host, brought in and taken back")
        for row in rows:
            cells = [c.ljust(w) for c, w in zip(row[:2], widths, strict=False)]
            cells += [c.rjust(w) for c, w in zip(row[2:], widths[2:], strict=True)]
            lines.append("  ".join(cells))
        lines += owners_lines(self.owned)
        lines += [f"advice: {self.sharding.advice}"] * (self.sharding.advice is not None)
        return "\n".join(line.rstrip() for line in lines)


def plan_step(
    tx: GradientTransformation,
    params: Params,
    mesh: Mapping[str, int] | Mesh | AbstractMesh,
    specs: PyTree = None,
    *,
    batch: AxisName = (),
    zero: AxisName | None = None,
    links: Mapping[str, Link] | None = None,
    memory: float = TPU_V5E_MEMORY,
    min_size: int = MIN_SIZE,
    balance: bool = False,
) -> StepPlan:
    """The memory and messages of a step of an optimizer on a mesh; it needs no devices.

    Args:
        tx: any transformation.
        params: the parameters, or `jax.ShapeDtypeStruct` in their place.
        mesh: the sizes of its axes by name, of any number of devices; or a mesh.
        specs: a `PartitionSpec` for each parameter, or one for all; replicated unless given.
        batch: the axes over which the batch is divided, and gradients are reduced. A parameter that
            is divided over one of them (FSDP) is gathered twice, for the forward and the backward
            pass. Leave out the axes over which `tx` sends, such as that of :func:`diloco`. With
            :func:`estimated_gradients` values of the loss are reduced in place of gradients, and
            such a parameter is gathered for each of them.
        zero: the axes over which slots are divided further, as in :func:`state_sharding`.
        links: the links along each axis; `TPU_V5E` unless given.
        memory: the bandwidth of a device's memory, in bytes a second.
        min_size: slots with fewer entries are not divided further.
        balance: whether stacks of matrices are balanced, as in :func:`state_sharding`.

    Returns:
        A `StepPlan`; nothing is allocated. It has the messages that the optimizer needs, and leaves
        out those of the loss itself, such as the activations of tensor parallelism. Times are a
        model, in which each axis of a mesh is a ring or a line with a bandwidth of its own, the
        fastest is used first, nothing overlaps, and an all-to-all is bound by the slowest of its
        axes.

    Raises:
        TypeError, ValueError: as :func:`state_sharding`; or an axis is not one of the mesh.

    >>> import gradtx, jax.numpy as jnp
    >>> params = {"w": jax.ShapeDtypeStruct((24, 1024, 4096), jnp.float32)}
    >>> plan = plan_step(gradtx.adamw(1e-3), params, {"data": 16}, batch="data", zero="data")
    >>> [(m.what, m.kind, m.bytes) for m in plan.messages]
    [('gradients', 'reduce-scatter', 402653184), ('parameters', 'all-gather', 402653184)]
    >>> plan.state_bytes
    50331652
    """
    try:
        sizes = dict(mesh.shape if isinstance(mesh, Mesh | AbstractMesh) else mesh)
    except TypeError:
        problem = f"plan_step: mesh must be a dict of sizes by axis, not {mesh!r:.80}"
        raise TypeError(problem) from None
    if batch:
        check_axis_name("plan_step: batch", batch)
    over = axes_of(batch) if batch else ()
    if lacking := [x for how in communications(tx) for x in how.over if x not in sizes]:
        raise ValueError(
            f"plan_step: there is no axis {lacking[0]!r}, over which tx sends, in the mesh; its "
            f"axes are {', '.join(map(repr, sizes))}"
        )
    if unknown := [axis for axis in over if axis not in sizes]:
        raise ValueError(
            f"plan_step: batch={unknown[0]!r} is not an axis of the mesh; its axes are "
            f"{', '.join(map(repr, sizes))}"
        )
    specified = _abstract_shardings(sizes, PartitionSpec() if specs is None else specs)
    sharding = state_sharding(tx, params, specified, zero=zero, min_size=min_size, balance=balance)
    traffic = _Traffic(sizes, {name: (links or {}).get(name, TPU_V5E) for name in sizes})
    leaves, _ = leaves_with_path(sharding.like)
    parameter_bytes, updated_bytes, shards = _parameters(tx, sharding, over, traffic)
    # A link that sends nothing is not asked: its `init` may refuse a device's part of a leaf.
    for how, size, _ in sent(tx, shards) if communications(tx) else []:
        kind = "all-gather" if how.gathers else "all-reduce"
        total = size * traffic.devices(how.over) if how.gathers else size
        what = "gradients" if how.reduces else "parameters of the devices"
        traffic.send(what, kind, how.over, total)
    for axes, there, back in messages(sharding.owned):
        traffic.send("matrices", "all-to-all", axes, there + back)
    state_bytes = sharding.bytes_per_device
    # A device reads gradients, parameters and slots of its part, and writes the last two.
    moved = 3 * updated_bytes + 2 * state_bytes
    moved += parameter_bytes if updated_bytes < parameter_bytes else 0
    return StepPlan(
        mesh=sizes,
        parameters=sum(math.prod(p.shape) for _, p in leaves if p is not None),
        parameter_bytes=parameter_bytes,
        state_bytes=state_bytes,
        host_bytes=_host_bytes(sharding),
        messages=traffic.messages(),
        update_seconds=moved / memory,
        owned=sharding.owned,
        sharding=sharding,
    )


def _abstract_shardings(sizes: dict[str, int], specs: PyTree) -> PyTree:
    """Shardings on a mesh without devices."""
    types = (AxisType.Auto,) * len(sizes)
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=types)
    return jax.tree.map(
        lambda spec: NamedSharding(mesh, spec),
        specs,
        is_leaf=lambda x: isinstance(x, PartitionSpec),
    )


def _parameters(
    tx: GradientTransformation, sharding: StateSharding, batch: tuple[str, ...], traffic: "_Traffic"
) -> tuple[int, int, PyTree]:
    """The bytes of parameters on a device, those that it updates, and its shards of the leaves.

    The messages of gradients, parameters and losses are added to `traffic`.
    """
    leaves, treedef = leaves_with_path(sharding.like)
    stages = [treedef.flatten_up_to(tree) for tree in (sharding.params, *sharding.reductions)]
    estimator = with_extra_args_support(tx).facet(Estimator)
    parameter_bytes = updated_bytes = 0
    shards: list[Any] = [None] * len(leaves)
    for i, (_, p) in enumerate(leaves):
        if p is None:
            continue
        dims = [dims_of(stage[i].spec, len(p.shape)) for stage in stages]
        shape = stages[0][i].shard_shape(p.shape)
        shards[i] = jax.ShapeDtypeStruct(shape, p.dtype)
        size = math.prod(shape) * p.dtype.itemsize
        parameter_bytes += size
        updated_bytes += traffic.of_leaf(size, dims, batch, estimator)
    if estimator is not None:
        values = _LOSS_BYTES * estimator.number_count
        traffic.send("losses", "all-reduce", batch, values, estimator.evaluation_count)
    return parameter_bytes, updated_bytes, treedef.unflatten(shards)


def _host_bytes(sharding: StateSharding) -> int:
    """The bytes of a device's slots in the memory of the host."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        for x in jax.tree.leaves(sharding.abstract)
        if x.sharding.memory_kind == "pinned_host"
    )


_LOSS_BYTES = 4  # of a number in float32


class _Traffic:
    """The bytes of the messages of a step, added up by purpose, collective and axes."""

    def __init__(self, sizes: Mapping[str, int], links: Mapping[str, Link]) -> None:
        self._sizes, self._links = sizes, links
        self._bytes: dict[tuple[str, str, tuple[str, ...]], int] = {}
        self._turns: dict[tuple[str, str, tuple[str, ...]], int] = {}

    def devices(self, axes: tuple[str, ...]) -> int:
        """The number of devices that communicate over some axes."""
        return math.prod(self._sizes[axis] for axis in axes)

    def send(self, what: str, kind: str, axes: tuple[str, ...], size: int, turns: int = 1) -> None:
        """Add a message, in so many turns; over axes of one device nothing is sent."""
        axes = tuple(axis for axis in axes if self._sizes[axis] > 1)
        if axes and size:
            key = what, kind, axes
            self._bytes[key] = self._bytes.get(key, 0) + size
            self._turns[key] = turns

    def of_leaf(
        self,
        size: int,
        dims: list[Any],
        batch: tuple[str, ...],
        estimator: Estimator | None = None,
    ) -> int:
        """Add the messages of a leaf, and return the bytes of it that a device updates.

        Args:
            size: the bytes of the parameter on a device.
            dims: the axes of each dimension of the parameter, then of each stage at which the
                gradient is divided further.
            batch: the axes over which gradients are reduced.
            estimator: how gradients are estimated. Each device draws its part of them.
        """
        first = {axis for dim in dims[0] for axis in dim}
        within = tuple(axis for axis in batch if axis in first)
        gathered = size * self.devices(within)
        if estimator is None:
            self.send("gradients", "reduce-scatter", within, gathered)
        # For both passes, or for each loss; for a derivative the direction is gathered, too.
        gathers = 2 if estimator is None else estimator.number_count
        self.send("parameters", "all-gather", within, gathers * gathered)
        reduced = batch if estimator is None else ()
        unreduced, divided = [axis for axis in reduced if axis not in first], first
        for stage in dims[1:]:
            axes = {axis for dim in stage for axis in dim}
            for axis in sorted(axes - divided):
                if axis in unreduced:
                    self.send("gradients", "reduce-scatter", (axis,), size)
                    unreduced.remove(axis)
                self.send("parameters", "all-gather", (axis,), size)
                size //= self._sizes[axis]
            divided |= axes
        self.send("gradients", "all-reduce", tuple(unreduced), size)
        return size

    def messages(self) -> tuple[Message, ...]:
        """The messages of a step, one for each purpose, collective and axes."""
        return tuple(
            Message(*key, size, *self._cost(*key[1:], size, self._turns[key]))
            for key, size in self._bytes.items()
        )

    def _cost(self, kind: str, axes: tuple[str, ...], size: int, turns: int) -> tuple[int, float]:
        """The bytes that a device receives in a collective, and the seconds that it takes."""
        devices = self.devices(axes)
        if kind == "all-to-all":
            slowest = min((self._links[axis] for axis in axes), key=lambda link: link.bandwidth)
            others = size * (devices - 1) // devices
            return others, others / slowest.bandwidth + slowest.latency
        # Scattering, then gathering, axis after axis: the slower ones carry a part of it.
        halves = 2 if kind == "all-reduce" else 1
        received = seconds = 0.0
        share = float(size)
        for axis in sorted(axes, key=lambda axis: -self._links[axis].bandwidth):
            n, link = self._sizes[axis], self._links[axis]
            received += halves * share * (n - 1) / n
            latency = turns * math.log2(n) * link.latency
            seconds += halves * (share * (n - 1) / n / link.bandwidth + latency)
            share /= n
        return round(received), seconds
