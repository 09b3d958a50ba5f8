"""Momentum as a trace and as an average, against the formulas."""

import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import mean


@pytest.mark.paper("trace")
@pytest.mark.parametrize(
    ("nesterov", "dampening"), [(False, None), (True, None), (True, 0.0), (False, 0.3)]
)
def test_trace(nesterov, dampening):
    """Sutskever et al. 2013; with PyTorch's dampening, which the first step has not."""

    def update(g, s, t, p):
        s["m"] = (1 if t == 1 else 1 - (dampening or 0.0)) * g + 0.8 * s.get("m", 0.0)
        return -0.05 * (g + 0.8 * s["m"] if nesterov else s["m"])

    tx = gradtx.trace(0.8, nesterov, dampening=dampening)
    oracle.check(gradtx.chain(tx, gradtx.scale(-0.05)), update)


@pytest.mark.paper("ema")
@pytest.mark.parametrize("debias", [False, True])
def test_ema(debias):
    """Kingma and Ba 2015, section 3."""

    def update(g, s, t, p):
        return -0.05 * mean(s, "m", g, 0.8) / (1 - 0.8**t if debias else 1)

    oracle.check(gradtx.chain(gradtx.ema(0.8, debias), gradtx.scale(-0.05)), update)
