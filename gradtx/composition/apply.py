"""Applying updates to parameters, alone or as the end of a whole step, and what rounding loses."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from gradtx.composition.sequence import through
from gradtx.core.blocks import OnBlocks
from gradtx.core.eager import MANY_LEAVES, count_of_arrays
from gradtx.core.explanations import check_alive, explain
from gradtx.core.pair import GradientTransformation, with_extra_args_support
from gradtx.engine.lift import Last
from gradtx.leaves.paths import aligned, first_difference, is_leaf, leaves_with_path, path_string
from gradtx.leaves.rows import add_rows, is_rows
from gradtx.leaves.shardings import on_explicit_axes
from gradtx.numerics import as_arrays, cast, is_narrow, round_to, widen
from gradtx.programs.tracing import traced_once
from gradtx.types import Array, Params, ParamsT, State, Updates, is_stored


def apply_updates(params: ParamsT, updates: Updates, *, rounding_key: Any = None) -> ParamsT:
    r"""Add updates to parameters: :math:`\theta + u`, in the types of the parameters.

    Args:
        params: a tree of arrays; a Python number becomes a float array.
        updates: a tree like it; `None` leaves a parameter as it is, `Rows` are added to their rows.
        rounding_key: a random key, with which parameters in bfloat16 or float16 are rounded up or
            down at random, so that on average nothing is lost; use each key once. None to round to
            nearest, which loses each update below half a unit in the last place.

    Returns:
        The new parameters, in the shapes and types of the old ones. The sum is taken in at least
        float32 and rounded once.

    Raises:
        ValueError: the trees differ, or a leaf's shape does, or an array was donated to an earlier
            step (the error names it).
        TypeError: a leaf is complex in one tree and real in the other.

    >>> apply_updates({"b": 1.0, "w": jnp.zeros(2)}, {"b": None, "w": jnp.ones(2)})
    {'b': 1.0, 'w': Array([1., 1.], dtype=float32)}
    """
    many = count_of_arrays(params, updates, rounding_key) >= MANY_LEAVES
    if jax.device_count() > 1:  # where JAX 0.10 aborts the process, given a donated array
        check_alive(params=params, updates=updates)
    drawn = rounding_key is not None  # for each leaf by itself
    apply: Any = _apply if not many else _apply_compiled if drawn else _apply_on_blocks
    try:
        added: ParamsT = apply(params, updates, rounding_key)
    except (RuntimeError, ValueError):
        check_alive(params=params, updates=updates)
        raise
    return added


def _apply(params: Params, updates: Updates, rounding_key: Any) -> Params:
    leaves, treedef = leaves_with_path(params)
    update_leaves = aligned("parameters and updates are different trees", params, treedef, updates)
    keys: Any = [None] * len(leaves)
    if rounding_key is not None:
        keys = jax.random.split(rounding_key, len(leaves))
    calls = []
    for (path, p), u, key in zip(leaves, update_leaves, keys, strict=False):
        check_addable(path, p, u)
        number = u is not None and type(p) in (int, float)
        calls.append((jnp.asarray(p, float) if number else p, u, key))
    return treedef.unflatten(traced_once("add", add_update, calls))


_apply_compiled = jax.jit(_apply)
_apply_on_blocks = OnBlocks(_apply_compiled, like=0)


def _addable(p: Any, u: Any) -> bool:
    if p is None or u is None:
        return True
    if is_rows(u):
        return jnp.shape(p) == u.shape and (jnp.iscomplexobj(p) or not jnp.iscomplexobj(u.values))
    return jnp.shape(p) == jnp.shape(u) and (jnp.iscomplexobj(p) or not jnp.iscomplexobj(u))


def check_addable(path: Any, p: Any, u: Any) -> None:
    """Raise ValueError or TypeError if an update cannot be added to a parameter."""
    if _addable(p, u):
        return
    where = f"at {path_string(path)!r} the parameter is"
    shape = u.shape if is_rows(u) else jnp.shape(u)
    if jnp.shape(p) != shape:
        raise ValueError(f"{where} {jnp.shape(p)} and the update {shape}")
    raise TypeError(f"{where} {jnp.result_type(p)} and the update {u.dtype}")


def _adding(params: Params, updates: Updates) -> Last | None:
    """The addition of updates to parameters, as the last function of each leaf in a chain.

    None if an update does not fit its parameter: then :func:`apply_updates` says which.
    """
    structure: Any
    leaves, structure = jax.tree.flatten(params, is_leaf=is_leaf)
    update_leaves, other = jax.tree.flatten(updates, is_leaf=is_leaf)
    return (
        Last(add_update, leaves)
        if structure == other and all(map(_addable, leaves, update_leaves))
        else None
    )


def add_update(p: Any, u: Any, key: Any = None) -> Any:
    """One parameter after its update, rounded at random if there is a key."""
    if p is None or u is None:
        return p
    if is_rows(u):
        return add_rows(p, u, key)
    p = jnp.asarray(p)
    new = widen(p) + widen(jnp.asarray(u))
    return cast(new if key is None else round_to(new, p.dtype, key), p.dtype)


def loses_small_steps(params: Params, state: State) -> str | None:
    """The warning about parameters that rounding to nearest holds in place; None if there are none.

    Args:
        params: the parameters that are trained.
        state: the state of their optimizer, in which :func:`stochastic_rounding`,
            ``gradtx.compensated`` or ``gradtx.master_weights`` leaves a part.
    """

    def cures(x: Any) -> bool:
        return hasattr(type(x), "keeps_small_steps")

    leaves = leaves_with_path(params)[0]
    narrow = [(path, p.dtype) for path, p in leaves if hasattr(p, "dtype") and is_narrow(p.dtype)]
    if not narrow or any(map(cures, jax.tree.leaves(state, is_leaf=cures))):
        return None
    path, dtype = narrow[0]
    share = int(2 / jnp.finfo(dtype).eps)
    others = f" and {len(narrow) - 1} more" if narrow[1:] else ""
    return (
        f"the parameter {path_string(path)!r}{others} in {dtype} is rounded to nearest after each "
        f"step: an update below 1/{2 * share} of it is lost, one below 1/{share} may be. Pass "
        "rounding_key to make_step or minimize, or put gradtx.stochastic_rounding, "
        "gradtx.compensated or gradtx.master_weights around the optimizer"
    )


def _run(
    tx: GradientTransformation, updates: Updates, state: State, params: Params, **extra_args: Any
) -> Any:
    if tx.step is not None:
        return tx.step(updates, state, params, **extra_args)
    last = functools.partial(_adding, params, updates)
    new, (state,), done = through([tx], updates, [state], params, extra_args, last)
    return new if done else apply_updates(params, new), state


def take_step(
    tx: GradientTransformation, updates: Updates, state: State, params: Params, **extra_args: Any
) -> tuple[Params, State]:
    """The parameters and the state after a step: by ``tx.step``, or else by ``tx.update``."""
    tx = with_extra_args_support(tx)

    def step(
        tx: GradientTransformation,
        updates: Updates,
        state: State,
        params: Params,
        **extra_args: Any,
    ) -> Any:
        run = functools.partial(_run, tx)
        updates, params = as_arrays(updates), as_arrays(params)
        if not any(map(is_stored, jax.tree.leaves(state, is_leaf=is_stored))):
            return run(updates, state, params, **extra_args)
        # It takes as long to import as all of gradtx.
        from gradtx.kernels.stored_step import in_kernels

        return in_kernels(run, updates, state, params, extra_args, whole=True)

    like = params, state
    try:
        return on_explicit_axes(step, like, tx, updates, state, params, extra_args)
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        if tx.declaration is not None:
            explain(tx.declaration.name, error, tx.init, updates, state, params)
        raise


_DIFFERENT = "the new and the old tensors are different trees"


def _check_shapes(new: list[tuple[Any, Any]], old: list[Any]) -> None:
    """Raise ValueError where a new leaf, which is beside its path, has not the old one's shape."""
    for (path, x), before in zip(new, old, strict=True):
        if x is not None and jnp.shape(x) != jnp.shape(before):
            raise ValueError(
                f"at {path_string(path)!r} the new tensor is {jnp.shape(x)} and the old one "
                f"{jnp.shape(before)}"
            )


def incremental_update(new_tensors: Params, old_tensors: ParamsT, step_size: Any) -> ParamsT:
    r"""Move old tensors towards new ones: :math:`s\, x_{new} + (1 - s)\, x_{old}`.

    Each stays in the type of the old tensor; of integers, the nearest one is taken.

    Args:
        new_tensors: the tree to move to.
        old_tensors: the tree to move from.
        step_size: how far to go, 0 to 1.

    Raises:
        ValueError: the trees differ, or the shapes of two leaves (the error says where).

    Source: B. T. Polyak and A. B. Juditsky, Acceleration of Stochastic Approximation by Averaging,
    1992 (the moving average of the iterates).

    >>> incremental_update(jnp.float32(1.0), jnp.float32(0.0), 0.25)
    Array(0.25, dtype=float32)
    """

    def on_leaf(new: Any, old: Any) -> Any:
        if new is None:
            return None
        new, old = jnp.asarray(new), jnp.asarray(old)
        moved = step_size * widen(new) + (1 - step_size) * widen(old)
        inexact = jnp.issubdtype(old.dtype, jnp.inexact)
        return (moved if inexact else jnp.round(moved)).astype(old.dtype)

    leaves, treedef = leaves_with_path(new_tensors)
    old = aligned(_DIFFERENT, new_tensors, treedef, old_tensors)
    _check_shapes(leaves, old)
    return treedef.unflatten([on_leaf(new, x) for (_, new), x in zip(leaves, old, strict=True)])


def periodic_update(
    new_tensors: ParamsT, old_tensors: ParamsT, steps: Array | int, update_period: int
) -> ParamsT:
    """The new tensors at every `update_period`-th step, the old ones at the others.

    Args:
        new_tensors: the tree to take when `steps` is a multiple of `update_period`.
        old_tensors: the tree to take otherwise.
        steps: steps taken so far.
        update_period: at least 1.

    Raises:
        ValueError: `update_period` is below 1; the trees differ, or the shapes of two leaves (the
            error says where).

    >>> int(periodic_update(jnp.int32(1), jnp.int32(0), steps=6, update_period=3))
    1
    """
    if isinstance(update_period, int) and update_period < 1:
        raise ValueError(f"update_period must be at least 1, not {update_period}")
    (new, treedef), (old, other) = map(leaves_with_path, (new_tensors, old_tensors))
    if treedef != other:
        raise ValueError(f"{_DIFFERENT}: {first_difference(new_tensors, old_tensors)}")
    _check_shapes(new, [x for _, x in old])
    take = jnp.mod(steps, update_period) == 0
    return jax.lax.cond(take, lambda: new_tensors, lambda: old_tensors)
