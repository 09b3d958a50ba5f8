"""Checks of a whole transformation: each contract tried on it, its scope, and its state."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from gradtx.core.pair import GradientTransformation, with_extra_args_support
from gradtx.core.traits import Scope
from gradtx.inspection.description import describe
from gradtx.sharding.sharding import state_sharding
from gradtx.testing.abilities import ABILITIES
from gradtx.testing.contracts import CONTRACTS, Broken, Contract, DoesNotApply
from gradtx.testing.report import ContractResult, Outcome, RuleReport
from gradtx.testing.trial import Trial, some_params
from gradtx.types import Params, Updates

# Without these no step can be taken, and nothing else can be tried.
_FIRST = ("init", "updates keep their form")

_SCOPES = {
    Scope.ENTRY: "entries",
    Scope.ROW: "rows",
    Scope.LEAF: "whole leaves",
    Scope.MATRIX: "matrices",
    Scope.TUPLE: "leaves that belong together",
    Scope.TREE: "the tree",
}
_MESH = AbstractMesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)


def check_rule(
    tx: Any,
    params: Params | None = None,
    *,
    gradients: Updates | None = None,
    contracts: Iterable[str] | None = None,
) -> RuleReport:
    """Try on a transformation the contracts that gradtx's own keep.

    They say, among other things, that a step keeps the types of the state, that compiled steps are
    those outside of ``jit``, that it runs under ``vmap``, in bfloat16, float16 and float64, and
    that it can be saved and resumed. Each is tried on a few steps of small parameters, which takes
    some seconds. It needs JAX and NumPy alone.

    Args:
        tx: any transformation: one with a rule of your own, a chain, a pair written by hand or one
            of another library.
        params: small parameters to try it on: a vector and a matrix unless given. Give them for a
            rule that looks for leaves by their paths, or wants shapes of its own.
        gradients: the gradients of every step; those of a quadratic loss unless given. Give them
            for a transformation of gradients of single examples.
        contracts: the names of those to try, as the report prints them, also of the abilities in
            its last lines; all unless given.

    Returns:
        A `RuleReport`: the contracts that hold, fail, with the reason, or do not apply; the scope;
        the bytes of the state; slots that would stay whole where parameters are divided; and
        whether it takes rows, complex parameters, strict types and huge gradients. Nothing is
        raised for a failure: see :meth:`RuleReport.raise_for_failures`.

    Raises:
        TypeError: `tx` is not a pair.
        ValueError: `contracts` has a name that neither a contract nor an ability has.

    >>> import gradtx
    >>> report = check_rule(gradtx.sgd(0.1, momentum=0.9), contracts=["init", "vmap"])
    >>> report.ok, report.scope, report.state_bytes
    (True, 'entries', 40)
    """
    chosen = _chosen(contracts)
    foreign, tx = tx, with_extra_args_support(tx)
    params = some_params() if params is None else params
    trial = Trial(tx, params, gradients)
    results: list[ContractResult] = []
    stop = ""
    for contract in (each for each in CONTRACTS if each.name in chosen):
        results.append(_result(contract, trial, stop))
        if results[-1].outcome == "fails" and contract.name in _FIRST:
            stop = f"not tried, since {contract.name!r} fails"
    description, _ = _tried(lambda: describe(tx, params))
    undivided, communicates = (None, stop) if stop else _shards(tx, params)
    return RuleReport(
        transformation=_name(foreign),
        results=tuple(results),
        scope=_scope(tx),
        abilities={
            name: stop or _tried(functools.partial(check, trial))[1]
            for name, check in ABILITIES.items()
            if name in chosen
        },
        parameter_bytes=sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(params)),
        state_bytes=None if description is None else description.state_bytes,
        undivided=undivided,
        communicates=communicates,
    )


def check_gradient_transformation(
    init: Any,
    update: Callable[..., Any] | None = None,
    params: Params | None = None,
    *,
    gradients: Updates | None = None,
    contracts: Iterable[str] | None = None,
) -> RuleReport:
    """:func:`check_rule` for a pair of functions that is written by hand, as for Optax.

    Args:
        init: ``params -> state``; or the pair, and no `update`.
        update: ``(updates, state, params=None) -> (updates, state)``, perhaps with further
            ``**extra_args``.
        params: this and the others as in :func:`check_rule`.
        gradients: the gradients of every step.
        contracts: the names of those to try.

    Returns:
        A `RuleReport`. Contracts for rules of ``@transformation`` do not apply.

    Raises:
        TypeError: they are not two functions, or not a pair.

    >>> import jax
    >>> report = check_gradient_transformation(
    ...     init=lambda params: (),
    ...     update=lambda updates, state, params=None: (jax.tree.map(lambda g: -g, updates), state),
    ...     contracts=["None leaves", "zero gradients"],
    ... )
    >>> report.ok
    True
    """
    pair = init if update is None else (init, update)
    return check_rule(pair, params, gradients=gradients, contracts=contracts)


def _chosen(contracts: Iterable[str] | None) -> set[str]:
    every = [*(each.name for each in CONTRACTS), *ABILITIES]
    chosen = set(every if contracts is None else contracts)
    if unknown := sorted(chosen - {*every}):
        raise ValueError(
            f"check_rule: no contract is called {unknown[0]!r}; there are {', '.join(every)}"
        )
    return chosen


def _tried(function: Callable[[], Any]) -> tuple[Any, str]:
    """The result of a function, or the reason why there is none."""
    try:
        return function(), ""
    except DoesNotApply:
        raise
    except Broken as broken:
        return None, str(broken)
    except Exception as error:  # a transformation of someone else's may raise anything
        first = next(iter(str(error).splitlines()), "")
        return None, f"{type(error).__name__}: {first}"


def _result(contract: Contract, trial: Trial, stop: str) -> ContractResult:
    outcome: Outcome
    if stop:
        outcome, reason = "does not apply", stop
    else:
        try:
            reason = _tried(lambda: contract.check(trial))[1]
            outcome = "fails" if reason else "holds"
        except DoesNotApply as absence:
            outcome, reason = "does not apply", str(absence)
    return ContractResult(contract.name, contract.promise, outcome, reason)


def _name(tx: Any) -> str:
    """A declared transformation as it prints; a pair by the name of its update."""
    update: Any = tx[1] if isinstance(tx, tuple) else getattr(tx, "update", None)
    if getattr(tx, "declaration", None) is not None or not hasattr(update, "__qualname__"):
        return repr(tx)
    return f"a pair whose update is {update.__module__}.{update.__qualname__}"


def _scope(tx: GradientTransformation) -> str | None:
    """The widest scope of the rules in a transformation."""
    rules = [each.traits.rule for each in (tx, *tx.within) if each.traits.rule is not None]
    if not rules:
        return None
    widest = max((rule.scope for rule in rules), key=[*_SCOPES].index)
    of_tree = any(rule.of_tree is not None for rule in rules) and widest is not Scope.TREE
    return _SCOPES[widest] + ", with numbers of the tree" * of_tree


def _shards(tx: GradientTransformation, params: Params) -> tuple[tuple[str, ...] | None, str]:
    """The slots that are whole on every device of a small mesh, and the devices' messages."""
    like = jax.eval_shape(lambda: params)
    places = jax.tree.map(_divided, like)
    sharding, reason = _tried(lambda: state_sharding(tx, like, places))
    if sharding is None:
        return None, f"its state cannot be divided: {reason}"
    # A slot with the sharding of its parameter is whole only where that is.
    undivided = [
        leaf.path
        for leaf in sharding.leaves
        if not any(leaf.spec) and max(leaf.shape, default=1) > 1 and leaf.note != "as the parameter"
    ]
    sends = "matrices are brought together, each whole on one device" * bool(sharding.owned)
    return tuple(undivided), sends


def _divided(x: Any) -> NamedSharding:
    """Each axis of the mesh over the next dimension that it divides."""
    axes = iter(_MESH.axis_names)
    dims = [next(axes, None) if size and size % 2 == 0 else None for size in x.shape]
    return NamedSharding(_MESH, PartitionSpec(*dims))
