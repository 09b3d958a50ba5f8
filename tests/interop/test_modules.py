"""A whole module as the parameters of a step: leaves that are no parameters change nothing."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from tests import test_contracts as contracts
from tests.quick import quick

# What a module holds besides its parameters.
OBJECTS = {
    "activation": jnp.tanh,
    "frozen": True,
    "ids": np.arange(3),
    "layers": 2,
    "name": "encoder",
    "rate": 0.5,
    "random": jax.random.key(0),
}
FEW = ("accumulate", "adam", "lbfgs", "mechanize", "muon", "sam")


def program(name, objects, own):
    """One step, as a program; `own` reads the loss of the parameters that it is given."""
    tx = contracts.CATALOGUE[name].make()
    params = contracts.two(name)
    state = tx.init({**params, **dict.fromkeys(OBJECTS)})
    examples = contracts.takes_examples(tx)

    def step(params, state):
        g = params if not examples else jax.tree.map(lambda x: x[None], params)
        grads, at = {**g, **dict.fromkeys(OBJECTS)}, {**params, **objects}
        extra = {"value": jnp.float32(2.0), "grad": grads, "value_fn": own}
        return gradtx.with_extra_args_support(tx).update(grads, state, at, **extra)

    return re.sub("0x[0-9a-f]+", "", str(jax.make_jaxpr(step)(params, state)))


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", quick(contracts.NAMES, *FEW))
def test_leaves_that_are_no_parameters_change_no_step(name):
    names = sorted(contracts.two(name))

    def of_whole(whole):
        return contracts.value_fn({n: whole["activation"](whole[n]) for n in names})

    def of_parameters(params):
        return contracts.value_fn({n: jnp.tanh(params[n]) for n in names})

    nothing = dict.fromkeys(OBJECTS)
    assert program(name, OBJECTS, of_whole) == program(name, nothing, of_parameters)


def model_and_gradients():
    """A small model of Equinox, with dropout, and its gradients as Equinox takes them."""
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.Sequential(
        [
            eqx.nn.MLP(3, 2, 4, 1, activation=jax.nn.tanh, key=jax.random.key(0)),
            eqx.nn.Dropout(0.5, inference=True),
        ]
    )
    x = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)
    return model, eqx.filter_grad(lambda model: jnp.mean((jax.vmap(model)(x) - 1) ** 2))(model)


def trained(tx, model, grads):
    """The model after four steps, with the whole model as their parameters."""
    eqx = pytest.importorskip("equinox")
    state = tx.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(model, state):
        updates, state = tx.update(grads, state, model)
        return eqx.apply_updates(model, updates), state

    for _ in range(4):
        model, state = step(model, state)
    return jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))


def even(step, *rest):
    return step % 2 == 0


def decayed(library):
    return library.chain(library.add_decayed_weights(0.1), library.sgd(0.1, momentum=0.9))


WRAPPED = {
    "apply_if_finite": lambda g: g.apply_if_finite(decayed(g), 3),
    "conditionally_mask": lambda g: g.conditionally_mask(decayed(g), even),
    "conditionally_transform": lambda g: g.conditionally_transform(decayed(g), even),
    "adaptive_grad_clip": lambda g: g.chain(g.adaptive_grad_clip(0.1), decayed(g)),
    "MultiSteps": lambda g: g.MultiSteps(decayed(g), 2),
    "muon": lambda g: g.contrib.muon(0.1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(WRAPPED, "apply_if_finite", "muon"))
def test_a_module_of_equinox_as_in_optax(name):
    model, grads = model_and_gradients()
    ours = trained(WRAPPED[name](gradtx), model, grads)
    try:
        theirs = trained(WRAPPED[name](optax), model, grads)
    except (AttributeError, TypeError, ValueError):  # it does not run there with a whole module
        theirs = trained(WRAPPED[name](gradtx), *filtered(model, grads))
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


def filtered(model, grads):
    eqx = pytest.importorskip("equinox")
    return eqx.filter(model, eqx.is_inexact_array), grads


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrap",
    [
        lambda tx: tx,
        lambda tx: gradtx.accumulate(tx, 2),
        lambda tx: gradtx.guard(tx),
        lambda tx: gradtx.dynamic_loss_scale(tx),
    ],
)
def test_a_whole_step_returns_the_module(wrap):
    eqx = pytest.importorskip("equinox")
    model, grads = model_and_gradients()
    tx = wrap(gradtx.sgd(0.1, momentum=0.9))
    arrays = eqx.filter(model, eqx.is_inexact_array)
    state = tx.init(arrays)
    new, _ = gradtx.apply_gradients(tx, grads, model, state)
    want, _ = gradtx.apply_gradients(tx, grads, arrays, state)
    assert jax.tree.structure(new) == jax.tree.structure(model)
    assert new.layers[0].activation is model.layers[0].activation
    for mine, other in zip(
        jax.tree.leaves(eqx.filter(new, eqx.is_inexact_array)), jax.tree.leaves(want), strict=True
    ):
        np.testing.assert_array_equal(mine, other)
