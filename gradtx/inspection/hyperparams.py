"""Hyperparameters: reading their current values, and replacing them."""

import fnmatch
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax

from gradtx import checks
from gradtx.composition.scalings import Scaling
from gradtx.core.pair import GradientTransformation, transformations_in, with_extra_args_support
from gradtx.core.traits import Links
from gradtx.declarations.declaration import Declaration, Declared, DeclaredData
from gradtx.declarations.host_values import as_schedule
from gradtx.declarations.scheduled import ScheduledState, count_of
from gradtx.inspection.dotted_paths import paths_ending_in
from gradtx.leaves.paths import with_paths
from gradtx.types import (
    INNER,
    Schedule,
    State,
    factor_fields,
    fields_of,
    masked_fields,
    states_of_arguments,
)

_D = TypeVar("_D", bound=Declared)

# The names that a state may have for its count of steps, or of windows, and the first count.
_CLOCKS = {"count": 0, "gradient_step": 0, "step_count": 1}


def _child_state(name: str, state: State) -> State:
    """The state of the child `name` within that of its parent; the whole state if not known.

    In a chain its position counts links of other libraries too, which are not among the children.
    """
    if name.isdecimal() and type(state) is tuple and int(name) < len(state):
        return state[int(name)]
    if name in (fields := states_of_arguments(state.__class__)):
        return getattr(state, fields[name])
    for field in fields_of(type(state), INNER):  # a wrapper's state; under a label for each group
        name, state = name.partition(".")[2], getattr(state, field)
        break
    labelled = state.items() if isinstance(state, dict) else ()
    for label, of_label in labelled:
        if str(label) == name:
            masked = masked_fields(of_label.__class__) if hasattr(of_label, "_fields") else ()
            return next((getattr(of_label, field) for field in masked), of_label)
    return state


def _steps(state: State) -> Any:
    """The count by which a transformation's own schedules go: its own, else the first below."""
    for name, start in _CLOCKS.items():
        if name in getattr(state, "_fields", ()):
            return getattr(state, name) - start
    for path, leaf in with_paths(state)[0]:
        if path and getattr(path[-1], "name", None) == "count":
            return leaf
    parts = jax.tree.leaves(state, is_leaf=lambda x: count_of(x) is not None)
    return next((count for count in map(count_of, parts) if count is not None), 0)


def hyperparams(tx: GradientTransformation, state: State | None = None) -> dict[str, Any]:
    """The hyperparameters used at the next step, by path.

    Args:
        tx: the transformation.
        state: its state, which holds the step at which to evaluate schedules; None for the start.

    Returns:
        ``{path: value}``. The path of an argument of `tx` itself is its name; below it, the
        positions or names of the transformations that lead to it: ``"1.learning_rate"``, and the
        name of an estimator: ``"gradients.scale"``. A name that occurs once finds its value without
        the path, at any depth, as in :func:`replace`; with several groups say which:
        ``"slow.learning_rate"``.

    A learning rate is the current one: in a chain with :func:`reduce_on_plateau`, the reduced rate.
    :func:`replace` sets the rate before the reduction.

    Hyperparameters that :func:`inject_hyperparams` keeps in the state are there too, under their
    names; with another library's form of it, the values of the last step.

    >>> import gradtx
    >>> tx = gradtx.chain(gradtx.clip(1.0), gradtx.sgd(gradtx.linear_schedule(1.0, 0.0, 10)))
    >>> {k: float(v) for k, v in hyperparams(tx).items() if v is not None}
    {'0.max_delta': 1.0, '1.learning_rate': 1.0}
    >>> float(hyperparams(tx)["learning_rate"])
    1.0
    """
    return _ByPath(_by_path(with_extra_args_support(tx), state))


@jax.tree_util.register_pytree_with_keys_class
class _ByPath(dict[str, Any]):
    """Values by path; a bare name finds the value too if only one path ends in it."""

    def tree_flatten_with_keys(self) -> tuple[Any, tuple[str, ...]]:
        return tuple((jax.tree_util.DictKey(k), v) for k, v in self.items()), tuple(self)

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], values: Any) -> "_ByPath":
        return cls(zip(names, values, strict=True))

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (
            isinstance(name, str) and len(paths_ending_in(name, self)) == 1
        )

    def __missing__(self, name: str) -> Any:
        full = paths_ending_in(name, self)
        if len(full) > 1:
            raise KeyError(_ambiguity("hyperparams", name, full))
        if not full:
            raise KeyError(
                f"hyperparams: {name!r} does not exist; there are {', '.join(self) or 'none'}"
            )
        return self[full[0]]


def _ambiguity(where: str, name: str, paths: list[str]) -> str:
    return f"{where}: {name!r} occurs at {', '.join(paths)}: give the path"


def _in_the_state(tx: GradientTransformation, state: State | None) -> dict[str, Any]:
    """The values that `inject_hyperparams` keeps, or would keep at the start, for the next step."""
    values = getattr(state, "hyperparams", None)
    values = dict(values) if isinstance(values, dict) else {}
    injected = {} if tx.declaration is None else tx.declaration.arguments.get("arguments")
    if not isinstance(injected, dict):
        return values
    for name, now in getattr(state, "hyperparams_states", {}).items():
        schedule = as_schedule(injected[name])
        values[name] = schedule(now) if hasattr(schedule, "init") else schedule(now.count)
    return values


def _is_data(value: Any) -> bool:
    """Whether an argument has arguments of its own, and is no schedule: an estimator."""
    return isinstance(value, DeclaredData) and not callable(value)


def _children(tx: Any) -> tuple[tuple[str, GradientTransformation], ...]:
    """The transformations among the arguments; data and schedules have none."""
    return getattr(tx, "children", ())


def _by_path(tx: Any, state: State | None) -> dict[str, Any]:
    values = _in_the_state(tx, state)
    if tx.declaration is None:
        return values
    hints = tx.declaration.builder.hints
    for name, value in tx.declaration.arguments.items():
        is_schedule = hints.get(name) is Schedule
        if is_schedule or checks.hyperparameter_range(hints.get(name)) is not None:
            values[name] = value(_steps(state)) if callable(value) else value
        elif _is_data(value):
            values |= {f"{name}.{key}": v for key, v in _by_path(value, None).items()}
    links: list[tuple[str, GradientTransformation, State | None]] = []
    if isinstance(state, ScheduledState) and tx.scheduled:
        state = state.inner_state  # the count beside it is that of its own schedules
    for name, child in _children(tx):
        part = None if state is None else _child_state(name, state)
        links.append((name, child, part))
        values |= {f"{name}.{key}": v for key, v in _by_path(child, part).items()}
    return values | _reduced(tx, links, values)


def _reduced(
    tx: GradientTransformation,
    links: list[tuple[str, GradientTransformation, State | None]],
    values: dict[str, Any],
) -> dict[str, Any]:
    """The learning rates that a link of a chain multiplies: those of the links before it."""
    reduced: dict[str, Any] = {}
    for i, (_, _, state) in enumerate(links):
        factors = [getattr(state, field) for field in _factors(state)]
        if not factors or tx.facet(Links) is None:
            continue
        # A rate right after it makes no difference to the product.
        after = itertools.takewhile(lambda link: _is_rate(link[1]), links[i + 1 :])
        names = [name for name, *_ in (*links[:i], *after)]
        for path, value in {**values, **reduced}.items():
            multiplied = any(path.startswith(f"{name}.") for name in names)
            if multiplied and path.endswith("learning_rate") and value is not None:
                reduced[path] = math.prod(factors, start=value)
    return reduced


def _factors(state: Any) -> tuple[str, ...]:
    return factor_fields(state.__class__) if hasattr(state, "_fields") else ()


def _is_rate(tx: GradientTransformation) -> bool:
    scaling = tx.facet(Scaling)
    return scaling is not None and scaling.by == "step"


def _argument_paths(tx: Any, prefix: str = "") -> Iterator[str]:
    if tx.declaration is None:
        return
    for name, parameter in tx.declaration.builder.signature.parameters.items():
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            yield prefix + name
    data = [(name, value) for name, value in tx.declaration.arguments.items() if _is_data(value)]
    for name, child in (*data, *_children(tx)):
        yield from _argument_paths(child, f"{prefix}{name}.")


def replace(tx: _D, paths: dict[str, Any] | None = None, /, **arguments: Any) -> _D:
    """A transformation like `tx` with other arguments, which continues from the old state.

    For a value that follows from the number of steps, prefer a schedule as the argument.

    Args:
        tx: the transformation, or a schedule that gradtx made.
        paths: new values by path, as :func:`hyperparams` writes it: ``{"1.learning_rate": 0.1}``.
            A path with ``*`` for any characters means all that match: ``{"*.learning_rate": 0.1}``.
        arguments: new values by name, for an argument of `tx` itself or one that occurs once below.

    Returns:
        The new transformation. Nothing is recompiled if an array replaces an array.

    Raises:
        ValueError: there is no argument of that name, or it occurs more than once (the error lists
            the paths), or the value is out of range.
        TypeError: `tx` is another function, such as a schedule of your own.

    >>> import gradtx
    >>> tx = gradtx.chain(gradtx.clip(1.0), gradtx.sgd(0.1))
    >>> replace(tx, learning_rate=0.5)
    chain(clip(max_delta=1.0), sgd(learning_rate=0.5))
    """
    if not hasattr(tx, "declaration"):
        raise TypeError(
            f"replace: {tx!r} does not know its arguments; give a transformation, or a schedule "
            "whose builder gradtx declares (gradtx.schedule declares one of your own)"
        )
    known = list(_argument_paths(tx))
    wanted: dict[str, Any] = {}
    for name, value in {**(paths or {}), **arguments}.items():
        if name in known:
            wanted[name] = value
            continue
        full = paths_ending_in(name, known) or _matching(name, known)
        if len(full) > 1 and "*" not in name:
            bare = name.rpartition(".")[2]
            raise ValueError(
                f"{_ambiguity('replace', name, full)}, or {{'*.{bare}': ...}} for all of that name"
            )
        if not full:
            raise ValueError(
                f"replace: {name!r} does not exist; the arguments are {', '.join(known)}"
                f"{_injected(name, tx)}"
            )
        wanted |= dict.fromkeys(full, value)
    new: _D = _replaced(tx, wanted)
    return new


def _injected(name: str, tx: Any) -> str:
    """What the error about an argument adds, if a state of `inject_hyperparams` has its value."""
    parts = (part for part in (tx, *getattr(tx, "within", ())) if part.declaration is not None)
    given = (part.declaration.arguments.get("arguments") for part in parts)
    if not any(isinstance(arguments, dict) and name in arguments for arguments in given):
        return ""
    return f"; the state has its value, state.hyperparams[{name!r}], to be set there"


def _matching(pattern: str, known: list[str]) -> list[str]:
    """The paths that match a pattern; ``*.`` may stand for nothing, as without groups."""
    return [path for path in known if fnmatch.filter((path, f".{path}"), pattern)]


def _replaced(tx: Any, wanted: dict[str, Any]) -> Any:
    if not wanted:
        return tx
    declaration: Declaration = tx.declaration
    builder, arguments = declaration.builder, dict(declaration.arguments)
    below = {path: value for path, value in wanted.items() if "." in path}

    def with_below(child: Any, at: str) -> Any:
        return _replaced(
            child,
            {p.removeprefix(f"{at}."): v for p, v in below.items() if p.startswith(f"{at}.")},
        )

    for name, value in arguments.items():
        kind = builder.signature.parameters[name].kind
        if _is_data(value):
            arguments[name] = with_below(value, name)
        else:
            at = "" if kind is kind.VAR_POSITIONAL else name
            arguments[name] = map_transformations(value, at, with_below)
    arguments |= {path: value for path, value in wanted.items() if "." not in path}
    return with_arguments(tx, arguments)


def with_arguments(tx: Any, arguments: Mapping[str, Any]) -> Any:
    """The object that the builder of `tx` makes of other arguments, checked as in a call."""
    return tx.declaration.builder.made(arguments)


def map_transformations(value: Any, name: str, function: Callable[[Any, str], Any]) -> Any:
    """`value` with each transformation replaced by `function` of it and of its path."""
    by_path = dict(transformations_in(value, name))
    if not by_path:
        return value
    results = iter([function(child, at) for at, child in by_path.items()])

    def mapped(x: Any) -> Any:
        if isinstance(x, GradientTransformation):
            return next(results)
        if isinstance(x, dict):  # in its own order, where a pytree's is that of the keys
            return {key: mapped(item) for key, item in x.items()}
        return type(x)(map(mapped, x)) if type(x) in (list, tuple) else x

    return mapped(value)
