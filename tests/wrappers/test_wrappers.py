"""Lookahead, averages, plateau, conditions, flattening, SAM, measurements, per-example clips."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from tests.oracle import gradients, parameters, run

P = jnp.asarray(parameters(), jnp.float32)
GS = jnp.asarray(gradients(), jnp.float32)


@pytest.mark.parametrize("reset", [False, True])
def test_lookahead_like_optax_and_with_plain_parameters(reset):
    ours = gradtx.lookahead(gradtx.adam(0.1), 3, 0.5, reset)
    theirs = optax.lookahead(optax.adam(0.1), 3, 0.5, reset)
    pair, pair_optax = gradtx.LookaheadParams.init_synced(P), optax.LookaheadParams.init_synced(P)
    p, plain = P, ours.init(P)
    state, state_optax = ours.init(pair), theirs.init(pair_optax)
    step, step_optax = jax.jit(ours.update), jax.jit(theirs.update)
    for g in GS[:10]:
        u, state = step(g, state, pair)
        pair = gradtx.apply_updates(pair, u)
        u, state_optax = step_optax(g, state_optax, pair_optax)
        pair_optax = optax.apply_updates(pair_optax, u)
        u, plain = step(g, plain, p)
        p = p + u
    np.testing.assert_allclose(pair.slow, pair_optax.slow, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(pair.fast, pair_optax.fast, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(p, pair.fast, rtol=1e-5, atol=1e-6)
    slow = gradtx.eval_params(ours, plain, p)
    np.testing.assert_allclose(slow, gradtx.eval_params(ours, state, pair), rtol=1e-5, atol=1e-6)


def final_state(tx):
    def step(carry, g):
        p, state = carry
        updates, state = tx.update(g, state, p)
        return (p + updates, state), None

    return jax.jit(lambda: jax.lax.scan(step, (P, tx.init(P)), GS)[0])()


def test_averages_of_parameters():
    path = np.asarray(run(gradtx.sgd(0.1), P, GS), np.float64)
    tx = gradtx.chain(gradtx.sgd(0.1), gradtx.ema_params(0.9))
    want = np.asarray(P, np.float64)
    for p in path:
        want = 0.9 * want + 0.1 * p
    p, state = final_state(tx)
    np.testing.assert_allclose(gradtx.eval_params(tx, state, p), want, rtol=1e-5, atol=1e-6)
    tx = gradtx.chain(gradtx.sgd(0.1), gradtx.swa_params(start=5, every=7))
    p, state = final_state(tx)
    want = path[5 + 7 - 1 :: 7].mean(0)
    np.testing.assert_allclose(gradtx.eval_params(tx, state, p), want, rtol=1e-5, atol=1e-6)


def test_average_of_some_leaves_and_of_none():
    params = {"a": jnp.ones(1), "b": jnp.ones(1, jnp.bfloat16)}
    tx = gradtx.masked(gradtx.ema_params(0.5), "b")
    _, state = tx.update(params, tx.init(params), params)
    found = gradtx.eval_params(tx, state, params)
    assert float(found["b"][0]) == 1.5
    assert found["b"].dtype == jnp.bfloat16
    assert float(found["a"][0]) == 1.0
    with pytest.raises(ValueError, match="no average"):
        gradtx.eval_params(gradtx.sgd(1.0), gradtx.sgd(1.0).init(params), params)


def scales(tx, values):
    state, found = tx.init(P), []
    for value in values:
        _, state = tx.update(P, state, value=value)
        found.append(float(state.scale))
    return found


def test_plateau():
    values = [3.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    ours = gradtx.reduce_on_plateau(0.5, 2, cooldown=1, min_scale=0.2)
    theirs = optax.contrib.reduce_on_plateau(0.5, 2, cooldown=1, min_scale=0.2)
    np.testing.assert_allclose(scales(ours, values), scales(theirs, values))
    negative = gradtx.reduce_on_plateau(0.5, 2)
    assert scales(negative, [-3.0] * 4)[-1] == 0.5
    highest = gradtx.reduce_on_plateau(0.5, 2, mode="max")
    assert scales(highest, [1.0, 2.0, 3.0, 4.0])[-1] == 1.0
    assert scales(highest, [4.0, 3.0, 2.0])[-1] == 0.5
    with pytest.raises(ValueError, match="metric"):
        ours.update(P, ours.init(P))


def test_flatten_of_several_types_equals_the_leaves_alone():
    params = {"a": jnp.ones(2), "h": jnp.ones(3, jnp.bfloat16), "n": None}
    tx, alone = gradtx.flatten(gradtx.adam(0.1)), gradtx.adam(0.1)
    updates, _ = tx.update(params, tx.init(params), params)
    want, _ = alone.update(params, alone.init(params), params)
    jax.tree.map(np.testing.assert_array_equal, updates, want)
    no_gradient = {**params, "a": None}
    assert tx.update(no_gradient, tx.init(params), params)[0]["a"] is None
    with pytest.raises(TypeError, match="'a'"):
        rows = gradtx.Rows(jnp.array([0]), jnp.ones(1), (2,))
        tx.update({**params, "a": rows}, tx.init(params), params)


def test_conditions_run_nothing_when_they_do_not_hold():
    def late(step, **extra_args):
        return step >= 1

    for build, first in ((gradtx.conditionally_mask, 0.0), (gradtx.conditionally_transform, 1.0)):
        tx = build(gradtx.adam(0.1), late)
        updates, state = tx.update(jnp.ones(2), tx.init(jnp.ones(2)))
        np.testing.assert_array_equal(updates, first)
        assert int(state.inner_state[0].count) == 0
        _, state = tx.update(jnp.ones(2), state)
        assert int(state.inner_state[0].count) == 1
    with pytest.raises(ValueError, match="one boolean"):
        tx = gradtx.conditionally_mask(gradtx.scale(1.0), lambda step: step)
        tx.update(P, tx.init(P))


def test_monitor_averages():
    tx = gradtx.monitor({"m": gradtx.measure_with_ema(jnp.mean, 0.5), "now": jnp.max})
    theirs = optax.monitor({"m": optax.measure_with_ema(jnp.mean, 0.5), "now": jnp.max})
    state, state_optax = tx.init(P), theirs.init(P)
    for g in GS[:4]:
        _, state = tx.update(g, state, P)
        _, state_optax = theirs.update(g, state_optax, P)
    for name in ("m", "now"):
        np.testing.assert_allclose(
            state.measurements[name], state_optax.measurements[name], rtol=1e-5
        )


@pytest.mark.parametrize("clip", [0.0, 0.7, 1e9])
def test_per_example_clips_like_optax(clip):
    grads = [GS[:5], GS[:5, 0]]
    for ours, theirs in (
        (gradtx.per_example_global_norm_clip, optax.per_example_global_norm_clip),
        (gradtx.per_example_layer_norm_clip, optax.per_example_layer_norm_clip),
    ):
        (total, count), (want, want_count) = ours(grads, clip), theirs(grads, clip)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), total, want
        )
        jax.tree.map(np.testing.assert_array_equal, count, want_count)
    with pytest.raises(ValueError, match="first"):
        gradtx.per_example_global_norm_clip([jnp.ones((2, 3)), jnp.ones((3, 3))], 1.0)


def test_split_and_nonnegative():
    g = jnp.array([1 + 2j, -3 + 0.5j], jnp.complex64)
    tx = gradtx.split_real_and_imaginary(gradtx.clip(1.0))
    updates, _ = tx.update(g, tx.init(g), g)
    np.testing.assert_allclose(updates, [1 + 1j, -1 + 0.5j])
    p = jnp.array([1.0, 0.1])
    tx = gradtx.keep_params_nonnegative()
    updates, _ = tx.update(jnp.array([-2.0, 0.1]), tx.init(p), p)
    assert float(jnp.min(p + updates)) == 0.0
