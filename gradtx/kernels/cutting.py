"""The part of a step on stored slots that one kernel can do: for each leaf, from codes to codes.

The program of the step is read backwards from where a slot is written, and from its results.
Everything that works entry by entry belongs to the kernel, as far back as the arguments, however
many transformations it comes from. What reads a whole leaf, such as a norm, stays outside, and
reads the codes itself.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

from gradtx.programs.interpreter import (
    Uses,
    advance,
    called,
    equations,
    interpret,
    needed,
    read,
    run_equation,
    uses,
    variables,
)
from gradtx.storage.encoded import Blocks, blocks_of
from gradtx.storage.format import Codec
from gradtx.storage.marked import decode_p, encode_p

ARITHMETIC = "abs add ceil clamp div exp exp2 floor integer_pow log log1p logistic max min mul neg"
ARITHMETIC += " pow rem root rsqrt sign sqrt square sub tanh"
BITS = "and not or shift_left shift_right_arithmetic shift_right_logical xor"
CHOICES = "eq ge gt is_finite le lt ne select_n"
CONVERSIONS = "bitcast_convert_type convert_element_type copy"
ELEMENTWISE = frozenset(" ".join((ARITHMETIC, BITS, CHOICES, CONVERSIONS)).split())
"""Primitives that treat entries alone and that kernels know, on TPUs and on GPUs."""

CALLS = frozenset({"jit", "closed_call", "custom_jvp_call", "stored_step"})
"""Primitives that only call a program."""

STORED = frozenset({"device_put"})
"""Primitives whose results are stored anyway, so that a kernel may read them."""


@dataclass
class Cut:
    """A piece of a program that runs as one kernel.

    Attributes:
        shape: the shape of the leaf.
        blocks: the blocks of the leaf, whose entries share a scale; None if no slot has blocks.
        eqns: the equations of the kernel, in order.
        coded: those among them that decode and encode slots.
        scalars: the numbers that the kernel reads.
        arrays: the arrays that the kernel reads, of the leaf's shape or of an encoded slot.
        outputs: the arrays that the kernel writes.
        overwrites: for an output, the array in whose memory it is written, by their indices.
        last: the index of the equation of the program after which the kernel can run.
    """

    shape: tuple[int, ...]
    blocks: Blocks | None
    eqns: list[Any]
    coded: list[Any]
    scalars: list[Any]
    arrays: list[Any]
    outputs: list[Any]
    overwrites: dict[int, int]
    last: int

    @property
    def codecs(self) -> set[Codec]:
        """The codecs in which the slots that the kernel reads and writes are encoded."""
        return {eqn.params["codec"] for eqn in self.coded}

    @property
    def drawn(self) -> list[Codec]:
        """The codecs that need random numbers in the kernel."""
        reads = {decode_p: 0, encode_p: 1}
        codecs = (
            eqn.params["codec"]
            for eqn in self.coded
            if len(eqn.invars) > len(eqn.params["names"]) + reads[eqn.primitive]
        )
        return list(dict.fromkeys(codecs))

    def kind(self) -> Any:
        """A key of the kernel: cuts of two leaves have equal keys if one kernel serves both."""
        names: dict[Any, int] = {}

        def name(v: Any) -> Any:
            if isinstance(v, Literal):
                return np.asarray(v.val).tobytes(), v.aval
            return names.setdefault(v, len(names)), v.aval.dtype

        heads = [name(v) for v in (*self.scalars, *self.arrays)]
        body = [
            (e.primitive.name, repr(sorted(e.params.items())), *map(name, (*e.invars, *e.outvars)))
            for e in self.eqns
        ]
        ends = [name(v) for v in self.outputs]
        return self.shape, *heads, *body, *ends, *self.overwrites.items()


def inlined(
    closed: ClosedJaxpr, platform: str, shardings: Sequence[Any], *arrays: Any
) -> ClosedJaxpr:
    """A program without calls of functions, and without branches for other platforms.

    Functions that neither read nor write an array of a slot's shape stay calls: they are in no
    kernel, and are not lowered again for each leaf.

    Args:
        closed: the program.
        platform: the platform.
        shardings: of its arrays, None where that is not known. An inner step on stored slots
            that lie elsewhere stays a call.
        arrays: its arguments.
    """

    def may_join(eqn: Any) -> bool:
        if eqn.primitive.name not in CALLS:
            return False
        return not {*eqn.params.get("shardings", ())} - {None, *shardings}

    def may_hold_slots(eqn: Any) -> bool:
        return may_join(eqn) or "branches_platforms" in eqn.params

    shapes = {slot.aval.shape for slot in _slots(closed.jaxpr, may_hold_slots)}

    def is_joined(eqn: Any) -> bool:
        if not may_join(eqn):
            return False
        near = any(v.aval.shape in shapes for v in (*eqn.invars, *eqn.outvars))
        return near or any(_slots(called(eqn).jaxpr, may_hold_slots))

    def run(program: Any, inputs: Sequence[Any]) -> list[Any]:
        each = equations(program.jaxpr, is_joined)
        if not any(is_joined(e) or "branches_platforms" in e.params for e, _ in each):
            return list(jaxpr_as_fun(program)(*inputs))  # faster than one equation after another
        return interpret(program, inputs, compute)

    def compute(eqn: Any, values: list[Any]) -> list[Any] | None:
        platforms = eqn.params.get("branches_platforms")
        if platforms is not None:
            here = next(i for i, on in enumerate(platforms) if on is None or platform in on)
            return run(eqn.params["branches"][here], values[1:])
        if is_joined(eqn):
            return run(called(eqn), values)
        return None

    return jax.make_jaxpr(lambda *x: run(closed, x))(*arrays)


def _slots(jaxpr: Any, enters: Callable[[Any], bool]) -> Iterator[Any]:
    """The slots, as numbers, that a program and those that it calls decode and encode."""
    for eqn, _ in equations(jaxpr, enters):
        if eqn.primitive is decode_p:
            yield eqn.outvars[0]
        elif eqn.primitive is encode_p:
            yield eqn.invars[0]


def cuts(
    jaxpr: Any,
    overwritten: Mapping[int, int],
    fits: Callable[[Cut], bool],
) -> list[Cut]:
    """The kernels of a program without calls.

    Args:
        jaxpr: the program.
        overwritten: for results, by their indices, the arguments in whose memory they are written.
        fits: whether there is a kernel for what could be one.
    """
    memory = _Memory.of(jaxpr, overwritten)
    made = memory.uses.computed
    groups: dict[int, tuple[set[int], list[Any]]] = {}
    group_of: dict[int, int] = {}
    for number, ends in enumerate(_ends(jaxpr, made)):
        members = _behind(jaxpr, made, ends[0])
        for other in {group_of[i] for i in members if i in group_of}:
            more, before = groups.pop(other)
            members, ends = members | more, [*before, *ends]
        groups[number] = members, ends
        group_of |= dict.fromkeys(members, number)
    one_by_one = (_cut(jaxpr, memory, fits, *group) for group in groups.values())
    return [cut for cut in one_by_one if cut is not None]


def _ends(jaxpr: Any, made: Mapping[Any, int]) -> Iterator[list[Any]]:
    """The groups of variables that kernels compute: the arrays of a slot, or one other result."""
    for eqn in needed(jaxpr, variables(jaxpr.outvars)):
        if eqn.primitive is encode_p:
            yield list(eqn.outvars)
    for v in dict.fromkeys(variables(jaxpr.outvars)):
        if v in made and jaxpr.eqns[made[v]].primitive is not encode_p:
            yield [v]


def _behind(jaxpr: Any, made: Mapping[Any, int], end: Any) -> set[int]:
    """The indices of the equations that compute the variable `end` entry by entry."""
    members: set[int] = set()
    eqn = jaxpr.eqns[made[end]]
    left = [end]
    shape = end.aval.shape
    if eqn.primitive is encode_p:
        members, left, shape = {made[end]}, [eqn.invars[0]], eqn.invars[0].aval.shape
    while left:
        v = left.pop()
        i = None if isinstance(v, Literal) else made.get(v)
        if i is None or i in members or v.aval.shape != shape or not shape:
            continue
        eqn = jaxpr.eqns[i]
        if eqn.primitive is decode_p:
            members.add(i)
        elif _is_elementwise(eqn, shape):
            members.add(i)
            left += eqn.invars
    return members


def _is_elementwise(eqn: Any, shape: tuple[int, ...]) -> bool:
    if eqn.primitive.name == "broadcast_in_dim":
        return not eqn.invars[0].aval.shape
    alike = all(v.aval.shape in ((), shape) for v in eqn.invars)
    return alike and eqn.primitive.name in ELEMENTWISE


@dataclass
class _Memory:
    """Where the variables of a program are read, and the memory in which its results are written.

    Attributes:
        uses: where they are computed and read.
        there: the arrays that lie in memory, whichever equations become kernels.
        overwritten: for a result of the program, the argument in whose memory it is written.
    """

    uses: Uses
    there: set[Any]
    overwritten: dict[Any, Any]

    @classmethod
    def of(cls, jaxpr: Any, overwritten: Mapping[int, int]) -> "_Memory":
        uses_of_variables = uses(jaxpr.eqns)
        stored = [
            v
            for v, i in uses_of_variables.computed.items()
            if jaxpr.eqns[i].primitive.name in STORED
        ]
        memory = {
            jaxpr.outvars[i]: jaxpr.invars[k]
            for i, k in overwritten.items()
            if i < len(jaxpr.outvars) and not isinstance(jaxpr.outvars[i], Literal)
        }
        return cls(uses_of_variables, {*jaxpr.invars, *jaxpr.constvars, *stored}, memory)


def _cut(
    jaxpr: Any,
    memory: _Memory,
    fits: Callable[[Cut], bool],
    members: set[int],
    outputs: list[Any],
) -> Cut | None:
    """The equations of these indices as one kernel; None if one kernel cannot compute them.

    All slots must have the same blocks, and a kernel reads arrays only where these lie in memory.
    """
    order = sorted(members)
    eqns = [jaxpr.eqns[i] for i in order]
    coded = [eqn for eqn in eqns if eqn.primitive in (decode_p, encode_p)]
    decoded = [eqn.outvars[0] for eqn in coded if eqn.primitive is decode_p]
    if not decoded:
        return None
    shape, codecs = decoded[0].aval.shape, {eqn.params["codec"] for eqn in coded}
    blocks = {blocks_of(codec, shape) for codec in codecs} - {None}
    if len(blocks) > 1:
        return None
    inside = uses(eqns)
    inputs = [v for v in inside.read if v not in inside.computed]
    scalars = [v for v in inputs if not v.aval.shape]
    arrays = [v for v in inputs if v.aval.shape]
    results = set(outputs)
    readers = (i for v in outputs for i, _ in memory.uses.read.get(v, ()))
    alone = (
        results.isdisjoint(arrays)
        and memory.there.issuperset(arrays)
        and any(v.aval.shape == shape for v in arrays)
        and not any(i < order[-1] and i not in members for i in readers)
    )
    if not alone:
        return None
    written: dict[Any, Any] = {}
    for eqn in coded:
        if eqn.primitive is encode_p:
            written |= dict(zip(eqn.outvars, eqn.invars[1:], strict=False))
    written |= {v: memory.overwritten[v] for v in outputs if v in memory.overwritten}
    overwrites = {
        outputs.index(new): arrays.index(old)
        for new, old in written.items()
        if new in results and old in arrays and new.aval.dtype == old.aval.dtype
    }
    (block,) = blocks or {None}
    cut = Cut(shape, block, eqns, coded, scalars, arrays, outputs, overwrites, order[-1])
    return cut if fits(cut) else None


def run_with_kernels(
    jaxpr: Any,
    consts: Sequence[Any],
    inputs: Sequence[Any],
    kernel_cuts: Sequence[Cut],
    kernel: Callable[[Cut], Callable[..., Sequence[Any]]],
) -> list[Any]:
    """The results of a program, of which the equations of each cut run as one kernel."""
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *inputs], strict=True))
    wanted = variables(jaxpr.outvars)
    wanted += [v for cut in kernel_cuts for v in (*cut.scalars, *cut.arrays)]
    chosen = {*map(id, needed(jaxpr, wanted, (v for cut in kernel_cuts for v in cut.outputs)))}
    after: dict[int, list[Cut]] = {}
    for cut in kernel_cuts:
        after.setdefault(cut.last, []).append(cut)
    for i, eqn in enumerate(jaxpr.eqns):
        if id(eqn) in chosen:
            advance(env, [eqn], functools.partial(run_equation, jaxpr))
        for cut in after.get(i, ()):
            results = kernel(cut)(*(env[v] for v in (*cut.scalars, *cut.arrays)))
            env |= zip(cut.outputs, results, strict=True)
    return read(env, jaxpr.outvars)
