"""Adafactor against its paper and Optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import mean


def rms(x):
    return np.sqrt(np.mean(x * x))


def factored(square, s, beta, rows, columns):
    """Shazeer and Stern 2018, algorithm 4, lines 6-8, of the two axes."""
    r = mean(s, "r", square.mean(axis=columns, keepdims=True), beta)
    c = mean(s, "c", square.mean(axis=rows, keepdims=True), beta)
    return r * c / r.mean(axis=rows, keepdims=True)


def adafactor(axes, beta, clip, scaled, momentum, decay):
    def update(g, s, t, p):
        square = g * g + 0.1
        v = factored(square, s, beta(t), *axes) if axes else mean(s, "v", square, beta(t))
        u = g / np.sqrt(v)
        u = 0.05 * u / (max(1.0, rms(u) / clip) if clip else 1.0)
        u = u * max(rms(p), 1e-3) if scaled else u
        m = mean(s, "m", u, momentum) if momentum else u
        return -m - (decay * p if decay else 0.0)

    return update


@pytest.mark.paper("adafactor")
@pytest.mark.parametrize(
    ("shape", "smallest", "axes"),
    [((4, 3), 2, (0, 1)), ((4, 3), 4, None), ((3, 5, 4), 4, (1, 2)), ((3,), 2, None)],
)
def test_adafactor_is_the_papers(shape, smallest, axes):
    """The largest two axes are factored."""
    tx = gradtx.adafactor(
        0.05, smallest, 0.6, 3, clipping_threshold=0.7, momentum=0.8, weight_decay_rate=0.3, eps=0.1
    )
    update = adafactor(axes, lambda t: 1 - max(t - 3, 1) ** -0.6, 0.7, True, 0.8, 0.3)
    oracle.check(tx, update, rtol=2e-5, atol=1e-5, shape=shape)


@pytest.mark.paper("adafactor")
def test_adafactor_without_all_that_may_be_left_out():
    tx = gradtx.adafactor(0.05, 2, 0.6, 0, False, clipping_threshold=None, eps=0.1, factored=False)
    update = adafactor(None, lambda t: 1 - t**-0.6, None, False, None, None)
    oracle.check(tx, update)


@pytest.mark.paper("adafactor")
@pytest.mark.parametrize("last", [False, True])
def test_adafactor_of_the_last_dimensions_with_a_decay_of_one_s_own(last):
    shape = (5, 3, 4)
    rule = gradtx.scale_by_factored_rms(
        True,
        0.6,
        2,
        3,
        0.1,
        lambda steps, rate: rate * (steps + 2) / (steps + 5),
        factor_last_dims=last,
    )
    axes = (1, 2) if last else (2, 0)
    update = adafactor(axes, lambda t: 0.6 * (t - 1) / (t + 2), None, False, None, None)
    tx = gradtx.chain(rule, gradtx.scale(-0.05))
    oracle.check(tx, update, rtol=2e-5, atol=1e-5, shape=shape)


@pytest.mark.quick(2)
@pytest.mark.parametrize("shape", [(3, 5, 4), (6, 4, 5, 2), (5, 5), (7,), ()])
def test_adafactor_factors_the_dimensions_that_optax_factors(shape):
    p, gs = oracle.parameters(shape=shape), oracle.gradients(shape=shape, steps=20)
    ours, theirs = (
        gradtx.scale_by_factored_rms(True, 0.8, 0, 2),
        optax.scale_by_factored_rms(True, 0.8, 0, 2),
    )
    shapes = [[x.shape for x in jax.tree.leaves(tx.init(jnp.asarray(p)))] for tx in (ours, theirs)]
    assert shapes[0] == shapes[1]
    np.testing.assert_allclose(
        oracle.run(ours, p, gs), oracle.run(theirs, p, gs), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("clip", [None, 1.0])
def test_states_of_adafactor_are_as_many_as_optaxs(clip):
    states = [
        lib.adafactor(0.1, clipping_threshold=clip).init(jnp.ones(2)) for lib in (gradtx, optax)
    ]
    assert len(states[0]) == len(states[1])


def test_adafactor_with_an_offset_begins_with_finite_steps():
    """Optax raises a negative number to a fractional power here."""
    tx = gradtx.scale_by_factored_rms(step_offset=10)
    p = jnp.zeros(1)
    updates, _ = tx.update(jnp.array([2.0]), tx.init(p))
    np.testing.assert_allclose(updates, [1.0], rtol=1e-6)


def test_adafactor_of_zero_gradients_in_float16_stays():
    """An epsilon of 1e-30 underflows in float16."""
    tx = gradtx.adafactor(0.1, 2)
    p = jnp.ones((2, 2), jnp.float16)
    updates, _ = tx.update(jnp.zeros_like(p), tx.init(p), p)
    np.testing.assert_array_equal(updates, 0)


@pytest.mark.parametrize(("shape", "full"), [((4, 1), (1,)), ((0, 3), (0, 3))])
def test_a_matrix_without_entries_is_not_factored(shape, full):
    tx, p = gradtx.scale_by_factored_rms(min_dim_size_to_factor=0), jnp.ones(shape)
    updates, state = tx.update(p, tx.init(p), p)
    assert updates.shape == shape
    assert state.v.shape == full
