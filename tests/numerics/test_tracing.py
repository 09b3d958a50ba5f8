"""A rule is traced once for each kind of leaf, and the compiled program is the same."""

import re
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from benchmarks.pairs import PAIRS, libraries
from benchmarks.steps import compiled
from gradtx.programs import tracing
from tests.programs import temporary_bytes

RNG = np.random.default_rng(0)
LEAVES = 12


def tree(count=LEAVES, shape=(3, 4)):
    return {f"{i:02}": jax.device_put(np.float32(RNG.normal(size=shape))) for i in range(count)}


class CountedState(NamedTuple):
    """The state of :func:`counted`."""

    count: gradtx.Counter
    m: gradtx.Slots


TRACES = []


@gradtx.transformation
def counted():
    def rule(g, s, t):
        TRACES.append(g.shape)
        m = 0.9 * s.m + 0.1 * g
        return m / t.bias_correction(0.9) / (jnp.abs(g) + 1), {"m": m}

    return gradtx.elementwise(CountedState, lambda p: {"m": jnp.zeros_like(p)}, rule)


def traces(params):
    tx = counted()
    state = tx.init(params)
    TRACES.clear()
    jax.jit(tx.update).trace(params, state)
    return len(TRACES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("params", "most"),
    [
        (tree(50), 2),
        ({**tree(10), "other": list(tree(10, (2, 2)).values())}, 3),
        ({**tree(10), "few": list(tree(3, (7,)).values())}, 2 + 3),
        ({i: tree(2, (3, i)) for i in range(1, 9)}, 2 + 7),
    ],
    ids=["one kind", "two kinds", "one kind and a few others", "many kinds"],
)
def test_how_often_a_rule_is_traced(params, most):
    assert traces(params) <= most


@gradtx.transformation
def of_wide_leaves():
    """It corrects a bias in wide leaves alone, and updates none that has four rows."""

    def rule(g, s, t):
        m = 0.9 * s.m + 0.1 * g
        u = m / t.bias_correction(0.9) if g.shape[1] > 4 else m
        return u[1:] if len(g) == 4 else u, {"m": m}

    return gradtx.elementwise(CountedState, lambda p: {"m": jnp.zeros_like(p)}, rule)


@pytest.mark.slow
def test_what_a_step_computes_for_one_kind_is_computed_anew_for_another():
    params = {i: tree(4, (3, 2 * i)) for i in range(1, 5)}
    tx = of_wide_leaves()
    with jax.checking_leaks():
        together = jax.jit(tx.update)(params, tx.init(params))[0]
    for i, of_kind in params.items():
        alone = jax.jit(tx.update)(of_kind, tx.init(of_kind))[0]
        chex.assert_trees_all_close(together[i], alone, rtol=1e-6)


def test_an_error_names_a_leaf_of_its_kind():
    tx, params = of_wide_leaves(), {"a": tree(5), "b": tree(4, (3, 3)), "c": tree(4, (4, 3))}
    with pytest.raises(ValueError, match="at 'c/00' a gradient of shape"):
        jax.jit(tx.update)(params, tx.init(params))


def test_slots_of_other_types_are_another_kind():
    params = tree()
    tx = counted()
    state = tx.init(params)
    half = {i: m.astype(jnp.bfloat16) if int(i) % 2 else m for i, m in state.m.items()}
    updates, new = jax.jit(tx.update)(params, state._replace(m=half))
    want, _ = jax.jit(tx.update)(params, state)
    for i, m in new.m.items():
        assert m.dtype == half[i].dtype
        np.testing.assert_array_equal(updates[i], want[i])


@pytest.mark.slow
def test_equations_grow_with_the_square_root_of_the_leaves():
    """Two functions are called for all leaves but the first: one stacks leaves whose squares are
    summed, one is the clip's factor, Adam, decay, learning rate, and in a step the addition."""
    tx = gradtx.chain(gradtx.clip_by_global_norm(1.0), gradtx.adamw(1e-3))

    def equations(count, run=tx.update):
        params = {i: jax.ShapeDtypeStruct((4,), jnp.float32) for i in range(count)}
        state = jax.eval_shape(tx.init, params)
        program = jax.make_jaxpr(run)(params, state, params)
        # That a norm's derivative is its own is said of each leaf, which takes no time.
        return sum(eqn.primitive.name != "stop_gradient" for eqn in program.eqns)

    def step(gradients, state, params):
        return gradtx.apply_gradients(tx, gradients, params, state)

    assert equations(101) < 110
    assert equations(401) < 2 * equations(101)
    assert equations(101, step) == equations(101) + 1


@pytest.mark.parametrize(("many", "calls"), [(3, 0), (4, 3), (10, 9)])
def test_a_function_is_called_for_four_leaves_of_a_kind_or_more(many, calls):
    """One call for each leaf but the first, as long as these are fewer than its equations."""

    def rule(x):
        for _ in range(20):
            x = x * x
        return x

    def run(xs, other):
        return tracing.traced_once("rule", rule, [(x,) for x in (*xs, other)])

    jaxpr = jax.make_jaxpr(run)([jnp.ones(2)] * many, jnp.ones(3)).jaxpr
    assert [str(e.primitive) for e in jaxpr.eqns].count("jit") == calls


def test_without_jit_nothing_is_called():
    calls = [(float(i) * jnp.ones(2), jnp.ones(2)) for i in range(60)]

    def run(scale):
        return tracing.traced_once("pair", lambda x, y: x * y + scale, calls)

    with jax.disable_jit():
        got = jax.vmap(run)(jnp.arange(3.0))
    np.testing.assert_array_equal(got[2], [[2.0, 2], [3, 3], [4, 4]])


@pytest.mark.parametrize("function", [lambda x, y: (y, x * y), lambda x, y: (x * y, x * y)])
def test_a_result_may_be_an_argument_or_be_given_twice(function):
    calls = [(jnp.full(2, float(i)), jnp.ones(2)) for i in range(60)]
    got = jax.jit(lambda calls: tracing.traced_once("pair", function, calls))(calls)
    for pair, arguments in zip(got, calls, strict=True):
        chex.assert_trees_all_equal(pair, function(*arguments))


def test_a_function_that_hands_its_arguments_on_keeps_its_effects():
    seen = []

    def show(x):
        jax.debug.callback(lambda x: seen.append(float(x)), x)
        return x

    calls = [(jnp.float32(i),) for i in range(60)]
    jax.block_until_ready(jax.jit(lambda calls: tracing.traced_once("show", show, calls))(calls))
    jax.effects_barrier()
    assert sorted(seen) == list(range(60))


def test_what_depends_on_no_shape_alone_has_values():
    shape = jax.ShapeDtypeStruct((2,), jnp.float32)

    def function(tree):
        x, y = tree
        return {"zeros": jnp.zeros_like(x), "sum": 2 * x + y, "own": y + 1}

    found = tracing.where_known(function, (shape, np.float32([1, 2])))
    assert found["sum"] == shape
    np.testing.assert_array_equal(found["zeros"], [0, 0])
    np.testing.assert_array_equal(found["own"], [2, 3])


@pytest.mark.slow
@pytest.mark.parametrize("leaves", [LEAVES, 40], ids=["one a call", "several a call"])
def test_inside_of_other_transformations_of_functions(leaves):
    tx, params = gradtx.adamw(0.1), tree(leaves)
    grads = tree(leaves)

    def step(params, grads):
        return gradtx.apply_updates(params, tx.update(grads, tx.init(params), params)[0])

    want = {i: step({i: p}, {i: grads[i]})[i] for i, p in params.items()}
    with jax.checking_leaks():
        got = jax.jit(step)(params, grads)
    stacked = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), params)
    mapped = jax.vmap(step, (0, None))(stacked, grads)
    _, scanned = jax.lax.scan(lambda c, _: (c, step(params, grads)), None, length=1)
    for i, p in want.items():
        for other in got[i], mapped[i][0], scanned[i][0]:
            np.testing.assert_allclose(other, p, rtol=1e-6, atol=1e-7)

    def loss(rate, params):
        tx = gradtx.adam(rate)
        updates, _ = tx.update(grads, tx.init(params))
        return sum(jnp.sum(p**2) for p in gradtx.apply_updates(params, updates).values())

    # All leaves alike, so that the derivative of many is many times that of one.
    alike = dict.fromkeys(range(leaves), params["00"])
    grads = dict.fromkeys(range(leaves), grads["00"])
    many = jax.grad(loss)(jnp.float32(0.1), alike)
    grads = {0: grads[0]}
    one = jax.grad(loss)(jnp.float32(0.1), {0: alike[0]})
    np.testing.assert_allclose(many, leaves * one, rtol=1e-5)


PROGRAMS = {pair.label: pair for pair in PAIRS}
QUICK = ("clip + adamw", "lion", "mars_adamw", "acprop")


@pytest.mark.quick(1)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # Optax's
@pytest.mark.parametrize(
    ("label", "count"),
    [
        *((n, 5) if n in QUICK else pytest.param(n, 5, marks=pytest.mark.slow) for n in PROGRAMS),
        pytest.param("clip + adamw", 45, marks=pytest.mark.slow),  # several leaves in a call
    ],
)
def test_the_compiled_program_is_the_same(label, count, monkeypatch):
    """The same kernels and temporary bytes as with every leaf traced by itself."""
    library = libraries(PROGRAMS[label])[0]
    params = {f"x{i}": jax.ShapeDtypeStruct((1 << 20,), jnp.float32) for i in range(count)}

    def program():
        done = compiled(library, params)
        kernels = re.findall(r" (fusion|copy|call|while|conditional)\(", done.as_text())
        return temporary_bytes(done), sorted(kernels)

    shared = program()
    monkeypatch.setattr(tracing, "FEW_LEAVES", 1000)
    assert program() == shared
