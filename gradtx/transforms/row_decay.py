"""Weight decay of the rows of a table by how often they are touched."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.checks import NonNegative, Positive
from gradtx.composition.masking import masked
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import rowwise
from gradtx.leaves.paths import Where
from gradtx.numerics import Step, accumulator_dtype, one_per_row, zeros_like
from gradtx.types import Array, Counter, NonNegativeSlots, Slots


class RowDecayState(NamedTuple):
    """count: i32[]; counter: a number for each row, in float32 or wider; last: i32 for each row.

    counter is how often the row was touched, `last` the step at which it last was.
    """

    count: Counter
    counter: NonNegativeSlots
    last: Slots


@optimizer
def add_row_decayed_weights(
    weight_decay: NonNegative = 0.0, halflife: Positive = 1000.0, mask: Where | None = None
) -> GradientTransformation:
    r"""Weight decay of the rows that a step touches, stronger for rows that are seldom touched.

    .. math::
        c_i \leftarrow 1 + 2^{-(t - t_i) / h} c_i, \qquad t_i \leftarrow t, \qquad
        u_i = g_i + \lambda\, \frac{h}{c_i}\, \theta_i
            \qquad\text{for the rows } i \text{ with a gradient}

    A row that is touched at every step decays by about :math:`0.69 \lambda` each time, and a row
    that was not touched for a few half-lives by :math:`h \lambda`: over many steps all rows decay
    alike, though each decays only when it is touched. Placed before the scaling by the learning
    rate, this is decoupled decay; placed before the moments, it is L2 regularisation.

    Args:
        weight_decay: :math:`\lambda \ge 0`; a number, an array, or a schedule. The product of
            :math:`\lambda`, :math:`h` and the learning rate should be far below 1.
        halflife: :math:`h > 0`, the number of steps after which a touch counts half.
        mask: which leaves decay, as in :func:`masked`.

    A row counts as touched if an entry of its update is not 0, in `Rows` and in dense updates
    alike. Momentum before it in a chain moves rows of dense updates that had no gradient: put it
    first then. Each entry of a vector is a row.

    State: `RowDecayState`; with a mask in a `MaskedState`.

    Raises:
        ValueError: ``update`` is called without parameters.

    Optax, Keras and ``torch.optim`` have no such decay; in FBGEMM it is a part of one optimizer.

    Source: FBGEMM, Meta's library for PyTorch, ``rowwise_adagrad_with_counter`` with
    ``counter_halflife``; https://github.com/pytorch/FBGEMM.

    >>> import gradtx
    >>> tx, table = add_row_decayed_weights(0.01, 50.0), jnp.ones((3, 1))
    >>> rows = gradtx.Rows(jnp.array([1]), jnp.ones((1, 1)), (3, 1))
    >>> tx.update(rows, tx.init(table), table)[0].to_dense().ravel().tolist()
    [0.0, 1.5, 0.0]
    """
    tx: GradientTransformation = _row_decayed(weight_decay, halflife)
    return tx if mask is None else masked(tx, mask)


@transformation
def _row_decayed(weight_decay: NonNegative, halflife: Positive) -> GradientTransformation:
    def slots(p: Array) -> dict[str, Array]:
        row = one_per_row(p)
        return {
            "counter": zeros_like(row, accumulator_dtype(p)),
            "last": zeros_like(row, jnp.int32),
        }

    def rule(g: Array, s: Any, t: Step, p: Array) -> Any:
        axes = tuple(range(1, g.ndim))
        touched = jnp.any(g != 0, axis=axes, keepdims=True) if axes else g != 0
        missed = (t.count - s.last).astype(s.counter.dtype)
        counter = jnp.where(touched, 1 + jnp.exp2(-missed / halflife) * s.counter, s.counter)
        often = jnp.where(touched, counter, 1)
        decay = jnp.where(touched, weight_decay * halflife / often, 0)
        last = jnp.where(touched, t.count, s.last)
        return g + decay * p, {"counter": counter, "last": last}

    return rowwise(RowDecayState, slots, rule)
