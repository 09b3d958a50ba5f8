"""PSGD Kron."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import jax
import jax.numpy as jnp

from gradtx.checks import (
    Decay,
    Fraction,
    InitialPositive,
    Limit,
    NonNegative,
    NonNegativeInt,
    check_choice,
)
from gradtx.composition.matrices import MuonDimensionNumbers, dimension_numbers
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.matrices import FactorFn, Matrices, MatrixDimensions, matrixwise
from gradtx.leaves.paths import Where
from gradtx.linalg.decompositions import factorized
from gradtx.linalg.linear_algebra import spectral_norm_bound
from gradtx.linalg.products import hermitian_part
from gradtx.numerics import (
    Step,
    abs_sq,
    compute_dtype,
    debias,
    divide,
    ema,
    full_like,
    plain_rms,
    precise,
    zero_mean,
)
from gradtx.numerics.control import branch, repeat_while
from gradtx.schedules.decay import exponential_decay
from gradtx.transforms.decay import descent
from gradtx.types import Array, Counter, DimensionNumbers, DType, Key, Slots
from gradtx.types.keys import check_key, own_key

Geometry: TypeAlias = Literal[
    "triangular", "quadratic", "procrustes", "quadratic_p", "procrustes_p"
]
# Those in which the factors are of `P`, not of its root `Q`.
_OF_P = ("quadratic_p", "procrustes_p")

# 1 for 500 steps, then falling by a factor of e in every 1000, to 0.03 after 4000.
_SELDOM = exponential_decay(1.0, 1000, math.exp(-1), 500, end_value=0.03)


class ScaleByKronState(NamedTuple):
    """count: i32[]; key: a random key; mu: like the parameters.

    left, right: the factors of a matrix, full (upper triangular in that geometry),
    ``(batch, n, n)``, or diagonal,
    ``(batch, n)``; diagonal: the factor of a leaf that is not a matrix, in its shape. Otherwise
    None.
    """

    count: Counter
    key: Key
    mu: Slots
    left: Slots
    right: Slots
    diagonal: Slots


def _factors(largest: int, one_sided: bool, scale: Any) -> dict[str, FactorFn]:
    """The two factors of a matrix, diagonal for a side that is too large."""

    def side(axis: int) -> FactorFn:
        def factor(matrices: Matrices, p: Array) -> Array:
            n, *sides = matrices.sizes
            smaller = int(sides[0] > sides[1])
            size, kind = sides[axis], compute_dtype(p.dtype)
            full = size <= largest and (axis == smaller or not one_sided)
            one = jnp.eye(size, dtype=kind) if full else jnp.ones(size, kind)
            return jnp.broadcast_to(jnp.sqrt(scale) * one, (n, *one.shape)).astype(kind)

        return factor

    return {"left": side(0), "right": side(1)}


def _times(q: Array, x: Array) -> Array:
    """`Q X`, for a full or a diagonal `Q`."""
    return q @ x if q.ndim == x.ndim else q[..., None] * x


def _adjoint_times(q: Array, x: Array) -> Array:
    """`Q* X`."""
    return q.mT.conj() @ x if q.ndim == x.ndim else q.conj()[..., None] * x


def _squared_times(q: Array, x: Array) -> Array:
    """`Q* Q X`."""
    return _adjoint_times(q, _times(q, x))


def _adjoint_solved(q: Array, x: Array) -> Array:
    """The `Y` with `Q* Y = X`."""
    if q.ndim < x.ndim:
        return x / q.conj()[..., None]

    def solve(q: Array, x: Array) -> Array:
        return jax.lax.linalg.triangular_solve(
            q, x, left_side=True, lower=False, transpose_a=True, conjugate_a=True
        )

    return factorized(solve, q, x)


def _both(f: Callable[[Array, Array], Array], factors: Sequence[Array], x: Array) -> Array:
    """``f(factor, x)`` with the first factor, and with the second, if any, on the transpose."""
    x = f(factors[0], x)
    return x if len(factors) == 1 else f(factors[1], x.mT).mT


def _preconditioned(factors: Sequence[Array], x: Array, geometry: Geometry) -> Array:
    r""":math:`Q^* Q X R^\top \bar R`, or `P X` on both sides where the factors are of `P`."""
    return _both(_times if geometry in _OF_P else _squared_times, factors, x)


def _normal_like(key: Array, g: Array) -> Array:
    """The `V` that all matrices of a batch share, drawn alike in every type."""
    kind = jnp.complex64 if jnp.iscomplexobj(g) else jnp.float32
    return jax.random.normal(key, (1, *g.shape[1:]), kind).astype(g.dtype)


def _fitted_factors(
    factors: Sequence[Array], noisy: Array, v: Array, rate: Any, geometry: Geometry
) -> list[Array]:
    """The factors after a step, from the momentum with its noise and the `V` in it."""
    if geometry == "triangular":
        a = _both(_times, factors, noisy)
        b = _both(_adjoint_solved, factors, jnp.broadcast_to(v, noisy.shape))
        pairs = zip(factors, ((a, b), (a.mT, b.mT)), strict=False)
        return [_fitted(q, a, b, rate) for q, (a, b) in pairs]
    w = _preconditioned(factors, noisy, geometry)
    pairs_of_products = zip(factors, (w, w.mT), strict=False)
    return [_fitted_by_products(q, w, rate, geometry) for q, w in pairs_of_products]


def _accepted(due: Array, new: Sequence[Array], old: Sequence[Array]) -> tuple[Array, ...]:
    """The new factors of each matrix where they are finite and `due`, otherwise the old ones."""
    for q in new:
        due &= jnp.all(jnp.isfinite(q), tuple(range(1, q.ndim))).reshape(due.shape)
    return tuple(
        jnp.where(due.reshape(-1, *[1] * (q.ndim - 1)), q, before)
        for q, before in zip(new, old, strict=True)
    )


def _fitted(q: Array, a: Array, b: Array, rate: Any) -> Array:
    """The factor of the rows after a step."""
    if q.ndim < a.ndim:
        seen, wanted = jnp.sum(abs_sq(a), -1), jnp.sum(abs_sq(b), -1)
        size = jnp.max(seen + wanted, -1, keepdims=True)
        return q - rate * divide(seen - wanted, size) * q
    seen, wanted = a @ a.mT.conj(), b @ b.mT.conj()
    return q - rate * jnp.triu(divide(seen - wanted, spectral_norm_bound(seen + wanted))) @ q


def _fitted_by_products(q: Array, w: Array, rate: Any, geometry: Geometry) -> Array:
    """The factor of the rows after a step, from the preconditioned momentum."""
    wanted, quadratic = w.shape[-1], geometry in ("quadratic", "quadratic_p")
    if geometry == "quadratic":  # a step on both sides of `Q`, which is a root of `P`
        rate = rate / 2
    if q.ndim < w.ndim:
        seen = jnp.sum(abs_sq(w), -1)
        step = rate * (seen - wanted) / (jnp.max(seen, -1, keepdims=True) + wanted)
        return q * (1 - step) ** 2 if quadratic else q * (1 - step)
    seen = w @ w.mT.conj()
    rate = rate / (spectral_norm_bound(seen) + wanted)
    q = q - rate * (seen @ q - wanted * q)
    if quadratic:
        q = q - rate * (q @ seen - wanted * q)
        return hermitian_part(q)
    return _nearly_hermitian(q) if geometry == "procrustes_p" else _towards_hermitian(q)


def _towards_hermitian(q: Array) -> Array:
    """`q`, turned a little: by at most 1/8, so that it comes nearer to the identity."""
    skew = q.mT.conj() - q
    turn = divide(skew, spectral_norm_bound(skew))
    once = turn @ q
    twice = turn @ once
    gain, bend = (jnp.trace(x, axis1=-2, axis2=-1).real[..., None, None] for x in (once, twice))
    angle = jnp.where(bend < 0, jnp.minimum(divide(-gain, bend), 1 / 8), 1 / 8)
    return q + angle * (once + angle / 2 * twice)


def _nearly_hermitian(q: Array) -> Array:
    """`q`, turned up to ten times by at most 1/3, until it is Hermitian to a thousandth."""

    def going(now: tuple[Array, Array]) -> Array:
        q, turns = now
        return (turns == 0) | ((turns < 10) & jnp.any(_is_skew(q)))

    def turn(now: tuple[Array, Array]) -> tuple[Array, Array]:
        q, turns = now
        return jnp.where((turns == 0) | _is_skew(q), _turned_far(q), q), turns + 1

    return repeat_while(going, turn, (q, jnp.int32(0)))[0]


def _is_skew(q: Array) -> Array:
    """Whether an entry of `Q* - Q` is at least a thousandth of the largest of `Q`."""
    skew, most = (jnp.max(jnp.abs(x), (-2, -1), keepdims=True) for x in (q.mT.conj() - q, q))
    return skew >= 1e-3 * most


def _turned_far(q: Array) -> Array:
    """`q`, turned to the third order, by the angle at which its trace is largest or 1/3."""
    skew = q.mT.conj() - q
    turn = divide(skew, spectral_norm_bound(skew))
    once = turn @ q
    twice = turn @ once
    thrice = turn @ twice
    gain, bend, end = (
        jnp.trace(x, axis1=-2, axis2=-1).real[..., None, None] for x in (once, twice, thrice)
    )
    falls = (gain > 0) & (end < 0)  # otherwise rounding is all that is left to turn
    root = jnp.sqrt(jnp.maximum(bend**2 - 1.5 * gain * end, 0))
    angle = jnp.where(falls, jnp.minimum(divide(-bend - root, 0.75 * end), 1 / 3), 0)
    return q + angle * (once + angle / 2 * (twice + angle / 4 * thrice))


def _balanced(factors: Sequence[Array]) -> list[Array]:
    """Factors with equal largest entries and the same product; a single factor is unchanged."""
    sizes = [jnp.max(jnp.abs(q), tuple(range(1, q.ndim))) for q in factors]
    mean = jnp.exp(sum(map(jnp.log, sizes)) / len(sizes))
    ratios = [mean / size for size in sizes]
    return [q * r.reshape(-1, *[1] * (q.ndim - 1)) for q, r in zip(factors, ratios, strict=True)]


class _KronOptions(NamedTuple):
    """Hyperparameters under the names of `scale_by_kron`."""

    b1: Any
    preconditioner_update_probability: Any
    preconditioner_lr: Any
    damping: Any
    max_rms: Any
    geometry: Geometry


@precise
def _whitened(
    g: Array, s: Any, t: Step, old: tuple[Array, ...], options: _KronOptions
) -> tuple[Array, Array, tuple[Array, ...]]:
    """Directions, the new momentum and the new factors, from matrices and their factors."""
    mu = ema(g, s.mu.reshape(g.shape), options.b1)
    mean = debias(mu, options.b1, t)
    chance, noise = jax.random.split(s.key)
    often = options.preconditioner_update_probability
    often = t.once("often", 0, lambda: _SELDOM(t.count - 1)) if often is None else often
    due = jax.random.uniform(chance, dtype=jnp.float32) < often

    def fit(old: tuple[Array, ...]) -> tuple[Array, ...]:
        v = _normal_like(noise, g)
        size = jnp.mean(jnp.abs(mean), (-2, -1), keepdims=True)
        factors, noisy = _balanced(old), mean + options.damping * size * v
        new = _fitted_factors(factors, noisy, v, options.preconditioner_lr, options.geometry)
        return _accepted(due & (size > 0), new, old)

    # A single diagonal is fitted at every step: a condition would cost more.
    factors = fit(old) if len(old) == 1 else branch(due, fit, lambda old: old, old)
    d = _preconditioned(factors, mean, options.geometry)
    size = plain_rms(d, (-2, -1))
    return d / jnp.maximum(1, size / options.max_rms), mu, factors


@transformation
def scale_by_kron(
    b1: Decay = 0.9,
    preconditioner_update_probability: Fraction | None = None,
    max_size_triangular: NonNegativeInt = 8192,
    preconditioner_lr: NonNegative = 0.1,
    preconditioner_init_scale: InitialPositive = 1.0,
    damping: NonNegative = 2.0**-11.5,
    max_rms: Limit = 1.1,
    *,
    geometry: Geometry = "triangular",
    one_sided: bool = False,
    key: Any = 0,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""Whiten matrices with two factors, fitted to the momentum.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \qquad
            \hat\mu_t = \mu_t / (1 - \beta_1^t), \\
        A &= Q (\hat\mu_t + \delta \bar m V) R^\top, \qquad
            B = Q^{-*} V \bar R^{-1}, \qquad V_{ij} \sim N(0, 1), \quad
            \bar m = \mathrm{mean}_{ij} |\hat\mu_{t,ij}|, \\
        Q_t &= Q - \gamma\, \frac{\mathrm{triu}(A A^* - B B^*)}{\lVert A A^* + B B^* \rVert} Q,
            \qquad
        R_t = R - \gamma\,
            \frac{\mathrm{triu}(A^\top \bar A - B^\top \bar B)}
                {\lVert A^\top \bar A + B^\top \bar B \rVert} R \\
        &\hspace{4em} \text{with probability } p_t, \text{ otherwise as before}; \\
        d_t &= Q_t^* Q_t\, \hat\mu_t\, R_t^\top \bar R_t, \qquad
        u_t = d_t / \max(1, \mathrm{rms}(d_t) / \rho)

    where :math:`Q = Q_{t-1}` and :math:`R = R_{t-1}`, balanced so that their largest entries are
    equal, and a lower bound is used for each norm. The factor of a side that is too large is
    diagonal, as is the single factor of a leaf that is not a matrix; its norm is the largest entry.
    A momentum of zero leaves the factors as they are, and new factors that are not finite are
    discarded.

    The newer geometries need only products, and no triangular solve. With
    :math:`W = Q^* Q (\hat\mu_t + \delta \bar m V) R^\top \bar R` of `m` rows and `n` columns,
    :math:`S = W W^*` and :math:`\gamma' = \gamma / (\lVert S \rVert + n)`,

    .. math::
        \text{quadratic:} \quad & Q_t = \frac{X + X^*}{2}, \qquad
            X = Y - \tfrac{\gamma'}{2} Y (S - n I), \qquad
            Y = Q - \tfrac{\gamma'}{2} (S - n I) Q; \\
        \text{procrustes:} \quad & Q_t = \Bigl(I + \alpha K + \tfrac{\alpha^2}{2} K^2\Bigr) X,
            \qquad X = Q - \gamma' (S - n I) Q, \qquad
            K = \frac{X^* - X}{\lVert X^* - X \rVert}

    and `R` likewise from :math:`W^\top`. The first keeps the factors Hermitian and positive. The
    second, :math:`dQ = Q^{1/2} E Q^{3/2}`, rotates them towards Hermitian ones, by an angle
    :math:`\alpha \le 1/8` at which :math:`\mathrm{tr}(Q_t)` is largest.

    With ``"quadratic_p"`` and ``"procrustes_p"`` (QUAD4P and PRO4P) the factors are those of the
    whole preconditioner, `P` in the place of :math:`Q^* Q`, which is applied as it is: two products
    fewer for a matrix, but more sensitive to rounding. In the quadratic form :math:`\gamma'` is not
    halved. The other rotates by :math:`I + \alpha K + \alpha^2 K^2 / 2 + \alpha^3 K^3 / 8`, with
    :math:`\alpha \le 1/3`, up to ten times, until no entry of :math:`P^* - P` is larger than a
    thousandth of the largest of `P`.

    Args:
        b1: :math:`\beta_1`, decay of the momentum, in :math:`[0, 1)`.
        preconditioner_update_probability: :math:`p_t` in :math:`[0, 1]`; a number, an array or a
            schedule; unless given, 1 for 500 steps and then falling, to 0.03 after 4000. Whether to
            fit is drawn separately for each shape of matrices. Without a fit, a step computes none
            of its products and solves.
        max_size_triangular: the largest side that has a triangular factor; with 0 all are diagonal.
        preconditioner_lr: :math:`\gamma \ge 0`.
        preconditioner_init_scale: the product of the two factors at the start, both of them
            multiples of the identity; with the factors of `P`, the product is the square of this.
        damping: :math:`\delta \ge 0`; unless given, the square root of float32's machine epsilon.
        max_rms: :math:`\rho`, the largest root mean square of the direction.
        geometry: ``"triangular"``, ``"quadratic"``, ``"procrustes"``, ``"quadratic_p"`` or
            ``"procrustes_p"``; where a factor is not diagonal it is full in all but the first, up
            to `max_size_triangular`.
        one_sided: only the smaller side, or the rows of a square matrix, have a factor that is not
            diagonal.
        key: a random key or an integer seed.
        mu_dtype: the type of the momentum; the parameter's unless given.
        weight_dimension_numbers: as in :func:`scale_by_soap`.

    State: `ScaleByKronState`; the factors in float32 or wider. Matrices of one shape share `V`,
    which is drawn in float32 and is therefore the same in every type.

    Raises:
        ValueError: `max_size_triangular` is negative.
        TypeError: `key` is neither a key nor an integer.

    The authors' code fits every leaf at the same steps, those at which the sum of probabilities
    passes a whole number, and balances the factors, which does not change their product, at one in
    a hundred of these steps. Where the code fits the factors, it preconditions the momentum
    together with the noise that was added for the fit. It gives arrays of more than two dimensions
    a factor for each dimension.

    Source: X.-L. Li, Preconditioned Stochastic Gradient Descent, 2015, arXiv:1512.04202, and
    Stochastic Hessian Fittings with Lie Groups, 2024, arXiv:2402.11858, in the form of E. Walters
    and O. Pooladzandi, https://github.com/evanatyourservice/psgd_jax; the newer geometries as in
    https://github.com/lixilinx/psgd_torch.

    >>> state = scale_by_kron().init({"w": jnp.zeros((4, 2)), "b": jnp.zeros(2)})
    >>> state.left["w"].shape, state.right["w"].shape, state.diagonal["b"].shape
    ((1, 4, 4), (1, 2, 2), (2,))
    """
    check_key("scale_by_kron", "key", key)
    check_choice("scale_by_kron", "geometry", geometry, get_args(Geometry))
    of_p = geometry in _OF_P
    scale = preconditioner_init_scale**2 if of_p else preconditioner_init_scale
    often = preconditioner_update_probability
    options = _KronOptions(b1, often, preconditioner_lr, damping, max_rms, geometry)

    def slots(p: Array) -> dict[str, Array]:
        return {"mu": zero_mean(p, mu_dtype)}

    def rule(g: Array, s: Any, t: Step) -> Any:
        u, mu, (left, right) = _whitened(g, s, t, (s.left, s.right), options)
        return u, {"mu": mu, "left": left, "right": right}

    def on_others(g: Array, s: Any, t: Step) -> Any:
        column, old = g.reshape(1, -1, 1), (s.diagonal.reshape(1, -1),)
        u, mu, (factor,) = _whitened(column, s, t, old, options)
        u, mu, factor = (x.reshape(g.shape) for x in (u, mu, factor))
        return u, {"mu": mu, "diagonal": factor}

    def diagonal(p: Array) -> dict[str, Array]:
        return {"diagonal": full_like(p, scale, compute_dtype(p.dtype))}

    def start(params: list[Array]) -> dict[str, Array]:
        return {"key": own_key(key)}

    return matrixwise(
        ScaleByKronState,
        slots,
        rule,
        MatrixDimensions(dimension_numbers(weight_dimension_numbers), MuonDimensionNumbers),
        factors=_factors(max_size_triangular, one_sided, scale),
        on_others=on_others,
        slots_of_others=diagonal,
        start=start,
    )


@optimizer
def kron(
    learning_rate: NonNegative,
    b1: Decay = 0.9,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    preconditioner_update_probability: Fraction | None = None,
    max_size_triangular: NonNegativeInt = 8192,
    preconditioner_lr: NonNegative = 0.1,
    preconditioner_init_scale: InitialPositive = 1.0,
    damping: NonNegative = 2.0**-11.5,
    max_rms: Limit = 1.1,
    *,
    geometry: Geometry = "triangular",
    one_sided: bool = False,
    key: Any = 0,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""PSGD Kron: momentum whitened by two factors for each matrix.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \qquad
            d_t = Q_t^* Q_t\, \frac{\mu_t}{1 - \beta_1^t}\, R_t^\top \bar R_t, \\
        \theta_t &= \theta_{t-1} - \eta \left( \frac{d_t}{\max(1, \mathrm{rms}(d_t) / \rho)}
            + \lambda \theta_{t-1} \right)

    where `Q` and `R`, by default upper triangular, are fitted with a probability that falls in the
    course of training, so that the entries of :math:`Q \mu R^\top` become uncorrelated, with mean
    square 1. See :func:`scale_by_kron`. Leaves that are not matrices have a diagonal factor.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        b1: :math:`\beta_1`, decay of the momentum.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        preconditioner_update_probability: how often the factors are fitted; this and the rest as in
            :func:`scale_by_kron`.
        max_size_triangular: the largest side that has a triangular factor.
        preconditioner_lr: the learning rate of the factors.
        preconditioner_init_scale: the product of the factors at the start.
        damping: how much noise is added to the momentum to which the factors are fitted.
        max_rms: :math:`\rho`, the largest root mean square of the direction.
        geometry: how the factors are fitted, with triangular solves or by products alone.
        one_sided: only the smaller side has a factor that is not diagonal.
        key: a random key or an integer seed.
        mu_dtype: the type of the momentum.
        weight_dimension_numbers: which leaves are matrices, and how.

    Source: X.-L. Li, Preconditioned Stochastic Gradient Descent, 2015, arXiv:1512.04202, and
    Stochastic Hessian Fittings with Lie Groups, 2024, arXiv:2402.11858, in the form of E. Walters
    and O. Pooladzandi, https://github.com/evanatyourservice/psgd_jax.

    >>> import gradtx
    >>> tx = kron(gradtx.linear_schedule(0.1, 0.0, 300))
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros((2, 2)), tx, max_steps=300)
    >>> bool(jnp.allclose(result.params, 1, atol=5e-2))
    True
    >>> kron(0.1, max_size_triangular=4).init(jnp.zeros((8, 4)))[0].left.shape
    (1, 8)
    """
    return descent(
        scale_by_kron(
            b1,
            preconditioner_update_probability,
            max_size_triangular,
            preconditioner_lr,
            preconditioner_init_scale,
            damping,
            max_rms,
            geometry=geometry,
            one_sided=one_sided,
            key=key,
            mu_dtype=mu_dtype,
            weight_dimension_numbers=weight_dimension_numbers,
        ),
        learning_rate,
        weight_decay,
        mask,
    )
