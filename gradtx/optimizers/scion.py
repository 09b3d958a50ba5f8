"""Scion."""

from typing import Any

import jax.numpy as jnp

from gradtx.checks import Decay, NonNegative, PositiveInt
from gradtx.composition.chain import chain
from gradtx.composition.matrices import matrices_and_others
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import leafwise
from gradtx.numerics import divide, root_mean_square
from gradtx.optimizers.muon import scale_by_muon, scale_by_shape
from gradtx.transforms.decay import add_decayed_weights
from gradtx.transforms.momentum import ema
from gradtx.transforms.orthogonal import STANDARD
from gradtx.transforms.scaling import scale, scale_by_learning_rate
from gradtx.types import Array, DimensionNumbers, DType, EmptyState


@transformation
def _of_unit_size(eps: NonNegative) -> GradientTransformation:
    def rule(g: Array, s: Any, t: Any) -> Any:
        if g.ndim >= 2:
            return jnp.sign(g) / max(g.shape[0], 1), {}
        size = root_mean_square(g)
        return divide(g / size.unit, size.value + eps / size.unit), {}

    return leafwise(EmptyState, None, rule)


@optimizer
def scion(
    learning_rate: NonNegative,
    decay: Decay = 0.9,
    radius: NonNegative = 50.0,
    other_radius: NonNegative = 50.0,
    eps: NonNegative = 1e-8,
    *,
    constrained: bool = True,
    ns_coeffs: Any = STANDARD,
    ns_steps: PositiveInt = 5,
    ns_dtype: DType | None = None,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
    others: GradientTransformation | None = None,
) -> GradientTransformation:
    r"""Scion: steps, and parameters, of a size given by a norm for each kind of layer.

    .. math::
        \mu_t &= \beta \mu_{t-1} + (1 - \beta) g_t, \\
        \theta_t &= (1 - \eta) \theta_{t-1} - \eta \rho\, U(\mu_t), \qquad
            U(\mu) = \begin{cases}
                \sqrt{d_{out} / d_{in}}\; \mathrm{NS}(\mu) & \text{matrices} \\
                \operatorname{sign}(\mu) / d_{in} & \text{other arrays, by their first axis} \\
                \mu / (\mathrm{rms}(\mu) + \epsilon) & \text{vectors}
            \end{cases}

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        decay: :math:`\beta` in :math:`[0, 1)`; the authors call :math:`1 - \beta` the momentum.
        radius: :math:`\rho \ge 0` of matrices.
        other_radius: :math:`\rho \ge 0` of the other leaves. The authors' NanoGPT uses 3000 for its
            last layer, the only other leaf.
        eps: :math:`\epsilon \ge 0`.
        constrained: multiply the parameters by :math:`1 - \eta`, which keeps them within the
            radius; without that this is the authors' unconstrained Scion.
        ns_coeffs: this and the next two as in :func:`scale_by_muon`.
        ns_steps: how many iterations.
        ns_dtype: the type in which to iterate.
        mu_dtype: the type of the momentum.
        weight_dimension_numbers: as in :func:`scale_by_muon`; a leaf whose numbers are None is not
            treated as a matrix. Unless given, the leaves with two dimensions are matrices.
        others: the optimizer of the other leaves, instead of the one above.

    State: `PartitionState` with the groups ``"matrices"`` and ``"others"``.

    Source: T. Pethick et al., Training Deep Learning Models with Norm-Constrained LMOs, 2025,
    arXiv:2502.07529, algorithms 1 and 2; the default radius is that of its NanoGPT.

    >>> import gradtx
    >>> tx = scion(gradtx.cosine_decay_schedule(0.1, 300), radius=4.0)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros((2, 2)), tx, max_steps=300)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    towards_zero = add_decayed_weights(1.0 if constrained else 0.0)

    def matrices(numbers: Any) -> GradientTransformation:
        return chain(
            scale_by_muon(
                ns_coeffs,
                ns_steps,
                decay,
                eps,
                mu_dtype,
                nesterov=False,
                bias_correction=False,
                weight_dimension_numbers=numbers,
                ns_dtype=ns_dtype,
            ),
            scale_by_shape(None, numbers, scale="scion"),
            scale(radius),
            towards_zero,
            scale_by_learning_rate(learning_rate),
        )

    if others is None:
        others = chain(
            ema(decay, debias=False, accumulator_dtype=mu_dtype),
            _of_unit_size(eps),
            scale(other_radius),
            towards_zero,
            scale_by_learning_rate(learning_rate),
        )
    return matrices_and_others("scion", matrices, others, weight_dimension_numbers)
