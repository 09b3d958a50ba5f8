"""Shardings as a transformation knows them: of each leaf, and on a mesh with `Explicit` axes.

On explicit axes, as `jax.make_mesh` makes them, an array's sharding is a part of its type. JAX
refuses an operation there whose result could be sharded in several ways, such as a scatter or a
product of sharded matrices, until the program chooses. A loss may choose; a transformation has
nothing to choose, since parameters and slots stay where they are. It runs as on `Auto` axes, and
knows the shardings of the leaves from their types.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec, SingleDeviceSharding

from gradtx.leaves.paths import path_string
from gradtx.programs.tracing import is_staged, is_tracer
from gradtx.types import Params, PyTree, State, TreeT, Updates

_T = TypeVar("_T")


class _KnownShardings(NamedTuple):
    """of: each leaf's sharding, by path; balance: whether stacks begin at different devices."""

    of: Mapping[str, NamedSharding]
    balance: bool


_known: ContextVar[_KnownShardings | None] = ContextVar("shardings", default=None)


@contextlib.contextmanager
def known_shardings(of: Mapping[str, NamedSharding], *, balance: bool) -> Iterator[None]:
    """Inside, it is known how leaves are sharded, so that each matrix is computed by one device.

    Args:
        of: the sharding of each leaf, by path.
        balance: whether stacks of matrices that do not divide begin at different devices.
    """
    token = _known.set(_KnownShardings(of, balance))
    try:
        yield
    finally:
        _known.reset(token)


@contextlib.contextmanager
def known_of_parts(
    of_parts: Callable[[Mapping[str, NamedSharding]], Mapping[str, NamedSharding]],
) -> Iterator[None]:
    """Inside, the shardings of parts of leaves are known too, where those of the leaves are.

    Args:
        of_parts: gives them from those of the leaves, both by path.
    """
    known = _known.get()
    if known is None:
        yield
        return
    with known_shardings({**known.of, **of_parts(known.of)}, balance=known.balance):
        yield


def shardings_are_known() -> bool:
    """Whether it is known how leaves are sharded."""
    return _known.get() is not None


def known_sharding(path: str) -> NamedSharding | None:
    """How a leaf is sharded, if that is known."""
    known = _known.get()
    return None if known is None else known.of.get(path)


def open_sharding(x: Any) -> NamedSharding | None:
    """The sharding of a traced array on the mesh of `jax.set_mesh`, if all its axes are `Auto`.

    Only the compiler knows how the array is divided there: the sharding leaves every dimension
    open. None if there is no such mesh, or it has one device, or it is known how leaves are
    sharded; also under ``vmap``, whose copies may be what is divided.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if shardings_are_known() or mesh.empty or mesh.size == 1 or not is_staged(x):
        return None
    if any(kind != AxisType.Auto for kind in mesh.axis_types):
        return None
    return NamedSharding(mesh, open_spec(x.ndim))


def lacks_a_mesh(params: Params) -> bool:
    """Whether leaves are divided over `Auto` axes, and no mesh is known to what is traced here."""
    if not jax.sharding.get_abstract_mesh().empty:
        return False
    places = (getattr(x, "sharding", None) for x in jax.tree.leaves(params))
    return any(
        isinstance(place, NamedSharding)
        and not place.is_fully_replicated
        and not explicit_axes(place.mesh)
        for place in places
    )


def open_spec(dimensions: int) -> PartitionSpec:
    """The specification that leaves it to the compiler how each dimension is divided."""
    return PartitionSpec(*[PartitionSpec.UNCONSTRAINED] * dimensions)


def is_open(sharding: NamedSharding) -> bool:
    """Whether a sharding is one of :func:`open_sharding`."""
    return PartitionSpec.UNCONSTRAINED in sharding.spec


def dividing_axes(sharding: NamedSharding, ndim: int) -> tuple[tuple[Any, ...], ...]:
    """For each dimension of an array the mesh axes, of more than one device, that divide it.

    They are the same for all specifications that divide an array alike, such as ``P("d")`` and
    ``P("d", None)`` or, where ``"m"`` has one device, ``P(("d", "m"))``.

    Args:
        sharding: of the array.
        ndim: the number of its dimensions.
    """
    spec_axes = [axes if isinstance(axes, tuple) else (axes,) for axes in sharding.spec]

    def divides(axis: Any) -> bool:
        return axis is PartitionSpec.UNCONSTRAINED or bool(axis and sharding.mesh.shape[axis] > 1)

    dims = [tuple(filter(divides, axes)) for axes in spec_axes]
    return (*dims, *[()] * (ndim - len(dims)))


def stacks_are_balanced() -> bool:
    """Whether stacks of matrices begin at different devices."""
    known = _known.get()
    return known is not None and known.balance


def on_explicit_axes(
    run: Callable[..., tuple[Any, State]],
    like: PyTree,
    numbers: Any,
    updates: Updates,
    state: State,
    params: Params | None,
    extra_args: dict[str, Any],
) -> tuple[Any, State]:
    """``run(numbers, updates, state, params, **extra_args)`` where no axis is explicit.

    The shardings that the types of the updates name, or else those of the parameters, are known
    inside. Outside of a mesh with explicit axes this is `run`.

    Args:
        run: an update or a whole step.
        like: a tree like its result, in whose shardings the result is.
        numbers: a tree with the hyperparameters that are arrays, such as the transformation.
        updates: the updates.
        state: the state.
        params: the parameters.
        extra_args: more arguments; functions are called as they are, on explicit axes.
    """
    arrays = {n: v for n, v in extra_args.items() if not callable(v)}
    leaves = jax.tree.leaves((updates, state, params, arrays))
    if not any(map(is_tracer, leaves)):
        with _told_to_compile(leaves):
            return run(numbers, updates, state, params, **extra_args)
    if explicit_mesh(leaves) is None:
        return run(numbers, updates, state, params, **extra_args)
    functions = {n: explicit(v, params) for n, v in extra_args.items() if callable(v)}
    by_path = [
        leaf for tree in (params, updates) for leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]
    shardings = {path_string(k): jax.typeof(x).sharding for k, x in by_path if explicit_mesh(x)}

    def inside(entered: Any, arrays: dict[str, Any], *trees: Any) -> Any:
        entered = numbers if entered is None else entered
        if shardings_are_known():
            return run(entered, *trees, **arrays, **functions)
        with known_shardings(shardings, balance=False):
            return run(entered, *trees, **arrays, **functions)

    entered = None if explicit_mesh(numbers) is None else numbers
    return automatic(inside, like, entered, arrays, updates, state, params)


@contextlib.contextmanager
def _told_to_compile(leaves: list[Any]) -> Iterator[None]:
    """An error on explicit axes gets a note: they become automatic only while JAX compiles."""
    try:
        yield
    except Exception as error:
        if explicit_mesh(leaves) is not None:
            error.add_note(
                "These arrays are on a mesh with Explicit axes. Compile the step (jax.jit or "
                "gradtx.make_step), or make the mesh with axis_types=(jax.sharding.AxisType.Auto,)"
            )
        raise


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
    if mesh is None or not jax.tree.leaves(like):
        return function(*args)
    if any(map(is_tracer, leaves)):
        shardings = jax.tree.map(lambda x: _sharding(x, mesh), like)
        axes = explicit_axes(mesh)
        done: _T = jax.sharding.auto_axes(function, axes=axes, out_sharding=shardings)(*args)
        return done
    with _told_to_compile(leaves):
        return function(*args)


def explicit(function: Callable[..., _T], params: Params) -> Callable[..., _T]:
    """A function of parameters, such as a loss, as it is, for use inside of :func:`automatic`."""
    mesh = explicit_mesh(params)
    if mesh is None:
        return function
    shardings = jax.tree.map(lambda x: _sharding(x, mesh), params)

    def called(params: Params, *args: Any, **kwargs: Any) -> _T:
        def on(params: Params) -> _T:
            return function(params, *args, **kwargs)

        if explicit_mesh(params) is not None or jax.sharding.get_abstract_mesh().empty:
            return on(params)
        axes = explicit_axes(mesh)
        done: _T = jax.sharding.explicit_axes(on, axes=axes, in_sharding=(shardings,))(params)
        return done

    return called


def explicit_mesh(tree: PyTree) -> Any:
    """The mesh with explicit axes on which arrays of a tree lie; None if there is none."""
    for leaf in jax.tree.leaves(tree):
        mesh = _mesh(leaf)
        if mesh is not None and AxisType.Explicit in mesh.axis_types:
            return mesh
    return None


def in_one_program(
    function: Callable[[list[Any]], list[Any]], tree: PyTree, is_one: Callable[[Any], bool]
) -> PyTree:
    """A tree in which others stand for the leaves that are chosen, all made by one program.

    Simulated devices wait for ever where several programs that communicate run at a time.

    Args:
        function: of the list of chosen leaves.
        tree: the tree.
        is_one: whether a node of it is a chosen leaf.
    """
    treedef: Any
    leaves, treedef = jax.tree.flatten(tree, is_leaf=is_one)
    replacements = iter(jax.jit(function)([x for x in leaves if is_one(x)]))
    return treedef.unflatten([next(replacements) if is_one(x) else x for x in leaves])


def committed(tree: TreeT) -> tuple[TreeT, bool]:
    """A tree with all its arrays bound to one device if some are, and whether some are.

    Arrays are bound to a device (JAX calls them committed) if their device was asked for, as for an
    array in the host's memory. What a compiled function returns is bound if one of its
    arguments is, and it is compiled once more for arguments of which others are bound. Binding
    copies nothing. Where arrays are bound to several devices the tree is returned as it is.
    """
    arrays = [x for x in jax.tree.leaves(tree) if isinstance(x, jax.Array)]
    if any(map(is_tracer, arrays)):
        return tree, False
    bound = {x.sharding for x in arrays if x.committed}
    devices = {device for sharding in bound for device in sharding.device_set}
    single = all(isinstance(sharding, SingleDeviceSharding) for sharding in bound)
    if len(devices) != 1 or not single:
        return tree, False
    sharding = SingleDeviceSharding(devices.pop())

    def one(x: Any) -> Any:
        loose = isinstance(x, jax.Array) and not x.committed
        return jax.device_put(x, sharding) if loose else x

    return jax.tree.map(one, tree), True


def sliceable(x: Any) -> Any:
    """An array on explicit axes as one that is whole on every device; any other as it is.

    On explicit axes JAX refuses a slice that cuts through what is divided.
    """
    mesh = explicit_mesh(x)
    return x if mesh is None else jax.sharding.reshard(x, NamedSharding(mesh, PartitionSpec()))


def _mesh(x: Any) -> Any:
    if not isinstance(x, jax.Array):
        return None
    return getattr(getattr(jax.typeof(x), "sharding", None), "mesh", None)


def _sharding(x: Any, mesh: Any) -> Any:
    if isinstance(x, NamedSharding):
        return x
    return jax.typeof(x).sharding if _mesh(x) == mesh else NamedSharding(mesh, PartitionSpec())
