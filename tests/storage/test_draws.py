"""Random numbers from a key and a place: even, independent, and the same in a part of a slot."""

import numpy as np
import pytest
from scipy import stats

from gradtx.storage.draws import Draws

SHAPE = (512, 1024)


def drawn(*key):
    return np.asarray(Draws.of(key, SHAPE).uniform(SHAPE), np.float64)


def test_the_hash_is_its_source():
    """C. Wellons, hash-prospector: lowbias32, in Python's integers."""

    def mixed(x):
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            x = (x ^ (x >> shift)) * factor % 2**32
        return x ^ (x >> 16)

    first, second = 0xDEADBEEF, 0x12345678
    want = [(mixed((mixed(i ^ first) + second) % 2**32) >> 9) / 2**23 for i in range(6)]
    key = tuple(np.uint32(x).astype(np.int32) for x in (first, second))
    np.testing.assert_array_equal(Draws.of(key, (2, 3)).uniform((2, 3)).reshape(-1), want)


@pytest.mark.slow
@pytest.mark.parametrize("key", [(0, 0), (1, 0), (-5, 2**31 - 1)])
def test_numbers_are_even_and_independent(key):
    """Also in their lower bits, of neighbours along both dimensions, and of neighbouring keys."""
    x = drawn(*key)
    assert x.min() >= 0
    assert x.max() < 1
    for y in (x, x * 2**12 % 1):
        assert stats.kstest(y.reshape(-1), "uniform").pvalue > 1e-3
    pairs = [(x[:, :-1], x[:, 1:]), (x[:-1], x[1:]), (x[:-256], x[256:])]
    pairs += [(x, drawn(key[0] ^ 1, key[1])), (x, drawn(key[0], key[1] ^ 1))]
    for a, b in pairs:
        assert abs(np.corrcoef(a.reshape(-1), b.reshape(-1))[0, 1]) < 4 / np.sqrt(a.size)


@pytest.mark.slow
def test_a_part_has_the_numbers_of_the_whole_beyond_two_billion_entries():
    whole = Draws.of((7, 8), (2**20, 2**14))
    far = whole.part((3 * 2**16 + 3, 5)).uniform((2, 4))
    again = whole.part((3 * 2**16, 0)).uniform((5, 9))[3:, 5:]
    np.testing.assert_array_equal(far, again)
    assert not np.array_equal(far, whole.part((3, 5)).uniform((2, 4)))
