"""Sharpness-aware minimization against Optax, and ASAM and GSAM against their papers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from tests.oracle import parameters
from tests.quick import quick

P = jnp.asarray(0.3 * parameters(), jnp.float32)
OPTAX = {"normalize": optax.contrib.normalize, "sam": optax.contrib.sam}
OURS = {"normalize": gradtx.normalize, "sam": gradtx.sam}


def loss(p):
    return jnp.sum(p**4) + 0.1 * jnp.sum(p) ** 2 + jnp.sum(jnp.sin(3 * p))


grad = jax.grad(loss)


def run(tx, p, calls, opaque=False):
    """The last parameters and state, and the parameters after each call."""
    extra = {"grad_fn": lambda q, i: grad(q)} if opaque else {}

    def step(carry, _):
        p, state = carry
        updates, state = tx.update(grad(p), state, p, **extra)
        return (p + updates, state), p + updates

    return jax.jit(lambda: jax.lax.scan(step, (p, tx.init(p)), length=calls))()


def build(lib, names, outer, adversary, **options):
    climb = {
        "sgd": lambda: lib.sgd(0.05),
        "momentum": lambda: lib.sgd(0.05, momentum=0.9),
        "adam": lambda: lib.adam(0.05),
    }[adversary]()
    tx = {"sgd": lambda: lib.sgd(0.1, momentum=0.9), "adam": lambda: lib.adam(0.05)}[outer]()
    return names["sam"](tx, lib.chain(names["normalize"](), climb), **options)


@pytest.mark.quick(1)
@pytest.mark.parametrize("opaque", [False, True], ids=["transparent", "opaque"])
@pytest.mark.parametrize("reset", quick([True, False], True), ids=["reset", "keep"])
@pytest.mark.parametrize(
    ("outer", "adversary", "period"),
    [("sgd", "sgd", 2), ("adam", "momentum", 3), ("sgd", "adam", 4)],
)
def test_every_variant_like_optax(outer, adversary, period, reset, opaque):
    options = {"sync_period": period, "reset_state": reset, "opaque_mode": opaque}
    ours = build(gradtx, OURS, outer, adversary, **options)
    theirs = build(optax, OPTAX, outer, adversary, **options)
    calls = 6 if opaque else 4 * period
    with jax.enable_x64(True):  # in single precision Optax's bias correction is off by 1e-5
        p = P.astype(jnp.float64)
        (_, state), path = run(ours, p, calls, opaque)
        (_, state_optax), path_optax = run(theirs, p, calls, opaque)
    np.testing.assert_allclose(path, path_optax, rtol=1e-9, atol=1e-12)
    assert int(state.steps_since_sync) == int(state_optax.steps_since_sync)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "make",
    [
        lambda opaque: build(gradtx, OURS, "adam", "sgd", opaque_mode=opaque),
        lambda opaque: gradtx.asam(gradtx.adam(0.05), 0.1, opaque_mode=opaque),
        lambda opaque: gradtx.gsam(
            gradtx.adam(0.05),
            gradtx.chain(gradtx.normalize(), gradtx.sgd(0.05)),
            opaque_mode=opaque,
        ),
    ],
    ids=["sam", "asam", "gsam"],
)
def test_opaque_and_transparent_are_the_same_steps(make):
    (_, _), transparent = run(make(False), P, 10)
    (_, _), opaque = run(make(True), P, 5, opaque=True)
    np.testing.assert_allclose(transparent[1::2], opaque, rtol=1e-5, atol=1e-6)


def transcribed(direction, steps=20, rate=0.1):
    """SGD on what `direction` makes of the parameters, in double precision."""
    with jax.enable_x64(True):
        double = jax.grad(loss)
        p = np.asarray(P, np.float64)
        path = []
        for _ in range(steps):
            p = p - rate * direction(p, lambda q: np.asarray(double(jnp.asarray(q))))
            path.append(p)
    return np.stack(path)


@pytest.mark.slow
def test_asam_is_algorithm_1_of_its_paper():
    def direction(p, g):
        size = np.abs(p) + 0.3
        climb = size**2 * g(p) / np.linalg.norm(size * g(p))
        return g(p + 0.2 * climb)

    (_, _), path = run(gradtx.asam(gradtx.sgd(0.1), 0.2, 0.3), P, 40)
    np.testing.assert_allclose(path[1::2], transcribed(direction), rtol=1e-5, atol=1e-5)


def test_asam_is_sam_with_another_climb():
    rho = gradtx.linear_schedule(0.2, 0.0, 9)
    climb = gradtx.chain(gradtx.adaptive_normalize(0.3), gradtx.sgd(rho))
    (_, _), path = run(gradtx.asam(gradtx.sgd(0.1), rho, 0.3, 3, False), P, 12)
    (_, _), want = run(gradtx.sam(gradtx.sgd(0.1), climb, 3, False), P, 12)
    np.testing.assert_allclose(path, want, rtol=1e-6)


@pytest.mark.slow
def test_gsam_is_algorithm_1_of_its_paper():
    def direction(p, g):
        clean, worse = g(p), g(p + 0.2 * g(p) / np.linalg.norm(g(p)))
        unit = worse / np.linalg.norm(worse)
        return worse - 0.7 * (clean - np.sum(clean * unit) * unit)

    adversary = gradtx.chain(gradtx.normalize(), gradtx.sgd(0.2))
    (_, _), path = run(gradtx.gsam(gradtx.sgd(0.1), adversary, alpha=0.7), P, 40)
    np.testing.assert_allclose(path[1::2], transcribed(direction), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_gsam_without_alpha_is_sam():
    adversary = gradtx.chain(gradtx.normalize(), gradtx.sgd(0.2, momentum=0.9))
    (_, _), path = run(gradtx.gsam(gradtx.adam(0.1), adversary, 0.0, reset_state=False), P, 8)
    (_, _), want = run(gradtx.sam(gradtx.adam(0.1), adversary, reset_state=False), P, 8)
    np.testing.assert_allclose(path, want, rtol=1e-6)


@pytest.mark.slow
def test_gradients_are_averaged_over_the_batch_axis():
    tx = gradtx.sam(gradtx.sgd(0.1), gradtx.sgd(0.1), opaque_mode=True, batch_axis_name="batch")
    weights = jnp.array([1.0, 3.0])

    def step(weight):
        def grads(p, i):
            return weight * p

        mean = jax.lax.pmean(grads(P, 0), "batch")
        return tx.update(mean, tx.init(P), P, grad_fn=grads)[0]

    updates = jax.vmap(step, axis_name="batch")(weights)
    np.testing.assert_allclose(updates[0], -0.1 * 2 * (P + 0.1 * 2 * P), rtol=1e-5)
    np.testing.assert_array_equal(updates[0], updates[1])


@pytest.mark.parametrize("make", [gradtx.sam, gradtx.gsam])
def test_a_leaf_without_a_gradient_rests_in_opaque_mode(make):
    tx = make(gradtx.sgd(0.1), gradtx.sgd(0.1), opaque_mode=True)
    p = {"a": P, "b": P}

    def of_all(p, i):
        return jax.grad(lambda p: loss(p["a"]) + loss(p["b"]))(p)

    updates, _ = tx.update({"a": grad(P), "b": None}, tx.init(p), p, grad_fn=of_all)
    want, _ = tx.update(grad(P), tx.init(P), P, grad_fn=lambda q, i: grad(q))
    assert updates["b"] is None
    np.testing.assert_allclose(updates["a"], want, rtol=1e-6)


@pytest.mark.slow
def test_a_leaf_that_loses_its_gradient_keeps_the_state():
    tx = gradtx.gsam(gradtx.adam(0.1), gradtx.chain(gradtx.normalize(), gradtx.sgd(0.1)))
    params = {"a": P, "b": P}
    state = tx.init(params)
    for grads in ({"a": P, "b": P}, {"a": P, "b": None}, {"a": None, "b": P}):
        new, after = gradtx.apply_gradients(tx, grads, params, state)
        assert jax.tree.structure(after) == jax.tree.structure(state)
        for name in ("a", "b"):
            if grads[name] is None:
                np.testing.assert_array_equal(new[name], params[name])
        params, state = new, after


def test_bad_input_is_refused():
    tx = gradtx.asam(gradtx.sgd(0.1), opaque_mode=True)
    with pytest.raises(ValueError, match="grad_fn"):
        tx.update(P, tx.init(P), P)
    with pytest.raises(ValueError, match="parameters"):
        tx.update(P, tx.init(P))
    with pytest.raises(ValueError, match="parameters"):
        adaptive = gradtx.adaptive_normalize()
        adaptive.update(P, adaptive.init(P))


def test_the_number_of_gradients_in_one_call_is_known():
    adversary = gradtx.chain(gradtx.normalize(), gradtx.sgd(0.05))
    p, opaque = jnp.ones(2), {"opaque_mode": True}

    def step(tx):
        return tx.update(p, tx.init(p), p, grad_fn=lambda q, i: q)[0]

    want = step(gradtx.sam(gradtx.sgd(0.1), adversary, 2, **opaque))
    np.testing.assert_array_equal(
        step(gradtx.sam(gradtx.sgd(0.1), adversary, jnp.array(2), **opaque)), want
    )
    with pytest.raises(TypeError, match="sync_period says how often a step calls grad_fn"):
        jax.jit(step)(gradtx.sam(gradtx.sgd(0.1), adversary, jnp.array(2), **opaque))


def test_the_period_of_asam_may_be_a_schedule():
    p, want = jnp.ones(2), gradtx.asam(gradtx.sgd(0.1), 0.1, sync_period=2)
    tx = gradtx.asam(gradtx.sgd(0.1), 0.1, sync_period=lambda count: 2)
    state, other = tx.init(p), want.init(p)
    for _ in range(3):
        updates, state = tx.update(p, state, p)
        expected, other = want.update(p, other, p)
        np.testing.assert_array_equal(updates, expected)


def test_a_radius_that_would_never_change_is_refused():
    with pytest.raises(ValueError, match="reset_state=False"):
        gradtx.asam(gradtx.sgd(0.1), gradtx.linear_schedule(0.1, 0.0, 10))


@pytest.mark.parametrize("size", [1.0, 1e-22, 1e20])
def test_gsam_of_gradients_whose_squares_are_no_numbers(size):
    """The two gradients are parallel, so that nothing is taken away."""
    tx = gradtx.gsam(gradtx.sgd(1.0), gradtx.chain(gradtx.normalize(), gradtx.sgd(0.0)), 0.4)
    g, p = size * jnp.array([3.0, 4.0]), jnp.zeros(2)
    state = tx.init(p)
    for _ in range(2):
        updates, state = tx.update(g, state, p)
    np.testing.assert_allclose(updates, -g, rtol=1e-6)


def test_an_adversary_starts_again_with_all_leaves_where_one_has_no_gradient():
    adversary = gradtx.sgd(0.05, momentum=0.9)
    tx = gradtx.sam(gradtx.sgd(0.1), adversary, opaque_mode=True)
    params = {"a": jnp.ones(2), "b": jnp.ones(3)}
    grads, state = {"a": jnp.ones(2), "b": None}, tx.init(params)
    new, after = gradtx.apply_gradients(tx, grads, params, state, grad_fn=lambda p, i: grads)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    new, _ = gradtx.apply_gradients(tx, params, new, after, grad_fn=lambda p, i: params)
    np.testing.assert_allclose(new["a"], 0.8, rtol=1e-6)
    np.testing.assert_allclose(new["b"], 0.9, rtol=1e-6)


@pytest.mark.parametrize("make", [gradtx.sam, gradtx.gsam])
def test_a_number_that_was_pythons_has_the_type_of_a_steps_result(make):
    """A weak type, which a step's results do not have, would have it compiled twice."""
    tx, p = make(gradtx.sgd(0.1), gradtx.sgd(0.1)), jnp.asarray(1.0)
    assert p.weak_type
    assert not any(x.weak_type for x in jax.tree.leaves(tx.init(p)))
