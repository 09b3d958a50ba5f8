"""Steps on a mesh whose axes are `Explicit`, as `jax.make_mesh` makes them: they run as on `Auto`.

On explicit axes JAX refuses an operation whose result could be sharded in several ways, such as a
scatter or a product of sharded matrices, until the program chooses. A loss may do so; a
transformation has nothing to choose, since parameters and slots stay where they are.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from gradtx.numerics.steering import is_tracer
from gradtx.types import Params, PyTree

_T = TypeVar("_T")


def explicit_axes(mesh: Any) -> tuple[str, ...]:
    """The axes of a mesh along which JAX makes an array's sharding part of its type."""
    types = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return tuple(axis for axis, kind in types if kind == AxisType.Explicit)


def automatic(function: Callable[..., _T], like: PyTree, *args: Any) -> _T:
    """``function(*args)`` where no axis is explicit; results are sharded like the arrays `like`.

    `like` may be a tree of shardings too. JAX can do so only while it compiles; elsewhere an error
    gets a note that says this.
    """
    leaves = jax.tree.leaves(args)
    mesh = explicit_mesh(args)
    if mesh is None:
        return function(*args)
    if any(map(is_tracer, leaves)):
        places = jax.tree.map(lambda x: _place(x, mesh), like)
        axes = explicit_axes(mesh)
        done: _T = jax.sharding.auto_axes(function, axes=axes, out_sharding=places)(*args)
        return done
    try:
        return function(*args)
    except Exception as error:
        error.add_note(
            "These arrays are on a mesh with Explicit axes. Compile the step (gradtx.make_step or "
            "jax.jit), or make the mesh with axis_types=(jax.sharding.AxisType.Auto,)"
        )
        raise


def explicit(function: Callable[..., _T], params: Params) -> Callable[..., _T]:
    """A function of parameters, such as a loss, as it is, for use inside of :func:`automatic`."""
    mesh = explicit_mesh(params)
    if mesh is None:
        return function
    places = jax.tree.map(lambda x: _place(x, mesh), params)

    def called(params: Params, *args: Any, **kwargs: Any) -> _T:
        def on(params: Params) -> _T:
            return function(params, *args, **kwargs)

        if explicit_mesh(params) is not None or jax.sharding.get_abstract_mesh().empty:
            return on(params)
        axes = explicit_axes(mesh)
        done: _T = jax.sharding.explicit_axes(on, axes=axes, in_sharding=(places,))(params)
        return done

    return called


def explicit_mesh(tree: PyTree) -> Any:
    """The mesh with explicit axes on which arrays of a tree lie; None if there is none."""
    meshes = (_mesh(x) for x in jax.tree.leaves(tree))
    return next((mesh for mesh in meshes if mesh is not None and explicit_axes(mesh)), None)


def _mesh(x: Any) -> Any:
    if not isinstance(x, jax.Array):
        return None
    return getattr(getattr(jax.typeof(x), "sharding", None), "mesh", None)


def _place(x: Any, mesh: Any) -> Any:
    if isinstance(x, NamedSharding):
        return x
    return jax.typeof(x).sharding if _mesh(x) == mesh else NamedSharding(mesh, PartitionSpec())
