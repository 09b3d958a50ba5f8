"""State as named data: through files and back, and into other transformations."""

import functools
import json
import pathlib
import subprocess
import sys
import warnings

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from gradtx import load_state_dict, match_state_dict, state_dict, tree
from gradtx.checkpoint import matching, state_dict as saving
from gradtx.programs.tracing import is_tracer
from tests import test_contracts as contracts
from tests.catalogue import CATALOGUE

ROOT = pathlib.Path(__file__).parents[2]

PARAMS = {
    "body": {"w": jnp.asarray(np.random.default_rng(0).normal(size=(2, 3)), jnp.float32)},
    "head": {"b": jnp.arange(3.0), "w": jnp.ones((3, 1))},
}


def step(tx, params, state, i):
    grads = tree.random_like(jax.random.key(i), params)
    extra = {"value": jnp.float32(1.0), "grad": grads, "value_fn": tree.norm}
    updates, state = gradtx.with_extra_args_support(tx).update(grads, state, params, **extra)
    return gradtx.apply_updates(params, updates), state


def trained(tx, params=PARAMS, steps=3):
    state = tx.init(params)
    for i in range(steps):
        params, state = step(tx, params, state, i)
    return params, state


def same(a, b):
    chex.assert_trees_all_equal(tree.unwrap_random_key_data(a), tree.unwrap_random_key_data(b))
    chex.assert_trees_all_equal_dtypes(a, b)


@functools.cache
def adam_state():
    return trained(gradtx.adam(1e-2))[1]


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_round_trip_of_every_transformation(name):
    tx = CATALOGUE[name].make()
    params = {"b": jnp.arange(3.0), "w": jnp.arange(6.0).reshape(2, 3) - 2}
    state = tx.init(params)
    state = jax.tree.map(
        lambda x: x + 1 if hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.number) else x, state
    )
    flat = state_dict(state)
    assert all(isinstance(x, jax.Array | np.ndarray) for x in flat.values())
    # As a container returns it: sorted, as NumPy arrays.
    back = load_state_dict(tx, params, {k: np.asarray(flat[k]) for k in sorted(flat)})
    same(back, state)


def read_safetensors(path):
    return pytest.importorskip("safetensors.flax").load_file(path)


def through_safetensors(flat, path):
    pytest.importorskip("safetensors.flax").save_file(flat, path)
    return read_safetensors(path)


def read_flax(path):
    return pytest.importorskip("flax.serialization").msgpack_restore(path.read_bytes())


def through_flax(flat, path):
    path.write_bytes(pytest.importorskip("flax.serialization").to_bytes(flat))
    return read_flax(path)


def read_numpy(path):
    with np.load(path) as file:
        return dict(file)


def through_numpy(flat, path):
    with path.open("wb") as file:
        np.savez(file, **flat)
    return read_numpy(path)


def through_orbax(flat, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        orbax = pytest.importorskip("orbax.checkpoint")
        with orbax.PyTreeCheckpointer() as checkpointer:
            checkpointer.save(path, flat)
            return checkpointer.restore(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "through", [through_safetensors, through_flax, through_orbax, through_numpy]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_files_keep_every_bit(through, dtype, tmp_path):
    tx = gradtx.chain(gradtx.clip_by_global_norm(1.0), gradtx.adamw(1e-2))
    params, state = trained(tx, tree.cast(PARAMS, dtype))
    flat = through(state_dict(state, tx), tmp_path / "state")
    rebuilt = gradtx.from_config(gradtx.saved_config(flat))
    assert rebuilt == tx
    loaded = load_state_dict(rebuilt, params, flat)
    same(loaded, state)
    same(step(tx, params, loaded, 9), step(tx, params, state, 9))


@pytest.mark.slow
def test_numpy_file_and_a_fresh_process(tmp_path):
    tx = gradtx.adam(1e-2)
    params, state = trained(tx, {"w": jnp.arange(4.0)})
    flat = through_numpy(state_dict(state, tx), tmp_path / "state.npz")
    same(load_state_dict(tx, params, flat), state)
    script = f"""
import json, numpy as np, jax.numpy as jnp, gradtx
flat = dict(np.load({str(tmp_path / "state.npz")!r}))
tx = gradtx.from_config(gradtx.saved_config(flat))
params = {{"w": jnp.asarray(np.array({np.asarray(params["w"]).tolist()}, np.float32))}}
state = gradtx.load_state_dict(tx, params, flat)
updates, _ = tx.update({{"w": jnp.ones(4)}}, state, params)
print(json.dumps(np.asarray(updates["w"]).tolist()))
"""
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    updates, _ = tx.update({"w": jnp.ones(4)}, state, params)
    assert json.loads(out.stdout) == np.asarray(updates["w"]).tolist()


@functools.cache
def catalogue_states():
    """Every transformation with a state in which no array is as `init` makes it."""
    params = contracts.params()

    def changed(x):
        number = hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.number)
        return x + jnp.asarray(1.7, x.dtype) if number else x

    made = {name: entry.make() for name, entry in CATALOGUE.items()}
    return {name: (tx, jax.tree.map(changed, tx.init(params))) for name, tx in made.items()}


def states_of_each_type():
    """Every fourth of them, and what else has an array of a type that none before has.

    A file holds arrays, whoever made them; the others are read back from arrays in
    `test_round_trip_of_every_transformation`.
    """
    chosen, seen = {}, set()
    for i, (name, (tx, state)) in enumerate(catalogue_states().items()):
        types = {(x.dtype, x.ndim) for x in map(np.asarray, state_dict(state, tx).values())}
        if i % 4 == 0 or types - seen:
            chosen[name] = tx, state
            seen |= types
    return chosen


def named(name, flat):
    return {f"{name}/{key}": array for key, array in flat.items()}


def taken(name, everything):
    return {
        k.removeprefix(f"{name}/"): x for k, x in everything.items() if k.startswith(f"{name}/")
    }


@pytest.mark.slow
@pytest.mark.parametrize("through", [through_safetensors, through_flax, through_orbax])
def test_files_keep_every_bit_of_the_catalogue(through, tmp_path):
    everything = {}
    for name, (tx, state) in states_of_each_type().items():
        everything |= named(name, state_dict(state, tx))
    read = through(everything, tmp_path / "states")
    for name, (tx, state) in states_of_each_type().items():
        flat = taken(name, read)
        assert gradtx.from_config(gradtx.saved_config(flat), contracts.CUSTOM) == tx
        same(load_state_dict(tx, contracts.params(), flat), state)


def compiled(tx):
    return jax.jit(functools.partial(contracts.step, tx))


def second_step(name, tx, run, params, state):
    """Parameters and state after a step, as NumPy arrays by path."""
    (params, state), _ = run((params, state), contracts.take(contracts.grads(2), 1))
    flat = {**named("params", params), **named("state", state_dict(state, tx))}
    return {key: np.asarray(x) for key, x in named(name, flat).items()}


# Of the others test_formats.py shows that a state that another process wrote is read to the bit,
# and that its next step is the one that was taken there.
RESUMED = sorted(CATALOGUE)[::4]


def resume(path):
    """In a fresh process: the second step of everything, from what the first one wrote."""
    saved, out = dict(np.load(path / "saved.npz")), {}
    for name in RESUMED:
        state, params = (taken(f"{name}/{part}", saved) for part in ("state", "params"))
        params = {key: jnp.asarray(x) for key, x in params.items()}
        tx = gradtx.from_config(gradtx.saved_config(state), contracts.CUSTOM)
        out |= second_step(name, tx, compiled(tx), params, load_state_dict(tx, params, state))
    np.savez(path / "resumed.npz", **out)


@pytest.mark.slow
def test_a_fresh_process_goes_on_with_the_same_bits(tmp_path):
    saved, unbroken = {}, {}
    for name in RESUMED:
        tx, params = CATALOGUE[name].make(), contracts.params()
        run = compiled(tx)
        carry, _ = run((params, tx.init(params)), contracts.take(contracts.grads(2), 0))
        flat = {**named("params", carry[0]), **named("state", state_dict(carry[1], tx))}
        saved |= {key: np.asarray(x) for key, x in named(name, flat).items()}
        unbroken |= second_step(name, tx, run, *carry)
    np.savez(tmp_path / "saved.npz", **saved)
    program = (
        "import pathlib, tests.checkpoint.test_state_dict as here\n"
        f"here.resume(pathlib.Path({str(tmp_path)!r}))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
    resumed = dict(np.load(tmp_path / "resumed.npz"))
    assert resumed.keys() == unbroken.keys()
    different = {
        key.partition("/")[0]
        for key, x in unbroken.items()
        if x.tobytes() != resumed[key].tobytes()
    }
    assert different == set()


def slots(state):
    return {name: gradtx.get_slot(state, name) for name in ("mu", "nu")}


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "tx",
    [
        gradtx.chain(gradtx.clip(1.0), gradtx.adam(1e-2)),
        gradtx.named_chain(("clip", gradtx.clip(1.0)), ("adam", gradtx.adam(1e-2))),
        gradtx.scale_by_adam(),
        gradtx.masked(gradtx.adam(1e-2), lambda path, leaf: True),
    ],
)
def test_moved_slots_are_kept(tx):
    state = load_state_dict(tx, PARAMS, state_dict(adam_state()))
    same(slots(state), slots(adam_state()))
    assert int(tree.get(state, "count")) == 3


def test_what_is_new_is_initialised():
    saved = state_dict(adam_state())
    tx = gradtx.chain(gradtx.ema(0.9), gradtx.adam(gradtx.linear_schedule(1.0, 0.0, 9)))
    match = match_state_dict(tx, PARAMS, saved)
    same(slots(match.state), slots(adam_state()))
    assert match.missing == [
        "0/count",
        *(f"0/ema/{leaf}" for leaf in ("body/w", "head/b", "head/w")),
    ]
    assert int(match.state[0].count) == 0
    assert int(match.state[1][0].count) == 3
    assert int(match.state[1][1].count) == 3
    assert match.kept["1/0/mu/body/w"] == "0/mu/body/w"
    assert not match.extra


def test_what_is_new_is_as_init_makes_it():
    tx = gradtx.chain(gradtx.scale_by_rss(initial_accumulator_value=0.3), gradtx.adam(1e-2))
    match = match_state_dict(tx, PARAMS, state_dict(adam_state()))
    same(match.state[0], tx.init(PARAMS)[0])
    same(slots(match.state[1]), slots(adam_state()))


def test_what_was_saved_whole_is_not_initialised():
    """It would be there twice."""
    adam, traced = gradtx.adam(1e-2), []

    def init(params):
        traced.append(is_tracer(params["head"]["b"]))
        return adam.init(params)

    tx = gradtx.GradientTransformation(init, adam.update)
    same(load_state_dict(tx, PARAMS, state_dict(adam_state())), adam_state())
    assert all(traced)
    assert traced


@pytest.mark.usefixtures("host_memory")
def test_a_state_is_restored_to_the_memory_in_which_it_is_kept():
    def init(params):
        return {"far": jax.device_put(params["x"], jax.memory.Space.Host), "near": params["x"]}

    tx, params = gradtx.GradientTransformation(init, lambda *args: args), {"x": jnp.arange(3.0)}
    wanted = tx.init(params)
    flat = {name: np.asarray(x) for name, x in state_dict(wanted).items()}
    loaded = load_state_dict(tx, params, flat)
    kinds = [jax.tree.map(lambda x: x.sharding.memory_kind, s) for s in (loaded, wanted)]
    assert kinds[0] == kinds[1]
    assert kinds[1]["far"] != kinds[1]["near"]


@pytest.mark.usefixtures("host_memory")
def test_slots_come_back_from_the_memory_of_the_host():
    adam, params = gradtx.adam(0.1), {"x": jnp.arange(3.0)}
    flat = state_dict(gradtx.offload(adam, min_size=1).init(params))
    loaded = load_state_dict(adam, params, flat)
    same(loaded, adam.init(params))
    assert adam.update(params, loaded, params)[0]["x"].shape == (3,)


def matched(old, new, kind="TraceState"):
    """Where each leaf of new states of one class was before: ``{prefix: {name: size}}``."""

    def nodes(states):
        for prefix, sizes in states.items():
            leaves = {name: f"{prefix}/{name}" for name in sizes}
            yield matching.Node(prefix, "Other" if prefix == "other" else kind, leaves, set(sizes))

    def arrays(states):
        return {f"{p}/{n}": np.zeros(size) for p, of in states.items() for n, size in of.items()}

    pair = [*map(list, map(nodes, (old, new)))]
    return matching.match(*pair, *map(arrays, (old, new))).kept


def test_a_state_is_the_one_of_which_most_leaves_fit():
    old = {"a": {"u": 2, "v": 3}, "b": {"u": 2, "v": 4}}
    assert matched(old, {"c": {"u": 2, "v": 4}}) == {"c/u": "b/u", "c/v": "b/v"}


def test_of_more_alike_states_than_before_those_with_the_old_path_are_the_old_ones():
    old = {"a": {"u": 2}, "c": {"u": 2}}
    assert matched(old, {"a": {"u": 2}, "b": {"u": 2}, "c": {"u": 2}}) == {
        "a/u": "a/u",
        "c/u": "c/u",
    }


def test_of_as_many_alike_states_one_that_has_changed_does_not_move_the_others():
    old = {"other": {"o": 2}, "x": {"u": 2}, "y": {"u": 2}, "z": {"u": 2}}
    new = {"p": {"u": 5}, "q": {"u": 2}, "r": {"u": 2}}
    assert matched(old, new) == {"q/u": "y/u", "r/u": "z/u"}


def test_a_counter_that_several_parts_share_is_there_for_each():
    """Also where arrays are handed over, each as soon as nothing else needs it."""
    saved = dict(state_dict(trained(gradtx.scale_by_adam())[1]))
    split = saving.adopt_state(groups(body="body", head="head"), PARAMS, saved, strict=True)
    assert [int(part.inner_state.count) for part in split.values()] == [3, 3]


def test_a_message_lists_six_paths_and_counts_the_others():
    for number, says in ((6, "a, b, c, d, e, f"), (8, "a, b, c, d, e, f and 2 more")):
        assert saving.listed("abcdefgh"[:number]) == says


def test_another_class_keeps_common_slots():
    match = match_state_dict(gradtx.lion(1e-2), PARAMS, state_dict(adam_state()))
    same(gradtx.get_slot(match.state, "mu"), adam_state()[0].mu)
    assert match.changed == {"0": "ScaleByAdamState before, ScaleByLionState now"}
    assert all(path.startswith("0/nu/") for path in match.extra)
    with pytest.raises(ValueError, match="extra: 0/nu/body/w"):
        load_state_dict(gradtx.lion(1e-2), PARAMS, state_dict(adam_state()))
    with pytest.warns(UserWarning, match="extra: 0/nu/body/w") as said:
        load_state_dict(gradtx.lion(1e-2), PARAMS, state_dict(adam_state()), strict=False)
    assert said[0].filename == __file__


def groups(**patterns):
    """One Adam for each group, by name, in a chain of masks."""
    return gradtx.named_chain(
        *((name, gradtx.masked(gradtx.scale_by_adam(), where)) for name, where in patterns.items())
    )


def test_groups_are_renamed_split_and_added():
    old = groups(body="body", head="head")
    state = trained(old)[1]
    saved = state_dict(state)
    renamed = load_state_dict(groups(a="head", trunk="body"), PARAMS, saved)
    same(tuple(renamed.values()), (state["head"], state["body"]))

    split = load_state_dict(old, PARAMS, state_dict(trained(gradtx.scale_by_adam())[1]))
    assert [int(part.inner_state.count) for part in split.values()] == [3, 3]
    same(split, state)

    larger = {**PARAMS, "tail": {"w": jnp.ones(2)}}
    match = match_state_dict(groups(tail="tail", body="body", head="head"), larger, saved)
    kept = [match.state[name] for name in ("body", "head")]
    same(jax.tree.leaves(kept), jax.tree.leaves([state["body"], state["head"]]))
    assert match.missing == [f"tail/inner_state/{n}" for n in ("count", "mu/tail/w", "nu/tail/w")]
    assert not match.extra


def test_a_group_of_a_partition_is_renamed():
    def grouped(name):
        groups = {name: gradtx.adam(0.1), "rest": gradtx.sgd(0.1, momentum=0.9)}
        return gradtx.partition(groups, lambda path, _: name if path.startswith("b") else "rest")

    old, new = grouped("body"), grouped("trunk")
    params, state = trained(old)
    loaded = load_state_dict(new, params, state_dict(state))
    same(step(new, params, loaded, 5)[0], step(old, params, state, 5)[0])


def test_alike_states_keep_their_order():
    old = gradtx.chain(gradtx.trace(0.5), gradtx.trace(0.9))
    state = trained(old)[1]
    tx = gradtx.chain(gradtx.clip(1.0), gradtx.trace(0.5), gradtx.scale(1.0), gradtx.trace(0.9))
    loaded = load_state_dict(tx, PARAMS, state_dict(state))
    same((loaded[1], loaded[3]), state)


@pytest.mark.slow
def test_states_of_optax():
    tx = optax.adam(1e-2)
    state = tx.init(PARAMS)
    _, state = tx.update(PARAMS, state)
    same(load_state_dict(tx, PARAMS, state_dict(state)), state)
    same(slots(load_state_dict(gradtx.adam(1e-2), PARAMS, state_dict(state))),
         {"mu": state[0].mu, "nu": state[0].nu})  # fmt: skip


def test_changed_types_are_converted_and_shapes_made_anew():
    tx = gradtx.adam(1e-2, mu_dtype=jnp.bfloat16)
    match = match_state_dict(tx, PARAMS, state_dict(adam_state()))
    assert match.changed["0/mu/head/b"] == "float32[3] before, bfloat16[3] now"
    same(match.state[0].mu, tree.cast(adam_state()[0].mu, jnp.bfloat16))

    wider = {**PARAMS, "head": {"b": jnp.zeros(5), "w": jnp.ones((3, 1))}}
    match = match_state_dict(gradtx.adam(1e-2), wider, state_dict(adam_state()))
    assert match.changed["0/mu/head/b"] == "float32[3] before, float32[5] now"
    assert not match.extra
    assert not match.missing
    np.testing.assert_array_equal(match.state[0].mu["head"]["b"], jnp.zeros(5))
    same(match.state[0].mu["body"], adam_state()[0].mu["body"])


def header(**fields):
    written = {"version": saving._VERSION, "states": [], "config": None, "checksums": {}, **fields}
    text = json.dumps({**written, "checksum": saving.checksum_of_header(written)})
    return np.frombuffer(text.encode(), np.uint8)


# Functions of a state dict of adam, so that none is trained when tests are collected.
BAD = [
    (lambda flat: {"0/mu/w": np.zeros(2)}, ValueError, "no entry 'gradtx'"),
    (lambda flat: None, ValueError, "not written by state_dict"),
    (
        lambda flat: flat | {"gradtx": np.array([1, 2], np.uint8)},
        ValueError,
        "header of the state dict is damaged",
    ),
    (lambda flat: flat | {"gradtx": header(version=99)}, ValueError, "format 99"),
    (lambda flat: flat | {"gradtx": header(states=[3])}, ValueError, "damaged"),
    (lambda flat: flat | {"gradtx": header(config="adam")}, ValueError, "damaged"),
    (
        lambda flat: flat | {"0/mu/w": 3, 7: np.zeros(2)},
        TypeError,
        "names in a state dict are text; one is 7",
    ),
    (lambda flat: flat | {"0/count": "three"}, TypeError, "'0/count' of a state dict is str"),
    (
        lambda flat: flat | {"0/count": np.array([None])},
        TypeError,
        "'0/count' of a state dict is object",
    ),
    (lambda flat: {"gradtx": flat["gradtx"]}, ValueError, "nothing in the saved state fits"),
    (
        lambda flat: state_dict(gradtx.adam(1e-2).init({"x": 1.0})),
        ValueError,
        "it holds 0/count, 0/mu/x",
    ),
]


def test_the_first_format_had_no_checksums():
    tx, flat = gradtx.adam(1e-2), state_dict(adam_state())
    written = json.loads(flat["gradtx"].tobytes())
    del written["checksum"], written["checksums"]
    text = json.dumps({**written, "version": 1})
    flat["gradtx"] = np.frombuffer(text.encode(), np.uint8)
    same(load_state_dict(tx, PARAMS, flat), adam_state())


def test_a_state_without_values_has_names():
    """The target of a restore can be described before anything is allocated."""
    abstract = jax.eval_shape(gradtx.adam(1e-2).init, PARAMS)
    assert state_dict(abstract).keys() == state_dict(adam_state()).keys()


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(("bad", "error", "message"), BAD)
def test_bad_input_is_refused(bad, error, message, strict):
    with pytest.raises(error, match=message):
        load_state_dict(gradtx.adam(1e-2), PARAMS, bad(state_dict(adam_state())), strict=strict)


@pytest.mark.parametrize(
    ("through", "read"),
    [
        (through_safetensors, read_safetensors),
        (through_flax, read_flax),
        (through_numpy, read_numpy),
    ],
)
# NumPy has checksums of its own, and its reader fails once more when it is deleted.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_flipped_bit_in_a_file_is_found(through, read, tmp_path):
    tx, path = gradtx.adam(1e-2), tmp_path / "state"
    params, state = trained(tx, {"w": jnp.arange(4.0) + 1})
    through(state_dict(state, tx), path)
    whole = bytearray(path.read_bytes())
    at = bytes(whole).index(np.asarray(state[0].nu["w"]).tobytes()) + 1
    whole[at] ^= 1
    path.write_bytes(whole)
    with pytest.raises(Exception, match="damaged or edited: 0/nu/w|CRC|zip"):
        load_state_dict(tx, params, read(path))
    at = bytes(whole).index(b"0.01")
    whole[at + 3] ^= 3  # another learning rate
    path.write_bytes(whole)
    with pytest.raises(Exception, match="checksum differs|CRC|zip"):
        gradtx.saved_config(read(path))


def test_an_edited_array_is_kept_if_that_is_wanted():
    flat = state_dict(adam_state())
    flat["0/nu/head/b"] = flat["0/nu/head/b"] * 0
    with pytest.raises(ValueError, match="damaged or edited: 0/nu/head/b"):
        load_state_dict(gradtx.adam(1e-2), PARAMS, flat)
    with pytest.warns(UserWarning, match="damaged or edited: 0/nu/head/b"):
        state = load_state_dict(gradtx.adam(1e-2), PARAMS, flat, strict=False)
    assert not np.any(state[0].nu["head"]["b"])
    assert match_state_dict(gradtx.adam(1e-2), PARAMS, flat).damaged == ["0/nu/head/b"]


def test_truncated_data_is_listed_by_path():
    flat = state_dict(adam_state())
    del flat["0/nu/head/w"]
    with pytest.raises(ValueError, match="missing: 0/nu/head/w"):
        load_state_dict(gradtx.adam(1e-2), PARAMS, flat)


@pytest.mark.slow
def test_arrays_without_entries_are_not_written():
    params = {"none": jnp.zeros((0, 3)), "some": jnp.ones(2)}
    tx = gradtx.adam(1e-2)
    params, state = trained(tx, params)
    flat = state_dict(state)
    assert "0/mu/none" not in flat
    same(load_state_dict(tx, params, flat), state)


def test_names_that_collide_are_refused():
    with pytest.raises(ValueError, match="two leaves are called '0/mu/a/b'"):
        state_dict(gradtx.adam(1e-2).init({"a": {"b": 1.0}, "a/b": 2.0}))


def test_random_keys_come_back_as_keys():
    state = {"key": jax.random.key(3)}
    tx = gradtx.GradientTransformation(lambda params: {"key": jax.random.key(0)}, lambda *a: a)
    same(load_state_dict(tx, PARAMS, state_dict(state)), state)


def test_a_truncated_array_is_named():
    flat = state_dict(adam_state())
    flat["0/mu/head/b"] = flat["0/mu/head/b"][:2]
    with pytest.raises(ValueError, match=r"0/mu/head/b, float32\[2\] before, float32\[3\] now"):
        load_state_dict(gradtx.adam(1e-2), PARAMS, flat)


@pytest.mark.parametrize(
    ("through", "read"),
    [
        (through_safetensors, read_safetensors),
        (through_flax, read_flax),
        (through_numpy, read_numpy),
    ],
)
@pytest.mark.parametrize("part", [0.3, 0.95])
# NumPy's own reader fails once more when it is deleted.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_truncated_file_is_refused_and_the_old_state_goes_on(through, read, part, tmp_path):
    tx, state = gradtx.adam(1e-2), adam_state()
    want = step(tx, PARAMS, state, 7)
    path = tmp_path / "state"
    through(state_dict(state, tx), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(Exception, match="(?i)header|buffer|incomplete|unpack|zip|data"):
        load_state_dict(tx, PARAMS, read(path))
    same(step(tx, PARAMS, state, 7), want)


def test_a_type_that_numpy_forgot_is_given_back():
    """A file of NumPy's says only how wide an entry of bfloat16 is."""
    x = np.arange(3, dtype=jnp.bfloat16)
    got = saving.typed(x.view("V2"), "bfloat16")
    assert got.dtype == jnp.bfloat16
    np.testing.assert_array_equal(got, x)
    assert saving.typed(x, "bfloat16") is x
    floats = np.ones(2, np.float32)
    assert saving.typed(floats, "bfloat16") is floats
