"""Mechanic against the paper and Optax, around one transformation and around chains."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from tests import oracle


def mechanic(base, weight_decay=1e-2, eps=1e-8, s_init=1e-2, n=6):
    """Cutkosky et al. 2023, algorithm 1, with the clipping and the epsilons of the authors' code.

    As there, the sum of the base's updates is found from the parameters.
    """
    betas = 1 - 0.1 ** np.arange(1, n + 1)

    def update(g, s, t, p):
        if t == 1:
            s.update(start=p, r=0.0, m=np.zeros(n), v=0.0, s=np.full(n, s_init))
        factor = np.sum(s["s"])
        delta = (p - s["start"]) / (factor + eps)
        pull = weight_decay * factor * np.linalg.norm(g) / (np.linalg.norm(p) + eps)
        h = -np.sum(delta * (g + pull * p))
        s["r"] = betas * s["r"] + np.clip(h, -s["m"], s["m"]) * s["s"]
        s["m"] = np.maximum(betas * s["m"], abs(h) + eps)
        s["v"] = betas**2 * s["v"] + h * h
        wealth = s_init / n * s["m"] + np.maximum(s["r"], 0)
        s["s"] = wealth / (np.sqrt(s["v"]) + eps)
        return s["start"] + np.sum(s["s"]) * (delta + base(g, s, t, p)) - p

    return update


def momentum(g, s, t, p):
    s["trace"] = 0.9 * s.get("trace", 0.0) + np.clip(g, -1.0, 1.0)
    return -0.1 * s["trace"]


def run(tx, p, gs, dtype=np.float64):
    with jax.enable_x64(True):
        return oracle.run(tx, p, gs, dtype)


@pytest.mark.slow
@pytest.mark.paper("mechanize")
def test_it_is_the_papers():
    p, gs = oracle.parameters(), oracle.gradients()
    base = gradtx.chain(gradtx.clip(1.0), gradtx.sgd(0.1, momentum=0.9))
    tx = gradtx.mechanize(base, weight_decay=0.3, eps=0.1, s_init=0.2)
    want = oracle.transcribe(mechanic(momentum, 0.3, 0.1, 0.2), p, gs)
    np.testing.assert_allclose(run(tx, p, gs), want, rtol=1e-5, atol=1e-6)
    small = gradtx.mechanize(gradtx.sgd(0.1), weight_decay=0.0, s_init=1e-2, num_betas=2)
    plain = mechanic(lambda g, s, t, p: -0.1 * g, 0.0, n=2)
    want = oracle.transcribe(plain, p, gs)
    np.testing.assert_allclose(run(small, p, gs), want, rtol=1e-5, atol=1e-6)


BASES = {
    "sgd": lambda lib: lib.sgd(1.0),
    "chain": lambda lib: lib.chain(lib.clip_by_global_norm(1.0), lib.adamw(1.0, b1=0.5)),
    "schedule": lambda lib: lib.lion(optax.linear_schedule(1.0, 0.0, 100)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BASES)
def test_like_optax_with_its_defaults(name):
    p, gs = oracle.parameters(), oracle.gradients(steps=100)
    ours = run(gradtx.mechanize(BASES[name](gradtx)), p, gs)
    theirs = run(optax.contrib.mechanize(BASES[name](optax)), p, gs)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-9)


def test_it_starts_where_the_first_update_does():
    tx, p = gradtx.mechanize(gradtx.sgd(1.0), s_init=0.1), jnp.full(2, 5.0)
    _, state = tx.update(jnp.ones(2), tx.init(jnp.zeros(2)), p)
    np.testing.assert_array_equal(state.x0, p)


@pytest.mark.slow
def test_a_parameter_without_a_gradient_counts_in_the_norm():
    """The decay is in proportion to the norm of all parameters, those that rest included."""
    p = {"a": jnp.ones(2), "b": jnp.full(3, 2.0)}
    tx = gradtx.mechanize(gradtx.sgd(1.0), s_init=0.1, weight_decay=0.3)
    largest = []
    for rest in (None, jnp.zeros(3)):
        q, state = p, tx.init(p)
        for g in (1.0, -0.5, 2.0):
            grads = {"a": jnp.full(2, g), "b": rest}
            updates, state = tx.update(grads, state, q)
            q = gradtx.apply_updates(q, updates)
        largest.append(state.m)
    np.testing.assert_allclose(*largest, rtol=1e-6)


@pytest.mark.slow
def test_it_finds_a_rate():
    """From a factor of 6e-6, at which Adam alone would come 0.2 % of the way."""
    target = jnp.array([3.0, -2.0])
    tx = gradtx.mechanize(gradtx.adam(gradtx.linear_schedule(1.0, 0.0, 400)))
    found = gradtx.solve(lambda x: jnp.sum((x - target) ** 2), jnp.zeros(2), tx, max_steps=400)
    assert float(found.value) < 13 / 1000


def test_extra_arguments_reach_the_base_and_slots_are_named():
    p = {"a": jnp.ones(2), "b": jnp.array(1.0), "n": None}
    tx = gradtx.mechanize(gradtx.momo(1.0), s_init=0.1)
    state = tx.init(p)
    with pytest.raises(ValueError, match="value=loss"):
        tx.update(p, state, p)
    updates, state = tx.update(p, state, p, value=jnp.float32(3.0))
    assert updates["b"].shape == ()
    assert updates["n"] is None
    assert {"exp_avg", "x0"} <= set(gradtx.slot_names(state))
    updates, after = tx.update({**p, "a": None}, state, {**p, "a": None}, value=jnp.float32(3.0))
    assert updates["a"] is None
    assert jax.tree.structure(after) == jax.tree.structure(state)
    with pytest.raises(ValueError, match="needs the parameters"):
        tx.update(p, state, value=1.0)
