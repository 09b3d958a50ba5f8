"""Whatever `save_checkpoint` takes, `load_checkpoint` returns: over trees drawn at random."""

import tempfile
import warnings
from typing import NamedTuple

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx import load_checkpoint, save_checkpoint


class Point(NamedTuple):
    x: object
    y: object


NUMBERS = [
    *(jnp.ones(2), jnp.zeros((0, 3)), jnp.bfloat16(2), jnp.ones(2, "int4"), jax.random.key(1)),
    *(np.float32(2), np.float16(1), np.arange(3), np.array([True]), np.array([1, 2], ">i4")),
    np.longdouble(3),
]
ODD = ["text", b"bytes", 2**70, len]  # no arrays: refused
LEAVES = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.booleans(),
    st.none(),
    st.sampled_from(NUMBERS),
    st.sampled_from([*NUMBERS, *ODD]),
)
NAMES = st.one_of(
    st.text(max_size=3),
    st.sampled_from(["", "a", "0", "a/b", "a/", "/", "..", "\ud800", "\0", "x.npy", "gradtx"]),
)


def containers(inner):
    return st.one_of(
        st.dictionaries(NAMES, inner, max_size=3),
        st.dictionaries(st.integers(-3, 12), inner, max_size=3),
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.builds(Point, inner, inner),
    )


TREES = st.recursive(LEAVES, containers, max_leaves=6)
TRAINED = st.recursive(
    st.sampled_from([jnp.float32(1), jnp.ones((2, 3)), jnp.zeros((0, 2)), None]),
    containers,
    max_leaves=6,
)


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert hasattr(x, "dtype") == hasattr(y, "dtype")
        if hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            assert x.dtype == y.dtype
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        x, y = np.asarray(x), np.asarray(y)
        assert x.dtype.name == y.dtype.name
        assert x.shape == y.shape
        assert x.astype(y.dtype).tobytes() == y.tobytes()


def is_saved(path, *args, **kwargs):
    """Whether the run was saved; if not, it was refused by name."""
    try:
        save_checkpoint(path, *args, **kwargs)
    except (TypeError, ValueError) as error:
        assert "save_checkpoint" in str(error) or "state_dict" in str(error)
        return False
    return True


def check(tree, form):
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/run.{form}"
        if is_saved(path, tree, keys=tree, model_state=tree, step=3):
            run = load_checkpoint(path, params=tree, keys=tree, model_state=tree)
            for found in (run.params, run.keys, run.model_state):
                same(found, tree)
            assert len(jax.tree.leaves(load_checkpoint(path).params)) == len(jax.tree.leaves(tree))


@pytest.mark.slow
@hypothesis.settings(max_examples=20, deadline=None, database=None, derandomize=True)
@hypothesis.given(TREES, st.sampled_from(["npz", "safetensors"]))
def test_whatever_is_saved_can_be_loaded(tree, form):
    if form != "npz":
        pytest.importorskip(form)
    check(tree, form)


@pytest.mark.slow
@hypothesis.settings(max_examples=1500, deadline=None, database=None, derandomize=True)
@hypothesis.given(TREES, st.sampled_from(["npz", "safetensors"]))
def test_whatever_is_saved_can_be_loaded_from_many_trees(tree, form):
    if form != "npz":
        pytest.importorskip(form)
    check(tree, form)


@pytest.mark.slow
@hypothesis.settings(max_examples=15, deadline=None, database=None, derandomize=True)
@hypothesis.given(TREES)
def test_whatever_is_saved_can_be_loaded_with_orbax(tree):
    pytest.importorskip("orbax.checkpoint")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(tree, "orbax")


@pytest.mark.slow
@hypothesis.settings(max_examples=100, deadline=None, database=None, derandomize=True)
@hypothesis.given(TRAINED, st.randoms(use_true_random=False), st.booleans())
def test_a_state_that_is_saved_can_be_loaded(params, random, some):
    """Of all parameters, or of some of them."""
    tx = random.choice([gradtx.sgd(0.1), gradtx.adam(0.1), gradtx.accumulate(gradtx.lion(0.1), 2)])
    trained = jax.tree.map(lambda p: random.choice([p, None]) if some else p, params)
    state = tx.init(trained)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/run.npz"
        if is_saved(path, params, state, tx):
            run = load_checkpoint(path, params=params)
            same(run.params, params)
            same(jax.tree.leaves(run.state), jax.tree.leaves(state))


def test_of_parameters_that_are_not_trained_there_are_no_slots(tmp_path):
    """A whole model as its parameters, counts and keys included, of which a part is trained."""
    path, tx = tmp_path / "run.npz", gradtx.adam(0.1)
    model = {
        "w": jnp.ones(2),
        "mean": jnp.zeros(2),
        "count": jnp.uint32(3),
        "key": jax.random.key(0),
    }
    state = tx.init({"w": model["w"]})
    save_checkpoint(path, model, state, tx)
    run = load_checkpoint(path, params=model)
    same(run.params, model)
    same(jax.tree.leaves(run.state), jax.tree.leaves(state))
    for wrong in (
        tx.init({"w": jnp.ones(3)}),
        tx.init({"v": jnp.ones(2)}),
        gradtx.lion(0.1).init(1.0),
    ):
        with pytest.raises(ValueError, match=r"could not be loaded.*goes into model_state"):
            save_checkpoint(path, model, wrong, tx)
    estimated = gradtx.estimated_gradients(tx, gradtx.spsa()).init({"w": model["w"]})
    with pytest.raises(ValueError, match=r"it has 'gradient_key', uint32\[2\], for .* of step.tx,"):
        save_checkpoint(path, model, estimated, tx)
    with pytest.raises(ValueError, match="it lacks '0/nu_max/w', float32"):
        save_checkpoint(path, model, state, gradtx.amsgrad(0.1))
    same(load_checkpoint(path, params=model).params, model)
