"""PSGD LRA against its equations with dense matrices, and against its author's code."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.optimizers import psgd_lra
from tests.golden import make_psgd

RATE, B1, DECAY, RANK, FIT, START = 0.05, 0.7, 0.4, 2, 0.2, 0.6
MEMORY, DAMPING, RMS, ENTRY, CHANCE = 0.8, 0.3, 0.9, 1.5, 0.6
SHAPES = {"a": (3, 2), "b": (2,), "c": ()}
STEPS = 12


def single(key, shape, complex_too):
    return jax.random.normal(key, shape, jnp.complex64 if complex_too else jnp.float32)


def flat(leaves, complex_too):
    """One vector of real numbers: for complex ones the real parts and behind them the others."""
    x = np.concatenate([np.reshape(np.asarray(leaf, np.complex128), -1) for leaf in leaves])
    return np.concatenate([x.real, x.imag]) if complex_too else x.real


def drawn(key, shapes, complex_too):
    keys = jax.random.split(key, len(shapes))
    return [single(k, s, complex_too) for k, s in zip(keys, shapes, strict=True)]


def columns(key, complex_too):
    """The first `U` and `V`."""
    found = drawn(key, [(2, RANK, *shape) for shape in SHAPES.values()], complex_too)
    found = [np.reshape(leaf, (2 * RANK, *leaf.shape[2:])) for leaf in found]
    x = np.stack([flat([leaf[i] for leaf in found], complex_too) for i in range(2 * RANK)], 1)
    return [y * np.sqrt(0.1) / np.linalg.norm(y) for y in (x[:, :RANK], x[:, RANK:])]


def transcription(ps, gs, complex_too, scale, whiten_momentum):
    """Everything with dense matrices and inverses, in float64."""
    key, first = jax.random.split(jax.random.key(5))
    p, m, memory = ps, 0.0, [0.0, 0.0, 0.0]
    u, v = columns(first, complex_too)
    for t, g in enumerate(gs, 1):
        key, now = jax.random.split(key)
        chance, side, noise = jax.random.split(now, 3)
        beta = min((t - 1) / t, B1)
        m = beta * m + (1 - beta) * g
        x = m if whiten_momentum else g
        if not any(memory):
            count = len(x) // (1 + complex_too)
            sq = np.sum(x.reshape(-1, count) ** 2, 0)
            d = np.ones(len(x)) * (scale or (np.mean(sq**2) + DAMPING**4) ** (-1 / 8))
        together = functools.partial(shared, complex_too=complex_too)
        if float(jax.random.uniform(chance)) < CHANCE and np.any(x):
            z = flat(drawn(noise, SHAPES.values(), complex_too), complex_too)
            size = np.sqrt(together(x * x))
            h = x + (DAMPING + np.finfo(np.float32).eps * size) * z
            rho = np.sqrt(np.linalg.norm(u) / np.linalg.norm(v))
            u, v = u / rho, v * rho
            e = 0.1 * (u.T @ u - v.T @ v) / (np.sum(u * u) + np.sum(v * v))
            u, v = u @ (np.eye(RANK) - e + e @ e / 2), v @ (np.eye(RANK) + e + e @ e / 2)
            left = np.eye(len(x)) + u @ v.T
            q = left * d
            a, b = q @ h, np.linalg.solve(q.T, z)
            seen, wanted = together(h * (q.T @ a)), together(z * np.linalg.solve(q, b))
            d = (
                d
                - FIT / remember(memory, 2, max(abs(seen)) + max(abs(wanted))) * (seen - wanted) * d
            )
            move = np.outer(a, a) - np.outer(b, b)
            norm = np.linalg.norm
            if float(jax.random.uniform(side)) < 0.5:
                now = norm(a) * norm(v @ v.T @ a) + norm(b) * norm(v @ v.T @ b)
                u = u - FIT / remember(memory, 0, now) * move @ v @ (np.eye(RANK) + v.T @ u)
            else:
                now = norm(a) * norm(u @ u.T @ a) + norm(b) * norm(u @ u.T @ b)
                v = v - FIT / remember(memory, 1, now) * (np.eye(len(x)) + v @ u.T) @ move @ u
        q = (np.eye(len(x)) + u @ v.T) * d
        w = q.T @ q @ m
        w = w / max(1, np.sqrt(np.sum(w * w) / (len(w) // (1 + complex_too))) / RMS)
        w = w / np.maximum(1, np.sqrt(together(w * w)) / ENTRY)
        p = p - RATE * (w + DECAY * p)
        yield p


def shared(x, complex_too):
    """What the two parts of complex numbers have together, for both."""
    return np.tile(np.sum(x.reshape(2, -1), 0), 2) if complex_too else x


def remember(memory, i, size):
    memory[i] = max(size, MEMORY * memory[i] + (1 - MEMORY) * size)
    return memory[i]


def numbers(shape, rng, complex_too):
    x = rng.normal(size=shape) + 1j * complex_too * rng.normal(size=shape)
    return (x if complex_too else x.real).astype(np.complex64 if complex_too else np.float32)


@pytest.mark.slow
@pytest.mark.paper("psgd_lra")
@pytest.mark.parametrize(
    ("complex_too", "scale", "whiten_momentum"),
    [(False, None, False), (False, START, True), (True, None, True)],
    ids=["gradients", "momentum", "complex"],
)
def test_psgd_lra(complex_too, scale, whiten_momentum):
    """Li 2022 and 2024, in the form of psgd_torch."""
    rng = np.random.default_rng(0)
    p = {name: numbers(shape, rng, complex_too) for name, shape in SHAPES.items()}
    sizes = np.logspace(-1, 1, STEPS + 1)
    gs = [
        {n: np.asarray(s * numbers(x.shape, rng, complex_too), x.dtype) for n, x in p.items()}
        for s in sizes
    ]
    gs[0] = jax.tree.map(np.zeros_like, gs[0])
    tx = gradtx.psgd_lra(
        RATE,
        B1,
        DECAY,
        rank=RANK,
        preconditioner_update_probability=CHANCE,
        preconditioner_lr=FIT,
        preconditioner_init_scale=scale,
        norm_decay=MEMORY,
        damping=DAMPING,
        max_rms=RMS,
        max_entry=ENTRY,
        whiten_momentum=whiten_momentum,
        key=5,
    )
    step, state = jax.jit(tx.update), tx.init(p)
    flats = [flat(g.values(), complex_too) for g in gs]
    wanted = transcription(
        flat(p.values(), complex_too), flats, complex_too, scale, whiten_momentum
    )
    for g, want in zip(gs, wanted, strict=True):
        u, state = step(g, state, p)
        p = gradtx.apply_updates(p, u)
        np.testing.assert_allclose(flat(p.values(), complex_too), want, rtol=1e-4, atol=2e-5)


@pytest.mark.slow
@pytest.mark.library("psgd_lra")
def test_it_is_its_authors(monkeypatch):
    """With the same draws, in float64."""
    gs, noise, coins, start = make_psgd.drawn()
    with jax.enable_x64(True):
        d = jnp.full(make_psgd.LRA[0], make_psgd.SCALE)
        monkeypatch.setattr(psgd_lra, "_diagonal", lambda *_: [d])
        given = {"preconditioner_lr": make_psgd.RATE, "max_rms": np.inf, "max_entry": np.inf}
        tx = gradtx.scale_by_psgd_lra(0.0, make_psgd.LRA[1], **given)

        def step(g, state, v, coin):
            monkeypatch.setattr(psgd_lra, "random_like", lambda key, tree: [v])
            monkeypatch.setattr(jax.random, "uniform", lambda key, dtype: coin)
            return tx.update(g, state)

        step, found = jax.jit(step), []
        gs = jnp.asarray(gs, jnp.float64)
        state = tx.init(gs[0])._replace(columns=jnp.stack([x.T for x in start]))
        for g, v, coin in zip(gs, noise, coins, strict=True):
            u, state = step(g, state, v, coin)
            found.append(np.asarray(u))
    with np.load(make_psgd.FILE) as golden:
        np.testing.assert_allclose(found, golden["lra"], rtol=1e-9, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("g", "damping"),
    [
        ([0.0, 0.0, 0.0], 0.0),
        ([0.0, 0.0, 0.0], 1e-9),
        ([1e3, -2e3, 3e3], 1e-9),
        ([1.0, -2.0, 3.0], 0.5),
        ([4.0], 0.5),
    ],
)
def test_before_the_first_fit(g, damping):
    """The diagonal follows from the gradient and the damping; a direction that is long is cut."""
    given = {"preconditioner_update_probability": 0.0, "max_rms": 0.1}
    tx, g = gradtx.scale_by_psgd_lra(damping=damping, **given), jnp.array(g)
    u, state = tx.update(g, tx.init(g))
    fourth = np.mean(np.float64(g) ** 4) + damping**4
    np.testing.assert_allclose(state.diagonal, fourth ** (-1 / 8) if fourth else 1.0, rtol=1e-6)
    rms = np.sqrt(np.mean(np.square(u)))
    np.testing.assert_allclose(rms, 0.1 if np.any(g) else 0.0, rtol=1e-6)


@pytest.mark.slow
def test_noise_without_damping_is_rounding(monkeypatch):
    """What is fitted to is kept in place of the fit."""

    def kept(q, norms, hs, *_):
        return q._replace(diagonal=hs), norms

    monkeypatch.setattr(psgd_lra, "_fitted", kept)
    tx = gradtx.scale_by_psgd_lra(rank=1, damping=0.0, key=5)
    rng = np.random.default_rng(0)
    g = (rng.normal(size=50) * np.logspace(-6, 6, 50)).astype(np.float32)
    begun = tx.init(g)
    _, state = tx.update(jnp.asarray(g), begun)
    _, now = jax.random.split(begun.key)
    (v,) = drawn(jax.random.split(now, 3)[2], [(50,)], complex_too=False)
    precision = np.finfo(np.float32).eps
    want = g + np.float64(precision) * np.abs(g) * np.float64(v)
    np.testing.assert_allclose(state.diagonal, want, rtol=precision)


@pytest.mark.slow
def test_correlated_gradients_become_white():
    """Of two leaves, whose entries are mixed by two vectors and of unlike size."""
    rng = np.random.default_rng(0)
    mixed = np.eye(9) + rng.normal(size=(9, 2)) @ rng.normal(size=(2, 9))
    gs = (rng.normal(size=(8000, 9)) @ mixed * np.logspace(-1, 0, 9)).astype(np.float32)
    given = {"max_rms": np.inf, "max_entry": np.inf}
    given["preconditioner_lr"] = gradtx.linear_schedule(0.1, 0.01, 4000)
    tx = gradtx.scale_by_psgd_lra(0.0, 3, **given)

    def step(state, g):
        u, state = tx.update((g[:6].reshape(2, 3), g[6:]), state)
        return state, jnp.concatenate([u[0].reshape(-1), u[1]])

    state = tx.init((jnp.zeros((2, 3)), jnp.zeros(3)))
    us = np.asarray(jax.jit(lambda gs: jax.lax.scan(step, state, gs)[1])(gs))[4000:]
    np.testing.assert_allclose(us.T @ us / len(us), np.eye(9), atol=0.4)


@pytest.mark.slow
def test_what_is_not_finite_leaves_the_preconditioner():
    tx, g = gradtx.scale_by_psgd_lra(0.0, 2), jnp.array([1.0, -2.0, 3.0])
    step = jax.jit(tx.update)
    _, state = step(g, tx.init(g))
    for bad in (jnp.zeros(3), jnp.full(3, jnp.nan), jnp.array([1.0, jnp.inf, 0.0])):
        _, after = step(bad, state)
        for name in ("columns", "diagonal", "norms"):
            np.testing.assert_array_equal(getattr(after, name), getattr(state, name))
    assert not np.array_equal(step(g, state)[1].diagonal, state.diagonal)


@pytest.mark.slow
def test_a_tpu_mixes_the_columns_of_leaves_by_sums():
    rng = np.random.default_rng(0)
    c, rows = (jnp.asarray(rng.normal(size=n), jnp.float32) for n in ((4, 6), (6, 3, 2)))
    for x in (c, c[0]):
        with jax.numpy_rank_promotion("raise"):
            found = psgd_lra._by_sums(x, rows)
        np.testing.assert_allclose(found, np.tensordot(x, rows, 1), rtol=1e-5)
    tx = gradtx.scale_by_psgd_lra()

    def products(leaves, platform):
        p = {str(i): jnp.zeros(2 + i) for i in range(leaves)}
        lowered = jax.jit(tx.update).trace(p, tx.init(p)).lower(lowering_platforms=(platform,))
        return lowered.as_text().count("dot_general")

    assert products(1, "tpu") == products(3, "tpu") < products(1, "cpu") < products(3, "cpu")
