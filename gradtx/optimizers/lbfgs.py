"""L-BFGS."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checks import NonNegative, PositiveInt
from gradtx.composition.chain import chain, identity
from gradtx.core.pair import (
    GradientTransformation,
    optimizer,
    transformation,
)
from gradtx.engine.tree import treewise
from gradtx.numerics import Step, compute_dtype, zeros_like
from gradtx.numerics.control import repeat
from gradtx.transforms.scaling import scale, scale_by_learning_rate
from gradtx.transforms.zoom import scale_by_zoom_linesearch
from gradtx.tree import add_scale, cast_like, global_norm, sub, vdot
from gradtx.types import Array, Counter, PyTree, Slots, TreeScalar


class ScaleByLBFGSState(NamedTuple):
    r"""The last steps and changes of the gradient, from which the curvature is known.

    count: i32[]; params, updates: those of the previous step; diff_params_memory,
    diff_updates_memory: the last differences of both, stacked, in at least float32;
    weights_memory: :math:`1 / \langle y, s \rangle` for each, 0 where there is no pair.
    """

    count: Counter
    params: Slots
    updates: Slots
    diff_params_memory: Slots
    diff_updates_memory: Slots
    weights_memory: TreeScalar


# Between step and change of gradient, by whether the start is scaled. A pair multiplies `P` by up
# to the inverse square of its cosine, which only a scaled start makes up for.
_LEAST_COSINE = {True: 0.01, False: 0.05}


def _inner(tree: PyTree, other: PyTree) -> Array:
    return vdot(tree, other).real


def is_curved(curvature: Array, step: Array, change: Array, least_cosine: Any) -> Array:
    """Whether a step and the change of the gradient, of these norms, show how the loss curves.

    They do not where the gradient no longer changes by numbers of full precision, nor where their
    product is beyond the type's range.
    """
    least = jnp.finfo(curvature.dtype).tiny
    sound = (curvature >= least) & (curvature < jnp.inf) & (change > 0)
    return sound & (curvature > least_cosine * step * change)


def empty_memory(memory_size: int) -> tuple[Any, Any]:
    """The initial slots and scalars of a `ScaleByLBFGSState`, as :func:`treewise` takes them."""

    def slots(p: Array) -> dict[str, Array]:
        memory = jnp.zeros((memory_size, *p.shape), compute_dtype(p.dtype))
        # Each needs its own buffer: an array that occurs twice in a state cannot be donated.
        return {
            "params": zeros_like(p),
            "updates": zeros_like(p),
            "diff_params_memory": memory,
            "diff_updates_memory": jnp.copy(memory),
        }

    def start(params: list[Array]) -> dict[str, Array]:
        return {"weights_memory": jnp.zeros(memory_size)}

    return slots, start


def remembered(
    g: PyTree, s: Any, t: Step, p: PyTree, least_cosine: Any
) -> tuple[dict[str, Any], Array, Array]:
    """The slots and scalars with the newest pair, its place in the memory, and the step's norm.

    A pair counts only if the cosine of the angle between step and change is larger than this.
    """
    memory_size = s.weights_memory.shape[0]
    step, change = sub(p, s.params), sub(g, s.updates)
    weights = s.weights_memory
    curvature = _inner(change, step)
    length = global_norm(step)
    curved = is_curved(curvature, length, global_norm(change), least_cosine)
    weight = jnp.where(curved & (t.count > 1), 1 / jnp.where(curved, curvature, 1), 0)
    newest = (t.count - 2) % memory_size

    def put(memory: Array, x: Array) -> Array:
        return memory.at[newest].set(jnp.where(weight > 0, x, 0))

    steps = jax.tree.map(put, s.diff_params_memory, step)
    changes = jax.tree.map(put, s.diff_updates_memory, change)
    weights = weights.at[newest].set(weight.astype(weights.dtype))
    new = {
        "params": p,
        "updates": g,
        "diff_params_memory": steps,
        "diff_updates_memory": changes,
        "weights_memory": weights,
    }
    return new, newest, length


@transformation
def scale_by_lbfgs(memory_size: PositiveInt = 10, scale_init_precond: bool = True) -> Any:
    r"""Multiply the gradient by an approximation of the inverse Hessian.

    With :math:`s_k = \theta_{k+1} - \theta_k`, :math:`y_k = g_{k+1} - g_k`,
    :math:`\rho_k = 1 / \langle y_k, s_k \rangle` and
    :math:`V_k = I - \rho_k y_k s_k^\top`, the direction is :math:`P g` where `P` starts as
    :math:`\gamma I` and, over the last `m` pairs from the oldest to the newest,

    .. math:: P \leftarrow V_k^\top P V_k + \rho_k s_k s_k^\top, \qquad
        \gamma = \frac{\langle y, s \rangle}{\langle y, y \rangle} \text{ of the newest pair.}

    Args:
        memory_size: :math:`m \ge 1`.
        scale_init_precond: whether to use :math:`\gamma`; else 1. Before there is a pair,
            :math:`\gamma = \min(1, 1 / \lVert g \rVert)`.

    ``update`` needs `params`; all gradients must be of the same function.

    State: `ScaleByLBFGSState`.

    A pair is used only if :math:`\langle y, s \rangle > c \lVert y \rVert \lVert s \rVert`, with
    :math:`c = 0.01`, or 0.05 without :math:`\gamma`: `P` stays positive definite, and
    :math:`V^\top P V` is at most :math:`c^{-2}` times as large. On quadratic functions with a
    condition number of up to 4e4 (1,600) every pair is used. Optax uses every pair, and may ascend.

    Source: D. C. Liu and J. Nocedal, On the Limited Memory BFGS Method for Large Scale
    Optimization, 1989, doi:10.1007/BF01589116; J. Nocedal and S. J. Wright, Numerical
    Optimization, algorithm 7.4.

    >>> tx, x = scale_by_lbfgs(), jnp.array([3.0, 4.0])
    >>> first, state = tx.update(2 * x, tx.init(x), x)
    >>> x = x - first
    >>> second, state = tx.update(2 * x, state, x)
    >>> bool(jnp.allclose(x - second, 0, atol=1e-5))
    True
    """

    def rule(g: PyTree, s: Any, t: Step, p: PyTree) -> Any:
        new, newest, _ = remembered(g, s, t, p, _LEAST_COSINE[scale_init_precond])
        steps, changes = new["diff_params_memory"], new["diff_updates_memory"]
        weights = new["weights_memory"]
        return _multiply(g, steps, changes, weights, newest, scale_init_precond), new

    slots, start = empty_memory(memory_size)
    return treewise(ScaleByLBFGSState, slots, rule, start=start)


def _multiply(
    g: PyTree, steps: PyTree, changes: PyTree, weights: Array, newest: Array, scaled: bool
) -> PyTree:
    """The product of the approximation with a gradient, in two loops over the pairs."""
    size = weights.shape[0]

    def pair(age: Any) -> tuple[Array, PyTree, PyTree]:
        i = (newest - age) % size
        return i, jax.tree.map(lambda m: m[i], steps), jax.tree.map(lambda m: m[i], changes)

    def right(age: Array, carry: tuple[PyTree, Array]) -> tuple[PyTree, Array]:
        q, alphas = carry
        i, s, y = pair(age)
        alpha = weights[i] * _inner(s, q)
        return cast_like(add_scale(q, -alpha, y), q), alphas.at[i].set(alpha)

    def left(i: Array, q: PyTree, alphas: Array) -> PyTree:
        i, s, y = pair(size - 1 - i)
        beta = weights[i] * _inner(y, q)
        return cast_like(add_scale(q, alphas[i] - beta, s), q)

    q, alphas = repeat(size, right, (g, jnp.zeros_like(weights)))
    if scaled:
        # The newest pair that counts.
        i, _, y = pair(jnp.argmax(weights[(newest - jnp.arange(size)) % size] > 0))
        norm, length = global_norm(g), global_norm(y)
        start = jnp.where(norm > 1, 1 / jnp.where(norm > 1, norm, 1), 1)
        known = weights[i] > 0
        # The square of the length would be beyond the type's range sooner.
        relative = 1 / jnp.where(known, weights[i] * length, 1)
        gamma = jnp.where(known, relative / jnp.where(known, length, 1), start)
        q = jax.tree.map(lambda x: gamma.astype(x.real.dtype) * x, q)
    return repeat(size, lambda i, q: left(i, q, alphas), q)


@optimizer
def lbfgs(
    learning_rate: NonNegative | None = None,
    memory_size: PositiveInt = 10,
    scale_init_precond: bool = True,
    linesearch: GradientTransformation | None = scale_by_zoom_linesearch(  # noqa: B008
        max_linesearch_steps=20, initial_guess_strategy="one"
    ),
) -> GradientTransformation:
    r"""L-BFGS with a line search.

    With :math:`s_k = \theta_{k+1} - \theta_k`, :math:`y_k = g_{k+1} - g_k`,
    :math:`\rho_k = 1 / \langle y_k, s_k \rangle` and :math:`V_k = I - \rho_k y_k s_k^\top`, over
    the last `m` pairs from the oldest to the newest,

    .. math::
        P &\leftarrow V_k^\top P V_k + \rho_k s_k s_k^\top, \quad
            \text{from } P = \gamma I, \quad
            \gamma = \frac{\langle y, s \rangle}{\langle y, y \rangle}
            \text{ of the newest pair,} \\
        \theta &\leftarrow \theta - \eta P g \quad \text{with } \eta \text{ from the line search}

    It is meant for smooth losses without noise; :func:`solve` runs it to the end and evaluates no
    point twice.

    On mini-batches a pair of gradients of two batches holds their noise rather than curvature. What
    helps is a pair of one batch: before a batch is changed, call ``update`` with its gradient at
    the new parameters, keep only the state, and call it again with that of the next batch. On
    the digits that is a ninth of the loss after as many gradients, but Adam's is 30 times less
    again; train with Adam or SOAP, or take all examples at once.

    Args:
        learning_rate: a factor on the direction before the line search; a number, an array, a
            schedule, or None for 1.
        memory_size: pairs remembered; this and `scale_init_precond` as in :func:`scale_by_lbfgs`.
        scale_init_precond: whether to scale the first approximation.
        linesearch: finds :math:`\eta`; None for no line search, in which case give a learning rate.

    Source: D. C. Liu and J. Nocedal, On the Limited Memory BFGS Method for Large Scale
    Optimization, 1989, doi:10.1007/BF01589116.

    >>> import gradtx
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1.0) ** 4), jnp.zeros(3), lbfgs(), tol=1e-4)
    >>> int(result.status) == gradtx.Status.CONVERGED
    True
    """
    rate = scale(-1.0) if learning_rate is None else scale_by_learning_rate(learning_rate)
    search = identity() if linesearch is None else linesearch
    return chain(scale_by_lbfgs(memory_size, scale_init_precond), rate, search)
