"""Stochastic gradient descent with Polyak's step size."""

from typing import Any, Literal

import jax.numpy as jnp

from gradtx import tree
from gradtx.checks import Limit, NonNegative, Number
from gradtx.composition.chain import chain, identity
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.tree import treewise
from gradtx.numerics import quotient_up_to
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array, EmptyState


@transformation
def scale_by_polyak(
    f_min: Number = 0.0,
    max_learning_rate: Limit = 1.0,
    eps: NonNegative = 0.0,
    variant: Literal["sps", "sps+"] = "sps",
) -> GradientTransformation:
    r"""Scale by the step size that would take a linear model of the loss to its minimum.

    .. math:: u = \min\left(\frac{f(\theta) - f^\star}{\lVert g \rVert^2 + \epsilon},
        \gamma\right) g

    Args:
        f_min: :math:`f^\star`, the least loss or a lower bound; 0 for a model that can fit its
            data exactly.
        max_learning_rate: :math:`\gamma \ge 0`; infinite for no bound.
        eps: :math:`\epsilon \ge 0`.
        variant: ``"sps"``, or ``"sps+"``, which takes no step where the loss is below
            :math:`f^\star`.

    ``update`` needs the extra argument ``value``, the loss. The norm is taken over all leaves
    together, in float32 or wider; where it is 0, so is the update (in Optax where its square, with
    :math:`\epsilon`, is at most 2.2e-16).

    State: none.

    Raises:
        ValueError: ``update`` is called without ``value``, or `variant` is unknown.

    Source: N. Loizou, S. Vaswani, I. Laradji and S. Lacoste-Julien, Stochastic Polyak Step-size for
    SGD: An Adaptive Learning Rate for Fast Convergence, 2021, arXiv:2002.10542, equation SPS_max;
    G. Garrigos, R. M. Gower and F. Schaipp, Function Value Learning, 2023, arXiv:2307.14528 (sps+).

    >>> tx = scale_by_polyak()
    >>> x = jnp.array([1.0, 2.0])
    >>> tx.update(2 * x, tx.init(x), x, value=jnp.sum(x**2))[0].tolist()
    [0.5, 1.0]
    """
    if variant not in ("sps", "sps+"):
        raise ValueError(f"scale_by_polyak: variant must be 'sps' or 'sps+', not {variant!r}")

    def rule(g: Any, s: Any, t: Any, *, value: Array) -> Any:
        gap = value - f_min
        if variant == "sps+":
            gap = jnp.maximum(gap, 0)
        step = quotient_up_to(max_learning_rate, gap, tree.norm_sq(g) + eps)
        return tree.scale(step, g), {}

    return treewise(EmptyState, None, rule, rows=True)


@optimizer
def polyak_sgd(
    max_learning_rate: Limit = 1.0,
    scaling: NonNegative = 1.0,
    f_min: Number = 0.0,
    eps: NonNegative = 0.0,
    variant: Literal["sps", "sps+"] = "sps",
) -> GradientTransformation:
    r"""Gradient descent with Polyak's step size.

    .. math:: \theta \leftarrow \theta - s \min\left(
        \frac{f(\theta) - f^\star}{\lVert g \rVert^2 + \epsilon}, \gamma\right) g

    Args:
        max_learning_rate: :math:`\gamma \ge 0`, the largest step size before the scaling.
        scaling: :math:`s \ge 0`, a factor on the step; a number, an array, or a schedule. In Optax
            it multiplies the gradient before its norm is taken, so that steps below the bound are
            *divided* by it, contrary to its own documentation.
        f_min: :math:`f^\star`, the least loss; this and the rest as in :func:`scale_by_polyak`.
        eps: :math:`\epsilon \ge 0`, added to the squared norm.
        variant: ``"sps"`` or ``"sps+"``.

    Source: N. Loizou, S. Vaswani, I. Laradji and S. Lacoste-Julien, Stochastic Polyak Step-size for
    SGD: An Adaptive Learning Rate for Fast Convergence, 2021, arXiv:2002.10542, equation SPS_max.

    >>> import gradtx
    >>> result = gradtx.solve(lambda x: jnp.sum(x**2), jnp.ones(3), polyak_sgd(), max_steps=30)
    >>> bool(result.value < 1e-6)
    True
    """
    # The same links as in Optax, so that a run with its states can continue here.
    return chain(
        chain(
            scale_by_polyak(f_min, max_learning_rate, eps, variant), scale_by_learning_rate(scaling)
        ),
        identity(),
    )
