"""Dion whose devices send factors of low rank in place of gradients."""

from typing import Any

import jax

from gradtx.checks import Decay, NonNegative, PositiveFraction, PositiveInt
from gradtx.composition.chain import chain
from gradtx.composition.matrices import MuonDimensionNumbers
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.distributed.aggregation import (
    aggregate,
    divide_by,
    own_weight,
    total_weight,
    weigh,
)
from gradtx.engine.leaves import gradient
from gradtx.engine.matrices import MatrixDimensions, as_matrices
from gradtx.leaves.paths import Where, leaves_with_path
from gradtx.leaves.rows import is_rows
from gradtx.numerics import Step, cast, compute_dtype, widen
from gradtx.optimizers.adam import adamw
from gradtx.optimizers.beside_adamw import beside_adamw
from gradtx.optimizers.dion_low_rank import low_rank_step, of_low_rank, rank_of
from gradtx.optimizers.muon import scale_by_shape
from gradtx.sharding.axes import (
    AxisName,
    bound_size,
    check_axis_name,
    check_varying,
    communicating,
)
from gradtx.types import Array, DimensionNumbers, DType, Params, State, Updates
from gradtx.types.keys import check_key


@transformation
def scale_by_distributed_dion(
    axis_name: AxisName,
    rank_fraction: PositiveFraction = 0.25,
    decay: Decay = 0.95,
    eps: NonNegative = 1e-8,
    power_iters: PositiveInt = 1,
    *,
    key: Any = 0,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""Dion's direction from the gradients of many devices, which send two factors of low rank.

    Device `i` has a momentum :math:`\mu_i` of its own. With means :math:`\mathrm E_i` over the
    devices:

    .. math::
        M_{i,t} &= \mu_{i,t-1} + g_{i,t}, \qquad
        P_t = \mathrm{orth}(\mathrm E_i M_{i,t} Q_{t-1}), \qquad
        R_t = \mathrm E_i M_{i,t}^* P_t, \\
        \mu_{i,t} &= M_{i,t} - (1 - \beta) P_t R_t^*, \qquad
        Q_{t,k} = \frac{R_{t,k}}{\lVert R_{t,k} \rVert + \epsilon}, \qquad
        u_t = P_t Q_t^*

    All of :func:`scale_by_dion` is linear in the momentum except `orth` and the norms, and these
    see means: directions are those of one device with the mean of the gradients, up to rounding.
    This takes the place of :func:`aggregate`, as do :func:`aggregate_power_sgd` and its like.

    Args:
        axis_name: the axis of ``pmap``, ``shard_map`` or ``vmap``, or a tuple of several.
        rank_fraction: `f` in :math:`(0, 1]`; this and the other arguments as in
            :func:`scale_by_dion`.
        decay: :math:`\beta` in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`.
        power_iters: steps of power iteration; each sends two factors.
        key: a random key or an integer seed, the same on all devices.
        mu_dtype: the type of the momentum.
        weight_dimension_numbers: as in :func:`scale_by_muon`. The gradients of other leaves pass
            through, and remain each device's own.

    A step sends ``4 r (m + n)`` bytes for a matrix of `m` rows and `n` columns in float32 at rank
    `r`, in two all-reduces for all matrices of one shape, and a number for each matrix. ``update``
    takes ``weight``, this device's weight in the mean, as :func:`aggregate` does. If no axis is
    bound, as under plain ``jit``, this is :func:`scale_by_dion`.

    State: `DionState`; `mu` differs between devices, `q` does not.

    Raises:
        ValueError, TypeError: as :func:`scale_by_dion` and :func:`aggregate` do.

    Source: K. Ahn et al., Dion: Distributed Orthonormalized Updates, 2025, arXiv:2504.05295, as
    https://github.com/microsoft/dion averages over replicas, where factors are smaller than
    gradients (`compressed_all_reduce`).

    >>> import jax.numpy as jnp
    >>> tx = scale_by_distributed_dion("data", 0.5)
    >>> g = jnp.stack([jnp.diag(jnp.array([5.0, 1e-4])), jnp.diag(jnp.array([1.0, 0.0]))])
    >>> u = jax.vmap(lambda g: tx.update(g, tx.init(g))[0], axis_name="data")(g)
    >>> jnp.abs(u).round(2).tolist()
    [[[1.0, 0.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]]
    """
    check_axis_name(_LABEL, axis_name)
    check_key(_LABEL, "key", key)

    def mean(x: Array) -> Array:
        return jax.lax.pmean(x, axis_name)

    def alone(g: Array, s: Any, t: Step) -> Any:
        return low_rank_step(g, s, decay, eps, power_iters)

    def of_devices(g: Array, s: Any, t: Step) -> Any:
        return low_rank_step(g, s, decay, eps, power_iters, mean)

    # Which of the two is known here, but not in a rule: owners of matrices, which run a rule in a
    # program for each device, may be along an axis of the same name.
    on_one, on_many = (
        of_low_rank(rule, rank_fraction, key, mu_dtype, weight_dimension_numbers)
        for rule in (alone, of_devices)
    )
    dimensions = MatrixDimensions(weight_dimension_numbers, MuonDimensionNumbers)

    def update(
        updates: Updates,
        state: State,
        params: Params | None = None,
        *,
        weight: Any = None,
        **extra_args: Any,
    ) -> tuple[Updates, State]:
        devices = bound_size(_LABEL, axis_name)
        if devices is None:
            return on_one.update(updates, state, params, **extra_args)
        matrices = _matrices(updates, dimensions)
        check_varying(_LABEL, axis_name, list(matrices.values()))
        if weight is not None:
            updates = _weighed(updates, matrices, own_weight(weight), axis_name, devices)
        return on_many.update(updates, state, params, **extra_args)

    def message_bytes(params: Params) -> int:
        return _message_bytes(params, dimensions, rank_fraction, power_iters)

    return communicating(on_one.init, update, message_bytes, axis_name, reduces=True)


_LABEL = "scale_by_distributed_dion"


def _matrices(updates: Updates, dimensions: MatrixDimensions) -> dict[int, tuple[Any, Array]]:
    """The path and gradient of each matrix, by its place among the leaves."""
    leaves, _ = leaves_with_path(updates)
    numbers = dimensions.of(_LABEL, updates)
    return {
        i: (path, gradient(g, path))
        for i, ((path, g), of_leaf) in enumerate(zip(leaves, numbers, strict=True))
        if g is not None and of_leaf is not None and not is_rows(g)  # Dion's rule refuses Rows
    }


def _weighed(
    updates: Updates,
    matrices: dict[int, tuple[Any, Array]],
    weight: Any,
    axis_name: AxisName,
    devices: int,
) -> Updates:
    """Gradients of which the mean over the devices is that with each device's weight."""
    leaves, treedef = leaves_with_path(updates)
    total, weighed = total_weight(axis_name, weight), [g for _, g in leaves]
    for i, (_, g) in matrices.items():
        share = divide_by(weigh(widen(g), weight) * devices, total)
        weighed[i] = cast(share, g.dtype)
    return treedef.unflatten(weighed)


def _message_bytes(
    params: Params, dimensions: MatrixDimensions, rank_fraction: float, power_iters: int
) -> int:
    """The bytes that a device sends in a step: two factors and a number for each matrix."""
    leaves, _ = leaves_with_path(params)
    total = 0
    for (path, p), of_leaf in zip(leaves, dimensions.of(_LABEL, params), strict=True):
        if p is not None and of_leaf is not None and 0 not in p.shape:
            layout = as_matrices(_LABEL, path, p.shape, of_leaf)
            count, rows, columns = layout.sizes
            rank = rank_of(rank_fraction, min(rows, columns))
            factors = compute_dtype(p.dtype).itemsize * rank * (rows + columns)
            total += count * (4 + power_iters * factors)
    return total


@optimizer
def distributed_dion(
    learning_rate: NonNegative,
    axis_name: AxisName,
    rank_fraction: PositiveFraction = 0.25,
    decay: Decay = 0.95,
    eps: NonNegative = 1e-8,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    power_iters: PositiveInt = 1,
    *,
    key: Any = 0,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
    others: GradientTransformation | None = None,
) -> GradientTransformation:
    r"""Dion on many devices, which send factors of low rank; AdamW for the rest.

    .. math::
        M_{i,t} &= \mu_{i,t-1} + g_{i,t}, \qquad
        P_t = \mathrm{orth}(\mathrm E_i M_{i,t} Q_{t-1}), \qquad
        R_t = \mathrm E_i M_{i,t}^* P_t, \\
        \mu_{i,t} &= M_{i,t} - (1 - \beta) P_t R_t^*, \qquad
        Q_{t,k} = \frac{R_{t,k}}{\lVert R_{t,k} \rVert + \epsilon}, \\
        \theta_t &= (1 - \eta \lambda)\, \theta_{t-1}
            - \eta \sqrt{\frac{d_{out}}{d_{in}}}\; P_t Q_t^*

    See :func:`scale_by_distributed_dion`; :func:`dion` is for gradients that are means already.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        axis_name: the axis of ``pmap``, ``shard_map`` or ``vmap``, or a tuple of several.
        rank_fraction: the rank over the shorter side, in :math:`(0, 1]`; this and the other
            arguments that the two share as in :func:`dion`.
        decay: :math:`\beta` in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`.
        weight_decay: :math:`\lambda \ge 0`, also of the other leaves.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        power_iters: steps of power iteration.
        key: a random key or an integer seed, from which :math:`Q_0` is drawn.
        mu_dtype: the type of the momentum.
        weight_dimension_numbers: as in :func:`scale_by_muon`; a leaf whose numbers are None goes
            to `others`. Unless given, Dion takes the leaves with two dimensions.
        others: the optimizer of the other leaves, whose gradients are averaged by
            :func:`aggregate`; unless given ``adamw(learning_rate, weight_decay=weight_decay,
            mask=mask)``.

    State: `PartitionState` with the groups ``"matrices"`` and ``"others"``.

    Source: K. Ahn et al., Dion: Distributed Orthonormalized Updates, 2025, arXiv:2504.05295, as in
    https://github.com/microsoft/dion.

    >>> import gradtx, jax.numpy as jnp
    >>> tx, params = distributed_dion(0.02, "data", 1 / 64), {"w": jnp.zeros((256, 256))}
    >>> gradtx.describe(tx, params).message_bytes, 4 * 256 * 256
    (8196, 262144)
    """

    def direction(numbers: Any) -> GradientTransformation:
        return chain(
            scale_by_distributed_dion(
                axis_name,
                rank_fraction,
                decay,
                eps,
                power_iters,
                key=key,
                mu_dtype=mu_dtype,
                weight_dimension_numbers=numbers,
            ),
            scale_by_shape(None, numbers, scale="scion"),
        )

    if others is None:
        others = adamw(learning_rate, weight_decay=weight_decay, mask=mask)
    return beside_adamw(
        "distributed_dion",
        direction,
        learning_rate,
        weight_decay,
        mask,
        weight_dimension_numbers,
        chain(aggregate(axis_name), others),
    )
