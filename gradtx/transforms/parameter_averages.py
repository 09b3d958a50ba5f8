"""Averages of the parameters, to evaluate while training continues."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx import numerics, tree
from gradtx.checks import Count, Decay, PositiveCount
from gradtx.composition.around import InnerStep, around
from gradtx.core.explanations import check_alive
from gradtx.core.pair import GradientTransformation, transformation
from gradtx.engine.lift import leafwise, needed
from gradtx.leaves.memory import brought_in
from gradtx.leaves.packed import packed_like, unpack
from gradtx.leaves.paths import (
    aligned,
    is_leaf,
    leaves_with_path,
    map_present,
    merge,
    path_string,
    unboxed,
)
from gradtx.numerics import Step, cast, compute_dtype, own_copy, widen
from gradtx.programs.tracing import is_tracer
from gradtx.tree.vectors import Vectors
from gradtx.types import (
    Array,
    Counter,
    Params,
    ParamsT,
    Slots,
    State,
    Updates,
    is_stored,
    slot_fields,
)


class EmaParamsState(NamedTuple):
    """count: i32[]; average: like the parameters, in float32 or wider."""

    count: Counter
    average: Slots

    def eval_params(self, params: Params) -> Params:
        """The average, in the types of the parameters."""
        return merge(tree.cast_like(self.average, params), params)


class SwaParamsState(NamedTuple):
    """count: i32[]; average: like the parameters, in float32 or wider."""

    count: Counter
    average: Slots

    def eval_params(self, params: Params) -> Params:
        """The average, in the types of the parameters."""
        return merge(tree.cast_like(self.average, params), params)


def _average(p: Array) -> dict[str, Array]:
    return {"average": own_copy(p, compute_dtype(p.dtype))}


@transformation(update_size="proportional")
def ema_params(
    decay: Decay = 0.999,
    *,
    overwrite_every: PositiveCount | None = None,
    window: PositiveCount = 1,
    every_leaf: bool = False,
    debias: bool = False,
    start: Count = 0,
) -> GradientTransformation:
    r"""Keep an exponential moving average of the parameters; the updates pass unchanged.

    .. math:: \bar\theta_s = \theta_s, \qquad
        \bar\theta_t = \beta \bar\theta_{t-1} + (1 - \beta) (\theta_{t-1} + u_t)
        \quad\text{for } t > s

    Args:
        decay: :math:`\beta` in :math:`[0, 1)`; a number, an array, or a schedule, such as
            :math:`\min(\beta, (1 + t) / (10 + t))` to forget the start sooner.
        overwrite_every: `k`; at every `k`-th step the parameters are set to the average, as with
            Keras's ``ema_overwrite_frequency``; None for never.
        window: the window `n` of an :func:`accumulate` in the chain. :math:`k` then counts windows,
            and the parameters are set to the average at each step of every `k`-th window, as with
            Keras's ``gradient_accumulation_steps``.
        every_leaf: whether the average of a leaf without a gradient, whose update is `None`, moves
            too, as with Keras; otherwise it stays. Such a step needs all the parameters:
            ``tx.update(grads, state, params)``.
        debias: whether the average leaves out the start:
            :math:`\bar\theta_t = \sum_{i>s} \beta^{t-i} \theta_i / \sum_{i>s} \beta^{t-i}`.
        start: `s`, at least 0; until that step the average is :math:`\theta_t` itself. The average
            over the tail of a run, of which :func:`eval_params` goes 0.6 of the way, is
            ``ema_params(1 - 1 / 150, start=2000)`` in
            https://github.com/KellerJordan/modded-nanogpt/pull/325, for 2,720 steps.

    Put it last in a chain, where it sees what is added to the parameters, and take the average
    with :func:`eval_params`. The average is computed in float32 or wider: kept in bfloat16 it would
    not move.

    State: `EmaParamsState`.

    Raises:
        ValueError: ``update`` is called without parameters, or, with `every_leaf`, without that of
            a leaf that has an average.

    Source: B. T. Polyak and A. B. Juditsky, Acceleration of Stochastic Approximation by Averaging,
    1992 (averaging of iterates; the moving average is Keras's ``use_ema``).

    >>> import gradtx
    >>> tx = gradtx.chain(gradtx.sgd(1.0), ema_params(0.75))
    >>> params, state = gradtx.apply_gradients(tx, jnp.ones(1), jnp.zeros(1), tx.init(jnp.zeros(1)))
    >>> params.tolist(), eval_params(tx, state, params).tolist()
    ([-1.0], [-0.25])
    """

    def rule(g: Array, s: Any, t: Step, p: Array) -> Any:
        rate: Any = decay
        always = isinstance(start, int) and start == 0
        since = t.number if always else jnp.maximum(t.number - start, 1)
        if debias:  # 0 at the first step, where rounding may put it below
            rate = jnp.maximum(1 + (1 - decay) / jnp.expm1(since * numerics.log_of(decay)), 0)
        if not always:
            rate = jnp.where(t.number <= start, 0.0, rate)
        average = numerics.ema(p + g, s.average, rate)
        if overwrite_every is None:
            return g, {"average": average}
        due = -(-t.count // window) % overwrite_every == 0
        return jnp.where(due, average - p, g), {"average": average}

    tx = leafwise(EmaParamsState, _average, rule)
    if not every_leaf:
        return tx

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Updates, State]:
        params = needed("ema_params", updates, params)
        leaves, treedef = leaves_with_path(updates)
        problem = "ema_params: updates and averages or parameters are different trees"
        averages, values = (aligned(problem, updates, treedef, x) for x in (state.average, params))
        inner_updates = []
        for (path, u), average, p in zip(leaves, averages, values, strict=True):
            if u is None and average is not None and p is None:
                raise ValueError(
                    f"ema_params: the average at {path_string(path)!r} moves without a gradient "
                    "too, and needs the parameter: call tx.update with all of them and add what "
                    "it returns with apply_updates, or pass every_leaf=False (from_keras: hand "
                    "over without use_ema)"
                )
            rests = u is None and average is not None
            inner_updates.append(jnp.zeros_like(jnp.asarray(p)) if rests else u)
        new, state = inner_step(treedef.unflatten(inner_updates), state, params)
        if overwrite_every is None:
            new = map_present(lambda u, n: n, updates, new)
        return new, state

    return around(tx, None, run)


@transformation(update_size="proportional")
def swa_params(start: Count = 0, every: PositiveCount = 1) -> GradientTransformation:
    r"""Keep the mean of the parameters at every `k`-th step, starting at a given step.

    If the end of the run is not known, prefer :func:`ema_params`.

    .. math:: \bar\theta \leftarrow \bar\theta + \frac{1}{n} (\theta_t - \bar\theta)
        \quad\text{at } t = s + n k, \; n = 1, 2, \dots

    Args:
        start: `s`, at least 0; until the first mean the average is :math:`\theta_t` itself.
        every: `k`, at least 1.

    Put it last in a chain, and take the average with :func:`eval_params`.

    State: `SwaParamsState`.

    Source: P. Izmailov et al., Averaging Weights Leads to Wider Optima and Better Generalization,
    2018, arXiv:1803.05407, algorithm 1.

    >>> import gradtx
    >>> tx = gradtx.chain(gradtx.sgd(1.0), swa_params())
    >>> params, state = jnp.zeros(1), tx.init(jnp.zeros(1))
    >>> for _ in range(2):
    ...     params, state = gradtx.apply_gradients(tx, jnp.ones(1), params, state)
    >>> params.tolist(), eval_params(tx, state, params).tolist()
    ([-2.0], [-1.5])
    """

    def rule(g: Array, s: Any, t: Step, p: Array) -> Any:
        def make() -> Array:
            since = t.count - start
            n = since // every
            share = 1 / jnp.maximum(n, 1).astype(t.number.dtype)
            # Before the first mean the average follows the parameters.
            return jnp.where(n < 1, 1.0, jnp.where(since % every == 0, share, 0.0))

        return g, {"average": s.average + t.once("swa", 0, make) * (p + g - s.average)}

    return leafwise(SwaParamsState, _average, rule)


def eval_params(
    tx: GradientTransformation, state: State, params: ParamsT, weight: Any = 1.0
) -> ParamsT:
    """The parameters to evaluate: the average, of any kind, that a state holds.

    Args:
        tx: the transformation.
        state: its state; whatever in it has a method ``eval_params(params)`` gives the average:
            :func:`ema_params`, :func:`swa_params`, :func:`lookahead` and others, in a chain, a
            group or a wrapper, in a codec (:func:`store`), in the memory of the host, or in Flax's
            objects, as ``nnx.Optimizer`` keeps a state.
        params: the parameters in training, from which leaves without an average are taken. They may
            have leaves that `tx` does not train, as ``nnx.state(model)`` has.
        weight: how much of the average, a number or a scalar array: with `w` the result is
            ``(1 - w) * params + w * average``. An average lags behind parameters that still
            descend, and a part of it may be better than all.

    Returns:
        A tree like the parameters, in their types, and where they lie; the parameters themselves if
        the state holds no average. For `LookaheadParams` like the slow ones.

    Raises:
        ValueError: the average is of other parameters; or, with a `weight`, is not a tree like
            them, as the slow ones of `LookaheadParams` are not.

    >>> import gradtx
    >>> tx = gradtx.chain(gradtx.sgd(1.0), ema_params(0.75))
    >>> eval_params(tx, tx.init({"w": 3.0}), {"w": jnp.float32(3.0)})
    {'w': Array(3., dtype=float32)}
    >>> eval_params(tx, tx.init(1.0), jnp.float32(3.0), weight=0.25)
    Array(2.5, dtype=float32)
    """
    try:
        check_alive(state=state, params=params)
        unpacked = unpack(params)
        if isinstance(weight, (int, float)) and weight == 1:
            return _placed_like(params, averaged(state, unpacked))
        return _placed_like(params, _blended(state, unpacked, weight))
    except ValueError as error:
        raise ValueError(f"eval_params: in the state of {tx!r:.200}, {error}") from None


def _blended(state: State, params: Params, weight: Any) -> Params:
    """A part of the way from the parameters to the averages, in the parameters' types."""

    def wide(p: Any) -> Any:
        return widen(p) if jnp.issubdtype(getattr(p, "dtype", bool), jnp.inexact) else p

    def between(p: Any, widened: Any, average: Any) -> Any:
        if average is widened:  # this leaf has no average
            return p
        widened = jnp.asarray(widened)
        return cast(widened + weight * (average - widened), jnp.asarray(p).dtype)

    widened = jax.tree.map(wide, params, is_leaf=is_leaf)
    averages = averaged(state, widened)
    if leaves_with_path(averages)[1] != leaves_with_path(params)[1]:
        raise ValueError("the average is not a tree like the parameters; blend the two yourself")
    return jax.tree.map(between, params, widened, averages, is_leaf=is_leaf)


def averaged(state: State, params: Params) -> Params:
    """The parameters with the averages that are anywhere in a state, as `eval_params` says."""

    def averages(x: Any) -> bool:
        return hasattr(x, "eval_params")

    for part in jax.tree.leaves(state, is_leaf=averages):
        if averages(part):
            params = _of_part(_arrays(part), params)
    return params


def _arrays(part: Any) -> Any:
    """A part of a state with arrays on the device, each for one leaf."""

    def near(x: Any) -> Any:
        return brought_in(x.load() if is_stored(x) else x)

    return jax.tree.map(near, unpack(unboxed(part)), is_leaf=is_stored)


def _of_part(part: Any, params: Params) -> Params:
    """The parameters with the averages of one part of a state."""
    fields = [getattr(part, name) for name in slot_fields(type(part))]
    slots = next((slot for slot in fields if jax.tree.leaves(slot)), None)
    if slots is None:
        new = part.eval_params(params)
        alike = leaves_with_path(new)[1] == leaves_with_path(params)[1]
        return merge(new, params) if alike else new  # the slow of LookaheadParams
    treedef: Any
    structure: Any
    leaves, treedef = leaves_with_path(params)
    keyed, structure = leaves_with_path(slots)
    by_path = {path_string(path): p for path, p in leaves}
    paths = [path_string(path) for path, _ in keyed]
    slots_by_path = zip(paths, keyed, strict=True)
    # One None may stand for all leaves below, as of another group.
    missing = [
        path for path, (_, slot) in slots_by_path if slot is not None and path not in by_path
    ]
    if missing:
        layout = Vectors(params)
        joined = layout.pack(params)
        if jax.tree.map(jnp.shape, joined) == jax.tree.map(jnp.shape, slots):  # of `flatten`
            return layout.unpack(part.eval_params(joined), params)
        if not missing[0]:
            raise ValueError(
                "the average is of one vector of some leaves, and does not say which: put "
                "ema_params around flatten"
            )
        raise ValueError(
            f"there is an average at {missing[0]!r}, where the parameters have no leaf; they have "
            f"{', '.join(by_path)}"
        )
    for path, (_, slot) in zip(paths, keyed, strict=True):
        p = by_path.get(path)
        if slot is not None and p is not None and jnp.shape(slot) != jnp.shape(p):
            raise ValueError(
                f"the average at {path!r} has the shape {jnp.shape(slot)}, and the parameter "
                f"{jnp.shape(p)}"
            )
    new = part.eval_params(structure.unflatten([by_path.get(path) for path in paths]))
    averages = dict(zip(paths, structure.flatten_up_to(new), strict=True))
    return treedef.unflatten(
        [p if averages.get(at) is None else averages[at] for at, p in by_path.items()]
    )


def _placed_like(params: Params, new: Params) -> Params:
    """Averages where the parameters lie, packed as they are."""

    def one(p: Any, x: Any) -> Any:
        arrays = isinstance(p, jax.Array) and isinstance(x, jax.Array)
        if not arrays or is_tracer(p) or is_tracer(x) or x.sharding == p.sharding:
            return x
        return jax.device_put(x, p.sharding)

    new = packed_like(new, params)
    alike = leaves_with_path(new)[1] == leaves_with_path(params)[1]
    return jax.tree.map(one, params, new, is_leaf=is_leaf) if alike else new
