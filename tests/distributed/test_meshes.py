"""Steps on meshes as `jax.make_mesh` makes them, and what they send on four TPUs and eight GPUs.

The latter are compiled, where the compilers are installed.
"""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding

import gradtx
from tests.catalogue import CATALOGUE
from tests.distributed.meshes import THIRDS, P, all_lie_on
from tests.distributed.test_sharding import CHOSEN_BY_ROUNDING

ROOT = pathlib.Path(__file__).parent.parent.parent
WIDTH = 512
PROGRAM = """
import json, sys
from benchmarks import meshes
mesh, width = sys.argv[1], int(sys.argv[2])
print(json.dumps({layout.name: meshes.compiled(layout, mesh, width) for layout in meshes.LAYOUTS}))
"""
MATRICES = 4 * 2 * 12 * WIDTH**2  # bytes of the gradients of two blocks
VECTORS = 4 * 2 * 2 * WIDTH
ACTIVATIONS = 4 * 2 * 4 * (WIDTH // 2) * WIDTH
VALUE = 4  # the loss


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "x", "y", "package"),
    [("v5e:2x2", 2, 2, "libtpu"), ("h100", 4, 2, "jax_cuda12_plugin")],
)
def test_what_is_held_and_sent(mesh, x, y, package):
    """Under ZeRO gradients are scattered and parameters gathered, along one axis after the other.

    Nothing of a parameter's size is reduced whole there, and no layout sends more than it must.
    """
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: see CONTRIBUTING.md")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, mesh, str(WIDTH)],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    states = {name: state for name, (state, *_) in found.items()}
    sent = {
        name: {kind: size for kind, (_, size) in collectives.items()}
        for name, (_, _, collectives, _) in found.items()
    }
    parts = {"data": 1, "data, ZeRO": x * y, "data x model": y, "data x model, ZeRO": x * y}
    assert states == {n: 2 * (MATRICES // k + VECTORS) + 4 for n, k in parts.items()}
    over_both = MATRICES + MATRICES // x
    assert sent == {
        "data": {"all-reduce": MATRICES + VECTORS + VALUE},
        "data, ZeRO": {
            "reduce-scatter": over_both,
            "all-gather": over_both,
            "all-reduce": VECTORS + VALUE,
        },
        "data x model": {"all-reduce": MATRICES // y + VECTORS + ACTIVATIONS + VALUE},
        "data x model, ZeRO": {
            "reduce-scatter": MATRICES // y,
            "all-gather": MATRICES // y,
            "all-reduce": VECTORS + ACTIVATIONS + VALUE,
        },
    }
    for way in ("data", "data x model"):
        (_, plain, *_), (_, zero, *_) = found[way], found[f"{way}, ZeRO"]
        assert zero - plain < 4 * 4 * WIDTH**2  # temporary bytes: less than a parameter's
    if mesh.startswith("v5e"):  # between the start of a gather and its end lie products
        *_, pairs = found["data, ZeRO"]
        assert pairs
        assert all(pairs)


def default_mesh():
    """As recent versions of JAX make it; older ones make `Auto` axes."""
    return jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))


def on(*spec):
    return NamedSharding(default_mesh(), P(*spec))


def small():
    rng = np.random.default_rng(0)
    p = {"b": rng.normal(size=4), "w": rng.normal(size=(16, 4))}
    batch = rng.normal(size=(16, 16)), rng.normal(size=(16, 4))
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (p, batch))


def loss(p, x, y):
    return jnp.mean((jnp.tanh(x @ p["w"] + p["b"]) - y) ** 2)


QUICK = "adamw", "muon", "lbfgs"
# A step of the others takes single examples.
STEPS = sorted({*QUICK, *(n for n in THIRDS[2] if not CATALOGUE[n].examples)})

# Steps of full size up the loss magnify rounding, on `Auto` axes as much.
MAGNIFIED = {"scale_by_fira"}
FINITE_ONLY = CHOSEN_BY_ROUNDING | MAGNIFIED


@pytest.mark.usefixtures("host_memory_of_offload")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "zero"),
    [
        *((name, None) for name in QUICK),
        *(
            (name, "data") if name in QUICK else pytest.param(name, "data", marks=pytest.mark.slow)
            for name in STEPS
        ),
    ],
)
def test_a_step_on_the_axes_of_make_mesh_is_that_on_one_device(name, zero):
    """Also where JAX would ask how a result should lie: in products, scatters, decompositions."""
    tx = CATALOGUE[name].make()
    p, batch = small()
    alone = gradtx.make_step(loss, tx, donate=False)
    q, state = p, alone.init(p)
    for _ in range(2):
        q, state, _ = alone(q, state, *batch)
    placed = jax.device_put(p, {"b": on(), "w": on("data")})
    found = gradtx.state_sharding(tx, placed, zero=zero, min_size=16)
    sharded = gradtx.make_step(loss, tx, sharding=found)
    state, data = sharded.init(placed), jax.device_put(batch, on("data"))
    for _ in range(2):
        placed, state, _ = sharded(placed, state, *data)
    assert all_lie_on((placed, state), (found.params, found.state))
    if name in FINITE_ONLY:
        chex.assert_tree_all_finite(placed)
    else:
        chex.assert_trees_all_close(placed, q, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
def test_rows_that_catch_up_on_the_axes_of_make_mesh():
    tx = gradtx.exact_rows(gradtx.adam(0.1))
    table, ids = jnp.linspace(-1.0, 1.0, 64).reshape(32, 2), jnp.array([[3, 30], [0, 3], [30, 1]])

    def run(table, ids):
        step = gradtx.make_step(lambda t, i: jnp.sum(gradtx.sparse.take(t, i) ** 2), tx)
        state = step.init(table)
        for i in ids:
            table, state, _ = step(table, state, i)
        return gradtx.sparse.catch_up(tx, table, state)[0]

    want = run(table.copy(), ids)
    chex.assert_trees_all_close(run(*jax.device_put((table.copy(), ids), on())), want, rtol=1e-6)


@pytest.mark.slow
def test_without_compiling_an_error_names_the_cure():
    p, (x, y) = small()
    p, tx = jax.device_put(p, {"b": on(), "w": on("data")}), gradtx.muon(0.1)
    with pytest.raises(Exception, match="out_sharding") as caught:
        gradtx.minimize(loss, tx, p, tx.init(p), x, y)
    assert "AxisType.Auto" in "".join(caught.value.__notes__)


def test_a_divided_look_up_names_the_cure():
    table, ids = jax.device_put((jnp.ones((8, 2)), jnp.arange(8)), on("data"))
    with pytest.raises(ValueError, match="take: .* divided over Explicit axes.*AxisType.Auto"):
        jax.jit(gradtx.sparse.take)(table, ids)


@pytest.mark.slow
@pytest.mark.parametrize("check_vma", [False, True])
@pytest.mark.parametrize(
    "tx",
    [
        gradtx.chain(gradtx.aggregate("data"), gradtx.adam(0.1)),
        gradtx.chain(gradtx.aggregate_int8("data"), gradtx.adam(0.1)),
        gradtx.diloco(gradtx.adam(0.1), gradtx.sgd(0.7), 2, "data"),
        gradtx.local_sgd(gradtx.adam(0.1), 2, "data"),
    ],
    ids=["aggregate", "aggregate_int8", "diloco", "local_sgd"],
)
def test_programs_for_each_device_on_the_axes_of_make_mesh(tx, check_vma):
    """As docs/distributed.md writes them, with parameters and a state for each device."""
    p, batch = small()

    def device_step(p, state, batch):
        p, state = jax.tree.map(lambda x: x[0], (p, state))
        updates, state = tx.update(jax.grad(loss)(p, *batch), state, p)
        return jax.tree.map(lambda x: x[None], (gradtx.apply_updates(p, updates), state))

    def run(step, carry, batch):
        for _ in range(2):
            carry = step(*carry, batch)
        return carry[0]

    each = jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * 8), (p, tx.init(p)))
    split = jax.tree.map(lambda x: x.reshape(8, -1, *x.shape[1:]), batch)
    mapped = jax.vmap(
        lambda *a: jax.tree.map(
            lambda x: x[0], device_step(*jax.tree.map(lambda x: x[None], a[:2]), a[2])
        ),
        axis_name="data",
    )
    specs = {"in_specs": P("data"), "out_specs": P("data"), "check_vma": check_vma}
    sharded = jax.jit(jax.shard_map(device_step, mesh=default_mesh(), **specs))
    got = run(sharded, *jax.device_put((each, batch), on("data")))
    chex.assert_trees_all_close(got, run(jax.jit(mapped), each, split), rtol=1e-5, atol=1e-5)


def own_builder():
    """A user's builder, of which only what it returns says that it aggregates."""

    @gradtx.transformation
    def meeting():
        return gradtx.chain(gradtx.aggregate("data"), gradtx.sgd(0.1))

    return meeting()


@pytest.mark.slow
@pytest.mark.parametrize("check_vma", [False, True])
@pytest.mark.parametrize(
    ("tx", "alone"),
    [
        (
            gradtx.chain(
                gradtx.aggregate("data"), gradtx.clip_by_global_norm(0.1), gradtx.adamw(0.1)
            ),
            gradtx.chain(gradtx.clip_by_global_norm(0.1), gradtx.adamw(0.1)),
        ),
        (own_builder(), gradtx.sgd(0.1)),
    ],
    ids=["chain", "own builder"],
)
def test_minimize_takes_each_devices_own_gradient(tx, alone, check_vma):
    """Replicated parameters, of which `check_vma` has JAX sum the gradients."""
    p, batch = small()

    def device_step(p, state, *batch):
        p, state, (value, aux) = gradtx.minimize(
            lambda p, *batch: (loss(p, *batch), p["b"]), tx, p, state, *batch, has_aux=True
        )
        return p, state, jax.lax.pmean((value, aux), "data")

    specs = {
        "in_specs": (P(), P(), P("data"), P("data")),
        "out_specs": P(),
        "check_vma": check_vma,
    }
    step = jax.jit(jax.shard_map(device_step, mesh=default_mesh(), **specs))
    got, want = (jax.device_put(p, on()), tx.init(p)), (p, alone.init(p))
    shared = jax.device_put(batch, on("data"))
    for _ in range(3):
        *got, (value, _) = step(*got, *shared)
        *want, want_value = gradtx.minimize(loss, alone, *want, *batch)
        np.testing.assert_allclose(value, want_value, rtol=1e-5)
    chex.assert_trees_all_close(got[0], want[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", ["the loss", "the gradient"])
def test_what_is_reduced_already_is_refused_with_advice(way):
    p, batch = small()
    tx = gradtx.chain(gradtx.aggregate("data"), gradtx.sgd(0.1))

    def device_step(p, *batch):
        if way == "the loss":

            def mean(p, *batch):
                return jax.lax.pmean(loss(p, *batch), "data")

            return gradtx.minimize(mean, tx, p, tx.init(p), *batch)[0]
        _, grads = gradtx.compute_gradients(loss, p, *batch)
        return gradtx.apply_gradients(tx, grads, p, tx.init(p))[0]

    specs = {"in_specs": (P(), P("data"), P("data")), "out_specs": P()}
    words = {"the loss": "return each device's own loss", "the gradient": "step with minimize"}
    with pytest.raises(ValueError, match=words[way]):
        jax.jit(jax.shard_map(device_step, mesh=default_mesh(), **specs))(
            jax.device_put(p, on()), *jax.device_put(batch, on("data"))
        )
