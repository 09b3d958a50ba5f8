"""Derivatives of a solution as a fixed point, whichever optimizer found it."""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from gradtx.checks import check_integer
from gradtx.composition.nearest import Nearest
from gradtx.composition.scalings import beyond_scalings, name_of
from gradtx.numerics import widen
from gradtx.packed import packed_like, unpack
from gradtx.pair import GradientTransformation
from gradtx.traits import Scope
from gradtx.tree import norm_sq
from gradtx.types import Array, Params, PyTree

LinearMethod = Literal["cg", "gmres", "bicgstab"]

# A relative residual above this is no solution: the system is singular, or the steps ran out.
_UNSOLVED = 1e-2

# Arguments of optimizers that add a penalty which is not in their record.
_ADDED = ("weight_decay", "l1_regularization_strength", "l2_regularization_strength")

# Projections that treat each entry by itself.
_OF_ENTRIES = ("box", "hypercube", "linf_ball", "non_negative")

# JAX's GMRES keeps so many vectors, and then restarts from the solution that they give.
_RESTART = 20


class Implicit(NamedTuple):
    r"""How :func:`solve` solves the linear system for the derivative of its solution.

    The solution is a fixed point of one step, :math:`x = T(x, a) = P(x - \eta \nabla f(x, a))`,
    with the projection or proximal map `P` of the optimizer, so that

    .. math:: \frac{dx}{da} =
        \left(I - \frac{\partial T}{\partial x}\right)^{-1} \frac{\partial T}{\partial a}

    Without `P` that is :math:`-H^{-1}\, \partial \nabla f / \partial a`, with the Hessian `H`.
    Only products with the matrices are taken; none is formed.

    Attributes:
        method: ``"cg"``, which needs a symmetric matrix and so excludes a `P`; ``"gmres"`` or
            ``"bicgstab"``. None for ``"cg"`` where there is no `P`, else ``"gmres"``.
        tol: the residual at which the method stops, relative to the right-hand side, above 0; None
            for :math:`\varepsilon^{2/3}` of the type.
        ridge: the number that is added to the diagonal of the matrix, at least 0. With a small
            ridge a solution that is not unique has derivatives too.
        max_steps: the largest number of products, at least 1; for GMRES it is rounded up to a
            multiple of 20.
        rate: :math:`\eta > 0`. The derivative does not depend on it where the set is convex.

    :func:`solve` raises ValueError for a field out of its range, and for ``"cg"`` with a `P`.

    JAXopt differentiates solutions by default, and takes a function as ``implicit_diff_solve``;
    Optax, Keras and PyTorch have no counterpart.

    Source: M. Blondel et al., Efficient and Modular Implicit Differentiation, 2022,
    arXiv:2105.15183.

    >>> import gradtx
    >>> def root(a):
    ...     result = gradtx.solve(
    ...         lambda x, a: (x**2 - a) ** 2, 1.0, gradtx.bfgs(), a, implicit=Implicit(tol=1e-6)
    ...     )
    ...     return result.params
    >>> round(float(jax.grad(root)(4.0)), 3)
    0.25
    """

    method: LinearMethod | None = None
    tol: float | None = None
    ridge: float = 0.0
    max_steps: int = 1000
    rate: float = 1.0


def checked(implicit: bool | Implicit, tx: GradientTransformation, nearest: Any) -> Implicit | None:
    """The argument `implicit` of :func:`solve` as a record; None for False.

    Raises:
        ValueError: a field is out of its range; `tx` does not end at a fixed point that follows
            from its record.
        TypeError: it is neither a boolean nor an `Implicit`.
    """
    if not isinstance(implicit, bool | Implicit):
        raise TypeError(f"solve: implicit must be True, False or Implicit(...), not {implicit!r}")
    if implicit is False:
        return None
    options = Implicit() if implicit is True else implicit
    method, tol, ridge, max_steps, rate = options
    if method not in (None, *get_args(LinearMethod)):
        raise ValueError(
            f"solve: implicit.method must be 'cg', 'gmres', 'bicgstab' or None, not {method!r}"
        )
    if method == "cg" and nearest is not None:
        raise ValueError(
            "solve: implicit.method='cg' needs a symmetric matrix, which that of a projected or "
            "proximal step is not: use 'gmres' or 'bicgstab'"
        )
    check_integer("solve", "implicit.max_steps", max_steps, least=1)
    for name, value, fits, range in (
        ("tol", tol, tol is None or 0 < tol < math.inf, "above 0"),
        ("ridge", ridge, 0 <= ridge < math.inf, "at least 0"),
        ("rate", rate, 0 < rate < math.inf, "above 0"),
    ):
        if not fits:
            raise ValueError(f"solve: implicit.{name} must be {range} and finite, not {value!r}")
    _check_optimizer(tx)
    return options


def _check_optimizer(tx: GradientTransformation) -> None:
    """Raise ValueError if the end points of `tx` do not follow from its record and the loss."""
    for each in (tx, *tx.within):
        _check_projections(each)
        if each.declaration is None:
            continue
        name, arguments = each.declaration.name, each.declaration.arguments
        added = _ADDED + (("l1", "l2") if name == "shrink_params" else ())
        for argument in added if each.traits.nearest is None else ():
            value = arguments.get(argument, 0)
            if not (isinstance(value, int | float) and value == 0):
                raise ValueError(
                    f"solve: implicit= is not possible with {name}({argument}={value}), which "
                    "moves the solution by what is no part of the loss: add the penalty to the "
                    f"loss and pass {argument}=0, or use gradtx.proximal"
                )
        if each.traits.nearest is None:
            continue
        changing = {*each.declaration.builder.schedules(arguments)} - {"learning_rate"}
        if changing:
            raise ValueError(
                f"solve: implicit= is not possible with {name}, where {min(changing)} is a "
                "schedule: its last value decides on the solution. Pass a number or an array"
            )


def _check_projections(tx: GradientTransformation) -> None:
    """Raise ValueError if a link of a chain projects what another has preconditioned.

    The end point is then no solution, except where each entry has a step and a bound of its own.
    """
    parts = tx.parts if tx.parts is not None and tx.traits.on_part is None else ()
    for part in parts:
        if part.declaration is None or part.declaration.name != "project":
            continue
        by_entry = part.declaration.arguments["projection"] in _OF_ENTRIES
        for link in (link for other in parts if other != part for link in beyond_scalings(other)):
            alone = link.rule is not None and link.rule.scope is Scope.ENTRY
            if not (by_entry and alone) and name_of(link) not in ("trace", "project"):
                raise ValueError(
                    f"solve: implicit= is not possible with {name_of(link)} before {part!r:.100}: "
                    "projected steps of more than one rate end elsewhere than at the solution. Use "
                    "sgd, or proximal(sgd(...), ..., accelerated=True)"
                )


class _Reals(NamedTuple):
    """Parameters as real numbers in at least float32: complex ones are two, in a new first axis.

    A loss of complex parameters has derivatives as a function of real and imaginary parts alone.
    """

    like: Params

    def of(self, params: Params) -> PyTree:
        def parts(p: Array) -> Array:
            return jnp.stack([p.real, p.imag]) if jnp.iscomplexobj(p) else widen(p)

        return jax.tree.map(parts, params)

    def wide(self, reals: PyTree) -> Params:
        """The parameters in the types in which they are computed."""

        def whole(r: Array, p: Array) -> Array:
            return jax.lax.complex(r[0], r[1]) if jnp.iscomplexobj(p) else r

        return jax.tree.map(whole, reals, self.like)

    def params(self, reals: PyTree) -> Params:
        """The parameters in their own types."""
        return jax.tree.map(lambda x, p: x.astype(p.dtype), self.wide(reals), self.like)


def differentiable(
    find: Callable[[], tuple[Params, Array, Any]],
    loss: Callable[[Params], Array],
    nearest: Nearest | None,
    start: Params,
    options: Implicit,
) -> tuple[Params, Any]:
    """The solution that `find` returns, differentiable in what the loss closes over, and the rest.

    Args:
        find: returns parameters, whether these are a solution (else the derivative is NaN), and
            anything else, which has no derivative.
        loss: of the parameters to differentiate.
        nearest: `nearest` of the optimizer's record, which may close over hyperparameters.
        start: arrays like the solution, None where there is none.
        options: as checked.
    """
    # The search has no tangents, not even those of arrays that the loss closes over.
    search, closed_over = jax.closure_convert(find)
    params, sound, rest = search(*jax.lax.stop_gradient(closed_over))
    tree = unpack(start)
    reals = _Reals(tree)

    def objective(x: PyTree) -> Array:
        return loss(packed_like(reals.params(x), start))

    def residual(x: PyTree) -> PyTree:
        factor = jnp.where(sound, 1.0, jnp.nan)
        slope = jax.tree.map(lambda g: g * factor.astype(g.dtype), jax.grad(objective)(x))
        if nearest is None:
            return slope
        rate = options.rate
        moved = jax.tree.map(lambda a, g: a - rate * g, x, slope)
        return jax.tree.map(jnp.subtract, x, reals.of(nearest(reals.wide(moved), rate)))

    method = options.method or ("cg" if nearest is None else "gmres")

    def tangents(jacobian: Callable[[PyTree], PyTree], right: PyTree) -> PyTree:
        # JAX transposes the solve only if all leaves of the right-hand side are differentiated. A
        # leaf in a separate term of the loss is not; a single vector always is.
        vector, back = ravel_pytree(right)

        def matrix(u: Array) -> Array:
            return ravel_pytree(jacobian(back(u)))[0] + options.ridge * u

        return back(_solved(matrix, vector, method, options))

    solution = reals.of(unpack(params))
    x = jax.lax.custom_root(residual, solution, lambda _, x: x, tangents)
    return packed_like(reals.params(x), start), rest


def _solved(
    matrix: Callable[[Array], Array], right: Array, method: str, options: Implicit
) -> Array:
    """The solution of a linear system, by products alone; NaN where none was reached."""
    sparse = jax.scipy.sparse.linalg
    tol = float(jnp.finfo(right.dtype).eps) ** (2 / 3) if options.tol is None else options.tol

    def reached(matrix: Callable[[Array], Array], right: Array) -> Array:
        if method == "gmres":
            outer = -(-options.max_steps // _RESTART)
            u, _ = sparse.gmres(matrix, right, tol=tol, restart=_RESTART, maxiter=outer)
        else:
            u, _ = getattr(sparse, method)(matrix, right, tol=tol, maxiter=options.max_steps)
        solved = norm_sq(matrix(u) - right) <= max(_UNSOLVED, tol) ** 2 * norm_sq(right)
        return jnp.where(solved, u, jnp.nan)

    solution: Array = jax.lax.custom_linear_solve(
        matrix, right, reached, transpose_solve=reached, symmetric=method == "cg"
    )
    return solution
