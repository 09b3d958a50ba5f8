"""Which of many cases a newcomer's suite runs."""

import pytest


def quick(cases, *chosen):
    """The cases for `parametrize`; all but those chosen are slow."""
    return [c if c in chosen else pytest.param(c, marks=pytest.mark.slow) for c in cases]
