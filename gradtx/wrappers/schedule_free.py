"""Schedule-free learning: averaging in place of a decaying learning rate."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checks import Decay, NonNegative, PositiveCount, Range
from gradtx.composition.around import InnerStep, around
from gradtx.composition.chain import chain
from gradtx.core.pair import (
    GradientTransformation,
    optimizer,
    transformation,
    with_extra_args_support,
)
from gradtx.engine.lift import needed
from gradtx.leaves.paths import is_leaf, map_present
from gradtx.leaves.rows import is_rows
from gradtx.numerics import (
    cast,
    divide,
    increment,
    own_copy,
    real_dtype,
    widen,
)
from gradtx.numerics.compiler_hints import planned, replace
from gradtx.optimizers.rmsprop import scale_by_rms
from gradtx.optimizers.sgd import sgd
from gradtx.schedules.decay import linear_schedule
from gradtx.schedules.piecewise import warmup_constant_schedule
from gradtx.transforms.decay import add_decayed_weights
from gradtx.transforms.primal_averaging import average_beyond, first_iterate
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array, DType, InnerState, Params, ParamsT, Slots, State, Updates

Interpolation = Annotated[Any, Range(0.0, 1.0, low_open=True)]


class ScheduleFreeState(NamedTuple):
    """The base optimizer's state, its iterates, and the weights of the average.

    b1, weight_sum, max_lr: f32[] or wider; step_count: i32[], from 1 as in Optax;
    base_optimizer_state: the base optimizer's; z: like the parameters, in float32 or wider unless
    given.
    """

    b1: Any
    weight_sum: Any
    step_count: Any
    max_lr: Any
    base_optimizer_state: InnerState
    z: Slots

    def eval_params(self, params: Params) -> Params:
        """The average, in the types of the parameters."""
        return average_beyond(params, self.z, self.b1)


def schedule_free_eval_params(state: State, params: ParamsT) -> ParamsT:
    r"""The average :math:`x = (y - (1 - \beta) z) / \beta` that :func:`schedule_free` keeps.

    Args:
        state: a `ScheduleFreeState`; :func:`eval_params` finds one inside a chain or a wrapper.
        params: the parameters being trained, :math:`y`.

    Raises:
        ValueError: `state` is of another transformation.

    >>> import gradtx
    >>> tx = gradtx.schedule_free(gradtx.sgd(1.0), 1.0)
    >>> schedule_free_eval_params(tx.init(jnp.ones(1)), jnp.ones(1)).tolist()
    [1.0]
    """
    if getattr(state, "b1", None) is None or getattr(state, "z", None) is None:
        raise ValueError(
            f"schedule_free_eval_params takes a ScheduleFreeState, not {type(state).__name__}; "
            "eval_params(tx, state, params) finds one inside another state"
        )
    return ScheduleFreeState(state.b1, None, None, None, None, state.z).eval_params(params)


def _at(hyperparameter: Any, count: Any, dtype: DType) -> Array:
    """The value of a hyperparameter at a step."""
    value = hyperparameter(count) if callable(hyperparameter) else hyperparameter
    return jnp.asarray(value, dtype)


def _stepping(share: Array, old: Array, new: Array) -> Callable[[Array, Array, Array], Array]:
    """The function that computes the step of y from the base update, the new z, and y.

    `old` and `new` are the interpolation before and after the step.
    """

    def step(u: Array, z: Array, y: Array) -> Array:
        x = (y - (1 - old) * (z - u)) / old
        x = (1 - share) * x + share * z
        return new * x + (1 - new) * z - y

    towards = share - (new / old - 1) * (1 - share)  # a schedule of b1 moves y along x - z
    direct = (1 - old) * (1 - towards)

    def plan(u: Array, z: Array, y: Array) -> Array:
        """The same step, by a formula without x that reads z once."""
        return towards * (z - y) + direct * u

    return planned(step, plan)


@transformation(native_schedules=True)
def schedule_free(
    base_optimizer: GradientTransformation,
    learning_rate: NonNegative,
    b1: Interpolation = 0.9,
    weight_lr_power: NonNegative = 2.0,
    state_dtype: DType | None = None,
) -> GradientTransformation:
    r"""Average an optimizer's iterates, and take gradients between iterate and average.

    .. math::
        z_{t+1} &= z_t + u_t, \qquad u_t \text{ the base optimizer's update at } y_t, \\
        x_{t+1} &= (1 - c_t) x_t + c_t z_{t+1}, \qquad c_t = w_t / \sum_{i \le t} w_i, \quad
            w_t = \left(\max_{i \le t} \eta_i\right)^p, \\
        y_{t+1} &= \beta_{t+1} x_{t+1} + (1 - \beta_{t+1}) z_{t+1}

    The parameters being trained are :math:`y`; :func:`eval_params` returns the average :math:`x`,
    at which to evaluate.

    Args:
        base_optimizer: an optimizer without momentum, with its learning rate.
        learning_rate: :math:`\eta`, that of the base optimizer: a number, an array, or a schedule,
            which may warm up but should not decay.
        b1: :math:`\beta_{t+1}` in :math:`(0, 1]`; a number, an array, or a schedule, which is
            read at the step that makes :math:`y_{t+1}`.
        weight_lr_power: :math:`p \ge 0`; gives the steps of a warm-up less weight.
        state_dtype: the type in which :math:`z` is kept; float32 or wider unless given. Optax
            keeps it in the parameters' type, and :math:`\beta` and the weights in the lowest of
            their types: in bfloat16, 0.9 is then 0.8984, and the sum of the weights stops growing.

    The update is computed with :math:`x_t = (y_t - (1 - \beta_t) z_t) / \beta_t` and :math:`z_t =
    z_{t+1} - u_t` put in, which is the same except for rounding and needs no copy of :math:`z_t`:

    .. math::
        y_{t+1} - y_t = a_t (z_{t+1} - y_t) + (1 - \beta_t)(1 - a_t) u_t, \qquad
            1 - a_t = (1 - c_t) \frac{\beta_{t+1}}{\beta_t}

    If :math:`\beta` is constant, :math:`a_t = c_t`. While the learning rate is 0 the average stays;
    the weights see the schedule from its step 0 on, as the base optimizer does (in Optax from step
    1 on, so that step 0 of a warm-up counts with the rate of step 1).

    With parameters in bfloat16, :math:`y`, and with it :math:`x`, is rounded at every step: train a
    float32 copy instead. On `Rows` the base optimizer moves the rows that are there, but the
    update is a whole table, since the average moves every row.

    State: `ScheduleFreeState`. There is one :math:`\beta` for all leaves: in a step in which its
    schedule changes, every leaf needs a gradient; where one is missing, :func:`eval_params` is
    wrong from then on.

    Raises:
        ValueError: ``update`` is called without parameters.

    Source: A. Defazio et al., The Road Less Scheduled, 2024, arXiv:2405.15682, equations 3-5 and
    algorithm 1.

    >>> import gradtx
    >>> tx = schedule_free(gradtx.sgd(1.0), learning_rate=1.0, b1=0.5)
    >>> params, state = jnp.zeros(1), tx.init(jnp.zeros(1))
    >>> for _ in range(2):
    ...     params, state = gradtx.apply_gradients(tx, jnp.ones(1), params, state)
    >>> params.tolist(), state.z.tolist(), gradtx.eval_params(tx, state, params).tolist()
    ([-1.75], [-2.0], [-1.5])
    """
    base = with_extra_args_support(base_optimizer)

    def init(params: Params) -> State:
        reals = [real_dtype(jnp.result_type(float, p)) for p in jax.tree.leaves(params)]
        dtype = jnp.result_type(jnp.float32, *reals)
        return ScheduleFreeState(
            b1=own_copy(_at(b1, 0, dtype)),
            weight_sum=jnp.zeros([], dtype),
            step_count=jnp.ones([], jnp.int32),
            max_lr=jnp.zeros([], dtype),
            base_optimizer_state=base.init(params),
            z=map_present(partial(first_iterate, dtype=state_dtype), params),
        )

    def weights(state: Any, count: Array) -> tuple[Array, Array, Array]:
        """The largest learning rate, the sum of weights, and the share of the newest iterate."""
        dtype = state.weight_sum.dtype
        max_lr = jnp.maximum(state.max_lr, _at(learning_rate, count, dtype))
        weight = max_lr ** _at(weight_lr_power, count, dtype)
        weight_sum = state.weight_sum + weight
        return max_lr, weight_sum, divide(weight, weight_sum)

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Updates, State]:
        params = needed("schedule_free", updates, params)
        count = state.step_count - 1
        max_lr, weight_sum, share = weights(state, count)
        new = replace(state.b1, _at(b1, count, weight_sum.dtype))
        step = _stepping(share, state.b1, new)

        moves, base_state = inner_step(updates, state.base_optimizer_state, params)
        moves = jax.tree.map(lambda u: u.to_dense() if is_rows(u) else u, moves, is_leaf=is_leaf)

        def iterate(u: Any, z: Array) -> Array:
            return z if u is None else cast(widen(z) + widen(u), z.dtype)

        def on_leaf(u: Any, z: Array, y: Any) -> Any:
            return cast(step(widen(u), widen(z), widen(jnp.asarray(y))), u.dtype)

        z = jax.tree.map(iterate, moves, state.z, is_leaf=is_leaf)
        steps = map_present(on_leaf, moves, z, params)
        count = increment(state.step_count)
        return steps, ScheduleFreeState(new, weight_sum, count, max_lr, base_state, z)

    return around(base, init, run)


def _warmed_up(where: str, learning_rate: Any, warmup_steps: Any, at_once: bool) -> Any:
    """The learning rate, or a schedule with a linear warm-up to it.

    The warm-up starts at 0, or if `at_once` one step later.
    """
    if warmup_steps is None:
        return learning_rate
    if callable(learning_rate):
        raise TypeError(
            f"{where}: learning_rate is a schedule; warm it up itself and leave out warmup_steps"
        )
    if at_once and warmup_steps == 1:
        return learning_rate
    if at_once:
        return linear_schedule(learning_rate / warmup_steps, learning_rate, warmup_steps - 1)
    return warmup_constant_schedule(0.0, learning_rate, warmup_steps)


@optimizer
def schedule_free_sgd(
    learning_rate: NonNegative = 1.0,
    warmup_steps: PositiveCount | None = None,
    b1: Interpolation = 0.9,
    weight_decay: NonNegative | None = None,
    weight_lr_power: NonNegative = 2.0,
    state_dtype: DType | None = None,
    *,
    warmup_at_once: bool = False,
) -> GradientTransformation:
    r"""Schedule-free gradient descent: :func:`schedule_free` around :func:`sgd`.

    .. math::
        z_t &= z_{t-1} - \eta_t (g_t + \lambda y_{t-1}), \qquad
            g_t \text{ the gradient at } y_{t-1}, \\
        x_t &= (1 - c_t) x_{t-1} + c_t z_t, \qquad
            c_t = \frac{w_t}{\sum_{i \le t} w_i}, \quad
            w_t = \left(\max_{i \le t} \eta_i\right)^p, \\
        y_t &= \beta x_t + (1 - \beta) z_t

    with :math:`x_0 = z_0 = y_0`. The parameters being trained are :math:`y`; :func:`eval_params`
    returns the average :math:`x`, at which to evaluate.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        warmup_steps: `n` steps of a linear warm-up, the first with rate 0; None for none.
        b1: :math:`\beta` in :math:`(0, 1]`; this, `weight_lr_power` and `state_dtype` as in
            :func:`schedule_free`.
        weight_decay: :math:`\lambda \ge 0`; :math:`\lambda y` is added to the gradient.
        weight_lr_power: :math:`p \ge 0`; gives the steps of the warm-up less weight.
        state_dtype: the type in which :math:`z` is kept.
        warmup_at_once: give the first step of the warm-up the rate :math:`\eta / n`, as in the
            authors' code, and the last :math:`\eta`; in Optax nothing moves at the first.

    Source: A. Defazio et al., The Road Less Scheduled, 2024, arXiv:2405.15682, equations 3-5.

    >>> import gradtx
    >>> tx = schedule_free_sgd(0.2)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> average = gradtx.eval_params(tx, result.state, result.params)
    >>> bool(jnp.allclose(average, 1, atol=1e-2))
    True
    """
    rate = _warmed_up("schedule_free_sgd", learning_rate, warmup_steps, warmup_at_once)
    base = sgd(rate)
    if weight_decay is not None:
        base = chain(add_decayed_weights(weight_decay), base)
    return schedule_free(base, rate, b1, weight_lr_power, state_dtype)


@optimizer
def schedule_free_adamw(
    learning_rate: NonNegative = 0.0025,
    warmup_steps: PositiveCount | None = None,
    b1: Interpolation = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    weight_decay: NonNegative = 0.0,
    weight_lr_power: NonNegative = 2.0,
    state_dtype: DType | None = None,
    *,
    warmup_at_once: bool = False,
) -> GradientTransformation:
    r"""Schedule-free AdamW: :func:`schedule_free` around Adam without momentum, with weight decay.

    .. math::
        \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t|^2, \qquad
            g_t \text{ the gradient at } y_{t-1}, \\
        z_t &= z_{t-1} - \eta_t \left(\frac{g_t}{\sqrt{\nu_t / (1 - \beta_2^t)} + \epsilon}
            + \lambda y_{t-1}\right), \\
        x_t &= (1 - c_t) x_{t-1} + c_t z_t, \qquad
            c_t = \frac{w_t}{\sum_{i \le t} w_i}, \quad
            w_t = \left(\max_{i \le t} \eta_i\right)^p, \\
        y_t &= \beta x_t + (1 - \beta) z_t

    with :math:`x_0 = z_0 = y_0`. The parameters being trained are :math:`y`; :func:`eval_params`
    returns the average :math:`x`, at which to evaluate.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        warmup_steps: `n` steps of a linear warm-up, the first with rate 0; None for none.
        b1: :math:`\beta` in :math:`(0, 1]`; this, `weight_lr_power` and `state_dtype` as in
            :func:`schedule_free`.
        b2: decay of the squares, in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`, added to the root.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.
        weight_lr_power: :math:`p \ge 0`; gives the steps of the warm-up less weight.
        state_dtype: the type in which :math:`z` is kept.
        warmup_at_once: give the first step of the warm-up the rate :math:`\eta / n`, as in the
            authors' code, and the last :math:`\eta`; in Optax nothing moves at the first.

    Source: A. Defazio et al., The Road Less Scheduled, 2024, arXiv:2405.15682, algorithm 1. There
    the bias correction multiplies the learning rate; here it divides :math:`\nu`, as in Optax.

    >>> import gradtx
    >>> tx = schedule_free_adamw(0.1, warmup_steps=10)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> average = gradtx.eval_params(tx, result.state, result.params)
    >>> bool(jnp.allclose(average, 1, atol=1e-2))
    True
    """
    rate = _warmed_up("schedule_free_adamw", learning_rate, warmup_steps, warmup_at_once)
    base = chain(
        scale_by_rms(b2, eps, eps_in_sqrt=False, bias_correction=True),
        add_decayed_weights(weight_decay),
        scale_by_learning_rate(rate),
    )
    return schedule_free(base, rate, b1, weight_lr_power, state_dtype)
