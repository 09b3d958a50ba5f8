"""Estimators as data, and the decorator that makes a builder declare one."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, Self

import jax
import jax.numpy as jnp

from gradtx.declarations.declaration import Builder, Declaration, DeclaredData, publish
from gradtx.estimators.directions import Directions
from gradtx.numerics import cast, widen
from gradtx.numerics.control import inside, loop_once_if
from gradtx.programs.tracing import vary, varying_axes
from gradtx.types import Array

_P = ParamSpec("_P")


class Evaluations(NamedTuple):
    r"""Where an estimator evaluates the loss, and the weights that follow from the values.

    Its gradient is :math:`\sum_k c_k z_k` over random directions :math:`z_k`.

    Attributes:
        distribution: that of the directions.
        directions: how many.
        steps: the multiples of a direction by which parameters are moved for the values of the
            loss; None where its derivatives along the directions are taken at the parameters.
        weights: from these values ``[directions, steps]``, or derivatives ``[directions]``, in at
            least single precision, the numbers :math:`c_k`.
    """

    distribution: str
    directions: int
    steps: tuple[Any, ...] | None
    weights: Callable[[Array], Array]


class Measured(NamedTuple):
    """An estimator's measurements of a loss.

    value: the mean of the values; weights: the numbers by which directions are multiplied;
    flat: whether in every direction the values on both sides were equal and finite, and in the
    first one that of the loss between them, too.
    """

    value: Array
    weights: Array
    flat: Array


@jax.tree_util.register_pytree_node_class
class Estimator(DeclaredData):
    """A way to estimate gradients: it prints, compares and pickles by what built it.

    :func:`minimize`, :func:`make_step` and :func:`compute_gradients` take it as `gradients`.

    >>> import gradtx
    >>> gradtx.forward_gradients(samples=4)
    forward_gradients(samples=4, key=0)
    """

    @classmethod
    def declared(cls, declaration: Declaration) -> Self:
        """The estimator that `declaration` describes, whose arguments are checked."""
        name = declaration.name
        for argument, value in declaration.arguments.items():
            if callable(value):
                raise TypeError(
                    f"{name}: {argument} must be a number or an array, not {value!r:.80}; "
                    f"TrainStep.replace({argument}=...) puts another array in its place and "
                    "compiles nothing"
                )
        estimator = cls(declaration)
        estimator.evaluations  # noqa: B018  # so that arguments are checked
        return estimator

    @functools.cached_property
    def evaluations(self) -> Evaluations:
        """Where the loss is evaluated."""
        evaluations: Evaluations = self.declaration.builder.call(self.declaration.arguments)
        return evaluations

    @property
    def evaluation_count(self) -> int:
        """How many times a step evaluates the loss, or its derivative along a direction."""
        _, directions, steps, _ = self.evaluations
        return directions * (1 if steps is None else len(steps))

    @property
    def number_count(self) -> int:
        """How many numbers replicas exchange in a step: values of the loss, and derivatives."""
        return self.evaluation_count * (2 if self.evaluations.steps is None else 1)

    def measure(self, along: Callable[[Any, Any], Array]) -> Measured:
        """Evaluate a loss one time after another, so that one evaluation is in memory at a time.

        Args:
            along: ``(k, step) -> the loss``, with parameters moved by so much of direction `k`.
        """
        _, count, steps, weights = self.evaluations
        each = jnp.arange(count)
        if steps is None:

            def slope(k: Array) -> tuple[Array, Array]:
                start = jnp.zeros([], float)
                return jax.jvp(lambda step: along(k, step), (start,), (jnp.ones_like(start),))

            values, slopes = jax.lax.map(slope, each)
            return Measured(values[0], weights(widen(slopes)), jnp.array(False))
        multiples = jnp.stack([jnp.asarray(step, float) for step in steps])
        sides = len(steps)
        order = jnp.arange(count * sides)
        measured = jax.lax.map(lambda n: along(n // sides, multiples[n % sides]), order)
        values = measured.reshape(count, sides)
        wide = widen(values)
        equal = jnp.all(jnp.isfinite(values)) & jnp.all(values == values[:, :1])

        # Where the loss is symmetric values are equal too, but the one in the middle differs.
        def equals_middle(_: Array, turn: Array) -> Array:
            # Inside of the loop: before it the loss would be evaluated at every step.
            return along(0, inside(jnp.zeros([], float), turn)) == values[0, 0]

        flat = loop_once_if(equal, equals_middle, equal)
        # They are zeros then anyway. But so the step waits until the loss has read the parameters:
        # a CPU would copy them to overwrite them earlier.
        total = jnp.where(flat, 0.0, weights(wide))
        finite = jnp.isfinite(wide)
        # Where losses that are not finite rank last, the step is good, and so is the value.
        value = jnp.where(
            jnp.all(finite) | ~jnp.all(jnp.isfinite(total)),
            jnp.mean(wide),
            jnp.mean(wide, where=finite),
        )
        return Measured(cast(value, values.dtype), total, flat)

    def gradient(self, weights: Array, part: Callable[[Any], Array], dtype: Any) -> Array:
        """The sum of parts of the directions, ``part(k)``, multiplied by their weights."""

        def term(k: Any) -> Array:
            z = part(k)
            return cast(weights[k], z.real.dtype) * z

        def add(k: Array, total: Array) -> Array:
            return total + term(k)

        count, total = self.evaluations.directions, term(0)
        if count > 1:
            # From zeros, so that there are several iterations: a compiler would run a single one
            # in the same kernel as the operations before it, and round otherwise.
            zeros = vary(jnp.zeros_like(total), varying_axes(jax.typeof(total)))
            total = jax.lax.fori_loop(0, count, add, zeros)
        return cast(total, dtype)

    def directions(self, key: Array, leaves: Any) -> Directions:
        """The directions in which leaves are moved."""
        return Directions(key, leaves, self.evaluations.distribution, self.evaluations.directions)

    def if_flat(self, dtypes: Any) -> str:
        """The message to whoever got a gradient of zero since the values did not differ.

        Args:
            dtypes: the type of the loss, and those of the parameters.
        """
        arguments = self.declaration.arguments
        scale = arguments["scale"]
        resolved = max(float(jnp.finfo(dtype).eps) for dtype in dtypes) ** (1 / 3)
        enough = max(resolved, 10 * float(scale)) if jnp.ndim(scale) == 0 else resolved
        return (
            f"{self!r}: the loss had the same value, in {jnp.dtype(dtypes[0]).name}, on both sides "
            f"of the parameters in every direction, and the gradient is zero: scale={scale} may be "
            f"too small. For parameters of about 1, scale={enough:.0e} would do"
        )


def estimator(function: Callable[_P, Evaluations]) -> Callable[_P, Estimator]:
    """Make a builder of estimators return data: an `Estimator`.

    Args:
        function: the builder, which says where the loss is evaluated.

    Raises:
        TypeError: in a call, a number is a schedule.
    """
    builder = Builder(function, native=True)

    def build(*args: Any, **kwargs: Any) -> Estimator:
        return Estimator.declared(Declaration(builder, builder.bind(*args, **kwargs)))

    public: Any = publish(build, builder, schedules=False)
    public.__signature__ = public.__signature__.replace(return_annotation=Estimator)
    return public
