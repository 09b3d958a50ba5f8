"""Clipping: by value, by each leaf's norm, by the norm of all leaves together, now or before."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.checks import Limit
from gradtx.composition.around import InnerStep, around
from gradtx.composition.scalings import Scaling
from gradtx.composition.views import TakesNorm
from gradtx.core.pair import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    transformation,
)
from gradtx.engine.lift import elementwise, leafwise
from gradtx.numerics import (
    Norm,
    cast,
    in_two,
    norm,
    root_mean_square,
    shrunk,
    signed_factor,
    widen,
)
from gradtx.tree import global_norm, map_updates
from gradtx.tree.sums import norm_of_all
from gradtx.types import Array, EmptyState, Params, State, TreeScalar, Updates


@transformation(update_size="proportional")
def clip(max_delta: Limit) -> GradientTransformation:
    r"""Clip each entry to :math:`[-\delta, \delta]`.

    Args:
        max_delta: :math:`\delta \ge 0`. A complex entry is clipped in its real and imaginary part.

    A NaN stays a NaN.

    >>> tx = clip(1.0)
    >>> tx.update(jnp.array([-3.0, 0.5]), tx.init(jnp.zeros(2)))[0].tolist()
    [-1.0, 0.5]
    """

    def rule(g: Array, s: Any, t: Any) -> Any:
        if jnp.iscomplexobj(g):
            return _clip(g.real, max_delta) + 1j * _clip(g.imag, max_delta), {}
        return _clip(g, max_delta), {}

    return elementwise(EmptyState, None, rule)


def _clip(x: Array, limit: Any) -> Array:
    return jnp.clip(x, -limit, limit)


@transformation
def clip_by_norm(max_norm: Limit, *, stacked: bool = False) -> GradientTransformation:
    r"""Clip each leaf by its own Euclidean norm: :math:`u = g \min(1, c / \lVert g \rVert)`.

    Args:
        max_norm: :math:`c \ge 0`.
        stacked: whether each leaf is a stack of layers along its first axis, each of which is
            clipped by its own norm; give this to the stacks alone, by :func:`masked` or
            :func:`partition`.

    This is Keras's ``clipnorm``; Optax has no such transformation. The norm is summed in at least
    float32, and a zero gradient stays zero also for :math:`c = 0`.

    Raises:
        TypeError: with `stacked`, a gradient is `Rows` of a table.

    >>> tx = clip_by_norm(1.0)
    >>> tx.update({"a": jnp.array([0.0, 5.0])}, tx.init({"a": jnp.zeros(2)}))[0]["a"].tolist()
    [0.0, 1.0]
    >>> tx = clip_by_norm(1.0, stacked=True)
    >>> tx.update(jnp.array([[0.0, 5.0], [0.5, 0.0]]), tx.init(jnp.zeros([2, 2])))[0].tolist()
    [[0.0, 1.0], [0.5, 0.0]]
    """

    def rule(g: Array, s: Any, t: Any) -> Any:
        length = norm(g, tuple(range(1, g.ndim))) if stacked else norm(g)
        return shrunk(g, length, max_norm), {}

    return leafwise(EmptyState, None, rule, rows=not stacked)


@transformation
def clip_by_block_rms(threshold: Limit) -> GradientTransformation:
    r"""Clip each leaf by its root mean square: :math:`u = g / \max(1, \mathrm{rms}(g) / d)`.

    Args:
        threshold: :math:`d \ge 0`.

    Source: N. Shazeer and M. Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost,
    2018, arXiv:1804.04235, section 6 (update clipping).

    >>> tx = clip_by_block_rms(1.0)
    >>> tx.update(jnp.array([3.0, 3.0]), tx.init(jnp.zeros(2)))[0].tolist()
    [1.0, 1.0]
    """

    def rule(g: Array, s: Any, t: Any) -> Any:
        return shrunk(g, root_mean_square(g), threshold), {}

    return leafwise(EmptyState, None, rule)


@transformation(update_size="proportional")
def clip_by_global_norm(max_norm: Limit, *, two_pass: bool = False) -> GradientTransformation:
    r"""Clip all leaves by their common Euclidean norm.

    .. math:: u = g \min\left(1, \frac{c}{\lVert g \rVert}\right),
        \qquad \lVert g \rVert^2 = \sum_i |g_i|^2

    Args:
        max_norm: :math:`c \ge 0`.
        two_pass: whether a step inside of the backward pass (:func:`make_step`), which has the
            gradients of one layer at a time, computes all gradients twice: for their norm, and then
            for the step. Without it such a step is refused; an ordinary step is the same.

    The norm is summed in at least float32 (Optax sums in the gradient's type, and overflows in
    float16), and a zero gradient stays zero also for :math:`c = 0` (in Optax it becomes NaN). A NaN
    entry makes every update NaN; an infinite one becomes NaN and makes all others zero: guard with
    ``apply_if_finite``.

    Source: R. Pascanu, T. Mikolov and Y. Bengio, On the Difficulty of Training Recurrent Neural
    Networks, 2013, arXiv:1211.5063, algorithm 1.

    >>> tx = clip_by_global_norm(1.0)
    >>> params = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}
    >>> updates, _ = tx.update(params, tx.init(params))
    >>> round(float(updates["a"][0]), 6), round(float(updates["b"][0]), 6)
    (0.6, 0.8)
    """

    def of_tree(g: list[Any]) -> dict[str, Array]:
        return {"factor": signed_factor(norm_of_all(g), max_norm)}

    def rule(g: Array, s: Any, t: Any) -> Any:
        power, factor = in_two(s.factor)
        return factor * (power * g), {}

    lifted = elementwise(EmptyState, None, rule, of_tree=of_tree).with_facets(Scaling("norm"))
    if not two_pass:
        return lifted._replace(takes_vectors=True)

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Updates, State]:
        grad_norm = inner_step.extra_args.get("grad_norm")
        if grad_norm is None:
            return inner_step(updates, state, params)
        length = grad_norm if isinstance(grad_norm, Norm) else Norm.of(grad_norm)
        return _shortened(updates, length, max_norm), state

    return around(lifted, None, run, inner=(), facets=(Scaling("norm"), TakesNorm("update")))


def _shortened(updates: Updates, length: Norm, max_norm: Any) -> Updates:
    return map_updates(lambda g: cast(shrunk(widen(g), length, max_norm), g.dtype), updates)


class LastNormState(NamedTuple):
    """norm: that of the gradients of the last step; 0 before the first."""

    norm: TreeScalar


@transformation
def clip_by_last_norm(max_norm: Limit) -> GradientTransformation:
    r"""Clip all leaves by the norm that the gradients of the last step had.

    .. math:: u_t = g_t \min\left(1, \frac{c}{\lVert g_{t-1} \rVert}\right),
        \qquad \lVert g_0 \rVert = 0

    Args:
        max_norm: :math:`c \ge 0`.

    The first step, and one after gradients of zero, is not clipped. The factor is known before any
    gradient is there, as a step inside of the backward pass needs it (:func:`make_step`); a single
    large gradient is shortened one step late, so that :func:`clip_by_global_norm` is better where
    it can be had. A norm that is not finite makes the next updates zero or NaN: guard with
    ``apply_if_finite``.

    State: `LastNormState`.

    >>> tx = clip_by_last_norm(1.0)
    >>> params = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}
    >>> updates, state = tx.update(params, tx.init(params))
    >>> float(updates["a"][0]), float(state.norm)
    (3.0, 5.0)
    >>> updates, state = tx.update(params, state)
    >>> round(float(updates["a"][0]), 6)
    0.6
    """

    def init(params: Params) -> State:
        return LastNormState(jnp.zeros([], jnp.float32))

    def update(
        updates: Updates,
        state: State,
        params: Params | None = None,
        *,
        grad_norm: Array | None = None,
        **extra_args: Any,
    ) -> tuple[Updates, State]:
        length = global_norm(updates) if grad_norm is None else grad_norm
        now = _shortened(updates, Norm.of(state.norm), max_norm)  # 0 is not above any limit
        return now, LastNormState(cast(length, state.norm.dtype))

    return GradientTransformationExtraArgs(init, update, facets=(TakesNorm("state"),))
