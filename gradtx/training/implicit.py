"""Derivatives of a solution as a fixed point, whichever optimizer found it."""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp

from gradtx.checks import check_integer
from gradtx.composition.nearest import EndsElsewhere, Nearest, NearestFn, Penalty, nearest_in
from gradtx.composition.scalings import Scaling, beyond_scalings
from gradtx.composition.searches import Searches
from gradtx.composition.views import OnPart
from gradtx.core.explanations import name_of
from gradtx.core.pair import GradientTransformation
from gradtx.core.traits import Scope
from gradtx.leaves.packed import packed_like, unpack
from gradtx.leaves.paths import leaves_with_path, path_string, select
from gradtx.leaves.shardings import automatic, explicit
from gradtx.numerics import is_zero, widen
from gradtx.programs.tracing import is_tracer
from gradtx.tree import add_scale, cast_like, norm_sq, sub, vdot
from gradtx.tree.sums import norm_of_all
from gradtx.types import Array, Params, PyTree

LinearMethod = Literal["cg", "gmres", "bicgstab"]

# A relative residual above this is no solution: the system is singular, or the steps ran out.
_UNSOLVED = 1e-2

# By these names arguments multiply a penalty, in gradtx's builders and by custom in others'.
_ADDED = (
    "weight_decay",
    "l1_regularization_strength",
    "l2_regularization_strength",
    "l2_shrinkage_regularization_strength",
)

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
        max_steps: the largest number of products, at least 1, rounded up to a multiple of 20 for
            GMRES and of 2 for BiCGSTAB.
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


def checked(
    implicit: bool | Implicit, tx: GradientTransformation, params: Params
) -> Implicit | None:
    """The argument `implicit` of :func:`solve` as a record; None for False.

    Args:
        implicit: the argument.
        tx: the optimizer.
        params: the trained parameters.

    Raises:
        ValueError: a field is out of its range; `tx` does not end at a fixed point that follows
            from its record.
        TypeError: it is neither a boolean nor an `Implicit`; a number in a field is traced.
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
    if method == "cg" and nearest_in(tx) is not None:
        raise ValueError(
            "solve: implicit.method='cg' needs a symmetric matrix, which that of a projected or "
            "proximal step is not: use 'gmres' or 'bicgstab'"
        )
    check_integer("solve", "implicit.max_steps", max_steps, least=1)
    for name, value in (("tol", tol), ("ridge", ridge), ("rate", rate)):
        if is_tracer(value):
            raise TypeError(f"solve: implicit.{name} must be a number, and is traced: {value}")
    tol, ridge, rate = None if tol is None else float(tol), float(ridge), float(rate)
    for name, value, fits, range in (
        ("tol", tol, tol is None or 0 < tol < math.inf, "above 0"),
        ("ridge", ridge, 0 <= ridge < math.inf, "at least 0"),
        ("rate", rate, 0 < rate < math.inf, "above 0"),
    ):
        if not fits:
            raise ValueError(f"solve: implicit.{name} must be {range} and finite, not {value!r}")
    _check_optimizer(tx, unpack(params))
    return options._replace(tol=tol, ridge=ridge, rate=rate)


def _check_optimizer(tx: GradientTransformation, params: Params) -> None:
    """Raise ValueError if the end points of `tx` do not follow from its record and the loss."""
    stopping = {id(each) for each in tx.saying(EndsElsewhere)}
    for each in (tx, *tx.within):
        _check_links(each, params)
        ends, nearest = each.facet(EndsElsewhere), each.facet(Nearest)
        if ends is not None and id(each) in stopping:
            raise ValueError(
                f"solve: implicit= is not possible with {name_of(each)}, which {ends.why}"
            )
        _check_penalties(each)
        if nearest is None or each.declaration is None:
            continue
        schedules = each.declaration.builder.schedules(each.declaration.arguments)
        changing = {*schedules} - {nearest.rate}
        if changing:
            raise ValueError(
                f"solve: implicit= is not possible with {name_of(each)}, where {min(changing)} is "
                "a schedule: its last value decides on the solution. Pass a number or an array"
            )


def _check_penalties(tx: GradientTransformation) -> None:
    """Raise ValueError if `tx` adds a penalty that is neither in the loss nor in its record."""
    penalty = tx.facet(Penalty)
    strengths = {} if penalty is None else dict(penalty.strengths)
    arguments = {} if tx.declaration is None else tx.declaration.arguments
    if tx.facet(Nearest) is None:
        strengths |= {name: arguments[name] for name in _ADDED if name in arguments}
    for name, strength in strengths.items():
        if not is_zero(strength):
            value = arguments.get(name, strength)
            raise ValueError(
                f"solve: implicit= is not possible with {name_of(tx)}({name}={value}), which "
                "moves the solution by what is no part of the loss: add the penalty to the "
                f"loss and pass {name}=0, or use gradtx.proximal"
            )


def _check_links(tx: GradientTransformation, params: Params) -> None:
    """Raise ValueError if other links of a chain move the end point away from the solution."""
    parts = tx.parts if tx.parts is not None and tx.facet(OnPart) is None else ()
    for i, part in enumerate(parts):
        maps = [each for each in map(_nearest, (part, *part.within)) if each is not None]
        if any(each.at_own_rate for each in maps):
            wrong = [link for other in parts[:i] for link in _links(other)]
            why = (
                "the penalty's map gets the rate of its inner optimizer alone. Pass a chain of "
                "both as the inner optimizer of proximal"
            )
        else:
            before, after = parts[:i], parts[i + 1 :]
            others = [(link, False) for other in before for link in beyond_scalings(other)]
            others += [(link, True) for other in after for link in beyond_scalings(other)]
            wrong = [link for link, late in others if not _agree(maps, link, late, params)]
            why = (
                "projected steps of more than one rate, or into one set after another, end "
                "elsewhere than at the solution. Use sgd or proximal(sgd(...), ..., "
                "accelerated=True), and one function that projects onto what sets have in common"
            )
        if maps and wrong:
            names = f"{name_of(wrong[0])} in a chain with {part!r:.100}"
            raise ValueError(f"solve: implicit= is not possible with {names}: {why}")


def _links(tx: GradientTransformation) -> list[GradientTransformation]:
    """The parts that updates pass through one after another; `tx` if it has none."""
    if tx.parts is None or tx.facet(OnPart) is not None:
        return [tx]
    return [link for part in tx.parts for link in _links(part)]


def _nearest(tx: GradientTransformation) -> Nearest | None:
    return tx.facet(Nearest)


def _agree(maps: list[Nearest], link: GradientTransformation, late: bool, params: Params) -> bool:
    """Whether a chain of projections and another link ends at the solution.

    It does where each entry has a step and a bound of its own, and where a search only shortens the
    step between two points of the set.
    """
    if link.facet(Scaling) is not None or (late and link.facet(Searches) is not None):
        return True
    nearest: Any = link.facet(Nearest)
    projects = nearest is not None and not nearest.at_own_rate
    if projects and not _mapped([nearest], params) & _mapped(maps, params):
        return True
    alone = link.rule is not None and link.rule.scope is Scope.ENTRY
    alone = alone or (nearest is not None and nearest.by_entry)
    return alone and all(each.by_entry for each in maps)


def _mapped(maps: list[Nearest], params: Params) -> set[str]:
    """The paths of the leaves that some projections see."""
    trees = [leaves_with_path(select(params, each.where))[0] for each in maps]
    return {path_string(path) for tree in trees for path, p in tree if p is not None}


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
    nearest: NearestFn | None,
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
        dtype = jnp.result_type(*jax.tree.leaves(right))

        def matrix(u: PyTree) -> PyTree:
            moved = jacobian(cast_like(u, right))
            return jax.tree.map(lambda a, b: a.astype(dtype) + options.ridge * b, moved, u)

        # JAX transposes the solve only if all leaves of the right-hand side are differentiated. A
        # leaf in a separate term of the loss may have no tangent: each depends on the sum of all,
        # which is never chosen.
        total = sum(jnp.sum(b.astype(dtype)) for b in jax.tree.leaves(right))
        wide = jax.tree.map(lambda b: jnp.where(False, total, b.astype(dtype)), right)
        return cast_like(_solved(matrix, wide, method, options), right)

    solution = reals.of(unpack(params))
    x = jax.lax.custom_root(residual, solution, lambda _, x: x, tangents)
    return packed_like(reals.params(x), start), rest


def _solved(
    matrix: Callable[[PyTree], PyTree], right: PyTree, method: str, options: Implicit
) -> PyTree:
    """The solution of a linear system, by products alone; NaN where none was reached.

    Vectors are trees, each leaf of which stays divided over devices as it is.
    """
    sparse = jax.scipy.sparse.linalg
    eps = float(jnp.finfo(jax.tree.leaves(right)[0].dtype).eps)
    tol = eps ** (2 / 3) if options.tol is None else options.tol

    def reached(matrix: Callable[[PyTree], PyTree], right: PyTree) -> PyTree:
        # JAX's inner products of arrays that are divided over explicit axes ask for a sharding.
        return automatic(functools.partial(steps, explicit(matrix, right)), right, right)

    def steps(matrix: Callable[[PyTree], PyTree], right: PyTree) -> PyTree:
        # The squares of a right-hand side of length near 1 neither overflow nor vanish, and a power
        # of two rounds nothing.
        length = norm_of_all(right)
        size = jnp.ldexp(jnp.ones_like(length.value), jnp.frexp(length.value)[1])
        size = jnp.where(jnp.isfinite(length.value), size, jnp.nan)
        right = jax.tree.map(lambda b: b / length.unit / size, right)
        most = options.max_steps
        if method == "cg":
            u = _conjugate_gradients(matrix, right, tol, most)
        elif method == "bicgstab":  # whose steps take two products each
            u, _ = sparse.bicgstab(matrix, right, tol=tol, maxiter=-(-most // 2))
        else:
            outer = -(-most // _RESTART)
            u, _ = sparse.gmres(matrix, right, tol=tol, restart=_RESTART, maxiter=outer)
        solved = norm_sq(sub(matrix(u), right)) <= max(_UNSOLVED, tol) ** 2 * norm_sq(right)
        return jax.tree.map(lambda u: jnp.where(solved, u * size * length.unit, jnp.nan), u)

    return jax.lax.custom_linear_solve(
        matrix, right, reached, transpose_solve=reached, symmetric=method == "cg"
    )


def _conjugate_gradients(
    matrix: Callable[[PyTree], PyTree], right: PyTree, tol: float, most: int
) -> PyTree:
    """The method of conjugate gradients, from zeros.

    JAX's takes inner products of flat vectors, for which leaves that are divided along two axes are
    put together on each device.
    """
    enough = tol**2 * norm_sq(right)

    def go_on(now: Any) -> Array:
        *_, square, steps = now
        return (square > enough) & (steps < most)

    def step(now: Any) -> Any:
        u, residual, direction, square, steps = now
        product = matrix(direction)
        length = square / vdot(direction, product)
        u = add_scale(u, length, direction)
        residual = add_scale(residual, -length, product)
        following = norm_sq(residual)
        direction = add_scale(residual, following / square, direction)
        return u, residual, direction, following, steps + 1

    zeros = jax.tree.map(jnp.zeros_like, right)
    return jax.lax.while_loop(go_on, step, (zeros, right, right, norm_sq(right), 0))[0]
