"""Matrices of every kind for rules of matrices, all in one tree, so that a rule compiles once."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from tests import oracle

STEPS = 24
GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "matrices.npz"


def with_values(rng, steps, values):
    """4 x 3 matrices of changing size with these singular values, in fixed directions: where the
    values are zero, or too small to tell from it, eigenvectors are not determined."""
    left, right = (np.linalg.qr(rng.normal(size=(n, 3)))[0] for n in (4, 3))
    sizes = rng.normal(size=(steps, 1, 3)) * np.asarray(values)
    return left * sizes @ right.T


def gradients(seed=0, steps=STEPS):
    """By kind: gradients, those of one matrix for each step."""
    rng = np.random.default_rng(seed)
    return {
        "plain": rng.normal(size=(steps, 4, 3)),
        "ill-conditioned": with_values(rng, steps, [1.0, 1e-4, 1e-8]),
        "rank two": with_values(rng, steps, [2.0, 1.0, 0.0]),
        "zero": np.zeros((steps, 4, 3)),
        "one row": rng.normal(size=(steps, 1, 2)),
        "one column": rng.normal(size=(steps, 2, 1)),
        "large": rng.normal(size=(steps, 5, 6)),
        "vector": rng.normal(size=(steps, 3)),
    }


def path_of(tx, p, gs):
    """The parameters after each step of `tx`, one compiled scan."""

    def step(carry, g):
        p, state = carry
        updates, state = tx.update(g, state, p)
        p = jax.tree.map(jnp.add, p, updates)
        return (p, state), p

    run = jax.jit(lambda p, gs: jax.lax.scan(step, (p, tx.init(p)), gs)[1])
    return jax.device_get(run(p, gs))


def check(tx, update, other, *, steps=STEPS, atol=1e-6, complex_too=False, without=()):
    """Compare `tx` in float64 with transcriptions of one step: of matrices and of other leaves."""
    gs = {n: g for n, g in gradients(steps=steps).items() if n not in without}
    if complex_too:
        others = gradients(1, steps)
        gs = {n: g + 1j * others[n] for n, g in gs.items()}
    rng = np.random.default_rng(2)
    p = {n: rng.normal(size=g.shape[1:]).astype(g.dtype) for n, g in gs.items()}
    with jax.enable_x64(True):
        got = path_of(tx, *jax.tree.map(jnp.asarray, (p, gs)))
    for name in gs:
        rule = other if gs[name].ndim == 2 else update
        want = oracle.transcribe(rule, p[name], gs[name])
        np.testing.assert_allclose(got[name], want, rtol=1e-6, atol=atol, err_msg=name)


def golden_paths(tx, name, *, from_zero=True):
    """Of each matrix the path of `tx`, from zero or the noise on, and that of the authors' code.

    See golden/make_matrices.py.
    """
    with np.load(GOLDEN) as golden:
        gs = {n: golden[f"gradients/{n}"] for n in "ab"}
        want = {n: golden[f"{name}/{n}"] for n in "ab"}
        noise = golden["noise"]
    p = {n: noise[: x.shape[1], : x.shape[2]] * (not from_zero) for n, x in gs.items()}
    found = path_of(tx, jax.tree.map(jnp.asarray, p), gs)
    return [(found[n], want[n]) for n in "ab"]


def check_golden(tx, name, atol=1e-5):
    """Compare `tx` with what the authors' code did."""
    for found, want in golden_paths(tx, name):
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=atol)
