"""Generalized primal averaging: gradients between an optimizer's iterate and its average."""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checks import Decay, Range
from gradtx.core.pair import GradientTransformation, transformation
from gradtx.engine.lift import elementwise
from gradtx.leaves.paths import is_leaf
from gradtx.numerics import Step, cast, compute_dtype, mean_dtype, own_copy, widen
from gradtx.types import Array, DType, Params, Slots, TreeScalar


def first_iterate(p: Any, dtype: DType | None) -> Array:
    """A copy of a parameter, in the type in which `z` is kept; float32 or wider unless given."""
    p = jnp.asarray(p)
    return own_copy(p, compute_dtype(p.dtype) if dtype is None else mean_dtype(p, dtype))


def average_beyond(params: Params, z: Slots, between: Any) -> Params:
    """The average `x` of which the parameters have the part `between`, and `z` the rest."""

    def average(y: Any, z: Any) -> Any:
        if y is None or z is None:
            return y
        y = jnp.asarray(y)
        return cast((widen(y) - (1 - between) * widen(z)) / between, y.dtype)

    return jax.tree.map(average, params, z, is_leaf=is_leaf)


class PrimalAveragingState(NamedTuple):
    """z: like the parameters, in float32 or wider unless given; mu_y: between them and z now."""

    z: Slots
    mu_y: TreeScalar

    def eval_params(self, params: Params) -> Params:
        """The average, in the types of the parameters."""
        return average_beyond(params, self.z, self.mu_y)


@transformation
def primal_averaging(
    mu_x: Decay = 0.9,
    mu_y: Annotated[Any, Range(0.0, 1.0, low_open=True)] = 0.8,
    state_dtype: DType | None = None,
) -> GradientTransformation:
    r"""Average an optimizer's iterates with one number, and take gradients with another.

    To evaluate at an average and leave the run as it is, prefer :func:`ema_params`.

    .. math::
        z_{t+1} &= z_t + u_t, \qquad u_t \text{ the update for the gradient at } y_t, \\
        x_{t+1} &= \mu_x x_t + (1 - \mu_x) z_{t+1}, \\
        y_{t+1} &= \mu_y x_{t+1} + (1 - \mu_y) z_{t+1}

    where :math:`u_t` comes from the links before it in a chain: put it last, as in
    ``chain(adamw(1e-3), primal_averaging())``. The parameters being trained are :math:`y`;
    :func:`eval_params` returns the average :math:`x`, at which to evaluate. All three begin at the
    initial parameters.

    Args:
        mu_x: :math:`\mu_x` in :math:`[0, 1)`; the average is over about :math:`1 / (1 - \mu_x)`
            steps. A number, an array, or a schedule.
        mu_y: :math:`\mu_y` in :math:`(0, 1]`; a number, an array, or a schedule, which is read at
            the step that makes :math:`y_{t+1}`.
        state_dtype: the type in which :math:`z` is kept; float32 or wider unless given.

    Around gradient descent with a rate :math:`\eta`, :math:`\mu_x = \beta` and :math:`\mu_y = 1`
    are a momentum of :math:`\beta` with the rate :math:`(1 - \beta) \eta`, and :math:`\mu_x = \mu_y
    = \beta` are Nesterov's. :func:`schedule_free` has a uniform average in place of the exponential
    one. Weight decay in the chain acts on :math:`y`, as in the authors' code.

    The update is computed with :math:`x_t = (y_t - (1 - \mu_y) z_t) / \mu_y` put in, so that no
    copy of :math:`x` is kept; for constant numbers it is
    :math:`(1 - \mu_x)(z_t - y_t) + (1 - \mu_x \mu_y) u_t`.

    State: `PrimalAveragingState`. There is one :math:`\mu_y` for all leaves: in a step in which its
    schedule changes, every leaf (and every row of a table) needs a gradient; where one is missing,
    :func:`eval_params` is wrong from then on.

    Raises:
        ValueError: ``update`` is called without parameters.

    Source: A. Defazio et al., Smoothing DiLoCo with Primal Averaging for Faster Training of LLMs,
    2025, arXiv:2512.17131, there called GPA; the update and the numbers unless given are those of
    the authors' code, https://github.com/facebookresearch/optimizers.

    >>> import gradtx
    >>> tx = gradtx.chain(gradtx.sgd(1.0), primal_averaging(0.5, 0.5))
    >>> params, state = jnp.zeros(1), tx.init(jnp.zeros(1))
    >>> for _ in range(2):
    ...     params, state = gradtx.apply_gradients(tx, jnp.ones(1), params, state)
    >>> params.tolist(), gradtx.eval_params(tx, state, params).tolist()
    ([-1.625], [-1.25])
    """

    def slots(p: Array) -> dict[str, Array]:
        return {"z": first_iterate(p, state_dtype)}

    def rule(u: Array, s: Any, t: Step, y: Array) -> Any:
        z = s.z + u
        y_weight = mu_x * mu_y / s.mu_y  # a schedule of mu_y moves y along x - z
        return (1 - y_weight) * (z - y) + y_weight * (1 - s.mu_y) * u, {"z": z}

    def advance(s: Any, t: Step) -> dict[str, Any]:
        return {"mu_y": mu_y}

    # The first x is y and z, whatever the number between them.
    return elementwise(PrimalAveragingState, slots, rule, start={"mu_y": 1.0}, advance=advance)
