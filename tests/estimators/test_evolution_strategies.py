"""Evolution strategies against the formulas of the paper."""

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
    gradient,
    loss,
)

POPULATION, SCALE = 8, 0.3


def salimans(z, *, ranks):
    """Algorithm 1 with mirrored noise: the gradient of the mean, over a population."""
    noise = np.concatenate([z, -z])
    values = np.array([loss(POINT + SCALE * each) for each in noise])
    shaped = values
    if ranks:
        order = np.empty(len(values))
        order[np.argsort(values)] = np.arange(len(values))
        shaped = order / (len(values) - 1) - 0.5
    total = sum(f * each for f, each in zip(shaped, noise, strict=True))
    return values.mean(), total / (len(noise) * SCALE)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [True, False])
def test_the_paper(ranks):
    estimator = gradtx.evolution_strategies(POPULATION, SCALE, ranks)
    wanted = lambda z: salimans(z, ranks=ranks)  # noqa: E731
    assert_agrees(estimator, wanted, POPULATION // 2)


@pytest.mark.slow
def test_without_ranks_it_is_that_of_spsa_with_normal_directions():
    with jax.enable_x64(True):
        ours = estimated(gradtx.evolution_strategies(POPULATION, SCALE, ranks=False))
        twin = estimated(gradtx.spsa(SCALE, POPULATION // 2, "normal"))
    np.testing.assert_allclose(ours[1], twin[1], rtol=1e-12)
    assert ours[0] == twin[0]


@pytest.mark.slow
def test_the_mean_over_many_directions_is_the_gradient_of_the_smoothed_loss():
    """Of a cube, smoothed by normal noise, it is that of the cube and 3 times the variance."""
    wanted = gradient(POINT) + 3 * 0.1**2
    assert_unbiased(gradtx.evolution_strategies(8000, 0.1, ranks=False), 4000, wanted)


def weights_of(values):
    return gradtx.evolution_strategies(4, 1.0).evaluations.weights(jnp.float32(values))


@pytest.mark.slow
def test_ranks_are_those_of_any_increasing_function():
    values = np.float32([[3.0, 1.0], [2.0, 8.0]])
    np.testing.assert_array_equal(weights_of(values), weights_of(np.exp(values)))


@pytest.mark.slow
def test_equal_losses_share_their_ranks():
    np.testing.assert_array_equal(weights_of([[1.0, 1.0], [2.0, 2.0]]), [0.0, 0.0])
    np.testing.assert_allclose(weights_of([[1.0, 0.0], [1.0, 1.0]]), [1 / 6, 0.0], rtol=1e-6)


@pytest.mark.slow
def test_losses_that_are_not_finite_rank_last_and_none_that_is_gives_nan():
    worst = weights_of([[3.0, 1.0], [2.0, 9.0]])
    for bad in (np.nan, np.inf, -np.inf):
        np.testing.assert_array_equal(weights_of([[3.0, 1.0], [2.0, bad]]), worst)
    assert np.all(np.isnan(weights_of([[np.nan, np.inf], [np.nan, np.nan]])))


@pytest.mark.parametrize(
    ("population", "scale", "word"), [(3, 0.1, "even"), (0, 0.1, "population"), (4, 0.0, "scale")]
)
def test_bad_arguments_are_refused_by_name(population, scale, word):
    with pytest.raises(ValueError, match=f"evolution_strategies.*{word}"):
        gradtx.evolution_strategies(population, scale)
