"""MoMo against its paper."""

import numpy as np
import pytest

import gradtx
from tests.optimizers.papers import VALUES, check


def positive(x):
    return max(x, 0.0)


def momo(alpha, beta, decay, adapt, bound, adam=False):
    """Schaipp et al. 2024, algorithms 1 (2 with `adam`) and 3, decay by division."""
    b2, eps, shrink = 0.999, 1e-8, 1 + alpha * decay

    def update(g, s, t, p):
        b = 0.0 if t == 1 and not adam else beta
        rho = 1 - beta**t if adam else 1.0
        s["f"] = b * s.get("f", 0.0) + (1 - b) * VALUES[t - 1]
        s["d"] = b * s.get("d", 0.0) + (1 - b) * g
        s["c"] = b * s.get("c", 0.0) + (1 - b) * np.sum(g * p)
        s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * g * g
        scale = eps + np.sqrt(s["v"] / (1 - b2**t)) if adam else 1.0
        square, slope = np.sum(s["d"] ** 2 / scale), np.sum(s["d"] * p)
        least = s.get("lb", bound)
        if adapt:
            cap = shrink * (s["f"] - s["c"]) + slope
            if cap < shrink * rho * least:
                least = max(cap / (2 * rho * shrink), bound)
        gap = positive(shrink * (s["f"] - rho * least - s["c"]) + slope)
        tau = min(alpha / rho, gap / square)
        s["lb"] = least
        if adapt:
            s["lb"] = max((s["f"] + slope - s["c"] - tau * square / 2) / rho, bound)
        return (p - tau * s["d"] / scale) / shrink - p

    return update


@pytest.mark.paper("momo", "momo_adam")
@pytest.mark.parametrize(
    ("decay", "adapt", "bound"), [(0.0, False, 0.0), (0.1, False, 1.0), (0.1, True, -5.0)]
)
def test_momo_is_the_papers(decay, adapt, bound):
    kwargs = {"weight_decay": decay, "adapt_lower_bound": adapt, "lower_bound": bound}
    check(gradtx.momo(0.5, **kwargs), momo(0.5, 0.9, decay, adapt, bound))
    check(gradtx.momo_adam(0.05, **kwargs), momo(0.05, 0.9, decay, adapt, bound, adam=True))
