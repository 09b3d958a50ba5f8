"""Declarations: how a built object remembers what built it.

A builder is an ordinary function with annotated arguments. Its result carries a `Declaration` (the
builder and the arguments), and from that alone follow repr, equality, hash, pickling, being a
pytree whose leaves are the array hyperparameters, configuration, and replacing an argument.
"""

import functools
import inspect
import numbers
import operator
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np

from gradtx import checks
from gradtx.declarations.host_values import as_schedule
from gradtx.names.namespace import homes
from gradtx.numerics import signed
from gradtx.types import DTYPE
from gradtx.types.update_size import DeclaredSize, SizeRule, UpdateSize

# The names of an argument in other libraries.
OTHER_NAMES = {
    "lr": ["learning_rate"],
    "betas": ["b1", "b2"],
    "beta1": ["b1"],
    "beta2": ["b2"],
    "beta_1": ["b1"],
    "beta_2": ["b2"],
    "epsilon": ["eps"],
    "rho": ["decay"],
    "alpha": ["decay"],
    "clipnorm": ["max_norm"],
    "init_scale": ["loss_scale"],
    "growth_factor": ["factor"],
    "growth_interval": ["period"],
    "bounds": ["lower", "upper"],
    "maxiter": ["max_steps"],
    "max_iter": ["max_steps"],
    "gtol": ["tol"],
    "method": ["tx"],
    "optimizer": ["tx"],
    "fun": ["loss_fn"],
    "x0": ["params"],
    "init_params": ["params"],
}


def unknown_argument(unknown: str, known: Iterable[str], hint: str | None = None) -> str:
    """The error about a keyword that is not an argument.

    Args:
        unknown: the keyword.
        known: the arguments.
        hint: what to do if it is no other name of one of them.
    """
    import difflib  # which is seldom needed

    names = list(known)
    meant = [name for name in OTHER_NAMES.get(unknown, ()) if name in names]
    meant = meant or difflib.get_close_matches(unknown, names, 1, 0.6)
    if meant:
        hint = f"did you mean {' and '.join(meant)}?"
    return f"there is no argument {unknown!r}: {hint or 'the arguments are ' + ', '.join(names)}"


class Formerly(NamedTuple):
    """An annotation of an argument that builders once lacked: what they did then.

    Configurations and pickles of that time do not name it; the default is for new calls.
    """

    value: Any


class Kept(NamedTuple):
    """An annotation of an argument that a declaration keeps in another form, as data.

    `form` makes it of the argument, and returns a value that already has it unchanged.
    """

    form: Callable[[str, Any], Any]


@jax.tree_util.register_pytree_with_keys_class
class Ordered(dict[Any, Any]):
    """A dict whose order counts: JAX sorts the keys of a plain one."""

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        return [(jax.tree_util.DictKey(key), x) for key, x in self.items()], tuple(self)

    @classmethod
    def tree_unflatten(cls, keys: tuple[Any, ...], values: Iterable[Any]) -> "Ordered":
        return cls(zip(keys, values, strict=True))


def in_order(where: str, value: Any) -> Any:
    """`value` with `Ordered` in place of dicts, also of those in dicts and named tuples.

    The form of an argument in which the order of entries counts, for `Kept`.
    """
    if isinstance(value, dict):
        return Ordered({key: in_order(where, item) for key, item in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _with_fields(value, [in_order(where, item) for item in value])
    return value


def _with_fields(value: Any, fields: list[Any]) -> Any:
    """A named tuple with other fields; itself if they are the same."""
    return value if all(map(operator.is_, value, fields)) else type(value)(*fields)


class Builder:
    """A function that builds declared objects, with its signature read once.

    Args:
        function: the function as it was written.
        native: it takes schedules itself; otherwise they are evaluated for it at each step.
        update_size: how large the updates of the transformation are, if it is known.

    Attributes:
        static: its results are pytrees without leaves, whatever its arguments are.
    """

    static = False

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        native: bool = False,
        update_size: DeclaredSize | None = None,
    ) -> None:
        self.function = function
        self.native = native
        self.update_size = UpdateSize("adam") if update_size == "adam" else update_size
        self.signature = inspect.signature(function)
        self.public: Callable[..., Any] = self.call
        self._check_update_size()

    def _check_update_size(self) -> None:
        size = self.update_size
        if isinstance(size, UpdateSize):
            checks.check_choice(self.name, "update_size.rule", size.rule, get_args(SizeRule))
            for name in (size.numbers, size.grafting):
                if name is not None and name not in self.signature.parameters:
                    problem = unknown_argument(name, self.signature.parameters)
                    raise ValueError(f"{self.name}: update_size: {problem}")
        elif size is not None:
            checks.check_choice(self.name, "update_size", size, ("adam", "proportional"))

    @property
    def name(self) -> str:
        return self.function.__name__

    @functools.cached_property
    def hints(self) -> Mapping[str, Any]:
        return typing.get_type_hints(self.function, include_extras=True)

    @functools.cached_property
    def _forms(self) -> Mapping[str, Callable[[str, Any], Any]]:
        """For each argument that is `Kept` in another form: the function that makes that form."""
        named_marks = (
            (name, mark) for name, hint in self.hints.items() for mark in checks.marks(hint)
        )
        return {name: mark.form for name, mark in named_marks if isinstance(mark, Kept)}

    def recorded(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments that were written down, with values for those that were added since."""
        missing = [name for name in self.signature.parameters if name not in arguments]
        former = {
            name: mark.value
            for name in missing
            for mark in checks.marks(self.hints.get(name))
            if isinstance(mark, Formerly)
        }
        return {**arguments, **former}

    def bind(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The arguments of a call, defaults filled in, checked against their annotations.

        Raises:
            TypeError: an argument is missing, unknown, or of the wrong kind.
            ValueError: a number is out of its range.
        """
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}: {self._unknown(kwargs) or error}") from None
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            checks.check(self.name, name, value, self.hints.get(name, Any))
            if DTYPE in checks.marks(self.hints.get(name)) and isinstance(value, str):
                bound.arguments[name] = jnp.dtype(value)
            if name in self._forms:
                bound.arguments[name] = self._forms[name](f"{self.name}: {name}", value)
        return {
            name: _canonical(value if self._range(name) is None else _number(value))
            for name, value in bound.arguments.items()
        }

    def _unknown(self, keywords: Iterable[str]) -> str | None:
        """The error about the first keyword that is not an argument; None if there is none."""
        known = self.signature.parameters
        unknown = next((k for k in keywords if k not in known), None)
        if unknown is None:
            return None
        hint = None
        if unknown == "weight_decay":
            other = f"{self.name}w"
            has_it = f"{other} has it, and " if other in homes("gradtx") else ""
            hint = f"{has_it}chain(add_decayed_weights(...), ...) adds it to the gradients"
        return unknown_argument(unknown, known, hint)

    def call(self, arguments: Mapping[str, Any]) -> Any:
        """The function itself, on bound arguments."""
        bound = inspect.BoundArguments(self.signature, dict(arguments))
        return self.function(*bound.args, **bound.kwargs)

    def made(self, arguments: Mapping[str, Any]) -> Any:
        """What a call with these arguments, by their names, returns, with the checks of a call."""
        bound = inspect.BoundArguments(self.signature, dict(arguments))
        return self.public(*bound.args, **bound.kwargs)

    def schedules(self, arguments: Mapping[str, Any]) -> list[str]:
        """The names of the hyperparameters that must be evaluated at each step."""
        if self.native:
            return []
        return [
            name
            for name, value in arguments.items()
            if callable(value) and self._range(name) is not None
        ]

    def is_number(self, name: str) -> bool:
        """Whether an argument is a hyperparameter."""
        return self._range(name) is not None

    def _range(self, name: str) -> checks.Range | None:
        """The range of a hyperparameter, None for another argument."""
        return checks.hyperparameter_range(self.hints.get(name))

    def __reduce__(self) -> Any:
        return _find, (self.function.__module__, self.function.__qualname__)

    def __repr__(self) -> str:
        return f"<builder {self.name}>"


def _find(module: str, qualname: str) -> Builder:
    function = functools.reduce(getattr, qualname.split("."), __import__(module, fromlist=["_"]))
    return typing.cast(Builder, function.builder)


def _number(value: Any) -> Any:
    """A hyperparameter in a form to compute with."""
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        return float(value)  # JAX has no fractions, and fewer types than NumPy
    if isinstance(value, np.integer):
        value = int(value)
    if isinstance(value, int) and abs(value) >= 2**31:
        return float(value)  # an integer may be too large for JAX
    return as_schedule(signed(value))


def _canonical(value: Any) -> Any:
    """An argument in canonical form, which nobody else can change.

    NumPy scalars become Python numbers, and scalar types become dtypes; NumPy arrays and Python
    containers are copied.
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, type) and hasattr(value, "dtype"):
        return np.dtype(value)
    if isinstance(value, np.ndarray) and not value.ndim and value.dtype == bool:
        return bool(value)
    if isinstance(value, np.ndarray):
        value = value.copy()
        value.flags.writeable = False
    elif type(value) in (dict, Ordered):
        return type(value)({key: _canonical(item) for key, item in value.items()})
    elif type(value) in (list, tuple):
        return type(value)(map(_canonical, value))
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        return _with_fields(value, list(map(_canonical, value)))
    return value


class Static:
    """A value in a hashable form, equal if the values are: arrays must agree in every bit."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Static) or type(self.value) is not type(other.value):
            return False
        return _same(self.value, other.value)

    def __hash__(self) -> int:
        try:
            return hash(_described(self.value))
        except TypeError:
            return hash(type(self.value))


class StaticPart(NamedTuple):
    """A declaration without its arrays, in a hashable form.

    Attributes:
        builder: the builder.
        treedef: the tree of its arguments.
        static: the leaves of this tree, None in place of an array.
    """

    builder: Builder
    treedef: Any
    static: tuple[Static | None, ...]

    @property
    def arrays(self) -> int:
        """The number of arrays."""
        return self.static.count(None)


class Declaration:
    """A builder and the arguments that it was called with.

    Args:
        builder: the builder.
        arguments: its arguments by name.
        flat: the result of :meth:`flatten`, if JAX has unflattened it: it says which arguments are
            leaves, even if placeholders have replaced them.
    """

    def __init__(
        self,
        builder: Builder,
        arguments: dict[str, Any],
        flat: tuple[tuple[Any, ...], StaticPart] | None = None,
    ) -> None:
        self.builder = builder
        self.arguments = arguments
        self._flat = flat

    @property
    def name(self) -> str:
        return self.builder.name

    def flatten(self) -> tuple[tuple[Any, ...], StaticPart]:
        """The array hyperparameters, and everything else in a hashable form."""
        if self._flat is None:
            arguments = self.arguments
            leaves, treedef = jax.tree.flatten(
                arguments, is_leaf=(lambda x: x is not arguments) if self.builder.static else None
            )
            dynamic = [checks.is_array(leaf) and not self.builder.static for leaf in leaves]
            arrays = tuple(leaf for leaf, d in zip(leaves, dynamic, strict=True) if d)
            static = tuple(
                None if d else Static(leaf) for leaf, d in zip(leaves, dynamic, strict=True)
            )
            self._flat = arrays, StaticPart(self.builder, treedef, static)
        return self._flat

    @staticmethod
    def unflatten(structure: StaticPart, arrays: Any) -> "Declaration":
        """The inverse of `flatten`; checks nothing, since JAX may pass placeholders."""
        builder, treedef, static = structure
        arrays = tuple(arrays)
        rest = iter(arrays)
        leaves = [next(rest) if s is None else s.value for s in static]
        return Declaration(builder, jax.tree.unflatten(treedef, leaves), (arrays, structure))

    def check_numbers(self) -> None:
        """Raise ValueError if a hyperparameter is several numbers that nothing maps over."""
        for name, value in self.arguments.items():
            if getattr(value, "ndim", 0) and self.builder.is_number(name):
                raise ValueError(
                    f"{self.name}: {name} has the shape {value.shape}, and must be one number; "
                    "map over a sweep, as with jax.vmap(lambda tx: ...)(tx)"
                )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Declaration):
            return NotImplemented
        (ours, structure), (theirs, other_structure) = self.flatten(), other.flatten()
        return bool(structure == other_structure) and all(map(_same, ours, theirs))

    def __hash__(self) -> int:
        arrays, structure = self.flatten()
        if any(isinstance(a, jax.core.Tracer) for a in arrays):
            raise TypeError(
                f"{self.name} has a hyperparameter that is traced, and so no hash: pass the "
                "transformation to the compiled function as an argument that is not static"
            )
        return hash((structure, tuple(map(_described, arrays))))

    def __repr__(self) -> str:
        parts: list[str] = []
        for name, parameter in self.builder.signature.parameters.items():
            value = self.arguments.get(name, parameter.default)
            if parameter.kind is parameter.VAR_POSITIONAL:
                parts += map(_format, value)
            elif parameter.kind is parameter.VAR_KEYWORD:
                parts += [f"{k}={_format(v)}" for k, v in value.items()]
            elif not (value is parameter.default and (value is None or value is False)):
                parts.append(f"{name}={_format(value)}")
        return f"{self.name}({', '.join(parts)})"


def _same(a: Any, b: Any) -> bool:
    """Whether two leaves are the same value: arrays must agree in every bit."""
    if a is b:
        return True
    if isinstance(a, jax.core.Tracer) or isinstance(b, jax.core.Tracer):
        return False
    try:
        return bool(_described(a, None) == _described(b, None))
    except ValueError:  # of arrays in an object, which have no truth value
        return False


# Larger arrays are hashed by type and shape alone: they may be on a device.
_SMALL = 1024


def _described(leaf: Any, most: int | None = _SMALL) -> Any:
    """The key by which a leaf is compared and hashed: of up to `most` entries, their bytes."""
    if not isinstance(leaf, jax.Array | np.ndarray):
        return leaf
    kind = str(leaf.dtype)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    if not getattr(leaf, "is_fully_addressable", True):
        return kind, leaf.shape, id(leaf)
    known = most is None or leaf.size <= most
    return kind, leaf.shape, np.asarray(leaf).tobytes() if known else None


def _format(value: Any) -> str:
    if isinstance(value, jax.core.Tracer):
        return f"<traced {value.dtype}{list(value.shape)}>"
    if isinstance(value, jax.Array | np.ndarray):
        return str(value) if value.ndim == 0 else f"<{value.dtype}{list(value.shape)}>"
    if isinstance(value, np.dtype):
        return str(value.name)
    if isinstance(value, type) and hasattr(value, "dtype"):
        return value.__name__
    if isinstance(value, tuple) and type(value) is tuple:
        return f"({', '.join(map(_format, value))}{',' if len(value) == 1 else ''})"
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    return repr(value)


class Declared:
    """The result of a builder: it has a declaration, or None if it was made by hand."""

    declaration: Declaration | None = None


class DeclaredData(Declared):
    """The result of a builder, as a pytree: its leaves are the hyperparameters that are arrays."""

    declaration: Declaration

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration

    @classmethod
    def declared(cls, declaration: Declaration) -> typing.Self:
        """The object that `declaration` describes."""
        return cls(declaration)

    def tree_flatten(self) -> tuple[Any, Any]:
        return self.declaration.flatten()

    @classmethod
    def tree_unflatten(cls, structure: Any, arrays: Any) -> typing.Self:
        return cls(Declaration.unflatten(structure, arrays))

    def __repr__(self) -> str:
        return repr(self.declaration)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return self.declaration == other.declaration

    def __hash__(self) -> int:
        return hash(self.declaration)

    def __reduce__(self) -> Any:
        return _rebuild, (type(self), self.declaration.builder, self.declaration.arguments)


def _rebuild(cls: type[DeclaredData], builder: Builder, arguments: dict[str, Any]) -> DeclaredData:
    return cls.declared(Declaration(builder, builder.recorded(arguments)))


class Words:
    """An annotation that is shown in words: ``float | Array | Schedule``."""

    def __init__(self, words: str) -> None:
        self.words = words

    def __repr__(self) -> str:
        return self.words


def readable(signature: inspect.Signature, *, schedules: bool) -> inspect.Signature:
    """A signature with the types to pass instead of the ranges, for ``help``."""

    def shown(parameter: inspect.Parameter) -> inspect.Parameter:
        words = checks.words(parameter.annotation, schedules=schedules)
        return parameter if words is None else parameter.replace(annotation=Words(words))

    parameters = [shown(each) for each in signature.parameters.values()]
    returned = signature.return_annotation
    words = checks.words(returned, schedules=schedules)
    return signature.replace(
        parameters=parameters, return_annotation=returned if words is None else Words(words)
    )


_Function = TypeVar("_Function", bound=Callable[..., Any])


def read_by_people(function: _Function) -> _Function:
    """A function that is no builder, whose signature and errors are as those of builders.

    ``help`` shows the signature as it shows theirs, and an unknown argument gets the same hint.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in signature.parameters:
                problem = unknown_argument(name, signature.parameters)
                raise TypeError(f"{function.__name__}: {problem}")
        return function(*args, **kwargs)

    called.__signature__ = readable(signature, schedules=False)  # type: ignore[attr-defined]
    return cast(_Function, called)


def publish(build: Any, builder: Builder, *, schedules: bool = True) -> Any:
    """Give `build` the name and signature of its function, and the builder that it calls.

    Args:
        build: the public function.
        builder: the builder that it calls.
        schedules: a hyperparameter may be a schedule.
    """
    build.__name__ = builder.function.__name__
    build.__qualname__ = builder.function.__qualname__
    build.__module__ = builder.function.__module__
    build.__doc__ = builder.function.__doc__
    build.__signature__ = readable(builder.signature, schedules=schedules)
    build.__annotations__ = builder.function.__annotations__
    build.__wrapped__ = builder.function
    build.builder = builder
    builder.public = build
    return build
