"""Decay before the step, by hand."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.composition.searches import Searches
from tests.catalogue import CATALOGUE, optimizers
from tests.test_contracts import grads, params, take, value_fn


def test_decay_first_is_adamw_where_the_step_ignores_the_parameters():
    p, g = jnp.array([2.0, -3.0]), jnp.array([0.5, 1.0])
    first = gradtx.decay_first(gradtx.adam(0.1), 0.1 * 0.2)
    adamw = gradtx.adamw(0.1, weight_decay=0.2)
    got, _ = first.update(g, first.init(p), p)
    want, _ = adamw.update(g, adamw.init(p), p)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_decay_first_shows_the_decayed_parameters():
    p, g = jnp.array([4.0, 0.0]), jnp.array([0.0, 1.0])
    tx = gradtx.decay_first(gradtx.chain(gradtx.scale_by_trust_ratio(), gradtx.sgd(0.5)), 0.25)
    updates, _ = tx.update(g, tx.init(p), p)
    # The decayed parameter has norm 3, of which half is the length of the step.
    np.testing.assert_allclose(updates, [-1.0, -1.5], rtol=1e-6)


def test_decay_first_with_a_schedule_and_a_mask():
    p = {"a": jnp.ones(1), "b": jnp.ones(1)}
    zero = jax.tree.map(jnp.zeros_like, p)
    schedule = gradtx.piecewise_constant_schedule(0.5, {1: 0.5})
    tx = gradtx.decay_first(gradtx.sgd(0.1), schedule, mask="a")
    state = tx.init(p)
    for want in (-0.5, -0.25):
        updates, state = tx.update(zero, state, p)
        assert [float(updates[k][0]) for k in "ab"] == [want, 0.0]
    with pytest.raises(ValueError, match="needs the parameters"):
        tx.update(zero, state)


@pytest.mark.parametrize("corrected", [False, True], ids=["independent", "AdamC"])
def test_the_decay_follows_the_learning_rate_as_it_is_told(corrected):
    """Adam with a decay of its own, and Defazio 2025, in float64 by NumPy."""
    peak, weight_decay, b1, b2, eps = 0.2, 0.3, 0.9, 0.999, 1e-8
    rate = gradtx.wsd_schedule(peak, 2, 8, 4, "linear", 0.05)
    rates = [0.05, 0.125, 0.2, 0.2, 0.2, 0.15, 0.1, 0.05]
    decay = gradtx.multiply_schedules(rate, rate, weight_decay / peak) if corrected else 0.03
    tx = gradtx.decay_first(gradtx.adam(rate, b1, b2, eps), decay, mask="a")
    start = np.array([1.0, -2.0])
    params = {"a": jnp.float32(start), "b": jnp.float32(start)}
    want = {"a": start, "b": start}
    mu, nu = ({"a": 0.0, "b": 0.0} for _ in range(2))
    state = tx.init(params)
    step = jax.jit(tx.update)
    for t, lr in enumerate(rates):
        grads = {k: np.cos(t + np.arange(2) + i) for i, k in enumerate("ab")}
        updates, state = step(jax.tree.map(jnp.float32, grads), state, params)
        params = gradtx.apply_updates(params, updates)
        for k, g in grads.items():
            mu[k] = b1 * mu[k] + (1 - b1) * g
            nu[k] = b2 * nu[k] + (1 - b2) * g**2
            root = np.sqrt(nu[k] / (1 - b2 ** (t + 1))) + eps
            lost = (lr**2 * weight_decay / peak if corrected else 0.03) if k == "a" else 0
            want[k] = want[k] - lr * mu[k] / (1 - b1 ** (t + 1)) / root - lost * want[k]
    for k, value in want.items():
        np.testing.assert_allclose(params[k], value, rtol=1e-5)


LACKING = [
    name
    for name in optimizers()
    if not {"weight_decay", "mask"} <= set(getattr(gradtx, name).builder.signature.parameters)
    and not CATALOGUE[name].examples
]


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", LACKING)
def test_every_optimizer_without_a_decay_or_its_mask_takes_this_one(name):
    """The step is its own, from where the leaves that the mask names have decayed to."""
    tx = gradtx.with_extra_args_support(CATALOGUE[name].make())
    first = gradtx.decay_first(tx, 0.25, mask="w")
    p, g = params(name), take(grads(1, name), 0)
    extra = {"value": value_fn(p), "grad": g, "value_fn": value_fn}
    shrunk = {**p, "w": 0.75 * p["w"]}
    u, state = first.update(g, first.init(p), p, **extra)
    if tx.saying(Searches):
        # A search begins where the leaves have decayed to, with the loss and its gradient there.
        value, grad = jax.value_and_grad(value_fn)(shrunk)
        extra |= {"value": value, "grad": grad}
    want, other = tx.update(g, tx.init(p), shrunk, **extra)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, other)
    got = gradtx.apply_updates(p, u)
    chex.assert_trees_all_close(got, gradtx.apply_updates(shrunk, want), rtol=1e-5, atol=1e-6)
