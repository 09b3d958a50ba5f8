"""Schedules that go up and down forever."""

from collections.abc import Callable
from typing import Any, Literal

import jax.numpy as jnp

from gradtx.checks import NonNegative, Number, Positive, check_choice
from gradtx.declarations.declared_schedule import schedule
from gradtx.numerics import log_of
from gradtx.schedules.counting import floating, quotient, raised, steps, within


@schedule
def cyclic_schedule(
    base_value: Number,
    max_value: Number,
    step_size_up: Positive = 2000,
    step_size_down: Positive | None = None,
    mode: Literal["triangular", "triangular2", "exp_range"] = "triangular",
    gamma: NonNegative = 1.0,
) -> Callable[[Any], Any]:
    r"""Up and down linearly between two values.

    .. math:: b + (m - b)\, x(t)\, s(t)

    with :math:`x` going from 0 to 1 and back in each cycle.

    Args:
        base_value: :math:`b`, the value between the cycles.
        max_value: :math:`m`, the peak.
        step_size_up: the steps from the base to the peak, above 0.
        step_size_down: the steps back; equally many by default.
        mode: the scale `s` of a cycle: ``"triangular"``, 1; ``"triangular2"``, half that of the
            previous cycle; ``"exp_range"``, :math:`\gamma^t`.
        gamma: :math:`\gamma \ge 0`, for ``"exp_range"``.

    Raises:
        ValueError: there is no such mode.

    Source: L. N. Smith, Cyclical Learning Rates for Training Neural Networks, 2017,
    arXiv:1506.01186. PyTorch's CyclicLR.

    >>> cycle = cyclic_schedule(0.0, 1.0, 4, mode="triangular2")
    >>> [float(cycle(t)) for t in (0, 2, 4, 6, 8, 12)]
    [0.0, 0.5, 1.0, 0.5, 0.0, 0.5]
    """
    scales: dict[str, Callable[[Any, Any], Any]] = {
        "triangular": lambda cycle, count: 1.0,
        "triangular2": lambda cycle, count: 0.5 ** floating(cycle),
        "exp_range": lambda cycle, count: raised(gamma, floating(count)),
    }
    check_choice("cyclic_schedule", "mode", mode, list(scales))
    up = steps(step_size_up)
    down = up if step_size_down is None else steps(step_size_down)
    period = steps(up + down)

    def value(count: Any) -> Any:
        cycle = count // period
        since = count - cycle * period
        height = jnp.minimum(quotient(since, up), quotient(period - since, down))
        moved = base_value + (max_value - base_value) * height * scales[mode](cycle, count)
        return moved if mode == "exp_range" else within(moved, base_value, max_value)

    return value


@schedule
def cosine_restarts_schedule(
    init_value: Number,
    first_decay_steps: Positive,
    t_mul: Positive = 2.0,
    m_mul: NonNegative = 1.0,
    alpha: Number = 0.0,
) -> Callable[[Any], Any]:
    r"""Repeated half-cosine decays, each longer and lower than the previous one.

    Args:
        init_value: the value at the start.
        first_decay_steps: the steps of the first decay, above 0.
        t_mul: the factor by which each decay is longer than the previous one, at least 1.
        m_mul: the factor from the starting value of each decay to that of the next.
        alpha: the fraction of `init_value` to which each decay goes down.

    Keras's CosineDecayRestarts, and PyTorch's CosineAnnealingWarmRestarts (with
    :math:`\alpha = \eta_{min} / \eta`).

    Raises:
        ValueError: `t_mul` is below 1.

    Source: I. Loshchilov and F. Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts, 2017,
    arXiv:1608.03983, section 3.

    >>> schedule = cosine_restarts_schedule(1.0, 4, t_mul=2.0, m_mul=0.5)
    >>> [round(float(schedule(t)), 6) for t in (0, 2, 4, 8, 12)]
    [1.0, 0.5, 0.5, 0.25, 0.25]
    """
    if isinstance(t_mul, int | float) and t_mul < 1:
        raise ValueError(f"cosine_restarts_schedule: t_mul must be at least 1, not {t_mul}")

    first = steps(first_decay_steps)

    def value(count: Any) -> Any:
        if isinstance(t_mul, int | float):
            restart, part = _even(count, first) if t_mul == 1 else _growing(count, first, t_mul)
        else:
            even = t_mul == 1
            growing = _growing(count, first, jnp.where(even, 2, t_mul))
            pairs = zip(_even(count, first), growing, strict=True)
            restart, part = (jnp.where(even, x, y) for x, y in pairs)
        wave = 0.5 * m_mul**restart * (1 + jnp.cos(jnp.pi * part))
        return init_value * ((1 - alpha) * wave + alpha)

    return value


def _even(count: Any, first: Any) -> tuple[Any, Any]:
    """The last restart and the part of its decay that is over, where all are equally long."""
    restart = count // first
    return floating(restart), quotient(count - restart * first, first)


def _growing(count: Any, first: Any, t_mul: Any) -> tuple[Any, Any]:
    """The same, where each decay is longer than the previous one."""

    def begin(restart: Any) -> Any:
        """The step at which a restart begins."""
        # A power of whole numbers is exact; near 1 its difference from 1 would lose digits.
        log = restart * rate
        grown = jnp.where(log < 1, jnp.expm1(log), raised(t_mul, restart) - 1)
        at = first * grown / (t_mul - 1)
        whole, rounding = jnp.round(at), 16 * jnp.finfo(at.dtype).eps
        return jnp.where(jnp.abs(at - whole) <= rounding * whole, whole, at)

    rate = log_of(t_mul)
    restart = jnp.floor(jnp.log1p(quotient(count, first) * (t_mul - 1)) / rate)
    time = floating(count)
    # The logarithm may be off by a bit where a restart falls due; the steps decide.
    restart = jnp.where(begin(restart + 1) <= time, restart + 1, restart)
    restart = jnp.where(begin(restart) > time, restart - 1, restart)
    return restart, (time - begin(restart)) / (first * t_mul**restart)
