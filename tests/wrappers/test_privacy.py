"""Differential privacy: Optax's numbers, the noise's size, and one noise for a window."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx

P = {"b": jnp.zeros(3), "w": jnp.zeros((2, 3))}


def examples(n, seed=0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda p: jnp.asarray(rng.normal(size=(n, *p.shape)), jnp.float32), P)


def part(grads, start, stop):
    return jax.tree.map(lambda g: g[start:stop], grads)


@pytest.mark.slow
def test_aggregate_equals_optax():
    ours = gradtx.differentially_private_aggregate(1.0, 0.5, key=3)
    theirs = optax.contrib.differentially_private_aggregate(1.0, 0.5, key=3)
    state, state_optax = ours.init(P), theirs.init(P)
    # Of gradients and noise a small sum may be left: it is as exact as float32 has these, 0.15.
    close = functools.partial(np.testing.assert_allclose, rtol=2e-6, atol=2**-24 * 0.15)
    for i in range(3):
        updates, state = ours.update(examples(8, i), state)
        want, state_optax = theirs.update(examples(8, i), state_optax)
        jax.tree.map(close, updates, want)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.complex64])
def test_noise_has_the_deviation_of_the_paper(dtype):
    tx = gradtx.differentially_private_aggregate(2.0, 3.0, key=0)
    zero = jnp.zeros((4, 40_000), dtype)
    updates, _ = tx.update(zero, tx.init(zero[0]))
    parts = [updates] if dtype == jnp.float32 else [updates.real, updates.imag]
    for x in parts:  # every real number has noise of its own
        np.testing.assert_allclose(jnp.std(x), 2.0 * 3.0 / 4, rtol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(6, 6), (2, 7, 3)])
def test_a_window_is_one_batch_and_has_one_noise(sizes):
    grads, ends = examples(12), np.cumsum((0, *sizes))
    whole = gradtx.differentially_private(gradtx.sgd(1.0), 1.0, 0.7, key=5)
    want, _ = whole.update(grads, whole.init(P), P)
    windowed = gradtx.differentially_private(gradtx.sgd(1.0), 1.0, 0.7, key=5, every=len(sizes))
    state = windowed.init(P)
    for i in range(len(sizes)):
        updates, state = windowed.update(part(grads, ends[i], ends[i + 1]), state, P)
        assert bool(gradtx.has_updated(state)) == (i == len(sizes) - 1)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), updates, want)


@pytest.mark.slow
def test_dpsgd_in_windows_equals_whole_batches():
    private = gradtx.differentially_private_aggregate(1.0, 0.5, 1)
    once = gradtx.chain(private, gradtx.sgd(0.1, momentum=0.9, nesterov=True))
    windows = gradtx.dpsgd(0.1, 1.0, 0.5, seed=1, momentum=0.9, nesterov=True, every=2)
    p, q, state, windowed = P, P, once.init(P), windows.init(P)
    for i in range(4):
        grads = examples(6, i)
        updates, state = once.update(grads, state, p)
        p = gradtx.apply_updates(p, updates)
        for j in range(0, 6, 3):
            updates, windowed = windows.update(part(grads, j, j + 3), windowed, q)
            q = gradtx.apply_updates(q, updates)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), p, q)


@pytest.mark.slow
def test_scheduled_clip_follows_the_windows():
    def clip(window):
        return jnp.where(window < 1, 1.0, 2.0)

    tx = gradtx.differentially_private(gradtx.scale(1.0), clip, 0.0, key=0, every=2)
    state, norms = tx.init(jnp.zeros(1)), []
    for _ in range(4):
        updates, state = tx.update(jnp.full((1, 1), 9.0), state)
        norms.append(round(float(updates[0]), 5))
    assert norms == [0.0, 1.0, 0.0, 2.0]


def test_dpsgd_takes_its_key_by_either_name_or_by_place():
    """Optax 0.2.8 calls the fourth argument seed, and later versions key."""
    states = [
        gradtx.dpsgd(0.1, 1.0, 0.5, *args, **named).init(jnp.zeros(2))
        for args, named in (((7,), {}), ((), {"key": 7}), ((), {"seed": 7}))
    ]
    assert states[0] == states[1] == states[2]
    for every in (1, 2):
        with pytest.raises(ValueError, match="dpsgd needs a key"):
            gradtx.dpsgd(0.1, 1.0, 0.5, every=every).init(jnp.zeros(2))
        with pytest.raises(ValueError, match="give one of the two"):
            gradtx.dpsgd(0.1, 1.0, 0.5, 7, seed=7, every=every).init(jnp.zeros(2))


def test_bad_input_is_refused():
    tx = gradtx.differentially_private_aggregate(1.0, 1.0, key=0)
    state = tx.init(P)
    with pytest.raises(ValueError, match="first dimension.*'b'"):
        tx.update({"b": jnp.zeros((2, 3)), "w": jnp.zeros((3, 2, 3))}, state)
    with pytest.raises(TypeError, match="'b' is Rows"):
        tx.update({"b": gradtx.Rows(jnp.array([0]), jnp.ones(1), (3,)), "w": P["w"]}, state)
    with pytest.raises(ValueError, match="needs a key"):
        gradtx.differentially_private(gradtx.sgd(0.1), 1.0, 1.0, None, every=2)
    # Around the whole there would be noise in every micro-batch.
    wrong = gradtx.accumulate(gradtx.dpsgd(0.1, 1.0, 1.0, seed=0), 2)
    with pytest.raises(ValueError, match="at 'b' .*differentially_private"):
        wrong.update(examples(2), wrong.init(P), P)


@pytest.mark.slow
def test_micro_batches_without_examples():
    tx = gradtx.differentially_private(gradtx.sgd(1.0), 10.0, 0.0, key=1, every=2)
    params = jnp.zeros(1)
    state, moves = tx.init(params), []
    for examples in (2, 0, 0, 0):
        updates, state = tx.update(jnp.ones((examples, 1)), state, params)
        moves.append(float(updates[0]))
    assert moves == [0, -1, 0, 0]
