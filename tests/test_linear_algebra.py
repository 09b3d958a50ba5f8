"""Factorizations of batches of matrices, as the engine hands them to rules."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradtx import linear_algebra

FACTORIZATIONS = {
    "eigenbasis": (linear_algebra.eigenbasis, ["syevd"]),
    "orthogonal_iteration": (
        lambda x: linear_algebra.orthogonal_iteration(x, x),
        ["geqrf", "orgqr"],
    ),
    "eigen_inverse_root": (lambda x: linear_algebra.eigen_inverse_root(x, 4, 0.1), ["syevd"]),
    "right_singular_vectors": (linear_algebra.right_singular_vectors, ["gesdd"]),
}


@pytest.mark.parametrize("name", FACTORIZATIONS)
def test_a_cpu_factorizes_one_matrix_after_the_other(name):
    """A batch would wait in one of XLA's threads for all the others: two of them, forever."""
    function, routines = FACTORIZATIONS[name]
    a = np.random.default_rng(0).normal(size=(2, 3, 4, 4)).astype(np.float32)
    x = jnp.asarray(a @ np.swapaxes(a, -1, -2))
    run = jax.jit(function).lower(x).compile()
    calls = [line for line in run.as_text().splitlines() if "lapack_" in line]
    assert [r for r in routines if f"lapack_s{r}_ffi" in run.as_text()] == routines
    assert not [c for c in calls if re.search(r"f32\[\d+,\d+,\d+", c)]
    want = np.stack([[function(m) for m in row] for row in x])
    np.testing.assert_allclose(run(x), want, rtol=1e-4, atol=1e-5)
