"""Gradients without a backward pass: one estimate, and the state with the key."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.composition.apply import take_step
from gradtx.composition.around import InnerStep, around
from gradtx.core.pair import GradientTransformation, transformation, with_extra_args_support
from gradtx.estimators.directions import moved
from gradtx.estimators.estimator import Estimator
from gradtx.names.namespace import warn
from gradtx.numerics import cast
from gradtx.programs.tracing import is_tracer, varying_axes
from gradtx.training.loss_scale import if_divides
from gradtx.types import Array, InnerState, Key, Params, PyTree, State, Updates
from gradtx.types.keys import check_key, own_key


class EstimatedGradientsState(NamedTuple):
    """The key of the next step's directions, and the inner state.

    flat_steps: i32[], the steps in which the loss was the same on both sides of the parameters in
    every direction, so that the gradient was zero.
    """

    gradient_key: Key
    flat_steps: Any
    inner_state: InnerState


@transformation
def estimated_gradients(
    inner: GradientTransformation, gradients: Estimator
) -> GradientTransformation:
    r"""Take the steps of an optimizer with gradients that are estimated without a backward pass.

    .. math:: \hat g_t = \sum_k c_k z_k, \qquad \theta_t = \theta_{t-1} + u(\hat g_t)

    for the directions :math:`z_k` and numbers :math:`c_k` of the estimator, and the updates
    :math:`u` of the optimizer.

    Args:
        inner: the optimizer; put this around all of it.
        gradients: how gradients are estimated: :func:`spsa`, :func:`forward_gradients` or
            :func:`evolution_strategies`.

    :func:`minimize` and :func:`make_step` evaluate the loss as the estimator says; their argument
    `gradients` puts this around their optimizer. ``update`` by itself gives `inner` the gradients
    that it gets.

    State: `EstimatedGradientsState`. The key, which begins with that of the estimator, is split at
    every step, so that a run that is stopped and resumed takes the same steps.

    Raises:
        TypeError: `gradients` is not an estimator, or its key is no key.
        ValueError: the gradients of `inner` are estimated already.

    Source: J. C. Spall, Multivariate Stochastic Approximation Using a Simultaneous Perturbation
    Gradient Approximation, 1992, IEEE Transactions on Automatic Control 37.

    >>> import gradtx
    >>> tx = estimated_gradients(gradtx.adam(0.1), gradtx.spsa(1e-2))
    >>> step = gradtx.make_step(lambda x: jnp.sum((x - 1) ** 2), tx)
    >>> params = jnp.zeros(2)
    >>> state = step.init(params)
    >>> for _ in range(100):
    ...     params, state, _ = step(params, state)
    >>> bool(jnp.allclose(params, 1, atol=0.1)), int(state.flat_steps)
    (True, 0)
    """
    key = check_estimator("estimated_gradients", gradients).declaration.arguments["key"]
    check_key("estimated_gradients", "key", key)
    tx = with_extra_args_support(inner)
    if tx.saying(Estimator):
        raise ValueError(
            "estimated_gradients: the gradients of the optimizer are estimated already: put it "
            "around all of the optimizer, once"
        )

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Any, State]:
        result, inner_state = inner_step(updates, state.inner_state, params)
        return result, after_step(state, jnp.array(False), inner_state)

    def init(params: Params) -> State:
        return EstimatedGradientsState(own_key(key), jnp.zeros([], jnp.int32), tx.init(params))

    return around(
        tx,
        init,
        run,
        step=functools.partial(take_step, tx),
        facets=(*if_divides(tx), gradients),
    )


def check_estimator(where: str, gradients: Any) -> Estimator:
    """`gradients`; TypeError unless it is an estimator."""
    if not isinstance(gradients, Estimator):
        raise TypeError(
            f"{where}: gradients must be an estimator, such as gradtx.spsa(1e-3), not "
            f"{gradients!r:.80}"
        )
    return gradients


def estimating(where: str, tx: Any, gradients: Any) -> GradientTransformation:
    """`tx` with gradients that are estimated, if an estimator is given; else `tx` itself.

    Raises:
        TypeError: `gradients` is something else.
        ValueError: the gradients of `tx` are estimated in another way, or it acts before they are
            taken, as :func:`exact_rows` does.
    """
    if gradients is None:
        return with_extra_args_support(tx)
    tx = with_extra_args_support(tx)
    if tx.facet(Estimator) == check_estimator(where, gradients):
        return tx
    for each in (tx, *tx.within):
        if each.traits.before_gradients is not None:
            raise ValueError(
                f"{where}: {each!r:.80} acts before gradients are taken, by what their backward "
                "pass will touch, and with gradients= there is none"
            )
    return estimated_gradients(tx, gradients)


def estimator_of(tx: GradientTransformation) -> Estimator | None:
    """How the gradients of `tx` are estimated; None if they are not.

    Raises:
        ValueError: those of a transformation within `tx` are, whose loss is not seen there.
    """
    estimator = tx.facet(Estimator)
    if estimator is None and tx.saying(Estimator):
        raise ValueError(
            "estimated_gradients must be the outermost transformation, once: what is around it "
            "would get gradients of a backward pass: write estimated_gradients(chain(...), ...)"
        )
    return estimator


def key_in(state: State) -> Array:
    """The random key of the directions of one step.

    Raises:
        ValueError: the state holds none.
    """
    now: Array = jax.random.split(_own_state(state).gradient_key)[1]
    return now


def _own_state(state: State) -> EstimatedGradientsState:
    if not isinstance(state, EstimatedGradientsState):
        raise ValueError(
            "gradients: the state has no random key for directions: make it with step.init(params) "
            "or with estimated_gradients(tx, gradients).init(params)"
        )
    return state


def with_flat(state: State, flat: Array) -> State:
    """The state after a step, which counts whether the values of the loss did not differ."""
    steps, flat_step = state.flat_steps, flat.astype(jnp.int32)
    axes = varying_axes(jax.typeof(flat_step)) - varying_axes(jax.typeof(steps))
    if axes:  # devices have losses of their own, and the state is that of all
        flat_step = jax.lax.pmin(flat_step, tuple(sorted(axes)))
    return state._replace(flat_steps=steps + flat_step)


def optimizer_of(tx: GradientTransformation) -> GradientTransformation:
    """The optimizer that gets estimated gradients; `tx` itself if none does."""
    return tx if estimator_of(tx) is None else tx.inside[0]


def inner_state_of(tx: GradientTransformation, state: State) -> State:
    """The state of that optimizer."""
    return state if estimator_of(tx) is None else _own_state(state).inner_state


def after_step(state: State, flat: Array, inner_state: State) -> State:
    """The state after a step of the optimizer that gets estimated gradients."""
    following = jax.random.split(state.gradient_key)[0]
    return with_flat(EstimatedGradientsState(following, state.flat_steps, inner_state), flat)


class Estimated(NamedTuple):
    """What one estimate found: the loss, its gradient, what else it returned, `flat`."""

    value: Array
    gradients: Updates
    aux: Any
    flat: Array


def estimate(
    gradients: Estimator,
    loss: Callable[[Params], tuple[Array, Any]],
    trained: Params,
    key: Array,
    seed: Callable[[Array], Array],
    has_aux: bool,
) -> Estimated:
    """Estimate the gradient of a loss.

    Args:
        gradients: the estimator.
        loss: ``params -> (value, aux)``.
        trained: the parameters.
        key: a random key, to be used once.
        seed: ``value -> cotangent of the value``.
        has_aux: whether what else the loss returns is wanted, for which it is evaluated once more.

    Raises:
        ValueError: the loss is not a scalar.
    """
    leaves, treedef = jax.tree.flatten(trained)
    structure: Any = treedef
    directions = gradients.directions(key, leaves)

    def along(k: Any, step: Any) -> Array:
        at = [moved(p, step, directions.leaf(i, k)) for i, p in enumerate(leaves)]
        return scalar(gradients, loss(structure.unflatten(at))[0])

    value, weights, flat = gradients.measure(along)
    aux = None
    if has_aux:
        value, aux = loss(trained)
    weights = weights * cast(seed(value), weights.dtype)
    each = [
        gradients.gradient(weights, functools.partial(directions.leaf, i), p.dtype)
        for i, p in enumerate(leaves)
    ]
    return Estimated(value, structure.unflatten(each), aux, flat)


def scalar(gradients: Estimator, value: Array) -> Array:
    """The value of a loss; ValueError unless it is a single number."""
    if value.shape:
        raise ValueError(
            f"gradients: {gradients.declaration.name} takes a scalar loss, not one of shape "
            f"{value.shape}: take its mean or sum"
        )
    return value


def say_if_flat(gradients: Estimator, flat: Any, value: Any, params: PyTree) -> None:
    """Warn if the values of the loss did not differ, where that is known.

    Args:
        gradients: the estimator.
        flat: whether, or in how many steps.
        value: the loss, or those of several steps.
        params: the parameters.
    """
    if is_tracer(flat) or not int(flat):
        return
    warn(gradients.if_flat([value.dtype, *_types(params)]))


def _types(params: PyTree) -> Iterator[Any]:
    for leaf in jax.tree.leaves(params):
        dtype = jnp.result_type(leaf)
        if jnp.issubdtype(dtype, jnp.inexact):
            yield dtype
