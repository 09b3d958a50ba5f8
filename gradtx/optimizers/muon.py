"""Muon."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checks import Decay, NonNegative
from gradtx.composition.chain import chain
from gradtx.composition.groups import partition
from gradtx.engine.matrices import Matrices, MatrixDimensions, as_matrices, matrixwise
from gradtx.numerics import Step, cast, debias, ema, nesterov_mean, widen, zeros_like
from gradtx.optimizers.adam import adamw
from gradtx.pair import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    optimizer,
    transformation,
)
from gradtx.paths import Where, leaves_with_path
from gradtx.transforms.decay import add_decayed_weights
from gradtx.transforms.orthogonal import STANDARD, Preconditioning, coefficients, orthogonalized
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.tree import map_updates
from gradtx.types import (
    Array,
    Counter,
    DType,
    EmptyState,
    Params,
    PyTree,
    Slots,
    State,
    TreeScalar,
    Updates,
)

_PRESETS: dict[str, Any] = {
    "standard": STANDARD,
    "dion": (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
}


class MuonDimensionNumbers(NamedTuple):
    """Which axes of an array are the rows and the columns of a matrix `W` in :math:`x W`.

    reduction_axis: the rows, one axis or several; output_axis: the columns. All other axes are
    batch axes, each of whose entries is a matrix of its own.
    """

    reduction_axis: Sequence[int] | int = 0
    output_axis: Sequence[int] | int = 1


class MuonState(NamedTuple):
    """count: i32[]; mu: like the parameters, in mu_dtype if given; ns_coeffs: the coefficients."""

    count: Counter
    mu: Slots
    ns_coeffs: TreeScalar


@transformation
def scale_by_muon(
    ns_coeffs: Any = STANDARD,
    ns_steps: int = 5,
    beta: Decay = 0.95,
    eps: NonNegative = 1e-8,
    mu_dtype: DType | None = None,
    *,
    nesterov: bool = True,
    adaptive: bool = False,
    preconditioning: Preconditioning = "frobenius",
    weight_dimension_numbers: Any = None,
    bias_correction: bool = True,
) -> Any:
    r"""The momentum of a matrix with its singular values brought near 1.

    .. math:: \mu_t = \beta \mu_{t-1} + (1 - \beta) g_t, \qquad
        u_t = \mathrm{NS}(\hat\mu_t) \approx (\hat\mu_t \hat\mu_t^\top)^{-1/2} \hat\mu_t

    with :math:`\hat\mu_t` bias-corrected (and looking ahead with Nesterov momentum). `NS` iterates
    :math:`X \leftarrow a X + (b A + c A^2) X` with :math:`A = X X^\top`, from
    :math:`X = \hat\mu / (\lVert \hat\mu \rVert_F + \epsilon)`.

    Args:
        ns_coeffs: :math:`(a, b, c)`, or a tuple of such triples, one for each iteration.
        ns_steps: iterations, at least 1; several triples set the number of iterations themselves
            (Optax refuses more triples than this).
        beta: :math:`\beta` in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`.
        mu_dtype: the type in which :math:`\mu` is kept; the parameter's unless given.
        nesterov: use Nesterov momentum.
        bias_correction: divide by :math:`1 - \beta^t`, as Optax does; without it the momentum is
            that of the author's code, :math:`(1 - \beta) g_t + \beta \mu_t` with Nesterov momentum.
        adaptive: multiply by :math:`\langle \hat\mu, u \rangle`, the dual norm of the momentum.
        preconditioning: what the first iterate is divided by: the Frobenius norm, the spectral
            norm, ``"aol"`` (the root of the row sums of :math:`|A|`) or ``"schatten"`` (the
            Schatten-4 norm).
        weight_dimension_numbers: `MuonDimensionNumbers`, a tree of them or a prefix of it, or a
            function from the updates to such a tree; None where all leaves are matrices.

    State: `MuonState`. A leaf whose dimension numbers are None keeps its momentum and is not
    orthogonalized.

    Raises:
        ValueError: a leaf lacks the axes that its dimension numbers name, or has no dimension
            numbers and is not a matrix.

    Matrices of equal shape go through the iterations as one batch; only a few elementwise
    operations, on the momentum and the update, run leaf by leaf. The arithmetic is in at least
    float32; Optax's is in the gradient's type.

    Source: K. Jordan et al., Muon: An Optimizer for Hidden Layers in Neural Networks, 2024;
    J. Bernstein and L. Newhouse, Old Optimizer, New Norm: An Anthology, 2024, arXiv:2409.20325
    (adaptive).

    >>> tx = scale_by_muon()
    >>> g = jnp.diag(jnp.array([3.0, 2.0]))
    >>> u = tx.update(g, tx.init(g))[0]
    >>> bool(jnp.all((jnp.diag(u) > 0.6) & (jnp.diag(u) < 1.3)))
    True
    """
    coeffs = coefficients("scale_by_muon", ns_coeffs, ns_steps, preconditioning)

    def slots(p: Array) -> dict[str, Array]:
        return {"mu": zeros_like(p, mu_dtype)}

    def momentum(g: Array, s: Any, t: Step) -> Any:
        mu = ema(g, s.mu, beta)
        if bias_correction:
            ahead = nesterov_mean(mu, g, beta, t) if nesterov else debias(mu, beta, t)
        else:
            ahead = ema(g, mu, beta) if nesterov else mu
        return ahead, {"mu": mu}

    def rule(g: Array, s: Any, t: Step) -> Any:
        return orthogonalized(g, s.ns_coeffs, ns_steps, preconditioning, eps), {}

    def dual_norm(mean: Array, u: Array, matrices: Matrices) -> Array:
        return u * jnp.sum(mean.conj() * u)

    return matrixwise(
        MuonState,
        rule,
        MatrixDimensions(weight_dimension_numbers, MuonDimensionNumbers),
        slots=slots,
        on_entries=momentum,
        on_leaf=dual_norm if adaptive else None,
        start={"ns_coeffs": coeffs},
    )


@transformation
def scale_by_shape(
    consistent_rms: NonNegative | None = None, weight_dimension_numbers: Any = None
) -> GradientTransformation:
    r"""Multiply a matrix by a factor that depends on its shape alone, as Muon does.

    .. math:: u = g \sqrt{\max(1, d_{out} / d_{in})}
        \quad\text{or}\quad u = r\, g \sqrt{\max(d_{in}, d_{out})}

    Args:
        consistent_rms: :math:`r \ge 0`; None for the first formula.
        weight_dimension_numbers: as in :func:`scale_by_muon`.

    State: none.

    Source: J. Liu et al., Muon is Scalable for LLM Training, 2025, arXiv:2502.16982.

    >>> tx = scale_by_shape()
    >>> tx.update(jnp.ones((1, 4)), tx.init(jnp.ones((1, 4))))[0].tolist()
    [[2.0, 2.0, 2.0, 2.0]]
    """
    dimensions = MatrixDimensions(weight_dimension_numbers, MuonDimensionNumbers)

    def factor(matrices: Matrices) -> Any:
        d_in, d_out = matrices.rows, matrices.columns
        if consistent_rms is not None:
            return consistent_rms * max(d_in, d_out) ** 0.5
        return max(1.0, d_out / max(d_in, 1)) ** 0.5

    # Without `matrixwise`: a factor of the shape alone needs no batch, and works on `Rows`.
    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        leaves, treedef = leaves_with_path(updates)
        out = []
        numbers = dimensions.of("scale_by_shape", updates)
        for (path, u), number in zip(leaves, numbers, strict=True):
            if u is None or number is None:
                out.append(u)
                continue
            k = factor(as_matrices("scale_by_shape", path, u.shape, number))
            out.append(map_updates(lambda g, k=k: cast(widen(g) * k, g.dtype), u))
        return treedef.unflatten(out), state

    return GradientTransformationExtraArgs(lambda params: EmptyState(), update)


@optimizer
def muon(
    learning_rate: NonNegative,
    ns_coeffs: Any = STANDARD,
    ns_steps: int = 5,
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
    muon_weight_dimension_numbers: Any = None,
    consistent_rms: NonNegative | None = None,
    bias_correction: bool = True,
) -> GradientTransformation:
    r"""Muon for matrices, AdamW for everything else.

    .. math::
        \mu_t &= \beta \mu_{t-1} + (1 - \beta) g_t, \qquad
            \hat\mu_t = \frac{\beta \mu_t}{1 - \beta^{t+1}}
            + \frac{(1 - \beta) g_t}{1 - \beta^t}, \\
        X_0 &= \frac{\hat\mu_t}{\lVert\hat\mu_t\rVert_F + \epsilon}, \qquad
            A_i = X_i X_i^\top, \qquad
            X_{i+1} = a X_i + (b A_i + c A_i^2) X_i, \\
        \theta_t &= \theta_{t-1} - \eta (k X_n + \lambda\theta_{t-1}), \qquad
            k = \sqrt{\max(1, d_{out} / d_{in})}

    after `n` iterations. Without Nesterov momentum :math:`\hat\mu_t = \mu_t / (1 - \beta^t)`. All
    other leaves take the steps of :func:`adamw`.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        ns_coeffs: as in :func:`scale_by_muon`, or ``"standard"`` or ``"dion"``.
        ns_steps: `n`; this and the next as in :func:`scale_by_muon`.
        beta: decay of the momentum.
        eps: added to the norm; also Adam's epsilon.
        weight_decay: :math:`\lambda \ge 0` for matrices, multiplied by the learning rate.
        weight_decay_mask: which parameters decay, as in :func:`add_decayed_weights`.
        mu_dtype: the type of the momentum; also of Adam's first moment.
        nesterov: use Nesterov momentum; also in Adam.
        bias_correction: of the momentum, as in :func:`scale_by_muon`.
        adaptive: multiply by the dual norm of the momentum.
        preconditioning: what the first iterate is divided by.
        adam_b1: Adam's first decay.
        adam_b2: Adam's second decay.
        adam_eps_root: Adam's second epsilon, under the root.
        adam_weight_decay: the weight decay of Adam's leaves.
        adam_learning_rate: Adam's learning rate; `learning_rate` unless given.
        muon_weight_dimension_numbers: as in :func:`scale_by_muon`; a leaf whose numbers are None
            goes to Adam. Unless given, Muon takes the leaves with two dimensions.
        consistent_rms: `r`, for :math:`k = r \sqrt{\max(d_{in}, d_{out})}`; 0.2 matches the size
            of Adam's updates.

    State: `PartitionState` with the groups ``"muon"`` and ``"adam"``.

    Source: K. Jordan et al., Muon: An Optimizer for Hidden Layers in Neural Networks, 2024;
    J. Liu et al., Muon is Scalable for LLM Training, 2025, arXiv:2502.16982 (consistent_rms);
    K. Ahn et al., Dion: Distributed Orthonormalized Updates, 2025, arXiv:2504.05295 (``"dion"``).

    >>> muon(0.02).init({"b": jnp.zeros(2), "w": jnp.zeros((2, 2))}).inner_states.keys()
    dict_keys(['adam', 'muon'])
    >>> import gradtx
    >>> tx = muon(0.02)
    >>> found = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros((2, 2)), tx, max_steps=200)
    >>> bool(jnp.allclose(found.params, 1, atol=1e-2))
    True
    """
    if isinstance(ns_coeffs, str):
        if ns_coeffs not in _PRESETS:
            raise ValueError(f"muon: ns_coeffs must be one of {list(_PRESETS)}, not {ns_coeffs!r}")
        ns_coeffs = _PRESETS[ns_coeffs]
    given = muon_weight_dimension_numbers

    def numbers(tree: PyTree) -> PyTree:
        if given is None:
            return jax.tree.map(lambda p: MuonDimensionNumbers() if p.ndim == 2 else None, tree)
        return given(tree) if callable(given) else given

    def labels(params: Params) -> PyTree:
        treedef = leaves_with_path(params)[1]
        return treedef.unflatten(
            [
                "adam" if number is None else "muon"
                for number in MatrixDimensions(numbers, MuonDimensionNumbers).of("muon", params)
            ]
        )

    matrices = chain(
        scale_by_muon(
            ns_coeffs,
            ns_steps,
            beta,
            eps,
            mu_dtype,
            nesterov=nesterov,
            bias_correction=bias_correction,
            adaptive=adaptive,
            preconditioning=preconditioning,
            weight_dimension_numbers=numbers,
        ),
        scale_by_shape(consistent_rms, numbers),
        add_decayed_weights(weight_decay, weight_decay_mask),
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
        nesterov=nesterov,
    )
    return partition({"adam": others, "muon": matrices}, labels)
