"""Hyperparameters in the state."""

# Sees mutants of: scheduled.

import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx

P = jnp.ones(3)


def test_a_change_needs_no_compilation():
    traces = []
    tx = gradtx.inject_hyperparams(gradtx.sgd)(learning_rate=0.1)

    @jax.jit
    def step(state):
        traces.append(None)
        return tx.update(P, state, P)

    _, state = step(tx.init(P))
    state.hyperparams["learning_rate"] = jnp.float32(0.5)
    updates, state = step(state)
    np.testing.assert_allclose(updates, -0.5)
    assert len(traces) == 1


def test_hyperparameters_keep_float32():
    p = jnp.ones(3, jnp.bfloat16)
    state = gradtx.inject_hyperparams(gradtx.adam)(0.1).init(p)
    assert state.hyperparams["b2"].dtype == jnp.float32
    assert float(state.hyperparams["b2"]) < 1.0
    half = gradtx.inject_hyperparams(gradtx.adam, hyperparam_dtype=jnp.bfloat16)(0.1).init(p)
    assert half.hyperparams["b2"].dtype == jnp.bfloat16


def test_a_narrow_array_stays_in_its_type_in_the_state():
    b2 = jnp.asarray(0.9, jnp.bfloat16)
    tx = gradtx.inject_hyperparams(gradtx.adam)(0.1, b2=b2)
    exact = gradtx.inject_hyperparams(gradtx.adam)(0.1, b2=float(b2))
    theirs = optax.inject_hyperparams(optax.adam)(0.1, b2=b2)
    started = tx.init(P)
    assert jax.eval_shape(lambda: started.hyperparams) == jax.eval_shape(
        lambda: theirs.init(P).hyperparams
    )
    kept, state = tx.update(P, started, P)
    assert state.hyperparams["b2"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(kept, exact.update(P, exact.init(P), P)[0])
    # A state of before, in float32, goes on in float32.
    wide = started._replace(hyperparams={**started.hyperparams, "b2": jnp.float32(b2)})
    updates, state = tx.update(P, wide, P)
    assert state.hyperparams["b2"].dtype == jnp.float32
    np.testing.assert_array_equal(updates, kept)


def test_static_arguments_and_errors():
    tx = gradtx.inject_hyperparams(gradtx.adam, static_args="b2")(0.1)
    assert "b2" not in tx.init(P).hyperparams
    with pytest.raises(ValueError, match="b3"):
        gradtx.inject_hyperparams(gradtx.adam, static_args=("b3",))
    with pytest.raises(ValueError, match="b1"):
        gradtx.inject_hyperparams(gradtx.adam)(0.1, b1=2.0)


def test_a_stateful_schedule_sees_the_extra_arguments():
    class FollowsValue:
        def init(self):
            return jnp.float32(1.0)

        def update(self, state, **extra_args):
            return extra_args["value"]

        def __call__(self, state, **extra_args):
            return state

    tx = gradtx.inject_hyperparams(gradtx.sgd)(FollowsValue())
    _, state = tx.update(P, tx.init(P), P, value=jnp.float32(3.0))
    updates, _ = tx.update(P, state, P, value=jnp.float32(0.0))
    np.testing.assert_allclose(updates, -3.0)


def test_it_is_data():
    tx = gradtx.inject_hyperparams(gradtx.adam)(gradtx.linear_schedule(0.1, 0.0, 9))
    assert gradtx.from_config(json.loads(json.dumps(gradtx.to_config(tx)))) == tx


def test_sizes_are_no_hyperparameters():
    """They determine shapes or loops, and stay Python numbers."""
    tx = gradtx.inject_hyperparams(gradtx.guard)(gradtx.sgd(0.1), 5.0, window=8, warmup=4)
    state = tx.init(jnp.ones(2))
    assert set(state.hyperparams) == {"deviations"}
    assert state.inner_state.norms.values.shape == (8,)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_injected_steps_differ_by_one_minus_a_traced_decay_alone(dtype):
    """Over 200 steps near a minimum, where RMSProp is chaotic: elsewhere every bit is the same."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(32, 8)), dtype)
    p = {n: jnp.asarray(rng.normal(size=s), dtype) for n, s in {"w": (8, 8), "v": (8,)}.items()}

    def loss(p):
        return jnp.mean((jnp.tanh(2 * x @ p["w"]) @ p["v"] - jnp.sin(3 * x[:, 0])) ** 2)

    def run(tx, p):
        def step(carry, _):
            return gradtx.apply_gradients(tx, jax.grad(loss)(carry[0]), *carry), None

        return jax.jit(lambda p: jax.lax.scan(step, (p, tx.init(p)), None, length=200)[0][0])(p)

    plain = run(gradtx.rmsprop(0.01), p)
    static = gradtx.inject_hyperparams(gradtx.rmsprop, "decay")(0.01)
    chex.assert_trees_all_equal(run(static, p), plain)
    traced = run(gradtx.inject_hyperparams(gradtx.rmsprop)(0.01), p)
    chex.assert_trees_all_equal(traced, run(gradtx.rmsprop(0.01, decay=jnp.float32(0.9)), p))
    nudged = {**p, "v": p["v"].at[0].set(jnp.nextafter(p["v"][0], jnp.asarray(9, dtype)))}
    one_ulp = run(gradtx.rmsprop(0.01), nudged)
    assert gradtx.tree.norm(gradtx.tree.sub(traced, plain)) <= 10 * gradtx.tree.norm(
        gradtx.tree.sub(one_ulp, plain)
    )
