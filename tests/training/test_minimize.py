"""minimize and its halves."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx


def loss(p, x=1.0):
    return jnp.sum((p["w"] * x - 2.0) ** 2) + p["b"] ** 2


def start():
    return {"w": jnp.array([0.0, 1.0]), "b": jnp.array(3.0)}


TX = gradtx.adam(0.1)


@pytest.mark.slow
def test_one_step_is_gradient_update_apply():
    params = start()
    grads = jax.grad(loss)(params, 2.0)
    updates, want_state = TX.update(grads, TX.init(params), params)
    new, state, value = gradtx.minimize(loss, TX, params, TX.init(params), 2.0)
    chex.assert_trees_all_equal(new, gradtx.apply_updates(params, updates))
    chex.assert_trees_all_equal(state, want_state)
    assert float(value) == float(loss(params, 2.0))


@pytest.mark.slow
def test_aux():
    params = start()
    new, _, (value, aux) = gradtx.minimize(
        lambda p: (loss(p), {"norm": p["b"]}), TX, params, TX.init(params), has_aux=True
    )
    assert float(value) == 14.0
    assert float(aux["norm"]) == 3.0
    assert float(new["b"]) < 3.0
    (value, aux), grads = gradtx.compute_gradients(
        lambda p: (loss(p), p["b"]), params, has_aux=True
    )
    assert (float(value), float(aux), float(grads["b"])) == (14.0, 3.0, 6.0)


def looked_up(p):
    rows = gradtx.sparse.take(p, jnp.array([1]))
    return jnp.sum(rows), rows


def scanned(p):
    last, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), jnp.ones(2), p)
    return jnp.sum(last), last


@pytest.mark.parametrize(
    ("of", "tx", "shape", "inside", "aux"),
    [
        (looked_up, gradtx.exact_rows(TX), (3, 2), None, (1, 2)),
        (scanned, TX, (3, 2, 2), True, (2,)),
    ],
    ids=["rows catch up", "inside"],
)
def test_aux_of_other_steps(of, tx, shape, inside, aux):
    def step(p):
        return gradtx.minimize(of, tx, p, tx.init(p), has_aux=True, inside=inside)[2]

    value, more = jax.eval_shape(step, jax.ShapeDtypeStruct(shape, jnp.float32))
    assert (value.shape, more.shape) == ((), aux)


def test_the_cotangent_weighs_a_vector_of_losses():
    def losses(p):
        return (p - jnp.array([1.0, 2.0])) ** 2

    value, grads = gradtx.compute_gradients(losses, jnp.zeros(2), grad_loss=jnp.array([1.0, 0.5]))
    np.testing.assert_allclose(grads, [-2.0, -2.0])
    assert value.shape == (2,)
    with pytest.raises(ValueError, match="grad_loss has the shape"):
        gradtx.compute_gradients(losses, jnp.zeros(2), grad_loss=1.0)


@pytest.mark.parametrize(
    "where",
    ["w", ["w"], lambda path, leaf: leaf.ndim == 1, {"w": True, "b": False}],
    ids=["pattern", "patterns", "predicate", "mask"],
)
def test_what_is_not_trainable_is_left_alone(where):
    params = start()
    state = TX.init(gradtx.select(params, where))
    assert gradtx.get_slot(state, "mu")["b"] is None
    new, state, _ = gradtx.minimize(loss, TX, params, state, trainable=where)
    assert new["b"] is params["b"]
    assert float(new["w"][0]) != 0.0
    _, grads = gradtx.compute_gradients(loss, params, trainable=where)
    assert grads["b"] is None


def test_a_frozen_leaf_has_no_gradient_in_the_program():
    params = {"body": jnp.ones((64, 64)), "head": jnp.ones((64, 8))}

    def deep(p, x):
        return jnp.sum(jnp.tanh(x @ p["body"]) @ p["head"])

    def products(where):
        lowered = jax.jit(
            lambda p, x: gradtx.compute_gradients(deep, p, x, trainable=where)[1]
        ).lower(params, jnp.ones((4, 64)))
        return lowered.as_text().count("dot_general")

    assert products("head") < products(None)


@pytest.mark.slow
def test_complex_parameters_descend():
    p, state = jnp.array(1.0 + 1.0j), gradtx.sgd(0.1).init(jnp.array(0j))
    for _ in range(100):
        p, state, _ = gradtx.minimize(
            lambda z: jnp.abs(z - (2.0 - 1.0j)) ** 2, gradtx.sgd(0.1), p, state
        )
    np.testing.assert_allclose(p, 2.0 - 1.0j, atol=1e-4)


def test_extra_arguments_reach_those_who_want_them():
    seen = {}

    def update(updates, state, params=None, **extra_args):
        seen.update(extra_args)
        return updates, state

    tx = gradtx.chain(gradtx.GradientTransformationExtraArgs(lambda p: (), update), gradtx.scale(1))
    params = start()
    told = {"has_aux": True, "extra_args": {"epoch": 3}}
    gradtx.minimize(lambda p: (loss(p), p["b"]), tx, params, tx.init(params), **told)
    assert set(seen) == {"value", "grad", "value_fn", "epoch"}
    assert float(seen["value_fn"](params)) == float(seen["value"]) == 14.0


def test_no_gradient_for_some_leaves():
    params = start()
    state = TX.init(params)
    new, after = gradtx.apply_gradients(TX, {"w": jnp.ones(2), "b": None}, params, state)
    assert new["b"] is params["b"]
    np.testing.assert_array_equal(gradtx.get_slot(after, "mu", "b"), 0.0)


class TestRefused:
    def test_a_pair_of_functions_in_another_place(self):
        pair = (lambda p: (), lambda g, s, p=None: (g, s))
        with pytest.raises(TypeError, match="it was given a transformation, a transformation, a d"):
            gradtx.apply_gradients(pair, pair, start(), ())

    def test_a_vector_for_a_loss(self):
        with pytest.raises(ValueError, match="must be a scalar, not of shape"):
            gradtx.minimize(lambda p: p, TX, jnp.ones(2), TX.init(jnp.ones(2)))

    def test_aux_that_was_not_announced(self):
        with pytest.raises(TypeError, match="has_aux"):
            gradtx.minimize(lambda p: (p, 1), TX, 1.0, TX.init(1.0))

    def test_announced_aux_that_is_not_there(self):
        with pytest.raises(TypeError, match="returns \\(value, aux\\)"):
            gradtx.minimize(lambda p: p, TX, 1.0, TX.init(1.0), has_aux=True)

    def test_an_integer_loss(self):
        with pytest.raises(TypeError, match="real floating-point"):
            gradtx.minimize(lambda p: jnp.int32(1), TX, 1.0, TX.init(1.0))

    def test_integer_parameters(self):
        with pytest.raises(TypeError, match="'n' is int32"):
            gradtx.compute_gradients(lambda p: p["x"], {"x": 1.0, "n": jnp.array(1)})

    def test_nothing_to_train(self):
        with pytest.raises(ValueError, match="no trainable parameter"):
            gradtx.compute_gradients(
                lambda p: jnp.sum(p["x"]), {"x": jnp.ones(2)}, trainable={"x": False}
            )
        with pytest.raises(ValueError, match="no trainable parameter"):
            gradtx.compute_gradients(lambda p: 1.0, {})

    def test_a_pattern_that_matches_nothing(self):
        with pytest.raises(ValueError, match=r"'head' matches no leaf; the leaves are b, w"):
            gradtx.select(start(), "head")

    def test_a_mask_for_another_tree(self):
        with pytest.raises(ValueError, match="mask"):
            gradtx.select(start(), {"w": True})

    def test_gradients_of_another_kind(self):
        with pytest.raises(TypeError, match="'b'.*complex64"):
            grads = {"w": jnp.zeros(2), "b": jnp.array(1j)}
            gradtx.apply_gradients(TX, grads, start(), TX.init(start()))

    def test_updates_of_another_shape(self):
        with pytest.raises(ValueError, match="'w'"):
            gradtx.apply_updates({"w": jnp.zeros(2)}, {"w": jnp.zeros(3)})

    def test_a_gradient_without_a_parameter(self):
        with pytest.raises(ValueError, match="'b'"):
            params = {"w": jnp.zeros(2), "b": None}
            gradtx.apply_gradients(TX, start(), params, TX.init(params))


def test_no_gradient_at_all_is_an_error():
    params = {"a": jnp.ones(2), "b": jnp.ones(2)}
    tx = gradtx.sgd(0.1)
    with pytest.raises(ValueError, match="no parameter has a gradient"):
        gradtx.apply_gradients(tx, {"a": None, "b": None}, params, tx.init(params))


@pytest.mark.parametrize(
    "tx",
    [
        gradtx.lbfgs(),
        gradtx.chain(gradtx.sgd(1.0), gradtx.scale_by_backtracking_linesearch(15)),
        gradtx.sgd(0.1),
    ],
    ids=["zoom", "backtracking", "none"],
)
def test_a_loss_that_is_maximized(tx):
    """Line searches see the product of the loss and grad_loss, too."""

    def loss(x):
        return -jnp.sum((x - 3.0) ** 2)

    step = gradtx.make_step(loss, tx, grad_loss=-1.0)
    params = jnp.zeros(2)
    state = step.init(params)
    for _ in range(40):
        params, state, value = step(params, state)
    np.testing.assert_allclose(params, 3, rtol=1e-3)
    assert value <= 0


@pytest.mark.slow
def test_a_line_search_along_a_weighted_sum_of_losses():
    weights = jnp.array([1.0, 2.0])
    params, state = jnp.zeros(2), gradtx.lbfgs().init(jnp.zeros(2))
    for _ in range(5):
        params, state, losses = gradtx.minimize(
            lambda x: (x - weights) ** 2, gradtx.lbfgs(), params, state, grad_loss=weights
        )
    assert losses.shape == (2,)
    np.testing.assert_allclose(params, weights, rtol=1e-3)


def test_extra_arguments_go_by_their_names():
    tx, p = gradtx.sgd(0.1), jnp.ones(2)
    with pytest.raises(TypeError, match="value=value, not extra_args="):
        gradtx.apply_gradients(tx, p, p, tx.init(p), extra_args={"value": 1.0})
