"""SOAP."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checks import Decay, NonNegative, PositiveCount, PositiveInt
from gradtx.composition.matrices import MuonDimensionNumbers, dimension_numbers
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import RuleFn
from gradtx.engine.matrices import (
    FactorFn,
    Matrices,
    MatrixDimensions,
    matrixwise,
)
from gradtx.leaves.paths import Where
from gradtx.linalg.eigenbasis import Basis, check_basis, followed
from gradtx.linalg.linear_algebra import (
    by_eigenvalue,
    eigenbasis,
    identity_like,
    orthogonal_iteration,
    rotated,
    rotated_back,
)
from gradtx.linalg.products import product
from gradtx.numerics import (
    Step,
    abs_sq,
    compute_dtype,
    debias,
    divide,
    ema,
    full,
    moments,
    precise,
    root,
)
from gradtx.numerics.control import branch
from gradtx.transforms.decay import descent
from gradtx.types import Array, Counter, DimensionNumbers, DType, Slots
from gradtx.types.update_size import UpdateSize

UPDATE_SIZE = UpdateSize(
    "spectral",
    "weight_dimension_numbers",
    # Independent entries of size 1, of gradients that are noise, have this norm in any bases. With
    # a basis on one side alone, a gradient of rank one has such entries on the other.
    lambda arguments, rows, columns: (
        max(rows, columns) ** 0.5 if arguments["one_sided"] else rows**0.5 + columns**0.5
    ),
)

Curvature = Callable[[Array, Array, Any, Step], dict[str, Array]]
Bases = tuple[Array, Array]


class ScaleBySoapState(NamedTuple):
    """count: i32[]; mu, nu: like the parameters, a matrix's in its bases; the rest for matrices.

    left, right: moving averages of g g* and g* g; left_basis, right_basis: their eigenvectors. For
    a side without a basis they have the shape (n, 0, 0); for a leaf that is not a matrix they are
    None.
    """

    count: Counter
    mu: Slots
    nu: Slots
    left: Slots
    right: Slots
    left_basis: Slots
    right_basis: Slots


def squares(largest: int, one_sided: bool) -> dict[str, FactorFn]:
    """The slots of a matrix for its sides; of size 0 for a side that has no basis."""

    def left(matrices: Matrices, p: Array) -> Array:
        rows, columns = matrices.rows, matrices.columns
        return zeros(matrices, rows * (rows <= largest and not (one_sided and rows > columns)), p)

    def right(matrices: Matrices, p: Array) -> Array:
        rows, columns = matrices.rows, matrices.columns
        has = columns <= largest and not (one_sided and rows <= columns)
        return zeros(matrices, columns * has, p)

    def zeros(matrices: Matrices, size: int, p: Array) -> Array:
        return full((matrices.sizes[0], size, size), 0, compute_dtype(p.dtype), beside=p)

    return {"left": left, "right": right, "left_basis": left, "right_basis": right}


def finite_or(new: Any, old: Any) -> Any:
    """`new`, but `old` for matrices where something is not finite: a decomposition failed."""
    works = [jnp.all(jnp.isfinite(x), (-2, -1), keepdims=True) for x in jax.tree.leaves(new)]
    every = functools.reduce(jnp.logical_and, works)
    return jax.tree.map(lambda a, b: jnp.where(every, a, b), new, old)


def gram(g: Array, old: Array, decay: Any) -> Array:
    """The moving average of `g g*`, where it is kept; the old one where that would overflow."""
    return old if old.size == 0 else finite_or(ema(product(g, g.mT.conj()), old, decay), old)


def grams_of(decay: Any) -> Curvature:
    """The moving averages of `g g*` and `g* g`."""

    def grams(g: Array, low: Array, s: Any, t: Step) -> dict[str, Array]:
        return {"left": gram(g, s.left, decay), "right": gram(g.mT.conj(), s.right, decay)}

    return grams


def adam_of(b1: Any, b2: Any, eps: Any, *, bias_correction: bool = True) -> RuleFn:
    """Adam's rule, with a direction of 0 where nothing has been seen."""

    def adam(g: Array, s: Any, t: Step) -> Any:
        mu, nu = ema(g, s.mu, b1), ema(abs_sq(g), s.nu, b2)
        if bias_correction:
            u = divide(debias(mu, b1, t), root(debias(nu, b2, t)) + eps)
        else:
            u = divide(mu, root(nu) + eps)
        return u, {"mu": mu, "nu": nu}

    return adam


def _sorted(grams: Bases, old: Bases, nu: Array) -> tuple[list[Array], Array]:
    """The bases with their vectors sorted by eigenvalue, and `nu` in these."""
    bases = list(old)
    for i, axis in enumerate((-2, -1)):
        if old[i].size:
            order = by_eigenvalue(grams[i], old[i])
            bases[i] = jnp.take_along_axis(old[i], order[..., None, :], -1)
            nu = jnp.take_along_axis(nu, jnp.expand_dims(order, -3 - axis), axis)
    return bases, nu


def _identity_if(first: Any, old: Array) -> Array:
    """The identity at the `first` step, where there is a basis at all."""
    return old if old.size == 0 else jnp.where(first, identity_like(old), old)


def _eigenvectors(gram: Array) -> Array:
    """The eigenvectors of each matrix, or the identity where the decomposition failed."""
    return finite_or(eigenbasis(gram), jnp.eye(gram.shape[-1], dtype=gram.dtype))


def in_eigenbases(
    direction: RuleFn,
    curvature: Curvature,
    every: Any,
    *,
    staggered: bool,
    basis: Basis,
    ordered: bool = True,
) -> RuleFn:
    """A rule applied in the eigenbases of `left` and `right`, which turn from time to time.

    Args:
        direction: the rule, on gradients in these bases; its slot `mu` turns with them.
        curvature: ``(g, low, s, t) -> {name: new slot}``, `left` and `right` among them, from the
            gradients `g` and the same in the eigenbases, `low`.
        every: steps from one basis to the next.
        staggered: as in :func:`scale_by_soap`.
        basis: whether the bases come from decompositions or from products.
        ordered: whether the vectors of a basis that QR gives are sorted, and the slot `nu` with
            them.
    """

    def turned(grams: Bases, old: Bases, moments: dict[str, Array], first: Any) -> Any:
        """The moments in the next bases, and these; by products also at the `first` step."""
        new, bases = dict(moments), list(old)
        if basis == "qr":
            if ordered:
                bases, new["nu"] = _sorted(grams, old, new["nu"])
            bases = list(map(orthogonal_iteration, grams, bases))
        else:
            old = _identity_if(first, old[0]), _identity_if(first, old[1])
            bases = followed(grams, old, every, first)
        new["mu"] = rotated(rotated_back(moments["mu"], *old), *bases)
        return finite_or((new, tuple(bases)), (moments, old))

    @precise
    def rule(g: Array, s: Any, t: Step) -> Any:
        old = s.left_basis, s.right_basis  # zero at the first step; then so are gradients in them
        has_basis = any(each.size for each in old)
        low = rotated(g, *old)
        u, moments = direction(low, s, t.before() if has_basis else t)
        curvature_slots = curvature(g, low, s, t)
        grams = curvature_slots["left"], curvature_slots["right"]

        is_first, offset = t.count == 1, s.group if staggered else 0
        due = (t.count - 1 + offset) % every == 0

        def first(moments: Any) -> Any:
            return moments, tuple(map(_eigenvectors, grams))

        def later(moments: Any) -> Any:
            return branch(due, turn, keep, moments)

        def keep(moments: Any) -> Any:
            return moments, old

        def turn(moments: Any) -> Any:
            return turned(grams, old, moments, is_first)

        if not has_basis:
            moments, bases = keep(moments)
        elif basis == "qr":
            moments, bases = branch(is_first, first, later, moments)
        else:
            moments, bases = branch(is_first | due, turn, keep, moments)
        new = {**curvature_slots, **moments, "left_basis": bases[0], "right_basis": bases[1]}
        return rotated_back(u, *old), new

    return rule


@transformation(update_size=UPDATE_SIZE)
def scale_by_soap(
    b1: Decay = 0.95,
    b2: Decay = 0.95,
    eps: NonNegative = 1e-8,
    shampoo_beta: Decay | None = None,
    precondition_frequency: PositiveCount = 10,
    max_precond_dim: PositiveInt = 10_000,
    *,
    one_sided: bool = False,
    staggered: bool = False,
    basis: Basis = "qr",
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""Adam in the eigenbases of Shampoo's preconditioners.

    .. math::
        h_t &= P_{t-1}^* g_t Q_{t-1}, \qquad
        \mu_t = \beta_1 \mu_{t-1} + (1 - \beta_1) h_t, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1 - \beta_2) |h_t|^2, \\
        u_t &= P_{t-1} \frac{\mu_t / (1 - \beta_1^{t-1})}
            {\sqrt{\nu_t / (1 - \beta_2^{t-1})} + \epsilon} Q_{t-1}^*, \\
        L_t &= \beta_s L_{t-1} + (1 - \beta_s) g_t g_t^*, \qquad
        R_t = \beta_s R_{t-1} + (1 - \beta_s) g_t^* g_t, \\
        P_t &= \mathrm{QR}(L_t P_{t-1} \Pi) \text{ if } T \mid t - 1,
            \text{ otherwise } P_{t-1}; \qquad Q_t \text{ from } R_t \text{ likewise}

    where :math:`\Pi` sorts the columns of :math:`P_{t-1}` by
    :math:`\mathrm{diag}(P_{t-1}^* L_t P_{t-1})`, the largest first. :math:`\nu_t` is sorted with
    them, and :math:`\mu_t` becomes :math:`P_t^* P_{t-1} \mu_t Q_{t-1}^* Q_t`. The first step only
    makes the bases, of the eigenvectors of :math:`L_1` and :math:`R_1`: its direction is 0, so that
    no gradient is seen in bases that it made itself. A Gram matrix that would overflow stays as it
    was, and so do bases where a decomposition failed. Leaves that are not matrices take the steps
    of :func:`scale_by_adam`.

    Where a Gram matrix has no full rank, as that of the longer side after few gradients, rounding
    chooses the basis of its null space: other devices or compilers, or 1e-7 of the gradient, then
    give another run, equally valid. With `one_sided` there is no such basis, if the gradient of a
    matrix has full rank.

    Args:
        b1: :math:`\beta_1`, decay of the first moment, in :math:`[0, 1)`.
        b2: :math:`\beta_2`, decay of the second moment, in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`, added to the root.
        shampoo_beta: :math:`\beta_s` in :math:`[0, 1)`, decay of `L` and `R`; `b2` unless given.
        precondition_frequency: :math:`T \ge 1`, steps from one basis to the next. Between them no
            decomposition is computed.
        max_precond_dim: a side of more than this many rows or columns has no basis
            (:math:`P = I`), and a matrix with two such sides is treated like a leaf that is not a
            matrix.
        one_sided: only the smaller side has a basis.
        staggered: each batch of matrices of one shape gets its new bases one step earlier than the
            batch before it, so that no one step computes them all.
        basis: ``"qr"``, or ``"products"``: the first bases come from 20 sweeps of all Jacobi's
            rotations at once, from the identity, and later ones from `T` sweeps, but at most 4. A
            sweep is 9 products of matrices, and nothing is decomposed or sorted. Over the first
            tens of steps bases that take one sweep are further from the eigenvectors than those of
            QR (``gradtx/linalg/eigenbasis.py``). Losses over QR's, 150 steps, 12 seeds, paired: on
            a small
            convolutional net, refreshed at every tenth step, 1.06 after 48 steps (p = 0.5) and
            1.05 at the end (p = 0.4), at every step 1.05 (p = 0.7) and 1.02 (p = 0.8); on a small
            transformer 1.000 in all four places but 0.999 (p = 0.3) at the end, at every step.
        mu_dtype: the type of the first moment; the parameter's unless given.
        weight_dimension_numbers: `MuonDimensionNumbers`, a tree of them or a prefix of it, or a
            function from the parameters to such a tree; a leaf whose numbers are None is not
            treated as a matrix. Unless given, the leaves with two dimensions are matrices.

    State: `ScaleBySoapState`; bases in float32 or wider.

    Two differences from the authors' code: :math:`\epsilon` is added after the bias correction, and
    leaves without bases do not sit out the first step.

    Source: N. Vyas et al., SOAP: Improving and Stabilizing Shampoo using Adam, 2024,
    arXiv:2409.11321, algorithm 3.

    >>> tx = scale_by_soap(b1=0.0, b2=0.0, eps=1e-3)
    >>> g = jnp.array([[3.0, -1.0], [3.0, 1.0]])
    >>> state = tx.update(g, tx.init(g))[1]
    >>> (10 * tx.update(g, state)[0]).astype(int).tolist()
    [[7, -7], [7, 7]]
    """
    check_basis("scale_by_soap", basis)
    beta, adam = b2 if shampoo_beta is None else shampoo_beta, adam_of(b1, b2, eps)

    def slots(p: Array) -> dict[str, Array]:
        return moments(p, mu_dtype)

    return matrixwise(
        ScaleBySoapState,
        slots,
        in_eigenbases(
            adam, grams_of(beta), precondition_frequency, staggered=staggered, basis=basis
        ),
        MatrixDimensions(dimension_numbers(weight_dimension_numbers), MuonDimensionNumbers),
        factors=squares(max_precond_dim, one_sided),
        on_others=adam,
    )


@optimizer(update_size=UPDATE_SIZE)
def soap(
    learning_rate: NonNegative,
    b1: Decay = 0.95,
    b2: Decay = 0.95,
    eps: NonNegative = 1e-8,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    shampoo_beta: Decay | None = None,
    precondition_frequency: PositiveCount = 10,
    max_precond_dim: PositiveInt = 10_000,
    *,
    one_sided: bool = False,
    staggered: bool = False,
    basis: Basis = "qr",
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""SOAP: Adam in the eigenbases of Shampoo's preconditioners.

    .. math::
        h_t &= P_{t-1}^* g_t Q_{t-1}, \qquad
        \mu_t = \beta_1 \mu_{t-1} + (1 - \beta_1) h_t, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1 - \beta_2) |h_t|^2, \\
        \theta_t &= \theta_{t-1} - \eta \left( P_{t-1} \frac{\mu_t / (1 - \beta_1^{t-1})}
            {\sqrt{\nu_t / (1 - \beta_2^{t-1})} + \epsilon} Q_{t-1}^*
            + \lambda \theta_{t-1} \right), \\
        L_t &= \beta_s L_{t-1} + (1 - \beta_s) g_t g_t^*, \qquad
        R_t = \beta_s R_{t-1} + (1 - \beta_s) g_t^* g_t

    At every `T`-th step after the first, :math:`P_t` and :math:`Q_t` become the `Q` of the QR
    decompositions of :math:`L_t P_{t-1}` and :math:`R_t Q_{t-1}`, with sorted columns, and the
    moments turn with them; the first step only makes them. See :func:`scale_by_soap`. Leaves that
    are not matrices take the steps of :func:`adamw`.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule. The authors use 0.003.
        b1: :math:`\beta_1`, decay of the first moment; this and the next two as in
            :func:`scale_by_soap`.
        b2: :math:`\beta_2`, decay of the second moment.
        eps: :math:`\epsilon`, added to the root.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        shampoo_beta: :math:`\beta_s`; this and the rest as in :func:`scale_by_soap`.
        precondition_frequency: `T`, steps from one basis to the next.
        max_precond_dim: the largest side that has a basis.
        one_sided: only the smaller side has a basis.
        staggered: new bases of different shapes at different steps.
        basis: by QR decompositions or by products alone.
        mu_dtype: the type of the first moment.
        weight_dimension_numbers: which leaves are matrices, and how.

    Source: N. Vyas et al., SOAP: Improving and Stabilizing Shampoo using Adam, 2024,
    arXiv:2409.11321, algorithm 3.

    >>> import gradtx
    >>> tx = soap(0.1)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros((2, 2)), tx, max_steps=300)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    >>> soap(0.1, max_precond_dim=4).init(jnp.zeros((8, 4)))[0].right_basis.shape
    (1, 4, 4)
    """
    return descent(
        scale_by_soap(
            b1,
            b2,
            eps,
            shampoo_beta,
            precondition_frequency,
            max_precond_dim,
            one_sided=one_sided,
            staggered=staggered,
            basis=basis,
            mu_dtype=mu_dtype,
            weight_dimension_numbers=weight_dimension_numbers,
        ),
        learning_rate,
        weight_decay,
        mask,
    )
