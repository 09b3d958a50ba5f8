"""MARS against a transcription of its paper, the approximate version."""

import numpy as np
import pytest

import gradtx
from gradtx.core.traits import Scope
from tests import oracle
from tests.optimizers.papers import adam, mean


def corrected(g, s, b1, gamma, max_norm):
    last = s.get("last", g)
    s["last"] = g
    c = g + gamma * b1 / (1 - b1) * (g - last)
    length = np.linalg.norm(c)
    return c * max_norm / length if max_norm is not None and length > max_norm else c


@pytest.mark.paper("mars_adamw")
@pytest.mark.parametrize("max_norm", [None, 2.0, 3.0])
def test_mars_adamw(max_norm):
    def update(g, s, t, p):
        c = corrected(g, s, 0.8, 0.1, max_norm)
        return -0.05 * (adam(c, s, t, 0.8, 0.7, 0.1) + 0.3 * p)

    tx = gradtx.mars_adamw(0.05, 0.8, 0.7, 0.1, 0.3, gamma=0.1, max_norm=max_norm)
    oracle.check(tx, update)


@pytest.mark.paper("mars_lion")
@pytest.mark.parametrize("max_norm", [None, 3.0])
def test_mars_lion(max_norm):
    def update(g, s, t, p):
        m = mean(s, "m", corrected(g, s, 0.8, 0.1, max_norm), 0.8)
        return -0.05 * (np.sign(m) + 0.3 * p)

    oracle.check(gradtx.mars_lion(0.05, 0.8, 0.3, gamma=0.1, max_norm=max_norm), update)


@pytest.mark.paper("mars")
def test_before_any_optimizer_and_with_a_schedule():
    weights = np.linspace(0.0, 0.1, 50)

    def update(g, slots, t, p):
        c = corrected(g, slots, 0.9, weights[t - 1], 2.0)
        m = slots["m"] = c + 0.9 * slots.get("m", 0)
        return -0.02 * m

    link = gradtx.mars(0.9, gamma=lambda count: 0.1 / 49 * count, max_norm=2.0)
    oracle.check(gradtx.chain(link, gradtx.sgd(0.02, momentum=0.9)), update)


@pytest.mark.parametrize(("max_norm", "scope"), [(None, Scope.ENTRY), (1.0, Scope.LEAF)])
def test_only_clipping_reads_a_whole_leaf(max_norm, scope):
    assert gradtx.mars(max_norm=max_norm).rule.scope is scope
