"""What a step sends on four chips of TPU v5e: compiled, where the compiler is installed."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
WIDTH = 512
PROGRAM = f"""
import json
from benchmarks import meshes
found = {{layout.name: meshes.compiled(layout, "v5e:2x2", {WIDTH}) for layout in meshes.LAYOUTS}}
print(json.dumps(found))
"""
MATRICES = 4 * 2 * 12 * WIDTH**2  # bytes of the gradients of two blocks
VECTORS = 4 * 2 * 2 * WIDTH
ACTIVATIONS = 4 * 2 * 4 * (WIDTH // 2) * WIDTH
VALUE = 4  # the loss


@pytest.mark.slow
def test_what_is_held_and_sent():
    """Under ZeRO gradients are scattered and parameters gathered, along one axis after the other.

    Nothing of a parameter's size is reduced whole there, and no layout sends more than it must.
    """
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed: pip install gradtx[aot]")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    states = {name: state for name, (state, _, _) in found.items()}
    sent = {
        name: {kind: size for kind, (_, size) in collectives.items()}
        for name, (_, _, collectives) in found.items()
    }
    parts = {"data": 1, "data, ZeRO": 4, "data x model": 2, "data x model, ZeRO": 4}
    assert states == {n: 2 * (MATRICES // k + VECTORS) + 4 for n, k in parts.items()}
    both_ways = MATRICES + MATRICES // 2
    assert sent == {
        "data": {"all-reduce": MATRICES + VECTORS + VALUE},
        "data, ZeRO": {
            "reduce-scatter": both_ways,
            "all-gather": both_ways,
            "all-reduce": VECTORS + VALUE,
        },
        "data x model": {"all-reduce": MATRICES // 2 + VECTORS + ACTIVATIONS + VALUE},
        "data x model, ZeRO": {
            "reduce-scatter": MATRICES // 2,
            "all-gather": MATRICES // 2,
            "all-reduce": VECTORS + ACTIVATIONS + VALUE,
        },
    }
    for way in ("data", "data x model"):
        (_, plain, _), (_, zero, _) = found[way], found[f"{way}, ZeRO"]
        assert zero - plain < 4 * 4 * WIDTH**2  # temporary bytes: less than a parameter's
