"""Multipliers of hyperparameters from a small model to a large one, by roles and shapes."""

import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from gradtx.composition.roles import ByRole, Role
from gradtx.leaves.paths import leaves_with_path, matches, path_string
from gradtx.types.update_size import SizeRule

Shapes: TypeAlias = dict[str, tuple[int, ...]]
"""The shape of each leaf, by its path."""

HeadForm: TypeAlias = Literal["initial", "multiplier"]
"""The way to keep the outputs of a head small: small initial values, or a factor."""


class Multipliers(NamedTuple):
    """The factors by which :func:`transfer` multiplies the hyperparameters of a leaf.

    role: what the leaf is (`Role`); rule: which rule its rate follows; rate, decay, epsilon: of the
    learning rate, the weight decay and epsilon; initial: of the standard deviation of the initial
    values, as the small model draws them; output: of what the leaf's layer returns, in the model
    itself; residual: of what a layer adds to the residual stream, in the model itself; why: the
    growth that these factors follow from.
    """

    role: str
    rule: str
    rate: float
    decay: float
    epsilon: float
    initial: float
    output: float
    residual: float
    why: str


class MultipliersByPath(NamedTuple):
    """What the hyperparameters of each leaf are multiplied by, by its path."""

    by_path: Mapping[str, Multipliers]


class Growth(NamedTuple):
    """The factors by which a leaf is larger than in the small model, and its shape there."""

    inputs: float
    outputs: float
    depth: float
    like: tuple[int, ...] = ()


def shapes_of(where: str, tree: Any) -> Shapes:
    """The shapes of the leaves of a tree by their paths; such a dict is returned as it is.

    Raises:
        TypeError: a leaf is no array.
    """
    if type(tree) is dict and all(map(_is_shape, tree.values())):
        return {str(path): tuple(map(int, shape)) for path, shape in tree.items()}
    shapes = {}
    for path, leaf in leaves_with_path(tree)[0]:
        if leaf is None:
            continue
        if not hasattr(leaf, "shape") and not isinstance(leaf, int | float | complex):
            raise TypeError(
                f"{where}: {path_string(path)!r} is {leaf!r:.80}, and no array: pass the trained "
                "parameters alone, or what jax.eval_shape returns for them"
            )
        shapes[path_string(path)] = tuple(map(int, jnp.shape(leaf)))
    return shapes


def _is_shape(x: Any) -> bool:
    return type(x) in (tuple, list) and all(isinstance(n, int) for n in x)


def abstract(shapes: Shapes) -> dict[str, jax.ShapeDtypeStruct]:
    """A ``jax.ShapeDtypeStruct`` of each shape, for functions that take parameters."""
    return {path: jax.ShapeDtypeStruct(shape, jnp.float32) for path, shape in shapes.items()}


def growths(
    where: str, small: Shapes, large: Shapes, roles: ByRole
) -> dict[str, tuple[Role, Growth]]:
    """The role of each leaf of the large model, and how much it grew.

    Raises:
        ValueError: a leaf has no counterpart, or it is not clear along which axis it grew.
    """
    role_by_path = roles.roles(abstract(large)) if large else {}
    few, many = _by_pattern(small), _by_pattern(large)
    grown = {}
    for path, shape in large.items():
        pattern = pattern_of(path)
        here, there = few.get(pattern, []), many[pattern]
        counted = len(there) / max(len(here), 1)
        if here and counted != 1 and not _alike(small, here, large, there):
            raise ValueError(
                f"{where}: there are {len(there)} leaves like {path!r} and {len(here)} in the "
                "small model, and their shapes differ from layer to layer: make the small model "
                "as deep as the large one"
            )
        like = small.get(path, small[here[0]] if here and counted != 1 else None)
        if like is None or len(like) != len(shape):
            has = "no such leaf" if like is None else f"the shape {like} there"
            raise ValueError(
                f"{where}: {path!r}, of shape {shape}, has {has} in the small model, whose leaves "
                f"are {', '.join(small) or 'none'}"
            )
        grown[path] = (
            role_by_path[path],
            _growth(where, path, like, shape, role_by_path[path], roles, counted),
        )
    return grown


def pattern_of(path: str) -> str:
    """A path with ``*`` in place of its numbers, so that all layers have the same pattern."""
    return re.sub(r"\d+", "*", path)


def _by_pattern(shapes: Shapes) -> dict[str, list[str]]:
    paths_by_pattern: dict[str, list[str]] = {}
    for path in shapes:
        paths_by_pattern.setdefault(pattern_of(path), []).append(path)
    return paths_by_pattern


def _alike(small: Shapes, here: list[str], large: Shapes, there: list[str]) -> bool:
    return len({small[path] for path in here}) == len({large[path] for path in there}) == 1


def _growth(
    where: str,
    path: str,
    like: tuple[int, ...],
    shape: tuple[int, ...],
    role: Role,
    roles: ByRole,
    counted: float,
) -> Growth:
    by = [new / old if old and new else 1.0 for old, new in zip(like, shape, strict=True)]
    layers = sum(n for pattern, n in roles.stacked if matches(path, pattern))
    depth = counted * math.prod(by[:layers])
    if role.columns:
        others = set(range(layers, len(shape))) - {*role.rows, *role.columns}
        if any(by[axis] != 1 for axis in others):
            raise ValueError(
                f"{where}: {path!r} was {like} and is {shape}: no rule is known for more matrices, "
                "such as experts; if these are layers, say so by the roles' `stacked`"
            )
        inputs = math.prod(by[axis] for axis in role.rows)
        return Growth(inputs, math.prod(by[axis] for axis in role.columns), depth, like)
    wider = [axis for axis in range(layers, len(shape)) if by[axis] != 1]
    if len(wider) > 1:
        raise ValueError(
            f"{where}: {path!r}, of the role {role.kind}, was {like} and is {shape}, and it is not "
            "clear which axis is the width: pass roles=ByRole(rules=...) with a Role that has rows "
            "and columns"
        )
    return Growth(1.0, by[wider[0]] if wider else 1.0, depth, like)


def multipliers_of(
    role: Role, growth: Growth, rule: SizeRule, head: HeadForm, power: float, factor: float
) -> tuple[Multipliers, float]:
    """The multipliers of a leaf's hyperparameters and of its gradient's spectral norm.

    Args:
        role: the role of the leaf.
        growth: how much larger the leaf is than in the small model.
        rule: how the size of its updates depends on the gradient.
        head: what keeps the outputs of a head small.
        power: of outputs by inputs, for the spectral rule.
        factor: by how much the optimizer's own factor for the shape grew.
    """
    inputs, outputs, depth, _ = growth
    output = 1 / inputs if head == "multiplier" and role.kind == "head" else 1.0
    entry = output / outputs / depth
    norm = output * math.sqrt(inputs / outputs) / depth
    if rule == "adam":
        rate = 1 / inputs / output
    elif rule == "sgd":
        rate = outputs / inputs / output**2 * depth
    else:
        rate = (outputs / inputs) ** power / factor / output
    initial = min(1.0, math.sqrt(outputs / inputs)) / math.sqrt(inputs) / output
    return Multipliers(
        role=role.kind,
        rule=rule,
        rate=rate,
        decay=1 / rate,
        epsilon=norm if rule == "spectral" else entry,
        initial=initial,
        output=output,
        residual=1 / depth,
        why=_why(growth, factor),
    ), entry


def _why(growth: Growth, factor: float) -> str:
    names = ("inputs", "outputs", "layers")
    said = [f"{name} x {by:g}" for name, by in zip(names, growth, strict=False) if by != 1]
    said += [f"the optimizer's own factor x {factor:g}"] if factor != 1 else []
    return ", ".join(said) or "as in the small model"


def multiplier_lines(multipliers: Mapping[str, Multipliers]) -> list[str]:
    """A line for each kind of leaf with its multipliers; leaves of several layers share a line."""
    counts = Counter((pattern_of(path), each) for path, each in multipliers.items())
    lines = []
    for (path, each), n in counts.items():
        numbers = ("rate", "decay", "epsilon", "initial", "output", "residual")
        said = [f"{name} x {getattr(each, name):.4g}" for name in numbers]
        said = [text for text in said if not text.endswith(" x 1")] or ["all x 1"]
        lines.append(
            f"{path}{f' x {n}' * (n > 1)}: {each.role}, {each.rule}: {', '.join(said)} ({each.why})"
        )
    return lines
