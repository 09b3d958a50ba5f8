"""Shampoo against its papers and its authors' code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.linalg.linear_algebra import eigen_inverse_root, newton_inverse_root
from gradtx.optimizers import shampoo
from tests.optimizers import matrix_trees
from tests.optimizers.papers import adam, mean


def inverse_root(x, root, eps):
    values, vectors = np.linalg.eigh(x)
    return vectors @ np.diag((np.maximum(values, 0) + eps) ** (-1 / root)) @ vectors.conj().T


def of_block(g, m, graft, s, t, b2, eps, every, root, grafting):
    """The direction of one block: Shi et al. 2023, algorithm 2, in the form of its section 3."""
    grams = [mean(s, f"gram{i}", x @ x.conj().T, b2) for i, x in enumerate((g, g.conj().T))]
    if t % every == 0:
        s["roots"] = [inverse_root(x / (1 - b2**t), root, eps) for x in grams]
    if "roots" not in s:
        return graft
    d = s["roots"][0] @ m @ s["roots"][1]
    if grafting == "none":
        return d
    size = np.linalg.norm(d)
    return d * np.linalg.norm(graft) / size if size else graft


def of_shampoo(b1, b2, eps, every, block, root, grafting, grafting_eps):
    def update(g, s, t, p):
        m = mean(s, "m", g, b1) / (1 - b1**t)
        v = mean(s, "v", abs(g) ** 2, b2) / (1 - b2**t)
        graft = m / (np.sqrt(v) + grafting_eps) if grafting == "adam" else m
        u = np.zeros_like(g)
        for i in range(0, g.shape[0], block):
            for j in range(0, g.shape[1], block):
                at = slice(i, i + block), slice(j, j + block)
                of = s.setdefault((i, j), {})
                u[at] = of_block(g[at], m[at], graft[at], of, t, b2, eps, every, root, grafting)
        return u

    return update


@pytest.mark.slow
@pytest.mark.paper("shampoo")
@pytest.mark.parametrize(
    ("grafting", "block", "root", "method"),
    [("adam", 3, 4, "eigen"), ("sgd", 10, 2, "eigen"), ("none", 4, 4, "newton")],
)
def test_shampoo(grafting, block, root, method):
    tx = gradtx.shampoo(
        0.05, 0.7, 0.8, 0.1, 0.3, None, 3, block, root, grafting, 0.2, root_method=method
    )
    update = of_shampoo(0.7, 0.8, 0.1, 3, block, root, grafting, 0.2)

    def other(g, s, t, p):
        return -0.05 * (adam(g, s, t, 0.7, 0.8, 0.2) + 0.3 * p)

    matrix_trees.check(tx, lambda g, s, t, p: -0.05 * (update(g, s, t, p) + 0.3 * p), other)


@pytest.mark.slow
@pytest.mark.library("shampoo")
def test_shampoo_is_its_authors():
    """https://github.com/facebookresearch/optimizers, on a CPU."""
    tx = gradtx.shampoo(0.01, 0.9, 0.95, 1e-6, block_size=3, precondition_frequency=2)
    matrix_trees.check_golden(tx, "shampoo")


@pytest.mark.slow
@pytest.mark.parametrize("root", [2, 4])
@pytest.mark.parametrize("kind", ["ordinary", "condition 1e8", "rank two", "zero", "complex"])
def test_newton_takes_the_root_that_eigenvalues_give(kind, root):
    rng = np.random.default_rng(0)
    q = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    if kind == "complex":
        q = np.linalg.qr(q + 1j * rng.normal(size=(6, 6)))[0]
    values = {
        "condition 1e8": np.logspace(2, -6, 6),
        "rank two": np.array([3.0, 1, 0, 0, 0, 0]),
        "zero": np.zeros(6),
    }.get(kind, rng.uniform(1, 2, size=6))
    x = (q * values) @ q.conj().T
    with jax.enable_x64(True):
        want = inverse_root(x, root, 1e-7)
        for found in (eigen_inverse_root, newton_inverse_root):
            got = found(jnp.asarray(x)[None], root, 1e-7)[0]
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.max(abs(want)))


@pytest.mark.slow
def test_a_matrix_that_has_converged_stays_while_others_iterate():
    x = jnp.stack([jnp.eye(3), jnp.diag(jnp.array([1.0, 1e-2, 1e-4]))])
    alone, both = newton_inverse_root(x[:1], 4, 1e-6), newton_inverse_root(x, 4, 1e-6)
    np.testing.assert_array_equal(both[0], alone[0])


def test_blocks_are_no_larger_than_the_matrix():
    tx = gradtx.scale_by_shampoo(block_size=4)
    for shape, blocks, sides in (((1, 2), 1, (1, 2)), ((2, 1), 1, (2, 1)), ((5, 3), 2, (4, 3))):
        state = tx.init(jnp.zeros(shape))
        for slot, n in zip((state.left, state.right), sides, strict=True):
            assert slot.shape == (1, blocks, n, n)


@pytest.mark.quick(1)
@pytest.mark.parametrize("method", ["eigen", "newton"])
def test_roots_are_taken_by_the_method_that_is_named(monkeypatch, method):
    monkeypatch.setattr(shampoo, f"{method}_inverse_root", lambda x, *_: jnp.full_like(x, 7))
    tx = gradtx.scale_by_shampoo(precondition_frequency=1, root_method=method)
    g = jnp.ones((1, 1))
    np.testing.assert_array_equal(tx.update(g, tx.init(g))[1].left_root, 7)


@pytest.mark.slow
def test_a_block_whose_root_fails_leaves_the_other_its_new_one():
    tx = gradtx.scale_by_shampoo(precondition_frequency=1, b2=0.5, block_size=2)
    g = jnp.asarray(np.random.default_rng(0).normal(size=(4, 2)), jnp.float32)
    before = tx.update(g, tx.init(g))[1]
    before = before._replace(left=before.left.at[0, 0].set(jnp.inf))
    after = tx.update(2 * g, before)[1]
    np.testing.assert_array_equal(after.left_root[0, 0], before.left_root[0, 0])
    assert np.all(np.isfinite(after.left_root))
    assert not np.any(after.left_root[0, 1] == before.left_root[0, 1])


@pytest.mark.slow
def test_a_root_that_fails_leaves_the_one_before():
    """Only that of the matrix whose moments are not finite; the other has a new one."""
    tx = gradtx.scale_by_shampoo(precondition_frequency=1, b2=0.5)
    g = [jnp.asarray(np.random.default_rng(i).normal(size=(3, 2)), jnp.float32) for i in (0, 1)]
    before = tx.update(g, tx.init(g))[1]
    before = before._replace(left=[jnp.full_like(before.left[0], jnp.inf), before.left[1]])
    after = tx.update(g, before)[1]
    np.testing.assert_array_equal(after.left_root[0], before.left_root[0])
    assert not np.array_equal(after.left_root[1], before.left_root[1])


@pytest.mark.slow
@pytest.mark.parametrize("grafting", ["adam", "sgd", "none"])
def test_matrices_of_two_shapes_alone(grafting):
    """What one shape computes in a branch is unknown in that of another."""
    p = {"a": jnp.ones((4, 3)), "b": jnp.ones((3, 2))}
    tx = gradtx.shampoo(0.1, grafting=grafting)
    updates, _ = jax.jit(tx.update)(p, tx.init(p), p)
    for name, x in p.items():
        want, _ = tx.update(x, tx.init(x), x)
        np.testing.assert_allclose(updates[name], want, rtol=1e-4, atol=1e-6)
