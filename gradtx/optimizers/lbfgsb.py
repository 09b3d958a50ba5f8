"""L-BFGS-B: L-BFGS within bounds."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checks import PositiveCount, PositiveInt
from gradtx.composition.chain import chain
from gradtx.composition.nearest import Nearest
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.tree import treewise
from gradtx.numerics import Step, divide
from gradtx.numerics.control import repeat_while
from gradtx.numerics.precision import precise
from gradtx.optimizers.lbfgs import ScaleByLBFGSState, empty_memory, remembered
from gradtx.transforms.bounds import Box
from gradtx.transforms.scaling import scale
from gradtx.transforms.zoom import scale_by_zoom_linesearch
from gradtx.tree import cast_like, global_norm
from gradtx.types import Array, PyTree


class _Quadratic(NamedTuple):
    r"""A quadratic function with the Hessian :math:`I - W M W^\top`.

    factors: the transpose of `W`, rows of which are zero where there is no pair; inner, inverse:
    `M` and its inverse.
    """

    factors: Array
    inner: Array
    inverse: Array


def _model(steps: Array, changes: Array, there: Array) -> _Quadratic:
    r"""Byrd, Lu and Nocedal, equation 3.2, of pairs from the oldest to the newest.

    Each pair is scaled so that the product of step and change is 1, which leaves the Hessian as it
    is. The loss is divided by their :math:`\theta`, which leaves its minimum where it is and keeps
    squares of small and large gradients in the type's range. Where there is no pair, the inverse
    has ones on its diagonal.
    """
    identity = jnp.eye(len(there), dtype=steps.dtype)
    lower = jnp.tril(steps @ changes.T, -1)
    schur = lower @ lower.T + steps @ steps.T + jnp.diag(jnp.where(there, 0, 1))
    block = jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(schur), True), identity)
    side = block @ lower
    inner = jnp.block([[lower.T @ side - identity, side.T], [side, block]])
    inverse = jnp.block([[-identity, lower.T], [lower, schur - lower @ lower.T]])
    return _Quadratic(jnp.concatenate([changes, steps]), inner, inverse)


class _Progress(NamedTuple):
    """How far the projected gradient is followed.

    rate: the last rate at which an entry met its bound; direction: what still moves, along which
    the model's slope is zero after another `ahead`; image, sum: `W` transposed times the
    direction, and times the way so far; place, end: the entry that meets its bound next, and the
    rate at which it does.
    """

    rate: Array
    direction: Array
    image: Array
    sum: Array
    ahead: Array
    place: Array
    end: Array


def _cauchy(
    x: Array, g: Array, low: Array, high: Array, model: _Quadratic, some: Array
) -> tuple[Array, Array, Array]:
    """The first minimum of the model along the projected gradient: their algorithm CP.

    The search is left out unless there are `some` pairs: entries meet their bounds one by one.
    Returns the point, which entries are not at a bound, and `W` transposed times the way to it.
    """
    room = jnp.where(g > 0, x - low, high - x)
    bounded = (g != 0) & jnp.isfinite(room)
    far = jnp.finfo(x.dtype).max
    ends = jnp.where(bounded, room / jnp.where(bounded, jnp.abs(g), 1), far)

    def at(rate: Array, direction: Array, image: Array, total: Array) -> _Progress:
        length = direction @ direction
        bent = model.inner @ image
        slope = length * (rate - 1) - bent @ total
        curvature = length - bent @ image
        least = jnp.finfo(x.dtype).eps * length
        ahead = jnp.maximum(divide(-slope, jnp.maximum(curvature, least)), 0)
        left = jnp.where(direction != 0, ends, far)
        place = jnp.argmin(left)
        return _Progress(rate, direction, image, total, ahead, place, left[place])

    def going(now: _Progress) -> Array:
        return some & (now.end < far) & (now.end - now.rate <= now.ahead)

    def body(now: _Progress) -> _Progress:
        total = now.sum + (now.end - now.rate) * now.image
        image = now.image - now.direction[now.place] * model.factors[:, now.place]
        return at(now.end, now.direction.at[now.place].set(0), image, total)

    direction = jnp.where(ends > 0, -g, 0)
    image = model.factors @ direction
    start = at(jnp.zeros([], x.dtype), direction, image, jnp.zeros_like(image))
    last = repeat_while(going, body, start)
    free = (last.direction != 0) | (g == 0)
    point = jnp.where(
        free,
        jnp.clip(x + (last.rate + last.ahead) * last.direction, low, high),
        jnp.where(g > 0, low, high),
    )
    return point, free & (point > low) & (point < high), last.sum + last.ahead * last.image


def _minimum(
    x: Array,
    g: Array,
    low: Array,
    high: Array,
    model: _Quadratic,
    point: Array,
    free: Array,
    c: Array,
) -> Array:
    """The model's minimum over the free entries, brought between the bounds."""
    factors = model.factors
    rest = g + (point - x) - (model.inner @ c) @ factors
    rest = jnp.where(free, rest, 0)
    of_free = jnp.where(free, factors, 0)
    small = model.inverse - of_free @ of_free.T
    within = jnp.linalg.solve(small, of_free @ rest) @ of_free
    step = -rest - within
    projected = jnp.clip(point + step, low, high)
    # Where the projected point does not descend, the way to it is cut short instead.
    room = jnp.where(step > 0, high - point, point - low)
    cut = free & (step != 0) & jnp.isfinite(room)
    rates = jnp.where(cut, room / jnp.where(cut, jnp.abs(step), 1), 1)
    shorter = jnp.clip(point + jnp.min(rates, initial=1) * step, low, high)
    return jnp.where((projected - x) @ g < 0, projected, shorter)


def _flat(leaves: list[Array], like: list[Array]) -> Array:
    """Leaves as one vector, or the rows of a matrix where they stack arrays like these."""
    stacked = leaves[0].shape[: leaves[0].ndim - like[0].ndim]
    return jnp.concatenate(
        [leaf.reshape(*stacked, p.size) for leaf, p in zip(leaves, like, strict=True)], -1
    )


@transformation
def scale_by_lbfgsb(
    lower: Any = None, upper: Any = None, memory_size: PositiveInt = 10
) -> GradientTransformation:
    r"""The direction of L-BFGS-B, from a quadratic model's minimum within bounds to the parameters.

    With the pairs :math:`s_k = \theta_{k+1} - \theta_k`, :math:`y_k = g_{k+1} - g_k` of the last
    `m` steps, as columns of `S` and `Y` from the oldest to the newest, the model's Hessian is

    .. math::
        B &= \vartheta I - W M W^\top, \qquad W = (Y, \vartheta S), \qquad
            \vartheta = \frac{\langle y, y \rangle}{\langle y, s \rangle}
            \text{ of the newest pair,} \\
        M^{-1} &= \begin{pmatrix} -D & L^\top \\ L & \vartheta S^\top S \end{pmatrix}, \qquad
            L_{ij} = \langle s_i, y_j \rangle \text{ for } i > j, \qquad
            D_{ii} = \langle s_i, y_i \rangle

    Its first minimum along the projected gradient, the path :math:`P(\theta - t g)`, says which
    entries are at a bound; :math:`\bar\theta` is its minimum over the others, projected onto the
    bounds (or, where that does not descend, reached until the first bound), and the direction is
    :math:`\theta - \bar\theta`.

    Args:
        lower: the lower bound: a number, an array, or a tree of these like the parameters or a
            prefix of one; None for no bound, also within the tree.
        upper: the upper bound, likewise.
        memory_size: :math:`m \ge 1`.

    ``update`` needs `params`; all gradients must be of the same function. What follows in a chain
    must multiply the direction by one number, which is at most 1 or such that no bound is passed.
    :func:`solve` starts at the nearest point between the bounds, and its `tol` is on
    :math:`\theta - P(\theta - g)`. Parameters outside of the bounds are led back to them.

    State: `ScaleByLBFGSState`.

    Before there is a pair, :math:`\vartheta` is 1 and the direction at most as long as 1, unless
    every entry has two bounds. A pair is used only if :math:`\langle y, s \rangle > \varepsilon
    \lVert y \rVert \lVert s \rVert`, with the :math:`\varepsilon` of the type. All pairs are
    forgotten after a step of zero, and where rounding leaves no direction of descent.

    Raises:
        ValueError: a lower bound is above the upper one; bounds are for another tree, or do not fit
            a leaf; `memory_size` is below 1.
        TypeError: a parameter is complex.

    Source: R. H. Byrd, P. Lu, J. Nocedal and C. Zhu, A Limited Memory Algorithm for Bound
    Constrained Optimization, 1995, doi:10.1137/0916069; J. L. Morales and J. Nocedal, Remark on
    "Algorithm 778: L-BFGS-B", 2011, doi:10.1145/2049662.2049669.

    >>> tx, x = scale_by_lbfgsb(lower=2.0), jnp.array([3.0, 3.0])
    >>> tx.update(jnp.array([0.0, 8.0]), tx.init(x), x)[0].tolist()
    [0.0, 1.0]
    """
    bounds = Box("scale_by_lbfgsb", lower, upper)

    @precise
    def rule(g: PyTree, s: Any, t: Step, p: PyTree, *, lower: PyTree, upper: PyTree) -> Any:
        lows, highs = Box("scale_by_lbfgsb", lower, upper).of(p)
        if not sum(leaf.size for leaf in p):
            return g, {}
        x, gradient, low, high = (_flat(leaves, p) for leaves in (p, g, lows, highs))
        new, newest, moved = remembered(g, s, t, p, jnp.finfo(x.dtype).eps)
        weights = new["weights_memory"]
        # After a step of zero only another direction can help.
        weights = jnp.where(moved == 0, 0, weights)

        order = (newest + 1 + jnp.arange(memory_size)) % memory_size
        sizes = jnp.sqrt(weights).astype(x.dtype)[order]
        steps, changes = (
            sizes[:, None] * _flat(new[name], p)[order]
            for name in ("diff_params_memory", "diff_updates_memory")
        )
        there = sizes > 0
        last = memory_size - 1 - jnp.argmax(there[::-1])
        theta = jnp.where(there[last], changes[last] @ changes[last], 1)

        start = jnp.clip(x, low, high)
        root = jnp.sqrt(theta)
        model = _model(root * steps, changes / root, there)
        some = jnp.any(there)
        slopes = gradient / theta
        point, free, c = _cauchy(start, slopes, low, high, model, some)
        goal = _minimum(start, slopes, low, high, model, point, free, c)
        sound = some & jnp.all(jnp.isfinite(goal)) & ((goal - start) @ slopes < 0)
        new["weights_memory"] = jnp.where(sound | ~some, weights, 0)
        # Not the point where it leads, in which a small gradient would be lost in rounding.
        steepest = jnp.clip(-gradient, low - start, high - start)
        way = jnp.where(sound, goal - start, steepest)

        length = global_norm(way)
        short = sound | jnp.all(jnp.isfinite(low) & jnp.isfinite(high)) | (length <= 1)
        back = (x - start) - jnp.where(short, 1, 1 / jnp.where(short, 1, length)) * way
        direction, begin = [], 0
        for leaf in p:
            direction.append(back[begin : begin + leaf.size].reshape(leaf.shape))
            begin += leaf.size
        return cast_like(direction, p), new

    beside = {"lower": bounds.lower, "upper": bounds.upper}
    slots, start = empty_memory(memory_size)
    lifted = treewise(ScaleByLBFGSState, slots, rule, start=start, beside=beside)
    checked = lifted._replace(init=bounds.refusing(lifted.init))
    return checked.with_facets(Nearest(bounds.nearest, by_entry=True))


@optimizer
def lbfgsb(
    lower: Any = None,
    upper: Any = None,
    memory_size: PositiveInt = 10,
    max_linesearch_steps: PositiveCount = 20,
) -> GradientTransformation:
    r"""L-BFGS-B: L-BFGS for parameters between bounds, with a line search between them.

    .. math::
        \bar\theta &= \text{the minimum of a quadratic model of the last } m \text{ steps,} \\
            &\phantom{=} \text{ over the entries that the projected gradient leaves free,} \\
        \theta &\leftarrow \theta + \eta (\bar\theta - \theta) \quad
            \text{with } \eta \text{ from the line search}

    as :func:`scale_by_lbfgsb` says. It is meant for smooth losses without noise; :func:`solve` runs
    it to the end, evaluates no point twice and none outside of the bounds.

    Args:
        lower: the lower bound: a number, an array, or a tree of these like the parameters or a
            prefix of one; None for no bound, also within the tree. Of SciPy's pairs for an array
            parameter, ``lower, upper = jnp.array(pairs).T``.
        upper: the upper bound, likewise.
        memory_size: pairs remembered, at least 1.
        max_linesearch_steps: evaluations of one line search, at least 1.

    Without bounds the directions are those of :func:`lbfgs`.

    Raises:
        ValueError: a lower bound is above the upper one; bounds are for another tree, or do not fit
            a leaf; `memory_size` is below 1.
        TypeError: a parameter is complex.

    Source: R. H. Byrd, P. Lu, J. Nocedal and C. Zhu, A Limited Memory Algorithm for Bound
    Constrained Optimization, 1995, doi:10.1137/0916069; J. L. Morales and J. Nocedal, Remark on
    "Algorithm 778: L-BFGS-B", 2011, doi:10.1145/2049662.2049669.

    >>> import gradtx
    >>> loss = lambda x: jnp.sum((x - jnp.array([1.0, 3.0])) ** 2)
    >>> result = gradtx.solve(loss, jnp.zeros(2), lbfgsb(0.0, 2.0), tol=1e-4)
    >>> result.params.round(3).tolist(), int(result.status) == gradtx.Status.CONVERGED
    ([1.0, 2.0], True)
    """
    Box("lbfgsb", lower, upper)  # an error in the bounds belongs to this call
    search = scale_by_zoom_linesearch(
        max_linesearch_steps, initial_guess_strategy="one", lower=lower, upper=upper
    )
    return chain(scale_by_lbfgsb(lower, upper, memory_size), scale(-1.0), search)
