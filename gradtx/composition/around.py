"""What happens around a transformation: before its step and afterwards."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from gradtx.core.loss_functions import elsewhere, seen_as
from gradtx.core.pair import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    with_extra_args_support,
)
from gradtx.core.traits import StepFn, Traits
from gradtx.leaves.whole import part_of_whole
from gradtx.types import Params, PyTree, State, Updates


@dataclass(frozen=True)
class InnerStep:
    """The step of an inner transformation, which passes on extra arguments.

    Attributes:
        function: ``tx.update``, or the `step` of :func:`around`.
        extra_args: those that the outer transformation was given.
        whole: whether a whole step is taken, whose result is the new parameters, and not updates.
    """

    function: Callable[..., tuple[Any, State]]
    extra_args: dict[str, Any]
    whole: bool = False

    def __call__(
        self, updates: Updates, state: State, params: Params | None = None, **others: Any
    ) -> tuple[Any, State]:
        """The result and the new inner state; `others` override extra arguments."""
        return self.function(updates, state, params, **{**self.extra_args, **others})

    def seen_as(
        self, outward: Callable[[PyTree], PyTree], inward: Callable[[PyTree], PyTree]
    ) -> "InnerStep":
        """The step of an inner transformation that sees the parameters in another form.

        Args:
            outward: parameters in that form -> in the outer form.
            inward: gradients in the outer form -> in that form.
        """

        def function(*args: Any, **extra_args: Any) -> tuple[Any, State]:
            with part_of_whole(inward):
                return self.function(*args, **extra_args)

        extra_args = seen_as(self.extra_args, outward, inward)
        return replace(self, function=function, extra_args=extra_args)

    def elsewhere(self) -> "InnerStep":
        """The step of an inner transformation from other parameters than those of the gradient."""
        return replace(self, extra_args=elsewhere(self.extra_args))


def not_outermost(name: str | None) -> ValueError:
    """The error about a transformation that runs before gradients, and has another around it."""
    return ValueError(
        f"{name or 'what has before_gradients'} must be the outermost transformation, once: what "
        "is around it would not take part when rows catch up: write "
        f"{name or 'tx'}(chain(...)), {name or 'tx'}(partition(...)) and so on"
    )


Run: TypeAlias = Callable[[InnerStep, Updates, State, Params | None], tuple[Any, State]]


def around(
    tx: GradientTransformation,
    init: Callable[[Params], State] | None,
    run: Run,
    *,
    step: StepFn | None = None,
    same_steps: bool = False,
    facets: Iterable[Any] = (),
    **traits: Any,
) -> GradientTransformation:
    """A transformation that does something before `tx` takes its step, and afterwards.

    Its record says that `tx` is inside, where code that acts on transformations looks up what `tx`
    can do and needs; what cannot be done through `run`, such as what comes before gradients, is
    then refused by name.

    Args:
        tx: the inner transformation.
        init: ``params -> state``, the state of the returned transformation; None for that of `tx`.
        run: ``(inner_step, updates, state, params) -> (result, state)``, which calls
            ``inner_step(updates, inner_state, params)`` for the inner result and state. The result
            is the updates, or in a whole step the parameters.
        step: what `run` calls where a whole step is taken: ``tx.step``, or ``tx.update`` if `run`
            adds the updates itself; None if whoever takes the step adds them.
        same_steps: whether it takes the steps of `tx`, with the same state, in another way: then it
            can do whatever `tx` can do.
        facets: what there is to say of it, beside what it hands on.
        traits: what else the pair can do: other fields of `Traits`.

    >>> import gradtx
    >>> def halved(inner_step, updates, state, params):
    ...     return inner_step(updates / 2, state, params)
    >>> tx = around(gradtx.sgd(1.0), None, halved)
    >>> float(tx.update(4.0, tx.init(0.0))[0])
    -2.0
    """
    tx = with_extra_args_support(tx)

    def outer(function: StepFn, *, whole: bool = False) -> StepFn:
        def called(
            updates: Updates, state: State, params: Params | None = None, **extra_args: Any
        ) -> tuple[Any, State]:
            return run(InnerStep(function, extra_args, whole), updates, state, params)

        return called

    record = (tx.traits.passed_on() if same_steps else Traits())._replace(
        step=None if step is None else outer(step, whole=True), inner=(tx,)
    )
    fields = {**record._asdict(), "facets": (*record.facets, *facets), **traits}
    return GradientTransformationExtraArgs(init or tx.init, outer(tx.update), **fields)
