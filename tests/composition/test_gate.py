"""Wrappers that run their optimizer or not: a whole step in place, which is the update applied."""

# Sees mutants of: def loop_once_if(.

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.numerics.control import loop_once_if
from tests.catalogue import is_even
from tests.programs import equations, temporary_bytes

WRAPPED = {
    "apply_if_finite": lambda: gradtx.apply_if_finite(gradtx.adam(0.1), 2),
    "accepting": lambda: gradtx.apply_if_finite(gradtx.adam(0.1), 1, accept_at_limit=True),
    "dynamic_loss_scale": lambda: gradtx.dynamic_loss_scale(gradtx.adam(0.1), 8.0),
    "conditionally_mask": lambda: gradtx.conditionally_mask(gradtx.adam(0.1), is_even),
    "nested": lambda: gradtx.apply_if_finite(gradtx.accumulate(gradtx.adam(0.1), 2), 2),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", WRAPPED)
def test_a_step_is_the_update_applied(name):
    tx = WRAPPED[name]()
    rng = np.random.default_rng(0)
    params = {"frozen": jnp.ones(2), "w": jnp.asarray(rng.normal(size=(2, 3)), jnp.float32)}
    one = two = params, tx.init(params)

    @jax.jit
    def step(p, state, g, value):
        return gradtx.apply_gradients(tx, {"frozen": None, "w": g}, p, state, value=value)

    for i in range(6):
        g = jnp.asarray(rng.normal(size=(2, 3)), jnp.float32)
        g = g.at[0, 0].set(jnp.inf) if i in {2, 3} else g
        one = step(*one, g, jnp.float32(np.nan if i == 4 else 1.0))
        seen = {"frozen": None, "w": two[0]["w"]}
        updates, state = tx.update({"frozen": None, "w": g}, two[1], seen)
        two = gradtx.apply_updates(two[0], updates), state
        chex.assert_trees_all_equal_shapes_and_dtypes(one, two)
        chex.assert_trees_all_close(one, two, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["accepting", "dynamic_loss_scale", "conditionally_mask"])
def test_what_returns_tables_for_rows_changes_nothing_where_no_step_is_taken(name):
    table = jnp.ones((4, 2))
    tx = {
        "accepting": lambda tx: gradtx.apply_if_finite(tx, 1, accept_at_limit=True),
        "dynamic_loss_scale": lambda tx: gradtx.dynamic_loss_scale(tx, 1.0),
        "conditionally_mask": lambda tx: gradtx.conditionally_mask(tx, lambda step: step != 1),
    }[name](gradtx.lookahead(gradtx.sgd(0.1), 2, 0.5))

    def path(update):
        state, seen = tx.init(table), []
        for row in (1.0, jnp.inf, 2.0):
            rows = gradtx.Rows(jnp.array([1]), jnp.full((1, 2), row), table.shape)
            updates, state = update(rows, state, table)
            seen.append(updates)
        return seen

    compiled = path(jax.jit(tx.update))
    chex.assert_trees_all_close(compiled, path(tx.update), rtol=1e-6)
    np.testing.assert_array_equal(compiled[1], jnp.zeros_like(table))
    assert np.all(np.stack([compiled[0][1], compiled[2][1]]) < 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["apply_if_finite", "accepting", "dynamic_loss_scale"])
def test_an_update_that_chips_always_compute_is_the_same(name, monkeypatch):
    tx, p = WRAPPED[name](), {"n": None, "w": jnp.linspace(0.5, 1.0, 6).reshape(2, 3)}
    good = {"n": None, "w": p["w"] - 2.0}
    bad = {"n": None, "w": good["w"].at[0, 1].set(jnp.nan)}

    def run(update):
        seen, state = [], tx.init(p)
        for g in (good, bad, bad, good):
            seen.append(update(g, state, p))
            state = seen[-1][1]
        return seen

    def moved(g):
        updates, state = tx.update({"n": None, "w": g}, tx.init(p), p)
        return jnp.sum(updates["w"]) + sum(map(jnp.sum, jax.tree.leaves(state)))

    want = run(jax.jit(tx.update))
    slopes = [jax.grad(moved)(x["w"]) for x in (good, bad)]
    # Every choice of platforms is made as a chip that is no CPU would.
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *x, default, **_: default(*x))
    jaxpr = jax.make_jaxpr(lambda g, s: tx.update(g, s, p))(good, tx.init(p))
    assert "while" not in equations(jaxpr.jaxpr)
    chex.assert_trees_all_close(run(jax.jit(lambda *x: tx.update(*x))), want, rtol=1e-6)
    compiled = [jax.jit(jax.grad(moved))(x["w"]) for x in (good, bad)]
    # Of Adam's first direction the slopes of mean and root cancel but for rounding.
    chex.assert_trees_all_close(compiled, slopes, atol=1e-7)


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", WRAPPED)
def test_a_step_stores_nothing(name):
    tx, p = WRAPPED[name](), jnp.zeros(1 << 20)

    def step(p, state, g):
        return gradtx.apply_gradients(tx, g, p, state)

    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(p, tx.init(p), p).compile()
    assert temporary_bytes(compiled) < 0.01 * p.nbytes


def test_a_transformation_without_a_step_has_none():
    assert gradtx.adam(0.1).step is None
    assert gradtx.chain().step is None
    assert gradtx.conditionally_transform(gradtx.adam(0.1), is_even).step is None
    assert gradtx.chain(WRAPPED["apply_if_finite"](), gradtx.ema_params(0.9)).step is None
    assert gradtx.chain(gradtx.clip(1.0), WRAPPED["apply_if_finite"]()).step is not None


@pytest.mark.slow
def test_run_if():
    x = jnp.arange(3.0)

    def square(now, turn):
        return {"x": (1 + turn) * now["x"] ** 2, "n": now["n"] + 1}  # the turn is 0

    start = {"x": x, "n": jnp.int32(0)}
    for condition, want in ((True, x**2), (False, x)):
        for run in (loop_once_if, jax.jit(loop_once_if, static_argnums=1)):
            got = run(jnp.array(condition), square, start)
            np.testing.assert_array_equal(got["x"], want)
            assert int(got["n"]) == condition
    both = jax.vmap(lambda c: loop_once_if(c, square, start)["x"])(jnp.array([True, False]))
    np.testing.assert_array_equal(both, jnp.stack([x**2, x]))
    slope = jax.jit(jax.grad(lambda x, c: jnp.sum(loop_once_if(c, square, {**start, "x": x})["x"])))
    np.testing.assert_array_equal(slope(x, jnp.array(True)), 2 * x)
    np.testing.assert_array_equal(slope(x, jnp.array(False)), jnp.ones(3))


@pytest.mark.slow
def test_derivatives_go_through_a_compiled_step_that_closes_over_integers():
    tx = gradtx.apply_if_finite(gradtx.sgd(0.1), 2)

    def after_a_step(values, indices):
        p = jnp.ones((4, 2))
        grads = gradtx.Rows(indices, values, p.shape)
        p, _ = gradtx.apply_gradients(tx, grads, p, tx.init(p))
        return jnp.sum(p**2)

    got = jax.grad(jax.jit(after_a_step))(jnp.ones((2, 2)), jnp.array([0, 1]))
    np.testing.assert_allclose(got, -2 * 0.1 * 0.9, rtol=1e-6)
