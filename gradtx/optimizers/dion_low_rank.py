"""Dion, in its first form: orthonormal updates of low rank."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checks import Decay, NonNegative, PositiveFraction, PositiveInt
from gradtx.composition.chain import chain
from gradtx.composition.matrices import MuonDimensionNumbers
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import RuleFn
from gradtx.engine.matrices import Matrices, MatrixDimensions, matrixwise
from gradtx.leaves.paths import Where
from gradtx.linalg.decompositions import orthonormal
from gradtx.numerics import Step, accumulator_dtype, divide, norm, precise, zero_mean
from gradtx.optimizers.beside_adamw import beside_adamw
from gradtx.optimizers.muon import scale_by_shape
from gradtx.types import Array, DimensionNumbers, DType, Slots
from gradtx.types.keys import check_key, own_key


class DionState(NamedTuple):
    """mu: like the parameters, in mu_dtype if given; q: ``(batch, shorter side, rank)``."""

    mu: Slots
    q: Slots


@precise
def low_rank_step(
    g: Array,
    s: Any,
    decay: Any,
    eps: Any,
    power_iters: int,
    mean: Callable[[Array], Array] = lambda x: x,
) -> tuple[Array, dict[str, Array]]:
    """Dion's direction and new slots, as :func:`scale_by_dion` has them.

    Args:
        g: gradients of matrices, a batch.
        s: their slots, `mu` and `q`.
        decay: this and the next two as in :func:`scale_by_dion`.
        eps: added to the norms of columns.
        power_iters: steps of power iteration.
        mean: the mean over devices that have momenta of their own.
    """
    wide = g.shape[-1] >= g.shape[-2]
    x = s.mu + g
    m = x.mT if wide else x
    r = s.q
    for _ in range(power_iters):
        p = orthonormal(mean(m @ r))
        r = mean(m.mT.conj() @ p)
    seen = jnp.any(m != 0, (-2, -1), keepdims=True)
    some = mean(seen.astype(jnp.float32)) > 0
    p, r = jnp.where(some, p, 0), jnp.where(some, r, s.q)
    q = divide(r, norm(r, -2, costly=True).number + eps)
    used, u = p @ r.mT.conj(), p @ q.mT.conj()
    if wide:
        used, u = used.mT, u.mT
    return u, {"mu": x - (1 - decay) * used, "q": q}


def rank_of(rank_fraction: float, shorter: int) -> int:
    """The rank of Dion's approximation of a matrix whose shorter side has this length."""
    return max(1, math.ceil(rank_fraction * shorter))


def of_low_rank(
    rule: RuleFn, rank_fraction: float, key: Any, mu_dtype: DType | None, numbers: Any
) -> GradientTransformation:
    """A rule such as :func:`low_rank_step`, lifted; the arguments are those of `scale_by_dion`."""

    def first(matrices: Matrices, p: Array) -> Array:
        count, *sides = matrices.sizes
        drawn, short = own_key(key), min(sides)
        for side in sides:
            drawn = jax.random.fold_in(drawn, side)
        kind = jnp.complex64 if jnp.iscomplexobj(p) else jnp.float32
        q = jax.random.normal(drawn, (short, rank_of(rank_fraction, short)), kind)
        dtype = jnp.result_type(accumulator_dtype(p), kind)
        return jnp.broadcast_to(q.astype(dtype), (count, *q.shape))

    return matrixwise(
        DionState,
        lambda p: {"mu": zero_mean(p, mu_dtype)},
        rule,
        MatrixDimensions(numbers, MuonDimensionNumbers),
        factors={"q": first},
    )


@transformation
def scale_by_dion(
    rank_fraction: PositiveFraction = 0.25,
    decay: Decay = 0.95,
    eps: NonNegative = 1e-8,
    power_iters: PositiveInt = 1,
    *,
    key: Any = 0,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""Orthonormalize a low-rank approximation of the momentum, and decay what the step has used.

    For a matrix with more rows than columns (others are transposed):

    .. math::
        M_t &= \mu_{t-1} + g_t, \qquad P_t = \mathrm{orth}(M_t Q_{t-1}), \qquad
        R_t = M_t^* P_t, \\
        \mu_t &= M_t - (1 - \beta) P_t R_t^*, \qquad
        Q_{t,i} = \frac{R_{t,i}}{\lVert R_{t,i} \rVert + \epsilon}, \qquad
        u_t = P_t Q_t^*

    with columns :math:`R_{t,i}`. One step of power iteration, from the previous :math:`Q`, finds
    the approximation :math:`P_t R_t^*` of :math:`M_t`. What the approximation misses stays in the
    momentum: that is the error feedback. A momentum of zero moves nothing and keeps the directions
    of :math:`Q`.

    Args:
        rank_fraction: `f` in :math:`(0, 1]`, a number; the rank is :math:`\lceil f n \rceil` for a
            shorter side of `n`. The authors' code has 1 by default; they find 1/4 as good for
            models of 3 billion parameters.
        decay: :math:`\beta` in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`, added to the norms of columns.
        power_iters: how many steps of power iteration, at least 1; all but the last do
            :math:`Q \leftarrow M_t^* \mathrm{orth}(M_t Q)`.
        key: a random key or an integer seed, from which :math:`Q_0` is drawn; it is the same for
            matrices of one shape.
        mu_dtype: the type in which :math:`\mu` is kept; the parameter's unless given.
        weight_dimension_numbers: as in :func:`scale_by_muon`.

    State: `DionState`; q in float32 or wider.

    Raises:
        ValueError: `rank_fraction` is not a number in (0, 1]; or as :func:`scale_by_muon` does.
        TypeError: `key` is neither a key nor an integer.

    The authors' code also has two faster ways to orthonormalize, by Cholesky decompositions. The
    update is the same for every orthonormal basis of :math:`M_t Q_{t-1}`.

    Source: K. Ahn et al., Dion: Distributed Orthonormalized Updates, 2025, arXiv:2504.05295, as in
    https://github.com/microsoft/dion on one device.

    >>> tx, g = scale_by_dion(0.5), jnp.diag(jnp.array([9.0, 1e-4]))
    >>> u, state = tx.update(g, tx.init(g))
    >>> jnp.abs(u).round(2).tolist(), bool(jnp.isclose(state.mu[0, 0], 0.95 * 9.0))
    ([[1.0, 0.0], [0.0, 0.0]], True)
    """
    check_key("scale_by_dion", "key", key)

    def rule(g: Array, s: Any, t: Step) -> Any:
        return low_rank_step(g, s, decay, eps, power_iters)

    return of_low_rank(rule, rank_fraction, key, mu_dtype, weight_dimension_numbers)


@optimizer
def dion(
    learning_rate: NonNegative,
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
    r"""Dion: orthonormal updates of low rank, with error feedback; AdamW for the rest.

    .. math::
        M_t &= \mu_{t-1} + g_t, \qquad P_t = \mathrm{orth}(M_t Q_{t-1}), \qquad
        R_t = M_t^* P_t, \\
        \mu_t &= M_t - (1 - \beta) P_t R_t^*, \qquad
        Q_{t,i} = \frac{R_{t,i}}{\lVert R_{t,i} \rVert + \epsilon}, \\
        \theta_t &= (1 - \eta \lambda)\, \theta_{t-1}
            - \eta \sqrt{\frac{d_{out}}{d_{in}}}\; P_t Q_t^*

    See :func:`scale_by_dion`. :func:`dion2` takes some rows or columns in place of a low-rank
    approximation.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        rank_fraction: the rank over the shorter side, in :math:`(0, 1]`; this and the other
            arguments that the two share as in :func:`scale_by_dion`.
        decay: :math:`\beta`, how much is kept of what the update has used.
        eps: :math:`\epsilon \ge 0`.
        weight_decay: :math:`\lambda \ge 0`, also of the other leaves.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        power_iters: steps of power iteration.
        key: a random key or an integer seed, from which :math:`Q_0` is drawn.
        mu_dtype: the type of the momentum.
        weight_dimension_numbers: as in :func:`scale_by_muon`; a leaf whose numbers are None goes
            to `others`. Unless given, Dion takes the leaves with two dimensions.
        others: the optimizer of the other leaves; unless given
            ``adamw(learning_rate, weight_decay=weight_decay, mask=mask)``.

    State: `PartitionState` with the groups ``"matrices"`` and ``"others"``.

    Source: K. Ahn et al., Dion: Distributed Orthonormalized Updates, 2025, arXiv:2504.05295, as in
    https://github.com/microsoft/dion on one device.

    >>> import gradtx
    >>> tx = dion(gradtx.cosine_decay_schedule(0.3, 200), 0.5)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros((2, 2)), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=2e-2))
    True
    """

    def direction(numbers: Any) -> GradientTransformation:
        return chain(
            scale_by_dion(
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

    return beside_adamw(
        "dion", direction, learning_rate, weight_decay, mask, weight_dimension_numbers, others
    )
