"""Polyak's step against its paper."""

import numpy as np
import pytest

import gradtx
from tests.optimizers.papers import VALUES, check


def positive(x):
    return max(x, 0.0)


@pytest.mark.paper("polyak_sgd")
@pytest.mark.parametrize("variant", ["sps", "sps+"])
def test_polyak_is_the_papers(variant):
    """Loizou et al. 2021, the bounded step; the scaling multiplies the step."""

    def update(g, s, t, p):
        gap = VALUES[t - 1] - 12.0
        gap = positive(gap) if variant == "sps+" else gap
        return -0.5 * min(gap / (np.sum(g * g) + 0.1), 0.7) * g

    check(gradtx.polyak_sgd(0.7, 0.5, f_min=12.0, eps=0.1, variant=variant), update)
