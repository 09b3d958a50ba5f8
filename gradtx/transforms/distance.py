"""Steps in proportion to the distance covered."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.checks import NonNegative, Number
from gradtx.engine import leafwise
from gradtx.numerics import accumulator_dtype, divide, sum_sq
from gradtx.pair import GradientTransformation, transformation
from gradtx.transforms.trust import norm
from gradtx.types import Array, DType, Slots


class ScaleByDistanceOverGradientsState(NamedTuple):
    """Two numbers for each leaf, and where it started.

    max_dist, grad_sum_of_squares: in float32 or wider; init_params: in `param_dtype`.
    """

    max_dist: Slots
    grad_sum_of_squares: Slots
    init_params: Slots


@transformation
def scale_by_distance_over_gradients(
    reps_rel: NonNegative = 1e-6,
    eps: NonNegative = 1e-8,
    param_dtype: DType = jnp.float32,
    global_scale: Number = 1.0,
) -> GradientTransformation:
    r"""Scale each leaf by the distance it has come over the gradients it has seen (layer-wise DoG).

    .. math::
        r_t &= \max(r_{t-1}, \lVert\theta_{t-1} - \theta_0\rVert), \qquad
            r_0 = \rho (1 + \lVert\theta_0\rVert), \\
        u_t &= c\, \frac{r_t}{\sqrt{\sum_{i \le t} \lVert g_i\rVert^2 + \epsilon}}\; g_t

    Args:
        reps_rel: :math:`\rho \ge 0`; the authors take 1e-6, and 1e-4 with batch normalization.
        eps: :math:`\epsilon \ge 0`.
        param_dtype: the type in which :math:`\theta_0` is kept, complex where the parameter is.
        global_scale: :math:`c`; -1 to descend without a learning rate.

    State: `ScaleByDistanceOverGradientsState`. The numbers of a leaf are scalars, in Optax one of
    them is an array of one entry.

    Raises:
        ValueError: ``update`` is called without parameters.

    Source: M. Ivgi, O. Hinder and Y. Carmon, DoG is SGD's Best Friend: A Parameter-Free Dynamic
    Step Size Schedule, 2023, arXiv:2302.12022, section 3.3 (L-DoG).

    >>> tx, p = scale_by_distance_over_gradients(reps_rel=0.5, eps=0.0), jnp.zeros(2)
    >>> tx.update(jnp.array([3.0, 4.0]), tx.init(p), p)[0].round(6).tolist()
    [0.30000001192092896, 0.4000000059604645]
    """

    def slots(p: Array) -> dict[str, Array]:
        kind = accumulator_dtype(p)
        held = jnp.promote_types(param_dtype, jnp.complex64) if jnp.iscomplexobj(p) else param_dtype
        return {
            "max_dist": (reps_rel * (1 + norm(p))).astype(kind),
            "grad_sum_of_squares": jnp.zeros([], kind),
            # An own copy: the parameters may be donated.
            "init_params": jnp.array(p, held, copy=True),
        }

    def rule(g: Array, s: Any, t: Any, p: Array) -> Any:
        dist = jnp.maximum(s.max_dist, norm(p - s.init_params))
        squares = s.grad_sum_of_squares + sum_sq(g)
        kept = {
            "max_dist": dist,
            "grad_sum_of_squares": squares,
            "init_params": s.init_params,
        }
        return g * (global_scale * divide(dist, jnp.sqrt(squares + eps))), kept

    return leafwise(ScaleByDistanceOverGradientsState, slots, rule)
