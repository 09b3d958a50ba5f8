"""Rows that a step does not touch: `exact_rows` against the dense update, over 200 random steps."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx import sparse

ROWS, COLUMNS, STEPS, BATCH = 40, 3, 200, 5
SCHEDULE = gradtx.warmup_cosine_decay_schedule(0.0, 0.05, 20, STEPS)

OPTIMIZERS = {
    "adam, scheduled": lambda: gradtx.adam(SCHEDULE),
    # Rows wait for longer than these take to forget.
    "adam, short memory": lambda: gradtx.adam(SCHEDULE, b1=0.5, b2=0.9),
    "momentum, short memory": lambda: gradtx.sgd(0.02, momentum=0.3),
    "rmsprop": lambda: gradtx.rmsprop(0.01, initial_scale=1.0),
    "adamw": lambda: gradtx.adamw(0.01, weight_decay=0.1),
    "momentum": lambda: gradtx.sgd(0.02, momentum=0.9),
    "rmsprop, momentum": lambda: gradtx.rmsprop(0.01, initial_scale=1.0, momentum=0.9),
    "ema, clipped, L2": lambda: gradtx.chain(
        gradtx.clip_by_global_norm(0.5),
        gradtx.add_decayed_weights(0.1),
        gradtx.ema(0.9),
        gradtx.scale_by_learning_rate(SCHEDULE),
    ),
}
# Every entry by itself, and none of them of a kind that is above.
MORE = {
    "nesterov": lambda: gradtx.sgd(0.02, momentum=0.9, nesterov=True),
    "adagrad": lambda: gradtx.adagrad(0.05),
    "adagrad_decay": lambda: gradtx.adagrad_decay(0.05, 0.1, 30, 0.5),
    "rowwise_adagrad": lambda: gradtx.rowwise_adagrad(0.05),
    "rowwise_adam": lambda: gradtx.rowwise_adam(0.01),
    "adadelta": lambda: gradtx.adadelta(0.5),
    "adabelief": lambda: gradtx.adabelief(0.01),
    "adabound": lambda: gradtx.adabound(0.01),
    "adamax": lambda: gradtx.adamax(0.01),
    "adan": lambda: gradtx.adan(0.01),
    "ademamix": lambda: gradtx.ademamix(0.01),
    "adopt": lambda: gradtx.adopt(0.01),
    "amsgrad": lambda: gradtx.amsgrad(0.01),
    "ftrl": lambda: gradtx.ftrl(0.1, l1_regularization_strength=0.01),
    "laprop": lambda: gradtx.laprop(0.01),
    "lion": lambda: gradtx.lion(1e-3, weight_decay=0.1),
    "madgrad": lambda: gradtx.madgrad(0.01),
    "nadam": lambda: gradtx.nadam(0.01),
    "qhadam": lambda: gradtx.qhadam(0.01),
    "radam": lambda: gradtx.radam(0.01),
    "rprop": lambda: gradtx.rprop(0.01),
    "sign": lambda: gradtx.sign_sgd(1e-3),
    "signum": lambda: gradtx.signum(1e-3),
    "tiger": lambda: gradtx.tiger(1e-3),
    "yogi": lambda: gradtx.yogi(0.01),
}


def batches():
    """Ids of a power law, so that rows come often, twice in a batch, seldom or never."""
    rng = np.random.default_rng(0)
    ids = rng.zipf(1.5, size=(STEPS, BATCH)) - 1
    ids[:, 0] = rng.integers(0, ROWS - 5, STEPS)
    return jnp.asarray(ids % ROWS), jnp.asarray(rng.normal(size=(STEPS, BATCH)), jnp.float32)


def params():
    rng = np.random.default_rng(1)
    table = jnp.asarray(rng.normal(size=(ROWS, COLUMNS)), jnp.float32)
    return {"table": table, "w": jnp.asarray(rng.normal(size=COLUMNS), jnp.float32)}


def loss(p, ids, targets):
    return jnp.mean((jnp.tanh(sparse.take(p["table"], ids)) @ p["w"] - targets) ** 2)


def train(tx, steps=STEPS):
    def step(carry, batch):
        p, state, value = gradtx.minimize(loss, tx, *carry, *batch)
        return (p, state), value

    ids, targets = batches()
    run = jax.jit(lambda p: jax.lax.scan(step, (p, tx.init(p)), (ids[:steps], targets[:steps])))
    return run(params())


def check(make):
    (want, dense), values = train(gradtx.dense_rows(make()))
    exact = gradtx.exact_rows(make())
    (p, state), found = train(exact)
    chex.assert_trees_all_close(found, values, rtol=1e-5, atol=1e-5)
    p, state = sparse.catch_up(exact, p, state)
    chex.assert_trees_all_close(p, want, rtol=1e-5, atol=1e-5)
    chex.assert_trees_all_close(state.inner_state, dense, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_dense(name):
    check(OPTIMIZERS[name])


@pytest.mark.long
@pytest.mark.parametrize("name", MORE)
def test_equals_dense_too(name):
    check(MORE[name])


def test_lazy_is_something_else():
    """Else the test above would show nothing."""
    make = OPTIMIZERS["momentum"]
    lazy, dense = train(make())[0][0], train(gradtx.dense_rows(make()))[0][0]
    assert float(jnp.max(jnp.abs(lazy["table"] - dense["table"]))) > 0.01


def test_a_chosen_table_and_a_group():
    """The rest is dense, also a matrix that is no table, and no row of it is recorded."""

    def loss(p, ids, targets):
        rows = sparse.take(p["table"], ids) @ p["matrix"]
        return jnp.mean((rows @ p["w"] - targets) ** 2)

    start = {**params(), "matrix": jnp.eye(COLUMNS)}
    groups = {"slow": gradtx.adam(1e-3), "fast": gradtx.sgd(0.01, momentum=0.9)}
    inner = gradtx.partition(groups, [("table", "fast"), ("*", "slow")])
    ids, targets = batches()

    def run(tx):
        p, state = start, tx.init(start)
        step = gradtx.make_step(loss, tx, donate=False)
        for i in range(12):
            p, state, _ = step(p, state, ids[i], targets[i])
        return p, state

    exact = gradtx.exact_rows(inner, "table")
    p, state = run(exact)
    assert state.last["matrix"] is None
    assert state.last["table"].shape == (ROWS, 1)
    p, state = sparse.catch_up(exact, p, state)
    want, dense = run(gradtx.dense_rows(inner))
    chex.assert_trees_all_close((p, state.inner_state), (want, dense), rtol=1e-5, atol=1e-6)


def test_two_halves_catch_up_too():
    tx, p = gradtx.exact_rows(gradtx.sgd(0.1, momentum=0.9)), params()["table"]
    want, state, dense = p, tx.init(p), gradtx.sgd(0.1, momentum=0.9).init(p)
    for row in (1, 2, 1, 3, 3, 1):
        grads = gradtx.Rows(jnp.array([row, row]), jnp.ones((2, COLUMNS)), p.shape)
        p, state = gradtx.apply_gradients(tx, grads, p, state)
        want, dense = gradtx.apply_gradients(
            gradtx.sgd(0.1, momentum=0.9), grads.to_dense(), want, dense
        )
    np.testing.assert_allclose(p[1], want[1], rtol=1e-6)
    assert not np.allclose(p[2], want[2])
    p, state = jax.jit(functools.partial(sparse.catch_up, tx))(p, state)
    chex.assert_trees_all_close((p, state.inner_state), (want, dense), rtol=1e-6)


def test_a_dense_gradient_touches_every_row():
    tx, p = gradtx.exact_rows(gradtx.sgd(0.1, momentum=0.9)), params()["table"]
    state = tx.init(p)
    rows = gradtx.Rows(jnp.array([1]), jnp.ones((1, COLUMNS)), p.shape)
    want, dense = p, gradtx.sgd(0.1, momentum=0.9).init(p)
    for grads in (rows, rows, jnp.ones_like(p)):
        p, state = gradtx.apply_gradients(tx, grads, p, state)
        full = grads.to_dense() if isinstance(grads, gradtx.Rows) else grads
        want, dense = gradtx.apply_gradients(gradtx.sgd(0.1, momentum=0.9), full, want, dense)
    assert (state.last == 3).all()
    chex.assert_trees_all_close((p, state.inner_state), (want, dense), rtol=1e-6)


def test_no_table_is_copied():
    p = jnp.zeros((100_000, 8))
    step = gradtx.make_step(
        lambda p, i: jnp.sum(jnp.sin(sparse.take(p, i))), gradtx.exact_rows(gradtx.adam(0.1))
    )
    compiled = step.lower(p, step.init(p), jnp.arange(10)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 20_000


class TestRefused:
    def test_a_rule_that_looks_at_whole_leaves(self):
        tx = gradtx.exact_rows(gradtx.lamb(0.1))
        with pytest.raises(TypeError, match="whole leaves.*'table'.*dense_rows"):
            gradtx.minimize(loss, tx, params(), tx.init(params()), *(x[0] for x in batches()))

    def test_inside_another(self):
        tx = gradtx.chain(gradtx.clip(1.0), gradtx.exact_rows(gradtx.adam(0.1)))
        with pytest.raises(ValueError, match="exact_rows must be the outermost"):
            gradtx.minimize(loss, tx, params(), tx.init(params()), *(x[0] for x in batches()))

    def test_what_is_looked_up_depends_on_the_parameters(self):
        tx, p = gradtx.exact_rows(gradtx.adam(0.1)), params()

        def loss(p):
            first = sparse.take(p["table"], jnp.array([0]))
            return jnp.sum(sparse.take(p["table"], jnp.argmax(first, axis=1)))

        with pytest.raises(ValueError, match="'table' depends on the parameters"):
            gradtx.minimize(loss, tx, p, tx.init(p))

    def test_a_state_of_another_transformation(self):
        tx = gradtx.adam(0.1)
        with pytest.raises(TypeError, match="a state of exact_rows"):
            sparse.catch_up(tx, params(), tx.init(params()))
