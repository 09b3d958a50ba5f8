"""Losses among the extra arguments, for transformations that see other trees than the caller.

A line search calls the loss with the parameters that it sees: some leaves, or leaves in another
form. The loss is a function of all parameters in the form of the caller.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from gradtx.leaves.packed import holds_packed, unpack
from gradtx.leaves.paths import map_present, merge
from gradtx.leaves.whole import whole_leaves
from gradtx.numerics import as_arrays
from gradtx.types import Params, PyTree

LOSSES = ("value_fn", "obj_fn")
"""``params -> value``, with further arguments."""

GRADIENTS = ("grad_fn",)
"""``params -> gradients``, with further arguments."""


def seen_as(
    extra_args: Mapping[str, Any],
    outward: Callable[[PyTree], PyTree],
    inward: Callable[[PyTree], PyTree],
) -> dict[str, Any]:
    """Extra arguments for a transformation that sees the parameters in another form.

    Args:
        extra_args: those for the form that the caller sees.
        outward: parameters in the transformation's form -> in the caller's.
        inward: gradients in the caller's form -> in the transformation's.

    >>> extra = seen_as({"value_fn": lambda p: p["a"]}, lambda x: {"a": x}, lambda g: g["a"])
    >>> extra["value_fn"](3.0)
    3.0
    """
    new = dict(extra_args)
    for name in (*LOSSES, *GRADIENTS):
        if callable(extra_args.get(name)):
            new[name] = _composed(extra_args[name], outward, inward if name in GRADIENTS else None)
    if extra_args.get("grad") is not None:
        new["grad"] = inward(as_arrays(extra_args["grad"]))
    return new


def _composed(
    function: Callable[..., Any],
    outward: Callable[[PyTree], PyTree],
    inward: Callable[[PyTree], PyTree] | None,
) -> Callable[..., Any]:
    @functools.wraps(function)
    def composed(params: PyTree, *args: Any, **kwargs: Any) -> Any:
        result = function(outward(params), *args, **kwargs)
        return result if inward is None else inward(result)

    composed.of_all_leaves = False  # type: ignore[attr-defined]  # of those in that form
    return composed


def elsewhere(extra_args: Mapping[str, Any]) -> dict[str, Any]:
    """Extra arguments for other parameters than those at which value and gradient were taken."""
    function = extra_args.get("value_fn")
    if not callable(function):
        return dict(extra_args)

    @functools.wraps(function)
    def marked(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    marked.is_elsewhere = True  # type: ignore[attr-defined]
    return {**extra_args, "value_fn": marked}


def is_elsewhere(function: Callable[..., Any]) -> bool:
    """Whether the value and the gradient beside a loss are those of another point."""
    return getattr(function, "is_elsewhere", False)


def of_all_leaves(extra_args: dict[str, Any], params: Params | None) -> dict[str, Any]:
    """Extra arguments whose functions may be called with some leaves of `params`, and None.

    The others are those of `params`; a function of the gradient returns those of the same leaves.

    >>> extra = of_all_leaves({"value_fn": lambda p: p["a"] + p["b"]}, {"a": 1.0, "b": 2.0})
    >>> extra["value_fn"]({"a": 5.0, "b": None})
    7.0
    """
    names = [n for n in (*LOSSES, *GRADIENTS) if callable(extra_args.get(n))]
    names = [n for n in names if not getattr(extra_args[n], "of_all_leaves", False)]
    if params is None or not names:
        return extra_args
    return {**extra_args, **{n: _filled(n, extra_args[n], params) for n in names}}


def _filled(name: str, function: Callable[..., Any], params: Params) -> Callable[..., Any]:
    @functools.wraps(function)
    def filled(at: PyTree, *args: Any, **kwargs: Any) -> Any:
        whole_params = unpack(params) if holds_packed(params) and not holds_packed(at) else params
        with whole_leaves(None):  # an optimizer within the loss has parameters of its own
            result = function(merge(at, whole_params), *args, **kwargs)
        return map_present(lambda _, g: g, at, result) if name in GRADIENTS else result

    filled.of_all_leaves = True  # type: ignore[attr-defined]
    return filled
