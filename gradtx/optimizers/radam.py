"""RAdam."""

from typing import Annotated, Any

import jax.numpy as jnp

from gradtx import numerics
from gradtx.checks import Decay, LearningRate, NonNegative, Range
from gradtx.composition.chain import chain
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.lift import elementwise
from gradtx.numerics import Step, abs_sq, debias, ema, log_of, moments, nesterov_mean
from gradtx.optimizers.adam import ScaleByAdamState
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array

_Threshold = Annotated[Any, Range(4.0, high_open=True)]


def _langevin(y: Any) -> Any:
    """``coth(y) - 1 / y``, without cancellation near 0."""
    y = jnp.maximum(y, 1e-30)
    z = jnp.square(jnp.minimum(y, 0.5))
    series = 1 / 3 - z * (1 / 45 - z * (2 / 945 - z * (1 / 4725 - z * (2 / 93555))))
    return jnp.where(y < 0.5, y * series, 1 / jnp.tanh(y) - 1 / y)


def _length(b2: Any, t: Step) -> tuple[Any, Any]:
    """How many gradients the second moment rests on, now and in the limit."""
    rate = -log_of(b2)
    # rho_inf - 2 t b2^t / (1 - b2^t) loses four digits in float32 at the first steps, which
    # matter most; with hyperbolic functions the large terms cancel on paper.
    now = t.number + _langevin(rate / 2) - t.number * _langevin(t.number * (rate / 2))
    return now, 2 / (1 - b2) - 1


@transformation
def scale_by_radam(
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    eps_root: NonNegative = 0.0,
    threshold: _Threshold = 5.0,
    *,
    nesterov: bool = False,
    epsilon_hat: bool = False,
) -> GradientTransformation:
    r"""Adam that uses its second moment only once it rests on enough gradients.

    .. math::
        \rho_\infty &= \frac{2}{1 - \beta_2} - 1, \qquad
        \rho_t = \rho_\infty - \frac{2 t \beta_2^t}{1 - \beta_2^t}, \\
        r_t &= \sqrt{\frac{(\rho_t - 4)(\rho_t - 2) \rho_\infty}
        {(\rho_\infty - 4)(\rho_\infty - 2) \rho_t}}, \\
        u_t &= \frac{r_t\, \hat\mu_t}{\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon}
        \;\text{ if }\; \rho_t \ge \tau, \quad \hat\mu_t \;\text{ otherwise}

    with the moments of :func:`scale_by_adam`.

    Args:
        b1: :math:`\beta_1` in :math:`[0, 1)`.
        b2: :math:`\beta_2` in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`, outside the root.
        eps_root: :math:`\bar\epsilon \ge 0`, inside the root.
        threshold: :math:`\tau \ge 4`; the paper asks for more than 4, PyTorch for
            more than 5.
        nesterov: use the look-ahead first moment of NAdam.
        epsilon_hat: add :math:`\epsilon` to the root before the bias correction, as PyTorch does.

    State: `ScaleByAdamState`.

    Raises:
        ValueError: `threshold` is a number below 4, where :math:`r_t` is not real.

    Optax computes :math:`\rho_t` in float32, where it is off by up to 2e-4 at the first steps.

    Source: L. Liu et al., On the Variance of the Adaptive Learning Rate and Beyond, 2020,
    arXiv:1908.03265, algorithm 2.

    >>> tx = scale_by_radam()
    >>> tx.update(jnp.array([4.0]), tx.init(jnp.zeros(1)))[0].round(6).tolist()
    [4.0]
    """

    def rule(g: Array, s: Any, t: Step) -> Any:
        mu, nu = ema(g, s.mu, b1), ema(abs_sq(g), s.nu, b2)
        m = nesterov_mean(mu, g, b1, t) if nesterov else debias(mu, b1, t)
        rho, end = _length(b2, t)
        ready = rho >= threshold
        squared = (rho - 4) * (rho - 2) * end / ((end - 4) * (end - 2) * rho)
        r = jnp.sqrt(jnp.where(ready, squared, 1))
        added = numerics.epsilon_hat(eps, b2, t) if epsilon_hat else eps
        root = numerics.root(debias(nu, b2, t) + eps_root) + added
        return r * m / jnp.where(ready, root, 1), {"mu": mu, "nu": nu}

    return elementwise(ScaleByAdamState, moments, rule)


@optimizer
def radam(
    learning_rate: LearningRate,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    eps_root: NonNegative = 0.0,
    threshold: _Threshold = 5.0,
    *,
    nesterov: bool = False,
    epsilon_hat: bool = False,
) -> GradientTransformation:
    r"""Rectified Adam: the second moment is used only once it rests on enough gradients.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \qquad
            \hat\mu_t = \frac{\mu_t}{1 - \beta_1^t}, \\
        \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2) |g_t|^2, \qquad
            \hat\nu_t = \frac{\nu_t}{1 - \beta_2^t}, \\
        \rho_\infty &= \frac{2}{1 - \beta_2} - 1, \qquad
            \rho_t = \rho_\infty - \frac{2 t \beta_2^t}{1 - \beta_2^t}, \\
        r_t &= \sqrt{\frac{(\rho_t - 4)(\rho_t - 2) \rho_\infty}
            {(\rho_\infty - 4)(\rho_\infty - 2) \rho_t}}, \\
        \theta_t &= \theta_{t-1} - \eta\,
            \frac{r_t\, \hat\mu_t}{\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon}
            \;\text{ if }\; \rho_t \ge \tau, \quad
            \theta_{t-1} - \eta\, \hat\mu_t \;\text{ otherwise}

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        b1: decay of the first moment, in :math:`[0, 1)`.
        b2: decay of the second moment, in :math:`[0, 1)`.
        eps: added to the root, at least 0.
        eps_root: added under the root, at least 0.
        threshold: :math:`\tau \ge 4`, how many gradients the second moment must rest on.
        nesterov: use Nesterov momentum.
        epsilon_hat: add `eps` before the bias correction, as PyTorch does.

    Source: L. Liu et al., On the Variance of the Adaptive Learning Rate and Beyond, 2020,
    arXiv:1908.03265, algorithm 2.

    >>> import gradtx
    >>> tx = radam(0.05)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(2), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """
    return chain(
        scale_by_radam(
            b1, b2, eps, eps_root, threshold, nesterov=nesterov, epsilon_hat=epsilon_hat
        ),
        scale_by_learning_rate(learning_rate),
    )
