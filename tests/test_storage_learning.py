"""What is trained with slots in codecs: the short form of ``python -m benchmarks.storage``."""

import pytest

import gradtx
from benchmarks.results import tables_in
from benchmarks.storage import DOCS, drift, tables, trained


@pytest.mark.slow
def test_a_character_transformer_learns_in_8_bits():
    """All slots, embeddings too, reach the loss of 32 bits within 1 %."""
    plain = gradtx.lion(5e-4)
    stored = gradtx.store(plain, "int8", exempt=())
    assert trained(stored, 40, 0) == pytest.approx(trained(plain, 40, 0), rel=0.01)


@pytest.mark.slow
def test_dithered_momentum_follows_noise_where_nearest_does_not():
    """Of 4 bits, at decay 0.99, over 10,000 steps."""
    plain, dithered, nearest = (float(drift(c, 10_000)) for c in (None, "int4_dithered", "int4"))
    assert nearest > 5 * plain
    assert dithered < 0.5 * nearest


def test_the_docs_are_made_from_the_results():
    found = {table.key: table for table in tables_in(DOCS.read_text())}
    for table in tables():
        assert found[table.key] == table
