"""What a transformation is and can do, beside its two functions, in one record.

A pair carries the record, which is read wherever something depends on what a transformation is.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar

from gradtx.core.communication import Communication  # noqa: F401  # pickles name this module
from gradtx.names.earlier import record_of_positions
from gradtx.types import Params, State, Updates


class Scope(StrEnum):
    """What a rule reads to compute one entry of an update."""

    ENTRY = "entry"
    ROW = "row"
    LEAF = "leaf"
    MATRIX = "matrix"
    TUPLE = "tuple"
    TREE = "tree"


class Rule:
    """A rule as the engine lifted it; code that acts on transformations reads here what it may do.

    Attributes:
        scope: what the rule reads.
        state: the state class, whose annotations say what its fields are.
        function: the rule itself.
        on_rows: whether it runs on `Rows`.
        zero_gradient: what it does while gradients are zero, if it declares that.
        of_tree: what it reads of the whole tree, if it reads entries otherwise.
    """

    # Not a dataclass, which would take longer to make than most modules to import.
    def __init__(
        self,
        scope: Scope,
        state: Any,
        function: Callable[..., Any],
        *,
        on_rows: bool,
        zero_gradient: Any = None,
        of_tree: Callable[[list[Any]], dict[str, Any]] | None = None,
    ) -> None:
        self.scope, self.state, self.function = scope, state, function
        self.on_rows, self.zero_gradient, self.of_tree = on_rows, zero_gradient, of_tree


StepFn: TypeAlias = Callable[..., tuple[Params, State]]
BeforeFn: TypeAlias = Callable[[Params, State, Callable[[], Updates]], tuple[Params, State]]


KindT = TypeVar("KindT")
_FacetClassT = TypeVar("_FacetClassT", bound=type)


def not_handed_on(kind: _FacetClassT) -> _FacetClassT:
    """Decorates a class of facets that say how a step is computed, and not what it is.

    A wrapper that takes the same steps, in another way, does not have them.
    """
    kind.handed_on = False  # type: ignore[attr-defined]  # read by `Traits.passed_on`
    return kind


def runs_steps(kind: _FacetClassT) -> _FacetClassT:
    """Decorates a class of facets that run steps, with the hyperparameters that they close over.

    A pair that is built anew at each step, for its schedules, does not have them either.
    """
    kind.runs_steps = True  # type: ignore[attr-defined]  # read by `Traits.of_first_values`
    return not_handed_on(kind)


@runs_steps
class Links(NamedTuple):
    """Transformations that updates pass through one after another, and nothing else.

    Attributes:
        each: the transformations.
        states: ``state -> states``, those of each in the state of the whole.
        joined: ``states -> state``, the inverse.
    """

    each: tuple[Any, ...]
    states: Callable[[State], tuple[State, ...]]
    joined: Callable[[Iterable[State]], State]


def facets_of(records: Iterable[Any]) -> tuple[Any, ...]:
    """Facets as a pair has them: of each class the last.

    Raises:
        TypeError: one is a class, or is of a class of Python's own.
    """
    facets: dict[type, Any] = {}
    for record in records:
        if isinstance(record, type) or type(record).__module__ == "builtins":
            raise TypeError(
                f"facets: {record!r:.80} is no facet, which is a record of a class of its own: "
                "define one, such as class Priority(NamedTuple), and pass Priority(...)"
            )
        facets.pop(type(record), None)
        facets[type(record)] = record
    return tuple(facets.values())


class _Fields(NamedTuple):
    rule: Rule | None = None
    parts: tuple[Any, ...] | None = None
    step: StepFn | None = None
    before_gradients: BeforeFn | None = None
    takes_vectors: bool = False
    inner: tuple[Any, ...] | Callable[[], tuple[Any, ...]] = ()
    facets: tuple[Any, ...] = ()


class Traits(_Fields):
    """What a transformation is and can do, beside its two functions; said where it is made.

    Attributes:
        rule: what the rule reads, if the engine lifted one.
        parts: the transformations that updates pass through, if it does no more than that.
        step: ``(updates, state, params, **extra_args) -> (params, state)``, ``update`` with the
            updates applied, if that saves memory.
        before_gradients: ``(params, state, touched) -> (params, state)``, what must happen before
            gradients are taken.
        takes_vectors: whether it does the same if leaves are joined into longer ones, so that it
            may run on the vectors of :func:`pack`.
        inner: the transformations that it runs in another way, or a function that returns them;
            what these can do is looked up in them.
        facets: whatever else there is to say: records, each of a class in the file of its subject,
            by which it is looked up.
    """

    __slots__ = ()

    def __new__(cls, *fields: Any, **named: Any) -> Self:
        # Pickles of earlier versions hold longer records, by position.
        if len(fields) > len(cls._fields):
            return cls(**record_of_positions(fields))
        return super().__new__(cls, *fields, **named)

    def facet(self, kind: type[KindT]) -> KindT | None:
        """The facet of a class; None if there is none."""
        return next((each for each in self.facets if isinstance(each, kind)), None)

    def passed_on(self) -> "Traits":
        """The record for a pair that takes the same steps with the same state, in another way.

        All is the same but how a step is computed.
        """
        facets = [each for each in self.facets if getattr(each, "handed_on", True)]
        return Traits(before_gradients=self.before_gradients, facets=tuple(facets))

    def of_first_values(self) -> "Traits":
        """The record for a pair that is built anew at each step: to others it is only an update."""
        facets = [each for each in self.facets if not getattr(each, "runs_steps", False)]
        return self._replace(step=None, facets=tuple(facets))
