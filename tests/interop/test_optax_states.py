"""States carried between Optax and gradtx in the middle of a run."""

# Sees mutants of: flax.

import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from gradtx.interop import from_optax_state, to_optax_state
from tests.catalogue import CATALOGUE
from tests.processes import environment
from tests.quick import quick
from tests.test_contracts import grads, step, two

EVERYDAY = ("adam", "sgd", "adamw", "named_chain", "multi_steps", "add_noise", "injected")
# Those for private gradients take a batch of gradients, and need no state but a key.
PRIVATE = ("dpsgd", "differentially_private_aggregate")
TWINS = [n for n, entry in CATALOGUE.items() if entry.optax is not None and n not in PRIVATE]


def scanned(tx):
    return jax.jit(lambda c, gs: jax.lax.scan(functools.partial(step, tx), c, gs))


def carried(ours, theirs, p, gs):
    """Three steps there, three here, three there again; and nine steps there."""
    first, second, third = (jax.tree.map(lambda g, i=i: g[3 * i : 3 * i + 3], gs) for i in range(3))
    there, here = scanned(theirs), scanned(ours)
    (q, state), _ = start = there((p, theirs.init(p)), first)
    (q, mine), _ = here((q, from_optax_state(state, ours, p)), second)
    assert jax.tree.structure(mine) == jax.tree.structure(ours.init(p))
    (q, _), _ = there((q, to_optax_state(mine, theirs, p)), third)
    return q, there(there(start[0], second)[0], third)[0][0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    quick(TWINS, *EVERYDAY),
)
def test_there_and_back(name):
    entry = CATALOGUE[name]
    got, want = carried(entry.make(), entry.optax(), two(), grads(9, of=two))
    for mine, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        # Optax's bias corrections are off by 1.3e-5, of which the root takes half, at each step;
        # a parameter may come out as a small difference of large steps.
        size = max(1.0, float(jnp.max(jnp.abs(theirs))))
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5 * size)


@pytest.mark.slow
def test_groups_and_masks():
    ours = gradtx.chain(
        gradtx.masked(gradtx.trace(0.9), "w"),
        gradtx.partition({"a": gradtx.adam(0.1), "b": gradtx.sgd(0.1)}, {"w": "a", "b": "b"}),
    )
    theirs = optax.chain(
        optax.masked(optax.trace(0.9), {"w": True, "b": False}),
        optax.partition({"a": optax.adam(0.1), "b": optax.sgd(0.1)}, {"w": "a", "b": "b"}),
    )
    got, want = carried(ours, theirs, two(), grads(9, of=two))
    for key in got:
        np.testing.assert_allclose(got[key], want[key], rtol=2e-5, atol=2e-6)


def through_flax(state, theirs, p, path):
    serialization = pytest.importorskip("flax.serialization")
    return serialization.from_state_dict(theirs.init(p), serialization.to_state_dict(state))


def through_orbax(state, theirs, p, path):
    orbax = pytest.importorskip("orbax.checkpoint")
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(path / "state", state)
        checkpointer.wait_until_finished()
        return checkpointer.restore(path / "state", theirs.init(p))


WAYS = {
    "itself": lambda state, theirs, p, path: state,
    "to_optax_state": lambda state, theirs, p, path: to_optax_state(state, theirs, p),
    "Flax": through_flax,
    "Orbax": through_orbax,
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mean", [False, True])
def test_a_window_goes_on_in_optax(mean, way, tmp_path):
    """Between two windows or in the middle of one, on every way out."""
    ours, theirs = (lib.MultiSteps(lib.sgd(1.0), 2, use_grad_mean=mean) for lib in (gradtx, optax))
    p, gs = two(), grads(5, of=two)
    alone, mine = theirs.init(p), ours.init(p)
    crossed = []
    for t in range(5):
        g = jax.tree.map(lambda x, t=t: x[t], gs)
        want, alone = theirs.update(g, alone, p)
        crossed = [theirs.update(g, state, p) for state in crossed]
        for updates, _ in crossed:
            jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), updates, want)
        crossed = [state for _, state in crossed]
        mine = ours.update(g, mine, p)[1]
        jax.tree.map(np.testing.assert_allclose, mine.acc_grads, alone.acc_grads)
        if t in (1, 2):
            crossed.append(WAYS[way](mine, theirs, p, tmp_path / str(t)))


def test_what_a_window_that_is_over_has_left_is_not_handed_over():
    p, ones = two(), two()
    ours, theirs = (lib.MultiSteps(lib.sgd(1.0), 3) for lib in (gradtx, optax))
    for steps in range(3):
        state = ours.init(p)._replace(mini_step=jnp.int32(steps), acc_grads=ones)
        found = to_optax_state(state, theirs, p).acc_grads
        want = ones if steps else jax.tree.map(jnp.zeros_like, ones)
        jax.tree.map(np.testing.assert_array_equal, found, want)


def test_bfloat16_moments_are_widened():
    p = {"w": jnp.ones(2, jnp.bfloat16)}
    state = from_optax_state(optax.adam(0.1).init(p), gradtx.adam(0.1), p)
    assert gradtx.get_slot(state, "nu", "w").dtype == jnp.float32
    back = to_optax_state(state, optax.adam(0.1), p)
    assert back[0].nu["w"].dtype == jnp.bfloat16


def test_other_states_are_refused():
    p = two()
    for state, says in (
        (optax.sgd(0.1, 0.9).init(p), r"the state\[0\] is TraceState, which has no count, mu, nu"),
        (optax.adam(0.1).init({"w": p["w"]}), r"the state\[0\].mu is \['w'\], not a dict of"),
        (optax.adam(0.1).init({**p, "b": jnp.ones(7)}), r"has the shape \(7,\), not \(3,\)"),
        (optax.scale_by_adam().init(p), r"does not have 2 parts"),
    ):
        with pytest.raises(ValueError, match=says):
            from_optax_state(state, gradtx.adam(0.1), p)


@pytest.mark.slow
def test_states_with_more_than_is_kept_are_refused():
    p = two()
    kept = optax.adam(0.1), optax.sgd(0.1, 0.9)
    for theirs, ours in (
        *((tx, gradtx.sgd(0.1)) for tx in kept),
        (optax.amsgrad(0.1), gradtx.adam(0.1)),
        (optax.adabelief(0.1), gradtx.adam(0.1)),
    ):
        with pytest.raises(ValueError, match="another transformation"):
            from_optax_state(theirs.init(p), ours, p)
    with pytest.raises(ValueError, match="another transformation"):
        to_optax_state(gradtx.adam(0.1).init(p), optax.sgd(0.1), p)


@pytest.mark.slow
def test_extra_arguments_inside_an_optax_chain():
    def loss(p):
        return jnp.sum((p - 3.0) ** 2)

    tx = optax.chain(optax.clip(100.0), gradtx.lbfgs())
    p = jnp.zeros(2)
    state = tx.init(p)
    for _ in range(3):
        value, grad = jax.value_and_grad(loss)(p)
        updates, state = tx.update(grad, state, p, value=value, grad=grad, value_fn=loss)
        p = optax.apply_updates(p, updates)
    np.testing.assert_allclose(p, 3.0, rtol=1e-5)


def test_flax_still_reads_masked_leaves_written_as_none():
    serialization = pytest.importorskip("flax.serialization")
    tx = gradtx.masked(gradtx.adam(0.1), {"w": True, "b": False})
    state = tx.init(two())
    written = serialization.to_state_dict(state)
    moments = written["inner_state"]["0"]
    assert moments["mu"]["b"] == {}
    old = {"inner_state": {**written["inner_state"], "0": {**moments}}}
    for slot in ("mu", "nu"):
        old["inner_state"]["0"][slot] = {**moments[slot], "b": None}
    for form in (written, old):
        found = serialization.from_state_dict(tx.init(two()), form)
        assert jax.tree.structure(found) == jax.tree.structure(state)
        assert gradtx.get_slot(found, "mu")["b"] is None


def test_flax_writes_a_slot_that_is_masked_as_a_whole_as_optax_has_it():
    serialization = pytest.importorskip("flax.serialization")
    ours, theirs = (lib.masked(lib.trace(0.9), False).init(jnp.ones(3)) for lib in (gradtx, optax))
    written = serialization.to_state_dict(ours)
    assert written == serialization.to_state_dict(theirs) == {"inner_state": {"trace": {}}}
    assert serialization.from_state_dict(ours, written) == ours


def test_flax_writes_a_typed_key_as_optax_has_it():
    serialization = pytest.importorskip("flax.serialization")
    ours, theirs = (lib.contrib.sophia(0.1) for lib in (gradtx, optax))
    state = ours.init(two())
    data = serialization.to_bytes(state)
    back = serialization.from_bytes(ours.init(two()), data)
    assert jax.tree.map(jnp.shape, back) == jax.tree.map(jnp.shape, state)
    keys = [x for x in jax.tree.leaves(back) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
    assert keys
    there = serialization.from_bytes(theirs.init(two()), data)
    assert jax.tree.structure(there) == jax.tree.structure(theirs.init(two()))


LATE = """
import sys
import gradtx, jax, jax.numpy as jnp
tx = gradtx.chain(gradtx.add_noise(0.1, 0.5, 0), gradtx.trace(0.9))
tx = gradtx.masked(tx, {"w": True, "b": False})
assert "gradtx.interop" not in sys.modules
from flax import nnx, serialization

class Mine(gradtx.GradientTransformation):
    pass

params = {"w": jnp.ones(2), "b": jnp.ones(3)}
state = tx.init(params)
written = serialization.to_bytes(state)  # keys, and None for masked leaves
read = serialization.from_bytes(state, written)
assert jax.tree.structure(read) == jax.tree.structure(state)
mine = Mine(lambda params: (), lambda updates, state, params=None: (updates, state))
for pair in (tx, mine):
    assert nnx.is_data(pair)

class Holder(nnx.Pytree):
    def __init__(self, tx):
        self.tx = tx

assert len(jax.tree.leaves(Holder(gradtx.sgd(jnp.float32(0.1))))) == 1
"""


@pytest.mark.slow
def test_flax_may_be_imported_after_a_pair_was_made():
    pytest.importorskip("flax.nnx")
    subprocess.run([sys.executable, "-c", LATE], check=True, env=environment())
