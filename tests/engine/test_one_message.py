"""MatrixBlocks of matrices of several shapes, sent to their owners and back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from benchmarks.hlo import collectives
from gradtx.ownership.one_message import MatrixBlocks, OneMessage

STACKS = [
    # Five on devices 6, 7 and 0, the last with one; one on device 1; three on 2, 3 and 4.
    MatrixBlocks(5, 2, 6, (8, 12), ("y", "x"), ()),
    MatrixBlocks(1, 1, 1, (4, 16), ("x",), ("y",)),
    MatrixBlocks(3, 1, 2, (6, 8), (), ("x", "y")),
]
OWNED = {
    (0, 6): (0, 1),
    (0, 7): (2, 3),
    (0, 0): (4,),
    (1, 1): (0,),
    (2, 2): (0,),
    (2, 3): (1,),
    (2, 4): (2,),
}


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("float32",) * 3, ("float32", "bfloat16", "float32")])
def test_owners_have_whole_matrices_and_send_them_back(kinds):
    on = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("x", "y"))
    message = OneMessage(STACKS, ("x", "y"), on.shape)
    for stack in range(len(STACKS)):
        for device in range(8):
            own = message.owned(stack, device)
            there = () if own is None else tuple(range(own.start, own.stop))
            assert there == OWNED.get((stack, device), ())
    rng = np.random.default_rng(0)
    xs = [
        jnp.asarray(rng.integers(-9, 9, (of.count, *of.shape)), kind)
        for of, kind in zip(STACKS, kinds, strict=True)
    ]
    lie = [PartitionSpec(None, of.rows or None, of.columns or None) for of in STACKS]
    devices = PartitionSpec(("x", "y"))

    def run(*blocks):
        there = message.there(list(enumerate(blocks)))
        return there, message.back([(k, 2 * x) for k, x in enumerate(there)])

    program = jax.jit(
        jax.shard_map(run, mesh=on, in_specs=tuple(lie), out_specs=([devices] * 3, lie))
    )
    there, back = program(*xs)
    for (stack, device), own in OWNED.items():
        each = STACKS[stack].each
        got = there[stack][device * each : device * each + len(own)]
        np.testing.assert_array_equal(got, xs[stack][jnp.array(own)])
    for x, twice in zip(xs, back, strict=True):
        np.testing.assert_array_equal(twice, 2 * x)
    # As much as the two matrices of the device that has most, there and back, and one matrix where
    # its type is another. XLA for CPUs widens bfloat16, and orders messages as it likes.
    sent = [n for _, n in collectives(program.lower(*xs).compile().as_text())]
    others = [] if len(set(kinds)) == 1 else [4 * 4 * 16] * 2
    assert sorted(sent) == others + [4 * 2 * 8 * 12] * 2
