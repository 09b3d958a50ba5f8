"""Streaming DiLoCo: one fragment of the parameters is synchronized at a time."""

import functools
from collections.abc import Callable
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
    the next to be sent; until_arrival: i32[], steps until it arrives, 0 if none is on the way.
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


class _Replica(NamedTuple):
    """A fragment on this device: the updates of a step, the parameters before it, and after it."""

    updates: PyTree
    before: PyTree
    after: PyTree


_LABEL = "streaming_diloco"


class _Streaming(NamedTuple):
    """The optimizers of :func:`streaming_diloco`, and when fragments are sent and arrive.

    interval: steps between two fragments; delay: steps until one arrives; mixing: the part of a
    device's parameters that stays when it does.
    """

    inner: GradientTransformation
    outer: Outer
    fragments: Fragments
    interval: int
    delay: int
    mixing: Any

    def init(self, params: Params) -> State:
        anchor = jax.tree.map(lambda p: self.fragments.cut(widen(jnp.array(p))), params)
        outer_states = jax.vmap(self.outer.init, axis_size=self.fragments.number)(anchor)
        slots = jax.tree.leaves(outer_states, is_leaf=is_stored)
        if any(getattr(x, "blocks", None) is not None for x in slots):
            raise ValueError(
                f"{_LABEL}: the slots of outer are in blocks, which fragments would cut: put store "
                "around, store(streaming_diloco(...))"
            )
        return StreamingDiLoCoState(
            self.inner.init(params),
            outer_states,
            anchor,
            jax.tree.map(lambda a: jnp.zeros(a.shape[1:] if self.delay else (0,), a.dtype), anchor),
            jnp.asarray(self.interval, jnp.int32),
            jnp.zeros([], jnp.int32),
            jnp.zeros([], jnp.int32),
        )

    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        params = needed(_LABEL, updates, params)
        updates, inner_state = self.inner.update(updates, state.inner_state, params, **extra_args)
        updates = dense(updates)
        number = self.fragments.number
        sends = state.until_sync <= 1
        arriving = (state.fragment - 1) % number if self.delay else state.fragment
        arrives = state.until_arrival == 1 if self.delay else sends
        local = self.local(updates, params, arriving)
        anchor = map_present(lambda u, a: a, local.updates, _take(state.anchor, arriving))
        outer_state = _take(state.outer_states, arriving)
        delta = state.sending if self.delay else _difference(anchor, local)
        arrive = functools.partial(self.synchronized, local, anchor, outer_state, delta, extra_args)
        fragment_updates, outer_state, anchor = self.if_it_arrives(
            arrives, arrive, (local.updates, outer_state, anchor)
        )
        updates = self.with_fragment(updates, fragment_updates, arriving)
        anchors = _put(state.anchor, anchor, arriving)
        sending = state.sending
        if self.delay:
            sending = self.next_sent(updates, params, anchors, state, sends)
        return updates, StreamingDiLoCoState(
            inner_state,
            _put(state.outer_states, outer_state, arriving),
            anchors,
            sending,
            jnp.where(sends, jnp.asarray(self.interval, jnp.int32), state.until_sync - 1),
            jnp.where(sends, (state.fragment + 1) % number, state.fragment),
            jnp.where(sends, self.delay, jnp.maximum(state.until_arrival - 1, 0)),
        )

    def local(self, updates: Updates, params: Params, i: Array) -> _Replica:
        """Fragment `i` of this device's updates and parameters."""
        cut = self.fragments.cut
        fragment = _take(map_present(cut, updates), i)
        wide = map_present(lambda u, p: cut(widen(jnp.asarray(p))), updates, params)
        before = _take(wide, i)
        return _Replica(fragment, before, map_present(lambda u, p: p + widen(u), fragment, before))

    def synchronized(
        self, local: _Replica, anchor: PyTree, outer_state: State, delta: PyTree, extra_args: Any
    ) -> tuple[Updates, State, PyTree]:
        """A fragment's updates, its state of `outer` and its anchor when `delta` arrives."""
        present = map_present(lambda u, d: d, local.updates, delta)
        step, outer_state = self.outer.update(present, outer_state, anchor, extra_args)
        new_anchor = map_present(
            lambda u, a, s: a if s is None else a + s, local.updates, anchor, step
        )
        mixed = map_present(
            lambda u, a, p: self.mixing * p + (1 - self.mixing) * a,
            local.updates,
            new_anchor,
            local.after,
        )
        updates = map_present(
            lambda u, new, p: cast(new - p, u.dtype), local.updates, mixed, local.before
        )
        return updates, outer_state, in_form_of(new_anchor, anchor)

    def if_it_arrives(
        self, arrives: Array, arrive: Callable[[], tuple[Any, ...]], unchanged: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """``arrive()`` in a step in which a fragment arrives, and `unchanged` in the others."""
        if self.interval == 1:  # every step sends, and a branch would save nothing
            return jax.tree.map(lambda x, y: jnp.where(arrives, x, y), arrive(), unchanged)
        return branch(arrives, arrive, lambda: unchanged)

    def with_fragment(self, updates: Updates, fragment_updates: PyTree, i: Array) -> Updates:
        """The updates, with those of fragment `i` replaced."""
        cut = _put(map_present(self.fragments.cut, updates), fragment_updates, i)
        return map_present(lambda u, parts: self.fragments.joined(parts, u), updates, cut)

    def next_sent(
        self, updates: Updates, params: Params, anchors: PyTree, state: State, sends: Array
    ) -> PyTree:
        """The change that is on the way after this step: that of the next fragment if it sends."""
        after = self.local(updates, params, state.fragment).after

        def sent(s: Any, a: Any, p: Any) -> Any:
            if s is None:
                return s
            return jnp.where(sends, jnp.zeros_like(s) if p is None else a - p, s)

        anchor = _take(anchors, state.fragment)
        return jax.tree.map(sent, state.sending, anchor, after, is_leaf=is_leaf)

    def fragment_bytes(self, params: Params) -> int:
        """The bytes that a device sends for one fragment."""

        def fragment(p: Any) -> jax.ShapeDtypeStruct:
            _, *shape = jax.eval_shape(self.fragments.cut, p).shape
            return jax.ShapeDtypeStruct(shape, p.dtype)

        return self.outer.bytes_sent(jax.tree.map(fragment, params))


def _difference(anchor: PyTree, local: _Replica) -> PyTree:
    """The change of a fragment since its last synchronization, with its sign reversed."""
    return map_present(lambda u, a, p: a - p, local.updates, anchor, local.after)


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
    argument ``weight``, as in :func:`diloco`; with a delay the weight is that of the step in which
    a fragment arrives, so pass 0 until a bad change that was sent has arrived. Of a leaf without a
    gradient in the step that sends, no change is sent with a delay. A fragment has an
    equal share of every leaf: of its rows if `F` divides them, and otherwise of its entries. With
    leaves that stack layers, these are consecutive layers, as in the paper. One step in
    :math:`H / F` sends :math:`1 / F` of the parameters, in a branch; the program has one branch,
    however many fragments there are.

    With `F` equal to `H` every step sends, and there is no branch. With a delay of 1 the message
    then depends on nothing that the step computes, and XLA may send it in the meantime.

    State: `StreamingDiLoCoState`, with one state of `outer` for each fragment.

    Raises:
        ValueError: `every` is not a multiple of `fragments`; `delay` is too large; axes are bound
            here, but not this one; the parameters are not given; slots of `outer` are in blocks, by
            :func:`store`, or `outer` aggregates some leaves alone.

    Source: A. Douillard et al., Streaming DiLoCo with Overlapping Communication: Towards a
    Distributed Free Lunch, 2025, arXiv:2501.18512, algorithm 2. There a fragment has whole layers,
    and messages are rounded to 4 bits.

    >>> import gradtx
    >>> outer = gradtx.sgd(0.7, momentum=0.9, nesterov=True)
    >>> tx = streaming_diloco(gradtx.adamw(1e-3), outer, 100, "data", fragments=4, delay=5)
    >>> gradtx.describe(tx, {"w": jnp.zeros((512, 512))}).peak_message_bytes
    262144
    """
    check_axis_name(_LABEL, axis_name)
    if every % fragments:
        raise ValueError(f"{_LABEL}: every={every} is not a multiple of fragments={fragments}")
    interval = every // fragments
    if delay > interval:
        raise ValueError(
            f"{_LABEL}: delay={delay} is longer than the {interval} steps between fragments"
        )
    streaming = _Streaming(
        with_extra_args_support(inner),
        Outer(outer, axis_name),
        Fragments(fragments),
        interval,
        delay,
        mixing,
    )
    return communicating(
        streaming.init,
        streaming.update,
        lambda params: -(-streaming.fragment_bytes(params) // interval),
        axis_name,
        peak_bytes=streaming.fragment_bytes,
        gathers=streaming.outer.gathers,
    )
