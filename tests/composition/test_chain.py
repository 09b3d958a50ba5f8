"""Chains: their states, and what they refuse."""

# Sees mutants of: lift.

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from gradtx.composition.apply import take_step
from gradtx.composition.gate import Case, in_cases


def test_an_empty_chain_is_the_identity():
    tx = gradtx.chain()
    assert tx.update({"a": 1.0}, tx.init({"a": 1.0})) == ({"a": 1.0}, ())


def test_named_states():
    tx = gradtx.named_chain(("clip", gradtx.clip(1.0)), ("trace", gradtx.trace(0.9)))
    state = tx.init(jnp.ones(2))
    assert state["trace"] is state[1]
    assert list(state) == ["clip", "trace"]
    paths = [jax.tree_util.keystr(k) for k, _ in jax.tree_util.tree_flatten_with_path(state)[0]]
    assert paths == ["['trace'].trace"]
    with pytest.raises(ValueError, match="occurs twice"):
        gradtx.named_chain(("a", gradtx.clip(1.0)), ("a", gradtx.clip(1.0)))
    with pytest.raises(TypeError, match="pairs"):
        gradtx.named_chain(gradtx.clip(1.0))
    with pytest.raises(ValueError, match="expected a state for"):
        tx.update(jnp.ones(2), {"clip": (), "momentum": ()})


def test_the_state_of_another_chain_is_refused():
    with pytest.raises(ValueError, match="2 parts"):
        gradtx.adam(0.1).update(jnp.ones(2), gradtx.sgd(0.1).init(jnp.ones(2))[:1])


def test_stateless_like_optax():
    p, g = {"a": jnp.arange(3.0)}, {"a": jnp.ones(3)}

    def whole(updates, params):
        return jax.tree.map(lambda g, p: g - 0.1 * p, updates, params)

    def leaf(g, p):
        return g - 0.1 * p

    for name, function in (("stateless", whole), ("stateless_with_tree_map", leaf)):
        ours, theirs = (getattr(lib, name)(function) for lib in (gradtx, optax))
        chex.assert_trees_all_equal(
            ours.update(g, ours.init(p), p)[0], theirs.update(g, theirs.init(p), p)[0]
        )


LEAVES = {f"{i}": jnp.full((2, 3), float(i + 1)) for i in range(6)}


def one_by_one(links, grads, states, params):
    new = []
    for tx, state in zip(links, states, strict=True):
        grads, state = jax.jit(tx.update)(grads, state, params)
        new.append(state)
    return grads, tuple(new)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "links",
    [
        (gradtx.scale_by_adam(), gradtx.add_decayed_weights(0.1), gradtx.scale(-0.5)),
        (gradtx.trace(0.9), gradtx.clip_by_norm(1.0), gradtx.trace(0.5), gradtx.scale(2.0)),
        (gradtx.scale(3.0), gradtx.scale_by_learning_rate(lambda t: 0.1 / (t + 1)), gradtx.clip(1)),
        (gradtx.scale(3.0), gradtx.scale(2.0)._replace(update=lambda u, s, p=None, **_: (u, s))),
        (gradtx.add_noise(0.1, 0.5, 1), gradtx.scale_by_adam(), gradtx.scale(0.1)),
        (gradtx.scale(3.0), gradtx.clip_by_global_norm(1.0), gradtx.normalize(), gradtx.scale(2.0)),
    ],
    ids=["entries", "a leaf between", "a schedule", "a replaced update", "keys", "norms"],
)
def test_links_that_are_traced_together_do_what_they_do_alone(links):
    grads = jax.tree.map(lambda p: 0.1 * p + 0.05, LEAVES)
    tx = gradtx.chain(*links)
    want_state = state = tx.init(LEAVES)
    for _ in range(2):
        updates, state = jax.jit(tx.update)(grads, state, LEAVES)
        want, want_state = one_by_one(links, grads, want_state, LEAVES)
    got, want = ((jax.tree.map(_numbers, x)) for x in ((updates, state), (want, want_state)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), got, want)


@pytest.mark.slow
def test_chains_within_a_chain_and_the_addition_do_together_what_they_do_alone():
    inner = gradtx.named_chain(("m", gradtx.trace(0.9)), ("deep", gradtx.chain(gradtx.scale(2.0))))
    tx = gradtx.chain(gradtx.clip_by_global_norm(1.0), inner, gradtx.sgd(0.1, momentum=0.5))
    params = {**LEAVES, "frozen": jnp.ones(2), "table": jnp.ones((4, 3))}
    rows = gradtx.Rows(jnp.array([2, 0]), jnp.ones((2, 3)), (4, 3))
    grads = {**jax.tree.map(lambda p: 0.1 * p + 0.05, LEAVES), "frozen": None, "table": rows}
    links = [gradtx.clip_by_global_norm(1.0), inner, gradtx.sgd(0.1, momentum=0.5)]

    def step(params, state):
        return gradtx.apply_gradients(tx, grads, params, state)

    got, state = jax.jit(step)(params, tx.init(params))
    updates, want = one_by_one(links, grads, tx.init(params), params)
    chex.assert_trees_all_close(got, gradtx.apply_updates(params, updates), rtol=1e-6)
    chex.assert_trees_all_close(state, want, rtol=1e-6)


def alternating():
    """Twice the gradient, then half of it, each a case of the whole step."""

    def times(factor):
        return gradtx.GradientTransformation(
            lambda params: jnp.int32(0), lambda u, count, p=None: (factor * u, count + 1)
        )

    def cases(count):
        even = count % 2 == 0
        return [Case(even, times(2.0), {}), Case(~even, times(0.5), {})]

    def update(updates, count, params=None):
        return times(jnp.where(count % 2 == 0, 2.0, 0.5)).update(updates, count)

    return gradtx.GradientTransformationExtraArgs(
        times(1.0).init, update, in_cases(cases), cases=cases
    )


@pytest.mark.parametrize(
    "last",
    [lambda: gradtx.apply_if_finite(gradtx.sgd(0.5), 2), alternating],
    ids=["a step", "cases"],
)
def test_a_whole_step_runs_all_links_before_the_last(last):
    tx = gradtx.chain(gradtx.clip(1.0), gradtx.scale(-2.0), gradtx.trace(0.9), last())
    one = two = jnp.ones(2), tx.init(jnp.ones(2))
    for g in (jnp.array([0.25, 3.0]), jnp.array([-2.0, 0.5])):
        one = take_step(tx, g, one[1], one[0])
        updates, state = tx.update(g, two[1], two[0])
        two = gradtx.apply_updates(two[0], updates), state
        chex.assert_trees_all_equal(one, two)


def test_an_update_that_does_not_fit_a_parameter_is_named_also_then():
    tx = gradtx.chain(gradtx.scale(2.0), gradtx.sgd(0.1))
    params = {**LEAVES, "4": jnp.zeros(5)}
    with pytest.raises(ValueError, match=r"at '4' the parameter is \(5,\) and the update \(2, 3\)"):
        jax.jit(lambda g, p: take_step(tx, g, tx.init(p), p))(LEAVES, params)


def _numbers(x):
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def at_most_two():
    return gradtx.elementwise(gradtx.EmptyState, None, lambda g, s, t: (g[:2], {}))


def test_an_error_of_links_that_are_traced_together_names_the_link_and_the_leaf():
    tx = gradtx.chain(gradtx.scale(2.0), at_most_two(), gradtx.scale(-1.0))
    leaves = {**LEAVES, "4": jnp.zeros((5, 2, 3))}
    with pytest.raises(ValueError, match=r"at_most_two: at '4' a gradient of shape \(5, 2, 3\)"):
        jax.jit(tx.update)(leaves, tx.init(leaves))


def test_a_rule_of_leaves_and_the_links_after_it_are_one_function_of_a_leaf():
    p = {str(i): jnp.ones(3) for i in range(12)}

    def equations(tx):
        return len(jax.make_jaxpr(tx.update)(p, tx.init(p), p).eqns)

    alone = gradtx.scale_by_trust_ratio()
    assert equations(gradtx.chain(alone, gradtx.scale(-1.0))) <= equations(alone) + 2
