"""Many leaves in few vectors: the same steps, in as many kernels as for one leaf."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from gradtx.core.traits import Scope
from gradtx.leaves.packed import _is_local
from tests.catalogue import CATALOGUE
from tests.distributed.meshes import all_lie_on, mesh, on
from tests.programs import equations
from tests.quick import quick

CLIPPED = gradtx.chain(gradtx.clip_by_global_norm(1.0), gradtx.adamw(0.1))


def tree():
    rng = np.random.default_rng(0)
    shapes = {"b": (3,), "w": (3, 4)}
    params = {k: jnp.asarray(rng.normal(size=s), jnp.float32) for k, s in shapes.items()}
    return {"body": params, "head": [params["w"].T]}


def loss(p, x=1.0):
    return sum(jnp.sum((x * leaf - i) ** 2) for i, leaf in enumerate(jax.tree.leaves(p)))


def trained(tx, params, steps=3, **options):
    step = gradtx.make_step(loss, tx, **options)
    state = step.init(params)
    for i in range(steps):
        params, state, value = step(params, state, 1.0 + i)
    return params, state, value


def only_entries(tx):
    return tx.rules is not None and all(rule.scope is Scope.ENTRY for rule in tx.rules)


# These take a gradient for each example, or draw a direction for each leaf; blocks of a codec cross
# leaves in a vector.
OTHERS = {"differentially_private", "differentially_private_aggregate", "dpsgd", "per_example"}
OTHERS |= {"estimated_gradients"}
WHOLE = [
    name
    for name, entry in sorted(CATALOGUE.items())
    if not (name.startswith("scale_by_") or name in OTHERS or only_entries(entry.made))
]
QUICK = ("accumulate", "clip_by_norm", "guard", "lamb", "muon", "schedule_free")


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(WHOLE, *QUICK))
def test_what_reads_more_than_an_entry_takes_the_same_steps(name):
    tx = CATALOGUE[name].make()
    params, _, _ = trained(tx, gradtx.pack(tree()))
    chex.assert_trees_all_close(gradtx.unpack(params), trained(tx, tree())[0], rtol=1e-5, atol=1e-6)


@pytest.mark.quick(1)
@pytest.mark.parametrize("tx", [optax.lamb(0.1), optax.adam(0.1)], ids=["lamb", "adam"])
def test_another_librarys_transformation_sees_leaves(tx):
    got = trained(tx, gradtx.pack(tree()))
    chex.assert_trees_all_close(gradtx.unpack(got[0]), trained(tx, tree())[0], rtol=1e-5)


def kernels(params):
    def step(params, state, grads):
        return gradtx.apply_gradients(CLIPPED, grads, params, state)

    args = params, CLIPPED.init(params), jax.tree.map(jnp.ones_like, params)
    hlo = jax.jit(step, donate_argnums=(0, 1)).lower(*args).compile().as_text()
    traced = jax.make_jaxpr(step)(*args)
    found = re.findall(r" (fusion|copy|call|reduce|concatenate)\(", hlo[hlo.index("ENTRY") :])
    return sorted(found), sorted(equations(traced.jaxpr))


def test_a_step_is_that_of_one_leaf():
    """The same operations and kernels, for any number of leaves: nothing grows with them."""
    assert kernels(gradtx.pack([jnp.ones(64)] * 500)) == kernels([jnp.ones(64 * 500)])


@pytest.mark.slow
def test_the_gradient_is_joined_by_one_operation():
    """A slice for each leaf has a padded array of all leaves' size for a derivative."""
    packed = gradtx.pack(tree())
    traced = jax.make_jaxpr(lambda p: gradtx.compute_gradients(loss, p))(packed)
    found = equations(traced.jaxpr)
    assert found.count("split") == found.count("concatenate") == 1
    assert "pad" not in found
    tangent = jax.tree.map(jnp.ones_like, packed)
    flat = lambda p: loss(gradtx.unpack(p))  # noqa: E731
    _, curved = jax.jvp(jax.grad(flat), (packed,), (tangent,))
    np.testing.assert_allclose(curved.vectors["float32"], 2.0)


@pytest.mark.slow
def test_types_have_vectors_of_their_own():
    params = {
        "a": jnp.ones((2, 2), jnp.bfloat16),
        "b": jnp.ones(3),
        "n": jnp.arange(2),
        "z": jnp.float32(1.0),
    }
    packed = gradtx.pack(params)
    shapes = {k: v.shape for k, v in packed.vectors.items()}
    assert shapes == {"bfloat16": (4,), "float32": (4,), "int32": (2,)}
    chex.assert_trees_all_equal_dtypes(gradtx.unpack(packed), params)
    where = lambda path, x: jnp.issubdtype(x.dtype, jnp.inexact)  # noqa: E731

    def run(params):
        step = gradtx.make_step(lambda p: loss([p["a"], p["b"]]), gradtx.adam(0.1), trainable=where)
        with pytest.warns(UserWarning, match="rounded to nearest"):
            params, state, _ = step(params, step.init(params))
        return gradtx.unpack(params), state

    (got, state), (want, _) = run(packed), run(params)
    chex.assert_trees_all_close(got, want, rtol=1e-6)
    assert gradtx.unpack(gradtx.pack({"a": 1.0}))["a"].dtype == jnp.float32
    assert gradtx.get_slot(state, "nu", "a").dtype == jnp.float32
    assert gradtx.get_slot(state, "nu")["n"] is None


@pytest.mark.slow
def test_slots_and_checkpoints_know_leaves_by_path(tmp_path):
    params, state, _ = trained(CLIPPED, gradtx.pack(tree()))
    plain, plain_state, _ = trained(CLIPPED, tree())
    got, want = (gradtx.get_slot(s, "mu", "head/0") for s in (state, plain_state))
    # Entries may be small sums of large terms: they are as exact as float32 has the largest, 0.12.
    close = {"rtol": 1e-6, "atol": 2**-24 * 0.12}
    np.testing.assert_allclose(got, want, **close)
    other = gradtx.set_slot(state, "mu", jnp.zeros((4, 3)), "head/0")
    assert jax.tree.structure(other) == jax.tree.structure(state)
    assert not gradtx.get_slot(other, "mu", "head/0").any()
    assert gradtx.get_slot(other, "mu", "body/w").any()

    assert list(gradtx.state_dict(state)) == list(gradtx.state_dict(plain_state))
    path = tmp_path / "run.npz"
    gradtx.save_checkpoint(path, params, state, CLIPPED, step=3)
    for template, want in ((gradtx.pack(tree()), (params, state)), (tree(), (plain, plain_state))):
        found = gradtx.load_checkpoint(path, params=template)
        assert jax.tree.structure(found.params) == jax.tree.structure(want[0])
        chex.assert_trees_all_close((found.params, found.state), want, **close)


def test_stored_slots_are_codes_of_vectors():
    tx = gradtx.store(gradtx.adam(0.1), "int8")
    params, state, _ = trained(tx, gradtx.pack(tree()))
    assert gradtx.get_slot(state, "mu", "body/w").shape == (3, 4)
    again = gradtx.load_state_dict(tx, params, gradtx.state_dict(state))
    chex.assert_trees_all_equal(again, state)


def test_a_part_may_be_packed_and_masked():
    params = {"body": gradtx.pack(tree()["body"]), "head": tree()["head"]}
    tx = gradtx.adamw(0.1, weight_decay=0.5, mask="body")
    got = trained(tx, params, trainable="body")
    want = trained(tx, tree(), trainable="body")
    chex.assert_trees_all_close(gradtx.unpack(got[0]), want[0], rtol=1e-6)
    with pytest.raises(ValueError, match="chooses some leaves of a packed tree"):
        gradtx.make_step(loss, tx, trainable="body/w").init(params)


def test_masks_inside_of_an_optimizer_see_leaves():
    tx = gradtx.adamw(0.1, weight_decay=0.5, mask=lambda path, p: p.ndim > 1)
    got = trained(tx, gradtx.pack(tree()))
    chex.assert_trees_all_close(gradtx.unpack(got[0]), trained(tx, tree())[0], rtol=1e-6)


@pytest.mark.slow
def test_it_goes_with_the_rest():
    """Gradients given as a tree, and `vmap`."""
    packed, plain = gradtx.pack(tree()), tree()
    grads = jax.grad(loss)(plain)
    got, _ = gradtx.apply_gradients(CLIPPED, grads, packed, CLIPPED.init(packed))
    want, _ = gradtx.apply_gradients(CLIPPED, grads, plain, CLIPPED.init(plain))
    chex.assert_trees_all_close(gradtx.unpack(got), want, rtol=1e-6)

    stacked = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), packed)
    values = jax.vmap(lambda p: loss(gradtx.unpack(p)))(stacked)
    np.testing.assert_allclose(values[0], loss(plain), rtol=1e-6)
    assert gradtx.unpack(stacked)["body"]["w"].shape == (2, 3, 4)


@pytest.mark.slow
def test_several_steps_on_a_mesh_with_zero():
    packed = gradtx.pack(tree())
    m = mesh(data=8)
    found = gradtx.state_sharding(CLIPPED, packed, on(m), zero="data", min_size=8)
    step = gradtx.make_step(loss, CLIPPED, sharding=found, steps=2)
    placed = jax.device_put(packed, on(m))
    new, state, _ = step(placed, step.init(placed), jax.device_put(jnp.ones(2), on(m)))
    assert all_lie_on((new, state), (found.params, found.state))
    packed = gradtx.pack(tree())
    one = gradtx.make_step(loss, CLIPPED, donate=False)
    first, state, _ = one(packed, one.init(packed), 1.0)
    chex.assert_trees_all_close(
        gradtx.unpack(new), gradtx.unpack(one(first, state, 1.0)[0]), rtol=1e-6
    )


@pytest.mark.slow
def test_a_search_along_a_line():
    tx = gradtx.lbfgs()
    got = gradtx.solve(loss, gradtx.pack(tree()), tx, max_steps=5)
    np.testing.assert_allclose(got.value, gradtx.solve(loss, tree(), tx, max_steps=5).value)


def test_what_is_refused():
    with pytest.raises(ValueError, match="there is no leaf"):
        gradtx.pack({})
    with pytest.raises(ValueError, match="packed already"):
        gradtx.pack({"a": gradtx.pack([1.0])})
    with pytest.raises(TypeError, match="not an array of numbers"):
        gradtx.pack({"key": jax.random.key(0)})
    packed = gradtx.pack(tree())
    grads = {**tree(), "head": [jnp.ones(2)]}
    with pytest.raises(ValueError, match=r"has the shape \(4, 3\)"):
        gradtx.apply_gradients(CLIPPED, grads, packed, CLIPPED.init(packed))


def test_what_lies_on_one_device_or_in_numpy_is_joined_by_numpy():
    there = [jax.device_put(jnp.ones(2), device) for device in jax.devices()[:2]]
    assert _is_local([there[1], np.ones(2)])
    assert _is_local([np.ones(2)])
    assert not _is_local(there)
    assert not jax.jit(lambda x: jnp.array(_is_local([x])))(1.0)


def test_numpy_s_float64_lies_with_float32():
    packed = gradtx.pack({"w": np.ones(3), "b": jnp.ones(2)})
    assert jax.tree.map(jnp.shape, packed.vectors) == {"float32": (5,)}
    again = gradtx.pack(gradtx.unpack(packed))
    tx = gradtx.adam(0.1)
    tx.update(again, tx.init(packed), packed)
