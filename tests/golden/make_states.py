"""Saved states of earlier formats, which must be read for good.

    git archive 967c360 gradtx | tar x -C /tmp/old    # the first format; 17313a7: the second
    PYTHONPATH=/tmp/old python tests/golden/make_states.py tests/golden/state_1.npz

writes one run's parameters and state dict after three steps, with the names ``params/`` and
``state/`` before theirs, and the parameters that a fourth step gives as ``next/``. With the name
state_4.npz (78b41c3, the fourth format) it is the run of an optimizer whose slots are in four bits.
Rerun it only for a new format; tests/checkpoint/test_formats.py reads what it wrote.
"""

import sys

import jax
import numpy as np

import gradtx

SMALL = {"b": (3,), "w": (2, 3)}
LARGER = {"b": (11,), "w": (3, 22)}


def gradients(step, shapes):
    rng = np.random.default_rng(step)
    return {name: rng.normal(size=shape).astype("f4") for name, shape in shapes.items()}


def several():
    """Momentum, a schedule, groups and a window."""
    return gradtx.chain(
        gradtx.clip_by_global_norm(1.0),
        gradtx.partition(
            {
                "adam": gradtx.adamw(gradtx.cosine_decay_schedule(0.1, 9), weight_decay=0.1),
                "sgd": gradtx.accumulate(gradtx.sgd(0.1, momentum=0.9), 2),
            },
            [("b", "sgd"), ("w", "adam")],
        ),
    )


def four_bits():
    """Slots in blocks, of which the last one along an axis is not full."""
    return gradtx.store(gradtx.adam(0.1), gradtx.Codec("int4", block=8), min_size=1)


def run(tx, shapes):
    params = gradients(9, shapes)
    state = tx.init(params)
    for step in range(4):
        if step == 3:
            saved = {**named("params", params), **named("state", gradtx.state_dict(state, tx))}
        updates, state = tx.update(gradients(step, shapes), state, params)
        params = gradtx.apply_updates(params, updates)
    return {**saved, **named("next", params)}


def named(name, flat):
    return {f"{name}/{key}": np.asarray(x) for key, x in flat.items()}


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    fourth = sys.argv[1].endswith("_4.npz")
    np.savez(sys.argv[1], **(run(four_bits(), LARGER) if fourth else run(several(), SMALL)))
