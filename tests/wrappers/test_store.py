"""Slots in codecs under any transformation: what is stored, saved, placed, and what goes wrong."""

import functools
import json
import pickle
import warnings
import zlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.inspection.slots import map_slots
from gradtx.kernels import cutting, stored_step
from gradtx.programs import interpreter
from gradtx.storage import FORMATS, Encoded, is_encoded
from gradtx.types import nonnegative_fields
from tests.catalogue import CATALOGUE
from tests.distributed.meshes import P, mesh, on
from tests.engine.test_kernels import on as on_chip
from tests.programs import distinct_equations
from tests.test_contracts import (
    STEPS,
    WHOLE,
    avals,
    compiled,
    grads as contract_grads,
    params,
    put,
    runner,
    some,
    step,
    stepper,
    take,
    takes_examples,
    two,
)


def tree():
    rng = np.random.default_rng(0)
    shapes = {"b": (256,), "embed": (32, 256), "w": (256, 128)}
    return {n: jnp.asarray(rng.normal(size=s), jnp.float32) for n, s in shapes.items()}


def grads(k=0):
    rng = np.random.default_rng(k + 1)
    return jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape), jnp.float32), tree())


def kept(state):
    """What each leaf of each slot is kept as."""
    leaves = jax.tree_util.tree_leaves_with_path(state, is_leaf=is_encoded)
    return {jax.tree_util.keystr(p): x.codec.name for p, x in leaves if is_encoded(x)}


def run(tx, steps, state=None, p=None):
    p = tree() if p is None else p
    state = tx.init(p) if state is None else state
    update = jax.jit(tx.update)
    for k in steps:
        updates, state = update(grads(k), state, p)
        p = gradtx.apply_updates(p, updates)
    return p, state


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("built", "value"),
    [
        (lambda x: gradtx.trust_gate(gradtx.scale_by_sign(), floor=x), 0.5),
        (lambda x: gradtx.lookahead(gradtx.sgd(0.1), 2, x), 0.5),
        (lambda x: gradtx.apply_every(x), 2),
    ],
)
def test_a_pair_made_by_hand_takes_stored_slots_with_a_schedule_too(built, value):
    constant, scheduled = (gradtx.store(built(x)) for x in (value, lambda count: value))
    state = scheduled.init(tree())
    assert set(kept(state).values()) == {"int8"}
    params, state = run(scheduled, range(3), state)
    same(params, run(constant, range(3))[0])
    assert set(kept(state).values()) == {"int8"}


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("around", [lambda tx: tx, gradtx.stochastic_rounding])
def test_a_step_has_kernels_only_where_they_are_wanted(around, kernel, monkeypatch):
    """Also where the transformation inside has a way to take a whole step."""
    made, p = on_chip(stored_step.TPU, monkeypatch), jnp.ones((256, 32))
    tx = gradtx.store(around(gradtx.sgd(0.1, momentum=0.9)), kernel=kernel)
    jax.eval_shape(lambda p, s: gradtx.apply_gradients(tx, p, p, s), p, tx.init(p))
    assert max(made, default=0) == kernel


@pytest.mark.slow
def test_what_is_stored():
    """Small leaves and embeddings are not, and `describe` says which."""
    tx = gradtx.store(gradtx.adamw(1e-3))
    state = tx.init(tree())
    assert kept(state) == {"[0].mu['w']": "int8", "[0].nu['w']": "int8"}
    assert state[0].mu["w"].codec.signed
    assert not state[0].nu["w"].codec.signed
    about = gradtx.describe(tx, tree())
    assert about.kept_whole == ("mu/b", "mu/embed", "nu/b", "nu/embed")
    assert about.slots[0].dtypes == ("float32", "int8")
    assert about.slots[0].shapes == ((256,), (32, 256), (256, 128))
    assert about.state_bytes == sum(x.nbytes for x in jax.tree.leaves(state))
    assert "not in a codec: mu/b" in str(about)


@pytest.mark.parametrize(
    ("codecs", "want"),
    [
        ({"mu": "int8"}, {"[0].mu['w']": "int8"}),
        ({"nu": None, "*": "int4"}, {"[0].mu['w']": "int4"}),
        ({"0.nu": "f16"}, {"[0].nu['w']": "f16"}),
        ({"mu": {"w": "bf16"}}, {"[0].mu['w']": "bf16"}),
        ({"mu": {"w": None, "*": "bf16"}}, {}),
    ],
)
def test_slots_and_leaves_are_chosen_by_name(codecs, want):
    tx = gradtx.store(gradtx.adamw(1e-3), codecs)
    assert kept(tx.init(tree())) == want
    assert gradtx.from_config(json.loads(json.dumps(gradtx.to_config(tx)))) == tx
    assert pickle.loads(pickle.dumps(tx)) == tx


@pytest.mark.slow
def test_options_are_data():
    options = gradtx.Codec("int8", block=64, axis=-1, signed=True, rounding="stochastic")
    tx = gradtx.store(gradtx.adamw(1e-3), {"nu": options}, min_size=1, exempt=())
    slot = tx.init(tree())[0].nu["embed"]
    assert slot.codec == options._replace(axis=1)
    assert slot.parts["scale"].shape == (32, 4)
    assert gradtx.from_config(json.loads(json.dumps(gradtx.to_config(tx)))) == tx
    assert gradtx.replace(tx, min_size=99999).init(tree())[0].nu["w"].dtype == jnp.float32


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda tx: gradtx.store(tx, {"count": "int8"}), "'count' is a counter, and only slots"),
        (lambda tx: gradtx.store(tx, {"nux": "int8"}), "no slot 'nux'; the slots are 0.mu, 0.nu"),
        (lambda tx: gradtx.store(tx, {"nu": {"head": "int8"}}), "'head' matches no leaf of 'nu'"),
        (lambda tx: gradtx.store(tx, exempt="head"), "'head' in exempt matches no leaf"),
        (lambda tx: gradtx.store(tx, gradtx.Codec("int8", axis=2)), "0.mu/w: .* has no axis 2"),
    ],
)
def test_what_is_not_there_is_refused_by_init(make, message):
    with pytest.raises(ValueError, match=message):
        make(gradtx.adamw(1e-3)).init(tree())


@pytest.mark.slow
def test_a_state_in_another_codec():
    """It is refused with the names, and converted when asked."""
    tx, other = (gradtx.store(gradtx.adamw(1e-3), c) for c in ("int8", "int4"))
    _, state = run(tx, range(2))
    with pytest.raises(ValueError, match="kept as int8, and this keeps int4: in_storage_of"):
        other.update(grads(), state, tree())
    converted = gradtx.in_storage_of(other, tree(), state)
    assert set(kept(converted).values()) == {"int4"}
    run(other, range(1), converted)
    plain = gradtx.in_storage_of(gradtx.adamw(1e-3), tree(), state)
    assert kept(plain) == {}
    np.testing.assert_array_equal(plain[0].mu["w"], state[0].mu["w"].load())
    with pytest.raises(ValueError, match="not one of this transformation"):
        gradtx.in_storage_of(gradtx.sgd(0.1, momentum=0.9), tree(), state)


def test_leaves_of_one_name_are_told_apart_by_their_paths():
    p = {"body": {"w": jnp.zeros((64, 64))}, "head": {"w": jnp.zeros((64, 64))}}
    tx = gradtx.store(gradtx.adamw(1e-3), {"mu": {"head": "int8", "body/w": None}})
    assert kept(tx.init(p)) == {"[0].mu['head']['w']": "int8"}


@pytest.mark.slow
def test_every_leaf_of_every_slot_has_a_key_of_its_own():
    tx = gradtx.store(gradtx.adamw(1e-3), "int4_dithered", min_size=1, exempt=())
    leaves = jax.tree.leaves(tx.init(tree()), is_leaf=is_encoded)
    keys = {tuple(x.key.tolist()) for x in leaves if is_encoded(x)}
    assert len(keys) == 6


def test_keys_are_numbered_from_the_seed():
    """And 0 is folded into each when its slot is first written."""
    tx = gradtx.store(gradtx.trace(0.9), "int4_dithered", min_size=1, seed=3)
    state = jax.jit(tx.init)({"a": jnp.ones(8), "b": jnp.ones(8)})
    for i, name in enumerate("ab"):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(3), i), 0)
        np.testing.assert_array_equal(state.trace[name].key, jax.random.key_data(key))


def test_a_leaf_of_one_entry_may_be_kept_in_a_codec_and_one_of_none_is_not():
    tx = gradtx.store(gradtx.trace(0.9), "bf16", min_size=0)
    found = jax.eval_shape(
        tx.init, {"none": jnp.ones((0, 3)), "one": jnp.ones(1), "s": jnp.ones(())}
    )
    assert kept(found) == {".trace['one']": "bf16"}


def test_a_state_may_be_in_fewer_codecs_and_in_no_other():
    both, p = {"mu": "int8", "nu": "bf16"}, {"w": jnp.ones(8)}
    inner = gradtx.scale_by_adam()
    several = gradtx.store(inner, both, min_size=1)
    one = gradtx.store(inner, {"mu": "int8"}, min_size=1)
    states = [jax.eval_shape(tx.init, p) for tx in (one, several)]
    jax.eval_shape(several.update, p, states[0], p)
    with pytest.raises(ValueError, match="the state is kept as bf16, and this keeps int8"):
        jax.eval_shape(one.update, p, states[1], p)


@pytest.mark.quick(1)
@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("name", ["adam", "scale_by_adam", "schedule_free_adamw"])
def test_a_step_is_a_kernel_unless_that_is_declined(name, kernel, monkeypatch):
    """Of a chain, of a rule alone, and of what has a whole step of its own."""
    made, p = on_chip(stored_step.TPU, monkeypatch), jnp.ones((256, 32))
    tx = gradtx.store(CATALOGUE[name].make(), kernel=kernel)
    state = jax.eval_shape(tx.init, p)
    for taken in (tx.update, lambda g, s, p: gradtx.apply_gradients(tx, g, p, s)):
        made.clear()
        jax.eval_shape(taken, p, state, p)
        assert set(made) == {int(kernel)}


@pytest.mark.slow
def test_a_state_out_of_codecs_has_the_types_of_its_slots():
    tx = gradtx.adam(1e-3, mu_dtype=jnp.bfloat16)
    state = gradtx.store(tx, "int8").init(tree())
    found, want = gradtx.in_storage_of(tx, tree(), state), tx.init(tree())
    assert jax.tree.map(lambda x: x.dtype, found) == jax.tree.map(lambda x: x.dtype, want)


@pytest.mark.slow
def test_slots_are_read_and_written_decoded():
    _, state = run(gradtx.store(gradtx.adamw(1e-3)), range(1))
    mu = gradtx.get_slot(state, "mu", "w")
    np.testing.assert_array_equal(mu, state[0].mu["w"].load())
    new = gradtx.set_slot(state, "mu", jnp.full((256, 128), 0.5), "w")
    assert isinstance(new[0].mu["w"], Encoded)
    np.testing.assert_array_equal(gradtx.get_slot(new, "mu", "w"), 0.5)
    same(new[0].nu, state[0].nu)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["int8", "int4_dithered"])
def test_a_saved_run_goes_on_with_the_same_bits(name, tmp_path):
    tx = gradtx.store(gradtx.adamw(1e-3), name)
    p, state = run(tx, range(2))
    gradtx.save_checkpoint(tmp_path / "run.npz", params=p, state=state, tx=tx, step=2)
    found = gradtx.load_checkpoint(tmp_path / "run.npz", tx, p)
    same(found.state, state)
    same(run(tx, range(2, 4), found.state, found.params), run(tx, range(2, 4), state, p))
    flat = gradtx.state_dict(state)
    other = gradtx.store(gradtx.adamw(1e-3), "bf16")
    with pytest.raises(ValueError, match=rf"0/mu/w, {name}\[256, 128\] before, bf16"):
        gradtx.load_state_dict(other, p, flat)
    with pytest.warns(UserWarning, match="before, bf16"):
        loaded = gradtx.load_state_dict(other, p, flat, strict=False)
    want = jnp.asarray(gradtx.get_slot(state, "mu", "w"), jnp.bfloat16)
    np.testing.assert_array_equal(gradtx.get_slot(loaded, "mu", "w"), want.astype(jnp.float32))


@pytest.mark.parametrize("key", ["0/mu/w/codes", "0/mu/w/scale"])
def test_a_saved_state_whose_codes_are_damaged_is_refused(key):
    tx = gradtx.store(gradtx.adamw(1e-3))
    flat = gradtx.state_dict(tx.init(tree()))
    without = {k: x for k, x in flat.items() if k != key}
    with pytest.raises(ValueError, match=f"has no '{key}', a part of an encoded slot"):
        gradtx.load_state_dict(tx, tree(), without)
    with pytest.raises(ValueError, match="where its codec has"):
        gradtx.load_state_dict(tx, tree(), {**flat, key: flat[key][:, :1]})


slow = pytest.mark.slow
LAYOUTS = {
    "along blocks": ({"b": P(), "embed": P("d"), "w": P("d")}, None),
    "across": ({"b": P(), "embed": P(None, "d"), "w": P(None, "d")}, None),
    "zero": ({"b": P(), "embed": P(), "w": P()}, "d"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "name"),
    [
        pytest.param(layout, name, marks=[] if name == "int8" and layout == "zero" else slow)
        for layout in LAYOUTS
        for name in ("int8", "int4_dithered")
    ],
)
def test_eight_devices_have_the_codes_of_one(layout, name):
    specs, zero = LAYOUTS[layout]
    m = mesh(d=8)
    codec = gradtx.Codec(name, block=32)
    tx = gradtx.store(gradtx.adamw(1e-3), codec, min_size=1, exempt=())
    places = {n: on(m, *spec) for n, spec in specs.items()}
    p = jax.device_put(tree(), places)
    plan = gradtx.state_sharding(tx, p, zero=zero, min_size=1)
    update = jax.jit(tx.update, out_shardings=(None, plan.state))
    state = plan.init(tx, p)
    for k in range(2):
        _, state = update(jax.device_put(grads(k), places), state, p)
    want = tx.init(tree())
    for k in range(2):
        _, want = jax.jit(tx.update)(grads(k), want, tree())
    same(jax.device_get(state), jax.device_get(want))
    shard = state[0].mu["w"].parts["scale"].addressable_shards[0].data
    assert shard.size * 8 == state[0].mu["w"].parts["scale"].size


def test_blocks_never_straddle_shards():
    """An axis that would be cut within blocks is not divided, and the report says so."""
    tx = gradtx.store(gradtx.adamw(1e-3))
    plan = gradtx.state_sharding(tx, {"w": jnp.zeros((256, 128))}, on(mesh(d=8), "d"))
    notes = {leaf.path: (leaf.spec, leaf.note) for leaf in plan.leaves}
    assert notes["0/mu/w/codes"][0] == P()
    assert "would divide blocks" in notes["0/mu/w/codes"][1]


@pytest.mark.slow
@some("adamw", "lion", "muon", of=WHOLE)
def test_the_whole_catalogue_in_int8(name):
    """Steps keep the state's form, parameters stay finite, and a saved run goes on to the bit."""
    made = CATALOGUE[name].make()
    tx, p, gs = gradtx.store(made, min_size=1), two(name), contract_grads(2, name, of=two)
    if takes_examples(made):
        gs = jax.tree.map(lambda g: g[:, None], gs)
    if name == "offload":
        with pytest.raises(ValueError, match=r"offload\(store\(tx\)\) keeps codes there"):
            tx.init(p)
        tx = gradtx.offload(gradtx.store(gradtx.adam(1e-2), min_size=1), min_size=1)
    carry = p, tx.init(p)
    form, taken = avals(carry), jax.jit(functools.partial(step, tx))
    carry, _ = taken(carry, take(gs, 0))
    saved = carry[0], gradtx.load_state_dict(tx, p, gradtx.state_dict(carry[1]))
    (carry, _), (again, _) = taken(carry, take(gs, 1)), taken(saved, take(gs, 1))
    same(jax.tree.map(numbers, carry), jax.tree.map(numbers, again))
    assert avals(carry) == form
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(carry[0]))


def numbers(x):
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


@pytest.mark.quick(1)
@some("adan", "sm3")
def test_slots_declared_so_are_never_negative(name):
    """Not even where the name is that of a second moment elsewhere."""
    tx, gs = CATALOGUE[name].make(), contract_grads(3, name)
    carry = params(name), tx.init(params(name))
    signs = {}

    def look(holder, slot, found):
        least = min((float(jnp.min(x)) for x in jax.tree.leaves(found) if x.size), default=0)
        signs[slot] = min(signs.get(slot, 0), least)
        assert signs[slot] == 0 or slot.rpartition(".")[2] not in nonnegative_fields(holder), slot
        return found

    for k in range(3):
        carry, _ = stepper(name)(carry, take(gs, k))
        map_slots(carry[1], look)


# Bytes per parameter of Adam's two slots.
MOST = {
    "int8": 2.13,
    "int8_companded": 2.13,
    "f8_expanded": 2.13,
    "int4": 1.07,
    "int4_companded": 1.07,
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", MOST)
def test_bytes_of_two_slots(name):
    p = {"w": jax.ShapeDtypeStruct((4096, 1024), jnp.float32)}
    plain = gradtx.describe(gradtx.adamw(1e-3), p)
    about = gradtx.describe(gradtx.store(gradtx.adamw(1e-3), name), p)
    n = 4096 * 1024
    assert plain.slot_bytes == 8 * n
    assert about.slot_bytes <= MOST[name] * n
    state = gradtx.store(gradtx.adamw(1e-3), name).init({"w": jnp.zeros((512, 128))})
    held = sum(x.nbytes for x in jax.tree.leaves(state[0][1:]))
    assert held <= MOST[name] * 512 * 128


# Known ways to fail.


class Affine(type(FORMATS["int8"])):
    """Even steps from 0 to the largest entry of a block, as of weights: zero is one of them."""

    def encode(self, x, axis, signed, key):
        scale = jnp.max(jnp.abs(x), axis, keepdims=True)
        return {"codes": jnp.round(x / scale * 255).astype(jnp.uint8), "scale": scale}

    def decode(self, parts, axis, signed, key):
        return parts["codes"].astype(jnp.float32) / 255 * parts["scale"]


def wide_steps(codecs, decades=2.5):
    """The largest step of Adam, in learning rates: gradients of sizes up to 1 over some decades,
    then a thousandth of them but for the largest."""
    size = jnp.logspace(-decades, 0, 4096)
    tx = gradtx.store(gradtx.scale_by_adam(eps=1e-12), codecs)
    _, state = tx.update(size, tx.init(jnp.zeros(4096)))
    u, _ = tx.update((1e-3 * size).at[-1].set(1), state)
    return float(jnp.max(jnp.abs(u)))


@slow
def test_an_affine_second_moment_explodes(monkeypatch):
    """Small entries of a block become zero and are divided by; the dynamic map keeps them."""
    monkeypatch.setitem(FORMATS, "affine", Affine())
    one_block = {"nu": gradtx.Codec("affine", block=4096)}
    assert wide_steps(one_block) > 100
    assert wide_steps({"nu": gradtx.Codec("int8", block=4096)}) < 3


@pytest.mark.slow
def test_a_map_with_zero_lets_small_second_moments_vanish():
    """Of 4 bits: the map for signed numbers has a zero, the one for second moments has none."""
    with_zero = {"nu": gradtx.Codec("int4", signed=True, block=4096)}
    assert wide_steps(with_zero) > 100
    assert wide_steps({"nu": gradtx.Codec("int4", block=4096)}) < 3


@pytest.mark.slow
def test_second_moments_with_the_code_of_zero_are_not_divided_by_zero():
    """Below 1.6e-7 of the largest, that of gradients below 4e-4 of it."""
    assert wide_steps({"nu": gradtx.Codec("int8", block=4096)}, decades=5) < 3


def averaged(codec, decay, steps=400):
    """A moving average of ones that starts at 0.5 and its share of entries that stood still."""
    tx, ones = gradtx.store(gradtx.ema(decay, debias=False), codec, min_size=1), jnp.ones(8192)
    state = gradtx.set_slot(tx.init(ones), "ema", (ones / 2).at[::64].set(1))
    first = state

    def body(state, _):
        return tx.update(ones, state)[1], None

    state, _ = jax.lax.scan(body, state, length=steps)
    mean = float(jnp.mean(gradtx.get_slot(state, "ema").reshape(-1, 64)[:, 1:]))
    return mean, gradtx.unmoved(first, state)["ema"]


def test_a_compiled_init_computes_its_codes():
    """XLA would compute them while it compiles: 70 s for two slots of 16.8M entries."""
    tx = gradtx.store(gradtx.adamw(1e-3), "int8")
    p = jax.ShapeDtypeStruct((256, 128), jnp.float32)
    program = jax.jit(tx.init).lower(p).compile().as_text()
    assert " floor(" in program
    assert "u8[256,128]" in program


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["bf16", *(pytest.param(n, marks=slow) for n in ("f8_e4m3", "int4"))]
)
def test_averages_rounded_to_nearest_go_stale(name):
    """bfloat16's 0.999 among them: a step of 0.1 % is less than half a unit in the last place."""
    want = 1 - 0.5 * 0.999**400
    mean, still = averaged(name, 0.999)
    assert abs(mean - 0.5) < 0.07  # as near as the map comes
    assert still > 0.9
    mean, still = averaged(gradtx.Codec(name, rounding="stochastic"), 0.999)
    assert abs(mean - want) < 0.005
    assert still < 0.5


@slow
def test_dither_follows_where_nearest_stands_still():
    want = 1 - 0.5 * 0.99**40
    near, _ = averaged("int4", 0.99, 40)
    dithered, _ = averaged("int4_dithered", 0.99, 40)
    assert abs(near - 0.5) < 0.07
    assert abs(dithered - want) < 0.05


@slow
def test_unsigned_codes_swamp_what_is_small():
    """Without zero, an entry far below its block's largest has at least a 16th of it: its steps
    are small, not large. That is the price of the map, and smaller blocks lower it."""
    nu = jnp.full(256, 1e-6).at[0].set(1)
    for block, most in ((256, 255), (32, 31)):
        slot = Encoded.of(nu, gradtx.Codec("int4", signed=False, block=block))
        swamped = slot.load() > 1e-3
        assert int(swamped.sum()) - 1 == most


@pytest.mark.slow
def test_what_is_kept_in_a_stale_copy_shows():
    """`unmoved` of a run whose second moment no longer moves."""
    tx = gradtx.store(gradtx.adam(1e-3, b2=0.999), {"nu": "bf16", "mu": "int8"})
    p, before = run(tx, range(3))
    _, after = run(tx, range(3, 6), before, p)
    shares = gradtx.unmoved(before, after)
    assert set(shares) == {"mu", "nu"}
    assert shares["mu"] < 0.2


@pytest.mark.slow
def test_rows_of_a_table_with_blocks_in_rows():
    """Rows that a step does not touch keep their bits, as without `store`."""
    tx = gradtx.store(gradtx.scale_by_adam(), gradtx.Codec("int8", axis=-1), min_size=1)
    table = jnp.zeros((64, 256))
    rows = gradtx.Rows(jnp.array([3, 5]), jnp.ones((2, 256)), table.shape)
    other = gradtx.Rows(jnp.array([5, 7]), jnp.ones((2, 256)), table.shape)
    _, first = tx.update(rows, tx.init(table))
    _, second = tx.update(other, first)
    for before, after in zip(
        jax.tree.leaves((first.mu, first.nu)), jax.tree.leaves((second.mu, second.nu)), strict=True
    ):
        untouched = jnp.array([i for i in range(64) if i not in (5, 7)])
        np.testing.assert_array_equal(before[untouched], after[untouched])
    assert float(gradtx.get_slot(second, "mu")[7, 0]) == pytest.approx(0.1)


@pytest.mark.slow
def test_codes_that_cannot_be_read_row_by_row_are_warned_of():
    table = jnp.zeros((64, 16))
    rows = gradtx.Rows(jnp.array([3, 5]), jnp.ones((2, 16)), table.shape)
    for codec in ("int8", "int4_dithered"):
        tx = gradtx.store(gradtx.sgd(0.1, momentum=0.9), {"trace": codec}, min_size=1)
        with pytest.warns(UserWarning, match=r"trace: .*'' is Rows, .* slot trace .*axis=-1"):
            jax.eval_shape(tx.update, rows, tx.init(table), table)


def test_codes_of_many_leaves_are_made_by_one_program_for_each_shape():
    def count(leaves):
        params = {str(i): jnp.ones((8, 8)) for i in range(leaves)}
        tx = gradtx.store(gradtx.adam(0.1), "int8", min_size=1)
        return distinct_equations(jax.make_jaxpr(tx.init)(params).jaxpr)

    assert count(40) - count(20) <= 20 * 4


@pytest.mark.slow
def test_kernels_are_found_in_a_time_that_grows_with_the_leaves(monkeypatch):
    """As counted by the equations that are looked at."""
    looks, variables = [], interpreter.variables
    monkeypatch.setattr(cutting, "variables", lambda vs: looks.append(None) or variables(vs))

    def count(leaves):
        params = {str(i): jnp.ones((64, 64)) for i in range(leaves)}
        tx = gradtx.store(gradtx.adam(0.1), "int8", min_size=1)
        state = jax.eval_shape(tx.init, params)
        looks.clear()
        jax.jit(tx.update).lower(params, state, params)
        return len(looks)

    assert 0 < count(32) < 2.2 * count(16)


# Numbers that are too large, and averages that fall.

LARGE = (9e3, 1e6, 1e20, 3e38)
CODECS = [gradtx.Codec(name) for name in FORMATS]
CODECS += [gradtx.Codec(n, rounding="stochastic") for n in FORMATS if FORMATS[n].roundings[1:]]


def after_large_ones(tx, p, taken, large, examples=False):
    """The updates of some steps, and the state after each, with one large gradient in each leaf."""
    gs = contract_grads(5, of=lambda *_: p)
    gs |= {"b": put(gs["b"], (1, 0), large), "w": put(gs["w"], (1, 1, 1), -large)}
    carry, found = (p, tx.init(p)), []
    for k in range(5):
        g = jax.tree.map(lambda g: g[None], take(gs, k)) if examples else take(gs, k)
        carry, updates = taken(carry, g)
        found.append((updates, carry[1]))
    return found


@functools.cache
def fine_without_a_codec(name):
    """For each of the large gradients, whether updates are finite and slots at most infinite."""
    tx, p = CATALOGUE[name].make(), params(name)
    found = [after_large_ones(tx, p, stepper(name), large) for large in LARGE]
    return [
        all(
            each(np.isfinite, updates) and each(lambda x: ~np.isnan(x), state)
            for updates, state in f
        )
        for f in found
    ]


def each(check, tree):
    """Whether all numbers pass a check."""
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.number)]
    return all(check(np.float32(x)).all() for x in leaves)


def coded(state):
    return [x.parts for x in jax.tree.leaves(state, is_leaf=is_encoded) if is_encoded(x)]


def each_with_a_codec():
    """Each optimizer with the codec that its name draws, for another's joining must not change it.

    Adam with all. Not those that compare slots with more than moments: the lengths of columns
    become zero beside a longer one, and the sum of Prodigy's and D-Adaptation's gradients ends
    where its numerator does not. And not with dither, which makes what is positive negative if it
    is not declared so.
    """
    others = ("offload", "store", "muown", "sizes_and_directions", "prodigy", "dadapt_adamw")
    drawn = [codec for codec in CODECS if codec.name != "int4_dithered"]
    pairs = [(n, drawn[zlib.crc32(n.encode()) % len(drawn)]) for n in WHOLE if n not in others]
    pairs += [("scale_by_adam", codec) for codec in CODECS]
    return [
        pytest.param(n, c, id=f"{n}-{c.name}-{c.rounding}", marks=pytest.mark.xdist_group(n))
        for n, c in dict.fromkeys(pairs)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "codec"), each_with_a_codec())
def test_large_gradients_leave_finite_codes_and_updates(name, codec):
    """Where without a codec updates are finite and slots at most infinite, as the squares are."""
    fine = fine_without_a_codec(name)
    assert fine[0]
    tx = gradtx.store(CATALOGUE[name].make(), codec, min_size=1, exempt=())
    taken = jax.jit(functools.partial(step, tx))
    for large in np.array(LARGE)[fine]:
        # Those of single examples: `step` gives them to a transformation that is in the catalogue.
        examples = CATALOGUE[name].examples
        for updates, state in after_large_ones(tx, two(), taken, large, examples):
            assert each(np.isfinite, (updates, coded(state)))


@pytest.mark.slow
def test_a_large_gradient_does_not_stop_an_entry():
    """The second moment is beyond float16 after one gradient of 9,000."""

    def trained(tx):
        def body(carry, t):
            p, state = carry
            g = jnp.where(t == 5, 9e3, jnp.sign(p))
            updates, state = tx.update(g, state, p)
            return (gradtx.apply_updates(p, updates), state), None

        p = jnp.ones(1)
        return jax.lax.scan(body, (p, tx.init(p)), jnp.arange(60))[0][0]

    plain, half = (trained(t) for t in (ADAM, gradtx.store(ADAM, "f16", min_size=1)))
    np.testing.assert_allclose(1 - half, 1 - plain, rtol=0.1)


ADAM = gradtx.adam(1e-2)
SPOILED = {"bf16": 1, "f16": 1, "bf16+8": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "int8" else slow) for n in FORMATS]
)
def test_what_an_infinite_gradient_spoils(name):
    """One parameter, as without a codec, and the pace of the others in its block at most."""
    tx = gradtx.store(ADAM, gradtx.Codec(name, rounding="nearest"), min_size=1)

    def run(bad):
        def body(carry, t):
            p, state = carry
            g = jnp.sin(jnp.arange(1024.0) + t).at[300].add(jnp.where(t == 2, bad, 0))
            updates, state = tx.update(g, state, p)
            return (gradtx.apply_updates(p, updates), state), None

        p = jnp.zeros(1024)
        return jax.lax.scan(body, (p, tx.init(p)), jnp.arange(6))[0]

    (want, _), (found, state) = (jax.jit(run)(bad) for bad in (0.0, jnp.inf))
    assert np.flatnonzero(~np.isfinite(found)).tolist() == [300]
    changed = int((np.asarray(found) != want).sum())
    assert changed <= SPOILED.get(name, FORMATS[name].block)
    for part in jax.tree.leaves(coded(state)):
        assert np.isfinite(np.float32(part)).all()


@functools.cache
def fallen(tx, steps):
    """The slots after one gradient, and after many zeros."""
    g = jnp.asarray(np.random.default_rng(0).normal(size=(64, 64)) * 7, jnp.float32)

    @jax.jit
    def run(state, gradient, length):
        return jax.lax.fori_loop(0, length, lambda _, s: tx.update(gradient, s, g)[1], state)

    first = run(jax.jit(tx.init)(g), g, 1)
    return [dict(slots(state)) for state in (first, run(first, jnp.zeros_like(g), steps))]


def slots(state):
    """Slots that are moving averages of what is not negative, and others, decoded."""
    found = []

    def look(holder, name, tree):
        kind = name.rpartition(".")[2] in nonnegative_fields(holder)
        for i, x in enumerate(jax.tree.leaves(tree, is_leaf=is_encoded)):
            x = x.load() if is_encoded(x) else x
            found.append(((name, i, kind), np.abs(np.asarray(x, np.float64))))
        return tree

    map_slots(state, look)
    return found


AVERAGES = {
    "scale_by_adam": (gradtx.scale_by_adam(), 2000),
    "slow": (gradtx.scale_by_adam(b2=0.9999), 2000),
    "scale_by_lion": (gradtx.scale_by_lion(), 2000),
    "scale_by_rms": (gradtx.scale_by_rms(decay=0.99), 300),
    "adan": (gradtx.adan(1.0), 300),
    "factored": (gradtx.scale_by_factored_rms(min_dim_size_to_factor=8), 300),
    "came": (gradtx.came(1.0), 300),
}
"""Moving averages and a number of steps in which they do not fall below all that float16 has."""

# The largest of their decays, and a little for rounding.
SLOWEST = 0.99991
FALLING = [("scale_by_adam", gradtx.Codec(n)) for n in ("bf16", "int8_companded")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "codec"),
    [
        pytest.param(n, c, id=f"{n}-{c.name}-{c.rounding}", marks=[] if (n, c) in FALLING else slow)
        for n in AVERAGES
        for c in map(gradtx.Codec, FORMATS)
    ],
)
def test_averages_fall_as_fast_as_in_float32(name, codec):
    """Their mean over the entries; a momentum falls to less than a hundredth of what it was."""
    tx, steps = AVERAGES[name]
    start, want = fallen(tx, steps)
    first, got = fallen(gradtx.store(tx, codec, min_size=1), steps)
    for key in [key for key in want if start[key].any()]:
        share, exact = (b[key].mean() / a[key].mean() for a, b in ((first, got), (start, want)))
        np.testing.assert_allclose(share, exact, rtol=0.1, atol=0 if key[-1] else 0.01)


@pytest.mark.slow
@some("adamw", of=WHOLE)
def test_no_average_falls_slower_than_those_that_were_tried(name):
    """Without a gradient, of what is never negative: a faster fall is easier for a codec."""
    carry, _ = compiled(name)
    zeros = jax.tree.map(jnp.zeros_like, contract_grads(STEPS, name))
    (_, state), _ = runner(name)(carry, zeros)
    before, after = dict(slots(carry[1])), dict(slots(state))
    for key, x in before.items():
        if key[-1] and x.any():
            share = (after[key].mean() / x.mean()) ** (1 / STEPS)
            assert share < SLOWEST or share > 1 - 1e-6, (key, share)


def nearest(state):
    """A state as it was when second moments were rounded to nearest in every codec."""

    def one(x):
        if not is_encoded(x):
            return x
        return Encoded(x.parts, None, x.codec._replace(rounding="nearest"), x.shape, x.dtype)

    return jax.tree.map(one, state, is_leaf=is_encoded)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bf16", pytest.param("int8_companded", marks=slow)])
def test_a_state_rounded_in_another_way_is_read_as_it_is(name):
    """And goes on: loaded with the rounding of the transformation, in memory with its own."""
    tx = gradtx.store(gradtx.adamw(1e-3), name)
    p, state = run(tx, range(2))
    before = nearest(state)
    loaded = gradtx.load_state_dict(tx, p, gradtx.state_dict(before))
    assert jax.tree.structure(loaded) == jax.tree.structure(state)
    back = gradtx.store(gradtx.adamw(1e-3), gradtx.Codec(name, rounding="nearest"))
    again = gradtx.load_state_dict(back, p, gradtx.state_dict(state))
    assert jax.tree.structure(again) == jax.tree.structure(before)
    for found in (loaded, again):
        same(coded(found), coded(state))
    want = run(
        gradtx.adamw(1e-3), range(2, 4), gradtx.in_storage_of(gradtx.adamw(1e-3), p, state), p
    )
    for found in (loaded, before):
        new, after = run(tx, range(2, 4), found, p)
        assert jax.tree.structure(after) == jax.tree.structure(found)
        np.testing.assert_allclose(new["w"], want[0]["w"], atol=2e-4)


@pytest.mark.slow
def test_a_state_with_other_leaves_in_codecs_goes_on_as_it_is():
    """`min_size` and `exempt` count in `init`; `in_storage_of` applies them to a state."""
    inner, g = gradtx.ema(0.9), jnp.ones(8192)
    before, now = (gradtx.store(inner, min_size=n) for n in (1, 10**6))
    _, state = before.update(g, before.init(g))
    same(now.update(g, state), before.update(g, state))
    assert kept(gradtx.in_storage_of(now, g, state)) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["diffgrad", *(pytest.param(n, marks=slow) for n in ("acprop", "mars_lion"))]
)
def test_a_compiled_update_whose_direction_reads_an_old_slot(name):
    """In float32 the new slot waits for the parameters; one in a codec is written as it is."""
    tx, p = gradtx.store(CATALOGUE[name].make(), min_size=1), jnp.linspace(-1, 1, 256)
    want, _ = tx.update(p, tx.init(p), p)
    got, _ = jax.jit(tx.update)(p, tx.init(p), p)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)


class Unannotated(NamedTuple):
    """A state as other libraries have them."""

    mu: Any


@pytest.mark.parametrize("codecs", ["int8", {"mu": "int8"}])
def test_a_state_that_does_not_say_what_its_slots_are(codecs):
    """It is kept as it is, which whoever asked for 8 bits is told; a small one needs no word."""
    inner = gradtx.GradientTransformation(Unannotated, lambda u, s, p=None: (u, s))
    tx, p = gradtx.store(gradtx.chain(gradtx.clip(1.0), inner), codecs), jnp.ones(8192)
    with pytest.warns(UserWarning, match="store: no field of Unannotated is annotated `Slots`"):
        state = tx.init(p)
    np.testing.assert_array_equal(state[1].mu, p)
    with warnings.catch_warnings(action="error"):
        tx.init(p[:9])
