"""The checks of every scope's arguments, when the pair is built.

All six scopes take the state class first, then the initial slots, then the rule; the arguments of a
single scope follow.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

from gradtx.checks import check_function
from gradtx.core.pair import GradientTransformation

P = ParamSpec("P")

_RULES = ("rule", "on_entries", "on_others")
# Functions of so many arguments; all but `slots`, which may be None for zeros, may be left out.
_FUNCTIONS = {"slots": 1, "slots_of_others": 1, "of_tree": 1, "advance": 2, "on_leaf": 3}
_OPTIONAL = ("on_entries", "on_others", *_FUNCTIONS)


def scope(lift: Callable[P, GradientTransformation]) -> Callable[P, GradientTransformation]:
    """A function that lifts a rule, with its arguments checked by their names.

    >>> import gradtx
    >>> @scope
    ... def cells(state, slots, rule, *, start=None): ...
    >>> cells(gradtx.EmptyState, lambda g, s, t: (g, {}))
    Traceback (most recent call last):
    TypeError: cells: missing a required argument: 'rule'; it takes (state, slots, rule, *, start)
    """
    name = lift.__name__

    @functools.cache
    def signature() -> inspect.Signature:
        return inspect.signature(lift)

    def takes() -> str:
        bare = (p.replace(annotation=p.empty) for p in signature().parameters.values())
        return str(inspect.Signature([p.replace(default=p.empty) for p in bare]))

    @functools.wraps(lift)
    def checked(*args: P.args, **kwargs: P.kwargs) -> GradientTransformation:
        try:
            for argument, value in signature().bind(*args, **kwargs).arguments.items():
                _check(name, argument, value)
        except TypeError as error:
            text = str(error) if str(error).startswith(name) else f"{name}: {error}"
            raise TypeError(f"{text}; it takes {takes()}") from None
        return lift(*args, **kwargs)

    return checked


def _check(where: str, argument: str, value: Any) -> None:
    if value is None and argument in _OPTIONAL:
        return
    if argument in _RULES:
        _check_rule(where, argument, value)
    elif argument in _FUNCTIONS:
        check_function(where, argument, value, _FUNCTIONS[argument])
    elif argument == "state" and not (isinstance(value, type) and hasattr(value, "_fields")):
        raise TypeError(f"{where}: state must be a NamedTuple class, not {value!r:.80}")
    elif argument == "start" and not (callable(value) or isinstance(value, Mapping | None)):
        raise TypeError(
            f"{where}: start must be a dict, or a function from the parameters to one, not "
            f"{value!r:.80}"
        )
    elif argument in ("beside", "factors") and not isinstance(value, Mapping | None):
        raise TypeError(f"{where}: {argument} must be a dict by name, not {value!r:.80}")
    elif argument == "rows" and not isinstance(value, bool):
        raise TypeError(f"{where}: rows must be True or False, not {value!r:.80}")


def _check_rule(where: str, argument: str, value: Any) -> None:
    """Raise TypeError unless a function takes a gradient, slots and a step, or parameters too."""
    kind = f"{where}: {argument} must be a function (g, s, t) or (g, s, t, p)"
    if not callable(value):
        raise TypeError(f"{kind}, not {value!r:.80}")
    parameters = inspect.signature(value).parameters.values()
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = sum(p.default is p.empty for p in places)
    many = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if needed > 4 or (len(places) < 3 and not many):
        raise TypeError(f"{kind}; {value!r:.80} takes {len(places)}")
