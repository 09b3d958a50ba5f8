"""Of docs/a_step.md: the files that it names are there, and a chain is entered once."""

import pathlib
import re

import jax.numpy as jnp
import pytest

import gradtx
from gradtx.core.expansion import Expansion

ROOT = pathlib.Path(gradtx.__file__).parent
PAGE = ROOT.parent / "docs" / "a_step.md"


def test_every_file_that_the_page_names_is_there():
    for name in re.findall(r"`([\w/]+\.py)`", PAGE.read_text()):
        assert (ROOT / name).is_file(), name


@pytest.mark.parametrize("leaves", [1, 20])
def test_an_eager_chain_is_entered_once(monkeypatch, leaves):
    entered = []
    update = Expansion.update

    def noted(self, *args, **kwargs):
        entered.append(self.declaration.name)
        return update(self, *args, **kwargs)

    tx = gradtx.chain(gradtx.clip_by_global_norm(1.0), gradtx.adamw(1e-3))
    params = [jnp.ones(3)] * leaves
    state = tx.init(params)
    monkeypatch.setattr(Expansion, "update", noted)
    tx = gradtx.replace(tx, max_norm=1.5)  # whose way in is the noted one
    tx.update(params, state, params)
    assert entered[0] == "chain"
    assert entered.count("chain") == len(entered) <= 2  # again where the program is traced
