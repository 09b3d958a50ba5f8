"""Streaming DiLoCo: one fragment of the parameters is synchronized at a time."""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checks import Fraction, NonNegativeInt, PositiveInt
from gradtx.core.pair import GradientTransformation, transformation, with_extra_args_support
from gradtx.distributed.local import Outer
from gradtx.engine.lift import needed
from gradtx.leaves.paths import is_leaf, map_present
from gradtx.leaves.rows import dense
from gradtx.numerics import cast, widen
from gradtx.numerics.control import branch, in_form_of
from gradtx.sharding.axes import AxisName, check_axis_name, communicating
from gradtx.types import (
    Array,
    InnerState,
    Params,
    PyTree,
    Slots,
    State,
    StateOf,
    Updates,
    is_stored,
)


class StreamingDiLoCoState(NamedTuple):
    """inner_state: this device's; until_sync: i32[], steps until the next fragment is sent.

    outer_states: those of the outer optimizer for each fragment; anchor: the fragments after their
    last synchronization, in float32 or wider. Both have the fragments in the first dimension.
    sending: the change that is on the way, of one fragment; empty without a delay. fragment: i32[],
    the next to be sent; until_arrival: i32[], steps until what was sent arrives, 0 if nothing is.
    """

    inner_state: InnerState
    outer_states: Annotated[State, StateOf("outer")]
    anchor: Slots
    sending: Slots
    until_sync: Array
    fragment: Array
    until_arrival: Array


class Fragments(NamedTuple):
    """Parameters as `number` equal fragments, each with a part of every leaf.

    A part is an equal share of a leaf's rows, if `number` divides them, and otherwise of its
    entries.
    """

    number: int

    def cut(self, x: Array) -> Array:
        """The fragments of a leaf, as one array ``(number, ...)``."""
        if x.ndim and x.shape[0] % self.number == 0:
            return x.reshape(self.number, x.shape[0] // self.number, *x.shape[1:])
        return jnp.pad(x.reshape(-1), (0, -x.size % self.number)).reshape(self.number, -1)

    def joined(self, parts: Array, like: Array) -> Array:
        """A leaf, shaped like `like`, put together from its fragments."""
        return parts.reshape(-1)[: like.size].reshape(like.shape)


def _take(tree: PyTree, i: Array) -> PyTree:
    """A tree with the element at index `i` along the first dimension of each leaf."""

    def one(x: Any) -> Array:
        if is_stored(x):
            return jnp.squeeze(x.take(i[None]), 0)
        return jax.lax.dynamic_index_in_dim(x, i, keepdims=False)

    return jax.tree.map(one, tree, is_leaf=is_stored)


def _put(tree: PyTree, new: PyTree, i: Array) -> PyTree:
    """A tree with `new` at index `i` along the first dimension, unless a leaf of `new` is None."""

    def one(x: Any, y: Any) -> Any:
        if y is None or is_stored(x):
            return x if y is None else x.put(i[None], y[None])
        return jax.lax.dynamic_update_index_in_dim(x, y, i, 0)

    return jax.tree.map(one, tree, new, is_leaf=lambda x: x is None or is_stored(x))


@transformation
def streaming_diloco(
    inner: GradientTransformation,
    outer: GradientTransformation,
    every: PositiveInt,
    axis_name: AxisName,
    fragments: PositiveInt,
    delay: NonNegativeInt = 0,
    mixing: Fraction = 0.0,
) -> GradientTransformation:
    r"""DiLoCo that synchronizes one fragment after another; each may arrive some steps later.

    Every :math:`H / F` steps the next of `F` fragments is sent. With :math:`\phi` its parameters
    after its last synchronization, :math:`\theta_i` those of a device when it is sent, and
    :math:`\theta_i'` when it arrives, :math:`\tau` steps later,

    .. math:: \Delta = \frac1n \sum_i (\phi - \theta_i), \qquad
        \phi \leftarrow \phi + \mathrm{outer}(\Delta), \qquad
        \theta_i' \leftarrow \alpha \theta_i' + (1 - \alpha) \phi

    Args:
        inner: the optimizer of each device; AdamW in the paper.
        outer: the optimizer for synchronization, which sees a fragment at a time. It may begin with
            a compressed aggregation, such as :func:`aggregate_int8`, as in :func:`diloco`.
        every: `H`, a multiple of `fragments`: each fragment is synchronized every `H` steps.
        axis_name: the axis of ``pmap``, ``shard_map`` or ``vmap``, or several.
        fragments: `F`, at least 1; with 1 and no delay this is :func:`diloco`.
        delay: :math:`\tau`, from 0 to :math:`H / F`.
        mixing: :math:`\alpha` in :math:`[0, 1]`, how much of a device's own parameters is kept.

    Apply the updates unchanged; devices differ as for :func:`local_sgd`, and drop out by the extra
    argument ``weight``, as in :func:`diloco`. A fragment has an equal share of every leaf: of its
    rows if `F` divides them, and otherwise of its entries. With leaves that stack layers, these are
    consecutive layers, as in the paper. One step in :math:`H / F` sends :math:`1 / F` of the
    parameters, in a branch; the program has one branch, however many fragments there are.

    With `F` equal to `H` every step sends, and there is no branch. With a delay of 1 the message
    then depends on nothing that the step computes, and XLA may send it in the meantime.

    State: `StreamingDiLoCoState`, with one state of `outer` for each fragment.

    Raises:
        ValueError: `every` is not a multiple of `fragments`; `delay` is too large; axes are bound
            here, but not this one; the parameters are not given.

    Source: A. Douillard et al., Streaming DiLoCo with Overlapping Communication: Towards a
    Distributed Free Lunch, 2025, arXiv:2501.18512, algorithm 2. There a fragment has whole layers,
    and what is sent is rounded to 4 bits.

    >>> import gradtx
    >>> outer = gradtx.sgd(0.7, momentum=0.9, nesterov=True)
    >>> tx = streaming_diloco(gradtx.adamw(1e-3), outer, 100, "data", fragments=4, delay=5)
    >>> gradtx.describe(tx, {"w": jnp.zeros((512, 512))}).peak_message_bytes
    262144
    """
    label = "streaming_diloco"
    check_axis_name(label, axis_name)
    if every % fragments:
        raise ValueError(f"{label}: every={every} is not a multiple of fragments={fragments}")
    interval, parts = every // fragments, Fragments(fragments)
    if delay > interval:
        raise ValueError(
            f"{label}: delay={delay} is longer than the {interval} steps between fragments"
        )
    tx, outside = with_extra_args_support(inner), Outer(outer, axis_name)

    def init(params: Params) -> State:
        anchor = jax.tree.map(lambda p: parts.cut(widen(jnp.array(p))), params)
        return StreamingDiLoCoState(
            tx.init(params),
            jax.vmap(outside.init, axis_size=fragments)(anchor),
            anchor,
            jax.tree.map(lambda a: jnp.zeros(a.shape[1:] if delay else (0,), a.dtype), anchor),
            jnp.asarray(interval, jnp.int32),
            jnp.zeros([], jnp.int32),
            jnp.zeros([], jnp.int32),
        )

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        params = needed(label, updates, params)
        out, inner_state = tx.update(updates, state.inner_state, params, **extra_args)
        out = dense(out)
        now = state.until_sync <= 1

        def part(i: Array) -> tuple[PyTree, PyTree, PyTree]:
            """The updates of a fragment, its parameters, and the two added."""
            fragment_updates = _take(map_present(parts.cut, out), i)
            there = _take(
                map_present(lambda u, p: parts.cut(widen(jnp.asarray(p))), out, params), i
            )
            return (
                fragment_updates,
                there,
                map_present(lambda u, p: p + widen(u), fragment_updates, there),
            )

        arriving = (state.fragment - 1) % fragments if delay else state.fragment
        here = state.until_arrival == 1 if delay else now
        fragment_updates, before, mine = part(arriving)
        anchor = map_present(lambda u, a: a, fragment_updates, _take(state.anchor, arriving))
        fragment_state = _take(state.outer_states, arriving)
        change = (
            state.sending
            if delay
            else map_present(lambda u, a, m: a - m, fragment_updates, anchor, mine)
        )

        def arrive() -> tuple[Updates, State, PyTree]:
            step, new = outside.update(
                map_present(lambda u, c: c, fragment_updates, change),
                fragment_state,
                anchor,
                extra_args,
            )
            to = map_present(
                lambda u, a, s: a if s is None else a + s, fragment_updates, anchor, step
            )
            mixed = map_present(
                lambda u, a, m: mixing * m + (1 - mixing) * a, fragment_updates, to, mine
            )
            moved = map_present(
                lambda u, x, p: cast(x - p, u.dtype), fragment_updates, mixed, before
            )
            return moved, new, in_form_of(to, anchor)

        if interval == 1:
            chosen = jax.tree.map(
                lambda y, n: jnp.where(here, y, n),
                arrive(),
                (fragment_updates, fragment_state, anchor),
            )
        else:
            chosen = branch(here, arrive, lambda: (fragment_updates, fragment_state, anchor))
        moved, outer_state, anchor = chosen
        out = map_present(
            lambda u, cut: parts.joined(cut, u),
            out,
            _put(map_present(parts.cut, out), moved, arriving),
        )
        anchors = _put(state.anchor, anchor, arriving)
        sending = state.sending
        if delay:
            _, _, mine = part(state.fragment)
            sending = jax.tree.map(
                lambda s, a, m: s if m is None else jnp.where(now, a - m, s),
                sending,
                _take(anchors, state.fragment),
                mine,
                is_leaf=is_leaf,
            )
        return out, StreamingDiLoCoState(
            inner_state,
            _put(state.outer_states, outer_state, arriving),
            anchors,
            sending,
            jnp.where(now, jnp.asarray(interval, jnp.int32), state.until_sync - 1),
            jnp.where(now, (state.fragment + 1) % fragments, state.fragment),
            jnp.where(now, delay, jnp.maximum(state.until_arrival - 1, 0)),
        )

    def peak(params: Params) -> int:
        def fragment(p: Any) -> jax.ShapeDtypeStruct:
            _, *shape = jax.eval_shape(parts.cut, p).shape
            return jax.ShapeDtypeStruct(shape, p.dtype)

        return outside.bytes_sent(jax.tree.map(fragment, params))

    return communicating(
        init,
        update,
        lambda params: -(-peak(params) // interval),
        axis_name,
        peak_bytes=peak,
        gathers=outside.gathers,
    )
