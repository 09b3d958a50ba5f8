"""Small private functions of Optax that public code bases import."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.composition.matrices import MuonDimensionNumbers
from gradtx.core.pair import GradientTransformation
from gradtx.leaves.matrix_layout import as_matrices
from gradtx.optimizers import adafactor, muon
from gradtx.transforms.orthogonal import STANDARD, coefficients, orthogonalized
from gradtx.transforms.zoom import scale_by_zoom_linesearch
from gradtx.types import Array, DType, Params, PyTree, Updates
from gradtx.types.keys import is_key

Shape = Sequence[int]
DEFAULT_NS_COEFFS = STANDARD

NO_PARAMS_MSG = "This transformation needs the parameters: call update(updates, state, params)."


def canonicalize_dtype(dtype: Any) -> DType | None:
    """The type that JAX computes in for `dtype`; None stays.

    >>> canonicalize_dtype("float32"), canonicalize_dtype(None)
    (dtype('float32'), None)
    """
    return None if dtype is None else jax.dtypes.canonicalize_dtype(dtype)


def canonicalize_key(key_or_seed: Any) -> Array:
    """A random key: `key_or_seed` itself if it is one, else the key of that seed."""
    return key_or_seed if is_key(key_or_seed) else jax.random.key(key_or_seed)


def orthogonalize_via_newton_schulz(
    x: Array,
    ns_coeffs: Any,
    ns_steps: int = 5,
    preconditioning: str = "frobenius",
    eps: Any = 1e-8,
    dimension_numbers: Any = None,
) -> Array:
    """A matrix, or a stack of matrices, after the Newton-Schulz iterations of Muon.

    Raises:
        ValueError: `x` is no matrix, and there are no `dimension_numbers`, which say as those of
            :func:`gradtx.scale_by_muon` which axes are rows and columns.
    """
    if x.ndim != 2 and dimension_numbers is None:
        raise ValueError(
            f"a matrix is needed, not {x.shape}; for other shapes give dimension_numbers, as "
            "those of gradtx.scale_by_muon"
        )
    coeffs = coefficients("orthogonalize_via_newton_schulz", ns_coeffs, ns_steps, preconditioning)
    take, put = compute_muon_reshape(x, dimension_numbers or MuonDimensionNumbers(0, 1))
    return put(orthogonalized(take(x), jnp.asarray(coeffs), ns_steps, preconditioning, eps))


def scale_by_shape(
    weight_dimension_numbers: Any = None, consistent_rms: Any = None
) -> GradientTransformation:
    """:func:`gradtx.scale_by_shape` with Optax's order of the arguments."""
    return muon.scale_by_shape(consistent_rms, weight_dimension_numbers)


def is_weight_dim_nums(x: Any) -> bool:
    """Whether `x` is a matrix's dimension numbers, a leaf of a tree of them."""
    return isinstance(x, MuonDimensionNumbers)


def lerp(t: Any, a: PyTree, b: PyTree) -> PyTree:
    """The tree between two, `a` at `t` 0 and `b` at 1.

    >>> lerp(0.25, {"w": 1.0}, {"w": 3.0})
    {'w': 1.5}
    """
    return jax.tree.map(lambda a, b: a + t * (b - a), a, b)


def base_ns_iterator(i: Any, x: Array, coeffs: Array) -> Array:
    """One Newton-Schulz iteration of a matrix: `a X + (b A + c A^2) X` with `A = X X^H`."""
    gram = x @ x.mT.conj()
    return coeffs[0] * x + (coeffs[1] * gram + coeffs[2] * gram @ gram) @ x


def compute_muon_reshape(
    x: Array, dim_nums: Any
) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
    """To a batch of matrices `(n, rows, columns)`, by the dimension numbers of Muon, and back.

    Raises:
        ValueError: `x` is no matrix, or the numbers name axes that it does not have.
    """
    if x.ndim < 2:
        raise ValueError(f"an array of at least two dimensions is needed, not {x.ndim}")
    matrices = as_matrices("muon", (), x.shape, dim_nums)
    return matrices.take, matrices.put


def factored_dims(
    shape: Shape, factored: bool, min_dim_size_to_factor: int
) -> tuple[int, int] | None:
    """The dimensions over which Adafactor takes means; None for a leaf that is not factored.

    >>> factored_dims((2, 256, 128), True, 128), factored_dims((256, 128), False, 128)
    ((2, 1), None)
    """
    return (
        adafactor.factored_dims(tuple(shape), min_dim_size_to_factor, False) if factored else None
    )


def decay_rate_pow(i: Any, exponent: Any = 0.8) -> Array:
    """Adafactor's decay at step `i` from 0: `1 - (i + 1)^-exponent`.

    >>> float(decay_rate_pow(3, 0.5))
    0.5
    """
    return 1.0 - (jnp.asarray(i, jnp.float32) + 1.0) ** -exponent


def extract_fns_kwargs(
    fns: Sequence[Callable[..., Any]], kwargs: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The keyword arguments that each function takes, and those that none takes.

    >>> extract_fns_kwargs((lambda a, b: 0, lambda b, c: 0), {"b": 1, "c": 2, "d": 3})
    ([{'b': 1}, {'b': 1, 'c': 2}], {'d': 3})
    """
    parameters = [inspect.signature(fn).parameters for fn in fns]
    each = [{name: kwargs[name] for name in kwargs if name in names} for names in parameters]
    rest = {name: kwargs[name] for name in kwargs if not any(name in names for names in parameters)}
    return each, rest


class ZoomLinesearchState(NamedTuple):
    """A line search: its starting point, the updates along which it goes, and the step size.

    count: evaluations; value, grad: at `stepsize`; decrease_error, curvature_error: by how much
    each criterion is missed there, and error the larger of both; done: whether the search is over;
    failed: whether it ended without a step that meets both criteria.
    """

    count: Array  # type: ignore[assignment]  # a method of tuples
    params: Params
    updates: Updates
    stepsize_guess: Array
    stepsize: Array
    value: Array
    grad: Updates
    value_init: Array
    decrease_error: Array
    curvature_error: Array
    error: Array
    done: Array
    failed: Array


def zoom_linesearch(
    max_linesearch_steps: int,
    max_stepsize: float | None = None,
    tol: float = 0.0,
    increase_factor: float = 2.0,
    slope_rtol: float = 1e-4,
    curv_rtol: float = 0.9,
    approx_dec_rtol: float | None = 1e-6,
    interval_threshold: float = 1e-5,
    verbose: bool = False,
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """The search of :func:`gradtx.scale_by_zoom_linesearch` in three functions.

    Returns:
        ``init(updates, params, *, value, grad, stepsize_guess)``, ``step(state,
        value_and_grad_fn, fn_kwargs)`` and ``goes_on(state)``. Here a single step is the whole
        search: a loop ends after it.

    >>> init, step, goes_on = zoom_linesearch(20)
    >>> f = jax.value_and_grad(lambda x: jnp.sum(x**2))
    >>> x = jnp.ones(2)
    >>> value, grad = f(x)
    >>> state = init(-grad, x, value=value, grad=grad, stepsize_guess=1.0)
    >>> while goes_on(state):
    ...     state = step(state, f, {})
    >>> float(state.stepsize)
    0.5
    """
    search = scale_by_zoom_linesearch(
        max_linesearch_steps,
        max_learning_rate=max_stepsize,
        tol=tol,
        increase_factor=increase_factor,
        slope_rtol=slope_rtol,
        curv_rtol=curv_rtol,
        approx_dec_rtol=approx_dec_rtol,
        stepsize_precision=interval_threshold,
        initial_guess_strategy="keep",
        verbose=verbose,
    )

    functions = _ZoomSearch(search, tol)
    return functions.init, functions.step, functions.goes_on


class _ZoomSearch(NamedTuple):
    """The functions of :func:`zoom_linesearch`."""

    search: GradientTransformation
    tol: float

    def init(
        self, updates: Updates, params: Params, *, value: Any, grad: Updates, stepsize_guess: Any
    ) -> ZoomLinesearchState:
        value = jnp.asarray(value)
        guess = jnp.asarray(stepsize_guess, value.dtype)
        zero, far = jnp.zeros_like(value), jnp.full_like(value, jnp.inf)
        count, unmet = jnp.zeros([], jnp.int32), jnp.array(False)
        at_start = zero, value, grad, value, far, far, far
        return ZoomLinesearchState(count, params, updates, guess, *at_start, unmet, unmet)

    def step(
        self, state: ZoomLinesearchState, value_and_grad_fn: Any, fn_kwargs: Mapping[str, Any]
    ) -> ZoomLinesearchState:
        initial: Any = self.search.init(state.params)
        _, after = self.search.update(
            state.updates,
            initial._replace(learning_rate=state.stepsize_guess),
            state.params,
            value=state.value_init,
            grad=state.grad,
            value_fn=lambda p: value_and_grad_fn(p, **fn_kwargs)[0],
        )
        errors = after.info.decrease_error, after.info.curvature_error
        error = jnp.maximum(*errors)
        return state._replace(
            count=after.info.num_linesearch_steps,
            stepsize=after.learning_rate,
            value=after.value,
            grad=after.grad,
            decrease_error=errors[0],
            curvature_error=errors[1],
            error=error,
            done=jnp.array(True),
            failed=error > self.tol,
        )

    def goes_on(self, state: ZoomLinesearchState) -> Array:
        return ~(state.done | state.failed)
