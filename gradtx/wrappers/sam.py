"""Sharpness-aware minimization: gradients taken at the worst point nearby."""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx import tree
from gradtx.checks import NonNegative, PositiveCount
from gradtx.composition.apply import apply_updates
from gradtx.composition.around import InnerStep, around
from gradtx.composition.chain import chain
from gradtx.core.pair import GradientTransformation, transformation, with_extra_args_support
from gradtx.distributed.aggregation import aggregate, weight_among
from gradtx.engine.leaves import parameter
from gradtx.engine.lift import needed
from gradtx.leaves.paths import is_leaf, map_present
from gradtx.leaves.rows import dense
from gradtx.leaves.whole import whole_of
from gradtx.numerics import cast, divide, increment, own_copy, widen
from gradtx.numerics.control import branch, in_form_of
from gradtx.optimizers.sgd import sgd
from gradtx.programs.tracing import is_tracer, tracked, vary
from gradtx.sharding.axes import axes_of
from gradtx.transforms.norms import adaptive_normalize
from gradtx.tree.sums import norm_of_all
from gradtx.types import Array, EmptyState, Params, PyTree, Slots, State, StateOf, Updates


class SAMState(NamedTuple):
    """The states of the two optimizers, and where the outer one stands.

    steps_since_sync: i32[], adversarial steps since the last outer one; cache: the outer
    parameters, or None in opaque mode.
    """

    steps_since_sync: Any
    opt_state: Annotated[State, StateOf("optimizer")]
    adv_state: Annotated[State, StateOf("adv_optimizer")]
    cache: Slots


class GSAMState(NamedTuple):
    """`SAMState` with the gradient at the outer parameters, which is None in opaque mode."""

    steps_since_sync: Any
    opt_state: Annotated[State, StateOf("optimizer")]
    adv_state: Annotated[State, StateOf("adv_optimizer")]
    cache: Slots
    gradient: Slots


Blend = Callable[[Updates, Updates], Updates]


def _latest(first: Array, new: PyTree, old: PyTree) -> PyTree:
    """The tree `new` in the `first` call after an outer step, and `old` in other calls.

    A leaf of `old` also stays if it is None in `new`.
    """

    def on_leaf(n: Any, o: Any) -> Any:
        return o if n is None else jnp.where(first, cast(jnp.asarray(n), o.dtype), o)

    return jax.tree.map(on_leaf, new, old, is_leaf=is_leaf)


class _SharpnessAware(NamedTuple):
    """The steps of :func:`sam`; with `blend`, of :func:`gsam`.

    blend: makes one gradient of the first, at the outer parameters, and the last.
    """

    adversary: GradientTransformation
    sync_period: Any
    reset_state: bool
    batch_axis_name: str | None
    blend: Blend | None

    def climb(
        self, outer: InnerStep, updates: Updates, state: State, params: Params
    ) -> tuple[Updates, State]:
        """The adversary's updates, with their sign reversed."""
        against, state = self.adversary.update(
            updates, state, params, **weight_among(outer.extra_args)
        )
        return tree.scale(-1, against), state

    def gradient(self, outer: InnerStep, params: Params, i: int) -> Updates:
        """The gradient at a worse point, averaged over the devices of an axis."""
        grad_fn: Any = outer.extra_args["grad_fn"]
        if self.batch_axis_name is None:
            return grad_fn(params, i)
        # Where they do not differ, JAX would sum the gradients of all devices.
        differing = tracked(axes_of(self.batch_axis_name))
        own = grad_fn(vary(params, differing), i)
        mean = aggregate(self.batch_axis_name)
        return mean.update(own, EmptyState(), **weight_among(outer.extra_args))[0]

    def transparent(
        self, outer: InnerStep, updates: Updates, state: Any, params: Params
    ) -> tuple[Updates, State]:
        """One move: a climb, or from the worse point a step of the outer parameters."""
        first = state.steps_since_sync == 0
        steps = increment(state.steps_since_sync)
        last = steps >= self.sync_period
        cache = _latest(first, params, state.cache)
        clean = None if self.blend is None else _latest(first, updates, state.gradient)

        def step() -> tuple[Updates, State, State]:
            grads = updates if self.blend is None else self.blend(clean, updates)
            # The value and the gradient among the extra arguments are those of the worse point.
            new, opt_state = outer.elsewhere()(grads, state.opt_state, cache, grad_fn=None)
            back = map_present(lambda u, c, p: widen(c) - widen(p) + widen(u), new, cache, params)
            adv_state = self.adversary.init(cache) if self.reset_state else state.adv_state
            opt_state = in_form_of(opt_state, state.opt_state)
            return in_form_of(back, updates), opt_state, in_form_of(adv_state, state.adv_state)

        def worsen() -> tuple[Updates, State, State]:
            new, adv_state = self.climb(outer, updates, state.adv_state, params)
            return in_form_of(new, updates), state.opt_state, in_form_of(adv_state, state.adv_state)

        new, opt_state, adv_state = branch(last, step, worsen)
        state = state._replace(
            steps_since_sync=jnp.where(last, 0, steps),
            opt_state=opt_state,
            adv_state=adv_state,
            cache=cache,
        )
        return new, state if self.blend is None else state._replace(gradient=clean)

    def opaque(
        self, outer: InnerStep, updates: Updates, state: Any, params: Params
    ) -> tuple[Updates, State]:
        """All climbs, and the step."""
        if outer.extra_args.get("grad_fn") is None:
            raise ValueError("sam in opaque mode needs update(..., grad_fn=(params, i) -> grads)")
        worse, grads, adv_state = params, updates, state.adv_state
        for i in range(self.sync_period - 1):
            uphill, adv_state = self.climb(outer, grads, adv_state, worse)
            worse = apply_updates(worse, uphill)
            # A leaf without a gradient in this step neither climbs nor moves.
            grads = map_present(lambda u, g: g, updates, self.gradient(outer, worse, i))
        grads = grads if self.blend is None else self.blend(updates, grads)
        if self.reset_state:
            adv_state = self.adversary.init(whole_of(params))
        new, opt_state = outer(grads, state.opt_state, params, grad_fn=None)
        return new, state._replace(opt_state=opt_state, adv_state=adv_state)


def _sharpness_aware(
    optimizer: GradientTransformation,
    adv_optimizer: GradientTransformation,
    sync_period: Any,
    reset_state: bool,
    opaque_mode: bool,
    batch_axis_name: str | None,
    blend: Blend | None = None,
) -> GradientTransformation:
    """:func:`sam`; with `blend` the last gradient is blended with the first, for :func:`gsam`."""
    adversary = with_extra_args_support(adv_optimizer)
    if opaque_mode and is_tracer(sync_period):
        raise TypeError(
            "sam: in opaque mode sync_period says how often a step calls grad_fn, and must be a "
            "Python integer"
        )
    moves = _SharpnessAware(adversary, sync_period, reset_state, batch_axis_name, blend)
    step = moves.opaque if opaque_mode else moves.transparent

    def init(params: Params) -> State:
        count = jnp.zeros([], jnp.int32)
        states = optimizer.init(params), adversary.init(params)
        # In opaque mode neither parameters nor gradients are kept from one step to the next.
        kept = None if opaque_mode else map_present(parameter, params)
        parts = count, *states, jax.tree.map(own_copy, kept)
        return SAMState(*parts) if blend is None else GSAMState(*parts, tree.zeros_like(kept))

    def run(
        outer: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Updates, State]:
        return step(outer, dense(updates), state, needed("sam", updates, params))

    return around(optimizer, init, run)


@transformation
def sam(
    optimizer: GradientTransformation,
    adv_optimizer: GradientTransformation,
    sync_period: PositiveCount = 2,
    reset_state: bool = True,
    opaque_mode: bool = False,
    batch_axis_name: str | None = None,
) -> GradientTransformation:
    r"""Climb to a worse point nearby, then step from the original point with the gradient there.

    .. math:: \theta' = \theta + \rho \frac{\nabla f(\theta)}{\lVert \nabla f(\theta) \rVert},
        \qquad \theta \leftarrow \theta - \eta \nabla f(\theta')

    for ``sam(sgd(eta), chain(normalize(), sgd(rho)))``.

    Args:
        optimizer: the optimizer of the parameters.
        adv_optimizer: the optimizer whose updates, with their sign reversed, climb. It gets the
            extra argument ``weight`` alone.
        sync_period: calls for one step of `optimizer`, at least 1; the other calls climb.
        reset_state: restart `adv_optimizer` after each step of `optimizer`.
        opaque_mode: climb inside one call of ``update``, which then needs an extra argument
            ``grad_fn``, ``(params, i) -> gradients``, and makes a whole step. Otherwise every call
            makes one move, and between the steps the parameters are the worse ones.
        batch_axis_name: in opaque mode, an axis over which to average the gradients of ``grad_fn``,
            each device's of its own loss, by the extra argument ``weight`` if there is one.

    State: `SAMState`. `Rows` become whole tables. Where every call makes one move, a leaf must have
    a gradient in all calls of a round or in none: without one at the step, the leaf stays at the
    worse point.

    Raises:
        TypeError: in opaque mode `sync_period` is traced, as a schedule's value is.

    Source: P. Foret et al., Sharpness-Aware Minimization for Efficiently Improving Generalization,
    2021, arXiv:2010.01412, algorithm 1.

    >>> import gradtx
    >>> tx = sam(gradtx.sgd(0.1), gradtx.chain(gradtx.normalize(), gradtx.sgd(0.05)))
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return _sharpness_aware(
        optimizer, adv_optimizer, sync_period, reset_state, opaque_mode, batch_axis_name
    )


@transformation(native_schedules=True)
def asam(
    optimizer: GradientTransformation,
    rho: NonNegative = 0.5,
    eta: NonNegative = 0.01,
    sync_period: PositiveCount = 2,
    reset_state: bool = True,
    opaque_mode: bool = False,
    batch_axis_name: str | None = None,
) -> GradientTransformation:
    r"""SAM with a neighborhood in proportion to the parameters, and so invariant to their scale.

    .. math::
        \theta' &= \theta
            + \rho \frac{T^2 \nabla f(\theta)}{\lVert T \nabla f(\theta) \rVert}, \qquad
            T = |\theta| + \eta, \\
        \theta &\leftarrow \theta - \alpha \nabla f(\theta')

    for ``asam(sgd(alpha), rho, eta)``. It is
    ``sam(optimizer, chain(adaptive_normalize(eta), sgd(rho)))``.

    Args:
        optimizer: the optimizer of the parameters.
        rho: :math:`\rho \ge 0`, the size of the neighborhood.
        eta: :math:`\eta \ge 0`.
        sync_period: this and the rest as in :func:`sam`.
        reset_state: restart the climb's optimizer after each step of `optimizer`; must be False if
            `rho` is a schedule.
        opaque_mode: climb inside one call of ``update``.
        batch_axis_name: in opaque mode, an axis over which to average the gradients.

    State: `SAMState`. Every parameter is scaled; the authors' code leaves biases as they are, for
    which put :func:`masked` around `adaptive_normalize`.

    Raises:
        ValueError: `rho` is a schedule, and `reset_state` is True.

    Source: J. Kwon et al., ASAM: Adaptive Sharpness-Aware Minimization for Scale-Invariant Learning
    of Deep Neural Networks, 2021, arXiv:2102.11600, algorithm 1.

    >>> import gradtx
    >>> tx = asam(gradtx.sgd(0.1), rho=0.05)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    if reset_state and callable(rho):
        raise ValueError("asam: with a schedule for rho pass reset_state=False")
    adversary = chain(adaptive_normalize(eta), sgd(rho))
    return sam(optimizer, adversary, sync_period, reset_state, opaque_mode, batch_axis_name)


@transformation
def gsam(
    optimizer: GradientTransformation,
    adv_optimizer: GradientTransformation,
    alpha: NonNegative = 0.4,
    reset_state: bool = True,
    opaque_mode: bool = False,
    batch_axis_name: str | None = None,
) -> GradientTransformation:
    r"""SAM that also narrows the gap between the loss nearby and the loss itself.

    .. math::
        \theta' &= \theta + \rho \frac{\nabla f(\theta)}{\lVert \nabla f(\theta) \rVert}, \qquad
            \nabla f(\theta)_\perp = \nabla f(\theta)
            - \frac{\langle \nabla f(\theta'), \nabla f(\theta) \rangle}
            {\lVert \nabla f(\theta') \rVert^2} \nabla f(\theta'), \\
        \theta &\leftarrow \theta
            - \eta \left(\nabla f(\theta') - \alpha\, \nabla f(\theta)_\perp\right)

    for ``gsam(sgd(eta), chain(normalize(), sgd(rho)))``. The part of the gradient that is
    orthogonal to :math:`\nabla f(\theta')` is :math:`\nabla f(\theta)_\perp`.

    Args:
        optimizer: the optimizer of the parameters.
        adv_optimizer: the optimizer whose updates, with their sign reversed, climb, as in
            :func:`sam`: ``chain(normalize(), sgd(rho))``.
        alpha: :math:`\alpha \ge 0`; 0 is SAM.
        reset_state: this and the rest as in :func:`sam`. With a schedule in `adv_optimizer`, such
            as the authors' radius that falls with the learning rate, it must be False.
        opaque_mode: climb inside one call of ``update``.
        batch_axis_name: in opaque mode, an axis over which to average the gradients.

    State: `GSAMState`: in transparent mode one gradient more than `SAMState`.

    Source: J. Zhuang et al., Surrogate Gap Minimization Improves Sharpness-Aware Training, 2022,
    arXiv:2203.08065, algorithm 1.

    >>> import gradtx
    >>> tx = gsam(gradtx.sgd(0.1), gradtx.chain(gradtx.normalize(), gradtx.sgd(0.05)))
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """

    def blend(clean: Updates, worse: Updates) -> Updates:
        # Products of gradients in this unit neither overflow nor vanish.
        length = norm_of_all(worse)
        w, c = (map_present(lambda g: widen(g) / length.unit, x) for x in (worse, clean))
        # The part parallel to `worse`, as a multiple of it. Leaves without a gradient are None.
        along = divide(jnp.real(tree.vdot(w, c)), jnp.square(length.value))

        def on_leaf(w: Any, c: Any) -> Any:
            return cast(widen(w) - alpha * (widen(c) - along * widen(w)), w.dtype)

        return tree.map_updates(on_leaf, worse, clean)

    return _sharpness_aware(
        optimizer, adv_optimizer, 2, reset_state, opaque_mode, batch_axis_name, blend
    )
