"""The donated step of every transformation, exported for every platform and read from its bytes."""

import subprocess
import sys

import chex
import jax
import jax.numpy as jnp
import pytest
from jax import export

import gradtx
from tests.catalogue import CATALOGUE
from tests.test_contracts import WHOLE, grads, params, some, step, stepper, take

PLATFORMS = ("cpu", "cuda", "tpu")
QUICK = ("adamw", "named_chain", "lbfgs", "muon")  # a custom node, a closure, branches, products


@pytest.mark.slow
@some(*QUICK, of=WHOLE)
def test_donated_step_runs_from_its_bytes(name):
    tx, g = CATALOGUE[name].make(), take(grads(1, name), 0)
    donated = jax.jit(lambda p, state, g: step(tx, (p, state), g)[0], donate_argnums=(0, 1))
    start = params(name), tx.init(params(name))
    gradtx.register_serialization(start[1])
    exported = export.export(donated, platforms=PLATFORMS)(*start, g)
    assert "tf.aliasing_output" in exported.mlir_module()
    read = export.deserialize(exported.serialize())
    assert read.platforms == PLATFORMS
    want, _ = stepper(name)(start, g)
    got = read.call(*start, g)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    chex.assert_trees_all_close(got[0], want[0], rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_a_process_without_gradtx_runs_the_bytes(tmp_path):
    tx, p, g = gradtx.chain(gradtx.clip(1.0), gradtx.adam(0.1)), params(), take(grads(1), 0)
    leaves, treedef = jax.tree.flatten((p, tx.init(p)))

    @jax.jit
    def flat(leaves, g):
        return jax.tree.leaves(step(tx, treedef.unflatten(leaves), g)[0])

    file = tmp_path / "step.bin"
    file.write_bytes(export.export(flat, platforms=PLATFORMS)(leaves, g).serialize())
    program = f"""
import sys
sys.modules["gradtx"] = None
import jax, jax.numpy as jnp
from jax import export
read = export.deserialize(bytearray(open({str(file)!r}, "rb").read()))
arguments = [jnp.zeros(a.shape, a.dtype) for a in read.in_avals]
args, kwargs = jax.tree.unflatten(read.in_tree, arguments)
assert all(jnp.all(jnp.isfinite(x)) for x in read.call(*args))
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_names_of_a_chain_survive():
    tx = gradtx.named_chain(("a", gradtx.scale(2.0)), ("b", gradtx.trace(0.9)))
    state = tx.init(params())
    gradtx.register_serialization(state)
    gradtx.register_serialization(state)
    exported = export.export(jax.jit(lambda state: state))(state)
    assert list(export.deserialize(exported.serialize()).call(state)) == ["a", "b"]


def test_exported_programs_name_classes_as_earlier_files_do():
    """Where a class is may change; files of before and after it are read alike."""
    state = gradtx.trace(gradtx.linear_schedule(0.5, 0.9, 10)).init(params())
    gradtx.register_serialization(state)
    written = export.export(jax.jit(lambda state: state))(state).serialize()
    assert b"gradtx.scheduled.ScheduledState" in bytes(written)


def test_packed_parameters_are_refused():
    packed = gradtx.pack({"w": jnp.ones(2)})
    with pytest.raises(ValueError, match="export a step of gradtx.unpack"):
        gradtx.register_serialization(gradtx.adam(0.1).init(packed))
