"""Newton-Muon: Muon on gradients that the second moments of the layers' inputs have scaled."""

from typing import Any

from gradtx.checks import (
    Decay,
    InitialNonNegative,
    NonNegative,
    Positive,
    PositiveCount,
    PositiveInt,
)
from gradtx.composition.chain import chain
from gradtx.core.pair import GradientTransformation, optimizer
from gradtx.leaves.paths import Where
from gradtx.optimizers.beside_adamw import beside_adamw
from gradtx.optimizers.muon import muon_factor, scale_by_muon, scale_by_shape
from gradtx.transforms.input_moments import scale_by_input_moments
from gradtx.transforms.orthogonal import STANDARD
from gradtx.types import DimensionNumbers, DType
from gradtx.types.update_size import UpdateSize


# Its epsilon is added to the moments of inputs, which are as large at every width.
@optimizer(update_size=UpdateSize("spectral", "weight_dimension_numbers", muon_factor, eps_power=0))
def newton_muon(
    learning_rate: NonNegative,
    beta: Decay = 0.95,
    decay: Decay = 0.95,
    ridge: Positive = 0.2,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    *,
    eps: NonNegative = 1e-8,
    initial: InitialNonNegative = 1e-3,
    every: PositiveCount = 32,
    block_size: PositiveInt | None = None,
    nesterov: bool = True,
    ns_coeffs: Any = STANDARD,
    ns_steps: PositiveInt = 5,
    ns_dtype: DType | None = None,
    mu_dtype: DType | None = None,
    consistent_rms: NonNegative | None = 1.0,
    weight_dimension_numbers: DimensionNumbers | None = None,
    others: GradientTransformation | None = None,
) -> GradientTransformation:
    r"""Newton-Muon: Muon on gradients scaled by second moments of inputs; AdamW for the rest.

    .. math::
        K &\leftarrow \beta_2 K + (1 - \beta_2) \tfrac{1}{N} \textstyle\sum_i \bar z_i z_i^\top,
            \qquad P \leftarrow \Bigl(K + \bigl(\gamma \tfrac{\operatorname{tr} K}{d_{in}}
            + \epsilon\bigr) I\Bigr)^{-1} \qquad \text{at every } T \text{-th step}, \\
        \mu_t &= \beta \mu_{t-1} + (1 - \beta) P g_t, \qquad
            \theta_t = \theta_{t-1} - \eta \Bigl(r \sqrt{\max(d_{in}, d_{out})}\;
            \mathrm{NS}(\beta \mu_t + (1 - \beta) P g_t) + \lambda \theta_{t-1}\Bigr)

    with inputs `z` of the layer :math:`y = z W`. See :func:`scale_by_input_moments`.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule. The authors' code has
            4e-4 for a transformer of width 768.
        beta: :math:`\beta`, decay of the momentum, in :math:`[0, 1)`.
        decay: :math:`\beta_2`; this, `ridge` (:math:`\gamma`), `eps`, `initial`, `every` (`T`) and
            `block_size` are as in :func:`scale_by_input_moments`.
        ridge: what is added to the diagonal, relative to its mean.
        weight_decay: :math:`\lambda \ge 0`, also of the other leaves.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        eps: what is added to the diagonal besides the ridge.
        initial: the diagonal of `K` at the start.
        every: how many steps there are from one inverse to the next.
        block_size: the size of blocks on the diagonal of `K`.
        nesterov: use Nesterov momentum, as above; otherwise the iteration is on :math:`\mu_t`.
        ns_coeffs: coefficients of the iteration, as in :func:`scale_by_muon`.
        ns_steps: iterations.
        ns_dtype: the type in which to iterate.
        mu_dtype: the type of the momentum.
        consistent_rms: `r`, as in :func:`muon`; with None the factor is
            :math:`\sqrt{\max(1, d_{out} / d_{in})}`.
        weight_dimension_numbers: as in :func:`scale_by_muon`; a leaf whose numbers are None goes
            to `others`. Unless given, Newton-Muon takes the leaves with two dimensions.
        others: the optimizer of the other leaves; unless given
            ``adamw(learning_rate, weight_decay=weight_decay, mask=mask)``.

    ``update`` takes the extra argument ``input_moments``, a dict by path pattern of what
    ``gradtx.input_moments(z)`` returns. A matrix without moments keeps its `P`, which is the
    identity at first: then the step is that of Muon.

    State: `PartitionState` with the groups ``"matrices"`` and ``"others"``.

    Source: Z. Du and W. Su, The Newton-Muon Optimizer, 2026, arXiv:2604.01472, algorithm 1, with
    the constants of the authors' code, https://github.com/zhehangdu/Newton-Muon. In that code
    queries, keys and values in one matrix are orthogonalized separately: see :func:`split_leaves`.

    >>> import gradtx, jax.numpy as jnp
    >>> tx, w = newton_muon(0.1, every=1, ridge=1e-3), {"w": jnp.zeros((2, 2))}
    >>> z = jnp.array([[3.0, 3.0], [0.1, -0.1]])  # the second direction of inputs is weak
    >>> g = {"w": z.T @ (z @ w["w"] - z)}  # of a quadratic loss that is least at the identity
    >>> moments = {"w": gradtx.input_moments(z)}
    >>> updates, _ = tx.update(g, tx.init(w), w, input_moments=moments)
    >>> bool(updates["w"][0, 0] > 5 * abs(updates["w"][0, 1]))  # towards the identity
    True
    """

    def direction(numbers: Any) -> GradientTransformation:
        return chain(
            scale_by_input_moments(
                decay,
                ridge,
                eps,
                initial,
                every,
                block_size=block_size,
                weight_dimension_numbers=numbers,
            ),
            scale_by_muon(
                ns_coeffs,
                ns_steps,
                beta,
                mu_dtype=mu_dtype,
                nesterov=nesterov,
                bias_correction=False,
                weight_dimension_numbers=numbers,
                ns_dtype=ns_dtype,
            ),
            scale_by_shape(consistent_rms, numbers),
        )

    return beside_adamw(
        "newton_muon",
        direction,
        learning_rate,
        weight_decay,
        mask,
        weight_dimension_numbers,
        others,
    )
