"""MoMo against its paper."""

import numpy as np
import pytest

import gradtx
from tests.optimizers.papers import VALUES, check, mean

# A loss that falls at once below what was taken for its bound.
CLIFF = np.where(np.arange(len(VALUES)) < 1, 30, 1 + VALUES / 30)


def momo(decay, adapt, bound, values, adam=False):
    """Schaipp et al. 2024, algorithms 1 (2 with `adam`) and 3, decay by division."""
    alpha, beta = (0.2, 0.8) if adam else (0.5, 0.8)
    shrink = 1 + alpha * decay

    def update(g, s, t, p):
        b = 0.0 if t == 1 and not adam else beta
        rho = 1 - beta**t if adam else 1.0
        f, d, c = mean(s, "f", values[t - 1], b), mean(s, "d", g, b), mean(s, "c", np.sum(g * p), b)
        v = mean(s, "v", g * g, 0.7) / (1 - 0.7**t)
        scale = np.sqrt(v) + 0.1 if adam else 1.0
        square, slope = np.sum(d**2 / scale), np.sum(d * p)
        least = s.get("lb", bound)
        if adapt:
            cap = shrink * (f - c) + slope
            if cap < shrink * rho * least:
                least = max(cap / (2 * rho * shrink), bound)
        gap = max(shrink * (f - rho * least - c) + slope, 0.0)
        tau = min(alpha / rho, gap / square)
        s["lb"] = least
        if adapt:
            s["lb"] = max((f + slope - c - tau * square / 2) / rho, bound)
        return (p - tau * d / scale) / shrink - p

    return update


@pytest.mark.quick(2)
@pytest.mark.paper("momo", "momo_adam")
@pytest.mark.parametrize(
    ("decay", "adapt", "bound", "values"),
    [
        (0.0, False, 1.0, VALUES),
        (0.3, False, 1.0, VALUES),
        (0.3, True, -5.0, CLIFF),
        (0.3, True, 8.0, VALUES),
        (0.3, True, 35.0, VALUES),
    ],
)
def test_momo_is_the_papers(decay, adapt, bound, values):
    options = {"weight_decay": decay, "adapt_lower_bound": adapt, "lower_bound": bound}
    check(gradtx.momo(0.5, 0.8, **options), momo(decay, adapt, bound, values), values=values)
    tx = gradtx.momo_adam(0.2, 0.8, 0.7, 0.1, **options)
    check(tx, momo(decay, adapt, bound, values, adam=True), values=values)
