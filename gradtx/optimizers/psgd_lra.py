"""PSGD with a low-rank preconditioner."""

import functools
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checks import Decay, Fraction, InitialPositive, Limit, NonNegative, PositiveInt
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.tree import treewise
from gradtx.leaves.paths import Where
from gradtx.numerics import (
    Step,
    abs_sq,
    accumulator_dtype,
    compute_dtype,
    divide,
    ema,
    precise,
    root,
    zero_mean,
)
from gradtx.numerics.control import branch, in_form_of
from gradtx.transforms.decay import descent
from gradtx.tree import norm_sq, random_like
from gradtx.types import (
    Array,
    Counter,
    DType,
    Key,
    Params,
    PyTree,
    Slots,
    State,
    TreeScalar,
)
from gradtx.types.keys import check_key, own_key

_Leaves = list[Array]


class ScaleByPSGDLRAState(NamedTuple):
    r"""The preconditioner of all parameters, :math:`Q = (I + U V^\top) \mathrm{diag}(d)`.

    count: i32[]; key: a random key; mu: like the parameters; columns: `U` and `V`,
    ``(2, rank, *shape)``; diagonal: `d`, real; norms: the numbers by which the steps of `U`, `V`
    and `d` are divided.
    """

    count: Counter
    key: Key
    mu: Slots
    columns: Slots
    diagonal: Slots
    norms: TreeScalar


class _Factor(NamedTuple):
    """The columns of `U`, followed by those of `V`, as rows; and `d`."""

    rows: _Leaves
    diagonal: _Leaves


def _total(xs: _Leaves) -> Array:
    return functools.reduce(operator.add, xs)


def _largest(xs: _Leaves) -> Array:
    """The largest absolute value."""
    return functools.reduce(jnp.maximum, [jnp.max(jnp.abs(x), initial=0) for x in xs])


def _inner(us: _Leaves, vs: _Leaves) -> Array:
    """The inner products of rows with rows; complex numbers are pairs of real ones.

    By sums: on a mesh with explicit axes a product of matrices asks how its result is sharded.
    """

    def of(u: Array, v: Array) -> Array:
        products = (u[:, None].conj() * v[None]).real
        return jnp.sum(products, tuple(range(2, products.ndim)))

    return _total(list(map(of, us, vs)))


def _by_sums(c: Array, rows: Array) -> Array:
    """``c @ rows``, without a product of matrices."""
    factors = c.reshape(*c.shape, *[1] * (rows.ndim - 1))
    return jnp.sum(factors * rows[(None,) * (c.ndim - 1)], c.ndim - 1)


def _mixed(c: Array, rows: Array) -> Array:
    """``c @ rows``, for few rows with many entries.

    A TPU's compiler takes seconds over a product of float32 for each leaf, and none over sums.
    """

    def products(c: Array, rows: Array) -> Array:
        return jnp.tensordot(c, rows, 1)

    return jax.lax.platform_dependent(c, rows, tpu=_by_sums, default=products)


def _applied(q: _Factor, xs: _Leaves) -> _Leaves:
    r""":math:`Q^\top Q x`."""
    r = len(q.rows[0]) // 2
    us, vs = [u[:r] for u in q.rows], [u[r:] for u in q.rows]

    def added(ys: _Leaves, to: _Leaves, along: _Leaves) -> _Leaves:
        c = _inner(along, [y[None] for y in ys])[:, 0]
        return [y + _mixed(c, u) for y, u in zip(ys, to, strict=True)]

    ys = added([d * x for d, x in zip(q.diagonal, xs, strict=True)], us, vs)
    return [d * y for d, y in zip(q.diagonal, added(ys, vs, us), strict=True)]


def _shrunk(w: _Leaves, max_rms: Any) -> _Leaves:
    """The direction, its root mean square over all leaves at most `max_rms`."""
    rms = root(norm_sq(w) / max(1, sum(x.size for x in w)))
    return [x / jnp.maximum(1, rms / max_rms) for x in w]


def _single(x: Array) -> Array:
    """In a type of 32 bits, in which random numbers are drawn: they are the same in every type."""
    return x.astype(jnp.complex64 if jnp.iscomplexobj(x) else jnp.float32)


def _columns(key: Array, like: PyTree) -> PyTree:
    """Small random columns: `U` and `V` with a squared norm of 0.1 each."""
    drawn: PyTree = random_like(key, jax.tree.map(_single, like))
    leaves = jax.tree.leaves(drawn)
    sizes = jnp.stack([norm_sq([u[part] for u in leaves]) for part in (0, 1)])
    shrink = jnp.sqrt(divide(jnp.full(2, 0.1), sizes))
    small = jax.tree.map(lambda u: shrink.reshape(-1, *[1] * (u.ndim - 1)) * u, drawn)
    return in_form_of(small, like)


def _with_columns(tx: GradientTransformation) -> GradientTransformation:
    """The transformation, with random columns in its first state."""

    def init(params: Params) -> State:
        state: Any = tx.init(params)
        next_key, first = jax.random.split(state.key)
        return state._replace(key=next_key, columns=_columns(first, state.columns))

    return tx._replace(init=init)


def _diagonal(like: _Leaves, xs: _Leaves, scale: Any, damping: Any) -> _Leaves:
    """The first diagonal: `scale`, or if that is None one that fits `xs`."""
    if scale is None:
        most = jnp.maximum(_largest(xs), damping)
        fourths = [jnp.sum(jnp.square(abs_sq(divide(x, most)))) for x in xs]
        mean = _total(fourths) / max(1, sum(x.size for x in xs)) + divide(damping, most) ** 4
        scale = divide(jnp.ones_like(mean), jnp.sqrt(most) * mean ** (1 / 8))
        scale = jnp.where(jnp.isfinite(scale) & (scale > 0), scale, 1)
    return [jnp.full_like(d, scale) for d in like]


def _noisy(xs: _Leaves, vs: _Leaves, damping: Any) -> _Leaves:
    """The vector `h` to which the preconditioner is fitted."""
    return [
        x + (damping + jnp.finfo(x.dtype).eps * jnp.abs(x)) * v for x, v in zip(xs, vs, strict=True)
    ]


def _balancing(gram: Array) -> Array:
    r"""The matrix that mixes rows to make :math:`U^\top U` and :math:`V^\top V` more alike."""
    r = len(gram) // 2
    left, right = gram[:r, :r], gram[r:, r:]
    ratio = jnp.sqrt(divide(jnp.trace(left), jnp.trace(right)))
    left, right = divide(left, ratio), right * ratio
    e = 0.1 * divide(left - right, jnp.trace(left) + jnp.trace(right))
    even, root = jnp.eye(r, dtype=e.dtype) + e @ e / 2, jnp.sqrt(ratio)
    return jax.scipy.linalg.block_diag(divide(even - e, root), (even + e) * root)


def _fitted(
    q: _Factor, norms: Array, hs: _Leaves, vs: _Leaves, coin: Array, rate: Any, decay: Any
) -> tuple[_Factor, Array]:
    """The preconditioner and the norms after a step.

    Few products with the columns are taken: their inner products with `a`, with `b` and with one
    another once they are balanced follow from those with `d h`, `v / d` and one another before.
    """
    rows, ds = q
    r = len(rows[0]) // 2
    ys = [d * h for d, h in zip(ds, hs, strict=True)]
    zs = [v / d for d, v in zip(ds, vs, strict=True)]
    gram = _inner(rows, rows)
    mix = _balancing(gram)
    gram = mix @ gram @ mix
    along = mix @ _inner(rows, [jnp.stack([y, z]) for y, z in zip(ys, zs, strict=True)])
    (uy, uz), (vy, vz) = along[:r].T, along[r:].T
    uu, vv, k = gram[:r, :r], gram[r:, r:], jnp.eye(r, dtype=gram.dtype) + gram[r:, :r]

    # a = y + U vy and b = z - V ub; P h = d (a + V ua) and P^-1 v = (b - U back) / d.
    ub = jnp.linalg.solve(k.T, uz)
    ua, va, vb = uy + uu @ vy, k @ vy, vz - vv @ ub
    back, none = jnp.linalg.solve(k, vb), jnp.zeros_like(ub)
    sums = [(vy, none), (none, ub), (none, ua), (back, none)]
    of_rows = jnp.stack([jnp.concatenate(each) for each in sums]) @ mix
    parts = [_mixed(of_rows, row) for row in rows]
    a = [y + part[0] for y, part in zip(ys, parts, strict=True)]
    b = [z - part[1] for z, part in zip(zs, parts, strict=True)]
    further = [x + part[2] for x, part in zip(a, parts, strict=True)]
    seen = [(h.conj() * d * x).real for h, d, x in zip(hs, ds, further, strict=True)]
    wanted = [
        (v.conj() * (x - part[3])).real / d for v, x, part, d in zip(vs, b, parts, ds, strict=True)
    ]

    def length(c: Array, gram: Array) -> Array:
        return root(jnp.maximum(c @ gram @ c, 0))

    of_a, of_b = root(norm_sq(a)), root(norm_sq(b))
    sizes = [
        of_a * length(va, vv) + of_b * length(vb, vv),
        of_a * length(ua, uu) + of_b * length(ub, uu),
        _largest(seen) + _largest(wanted),
    ]
    moved = jnp.stack([coin, ~coin, jnp.ones_like(coin)])
    now = jnp.stack(sizes)
    norms = jnp.where(moved, jnp.maximum(ema(now, norms, decay), now), norms)
    steps = jnp.where(moved, divide(rate, norms), 0)

    # U moves along a and b, V along a + V ua and b + V ub, which is z.
    c = jnp.stack(
        [
            jnp.concatenate([steps[0] * va @ k, steps[1] * ua]),
            jnp.concatenate([-steps[0] * vb @ k, -steps[1] * ub]),
        ],
        1,
    )
    new = [
        _mixed(mix, row) - _mixed(c, jnp.where(coin, jnp.stack(left), jnp.stack(right)))
        for row, left, right in zip(
            rows, zip(a, b, strict=True), zip(further, zs, strict=True), strict=True
        )
    ]
    ds = [d - steps[2] * (x - y) * d for d, x, y in zip(ds, seen, wanted, strict=True)]
    return _Factor(new, ds), norms


@transformation
def scale_by_psgd_lra(
    b1: Decay = 0.9,
    rank: PositiveInt = 10,
    preconditioner_update_probability: Fraction = 1.0,
    preconditioner_lr: NonNegative = 0.1,
    preconditioner_init_scale: InitialPositive | None = None,
    norm_decay: Decay = 0.9,
    damping: NonNegative = 1e-9,
    max_rms: Limit = 2.0,
    max_entry: Limit = 10.0,
    *,
    whiten_momentum: bool = False,
    key: Any = 0,
    mu_dtype: DType | None = None,
) -> GradientTransformation:
    r"""Whiten all gradients together, by a diagonal and a matrix of low rank.

    For the vector `g` of the entries of all gradients,

    .. math::
        \mu_t &= \beta_t \mu_{t-1} + (1 - \beta_t) g_t, \qquad
            \beta_t = \min\bigl(1 - \tfrac1t, \beta_1\bigr), \qquad
            h = g_t + (\delta + \varepsilon |g_t|) \odot v, \quad v_i \sim N(0, 1), \\
        a &= Q h, \qquad b = Q^{-\top} v, \qquad
            Q = (I + U V^\top)\, \mathrm{diag}(d), \qquad P = Q^\top Q, \\
        d_t &= d - \frac{\gamma}{\ell_d}\, (h \odot P h - v \odot P^{-1} v) \odot d, \qquad
            \ell_d = \max_i |h_i (P h)_i| + \max_i |v_i (P^{-1} v)_i|, \\
        U_t &= U - \frac{\gamma}{\ell_U}\, (a a^\top - b b^\top)\, V (I + V^\top U), \qquad
            \ell_U = \lVert a \rVert \lVert V V^\top a \rVert
                + \lVert b \rVert \lVert V V^\top b \rVert \\
        &\text{or, as a coin decides,} \\
        V_t &= V - \frac{\gamma}{\ell_V}\, (I + V U^\top) (a a^\top - b b^\top)\, U, \qquad
            \ell_V = \lVert a \rVert \lVert U U^\top a \rVert
                + \lVert b \rVert \lVert U U^\top b \rVert, \\
        w_t &= Q_t^\top Q_t\, \mu_t, \qquad
            u_t = \mathrm{clip}\left( \frac{w_t}{\max(1, \mathrm{rms}(w_t) / \rho)},
                -c, c \right)

    with the machine epsilon :math:`\varepsilon` of the type in which this is computed. Each
    :math:`\ell` is replaced by a running value, the larger of :math:`\ell` and
    :math:`\beta_\ell L + (1 - \beta_\ell) \ell`, where `L` is that value at the step before.
    `U` and `V` are those of the step before, balanced: scaled so that their norms are equal, and
    :math:`U \leftarrow U (I - E + E^2 / 2)`, :math:`V \leftarrow V (I + E + E^2 / 2)` where `E` is
    a tenth of :math:`U^\top U - V^\top V` over the sum of the traces. They begin with normal
    entries, scaled so that the squared norm of each is 0.1, and `d` with
    :math:`(\mathrm{mean}\, g^4 + \delta^4)^{-1/8}`, which is computed anew at every step until the
    first fit.

    A complex number is a pair of real ones that share their entry of `d`, and whose `v` have a mean
    square of 1 together. Gradients of zero leave the preconditioner as it is, and its steps are
    discarded where they are not finite. The author's code fits to gradients of zero too, and has no
    momentum by default.

    Args:
        b1: :math:`\beta_1`, decay of the momentum, in :math:`[0, 1)`.
        rank: columns of `U` and of `V`, at least 1.
        preconditioner_update_probability: that a step fits the preconditioner, in :math:`[0, 1]`;
            a number, an array or a schedule.
        preconditioner_lr: :math:`\gamma \ge 0`; below 1 all entries of `d` stay positive.
        preconditioner_init_scale: the initial entries of `d`; with None they follow from the
            gradient, as above.
        norm_decay: :math:`\beta_\ell` in :math:`[0, 1)`; nearer to 1 for gradients that are mostly
            zero.
        damping: :math:`\delta \ge 0`; `P` stays below about :math:`1 / \delta`.
        max_rms: :math:`\rho`, the largest root mean square of the direction of all parameters.
        max_entry: `c`, the largest entry after that.
        whiten_momentum: fit to :math:`\mu_t` instead of :math:`g_t`.
        key: a random key or an integer seed.
        mu_dtype: the type of the momentum; the parameter's unless given.

    State: `ScaleByPSGDLRAState`; `U`, `V` and `d` in float32 or wider. A step costs about
    :math:`8 r^2 + 20 r` multiplications for each parameter, `r` the rank, and two solves of size
    `r`.

    Raises:
        TypeError: `key` is neither a key nor an integer.

    Source: X.-L. Li, Black Box Lie Group Preconditioners for SGD, 2022, arXiv:2211.04422, and
    Stochastic Hessian Fittings with Lie Groups, 2024, arXiv:2402.11858, in the form of `LRAWhiten`
    of https://github.com/lixilinx/psgd_torch.

    >>> state = scale_by_psgd_lra(rank=3).init({"w": jnp.zeros((4, 2)), "b": jnp.zeros(2)})
    >>> state.columns["w"].shape, state.columns["b"].shape, state.diagonal["b"].shape
    ((2, 3, 4, 2), (2, 3, 2), (2,))
    """
    check_key("scale_by_psgd_lra", "key", key)

    def slots(p: Array) -> dict[str, Array]:
        return {
            "mu": zero_mean(p, mu_dtype),
            "columns": jnp.zeros((2, rank, *p.shape), compute_dtype(p.dtype)),
            "diagonal": jnp.ones_like(p, accumulator_dtype(p)),
        }

    def start(params: list[Array]) -> dict[str, Any]:
        return {"key": own_key(key), "norms": jnp.zeros(3)}

    @precise
    def rule(g: _Leaves, s: Any, t: Step) -> Any:
        if not g:
            return g, {}
        beta = jnp.minimum(1 - 1 / t.number, b1)
        mu = [ema(x, m, beta) for x, m in zip(g, s.mu, strict=True)]
        xs = mu if whiten_momentum else g
        chance, side, noise = jax.random.split(s.key, 3)
        rows = [u.reshape(2 * rank, *u.shape[2:]) for u in s.columns]

        def begin(ds: _Leaves) -> _Leaves:
            return in_form_of(_diagonal(ds, xs, preconditioner_init_scale, damping), ds)

        def fit(old: tuple[_Factor, Array]) -> tuple[_Factor, Array]:
            vs = random_like(noise, list(map(_single, xs)))
            hs = _noisy(xs, vs, damping)
            coin = jax.random.uniform(side, dtype=jnp.float32) < 0.5
            new = _fitted(*old, hs, vs, coin, preconditioner_lr, norm_decay)
            accepted = jnp.all(jnp.isfinite(new[1])) & (_largest(xs) > 0)
            return jax.tree.map(functools.partial(jnp.where, accepted), in_form_of(new, old), old)

        due = jax.random.uniform(chance, dtype=jnp.float32) < preconditioner_update_probability
        ds = branch(s.norms[2] == 0, begin, lambda ds: ds, s.diagonal)
        q, norms = branch(due, fit, lambda old: old, (_Factor(rows, ds), s.norms))
        u = _shrunk(_applied(q, mu), max_rms)
        columns = [x.reshape(c.shape) for x, c in zip(q.rows, s.columns, strict=True)]
        new = {"mu": mu, "columns": columns, "diagonal": q.diagonal, "norms": norms}
        return [x / jnp.maximum(1, jnp.abs(x) / max_entry) for x in u], new

    return _with_columns(treewise(ScaleByPSGDLRAState, slots, rule, start=start))


@optimizer
def psgd_lra(
    learning_rate: NonNegative,
    b1: Decay = 0.9,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    rank: PositiveInt = 10,
    preconditioner_update_probability: Fraction = 1.0,
    preconditioner_lr: NonNegative = 0.1,
    preconditioner_init_scale: InitialPositive | None = None,
    norm_decay: Decay = 0.9,
    damping: NonNegative = 1e-9,
    max_rms: Limit = 2.0,
    max_entry: Limit = 10.0,
    *,
    whiten_momentum: bool = False,
    key: Any = 0,
    mu_dtype: DType | None = None,
) -> GradientTransformation:
    r"""PSGD LRA: momentum whitened by a diagonal and a matrix of low rank, for all parameters.

    .. math::
        \mu_t &= \beta_t \mu_{t-1} + (1 - \beta_t) g_t, \qquad
            \beta_t = \min\bigl(1 - \tfrac1t, \beta_1\bigr), \qquad
            w_t = Q_t^\top Q_t\, \mu_t, \qquad
            Q_t = (I + U_t V_t^\top)\, \mathrm{diag}(d_t), \\
        \theta_t &= \theta_{t-1} - \eta \left( \mathrm{clip}\left(
            \frac{w_t}{\max(1, \mathrm{rms}(w_t) / \rho)}, -c, c \right)
            + \lambda \theta_{t-1} \right)

    where `Q` is fitted at every step so that the entries of :math:`Q g` become uncorrelated, with
    mean square 1: see :func:`scale_by_psgd_lra`. All leaves are one vector, whatever their shapes.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        b1: :math:`\beta_1`, decay of the momentum.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        rank: columns of `U` and of `V`; this and the rest as in :func:`scale_by_psgd_lra`.
        preconditioner_update_probability: how often the preconditioner is fitted.
        preconditioner_lr: its learning rate.
        preconditioner_init_scale: the initial entries of `d`.
        norm_decay: how slowly the divisors of its steps are forgotten.
        damping: how much noise is added to the gradient to which the preconditioner is fitted.
        max_rms: :math:`\rho`, the largest root mean square of the direction.
        max_entry: `c`, the largest entry of the direction.
        whiten_momentum: fit the preconditioner to the momentum instead of the gradient.
        key: a random key or an integer seed.
        mu_dtype: the type of the momentum.

    Source: X.-L. Li, Black Box Lie Group Preconditioners for SGD, 2022, arXiv:2211.04422, and
    Stochastic Hessian Fittings with Lie Groups, 2024, arXiv:2402.11858, in the form of `LRAWhiten`
    of https://github.com/lixilinx/psgd_torch.

    >>> import gradtx
    >>> tx = psgd_lra(gradtx.linear_schedule(0.1, 0.0, 300))
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros((2, 2)), tx, max_steps=300)
    >>> bool(jnp.allclose(result.params, 1, atol=5e-2))
    True
    """
    return descent(
        scale_by_psgd_lra(
            b1,
            rank,
            preconditioner_update_probability,
            preconditioner_lr,
            preconditioner_init_scale,
            norm_decay,
            damping,
            max_rms,
            max_entry,
            whiten_momentum=whiten_momentum,
            key=key,
            mu_dtype=mu_dtype,
        ),
        learning_rate,
        weight_decay,
        mask,
    )
