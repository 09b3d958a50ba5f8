"""Minimizing: taking the gradients of a loss, and a step with them."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp

from gradtx.backward.inside import Inside
from gradtx.backward.lookup import looked_up, vjp
from gradtx.composition.apply import take_step
from gradtx.composition.around import not_outermost
from gradtx.core.loss_functions import of_all_leaves
from gradtx.core.pair import GradientTransformation, reduced_axes, with_extra_args_support
from gradtx.core.traits import BeforeFn
from gradtx.declarations.declaration import read_by_people
from gradtx.engine.leaves import gradient, parameter
from gradtx.estimators.estimator import Estimator
from gradtx.inspection.slots import walk_slots
from gradtx.leaves.packed import packed_like, unpack
from gradtx.leaves.paths import (
    Where,
    aligned,
    leaves_with_path,
    map_present,
    merge,
    path_string,
    select,
)
from gradtx.leaves.rows import is_rows
from gradtx.leaves.shardings import automatic
from gradtx.leaves.whole import whole_leaves
from gradtx.numerics import as_arrays
from gradtx.programs.tracing import tracked, vary, varying_axes
from gradtx.sharding.resharding import Shardings
from gradtx.training.estimated import (
    after_step,
    check_estimator,
    estimate,
    estimating,
    estimator_of,
    inner_state_of,
    key_in,
    optimizer_of,
    say_if_flat,
    with_flat,
)
from gradtx.training.estimated_inside import EstimatedLoops
from gradtx.training.loss_scale import scale_in, unscaled
from gradtx.training.rounding import rounded_with
from gradtx.types import (
    Array,
    Params,
    ParamsT,
    PyTree,
    State,
    StateT,
    Updates,
    is_state,
    is_stored,
)
from gradtx.types.keys import check_key, own_key

Value = TypeVar("Value")  # the result of a loss: its value or, with has_aux, (value, aux)
_Params_contra = TypeVar("_Params_contra", contravariant=True)
_Value_co = TypeVar("_Value_co", covariant=True)


class LossFn(Protocol[_Params_contra, _Value_co]):
    """The type of a loss: a function of the parameters and of anything else."""

    def __call__(self, params: _Params_contra, /, *args: Any, **kwargs: Any) -> _Value_co: ...


def check_order(where: str, **arguments: Any) -> None:
    """Raise TypeError if arguments, named in their right order, have changed places."""
    # A function in place of `tx` is a builder that was not called, which other checks report.
    right = _is_transformation(arguments["tx"]) or (
        "loss_fn" in arguments and callable(arguments["tx"])
    )
    if "loss_fn" in arguments:
        right &= callable(arguments["loss_fn"]) and not _is_transformation(arguments["loss_fn"])
    right &= not any(_is_transformation(arguments.get(k)) for k in ("params", "grads", "state"))
    right &= not any(is_state(arguments.get(k)) for k in ("params", "grads"))
    if not right:
        kinds = ", ".join(map(_kind, arguments.values()))
        raise TypeError(
            f"{where} takes {', '.join(arguments)}, in this order; it was given {kinds}"
        )


def _kind(x: Any) -> str:
    if _is_transformation(x):
        return "a transformation"
    if is_state(x):
        return "a state"
    return "a function" if callable(x) else f"a {type(x).__name__}"


def _is_transformation(x: Any) -> bool:
    pair = isinstance(x, tuple) and len(x) == 2 and all(map(callable, x))
    return pair or (callable(getattr(x, "init", None)) and callable(getattr(x, "update", None)))


def scalar_loss(loss_fn: Callable[..., Any], has_aux: bool, any_shape: bool) -> Callable[..., Any]:
    """`loss_fn` of the tree of parameters as ``-> (value, aux)``, with its results checked."""

    def checked(params: Params, *args: Any) -> tuple[Array, Any]:
        out = loss_fn(unpack(params), *args)
        if has_aux and not (isinstance(out, tuple) and len(out) == 2):
            raise TypeError(f"with has_aux the loss returns (value, aux), not {type(out).__name__}")
        value, aux = out if has_aux else (out, None)
        if isinstance(value, tuple | list | dict):
            raise TypeError(
                f"the loss must return a number, not a {type(value).__name__}; if it returns "
                "(value, aux), pass has_aux=True"
            )
        value = jnp.asarray(value)
        if not any_shape and value.shape != ():
            raise ValueError(
                f"the loss must be a scalar, not of shape {value.shape}; take its mean or sum, or "
                "pass the cotangent as grad_loss"
            )
        if not jnp.issubdtype(value.dtype, jnp.floating):
            raise TypeError(f"the loss must be a real floating-point number, not {value.dtype}")
        return value, aux

    return checked


@read_by_people
def compute_gradients(
    loss_fn: LossFn[ParamsT, Value],
    params: ParamsT,
    *args: Any,
    has_aux: bool = False,
    grad_loss: Any = None,
    trainable: Where | None = None,
    gradients: Estimator | None = None,
    gradients_key: Any = None,
) -> tuple[Value, ParamsT]:
    r"""The value of a loss and its gradient: the first half of :func:`minimize`.

    Args:
        loss_fn: ``(params, *args) -> value`` or, with `has_aux`, ``-> (value, aux)``.
        params: a tree of floating-point or complex arrays.
        args: passed to `loss_fn` after the parameters.
        has_aux: whether `loss_fn` returns something besides the value.
        grad_loss: the cotangent of the value, of its shape; 1 by default. With it the loss need
            not be a scalar.
        trainable: which leaves to differentiate, as in :func:`select`; all by default.
        gradients: how the gradient is estimated without a backward pass, such as :func:`spsa`; None
            to differentiate. The value is then that of the estimator, and every gradient an array.
        gradients_key: a random key for the estimator, to be used once.

    Returns:
        ``(value, gradients)``, or ``((value, aux), gradients)``. The gradient of a leaf that is not
        trainable is `None`; that of a table that is only looked up, by :func:`gradtx.sparse.take`,
        is `Rows`; that of a complex leaf is the conjugate of the result of ``jax.grad``, so that
        subtracting it descends.

    Raises:
        TypeError: a trainable leaf is an integer or boolean array; the loss returns no number;
            `gradients` is not an estimator.
        ValueError: the loss is not a scalar; no leaf is trainable; `gradients` has no
            `gradients_key`.

    Warns:
        UserWarning: outside of jit, the loss was the same on both sides of the parameters in every
            direction of the estimator.

    >>> value, grads = compute_gradients(
    ...     lambda p: p["a"] ** 2 * p["b"], {"a": 3.0, "b": 2.0}, trainable="a"
    ... )
    >>> float(value), float(grads["a"]), grads["b"]
    (18.0, 12.0, None)
    """
    trained = _trained(params, trainable)
    any_shape = grad_loss is not None or gradients is not None
    loss = scalar_loss(loss_fn, has_aux, any_shape)
    key = None
    if gradients is not None:
        check_estimator("compute_gradients", gradients)
        if gradients_key is None:
            raise ValueError(
                "compute_gradients: gradients needs a random key, to be used once: pass "
                "gradients_key=jax.random.key(...)"
            )
        check_key("compute_gradients", "gradients_key", gradients_key)
        key = own_key(gradients_key)
    value, grads, aux, _ = _value_and_gradients(
        lambda t: loss(merge(t, params), *args),
        trained,
        grad_loss,
        gradients=gradients,
        key=key,
        has_aux=has_aux,
    )
    result: Any = (value, aux) if has_aux else value
    return result, grads


def _differentiated(
    loss: Callable[[Params], tuple[Array, Any]],
    trained: Params,
    grad_loss: Any,
    axes: tuple[str, ...] = (),
    scale: Array | None = None,
) -> tuple[Array, Updates, Any]:
    """The value of a loss, its gradient and its other results.

    Along `axes` the gradient is not summed: each device gets that of its own loss. It is that of
    the loss multiplied by a scale, if there is one.

    Raises:
        ValueError: `grad_loss` has another shape; the loss is reduced over one of the axes.
    """
    if axes:
        trained = vary(trained, axes)
    value, pull, aux = vjp(loss, trained)
    _check_not_reduced(value, axes)
    seed = _seed(value, grad_loss, scale)
    gradients = pull(vary(seed, varying_axes(jax.typeof(value))))
    return value, jax.tree.map(lambda g: g.conj() if jnp.iscomplexobj(g) else g, gradients), aux


def _check_not_reduced(value: Array, axes: tuple[str, ...]) -> None:
    reduced = set(axes) - varying_axes(jax.typeof(value))
    if reduced:
        raise ValueError(
            f"the loss is the same on all devices of {', '.join(map(repr, sorted(reduced)))}, over "
            "which the optimizer reduces the gradients: return each device's own loss, and reduce "
            "the value that the step returns"
        )


def _value_and_gradients(
    loss: Callable[[Params], tuple[Array, Any]],
    trained: Params,
    grad_loss: Any,
    axes: tuple[str, ...] = (),
    scale: Array | None = None,
    *,
    gradients: Estimator | None,
    key: Array | None,
    has_aux: bool,
) -> tuple[Array, Updates, Any, Array | None]:
    """The value of a loss, its gradient, its other results, and whether an estimate was flat."""
    if gradients is None or key is None:
        return *_differentiated(loss, trained, grad_loss, axes, scale), None

    def seed(value: Array) -> Array:
        _check_not_reduced(value, axes)
        return _seed(value, grad_loss, scale)

    value, grads, aux, flat = estimate(gradients, loss, trained, key, seed, has_aux)
    say_if_flat(gradients, flat, value, trained)
    return value, grads, aux, flat


def _objective(value: Array, grad_loss: Any) -> Array:
    """What the gradients are those of: the loss, or its product with `grad_loss`."""
    return value if grad_loss is None else jnp.sum(jnp.asarray(grad_loss, value.dtype) * value)


def _seed(value: Array, grad_loss: Any, scale: Array | None) -> Array:
    """The cotangent of the loss with which its derivative begins: 1, or `grad_loss`, scaled."""
    seed = jnp.ones_like(value) if grad_loss is None else jnp.asarray(grad_loss, value.dtype)
    if seed.shape != value.shape:
        raise ValueError(f"grad_loss has the shape {seed.shape}, the loss {value.shape}")
    return seed if scale is None else seed * scale.astype(value.dtype)


def read_inside(
    loss_fn: Callable[..., Any],
    tx: GradientTransformation,
    params: Params,
    *args: Any,
    has_aux: bool,
    any_shape: bool,
    trainable: Where | None,
    where: Where | bool,
    sharding: Shardings | None,
) -> Inside:
    """The scans of the loss, prepared for a step inside of the backward pass."""
    loss = scalar_loss(loss_fn, has_aux, any_shape)
    trained = _trained(params, trainable)
    return Inside(lambda t: loss(merge(t, params), *args), tx, trained, where, sharding)


def step_inside(
    loss_fn: Callable[..., Any],
    tx: GradientTransformation,
    params: ParamsT,
    state: StateT,
    *args: Any,
    has_aux: bool,
    grad_loss: Any,
    trainable: Where | None,
    extra_args: Mapping[str, Any] | None,
    where: Where | bool,
    sharding: Shardings | None = None,
    rounding_key: Any = None,
) -> tuple[ParamsT, StateT, Any]:
    """:func:`minimize` with the step inside of the backward pass, also on sharded parameters.

    Where gradients are estimated, the step is inside of nothing, but it takes one layer after
    another too.
    """
    gradients = estimator_of(tx)
    scale = scale_in(tx, state)
    optimizer, inner = optimizer_of(tx), inner_state_of(tx, state)
    read = read_inside(
        loss_fn,
        optimizer if rounding_key is None else rounded_with(optimizer, rounding_key),
        params,
        *args,
        has_aux=has_aux,
        any_shape=grad_loss is not None,
        trainable=trainable,
        where=where,
        sharding=sharding,
    )
    estimated = None
    if gradients is not None:
        estimated = EstimatedLoops(gradients, key_in(state), read.loops, read.leaves, has_aux)
    new, inner, value, aux = read.run(
        inner,
        lambda value: _seed(value, grad_loss, scale),
        lambda value: {"value": _objective(value, grad_loss), **(extra_args or {})},
        estimated,
    )
    if gradients is not None and estimated is not None:
        say_if_flat(gradients, estimated.flat, value, read.trained)
        inner = after_step(state, estimated.flat, inner)
    return merge(new, params), inner, (value, aux) if has_aux else value


def _trained(params: Params, trainable: Where | None) -> Params:
    leaves, treedef = leaves_with_path(as_arrays(select(params, trainable)))
    trained = treedef.unflatten([p if p is None else parameter(p, path) for path, p in leaves])
    if not jax.tree.leaves(trained):
        raise ValueError("there is no trainable parameter")
    return trained


def before_gradients(tx: GradientTransformation, state: State = None) -> BeforeFn | None:
    """The function of `tx` that must run before gradients are taken; None if there is none.

    Args:
        tx: the transformation.
        state: its state, which also shows transformations within wrappers of users or of other
            libraries.

    Raises:
        ValueError: a transformation within `tx` has such a function, and `tx` has none.
    """
    before = tx.traits.before_gradients
    if before is None:
        for x in jax.tree.leaves(state, is_leaf=lambda x: hasattr(type(x), "outermost")):
            if hasattr(type(x), "outermost"):
                raise not_outermost(x.outermost)
        for inner in tx.within:
            if inner.traits.before_gradients is not None:
                named = inner.declaration
                raise not_outermost(None if named is None else named.name)
    return before


def apply_gradients(
    tx: GradientTransformation, grads: Updates, params: ParamsT, state: StateT, **extra_args: Any
) -> tuple[ParamsT, StateT]:
    """Transform gradients and apply them: the second half of :func:`minimize`.

    Args:
        tx: the optimizer.
        grads: gradients, possibly processed; `None` leaves a parameter unchanged.
        params: the parameters.
        state: ``tx.init(params)``, or the one that the previous step returned.
        extra_args: passed to ``tx.update``.

    Returns:
        The new parameters and state.

    Raises:
        TypeError: there is an extra argument `extra_args`, as :func:`minimize` has.
        ValueError: the trees differ (the error names the first path), or a leaf's shape does.

    >>> import gradtx
    >>> tx = gradtx.sgd(0.5)
    >>> params, state = apply_gradients(tx, {"w": 2.0}, {"w": 3.0}, tx.init({"w": 3.0}))
    >>> float(params["w"])
    2.0
    """
    check_order("apply_gradients", tx=tx, grads=grads, params=params, state=state)
    if "extra_args" in extra_args:
        raise TypeError(
            "apply_gradients takes the extra arguments by their names: value=value, not "
            "extra_args={'value': value}"
        )
    tx = with_extra_args_support(tx)
    grads = packed_like(grads, params)
    check_gradients(grads, params)
    before = before_gradients(tx, state)
    if before is not None:
        params, state = _prepared(before, params, state, lambda: grads)
    extra_args = of_all_leaves(extra_args, params)
    trained = map_present(lambda g, p: p, grads, params)
    is_part = any(g is None for _, g in leaves_with_path(grads)[0])
    with whole_leaves(_whole_of(params, grads, state) if is_part else None):
        new, state = take_step(tx, grads, state, trained, **extra_args)
    return merge(new, params), state


def _whole_of(params: Params, grads: Updates, state: State) -> Params:
    """The parameters that are trained: those with a gradient, and those with slots in the state."""
    slots = [
        path_string(path)
        for _, _, tree in walk_slots(state)
        for path, x in jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_slot)[0]
        if x is not None
    ]
    with_slots = set(slots)
    trained = [
        p if g is not None or path_string(path) in with_slots else None
        for (path, p), (_, g) in zip(
            *(leaves_with_path(x)[0] for x in (params, grads)), strict=True
        )
    ]
    structure = leaves_with_path(params)[1]
    return map_present(_trainable, as_arrays(structure.unflatten(trained)))


def _is_slot(x: Any) -> bool:
    return x is None or is_stored(x)


def _prepared(
    before: BeforeFn, params: Params, state: State, rows_of: Callable[[], PyTree]
) -> tuple[Params, State]:
    """Parameters and state after the `before_gradients` of an optimizer, of rows to be read."""

    def run(params: Params, state: State, rows: PyTree) -> tuple[Params, State]:
        new, state = before(unpack(params), state, lambda: unpack(rows))
        return packed_like(new, params), state

    return automatic(run, (params, state), params, state, rows_of())


def check_gradients(grads: Updates, params: Params) -> None:
    """Raise unless every gradient has the path, shape and kind of its parameter.

    Raises:
        ValueError: the trees differ (the error names the first path), or a leaf's shape does; or
            there is no gradient at all.
        TypeError: a gradient is not floating point, or complex for a real parameter.
    """
    grads, params = as_arrays(grads), as_arrays(params)
    leaves, treedef = leaves_with_path(params)
    grad_leaves = aligned("parameters and gradients are different trees", params, treedef, grads)
    trained = [g for (_, p), g in zip(leaves, grad_leaves, strict=True) if p is not None]
    if trained and all(g is None for g in trained):
        raise ValueError("no parameter has a gradient: all of them are None")
    for (path, p), g in zip(leaves, grad_leaves, strict=True):
        if g is None:
            continue
        if p is None:
            raise ValueError(f"there is a gradient at {path_string(path)!r}, and no parameter")
        g, p = g if is_rows(g) else gradient(g, path), parameter(p, path)
        if tuple(g.shape) != tuple(p.shape):
            raise ValueError(
                f"at {path_string(path)!r} the parameter is {p.shape} and its gradient {g.shape}"
            )
        if jnp.issubdtype(g.dtype, jnp.complexfloating) and not jnp.iscomplexobj(p):
            raise TypeError(
                f"at {path_string(path)!r} the parameter is {p.dtype} and its gradient {g.dtype}"
            )


def _trainable(p: Any) -> Any:
    """A leaf, or None for one that is no parameter, such as a function in a module."""
    return p if hasattr(p, "dtype") and jnp.issubdtype(p.dtype, jnp.inexact) else None


@read_by_people
def minimize(
    loss_fn: LossFn[ParamsT, Value],
    tx: GradientTransformation,
    params: ParamsT,
    state: StateT,
    *args: Any,
    has_aux: bool = False,
    grad_loss: Any = None,
    trainable: Where | None = None,
    extra_args: Mapping[str, Any] | None = None,
    rounding_key: Any = None,
    inside: Where | bool | None = None,
    gradients: Estimator | None = None,
) -> tuple[ParamsT, StateT, Value]:
    """One step: take the gradient of a loss, transform it, and apply it.

    A pure function, for use inside your own jit, scan or shard_map, where :func:`aggregate` gets
    each device's own gradient. Its two halves are :func:`compute_gradients` and
    :func:`apply_gradients`, between which gradients can be processed; :func:`make_step` compiles
    it, :func:`solve` runs it in a loop.

    Args:
        loss_fn: ``(params, *args) -> value`` or, with `has_aux`, ``-> (value, aux)``.
        tx: the optimizer.
        params: a tree of floating-point or complex arrays.
        state: ``tx.init(select(params, trainable))``, or that of the previous step.
        args: passed to `loss_fn` after the parameters.
        has_aux: whether `loss_fn` returns something besides the value.
        grad_loss: the cotangent of the value; 1 by default. The loss that `tx` is told, and that a
            line search evaluates, is the product with it.
        trainable: which leaves to train, as in :func:`select`. The others get no gradient, no slots
            and no update.
        extra_args: passed to ``tx.update`` besides `value`, `grad` and `value_fn`, which are always
            passed; only `value` is where a step is taken layer by layer.
        rounding_key: a random key, to be used once, with which parameters in bfloat16 or float16
            are rounded up or down at random, as by :func:`apply_updates`; None to round to nearest.
        inside: True, or which stacked parameters are updated inside of the backward pass, chosen
            as in :func:`select`; see :func:`make_step`.
        gradients: how gradients are estimated without a backward pass, such as :func:`spsa`; None
            to differentiate. The state is then that of :func:`estimated_gradients` around `tx`.

    Returns:
        ``(params, state, value)`` or ``(params, state, (value, aux))``, with the value of the loss
        before the step.

    Raises:
        TypeError: a trainable leaf is an integer or boolean array; the loss returns no number.
        ValueError: the loss is not a scalar; no leaf is trainable; the state is for another tree;
            the loss is already reduced over an axis over which `tx` reduces the gradients; the
            state has no key for the directions of `gradients`.

    Warns:
        UserWarning: outside of jit, the loss was the same on both sides of the parameters in every
            direction of the estimator.

    >>> import gradtx
    >>> tx, params = gradtx.sgd(0.5), {"w": 3.0}
    >>> params, state, value = minimize(lambda p: p["w"] ** 2, tx, params, tx.init(params))
    >>> float(params["w"]), float(value)
    (0.0, 9.0)
    """
    check_order("minimize", loss_fn=loss_fn, tx=tx, params=params, state=state)
    tx = estimating("minimize", tx, gradients)
    scale = scale_in(tx, state)
    if inside is not None and inside is not False:
        options: Any = {"has_aux": has_aux, "grad_loss": grad_loss, "trainable": trainable}
        options |= {"extra_args": extra_args, "where": inside, "rounding_key": rounding_key}
        return step_inside(loss_fn, tx, params, state, *args, **options)
    gradients = estimator_of(tx)
    if rounding_key is not None:
        tx = rounded_with(tx, rounding_key)
    before = before_gradients(tx, state)
    if before is not None:

        def rows() -> PyTree:
            loss = scalar_loss(loss_fn, has_aux, any_shape=grad_loss is not None)
            return looked_up(lambda t: loss(merge(t, params), *args), _trained(params, trainable))

        params, state = _prepared(before, params, state, rows)
    trained = _trained(params, trainable)
    any_shape = grad_loss is not None or gradients is not None
    loss = scalar_loss(loss_fn, has_aux, any_shape)
    value, grads, aux, flat = _value_and_gradients(
        lambda t: loss(merge(t, params), *args),
        trained,
        grad_loss,
        tracked(reduced_axes(tx)),
        scale,
        gradients=gradients,
        key=None if gradients is None else key_in(state),
        has_aux=has_aux,
    )

    def value_fn(at: PyTree) -> Array:
        loss = scalar_loss(loss_fn, has_aux, any_shape=grad_loss is not None)
        return _objective(loss(merge(packed_like(at, trained), params), *args)[0], grad_loss)

    told = _objective(value, grad_loss)
    arguments = {"value": told, "grad": unscaled(grads, scale), "value_fn": value_fn}
    new, state = take_step(tx, grads, state, trained, **{**arguments, **(extra_args or {})})
    state = state if flat is None else with_flat(state, flat)
    result: Any = (value, aux) if has_aux else value
    return merge(new, params), state, result
