"""Penalties and constraints by their proximal maps, which get the rate of each step."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx import projections, tree
from gradtx.checks import check_constant, check_function
from gradtx.composition.around import InnerStep, around
from gradtx.composition.masking import refusing
from gradtx.composition.nearest import Nearest
from gradtx.composition.scalings import Scaling, beyond_scalings
from gradtx.core.explanations import name_of
from gradtx.core.pair import GradientTransformation, transformation, with_extra_args_support
from gradtx.engine.leaves import parameter
from gradtx.engine.lift import needed
from gradtx.leaves.paths import Where, leaves_with_path, map_present, merge, path_string, select
from gradtx.leaves.rows import is_rows
from gradtx.numerics import own_copy, widen
from gradtx.transforms.penalties import PENALTIES
from gradtx.transforms.projecting import named_projection
from gradtx.types import Array, InnerState, Params, PyTree, Slots, State, TreeScalar, Updates


class ProximalState(NamedTuple):
    """The inner optimizer's state, and that of the acceleration.

    previous: the parameters after the last proximal map, in float32 or wider; weight: f32[], the
    weight :math:`w` of the acceleration.
    """

    inner_state: InnerState
    previous: Slots
    weight: TreeScalar

    def eval_params(self, params: Params) -> Params:
        """The parameters after the last proximal map, which are not extrapolated."""
        return tree.cast_like(self.previous, params)


@transformation
def proximal(
    inner: GradientTransformation,
    penalty: str | Callable[..., PyTree],
    where: Where | None = None,
    arguments: dict[str, Any] | None = None,
    accelerated: bool = False,
) -> GradientTransformation:
    r"""Minimize a loss and a penalty `h` by gradient steps, each followed by the proximal map.

    .. math:: \theta \leftarrow \mathrm{prox}_{\eta h}(\theta - \eta g), \qquad
        \mathrm{prox}_{\eta h}(x) = \arg\min_y \tfrac12 \lVert y - x \rVert^2 + \eta\, h(y)

    where :math:`\eta` is the rate of `inner` at this step, under any schedule. With `accelerated`
    (FISTA), the parameters :math:`\theta` are extrapolated from the last two points :math:`x` and
    :math:`x'`, and the gradient is taken there. The momentum is reset where a step turns back:

    .. math::
        x' &= \mathrm{prox}_{\eta h}(\theta - \eta g), \qquad
            w \leftarrow 1 \text{ if } \langle \theta - x', x' - x \rangle > 0, \\
        w' &= \tfrac12 \left(1 + \sqrt{1 + 4 w^2}\right), \qquad
            \theta \leftarrow x' + \tfrac{w - 1}{w'} (x' - x), \qquad
            x \leftarrow x', \quad w \leftarrow w'

    With a constraint, the extrapolated point is projected onto the set.

    Args:
        inner: an optimizer that multiplies the gradient by one number: :func:`sgd` without
            momentum, with any schedule, :func:`scale`, :func:`clip_by_global_norm`, or a chain of
            these.
        penalty: a name, or a function ``(tree, rate, **arguments) -> tree``. ``"l1"``, ``"l2"``
            (half the square) and ``"group_lasso"`` (whose groups are leaves, or with
            ``groups="row"`` rows), ``"nuclear_norm"`` and ``"total_variation"`` (along the last
            axis) take a ``strength`` of at least 0; ``"elastic_net"`` takes ``l1`` and ``l2`` of at
            least 0; ``"isotonic"`` (not decreasing along the last axis) takes nothing. Constraints
            have the names of :func:`project`, such as ``"non_negative"`` and ``"box"``.
        where: which leaves are penalized, as in :func:`masked`.
        arguments: those of the penalty. Arrays among them have derivatives in :func:`solve` with
            ``implicit=True``.
        accelerated: whether points are extrapolated; for :func:`solve`, and other losses without
            noise. :func:`eval_params` returns :math:`x`, the point before the extrapolation.

    The rate must be at most one over the largest curvature of the loss. A leaf without a gradient
    does not move.

    State: that of `inner`, within `ProximalState` if `accelerated`.

    Raises:
        ValueError: there is no penalty of that name; `inner` is a preconditioner, or has momentum;
            ``update`` is called without parameters; the map returns another tree; in ``init`` a
            path pattern of `where` matches no leaf, or the mask does not fit the parameters.
        TypeError: the penalty cannot be called with a tree, a rate and `arguments`; one of these is
            a schedule; an update is `Rows`.

    JAXopt's ``ProximalGradient`` has the same step, and by default searches for its rate; here the
    rate is that of `inner`. Optax, Keras and PyTorch have no such wrapper.

    Source: A. Beck and M. Teboulle, A Fast Iterative Shrinkage-Thresholding Algorithm for Linear
    Inverse Problems, 2009, doi:10.1137/080716542; B. O'Donoghue and E. Candès, Adaptive Restart
    for Accelerated Gradient Schemes, 2015, arXiv:1204.3982, section 3.2.

    >>> import gradtx
    >>> tx = proximal(gradtx.sgd(0.25), "l1", arguments={"strength": 1.0})
    >>> target = jnp.array([1.0, 0.1])
    >>> result = gradtx.solve(lambda x: jnp.sum((x - target) ** 2), jnp.zeros(2), tx)
    >>> result.params.round(4).tolist()
    [0.5, 0.0]
    """
    tx = with_extra_args_support(inner)
    for part in beyond_scalings(tx):
        raise ValueError(_no_rate(part))
    if isinstance(penalty, str):
        check_constant("proximal", arguments or {})
    function = functools.partial(_map(penalty), **(arguments or {}))
    check_function("proximal", "penalty", function, 2)

    def mapped(params: Params, rate: Any) -> Params:
        chosen = select(params, where)
        new = function(chosen, rate)
        structure: Any = jax.tree.structure(chosen)
        if jax.tree.structure(new) != structure:
            raise ValueError("proximal: the penalty's map must return a tree like its own")
        return merge(new, params)

    def plain(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Updates, State]:
        params = _checked(updates, params)
        point, rate, state = _stepped(inner_step, updates, state, params)
        new = mapped(point, rate)
        return _difference(new, params, updates), state

    def extrapolated(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Updates, State]:
        params = _checked(updates, params)
        point, rate, inner_state = _stepped(inner_step, updates, state.inner_state, params)
        new = mapped(point, rate)
        step = map_present(lambda a, b: a - widen(b), new, state.previous)
        turned = map_present(lambda a, p: _wide(p) - a, new, params)
        back = tree.vdot(turned, step).real > 0
        weight = jnp.where(back, 1, state.weight)
        following = (1 + jnp.sqrt(1 + 4 * weight**2)) / 2
        beyond = map_present(lambda a, s: a + (weight - 1) / following * s, new, step)
        # Extrapolation may leave a set; of a penalty the map at the rate 0 is the identity.
        updates = _difference(mapped(beyond, 0), params, updates)
        previous = map_present(lambda a, b: a.astype(b.dtype), new, state.previous)
        return updates, ProximalState(inner_state, merge(previous, state.previous), following)

    def init(params: Params) -> State:
        previous = map_present(lambda p: own_copy(widen(parameter(p))), params)
        return ProximalState(first(params), previous, jnp.ones([], jnp.float32))

    first = refusing(tx, where)
    start, run = (init, extrapolated) if accelerated else (first, plain)
    return around(tx, start, run, facets=(Nearest(mapped, where, at_own_rate=True),))


_SLIGHT = 2.0**-60  # whose square is a number too


def _stepped(
    inner_step: InnerStep, updates: Updates, state: State, params: Params
) -> tuple[Params, Array, State]:
    """The parameters after the inner step, in float32 or wider, its rate, and its state."""
    grads = map_present(lambda g: widen(jnp.asarray(g)), updates)
    # A gradient of zero does not tell the rate; one that no clip shortens does.
    none = _highest(grads) == 0
    seen = map_present(lambda g: jnp.where(none, jnp.full_like(g, _SLIGHT), g), grads)
    steps, state = inner_step(seen, state, params)
    rate = _highest(steps) / _highest(seen)

    def on_leaf(u: Array, g: Array, p: Any) -> Array:
        return _wide(p) + jnp.where(none, -rate * g, widen(u))

    return map_present(on_leaf, steps, grads, params), rate, state


def _no_rate(tx: GradientTransformation) -> str:
    scaling = tx.facet(Scaling)
    momentum = scaling is not None and scaling.by == "past"
    reason = (
        "its steps are those of a sum of gradients, and the penalty's share would be another: "
        "pass accelerated=True for momentum"
        if momentum
        else "the penalty's map is that of a step with one rate for all entries: use sgd with any "
        "schedule, or add a smooth penalty to the loss"
    )
    return (
        f"proximal: {name_of(tx)} does not multiply the gradient by one number at each step, and "
        f"{reason}"
    )


def _map(penalty: str | Callable[..., PyTree]) -> Callable[..., PyTree]:
    if callable(penalty):
        return penalty
    if penalty in PENALTIES:
        return PENALTIES[penalty]
    if f"projection_{penalty}" not in projections.__all__:
        known = [*PENALTIES, *(name.removeprefix("projection_") for name in projections.__all__)]
        raise ValueError(f"proximal: there is no penalty {penalty!r}; there are {', '.join(known)}")
    project = named_projection(penalty)
    return lambda tree, rate, **arguments: project(tree, **arguments)


def _checked(updates: Updates, params: Params | None) -> Params:
    params = needed("proximal", updates, params)
    for path, g in leaves_with_path(updates)[0]:
        if is_rows(g):
            raise TypeError(
                f"proximal needs the whole table at {path_string(path)!r}, where the update is "
                "Rows: make the gradient dense with to_dense()"
            )
    return params


def _wide(p: Any) -> Array:
    return widen(jnp.asarray(p))


def _highest(updates: Updates) -> Array:
    """The largest absolute value."""
    tops = [jnp.max(jnp.abs(u), initial=0) for u in jax.tree.leaves(updates)]
    return functools.reduce(jnp.maximum, tops, jnp.zeros([]))


def _difference(new: Params, params: Params, updates: Updates) -> Updates:
    def changed(a: Array, p: Any, g: Any) -> Array:
        return (a - _wide(p)).astype(jnp.asarray(g).dtype)

    return map_present(changed, new, params, updates)
