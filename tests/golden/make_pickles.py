"""Pickles that name modules by the paths which they had before they were in rooms.

    git archive d2b6bcca gradtx | tar x -C /tmp/old
    PYTHONPATH=/tmp/old python tests/golden/make_pickles.py tests/golden/pickles.bin

Made with a later version they would name modules by later paths. tests/names/test_earlier.py
reads them.
"""

import pickle
import sys

import jax
import numpy as np

import gradtx


def pickled():
    """Optimizers with schedules, the state of one, and rows of a table."""
    rate = gradtx.cosine_decay_schedule(0.1, 9)
    decay = gradtx.linear_schedule(0.5, 0.9, 10)
    tx = gradtx.chain(gradtx.clip_by_global_norm(1.0), gradtx.trace(decay), gradtx.sgd(rate))
    values = {
        "tx": tx,
        "rate": rate,
        "state": tx.init({"b": np.ones(3, np.float32), "w": np.ones((4, 8), np.float32)}),
        "rows": gradtx.Rows(np.array([0, 2]), np.ones((2, 8), np.float32), (4, 8)),
    }
    return jax.tree.map(np.asarray, values)


if __name__ == "__main__":
    with open(sys.argv[1], "wb") as file:
        pickle.dump(pickled(), file, protocol=4)
