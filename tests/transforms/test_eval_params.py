"""Averages of the parameters, wherever they are kept: in every wrapper, codec, mesh and file."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from tests.catalogue import CATALOGUE
from tests.distributed.meshes import mesh, on
from tests.test_contracts import avals, grads, params, step, take, two

DECAY, STEPS = 0.5, 4

# What is not one transformation around another: nothing of it could keep an average.
OTHERS = {"chain", "named_chain", "lbfgs", "monitor", "sizes_and_directions"}
# It refuses an average: its map is that of a step with one rate for all entries.
OTHERS |= {"proximal"}
# Those that run on several devices: tests/distributed.
COLLECTIVE = {"local_sgd", "diloco", "sparse_loco", "streaming_diloco"}
WRAPPERS = sorted(
    name
    for name, entry in CATALOGUE.items()
    if entry.made.children and name not in OTHERS | COLLECTIVE
)
# Where the average that is kept inside is not that of the parameters after each step: the step is
# changed after the average has seen it, it is taken once in two calls, a first step leads to where
# the second gradient is, or another average is meant.
CHANGED = {"cautious", "extragradient", "hyperball", "mechanize", "schedule_free", "trust_gate"}
CHANGED |= {"asam", "gsam", "layerwise_rate_decay", "sam"}
IN_WINDOWS = {"accumulate", "multi_steps", "conditionally_mask", "differentially_private"}
OF_ITS_OWN = {"lookahead", "conditionally_transform"}


def averaging(name):
    """A wrapper of the catalogue around a transformation that keeps an average too."""
    tx = CATALOGUE[name].make()
    arguments = tx.declaration.arguments
    at, inner = next((n, x) for n, x in arguments.items() if holds_transformation(x))
    if isinstance(inner, dict):
        new = {k: with_average(x) for k, x in inner.items()}
    else:
        new = with_average(inner)
    return gradtx.replace(tx, **{at: new})


def holds_transformation(x):
    values = x.values() if isinstance(x, dict) else [x]
    return all(hasattr(x, "update") and hasattr(x, "init") for x in values)


def with_average(tx):
    return gradtx.chain(tx, gradtx.ema_params(DECAY))


def trained(tx, start=None, steps=STEPS):
    """The parameters and the state after some steps, and the average of the parameters."""
    p = params() if start is None else start
    state, gs = tx.init(p), grads(steps)
    average = jax.tree.map(np.float64, p)
    for i in range(steps):
        (p, state), _ = step(tx, (p, state), take(gs, i))
        average = jax.tree.map(lambda a, x: DECAY * a + (1 - DECAY) * np.float64(x), average, p)
    return p, state, average


def same(got, want, tolerance=1e-5):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), got, want
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", WRAPPERS)
def test_the_average_inside_every_wrapper(name):
    tx = averaging(name)
    p, state, average = trained(tx)
    found = gradtx.eval_params(tx, state, p)
    assert avals(found) == avals(p)
    compiled = jax.jit(lambda state, p: gradtx.eval_params(tx, state, p))(state, p)
    same(compiled, found, 1e-6)
    if name not in CHANGED | IN_WINDOWS | OF_ITS_OWN:
        seen = {"masked": {"w"}}.get(name, {"b", "w"})
        same(found, {k: average[k] if k in seen else p[k] for k in p})
    if name != "lookahead":  # the fast and the slow parameters have just met
        assert any(np.any(np.asarray(found[k]) != np.asarray(p[k])) for k in p)


AVERAGES = {
    "ema_params": lambda: with_average(gradtx.sgd(0.1)),
    "swa_params": lambda: gradtx.chain(gradtx.sgd(0.1), gradtx.swa_params()),
    "ema_nesterov": lambda: gradtx.chain(gradtx.sgd(0.1), gradtx.ema_nesterov(0.5, 0.8)),
    "primal_averaging": lambda: gradtx.chain(gradtx.sgd(0.1), gradtx.primal_averaging(0.5, 0.8)),
    "schedule_free": lambda: gradtx.schedule_free_sgd(0.1),
    "lookahead": lambda: gradtx.lookahead(gradtx.sgd(0.1), 2, 0.5),
    "splus": lambda: gradtx.splus(0.1),
}
KEPT = {
    "bf16+8": lambda tx: gradtx.store(tx, "bf16+8", min_size=1),
    "offload": lambda tx: gradtx.offload(tx, min_size=1),
    "flatten": gradtx.flatten,
    "accumulate": lambda tx: gradtx.accumulate(tx, 1),
    "partition": lambda tx: gradtx.partition({"x": tx, "y": tx}, [("b", "x"), ("*", "y")]),
    "named_chain": lambda tx: gradtx.named_chain(("clip", gradtx.clip(9.0)), ("inner", tx)),
    "inject": lambda tx: gradtx.inject_hyperparams(lambda: tx)(),
}


@pytest.mark.slow
@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("name", AVERAGES)
def test_every_average_however_it_is_kept(name, kept):
    """The same as without the wrapper, which takes the same steps."""
    if (name, kept) == ("splus", "flatten"):
        return  # a vector has no matrices
    tx = AVERAGES[name]()
    p, state, _ = trained(tx)
    wrapped = KEPT[kept](tx)
    q, other, _ = trained(wrapped)
    found = gradtx.eval_params(wrapped, other, q)
    assert avals(found) == avals(p)
    assert jax.tree.map(lambda x: x.sharding, found) == jax.tree.map(lambda x: x.sharding, q)
    same(found, gradtx.eval_params(tx, state, p), 2e-4 if kept == "bf16+8" else 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["int8", "bf16", "f16", "int4"])
def test_averages_in_a_codec_are_decoded(codec):
    tx = gradtx.store(gradtx.ema_params(DECAY), codec, min_size=1)
    p = {"w": jnp.linspace(-1, 1, 512)}
    found = gradtx.eval_params(tx, tx.init(p), p)
    np.testing.assert_allclose(found["w"], p["w"], atol=0.2)
    np.testing.assert_array_equal(found["w"], gradtx.get_slot(tx.init(p), "average", "w"))


def test_complex_parts_are_joined():
    tx = gradtx.split_real_and_imaginary(with_average(gradtx.sgd(0.1)))
    p = {"z": jnp.array([1 + 2j, 3 - 1j]), "x": jnp.ones(2)}
    g = {"z": jnp.array([1j, 1 + 1j]), "x": jnp.ones(2)}
    updates, state = tx.update(g, tx.init(p), p)
    found = gradtx.eval_params(tx, state, gradtx.apply_updates(p, updates))
    np.testing.assert_allclose(found["z"], p["z"] - 0.05 * g["z"], rtol=1e-6)
    np.testing.assert_allclose(found["x"], 0.95)


def test_packed_parameters():
    tx = with_average(gradtx.sgd(0.1))
    packed = gradtx.pack(params())
    _, state = tx.update(packed, tx.init(packed), packed)
    found = gradtx.eval_params(tx, state, packed)
    assert jax.tree.structure(found) == jax.tree.structure(packed)
    want = jax.tree.map(lambda x: 0.95 * x, params())
    same(gradtx.unpack(found), want)
    same(gradtx.eval_params(tx, state, params()), want)


@pytest.mark.slow
@pytest.mark.parametrize("codec", [None, "int8"])
def test_on_a_mesh_the_average_lies_where_the_parameters_do(codec):
    """With ZeRO the average is divided, and padded where it does not divide."""
    m = mesh(data=8)
    tx = with_average(gradtx.sgd(0.1))
    tx = tx if codec is None else gradtx.store(tx, codec, min_size=1)
    start = {"w": jnp.linspace(-1, 1, 8 * 256).reshape(8, 256), "odd": jnp.linspace(-1, 1, 510)}
    sharding = gradtx.state_sharding(tx, start, on(m), zero="data", min_size=16)

    def loss(p, x):
        return x * sum(jnp.sum(v**2) for v in jax.tree.leaves(p))

    step = gradtx.make_step(loss, tx, sharding=sharding)
    p = jax.device_put(jax.tree.map(jnp.copy, start), sharding.params)
    state = step.init(p)
    p, state, _ = step(p, state, jnp.float32(1.0))
    found = gradtx.eval_params(tx, state, p)
    assert jax.tree.map(lambda x: x.sharding, found) == jax.tree.map(lambda x: x.sharding, p)
    tolerance = 1e-6 if codec is None else 0.02
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, 0.9 * b, atol=tolerance), found, start)


@pytest.mark.quick(1)
@pytest.mark.parametrize("codec", [None, "int8"])
def test_from_a_file(codec, tmp_path):
    tx = with_average(gradtx.sgd(0.1))
    tx = tx if codec is None else gradtx.store(tx, codec, min_size=1)
    p, state, _ = trained(tx)
    gradtx.save_checkpoint(tmp_path / "run.npz", p, state, tx)
    back = gradtx.load_checkpoint(tmp_path / "run.npz")
    found = gradtx.eval_params(back.tx, back.state, back.params)
    jax.tree.map(np.testing.assert_array_equal, found, gradtx.eval_params(tx, state, p))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(COLLECTIVE))
def test_after_what_synchronizes_each_device_has_the_average_of_its_parameters(name):
    """Each of four devices has gradients of its own; synchronizing moves the parameters too."""
    tx = gradtx.chain(CATALOGUE[name].make(), gradtx.ema_params(DECAY))

    def run(k):
        p = params()
        state, average = tx.init(p), p
        for i in range(STEPS):
            g = jax.tree.map(lambda x, i=i: k * x[i], grads(STEPS))
            updates, state = tx.update(g, state, p)
            p = gradtx.apply_updates(p, updates)
            average = jax.tree.map(lambda a, x: DECAY * a + (1 - DECAY) * x, average, p)
        return gradtx.eval_params(tx, state, p), average, p

    found, average, p = jax.jit(jax.vmap(run, axis_name="data"))(jnp.arange(1.0, 5.0))
    assert avals(found) == avals(p)
    same(found, average)
    assert np.any(np.asarray(found["w"]) != np.asarray(p["w"]))


HOSTS = {
    "chain": lambda tx: optax.chain(optax.clip(9.0), tx),
    "named_chain": lambda tx: optax.named_chain(("clip", optax.clip(9.0)), ("inner", tx)),
    "MultiSteps": lambda tx: optax.MultiSteps(tx, 1).gradient_transformation(),
    "masked": lambda tx: optax.masked(tx, lambda p: jax.tree.map(lambda _: True, p)),
    "partition": lambda tx: optax.partition(
        {"x": tx, "y": tx}, lambda p: {name: "x" if name == "b" else "y" for name in p}
    ),
    "apply_if_finite": lambda tx: optax.apply_if_finite(tx, 2),
    "inject_hyperparams": lambda tx: optax.inject_hyperparams(lambda rate: tx)(0.1),
    "flatten": optax.flatten,
    "within ours": lambda tx: gradtx.accumulate(optax.chain(optax.clip(9.0), tx), 1),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("host", HOSTS)
def test_inside_the_wrappers_of_optax(host):
    tx = HOSTS[host](with_average(gradtx.sgd(0.1)))
    p, gs = two(), grads(STEPS, of=two)
    state, average = tx.init(p), p
    for i in range(STEPS):
        updates, state = tx.update(take(gs, i), state, p)
        p = optax.apply_updates(p, updates)
        average = jax.tree.map(lambda a, x: DECAY * a + (1 - DECAY) * x, average, p)
    found = gradtx.eval_params(tx, state, p)
    assert avals(found) == avals(p)
    same(found, average)


def test_a_transformation_of_optax_without_averages_returns_the_parameters():
    tx, p = optax.adamw(0.1), two()
    found = gradtx.eval_params(tx, tx.init(p), p)
    assert all(found[name] is x for name, x in p.items())


@pytest.mark.slow
def test_an_equinox_model_becomes_the_averaged_model():
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(2, 1, 3, 1, key=jax.random.key(0))  # its activations are leaves too
    tx = with_average(gradtx.sgd(1.0))
    held = eqx.filter(model, eqx.is_inexact_array)
    _, state = tx.update(held, tx.init(held), held)
    for given in (model, held):
        found = gradtx.eval_params(tx, state, given)
        assert jax.tree.structure(found) == jax.tree.structure(given)
        np.testing.assert_allclose(found.layers[0].weight, 0.5 * model.layers[0].weight, rtol=1e-6)
    assert gradtx.eval_params(tx, state, model)(jnp.ones(2)).shape == (1,)


def test_other_parameters_are_refused():
    tx = with_average(gradtx.sgd(0.1))
    state = tx.init(params())
    with pytest.raises(ValueError, match="average at 'w', where the parameters have no leaf"):
        gradtx.eval_params(tx, state, {"b": params()["b"]})
    with pytest.raises(ValueError, match=r"'w' has the shape \(3, 2\), and the parameter \(2, 3\)"):
        gradtx.eval_params(tx, state, {**params(), "w": jnp.ones((2, 3))})
    further = {**params(), "seen": jnp.zeros(1)}  # such as statistics that are not trained
    assert gradtx.eval_params(tx, state, further)["seen"] is further["seen"]
    part = gradtx.masked(gradtx.flatten(tx), "w")
    with pytest.raises(ValueError, match="ema_params around flatten"):
        gradtx.eval_params(part, part.init(params()), params())
