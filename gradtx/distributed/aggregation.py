"""Aggregation: the mean, or the sum, of the gradients of many devices."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checks import Decay, one_number
from gradtx.composition.around import InnerStep, around
from gradtx.core.loss_functions import LOSSES
from gradtx.core.pair import GradientTransformation, transformation
from gradtx.engine.leaves import gradient
from gradtx.inspection.noise_scale import (
    NoiseScale,
    no_estimates,
    noise_scale_of_parts,
    weighted_square,
)
from gradtx.leaves.paths import leaves_with_path
from gradtx.leaves.rows import Rows, is_rows
from gradtx.numerics import cast, compute_dtype, divide, real_dtype, widen
from gradtx.sharding.axes import (
    AxisName,
    bound_size,
    check_axis_name,
    check_varying,
    communicating,
    everyones,
)
from gradtx.tree import norm_sq
from gradtx.types import Array, EmptyState, Params, State, Updates


class AggregateState(NamedTuple):
    """noise_scale: the noise of the devices' gradients so far, a `NoiseScale`."""

    noise_scale: NoiseScale


@transformation
def aggregate(
    axis_name: AxisName, op: str = "mean", *, noise_decay: Decay | None = None
) -> GradientTransformation:
    r"""Replace each device's gradients by their mean, or sum, over all devices.

    .. math:: \bar g = \frac{\sum_i w_i g_i}{\sum_i w_i} \quad\text{or}\quad \sum_i w_i g_i

    Args:
        axis_name: the axis of ``pmap``, ``shard_map`` or ``vmap`` over which to reduce, or a tuple
            of several.
        op: ``"mean"`` or ``"sum"``.
        noise_decay: also measure the gradient's noise by the squared norms of the devices'
            gradients and of their mean, as :func:`noise_scale` does, with this decay from step to
            step; None not to. What it sends is in the same all-reduce: one number, or two if there
            are weights.

    ``update`` takes an extra argument ``weight``, this device's :math:`w_i \ge 0`, such as the
    number of its examples; 1 by default. A device of weight 0 counts for nothing, whatever its
    gradient; the mean over devices that all have weight 0 is 0.

    It may be anywhere in a chain: clipping before it clips each device's own gradient, clipping
    after it clips the mean. Inside :func:`accumulate`, devices communicate once per window, and a
    device's weight is the sum of its weights in the window.

    If no axis is bound, as under plain ``jit``, it does nothing: there the gradient of a mean over
    a sharded batch *is* the mean over all devices, and XLA has inserted the collective. Under
    ``vmap`` alone JAX does not say which axes there are, so a wrong name has no effect.

    `Rows` of tables are gathered: every device gets the rows that any of them touched. Sums are
    taken in float32 or wider, and all leaves are sent in one all-reduce.

    State: empty, or with `noise_decay` an `AggregateState`, the same on every device:
    ``gradtx.tree.get(state, "noise_scale").value`` is the noise scale, in the unit of the weights:
    examples where ``weight`` is their number, devices where there are no weights. A step with fewer
    than two devices of a weight, or with a gradient that is not finite, adds nothing to it, nor
    does one where no axis is bound.

    Raises:
        ValueError: axes are bound here, but not this one; or the gradients are the same on all
            devices, since JAX has summed them already (``shard_map`` with ``check_vma``).

    >>> import gradtx
    >>> tx = gradtx.chain(aggregate("data"), gradtx.sgd(1.0))
    >>> def update(g):
    ...     return tx.update(g, tx.init(jnp.zeros(())))[0]
    >>> jax.vmap(update, axis_name="data")(jnp.array([1.0, 3.0])).tolist()
    [-2.0, -2.0]
    """
    check_axis_name("aggregate", axis_name)
    if op not in ("mean", "sum"):
        raise ValueError(f"aggregate: op must be 'mean' or 'sum', not {op!r}")

    def update(
        updates: Updates,
        state: State,
        params: Params | None = None,
        *,
        weight: Any = None,
        **extra_args: Any,
    ) -> tuple[Updates, State]:
        del params, extra_args
        if bound_size("aggregate", axis_name) is None:
            return updates, state
        weight = own_weight(weight)
        leaves, treedef = leaves_with_path(updates)
        present = [(path, leaf) for path, leaf in leaves if leaf is not None]
        arrays = [gradient(g.values if is_rows(g) else g, path) for path, g in present]
        paths = [path for path, _ in present]
        check_varying("aggregate", axis_name, list(zip(paths, arrays, strict=True)))
        weighted = [weigh(widen(x), weight) for x in arrays]
        total = None if op == "sum" else total_weight(axis_name, weight)
        # One call for all sums, so that XLA makes one collective.
        dense = [x for (_, g), x in zip(present, weighted, strict=True) if not is_rows(g)]
        squares = []
        if noise_decay is not None:  # without weights all count, and one number is sent
            one = norm_sq(updates)[None] if weight is None else weighted_square(updates, weight)
            squares = [one]
        summed = iter(jax.lax.psum([*dense, *squares], axis_name))
        reduced: list[Any] = []
        for (_, g), x, array in zip(present, weighted, arrays, strict=True):
            if is_rows(g):
                indices = everyones(g.indices, axis_name).reshape(-1)
                values = everyones(x, axis_name).reshape(-1, *g.shape[1:])
                mean = cast(divide_by(values, total), array.dtype)
                reduced.append(Rows(indices, mean, g.shape))
            else:
                reduced.append(cast(divide_by(next(summed), total), array.dtype))
        results = iter(reduced)
        aggregated = treedef.unflatten([None if g is None else next(results) for _, g in leaves])
        if noise_decay is None:
            return aggregated, state
        weight_sum = total_weight(axis_name, weight) if total is None else total
        factor = 1 if op == "mean" else divide_by(jnp.ones([]), weight_sum) ** 2
        mean = norm_sq(aggregated) * factor
        square, parts = (*next(summed), weight_sum)[:2]
        return aggregated, AggregateState(
            noise_scale_of_parts(square, parts, mean, weight_sum, state.noise_scale, noise_decay)
        )

    def init(params: Params) -> State:
        return EmptyState() if noise_decay is None else AggregateState(no_estimates())

    return communicating(init, update, message_bytes, axis_name, reduces=True)


@transformation(native_schedules=True)
def share_value(inner: GradientTransformation, axis_name: AxisName) -> GradientTransformation:
    r"""Give `inner` the mean of all devices' losses, where each device passes its own.

    .. math:: \bar v = \frac{\sum_i w_i v_i}{\sum_i w_i}

    :func:`guard`, :func:`reduce_on_plateau`, :func:`polyak_sgd`, :func:`momo` and others read the
    loss. Where each device runs a program of its own, :func:`minimize` passes the loss of this
    device's examples, so that devices would decide differently, and their parameters drift apart.

    Args:
        inner: what reads the extra argument ``value``.
        axis_name: the axis of ``pmap``, ``shard_map`` or ``vmap``, or a tuple of several, as in
            :func:`aggregate`; of a mesh over many hosts too.

    ``update`` takes an extra argument ``weight``, this device's :math:`w_i`, as :func:`aggregate`
    does. If no axis is bound, as under plain ``jit``, it does nothing: there the loss is that of
    the whole batch. A step sends one number, and nothing if `inner` does not read it.

    State: that of `inner`.

    Raises:
        ValueError: axes are bound here, but not this one; or `inner` evaluates the loss where it is
            bound.

    >>> import gradtx
    >>> tx = share_value(gradtx.reduce_on_plateau(0.5, patience=1), "data")
    >>> def scale(value):
    ...     state = tx.init(1.0)
    ...     for v in value:
    ...         _, state = tx.update(1.0, state, value=v)
    ...     return state.scale
    >>> losses = jnp.array([[3.0, 5.0], [5.0, 3.0]])  # only together they are on a plateau
    >>> jax.vmap(scale, axis_name="data")(losses).tolist()
    [0.5, 0.5]
    """
    check_axis_name("share_value", axis_name)

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Updates, State]:
        value, weight = map(inner_step.extra_args.get, ("value", "weight"))
        mean: dict[str, Any] = {}
        if value is not None and bound_size("share_value", axis_name) is not None:
            weight = own_weight(weight)
            total = jax.lax.psum(weigh(widen(jnp.asarray(value)), weight), axis_name)
            mean["value"] = divide_by(total, total_weight(axis_name, weight))
            mean |= dict.fromkeys(set(LOSSES) & set(inner_step.extra_args), _of_one_device)
        return inner_step(updates, state, params, **mean)

    return around(inner, None, run)


def _of_one_device(*args: Any, **kwargs: Any) -> Any:
    raise ValueError(
        "share_value: what evaluates the loss, as a line search does, would evaluate that of one "
        "device, and parameters would drift apart: let jit divide the batch (make_step with "
        "sharding=), where the loss is that of all examples"
    )


def message_bytes(params: Params) -> int:
    """The bytes of a device's gradients in float32 or wider, which it adds to an all-reduce."""
    return sum(
        math.prod(p.shape) * compute_dtype(p.dtype).itemsize for p in jax.tree.leaves(params)
    )


def weight_among(extra_args: Mapping[str, Any]) -> dict[str, Any]:
    """Of the extra arguments the weight alone, if it is given."""
    return {name: extra_args[name] for name in ("weight",) if name in extra_args}


def own_weight(weight: Any) -> Any:
    """This device's weight as a number without dimensions; None if there are no weights."""
    return None if weight is None else one_number("aggregation", "weight", weight)


def weigh(g: Array, weight: Any) -> Array:
    """A gradient times this device's weight, if there are weights."""
    # A device without examples has 0 / 0 for a gradient, which a product with 0 would keep.
    return g if weight is None else jnp.where(jnp.asarray(weight) == 0, 0, g * weight)


def total_weight(axis_name: AxisName, weight: Any) -> Any:
    """The sum of the weights of all devices, or their number."""
    return jax.lax.psum(1 if weight is None else widen(1.0 * jnp.asarray(weight)), axis_name)


def divide_by(x: Array, total: Any) -> Array:
    """``x / total`` by a scalar factor: zeros where `total` is 0, and `x` where `total` is None."""
    if total is None:
        return x
    total = jnp.asarray(total, real_dtype(x.dtype))
    return x * divide(jnp.ones_like(total), total)
