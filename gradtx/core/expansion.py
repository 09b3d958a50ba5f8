"""What a declaration stands for: the pair that its builder returns, and the one way into that pair.

An update passes through these in turn, eager or traced; a whole step through 1, 2, 4, 8 and 9,
`apply_gradients` does 3 before it, and `take_step` 6 around it:

1. an error from arguments that were mixed up says so (`explanations`);
2. hyperparameters must be single numbers (`Declaration.check_numbers`);
3. `None` stands for parameters that are no arrays (`paths.without_objects`);
4. vectors of packed leaves are taken apart, unless the pair takes vectors (`packed.on_leaves`);
5. outside of ``jit``, a step of gradtx's own rules is one compiled program (`eager`);
6. on a mesh with explicit axes, no axis is explicit inside (`shardings`);
7. hyperparameters that are schedules get their values at this step (`scheduled`);
8. slots kept in another form than an array are loaded, unless the engine does so, here or in what
   the state is handed on to (`materialized`);
9. functions of the parameters among the extra arguments, such as the loss, may be called with some
   leaves of those that are there (`loss_functions`).
"""

import functools
from typing import Any, cast

import jax

from gradtx.core.eager import EagerStep, count_of_arrays, eager_programs, is_ours
from gradtx.core.explanations import check_alive, explained
from gradtx.core.loss_functions import of_all_leaves
from gradtx.core.materialized import on_arrays
from gradtx.declarations.declaration import Declaration
from gradtx.declarations.scheduled import Schedules
from gradtx.leaves.packed import holds_packed, on_leaves, unpack
from gradtx.leaves.paths import without_objects
from gradtx.leaves.shardings import on_explicit_axes
from gradtx.leaves.whole import of_form, whole_form, whole_leaves
from gradtx.names.libraries import tell_libraries
from gradtx.numerics import as_arrays
from gradtx.programs.tracing import is_shape, where_known
from gradtx.types import Params, State, Updates


class Expansion:
    """The pair of a declaration, built when it is first needed.

    Args:
        declaration: what was declared.
    """

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self.schedules = Schedules(declaration)

    @functools.cached_property
    def pair(self) -> Any:
        """The `GradientTransformation` that the builder returned, for the first step's values."""
        declaration = self.schedules.at_start() if self.schedules else self.declaration
        return declaration.builder.call(declaration.arguments)

    @property
    def is_built(self) -> bool:
        """Whether that pair is there."""
        return "pair" in vars(self)

    @functools.cached_property
    def traits(self) -> Any:
        """The `Traits` of that pair, with the way into its ``step``.

        A pair that is built anew at each step, for its schedules, is only an update to others.
        """
        traits = self.pair.traits
        if self.schedules:
            return traits._replace(step=None, cases=None, lifted=None, links=None)
        return traits if traits.step is None else traits._replace(step=self._step)

    @functools.cached_property
    def _is_ours(self) -> bool:
        return is_ours(self.declaration)

    def init(self, params: Params) -> State:
        tell_libraries()  # some may have been imported since the pair was built
        self.declaration.check_numbers()
        if self._sees_leaves(params):
            params = unpack(params)
        if any(map(is_shape, jax.tree.leaves(params))):
            return where_known(self.init, params)
        try:
            state = self.pair.init(as_arrays(params))
        except (RuntimeError, ValueError):
            check_alive(**{f"{self.declaration.name}: the parameters": params})
            raise
        return self.schedules.counted(state, self.pair.traits.clock) if self.schedules else state

    @explained
    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        self.declaration.check_numbers()
        extra_args = of_all_leaves(extra_args, params)
        params = without_objects(updates, params)
        if self._sees_leaves(updates):
            return on_leaves(self.update, updates, state, params, extra_args)
        arrays = {n: v for n, v in extra_args.items() if not callable(v)}
        # A rule of the engine's calls no function, such as the `value_fn` that `minimize` passes.
        known = len(arrays) == len(extra_args) or self.pair.rules is not None
        numbers, structure = self.declaration.flatten()
        if known and count_of_arrays(updates, state, params, arrays) and self._is_ours:
            done: tuple[Updates, State]
            run = _program(structure, whole_form())
            done = run(numbers, updates, state, params, **arrays)
            return done

        def of_numbers(entered: Any, *trees: Any, **extra_args: Any) -> Any:
            same = entered is numbers
            expansion = self if same else Expansion(Declaration.unflatten(structure, entered))
            return expansion._update(*trees, **extra_args)

        updates, params = as_arrays(updates), as_arrays(params)
        like = updates, state
        return on_explicit_axes(of_numbers, like, numbers, updates, state, params, extra_args)

    def _update(
        self, updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        if self.schedules:
            clock = self.pair.traits.clock
            return self.schedules.update(clock, _update_of, updates, state, params, extra_args)
        run = _update_of(self.pair, state)
        return cast(tuple[Updates, State], run(updates, state, params, **extra_args))

    @explained
    def _step(
        self, updates: Updates, state: State, params: Params, **extra_args: Any
    ) -> tuple[Params, State]:
        self.declaration.check_numbers()
        extra_args = of_all_leaves(extra_args, params)
        if self._sees_leaves(updates):
            return on_leaves(self._step, updates, state, params, extra_args)
        run = _of_slots(self.pair, self.pair.traits.step, state)
        return cast(tuple[Params, State], run(updates, state, params, **extra_args))

    def _sees_leaves(self, tree: Any) -> bool:
        """Whether a tree holds vectors of many leaves, and these are to be seen one by one."""
        # What a declared pair sees is decided where it is entered.
        takes_vectors = self.pair.declaration is not None or self.pair.takes_vectors
        return not takes_vectors and holds_packed(tree)


def _of_slots(pair: Any, function: Any, state: State) -> Any:
    """A pair's update or step for slots in whatever form they are kept: the engine's takes any."""
    traits = pair.traits
    # A pair that only hands its state on leaves this to the pairs inside of it.
    hands_on = traits.parts is not None and all(p.declaration is not None for p in traits.parts)
    engine = traits.rule is not None or hands_on
    return function if engine else on_arrays(function, state)


def _update_of(pair: Any, state: State) -> Any:
    return _of_slots(pair, pair.update, state)


@functools.lru_cache(maxsize=64)  # of the optimizers that ran last
def _program(structure: Any, form: Any) -> EagerStep:
    """The step of what a declaration describes, compiled; its array hyperparameters come first.

    Args:
        structure: of the declaration.
        form: the :func:`whole_form` of the leaves that it is asked of.
    """

    def run(numbers: Any, *trees: Any, **extra_args: Any) -> Any:
        # The first for jax.disable_jit.
        with eager_programs(False), whole_leaves(of_form(form)):
            expansion = Expansion(Declaration.unflatten(structure, numbers))
            return expansion.update(*trees, **extra_args)

    numbers_or_none = [None for x in structure[2] if x is None]
    return EagerStep(repr(Declaration.unflatten(structure, numbers_or_none)), run)
