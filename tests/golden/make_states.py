"""Saved states of earlier formats, which must be read for good.

    git archive 967c360 gradtx | tar x -C /tmp/old    # the first format; 17313a7: the second
    PYTHONPATH=/tmp/old python tests/golden/make_states.py tests/golden/state_1.npz

writes one run's parameters and state dict after three steps, with the names ``params/`` and
``state/`` before theirs, and the parameters that a fourth step gives as ``next/``. Rerun it only
for a new format; tests/checkpoint/test_formats.py reads what it wrote.
"""

import sys

import jax
import numpy as np

import gradtx


def gradients(step):
    rng = np.random.default_rng(step)
    return {"b": rng.normal(size=3).astype("f4"), "w": rng.normal(size=(2, 3)).astype("f4")}


def run():
    """A run with momentum, a schedule, groups and a window."""
    tx = gradtx.chain(
        gradtx.clip_by_global_norm(1.0),
        gradtx.partition(
            {
                "adam": gradtx.adamw(gradtx.cosine_decay_schedule(0.1, 9), weight_decay=0.1),
                "sgd": gradtx.accumulate(gradtx.sgd(0.1, momentum=0.9), 2),
            },
            [("b", "sgd"), ("w", "adam")],
        ),
    )
    params = gradients(9)
    state = tx.init(params)
    for step in range(4):
        if step == 3:
            saved = {**named("params", params), **named("state", gradtx.state_dict(state, tx))}
        updates, state = tx.update(gradients(step), state, params)
        params = gradtx.apply_updates(params, updates)
    return {**saved, **named("next", params)}


def named(name, flat):
    return {f"{name}/{key}": np.asarray(x) for key, x in flat.items()}


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    np.savez(sys.argv[1], **run())
