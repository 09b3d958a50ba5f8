"""One step of the optimizer for a window of micro-batches."""

import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx import tree
from gradtx.composition.apply import take_step
from tests.catalogue import CATALOGUE, has_an_optimizer
from tests.programs import temporary_bytes
from tests.quick import quick
from tests.wrappers.windows import GS, P, run

# Those for the gradients of single examples have windows of their own: test_privacy.py.
BUILDERS = sorted(name for name, entry in CATALOGUE.items() if not entry.examples)


def test_weighted_windows_equal_the_weighted_mean():
    weights = jnp.asarray(np.random.default_rng(0).integers(0, 5, 24), jnp.float32)
    tx = gradtx.accumulate(gradtx.adam(0.1), 4)
    (p, _), _ = run(tx, GS, weight=weights)
    w = np.asarray(weights, np.float64).reshape(6, 4, 1, 1)
    means = (np.asarray(GS, np.float64).reshape(6, 4, 4, 3) * w).sum(1) / w.sum(1)
    (want, _), _ = run(gradtx.adam(0.1), jnp.asarray(means, jnp.float32))
    np.testing.assert_allclose(p, want, rtol=1e-5, atol=1e-6)


@pytest.mark.quick(2)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("compensated", [True, False])
@pytest.mark.parametrize("mean", [True, False])
def test_a_micro_batch_of_weight_0_counts_for_nothing(mean, compensated, first):
    """It has no examples, so that its gradient may be 0 / 0."""
    tx = gradtx.accumulate(gradtx.sgd(1.0), 2, use_grad_mean=mean, compensated=compensated)
    nothing = jnp.full_like(GS[0], jnp.nan)
    gs, weights = ([nothing, GS[0]], [0.0, 2.0]) if first else ([GS[0], nothing], [2.0, 0.0])
    gs, weights = jnp.stack([*gs, nothing, nothing]), jnp.array([*weights, 0.0, 0.0])
    (_, _), updates = run(tx, gs, weight=weights)
    np.testing.assert_allclose(updates[1], -GS[0] if mean else -2 * GS[0], rtol=1e-6)
    np.testing.assert_array_equal(updates[3], 0)


@pytest.mark.slow
def test_rows_of_a_micro_batch_of_weight_0_count_for_nothing():
    tx = gradtx.accumulate(gradtx.sgd(1.0), 2, rows={"*": 4})
    params = {"table": jnp.zeros((5, 2))}
    state = tx.init(params)
    for value, weight in ((jnp.nan, 0.0), (3.0, 2.0)):
        rows = gradtx.Rows(jnp.array([1, 2]), jnp.full((2, 2), value), (5, 2))
        updates, state = tx.update({"table": rows}, state, params, weight=weight)
    np.testing.assert_allclose(updates["table"].to_dense()[:, 0], [0, -3, -3, 0, 0])


@pytest.mark.slow
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


@pytest.mark.quick(2)
@pytest.mark.parametrize("compensated", [True, False])
@pytest.mark.parametrize("value", [jnp.nan, jnp.inf])
def test_a_nan_does_not_outlive_its_window(value, compensated):
    """Nor does the rounding error of an infinite sum, which is NaN."""
    gs = GS[:4].at[0, 0, 0].set(value)
    (_, _), updates = run(gradtx.accumulate(gradtx.sgd(0.1), 2, compensated=compensated), gs)
    assert not np.isfinite(updates[1, 0, 0])
    np.testing.assert_allclose(updates[3], -0.05 * (gs[2] + gs[3]), rtol=1e-5, atol=1e-7)


def test_schedules_tick_once_in_a_window():
    rates = gradtx.piecewise_constant_schedule(1.0, {1: 0.5})
    (_, _), updates = run(gradtx.accumulate(gradtx.sgd(rates), 2), GS[:4])
    np.testing.assert_allclose(updates[1], -(GS[0] + GS[1]) / 2, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(updates[3], -0.5 * (GS[2] + GS[3]) / 2, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_a_window_that_is_longer_than_it_should_be_ends_with_the_next_micro_batch():
    """Three of four are collected when the number becomes two."""
    (_, state), _ = run(gradtx.accumulate(gradtx.sgd(1.0), 4), GS[:3])
    updates, state = gradtx.accumulate(gradtx.sgd(1.0), 2).update(GS[3], state, P)
    np.testing.assert_allclose(updates, -GS[:4].mean(0), rtol=1e-5, atol=1e-6)
    assert bool(gradtx.has_updated(state))


def test_has_updated_on_the_state_of_something_else():
    tx = gradtx.chain(gradtx.clip(1.0), gradtx.accumulate(gradtx.sgd(0.1), 2))
    with pytest.raises(TypeError, match="not tuple; where that is a part"):
        gradtx.has_updated(tx.init(jnp.zeros(2)))


def test_has_updated_and_sum():
    tx = gradtx.accumulate(gradtx.sgd(1.0), 2, use_grad_mean=False)
    state, seen = tx.init(P), []
    for g in GS[:4]:
        updates, state = tx.update(g, state, P)
        seen.append((bool(gradtx.has_updated(state)), int(state.gradient_step)))
    assert seen == [(False, 0), (True, 1), (False, 1), (True, 2)]
    np.testing.assert_allclose(updates, -(GS[2] + GS[3]), rtol=1e-6)


def test_multi_steps_has_no_weights_and_says_when_it_steps():
    tx = gradtx.multi_steps(gradtx.sgd(1.0), 2)
    state, seen = tx.init(P), []
    for g in GS[:4]:
        updates, state = tx.update(g, state, P, weight=7.0)
        seen.append(bool(gradtx.has_updated(state)))
    assert seen == [False, True, False, True]
    np.testing.assert_allclose(updates, -(GS[2] + GS[3]) / 2, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("mean", [False, True])
def test_rows_of_a_window(mean):
    """Row 1 twice and row 2 once, in two micro-batches."""
    tx = gradtx.accumulate(gradtx.sgd(1.0), 2, use_grad_mean=mean, rows={"*": 4})
    p = {"table": jnp.zeros((3, 1))}
    state = tx.init(p)
    for indices, values in (([1, 2], [3.0, 5.0]), ([1, 1], [1.0, 1.0])):
        rows = gradtx.Rows(jnp.array(indices), jnp.array(values)[:, None], (3, 1))
        p, state = gradtx.apply_gradients(tx, {"table": rows}, p, state)
    want = np.array([0, -5, -5]) / (2 if mean else 1)
    np.testing.assert_allclose(p["table"][:, 0], want, rtol=1e-6)


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


@pytest.mark.slow
def test_a_skipped_micro_batch_leaves_no_trace_in_the_compensation():
    bad = GS[0].at[0, 0].set(jnp.nan)
    build = functools.partial(gradtx.accumulate, gradtx.adam(0.1), 4, compensated=True)
    tx = build(should_skip_update_fn=gradtx.skip_not_finite)
    (p, _), _ = run(tx, jnp.concatenate([bad[None], GS[:3], bad[None], GS[3:8]]))
    (want, _), _ = run(build(), GS[:8])
    np.testing.assert_array_equal(p, want)


@pytest.mark.slow
def test_the_inner_optimizer_is_told_the_weight_of_the_window():
    def update(updates, state, params=None, *, weight, **extra_args):
        return jax.tree.map(lambda g: g * 0 + weight, updates), state

    told = gradtx.GradientTransformationExtraArgs(lambda params: gradtx.EmptyState(), update)
    tx = gradtx.accumulate(gradtx.accumulate(told, 2), 2)
    (_, _), updates = run(tx, GS[:4], weight=jnp.arange(1.0, 5.0))
    np.testing.assert_array_equal(updates[-1], 10.0)


def outside_and_inside(tx):
    """What a call does at every micro-batch, and what it does once in a window: primitives."""
    params, extra = {"w": P}, {"value": 1.0, "grad": {"w": P}, "value_fn": tree.norm}
    jaxpr = jax.make_jaxpr(lambda g, s, p: tx.update(g, s, p, **extra))(
        params, tx.init(params), params
    )
    (loop,) = [e for e in jaxpr.eqns if e.primitive.name == "custom_jvp_call"]
    (inner,) = [e for e in loop.params["call_jaxpr"].eqns if e.primitive.name == "while"]
    outside = [e.primitive.name for e in jaxpr.eqns if e is not loop]
    return outside, [e.primitive.name for e in inner.params["body_jaxpr"].eqns]


@pytest.mark.parametrize("name", quick(BUILDERS, "adam", "lbfgs", "muon", "sophia"))
def test_a_micro_step_does_no_optimizer_work(name):
    idle, _ = outside_and_inside(gradtx.accumulate(gradtx.identity(), 4))
    outside, inside = outside_and_inside(gradtx.accumulate(CATALOGUE[name].make(), 4))
    assert outside == idle
    assert inside


def square(p):
    return jnp.vdot(p, p)


def step_of(tx, way):
    """A donated step on one leaf, as `(function, arguments)`; those after the second are kept."""
    p = jnp.zeros(1 << 20)

    if way == "apply_gradients":
        return lambda p, s, g: gradtx.apply_gradients(tx, g, p, s), (p, tx.init(p), p)
    if way == "minimize":
        return lambda p, s: gradtx.minimize(square, tx, p, s)[:2], (p, tx.init(p))

    def by_hand(p, s, g):
        updates, s = tx.update(g, s, p)
        return gradtx.apply_updates(p, updates), s

    return by_hand, (p, tx.init(p), p)


def compiled(tx, way):
    function, arguments = step_of(tx, way)
    return jax.jit(function, donate_argnums=(0, 1)).lower(*arguments).compile()


@pytest.mark.parametrize("way", ["apply_gradients", "by hand"])
def test_the_compiled_micro_step_does_no_optimizer_work(way):
    text = compiled(gradtx.accumulate(gradtx.adam(0.1), 4), way).as_text()
    entry = text[text.index("\nENTRY ") :]
    parts = dict(re.findall(r"^%([\w.\-]+) (\(.*?^})", text, re.MULTILINE | re.DOTALL))
    # XLA of jax 0.12 calls the loop, by a computation of its own, which then counts as the entry's.
    called = [parts[c] for c in re.findall(r" call\(.*to_apply=%([\w.\-]+)", entry)]
    entry += "".join(part for part in called if " while(" in part)
    (body,) = re.findall(r"body=%([\w.\-]+)", entry)
    calls = set(re.findall(r"calls=%([\w.\-]+)", entry))
    # As large as the parameter is one that is computed, the accumulator; and by hand the zeros and
    # what they are added to.
    large = [c for c in calls if re.search(r"ROOT \S+ = f32\[1048576\]", parts[c])]
    assert len(large) <= (3 if way == "by hand" else 1)
    assert "conditional" not in entry
    assert not any("sqrt" in parts[c] for c in calls)
    assert "/sqrt" in parts[body] or any(
        "sqrt" in parts[c] for c in re.findall(r"calls=%([\w.\-]+)", parts[body])
    )


WITHOUT_ROOM = {
    "adam": lambda: gradtx.accumulate(gradtx.adam(0.1), 4),
    "clip and lion": lambda: gradtx.accumulate(
        gradtx.chain(gradtx.clip_by_global_norm(1.0), gradtx.lion(0.1)), 4
    ),
    "lamb": lambda: gradtx.accumulate(gradtx.lamb(0.1), 4),
    "MultiSteps": lambda: gradtx.multi_steps(gradtx.adamw(0.1), 4),
    "after a clip": lambda: gradtx.chain(gradtx.clip(1.0), gradtx.accumulate(gradtx.adam(0.1), 4)),
    "named": lambda: gradtx.named_chain(("a", gradtx.accumulate(gradtx.adam(0.1), 4))),
}


def temporaries(tx, way):
    """Bytes of the compiled step beyond its arguments, over those of the parameters."""
    return temporary_bytes(compiled(tx, way)) / (4 << 20)


@pytest.mark.quick(4)
@pytest.mark.parametrize("way", ["apply_gradients", "minimize"])
@pytest.mark.parametrize("name", WITHOUT_ROOM)
def test_memory_is_parameters_state_and_one_accumulator(name, way):
    tx = WITHOUT_ROOM[name]()
    # This loss's gradient is computed where it is added; that of a model has its own room.
    assert temporaries(tx, way) < 0.01


def test_the_state_is_that_of_the_optimizer_and_one_accumulator():
    p, inner = jnp.zeros(1 << 20), gradtx.adam(0.1)
    held = tree.size(gradtx.accumulate(inner, 4).init(p))
    assert held <= tree.size(inner.init(p)) + p.size + 5  # counts, and the weight


def test_make_step_takes_no_room_either():
    step = gradtx.make_step(square, gradtx.accumulate(gradtx.adam(0.1), 4))
    p = jnp.zeros(1 << 20)
    memory = step.lower(p, step.init(p)).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 0.01 * p.nbytes


@pytest.mark.slow
def test_a_guard_takes_little_room():
    """A count for every 32 entries, on a CPU."""
    skip = gradtx.skip_not_finite
    guarded = gradtx.accumulate(gradtx.adam(0.1), 4, should_skip_update_fn=skip)
    assert temporaries(guarded, "apply_gradients") < 0.05


def test_a_loop_by_hand_takes_room_for_the_zero_updates():
    assert temporaries(gradtx.accumulate(gradtx.adam(0.1), 4), "by hand") < 1.01
    # The decay of the parameters is not computed before the window is known to end, and stored.
    assert temporaries(gradtx.accumulate(gradtx.adamw(0.1), 4), "by hand") < 1.01


@pytest.mark.slow
def test_a_step_is_the_update_applied():
    """With and without a step of its own a transformation does the same, also where it stops."""
    skip = gradtx.skip_not_finite
    tx = gradtx.chain(
        gradtx.clip(1.0), gradtx.accumulate(gradtx.adamw(0.1), 3, should_skip_update_fn=skip)
    )
    assert tx.step is not None
    params = {"b": P[0].astype(jnp.bfloat16), "frozen": P, "w": P}
    one = two = params, tx.init(params)
    step = jax.jit(lambda p, s, g: gradtx.apply_gradients(tx, g, p, s))
    for i, g in enumerate(GS[:8]):
        g = g if i != 4 else g * jnp.nan
        grads = {"b": g[0].astype(jnp.bfloat16), "frozen": None, "w": g}
        one = step(*one, grads)
        seen = {**two[0], "frozen": None}
        updates, state = tx.update(grads, two[1], seen)
        two = gradtx.apply_updates(two[0], updates), state
        chex.assert_trees_all_equal_shapes_and_dtypes(one, two)
        chex.assert_trees_all_close(one, two, rtol=1e-6)
    assert not np.array_equal(one[0]["w"], P)
    np.testing.assert_array_equal(one[0]["frozen"], P)


@pytest.mark.slow
def test_derivatives_go_through_a_window():
    def loss(rate, gs, apply):
        tx = gradtx.accumulate(gradtx.adam(rate), 2)
        p, state = P, tx.init(P)
        for g in gs:
            if apply:
                p, state = gradtx.apply_gradients(tx, g * p, p, state)
            else:
                updates, state = tx.update(g * p, state, p)
                p = p + updates
        return jnp.sum(p**2)

    for apply in (True, False):
        forward = jax.jvp(lambda r, apply=apply: loss(r, GS[:4], apply), (0.1,), (1.0,))[1]
        backward = jax.grad(loss)(0.1, GS[:4], apply)
        difference = (loss(0.101, GS[:4], apply) - loss(0.099, GS[:4], apply)) / 0.002
        np.testing.assert_allclose([forward, backward], difference, rtol=1e-3)
        by_gradient = jax.grad(loss, 1)(0.1, GS[:4], apply)
        assert bool(jnp.any(by_gradient != 0))


# Their loops would be compiled at every call that is not.
LOOPING = {"injected", "lbfgs", "scale_by_zoom_linesearch"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in BUILDERS if not has_an_optimizer(n)])
def test_micro_steps_equal_one_full_batch(name):
    """Operation by operation, which compiles little; that the step is traced is shown above."""
    tx, every = CATALOGUE[name].make(), 3
    params = {"b": P[0], "w": P}
    rng = np.random.default_rng(0)
    shape = lambda p: (2, every, *p.shape)  # noqa: E731
    micro = jax.tree.map(lambda p: jnp.asarray(rng.normal(size=shape(p)), jnp.float32), params)
    means = jax.tree.map(lambda g: jnp.mean(g, axis=1), micro)

    def step(tx, carry, g, mean, weight):
        p, state = carry
        extra = {"value": tree.norm_sq(p), "grad": mean, "value_fn": tree.norm_sq}
        return take_step(tx, g, state, p, weight=weight, **extra)

    if name in LOOPING:
        step = jax.jit(step)
    whole, parts = gradtx.with_extra_args_support(tx), gradtx.accumulate(tx, every)
    want, got = (params, whole.init(params)), (params, parts.init(params))
    for window in range(2):
        mean = jax.tree.map(lambda m, w=window: m[w], means)
        want = step(whole, want, mean, mean, float(every))
        for i in range(every):
            g = jax.tree.map(lambda x, w=window, i=i: x[w, i], micro)
            got = step(parts, got, g, mean, None)
    chex.assert_trees_all_close(got[0], want[0], rtol=2e-5, atol=1e-6)
    inner = tree.unwrap_random_key_data(got[1].inner_opt_state)
    chex.assert_trees_all_close(inner, tree.unwrap_random_key_data(want[1]), rtol=1e-4, atol=1e-5)


def test_what_to_skip_may_be_told_by_python():
    tx = gradtx.accumulate(gradtx.sgd(1.0), 2, should_skip_update_fn=lambda *_: (False, ()))
    (_, state), updates = run(tx, GS[:2])
    np.testing.assert_allclose(updates[1], -(GS[0] + GS[1]) / 2, rtol=1e-5, atol=1e-7)
    assert state.emitted.dtype == bool
    tx = gradtx.accumulate(gradtx.sgd(1.0), 2, should_skip_update_fn=lambda *_: (P > 0, ()))
    with pytest.raises(ValueError, match="one boolean"):
        run(tx, GS[:2])


@pytest.mark.parametrize("every", [0, -1, 2.5])
def test_bad_window(every):
    with pytest.raises((ValueError, TypeError), match="every"):
        gradtx.accumulate(gradtx.sgd(1.0), every)
    with pytest.raises((ValueError, TypeError), match="every_k_schedule"):
        gradtx.MultiSteps(gradtx.sgd(1.0), every)


@pytest.mark.parametrize("compensated", [False, True])
def test_no_gradient_in_a_micro_batch_counts_as_zero(compensated):
    """Also in the first of a window, which forgets the window before."""
    tx = gradtx.accumulate(gradtx.sgd(1.0), 2, compensated=compensated)
    params = {"a": jnp.zeros(()), "b": jnp.zeros(())}
    state = tx.init(params)
    for g in (1.0, 1.0, None, 3.0):
        grads = {"a": None if g is None else jnp.float32(g), "b": jnp.float32(1.0)}
        updates, state = tx.update(grads, state, params)
    assert [float(updates["a"]), float(updates["b"])] == [-1.5, -1.0]


@pytest.mark.slow
@pytest.mark.parametrize("mean", [True, False])
def test_measuring_the_noise_changes_no_bit(mean):
    """Of updates, and of the rest of the state; the whole step is the same too."""
    weights = jnp.asarray(np.random.default_rng(1).integers(0, 5, 24), jnp.float32)

    def build(noise_decay):
        return gradtx.accumulate(gradtx.adam(0.1), 4, use_grad_mean=mean, noise_decay=noise_decay)

    (p, state), updates = run(build(0.5), GS, weight=weights)
    (want_p, want_state), want = run(build(None), GS, weight=weights)
    np.testing.assert_array_equal(updates, want)
    np.testing.assert_array_equal(p, want_p)
    rest = state._replace(noise_scale=None, micro_squares=None)
    jax.tree.map(np.testing.assert_array_equal, rest, want_state)
    found = [
        jax.jit(functools.partial(take_step, tx))(GS[1], tx.update(GS[0], tx.init(P), P)[1], P)[0]
        for tx in (build(0.5), build(None))
    ]
    np.testing.assert_array_equal(*found)


@pytest.mark.quick(1)
@pytest.mark.parametrize("mean", [True, False])
def test_the_noise_is_that_of_the_windows_micro_batches(mean):
    """In NumPy: two squared norms a window; one without two weights, or with NaN, adds nothing.

    Weights may be fractions, with a sum below 1.
    """
    gs = np.array(GS[:12], np.float64).reshape(12, -1)
    gs[6] = np.nan
    weights = np.array([1.0, 2.0, 0.0, 4.0, 0.0, 0.0, 1.0, 3.0, 2.0, 2.0, 5.0, 1.0]) / 16
    average = []
    for window in (slice(0, 4), slice(8, 12)):
        g, w = gs[window], weights[window, None]
        small, large = (w * g**2).sum() / w.sum(), np.sum((w * g).sum(0) ** 2) / w.sum() ** 2
        b, whole = w.sum() / np.sum(w > 0), w.sum()
        average.append(
            ((small - large) / (1 / b - 1 / whole), (whole * large - b * small) / (whole - b))
        )
    tx = gradtx.accumulate(gradtx.sgd(0.1), 4, use_grad_mean=mean, noise_decay=0.5)
    given = jnp.asarray(gs.reshape(12, *GS.shape[1:]), jnp.float32)
    (_, state), _ = run(tx, given, weight=jnp.asarray(weights, jnp.float32))
    found = gradtx.tree.get(state, "noise_scale")
    want = np.average(average, axis=0, weights=[1 / 3, 2 / 3])
    assert found.estimates == 2
    np.testing.assert_allclose((found.noise, found.square), want, rtol=1e-5)


@pytest.mark.slow
def test_skipped_micro_batches_add_nothing_to_the_noise():
    big = functools.partial(gradtx.skip_large_updates, max_squared_norm=1e3)
    tx = gradtx.accumulate(gradtx.sgd(0.1), 2, should_skip_update_fn=big, noise_decay=0.5)
    (_, state), _ = run(tx, jnp.stack([GS[0], 1e4 * GS[1], GS[2]]))
    (_, want), _ = run(gradtx.accumulate(gradtx.sgd(0.1), 2, noise_decay=0.5), GS[:3:2])
    jax.tree.map(np.testing.assert_array_equal, state.noise_scale, want.noise_scale)


@pytest.mark.slow
def test_windows_grow_with_the_noise_between_their_bounds():
    """At least two micro-batches, until their weights are the noise scale, and at most six.

    The first window has two, whatever they weigh: no noise is known yet.
    """

    def lengths(deviation, weight):
        tx = gradtx.accumulate(gradtx.sgd(0.0), 2, noise_decay=0.9, up_to=6)
        noise = np.random.default_rng(0).normal(size=(60, *P.shape)) * deviation
        gs = jnp.asarray(1 + noise, jnp.float32)

        def step(state, g):
            state = tx.update(g, state, P, weight=weight)[1]
            return state, (gradtx.has_updated(state), state.noise_scale.value)

        _, (ends, scales) = jax.jit(lambda: jax.lax.scan(step, tx.init(P), gs))()
        ends = np.flatnonzero(ends)
        return np.diff(ends, prepend=-1), np.asarray(scales)[ends]

    seen = set()
    for deviation, weight in ((0.1, 0.25), (1.5, 1.0), (9.0, 1.0), (1.5, 8.0)):
        found, scales = lengths(deviation, weight)
        assert found[0] == 2
        want = np.clip(np.ceil(scales[:-1] / weight), 2, 6)
        np.testing.assert_array_equal(found[1:], want)
        seen |= set(found.tolist())
    assert {2, 3, 6} <= seen


def test_a_weight_is_one_number():
    tx = gradtx.accumulate(gradtx.sgd(1.0), 2)
    with pytest.raises(ValueError, match="weight must be one number"):
        tx.update(jnp.ones(2), tx.init(jnp.zeros(2)), weight=jnp.array([1.0, 0.0]))


def test_a_gradient_that_is_missing_at_the_end_of_a_window():
    tx = gradtx.accumulate(gradtx.sgd(1.0), 2)
    params = {"a": jnp.zeros(1), "b": jnp.zeros(1)}
    both, one = dict.fromkeys("ab", jnp.ones(1)), {"a": jnp.ones(1), "b": None}
    for first, last, want in ((both, one, None), (one, both, [-0.5])):
        _, state = tx.update(first, tx.init(params), params)
        updates, _ = tx.update(last, state, params)
        assert updates["a"].tolist() == [-1.0]
        assert (updates["b"] if want is None else updates["b"].tolist()) == want
