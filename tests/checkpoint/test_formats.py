"""State dicts in every format that was ever written, and headers that never were."""

# Sees mutants of: encoded.

import functools
import io
import json
import lzma
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx import load_state_dict, match_state_dict, state_dict
from gradtx.checkpoint.state_dict import checksum_of_header
from tests import test_contracts as contracts
from tests.quick import quick

GOLDEN = pathlib.Path(__file__).parent.parent / "golden"
PARAMS = {"w": jnp.arange(3.0)}
TX = gradtx.adam(0.1)


def part(name, saved):
    return {k.removeprefix(name): x for k, x in saved.items() if k.startswith(name)}


@pytest.mark.parametrize("version", [1, 2])
def test_earlier_formats_are_read(version):
    saved = dict(np.load(GOLDEN / f"state_{version}.npz"))
    flat, params = part("state/", saved), part("params/", saved)
    assert json.loads(flat["gradtx"].tobytes())["version"] == version
    tx = gradtx.from_config(gradtx.saved_config(flat))
    state = load_state_dict(tx, params, flat)
    written = state_dict(state)
    assert written.keys() == flat.keys()
    assert all(np.array_equal(written[k], x) for k, x in flat.items() if k != "gradtx")
    rng = np.random.default_rng(3)
    grads = {"b": rng.normal(size=3).astype("f4"), "w": rng.normal(size=(2, 3)).astype("f4")}
    updates, _ = tx.update(grads, state, params)
    for k, new in gradtx.apply_updates(params, updates).items():
        np.testing.assert_allclose(new, saved[f"next/{k}"], rtol=1e-6)


@pytest.mark.slow
def test_codes_of_four_bits_that_were_neighbours_in_a_byte_are_read():
    saved = dict(np.load(GOLDEN / "state_4.npz"))
    flat, params = part("state/", saved), part("params/", saved)
    tx = gradtx.from_config(gradtx.saved_config(flat))
    state = load_state_dict(tx, params, flat)
    rng = np.random.default_rng(3)
    grads = {k: rng.normal(size=p.shape).astype("f4") for k, p in params.items()}
    updates, _ = tx.update(grads, state, params)
    for k, new in gradtx.apply_updates(params, updates).items():
        # A sum of numbers of about 1, which nearly cancel in one entry.
        np.testing.assert_allclose(new, saved[f"next/{k}"], rtol=1e-6, atol=1e-7)


@functools.cache
def earlier_catalogue():
    """What tests/golden/make_catalogue.py wrote, by the name of the transformation."""
    with lzma.open(GOLDEN / "catalogue.npz.xz") as file:
        saved = np.load(io.BytesIO(file.read()))
    runs = {}
    for key in saved.files:
        name, part_of_run, rest = key.split("/", 2)
        runs.setdefault(name, {}).setdefault(part_of_run, {})[rest] = saved[key]
    return runs


@pytest.mark.parametrize("name", quick(sorted(earlier_catalogue()), "adamw", "muon", "partition"))
def test_runs_of_an_earlier_version_go_on(name):
    run = earlier_catalogue()[name]
    tx = gradtx.from_config(gradtx.saved_config(run["state"]), custom_objects=contracts.CUSTOM)
    params = {k: jnp.asarray(p) for k, p in run["params"].items()}
    state = load_state_dict(tx, params, run["state"])
    written = state_dict(state)
    # Since then bfloat16 rounds second moments at random by default, with a key.
    assert all(k.endswith("/key") for k in written.keys() ^ run["state"].keys())
    for k, x in run["state"].items():
        assert k == "gradtx" or np.asarray(written[k]).tobytes() == x.tobytes()
    g = {k: contracts.grads(3)[k][2] for k in params}
    step = jax.jit(lambda carry, g: contracts.step(tx, carry, g)[0][0])
    # Since then the last of their five polynomials has its safety factor.
    atol = 2e-4 if name in ("dion2", "dion3") else 1e-6
    for k, new in step((params, state), g).items():
        np.testing.assert_allclose(new, run["next"][k], rtol=1e-5, atol=atol)


@pytest.mark.slow
def test_a_dither_that_is_drawn_in_another_way_is_refused():
    tx = gradtx.store(gradtx.adam(0.1), gradtx.Codec("int4_dithered", block=8), min_size=1)
    params = {"w": jnp.arange(16.0)}
    flat = state_dict(tx.init(params))
    header = {**json.loads(np.asarray(flat["gradtx"]).tobytes()), "version": 4}
    del header["checksum"]
    header["checksum"] = checksum_of_header(header)
    flat["gradtx"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with pytest.raises(ValueError, match="mu/w.*the dither of an earlier gradtx"):
        load_state_dict(tx, params, flat)


def with_header(**fields):
    flat = state_dict(TX.init(PARAMS), TX)
    header = {**json.loads(np.asarray(flat["gradtx"]).tobytes()), **fields}
    return {**flat, "gradtx": np.frombuffer(json.dumps(header).encode(), np.uint8)}


@pytest.mark.parametrize("version", [0, -1, True, False, 1, 1.0, 2, None, "3", [3]])
def test_a_header_of_a_format_that_was_never_written_is_refused(version):
    """None gets around the checksum by claiming to be of an older format."""
    flat = with_header(version=version)
    flat["0/mu/w"] = np.ones(3, np.float32)
    with pytest.raises(ValueError, match="header of the state dict is damaged"):
        match_state_dict(TX, PARAMS, flat)


def test_every_flipped_bit_of_a_header_is_refused():
    flat = state_dict(TX.init(PARAMS), TX)
    header = np.asarray(flat["gradtx"])
    for bit in range(0, 8 * header.size, 7):  # every byte, each of its bits somewhere
        changed = header.copy()
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match="state dict"):
            gradtx.saved_config({**flat, "gradtx": changed})


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int4", "uint4"])
def test_types_that_numpy_s_files_forget(dtype, tmp_path):
    made = gradtx.GradientTransformation(lambda p: {"m": jnp.zeros(3, dtype)}, lambda *a: a)
    state = {"m": jnp.array([1, 2, 3]).astype(dtype)}
    np.savez(tmp_path / "state.npz", **state_dict(state))
    loaded = load_state_dict(made, PARAMS, dict(np.load(tmp_path / "state.npz")))
    assert loaded["m"].dtype == dtype
    np.testing.assert_array_equal(loaded["m"], state["m"])


def test_what_is_loaded_is_its_own():
    """Neither a donated state nor an array that is written to later reaches the other."""
    written = state_dict(TX.init(PARAMS))
    for flat in (written, {k: np.array(x) for k, x in written.items()}):
        # Aligned as XLA requires of an array that it takes over without a copy.
        state = load_state_dict(TX, PARAMS, flat)
        held = {x.unsafe_buffer_pointer() for x in [*state[0].mu.values(), *state[0].nu.values()]}
        for x in flat.values():
            at = x.ctypes.data if isinstance(x, np.ndarray) else x.unsafe_buffer_pointer()
            assert at not in held


SCHEDULE = gradtx.linear_schedule(1.0, 0.0, 10)


def stepped(tx, times=5):
    state = tx.init(PARAMS)
    for _ in range(times):
        _, state = tx.update(PARAMS, state, PARAMS)
    return state


@pytest.mark.parametrize(
    ("tx", "new"),
    [
        (gradtx.adamw(0.1), {"learning_rate": SCHEDULE}),
        (gradtx.adamw(0.1), {"weight_decay": SCHEDULE}),
        (gradtx.lion(0.1), {"learning_rate": SCHEDULE}),
        (gradtx.chain(gradtx.clip(1.0), gradtx.adam(0.1)), {"max_delta": SCHEDULE}),
    ],
    ids=["rate", "decay", "lion", "clip"],
)
def test_a_schedule_that_is_added_goes_on_at_the_step_of_the_state(tx, new):
    scheduled = gradtx.replace(tx, **new)
    state = load_state_dict(scheduled, PARAMS, state_dict(stepped(tx)), strict=False)
    counts = gradtx.tree.get_all_with_path(state, "count")
    wanted = gradtx.tree.get_all_with_path(stepped(scheduled), "count")
    assert counts == wanted
    assert {int(count) for _, count in counts} == {5}
    scheduled.update(PARAMS, state, PARAMS)


def test_where_no_step_is_agreed_on_it_starts_anew_and_is_reported():
    sgd = gradtx.sgd(0.1)
    match = match_state_dict(gradtx.sgd(SCHEDULE), PARAMS, state_dict(stepped(sgd)))
    assert match.missing == ["1/count"]
    tx = gradtx.chain(gradtx.adam(0.1), gradtx.adam(0.1))
    first, _ = stepped(tx)
    saved = state_dict((first, stepped(gradtx.adam(0.1), 2)))
    match = match_state_dict(gradtx.chain(gradtx.adam(SCHEDULE), gradtx.adam(0.1)), PARAMS, saved)
    assert match.missing == ["0/1/count"]
    assert int(match.state[0][1].count) == 0
