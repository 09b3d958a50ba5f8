"""Adadelta, MADGRAD, Rprop, Signum, optimistic and noisy descent against their papers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle


def adadelta(g, s, t, p, rho=0.9, eps=1e-6, inside=True):
    """Zeiler 2012, algorithm 1."""

    def root(x):
        return np.sqrt(x + eps) if inside else np.sqrt(x) + eps

    s["g"] = rho * s.get("g", 0.0) + (1 - rho) * g * g
    step = -root(s.get("x", 0.0)) / root(s["g"]) * g
    s["x"] = rho * s.get("x", 0.0) + (1 - rho) * step * step
    return step


def madgrad(g, s, t, p, rate=0.01, momentum=0.9, eps=1e-6):
    """Defazio and Jelassi 2021, algorithm 1."""
    start = s.setdefault("start", p.copy())
    weight = (rate + eps) * np.sqrt(t)
    s["v"] = s.get("v", 0.0) + weight * g * g
    s["s"] = s.get("s", 0.0) + weight * g
    z = start - s["s"] / (np.cbrt(s["v"]) + eps)
    return (1 - momentum) * (z - p)


def rprop(g, s, t, p):
    """Riedmiller and Braun 1993, without taking steps back."""
    sign = np.sign(g) * np.sign(s.get("u", 0.0 * g))
    grown = np.clip(s.get("size", 0.01) * np.where(sign > 0, 1.2, 0.5), 1e-6, 50)
    s["size"] = np.where(sign == 0, s.get("size", 0.01), grown)
    s["u"] = np.where(sign < 0, 0.0, s["size"] * np.sign(g))
    return -s["u"]


def signum(g, s, t, p):
    """Bernstein et al. 2018, algorithm 2."""
    s["m"] = 0.9 * s.get("m", 0.0) + 0.1 * g
    return -0.01 * np.sign(s["m"])


def optimistic(g, s, t, p):
    """Mokhtari et al. 2019."""
    before, s["g"] = s.get("g", g), g
    return -0.01 * (1.5 * g - 0.5 * before)


def optimistic_adam(g, s, t, p, b1=0.9, b2=0.999):
    """Daskalakis et al. 2018, algorithm 1, from Adam without Nesterov momentum."""
    s["m"] = b1 * s.get("m", 0.0) + (1 - b1) * g
    s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * g * g
    a = s["m"] / (1 - b1**t) / (np.sqrt(s["v"] / (1 - b2**t)) + 1e-8)
    before, s["a"] = s.get("a", a), a
    return -2 * 0.01 * a + 0.01 * before


PAPERS = {
    "adadelta": (lambda: gradtx.adadelta(), adadelta),
    "adadelta, epsilon outside": (
        lambda: gradtx.adadelta(eps=1e-3, eps_in_sqrt=False),
        lambda g, s, t, p: adadelta(g, s, t, p, eps=1e-3, inside=False),
    ),
    "adadelta, rho an array": (
        lambda: gradtx.adadelta(rho=jnp.float32(0.9)),
        lambda g, s, t, p: adadelta(g, s, t, p, rho=float(np.float32(0.9))),
    ),
    "adadelta, decay": (
        lambda: gradtx.adadelta(weight_decay=0.1),
        lambda g, s, t, p: adadelta(g + 0.1 * p, s, t, p),
    ),
    "madgrad": (lambda: gradtx.madgrad(0.01), madgrad),
    "madgrad, a schedule": (
        lambda: gradtx.madgrad(gradtx.linear_schedule(0.02, 0.0, 50)),
        lambda g, s, t, p: madgrad(g, s, t, p, rate=0.02 * (1 - (t - 1) / 50)),
    ),
    "rprop": (lambda: gradtx.rprop(0.01), rprop),
    "signum": (lambda: gradtx.signum(0.01), signum),
    "optimistic": (lambda: gradtx.optimistic_gradient_descent(0.01, beta=0.5), optimistic),
    "optimistic_adam": (lambda: gradtx.optimistic_adam(0.01, nesterov=False), optimistic_adam),
    "optimistic_adam_v2": (
        lambda: gradtx.optimistic_adam_v2(0.01, nesterov=False),
        optimistic_adam,
    ),
}


@pytest.mark.parametrize("name", PAPERS)
def test_it_is_the_papers(name):
    make, update = PAPERS[name]
    oracle.check(make(), update, rtol=1e-5, atol=2e-5)


def test_adadelta_without_a_rate_descends():
    p = jnp.array([1.0, -2.0])
    updates, _ = gradtx.adadelta().update(p, gradtx.adadelta().init(p), p)
    assert (updates * p < 0).all()


def test_optimistic_adam_takes_a_schedule():
    """Optax refuses it."""
    rate = gradtx.linear_schedule(0.01, 0.0, 50)
    p, gs = oracle.parameters(), oracle.gradients()
    path = oracle.run(gradtx.optimistic_adam(rate), p, gs)
    want = oracle.run(gradtx.optimistic_adam(0.01), p, gs)
    np.testing.assert_allclose(path[0], want[0], rtol=1e-6)
    assert np.abs(path[-1] - path[-2]).max() < 1e-3


def test_rprop_compares_signs_of_tiny_numbers():
    """The product of two numbers of 1e-30 is 0, that of their signs is not."""
    tx = gradtx.scale_by_rprop(1e-30, min_step_size=0.0)
    g, state = jnp.full(1, 1e-30), tx.init(jnp.zeros(1))
    for _ in range(2):
        _, state = tx.update(g, state)
    np.testing.assert_allclose(state.step_sizes, [1.2e-30], rtol=1e-6)


def test_rprop_refuses_complex_parameters():
    with pytest.raises(TypeError, match="complex"):
        gradtx.rprop(0.1).init(jnp.zeros(1, jnp.complex64))


def test_madgrad_keeps_its_own_copy_of_the_start():
    """Parameters and state can be donated together."""
    tx = gradtx.madgrad(0.1)
    p = jnp.ones(3)

    def step(p, state):
        updates, state = tx.update(jnp.ones(3), state, p)
        return gradtx.apply_updates(p, updates), state

    p, state = jax.jit(step, donate_argnums=(0, 1))(p, tx.init(p))
    assert jnp.isfinite(p).all()
    np.testing.assert_array_equal(state[1].x0, np.ones(3))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.complex64])
@pytest.mark.parametrize("rate", [None, 0.2])
def test_noise_has_the_variance_of_the_schedule(dtype, rate):
    """Neelakantan et al. 2015, equation 1: on a gradient of 1, with steps counted from 1."""
    options = {"eta": 0.5, "gamma": 1.0, "key": 0}
    tx = gradtx.add_noise(**options) if rate is None else gradtx.noisy_sgd(rate, **options)
    scale = 1.0 if rate is None else -rate
    g = jnp.ones(20_000, dtype)
    state = tx.init(g)
    for t in (1, 2):
        updates, state = tx.update(g, state)
        assert updates.dtype == dtype
        noise = updates.astype(jnp.complex64) / scale - 1
        assert abs(complex(jnp.mean(noise))) < 0.03
        assert float(jnp.mean(jnp.abs(noise) ** 2)) == pytest.approx(0.5 / t, rel=0.05)


def test_noise_takes_keys_and_seeds():
    g = jnp.zeros(3)

    def first(**arguments):
        tx = gradtx.add_noise(0.1, 0.55, **arguments)
        return np.asarray(tx.update(g, tx.init(g))[0])

    np.testing.assert_array_equal(first(key=3), first(seed=3))
    np.testing.assert_array_equal(first(key=3), first(key=jax.random.key(3)))
    assert (first(key=3) != first()).all()
    with pytest.raises(ValueError, match="seed"):
        first(key=1, seed=2)
    with pytest.raises(TypeError, match="key"):
        first(key="x")
