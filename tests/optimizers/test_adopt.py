"""ADOPT against its paper and Optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import mean


@pytest.mark.paper("adopt")
@pytest.mark.parametrize(
    ("clip", "nesterov", "b2", "dtype"),
    [
        ("the paper's", False, 0.7, np.float32),
        ("the paper's", True, 0.3, np.float32),
        ("the paper's", False, 0.7, np.complex64),
        ("another", True, 0.7, np.float32),
        ("none", False, 0.7, np.float32),
    ],
)
def test_adopt_is_the_papers(clip, nesterov, b2, dtype):
    """Taniguchi et al. 2024; the parts of complex numbers are clipped apart."""
    limits = {
        "the paper's": lambda t: (t - 1) ** 0.25,
        "another": lambda t: 0.5 + 0.01 * (t - 1),
        "none": lambda t: np.inf,
    }

    def update(g, s, t, p):
        if t == 1:
            s["m"], s["v"] = 0.0, abs(g) ** 2
            return 0.0 * g
        c, limit = g / np.maximum(np.sqrt(s["v"]), 0.3), limits[clip](t)
        c = np.clip(c.real, -limit, limit) + 1j * np.clip(c.imag, -limit, limit)
        mean(s, "v", abs(g) ** 2, b2)
        m = mean(s, "m", c if dtype == np.complex64 else c.real, 0.8)
        return -0.05 * (0.8 * m + 0.2 * c if nesterov else m)

    options = {
        "another": {"clip_value_fn": lambda n: 0.5 + 0.01 * n},
        "none": {"use_clipping": False},
    }
    tx = gradtx.adopt(0.05, 0.8, b2, 0.3, nesterov=nesterov, **options.get(clip, {}))
    oracle.check(tx, update, dtype=dtype)


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


def test_a_gradient_that_the_old_moment_vanishes_beside_is_clipped():
    """The old moment, found from the new one, is negative for some entries."""
    tx = gradtx.adopt(1.0, 0.0, 0.7, 1e-12)
    g = jnp.asarray(np.random.default_rng(0).uniform(0.01, 0.02, 1000), jnp.float32)
    update = jax.jit(tx.update)
    _, state = update(jnp.full_like(g, 1e-6), tx.init(g), g)
    np.testing.assert_array_equal(update(g, state, g)[0], -1.0)


def test_without_epsilon_the_first_step_sets_the_second_moment_alone():
    tx = gradtx.adopt(0.1, eps=0.0, use_clipping=False)
    params = jnp.zeros(2)
    state = tx.init(params)
    moves = []
    for _ in range(3):
        updates, state = tx.update(jnp.array([1.0, 2.0]), state, params)
        moves.append(updates)
    np.testing.assert_allclose(moves, [[0, 0], [-0.01, -0.01], [-0.019, -0.019]], rtol=1e-6)
