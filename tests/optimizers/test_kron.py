"""PSGD Kron against its paper, in the form of its authors' code."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.optimizers import kron
from tests.golden import make_psgd
from tests.optimizers import matrix_trees
from tests.optimizers.papers import mean
from tests.programs import equations

RATE, B1, FIT, START, DAMPING, CAP, DECAY, CHANCE = 0.05, 0.7, 0.2, 0.6, 0.3, 0.9, 0.4, 0.6
NEWER = ["quadratic", "procrustes", "quadratic_p", "procrustes_p"]
# The first leaf of each shape in `matrix_trees.gradients`, whose key matrices of it share.
FIRST = {(4, 3): 0, (5, 6): 1, (2, 1): 2, (1, 2): 3, (3,): 6}


@functools.cache
def drawn(t, leaf, complex_too):
    """The number that decides whether to fit, and the noise, of one step."""
    key = jax.random.key(5)
    for _ in range(t):
        key, now = jax.random.split(key)
    chance, noise = jax.random.split(jax.random.split(now, 8)[leaf])
    shape = next(s for s, i in FIRST.items() if i == leaf)
    shape = shape if len(shape) == 2 else (*shape, 1)
    v = jax.random.normal(noise, shape, jnp.complex64 if complex_too else jnp.float32)
    return float(jax.random.uniform(chance)), np.asarray(v, np.complex128)


def lower_bound(x):
    """Of the spectral norm of a Hermitian matrix."""
    column = x @ x[:, np.argmax(np.linalg.norm(x, axis=0))]
    return np.linalg.norm(x @ column) / np.linalg.norm(column)


def of_kron(g, s, t, p, triangular):
    """Full matrices, of which those that are diagonal have no other entries."""
    x = g if g.ndim == 2 else g[:, None]
    m = mean(s, "m", x, B1) / (1 - B1**t)
    number, v = drawn(t, FIRST[g.shape], np.iscomplexobj(g))
    v = v if np.iscomplexobj(g) else v.real
    sides = 2 if g.ndim == 2 else 1
    qs = [s.setdefault(i, START ** (1 / sides) * np.eye(n)) for i, n in enumerate(x.shape[:sides])]
    qs += [np.eye(1)] * (2 - sides)
    if number < CHANCE and np.any(m):
        n = m + DAMPING * np.mean(abs(m)) * v
        a = qs[0] @ n @ qs[1].T
        b = np.linalg.inv(qs[0].conj().T) @ v @ np.linalg.inv(qs[1].conj())
        for i, (y, z) in enumerate([(a, b), (a.T, b.T)][:sides]):
            left, right = y @ y.conj().T, z @ z.conj().T
            if sides == 2 and triangular(i, x.shape):
                step = np.triu(left - right) / lower_bound(left + right)
            else:
                step = np.diag(np.diag(left - right)) / np.max(np.diag(left + right).real)
            s[i] = qs[i] - FIT * step @ qs[i]
            qs[i] = s[i]
    d = qs[0].conj().T @ qs[0] @ m @ qs[1].T @ qs[1].conj()
    d = d / max(1, np.sqrt(np.mean(abs(d) ** 2)) / CAP)
    return -RATE * (d.reshape(g.shape) + DECAY * p)


def turned(q):
    """By the rotation of at most 1/8 that makes the trace largest, to the second order."""
    skew = q.conj().T - q
    if not np.any(skew):
        return q
    turn = skew / lower_bound(skew)
    gain, bend = np.trace(turn @ q).real, np.trace(turn @ turn @ q).real
    angle = min(-gain / bend, 1 / 8) if bend < 0 else 1 / 8
    return q + angle * turn @ q + angle**2 / 2 * turn @ turn @ q


def turned_far(q):
    """By the rotation of at most 1/3 that makes the trace largest, to the third order, ten times.

    What is left to turn is at most a thousandth then, or it takes them all.
    """
    for _ in range(10):
        skew = q.conj().T - q
        if np.any(skew):
            turn = skew / lower_bound(skew)
            once, twice = turn @ q, turn @ turn @ q
            thrice = turn @ twice
            gain, bend, end = (np.trace(x).real for x in (once, twice, thrice))
            if gain > 0 > end:
                # The derivative of the trace, of whose zeros one is to the right.
                angle = min(max(np.roots([3 / 8 * end, bend, gain]).real), 1 / 3)
                q = q + angle * once + angle**2 / 2 * twice + angle**3 / 8 * thrice
        if np.max(abs(q.conj().T - q)) < 1e-3 * np.max(abs(q)):
            break
    return q


def without_solves(g, s, t, p, geometry):
    """The newer geometries of psgd_torch, without its memory of the largest norm."""
    x = g if g.ndim == 2 else g[:, None]
    m = mean(s, "m", x, B1) / (1 - B1**t)
    _, v = drawn(t, FIRST[g.shape], np.iscomplexobj(g))
    v = v if np.iscomplexobj(g) else v.real
    sides = 2 if g.ndim == 2 else 1
    of_p = geometry.endswith("_p")
    start = START ** ((2 if of_p else 1) / sides)
    qs = [s.setdefault(i, start * np.eye(n)) for i, n in enumerate(x.shape[:sides])]
    sizes = [np.max(abs(q)) for q in qs]
    qs = [q * np.exp(np.mean(np.log(sizes))) / size for q, size in zip(qs, sizes, strict=True)]
    qs += [np.eye(1)] * (2 - sides)
    if np.any(m):
        both = qs if of_p else [q.conj().T @ q for q in qs]
        w = both[0] @ (m + DAMPING * np.mean(abs(m)) * v) @ both[1].T
        for i, y in enumerate([w, w.T][:sides]):
            n, seen = y.shape[1], y @ y.conj().T
            if sides == 1 or x.shape[i] > 5:
                seen = np.diag(np.diag(seen))
                step = (seen - n * np.eye(len(seen))) * FIT / (np.max(seen.real) + n)
            else:
                step = (seen - n * np.eye(len(seen))) * FIT / (lower_bound(seen) + n)
            if geometry in ("quadratic", "quadratic_p"):
                step = step if of_p else step / 2
                half = qs[i] - step @ qs[i]
                whole = half - half @ step
                s[i] = (whole + whole.conj().T) / 2
            else:
                turn = turned_far if of_p else turned
                s[i] = turn(qs[i] - step @ qs[i])
            qs[i] = s[i]
    both = qs if of_p else [q.conj().T @ q for q in qs]
    d = both[0] @ m @ both[1].T
    d = d / max(1, np.sqrt(np.mean(abs(d) ** 2)) / CAP)
    return -RATE * (d.reshape(g.shape) + DECAY * p)


def spin(a):
    return np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]])


def blocks(x, y):
    return np.block([[x, np.zeros_like(y)], [np.zeros_like(x), y]])


def test_factors_are_turned_towards_hermitian_ones():
    """One that needs less, one that needs more, and two whose trace has no maximum nearby."""
    qs = np.stack([spin(a) for a in (0.1, 0.5, 2, 3)]) @ np.array([[1.0, 0.2], [0.2, 0.7]])
    found = jax.jit(kron._towards_hermitian)(qs.astype(np.float32))
    np.testing.assert_allclose(found, [turned(q) for q in qs], rtol=1e-5, atol=1e-6)


def test_factors_are_turned_far_towards_hermitian_ones():
    """Beside a block as it should be, or one that is small, and so is still turned after ten."""
    whole, start = np.array([[0.5, 0.1], [0.1, 0.3]]), np.eye(2)
    qs = [blocks(spin(a) @ whole, start) for a in (0.1, 0.5, 2, 3)]
    small = [blocks(spin(2) @ whole, spin(2) @ whole / 16)]
    # Those that are Hermitian but for rounding stay, or are turned by what rounding says.
    rng = np.random.default_rng(0)
    rounded = np.tril(rng.uniform(-1, 1, (300, 4, 4)), -1).astype(np.float32)
    ulp = rng.choice(np.array([0, 2**-23], np.float32), rounded.shape)
    rounded = rounded + 8 * np.eye(4, dtype=np.float32) + (rounded * (1 + ulp)).mT
    given = np.stack([*qs, *small, *rounded, *-rounded]).astype(np.float32)
    found = np.asarray(jax.jit(kron._nearly_hermitian)(given))
    far = [turned_far(q) for q in (*qs, *small)]
    np.testing.assert_allclose(found[:5], far, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[5:305], rounded, rtol=1e-6, atol=1e-6)
    assert np.max(abs(found[305:])) < 10


@pytest.mark.slow
@pytest.mark.parametrize("complex_too", [False, True])
@pytest.mark.parametrize("geometry", NEWER)
def test_factors_fitted_by_products_alone(geometry, complex_too):
    """`dQ` of psgd_torch: "QUAD", "Q0.5EQ1.5", "QUAD4P" and "PRO4P"."""
    given = {"preconditioner_lr": FIT, "preconditioner_init_scale": START, "geometry": geometry}
    given |= {"damping": DAMPING, "max_rms": CAP, "key": 5, "max_size_triangular": 5}
    update = functools.partial(without_solves, geometry=geometry)
    built = gradtx.kron(RATE, B1, DECAY, None, 1.0, **given)
    matrix_trees.check(built, update, update, complex_too=complex_too)


@pytest.mark.slow
@pytest.mark.library
@pytest.mark.parametrize("name", make_psgd.SHAPES)
@pytest.mark.parametrize("geometry", NEWER)
def test_the_newer_geometries_are_their_authors(geometry, name):
    """Without noise and momentum, where its factors do not remember the largest norm."""
    given = {"preconditioner_lr": make_psgd.RATE, "damping": 0.0, "max_rms": np.inf}
    given |= {"preconditioner_init_scale": make_psgd.SCALE, "geometry": geometry}
    gs = make_psgd.gradients(make_psgd.SHAPES[name])
    with jax.enable_x64(True):
        tx = gradtx.scale_by_kron(0.0, 1.0, **given)
        gs = jnp.asarray(gs, jnp.float64)
        step = jax.jit(tx.update)
        state, found = tx.init(gs[0]), []
        for g in gs:
            u, state = step(g, state)
            found.append(np.asarray(u))
    with np.load(make_psgd.FILE) as golden:
        np.testing.assert_allclose(found, golden[f"{geometry} {name}"], rtol=1e-9, atol=1e-11)


@pytest.mark.slow
def test_no_solve_is_in_the_newer_geometries():
    p = jnp.zeros((4, 3))
    for geometry in NEWER:
        tx = gradtx.scale_by_kron(geometry=geometry)
        found = equations(jax.make_jaxpr(tx.update)(p, tx.init(p)).jaxpr, ())
        assert "dot_general" in found
        assert "triangular_solve" not in found
    with pytest.raises(ValueError, match="geometry must be one of .'triangular', 'quadratic'"):
        gradtx.kron(0.1, geometry="euclidean").init(p)


@pytest.mark.slow
@pytest.mark.paper("kron")
@pytest.mark.parametrize(
    ("options", "triangular", "complex_too"),
    [
        ({}, lambda i, shape: shape[i] <= 5, False),
        ({"one_sided": True}, lambda i, shape: i == (shape[0] > shape[1]), True),
    ],
    ids=["large sides", "one side, complex"],
)
def test_kron(options, triangular, complex_too):
    """Li 2024, equations of section 4, in the form of psgd_jax."""
    given = {"preconditioner_lr": FIT, "preconditioner_init_scale": START}
    given |= {"damping": DAMPING, "max_rms": CAP, "key": 5, "max_size_triangular": 5}
    update = functools.partial(of_kron, triangular=triangular)
    built = gradtx.kron(RATE, B1, DECAY, None, CHANCE, **{**given, **options})
    matrix_trees.check(built, update, update, complex_too=complex_too)


@pytest.mark.slow
@pytest.mark.parametrize("geometry", ["triangular", *NEWER])
def test_matrices_become_white(geometry):
    """Of gradients whose rows and columns are correlated, and of very different size."""
    given = {"preconditioner_lr": 0.05, "max_rms": 10.0, "geometry": geometry}
    tx = gradtx.scale_by_kron(0.0, 1.0, **given)
    rng = np.random.default_rng(0)
    mixed = [np.eye(n) + rng.normal(size=(n, n)) for n in (4, 3)]
    gs = 1e-3 * mixed[0] @ rng.normal(size=(3000, 4, 3)) @ mixed[1].T

    def step(state, g):
        u, state = tx.update(g, state)
        return state, u

    us = np.asarray(jax.jit(lambda gs: jax.lax.scan(step, tx.init(gs[0]), gs)[1])(jnp.asarray(gs)))
    flat = us[1500:].reshape(1500, 12)
    np.testing.assert_allclose(flat.T @ flat / 1500, np.eye(12), atol=0.4)


@pytest.mark.slow
def test_fits_are_drawn_from_the_key_in_the_state():
    """With the probability of a schedule, and alike when run again."""
    chances = gradtx.piecewise_constant_schedule(1.0, {20: 0.25})
    tx = gradtx.scale_by_kron(preconditioner_update_probability=chances, key=3)
    g = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2)), jnp.float32)

    def fits():
        state, seen = tx.init(g), []
        for _ in range(100):
            old, (_, state) = state, tx.update(g, state)
            seen.append(
                not np.array_equal(gradtx.get_slot(old, "left"), gradtx.get_slot(state, "left"))
            )
        return seen

    found = fits()
    assert all(found[:20])
    assert 8 < sum(found[20:]) < 32
    assert found == fits()


@pytest.mark.slow
def test_how_often_factors_are_fitted_depends_on_the_steps_before(monkeypatch):
    monkeypatch.setattr(kron, "_SELDOM", lambda t: jnp.where(t == 1, 1.0, 0.0))
    tx, g = gradtx.scale_by_kron(), jnp.asarray(np.random.default_rng(0).normal(size=(3, 2)))
    state, fitted = tx.init(g), []
    for _ in range(3):
        old, (_, state) = state, tx.update(g, state)
        fitted.append(not np.array_equal(old.left, state.left))
    assert fitted == [False, True, False]


@pytest.mark.slow
def test_zeros_leave_the_factors():
    tx, p = gradtx.scale_by_kron(), jnp.zeros((4, 3))
    _, state = tx.update(p, tx.init(p))
    np.testing.assert_array_equal(state.left[0], np.eye(4))


@pytest.mark.slow
def test_matrices_are_fitted_in_a_condition_and_vectors_at_once():
    tx = gradtx.scale_by_kron()

    def traced(p, without=()):
        jaxpr = jax.make_jaxpr(tx.update)(p, tx.init(p)).jaxpr
        return equations(jaxpr, without)

    assert "triangular_solve" in traced(jnp.zeros((4, 3)))
    assert "triangular_solve" not in traced(jnp.zeros((4, 3)), without={"cond"})
    assert "cond" not in traced(jnp.zeros(4))
