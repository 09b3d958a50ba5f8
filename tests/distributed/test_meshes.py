"""What a step sends on four TPUs and eight GPUs: compiled, where the compilers are installed."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
WIDTH = 512
PROGRAM = """
import json, sys
from benchmarks import meshes
mesh, width = sys.argv[1], int(sys.argv[2])
print(json.dumps({layout.name: meshes.compiled(layout, mesh, width) for layout in meshes.LAYOUTS}))
"""
MATRICES = 4 * 2 * 12 * WIDTH**2  # bytes of the gradients of two blocks
VECTORS = 4 * 2 * 2 * WIDTH
ACTIVATIONS = 4 * 2 * 4 * (WIDTH // 2) * WIDTH
VALUE = 4  # the loss


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "x", "y", "package"),
    [("v5e:2x2", 2, 2, "libtpu"), ("h100", 4, 2, "jax_cuda12_plugin")],
)
def test_what_is_held_and_sent(mesh, x, y, package):
    """Under ZeRO gradients are scattered and parameters gathered, along one axis after the other.

    Nothing of a parameter's size is reduced whole there, and no layout sends more than it must.
    """
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: see CONTRIBUTING.md")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, mesh, str(WIDTH)],
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
    parts = {"data": 1, "data, ZeRO": x * y, "data x model": y, "data x model, ZeRO": x * y}
    assert states == {n: 2 * (MATRICES // k + VECTORS) + 4 for n, k in parts.items()}
    over_both = MATRICES + MATRICES // x
    assert sent == {
        "data": {"all-reduce": MATRICES + VECTORS + VALUE},
        "data, ZeRO": {
            "reduce-scatter": over_both,
            "all-gather": over_both,
            "all-reduce": VECTORS + VALUE,
        },
        "data x model": {"all-reduce": MATRICES // y + VECTORS + ACTIVATIONS + VALUE},
        "data x model, ZeRO": {
            "reduce-scatter": MATRICES // y,
            "all-gather": MATRICES // y,
            "all-reduce": VECTORS + ACTIVATIONS + VALUE,
        },
    }
    for way in ("data", "data x model"):
        (_, plain, _), (_, zero, _) = found[way], found[f"{way}, ZeRO"]
        assert zero - plain < 4 * 4 * WIDTH**2  # temporary bytes: less than a parameter's
