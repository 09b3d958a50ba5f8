"""Muon² and Muon²-F against their paper."""

# Sees mutants of: matrices.

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests.optimizers.matrices import COEFFICIENTS, check, check_named, on_matrices, orthogonal
from tests.optimizers.papers import mean

both = pytest.mark.parametrize("factored", [False, True])


@pytest.mark.quick(3)
@pytest.mark.paper("muon2")
@both
@pytest.mark.parametrize("nesterov", [False, True])
@on_matrices
def test_muon2(name, shape, nesterov, factored):
    """Liu et al. 2026: Muon², and Muon²-F with Adafactor's sums over rows and columns."""

    def update(g, s, t, p):
        m = s["m"] = 0.8 * s.get("m", 0.0) + g
        if factored:
            row = mean(s, "row", np.sum(g * g, axis=1), 0.7)
            col = mean(s, "col", np.sum(g * g, axis=0), 0.7)
            v = np.outer(row, col) / (np.sum(row) or 1.0)
        else:
            v = mean(s, "v", g * g, 0.7)
        o = orthogonal((0.8 * m + g if nesterov else m) / (np.sqrt(v) + 0.1))
        return -0.05 * (np.sqrt(g.shape[1] / g.shape[0]) * o + 0.4 * p)

    tx = gradtx.muon2(
        *(0.05, 0.8, 0.7, 0.1, 0.4),
        factored=factored,
        nesterov=nesterov,
        ns_coeffs=COEFFICIENTS,
        ns_steps=4,
    )
    check(tx, update, name, shape)


@pytest.mark.quick(2)
@both
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_entries_without_gradients_stay(dtype, factored):
    """Also without an epsilon, beside a column that has gradients."""
    tx = gradtx.scale_by_muon2(eps=0.0, factored=factored)
    g = jnp.zeros((3, 4), dtype).at[:, 1].set(2.0)
    updates, _ = tx.update(g, tx.init(g))
    np.testing.assert_array_equal(updates != 0, g != 0)
    assert bool(jnp.all(jnp.isfinite(updates)))


@both
def test_squares_that_overflow_spoil_no_later_step(factored):
    """Factored, an infinite mean would be divided by another."""
    tx = gradtx.scale_by_muon2(factored=factored)
    rng = np.random.default_rng(0)
    g = jnp.asarray(rng.choice([-1.0, 1.0], (4, 3)), jnp.float32)
    _, state = tx.update(1e25 * g, tx.init(g))
    for _ in range(2):
        updates, state = tx.update(g, state)
    assert bool(jnp.all(jnp.isfinite(updates)))


@pytest.mark.slow
@both
def test_matrices_of_one_shape_are_independent(factored):
    """A batch axis, and a leaf beside it: larger ones do not scale smaller ones."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 4, 5)) * np.array([1e-3, 1.0, 1e3])[:, None, None]
    g = {"a": jnp.asarray(x[:2], jnp.float32), "b": jnp.asarray(x[2], jnp.float32)}
    numbers = {"a": gradtx.MuonDimensionNumbers(1, 2), "b": gradtx.MuonDimensionNumbers()}
    options = {"eps": 0.1, "factored": factored}
    tx = gradtx.scale_by_muon2(weight_dimension_numbers=numbers, **options)
    u, _ = tx.update(g, tx.init(g))
    one = gradtx.scale_by_muon2(**options)
    for found, x in zip((*u["a"], u["b"]), (*g["a"], g["b"]), strict=True):
        np.testing.assert_allclose(found, one.update(x, one.init(x))[0], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_what_is_kept():
    """A leaf that is not a matrix is scaled alike in both forms."""
    p = {"b": jnp.ones(3, jnp.bfloat16), "w": jnp.ones((2, 5), jnp.bfloat16)}
    g = {"b": jnp.array([1.0, -2.0, 3.0], jnp.bfloat16), "w": p["w"]}
    numbers = {"b": None, "w": gradtx.MuonDimensionNumbers()}
    found = []
    for factored in (False, True):
        tx = gradtx.scale_by_muon2(
            factored=factored, mu_dtype=jnp.float32, weight_dimension_numbers=numbers
        )
        u, state = tx.update(g, tx.init(p))
        found.append(u["b"])
        assert {x.dtype for x in jax.tree.leaves(state)} == {jnp.dtype("float32")}
        assert state.nu["b"].shape == (3,)
    np.testing.assert_array_equal(*found)
    assert found[0].tolist() == [4.46875, -4.46875, 4.46875]  # 1 / sqrt(0.05), in bfloat16
    assert state.nu["w"] is None
    assert state.v_row["b"] is None
    assert (state.v_row["w"].shape, state.v_col["w"].shape) == ((1, 2), (1, 5))


@pytest.mark.slow
@both
def test_coefficients_by_name(factored):
    check_named(lambda **options: gradtx.scale_by_muon2(factored=factored, **options))
