"""Forward gradients against the definition of the paper."""

import numpy as np
import pytest

import gradtx
from tests.estimators.oracles import (
    POINT,
    assert_agrees,
    assert_unbiased,
    gradient,
    loss,
)


def baydin(z):
    """Definition 1 of Baydin et al. 2022, averaged over directions."""
    return loss(POINT), np.mean([np.vdot(gradient(POINT), v) * v for v in z], axis=0)


@pytest.mark.quick(1)
@pytest.mark.parametrize("samples", [1, 3])
def test_the_paper(samples):
    estimator = gradtx.forward_gradients(samples)
    assert_agrees(estimator, baydin, samples)


@pytest.mark.slow
def test_the_mean_over_many_directions_is_the_gradient():
    assert_unbiased(gradtx.forward_gradients(4000), 4000)


def test_no_samples_are_refused_by_name():
    with pytest.raises(ValueError, match="forward_gradients: samples"):
        gradtx.forward_gradients(0)
