"""Configurations: a transformation as JSON-able data, and back.

A configuration is data. Reading one looks names up in gradtx's registry and among the caller's
objects; nothing in it is evaluated or imported.
"""

import inspect
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.core.pair import GradientTransformation
from gradtx.declarations.declaration import Builder, Declared
from gradtx.declarations.host_values import HostValue
from gradtx.names.namespace import MOVED, homes

VERSION = 1
_DEEPEST = 64
_MOST = 1_000_000


def to_config(tx: Any) -> dict[str, Any]:
    """A transformation, or a schedule, as a dict of JSON-able values.

    Args:
        tx: a declared transformation or schedule. A function among its arguments is written by its
            name, and :func:`from_config` must be told what it means; so is a NamedTuple of a class
            that gradtx does not publish. What is your own and has a name of gradtx's is marked
            (``"custom": true``), so that it is never taken for gradtx's.

    Returns:
        ``{"gradtx": 1, "name": ..., "arguments": {...}}`` with every argument, defaults included.

    Raises:
        TypeError: `tx`, or an argument, is not data (a pair made by hand, a lambda).

    >>> import gradtx
    >>> to_config(gradtx.sgd(0.1, momentum=0.9))["arguments"]["momentum"]
    0.9
    """
    if not (isinstance(tx, Declared) and tx.declaration is not None):
        raise TypeError(
            f"{tx!r} was made by hand and cannot be written as a configuration: build it with a "
            "function decorated with @transformation"
        )
    return {"gradtx": VERSION, **_encode(tx, type(tx).__name__, {})}


def _encode(value: Any, where: str, named: dict[str, Any]) -> Any:
    """A value as JSON; `named` has the user's own functions so far, by their names."""
    value = value.function if isinstance(value, HostValue) else value
    value = value.item() if isinstance(value, np.bool_ | np.integer) else value
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, Declared):
        return _encode_declared(value, where, named)
    if isinstance(value, jax.Array | np.ndarray):
        return _encode_array(value, where)
    if isinstance(value, dict):
        pairs = value.items()
        return {"dict": [[_encode(k, where, named), _encode(v, where, named)] for k, v in pairs]}
    names = getattr(value, "_fields", None)
    if isinstance(value, tuple) and names is not None:
        return _encode_named(value, names, where, named)
    if type(value) is tuple:
        return {"tuple": [_encode(item, where, named) for item in value]}
    if isinstance(value, list):
        return [_encode(item, where, named) for item in value]
    if value is float or value is complex:
        return {"dtype": value.__name__}
    if isinstance(value, np.dtype) or (isinstance(value, type) and hasattr(value, "dtype")):
        return {"dtype": jnp.dtype(value).name}
    name = getattr(value, "__name__", None)
    if callable(value) and name and name != "<lambda>":
        public = _public_name(value)
        inner = inspect.unwrap(value)  # jitted twice, a function is two objects that differ
        if not public and named.setdefault(name, inner) != inner:
            raise TypeError(
                f"{where}: two functions are called {name!r}, and a configuration knows them by "
                "their names: give each one of its own"
            )
        marks = {} if public else _marked(value, _find_function(name))
        return {"object": public or name} | marks
    raise TypeError(
        f"{where}: {value!r} cannot be written as a configuration; use path patterns where it "
        "chooses leaves, or a named function, and hand that to from_config as a custom object"
    )


def _encode_declared(value: Declared, where: str, named: dict[str, Any]) -> dict[str, Any]:
    declaration = value.declaration
    if declaration is None:
        raise TypeError(f"{where}: {value!r} was made by hand and is not data")
    arguments = {
        name: _encode(argument, f"{declaration.name}.{name}", named)
        for name, argument in declaration.arguments.items()
    }
    mark = _marked(declaration.builder, find_builder(declaration.name))
    return {"name": declaration.name, "arguments": arguments} | mark


def _encode_named(value: Any, names: Any, where: str, named: dict[str, Any]) -> dict[str, Any]:
    if names == ("init", "update"):  # a pair of another library, such as Optax
        raise TypeError(f"{where}: {value!r:.80} was made by hand and is not data")
    fields = {k: _encode(item, where, named) for k, item in zip(names, value, strict=True)}
    mark = _marked(type(value), _published(type(value).__name__))
    return {"named": type(value).__name__, "fields": fields} | mark


def _marked(value: Any, published: Any) -> dict[str, Any]:
    """A mark on what is the user's own, where gradtx has something else of the name."""
    return {} if published is None or published is value else {"custom": True}


def _encode_array(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{where}: a traced value cannot be written as a configuration")
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        data = np.asarray(jax.random.key_data(value)).tolist()
        return {"key": data, "impl": str(jax.random.key_impl(value))}
    dtype = str(value.dtype)
    if jnp.iscomplexobj(value):
        return {"array": _listed(np.real(value)), "imag": _listed(np.imag(value)), "dtype": dtype}
    return {"array": _listed(value), "dtype": dtype}


def _listed(array: Any) -> Any:
    """An array of real numbers as lists."""
    wide = np.asarray(array)
    return _finite(wide.astype(np.float64 if wide.dtype.kind not in "biu" else wide.dtype).tolist())


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def from_config(
    config: Mapping[str, Any], custom_objects: Mapping[str, Callable[..., Any]] | None = None
) -> GradientTransformation:
    """The transformation, or the schedule, that a configuration describes.

    Args:
        config: the result of :func:`to_config`, perhaps through JSON.
        custom_objects: your own builders, and functions and NamedTuple classes that occur among the
            arguments, by name. They take precedence over gradtx's.

    Returns:
        A transformation equal to the one that was written.

    Raises:
        ValueError: an unknown name, an unknown or missing argument, a value out of range, or so
            large that a state would fill the memory, such as a window of 2**31 gradients.
        TypeError: a value of the wrong type.

    A configuration may name builders, and functions of gradtx that only compute on arrays, such as
    ``"tree.norm"`` and losses; functions that read or write files are not found.

    >>> import gradtx, json
    >>> tx = gradtx.adam(gradtx.cosine_decay_schedule(1e-3, 100))
    >>> from_config(json.loads(json.dumps(to_config(tx)))) == tx
    True
    """
    if not isinstance(config, Mapping):
        raise TypeError(f"a configuration is a dict, not {type(config).__name__}")
    check_depth("config", config)
    if config.get("gradtx") != VERSION:
        raise ValueError(
            f"this is not a configuration of gradtx, version {VERSION}: its key 'gradtx' is "
            f"{config.get('gradtx')!r:.80}"
        )
    inner = {key: value for key, value in config.items() if key != "gradtx"}
    declared = _decode(inner, dict(custom_objects or {}), "config", 0)
    if not isinstance(declared, Declared):
        raise ValueError("the configuration describes no transformation")
    return declared  # type: ignore[return-value]


def check_depth(where: str, value: Any) -> None:
    """Raise ValueError if data are so deep that walking through them could fail, or take too long.

    A list that occurs in several places counts in each: a few lists may hold endless entries.
    """
    level, entries = [value], 0
    for _ in range(4 * _DEEPEST):
        level = [node for node in level if isinstance(node, Mapping | list | tuple)]
        entries += sum(map(len, level))
        if not level:
            return
        if entries > _MOST:
            raise ValueError(f"{where}: the configuration is too large: above {_MOST} entries")
        level = [
            item
            for node in level
            for item in (node.values() if isinstance(node, Mapping) else node)
        ]
    raise ValueError(f"{where}: the configuration is nested too deeply")


def _published(name: str) -> Any:
    """The object that gradtx publishes by this name, or None."""
    import gradtx

    return getattr(gradtx, name) if name in homes("gradtx") else None


def find_builder(name: str) -> Builder | None:
    """The builder that gradtx publishes by this name, if there is one."""
    return getattr(_published(name), "builder", None)


def _find_function(name: str) -> Callable[..., Any] | None:
    """The function that gradtx publishes by a name such as ``"tree.norm"``, or None."""
    import gradtx

    name = MOVED.get(f"gradtx.{name}", name).removeprefix("gradtx.")
    place, _, last = name.rpartition(".")
    if place not in _PLACES or last.startswith("_"):
        return None
    home = operator.attrgetter(place)(gradtx) if place else gradtx
    function = getattr(home, last, None) if place or last in homes("gradtx") else None
    if not inspect.isfunction(function):
        return None
    named = place or hasattr(function, "builder")
    modules = (f"gradtx.{place}",) if named else _COMPUTING
    return function if function.__module__.startswith(modules) else None


# Where there are functions that a configuration may name, besides the top level.
_PLACES = ("", "tree", "projections", "losses", "transforms.trust")
# At the top level: builders, and functions that only compute on their arrays. Those that read or
# write files, build programs or change settings are not among them.
_COMPUTING = (
    "gradtx.linalg.linear_algebra",
    "gradtx.losses.",
    "gradtx.numerics.",
    "gradtx.projections.",
    "gradtx.transforms.",
    "gradtx.tree.",
    "gradtx.wrappers.finite",
)
# Limits of the arguments with which memory, or the length of a program, grows: whoever wants more
# builds the transformation, and does not read it from somewhere.
_AT_MOST = {
    "block_size": 2**20,
    "chunk": 2**16,
    "guard.window": 10**6,
    "memory_size": 10_000,
    "ns_steps": 1_000,
    "num_betas": 1_000,
    "window_size": 10_000,
}


def _public_name(function: Callable[..., Any]) -> str | None:
    """The public name of a function, under which `_find_function` finds it again."""
    last = getattr(function, "__name__", "")
    names = [f"{place}.{last}".removeprefix(".") for place in _PLACES]
    names = [name for name in names if f"gradtx.{name}" not in MOVED]
    return next((name for name in names if _find_function(name) is function), None)


def _decode(value: Any, custom: dict[str, Any], where: str, depth: int) -> Any:
    if depth > _DEEPEST:
        raise ValueError(f"{where}: the configuration is nested too deeply")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_decode(item, custom, where, depth + 1) for item in value]
    if not isinstance(value, Mapping):
        raise TypeError(f"{where}: {type(value).__name__} {value!r:.80} is not JSON")
    if value.get("custom") is True:
        value = {key: item for key, item in value.items() if key != "custom"}
        name = value.get("name", value.get("named", value.get("object")))
        if not isinstance(name, str) or name not in custom:
            raise ValueError(
                f"{where}: {name!r:.80} is one of your own, not that of gradtx: pass it in "
                "custom_objects"
            )
    keys = set(value)
    if keys == {"name", "arguments"}:
        return _decode_declared(value, custom, where, depth)
    if {"array", "dtype"} <= keys <= {"array", "dtype", "imag"}:
        return _decode_array(value, where)
    if keys == {"key", "impl"}:
        return _key(value["key"], value["impl"], where)
    if keys == {"named", "fields"}:
        return _decode_named(value, custom, where, depth)
    if len(keys) == 1:
        ((tag, content),) = value.items()
        if tag in _TAGS:
            return _TAGS[tag](content, custom, where, depth)
    raise ValueError(f"{where}: the keys {sorted(map(str, keys))!r:.200} mean nothing here")


# Arguments that are several, and the form in which a declaration has them.
_SEVERAL: dict[Any, Any] = {
    inspect.Parameter.VAR_POSITIONAL: (tuple, list),
    inspect.Parameter.VAR_KEYWORD: dict,
}


def _decode_declared(value: Any, custom: dict[str, Any], where: str, depth: int) -> Any:
    name, arguments = value["name"], value["arguments"]
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        raise TypeError(f"{where}: name must be a string and arguments a dict")
    builder = getattr(custom.get(name), "builder", None) or find_builder(name)
    if not isinstance(builder, Builder):
        raise ValueError(
            f"{where}: there is no {name!r:.80} in gradtx; pass your own builders as custom_objects"
        )
    known = builder.signature.parameters
    unknown = [key for key in arguments if key not in known]
    if unknown:
        raise ValueError(f"{name}: unknown arguments {unknown!r:.200}; it takes {list(known)}")
    given: dict[str, Any] = {}
    for key, argument in arguments.items():
        decoded = given[key] = _decode(argument, custom, f"{name}.{key}", depth + 1)
        kind = _SEVERAL.get(known[key].kind)
        if kind is not None and not isinstance(decoded, kind):
            wanted = "dict" if kind is dict else "list"
            raise TypeError(f"{name}.{key} must be a {wanted}, not {type(decoded).__name__}")
    for key, argument in given.items():
        most = _AT_MOST.get(f"{name}.{key}", _AT_MOST.get(key, math.inf))
        if builder is find_builder(name) and isinstance(argument, int) and argument > most:
            raise ValueError(f"{name}: a configuration may set {key} to at most {most}")
    missing = [
        key
        for key, p in known.items()
        if p.default is p.empty and p.kind not in _SEVERAL and key not in given
    ]
    if missing:
        raise ValueError(f"{name}: the arguments {missing} are missing")
    try:
        return builder.made(builder.recorded(given))
    except (ArithmeticError, AttributeError, LookupError) as error:
        # Builders expect arguments of their own types; a configuration may hold any data.
        raise TypeError(f"{name}: an argument is of the wrong kind: {error}") from error


def _decode_named(value: Any, custom: dict[str, Any], where: str, depth: int) -> Any:
    name, fields = value["named"], value["fields"]
    if not isinstance(name, str) or not isinstance(fields, Mapping):
        raise TypeError(f"{where}: named must be a string and fields a dict")
    kind = custom.get(name, _published(name))
    # A pair is a NamedTuple too, but is written as its builder and arguments.
    plain = isinstance(kind, type) and issubclass(kind, tuple) and not issubclass(kind, Declared)
    if not plain or not hasattr(kind, "_fields"):
        raise ValueError(
            f"{where}: {name!r:.80} is not a NamedTuple of gradtx; pass your own in custom_objects"
        )
    if set(fields) != set(kind._fields):
        raise ValueError(
            f"{where}: {name} has the fields {kind._fields}, not {list(fields)!r:.200}"
        )
    return kind(**{key: _decode(item, custom, where, depth + 1) for key, item in fields.items()})


def _decode_array(value: Any, where: str) -> Any:
    dtype = _dtype(value["dtype"], where)
    wide = np.float64 if jnp.issubdtype(dtype, jnp.inexact) else dtype
    try:
        array = np.asarray(value["array"], wide)
        if "imag" in value:
            parts = np.broadcast_arrays(array, np.asarray(value["imag"], wide))
            array = np.stack(parts, -1).view(np.complex128)[..., 0]
        array = array.astype(dtype)
        # An array of a type that JAX has not enabled was one of NumPy's.
        return jnp.asarray(array) if jax.dtypes.canonicalize_dtype(dtype) == dtype else array
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{where}: this is not an array: {error}") from None


def _dtype(content: Any, where: str) -> Any:
    if not isinstance(content, str):
        raise TypeError(f"{where}: a dtype is written as its name, not {content!r:.80}")
    if content in ("float", "complex"):  # JAX's types of that name, of 32 bits or 64
        return {"float": float, "complex": complex}[content]
    try:
        return jnp.dtype(content)
    except TypeError:
        raise ValueError(f"{where}: there is no dtype {content!r:.80}") from None


def _float(content: Any, custom: Any, where: str, depth: int) -> float:
    if content not in ("inf", "-inf", "nan"):
        raise ValueError(f"{where}: {content!r:.80} is not inf, -inf or nan")
    return float(content)


def _tuple(content: Any, custom: Any, where: str, depth: int) -> tuple[Any, ...]:
    if not isinstance(content, list):
        raise TypeError(f"{where}: a tuple is written as a list, not {type(content).__name__}")
    return tuple(_decode(item, custom, where, depth + 1) for item in content)


def _dict(content: Any, custom: Any, where: str, depth: int) -> dict[Any, Any]:
    if not isinstance(content, list) or not all(
        isinstance(pair, list) and len(pair) == 2 for pair in content
    ):
        raise TypeError(f"{where}: a dict is written as a list of [key, value]")
    pairs = [[_decode(item, custom, where, depth + 1) for item in pair] for pair in content]
    try:
        return dict(pairs)
    except TypeError as error:
        raise TypeError(f"{where}: a key of a dict: {error}") from None


def _object(content: Any, custom: dict[str, Any], where: str, depth: int) -> Any:
    if isinstance(content, str) and content not in custom:
        function = _find_function(content)
        if function is not None:
            return function
    if not isinstance(content, str) or content not in custom:
        raise ValueError(
            f"{where}: the object {content!r:.80} is not known; pass it in custom_objects"
        )
    return custom[content]


def _key(content: Any, impl: Any, where: str) -> Any:
    try:
        return jax.random.wrap_key_data(jnp.asarray(np.asarray(content, np.uint32)), impl=impl)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{where}: this is not a key of a random generator: {error}") from None


_TAGS: dict[str, Callable[[Any, dict[str, Any], str, int], Any]] = {
    "float": _float,
    "tuple": _tuple,
    "dict": _dict,
    "dtype": lambda content, custom, where, depth: _dtype(content, where),
    "object": _object,
    # As keys were written before their generators had names.
    "key": lambda content, custom, where, depth: _key(content, None, where),
}
