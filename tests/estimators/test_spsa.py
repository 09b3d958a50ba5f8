"""Simultaneous perturbation against Spall's and MeZO's formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests.estimators.oracles import (
    POINT,
    assert_agrees,
    assert_unbiased,
    estimated,
    loss,
)

SCALE, SAMPLES = 0.2, 3


def spall(z):
    """Equation 2.2 of Spall 1992, averaged over directions; it divides by each entry."""
    each, values = [], []
    for delta in z:
        above, below = loss(POINT + SCALE * delta), loss(POINT - SCALE * delta)
        each.append((above - below) / (2 * SCALE * delta))
        values += [above, below]
    return np.mean(values), np.mean(each, axis=0)


def mezo(z):
    """Algorithm 1 and definition 1 of Malladi et al. 2023: the projected gradient times z."""
    total, values = np.zeros_like(POINT), []
    for each in z:
        theta = POINT + SCALE * each
        above = loss(theta)
        theta = theta - 2 * SCALE * each
        below = loss(theta)
        projected = (above - below) / (2 * SCALE)
        total += projected * each
        values += [above, below]
    return np.mean(values), total / len(z)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("distribution", "transcription"),
    [("rademacher", spall), ("normal", mezo), ("sphere", mezo)],
)
def test_the_papers(distribution, transcription):
    estimator = gradtx.spsa(SCALE, SAMPLES, distribution)
    assert_agrees(estimator, transcription, SAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("distribution", ["rademacher", "normal", "sphere"])
def test_the_mean_over_many_directions_is_the_gradient(distribution):
    estimator = gradtx.spsa(1e-2, 4000, distribution)
    assert_unbiased(estimator, 4000)


@pytest.mark.slow
def test_a_scale_is_an_array_that_is_swept():
    def at(estimator):
        return gradtx.compute_gradients(
            loss, POINT.astype("float32"), gradients=estimator, gradients_key=jax.random.key(0)
        )[1]

    scales = np.float32([0.1, 0.4])
    several = jax.jit(jax.vmap(at))(gradtx.spsa(scales))
    for scale, found in zip(scales, several, strict=True):
        np.testing.assert_allclose(found, estimated(gradtx.spsa(float(scale)))[1], rtol=1e-3)


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"samples": 0}, ValueError, "samples"),
        ({"samples": 2.5}, ValueError, "samples"),
        ({"scale": 0.0}, ValueError, "scale"),
        ({"scale": -1e-3}, ValueError, "scale"),
        ({"scale": lambda count: 0.1}, TypeError, "scale.*replace"),
        ({"distribution": "uniform"}, ValueError, "distribution.*rademacher"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments, kind, words):
    with pytest.raises(kind, match=f"spsa.*{words}"):
        gradtx.spsa(**arguments)


@pytest.mark.parametrize("name", ["spsa", "evolution_strategies"])
def test_a_scale_is_one_number(name):
    sizes = {"population": 2} if name == "evolution_strategies" else {}
    estimator = getattr(gradtx, name)(**sizes, scale=jnp.array([0.01, 0.02]))
    with pytest.raises(ValueError, match="scale must be one number"):
        gradtx.compute_gradients(
            jnp.sum, jnp.ones(2), gradients=estimator, gradients_key=jax.random.key(0)
        )
