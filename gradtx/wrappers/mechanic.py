"""Mechanic: a learned factor on any optimizer's steps."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx import tree
from gradtx.checks import NonNegative, Positive, PositiveCount
from gradtx.composition.around import InnerStep, around
from gradtx.core.pair import GradientTransformation, transformation, with_extra_args_support
from gradtx.engine.leaves import parameter
from gradtx.engine.lift import needed
from gradtx.leaves.paths import is_leaf, leaves_with_path, map_present, path_string
from gradtx.leaves.rows import is_rows
from gradtx.numerics import (
    Step,
    abs_sq,
    bounded,
    cast,
    divide,
    increment,
    own_copy,
    root,
    scalar_dtype,
    squarable,
    widen,
)
from gradtx.numerics.compiler_hints import delay, planned, recompute, sums_in_one_pass
from gradtx.tree.leaves import together
from gradtx.types import Array, Counter, InnerState, Params, Slots, State, Updates


class MechanicState(NamedTuple):
    """The wrapped state; count: i32[]; x0: the starting point, in the parameters' types.

    r, m, v, s: one number for each decay, in float32 or wider: the reward, the largest and the
    squared products, and the parts of the factor, which is their sum.
    """

    base_optimizer_state: InnerState
    count: Counter
    r: Any
    m: Any
    v: Any
    s: Any
    x0: Slots


@transformation
def mechanize(
    base_optimizer: GradientTransformation,
    weight_decay: NonNegative = 1e-2,
    eps: NonNegative = 1e-8,
    s_init: Positive = 1e-6,
    num_betas: PositiveCount = 6,
) -> GradientTransformation:
    r"""Multiply the sum of an optimizer's updates by a factor learned along the way.

    With `u` the base optimizer's updates, :math:`\Delta_t = \sum_{k \le t} u_k`,
    :math:`s = \sum_i s_i` and :math:`\beta_i = 1 - 10^{-i}` for :math:`i = 1 \dots n`,

    .. math::
        h_t &= -\Big\langle \Delta_{t-1}, g_t
            + \lambda s \frac{\lVert g_t \rVert}{\lVert \theta_{t-1} \rVert + \epsilon}
            \theta_{t-1} \Big\rangle, \\
        r_i &\leftarrow \beta_i r_i + \mathrm{clip}(h_t, -m_i, m_i)\, s_i, \qquad
        m_i \leftarrow \max(\beta_i m_i, |h_t| + \epsilon), \qquad
        v_i \leftarrow \beta_i^2 v_i + h_t^2, \\
        s_i &\leftarrow \frac{s_0 m_i / n + \max(r_i, 0)}{\sqrt{v_i} + \epsilon}, \qquad
        \theta_t = \theta_0 + s \Delta_t

    Args:
        base_optimizer: any transformation whose updates are steps, such as ``adam(1.0)``. The
            factor multiplies its rate, so make that 1, or a schedule that is 1 at its highest.
        weight_decay: :math:`\lambda \ge 0`, in addition to that of the base optimizer.
        eps: :math:`\epsilon \ge 0`.
        s_init: :math:`s_0 > 0`, smaller than any good factor.
        num_betas: `n`, at least 1.

    :math:`\Delta_{t-1}` is not stored but computed as
    :math:`(\theta_{t-1} - \theta_0) / (s + \epsilon)`, as in Optax. So the updates must be applied
    as they are, and in bfloat16 or float16 parameters, where small steps are lost, the factor never
    grows: train a float32 copy. A leaf should have a gradient in all steps or in none: without one
    it stays where it is while the factor changes, and its :math:`\Delta` is lost; the norm of
    :math:`\theta` counts it in ``update``, but not in :func:`apply_gradients`.

    State: `MechanicState`. The starting point is the parameters of the first update. Optax keeps
    the numbers in the parameters' types, and they become NaN after one gradient of 1e30, whose
    square is bounded here.

    Raises:
        ValueError: ``update`` is called without parameters.
        TypeError: a gradient is `Rows`: every row moves when the factor changes.

    Source: A. Cutkosky, A. Defazio and H. Mehta, Mechanic: A Learning Rate Tuner, 2023,
    arXiv:2306.00144, algorithm 1, with the clipping of the authors' code.

    >>> import gradtx
    >>> tx = mechanize(gradtx.sgd(1.0))
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 3) ** 2), jnp.ones(2), tx, max_steps=200)
    >>> bool(result.value < 1e-2)
    True
    """
    if not isinstance(num_betas, int):
        raise TypeError(f"mechanize: num_betas must be an integer, not {num_betas!r}")
    tx = with_extra_args_support(base_optimizer)

    def init(params: Params) -> State:
        leaves, treedef = leaves_with_path(params)
        checked = [None if p is None else parameter(p, path) for path, p in leaves]
        dtype = scalar_dtype([p for p in checked if p is not None])
        return MechanicState(
            base_optimizer_state=tx.init(params),
            count=jnp.zeros([], jnp.int32),
            r=jnp.zeros(num_betas, dtype),
            m=jnp.zeros(num_betas, dtype),
            v=jnp.zeros(num_betas, dtype),
            s=jnp.full(num_betas, s_init, dtype),
            x0=treedef.unflatten([p if p is None else own_copy(p) for p in checked]),
        )

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Updates, State]:
        params = needed("mechanize", updates, params)
        _check_dense(updates)
        x0 = _starting_point(state, params)
        factor = jnp.sum(state.s)
        h = product(factor, updates, params, x0, Step(state.count, factor.dtype))
        s, learned = tuned(state, h)

        # The base optimizer runs last, when the arrays that it overwrites have been read.
        later = map_present(lambda g: delay(g, after=h, on="all"), updates)
        steps, base_state = inner_step(later, state.base_optimizer_state, params)
        moves = map_present(_moving(factor, jnp.sum(s), eps, h), steps, params, x0)
        return moves, MechanicState(base_state, increment(state.count), *learned, s, x0)

    def product(factor: Array, updates: Updates, params: Params, x0: Params, t: Step) -> Array:
        """The paper's `h`: the way back to the start, over the factor, is minus the sum."""
        towards, pull, g_sq, p_sq = _sums(updates, params, x0, t)
        decay = divide(weight_decay * factor * root(bounded(g_sq)), root(p_sq) + eps)
        return (towards + decay * pull) / (factor + eps)

    def tuned(state: Any, h: Array) -> tuple[Array, tuple[Array, Array, Array]]:
        """The parts of the factor, and the reward, the largest product and the squared ones."""
        betas = jnp.array([1 - 0.1**i for i in range(1, num_betas + 1)], state.s.dtype)
        h = squarable(h.astype(state.s.dtype))
        reward = betas * state.r + jnp.clip(h, -state.m, state.m) * state.s
        largest = jnp.maximum(betas * state.m, jnp.abs(h) + eps)
        square = bounded(betas**2 * state.v + h**2)
        wealth = s_init / num_betas * largest + jnp.maximum(reward, 0)
        return divide(wealth, root(square) + eps), (reward, largest, square)

    return around(tx, init, run)


def _check_dense(updates: Updates) -> None:
    """Raise TypeError if a gradient is `Rows`."""
    for path, g in leaves_with_path(updates)[0]:
        if is_rows(g):
            raise TypeError(
                f"mechanize moves every row and cannot run on the Rows at "
                f"{path_string(path)!r}: make the gradient dense with to_dense()"
            )


def _starting_point(state: Any, params: Params) -> Params:
    """The parameters of the first update."""
    first = state.count == 0

    def start(p: Any, x0: Any) -> Any:
        return x0 if p is None else jnp.where(first, p, x0)

    return jax.tree.map(start, params, state.x0, is_leaf=is_leaf)


def _moving(factor: Array, new: Array, eps: Any, h: Array) -> Callable[[Any, Any, Any], Any]:
    """The step of a leaf, from the base optimizer's `u`, the parameter and its start."""

    def move(u: Array, p: Array, x0: Array) -> Array:
        total = (widen(p) - widen(x0)) / (factor + eps) + widen(u)
        return widen(x0) + new * total - widen(p)

    shrinkage = 1 - new / (factor + eps)

    def plan(u: Array, p: Array, x0: Array) -> Array:
        """The same step, by a formula that reads the parameter once, after `h` has read it."""
        return new * widen(u) + shrinkage * (widen(x0) - widen(delay(p, after=h, on="all")))

    step = planned(move, plan)
    return lambda u, p, x0: cast(step(u, p, x0), u.dtype)


def _read(updates: Updates, params: Params, x0: Params, t: Step) -> tuple[Array, ...]:
    """The inner products of `x0` - `params` with updates and parameters, and their squared norms.

    A parameter without a gradient has not moved: it counts in the last norm alone.
    """
    back = map_present(lambda g, p, x: widen(x) - widen(p), updates, params, x0)
    moving = map_present(lambda g, p: p, updates, params)
    towards, pull = tree.vdot(updates, back).real, tree.vdot(moving, back).real
    return towards, pull, tree.norm_sq(updates), tree.norm_sq(params)


def _plan(updates: Updates, params: Params, x0: Params, t: Step) -> tuple[Array, ...]:
    """The results of `_read`, with all four sums computed in one pass over the leaves.

    A product with the decayed gradient, as the paper has it, would have to wait for the norms.
    """

    def wide(x: Any) -> Any:
        return x if x is None else widen(x)

    def along(y: Array, p: Array, x: Array) -> Array:
        return (jnp.conj(y) * (x - p)).real

    leaves = [tuple(map(wide, leaf)) for leaf in together(updates, params, x0)[0]]
    moving = [leaf for leaf in leaves if leaf[0] is not None]
    towards, pull, g_sq, p_sq = sums_in_one_pass(
        [along(g, p, x) for g, p, x in moving],
        [recompute(along, p, p, x, after=t) for _, p, x in moving],
        [abs_sq(g) for g, _, _ in moving],
        [abs_sq(p) for _, p, _ in moving],
    )
    return towards, pull, g_sq, p_sq + tree.norm_sq([p for g, p, _ in leaves if g is None])


_sums = planned(_read, _plan)
