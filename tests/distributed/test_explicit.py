"""`tx.update` by hand, in `jit`, on a mesh whose axes are `Explicit`: as on one device."""

# Sees mutants of: shardings.

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import gradtx
from benchmarks.hlo import by_kind, collectives
from tests.catalogue import CATALOGUE, optimizers
from tests.distributed.meshes import entrywise

N = 8
QUICK = ("adamw", "muon", "soap")
# Every optimizer that is not entry-wise, and a third of the others: all are entered in the same
# way. What is not tried communicates over an axis that is bound only in `shard_map`, or takes
# gradients of single examples.
NAMES = sorted({n for n in optimizers() if not entrywise(n)} | {*QUICK, *[*CATALOGUE][::3]})
ELSEWHERE = {
    name
    for name, entry in CATALOGUE.items()
    if entry.examples or name.startswith(("aggregate", "demo", "diloco", "local_sgd", "streaming"))
}


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((N,), ("data",), axis_types=(AxisType.Explicit,))


def params():
    rng = np.random.default_rng(0)
    sizes = {"b": (N,), "first": (N, 4), "second": (N, 4), "third": (N, 4)}
    return {name: jnp.asarray(rng.normal(size=size)) for name, size in sizes.items()}


def loss(p):
    return sum(jnp.sum(jnp.sin(x) ** 2) for x in jax.tree.leaves(p))


def divided(tree, mesh):
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec("data")))


def two_steps(tx, p):
    def step(p, state):
        g = jax.grad(loss)(p)
        updates, state = tx.update(g, state, p, value=loss(p), grad=g, value_fn=loss)
        return gradtx.apply_updates(p, updates), state

    state = tx.init(p)
    compiled = jax.jit(step)
    return compiled(*compiled(p, state))[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in NAMES
        if name not in ELSEWHERE
    ],
)
def test_equals_the_run_on_one_device(name, mesh):
    tx = CATALOGUE[name].make()
    with jax.enable_x64(True):  # float32 chooses other bases where a factor has no full rank yet
        want = two_steps(tx, params())
        with jax.set_mesh(mesh):
            got = two_steps(tx, divided(params(), mesh))
    for path, x in got.items():
        assert x.sharding.spec[0] == "data"
        np.testing.assert_allclose(x, want[path], rtol=1e-6, atol=1e-6, err_msg=path)


def test_matrices_are_computed_by_their_owners(mesh):
    """As `make_step` does with a sharding: one exchange in, one out, and none in the iteration."""
    tx = gradtx.orthogonalize()
    with jax.set_mesh(mesh):
        p = {str(i): jnp.ones((N, 16)) * (i + 1) for i in range(N)}
        p = divided(p, mesh)
        program = jax.jit(tx.update).lower(p, tx.init(p), p).compile().as_text()
    assert {kind: count for kind, (count, _) in by_kind(collectives(program)).items()} == {
        "all-to-all": 2
    }


@pytest.mark.slow
def test_gradients_may_be_constants_of_the_step(mesh):
    tx = gradtx.muon(0.1)
    with jax.set_mesh(mesh):
        p = divided(params(), mesh)
        grads = jax.tree.map(jnp.ones_like, p)
        step = jax.jit(lambda p, s: gradtx.apply_gradients(tx, grads, p, s)[0])
        got = step(p, tx.init(p))
    want = gradtx.apply_gradients(
        tx, jax.tree.map(jnp.ones_like, params()), params(), tx.init(params())
    )[0]
    for path, x in got.items():
        np.testing.assert_allclose(x, want[path], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("whole", [False, True], ids=["update", "step"])
def test_hyperparameters_that_lie_on_the_mesh(mesh, whole):
    """Arrays in a transformation enter with the gradients."""
    params = divided({"w": jnp.arange(8.0)}, mesh)
    rate = jax.device_put(jnp.float32(0.5), NamedSharding(mesh, PartitionSpec()))
    upper = divided(jnp.arange(8.0) / 2, mesh)

    def step(p, rate, upper):
        box = gradtx.project("box", None, {"lower": 0.0, "upper": {"w": upper}})
        tx = gradtx.chain(gradtx.sgd(rate), box)
        grads = jax.tree.map(lambda x: x / 2, p)
        if whole:
            return gradtx.apply_gradients(tx, grads, p, tx.init(p))[0]
        return gradtx.apply_updates(p, tx.update(grads, tx.init(p), p)[0])

    new = jax.jit(step)(params, rate, upper)
    np.testing.assert_array_equal(new["w"], np.minimum(0.75 * np.arange(8), np.arange(8) / 2))
