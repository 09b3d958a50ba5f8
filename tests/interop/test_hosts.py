"""Pairs of gradtx in the training loops of other libraries, as they are."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from tests.test_coming_from import PARAMS, loss, moves

STEPS = 5


def descent(tx, params, function):
    """The parameters after steps by `minimize`."""
    state = tx.init(params)
    for _ in range(STEPS):
        params, state, _ = gradtx.minimize(function, tx, params, state)
    return params


def test_flax_train_state():
    train_state = pytest.importorskip("flax.training.train_state")
    tx = gradtx.chain(gradtx.clip_by_global_norm(1.0), gradtx.adamw(0.1, mask="kernel"))
    held = train_state.TrainState.create(apply_fn=None, params=PARAMS, tx=tx)
    step = jax.jit(lambda s: s.apply_gradients(grads=jax.grad(loss)(s.params)))
    for _ in range(STEPS):
        held = step(held)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5),
        held.params,
        descent(tx, PARAMS, loss),
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: gradtx.adam(0.1),
        lambda: gradtx.chain(gradtx.sgd(0.1), gradtx.reduce_on_plateau(0.5, patience=1)),
        lambda: gradtx.partition(
            {"a": gradtx.adam(0.1), "b": gradtx.sgd(0.1)}, [("kernel", "a"), ("*", "b")]
        ),
    ],
    ids=["adam", "extra arguments", "groups"],
)
def test_flax_nnx_optimizer(make):
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    kernel, bias = model.kernel[...], model.bias[...]
    optimizer = nnx.Optimizer(model, make(), wrt=nnx.Param)
    x = jnp.ones((3, 2))

    @nnx.jit
    def step(model, optimizer):
        value, grads = nnx.value_and_grad(lambda m: jnp.mean((m(x) - 1) ** 2))(model)
        optimizer.update(model, grads, value=value)

    for _ in range(STEPS):
        step(model, optimizer)
    want = descent(
        make(),
        {"bias": bias, "kernel": kernel},
        lambda p: jnp.mean((x @ p["kernel"] + p["bias"] - 1) ** 2),
    )
    np.testing.assert_allclose(model.kernel[...], want["kernel"], rtol=1e-5)
    np.testing.assert_allclose(model.bias[...], want["bias"], rtol=1e-5, atol=1e-6)


def test_equinox():
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.Linear(2, 1, key=jax.random.key(0))
    start = {"weight": model.weight, "bias": model.bias}
    tx = gradtx.adam(0.1)
    x = jnp.ones((3, 2))
    state = tx.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(model, state):
        grads = eqx.filter_grad(lambda m: jnp.mean((jax.vmap(m)(x) - 1) ** 2))(model)
        updates, state = tx.update(grads, state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), state

    for _ in range(STEPS):
        model, state = step(model, state)
    want = descent(tx, start, lambda p: jnp.mean((x @ p["weight"].T + p["bias"] - 1) ** 2))
    np.testing.assert_allclose(model.weight, want["weight"], rtol=1e-5)
    np.testing.assert_allclose(model.bias, want["bias"], rtol=1e-5)


def test_haiku():
    hk = pytest.importorskip("haiku")
    x = jnp.ones((3, 2))
    network = hk.without_apply_rng(hk.transform(lambda x: hk.Linear(1)(x)))
    params = network.init(jax.random.key(0), x)
    tx = gradtx.partition({"a": gradtx.adam(0.1), "b": gradtx.sgd(0.1)}, [("*/w", "a"), ("*", "b")])

    def network_loss(p):
        return jnp.mean((network.apply(p, x) - 1) ** 2)

    new = descent(tx, params, network_loss)
    assert jax.tree.structure(new) == jax.tree.structure(params)
    assert float(network_loss(new)) < float(network_loss(params))


@pytest.mark.parametrize("make", [lambda: gradtx.adam(0.1), gradtx.lbfgs], ids=["adam", "lbfgs"])
def test_optimistix_minimiser(make):
    optx = pytest.importorskip("optimistix")
    solver = optx.OptaxMinimiser(make(), rtol=1e-4, atol=1e-4)
    found = optx.minimise(
        lambda y, args: jnp.sum((y - 3.0) ** 2), solver, jnp.zeros(2), max_steps=300, throw=False
    )
    np.testing.assert_allclose(found.value, 3.0, atol=0.05)


def test_optax_wrappers():
    for wrap in (
        lambda tx: optax.chain(optax.clip(0.5), tx),
        lambda tx: optax.MultiSteps(tx, 1).gradient_transformation(),
        lambda tx: optax.apply_if_finite(tx, 3),
        lambda tx: optax.masked(tx, {"bias": True, "kernel": True}),
    ):
        mine, theirs = moves(wrap(gradtx.adam(0.1))), moves(wrap(optax.adam(0.1)))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5), mine, theirs)
    injected = optax.inject_hyperparams(gradtx.sgd)(learning_rate=0.1)
    state = injected.init(PARAMS)
    assert float(state.hyperparams["learning_rate"]) == pytest.approx(0.1)
