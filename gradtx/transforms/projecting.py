"""Constraints: every update ends in a set, so that the parameters stay in it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradtx import projections
from gradtx.checks import check_constant, check_function
from gradtx.composition.nearest import Nearest
from gradtx.composition.without_state import without_state
from gradtx.core.pair import (
    GradientTransformation,
    transformation,
)
from gradtx.engine.lift import needed
from gradtx.leaves.paths import (
    Where,
    aligned,
    is_leaf,
    leaves_with_path,
    merge,
    path_string,
    select,
)
from gradtx.leaves.rows import is_rows, take_rows
from gradtx.numerics import widen
from gradtx.types import Array, Params, PyTree, Updates

# The projections that treat each entry by itself.
_OF_ENTRIES = ("box", "hypercube", "linf_ball", "non_negative")


@transformation
def project(
    projection: str | Callable[..., PyTree],
    where: Where | None = None,
    arguments: dict[str, Any] | None = None,
) -> GradientTransformation:
    r"""Change the updates so that the new parameters are in a set.

    .. math:: u = P(\theta + g) - \theta

    Put it last in a chain, where :math:`g` is what would be added to the parameters; the constraint
    then holds after ``apply_updates``, to rounding.

    Args:
        projection: the name of one of :mod:`gradtx.projections` without ``projection_``
            (``"simplex"``, ``"max_norm"``), or a function ``(tree, **arguments) -> tree``.
        where: which leaves are projected, as in :func:`masked`; the others pass unchanged. A
            projection such as the simplex sees all of these leaves as one vector.
        arguments: further arguments of the projection.

    A leaf without a gradient does not move and is not part of the projected tree. If the update of
    a table is `Rows`, the touched rows are projected, provided the projection treats each row
    independently: norms, simplices and balls of the 1-norm along axes other than the first, and
    boxes whose bounds are numbers.

    Raises:
        ValueError: there is no projection of that name, ``update`` is called without parameters, or
            the projection returns another tree.
        TypeError: the projection cannot be called with a tree and these arguments; one of them is a
            schedule; or an update is `Rows`, and the projection needs the whole table.

    Keras has this as ``constraint=`` of a layer; in Optax you project after ``apply_updates``.

    >>> import gradtx
    >>> tx = gradtx.chain(gradtx.sgd(1.0), project("box", "w", {"lower": 0.0, "upper": 1.0}))
    >>> params = {"b": jnp.array(0.5), "w": jnp.array([0.5, 0.25])}
    >>> grads = {"b": jnp.array(1.0), "w": jnp.array([1.0, 0.125])}
    >>> updates, _ = tx.update(grads, tx.init(params), params)
    >>> gradtx.apply_updates(params, updates)["w"].tolist()
    [0.0, 0.125]
    """
    if isinstance(projection, str):
        check_constant("project", arguments or {})
    function = partial(named_projection(projection), **(arguments or {}))
    check_function("project", "projection", function, 1)

    def into_the_set(updates: Updates, params: Params | None, **extra_args: Any) -> Updates:
        del extra_args
        params = needed("project", updates, params)
        keyed, treedef = leaves_with_path(updates)
        problem = "project: the updates and the parameters are different trees"
        parameters = aligned(problem, updates, treedef, params)
        chosen = jax.tree.leaves(select(updates, where), is_leaf=is_leaf)
        for (path, _), g in zip(keyed, chosen, strict=True):
            if is_rows(g) and not _treats_rows_alone(projection, arguments or {}, g.ndim):
                raise TypeError(
                    f"project needs the whole table at {path_string(path)!r}, where the update is "
                    "Rows: leave it out with `where`, bound its rows (max_norm with axis=1), or "
                    "make the gradient dense with to_dense()"
                )
        steps = [g.coalesce() if is_rows(g) else g for g in chosen]
        starts = [_start(g, p) for g, p in zip(steps, parameters, strict=True)]
        moved = [None if p is None else p + _values(g) for g, p in zip(steps, starts, strict=True)]
        projected = _leaves_like(function(treedef.unflatten(moved)), moved, treedef)
        new = [
            old if p is None else _like(g, target - p)
            for (_, old), g, p, target in zip(keyed, steps, starts, projected, strict=True)
        ]
        return treedef.unflatten(new)

    def nearest(params: Params, rate: Any) -> Params:
        del rate
        seen = select(params, where)
        keyed, treedef = leaves_with_path(seen)
        inside = _leaves_like(function(seen), [p for _, p in keyed], treedef)
        return merge(treedef.unflatten(inside), params)

    by_entry = isinstance(projection, str) and projection in _OF_ENTRIES
    return without_state(
        into_the_set,
        check=lambda params: select(params, where),
        facets=(Nearest(nearest, where, by_entry=by_entry),),
    )


def named_projection(projection: str | Callable[..., PyTree]) -> Callable[..., PyTree]:
    """One of :mod:`gradtx.projections` by its name without ``projection_``; a function as it is."""
    if callable(projection):
        return projection
    known = [name.removeprefix("projection_") for name in projections.__all__]
    if projection not in known:
        raise ValueError(
            f"project: there is no projection {projection!r}; there are {', '.join(known)}"
        )
    return getattr(projections, f"projection_{projection}")


def _treats_rows_alone(projection: Any, arguments: dict[str, Any], ndim: int) -> bool:
    if projection in _OF_ENTRIES:
        return all(jnp.ndim(bound) == 0 for bound in jax.tree.leaves(arguments))
    norms = ("max_norm", "min_max_norm", "unit_norm")
    if projection in (*norms, "l1_ball", "l1_sphere", "simplex", "sparse_simplex"):
        axis = arguments.get("axis", 0 if projection in norms else None)
        axes = (axis,) if isinstance(axis, int | np.integer) else axis
        return axes is not None and all(a % ndim for a in axes)
    return False


def _start(g: Any, p: Any) -> Any:
    """The parameter, or the rows of it, that `g` moves, in at least float32; None for none."""
    if g is None:
        return None
    return widen(take_rows(p, g.indices) if is_rows(g) else jnp.asarray(p))


def _values(g: Any) -> Array:
    return widen(g.values if is_rows(g) else jnp.asarray(g))


def _like(g: Any, update: Array) -> Any:
    update = update.astype(g.dtype)
    return g.with_values(update) if is_rows(g) else update


def _leaves_like(tree: PyTree, moved: list[Any], treedef: Any) -> list[Any]:
    leaves, other = jax.tree.flatten(tree, is_leaf=is_leaf)
    shapes = [None if x is None else jnp.shape(x) for x in leaves]
    if other != treedef or shapes != [None if x is None else x.shape for x in moved]:
        raise ValueError("project: the projection must return a tree like the one it is given")
    return leaves
