"""States that were restored without their classes: dicts and lists in place of named tuples."""

import functools
import pickle
import warnings

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx import load_state_dict, state_dict, tree
from gradtx.leaves.written import written_as_dict
from gradtx.storage import is_encoded
from tests.catalogue import CATALOGUE, is_even, is_matrix, matrix_or_not

PARAMS = {"b": jnp.arange(3.0), "l": [jnp.ones((2, 3)), (jnp.full((4, 2), 0.5),)]}

COMPOSITIONS = {
    "alone": lambda tx: tx,
    "accumulate": lambda tx: gradtx.accumulate(tx, 2),
    "apply_if_finite": lambda tx: gradtx.apply_if_finite(tx, 2),
    "chain": lambda tx: gradtx.chain(gradtx.clip_by_global_norm(1.0), tx, gradtx.trace(0.9)),
    "chain of chains": lambda tx: gradtx.chain(gradtx.chain(tx, gradtx.ema(0.9)), gradtx.sgd(0.1)),
    "compensated": gradtx.compensated,
    "conditionally_mask": lambda tx: gradtx.conditionally_mask(tx, is_even),
    "dynamic_loss_scale": gradtx.dynamic_loss_scale,
    "ema_params": lambda tx: gradtx.chain(tx, gradtx.ema_params(0.5)),
    "flatten": gradtx.flatten,
    "guard": gradtx.guard,
    "lookahead": lambda tx: gradtx.lookahead(tx, 2, 0.5),
    "masked": lambda tx: gradtx.masked(tx, is_matrix),
    "master_weights": gradtx.master_weights,
    "multi_steps": lambda tx: gradtx.multi_steps(tx, 2),
    "named_chain": lambda tx: gradtx.named_chain(("a", tx), ("1", gradtx.ema(0.9))),
    "partition": lambda tx: gradtx.partition({"a": tx, "b": gradtx.adam(0.1)}, matrix_or_not),
    "sam": lambda tx: gradtx.sam(tx, gradtx.sgd(0.1)),
    "store": lambda tx: gradtx.store(tx, "int8", min_size=1),
    "twice": lambda tx: gradtx.chain(tx, gradtx.masked(tx, is_matrix)),
    "accumulate in groups in a guard": lambda tx: gradtx.guard(
        gradtx.partition({"a": gradtx.accumulate(tx, 2), "b": gradtx.sgd(0.1)}, matrix_or_not)
    ),
}


def contents(node, named, row):
    """A state with `named` in place of every named tuple and dict, `row` in that of every tuple."""
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        children = {k: contents(v, named, row) for k, v in zip(node._fields, node, strict=True)}
        return named(children)
    if isinstance(node, dict):
        return {str(k): contents(v, named, row) for k, v in node.items()}
    if isinstance(node, list | tuple):
        return row([contents(v, named, row) for v in node])
    if is_encoded(node):
        children = jax.tree_util.tree_flatten_with_path(node)[0]
        return {path[0].name: child for path, child in children}
    return node


def through_dicts(state):
    return contents(state, dict, list)


def through_lists(state):
    return contents(state, lambda fields: list(fields.values()), list)


def through_text_indices(state):
    return contents(state, dict, lambda row: {str(i): x for i, x in enumerate(row)})


def through_msgpack(state):
    serialization = pytest.importorskip("flax.serialization")
    return serialization.msgpack_restore(serialization.to_bytes(state))


def through_flax(state):
    return pytest.importorskip("flax.serialization").to_state_dict(state)


def through_pickle(state):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pickle.loads(pickle.dumps(tree.unwrap_random_key_data(state)))


def through_orbax(state, path):
    orbax = pytest.importorskip("orbax.checkpoint")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with orbax.StandardCheckpointer() as checkpointer:
            checkpointer.save(path, state)
            checkpointer.wait_until_finished()
            return checkpointer.restore(path)


WAYS = [through_dicts, through_lists, through_text_indices, through_flax, through_pickle]


def numbered(state):
    """A state with other numbers in all of its arrays, no two arrays alike."""
    rng = np.random.default_rng(0)

    def other(x):
        if not hasattr(x, "dtype") or jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return x
        some = rng.integers(1, 100, np.shape(x))
        return jnp.asarray(some % 2 if x.dtype == bool else some, x.dtype)

    return jax.tree.map(other, state)


def same(a, b):
    chex.assert_trees_all_equal(tree.unwrap_random_key_data(a), tree.unwrap_random_key_data(b))
    chex.assert_trees_all_equal_dtypes(a, b)
    assert jax.tree.structure(a) == jax.tree.structure(b)


def check(tx, params, ways):
    state = numbered(tx.init(params))
    for way in ways:
        same(load_state_dict(tx, params, state_dict(way(state))), state)


@functools.cache
def composed(name, composition):
    """A transformation of the catalogue in a composition; None where these do not go together."""
    try:
        tx = COMPOSITIONS[composition](CATALOGUE[name].make())
        jax.eval_shape(tx.init, PARAMS)
    except (TypeError, ValueError):
        return None
    return tx


@pytest.mark.quick(2)
@pytest.mark.parametrize("way", WAYS)
def test_states_of_wrappers_in_dicts_and_lists_load_bit_for_bit(way):
    for composition in ("alone", "accumulate", "partition"):
        check(COMPOSITIONS[composition](gradtx.adamw(1e-2)), PARAMS, [way])
    check(gradtx.inject_hyperparams(gradtx.adamw)(1e-2), PARAMS, [way])


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(len(COMPOSITIONS)))
def test_states_of_the_catalogue_in_compositions_load_bit_for_bit(turn):
    """Each composition with every fourteenth transformation, so that each of these has its turn."""
    composition = sorted(COMPOSITIONS)[turn]
    some = [composed(name, composition) for name in sorted(CATALOGUE)[turn % 14 :: 14]]
    assert len([tx for tx in some if tx is not None]) > 15
    for tx in some:
        if tx is not None:
            check(tx, PARAMS, WAYS)


@pytest.mark.slow
def test_states_of_compositions_load_from_bytes_of_flax():
    serialization = pytest.importorskip("flax.serialization")
    split = gradtx.split_leaves(gradtx.adam(0.1), {"b": gradtx.SplitLeaf(0, {"q": 1, "k": 2})})
    for tx in [*(compose(gradtx.adamw(1e-2)) for compose in COMPOSITIONS.values()), split]:
        check(tx, PARAMS, [through_msgpack])
        state = numbered(tx.init(PARAMS))
        same(serialization.from_bytes(tx.init(PARAMS), serialization.to_bytes(state)), state)
    tx, params = gradtx.store(gradtx.adam(0.1), "int4"), gradtx.pack(PARAMS)
    check(tx, params, [through_msgpack])


def test_flax_is_told_of_classes_that_are_defined_later():
    serialization = pytest.importorskip("flax.serialization")
    gradtx.sgd(0.1).init(PARAMS)
    later = written_as_dict(type("Later", (dict,), {}))
    gradtx.sgd(0.1).init(PARAMS)
    written = serialization.to_state_dict(later(a=jnp.ones(2)))
    same(written, {"a": jnp.ones(2)})
    assert type(serialization.from_state_dict(later(a=0), written)) is later


@pytest.mark.slow
def test_states_of_compositions_load_from_orbax_without_a_target(tmp_path):
    all_of_them = {name: compose(gradtx.adamw(1e-2)) for name, compose in COMPOSITIONS.items()}
    states = {name: numbered(tx.init(PARAMS)) for name, tx in all_of_them.items()}
    restored = through_orbax(states, tmp_path / "states")
    for name, tx in all_of_them.items():
        same(load_state_dict(tx, PARAMS, state_dict(restored[name])), states[name])


def test_a_state_of_vectors_in_dicts_loads():
    tx, params = gradtx.adam(1e-2), gradtx.pack(PARAMS)
    state = numbered(tx.init(params))
    vectors = {k: x.vectors for k, x in state[0]._asdict().items() if k != "count"}
    restored = [{"count": state[0].count, **vectors}, None]
    same(load_state_dict(tx, params, state_dict(restored)), state)


def test_the_objects_of_flax_are_no_part_of_a_path():
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    tx = gradtx.adam(1e-2)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    as_pure = getattr(nnx, "as_pure", nnx.pure)  # Flax 0.12.0 has the latter
    params, state = as_pure((nnx.state(model, nnx.Param), optimizer.opt_state))
    boxed = jax.tree.unflatten(jax.tree.structure(optimizer.opt_state), jax.tree.leaves(state))
    assert state_dict(boxed).keys() == state_dict(state).keys()
    same(load_state_dict(tx, params, state_dict(boxed)), tx.init(params))
    # As a container returns it that knows no such objects.
    content = jax.tree.map(lambda x: {"value": x}, through_dicts(state))
    same(load_state_dict(tx, params, state_dict(content)), tx.init(params))


@pytest.mark.parametrize("mixed", [False, True])
def test_states_of_one_class_stay_in_their_places(mixed):
    """Whatever the order of their names, and where the class of one of them is known."""
    tx = gradtx.named_chain(("b", gradtx.ema(0.9)), ("a", gradtx.ema(0.9)), ("c", gradtx.ema(0.9)))
    state = numbered(tx.init(PARAMS))
    restored = through_dicts(state)
    if mixed:
        restored["c"] = state["c"]
    same(load_state_dict(tx, PARAMS, state_dict(restored)), state)


def test_what_fits_by_no_path_is_still_refused():
    tx = gradtx.accumulate(gradtx.adamw(1e-2), 2)
    restored = through_dicts(tx.init(PARAMS))
    restored["inner_opt_state"][0]["mu"]["another"] = restored["inner_opt_state"][0]["mu"].pop("b")
    with pytest.raises(ValueError, match=r"missing: inner_opt_state/0/mu/b; extra: .*/mu/another"):
        load_state_dict(tx, PARAMS, state_dict(restored))


def test_a_step_with_a_state_without_classes_says_how_it_loads():
    tx = gradtx.accumulate(gradtx.adamw(1e-2), 2)
    restored = through_dicts(tx.init(PARAMS))
    with pytest.raises(TypeError, match=r"load_state_dict\(tx, params, state_dict\(state\)\);"):
        tx.update(PARAMS, restored, PARAMS)


def test_the_report_has_the_names_that_were_saved():
    tx = gradtx.adam(1e-2)
    saved = state_dict(through_lists(tx.init(PARAMS)))
    assert gradtx.match_state_dict(tx, PARAMS, saved).kept["0/mu/b"] == "0/1/b"
