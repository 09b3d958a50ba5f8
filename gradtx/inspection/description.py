"""Descriptions: the state of a transformation for some parameters, and its size."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from gradtx.composition.apply import loses_small_steps
from gradtx.composition.multipliers import (
    Multipliers,
    MultipliersByPath,
    multiplier_lines,
    pattern_of,
)
from gradtx.composition.roles import ByRole, Role, RolesOfLeaves
from gradtx.core.communication import Communication, Sent, all_sent, is_apart
from gradtx.core.pair import GradientTransformation, reduced_axes, with_extra_args_support
from gradtx.core.traits import Scope
from gradtx.estimators.estimator import Estimator
from gradtx.inspection.hyperparams import hyperparams
from gradtx.inspection.slots import map_slots, slots_by_name
from gradtx.kernels.stored_step import Kernels
from gradtx.leaves.paths import path_string, with_paths
from gradtx.leaves.shardings import lacks_a_mesh
from gradtx.programs.opaque import gpu_compiler
from gradtx.storage import FORMATS, is_encoded
from gradtx.storage.format import NEAREST
from gradtx.types import Params, PyTree, State

DIVIDE = (
    "the parameters are sharded, and a compiled step of your own knows no mesh: under "
    "jax.set_mesh(mesh) each device transforms some of the matrices, whole; or pass "
    "sharding=state_sharding(tx, params) to make_step"
)


@dataclass(frozen=True)
class SlotInfo:
    """One line of a `Description`: a slot, its leaves' types and shapes, its bytes."""

    name: str
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    bytes: int


@dataclass(frozen=True)
class Description:
    """The result of :func:`describe`; ``print`` shows it as a table."""

    transformation: str
    links: tuple[str, ...]
    parameters: int
    parameter_bytes: int
    hyperparams: dict[str, Any]
    slots: tuple[SlotInfo, ...]
    other_bytes: int
    message_bytes: int = 0
    peak_message_bytes: int = 0
    warning: str | None = None
    kept_whole: tuple[str, ...] = ()
    roles: dict[str, Role] = field(default_factory=dict)
    multipliers: dict[str, Multipliers] = field(default_factory=dict)
    advice: str | None = None
    loss_numbers: int = 0
    gpu_kernels: str | None = None

    @property
    def slot_bytes(self) -> int:
        """The bytes of all slots."""
        return sum(slot.bytes for slot in self.slots)

    @property
    def state_bytes(self) -> int:
        """The bytes of the whole state: slots, counters and the rest."""
        return self.slot_bytes + self.other_bytes

    def __str__(self) -> str:
        rows = [("slot", "type", "shapes", "bytes")]
        rows += [
            (s.name, ", ".join(s.dtypes), _count_shapes(s.shapes), f"{s.bytes:,}")
            for s in self.slots
        ]
        rows += [
            ("counters and other", "", "", f"{self.other_bytes:,}"),
            ("all", "", "", f"{self.state_bytes:,}"),
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        name = self.transformation.partition("(")[0]
        size = f"{self.parameters:,} parameters, {self.state_bytes:,} bytes of state"
        lines = [f"{name}: {size}", self.transformation]
        lines += [f"  {i}: {link}" for i, link in enumerate(self.links)]
        values = (f"{k}={v}" for k, v in self.hyperparams.items() if v is not None)
        lines += [f"hyperparameters: {', '.join(values)}"]
        lines += [f"parameters: {self.parameters:,} in {self.parameter_bytes:,} bytes"]
        lines += [
            f"{a:{widths[0]}}  {b:{widths[1]}}  {c:{widths[2]}}  {d:>{widths[3]}}"
            for a, b, c, d in rows
        ]
        if self.kept_whole:
            lines += [f"not in a codec: {', '.join(self.kept_whole)}"]
        if self.gpu_kernels is not None:
            lines += [f"kernels for GPUs: {self.gpu_kernels}"]
        if self.message_bytes:
            most = f", at most {self.peak_message_bytes:,} at once"
            most *= self.peak_message_bytes > self.message_bytes
            lines += [f"sent by each device in a step: {self.message_bytes:,} bytes{most}"]
        if self.loss_numbers:
            lines += [f"between replicas in a step: {self.loss_numbers} numbers, no gradient"]
        lines += _role_lines(self.roles)
        lines += multiplier_lines(self.multipliers)
        if self.warning is not None:
            lines += [f"warning: {self.warning}"]
        if self.advice is not None:
            lines += [f"advice: {self.advice}"]
        return "\n".join(line.rstrip() for line in lines)


def communications(tx: GradientTransformation) -> list[Communication]:
    """The records of messages between devices, of `tx` and of the transformations within it."""
    return _communications(with_extra_args_support(tx))


def _communications(tx: GradientTransformation) -> list[Communication]:
    communication = tx.facet(Communication)
    below = [x for part in tx.inside for x in _communications(part)]
    return (
        below
        if communication is None
        else [communication, *(x for x in below if is_apart(x, communication))]
    )


def sent(tx: GradientTransformation, params: Params) -> list[Sent]:
    """The messages of a device in a step of `tx`, by each part for its leaves."""
    return _state_and_sent(tx, params)[1]


def _state_and_sent(tx: GradientTransformation, params: Params) -> tuple[State, list[Sent]]:
    # A new function: JAX does not trace one again that it has traced for such parameters.
    def init(params: Params) -> State:
        return tx.init(params)

    with all_sent() as messages:
        return jax.eval_shape(init, params), messages


def _count_shapes(shapes: tuple[tuple[int, ...], ...]) -> str:
    counts = Counter(shapes)
    parts = [f"{shape}" + (f" x {n}" if n > 1 else "") for shape, n in counts.items()]
    return ", ".join(parts[:4]) + (f" and {len(parts) - 4} more" if parts[4:] else "")


def _role_lines(roles: dict[str, Role]) -> list[str]:
    """A line for each role among the leaves; leaves of several layers share a line."""
    counts = Counter((pattern_of(path), role) for path, role in roles.items())
    lines = []
    for (path, role), n in counts.items():
        axes = f"rows {role.rows}, columns {role.columns}, batch {role.batch}" * bool(role.columns)
        lines.append(f"{path}{f' x {n}' * (n > 1)}: {', '.join(filter(None, (role.kind, axes)))}")
    return lines


def roles_in(tx: Any, params: Params) -> dict[str, Role]:
    """The roles by which `tx`, or a transformation within it, decides which leaves are matrices."""
    taken = tx.facet(RolesOfLeaves)
    if taken is not None:
        return dict(taken.of(params))
    known = bool(tx.saying(RolesOfLeaves))
    arguments = {} if known or tx.declaration is None else tx.declaration.arguments
    for value in arguments.values():
        if isinstance(value, ByRole):
            return value.roles(params)
    roles: dict[str, Role] = {}
    for child in tx.inside if known else [child for _, child in tx.children]:
        roles |= roles_in(child, params)
    return roles


def multipliers_in(tx: GradientTransformation) -> dict[str, Multipliers]:
    """The multipliers of each leaf's hyperparameters in `tx` or in a transformation within it."""
    outer = with_extra_args_support(tx)
    for each in (outer, *(child for _, child in outer.children), *outer.within):
        multipliers = each.facet(MultipliersByPath)
        if multipliers is not None:
            return dict(multipliers.by_path)
    return {}


def _bytes(tree: PyTree) -> int:
    return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def describe(tx: GradientTransformation, params: Params) -> Description:
    """The state of a transformation for some parameters, computed without allocating it.

    Args:
        tx: the transformation.
        params: the parameters, or ``jax.ShapeDtypeStruct`` in their place.

    Returns:
        A `Description`: links, hyperparameters, and for each slot its types or codecs, shapes and
        bytes. Where :func:`store` is used: the leaves that it left as they are, and how GPUs get
        the kernels of encoded slots with this JAX. If there are several devices: the bytes that one
        sends in a step, on average and at most, and how many numbers of the loss replicas exchange
        where gradients are estimated. The roles of leaves if `tx` goes by them (`ByRole`), and what
        :func:`transfer` multiplies their hyperparameters by. A warning where rounding to nearest
        would leave parameters where they are, or a codec would lose the signs by which an optimizer
        steps. Advice where matrices are sharded and no mesh is known over which a step could divide
        them, or where estimated gradients are reduced.

    >>> import gradtx, jax.numpy as jnp
    >>> print(describe(gradtx.sgd(0.1, momentum=0.9), {"w": jnp.zeros((2, 3)), "b": jnp.zeros(3)}))
    sgd: 9 parameters, 36 bytes of state
    sgd(learning_rate=0.1, momentum=0.9)
      0: trace(decay=0.9)
      1: scale_by_learning_rate(learning_rate=0.1, flip_sign=True)
    hyperparameters: learning_rate=0.1, momentum=0.9
    parameters: 9 in 36 bytes
    slot                type     shapes        bytes
    trace               float32  (3,), (2, 3)     36
    counters and other                             0
    all                                           36
    """
    name, tx = repr(tx), with_extra_args_support(tx)
    advice = (
        DIVIDE if _transforms_matrices(tx) and lacks_a_mesh(params) else None,
        _advice_on_estimates(tx),
    )
    params = jax.tree.map(_form, params)
    state, messages = _state_and_sent(tx, params)
    slots = tuple(
        SlotInfo(
            slot,
            tuple(dict.fromkeys(map(_type_name, jax.tree.leaves(tree, is_leaf=is_encoded)))),
            tuple(tuple(x.shape) for x in jax.tree.leaves(tree, is_leaf=is_encoded)),
            _bytes(tree),
        )
        for slot, tree in slots_by_name(state).items()
    )
    return Description(
        transformation=name,
        links=tuple(repr(child) for _, child in tx.expansion.children),
        parameters=sum(int(np.prod(x.shape)) for x in jax.tree.leaves(params)),
        parameter_bytes=_bytes(params),
        hyperparams=hyperparams(tx),
        slots=slots,
        other_bytes=_bytes(state) - sum(slot.bytes for slot in slots),
        message_bytes=sum(each.bytes for each in messages),
        peak_message_bytes=sum(each.peak_bytes for each in messages),
        roles=roles_in(tx, params),
        multipliers=multipliers_in(tx),
        warning="; ".join(filter(None, (loses_small_steps(params, state), _loses_signs(state))))
        or None,
        kept_whole=_kept_whole(state),
        advice="; ".join(filter(None, advice)) or None,
        loss_numbers=_loss_numbers(tx) if not reduced_axes(tx) else 0,
        gpu_kernels=_gpu_kernels(tx, state),
    )


def _loss_numbers(tx: GradientTransformation) -> int:
    """How many numbers replicas exchange in a step in place of gradients; 0 if they do not."""
    estimator = tx.facet(Estimator)
    return 0 if estimator is None else int(estimator.number_count)


def _advice_on_estimates(tx: GradientTransformation) -> str | None:
    """The advice where gradients are reduced that are estimated along the same directions."""
    numbers, axes = _loss_numbers(tx), reduced_axes(tx)
    if not (numbers and axes):
        return None
    return (
        f"gradients are reduced over {', '.join(map(repr, axes))}, and are estimated along the "
        "same directions on all devices: with jax.lax.pmean in the loss in its place, replicas "
        f"exchange {numbers} numbers, and no gradient"
    )


def _gpu_kernels(tx: GradientTransformation, state: State) -> str | None:
    """What compiles the kernels of a step on stored slots for GPUs, or why there are none."""
    if not any(map(is_encoded, jax.tree.leaves(state, is_leaf=is_encoded))):
        return None
    stores = [part.facet(Kernels) for part in tx.saying(Kernels)]
    if stores and not any(each is not None and each.on for each in stores):
        return "none, with kernel=False: a program of XLA's"
    without = "none, since this JAX has neither Triton nor Mosaic GPU: a program of XLA's"
    return gpu_compiler() or without


def _transforms_matrices(tx: GradientTransformation) -> bool:
    rules = (part.traits.rule for part in (tx, *tx.within))
    return any(rule is not None and rule.scope is Scope.MATRIX for rule in rules)


def _type_name(leaf: Any) -> str:
    return str(leaf.codec.name if is_encoded(leaf) else leaf.dtype)


def _kept_whole(state: PyTree) -> tuple[str, ...]:
    """The leaves of slots that are in no codec, in a state where some leaves are in one."""
    plain_leaves, encoded = [], False
    for name, tree in slots_by_name(state).items():
        for path, leaf in with_paths(tree, is_leaf=is_encoded)[0]:
            encoded |= is_encoded(leaf)
            if not is_encoded(leaf):
                plain_leaves.append("/".join(filter(None, (name, path_string(path)))))
    return tuple(plain_leaves) if encoded else ()


def _loses_signs(state: PyTree) -> str | None:
    """The warning about momenta whose signs make the step, in codecs that lose these signs."""
    codecs: dict[str, str] = {}

    def look(holder: Any, name: str, tree: PyTree) -> PyTree:
        for x in jax.tree.leaves(tree, is_leaf=is_encoded):
            lost = is_encoded(x) and x.codec.rounding == NEAREST
            if lost and hasattr(holder, "steps_by_sign") and not FORMATS[x.codec.name].keeps_signs:
                codecs[name] = x.codec.name
        return tree

    map_slots(state, look)
    if not codecs:
        return None
    return (
        f"steps go by the signs of {', '.join(f'{n} in {c}' for n, c in codecs.items())}, which "
        "are lost as gradients fall: see docs/storage.md"
    )


def _form(x: Any) -> Any:
    return x if isinstance(x, jax.ShapeDtypeStruct) else jax.eval_shape(lambda: x)
