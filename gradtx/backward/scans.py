"""The scans of a loss over stacked parameters, and its derivative with a step inside of theirs.

The program of the loss is cut at these scans. JAX differentiates each part between two of them. A
scan is run forwards and saves the residuals of each turn, as JAX itself would, and backwards in a
loop of ours: each turn pulls the cotangents back through one layer, and passes the gradients of
that layer to a function.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun
from jax.extend.core.primitives import convert_element_type_p, jit_p, scan_p

from gradtx.backward.lookup import take_p
from gradtx.numerics import cast
from gradtx.numerics.compiler_hints import delay
from gradtx.programs.dataflow import known_of_all
from gradtx.programs.derivatives import Active, is_inexact
from gradtx.programs.interpreter import (
    called,
    inner_jaxprs,
    interpret,
    is_in,
    needed,
    read,
    runs,
    scan_sizes,
    uses,
    variables,
)
from gradtx.programs.tracing import is_tracer
from gradtx.types import Array


class ScannedStack(NamedTuple):
    """A stacked parameter that one scan reads.

    Attributes:
        leaf: the index of the parameter.
        at: the index of the array among those that the scan goes through.
        dtype: the type in which the scan reads it.
    """

    leaf: int
    at: int
    dtype: Any


@dataclass
class Stage:
    """A scan over stacked parameters.

    Attributes:
        index: that of its equation in the program.
        eqn: its equation.
        length: how many layers it has.
        stacks: the parameters.
    """

    index: int
    eqn: Any
    length: int
    stacks: list[ScannedStack]


Turn = Callable[[Array, Any, list[Array]], Any]
"""``(layer, carried, gradients) -> carried``, a function that uses one layer's gradients."""


class Loops:
    """A traced function of a list of arrays, and the scans that read one of them layer by layer.

    Args:
        function: from a list of arrays to a list of arrays.
        leaves: the arrays, or their shapes.

    Attributes:
        stages: the scans, in the order in which they run.
        why_not: for each array that is not read by one scan alone, by its index, the reason.
        looks_up: whether rows of a table are looked up.
    """

    def __init__(self, function: Callable[..., list[Any]], leaves: Sequence[Any]) -> None:
        nested = jax.make_jaxpr(function)(*leaves)
        closed = jax.make_jaxpr(lambda *args: _inlined(nested, args))(*leaves)
        eqns = needed(closed.jaxpr, variables(closed.jaxpr.outvars), effects=True)
        self.jaxpr = closed.jaxpr.replace(eqns=eqns)
        self.closed = ClosedJaxpr(self.jaxpr, closed.consts)
        self.uses = uses(eqns)
        self.looks_up = runs(self.jaxpr, take_p)
        self.why_not: dict[int, str] = {}
        self.stages = self._find()

    def _find(self) -> list[Stage]:
        stages: dict[int, Stage] = {}
        returned = set(variables(self.jaxpr.outvars))
        for leaf, v in enumerate(self.jaxpr.invars):
            names = [v]
            users = sorted(self._readers(v, names))
            why = _unfit(
                [(self.jaxpr.eqns[i], at) for i, at in users], not returned.isdisjoint(names)
            )
            if why is not None:
                self.why_not[leaf] = why
                continue
            ((index, at),) = users
            eqn = self.jaxpr.eqns[index]
            stage = stages.setdefault(index, Stage(index, eqn, eqn.params["length"], []))
            dtype = eqn.invars[at].aval.dtype
            stage.stacks.append(ScannedStack(leaf, at - _first(stage), dtype))
        return [stages[index] for index in sorted(stages)]

    def _readers(self, v: Any, names: list[Any]) -> list[tuple[int, int]]:
        """The equations that read a parameter, as it is or cast, and where among their inputs.

        One cast is followed, which a scan then does layer by layer. A second is not: it rounds the
        results of the first. `names` collects the variables of casts, after that of the parameter.
        """
        users = []
        for i, at in self.uses.read.get(v, ()):
            eqn = self.jaxpr.eqns[i]
            is_first = v.aval.dtype == names[0].aval.dtype
            if is_first and eqn.primitive is convert_element_type_p and is_inexact(eqn.outvars[0]):
                names += eqn.outvars
                users += self._readers(eqn.outvars[0], names)
            else:
                users.append((i, at))
        return users

    def keep(self, chosen: Callable[[int], bool]) -> None:
        """Let scans update only the chosen leaves; a scan without any is an ordinary one."""
        for stage in self.stages:
            stage.stacks = [stack for stack in stage.stacks if chosen(stack.leaf)]
        self.stages = [stage for stage in self.stages if stage.stacks]

    def run(self, leaves: Sequence[Any]) -> "Backward":
        """Run the function: the object that has its results, and computes its derivative."""
        return _forward(self, leaves)


def _calls(eqn: Any) -> bool:
    return eqn.primitive is jit_p


def _inlined(program: Any, args: Sequence[Any]) -> list[Any]:
    """The results of a program in which calls of compiled functions with scans are inlined."""

    def compute(eqn: Any, inputs: list[Any]) -> list[Any] | None:
        inlines = _calls(eqn) and runs(called(eqn).jaxpr, scan_p, _calls)
        return _inlined(called(eqn), inputs) if inlines else None

    return interpret(program, args, compute)


def _unfit(users: list[tuple[Any, int]], returned: bool) -> str | None:
    """The reason why a parameter is not read by one scan alone, from its uses; None if it is."""
    if returned:
        return "the loss returns it"
    if not users:
        return "the loss does not read it"
    eqn, at = users[0]
    names = [use.primitive.name for use, _ in users]
    if len(users) > 1:
        return f"it is read more than once, by {' and '.join(names)}"
    if eqn.primitive is not scan_p:
        within = any(runs(jaxpr, scan_p) for jaxpr in inner_jaxprs(eqn))
        return f"it is read {'inside of' if within else 'by'} {names[0]}, not by a scan of the loss"
    if at < sum(scan_sizes(eqn)):
        return "every layer of a scan reads all of it"
    return "its scan has a single turn" if eqn.params["length"] < 2 else None


class Evaluated(Protocol):
    """A function that has been evaluated, whose gradients come layer by layer."""

    results: list[Any]

    def pull(
        self, seeds: Sequence[Any], turns: Sequence[tuple[Turn, Any]]
    ) -> tuple[list[Any], list[Any]]: ...


class Backward:
    """The derivative of a function whose scans have been run forwards, computed backwards.

    Attributes:
        results: those of the function.
    """

    def __init__(self, loops: Loops, leaves: Sequence[Any]) -> None:
        self.loops, self.leaves = loops, list(leaves)
        self.results: list[Any] = []
        self.parts: list[_Scan | _Between] = []

    def pull(
        self, seeds: Sequence[Any], turns: Sequence[tuple[Turn, Any]]
    ) -> tuple[list[Any], list[Any]]:
        """The gradients of the arrays, and the last value that the loop of each scan carried.

        The gradient of an array that only one scan reads is None: its turns have used it.

        Args:
            seeds: the cotangents of the results, None for zeros.
            turns: for each scan the function of a layer's gradients, and the first carry.
        """
        cotangents: dict[Any, Any] = {}
        for v, seed in zip(self.loops.jaxpr.outvars, seeds, strict=True):
            if seed is not None and not isinstance(v, Literal):
                _add(cotangents, v, seed)
        carried: list[Any] = []
        rest = list(turns)
        for part in reversed(self.parts):
            if isinstance(part, _Scan):
                carried.append(part.back(cotangents, *rest.pop()))
            else:
                part.back(cotangents)
        stacked = {stack.leaf for stage in self.loops.stages for stack in stage.stacks}
        grads = [
            None if i in stacked else cotangents.get(v, jnp.zeros_like(leaf))
            for i, (v, leaf) in enumerate(zip(self.loops.jaxpr.invars, self.leaves, strict=True))
        ]
        return grads, carried[::-1]


def _add(cotangents: dict[Any, Any], v: Any, x: Any) -> None:
    cotangents[v] = cotangents[v] + x if v in cotangents else x


def _forward(loops: Loops, leaves: Sequence[Any]) -> Backward:
    jaxpr = loops.jaxpr
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*loops.closed.consts, *leaves], strict=True))
    reached = known_of_all(loops.closed, list(map(is_inexact, jaxpr.invars)), Active())
    active = {v for v, yes in reached.items() if yes}
    casts = _own_casts(loops)
    backward = Backward(loops, leaves)
    begin = 0
    for stage in loops.stages:
        backward.parts.append(_Between(loops, begin, stage.index, casts, env, active))
        backward.parts.append(_Scan(loops, stage, env, active))
        begin = stage.index + 1
    backward.parts.append(_Between(loops, begin, len(jaxpr.eqns), casts, env, active))
    backward.results = read(env, jaxpr.outvars)
    return backward


def _own_casts(loops: Loops) -> set[int]:
    """The indices of equations that cast stacked parameters, which a scan casts layer by layer."""
    casts = set()
    for stage in loops.stages:
        for stack in stage.stacks:
            v = stage.eqn.invars[_first(stage) + stack.at]
            while v in loops.uses.computed:
                casts.add(loops.uses.computed[v])
                v = loops.jaxpr.eqns[loops.uses.computed[v]].invars[0]
    return casts


def _first(stage: Stage) -> int:
    return sum(scan_sizes(stage.eqn))


class _Between:
    """The equations between two scans, run forwards, with their derivative.

    Args:
        loops: the program.
        begin: the index of the first equation.
        end: the index after the last.
        casts: the indices of equations that are left out.
        env: the values of variables, to which those of the results are added.
        active: the variables that have a derivative.
    """

    def __init__(
        self,
        loops: Loops,
        begin: int,
        end: int,
        casts: set[int],
        env: dict[Any, Any],
        active: set[Any],
    ) -> None:
        returned = set(variables(loops.jaxpr.outvars))

        def is_read_later(v: Any) -> bool:
            return v in returned or any(i >= end for i, _ in loops.uses.read.get(v, ()))

        eqns = [e for i, e in enumerate(loops.jaxpr.eqns[begin:end], begin) if i not in casts]
        computed, inputs = uses(eqns)
        ins = [v for v in inputs if v in env]
        outs = list(filter(is_read_later, computed))
        live, still = [v for v in outs if v in active], [v for v in outs if v not in active]
        self.inputs = [v for v in ins if v in active]
        # Inputs that are also read later are passed on: cotangents are then added in JAX's order.
        self.outputs = [*live, *filter(is_read_later, self.inputs)]
        outvars = [*self.outputs, *still]
        part = loops.jaxpr.replace(constvars=[], invars=ins, outvars=outvars, eqns=eqns)
        run = jaxpr_as_fun(ClosedJaxpr(part, []))

        def function(*inputs: Any) -> tuple[list[Any], list[Any]]:
            values = env | dict(zip(self.inputs, inputs, strict=True))
            results = list(run(*(values[v] for v in ins)))
            count = len(self.outputs)
            return results[:count], results[count:]

        results, self.pull, rest = jax.vjp(function, *(env[v] for v in self.inputs), has_aux=True)
        env.update(zip([*live, *still], [*results[: len(live)], *rest], strict=True))
        self.types = [jax.typeof(x) for x in results]

    def back(self, cotangents: dict[Any, Any]) -> None:
        """Take the cotangents of the results, and add those of the inputs."""
        if not any(v in cotangents for v in self.outputs):
            return
        seeds = [
            cotangents.pop(v) if v in cotangents else jnp.zeros(aval.shape, aval.dtype)
            for v, aval in zip(self.outputs, self.types, strict=True)
        ]
        for v, x in zip(self.inputs, self.pull(seeds), strict=True):
            _add(cotangents, v, x)


class _Scan:
    """A scan that has been run forwards, with the values that its derivative reads."""

    def __init__(self, loops: Loops, stage: Stage, env: dict[Any, Any], active: set[Any]) -> None:
        eqn = stage.eqn
        self.stage, self.first = stage, _first(stage)
        self.consts_end = scan_sizes(eqn)[0]
        # By the position among the inputs of the scan:
        self.stacks = {self.first + s.at: s for s in stage.stacks}
        self.inputs = read(
            env,
            [
                loops.jaxpr.invars[self.stacks[at].leaf] if at in self.stacks else v
                for at, v in enumerate(eqn.invars)
            ],
        )
        self.live = [at in self.stacks or is_in(v, active) for at, v in enumerate(eqn.invars)]
        self.live_out = [v in active for v in eqn.outvars]
        # A carry is active at every turn if it is at one.
        carries = slice(self.consts_end, self.first)
        self.live[carries] = self.live_out[: self.first - self.consts_end]
        self.order = {name: eqn.params[name] for name in ("reverse", "unroll")}
        run = jaxpr_as_fun(eqn.params["jaxpr"])
        consts, carry, xs = self._split(self.inputs)

        def body(carry: list[Any], of_turn: tuple[Array, list[Any]]) -> Any:
            turn, xs = of_turn
            operands = [
                self._cast(at, _in_turn(turn, x) if at in self.stacks else x)
                for at, x in enumerate([*consts, *carry, *xs])
            ]

            def function(*live: Any) -> tuple[list[Any], list[Any]]:
                rest = iter(live)
                inputs = [
                    next(rest) if is_live else x
                    for x, is_live in zip(operands, self.live, strict=True)
                ]
                return _parted(run(*inputs), self.live_out)

            results, pull, others = jax.vjp(
                function, *_parted(operands, self.live)[0], has_aux=True
            )
            residuals, self.structure = jax.tree.flatten(pull)
            self.sources = [self._source(x, operands) for x in residuals]
            saved = [x for x, source in zip(residuals, self.sources, strict=True) if source is None]
            either = iter(results), iter(others)
            out = [next(either[not is_live]) for is_live in self.live_out]
            return out[: len(carry)], (out[len(carry) :], saved)

        each = jnp.arange(stage.length), xs
        last, (ys, self.saved) = jax.lax.scan(body, carry, each, length=stage.length, **self.order)
        env.update(zip(eqn.outvars, [*last, *ys], strict=True))

    def _split(self, entries: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """A list, with an entry for each input, cut into constants, carries and scanned inputs."""
        a, b = self.consts_end, self.first
        return list(entries[:a]), list(entries[a:b]), list(entries[b:])

    def _cast(self, at: int, x: Any) -> Any:
        return cast(x, self.stacks[at].dtype) if at in self.stacks else x

    def _source(self, x: Any, operands: Sequence[Any]) -> Callable[[Sequence[Any]], Any] | None:
        """The function that reads `x` from a turn's inputs in the derivative; None if `x` is saved.

        To save an array that every turn can read again would store parameters a second time.
        """
        if not is_tracer(x):
            return lambda inputs: x
        for at, operand in enumerate(operands):
            if x is operand and not self.consts_end <= at < self.first:
                return lambda inputs: inputs[at]
        return None

    def back(self, cotangents: dict[Any, Any], turn: Turn, carried: Any) -> Any:
        """Pull the cotangents back through all layers, and return the last value of `carried`."""
        invars = self.stage.eqn.invars
        seeds = [
            cotangents.pop(v) if v in cotangents else jnp.zeros(v.aval.shape, v.aval.dtype)
            for v in _parted(self.stage.eqn.outvars, self.live_out)[0]
        ]
        consts, carries, xs = (
            [at for at in part if self.live[at]] for part in self._split(range(len(self.inputs)))
        )
        others = self._others()

        def body(carry: Any, of_turn: Any) -> Any:
            const_cotangents, carry_cotangents, carried = carry
            layer, saved, y_cotangents, scanned = of_turn
            inputs = self._inputs_of_turn(layer, carried[0], scanned)
            pulled = iter(self._pull(inputs, saved)([*carry_cotangents, *y_cotangents]))
            const_cotangents = [a + next(pulled) for a in const_cotangents]
            carry_cotangents = [next(pulled) for _ in carry_cotangents]
            x_cotangents = dict(zip(xs, pulled, strict=True))
            grads = [cast(x_cotangents.pop(at), self.inputs[at].dtype)[None] for at in self.stacks]
            carried = turn(layer, carried, grads)
            return (const_cotangents, carry_cotangents, carried), list(x_cotangents.values())

        zeros = [jnp.zeros_like(self.inputs[at]) for at in consts]
        count = len(carries)
        turns = jnp.arange(self.stage.length), self.saved, seeds[count:]
        (const_cotangents, carry_cotangents, carried), x_cotangents = jax.lax.scan(
            body,
            (zeros, seeds[:count], carried),
            (*turns, [self.inputs[at] for at in others]),
            length=self.stage.length,
            **self.order | {"reverse": not self.order["reverse"]},
        )
        places = [*consts, *carries, *(at for at in xs if at not in self.stacks)]
        totals = [*const_cotangents, *carry_cotangents, *x_cotangents]
        for at, x in zip(places, totals, strict=True):
            if not isinstance(invars[at], Literal):
                _add(cotangents, invars[at], x)
        return carried

    def _others(self) -> list[int]:
        """The positions of scanned inputs that are not stacked parameters."""
        return [at for at in range(self.first, len(self.inputs)) if at not in self.stacks]

    def _inputs_of_turn(self, layer: Array, stacks: list[Any], scanned: list[Any]) -> list[Any]:
        """The inputs of a turn that residuals are read from: any but carries."""
        inputs = list(self.inputs)
        for at, x in zip(self._others(), scanned, strict=True):
            inputs[at] = x
        for at, stack in zip(self.stacks, stacks, strict=True):
            parameter = jax.lax.dynamic_index_in_dim(stack, layer, 0, keepdims=False)
            inputs[at] = self._cast(at, parameter)
        return inputs

    def _pull(self, inputs: list[Any], saved: list[Any]) -> Any:
        """The function that pulls cotangents back through a turn."""
        rest = iter(saved)
        residuals = [next(rest) if source is None else source(inputs) for source in self.sources]
        return jax.tree.unflatten(self.structure, residuals)


def _in_turn(turn: Array, x: Array) -> Array:
    """A layer's parameter, delayed on a TPU until the turn of the loop that reads it.

    Otherwise its compiler rounds whole stacks for the products of matrices before the loop, and
    stores them::

        %convert.2 = bf16[24,1024,4096] convert(%p__a__.1)
    """
    return delay(x, after=turn.astype(jnp.float32), on="tpu")


def _parted(items: Iterable[Any], marks: Sequence[bool]) -> tuple[list[Any], list[Any]]:
    """The items that are marked, and the others."""
    pairs = list(zip(items, marks, strict=True))
    return [x for x, marked in pairs if marked], [x for x, marked in pairs if not marked]
