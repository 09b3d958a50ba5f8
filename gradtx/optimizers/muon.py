"""Muon."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checks import Decay, NonNegative
from gradtx.composition.chain import chain
from gradtx.composition.groups import partition
from gradtx.engine.lift import _Steps
from gradtx.numerics import debias, ema, increment, nesterov_mean, widen
from gradtx.optimizers.adam import adamw
from gradtx.pair import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    optimizer,
    transformation,
)
from gradtx.paths import Where, leaves_with_path
from gradtx.transforms.decay import add_decayed_weights
from gradtx.transforms.matrices import _as_matrices, _by_shape, _checked, _dimension_numbers
from gradtx.transforms.orthogonal import (
    _STANDARD,
    Preconditioning,
    _coefficients,
    _orthogonalized,
)
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.tree import map_updates
from gradtx.types import Array, Counter, DType, EmptyState, Params, PyTree, Slots, State, Updates

_PRESETS: dict[str, Any] = {
    "standard": _STANDARD,
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
    batch axes: each of their entries is a matrix of its own.
    """

    reduction_axis: Sequence[int] | int = 0
    output_axis: Sequence[int] | int = 1


class MuonState(NamedTuple):
    """count: i32[]; mu: like the parameters, in mu_dtype if given; ns_coeffs: of the iterations."""

    count: Counter
    mu: Slots
    ns_coeffs: Array


@transformation
def scale_by_muon(
    ns_coeffs: Any = _STANDARD,
    ns_steps: int = 5,
    beta: Decay = 0.95,
    eps: NonNegative = 1e-8,
    mu_dtype: DType | None = None,
    *,
    nesterov: bool = True,
    adaptive: bool = False,
    preconditioning: Preconditioning = "frobenius",
    weight_dimension_numbers: Any = None,
) -> Any:
    r"""The momentum of a matrix with its singular values brought near 1.

    .. math:: \mu_t = \beta \mu_{t-1} + (1 - \beta) g_t, \qquad
        u_t = \mathrm{NS}(\hat\mu_t) \approx (\hat\mu_t \hat\mu_t^\top)^{-1/2} \hat\mu_t

    with :math:`\hat\mu_t` bias-corrected (and looking ahead with Nesterov momentum). `NS` iterates
    :math:`X \leftarrow a X + (b A + c A^2) X` with :math:`A = X X^\top`, from
    :math:`X = \hat\mu / (\lVert \hat\mu \rVert_F + \epsilon)`.

    Args:
        ns_coeffs: :math:`(a, b, c)`, or a tuple of such triples, one for each iteration.
        ns_steps: iterations, at least 1; where there are several triples they set the number (Optax
            refuses more of them than this).
        beta: :math:`\beta` in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`.
        mu_dtype: the type in which :math:`\mu` is kept; the parameter's unless given.
        nesterov: use Nesterov momentum.
        adaptive: multiply by :math:`\langle \hat\mu, u \rangle`, the dual norm of the momentum.
        preconditioning: what the first iterate is divided by: the Frobenius norm, the spectral
            norm, ``"aol"`` (the root of the row sums of :math:`|A|`) or ``"schatten"`` (the
            Schatten-4 norm).
        weight_dimension_numbers: `MuonDimensionNumbers`, a tree of them or a prefix of it, or a
            function from the updates to such a tree; None where all leaves are matrices.

    State: `MuonState`. A leaf whose dimension numbers are None keeps its momentum and is not
    orthogonalized.

    Raises:
        ValueError: a leaf has not the axes that its dimension numbers name, or it is no matrix and
            has none.

    Matrices of equal shape go through the iterations as one batch. What grows with their number are
    a few elementwise operations on each leaf's own arrays, its momentum and its update. The
    arithmetic is in at least float32; Optax's is in the gradient's type.

    Source: K. Jordan et al., Muon: An Optimizer for Hidden Layers in Neural Networks, 2024;
    J. Bernstein and L. Newhouse, Old Optimizer, New Norm: An Anthology, 2024, arXiv:2409.20325
    (adaptive).

    >>> tx = scale_by_muon()
    >>> g = jnp.diag(jnp.array([3.0, 2.0]))
    >>> u = tx.update(g, tx.init(g))[0]
    >>> bool(jnp.all((jnp.diag(u) > 0.6) & (jnp.diag(u) < 1.3)))
    True
    """
    coeffs = _coefficients("scale_by_muon", ns_coeffs, ns_steps, preconditioning)

    def init(params: Params) -> State:
        mu = jax.tree.map(lambda p: jnp.zeros_like(p, dtype=mu_dtype), params)
        return MuonState(jnp.zeros([], jnp.int32), mu, jnp.asarray(coeffs, float))

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        del params, extra_args
        leaves, treedef = _checked("scale_by_muon", updates)
        slots = treedef.flatten_up_to(state.mu)
        numbers = _numbers("scale_by_muon", weight_dimension_numbers, updates)
        count = increment(state.count)
        steps = _Steps(count)
        momenta: list[Any] = list(slots)
        out: list[Any] = [None] * len(leaves)
        alike: dict[Any, list[int]] = {}
        for i, (path, g) in enumerate(leaves):
            if g is None:
                continue
            x = widen(g)
            t: Any = steps.of(x)
            mu = ema(x, widen(slots[i]), beta)
            momenta[i] = mu.astype(slots[i].dtype)
            out[i] = nesterov_mean(mu, x, beta, t) if nesterov else debias(mu, beta, t)
            if numbers[i] is not None:
                how = _as_matrices("scale_by_muon", path, g, numbers[i])
                alike.setdefault((how, jax.typeof(out[i])), []).append(i)
        stacks = [jnp.stack([out[i] for i in members]) for members in alike.values()]
        hows = [how.stacked(len(members)) for (how, _), members in alike.items()]
        results = _by_shape(
            [how.take(x) for how, x in zip(hows, stacks, strict=True)],
            lambda x: _orthogonalized(x, state.ns_coeffs, ns_steps, preconditioning, eps),
        )
        for how, x, u, members in zip(hows, stacks, results, alike.values(), strict=True):
            u = how.put(u)
            if adaptive:
                u = u * jnp.sum(x.conj() * u, axis=range(1, u.ndim), keepdims=True)
            for i, each in zip(members, jnp.unstack(u), strict=True):
                out[i] = each
        out = [u if u is None else u.astype(g.dtype) for u, (_, g) in zip(out, leaves, strict=True)]
        new = MuonState(count, treedef.unflatten(momenta), state.ns_coeffs)
        return treedef.unflatten(out), new

    return GradientTransformationExtraArgs(init, update)


def _numbers(where: str, given: Any, updates: Updates) -> list[Any]:
    given = MuonDimensionNumbers() if given is None else given
    return _dimension_numbers(where, given, MuonDimensionNumbers, updates)


def _scale_by_shape(numbers: Any, consistent_rms: Any) -> GradientTransformation:
    """Multiply by a factor that depends on the shape of the matrix alone."""

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        leaves, treedef = leaves_with_path(updates)
        out = []
        for (path, u), number in zip(leaves, _numbers("muon", numbers, updates), strict=True):
            if u is None or number is None:
                out.append(u)
                continue
            _, height, width = _as_matrices("muon", path, u, number).sizes
            factor: Any = max(1.0, width / max(height, 1)) ** 0.5
            if consistent_rms is not None:
                factor = consistent_rms * max(height, width) ** 0.5
            out.append(map_updates(lambda g, k=factor: (widen(g) * k).astype(g.dtype), u))
        return treedef.unflatten(out), state

    return GradientTransformationExtraArgs(lambda params: EmptyState(), update)


@optimizer
def muon(
    learning_rate: NonNegative,
    ns_coeffs: Any = _STANDARD,
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
) -> GradientTransformation:
    r"""Muon for matrices, AdamW for all else.

    .. math:: \theta \leftarrow \theta - \eta (k u + \lambda \theta), \qquad
        k = \sqrt{\max(1, d_{out} / d_{in})}

    The direction `u` is that of :func:`scale_by_muon`.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        ns_coeffs: as in :func:`scale_by_muon`, or ``"standard"`` or ``"dion"``.
        ns_steps: iterations; this and the next as in :func:`scale_by_muon`.
        beta: decay of the momentum.
        eps: added to the norm; also Adam's.
        weight_decay: :math:`\lambda \ge 0` for matrices, multiplied by the learning rate.
        weight_decay_mask: which parameters decay, as in :func:`add_decayed_weights`.
        mu_dtype: the type of the momentum; also of Adam's first moment.
        nesterov: use Nesterov momentum; also in Adam.
        adaptive: multiply by the dual norm.
        preconditioning: of the first iterate.
        adam_b1: Adam's first decay.
        adam_b2: Adam's second decay.
        adam_eps_root: Adam's, under the root.
        adam_weight_decay: Adam's.
        adam_learning_rate: Adam's learning rate; `learning_rate` unless given.
        muon_weight_dimension_numbers: as in :func:`scale_by_muon`; a leaf whose numbers are None is
            Adam's. Unless given, Muon takes the leaves with two dimensions.
        consistent_rms: :math:`k = r \sqrt{\max(d_{in}, d_{out})}` with this `r`; 0.2 matches the
            size of Adam's updates.

    State: `PartitionState` with the groups ``"muon"`` and ``"adam"``.

    Source: K. Jordan et al., Muon: An Optimizer for Hidden Layers in Neural Networks, 2024;
    J. Liu et al., Muon is Scalable for LLM Training, 2025, arXiv:2502.16982 (consistent_rms);
    K. Ahn et al., Dion: Distributed Orthonormalized Updates, 2025, arXiv:2504.05295 (``"dion"``).

    >>> muon(0.02).init({"b": jnp.zeros(2), "w": jnp.zeros((2, 2))}).inner_states.keys()
    dict_keys(['adam', 'muon'])
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
                for number in _dimension_numbers("muon", numbers, MuonDimensionNumbers, params)
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
            adaptive=adaptive,
            preconditioning=preconditioning,
            weight_dimension_numbers=numbers,
        ),
        _scale_by_shape(numbers, consistent_rms),
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
