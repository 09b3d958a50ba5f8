"""The compiled step."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVarTuple, overload

import jax
import jax.numpy as jnp

from gradtx.backward.inside import InsidePlan
from gradtx.checks import check_integer
from gradtx.composition.apply import loses_small_steps
from gradtx.core.explanations import check_alive, explain, name_of
from gradtx.core.pair import (
    GradientTransformation,
    with_extra_args_support,
)
from gradtx.declarations.declaration import read_by_people
from gradtx.declarations.declared_schedule import evaluated, reads_host
from gradtx.estimators.estimator import Estimator
from gradtx.inspection.guards import GuardReport, guard_report
from gradtx.inspection.hyperparams import replace
from gradtx.leaves.paths import Where, aligned, path_string, select, with_paths
from gradtx.leaves.shardings import committed
from gradtx.numerics import cast
from gradtx.programs.tracing import is_tracer
from gradtx.sharding.resharding import Shardings
from gradtx.training.backlog import Backlog
from gradtx.training.estimated import estimating, estimator_of, optimizer_of, say_if_flat
from gradtx.training.minimize import Value, check_order, minimize, read_inside, step_inside
from gradtx.training.rounding import StochasticRoundingState, stochastic_rounding
from gradtx.types import Params, ParamsT, PyTree, State, StateT

Told = TypeVarTuple("Told")


class TrainStep(Generic[*Told]):
    """A compiled step, called as ``params, state, value = step(params, state, *args)``.

    Attributes:
        tx: the optimizer.
    """

    def __init__(
        self,
        tx: GradientTransformation,
        trainable: Where | None,
        compiled: Any,
        sharding: Shardings | None = None,
        plan: Callable[..., InsidePlan] | None = None,
    ) -> None:
        self.tx, self._plan = tx, plan
        # Asked once: most optimizers have no function without arguments.
        self._reads_host = reads_host(tx)
        self._trainable = trainable
        self._compiled = compiled
        self._sharding = sharding
        # Set by the first call, so that later ones need not ask.
        self._started = self._asks_first = self._binds = False
        self._backlog = Backlog()

    def __call__(
        self,
        params: ParamsT,
        state: StateT,
        *args: Any,
        extra_args: Mapping[str, Any] | None = None,
    ) -> tuple[ParamsT, StateT, *Told]:
        """Take one step. The buffers of `params` and `state` are donated: use the returned ones.

        Raises:
            ValueError: an array was donated to an earlier step, or does not have the sharding that
                `sharding` says (the error names it).
            TypeError: something else stands in place of the state.
        """
        is_first = not self._started
        flat_before = self._flat_steps(state) if is_first else 0
        if is_first:
            if _has_no_key(self.tx, state):
                raise TypeError(
                    "make_step: the state of a step with a rounding_key has a key, and this state "
                    "of another transformation has none: make it with step.init(params)"
                )
            # A weakly typed parameter, such as jnp.array(1.0), is strong after the first step.
            if any(getattr(p, "weak_type", False) for p in jax.tree.leaves(params)):
                params = jax.tree.map(
                    lambda p: cast(p, p.dtype) if hasattr(p, "dtype") else p, params
                )
            self._started, self._asks_first = True, jax.device_count() > 1
            if self._sharding is None:
                self._binds = committed((params, state))[1]
        if self._binds:  # else the next step would be compiled again
            (params, state), _ = committed((params, state))
        # Before the call: given a donated array on several devices, JAX 0.10 aborts the process,
        # and it silently moves an array that has another sharding.
        if self._asks_first:
            check_alive(params=params, state=state)
        if self._sharding is not None:
            _check_shardings("params", params, self._sharding.params)
            _check_shardings("state", state, self._sharding.state)
        try:
            done = self._compiled(self._tx_now(), params, state, args, extra_args)
        except (RuntimeError, TypeError, ValueError) as error:
            check_alive(params=params, state=state, args=args, extra_args=extra_args)
            if callable(state):  # JAX refuses it before anything that knows of states sees it
                explain("make_step", error, self.tx.init, params, state, params)
            raise
        if is_first:
            self._look_at_first(done, flat_before)
        elif self._asks_first:
            self._backlog.add(done[2])
        return done

    def _flat_steps(self, state: State) -> int:
        """How many steps before found no difference, if gradients are estimated."""
        flat = getattr(state, "flat_steps", 0)
        return 0 if estimator_of(self.tx) is None or is_tracer(flat) else int(flat)

    def _look_at_first(self, done: tuple[Any, ...], flat_before: int) -> None:
        """Warn if the first step found no difference between the values of the loss."""
        gradients = estimator_of(self.tx)
        if gradients is not None:
            params, state, value = done[:3]
            flat = state.flat_steps - flat_before
            say_if_flat(gradients, flat, jax.tree.leaves(value)[0], params)

    def init(self, params: Params) -> State:
        """The initial state for the trained parameters, sharded if the step is."""
        trained = select(params, self._trainable)
        if self._sharding is not None:
            return self._sharding.init(self.tx, trained)
        return self.tx.init(trained)

    def replace(
        self, paths: dict[str, Any] | None = None, /, **hyperparameters: Any
    ) -> "TrainStep[*Told]":
        """The step with other hyperparameters, for the same state.

        Nothing is recompiled if arrays replace arrays.

        Args:
            paths: new values by path, as :func:`hyperparams` writes it, for names that occur in
                several groups: ``{"transforms.head.learning_rate": jnp.array(0.01)}``, and
                ``{"*.learning_rate": jnp.array(0.01)}`` for all groups.
            hyperparameters: new values by name.

        Raises:
            ValueError, TypeError: as the function :func:`replace`.
        """
        tx = replace(self.tx, paths, **hyperparameters)
        return TrainStep(tx, self._trainable, self._compiled, self._sharding, self._plan)

    def inside(self, params: Params, *args: Any) -> InsidePlan:
        """Which leaves are updated inside of the backward pass, or could be.

        Args:
            params: the parameters, or their shapes.
            args: the other arguments of the loss, or their shapes.

        Raises:
            ValueError: no leaf can be updated inside, or one that was chosen cannot.
        """
        if self._plan is None:
            raise ValueError("the step does not know its loss: make it with make_step")
        return self._plan(self.tx, params, args)

    def _tx_now(self) -> GradientTransformation:
        return evaluated(self.tx) if self._reads_host else self.tx

    def lower(self, params: Params, state: State, *args: Any) -> Any:
        """The step lowered for these arguments, as ``jax.jit(...).lower`` does."""
        return self._compiled.lower(self._tx_now(), params, state, args, None)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.tx!r})"


def _check_shardings(what: str, tree: PyTree, shardings: PyTree) -> None:
    """Raise ValueError if an array does not have the sharding that it should."""
    structure: Any
    leaves, structure = with_paths(tree)
    problem = f"{what}: not the tree that the sharding is for"
    expected = aligned(problem, tree, structure, shardings)
    for (path, x), required in zip(leaves, expected, strict=True):
        if not isinstance(required, jax.sharding.Sharding | None):
            raise ValueError(
                f"{what}: {path_string(path)!r} is in another form than that of the sharding, as "
                "in a state that was loaded: place it by sharding.put(state)"
            )
        if is_tracer(x) or not getattr(x, "committed", False) or x.sharding is required:
            continue
        if required is not None and not x.sharding.is_equivalent_to(required, x.ndim):
            raise ValueError(
                f"{what}: {path_string(path)!r} lies on {x.sharding}, but the step was made for "
                f"{required}: make the state with step.init, or move it with jax.device_put"
            )


def _has_no_key(tx: GradientTransformation, state: State) -> bool:
    """Whether `tx` rounds at random, and the state is that of another transformation."""
    rounds = name_of(tx) == "stochastic_rounding"
    return rounds and isinstance(state, tuple) and not isinstance(state, StochasticRoundingState)


@overload
def make_step(
    loss_fn: Callable[..., Value],
    tx: GradientTransformation,
    *,
    has_aux: bool = False,
    grad_loss: Any = None,
    trainable: Where | None = None,
    donate: bool = True,
    sharding: Shardings | None = None,
    rounding_key: Any = None,
    report: Literal[False] = False,
    steps: int | None = None,
    inside: Where | bool | None = None,
    gradients: Estimator | None = None,
    compiler_options: Mapping[str, Any] | None = None,
) -> TrainStep[Value]: ...


@overload
def make_step(
    loss_fn: Callable[..., Value],
    tx: GradientTransformation,
    *,
    has_aux: bool = False,
    grad_loss: Any = None,
    trainable: Where | None = None,
    donate: bool = True,
    sharding: Shardings | None = None,
    rounding_key: Any = None,
    report: Literal[True],
    steps: int | None = None,
    inside: Where | bool | None = None,
    gradients: Estimator | None = None,
    compiler_options: Mapping[str, Any] | None = None,
) -> TrainStep[Value, GuardReport]: ...


@read_by_people
def make_step(
    loss_fn: Callable[..., Any],
    tx: GradientTransformation,
    *,
    has_aux: bool = False,
    grad_loss: Any = None,
    trainable: Where | None = None,
    donate: bool = True,
    sharding: Shardings | None = None,
    rounding_key: Any = None,
    report: bool = False,
    steps: int | None = None,
    inside: Where | bool | None = None,
    gradients: Estimator | None = None,
    compiler_options: Mapping[str, Any] | None = None,
) -> TrainStep[*tuple[Any, ...]]:
    """Compile :func:`minimize` once, with parameters and state donated.

    Args:
        loss_fn: ``(params, *args) -> value`` or, with `has_aux`, ``-> (value, aux)``.
        tx: the optimizer; its array hyperparameters are arguments of the compiled step, so that
            :meth:`TrainStep.replace` changes them without recompiling. Hyperparameters that are
            functions without arguments are called before each step, and their values are arguments
            too.
        has_aux: whether `loss_fn` returns something besides the value.
        grad_loss: the cotangent of the value; 1 by default. The loss that `tx` is told, and that a
            line search evaluates, is the product with it.
        trainable: which leaves to train, as in :func:`select`.
        donate: whether the step may write into the memory of its parameters and state, which must
            then not be used afterwards. A model that shares them, as after ``nnx.split`` or
            ``eqx.partition``, gets the new ones (``nnx.update``, ``eqx.combine``), or the step gets
            a copy (``jax.tree.map(jnp.copy, params)``).
        sharding: the shardings of parameters and state, from :func:`state_sharding`. A step keeps
            them, so that donation works and nothing is moved; gradients are reduced to where the
            optimizer works on them. Batches are sharded by whoever makes them.
        rounding_key: a random key or an integer seed with which parameters in bfloat16 or float16
            are rounded at random: :func:`stochastic_rounding` around `tx`, so that the state holds
            the key.
        report: whether the step also returns the :func:`guard_report` of `tx`, which must then
            contain a :func:`guard`: ``params, state, value, report = step(params, state, *args)``.
        steps: how many steps a call takes, in one compiled loop; at least 1. Each array in `args`
            and `extra_args` then needs a leading axis of this length, with a batch for each step;
            the value, whatever else the loss returns, and the report get the same axis. Functions
            without arguments that stand for hyperparameters are called once for all the steps. None
            for one step, on one batch without that axis.
        inside: whether stacked parameters that a scan of the loss reads are updated inside of the
            backward pass, one layer at a time, so that their gradients are never held together:
            True for all that can be, or which of these, as in :func:`select`. The numbers are those
            of the ordinary step; see the page on the step inside the backward pass.
        gradients: how gradients are estimated without a backward pass, such as :func:`spsa`; None
            to differentiate. It puts :func:`estimated_gradients` around `tx`, whose state holds a
            key. With `inside`, the directions of stacked parameters are drawn, and these are
            updated, one layer at a time, so that a step takes hardly more memory than the loss
            alone; the numbers are the same.
        compiler_options: options of XLA's compiler for this step alone, as in :func:`jax.jit`.

    Returns:
        The step: ``params, state, value = step(params, state, *args)``, with ``step.init(params)``.
        Further arguments of its transformations, such as a validation loss, are passed as
        ``extra_args={...}``.

    Raises:
        ValueError: `steps` is below 1; in a call, an argument has no leading axis of that length
            (the error names it). With `inside`: no leaf can be updated inside, or one that was
            chosen cannot, or a part of `tx` needs all gradients first (the error names it), or
            `sharding` divides slots further than parameters.

    Warns:
        UserWarning: a trained parameter is in bfloat16 or float16, and nothing in the state keeps
            the part that rounding to nearest loses: Adam at 1e-3 never moves such a parameter of
            2.0. The warning comes once for each compiled program.
        UserWarning: in the first call the loss was the same on both sides of the parameters in
            every direction of the estimator; its state counts such steps.
        UserWarning: many steps wait on simulated devices, where XLA may end the process. The
            warning comes once.

    >>> import gradtx
    >>> import jax.numpy as jnp
    >>> step = make_step(lambda p, x: (p["w"] * x - 6.0) ** 2, gradtx.sgd(0.1))
    >>> params = {"w": jnp.float32(0.0)}
    >>> state = step.init(params)
    >>> for _ in range(20):
    ...     params, state, value = step(params, state, 2.0)
    >>> round(float(params["w"]), 3)
    3.0
    >>> several = make_step(lambda p, x: (p["w"] * x - 6.0) ** 2, gradtx.sgd(0.1), steps=4)
    >>> params, state, values = several(params, state, jnp.array([2.0, 1.0, 2.0, 1.0]))
    >>> values.shape
    (4,)
    """
    if steps is not None:
        check_integer("make_step", "steps", steps)
    if rounding_key is not None:
        tx = stochastic_rounding(tx, rounding_key)

    check_order("make_step", loss_fn=loss_fn, tx=tx)
    tx = estimating("make_step", tx, gradients)

    program = _StepProgram(loss_fn, has_aux, grad_loss, trainable, sharding, report, steps, inside)
    compiled = jax.jit(
        program.run,
        donate_argnums=(1, 2) if donate else (),
        compiler_options=None if compiler_options is None else dict(compiler_options),
        **program.shardings(),
    )
    return TrainStep(with_extra_args_support(tx), trainable, compiled, sharding, program.plan)


@dataclass(frozen=True, eq=False, repr=False)
class _StepProgram:
    """The program of a step: the arguments of :func:`make_step` for which it is compiled."""

    loss_fn: Callable[..., Any]
    has_aux: bool
    grad_loss: Any
    trainable: Where | None
    sharding: Shardings | None
    report: bool
    steps: int | None
    inside: Where | bool | None

    def run(
        self, tx: GradientTransformation, params: Params, state: State, args: Any, extra_args: Any
    ) -> Any:
        """One step, or as many as `steps` says, each with its own batch."""
        lost = loses_small_steps(select(params, self.trainable), state)
        if lost is not None:
            warnings.warn(f"make_step: {lost}", UserWarning, stacklevel=2)
        if self.steps is None:
            return self.one(tx, params, state, args, extra_args)
        _check_stacked(self.steps, {"args": args, "extra_args": extra_args})

        def each(carry: tuple[Params, State], batch: tuple[Any, Any]) -> Any:
            params, state, *results = self.one(tx, *carry, *batch)
            return (params, state), results

        batches = args, extra_args
        (params, state), results = jax.lax.scan(each, (params, state), batches, length=self.steps)
        return params, state, *results

    def one(
        self, tx: GradientTransformation, params: Params, state: State, args: Any, extra_args: Any
    ) -> Any:
        """One step on one batch."""
        options: Any = {
            "has_aux": self.has_aux,
            "grad_loss": self.grad_loss,
            "trainable": self.trainable,
            "extra_args": extra_args,
        }
        results: Any
        if self.inside is not None and self.inside is not False:
            options |= {"where": self.inside, "sharding": self.sharding}
            results = step_inside(self.loss_fn, tx, params, state, *args, **options)
        else:
            placed = tx if self.sharding is None else self.sharding.placed(tx)
            results = minimize(self.loss_fn, placed, params, state, *args, **options)
        return (*results, guard_report(results[1])) if self.report else results

    def shardings(self) -> dict[str, Any]:
        """The shardings of the arguments and results of `run`, for ``jax.jit``."""
        if self.sharding is None:
            return {}
        params_and_state = self.sharding.params, self.sharding.state
        return {
            "in_shardings": (None, *params_and_state, None, None),
            "out_shardings": (*params_and_state, None, *[None] * self.report),
        }

    def plan(self, tx: GradientTransformation, params: Params, args: Any) -> InsidePlan:
        """Which leaves a step updates inside of the backward pass, or could update there."""
        plans: list[InsidePlan] = []

        def read(params: Params, args: Any) -> None:
            batch = args if self.steps is None else jax.tree.map(lambda x: x[0], args)
            scans = read_inside(
                self.loss_fn,
                optimizer_of(tx),
                params,
                *batch,
                has_aux=self.has_aux,
                any_shape=self.grad_loss is not None,
                trainable=self.trainable,
                where=True if self.inside is None else self.inside,
                sharding=self.sharding,
            )
            plans.append(scans.plan)

        jax.eval_shape(read, params, args)
        return plans[0]


def _check_stacked(steps: int, arguments: Mapping[str, Any]) -> None:
    """Raise ValueError unless each array has an entry for each of the steps."""
    for path, x in with_paths(arguments)[0]:
        shape = jnp.shape(x)
        if shape[:1] != (steps,):
            raise ValueError(
                f"make_step: with steps={steps} each argument has a leading axis of {steps}, a "
                f"batch for each step, and {path_string(path)!r} has the shape {shape}"
            )
