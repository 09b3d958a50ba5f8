"""What is skipped, what is clipped, that all of it is counted, and what the report costs."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from benchmarks import guards
from gradtx import numerics
from tests.programs import distinct_equations

PLAIN = gradtx.sgd(1.0)


def follow(tx, gradients, values=None, start=0.0):
    """A parameter led by these gradients, compiled once; the report of every step."""

    @jax.jit
    def step(p, state, g, value):
        extra = {} if values is None else {"value": value}
        p, state = gradtx.apply_gradients(tx, g, p, state, **extra)
        return p, state, gradtx.guard_report(state)

    p = jnp.float32(start)
    state, reports, ps = tx.init(p), [], []
    for g, v in zip(gradients, values or [0.0] * len(gradients), strict=True):
        p, state, report = step(p, state, jnp.float32(g), jnp.float32(v))
        reports.append(report)
        ps.append(float(p))
    return ps, reports, state


def counts(report):
    return {n: int(x) for n, x in report._asdict().items() if x.dtype == jnp.int32}


@pytest.mark.slow
def test_what_is_not_finite_is_never_taken():
    """However many come in a row."""
    tx = gradtx.guard(gradtx.adam(0.1))
    bad = [np.nan, np.inf, -np.inf, 1e30] * 25
    ps, reports, state = follow(tx, [1.0, *bad, 1.0])
    assert len(set(ps[:-1])) == 1
    assert ps[-1] < ps[-2]
    told = counts(reports[-2])
    assert (told["steps"], told["taken"], told["not_finite"]) == (101, 1, 100)
    assert told["consecutive"] == 100
    assert float(reports[-2].clip_factor) == 1.0
    assert int(reports[-1].consecutive) == 0
    assert int(state.inner_state[0].count) == 2


@pytest.mark.quick(1)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_loss_that_is_not_finite_is_not_taken_though_its_gradient_is(value):
    ps, reports, _ = follow(gradtx.guard(PLAIN), [1.0, 1.0], [0.5, value], start=0.5)
    assert ps == [-0.5, -0.5]
    assert float(reports[0].update_ratio) == 2.0
    assert int(reports[-1].not_finite) == 1


def limits(xs, k, window, warmup):
    """Which are spikes, by the docstring in float64: the last ones, each no more than its limit."""
    held, spikes = [], []
    for x in xs:
        limit = np.inf
        if len(held) >= warmup:
            w = np.array(held[-window:], np.float64)
            limit = w.mean() + k * max(w.std(), 0.01 * abs(w.mean()))
        spikes.append(bool(x > limit))
        held.append(min(x, limit))
    return np.array(spikes)


@pytest.mark.quick(1)
@pytest.mark.paper("guard")
@pytest.mark.parametrize(("k", "window", "warmup"), [(3.0, 16, 4), (6.0, 32, 32), (1.0, 5, 2)])
def test_spikes_of_norms_and_losses_are_those_of_a_transcription(k, window, warmup):
    rng = np.random.default_rng(window)
    norms, values = np.exp(0.3 * rng.normal(size=(2, 120)))
    norms[[40, 41, 60, 61, 62, 100]] *= 1000
    values[[50, 60, 90]] *= 1000
    norms[70:] *= 3
    norms, values = norms.astype(np.float32), values.astype(np.float32)
    tx = gradtx.guard(PLAIN, k, window=window, warmup=warmup)
    _, reports, _ = follow(tx, norms.tolist(), values.tolist())
    of_loss = limits(values, k, window, warmup)
    of_norm = limits(norms, k, window, warmup) & ~of_loss
    np.testing.assert_array_equal(np.cumsum(of_loss), [int(r.loss_spikes) for r in reports])
    np.testing.assert_array_equal(np.cumsum(of_norm), [int(r.norm_spikes) for r in reports])
    taken = np.cumsum(~of_loss & ~of_norm)
    np.testing.assert_array_equal(taken, [int(r.taken) for r in reports])
    assert of_loss[[50, 90]].all()
    assert of_norm.any()


def test_the_least_deviation_is_a_share_of_the_mean():
    norms = [10.0, 10.0, 10.5, 20.0]
    _, reports, _ = follow(gradtx.guard(PLAIN, window=4, warmup=2), norms)
    assert [int(r.norm_spikes) for r in reports] == np.cumsum(limits(norms, 6.0, 4, 2)).tolist()


@pytest.mark.slow
def test_spikes_do_not_hide_the_next_one_and_a_new_level_is_taken_in_the_end():
    spikes = [1.0 + 0.01 * (i % 5) for i in range(40)]
    for i in range(20, 40, 2):
        spikes[i] = 1000.0
    _, reports, _ = follow(gradtx.guard(PLAIN, window=32, warmup=16), spikes)
    assert int(reports[-1].norm_spikes) == 10
    risen = [1.0] * 40 + [3.0] * 60
    _, reports, _ = follow(gradtx.guard(PLAIN, window=32, warmup=16), risen)
    assert 0 < int(reports[-1].norm_spikes) < 40
    assert int(reports[-1].consecutive) == 0


@pytest.mark.paper("guard")
def test_clipping_is_to_the_quantile_of_the_last_norms():
    rng = np.random.default_rng(0)
    norms = np.exp(rng.normal(size=60)).astype(np.float32)
    tx = gradtx.guard(PLAIN, None, window=20, warmup=10, clip_quantile=0.3)
    ps, reports, _ = follow(tx, norms.tolist())
    want, held = [], []
    for x in norms:
        limit = np.quantile(np.array(held[-20:], np.float64), 0.3) if len(held) >= 10 else np.inf
        want.append(min(1.0, limit / x))
        held.append(x)
    np.testing.assert_allclose([float(r.clip_factor) for r in reports], want, rtol=1e-5)
    np.testing.assert_allclose(ps, -np.cumsum(norms * want), rtol=1e-5)
    assert int(reports[-1].clipped) == int((np.array(want) < 1).sum()) > 20


@pytest.mark.slow
def test_zero_gradients_are_skipped_where_that_is_asked_for():
    tx = gradtx.guard(gradtx.sgd(1.0, momentum=0.9), skip_zero=True)
    ps, reports, _ = follow(tx, [1.0, 0.0, 0.0])
    assert ps == [-1.0] * 3
    assert int(reports[-1].zero) == 2
    ps, reports, _ = follow(gradtx.guard(gradtx.sgd(1.0, momentum=0.9)), [1.0, 0.0])
    assert ps[1] < ps[0]
    assert int(reports[-1].zero) == 0


@pytest.mark.slow
def test_every_step_is_taken_or_counted_as_skipped_for_one_reason():
    rng = np.random.default_rng(3)
    gs = rng.choice([0.0, 1.0, 1.1, 900.0, np.nan], 200)
    values = rng.choice([1.0, 1.01, 5000.0, np.inf], 200, p=[0.5, 0.4, 0.05, 0.05])
    tx = gradtx.guard(PLAIN, window=16, warmup=4, skip_zero=True)
    _, reports, _ = follow(tx, gs.tolist(), values.tolist())
    told = counts(reports[-1])
    reasons = ("taken", "not_finite", "zero", "loss_spikes", "norm_spikes")
    assert told["steps"] == 200 == sum(told[n] for n in reasons)
    assert all(told[n] > 0 for n in reasons)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["by hand", "in one step", "compensated"])
def test_the_report_measures_the_step(way):
    rng = np.random.default_rng(0)
    p = {"a": jnp.asarray(rng.normal(size=(3, 4)), jnp.float32), "b": jnp.ones(2)}
    g = jax.tree.map(lambda x: 0.5 * x, p)
    inner = gradtx.adamw(gradtx.linear_schedule(0.1, 0.0, 10))
    tx = gradtx.guard(gradtx.compensated(inner) if way == "compensated" else inner)
    state = tx.init(p)
    for _ in range(2):
        old = p
        if way == "by hand":
            u, state = jax.jit(tx.update)(g, state, p)
            p = gradtx.apply_updates(p, u)
        else:
            p, state = jax.jit(lambda g, p, s: gradtx.apply_gradients(tx, g, p, s))(g, p, state)
    report = gradtx.guard_report(state)
    moved = gradtx.tree.norm(gradtx.tree.sub(p, old))
    np.testing.assert_allclose(report.update_norm, moved, rtol=1e-5)
    np.testing.assert_allclose(report.update_ratio, moved / gradtx.tree.norm(old), rtol=1e-5)
    np.testing.assert_allclose(report.gradient_norm, gradtx.tree.norm(g), rtol=1e-6)
    np.testing.assert_allclose(report.learning_rate, 0.09, rtol=1e-6)
    p, state = gradtx.apply_gradients(tx, jax.tree.map(lambda x: x * jnp.nan, g), p, state)
    skipped = gradtx.guard_report(state)
    assert float(skipped.update_norm) == float(skipped.update_ratio) == 0


def test_an_update_that_is_not_finite_is_counted_where_the_optimizer_made_it():
    tx = gradtx.guard(gradtx.scale(1e38))
    _, reports, _ = follow(tx, [100.0])
    assert (int(reports[0].taken), int(reports[0].broken)) == (1, 1)
    assert float(reports[0].learning_rate) == 0.0


def test_without_parameters_there_is_no_ratio():
    tx, g = gradtx.guard(PLAIN), jnp.array([3.0, 4.0])
    report = gradtx.guard_report(jax.jit(tx.update)(g, tx.init(g))[1])
    assert (float(report.update_norm), float(report.update_ratio)) == (5.0, 0.0)


def test_a_guarded_state_may_have_a_boolean():
    tx, g = gradtx.guard(gradtx.scale_by_optimistic_gradient()), jnp.array([3.0, 4.0])
    updates, state = jax.jit(tx.update)(g, tx.init(g))
    assert updates.tolist() == g.tolist()
    assert not state.inner_state.is_initial_step


@pytest.mark.slow
def test_make_step_hands_the_report_out_and_takes_a_validation_loss():
    tx = gradtx.chain(
        gradtx.guard(gradtx.sgd(0.1)), gradtx.reduce_on_plateau(0.5, patience=1, cooldown=0)
    )
    step = gradtx.make_step(lambda p, x: jnp.sum((p - x) ** 2), tx, report=True)
    p = jnp.ones(3)
    state = step.init(p)
    for i in range(4):  # the validation loss stands still, the training loss falls
        p, state, value, report = step(p, state, 0.0, extra_args={"value": 1.0})
        assert int(report.steps) == i + 1
    assert float(state[1].scale) < 1
    assert float(value) < 3
    assert "learning_rate" in str(report)
    with pytest.raises(ValueError, match=r"guard_report: the state holds 0 states of guard"):
        gradtx.make_step(lambda p: p**2, PLAIN, report=True)(jnp.ones([]), PLAIN.init(1.0))


@pytest.mark.slow
def test_a_loss_scale_is_around_and_in_the_report():
    with pytest.raises(ValueError, match=r"put it outside, dynamic_loss_scale\(guard"):
        gradtx.guard(gradtx.dynamic_loss_scale(PLAIN)).init(0.0)
    tx = gradtx.dynamic_loss_scale(gradtx.guard(PLAIN), 8.0)
    _, state = gradtx.apply_gradients(tx, jnp.float32(jnp.inf), jnp.float32(0.0), tx.init(0.0))
    p, state = gradtx.apply_gradients(tx, jnp.float32(4.0), jnp.float32(0.0), state)
    report = gradtx.guard_report(state)
    assert (float(report.loss_scale), float(report.gradient_norm), float(p)) == (4.0, 1.0, -1.0)


def test_micro_batches_are_guarded_one_by_one():
    """A window waits for as many good ones as it needs."""
    tx = gradtx.guard(gradtx.accumulate(PLAIN, 2), skip_zero=True)
    ps, reports, _ = follow(tx, [1.0, np.nan, 0.0, 3.0, 5.0])
    assert ps == [0.0, 0.0, 0.0, -2.0, -2.0]
    assert counts(reports[-1]) | {"taken": 3, "not_finite": 1, "zero": 1} == counts(reports[-1])


def test_a_state_with_two_guards_has_no_one_report():
    tx = gradtx.chain(gradtx.guard(PLAIN), gradtx.guard(PLAIN))
    with pytest.raises(ValueError, match="holds 2 states of guard"):
        gradtx.guard_report(tx.init(0.0))


def test_what_is_remembered_goes_round():
    tx = gradtx.guard(PLAIN, window=3, warmup=2)
    *_, state = follow(tx, [1.0] * 50)
    assert 3 <= int(state.norms.seen) < 6
    assert state.norms.values.tolist() == [1.0] * 3


@pytest.mark.slow
def test_a_resumed_run_decides_alike(tmp_path):
    tx = gradtx.guard(PLAIN, window=8, warmup=4, clip_quantile=0.5)
    *_, state = follow(tx, [1.0, 1.2, 0.8, 1.1, 0.9])
    gradtx.save_checkpoint(tmp_path / "run.npz", jnp.float32(0.0), state, tx)
    back = gradtx.load_checkpoint(tmp_path / "run.npz")
    for g in (1.3, 50.0):
        want = gradtx.apply_gradients(tx, jnp.float32(g), jnp.float32(0.0), state)
        got = gradtx.apply_gradients(back.tx, jnp.float32(g), jnp.float32(0.0), back.state)
        chex.assert_trees_all_equal(got, want)


def fault_counts(outcome):
    """Each fault for one reason, and spikes of the data's own besides."""
    told, had = outcome.report, outcome.faults
    assert told["not_finite"] == had["NaN gradient"] + had["infinite loss"] > 0
    assert told["zero"] == had["dead micro-batch"] > 0
    own = told["loss_spikes"] + told["norm_spikes"] - had["1,000-fold spike"]
    assert 0 <= own <= 0.01 * told["steps"]
    skipped = told["not_finite"] + told["zero"] + told["loss_spikes"] + told["norm_spikes"]
    assert told["steps"] == told["taken"] + skipped == sum(had.values())


@pytest.mark.slow
def test_every_fault_is_counted():
    fault_counts(guards.run(0, guarded=True, faulty=True, steps=500))


@pytest.mark.slow
def test_digits_with_faults_end_where_the_clean_run_does():
    """Within 0.3 points of accuracy; without the guard nothing is learned."""
    clean = [guards.run(seed, guarded=True, faulty=False) for seed in range(2)]
    faulty = [guards.run(seed, guarded=True, faulty=True) for seed in range(2)]
    for outcome in faulty:
        fault_counts(outcome)
    means = [np.mean([o.accuracy for o in found]) for found in (clean, faulty)]
    assert means[0] > 95
    assert means[1] > means[0] - 0.3
    assert guards.run(0, guarded=False, faulty=True, steps=500).accuracy < 50


@pytest.mark.slow
def test_norms_of_many_leaves_are_traced_for_each_kind_of_leaf():
    def count(leaves):
        params = {str(i): jnp.ones((8, 8)) for i in range(leaves)}
        tx = gradtx.guard(gradtx.adam(0.1))
        state = jax.eval_shape(tx.init, params)
        return distinct_equations(jax.make_jaxpr(tx.update)(params, state, params).jaxpr)

    assert count(60) - count(30) < 30 * 30  # 50 for each leaf where the sums were traced for each


def test_an_update_is_traced_once_for_the_step_and_for_its_norm(monkeypatch):
    """With many leaves a trace takes most of a second."""
    traced, ema = [], numerics.ema
    monkeypatch.setattr(numerics, "ema", lambda *x: (traced.append(x), ema(*x))[1])
    p, tx = jnp.ones(3), gradtx.guard(gradtx.ema(0.9))
    jax.jit(tx.update).trace(p, tx.init(p), p)
    assert len(traced) == 1


FALLING = gradtx.linear_schedule(0.1, 0.0, 10)
LOGGED = {
    "schedule": (lambda: gradtx.adamw(FALLING), [0.08]),
    "plateau": (lambda: gradtx.chain(gradtx.adamw(0.1), gradtx.reduce_on_plateau()), [0.1]),
    "injected": (lambda: gradtx.inject_hyperparams(gradtx.adamw)(learning_rate=FALLING), [0.08]),
    "accumulated": (lambda: gradtx.accumulate(gradtx.adamw(FALLING), every=2), [0.09]),
    "groups": (
        lambda: gradtx.partition(
            {"a": gradtx.sgd(FALLING), "b": gradtx.adam(0.2)}, [("head", "a"), ("*", "b")]
        ),
        [0.08, 0.2],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LOGGED)
def test_the_line_of_a_log_whatever_is_inside(name):
    """Rate, norm and ratio are those that `global_norm` and `hyperparams` say by hand."""
    build, rates = LOGGED[name]
    tx = gradtx.guard(build(), deviations=None)

    def loss(p):
        return jnp.sum((p["body"] @ p["head"]) ** 2)

    params = {"body": jnp.ones((4, 4)), "head": jnp.ones((4, 2))}
    step = gradtx.make_step(loss, tx, report=True, donate=False)
    state = step.init(params)
    for count in range(2):
        before = params
        params, state, value, report = step(params, state)
        np.testing.assert_allclose(value, loss(before), rtol=1e-6)
        norm = gradtx.global_norm(jax.grad(loss)(before))
        np.testing.assert_allclose(report.gradient_norm, norm, rtol=1e-5)
        moved = gradtx.global_norm(gradtx.tree.sub(params, before))
        ratio = moved / gradtx.global_norm(before)
        np.testing.assert_allclose(report.update_ratio, ratio, rtol=1e-4)
        if len(rates) == 1 and name != "accumulated":
            used = 0.1 if name == "plateau" else 0.1 - 0.01 * count
            np.testing.assert_allclose(report.learning_rate, used, rtol=1e-5)
    found = gradtx.hyperparams(step.tx, state).items()
    got = [float(rate) for path, rate in found if path.endswith("learning_rate")]
    np.testing.assert_allclose(got, rates, rtol=1e-5)


@pytest.mark.slow
def test_the_rate_of_an_optimizer_of_two_groups_with_one_rate():
    params = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}
    tx = gradtx.guard(gradtx.muon(0.02))
    _, state = gradtx.apply_gradients(tx, params, params, tx.init(params))
    np.testing.assert_allclose(gradtx.guard_report(state).learning_rate, 0.02, rtol=1e-6)
