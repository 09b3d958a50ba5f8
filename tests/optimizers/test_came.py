"""CAME against its paper."""

import numpy as np
import pytest

import gradtx
from tests import oracle


def rms(x):
    return np.sqrt(np.mean(x * x))


def factored(square, s, key, beta):
    """Shazeer and Stern 2018, algorithm 4, lines 6-8."""
    s[key + "r"] = beta * s.get(key + "r", 0.0) + (1 - beta) * square.mean(axis=1)
    s[key + "c"] = beta * s.get(key + "c", 0.0) + (1 - beta) * square.mean(axis=0)
    return np.outer(s[key + "r"], s[key + "c"]) / s[key + "r"].mean()


@pytest.mark.paper("came")
def test_came_is_the_papers():
    """Luo et al. 2023, algorithm 2."""

    def update(g, s, t, p):
        u = g / np.sqrt(factored(g * g + 1e-30, s, "v", 0.999))
        u = u / max(1.0, rms(u))
        m = s["m"] = 0.9 * s.get("m", 0.0) + 0.1 * u
        d = m / np.sqrt(factored((u - m) ** 2 + 1e-16, s, "s", 0.9999))
        return -0.01 * (d + 0.1 * p)

    oracle.check(gradtx.came(0.01, weight_decay=0.1), update, rtol=3e-5)


def test_came_on_a_vector_is_clipped_rms_with_momentum():
    p, gs = oracle.parameters(shape=(5,)), oracle.gradients(shape=(5,))

    def update(g, s, t, p):
        s["v"] = 0.999 * s.get("v", 0.0) + 0.001 * (g * g + 1e-30)
        u = g / np.sqrt(s["v"])
        s["m"] = 0.9 * s.get("m", 0.0) + 0.1 * u / max(1.0, rms(u))
        return -0.01 * s["m"]

    np.testing.assert_allclose(
        oracle.run(gradtx.came(0.01), p, gs), oracle.transcribe(update, p, gs), atol=1e-5
    )
