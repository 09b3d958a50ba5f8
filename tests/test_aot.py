"""Bytes and temporaries on a TPU v5e and an H100, where their compilers are installed."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
LABELS = ("sgd", "adam", "adamw", "adagrad", "rmsprop", "lion", "clip + adamw")


@pytest.mark.slow
def test_bytes_on_chips_that_are_not_here():
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed: pip install gradtx[aot]")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.aot", *LABELS],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.split("|")[1:-1] for line in done.stdout.splitlines() if line.startswith("| ")]
    found = {}
    for label, _, bytes_, _, _, temp, *_ in rows:
        if label.strip() in LABELS and label.strip() not in found:
            found[label.strip()] = float(bytes_.split("/")[0]), temp.split("/")[0].strip()
    assert set(found) == set(LABELS), done.stdout
    for label, (ratio, temp) in found.items():
        assert ratio <= (1.19 if label == "clip + adamw" else 1.05), label
        assert re.fullmatch(r"[\d.]+ (B|kB)", temp), (label, temp)


ACCUMULATION = """
import json, sys
from benchmarks import aot
import jax, jax.numpy as jnp, gradtx

p = jax.ShapeDtypeStruct((4096, 8192), jnp.float32)

def applied(tx):
    return lambda p, s, g: gradtx.apply_gradients(tx, g, p, s)

def minimized(tx):
    return lambda p, s, g: gradtx.minimize(lambda p: jnp.vdot(p, p), tx, p, s)[:2]

def by_hand(tx):
    def step(p, s, g):
        updates, s = tx.update(g, s, p)
        return gradtx.apply_updates(p, updates), s
    return step

found = {}
for chip, device in aot.available().items():
    here = aot.SingleDeviceSharding(device)
    for way in (applied, minimized, by_hand):
        tx = gradtx.accumulate(gradtx.adam(0.1), 4)
        s = jax.eval_shape(tx.init, p)
        run = jax.jit(way(tx), donate_argnums=(0, 1), in_shardings=here, out_shardings=here)
        compiled = run.lower(p, s, p).compile()
        temporary = compiled.memory_analysis().temp_size_in_bytes / (4 * p.size)
        found[f"{chip}, {way.__name__}"] = temporary, compiled.as_text().count(" while(")
print(json.dumps(found))
"""


@pytest.mark.slow
def test_accumulation_takes_no_room_on_chips_that_are_not_here():
    """No array of a parameter's size, and the optimizer in a loop, not in a choice of results."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed: pip install gradtx[aot]")
    done = subprocess.run(
        [sys.executable, "-c", ACCUMULATION],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found
    for way, (temporary, loops) in found.items():
        assert temporary < (1.01 if way.endswith("by_hand") else 0.01), way
        assert loops == 1, way
