"""What a transformation is and can do, beside its two functions, in one record.

A pair carries the record, and code that acts on transformations reads it.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from enum import StrEnum
from typing import Any, Literal, NamedTuple, TypeAlias

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


class Communication(NamedTuple):
    """What a device sends to others in a step.

    Attributes:
        bytes: ``params -> bytes``, on average over steps.
        peak_bytes: the same for the step in which a device sends most.
        over: the axes over which the device sends.
        reduces: the axes over which gradients are reduced: :func:`minimize` takes each device's
            own.
        gathers: whether every device receives the whole message of every other.
    """

    bytes: Callable[[Params], int]
    peak_bytes: Callable[[Params], int]
    over: tuple[str, ...]
    reduces: tuple[str, ...] = ()
    gathers: bool = False


class Sent(NamedTuple):
    """What a device sends for some parameters: on average over steps, and at most in one.

    communication: over which axes, and how; bytes, peak_bytes: how many.
    """

    communication: Communication
    bytes: int
    peak_bytes: int


_sent: ContextVar[list[Sent] | None] = ContextVar("sent", default=None)


@contextlib.contextmanager
def all_sent() -> Iterator[list[Sent]]:
    """A list to which every ``init`` that is called within adds what its transformation sends."""
    sent: list[Sent] = []
    token = _sent.set(sent)
    try:
        yield sent
    finally:
        _sent.reset(token)


@contextlib.contextmanager
def sends(communication: Communication, params: Params) -> Iterator[None]:
    """Around an ``init``: add what the transformation sends to the list of :func:`all_sent`.

    Transformations inside of it add what they send over other axes: the rest is counted in that.
    """
    messages = _sent.get()
    if messages is None:
        yield
        return
    of = communication.bytes(params), communication.peak_bytes(params)
    messages.append(Sent(communication, *of))
    with all_sent() as below:
        yield
    messages += [sent for sent in below if is_apart(sent.communication, communication)]


def is_apart(one: Communication, other: Communication) -> bool:
    """Whether messages go over axes over which the others do not."""
    return not set(one.over) <= set(other.over)


class Traits(NamedTuple):
    """What a transformation is and can do, beside its two functions; said where it is made.

    Attributes:
        step: ``(updates, state, params, **extra_args) -> (params, state)``, ``update`` with the
            updates applied, if that saves memory.
        before_gradients: ``(params, state, touched) -> (params, state)``, what must happen before
            gradients are taken.
        rule: what the rule reads, if the engine lifted one.
        lifted: the engine's parts of that rule, if the transformation is nothing else.
        parts: the transformations that updates pass through, if it does no more than that.
        links: these and their states, if updates pass through one after another.
        on_part: ``(i, function, tree) -> tree``, the tree with the function's result for the leaves
            that part `i` (or `i` of `inner`) sees, if it does not see the tree as it is.
        takes_vectors: whether it does the same if leaves are joined into longer ones, so that it
            may run on the vectors of :func:`pack`.
        clock: the state class, of a count alone, where a transformation without a state has a
            hyperparameter that is a schedule.
        cases: the transformations of which it is one at each step, if it can tell before it has
            seen the gradients.
        communication: what devices send.
        multipliers: what the hyperparameters of each leaf are multiplied by, by its path.
        nearest: ``(params, rate) -> params``, the nearest point of the set to which it keeps the
            parameters, or the proximal map of the penalty that it adds to the loss, times `rate`;
            at the rate 0 the second is the identity. The points where steps end are fixed points of
            a gradient step of that rate followed by this map.
        roles: ``params -> {path: role}``, for what it takes the leaves that it knows.
        takes_norm: for one that takes the norm of all gradients as the extra argument `grad_norm`,
            whether a leaf's update reads it, or the state of the next step alone.
        inner: the transformations that it runs in another way, or a function that returns them;
            what these can do is looked up in them.
        searches: whether its state keeps the value and, unless it is None, the gradient of the loss
            at the point to which its step leads.
        scales_loss: whether the gradients that it takes are those of a loss multiplied by the
            `loss_scale` in its state.
        estimator: how its gradients are estimated, if they are not taken by a backward pass.
    """

    step: StepFn | None = None
    before_gradients: BeforeFn | None = None
    rule: Rule | None = None
    lifted: Any = None
    parts: tuple[Any, ...] | None = None
    links: Links | None = None
    on_part: Callable[[int, Callable[[Any], Any], Any], Any] | None = None
    takes_vectors: bool = False
    clock: Callable[[Any], State] | None = None
    cases: Any = None
    communication: Communication | None = None
    multipliers: Mapping[str, Any] | None = None
    nearest: Callable[[Params, Any], Params] | None = None
    roles: Callable[[Params], Mapping[str, Any]] | None = None
    takes_norm: Literal["update", "state"] | None = None
    # A new field comes last: pickles hold the record by position.
    inner: tuple[Any, ...] | Callable[[], tuple[Any, ...]] = ()
    searches: bool = False
    scales_loss: bool = False
    estimator: Any = None

    def passed_on(self) -> "Traits":
        """The record for a pair that takes the same steps with the same state, in another way.

        All is the same but how a step is computed. (Who takes the norm is looked up inside.)
        """
        computed = (
            *("step", "rule", "lifted", "parts", "links", "on_part", "inner"),
            *("takes_vectors", "clock", "cases", "takes_norm", "searches"),
        )
        return self._replace(**{name: self._field_defaults[name] for name in computed})
