"""Distance over gradients: DoG, its weighted form DoWG, and the layer-wise form."""

from typing import Any, Literal, NamedTuple

import jax.numpy as jnp

from gradtx import tree
from gradtx.checks import InitialNonNegative, NonNegative, Number, Positive, check
from gradtx.composition.chain import chain, identity
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import leafwise
from gradtx.engine.tree import treewise
from gradtx.leaves.paths import Where
from gradtx.numerics import divide, norm, own_copy, root, sum_sq
from gradtx.transforms.decay import add_decayed_weights
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.tree.sums import norm_of_all
from gradtx.types import Array, DType, Slots, TreeScalar


class DoGState(NamedTuple):
    """The starting point, in the parameters' types, and the sums over the run, in float32 or wider.

    is_init_step: bool[]; max_dist: the largest distance from `init_params` so far;
    sum_sq_norm_grads: the sum of the squared norms of the gradients.
    """

    is_init_step: TreeScalar
    init_params: Slots
    max_dist: TreeScalar
    sum_sq_norm_grads: TreeScalar


class DoWGState(NamedTuple):
    """The starting point, in the parameters' types, and the sums over the run, in float32 or wider.

    weighted_sq_norm_grads: the weighted sum of the squared norms of the gradients; estim_sq_dist:
    the square of the largest distance so far.
    """

    init_params: Slots
    weighted_sq_norm_grads: TreeScalar
    estim_sq_dist: TreeScalar


class ScaleByDistanceOverGradientsState(NamedTuple):
    """For each leaf: max_dist, []; grad_sum_of_squares, [1]; init_params, like the leaf."""

    max_dist: Slots
    grad_sum_of_squares: Slots
    init_params: Slots


def _start(p: Array) -> dict[str, Array]:
    return {"init_params": own_copy(p)}


def _over(x: Array, y: Array, eps: Any) -> Array:
    """``x / y``, and 0 where `y` is 0, which a positive `eps` rules out."""
    return x / y if isinstance(eps, float | int) and eps > 0 else divide(x, y)


@transformation
def scale_by_dog(
    init_step: tuple[Literal["distance", "learning_rate", "heuristic"], Any],
    eps: NonNegative = 1e-8,
) -> GradientTransformation:
    r"""Scale by the distance from the start over the root of the summed squared gradients.

    .. math::
        \bar r_t = \max_{k < t} \lVert \theta_k - \theta_0 \rVert, \qquad
        u_t = \frac{\max(\bar r_t, r_\epsilon)}
            {\sqrt{\sum_{k \le t} \lVert g_k \rVert^2 + \epsilon}}\; g_t

    The norms are over all leaves together.

    Args:
        init_step: how large the first step is, ``(kind, value)`` with a value above 0:
            ``("distance", v)`` for :math:`r_\epsilon = v`,
            ``("heuristic", v)`` for :math:`r_\epsilon = v\,(1 + \lVert\theta_0\rVert)`,
            ``("learning_rate", v)`` for a first step of :math:`v\, g_1` and
            :math:`r_\epsilon = 0`.
        eps: :math:`\epsilon \ge 0`.

    State: `DoGState`. Optax keeps its sums in the narrowest type among the parameters, where in
    float16 they overflow and in bfloat16 stop growing. A zero gradient gives a zero update even
    for :math:`\epsilon = 0`.

    In bfloat16 and float16 parameters a first step of :math:`r_\epsilon` may be lost to
    rounding, and the distance then stays zero: choose it larger.

    Raises:
        ValueError: ``update`` is called without parameters, or `init_step` has another kind.

    Source: M. Ivgi, O. Hinder and Y. Carmon, DoG is SGD's Best Friend: A Parameter-Free Dynamic
    Step Size Schedule, 2023, arXiv:2302.12022, equation DoG.

    >>> tx = scale_by_dog(("distance", 0.5), eps=0.0)
    >>> p = {"a": jnp.zeros(1), "b": jnp.zeros(1)}
    >>> updates, state = tx.update({"a": jnp.array([3.0]), "b": jnp.array([4.0])}, tx.init(p), p)
    >>> round(float(updates["a"][0]), 6), round(float(updates["b"][0]), 6)
    (0.3, 0.4)
    """
    kinds = ("distance", "learning_rate", "heuristic")
    if not isinstance(init_step, tuple | list) or len(init_step) != 2 or init_step[0] not in kinds:
        raise ValueError(
            f"scale_by_dog: init_step must be (kind, value) with a kind of {', '.join(kinds)}, not "
            f"{init_step!r}"
        )
    kind, first = init_step
    if callable(first):
        raise TypeError("scale_by_dog: init_step[1] must be a number or an array, not a schedule")
    check("scale_by_dog", "init_step[1]", first, Positive)

    def numbers(p: list[Array]) -> dict[str, Any]:
        distance = 0.0 if kind == "learning_rate" else first
        if kind == "heuristic":
            distance = first * (1 + tree.global_norm(p))
        return {"is_init_step": True, "max_dist": distance, "sum_sq_norm_grads": 0.0}

    def rule(g: Any, s: Any, t: Any, p: list[Array]) -> Any:
        both = p, s.init_params
        moved = norm_of_all(tree.sub(*both), again=(tree.sub, both), costly=True)
        distance = jnp.maximum(s.max_dist, moved.number)
        total = s.sum_sq_norm_grads + tree.norm_sq(g)
        rate = _over(distance, jnp.sqrt(total + eps), eps)
        if kind == "learning_rate":
            rate = jnp.where(s.is_init_step, first, rate)
        return tree.scale(rate, g), {
            "is_init_step": False,
            "max_dist": distance,
            "sum_sq_norm_grads": total,
        }

    return treewise(DoGState, _start, rule, start=numbers, rows=True)


@optimizer
def dog(
    learning_rate: NonNegative = 1.0,
    init_step: tuple[Literal["distance", "learning_rate", "heuristic"], Any] = ("heuristic", 1e-6),
    eps: NonNegative = 1e-8,
    weight_decay: NonNegative | None = None,
    mask: Where | None = None,
) -> GradientTransformation:
    r"""DoG: the step size is the distance from the start over the root of summed squared gradients.

    .. math::
        \bar r_t &= \max_{k < t} \lVert \theta_k - \theta_0 \rVert, \\
        \theta_t &= \theta_{t-1} - \eta\, \frac{\max(\bar r_t, r_\epsilon)}
            {\sqrt{\sum_{k \le t} \lVert g_k \rVert^2 + \epsilon}}\; g_t

    where :math:`g_t` is the gradient plus :math:`\lambda\theta_{t-1}`. The norms are over all
    leaves together.

    Args:
        learning_rate: :math:`\eta \ge 0`, 1 in the paper; a number, an array, or a schedule.
        init_step: sets :math:`r_\epsilon`, as in :func:`scale_by_dog`; the authors advise
            ``("heuristic", 1e-6)``, and ``("heuristic", 1e-4)`` with batch normalization.
        eps: :math:`\epsilon \ge 0`.
        weight_decay: :math:`\lambda \ge 0`, added to the gradient as :math:`\lambda\theta`; None
            for none.
        mask: which parameters decay, as in :func:`add_decayed_weights`.

    The paper evaluates an average of the parameters: put :func:`ema_params` after it.

    Source: M. Ivgi, O. Hinder and Y. Carmon, DoG is SGD's Best Friend: A Parameter-Free Dynamic
    Step Size Schedule, 2023, arXiv:2302.12022, equation DoG.

    >>> import gradtx
    >>> tx = dog()
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=300)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return chain(
        identity() if weight_decay is None else add_decayed_weights(weight_decay, mask),
        scale_by_dog(init_step, eps),
        scale_by_learning_rate(learning_rate),
    )


@transformation
def scale_by_dowg(
    init_estim_sq_dist: InitialNonNegative | None = None, eps: NonNegative = 1e-4
) -> GradientTransformation:
    r"""Scale by the squared distance from the start over the root of gradients weighted by it.

    .. math::
        \bar r_t^2 = \max(\bar r_{t-1}^2, \lVert \theta_{t-1} - \theta_0 \rVert^2), \qquad
        v_t = v_{t-1} + \bar r_t^2 \lVert g_t \rVert^2, \qquad
        u_t = \frac{\bar r_t^2}{\sqrt{v_t} + \epsilon}\, g_t

    The norms are over all leaves together.

    Args:
        init_estim_sq_dist: :math:`\bar r_0^2 \ge 0`; None for :math:`\epsilon`.
        eps: :math:`\epsilon \ge 0`.

    State: `DoWGState`; as for :func:`scale_by_dog`, its sums are in float32 or wider, and a zero
    gradient gives a zero update for every :math:`\epsilon`.

    Raises:
        ValueError: ``update`` is called without parameters.

    Source: A. Khaled, K. Mishchenko and C. Jin, DoWG Unleashed: An Efficient Universal
    Parameter-Free Gradient Descent Method, 2023, arXiv:2305.16284, algorithm 1.

    >>> tx = scale_by_dowg(init_estim_sq_dist=0.25, eps=0.0)
    >>> p = jnp.zeros(2)
    >>> tx.update(jnp.array([3.0, 4.0]), tx.init(p), p)[0].round(6).tolist()
    [0.30000001192092896, 0.4000000059604645]
    """
    first = eps if init_estim_sq_dist is None else init_estim_sq_dist

    def numbers(p: list[Array]) -> dict[str, Any]:
        return {"weighted_sq_norm_grads": 0.0, "estim_sq_dist": first}

    def rule(g: Any, s: Any, t: Any, p: list[Array]) -> Any:
        distance = jnp.maximum(s.estim_sq_dist, tree.norm_sq(tree.sub(p, s.init_params)))
        total = s.weighted_sq_norm_grads + distance * tree.norm_sq(g)
        rate = _over(distance, root(total) + eps, eps)
        return tree.scale(rate, g), {"weighted_sq_norm_grads": total, "estim_sq_dist": distance}

    return treewise(DoWGState, _start, rule, start=numbers, rows=True)


@optimizer
def dowg(
    learning_rate: NonNegative = 1.0,
    init_estim_sq_dist: InitialNonNegative | None = None,
    eps: NonNegative = 1e-4,
    weight_decay: NonNegative | None = None,
    mask: Where | None = None,
) -> GradientTransformation:
    r"""DoWG: DoG with each squared gradient weighted by the squared distance at its step.

    .. math::
        \bar r_t^2 &= \max(\bar r_{t-1}^2, \lVert \theta_{t-1} - \theta_0 \rVert^2), \qquad
        v_t = v_{t-1} + \bar r_t^2 \lVert g_t \rVert^2, \\
        \theta_t &= \theta_{t-1} - \eta\, \frac{\bar r_t^2}{\sqrt{v_t} + \epsilon}\, g_t

    where :math:`g_t` is the gradient plus :math:`\lambda\theta_{t-1}`. The norms are over all
    leaves together.

    Args:
        learning_rate: :math:`\eta \ge 0`, 1 in the paper; a number, an array, or a schedule.
        init_estim_sq_dist: :math:`\bar r_0^2 \ge 0`; None for :math:`\epsilon`.
        eps: :math:`\epsilon \ge 0`, added to the root.
        weight_decay: :math:`\lambda \ge 0`, added to the gradient as :math:`\lambda\theta`; None
            for none.
        mask: which parameters decay, as in :func:`add_decayed_weights`.

    Source: A. Khaled, K. Mishchenko and C. Jin, DoWG Unleashed: An Efficient Universal
    Parameter-Free Gradient Descent Method, 2023, arXiv:2305.16284, algorithm 1.

    >>> import gradtx
    >>> tx = dowg()
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=100)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return chain(
        identity() if weight_decay is None else add_decayed_weights(weight_decay, mask),
        scale_by_dowg(init_estim_sq_dist, eps),
        scale_by_learning_rate(learning_rate),
    )


@transformation
def scale_by_distance_over_gradients(
    reps_rel: InitialNonNegative = 1e-6,
    eps: NonNegative = 1e-8,
    param_dtype: DType = jnp.float32,
    global_scale: Number = 1.0,
) -> GradientTransformation:
    r"""Layer-wise DoG: :func:`scale_by_dog` on each leaf separately.

    .. math::
        \bar r_t = \max_{k < t} \lVert \theta_k - \theta_0 \rVert, \qquad
        u_t = s\, \frac{\max(\bar r_t, r (1 + \lVert\theta_0\rVert))}
            {\sqrt{\sum_{k \le t} \lVert g_k \rVert^2 + \epsilon}}\; g_t

    Args:
        reps_rel: :math:`r \ge 0`; the authors advise 1e-6, and 1e-4 with batch normalization.
        eps: :math:`\epsilon \ge 0`.
        param_dtype: the type in which :math:`\theta_0` is kept; a complex leaf keeps its own.
        global_scale: `s`; 1, or -1 to descend without a learning rate after it.

    State: `ScaleByDistanceOverGradientsState`. An update has its leaf's shape even where that is
    ``()``; in Optax it becomes ``(1,)``.

    Raises:
        ValueError: ``update`` is called without parameters.

    Source: M. Ivgi, O. Hinder and Y. Carmon, DoG is SGD's Best Friend: A Parameter-Free Dynamic
    Step Size Schedule, 2023, arXiv:2302.12022, section 3.3 (L-DoG).

    >>> tx = scale_by_distance_over_gradients(reps_rel=0.5, eps=0.0)
    >>> p = jnp.zeros(2)
    >>> tx.update(jnp.array([3.0, 4.0]), tx.init(p), p)[0].round(6).tolist()
    [0.30000001192092896, 0.4000000059604645]
    """

    def slots(p: Array) -> dict[str, Array]:
        size = norm(p).number
        dtype = p.dtype if jnp.iscomplexobj(p) else param_dtype
        return {
            "max_dist": reps_rel * (1 + size),
            "grad_sum_of_squares": jnp.zeros(1, size.dtype),
            "init_params": own_copy(p, dtype),
        }

    def rule(g: Array, s: Any, t: Any, p: Array) -> Any:
        both = p, s.init_params
        moved = norm(jnp.subtract(*both), again=(jnp.subtract, both), costly=True)
        distance = jnp.maximum(s.max_dist, moved.number)
        total = s.grad_sum_of_squares + sum_sq(g)
        rate = _over(distance, jnp.sqrt(total + eps), eps)
        new = {
            "max_dist": distance,
            "grad_sum_of_squares": total,
            "init_params": s.init_params,
        }
        return g * (global_scale * rate.reshape(())), new

    return leafwise(ScaleByDistanceOverGradientsState, slots, rule)
