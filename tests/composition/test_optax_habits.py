"""What users of Optax put into chains, masks and groups, and do to their states."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx

P = {"a": jnp.ones(2), "b": jnp.ones(3)}
BOOLEANS = {
    "python": (True, False),
    "numpy": (np.bool_(True), np.bool_(False)),
    "numpy arrays": (np.array(True), np.array(False)),
    "jax": (jnp.array(True), jnp.array(False)),
}


@pytest.mark.quick(5)
@pytest.mark.parametrize("kind", BOOLEANS)
@pytest.mark.parametrize("of_tree", [False, True])
def test_masks_of_any_booleans(kind, of_tree):
    yes, no = BOOLEANS[kind]
    mask = {"a": yes, "b": no}
    for tx, plain in (
        (gradtx.masked(gradtx.scale(2.0), (lambda tree: mask) if of_tree else mask), None),
        (
            gradtx.adamw(0.1, weight_decay=0.5, mask=mask),
            gradtx.adamw(0.1, 0.9, weight_decay=0.5, mask="a"),
        ),
    ):
        got, want = (
            jax.jit(lambda p, tx=each: tx and tx.update(p, tx.init(p), p)[0])(P)
            for each in (tx, plain)
        )
        want = want or {"a": 2 * P["a"], "b": P["b"]}
        jax.tree.map(np.testing.assert_array_equal, got, want)
    if not of_tree:
        assert gradtx.from_config(gradtx.to_config(tx)).init(P) is not None


@pytest.mark.parametrize("leaf", [1, "yes", np.array([True, False]), np.float32(1.0)])
def test_other_leaves_of_masks_are_refused(leaf):
    mask = {"a": leaf, "b": True}
    with pytest.raises(TypeError, match="masked: mask must be .* a tree of booleans"):
        gradtx.masked(gradtx.scale(2.0), mask)
    with pytest.raises(ValueError, match="leaves of a mask must be True or False, not"):
        gradtx.masked(gradtx.scale(2.0), lambda params: mask).init(P)


def test_a_traced_mask_is_refused():
    with pytest.raises(ValueError, match="leaves of a mask must be True or False, not"):
        jax.jit(lambda m: gradtx.masked(gradtx.scale(2.0), {"a": m, "b": True}).init(P))(True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen",
    [
        functools.partial(jax.tree.map, lambda x: x.ndim > 1),
        lambda tree, *rest: jax.tree.map(lambda x: x.ndim > 1, tree, *rest),
        lambda *trees: jax.tree.map(lambda x: x.ndim > 1, *trees),
    ],
    ids=["partial", "rest", "any"],
)
def test_functions_of_trees_that_could_take_several(chosen):
    p = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}

    def moved(lib):
        groups = {True: lib.sgd(0.5), False: lib.sgd(0.25)}
        for tx in (
            lib.masked(lib.scale(2.0), chosen),
            lib.inject_hyperparams(lib.adamw, static_args="mask")(0.1, mask=chosen),
            lib.partition(groups, chosen),
        ):
            yield tx.update(p, tx.init(p), p)[0]

    with gradtx.eager_programs(False):  # Optax runs one operation after another
        for got, want in zip(moved(gradtx), moved(optax), strict=True):
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, want)


class Halves:
    """Anything with `init` and `update`."""

    def init(self, params):
        return ()

    def update(self, updates, state, params=None):
        return jax.tree.map(lambda g: g / 2, updates), state


WINDOWS = {
    "gradtx": lambda: gradtx.MultiSteps(gradtx.sgd(1.0), 2),
    "optax": lambda: optax.MultiSteps(optax.sgd(1.0), 2),
}


@pytest.mark.parametrize("lib", WINDOWS)
def test_a_chain_takes_multi_steps(lib):
    tx = gradtx.chain(gradtx.clip(10.0), WINDOWS[lib](), gradtx.masked(Halves(), "a"))
    state = tx.init(P)
    for _ in range(2):
        updates, state = jax.jit(tx.update)(P, state, P)
    np.testing.assert_allclose(updates["a"], -0.5)
    np.testing.assert_allclose(updates["b"], -1.0)
    p, _ = gradtx.apply_gradients(tx, P, P, tx.init(P))
    jax.tree.map(np.testing.assert_array_equal, p, P)


def test_multi_steps_print_and_compare():
    chained = [gradtx.chain(WINDOWS["gradtx"]()) for _ in range(2)]
    assert chained[0] == chained[1]
    assert hash(chained[0]) == hash(chained[1])
    assert repr(chained[0]).startswith("chain(multi_steps(opt=sgd(learning_rate=1.0), every_k")


@pytest.mark.parametrize("other", [3, None, (1, 2), Halves, [gradtx.sgd(0.1)]])
def test_what_is_no_transformation_is_refused(other):
    with pytest.raises(TypeError, match="expected a gradient transformation"):
        gradtx.chain(other)


MAPPED = {
    "masked": lambda lib: lib.masked(lib.adam(0.1), {"a": True, "b": False}),
    "masked by a function": lambda lib: lib.masked(
        lib.trace(0.9), lambda p: {"a": True, "b": False}
    ),
    "decay": lambda lib: lib.adamw(0.1, mask={"a": True, "b": False}),
    "partition": lambda lib: lib.partition(
        {"x": lib.adam(0.1), "y": lib.sgd(0.1, 0.9)}, {"a": "x", "b": "y"}
    ),
}


@pytest.mark.parametrize("name", MAPPED)
def test_tree_map_params_of_optax(name):
    """Where parameters are in a state, as in Optax: the function sees these and nothing else."""
    found = []
    for lib in (gradtx, optax):
        if name == "masked by a function" and lib is optax:
            continue  # its own calls the function with a placeholder
        tx = MAPPED[name](lib)
        state = optax.tree_map_params(tx, lambda x: x + 1, tx.init(P))
        found.append([float(x.sum()) for x in jax.tree.leaves(state)])
    assert found[0] == found[-1]
    assert sum(found[0]) > 0


def test_patterns_match_no_placeholder():
    tx = gradtx.chain(
        gradtx.masked(gradtx.trace(0.9), ["a"]),
        gradtx.partition({"x": gradtx.adam(0.1), "y": gradtx.sgd(0.1)}, [("a", "x"), ("*", "y")]),
    )
    state = optax.tree_map_params(tx, lambda x: x + 1, tx.init(P))
    assert gradtx.get_slot(state, "trace", "a").tolist() == [1.0, 1.0]


class Model(eqx.Module):
    weight: jax.Array
    steps: jax.Array
    activation: object


@pytest.mark.slow
def test_the_way_of_an_equinox_module():
    model = Model(jnp.ones(2), jnp.arange(3), jax.nn.relu)
    tx = gradtx.adamw(0.1)
    with pytest.raises(TypeError, match=r"'steps' is int32: .* eqx.filter\(model, eqx.is_inexact"):
        tx.init(model)
    state = tx.init(eqx.filter(model, eqx.is_inexact_array))
    grads = eqx.filter_grad(lambda m: jnp.sum(m.activation(m.weight) ** 2))(model)
    updates, _ = tx.update(grads, state, model)  # the module itself will do here
    model = eqx.apply_updates(model, updates)
    np.testing.assert_allclose(model.weight, 0.9, atol=1e-4)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "make",
    [
        lambda lib: lib.sgd(0.1),
        lambda lib: lib.sgd(lib.exponential_decay(0.1, 1, 0.5)),
        lambda lib: lib.chain(
            lib.clip_by_global_norm(0.5), lib.add_decayed_weights(0.1), lib.sgd(0.1)
        ),
        lambda lib: lib.noisy_sgd(0.1, eta=0.0, key=0),
    ],
    ids=["sgd", "schedule", "chain", "a key"],
)
def test_a_whole_equinox_module_where_nothing_is_kept(make):
    """An optimizer without slots takes what is never trained among the parameters, as in Optax."""
    ends = []
    for lib in (gradtx, optax):
        model, tx = Model(jnp.ones(2), jnp.arange(3), jax.nn.relu), make(lib)
        state = tx.init(model)
        for _ in range(3):
            grads = eqx.filter_grad(lambda m: jnp.sum(m.activation(m.weight) ** 2))(model)
            updates, state = tx.update(grads, state, model)
            model = eqx.apply_updates(model, updates)
        ends.append(model)
    np.testing.assert_allclose(ends[0].weight, ends[1].weight, rtol=1e-6)
    assert ends[0].steps.tolist() == [0, 1, 2]
