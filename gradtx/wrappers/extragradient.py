"""The extragradient method: a second gradient, at the point to which the first one leads."""

from typing import Any, NamedTuple

import jax

from gradtx.composition.apply import apply_updates
from gradtx.composition.around import InnerStep, around
from gradtx.core.pair import GradientTransformation, reduced_axes, transformation
from gradtx.engine.lift import needed, refused_rows
from gradtx.leaves.paths import leaves_with_path, map_present
from gradtx.leaves.rows import dense, is_rows
from gradtx.numerics.control import in_form_of
from gradtx.programs.tracing import tracked, vary
from gradtx.transforms.linesearch import conjugate
from gradtx.types import InnerState, Params, State, Updates


class ExtragradientState(NamedTuple):
    """inner_state: the optimizer's."""

    inner_state: InnerState


@transformation
def extragradient(inner: GradientTransformation) -> GradientTransformation:
    r"""Look where a step leads, and take it from the start with the gradient from there.

    With :math:`F` the gradient, and `u` the update of the inner optimizer,

    .. math::
        \theta_{k + 1/2} &= \theta_k + u(F(\theta_k)) \\
        \theta_{k + 1} &= \theta_k + u(F(\theta_{k + 1/2}))

    which for ``extragradient(sgd(eta))`` is :math:`\theta_{k + 1} = \theta_k - \eta F(\theta_k -
    \eta F(\theta_k))`. It is for games, such as :math:`\min_x \max_y f(x, y)`, in which
    :math:`F = (\nabla_x f, -\nabla_y f)` turns around the solution: gradient descent then spirals
    outwards, and this inwards.

    Args:
        inner: the optimizer. Put ``masked(scale(-1.0), "y")`` before it to maximize over `y`, and
            :func:`project` after it to stay in a set: both steps start at :math:`\theta_k` and end
            in it. It goes through both steps one after the other, as in extrapolated Adam. An
            aggregation over devices belongs inside, ``extragradient(chain(aggregate("data"),
            sgd(eta)))``: one around this would leave each device's second gradient as it is.

    ``update`` takes `params` and the extra argument `value_fn`, whose gradient it takes, or
    instead of that `grad_fn`, ``params -> gradients``, for games in which each player has a loss of
    its own. :func:`minimize`, :func:`make_step` and :func:`solve` pass `value_fn`: a step takes
    two gradients. :func:`optimistic_gradient_descent` takes one, and remembers the last.

    State: `ExtragradientState`.

    Raises:
        ValueError: ``update`` is called without `params`, or without both functions.
        TypeError: a gradient is `Rows`, since the second one is of all rows.

    Source: G. M. Korpelevich, The Extragradient Method for Finding Saddle Points and Other
    Problems, 1976, Matecon 12, 747-756; G. Gidel et al., A Variational Inequality Perspective on
    Generative Adversarial Networks, 2019, arXiv:1802.10551, algorithm 4 (with Adam).

    >>> import gradtx
    >>> import jax.numpy as jnp
    >>> game = lambda p: p["x"] * p["y"]
    >>> rival = gradtx.masked(gradtx.scale(-1.0), "y")
    >>> start = {"x": jnp.array(1.0), "y": jnp.array(1.0)}
    >>> plain = gradtx.chain(rival, gradtx.sgd(0.3))
    >>> lost = gradtx.solve(game, start, plain, max_steps=100).params
    >>> won = gradtx.solve(game, start, extragradient(plain), max_steps=100).params
    >>> bool(jnp.hypot(lost["x"], lost["y"]) > 50), bool(jnp.hypot(won["x"], won["y"]) < 0.05)
    (True, True)
    """

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Updates, State]:
        if not jax.tree.leaves(updates):
            return updates, state
        params = needed("extragradient", updates, params)
        grad_fn: Any = inner_step.extra_args.get("grad_fn")
        value_fn: Any = inner_step.extra_args.get("value_fn")
        if grad_fn is None and value_fn is None:
            raise ValueError(
                "extragradient takes a second gradient, so its update needs value_fn, which "
                "minimize, make_step and solve pass, or grad_fn=params -> gradients"
            )
        for path, g in leaves_with_path(updates)[0]:
            if is_rows(g):
                raise refused_rows("extragradient", path)
        # The parameters without those that have no gradient.
        trainable = map_present(lambda u, p: p, updates, params)
        # A function of one argument is for this transformation, and not for those within.
        extra_args: dict[str, Any] = {} if grad_fn is None else {"grad_fn": None}
        first, between = inner_step(updates, state.inner_state, params, **extra_args)
        # Where they do not differ, JAX would sum the gradients of all devices.
        differing = tracked(reduced_axes(inner))
        ahead = vary(apply_updates(trainable, first), differing)
        if grad_fn is None:
            value, grads = jax.value_and_grad(value_fn)(ahead)
            grads = conjugate(grads)
            extra_args = {"value": value, "grad": grads}
        else:
            grads = dense(grad_fn(ahead))
        second, after = inner_step.elsewhere()(grads, between, params, **extra_args)
        return second, ExtragradientState(in_form_of(after, state.inner_state))

    return around(inner, lambda params: ExtragradientState(inner.init(params)), run)
