"""Save a run, and resume it with another chain.

`save_checkpoint` writes parameters, state and configuration to one file; the suffix chooses the
format, ``.orbax`` for Orbax. When the chain has changed, `match_state_dict` keeps every slot that
is still there and says what is new.

Search: resume training, checkpoint, restore, save optimizer state, orbax, change optimizer
"""

import tempfile

import jax.numpy as jnp

import gradtx

params = {"w": jnp.ones((2, 3))}
tx = gradtx.adam(1e-2)
step = gradtx.make_step(lambda p: jnp.sum(p["w"] ** 2), tx)
state = step.init(params)
for _ in range(3):
    params, state, value = step(params, state)

path = f"{tempfile.mkdtemp()}/run.npz"
gradtx.save_checkpoint(path, params, state, tx, step=3)

run = gradtx.load_checkpoint(path, params=params)
assert run.step == 3
assert run.tx == tx

# Clipping in front, and a bound on the second moment: the moments are kept, the rest starts afresh.
grown = gradtx.chain(gradtx.clip_by_global_norm(1.0), gradtx.amsgrad(1e-2))
match = gradtx.match_state_dict(grown, run.params, gradtx.state_dict(run.state, run.tx))
print("kept:", match.kept)
print("new:", match.missing)
assert jnp.array_equal(
    gradtx.get_slot(match.state, "mu", path="w"), gradtx.get_slot(run.state, "mu", path="w")
)
