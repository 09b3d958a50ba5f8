"""Of which leaves masks, labels and depths are asked where a step sees a part of the parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx

PARAMS = {"emb": jnp.ones((8, 4)), "w": jnp.ones((4, 4)), "b": jnp.ones(4)}


def total(params):
    return sum(jnp.sum(x) for x in jax.tree.leaves(params))


def largest(params):
    most = max(x.size for x in jax.tree.leaves(params))
    return jax.tree.map(lambda x: x.size == most, params)


def by_size(params):
    return jax.tree.map(lambda large: "large" if large else "small", largest(params))


CHOOSING = {
    "mask": lambda: gradtx.adamw(0.1, weight_decay=0.5, mask=largest),
    "labels": lambda: gradtx.partition(
        {"large": gradtx.adam(0.1), "small": gradtx.sgd(0.01)}, by_size
    ),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", CHOOSING)
def test_two_halves_of_a_step_choose_as_one(name):
    """Of the leaves that are trained, for which the state was made."""
    tx, trainable = CHOOSING[name](), ["w", "b"]
    state = tx.init(PARAMS | {"emb": None})
    want, _, _ = gradtx.minimize(total, tx, PARAMS, state, trainable=trainable)
    _, grads = gradtx.compute_gradients(total, PARAMS, trainable=trainable)
    got, _ = gradtx.apply_gradients(tx, grads, PARAMS, state)
    jax.tree.map(np.testing.assert_array_equal, got, want)
    assert want["w"][0, 0] != want["b"][0]


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", CHOOSING)
def test_a_wrapper_that_changes_the_form_changes_the_whole(name):
    tx = gradtx.split_real_and_imaginary(CHOOSING[name]())
    params = {"c": jnp.ones(3, jnp.complex64), "w": jnp.ones(3), "b": jnp.ones(2)}
    grads = {**params, "b": None}
    got, _ = gradtx.apply_gradients(tx, grads, params, tx.init(params))
    zero = {**params, "b": jnp.zeros(2)}
    want, _ = gradtx.apply_gradients(tx, zero, params, tx.init(params))
    for leaf in ("c", "w"):
        np.testing.assert_array_equal(got[leaf], want[leaf])


@pytest.mark.slow
def test_an_optimizer_within_a_loss_has_parameters_of_its_own():
    inner = gradtx.adamw(
        0.5, weight_decay=0.9, mask=lambda p: jax.tree.map(lambda x: x.size > 1, p)
    )

    def loss(params):
        own = {"w": jnp.ones(1), "b": jnp.ones(1)}
        updates, _ = inner.update(own, inner.init(own), own)
        return jnp.sum((params["w"] - updates["w"][0]) ** 2)

    tx = gradtx.chain(gradtx.sgd(0.5), gradtx.scale_by_backtracking_linesearch(10))
    params = {"w": jnp.zeros(3), "b": jnp.ones(2)}
    grads = {"w": jax.grad(loss)(params)["w"], "b": None}
    extra = {"value": loss(params), "grad": grads, "value_fn": loss}
    new, _ = gradtx.apply_gradients(tx, grads, params, tx.init(params), **extra)
    np.testing.assert_allclose(loss(new), 0, atol=1e-12)


@pytest.mark.slow
def test_a_loss_called_by_hand_has_the_leaves_without_a_gradient():
    def loss(params):
        return jnp.sum((params["a"] - 3) ** 2) + jnp.sum(params["b"] ** 2)

    tx = gradtx.chain(gradtx.sgd(1.0), gradtx.scale_by_backtracking_linesearch(10))
    params = {"a": jnp.zeros(2), "b": jnp.ones(2)}
    grads = {"a": jax.grad(loss)(params)["a"], "b": None}
    extra = {"value": loss(params), "grad": grads, "value_fn": loss}
    new, _ = gradtx.apply_gradients(tx, grads, params, tx.init(params), **extra)
    assert loss(new) < loss(params)
    np.testing.assert_array_equal(new["b"], params["b"])


@pytest.mark.slow
def test_rates_by_depth_are_those_of_all_leaves_inside_too():
    depths = {"block0": 1, "block1": 2, "head": 3}
    tx = gradtx.layerwise_rate_decay(
        gradtx.sgd(0.1), 0.5, depth=lambda path, x: depths[path.partition("/")[0]]
    )
    params = {
        "block0": {"w": jnp.ones((2, 3, 3))},
        "block1": {"w": jnp.ones((2, 3, 3))},
        "head": {"w": jnp.ones((3, 3))},
    }

    def loss(params, x):
        for block in ("block0", "block1"):
            x, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, params[block]["w"])
        return jnp.sum((x @ params["head"]["w"]) ** 2)

    ends = []
    for inside in (None, True):
        step = gradtx.make_step(loss, tx, inside=inside, donate=False)
        ends.append(step(params, tx.init(params), jnp.ones((2, 3)))[0])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), *ends)
