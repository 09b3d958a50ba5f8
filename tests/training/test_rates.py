"""The rate finder, against runs that are made one by one and against a known best rate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx

CURVATURE = np.array([1.0, 0.25])


def loss(p, batch):
    return 0.5 * jnp.sum(jnp.asarray(CURVATURE, jnp.float32) * (p - batch) ** 2)


START, BATCHES = jnp.zeros(2), jnp.ones((30, 2))


def test_losses_are_those_of_runs_made_one_by_one():
    """In NumPy: gradient descent of a quadratic; the best rate is 2 / (1 + 1/4)."""
    rates = [0.1, 0.4, 1.6, 1.95, 2.1, 20.0]
    found = gradtx.find_rate(loss, gradtx.sgd, START, BATCHES, rates, stop=3.0, tolerance=0.1)
    for rate, losses in zip(rates, found.losses, strict=True):
        errors = (1 - rate * CURVATURE) ** np.arange(30)[:, None]
        want = 0.5 * errors**2 @ CURVATURE
        want = np.where(np.maximum.accumulate(want) > 3 * want[0], np.inf, want)
        np.testing.assert_allclose(losses, want, rtol=1e-3, atol=1e-7)
    assert found.suggestion == 1.6
    assert found.diverged == (2.1, 20.0)
    assert np.isfinite(found.losses).sum(1).tolist() == [30, 30, 30, 30, 7, 1]
    np.testing.assert_array_equal(found.final, found.losses[:, -3:].mean(1))
    assert found.tolerance == 0.1


def test_what_an_optimizer_does_at_some_steps_is_done_at_these_alone():
    """The counts of all rates are equal, and stay one number: a branch is not taken for nothing."""
    taken = []

    def build(rate):
        def refresh(at):
            jax.debug.callback(lambda: taken.append(1))
            return at

        def update(updates, state, params=None):
            state = jax.lax.cond(state % 10 == 0, refresh, lambda at: at, state)
            return jax.tree.map(lambda g: -rate * g, updates), state + 1

        return gradtx.GradientTransformation(lambda params: jnp.int32(0), update)

    found = gradtx.find_rate(loss, build, START, BATCHES[:12], [0.4, 1.6, 20.0])
    jax.effects_barrier()
    assert len(taken) == 2
    assert found.diverged == (20.0,)
    np.testing.assert_array_equal(found.final, found.losses[:, -1])


def test_the_basin_is_what_lies_within_the_tolerance():
    sweep = gradtx.RateSweep(
        np.array([1.0, 2.0, 3.0, 4.0, 5.0]),
        np.ones((5, 1)),
        np.array([1.0, 1.5, 1.01, 1.0, 2.0]),
        0.02,
    )
    assert (sweep.suggestion, sweep.basin) == (1.0, (1.0, 1.0))
    sweep = gradtx.RateSweep(sweep.rates, sweep.losses, np.array([9.0, 1.01, 1.0, 1.02, 2.0]), 0.02)
    assert sweep.basin == (2.0, 4.0)
    assert "basin 2 to 4" in str(sweep)
    ends = gradtx.RateSweep(sweep.rates[:3], sweep.losses[:3], -np.array([1.97, 2, 1.965]), 0.02)
    assert ends.basin == (1.0, 3.0)
    pytest.importorskip("matplotlib")
    assert sweep.plot().axes[0].get_xlabel() == "learning rate"


def test_the_picture_shows_the_rates_that_diverged():
    pytest.importorskip("matplotlib")
    final = np.array([2.0, 1.0, np.inf, np.inf])
    axes = gradtx.RateSweep(np.arange(1.0, 5.0), np.ones((4, 1)), final, 0.02).plot().axes[0]
    dotted = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == ":"]
    assert dotted == [3.0, 4.0]
    assert [text.get_text() for text in axes.get_legend().texts] == ["suggestion", "diverged"]


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="positive"):
        gradtx.find_rate(loss, gradtx.sgd, START, BATCHES, [0.1, -1.0])
    with pytest.raises(ValueError, match="first axis"):
        gradtx.find_rate(loss, gradtx.sgd, START, {"a": BATCHES, "b": BATCHES[:3]})
    with pytest.raises(ValueError, match=r"first axis, which have the lengths \[0\]"):
        gradtx.find_rate(loss, gradtx.sgd, START, 1.0)
    with pytest.raises(ValueError, match="each of the rates diverged, from 20 on: try lower"):
        gradtx.find_rate(loss, gradtx.sgd, START, BATCHES, [20.0, 30.0])
    with pytest.raises(ValueError, match="the loss of the start is not finite"):
        gradtx.find_rate(loss, gradtx.sgd, START * np.nan, BATCHES, [0.1, 0.2])


def test_progress_is_told_once_for_each_step_and_changes_no_bit():
    told = []
    found = gradtx.find_rate(loss, gradtx.sgd, START, BATCHES, progress=lambda *x: told.append(x))
    assert told == [(i, 30) for i in range(1, 31)]
    silent = gradtx.find_rate(loss, gradtx.sgd, START, BATCHES)
    np.testing.assert_array_equal(found.losses, silent.losses)
    np.testing.assert_allclose(silent.rates, np.sqrt(10) ** np.arange(-10, 1))


@pytest.mark.parametrize(("best", "way"), [(0, "lower"), (1, None), (2, "higher")])
def test_a_suggestion_at_an_end_of_the_range_says_where_to_go_on(best, way):
    final = np.where(np.arange(3) == best, 1.0, 2.0)
    text = str(gradtx.RateSweep(np.array([1.0, 2.0, 3.0]), np.ones((3, 1)), final, 0.02))
    assert (f"try {way} ones" in text) == (way is not None)
    assert ("try" in text) == (way is not None)
    assert text.splitlines()[-4].split() == ["rate", "loss"]


@pytest.mark.parametrize("count", [1, 2])
def test_one_rate_has_no_others_to_try(count):
    rates = np.arange(1.0, count + 1)
    text = str(gradtx.RateSweep(rates, np.ones((count, 1)), rates, 0.02))
    assert ("try lower ones" in text) == (count > 1)


@pytest.mark.slow
def test_the_loss_takes_a_batch_or_its_parts():
    """As elsewhere the loss may be ``(params, *args)``; one that takes a batch gets it whole."""
    inputs = np.random.default_rng(2).normal(size=(20, 8)).astype(np.float32)
    targets = 3 * inputs
    rates, start = [0.01, 0.1], np.float32(0)

    def of_parts(p, x, y):
        return jnp.mean((p * x - y) ** 2)

    def of_all(p, *args):
        return of_parts(p, *args)

    def of_batch(p, batch, scale=1.0):
        x, y = batch
        return scale * of_parts(p, x, y)

    losses = [
        gradtx.find_rate(loss_fn, gradtx.sgd, start, (inputs, targets), rates).losses
        for loss_fn in (of_parts, of_all, of_batch)
    ]
    np.testing.assert_array_equal(losses[0], losses[1])
    np.testing.assert_array_equal(losses[0], losses[2])


def test_a_transformation_in_place_of_its_builder():
    with pytest.raises(TypeError, match="build must be a function of the rate"):
        gradtx.find_rate(lambda p, x: p * x, gradtx.adam(0.1), 0.0, jnp.ones(3))
