"""The compiled step."""

# Sees mutants of: interpreter.

import os
import subprocess
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from tests.distributed.meshes import all_lie_on, mesh, on
from tests.programs import temporary_bytes


def loss(p, x=1.0):
    return jnp.sum((p["w"] * x - 2.0) ** 2) + p["b"] ** 2


def start():
    return {"w": jnp.array([0.0, 1.0]), "b": jnp.array(3.0)}


TX = gradtx.adam(0.1)


class TestMakeStep:
    def test_it_is_minimize_compiled_once(self):
        traces = []

        def traced(p, x):
            traces.append(None)
            return loss(p, x)

        step = gradtx.make_step(traced, TX)
        params = start()
        state = step.init(params)
        want = gradtx.minimize(loss, TX, start(), TX.init(start()), 2.0)
        got = step(params, state, 2.0)
        chex.assert_trees_all_close(got, want, rtol=1e-6)
        step(*got[:2], 3.0)
        assert len(traces) == 1

    def test_it_donates(self):
        step = gradtx.make_step(loss, TX)
        params = start()
        state = step.init(params)
        step(params, state)
        assert params["w"].is_deleted()
        assert gradtx.get_slot(state, "mu", "w").is_deleted()
        kept = start()
        gradtx.make_step(loss, TX, donate=False)(kept, TX.init(kept))
        assert not kept["w"].is_deleted()

    @pytest.mark.parametrize("devices", [1, 2])
    def test_what_was_donated_is_named(self, devices, monkeypatch):
        """With several devices it is asked for before the call, with one only after a failure."""
        monkeypatch.setattr(jax, "device_count", lambda: devices)
        step = gradtx.make_step(loss, TX)
        params = start()
        state = step.init(params)
        new, _, _ = step(params, state)
        with pytest.raises(ValueError, match="params: 'w' was given up to an") as caught:
            step(params, step.init(new))
        assert (caught.value.__context__ is None) == (devices > 1)
        with pytest.raises(ValueError, match="state: '0/count' was given up to an earlier step"):
            step(new, state)

    def test_weakly_typed_parameters_compile_once(self):
        step = gradtx.make_step(loss, TX)
        params = {"w": jnp.array([0.0, 1.0]), "b": jnp.array(3.0)}
        assert params["b"].weak_type
        state = step.init(params)
        for _ in range(2):
            params, state, _ = step(params, state)
        assert step._compiled._cache_size() == 1

    def test_hyperparameters_change_without_compiling(self):
        traces = []

        def traced(p):
            traces.append(None)
            return loss(p)

        step = gradtx.make_step(traced, gradtx.sgd(jnp.float32(0.1), momentum=0.9))
        params = start()
        params, state, _ = step(params, step.init(params))
        before = float(params["b"])
        halted = step.replace(learning_rate=jnp.float32(0.0))
        params, state, _ = halted(params, state)
        assert float(params["b"]) == before
        assert len(traces) == 1

    def test_part_of_the_parameters(self):
        step = gradtx.make_step(loss, TX, trainable="w")
        params = start()
        params, _, _ = step(params, step.init(params))
        assert float(params["b"]) == 3.0
        assert float(params["w"][0]) != 0.0

    @pytest.mark.slow
    def test_inside_scan_and_grad(self):
        def after(rate):
            tx = gradtx.adam(rate)
            (params, _), _ = jax.lax.scan(
                lambda c, _: (gradtx.minimize(loss, tx, *c)[:2], None),
                (start(), tx.init(start())),
                length=5,
            )
            return loss(params)

        slope = jax.grad(after)(0.1)
        difference = (after(0.101) - after(0.099)) / 0.002
        np.testing.assert_allclose(slope, difference, rtol=1e-2)


@pytest.mark.quick(1)
@pytest.mark.parametrize("sharded", [False, True])
def test_a_report_of_the_guard_is_the_last_result(sharded):
    tx = gradtx.guard(TX)
    where = gradtx.state_sharding(tx, start(), on(mesh(data=8))) if sharded else None
    step = gradtx.make_step(loss, tx, report=True, sharding=where)
    _, state, _, report = step(jax.device_put(start(), where and where.params), step.init(start()))
    assert (int(report.steps), int(gradtx.guard_report(state).steps)) == (1, 1)


@pytest.mark.parametrize("steps", [None, 1])
def test_the_plan_of_a_step_inside_is_that_of_its_loss(steps):
    def layers(p, x):
        y, sums = jax.lax.scan(lambda x, w: (jnp.tanh(w @ x), x.sum()), x, p["layers"])
        return y.sum(), sums

    step = gradtx.make_step(layers, TX, inside=True, has_aux=True, steps=steps)
    x = jnp.ones(4) if steps is None else jnp.ones((steps, 4))
    assert dict(step.inside({"layers": jnp.ones((3, 4, 4))}, x).inside) == {"layers": 3}


def weighed(p, x):
    return jnp.mean((p["w"] * x - 2.0) ** 2) + p["b"] ** 2, {"size": jnp.sum(x)}


SCHEDULED = gradtx.chain(
    gradtx.clip_by_global_norm(1.0), gradtx.adamw(gradtx.linear_schedule(0.1, 0.0, 9))
)
SEVERAL = {
    "a schedule": (SCHEDULED, {}, False),
    "accumulation, with weights": (
        gradtx.accumulate(gradtx.adam(0.1), 2),
        {"weight": jnp.array([1.0, 3.0, 2.0])},
        False,
    ),
    "a guard": (gradtx.guard(gradtx.adam(0.1)), {}, True),
    "stored slots": (gradtx.store(gradtx.adam(0.1), "int8"), {}, False),
    "Optax's": (optax.adam(0.1), {}, False),
}


class TestSeveralSteps:
    """`steps`: the same as so many calls."""

    @pytest.mark.slow
    @pytest.mark.parametrize("name", SEVERAL)
    def test_they_are_those_of_single_calls(self, name):
        tx, extra, report = SEVERAL[name]
        xs = jnp.array([[1.0, 2.0], [jnp.nan if report else 0.5, 1.0], [3.0, -1.0]])
        options = {"has_aux": True, "report": report, "donate": False}
        one = gradtx.make_step(weighed, tx, **options)
        all_of_them = gradtx.make_step(weighed, tx, steps=3, **options)
        params, state, told = start(), one.init(start()), []
        for i, x in enumerate(xs):
            now = {name: value[i] for name, value in extra.items()}
            params, state, *more = one(params, state, x, extra_args=now)
            told.append(more)
        want = params, state, *jax.tree.map(lambda *each: jnp.stack(each), *told)
        got = all_of_them(start(), one.init(start()), xs, extra_args=extra)
        chex.assert_trees_all_close(got, want, rtol=1e-6)
        assert got[2][0].shape == got[2][1]["size"].shape == (3,)

    @pytest.mark.slow
    def test_they_are_traced_once_donated_and_store_nothing_more(self):
        def large(p, x):
            return jnp.sum((p * x) ** 2)

        p = jnp.ones(1 << 16)
        stored = []
        for steps, x in ((None, jnp.float32(1)), (5, jnp.ones(5))):
            step = gradtx.make_step(large, SCHEDULED, steps=steps)
            stored.append(temporary_bytes(step.lower(p, step.init(p), x).compile()))
        assert stored[1] <= stored[0] + 1024
        new, state, values = step(p, step.init(p), x)
        assert p.is_deleted()
        step.replace()(new, state, x)
        assert values.shape == (5,)
        assert step._compiled._cache_size() == 1

    @pytest.mark.slow
    def test_rows_and_trained_leaves(self):
        def looked_up(p, ids):
            return jnp.sum((gradtx.sparse.take(p["table"], ids) - p["fixed"]) ** 2)

        def fresh():
            return {"table": jnp.ones((6, 2)), "fixed": jnp.zeros(2)}

        tx = gradtx.exact_rows(gradtx.adam(0.1))
        ids = jnp.array([[0, 2], [2, 2], [5, 0]])
        one, three = (
            gradtx.make_step(looked_up, tx, trainable="table", steps=n) for n in (None, 3)
        )
        params, state = fresh(), one.init(fresh())
        for i in ids:
            params, state, _ = one(params, state, i)
        got = three(fresh(), three.init(fresh()), ids)
        chex.assert_trees_all_close(got[:2], (params, state), rtol=1e-6)

    @pytest.mark.slow
    def test_on_a_mesh(self):
        m = mesh(data=8)
        found = gradtx.state_sharding(TX, start(), on(m), zero="data", min_size=1)
        step = gradtx.make_step(loss, TX, sharding=found, steps=2)
        params = jax.device_put(start(), on(m))
        xs = jax.device_put(jnp.array([1.0, 2.0]), on(m))
        params, state, _ = step(params, step.init(params), xs)
        assert all_lie_on((params, state), (found.params, found.state))
        alone = gradtx.make_step(loss, TX, steps=2)
        want = alone(start(), alone.init(start()), jnp.array([1.0, 2.0]))
        chex.assert_trees_all_close(params, want[0], rtol=1e-6)

    def test_what_they_refuse(self):
        with pytest.raises(ValueError, match="steps must be an integer of at least 1"):
            gradtx.make_step(loss, TX, steps=0)
        step = gradtx.make_step(loss, TX, steps=4)
        params = start()
        state = step.init(params)
        with pytest.raises(ValueError, match="axis of 4, .* 'args/0' has the shape \\(3,\\)"):
            step(params, state, jnp.ones(3))
        with pytest.raises(ValueError, match="'extra_args/weight' has the shape \\(\\)"):
            step(params, state, jnp.ones(4), extra_args={"weight": 1.0})
        step(params, state, jnp.ones(4))  # nothing was donated


def test_options_reach_the_compiler():
    step = gradtx.make_step(loss, TX, compiler_options={"xla_of_no_name": True})
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_of_no_name"):
        step(start(), step.init(start()))


@pytest.mark.slow
def test_a_foreign_transformation_in_a_compiled_step():
    step = gradtx.make_step(loss, optax.sgd(0.1))
    params = start()
    params, _, _ = step(params, step.init(params))
    np.testing.assert_allclose(params["b"], 3.0 - 0.1 * 6.0, rtol=1e-6)
    result = gradtx.solve(lambda x: x**2, 1.0, optax.sgd(0.25), max_steps=2)
    np.testing.assert_allclose(result.params, 0.25)


CACHED = """
import collections, sys
import jax, jax.numpy as jnp
events = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **about: events.update([name]))
import gradtx
rate, decay = map(jnp.float32, sys.argv[1:])
tx = gradtx.chain(gradtx.clip_by_global_norm(1.0), gradtx.adamw(rate, weight_decay=decay))
step = gradtx.make_step(lambda p, x: jnp.sum((p["w"] @ x) ** 2) + jnp.sum(p["b"] ** 2), tx)
params = {"w": jnp.ones((3, 4)), "b": jnp.ones(2)}
step(params, step.init(params), jnp.ones(4))
print(events["/jax/compilation_cache/cache_hits"], events["/jax/compilation_cache/cache_misses"])
"""


@pytest.mark.slow
def test_another_process_finds_the_program_for_other_hyperparameters(tmp_path):
    """In JAX's persistent cache, as array hyperparameters are arguments of the program."""
    env = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

    def run(*hyperparameters):
        words = [sys.executable, "-c", CACHED, *hyperparameters]
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
        return [int(n) for n in done.stdout.split()]

    hits, misses = run("0.1", "0.01")
    assert misses > 0
    again, new = run("0.003", "0.2")
    assert new == 0
    assert again == hits + misses
