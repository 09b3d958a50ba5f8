"""Steering XLA's compiler, where a program needs more than its formula can say.

A step should store nothing besides the parameters and the slots, which it overwrites in place.
Mathematically every function here is what its first line says, on every chip and also if a value is
NaN or infinite: ``delay(x, after=y)`` is `x`, ``recompute(f, x, after=y)`` is ``f(x)``,
``replace(old, new)`` is `new`. Outside of ``jit`` they do nothing more.

All but the sums rest on one trick: a factor of 1 that is known only once something else is, namely
0 where ``y < -inf`` and 1 elsewhere. This is 1 for every `y`, NaN included. XLA plans its kernels
and its memory without knowing this; LLVM, which compiles the kernels, finds out and drops the
factor. The HLO under each function is of a step compiled without it; `N` is a leaf's shape.

Where a rule needs more than one hint, its formula stands as in the paper, and the hints in a plan
beside it: see :func:`planned`.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, TypeVar, cast as typed

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.numerics.mathematics import add_each
from gradtx.numerics.precision import cast, real_dtype
from gradtx.numerics.step import Step
from gradtx.programs.tracing import FEW_EQUATIONS, as_function, is_tracer, vary, varying_axes
from gradtx.types import Array

Backends = Literal["all", "cpu", "tpu", "cuda", "all but cpu", "all but tpu"]
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_read = contextvars.ContextVar[set[str] | None]("formulas that run in place of plans", default=None)


def planned(formula: FunctionT, plan: FunctionT) -> FunctionT:
    """The function that `formula` says, computed as `plan` says.

    The formula is for readers: it stands as in the paper, from top to bottom, without hints. The
    plan is for the compiler: what is computed again rather than stored, what waits for what, what
    is summed in one pass, or the same formula in other terms. ``tests/test_plans.py`` runs both for
    every optimizer and compares them.

    Args:
        formula: a function, such as a rule.
        plan: a function of the same arguments, with the same results but for rounding.

    >>> def mean_and_centered(x):
    ...     mean = jnp.mean(x)
    ...     return mean, x - mean
    >>> def plan(x):
    ...     mean = jnp.mean(x)
    ...     return mean, delay(x, after=mean) - mean
    >>> [x.tolist() for x in planned(mean_and_centered, plan)(jnp.array([1.0, 3.0]))]
    [2.0, [-1.0, 1.0]]
    """

    @functools.wraps(formula)
    def chosen(*arguments: Any, **named: Any) -> Any:
        read = _read.get()
        if read is None:
            return plan(*arguments, **named)
        read.add(f"{formula.__module__}.{formula.__qualname__}")
        return formula(*arguments, **named)

    return typed(FunctionT, chosen)


@contextlib.contextmanager
def formulas() -> Iterator[set[str]]:
    """Within a ``with`` statement formulas run in place of their plans, for a test to compare.

    Gives the names of those that run, as they run. Programs traced before keep their plans.
    """
    read: set[str] = set()
    before = _read.set(read)
    try:
        yield read
    finally:
        _read.reset(before)


def delay(x: Any, *, after: Array | Step, on: Backends = "cpu") -> Array:
    """`x`, computed once `after` is.

    For a slot that is overwritten while something still reads its old value: XLA does not order
    the two, and copies the slot. The write waits for the reads, entry by entry or for a sum. FTRL's
    accumulator, which `z` reads, on a CPU::

        %copy.1 = f32[N] copy(%state_accumulator)
        %multiply_add_fusion = f32[N] fusion(%params, ..., %copy.1, %state_linear, %gradients)

    Args:
        x: an array, or a number.
        after: an array of any values, a scalar or of the shape of `x`.
        on: the chips on which `x` waits. TPUs and GPUs mostly need no order: they compute in one
            kernel what a CPU computes in one kernel per output.
    """
    one = _one(after, on)
    x = x if hasattr(x, "dtype") else jnp.asarray(x, one.dtype)
    return _times(x, one) if is_tracer(one) else x


def recompute(
    f: Callable[..., Any], *arrays: Array, after: Array | Step, on: Backends = "cpu"
) -> Any:
    """``f(*arrays)``, computed again once `after` is known, instead of being stored.

    An array that two kernels read is stored, though each could compute it. LAMB's direction, read
    by its norm and by the step, on a CPU::

        %add_divide_fusion = f32[N] fusion(%nu, ..., %mu, ...)

    Its scalars are stored too, at the size of the leaf, since on a CPU a sum calls a library that
    reads arrays. The sum shares them with the step, and leaves share them with each other:
    StableAdamW's epsilon and bias correction for three leaves::

        %wrapped_broadcast = f32[N] fusion(%constant.20)
        %wrapped_broadcast.1 = f32[N] fusion(%exponential-minus-one_divide_fusion.1)

    Hence the scalars in `f` wait as well as the arrays: its constants, and those that it closes
    over. (The library multiplies in the same pass, so that a factor costs nothing; a selection
    would be stored.) If `f` is computed for a sum, pass the `Step`: this leaf then shares nothing
    with another.

    Args:
        f: a function of arrays; arrays that it closes over do not wait, unless they are scalars.
        arrays: the arguments of `f`.
        after: a scalar; or the step, for a scalar that nothing else waits for.
        on: the chips on which it waits; "all" if it is expensive enough for a TPU to store, such as
            what MARS computes from two large arrays, ``%multiply_reduce_fusion = (f32[], f32[N],
            f32[N]) fusion(%last, %select_n.0, %gradients, %mul.38)``.
    """
    return Recomputed(f, *arrays)(after=after, on=on)


class Recomputed:
    """``f(*arrays)`` as :func:`recompute` computes it, several times, with `f` traced once.

    If `f` computes scalars of a `Step`, the first call must be after that step: otherwise these
    would belong to the trace of `f`.

    >>> d = Recomputed(lambda x: 2 * x, jnp.ones(2))
    >>> d(after=jnp.zeros([])).tolist()
    [2.0, 2.0]
    """

    def __init__(self, f: Callable[..., Any], *arrays: Array) -> None:
        self._f, self._arrays = f, arrays
        self._program: _Replay | None = None

    def __call__(self, *, after: Array | Step, on: Backends = "cpu") -> Any:
        """The result, computed once `after` is known; see :func:`recompute`."""
        one = _one(after, on)
        if not is_tracer(one) or varying_axes(jax.typeof(one)):
            return self._f(*self._arrays)
        program = self._traced(after)
        scalars = [_times(x, one) if jnp.ndim(x) == 0 else x for x in program.constants]
        return program.run(*scalars, *(_times(x, one) for x in (*program.numbers, *self._arrays)))

    def at_once(self) -> Any:
        """The result, computed as `f` computes it."""
        if not any(map(is_tracer, self._arrays)):
            return self._f(*self._arrays)
        program = self._traced()
        return program.run(*program.constants, *program.numbers, *self._arrays)

    def _traced(self, after: Any = None) -> "_Replay":
        if self._program is None:
            self._program = _Replay.of(self._f, self._arrays, after)
        return self._program


class _Replay(NamedTuple):
    """A function as a program, of which the numbers that are written in it are arguments.

    Attributes:
        run: ``(*constants, *numbers, *arrays) -> results``.
        constants: what the function closes over.
        numbers: the numbers in the program.
    """

    run: Callable[..., Any]
    constants: list[Array]
    numbers: list[Any]

    @classmethod
    def of(cls, f: Callable[..., Any], arrays: tuple[Array, ...], after: Any) -> "_Replay":
        from jax.extend.core import ClosedJaxpr, jaxpr_as_fun  # takes as long to import as gradtx

        def traced() -> Any:  # of a function of its own, since JAX would keep the first trace
            return jax.make_jaxpr(functools.partial(f), return_shape=True)(*arrays)

        known = after.remembered if isinstance(after, Step) else 0
        closed, out = traced()
        if isinstance(after, Step) and after.remembered > known:
            # Scalars that a `Step` computes once must not belong to the trace of `f`.
            after.forget(known)
            f(*arrays)
            closed, out = traced()
        jaxpr: Any = closed.jaxpr
        literals = [v for eqn in jaxpr.eqns for v in eqn.invars if _is_number(v)]
        names = _variables(tuple(v.aval.dtype for v in literals))
        name = iter(names)
        eqns = [
            eqn.replace(invars=[next(name) if _is_number(v) else v for v in eqn.invars])
            for eqn in jaxpr.eqns
        ]
        invars = [*jaxpr.constvars, *names, *jaxpr.invars]
        program = jaxpr.replace(constvars=[], invars=invars, eqns=eqns)
        if len(eqns) > FEW_EQUATIONS:  # as of a whole tree
            run = as_function("recomputed", program)
        else:
            run = jaxpr_as_fun(ClosedJaxpr(program, []))
        structure: Any = jax.tree.structure(out)
        return cls(
            lambda *inputs: structure.unflatten(run(*inputs)),
            closed.consts,
            [np.asarray(v.val, v.aval.dtype) for v in literals],
        )


@functools.lru_cache(maxsize=1024)
def _variables(types: tuple[Any, ...]) -> list[Any]:
    """Variables of a program for numbers of these types."""
    numbers = [jax.ShapeDtypeStruct((), dtype) for dtype in types]
    return list(jax.make_jaxpr(lambda *x: x)(*numbers).jaxpr.invars)


def true_after(x: Array) -> Array:
    """Always true, but XLA learns this only by computing `x`.

    A loop that overwrites an array and is entered on this condition waits for what reads the array,
    such as a loss that reads the parameters after its gradient does.
    """
    x = jax.lax.real(x) if jnp.iscomplexobj(x) else x
    return jax.lax.bitwise_not(jax.lax.lt(x, jax.lax.full_like(x, -jnp.inf)))


def replace(old: Array, new: Array, *readers: Array) -> Array:
    """`new` in place of the slot `old`.

    A slot that becomes the gradient is a copy, which is not fused with anything: Adan's on an H100
    and a TPU, besides the one kernel of the step::

        %copy.16 = f32[N] copy(%gradients)

    Naming the old value makes it a part of that kernel. On a CPU, where every slot has its own
    kernel, the copy waits for `readers`, the new slots that are computed from the old value.
    """
    for reader in readers:
        new = delay(new, after=reader)
    return delay(new, after=old, on="all but cpu")


def fuse(x: Array, *, after: Array, on: Backends = "tpu") -> Array:
    """`x`, which a compiler fuses with its readers.

    It does this for a quotient: `x` is divided by a 1 that is known after the scalar `after`. A TPU
    needs it for a slot that becomes the gradient, or a direction that :func:`replace` would make it
    store. Without it, the slot of optimistic gradient descent::

        %copy = f32[N] copy(%gradients)

    A GPU needs it for a slot that is summed in the step that writes it, and once more for one term
    of the sum: otherwise a slot that is cheap to compute is written by a kernel of its own, and
    read again by the sum. MoMo's momentum::

        %loop_add_fusion.1 = f32[N] fusion(%gradients, ..., %state_exp_avg, ...)
        %input_reduce_fusion = (f32[8192], ...) fusion(%loop_add_fusion.1, %params, %gradients)

    Complex numbers are not divided, since an infinite one would become NaN.
    """
    return x if jnp.iscomplexobj(x) else x / _one(after, on).astype(x.dtype)


def sums_in_one_pass(*terms: list[Array]) -> list[Array]:
    """The sum of all entries of each of several lists of real leaves, alike in their shapes.

    On an NVIDIA GPU it is one reduction per leaf: a kernel with several cannot overwrite the slots
    that they read, and XLA copies these, as for D-Adaptation or MoMo-Adam. Elsewhere each sum is a
    separate reduction, and a TPU's compiler fuses them.

    >>> xs, ys = [jnp.arange(3.0), jnp.ones(2)], [jnp.ones(3), jnp.ones(2)]
    >>> [float(x) for x in sums_in_one_pass(xs, ys)]
    [5.0, 5.0]
    """

    def separate_sums(*of_leaf: Array) -> tuple[Array, ...]:
        return tuple(jnp.sum(x) for x in of_leaf)

    totals = [jnp.zeros([])] * len(terms)
    for of_leaf in zip(*terms, strict=True):
        summed = jax.lax.platform_dependent(*of_leaf, cuda=_one_reduction, default=separate_sums)
        totals = [a + b for a, b in zip(totals, summed, strict=True)]
    return totals


@jax.custom_jvp
def _one_reduction(*of_leaf: Array) -> tuple[Array, ...]:
    zeros = tuple(np.zeros([], x.dtype) for x in of_leaf)
    return tuple(jax.lax.reduce(of_leaf, zeros, add_each, range(of_leaf[0].ndim)))


@_one_reduction.defjvp
def _differentiate(primals: Any, tangents: Any) -> Any:
    # JAX has no derivative of one reduction of several arrays where one of these is constant.
    return _one_reduction(*primals), tuple(map(jnp.sum, tangents))


def _one(after: Array | Step, on: Backends) -> Array:
    """1 everywhere, in the shape of `after`, which XLA learns only by computing `after`."""
    first = after.distinct() if isinstance(after, Step) else after
    one: Array = _one_after(first, on) if is_tracer(first) else _plain_one(first)
    return one


def _plain_one(first: Array) -> Array:
    dtype = real_dtype(first.dtype)
    return vary(jnp.ones(first.shape, dtype), varying_axes(jax.typeof(first)))


def _hidden_one(first: Array) -> Array:
    return jax.lax.convert_element_type(true_after(first), real_dtype(first.dtype))


# The branches are traced once for all arrays that are alike.
@functools.partial(jax.jit, static_argnames="on")
def _one_after(first: Array, on: Backends) -> Array:
    if on == "all":
        return _hidden_one(first)
    there, elsewhere = _hidden_one, _plain_one
    if on.startswith("all but"):
        there, elsewhere = elsewhere, there
    one: Array = jax.lax.platform_dependent(first, default=elsewhere, **{on.split()[-1]: there})
    return one


def _times(x: Array, one: Array) -> Array:
    """The product, part by part if complex, since an infinite complex number times 0 is NaN."""
    if jnp.iscomplexobj(x):
        return jax.lax.complex(_times(x.real, one), _times(x.imag, one))
    one = cast(one, x.dtype)
    return jax.lax.bitwise_and(x, one) if x.dtype == bool else jax.lax.mul(x, one)


def _is_number(v: Any) -> bool:
    """Whether an operand in a jaxpr is a real or complex number written there."""
    if not hasattr(v, "val"):
        return False
    return jnp.issubdtype(jnp.result_type(v.val), jnp.inexact)
