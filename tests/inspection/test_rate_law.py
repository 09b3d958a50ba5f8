"""Rate laws against a known law, and against NumPy's own covariance of a fit."""

import math

import numpy as np
import pytest

import gradtx


def runs(noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    return [
        {
            "width": w,
            "batch": b,
            "rate": 3 * w**-0.9 * b**0.4 * math.exp(noise * rng.normal()),
        }
        for w in (32, 64, 128, 256)
        for b in (8, 32, 128)
    ]


def test_it_finds_the_powers_and_predicts():
    law = gradtx.fit_rate_law(runs())
    np.testing.assert_allclose(law.exponents, (-0.9, 0.4), rtol=1e-9)
    rate, factor = law.predict(width=100, batch=16)
    assert rate == pytest.approx(3 * 100**-0.9 * 16**0.4)
    assert factor == pytest.approx(1)


def test_errors_are_those_of_numpy():
    points = [{"width": r["width"], "rate": r["rate"]} for r in runs(0.1) if r["batch"] == 32]
    law = gradtx.fit_rate_law(points)
    x, y = (np.log([p[name] for p in points]) for name in ("width", "rate"))
    fit, covariance = np.polyfit(x, y, 1, cov=True)
    np.testing.assert_allclose((law.exponents[0], law.errors[0]), (fit[0], covariance[0, 0] ** 0.5))
    at = np.array([np.log(50), 1.0])
    spread = math.sqrt(at @ covariance @ at + law.deviation**2)
    np.testing.assert_allclose(law.predict(width=50)[1], math.exp(spread))


def test_a_standard_error_covers_two_thirds():
    inside = 0
    for seed in range(200):
        law = gradtx.fit_rate_law(runs(0.2, seed))
        inside += abs(law.exponents[0] + 0.9) < law.errors[0]
    assert 0.58 < inside / 200 < 0.76


def test_it_goes_beyond_the_runs_only_if_asked():
    law = gradtx.fit_rate_law(runs())
    with pytest.raises(ValueError, match="width = 512 is beyond the runs, which have 32 to 256"):
        law.predict(width=512, batch=8)
    assert law.predict(width=512, batch=8, extrapolate=True)[0] > 0
    with pytest.raises(ValueError, match="width, batch"):
        law.predict(width=64)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "too few"),
        (runs()[:1], "1 runs are too few for 2 names"),
        (runs()[:3], "too few"),
        ([{"a": x, "b": 2 * x, "rate": 1.0} for x in (1, 2, 3, 4)], "apart"),
        ([{"a": x, "rate": -1.0} for x in (1, 2, 3)], "positive"),
    ],
)
def test_bad_runs_are_refused(given, says):
    with pytest.raises(ValueError, match=says):
        gradtx.fit_rate_law(given)
