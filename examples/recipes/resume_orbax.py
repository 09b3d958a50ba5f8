"""Resume from Orbax's checkpoints with another chain.

Orbax's manager keeps the parameters, the state as a dictionary of arrays (`state_dict`) and the
configuration (`to_config`). What is restored needs no template: `match_state_dict` finds each slot
by its name and its leaf's path in the state of the new chain, and says what is new.

Search: orbax, CheckpointManager, resume training, restore, change optimizer, fine-tune
"""

import pathlib
import tempfile

import jax.numpy as jnp
import orbax.checkpoint as ocp

import gradtx

params = {"w": jnp.ones((2, 3)), "b": jnp.zeros(3)}
tx = gradtx.adam(1e-2)
step = gradtx.make_step(lambda p: jnp.sum((p["w"] + p["b"]) ** 2), tx, donate=False)
state = step.init(params)

folder = pathlib.Path(tempfile.mkdtemp()) / "run"
with ocp.CheckpointManager(folder) as manager:
    for number in range(3):
        params, state, value = step(params, state)
        arrays = {"params": params, "state": gradtx.state_dict(state, tx)}
        manager.save(
            number,
            args=ocp.args.Composite(
                arrays=ocp.args.StandardSave(arrays), tx=ocp.args.JsonSave(gradtx.to_config(tx))
            ),
        )

with ocp.CheckpointManager(folder) as manager:
    saved = manager.restore(
        manager.latest_step(),
        args=ocp.args.Composite(arrays=ocp.args.StandardRestore(), tx=ocp.args.JsonRestore()),
    )
assert gradtx.from_config(saved["tx"]) == tx

# Clipping in front, and a bound on the second moment: the moments are kept, the rest starts afresh.
grown = gradtx.chain(gradtx.clip_by_global_norm(1.0), gradtx.amsgrad(1e-2))
match = gradtx.match_state_dict(grown, saved["arrays"]["params"], saved["arrays"]["state"])
print("kept:", sorted(match.kept))
print("new:", match.missing)
assert jnp.array_equal(gradtx.get_slot(match.state, "mu", "w"), gradtx.get_slot(state, "mu", "w"))
assert gradtx.iterations(match.state) == 3
