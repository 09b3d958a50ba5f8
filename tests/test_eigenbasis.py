"""Bases by products against NumPy in float64, their cost, and programs without decompositions."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.linalg import eigenbasis
from gradtx.linalg.eigenbasis import FIRST_SWEEPS, followed, sweep
from gradtx.linalg.linear_algebra import (
    by_eigenvalue,
    eigenbasis as gram_eigenbasis,
    orthogonal_iteration,
)
from gradtx.transforms.orthogonal import STANDARD, orthogonalized

RNG = np.random.default_rng(0)


def made(n, values):
    u = np.linalg.qr(RNG.normal(size=(n, n)))[0]
    return (u * values) @ u.T


def swept(a, q):
    """The equations of `sweep`, with the exact polar factor instead of its polynomials."""
    b = q.conj().T @ a @ q
    d = np.diag(b).real
    r = np.array([sum(abs(b[i, k]) ** 2 for k in range(len(b)) if k != i) for i in range(len(b))])
    s = np.zeros_like(b)
    tiny = 10 * np.finfo(np.float64).eps * np.max(abs(d))
    for i in range(len(b)):
        for j in range(len(b)):
            gap = d[j] - d[i]
            if i != j:
                s[i, j] = b[i, j] * gap / (gap**2 + (r[i] + r[j]) / 32 + tiny**2)
    m2 = s @ s @ s @ s
    size = min(np.max(np.sum(abs(m2), 1)), np.linalg.norm(m2)) ** 0.25
    u, _, v = np.linalg.svd(q @ (np.eye(len(b)) + s / max(1, size)))
    return u @ v


def off(a, q):
    squares = (q.T @ a @ q) ** 2
    return ((squares * (1 - np.eye(len(a)))).sum() / squares.sum()) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("complex_too", [False, True])
def test_a_sweep_is_what_its_equations_say(complex_too):
    x = RNG.normal(size=(6, 9)) + 1j * complex_too * RNG.normal(size=(6, 9))
    a = x @ x.conj().T if complex_too else (x @ x.T).real
    with jax.enable_x64(True):
        got, want = jnp.eye(6, dtype=a.dtype), np.eye(6, dtype=a.dtype)
        for _ in range(4):
            got, want = sweep(jnp.asarray(a), got), swept(a, want)
            np.testing.assert_allclose(got, want, atol=1e-6)
        # After the first step a basis follows by as many sweeps as are asked for.
        for sweeps in (1, 3):
            want = functools.reduce(lambda q, _: swept(a, q), range(sweeps), np.eye(6))
            later = followed([jnp.asarray(a)], [jnp.eye(6, dtype=a.dtype)], sweeps, False)[0]
            np.testing.assert_allclose(later, want, atol=1e-6)


@pytest.mark.slow
def test_eigenvalues_that_are_all_but_rounding_turn_less():
    """Beside a diagonal that is smaller than the largest entry, and entries of 0."""
    a = np.zeros((4, 4))
    a[:2, :2] = [[0.25, 1.0], [1.0, 0.25]]
    a[2:, 2:] = np.finfo(np.float64).eps * np.array([[3.0, 1.0], [1.0, 0.0]])
    with jax.enable_x64(True):
        got = sweep(jnp.asarray(a), jnp.eye(4))
    np.testing.assert_allclose(got, swept(a, np.eye(4)), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("values", [np.logspace(0, -4, 48), np.linspace(1, 0.1, 48)])
def test_a_fixed_matrix_is_as_diagonal_as_by_qr(values):
    a = made(48, values)
    x, products, by_qr = jnp.float32(a), jnp.eye(48), jnp.eye(48)
    for _ in range(100):
        products = jax.jit(sweep)(x, products)
        by_qr = orthogonal_iteration(x, by_qr[:, by_eigenvalue(x, by_qr)])
    found = np.asarray(products, np.float64)
    assert off(a, found) <= max(off(a, np.asarray(by_qr, np.float64)), 1e-6)
    np.testing.assert_allclose(np.sort(np.diag(found.T @ a @ found)), np.sort(values), atol=1e-6)


@pytest.mark.slow
def test_rough_products_are_enough_where_they_are_used(monkeypatch):
    """With operands of 10 bits, as a GPU may take them there; a TPU takes 16."""

    def of_ten_bits(a, b):
        return jax.lax.reduce_precision(a, 8, 10) @ jax.lax.reduce_precision(b, 8, 10)

    a = made(48, np.logspace(0, -4, 48))
    x = jnp.float32(a)

    def found():
        run = jax.jit(lambda: jax.lax.fori_loop(0, 60, lambda i, q: sweep(x, q), jnp.eye(48)))
        return np.asarray(run(), np.float64)

    exact = off(a, found())
    monkeypatch.setattr(eigenbasis, "roughly", of_ten_bits)
    rough = found()
    assert off(a, rough) < 2 * exact < 2e-6
    assert np.linalg.norm(rough.T @ rough - np.eye(48)) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_the_first_basis_of_a_matrix_without_full_rank_is_orthogonal(scale):
    g = RNG.normal(size=(2, 12, 3))
    a = g @ g.swapaxes(1, 2)
    found = np.asarray(
        jax.jit(lambda x: followed([x], [jnp.broadcast_to(jnp.eye(12), x.shape)], 1, True)[0])(
            jnp.float32(scale * a)
        )
    )
    for q, each in zip(found, a, strict=True):
        assert abs(q.T @ q - np.eye(12)).max() < 1e-5
        assert off(each, q.astype(np.float64)) < 1e-5
    of_nothing = followed([jnp.zeros((1, 3, 3))], [jnp.eye(3)[None]], 1, True)[0]
    np.testing.assert_array_equal(of_nothing[0], np.eye(3))
    assert FIRST_SWEEPS == 20


@pytest.mark.slow
@pytest.mark.parametrize("sweeps", [2, jnp.int32(2)])
def test_sides_of_one_shape_in_one_loop_are_those_by_themselves(sweeps):
    xs = [jnp.float32(made(8, np.linspace(1, 0.1, 8)))[None], jnp.float32(np.diag(range(8)))[None]]
    olds = [jnp.eye(8)[None], jnp.float32(made(8, np.sign(np.arange(8) - 3.5)))[None]]
    alone = [x for a, q in zip(xs, olds, strict=True) for x in followed([a], [q], sweeps, False)]
    together = jax.jit(followed)(xs, olds, sweeps, False)
    # A turn is an entry of two products of n terms, rounded, over a difference of eigenvalues.
    for got, want, x in zip(together, alone, xs, strict=True):
        values = np.linalg.eigvalsh(np.float64(x[0]))
        rounding = 2 * 8 * 2.0**-24 * abs(values).max() / np.diff(values).min()
        np.testing.assert_allclose(got, want, atol=rounding)
    # The products of a sweep stand in the program once.
    taken = [operations(followed, [x] * n, [x] * n, 1, False) for n, x in ((1, xs[0]), (2, xs[0]))]
    assert taken[1] < 1.2 * taken[0]


@pytest.mark.slow
def test_as_many_sweeps_as_steps_since_the_last_basis():
    x, start = jnp.float32(made(4, np.linspace(1, 0.1, 4))), jnp.eye(4)
    for every, sweeps in ((1, 1), (4, 4), (10, 4), (jnp.int32(1), 1), (jnp.int32(10), 4)):
        want = functools.reduce(lambda q, _: sweep(x, q), range(sweeps), start)
        (got,) = followed((x,), (start,), every, False)
        np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.slow
def test_ten_thousand_sweeps_stay_orthogonal_and_nearer_than_qr():
    """Off the diagonal by hundreds of steps from the hundredth on, beside QR from `eigh`."""

    def step(carry, key):
        a, products, by_qr, first = carry
        g = jax.random.normal(key, (32, 4)) * jnp.logspace(0, -2, 32)[:, None]
        a = 0.95 * a + 0.05 * g @ g.T
        products = sweep(a, products)
        by_qr = jax.lax.cond(
            first,
            lambda: gram_eigenbasis(a),
            lambda: orthogonal_iteration(a, by_qr[:, by_eigenvalue(a, by_qr)]),
        )
        error = jnp.linalg.norm(products.T @ products - jnp.eye(32))
        found = error, off(a, products), off(a, by_qr)
        return (a, products, by_qr, False), found

    keys = jax.random.split(jax.random.key(0), 10_000)
    start = jnp.zeros((32, 32)), jnp.eye(32), jnp.eye(32), True
    errors, *left = jax.jit(lambda: jax.lax.scan(step, start, keys)[1])()
    assert np.max(errors) <= 1e-5
    products, by_qr = (np.asarray(x)[100:].reshape(-1, 100).mean(1) for x in left)
    assert np.all(products < by_qr / 2)


def operations(function, *args):
    """Those of a program, in which XLA counts one turn of each loop."""
    return jax.jit(function).lower(*args).compile().cost_analysis()["flops"]


def muon(x):
    """Five iterations, one after the other: XLA counts what is in a loop once."""
    for row in jnp.asarray([STANDARD] * 5):
        x = orthogonalized(x, row[None], 1, "frobenius", 1e-7)
    return x


@pytest.mark.slow
def test_a_sweep_costs_less_than_muon():
    side = jax.ShapeDtypeStruct((256, 256), "float32")
    assert operations(sweep, side, side) < 1.1 * 9 * 2 * 256**3
    assert operations(sweep, side, side) < operations(muon, side)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "products"),
    [("scale_by_soap", 28), ("scale_by_kl_soap", 30), ("scale_by_kl_shampoo", 30)],
)
def test_a_step_with_new_bases_costs_at_most_three_times_muon(name, products):
    """At a side of 1,024, at any step but the first: in a loop of 20 sweeps one is taken.

    The other side is one less, for which there is another loop.
    """
    n = 1024
    tx = getattr(gradtx, name)(precondition_frequency=1, basis="products")
    g = jax.ShapeDtypeStruct((n, n - 1), "float32")
    taken, by_muon = operations(tx.update, g, jax.eval_shape(tx.init, g)), operations(muon, g)
    assert round(taken / (2 * n**3)) == products
    assert round(by_muon / (2 * n**3)) == 15
    assert taken <= 3 * by_muon


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["scale_by_soap", "scale_by_soap_muon", "scale_by_kl_soap", "scale_by_kl_shampoo"]
)
def test_products_have_no_decomposition(name):
    g = {"w": jnp.ones((6, 4)), "stack": jnp.ones((4, 4))}

    def program(basis):
        tx = getattr(gradtx, name)(precondition_frequency=1, basis=basis)
        text = jax.jit(tx.update).lower(g, tx.init(g)).as_text()
        return re.findall(r"custom_call @\w+|stablehlo.cholesky|stablehlo.triangular_solve", text)

    assert program("products") == []
    assert program("qr") != []
