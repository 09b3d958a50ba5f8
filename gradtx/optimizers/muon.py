"""Muon."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import jax.numpy as jnp

from gradtx.checks import Decay, NonNegative, PositiveInt, check_choice
from gradtx.composition.chain import chain
from gradtx.composition.matrices import MuonDimensionNumbers, matrices_and_others
from gradtx.composition.without_state import without_state
from gradtx.core.pair import (
    GradientTransformation,
    optimizer,
    transformation,
)
from gradtx.engine.matrices import MatrixDimensions, as_matrices, matrixwise
from gradtx.leaves.paths import Where, leaves_with_path
from gradtx.numerics import Step, cast, debias, ema, nesterov_mean, widen, zero_mean
from gradtx.optimizers.adam import adamw
from gradtx.transforms.decay import add_cautious_decayed_weights, add_decayed_weights
from gradtx.transforms.orthogonal import (
    STANDARD,
    Preconditioning,
    check_dtype,
    coefficients,
    orthogonalized,
)
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.tree import map_updates
from gradtx.types import (
    Array,
    Counter,
    DimensionNumbers,
    DType,
    Params,
    Slots,
    TreeScalar,
    Updates,
)
from gradtx.types.update_size import UpdateSize

Scale: TypeAlias = Literal["jordan", "moonshot", "scion", "none"]


class MuonState(NamedTuple):
    """count: i32[]; mu: like the parameters, in mu_dtype if given; ns_coeffs: the coefficients."""

    count: Counter
    mu: Slots
    ns_coeffs: TreeScalar


@transformation
def scale_by_muon(
    ns_coeffs: Any = STANDARD,
    ns_steps: PositiveInt = 5,
    beta: Decay = 0.95,
    eps: NonNegative = 1e-8,
    mu_dtype: DType | None = None,
    *,
    nesterov: bool = True,
    adaptive: bool = False,
    preconditioning: Preconditioning = "frobenius",
    weight_dimension_numbers: DimensionNumbers | None = None,
    bias_correction: bool = True,
    ns_dtype: DType | None = None,
) -> Any:
    r"""The momentum of a matrix with its singular values brought near 1.

    .. math:: \mu_t = \beta \mu_{t-1} + (1 - \beta) g_t, \qquad
        u_t = \mathrm{NS}(\hat\mu_t) \approx (\hat\mu_t \hat\mu_t^\top)^{-1/2} \hat\mu_t

    with :math:`\hat\mu_t` bias-corrected (and looking ahead with Nesterov momentum). `NS` iterates
    :math:`X \leftarrow a X + (b A + c A^2) X` with :math:`A = X X^\top`, from
    :math:`X = \hat\mu / (\lVert \hat\mu \rVert_F + \epsilon)`.

    Args:
        ns_coeffs: :math:`(a, b, c)`, or :math:`(a, b)` to leave out the square of `A`, a tuple of
            these for each iteration, or one of the names of :func:`muon_coefficients`.
        ns_steps: iterations, at least 1; several triples set the number of iterations themselves
            (Optax refuses more triples than this).
        beta: :math:`\beta` in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`.
        mu_dtype: the type in which :math:`\mu` is kept; the parameter's unless given.
        nesterov: use Nesterov momentum.
        bias_correction: divide by :math:`1 - \beta^t`, as Optax does; without it the momentum is
            that of the author's code, :math:`(1 - \beta) g_t + \beta \mu_t` with Nesterov momentum.
        adaptive: multiply by :math:`\langle \hat\mu, u \rangle`, the dual norm of the momentum, of
            each matrix its own. Optax takes one for all matrices of a leaf.
        preconditioning: the divisor of the first iterate: the Frobenius norm, the spectral
            norm, ``"aol"`` (the root of the row sums of :math:`|A|`) or ``"schatten"`` (the
            Schatten-4 norm).
        weight_dimension_numbers: `MuonDimensionNumbers`, a tree of them or a prefix of it, or a
            function from the updates to such a tree; None where all leaves are matrices.
        ns_dtype: the type of the operands of the iterations' products, such as ``jnp.bfloat16``,
            and of `X` between them; sums are taken in float32. That of the momentum, in at least
            float32, unless given.

    State: `MuonState`. A leaf whose dimension numbers are None keeps its momentum and is not
    orthogonalized.

    Raises:
        ValueError: a leaf lacks the axes that its dimension numbers name, or has no dimension
            numbers and is not a matrix.

    Matrices of equal shape go through the iterations as one batch; only a few elementwise
    operations, on the momentum and the update, run leaf by leaf. Where one side of a matrix is more
    than 1.5 times as long as the other, the iterations go through the smaller `A` alone, which
    takes 0.67 of the operations at a ratio of 4, and 0.54 at 8. The arithmetic is in at least
    float32; Optax's is in the gradient's type. In float32 a gradient may have
    entries up to 2.2e38: the sum that looks ahead is 1.49 times the first gradient.

    Source: K. Jordan et al., Muon: An Optimizer for Hidden Layers in Neural Networks, 2024;
    J. Zhang et al., Gram Newton-Schulz, 2026 (iterations on `A`); J. Bernstein and L. Newhouse, Old
    Optimizer, New Norm: An Anthology, 2024, arXiv:2409.20325 (adaptive).

    >>> tx = scale_by_muon()
    >>> g = jnp.diag(jnp.array([3.0, 2.0]))
    >>> u = tx.update(g, tx.init(g))[0]
    >>> bool(jnp.all((jnp.diag(u) > 0.6) & (jnp.diag(u) < 1.3)))
    True
    """
    coeffs = coefficients("scale_by_muon", ns_coeffs, ns_steps, preconditioning)
    check_dtype("scale_by_muon", ns_dtype)

    def slots(p: Array) -> dict[str, Array]:
        return {"mu": zero_mean(p, mu_dtype)}

    def momentum(g: Array, s: Any, t: Step) -> Any:
        mu = ema(g, s.mu, beta)
        if bias_correction:
            ahead = nesterov_mean(mu, g, beta, t) if nesterov else debias(mu, beta, t)
        else:
            ahead = ema(g, mu, beta) if nesterov else mu
        return ahead, {"mu": mu}

    def rule(g: Array, s: Any, t: Step) -> Any:
        u = orthogonalized(g, s.ns_coeffs, ns_steps, preconditioning, eps, ns_dtype)
        return u * jnp.sum(g.conj() * u, (-2, -1), keepdims=True) if adaptive else u, {}

    return matrixwise(
        MuonState,
        slots,
        rule,
        MatrixDimensions(weight_dimension_numbers, MuonDimensionNumbers),
        on_entries=momentum,
        start={"ns_coeffs": coeffs},
    )


def shape_factor(d_in: int, d_out: int, scale: Scale = "jordan", consistent_rms: Any = None) -> Any:
    """The factor of :func:`scale_by_shape` for a matrix of so many inputs and outputs."""
    d_in = max(d_in, 1)
    if consistent_rms is not None or scale == "moonshot":
        return (0.2 if consistent_rms is None else consistent_rms) * max(d_in, d_out) ** 0.5
    if scale == "none":
        return 1.0
    return (d_out / d_in if scale == "scion" else max(1.0, d_out / d_in)) ** 0.5


def muon_factor(arguments: Mapping[str, Any], rows: int, columns: int) -> float:
    """`UpdateSize.factor` of an optimizer whose arguments are those of :func:`scale_by_shape`."""
    # What multiplies all factors alike, such as r, does not count, and may be traced.
    fixed = None if arguments["consistent_rms"] is None else 1.0
    return float(shape_factor(rows, columns, arguments.get("scale", "jordan"), fixed))


@transformation
def scale_by_shape(
    consistent_rms: NonNegative | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
    *,
    scale: Scale = "jordan",
) -> GradientTransformation:
    r"""Multiply a matrix by a factor that depends on its shape alone, as Muon does.

    .. math:: u = k g, \qquad k = \begin{cases}
        \sqrt{\max(1, d_{out} / d_{in})} & \text{jordan} \\
        0.2 \sqrt{\max(d_{in}, d_{out})} & \text{moonshot} \\
        \sqrt{d_{out} / d_{in}} & \text{scion} \\
        1 & \text{none}
        \end{cases}
        \quad\text{or}\quad k = r \sqrt{\max(d_{in}, d_{out})}

    Args:
        consistent_rms: :math:`r \ge 0`, instead of `scale`.
        weight_dimension_numbers: as in :func:`scale_by_muon`.
        scale: the factor. PyTorch's ``adjust_lr_fn="original"`` is ``"jordan"`` and its
            ``"match_rms_adamw"`` is ``"moonshot"``, for `MuonDimensionNumbers(1, 0)`; Keras's
            ``rms_rate`` is `consistent_rms`, and without one ``"none"``.

    State: none.

    Raises:
        ValueError: both `consistent_rms` and another `scale` than the default are given, or a leaf
            has no dimension numbers and is not a matrix.

    Source: K. Jordan et al., Muon: An Optimizer for Hidden Layers in Neural Networks, 2024;
    J. Liu et al., Muon is Scalable for LLM Training, 2025, arXiv:2502.16982 (moonshot);
    T. Pethick et al., Training Deep Learning Models with Norm-Constrained LMOs, 2025,
    arXiv:2502.07529 (scion).

    >>> tx = scale_by_shape()
    >>> tx.update(jnp.ones((1, 4)), tx.init(jnp.ones((1, 4))))[0].tolist()
    [[2.0, 2.0, 2.0, 2.0]]
    """
    check_choice("scale_by_shape", "scale", scale, get_args(Scale))
    if consistent_rms is not None and scale != "jordan":
        raise ValueError("scale_by_shape: give consistent_rms or scale, not both")
    dimensions = MatrixDimensions(weight_dimension_numbers, MuonDimensionNumbers)

    # Without `matrixwise`: a factor of the shape alone needs no batch, and works on `Rows`.
    def scaled(updates: Updates, params: Params | None, **extra_args: Any) -> Updates:
        leaves, treedef = leaves_with_path(updates)
        out = []
        numbers = dimensions.of("scale_by_shape", updates)
        for (path, u), number in zip(leaves, numbers, strict=True):
            if u is None or number is None:
                out.append(u)
                continue
            matrices = as_matrices("scale_by_shape", path, u.shape, number)
            k = shape_factor(matrices.rows, matrices.columns, scale, consistent_rms)
            out.append(map_updates(lambda g, k=k: cast(widen(g) * k, g.dtype), u))
        return treedef.unflatten(out)

    return without_state(scaled)


@optimizer(update_size=UpdateSize("spectral", "muon_weight_dimension_numbers", muon_factor))
def muon(
    learning_rate: NonNegative,
    ns_coeffs: Any = STANDARD,
    ns_steps: PositiveInt = 5,
    beta: Decay = 0.95,
    eps: NonNegative = 1e-8,
    weight_decay: NonNegative = 0.0,
    weight_decay_mask: Where | None = None,
    mu_dtype: DType | None = None,
    *,
    nesterov: bool = True,
    adaptive: bool = False,
    preconditioning: Preconditioning = "frobenius",
    adam_b1: Decay = 0.9,
    adam_b2: Decay = 0.999,
    adam_eps_root: NonNegative = 0.0,
    adam_weight_decay: NonNegative = 0.0,
    adam_learning_rate: NonNegative | None = None,
    muon_weight_dimension_numbers: DimensionNumbers | None = None,
    consistent_rms: NonNegative | None = None,
    bias_correction: bool = True,
    ns_dtype: DType | None = None,
    scale: Scale = "jordan",
    cautious_decay: bool = False,
    adam_weight_decay_mask: Where | None = None,
) -> GradientTransformation:
    r"""Muon for matrices, AdamW for everything else.

    .. math::
        \mu_t &= \beta \mu_{t-1} + (1 - \beta) g_t, \qquad
            \hat\mu_t = \frac{\beta \mu_t}{1 - \beta^{t+1}}
            + \frac{(1 - \beta) g_t}{1 - \beta^t}, \\
        X_0 &= \frac{\hat\mu_t}{\lVert\hat\mu_t\rVert_F + \epsilon}, \qquad
            A_i = X_i X_i^\top, \qquad
            X_{i+1} = a X_i + (b A_i + c A_i^2) X_i, \\
        \theta_t &= \theta_{t-1} - \eta (k X_n + \lambda\theta_{t-1})

    after `n` iterations, with a factor `k` of the shape. Without Nesterov momentum
    :math:`\hat\mu_t = \mu_t / (1 - \beta^t)`. All other leaves take the steps of :func:`adamw`.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        ns_coeffs: as in :func:`scale_by_muon`.
        ns_steps: `n`; this and the next as in :func:`scale_by_muon`.
        beta: decay of the momentum.
        eps: added to the norm; also Adam's epsilon.
        weight_decay: :math:`\lambda \ge 0` for matrices, multiplied by the learning rate; a number,
            an array, or a schedule.
        weight_decay_mask: which of Muon's matrices decay, as in :func:`add_decayed_weights`. Adam's
            leaves do not obey it, as in Optax: `adam_weight_decay_mask` is theirs.
        mu_dtype: the type of the momentum; also of Adam's first moment.
        nesterov: use Nesterov momentum; also in Adam.
        bias_correction: of the momentum, as in :func:`scale_by_muon`.
        adaptive: multiply by the dual norm of the momentum.
        preconditioning: the divisor of the first iterate.
        adam_b1: Adam's first decay.
        adam_b2: Adam's second decay.
        adam_eps_root: Adam's second epsilon, under the root.
        adam_weight_decay: the weight decay of Adam's leaves.
        adam_learning_rate: Adam's learning rate; `learning_rate` unless given.
        muon_weight_dimension_numbers: as in :func:`scale_by_muon`; a leaf whose numbers are None
            goes to Adam. Unless given, Muon takes the leaves with two dimensions.
        consistent_rms: `r`, for :math:`k = r \sqrt{\max(d_{in}, d_{out})}`; 0.2 matches the size
            of Adam's updates.
        ns_dtype: the type in which to iterate, as in :func:`scale_by_muon`.
        scale: `k`, as in :func:`scale_by_shape`.
        cautious_decay: decay only the entries that the step moves towards zero anyway, as
            :func:`add_cautious_decayed_weights` does.
        adam_weight_decay_mask: which of Adam's leaves decay, as in :func:`add_decayed_weights`. For
            one mask of all parameters, pass it here and as `weight_decay_mask`.

    State: `PartitionState` with the groups ``"muon"`` and ``"adam"``.

    Source: K. Jordan et al., Muon: An Optimizer for Hidden Layers in Neural Networks, 2024;
    J. Liu et al., Muon is Scalable for LLM Training, 2025, arXiv:2502.16982 (consistent_rms);
    K. Ahn et al., Dion: Distributed Orthonormalized Updates, 2025, arXiv:2504.05295 (``"dion"``).

    >>> muon(0.02).init({"b": jnp.zeros(2), "w": jnp.zeros((2, 2))}).inner_states.keys()
    dict_keys(['adam', 'muon'])
    >>> import gradtx
    >>> tx = muon(0.02)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros((2, 2)), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    decay = add_cautious_decayed_weights if cautious_decay else add_decayed_weights
    positional = (ns_coeffs, ns_steps, beta, eps, mu_dtype)

    def matrices(numbers: Any) -> GradientTransformation:
        return chain(
            scale_by_muon(
                *positional,
                nesterov=nesterov,
                bias_correction=bias_correction,
                adaptive=adaptive,
                preconditioning=preconditioning,
                weight_dimension_numbers=numbers,
                ns_dtype=ns_dtype,
            ),
            scale_by_shape(consistent_rms, numbers, scale=scale),
            decay(weight_decay, weight_decay_mask),
            scale_by_learning_rate(learning_rate),
        )

    others = adamw(
        learning_rate if adam_learning_rate is None else adam_learning_rate,
        adam_b1,
        adam_b2,
        eps,
        adam_eps_root,
        mu_dtype,
        adam_weight_decay,
        adam_weight_decay_mask,
        nesterov=nesterov,
    )
    declared = muon_weight_dimension_numbers
    return matrices_and_others("muon", matrices, others, declared, ("muon", "adam"))
