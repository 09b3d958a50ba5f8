"""Constraints hold after `apply_updates`, whatever comes before them."""

import inspect
import json
import pickle

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx import projections, tree

PARAMS = {
    "b": jnp.array([0.25, 0.25, 0.5]),
    "w": jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)), jnp.float32),
}


def gradients(i, params=PARAMS):
    return tree.random_like(jax.random.key(i), params)


def train(tx, params, steps=20):
    @jax.jit
    def run(params):
        def step(carry, i):
            params, state = carry
            updates, state = tx.update(gradients(i, params), state, params)
            return (gradtx.apply_updates(params, updates), state), None

        return jax.lax.scan(step, (params, tx.init(params)), jnp.arange(steps))[0][0]

    return run(params)


@pytest.mark.slow
def test_simplex_of_one_leaf_holds_after_every_step():
    tx = gradtx.chain(gradtx.adam(0.1), gradtx.project("simplex", "b"))
    free = train(gradtx.adam(0.1), PARAMS)
    for steps in (1, 20):
        p = train(tx, PARAMS, steps)
        np.testing.assert_allclose(jnp.sum(p["b"]), 1.0, rtol=1e-6)
        assert float(p["b"].min()) >= -1e-7
    np.testing.assert_array_equal(p["w"], free["w"])


def test_the_step_ends_where_the_update_leads_projected():
    tx = gradtx.project("box", arguments={"lower": 0.0, "upper": 1.0})
    p, u = jnp.array([0.5, 0.5, 0.75, 0.25]), jnp.array([0.25, -0.125, 0.5, -0.5])
    updates, _ = tx.update(u, tx.init(p), p)
    assert updates.tolist() == [0.25, -0.125, 0.25, -0.25]


NORMS = {
    "max_norm": ({"max_value": 1.0}, 0.0, 1.0),
    "min_max_norm": ({"min_value": 0.5, "max_value": 1.0}, 0.5, 1.0),
    "unit_norm": ({}, 1.0, 1.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", NORMS)
def test_norms_hold_in_every_type(name, dtype):
    arguments, low, high = NORMS[name]
    tx = gradtx.chain(gradtx.sgd(0.5, momentum=0.9), gradtx.project(name, "w", arguments))
    w = train(tx, tree.cast(PARAMS, dtype))["w"]
    assert w.dtype == dtype
    norms = jnp.linalg.norm(w.astype(jnp.float32), axis=0)
    rounding = 4 * float(jnp.finfo(dtype).eps)
    assert bool(jnp.all((norms >= low - rounding) & (norms <= high + rounding)))


@pytest.mark.slow
def test_a_box_holds_exactly_at_zero():
    tx = gradtx.chain(gradtx.sgd(1.0), gradtx.project("non_negative"))
    p = train(tx, tree.cast(PARAMS, "bfloat16"))
    assert float(tree.min(p)) == 0.0


@pytest.mark.slow
def test_any_function_and_predicate():
    def halves(tree):
        return jax.tree.map(lambda x: jnp.round(2 * x) / 2, tree)

    tx = gradtx.chain(gradtx.sgd(0.1), gradtx.project(halves, lambda path, x: x.ndim == 2))
    p = train(tx, PARAMS, 3)
    np.testing.assert_array_equal(2 * p["w"], jnp.round(2 * p["w"]))
    assert not np.array_equal(2 * p["b"], jnp.round(2 * p["b"]))


@pytest.mark.slow
def test_inside_of_groups_and_masks():
    tx = gradtx.masked(gradtx.chain(gradtx.sgd(0.5), gradtx.project("l2_ball")), "w")
    assert float(tree.norm(train(tx, PARAMS)["w"])) <= 1 + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrap",
    [
        lambda tx: gradtx.accumulate(tx, 2),
        lambda tx: gradtx.multi_steps(tx, 2),
        lambda tx: gradtx.apply_if_finite(tx, 3),
        lambda tx: gradtx.conditionally_mask(tx, lambda step: step % 3 == 0),
        lambda tx: gradtx.flatten(tx),
        lambda tx: gradtx.inject_hyperparams(lambda rate: gradtx.chain(gradtx.scale(rate), tx))(
            0.5
        ),
        lambda tx: gradtx.lookahead(tx, 2, 0.5),
        lambda tx: gradtx.sam(tx, gradtx.chain(gradtx.normalize(), gradtx.sgd(0.1))),
        lambda tx: gradtx.partition({"x": tx}, lambda path, leaf: "x"),
    ],
)
def test_inside_of_wrappers(wrap):
    tx = wrap(gradtx.chain(gradtx.adam(0.5), gradtx.project("l2_ball")))
    start = projections.projection_l2_ball(PARAMS)
    for steps in (2, 6):
        end = train(tx, start, steps)
        assert float(tree.norm(end)) <= 1 + 1e-6
        assert not np.array_equal(end["w"], start["w"])


def test_leaves_without_gradient_do_not_move():
    tx = gradtx.project("l1_ball")
    grads = {"b": None, "w": jnp.ones((4, 3))}
    updates, _ = tx.update(grads, tx.init(PARAMS), PARAMS)
    assert updates["b"] is None
    new = gradtx.apply_updates(PARAMS, updates)
    np.testing.assert_allclose(tree.norm(new["w"], 1), 1.0, rtol=1e-5)
    chex.assert_trees_all_equal(new["b"], PARAMS["b"])


BY_ROW = [
    ("max_norm", {"max_value": 0.5, "axis": 1}),
    ("unit_norm", {"axis": -1}),
    ("min_max_norm", {"min_value": 0.5, "max_value": 1.0, "axis": (1,)}),
    ("non_negative", {}),
    ("box", {"lower": -0.5, "upper": jnp.float32(0.5)}),
    ("linf_ball", {"scale": 0.25}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "arguments"), BY_ROW, ids=[name for name, _ in BY_ROW])
def test_rows_are_projected_as_the_table_is(name, arguments):
    tx = gradtx.chain(gradtx.scale(-0.5), gradtx.project(name, None, arguments))
    rows = gradtx.Rows(jnp.array([3, 1, 3, 9]), jnp.arange(12.0).reshape(4, 3) - 5, (4, 3))
    table = getattr(projections, f"projection_{name}")(PARAMS["w"], **arguments)
    grads, params = {"b": None, "w": rows}, {"b": PARAMS["b"], "w": table}
    updates, _ = tx.update(grads, tx.init(params), params)
    dense, _ = tx.update({"b": None, "w": rows.to_dense()}, tx.init(params), params)
    got, want = (gradtx.apply_updates(params, u)["w"] for u in (updates, dense))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(got[jnp.array([0, 2])], table[jnp.array([0, 2])])


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("max_norm", {}),
        ("max_norm", {"axis": None}),
        ("max_norm", {"axis": -2}),
        ("box", {"lower": jnp.zeros(3), "upper": 1.0}),
        ("simplex", {}),
    ],
)
def test_rows_are_refused_where_the_whole_table_counts(name, arguments):
    tx = gradtx.project(name, None, arguments)
    rows = gradtx.Rows(jnp.array([3]), jnp.ones((1, 3)), (4, 3))
    with pytest.raises(TypeError, match="whole table at 'w'"):
        tx.update({"b": None, "w": rows}, tx.init(PARAMS), PARAMS)


def test_it_is_data():
    tx = gradtx.chain(gradtx.adam(0.1), gradtx.project("box", "w", {"lower": 0.0, "upper": 1.0}))
    assert gradtx.from_config(json.loads(json.dumps(gradtx.to_config(tx)))) == tx
    assert pickle.loads(pickle.dumps(tx)) == tx
    assert hash(tx) == hash(gradtx.from_config(gradtx.to_config(tx)))


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="no projection 'cone'; there are .*simplex"):
        gradtx.project("cone")
    with pytest.raises(ValueError, match="matches no leaf"):
        gradtx.project("simplex", "head").init(PARAMS)
    tx = gradtx.project("simplex")
    with pytest.raises(ValueError, match="needs the parameters"):
        tx.update(PARAMS, tx.init(PARAMS))
    with pytest.raises(ValueError, match="different trees"):
        tx.update({"b": PARAMS["b"]}, tx.init(PARAMS), PARAMS)
    with pytest.raises(TypeError, match="whole table at 'w'"):
        rows = gradtx.Rows(jnp.arange(2), jnp.ones((2, 3)), (4, 3))
        tx.update({"b": None, "w": rows}, tx.init(PARAMS), PARAMS)
    with pytest.raises(ValueError, match="must return a tree like"):
        broken = gradtx.project(lambda tree: {"b": tree["b"]})
        broken.update(PARAMS, broken.init(PARAMS), PARAMS)
    with pytest.raises(ValueError, match="empty"):
        tx = gradtx.project("simplex", None, {"scale": -1.0})
        tx.update(PARAMS, tx.init(PARAMS), PARAMS)


def test_every_projection_has_a_name():
    for name in projections.__all__:
        _, *others = inspect.signature(getattr(projections, name)).parameters.values()
        arguments = {x.name: 1.0 for x in others if x.default is x.empty}
        tx = gradtx.project(name.removeprefix("projection_"), None, arguments)
        assert tx.declaration is not None


@pytest.mark.parametrize(
    ("build", "argument"),
    [
        (lambda s: gradtx.project("l2_ball", None, {"scale": s}), "project: scale"),
        (lambda s: gradtx.project("box", None, {"lower": {"a": s}}), "project: lower"),
        (lambda s: gradtx.proximal(gradtx.sgd(0.1), "l1", None, {"strength": s}), "proximal: stre"),
        (lambda s: gradtx.lbfgsb(s), "lbfgsb: lower"),
        (lambda s: gradtx.lbfgsb(None, {"a": s}), "lbfgsb: upper"),
    ],
)
def test_a_set_does_not_change_from_step_to_step(build, argument):
    with pytest.raises(TypeError, match=f"{argument}.* must be .*linear_schedule"):
        build(gradtx.linear_schedule(0.0, 1.0, 3))
