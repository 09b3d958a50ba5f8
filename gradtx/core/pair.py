"""The pair: a gradient transformation, and the decorator that makes a builder declare it.

:func:`with_extra_args_support` makes a pair of another library's.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, ParamSpec, Protocol, Self, cast, overload

import jax

from gradtx.core.communication import Communication
from gradtx.core.expansion import Expansion
from gradtx.core.traits import (
    BeforeFn,
    KindT,
    Links,
    Rule,
    Scope,
    StepFn,
    Traits,
    facets_of,
)
from gradtx.declarations.declaration import Builder, Declaration, Declared, Static, publish
from gradtx.declarations.scheduled import ScheduledState  # noqa: F401  # pickled states name this module
from gradtx.leaves.packed import holds_packed, on_leaves, unpack
from gradtx.leaves.rows import holds_rows, refuse_changed_indices
from gradtx.names.earlier import in_facets
from gradtx.names.libraries import passes_for, tell_libraries
from gradtx.types import Params, State, StateT, TransformInitFn, Updates, UpdatesT
from gradtx.types.update_size import DeclaredSize

_P = ParamSpec("_P")


class UpdateFn(Protocol):
    """The type of a pair's ``update``, which keeps the types of the updates and the state."""

    def __call__(
        self, updates: UpdatesT, state: StateT, params: Params | None = None, **extra_args: Any
    ) -> tuple[UpdatesT, StateT]: ...


class _Pair(NamedTuple):
    init: TransformInitFn
    update: UpdateFn


class _Function:
    """``init`` or ``update`` of a declared pair, which can be pickled.

    Code for Optax reads in the name of a function which builder its pair is from.
    """

    def __init__(self, expansion: Expansion, method: str) -> None:
        declaration = expansion.declaration
        self._expansion, self._method = expansion, method
        self.__name__ = f"{method}_fn"
        self.__qualname__ = f"{declaration.name}.<locals>.{self.__name__}"
        self.__module__ = declaration.builder.function.__module__

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(getattr(self._expansion, self._method))

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._expansion, self._method)(*args, **kwargs)

    def __reduce__(self) -> Any:
        declaration = self._expansion.declaration
        return _function_of, (declaration.builder, declaration.arguments, self._method)

    def __repr__(self) -> str:
        return f"<function {self.__qualname__}>"


class GradientTransformation(_Pair, Declared):
    """A pair of pure functions that together turn gradients into updates.

    ``init(params) -> state`` and ``update(updates, state, params=None, **extra_args) ->
    (updates, state)``. It unpacks to these two functions. Built by one of gradtx's builders it is
    also data: it prints, compares, hashes and pickles by its declaration, and it is a pytree whose
    leaves are the hyperparameters that are arrays.

    Args:
        init: makes the state for some parameters. Where these are ``jax.ShapeDtypeStruct``, what
            depends on their values, such as a starting point that is kept, is one too.
        update: takes updates (at first the gradients) and the state, returns updates and the new
            state.
        step: ``(updates, state, params, **extra_args) -> (params, state)``, ``update`` with the
            updates applied, if that saves memory; otherwise :func:`apply_gradients` adds them.
        before_gradients: ``(params, state, touched) -> (params, state)``, what must happen before
            gradients are taken, where ``touched()`` is a tree like the parameters with the `Rows`
            that the loss will look up. :func:`minimize` and :func:`apply_gradients` call it.
        facets: whatever else there is to say of it: records, which :meth:`facet` looks up by their
            classes.
        traits: further fields of `Traits`, by name; also by those that earlier versions had.

    >>> import gradtx
    >>> gradtx.scale(0.5)
    scale(step_size=0.5)
    >>> gradtx.adam(1e-3) == gradtx.adam(1e-3)
    True
    """

    # Without __slots__ the subclass has a __dict__, in which these and a declaration are kept.
    _traits: Traits
    _expansion: Expansion | None = None
    _is_built = False

    def __new__(
        cls,
        init: Callable[..., State],
        update: Callable[..., Any],
        step: StepFn | None = None,
        *,
        before_gradients: BeforeFn | None = None,
        facets: Iterable[Any] = (),
        **traits: Any,
    ) -> Self:
        pair = super().__new__(cls, init, update)
        if not _FIELDS.issuperset(traits):
            traits = in_facets({**traits, "facets": facets})
            facets = traits.pop("facets")
        traits |= {"step": step, "before_gradients": before_gradients, "facets": facets_of(facets)}
        pair._traits = Traits(**traits)
        tell_libraries()
        return pair

    @classmethod
    def declared(cls, declaration: Declaration) -> "GradientTransformation":
        """The transformation that `declaration` describes, built when it is first used."""
        expansion = Expansion(declaration)
        pair = cls(_Function(expansion, "init"), _Function(expansion, "update"))
        pair.declaration = declaration
        pair._expansion = expansion
        return pair

    @property
    def expansion(self) -> "GradientTransformation":
        """What the builder returned: for an optimizer such as ``adam`` the chain behind it."""
        return self if self._expansion is None else cast(Self, self._expansion.pair)

    @property
    def scheduled(self) -> bool:
        """Whether a hyperparameter is evaluated at each step."""
        return self._expansion is not None and bool(self._expansion.schedules)

    @property
    def traits(self) -> Traits:
        """What the transformation can do, as the result of its builder says."""
        return self._traits if self._expansion is None else cast(Traits, self._expansion.traits)

    @property
    def step(self) -> StepFn | None:
        """The function that takes a whole step, if updates are not simply added to parameters."""
        return self.traits.step

    @property
    def before_gradients(self) -> BeforeFn | None:
        """The function that runs before gradients are taken, if there is one."""
        return self.traits.before_gradients

    @property
    def rule(self) -> Rule | None:
        """The rule that the engine lifted, with its scope; None for a composed or foreign pair."""
        return self.traits.rule

    @property
    def parts(self) -> "tuple[GradientTransformation, ...] | None":
        """The transformations that updates pass through, where the pair does nothing else."""
        return self.traits.parts

    @property
    def rules(self) -> tuple[Rule, ...] | None:
        """The rules that it consists of; None if it does more than these."""
        if self.rule is not None:
            return (self.rule,)
        below = None if self.parts is None else [part.rules for part in self.parts]
        if below is None or any(rules is None for rules in below):
            return None
        return tuple(rule for rules in below for rule in rules or ())

    @property
    def takes_vectors(self) -> bool:
        """Whether updates stay the same if leaves are joined into longer ones."""
        traits = self.traits
        by_entry = traits.rule is not None and traits.rule.scope is Scope.ENTRY
        return by_entry or traits.takes_vectors or traits.facet(Links) is not None

    def facet(self, kind: type[KindT]) -> KindT | None:
        """What the pair says of itself by a record of a class; None if it says no such thing.

        >>> import gradtx
        >>> from gradtx.core.traits import Links
        >>> len(gradtx.sgd(0.1).facet(Links).each), gradtx.scale(0.1).facet(Links)
        (2, None)
        """
        return self.traits.facet(kind)

    def with_facets(self, *facets: Any) -> Self:
        """The pair with further facets, each in place of one of the same class.

        It is a pair made by hand; as the result of a builder it is declared.
        """
        return self._replace(facets=(*self.traits.facets, *facets))

    def saying(self, kind: type[Any]) -> "tuple[GradientTransformation, ...]":
        """Of it and the transformations inside of it, the innermost that have a facet of a class.

        What another one is built of, or hands the facet on from, is inside of that.
        """

        def from_inside(tx: GradientTransformation) -> bool:
            return any(inner.facet(kind) is tx.facet(kind) for inner in tx.within)

        saying = [tx for tx in (self, *self.within) if tx.facet(kind) is not None]
        return tuple(tx for tx in saying if not from_inside(tx))

    @functools.cached_property
    def children(self) -> "tuple[tuple[str, GradientTransformation], ...]":
        """The transformations among the arguments, with their names there."""
        if self.declaration is None:
            return ()
        children: list[tuple[str, GradientTransformation]] = []
        for name, value in self.declaration.arguments.items():
            kind = self.declaration.builder.signature.parameters[name].kind
            children += transformations_in(value, "" if kind is kind.VAR_POSITIONAL else name)
        return tuple(children)

    @functools.cached_property
    def inside(self) -> "tuple[GradientTransformation, ...]":
        """The transformations directly inside of it: what it stands for, its parts, or others.

        The others are those that its record names, and those among its arguments.
        """
        if self.expansion is not self and self.expansion.declaration is not None:
            return (self.expansion,)
        if self.parts is not None:
            return self.parts
        inner = self.traits.inner
        inner = inner() if callable(inner) else inner
        seen = {id(each) for tx in inner for each in (tx, *tx.within)}
        return (*inner, *(tx for _, tx in self.children if id(tx) not in seen))

    @functools.cached_property
    def within(self) -> "tuple[GradientTransformation, ...]":
        """The transformations inside of it, at every depth."""
        return tuple(inner for tx in self.inside for inner in (tx, *tx.within))

    @property
    def is_built(self) -> bool:
        """Whether the pair and all pairs inside have been built: then no trace leaves a tracer."""
        if self._is_built or (self._expansion is not None and not self._expansion.is_built):
            return self._is_built
        self._is_built = all(tx.is_built for tx in (*self.inside, *(tx for _, tx in self.children)))
        return self._is_built

    def check_numbers(self) -> None:
        """Raise ValueError if a hyperparameter is several numbers that nothing maps over."""
        if self._expansion is not None:
            self._expansion.declaration.check_numbers()
            self._expansion.pair.check_numbers()

    def _replace(self, **fields: Any) -> Self:
        declared = self.declaration is not None and "init" in fields
        traits = self.traits
        if "update" in fields or declared:
            # The record of the old update does not hold for the new one, nor does the declaration.
            # Needs are looked up in the old pair: a new update of its state most likely calls it.
            traits = Traits(inner=() if "init" in fields else (self,))
        return type(self)(**{**self._asdict(), **traits._asdict(), **fields})

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class that `isinstance` takes a pair for; the actual class is ``type(tx)``."""
        extra = issubclass(type(self), GradientTransformationExtraArgs)
        return passes_for(f"GradientTransformation{'ExtraArgs' if extra else ''}", type(self))

    def __setattr__(self, name: str, value: Any) -> None:
        declared = (inspect.get_annotations(c) for c in type(self).__mro__)
        if name[0] != "_" and not any(name in names for names in declared):
            raise AttributeError(
                f"{name} cannot be assigned: a transformation does not change; "
                f"replace(tx, {name}=...) makes another, which goes on from the same state"
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        if self.declaration is not None:
            return repr(self.declaration)
        return f"{type(self).__name__}(init={self.init!r}, update={self.update!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GradientTransformation):
            return NotImplemented
        if self.declaration is None and other.declaration is None:
            return bool(_key_by_hand(self) == _key_by_hand(other))
        return self.declaration == other.declaration

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return tuple.__hash__(self) if self.declaration is None else hash(self.declaration)

    def __reduce__(self) -> Any:
        if self.declaration is None:
            return _remade, (type(self), tuple(self), self._traits)
        return _rebuild, (type(self), self.declaration.builder, self.declaration.arguments)

    def __deepcopy__(self, memo: Any) -> "GradientTransformation":
        return self  # immutable

    def __copy__(self) -> "GradientTransformation":
        return self


_FIELDS = frozenset(Traits._fields)


class GradientTransformationExtraArgs(GradientTransformation):
    """A pair whose ``update`` takes ``**extra_args``: every one that gradtx builds does."""


class _Members(NamedTuple):
    """`Traits` as pickles of pairs made by hand hold them, which name this class."""

    step: StepFn | None
    before_gradients: BeforeFn | None
    rule: Rule | None
    parts: tuple[GradientTransformation, ...] | None


def _remade(cls: type[GradientTransformation], pair: Any, traits: Traits | _Members) -> Any:
    return cls(*pair, **traits._asdict())


def _rebuild(cls: type[GradientTransformation], builder: Builder, arguments: Any) -> Any:
    return cls.declared(Declaration(builder, builder.recorded(arguments)))


def _function_of(builder: Builder, arguments: Any, method: str) -> Any:
    return getattr(_rebuild(GradientTransformationExtraArgs, builder, arguments), method)


class _Structure:
    """What JAX keeps of a pair beside its arrays; equal for equal pairs.

    Args:
        key: what is compared.
        pair: the pair itself if it has no arrays. If it is built, a trace need not do so again.
        functions: those of a pair made by hand, whose facets may hold what has no hash.
    """

    def __init__(
        self, key: Any, pair: GradientTransformation | None, functions: Any = None
    ) -> None:
        self.key, self.pair, self.functions = key, pair, functions

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Structure) and self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key if self.functions is None else self.functions)


def _key_by_hand(tx: GradientTransformation) -> Any:
    """By which pairs made by hand are compared: their functions, and all that they say."""
    # Arrays in facets have no truth value, and records of two classes may be equal.
    leaves, facets = jax.tree.flatten(tx.traits.facets)
    return tuple(tx), tx.traits._replace(facets=()), facets, tuple(map(Static, leaves))


def _register(cls: type[GradientTransformation]) -> None:
    def flatten(tx: GradientTransformation) -> tuple[Any, _Structure]:
        if tx.declaration is None:
            return (), _Structure(_key_by_hand(tx), tx, tuple(tx))
        arrays, structure = tx.declaration.flatten()
        return arrays, _Structure(structure, None if arrays else tx)

    def unflatten(structure: _Structure, arrays: Any) -> GradientTransformation:
        pair = structure.pair
        if pair is not None and (pair.declaration is None or pair.is_built):
            return pair
        return cls.declared(Declaration.unflatten(structure.key, arrays))

    jax.tree_util.register_pytree_node(cls, flatten, unflatten)


_register(GradientTransformation)
_register(GradientTransformationExtraArgs)


def transformations_in(value: Any, name: str) -> Iterator[tuple[str, GradientTransformation]]:
    """The transformations in an argument, with the path of each."""

    def join(key: Any) -> str:
        return f"{name}.{key}" if name else str(key)

    if isinstance(value, GradientTransformation):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from transformations_in(item, join(key))
    elif isinstance(value, list | tuple):
        if len(value) == 2 and isinstance(value[0], str):
            yield from transformations_in(value[1], join(value[0]))
            return
        for i, item in enumerate(value):
            pair = isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)
            yield from transformations_in(item, name if pair else join(i))


def reduced_axes(tx: GradientTransformation) -> tuple[str, ...]:
    """The axes over which `tx` reduces gradients."""
    messages = [part.facet(Communication) for part in (tx, *tx.within)]
    return tuple(dict.fromkeys(axis for each in messages if each for axis in each.reduces))


class _Decorator(Protocol):
    def __call__(
        self, function: Callable[_P, GradientTransformation], /
    ) -> Callable[_P, GradientTransformationExtraArgs]: ...


@overload
def transformation(
    function: Callable[_P, GradientTransformation],
) -> Callable[_P, GradientTransformationExtraArgs]: ...


@overload
def transformation(
    *,
    native_schedules: bool = False,
    update_size: DeclaredSize | None = None,
) -> _Decorator: ...


def transformation(
    function: Any = None,
    *,
    native_schedules: bool = False,
    update_size: DeclaredSize | None = None,
) -> Any:
    """Make the result of a builder data: it carries the builder and the arguments.

    Annotations say what the arguments may be: one of the ranges of :mod:`gradtx.checks`
    (``b1: Decay = 0.9``) makes an argument a hyperparameter, which is checked, and which may be a
    number, an array, a schedule ``count -> value``, or a function without arguments. For a schedule
    the builder is called again at every step with the current value, so its body sees only numbers
    and arrays; a function without arguments is a schedule too, called at each step (see
    :func:`evaluated`).

    Args:
        function: the builder; it returns a pair (from :func:`elementwise`, :func:`leafwise`,
            :func:`chain`, or made by hand).
        native_schedules: the builder takes schedules itself, or passes them on to others.
        update_size: what :func:`transfer` needs to know: ``"adam"`` where the entries of updates
            have one size whatever the gradient's is, ``"proportional"`` where updates are in
            proportion to those taken, or an `UpdateSize`, for matrices.

    Returns:
        The builder, whose results are declared.

    >>> import gradtx, jax.numpy as jnp
    >>> from gradtx.checks import NonNegative
    >>> @gradtx.transformation
    ... def halve_above(limit: NonNegative = 1.0):
    ...     def rule(g, s, t):
    ...         return jnp.where(jnp.abs(g) > limit, g / 2, g), {}
    ...
    ...     return gradtx.elementwise(gradtx.EmptyState, None, rule)
    >>> halve_above(limit=3.0)
    halve_above(limit=3.0)
    """

    def decorate(function: Any) -> Any:
        builder = Builder(function, native=native_schedules, update_size=update_size)

        def build(*args: Any, **kwargs: Any) -> GradientTransformationExtraArgs:
            arguments = builder.bind(*args, **kwargs)
            tx = GradientTransformationExtraArgs.declared(Declaration(builder, arguments))
            if not builder.schedules(arguments):
                tx.expansion  # noqa: B018  # errors in the arguments belong to the call
            return cast(GradientTransformationExtraArgs, tx)

        return publish(build, builder)

    return decorate if function is None else decorate(function)


@overload
def optimizer(
    function: Callable[_P, GradientTransformation],
) -> Callable[_P, GradientTransformationExtraArgs]: ...


@overload
def optimizer(*, update_size: DeclaredSize | None = None) -> _Decorator: ...


def optimizer(function: Any = None, *, update_size: DeclaredSize | None = None) -> Any:
    """A builder that names a composition and passes its hyperparameters on, such as ``adam``.

    Args:
        function: what returns the composition. Its annotations say the ranges of its arguments.
        update_size: as in :func:`transformation`.

    >>> import gradtx
    >>> @optimizer
    ... def clipped_sgd(learning_rate: gradtx.checks.LearningRate):
    ...     return gradtx.chain(gradtx.clip(1.0), gradtx.sgd(learning_rate))
    >>> clipped_sgd(0.1)
    clipped_sgd(learning_rate=0.1)
    """
    decorate = transformation(native_schedules=True, update_size=update_size)
    return decorate if function is None else decorate(function)


def with_extra_args_support(tx: Any) -> GradientTransformation:
    """`tx` with an ``update`` that takes ``**extra_args``, and ignores those that `tx` does not.

    Args:
        tx: a pair, from gradtx or another library such as Optax, or any object with ``init`` and
            ``update``, such as `MultiSteps`. Its type or the signature of its ``update`` says
            whether it takes extra arguments: any, or those that it names.

    Returns:
        `tx` itself if its ``update`` takes any extra argument, otherwise a pair around it.

    Raises:
        TypeError: `tx` is not a pair; it may be a builder that was not called.

    >>> class Halve:
    ...     def init(self, params):
    ...         return ()
    ...
    ...     def update(self, updates, state, params=None):
    ...         return updates / 2, state
    >>> with_extra_args_support(Halve()).update(4.0, (), value=1.0)
    (2.0, ())
    """
    if isinstance(tx, GradientTransformationExtraArgs):
        return tx
    if hasattr(tx, "gradient_transformation"):  # MultiSteps, here and in Optax
        return with_extra_args_support(tx.gradient_transformation())
    is_pair = isinstance(tx, tuple) and len(tx) == 2
    init, update = tx if is_pair else (getattr(tx, name, None) for name in ("init", "update"))
    if not (callable(init) and callable(update)) or isinstance(tx, type):
        hint = ""
        if isinstance(getattr(tx, "builder", None), Builder):
            hint = f": call it, {tx.builder.name}(...)"
        elif isinstance(tx, list | tuple):
            hint = ": chain(*links) makes one of several"
        raise TypeError(
            f"expected a gradient transformation, not {type(tx).__name__} {tx!r:.200}{hint}"
        )
    parameters = list(inspect.signature(update).parameters.values())
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if takes_all and isinstance(tx, GradientTransformation):
        return tx
    further = [p for p in parameters[3:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    adapted = _adapted(init, update, None if takes_all else frozenset(p.name for p in further))
    if not isinstance(tx, GradientTransformation):
        return adapted
    return adapted._replace(**tx.traits.passed_on()._replace(inner=(tx,))._asdict())


@functools.lru_cache(maxsize=64)  # so that a program compiled for it is found again
def _adapted(
    init: Callable[..., State], update: Callable[..., Any], takes: frozenset[str] | None
) -> GradientTransformation:
    """A pair as of another library, which takes leaves, and extra arguments only if it says so.

    takes: the extra arguments that `update` names; None if it takes any.
    """

    def update_with(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        accepted_args = {n: v for n, v in extra_args.items() if takes is None or n in takes}
        if holds_packed(updates):
            return on_leaves(update, updates, state, params, accepted_args)
        if holds_rows(updates):
            return _on_rows(lambda g: update(g, state, params, **accepted_args), updates)
        return cast(tuple[Updates, State], update(updates, state, params, **accepted_args))

    return GradientTransformationExtraArgs(lambda params: init(unpack(params)), update_with)


def _on_rows(update: Callable[[Updates], Any], updates: Updates) -> tuple[Updates, State]:
    """Another library's update of `Rows`, whose leaves it sees; an error that says what to do."""
    try:
        refuse_changed_indices(lambda g: update(g)[0], updates)
        return cast(tuple[Updates, State], update(updates))
    except ValueError as error:
        raise ValueError(
            "a transformation of another library takes the Rows of a table apart: put dense_rows "
            f"around it, or leave the tables out with masked; it says: {str(error).splitlines()[0]}"
        ) from error
