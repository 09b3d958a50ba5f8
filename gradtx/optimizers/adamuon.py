"""AdaMuon."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.checks import Decay, NonNegative, PositiveInt
from gradtx.composition.matrices import MuonDimensionNumbers
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.matrices import Matrices, MatrixDimensions, matrixwise
from gradtx.leaves.paths import Where
from gradtx.linalg.linear_algebra import with_root_mean_square
from gradtx.numerics import Step, abs_sq, accumulator_dtype, ema, root, zero_mean
from gradtx.optimizers.beside_adamw import beside_adamw, longer_side
from gradtx.transforms.orthogonal import STANDARD, check_dtype, coefficients, orthogonalized
from gradtx.types import Array, DimensionNumbers, DType, Slots
from gradtx.types.update_size import UpdateSize


class AdamuonState(NamedTuple):
    """mu: like the parameters; v: real, ``(batch, rows, columns)`` for each leaf."""

    mu: Slots
    v: Slots


@transformation
def scale_by_adamuon(
    decay: Decay = 0.95,
    eps: NonNegative = 1e-8,
    rms: NonNegative = 0.2,
    *,
    ns_coeffs: Any = STANDARD,
    ns_steps: PositiveInt = 5,
    ns_dtype: DType | None = None,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""The orthogonalized signs of the momentum, divided by the root of their second moment.

    .. math::
        \mu_t &= \beta \mu_{t-1} + (1 - \beta) g_t, \qquad
            O_t = \mathrm{NS}(\operatorname{sign} \mu_t), \\
        v_t &= \beta v_{t-1} + (1 - \beta)\, O_t \odot O_t, \qquad
            \hat O_t = \frac{O_t}{\sqrt{v_t} + \epsilon}, \\
        u_t &= r \sqrt{d_{in} d_{out}}\, \frac{\hat O_t}{\lVert \hat O_t \rVert_F}

    with the iteration of :func:`scale_by_muon`.

    Args:
        decay: :math:`\beta` in :math:`[0, 1)`, of both moments.
        eps: :math:`\epsilon \ge 0`; also added to the norm by which the first iterate is divided.
        rms: `r`, the root mean square of the direction.
        ns_coeffs: this and the next two as in :func:`scale_by_muon`.
        ns_steps: how many iterations.
        ns_dtype: the type in which to iterate.
        mu_dtype: the type in which :math:`\mu` is kept; the parameter's unless given.
        weight_dimension_numbers: as in :func:`scale_by_muon`.

    State: `AdamuonState`.

    Raises:
        ValueError: as :func:`scale_by_muon` does.

    Source: C. Si et al., AdaMuon: Adaptive Muon Optimizer, 2025, arXiv:2507.11005, algorithm 1; its
    first version takes no signs and has a different decay for the second moment.

    >>> tx, g = scale_by_adamuon(), jnp.array([[3.0, 0.1], [3.0, -0.1]])
    >>> u = tx.update(g, tx.init(g))[0]
    >>> float(jnp.sqrt(jnp.mean(u**2)).round(3))
    0.20000000298023224
    """
    coeffs = coefficients("scale_by_adamuon", ns_coeffs, ns_steps, "frobenius")
    check_dtype("scale_by_adamuon", ns_dtype)

    def slots(p: Array) -> dict[str, Array]:
        return {"mu": zero_mean(p, mu_dtype)}

    def one_for_each_entry(matrices: Matrices, p: Array) -> Array:
        return jnp.zeros(matrices.sizes, accumulator_dtype(p))

    def momentum(g: Array, s: Any, t: Step) -> Any:
        mu = ema(g, s.mu, decay)
        return jnp.sign(mu), {"mu": mu}

    def rule(g: Array, s: Any, t: Step) -> Any:
        o = orthogonalized(g, jnp.asarray(coeffs), ns_steps, "frobenius", eps, ns_dtype)
        v = ema(abs_sq(o), s.v, decay)
        return with_root_mean_square(o / (root(v) + eps), rms), {"v": v}

    return matrixwise(
        AdamuonState,
        slots,
        rule,
        MatrixDimensions(weight_dimension_numbers, MuonDimensionNumbers),
        on_entries=momentum,
        factors={"v": one_for_each_entry},
    )


@optimizer(update_size=UpdateSize("spectral", "weight_dimension_numbers", longer_side))
def adamuon(
    learning_rate: NonNegative,
    decay: Decay = 0.95,
    eps: NonNegative = 1e-8,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    *,
    rms: NonNegative = 0.2,
    ns_coeffs: Any = STANDARD,
    ns_steps: PositiveInt = 5,
    ns_dtype: DType | None = None,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
    others: GradientTransformation | None = None,
) -> GradientTransformation:
    r"""AdaMuon: Muon on the signs of the momentum, with Adam's second moment; AdamW for the rest.

    .. math::
        \mu_t &= \beta \mu_{t-1} + (1 - \beta) g_t, \qquad
            O_t = \mathrm{NS}(\operatorname{sign} \mu_t), \\
        v_t &= \beta v_{t-1} + (1 - \beta)\, O_t \odot O_t, \qquad
            \hat O_t = \frac{O_t}{\sqrt{v_t} + \epsilon}, \\
        \theta_t &= \theta_{t-1} - \eta \Bigl(r \sqrt{d_{in} d_{out}}\,
            \frac{\hat O_t}{\lVert \hat O_t \rVert_F} + \lambda \theta_{t-1}\Bigr)

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        decay: as in :func:`scale_by_adamuon`, like all arguments that the two share.
        eps: :math:`\epsilon \ge 0`.
        weight_decay: :math:`\lambda \ge 0`, also of the other leaves.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        rms: `r`; 0.2 matches the size of Adam's updates.
        ns_coeffs: coefficients of the iteration.
        ns_steps: iterations.
        ns_dtype: the type in which to iterate.
        mu_dtype: the type of the momentum.
        weight_dimension_numbers: as in :func:`scale_by_muon`; a leaf whose numbers are None goes
            to `others`. Unless given, AdaMuon takes the leaves with two dimensions.
        others: the optimizer of the other leaves; unless given
            ``adamw(learning_rate, weight_decay=weight_decay, mask=mask)``.

    State: `PartitionState` with the groups ``"matrices"`` and ``"others"``.

    Source: C. Si et al., AdaMuon: Adaptive Muon Optimizer, 2025, arXiv:2507.11005, algorithm 1.

    >>> import gradtx
    >>> tx = adamuon(gradtx.cosine_decay_schedule(0.3, 200))
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros((2, 2)), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """

    def direction(numbers: Any) -> GradientTransformation:
        return scale_by_adamuon(
            decay,
            eps,
            rms,
            ns_coeffs=ns_coeffs,
            ns_steps=ns_steps,
            ns_dtype=ns_dtype,
            mu_dtype=mu_dtype,
            weight_dimension_numbers=numbers,
        )

    return beside_adamw(
        "adamuon", direction, learning_rate, weight_decay, mask, weight_dimension_numbers, others
    )
