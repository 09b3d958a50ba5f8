"""ADOPT against its paper and Optax."""

import numpy as np
import optax
import optax.contrib
import pytest

import gradtx
from tests import oracle


def mean(s, name, x, decay):
    s[name] = decay * s.get(name, 0.0) + (1 - decay) * x
    return s[name]


def adopt(g, s, t, p, b1=0.9, b2=0.9999):
    """Taniguchi et al. 2024, with clipping."""
    if t == 1:
        s["m"], s["v"] = 0.0, g * g
        return 0.0 * g
    c = np.clip(g / np.maximum(np.sqrt(s["v"]), 1e-6), -((t - 1) ** 0.25), (t - 1) ** 0.25)
    mean(s, "v", g * g, b2)
    return -0.01 * mean(s, "m", c, b1)


@pytest.mark.parametrize("nesterov", [False, True])
def test_adopt_without_clipping_is_optaxs(nesterov):
    p, gs = oracle.parameters(), oracle.gradients()
    options = {"nesterov": nesterov, "use_clipping": False, "eps": 0.1}
    np.testing.assert_allclose(
        oracle.run(gradtx.adopt(0.01, **options), p, gs),
        oracle.run(optax.contrib.adopt(0.01, **options), p, gs),
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.paper("adopt")
def test_adopt_is_the_papers():
    oracle.check(gradtx.adopt(0.01), adopt, rtol=1e-5, atol=1e-5)
