"""``describe``, ``diff`` and ``validate``: the commands about configurations."""

import argparse
import json
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp

from gradtx.checkpoint.config import to_config
from gradtx.commands.reading import read_config
from gradtx.core.pair import GradientTransformation
from gradtx.inspection.description import describe as description
from gradtx.leaves.paths import path_string, with_paths


def describe(arguments: argparse.Namespace) -> int:
    """Print the state of a transformation for some parameters, and its bytes."""
    tx = read_config(arguments.config)
    if not isinstance(tx, GradientTransformation):
        raise TypeError(f"{tx!r:.80} is a schedule, and keeps nothing: `plot` shows its values")
    for path, leaf in with_paths(arguments.params)[0]:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            name = path_string(path)
            raise TypeError(f"--params: {name} is {leaf.dtype}, which is not trained: leave it out")
    report = description(tx, arguments.params)
    print(report)
    print(
        f"bytes of state for each parameter: {report.state_bytes / max(report.parameters, 1):.2f}"
    )
    return 0


def validate(arguments: argparse.Namespace) -> int:
    """Print what a configuration builds."""
    print(f"valid: {read_config(arguments.config)!r}")
    return 0


def diff(arguments: argparse.Namespace) -> int:
    """Print the arguments that differ by path, defaults included; 1 if one does."""
    one, other = read_config(arguments.a), read_config(arguments.b)
    ours, theirs = (dict(_entries(to_config(each))) for each in (one, other))
    paths = [path for path in ours | theirs if ours.get(path) != theirs.get(path)]
    for path in paths:
        print(f"{path or 'builder'}: {ours.get(path, 'absent')} -> {theirs.get(path, 'absent')}")
    if not paths and one != other:  # the order of patterns, or a list for a tuple
        print(f"{one!r} -> {other!r}")
    return int(bool(paths) or one != other)


def _entries(node: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The values in a configuration as text, by path; a call's value is its builder."""
    parts: Any = ()
    match node:
        case {"name": name, "arguments": arguments}:
            yield path, name
            parts = arguments.items()
        case {"tuple": [_, *_] as items} | ([_, *_] as items):
            parts = enumerate(items)
        case {"dict": pairs}:
            parts = pairs
        case _:
            yield path, json.dumps(node)
    for key, value in parts:
        yield from _entries(value, f"{path}/{key}".lstrip("/"))
