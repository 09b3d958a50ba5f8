"""One step of the optimizer for a window of micro-batches."""

import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from gradtx import tree
from tests.catalogue import CATALOGUE
from tests.oracle import gradients, parameters

P = jnp.asarray(parameters(), jnp.float32)
# Those for the gradients of single examples have windows of their own: test_privacy.py.
BUILDERS = sorted(name for name, entry in CATALOGUE.items() if not entry.examples)
GS = jnp.asarray(gradients(steps=24), jnp.float32)


def run(tx, gs, **stacked):
    def step(carry, xs):
        p, state = carry
        g, extra = xs
        updates, state = tx.update(g, state, p, **extra)
        return (p + updates, state), updates

    return jax.jit(lambda: jax.lax.scan(step, (P, tx.init(P)), (gs, stacked)))()


def test_multi_steps_like_optax():
    for k in (3, lambda count: jnp.where(count < 2, 2, 4)):
        ours = gradtx.MultiSteps(gradtx.adam(0.1), k)
        theirs = optax.MultiSteps(optax.adam(0.1), k)
        (_, state), updates = run(ours, GS)
        (_, state_optax), want = run(theirs.gradient_transformation(), GS)
        np.testing.assert_allclose(updates, want, rtol=2e-5, atol=1e-6)
        assert int(state.gradient_step) == int(state_optax.gradient_step)
        assert int(state.mini_step) == int(state_optax.mini_step)
        assert bool(ours.has_updated(state)) == bool(theirs.has_updated(state_optax))
        assert state._fields == state_optax._fields


def test_weighted_windows_equal_the_weighted_mean():
    weights = jnp.asarray(np.random.default_rng(0).integers(0, 5, 24), jnp.float32)
    tx = gradtx.accumulate(gradtx.adam(0.1), 4)
    (p, _), _ = run(tx, GS, weight=weights)
    w = np.asarray(weights, np.float64).reshape(6, 4, 1, 1)
    means = (np.asarray(GS, np.float64).reshape(6, 4, 4, 3) * w).sum(1) / w.sum(1)
    (want, _), _ = run(gradtx.adam(0.1), jnp.asarray(means, jnp.float32))
    np.testing.assert_allclose(p, want, rtol=1e-5, atol=1e-6)


def test_a_bad_micro_batch_leaves_no_trace():
    skip = gradtx.skip_not_finite
    bad = GS[0].at[0, 0].set(jnp.nan)
    gs = jnp.concatenate([bad[None], GS[:3], bad[None], GS[3:8]])
    for build in (gradtx.accumulate, gradtx.multi_steps):
        (p, state), _ = run(build(gradtx.adam(0.1), 4, should_skip_update_fn=skip), gs)
        (want, _), _ = run(build(gradtx.adam(0.1), 4), GS[:8])
        np.testing.assert_array_equal(p, want)
        assert int(state.skip_state["num_not_finite"]) == 0
    big = functools.partial(gradtx.skip_large_updates, max_squared_norm=0.0)
    tx = gradtx.accumulate(gradtx.adam(0.1), 1, should_skip_update_fn=big)
    (p, state), _ = run(tx, GS[:2])
    np.testing.assert_array_equal(p, P)
    assert not bool(gradtx.has_updated(state))


def test_a_nan_does_not_outlive_its_window():
    gs = GS[:4].at[0, 0, 0].set(jnp.nan)
    (_, _), updates = run(gradtx.accumulate(gradtx.sgd(0.1), 2), gs)
    assert np.isnan(updates[1, 0, 0])
    np.testing.assert_allclose(updates[3], -0.05 * (gs[2] + gs[3]), rtol=1e-5, atol=1e-7)


def test_has_updated_and_sum():
    tx = gradtx.accumulate(gradtx.sgd(1.0), 2, use_grad_mean=False)
    state, seen = tx.init(P), []
    for g in GS[:4]:
        updates, state = tx.update(g, state, P)
        seen.append(bool(gradtx.has_updated(state)))
    assert seen == [False, True, False, True]
    np.testing.assert_allclose(updates, -(GS[2] + GS[3]), rtol=1e-6)


def test_accumulator_is_wide():
    p = {"h": jnp.zeros(2, jnp.bfloat16), "c": jnp.zeros(2, jnp.complex64)}
    tx = gradtx.accumulate(gradtx.sgd(1.0), 300, use_grad_mean=False)
    assert tx.init(p).acc_grads["h"].dtype == jnp.float32
    assert tx.init(p).acc_grads["c"].dtype == jnp.complex64
    g = {"h": jnp.ones(2, jnp.bfloat16), "c": 1j * jnp.ones(2, jnp.complex64)}
    state, _ = jax.lax.scan(lambda s, _: (tx.update(g, s, p)[1], None), tx.init(p), length=299)
    assert float(state.acc_grads["h"][0]) == 299.0  # in bfloat16 it would stop at 256


@pytest.mark.parametrize(("dtype", "error"), [(jnp.float32, 1e-7), (jnp.bfloat16, 5e-3)])
def test_compensated_sums_lose_nothing(dtype, error):
    gs = jnp.full((3000, 1), 0.1, jnp.float32).at[0].set(1000.0)
    p = jnp.zeros(1)

    def total(compensated):
        tx = gradtx.accumulate(
            gradtx.scale(1.0),
            3000,
            use_grad_mean=False,
            accumulator_dtype=dtype,
            compensated=compensated,
        )
        step = lambda s, g: tx.update(g, s, p)[::-1]  # noqa: E731
        return float(jax.jit(lambda: jax.lax.scan(step, tx.init(p), gs)[1][-1, 0])())

    want = 1000.0 + 2999 * float(jnp.float32(0.1))
    assert abs(total(True) / want - 1) < error
    assert abs(total(False) / want - 1) > 3 * error


def test_a_skipped_micro_batch_leaves_no_trace_in_the_compensation():
    bad = GS[0].at[0, 0].set(jnp.nan)
    build = functools.partial(gradtx.accumulate, gradtx.adam(0.1), 4, compensated=True)
    tx = build(should_skip_update_fn=gradtx.skip_not_finite)
    (p, _), _ = run(tx, jnp.concatenate([bad[None], GS[:3], bad[None], GS[3:8]]))
    (want, _), _ = run(build(), GS[:8])
    np.testing.assert_array_equal(p, want)


def test_the_inner_optimizer_is_told_the_weight_of_the_window():
    def update(updates, state, params=None, *, weight, **extra_args):
        return jax.tree.map(lambda g: g * 0 + weight, updates), state

    told = gradtx.GradientTransformationExtraArgs(lambda params: gradtx.EmptyState(), update)
    tx = gradtx.accumulate(gradtx.accumulate(told, 2), 2)
    (_, _), updates = run(tx, GS[:4], weight=jnp.arange(1.0, 5.0))
    np.testing.assert_array_equal(updates[-1], 10.0)


def wait_and_step(tx):
    """What a call does that makes no step, and what one does that makes one, as jaxprs."""
    params, extra = {"w": P}, {"value": 1.0, "grad": {"w": P}, "value_fn": tree.norm}
    jaxpr = jax.make_jaxpr(lambda g, s, p: tx.update(g, s, p, **extra))(
        params, tx.init(params), params
    )
    (cond,) = [e for e in jaxpr.eqns if e.primitive.name == "cond"]
    return cond.params["branches"]


@pytest.mark.parametrize("name", BUILDERS)
def test_a_micro_step_does_no_optimizer_work(name):
    wait, step = wait_and_step(gradtx.accumulate(CATALOGUE[name].make(), 4))
    # Zeros in the place of the updates; the inner state passes through.
    assert {e.primitive.name for e in wait.eqns} <= {"broadcast_in_dim"}
    assert len(wait.eqns) <= 1
    assert len(wait.jaxpr.outvars) == len(step.jaxpr.outvars)


def test_the_compiled_micro_step_does_no_optimizer_work():
    tx = gradtx.accumulate(gradtx.adam(0.1), 4)
    compiled = jax.jit(tx.update).lower(P, tx.init(P), P).compile().as_text()
    names = re.search(r"branch_computations=\{(\S+), (\S+)\}", compiled).groups()
    wait, step = (compiled[compiled.index(f"\n{name} (") :].partition("\n}\n")[0] for name in names)
    assert wait.count("fusion(") <= 1  # the zeros
    assert "sqrt" not in wait
    assert step.count("fusion(") > 3
    assert "sqrt" in compiled.replace(wait, "")


def temporaries(function, *args):
    """Bytes of the compiled function beyond its arguments, the first two of which are donated."""
    compiled = jax.jit(function, donate_argnums=(0, 1)).lower(*args).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def test_memory_is_parameters_state_accumulator_and_one_gradient():
    p = jnp.zeros(1 << 20)

    def loss(p):
        return jnp.sum(jnp.tanh(p) ** 2)

    for inner in (
        gradtx.adam(0.1),
        gradtx.chain(gradtx.clip_by_global_norm(1.0), gradtx.lion(0.1)),
    ):
        tx = gradtx.accumulate(inner, 4)
        state = tx.init(p)
        slots = sum(x.nbytes for x in jax.tree.leaves(inner.init(p)))
        held = sum(x.nbytes for x in jax.tree.leaves(state))
        assert held < slots + p.nbytes + 100  # the accumulator, and a few numbers
        step = lambda p, s, tx=tx: gradtx.minimize(loss, tx, p, s)[:2]  # noqa: E731
        assert temporaries(step, p, state) < 1.01 * p.nbytes  # the gradient, then the update


def test_a_guarded_window_needs_one_buffer_more_than_its_gradient():
    p = jnp.zeros(1 << 20)
    tx = gradtx.accumulate(gradtx.adam(0.1), 4, should_skip_update_fn=gradtx.skip_not_finite)

    def step(p, state, g):
        return gradtx.apply_gradients(tx, g, p, state)

    assert temporaries(step, p, tx.init(p), p) < 1.1 * p.nbytes


@pytest.mark.long
@pytest.mark.parametrize("name", BUILDERS)
def test_micro_steps_equal_one_full_batch(name):
    tx, every = CATALOGUE[name].make(), 3
    params = {"b": P[0], "w": P}
    rng = np.random.default_rng(0)
    shape = lambda p: (2, every, *p.shape)  # noqa: E731
    micro = jax.tree.map(lambda p: jnp.asarray(rng.normal(size=shape(p)), jnp.float32), params)
    full = jax.tree.map(lambda g: jnp.mean(g, axis=1), micro)

    def scanned(tx, gs, means):
        def step(carry, xs):
            (p, state), (g, mean) = carry, xs
            extra = {"value": tree.norm_sq(p), "grad": mean, "value_fn": tree.norm_sq}
            updates, state = gradtx.with_extra_args_support(tx).update(g, state, p, **extra)
            return (gradtx.apply_updates(p, updates), state), None

        return jax.jit(lambda p: jax.lax.scan(step, (p, tx.init(p)), (gs, means))[0][0])(params)

    flat = jax.tree.map(lambda g: g.reshape(-1, *g.shape[2:]), micro)
    means = jax.tree.map(lambda m: jnp.repeat(m, every, axis=0), full)
    got = scanned(gradtx.accumulate(tx, every), flat, means)
    want = scanned(tx, full, full)
    chex.assert_trees_all_close(got, want, rtol=2e-5, atol=1e-6)


def test_apply_every():
    (_, _), updates = run(gradtx.apply_every(3), GS[:6].at[0, 0, 0].set(jnp.inf))
    (_, _), want = run(optax.apply_every(3), GS[:6])
    np.testing.assert_allclose(updates[5], want[5], rtol=1e-6)
    np.testing.assert_array_equal(updates[4], 0.0)


@pytest.mark.parametrize("every", [0, -1, 2.5])
def test_bad_window(every):
    with pytest.raises((ValueError, TypeError), match="every"):
        gradtx.accumulate(gradtx.sgd(1.0), every)
    with pytest.raises((ValueError, TypeError), match="every_k_schedule"):
        gradtx.MultiSteps(gradtx.sgd(1.0), every)
