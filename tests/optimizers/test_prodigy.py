"""Prodigy against its paper."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import check, mean


@pytest.mark.paper("prodigy")
@pytest.mark.parametrize(("safe", "corrected"), [(False, True), (True, True), (False, False)])
@pytest.mark.parametrize("b3", [None, 0.9])
def test_prodigy_is_the_papers(safe, corrected, b3):
    """Mishchenko and Defazio 2023, algorithm 4, with the weights of the authors' code.

    Its epsilon stands beside the new estimate of the distance, not the one that the step began
    with; the estimate grows from step to step here.
    """
    b1, b2, first = 0.8, 0.7, 1e-4
    decay, grown = np.sqrt(b2) if b3 is None else b3, []

    def update(g, s, t, p):
        s.setdefault("start", p)
        d = s.get("d", first)
        rate = 0.5 * d * (np.sqrt(1 - b2**t) / (1 - b1**t) if corrected else 1)
        s["r"] = decay * s.get("r", 0.0) + d / first * rate * np.sum(g * (s["start"] - p))
        s["s"] = decay * s.get("s", 0.0) + d / first * (d if safe else rate) * g
        m, v = mean(s, "m", d * g, b1), mean(s, "v", (d * g) ** 2, b2)
        s["d"] = max(d, 5 * s["r"] / np.sum(abs(s["s"])))
        grown.append(s["d"] > d)
        return -rate * (m / (np.sqrt(v) + s["d"] * 0.5) + 0.3 * p)

    tx = gradtx.prodigy(0.5, (b1, b2), b3, 0.5, 1e-4, 5.0, 0.3, safe, bias_correction=corrected)
    check(tx, update, drift=0.5, dtype=np.float64)
    assert sum(grown) >= 4


@pytest.mark.paper("prodigy")
def test_prodigy_sums_gradients_with_their_signs():
    """Of which the step takes the size alone."""
    g = jnp.asarray(oracle.gradients()[0], jnp.float32)
    tx = gradtx.prodigy(0.5, estim_lr0=1e-4, bias_correction=False)
    _, state = tx.update(g, tx.init(g), g)
    np.testing.assert_allclose(gradtx.get_slot(state, "grad_sum"), 0.5e-4 * g, rtol=1e-6)
