"""Compensated addition: what rounding a parameter loses is kept, and added at the next step."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.composition.around import InnerStep, around
from gradtx.composition.views import SameGradients
from gradtx.core.pair import GradientTransformation, transformation, with_extra_args_support
from gradtx.engine.leaves import parameter
from gradtx.engine.lift import needed
from gradtx.leaves.paths import leaves_with_path, path_string
from gradtx.numerics import cast, unit, widen
from gradtx.training.loss_scale import if_divides
from gradtx.training.rounding import each_leaf, toward, whole_step, widened
from gradtx.types import Array, DType, InnerState, Params, Slots, State, Updates

# At most half a unit in the last place is lost; the codes of int8 divide a unit into this many.
_CODES = 254


class CompensatedState(NamedTuple):
    """residual: what rounding has lost, in each parameter's type or as i8 codes; inner_state."""

    inner_state: InnerState
    residual: Slots

    @property
    def keeps_small_steps(self) -> bool:
        """Whether a small step counts, though the parameters are rounded."""
        return True


@transformation(update_size="proportional")
def compensated(
    inner: GradientTransformation, residual: str | None = None
) -> GradientTransformation:
    r"""Keep what rounding a parameter loses, and add it at the next step.

    .. math:: y_t = u_t + c_t, \qquad \theta_{t+1} = \mathrm{round}(\theta_t + y_t), \qquad
        c_{t+1} = (\theta_t - \theta_{t+1}) + y_t

    Args:
        inner: the optimizer; put this around all of it, inside of :func:`accumulate` and guards.
        residual: how `c` is kept. None: in the type of the parameter, which is Kahan's sum.
            ``"int8"``: as a share of the unit in the last place of the parameter,
            :math:`c = k\, \mathrm{ulp}(\theta) / 254` with :math:`|k| \le 127`, a byte for each
            entry. Then :math:`|\theta + c|` is right to 1/508 of a unit: in bfloat16, 16 bits of
            the significand are kept, and updates below 1/130,000 of a parameter are still lost.

    The updates that ``update`` returns lead to the rounded parameters: add them as they are. Every
    leaf is compensated, whatever its type; :func:`partition` leaves some out.

    State: `CompensatedState`; `residual` is a slot.

    Raises:
        ValueError: `residual` is neither None nor ``"int8"``.
        TypeError: a parameter is complex, and `residual` is ``"int8"``.

    Source: W. Kahan, Further Remarks on Reducing Truncation Errors, 1965,
    doi:10.1145/363707.363723; for training P. Zamirai et al., Revisiting BFloat16 Training, 2020,
    arXiv:2010.06192, algorithm 2. The byte is that of J. J. Gonzalez Ortiz, A. Gupta, C. Renard and
    D. Blalock, FlashOptim: Optimizers for Memory Efficient Training, 2026, arXiv:2602.23349.

    >>> import gradtx
    >>> def trained(tx, params=jnp.full(1, 2.0, jnp.bfloat16)):
    ...     step = gradtx.make_step(lambda p: jnp.sum(p.astype("float32")), tx, donate=False)
    ...     state = step.init(params)
    ...     for _ in range(100):
    ...         params, state, _ = step(params, state)
    ...     return float(params[0])
    >>> trained(compensated(gradtx.sgd(0.001))), trained(compensated(gradtx.sgd(0.001), "int8"))
    (1.8984375, 1.8984375)
    """
    if residual not in (None, "int8"):
        raise ValueError(f"compensated: residual must be None or 'int8', not {residual!r}")
    tx = with_extra_args_support(inner)
    coded = residual is not None

    def lost_at_first(path: Any, p: Any) -> Array | None:
        if p is None:
            return None
        p = parameter(p, path)
        if coded and jnp.iscomplexobj(p):
            raise TypeError(
                f"compensated: the parameter at {path_string(path)!r} is {p.dtype}, which has no "
                "unit in the last place: leave it out with partition, or residual at None"
            )
        return jnp.zeros_like(p, jnp.int8 if coded else None)

    def init(params: Params) -> State:
        leaves, treedef = leaves_with_path(params)
        lost = [lost_at_first(path, p) for path, p in leaves]
        return CompensatedState(tx.init(params), treedef.unflatten(lost))

    def rule(u: Array, p: Array, slot: Array, dtype: DType) -> tuple[Array, Array]:
        y = u + (slot * (unit(widen(p), p.dtype) / _CODES) if coded else slot)
        move, reached = toward(widen(p) + y, p, dtype)
        lost = (widen(p) - reached) + y
        if not coded:
            return move, lost
        codes = jnp.round(lost * (_CODES / unit(reached, p.dtype)))
        # A parameter that is not finite has no residual; a byte could not hold NaN.
        codes = jnp.where(jnp.isfinite(codes), jnp.clip(codes, -_CODES // 2, _CODES // 2), 0)
        return move, cast(codes, jnp.int8)

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Updates, State]:
        params = needed("compensated", updates, params)
        wide, inner_state = widened(inner_step, updates, state.inner_state, params)
        moves, lost = each_leaf(rule, wide, params, state.residual, updates)
        return moves, CompensatedState(inner_state, lost)

    pair = around(tx, init, run, facets=(SameGradients(), *if_divides(tx)))
    return pair._replace(step=whole_step(pair.update))
