"""Every Python block of every page runs, one after the other, in one namespace for each page."""

import re
from pathlib import Path

import jax.numpy as jnp
import pytest

import gradtx
from gradtx import numerics

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = {
    path.relative_to(ROOT).as_posix(): BLOCK.findall(path.read_text(encoding="utf-8"))
    for path in [*sorted((ROOT / "docs").glob("*.md")), *ROOT.glob("*.md")]
}


def loss(params, batch):
    return jnp.mean((batch @ params["w"]) ** 2)


NEEDS = {"docs/keras_fit.md": "keras"}
ELSEWHERE = ("docs/composition.md",)  # in tests/test_compositions.py, with what it shows
# What a page takes as given.
GIVEN = {
    "docs/choosing.md": {"gradtx": gradtx},
    "docs/coming_from.md": {
        "tx": gradtx.adam(0.1),
        "params": {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)},
        "state": gradtx.adam(0.1).init({"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)}),
    },
    "docs/design.md": {
        "transformation": gradtx.transformation,
        "elementwise": gradtx.elementwise,
        "ScaleByLionState": gradtx.ScaleByLionState,
        "Decay": gradtx.checks.Decay,
        "zeros_like": numerics.zeros_like,
        "ema": numerics.ema,
        "jnp": jnp,
    },
    "docs/distributed.md": {
        "loss": loss,
        "params": {"w": jnp.ones((64, 512))},
        "batch": jnp.ones((16, 64)),
    },
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras
@pytest.mark.parametrize(
    "page", [page for page, blocks in PAGES.items() if blocks and page not in ELSEWHERE]
)
def test_the_code_of_a_page_runs(page, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    if page in NEEDS:
        pytest.importorskip(NEEDS[page])
    names = {"__name__": "page", **GIVEN.get(page, {})}
    for number, block in enumerate(PAGES[page]):
        exec(compile(block, f"{page}, block {number}", "exec"), names)
