"""Programs as JAX traces them (jaxprs): one interpreter, and functions that inspect them.

The interpreter computes equation after equation. Whoever uses it says what the results of some
equations are instead, and may run a called program in place of the call.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

Compute = Callable[[Any, list[Any]], Sequence[Any] | None]
"""``(equation, inputs) -> results``, or None for the results that the equation itself computes."""


def interpret(program: Any, inputs: Sequence[Any], compute: Compute) -> list[Any]:
    """The results of a program (a `ClosedJaxpr`) whose equations are computed by `compute`.

    >>> import jax
    >>> program = jax.make_jaxpr(lambda x: 2.0 * x + 1.0)(3.0)
    >>> def without_sums(eqn, inputs):
    ...     return inputs[:1] if eqn.primitive.name == "add" else None
    >>> float(interpret(program, [3.0], without_sums)[0])
    6.0
    """
    jaxpr = program.jaxpr

    def results(eqn: Any, inputs: list[Any]) -> Sequence[Any]:
        outputs = compute(eqn, inputs)
        return run_equation(jaxpr, eqn, inputs) if outputs is None else outputs

    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*program.consts, *inputs], strict=True))
    advance(env, jaxpr.eqns, results)
    return read(env, jaxpr.outvars)


def advance(
    env: dict[Any, Any], eqns: Iterable[Any], compute: Callable[[Any, list[Any]], Sequence[Any]]
) -> None:
    """Add the results of equations to an environment, the values of variables."""
    for eqn in eqns:
        env.update(zip(eqn.outvars, compute(eqn, read(env, eqn.invars)), strict=True))


def read(env: dict[Any, Any], operands: Iterable[Any]) -> list[Any]:
    """The values of variables and literals in an environment."""
    return [v.val if isinstance(v, Literal) else env[v] for v in operands]


def run_equation(jaxpr: Any, eqn: Any, inputs: Sequence[Any]) -> list[Any]:
    """The results of one equation of a jaxpr, whatever its primitive is."""
    values = [x for v, x in zip(eqn.invars, inputs, strict=True) if not isinstance(v, Literal)]
    alone = jaxpr.replace(
        constvars=[],
        invars=variables(eqn.invars),
        outvars=eqn.outvars,
        eqns=[eqn],
        effects=eqn.effects,
    )
    return list(jaxpr_as_fun(ClosedJaxpr(alone, []))(*values))


def variables(operands: Iterable[Any]) -> list[Any]:
    """The operands that are not literals."""
    return [v for v in operands if not isinstance(v, Literal)]


def is_in(v: Any, known: Collection[Any]) -> bool:
    """Whether an operand is one of some variables; not every literal can be looked up there."""
    return not isinstance(v, Literal) and v in known


def needed(
    jaxpr: Any, wanted: Iterable[Any], known: Iterable[Any] = (), effects: bool = False
) -> list[Any]:
    """The equations that the wanted variables depend on, if some variables are known, in order.

    Args:
        jaxpr: the program.
        wanted: the variables.
        known: variables whose values are known.
        effects: whether equations with effects are needed too.
    """
    left, there, eqns = set(wanted), set(known), []
    for eqn in reversed(jaxpr.eqns):
        is_needed = any(v in left and v not in there for v in eqn.outvars)
        if is_needed or (effects and eqn.effects):
            eqns.append(eqn)
            left.update(variables(eqn.invars))
    return eqns[::-1]


class Uses(NamedTuple):
    """Where the variables of a program are computed and read.

    Attributes:
        computed: the index of the equation that computes each variable.
        read: the equations that read each variable, by their indices, and the index of the
            variable among the inputs of each.
    """

    computed: dict[Any, int]
    read: dict[Any, list[tuple[int, int]]]


def uses(eqns: Iterable[Any]) -> Uses:
    """Where the variables of some equations are computed and read."""
    computed: dict[Any, int] = {}
    read: dict[Any, list[tuple[int, int]]] = {}
    for i, eqn in enumerate(eqns):
        computed |= dict.fromkeys(eqn.outvars, i)
        for at, v in enumerate(eqn.invars):
            if not isinstance(v, Literal):
                read.setdefault(v, []).append((i, at))
    return Uses(computed, read)


class Program:
    """A traced program that JAX takes for data, as a parameter of an equation.

    Since 0.12 it refuses an equation that contains a program with operations that JAX lowers in two
    steps, such as ``searchsorted``.
    """

    def __init__(self, closed: ClosedJaxpr) -> None:
        self.closed = closed

    @classmethod
    def of(cls, closed: ClosedJaxpr) -> "Program":
        """A program whose constants are its first arguments."""
        jaxpr: Any = closed.jaxpr
        invars = [*jaxpr.constvars, *jaxpr.invars]
        return cls(ClosedJaxpr(jaxpr.replace(constvars=[], invars=invars), []))


def _programs(eqn: Any) -> Iterator[Any]:
    """The programs that an equation runs, in whichever form they stand among its parameters."""
    for value in eqn.params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            if isinstance(part, Program):
                yield part.closed
            elif isinstance(part, ClosedJaxpr | Jaxpr):
                yield part


def called(eqn: Any) -> Any:
    """The program (a `ClosedJaxpr`) of an equation that only calls one."""
    program = next(_programs(eqn))
    return program if isinstance(program, ClosedJaxpr) else ClosedJaxpr(program, ())


def inner_jaxprs(eqn: Any) -> Iterator[Any]:
    """The jaxprs that an equation runs, such as the branches of a conditional."""
    for program in _programs(eqn):
        yield program.jaxpr if isinstance(program, ClosedJaxpr) else program


def equations(
    jaxpr: Any, enters: Callable[[Any], bool] = lambda eqn: True, turns: int = 1
) -> Iterator[tuple[Any, int]]:
    """The equations of a program and of those that it runs, and how often scans run each of them.

    A loop of unknown length counts once, and all branches of a conditional count.

    Args:
        jaxpr: the program.
        enters: whether to look into the programs of an equation.
        turns: how often the program is run.
    """
    for eqn in jaxpr.eqns:
        yield eqn, turns
        length = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        for inner in inner_jaxprs(eqn) if enters(eqn) else ():
            yield from equations(inner, enters, turns * length)


def runs(jaxpr: Any, primitive: Any, enters: Callable[[Any], bool] = lambda eqn: True) -> bool:
    """Whether an equation has a primitive, of a program or of those that `equations` enters."""
    return any(eqn.primitive is primitive for eqn, _ in equations(jaxpr, enters))


def constants_in(eqn: Any) -> Iterator[Any]:
    """The arrays that stand in the programs which an equation runs."""
    for program in _programs(eqn):
        if isinstance(program, ClosedJaxpr):
            yield from program.consts


def scan_sizes(eqn: Any) -> tuple[int, int]:
    """The number of constants and of carries of a scan.

    JAX versions name these parameters differently; in all of them stacked arrays have one dimension
    more outside the body than inside it, and the carries come first among the results.
    """
    body = eqn.params["jaxpr"]

    def stacked(variables: Sequence[Any], body_types: Sequence[Any]) -> int:
        pairs = zip(variables, body_types, strict=True)
        return sum(len(v.aval.shape) > len(aval.shape) for v, aval in pairs)

    carries = len(eqn.outvars) - stacked(eqn.outvars, body.out_avals)
    return len(eqn.invars) - stacked(eqn.invars, body.in_avals) - carries, carries
