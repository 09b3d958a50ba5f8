"""Optimizers that send little, named as in their papers: compositions of this folder's links."""

from gradtx.checks import (
    Fraction,
    LearningRate,
    NonNegative,
    PositiveCount,
    PositiveFraction,
    PositiveInt,
)
from gradtx.composition.chain import chain
from gradtx.core.pair import GradientTransformation, optimizer
from gradtx.distributed.chunks import aggregate_chunked_top_k, aggregate_dct
from gradtx.distributed.local import diloco
from gradtx.optimizers.muon import muon
from gradtx.optimizers.sgd import scale_by_sign, sgd
from gradtx.sharding.axes import AxisName
from gradtx.transforms.decay import add_decayed_weights
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import DimensionNumbers


@optimizer
def sparse_loco(
    inner: GradientTransformation,
    every: PositiveCount,
    axis_name: AxisName,
    learning_rate: LearningRate = 1.0,
    decay: Fraction = 0.95,
    fraction: PositiveFraction = 1 / 32,
    chunk: PositiveInt = 64,
) -> GradientTransformation:
    r"""DiLoCo that sends few entries in two bits: error feedback takes the place of momentum.

    With :math:`\phi` the parameters after the last synchronization, every `H` steps

    .. math:: e_i &\leftarrow \beta e_i + \phi - \theta_i, \qquad
        \hat\Delta_i = Q(\mathrm{top}_k(e_i)), \qquad
        e_i \leftarrow e_i - \hat\Delta_i, \\
        \phi &\leftarrow \phi - \frac{\alpha}{n} \sum_i \hat\Delta_i, \qquad
        \theta_i \leftarrow \phi

    where each entry has an `n` of its own, the number of devices that sent it.

    Args:
        inner: the optimizer of each device; AdamW in the paper.
        every: `H`, at least 1.
        axis_name: the axis of ``pmap``, ``shard_map`` or ``vmap``, or several.
        learning_rate: :math:`\alpha`; a number, an array, or a schedule of the synchronizations.
        decay: :math:`\beta` in :math:`[0, 1]`.
        fraction: the part of a chunk's entries that is sent; 0.01 to 0.03 in the paper. This, `Q`
            and `chunk` are those of :func:`aggregate_chunked_top_k`.
        chunk: the side of the squares of which the largest entries are sent.

    This is :func:`diloco` with ``aggregate_chunked_top_k(..., op="mean_of_senders")`` and
    ``sgd(learning_rate)`` as its outer optimizer. By default a device sends 264 bytes for a chunk
    of 4,096 entries, 1/62 of what DiLoCo sends; every message reaches every device, so what a
    device receives grows with their number.

    State: `DiLoCoState`; the error, in `outer_state`, differs between devices.

    Raises:
        TypeError, ValueError: as the functions of which it consists do.

    Source: A. Sarfi et al., Communication Efficient LLM Pre-training with SparseLoCo, 2025,
    arXiv:2508.15706, algorithm 1, which divides by the number of all devices; `n` is that of the
    authors' code, with which steps are larger where devices send different entries.

    >>> import gradtx, jax.numpy as jnp
    >>> params = {"w": jnp.zeros((64, 64))}
    >>> tx = sparse_loco(gradtx.adamw(1e-3), 50, "data")
    >>> gradtx.describe(tx, params).peak_message_bytes, 4 * 64 * 64
    (264, 16384)
    """
    aggregate = aggregate_chunked_top_k(axis_name, fraction, chunk, decay, op="mean_of_senders")
    return diloco(inner, chain(aggregate, sgd(learning_rate)), every, axis_name)


@optimizer
def muloco(
    learning_rate: NonNegative,
    every: PositiveCount,
    axis_name: AxisName,
    outer_learning_rate: LearningRate = 0.7,
    outer_momentum: Fraction = 0.9,
    weight_decay: NonNegative = 0.0,
    *,
    muon_weight_dimension_numbers: DimensionNumbers | None = None,
    compression: GradientTransformation | None = None,
) -> GradientTransformation:
    r"""Muon inside DiLoCo.

    .. math:: \theta_i \leftarrow \mathrm{Muon}^H(\phi), \qquad
        \Delta = \frac1n \sum_i (\phi - \theta_i), \qquad
        v \leftarrow \mu v + \Delta, \qquad
        \phi \leftarrow \phi - \alpha (\Delta + \mu v)

    Args:
        learning_rate: of :func:`muon`; a number, an array, or a schedule.
        every: `H`, at least 1.
        axis_name: the axis of ``pmap``, ``shard_map`` or ``vmap``, or several.
        outer_learning_rate: :math:`\alpha`; a number, an array, or a schedule of the
            synchronizations.
        outer_momentum: :math:`\mu` in :math:`[0, 1]`.
        weight_decay: for Muon's matrices and for the leaves left to AdamW.
        muon_weight_dimension_numbers: which leaves are matrices, as in :func:`muon`.
        compression: what takes the mean in place of an all-reduce, such as
            :func:`aggregate_chunked_top_k`; its errors are fed back.

    For Muon's other arguments and for fragments, use ``muon`` in :func:`diloco` or
    :func:`streaming_diloco`. State: `DiLoCoState`.

    Source: B. Thérien et al., MuLoCo: Muon is a Practical Inner Optimizer for DiLoCo, 2025,
    arXiv:2505.23725.

    >>> import gradtx, jax.numpy as jnp
    >>> tx = muloco(0.02, 30, "data", compression=gradtx.aggregate_int8("data"))
    >>> gradtx.describe(tx, {"w": jnp.zeros((64, 64))}).peak_message_bytes, 4 * 64 * 64
    (4160, 16384)
    """
    inner = muon(
        learning_rate,
        weight_decay=weight_decay,
        adam_weight_decay=weight_decay,
        muon_weight_dimension_numbers=muon_weight_dimension_numbers,
    )
    outer = sgd(outer_learning_rate, outer_momentum, nesterov=True)
    links = (outer,) if compression is None else (compression, outer)
    return diloco(inner, chain(*links), every, axis_name)


@optimizer
def demo(
    learning_rate: LearningRate,
    axis_name: AxisName,
    decay: Fraction = 0.999,
    fraction: PositiveFraction = 1 / 128,
    chunk: PositiveInt = 64,
    weight_decay: NonNegative = 0.0,
) -> GradientTransformation:
    r"""DeMo: devices send the largest cosine coefficients of their momentum; steps are signs.

    .. math:: m_i &\leftarrow \beta m_i + g_i, \qquad
        q_i = D^\top \mathrm{top}_k(D m_i D^\top) D, \qquad m_i \leftarrow m_i - q_i, \\
        \theta &\leftarrow \theta
            - \eta \Bigl(\mathrm{sign}\Bigl(\frac1n \sum_i q_i\Bigr) + \lambda \theta\Bigr)

    Args:
        learning_rate: :math:`\eta`; a number, an array, or a schedule.
        axis_name: the axis of ``pmap``, ``shard_map`` or ``vmap``, or several.
        decay: :math:`\beta` in :math:`[0, 1]`.
        fraction: the part of a chunk's coefficients that is sent; this and `chunk` are as in
            :func:`aggregate_dct`, which also says how the authors' code differs.
        chunk: the side of the squares that are transformed.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.

    Parameters stay the same on all devices; each keeps its own momentum, in `CompressionState`.

    Source: B. Peng, J. Quesnelle, D. P. Kingma, DeMo: Decoupled Momentum Optimization, 2024,
    arXiv:2411.19870, algorithm 1, with the sign of its experiments.

    >>> import gradtx, jax.numpy as jnp
    >>> gradtx.describe(demo(1e-3, "data"), {"w": jnp.zeros((64, 64))}).message_bytes, 4 * 64 * 64
    (128, 16384)
    """
    return chain(
        aggregate_dct(axis_name, fraction, chunk, decay),
        scale_by_sign(),
        add_decayed_weights(weight_decay),
        scale_by_learning_rate(learning_rate),
    )
