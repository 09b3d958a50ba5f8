"""Arguments of a step that were mixed up: the error says which they are and what to do."""

# Sees mutants of: apply, expansion.

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx

P = {"w": jnp.ones((3, 2)), "b": jnp.ones(3)}
MAKERS = {
    "adam": lambda: gradtx.adam(0.1),
    "scheduled": lambda: gradtx.adam(gradtx.linear_schedule(0.1, 0.0, 3)),
    "rule": lambda: gradtx.scale_by_adam(),
    "stateless": lambda: gradtx.sgd(0.1),
    "chain": lambda: gradtx.chain(gradtx.clip(1.0), gradtx.adam(0.1)),
    "named": lambda: gradtx.named_chain(("clip", gradtx.clip(1.0)), ("adam", gradtx.adam(0.1))),
    "groups": lambda: gradtx.partition({"a": gradtx.adam(0.1)}, "a"),
    "window": lambda: gradtx.accumulate(gradtx.adam(0.1), 2),
    "matrices": lambda: gradtx.muon(0.1),
    "averages": lambda: gradtx.schedule_free_sgd(0.1),
    "guard": lambda: gradtx.guard(gradtx.adam(0.1)),
}


def loss(p):
    return jnp.sum(p["w"] ** 2)


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", MAKERS)
def test_what_was_mixed_up(name):
    tx = MAKERS[name]()
    state = tx.init(P)
    arrays = gradtx.state_dict(state)
    calls = {
        "the state is None: make it once by state = tx.init": (P, None, P),
        "a function stands in place of the state: make it by state = tx.init": (P, tx.init, P),
        "in place of the state: make it by state = tx.init": (P, tx, P),
        "load_state_dict": (P, arrays, P),
        "the gradients and the state look swapped": (state, P, P),
        "the parameters and the state look swapped": (P, P, state),
    }
    for match, arguments in calls.items():
        if name == "stateless" and arguments[1] is tx:
            continue  # a tuple of two, as its state is
        with pytest.raises(TypeError, match=match) as caught:
            tx.update(*arguments)
        assert str(caught.value).startswith(f"{tx.declaration.name}: ")
        assert "PyTreeDef" not in str(caught.value)
    for run in (
        lambda: jax.jit(tx.update)(P, None, P),
        lambda: gradtx.apply_gradients(tx, P, P, None),
        lambda: gradtx.make_step(loss, tx)(P, None),
    ):
        with pytest.raises(TypeError, match="the state is None"):
            run()
    for run in (
        lambda: gradtx.apply_gradients(tx, P, state, P),
        lambda: gradtx.minimize(loss, tx, state, P),
        lambda: gradtx.make_step(loss, tx, donate=False)(state, P),
    ):
        with pytest.raises(TypeError, match="in this order; it was given .* a state, a dict"):
            run()


@pytest.mark.parametrize("name", MAKERS)
def test_a_state_of_another_transformation(name):
    tx = MAKERS[name]()
    other = gradtx.rmsprop(0.1, momentum=0.9).init(P)
    with pytest.raises(
        (TypeError, ValueError), match=r"match_state_dict says|see regroup"
    ) as caught:
        tx.update(P, other, P)
    assert "PyTreeDef" not in str(caught.value)


def test_other_errors_stay_as_they_are():
    def broken(updates, params):
        raise TypeError("of one's own")

    tx = gradtx.chain(gradtx.stateless(broken), gradtx.adam(0.1))
    with pytest.raises(TypeError, match="^of one's own$"):
        tx.update(P, tx.init(P), P)


def test_containers_that_differ_are_named():
    tx = gradtx.adam(0.1)
    state = tx.init({"a": [jnp.ones(1), jnp.ones(1)]})
    with pytest.raises(ValueError, match="'a' is a tuple in the first and a list in the second"):
        tx.update({"a": (jnp.ones(1), jnp.ones(1))}, state)
    with pytest.raises(ValueError, match="another form: 'a' is a list in the first and a tuple"):
        gradtx.set_slot(state, "mu", {"a": (np.ones(1), np.ones(1))})
    flat = gradtx.flatten(tx)
    one = {"a": [jnp.ones(1)]}
    with pytest.raises(ValueError, match="'a' is a tuple in the first and a list in the second"):
        flat.update({"a": (jnp.ones(1),)}, flat.init(one), one)


@gradtx.transformation
def _without_state():
    def update(updates, state, params=None, **extra_args):
        raise ValueError("what this needs")

    return gradtx.GradientTransformation(lambda params: None, update)


def test_a_state_that_init_makes_is_no_mistake():
    with pytest.raises(ValueError, match="what this needs"):
        _without_state().update(1.0, None)
    tx = gradtx.named_chain(("gradtx", gradtx.adam(0.1)))
    with pytest.raises(ValueError, match="shape"):
        tx.update(jnp.ones(3), tx.init(jnp.ones(2)))


DONATED = r"'b' was given up to an earlier step.*donate=False"


@pytest.mark.quick(1)
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("name", ["adam", "groups", "matrices", "averages", "guard"])
def test_an_array_that_a_step_took_is_named(name, devices, monkeypatch):
    """With several devices it is asked for before JAX sees it, with one only after a failure."""
    monkeypatch.setattr(jax, "device_count", lambda: devices)
    tx = MAKERS[name]()
    p = jax.tree.map(jnp.copy, P)
    state = tx.init(p)
    used = jax.tree.map(jnp.copy, state)
    new, state, _ = gradtx.make_step(loss, tx)(p, used)
    assert p["b"].is_deleted()
    calls = {
        "params": lambda: gradtx.apply_updates(p, P),
        "gradients": lambda: tx.update(p, state, new),
        "state": lambda: tx.update(P, used, new),
        "parameters": lambda: tx.update(P, state, p),
        "state of eval_params": lambda: gradtx.eval_params(tx, used, new),
    }
    if name not in ("averages", "guard"):
        del calls["parameters"]  # which these do not read
    for what, call in calls.items():
        tree = what.partition(" ")[0]
        with pytest.raises(ValueError, match=f"{tree}: '.*was given up to an earlier") as caught:
            call()
        if tree != "state":
            assert "'b'" in str(caught.value)
        if what == "params":
            assert (caught.value.__context__ is None) == (devices > 1)


@pytest.mark.parametrize("devices", [1, 2])
def test_where_there_are_several_devices_no_method_is_given_what_a_step_took(devices, monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: devices)
    given, p = [], jax.tree.map(jnp.copy, P)
    jax.tree.map(lambda x: x.delete(), p)

    @gradtx.transformation
    def watched():
        def update(updates, state, params=None):
            given.append(updates)
            raise ValueError

        return gradtx.GradientTransformation(lambda params: (), update)

    with pytest.raises(ValueError, match=f"watched: gradients: {DONATED}"):
        watched().update(p, (), P)
    assert len(given) == (devices == 1)


def test_an_initial_state_of_arrays_that_a_step_took():
    p = jax.tree.map(jnp.copy, P)
    tx = gradtx.ema_params()
    jax.tree.map(lambda x: x.delete(), p)
    with pytest.raises(ValueError, match=f"ema_params: the parameters: {DONATED}"):
        tx.init(p)


def test_a_batch_that_a_step_took_and_a_state_that_is_none():
    step = gradtx.make_step(lambda p, x: loss(p) + x, gradtx.sgd(0.1), donate=False)
    x = jnp.ones(())
    x.delete()
    state = step.init(P)
    with pytest.raises(ValueError, match="args: '0' was given up to an earlier step"):
        step(P, state, x)
    with pytest.raises(TypeError, match=r"a function stands in place of the state.*tx\.init"):
        step(P, gradtx.adam(0.1).init, jnp.ones(()))


def test_trees_that_differ_are_compared_by_leaf():
    """No message shows how JAX writes a tree."""
    other = {"w": P["w"], "c": P["b"]}
    free = gradtx.schedule_free_sgd(0.1)
    mask = {"w": True, "c": False}
    calls = {
        "the gradients and the parameters .*: 'c' is only in the first": lambda: free.update(
            other, free.init(P), P
        ),
        "'b' is only in the first": lambda: gradtx.incremental_update(P, other, 0.1),
        "old tensors .*'b' is only": lambda: gradtx.periodic_update(P, other, jnp.int32(1), 2),
        "they have no 'c', their leaves are b, w": lambda: gradtx.masked(free, mask).init(P),
        "labels are not .*: it says nothing of 'b'": lambda: gradtx.partition(
            {"a": free}, {"w": "a"}
        ).init(P),
        "the mask is not .* they have no '0'": lambda: gradtx.select(P, [True, False]),
        "dimension numbers are not .*'c'": lambda: gradtx.muon(
            0.1, muon_weight_dimension_numbers={"w": None, "c": None}
        ).init(P),
    }
    for match, call in calls.items():
        with pytest.raises(ValueError, match=match) as caught:
            call()
        assert "pytree structure" not in str(caught.value)
        assert "PyTreeDef" not in str(caught.value)


class Learner(NamedTuple):
    weights: Any
    inner_state: Any


def test_parameters_may_hold_the_state_of_another_optimizer():
    """As those of an optimizer that learns where another one is to start."""
    weights = jnp.ones(2)
    params = Learner(weights, gradtx.trace(0.9).init(weights))
    tx = gradtx.sgd(0.25)
    new, _, _ = gradtx.minimize(lambda p: jnp.sum(p.weights**2), tx, params, tx.init(params))
    assert new.weights.tolist() == [0.5, 0.5]
