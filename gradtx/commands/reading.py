"""The arguments of commands: configurations, shapes of parameters, and names of functions.

Nothing is evaluated here, and nothing of the user's is imported.
"""

import argparse
import ast
import difflib
import json
import os.path
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from gradtx.checkpoint.config import check_depth, find_builder, from_config
from gradtx.checks import SHORT_NAMES
from gradtx.declarations.declaration import Declared
from gradtx.names.namespace import homes


def read_config(text: str) -> Any:
    """The transformation or schedule in a JSON file, or in a call such as ``adamw(1e-3)``.

    Raises:
        OSError: there is no such file.
        ValueError, TypeError: it describes nothing that gradtx can build.
    """
    if "(" not in text or os.path.isfile(text):
        if find_builder(text) is not None and not os.path.exists(text):
            raise ValueError(
                f"{text!r} is not a call: write {f'{text}(...)'!r}, with its arguments"
            )
        return from_config(_json(text))
    try:
        built = _built(ast.parse(text.strip(), "CONFIG", "eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text!r:.80} is not a call: {error}") from None
    except (ArithmeticError, AttributeError, LookupError) as error:
        raise TypeError(f"{text!r:.80} has an argument of the wrong kind: {error}") from error
    if not isinstance(built, Declared):
        raise ValueError(
            f"{text!r:.80} is not a call of a builder: write 'adamw(...)', for example"
        )
    return built


def _built(node: ast.expr) -> Any:
    """The value of an expression of literals and of calls of public builders."""
    match node:
        case ast.Call(
            ast.Name(name) | ast.Attribute(ast.Name("gradtx"), name), positional, named
        ) if all(k.arg for k in named):
            builder = find_builder(name)
            if builder is None:
                close = difflib.get_close_matches(name, homes("gradtx"), 1, 0.7)
                hint = f"did you mean {close[0]!r}?" if close else "`list` shows what does"
                raise ValueError(f"{name!r} builds nothing in gradtx: {hint}")
            return builder.public(
                *map(_built, positional), **{str(k.arg): _built(k.value) for k in named}
            )
        case ast.List(items):
            return list(map(_built, items))
        case ast.Tuple(items):
            return tuple(map(_built, items))
        case ast.Dict(keys, values) if all(keys):
            return {_built(k): _built(v) for k, v in zip(keys, values, strict=True) if k}
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(
            f"{ast.unparse(node)!r:.80} is not a literal, list, tuple, dict or call of a builder"
        ) from None


def read_shapes(text: str) -> Any:
    """Parameters without values, for argparse: a JSON file, or ``w=512x2048,head/b=10:bfloat16``.

    The file holds a tree of dicts and lists. Its leaves are shapes: ``[512, 2048]``, or
    ``"512x2048:bfloat16"``.
    """
    try:
        if "=" not in text or os.path.isfile(text):
            return _tree(_json(text))
        tree: dict[str, Any] = {}
        for part in text.split(","):
            path, equals, shape = part.strip().partition("=")
            if not (path and equals):
                raise ValueError(f"{part!r:.80} is not of the form PATH=SIZES")
            *above, last = path.split("/")
            inner: Any = tree
            for key in above:
                inner = inner.setdefault(key, {}) if isinstance(inner, dict) else None
            if not isinstance(inner, dict) or last in inner:
                raise ValueError(f"{path!r} stands in the way of another")
            inner[last] = _leaf(shape)
        return tree
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def read_function(text: str) -> tuple[str, str]:
    """The names of a module and of a function in it, for argparse: ``train.model:problem``."""
    module, _, name = text.partition(":")
    parts = module.split(".")
    if not all(part.isidentifier() for part in [*parts, name]) or parts[-1] == "py":
        raise argparse.ArgumentTypeError(
            f"{text!r:.80} is not of the form MODULE:FUNCTION: write train:problem for the "
            "function problem in train.py"
        )
    return module, name


def _tree(node: Any) -> Any:
    if isinstance(node, str):
        return _leaf(node)
    if isinstance(node, list) and all(type(item) is int for item in node):
        return _leaf("x".join(map(str, node)))
    if isinstance(node, list):
        return list(map(_tree, node))
    if isinstance(node, dict):
        return {key: _tree(item) for key, item in node.items()}
    raise ValueError(f"{node!r:.80} is not a shape: write [512, 2048] or '512x2048:bfloat16'")


def _leaf(text: str) -> jax.ShapeDtypeStruct:
    sizes, _, dtype = text.strip().partition(":")
    parts = sizes.split("x") if sizes else []
    if not all(part.isdecimal() for part in parts):
        raise ValueError(f"{text!r:.80} is not a shape: write 512x2048, or 512x2048:bfloat16")
    kind = jnp.dtype(SHORT_NAMES.get(dtype, dtype or "float32"))
    if jax.dtypes.canonicalize_dtype(kind) != kind:
        raise ValueError(f"{text!r:.80} has 64 bits: set JAX_ENABLE_X64=1 in the environment")
    return jax.ShapeDtypeStruct(tuple(map(int, parts)), kind)


def _json(path: str) -> Any:
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    check_depth(path, data)
    return data
