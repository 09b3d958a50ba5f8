"""Linear algebra against NumPy in float64, and how batches of matrices are factorized."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradtx.linalg import decompositions, linear_algebra

RNG = np.random.default_rng(1)
X = RNG.normal(size=(3, 4))
HERMITIAN = RNG.normal(size=(2, 3, 3)) + 1j * RNG.normal(size=(2, 3, 3))
HERMITIAN = HERMITIAN + HERMITIAN.conj().swapaxes(1, 2)
UNITARY = np.linalg.qr(RNG.normal(size=(2, 3, 3)) + 1j * RNG.normal(size=(2, 3, 3)))[0]
POSITIVE = np.stack([np.diag([1.0, 2.0, 40.0]), np.cov(RNG.normal(size=(3, 9)))])
WITHOUT = np.zeros((2, 0, 0))


@pytest.fixture
def double():
    with jax.enable_x64(True):
        yield


def adjoint(x):
    return x.conj().swapaxes(-1, -2)


@pytest.mark.quick(1)
@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("order", "axis", "limit"),
    [(None, None, 0.1), (1, 1, 3.0), (None, -1, 1.5), ("fro", (0, 1), 100.0)],
)
def test_safe_norm(order, axis, limit):
    x = X * np.array([[1.0], [0.0], [2.0]])
    for keepdims in (False, True):
        norm = np.linalg.norm(x, order, axis, keepdims=keepdims)
        got = linear_algebra.safe_norm(x, limit, order, axis, keepdims)
        np.testing.assert_allclose(got, np.maximum(norm, limit), rtol=1e-12)
        assert got.shape == norm.shape


@pytest.mark.slow
@pytest.mark.usefixtures("double")
def test_gradients_of_safe_norms():
    x = X * np.array([[1.0], [0.0], [2.0]])
    got = jax.grad(lambda x: jnp.sum(linear_algebra.safe_norm(x, 0.1, axis=1)))(x)
    sizes = np.linalg.norm(x, axis=1, keepdims=True)
    np.testing.assert_allclose(got, x / np.maximum(sizes, 0.1), rtol=1e-12)
    for limit, part in ((0.1, 1), (9.0, 0)):
        rms = np.sqrt(np.mean(x**2))
        got, slope = jax.value_and_grad(linear_algebra.safe_root_mean_squares)(x, limit)
        np.testing.assert_allclose(got, max(rms, limit), rtol=1e-12)
        np.testing.assert_allclose(slope, part * x / (x.size * rms), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("double")
def test_each_matrix_is_scaled_to_a_root_mean_square():
    x = np.stack([X, 0 * X, 3 * X[::-1]])
    scale = 0.7 / np.sqrt(np.mean(X**2))
    want = np.stack([scale * X, 0 * X, scale * X[::-1]])
    np.testing.assert_allclose(linear_algebra.with_root_mean_square(x, 0.7), want, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("double")
def test_of_each_matrix_of_a_batch():
    x, y = HERMITIAN, UNITARY
    want = np.stack([np.vdot(a, b).real for a, b in zip(x, y, strict=True)])
    got = linear_algebra.real_inner(jnp.asarray(x), jnp.asarray(y))
    np.testing.assert_allclose(got, want[:, None, None], rtol=1e-12)
    assert linear_algebra.identity_like(jnp.asarray(x)).shape == (1, 3, 3)
    want = np.linalg.norm(x, 2, (1, 2), keepdims=True)
    np.testing.assert_allclose(linear_algebra.spectral_norm(jnp.asarray(x)), want, rtol=1e-12)


def powered(a, v, iterations, tolerance):
    """The power iteration as the docstring writes it."""
    v = v / np.linalg.norm(v)
    product = a @ v
    for _ in range(iterations):
        value = v @ product
        if np.linalg.norm(product - value * v) < tolerance * abs(value):
            break
        v = product / np.linalg.norm(product)
        product = a @ v
    return v @ product, product / np.linalg.norm(product)


@pytest.mark.slow
@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("iterations", "tolerance"), [(3, 1e-9), (1000, 0.05), (1000, 1e-7)])
def test_power_iteration(iterations, tolerance):
    a = POSITIVE[0] + X[:, :3] + X[:, :3].T
    start = np.array([1.0, -2.0, 0.1])
    options = {"num_iters": iterations, "error_tolerance": tolerance}
    want = powered(a, start, iterations, tolerance)
    for matrix in (a, lambda v: jnp.asarray(a) @ v):
        got = linear_algebra.power_iteration(matrix, v0=jnp.asarray(start), **options)
        for ours, theirs in zip(got, want, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-10)
    for key in (None, jax.random.key(3)):
        start = jax.random.uniform(jax.random.key(0) if key is None else key, (3,), float, -1, 1)
        got = linear_algebra.power_iteration(a, key=key, **options)
        want = powered(a, np.asarray(start), iterations, tolerance)
        np.testing.assert_allclose(got[0], want[0], rtol=1e-10)


@pytest.mark.slow
def test_power_iteration_of_zeros():
    value, vector = linear_algebra.power_iteration(jnp.zeros((2, 2)))
    assert float(value) == 0
    assert vector.tolist() == [0, 0]


@pytest.mark.quick(2)
@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("left", [UNITARY, WITHOUT])
@pytest.mark.parametrize("right", [HERMITIAN, WITHOUT])
def test_rotations(left, right):
    x = RNG.normal(size=(2, 3, 3))
    p, q = (np.eye(3) if basis.size == 0 else basis for basis in (left, right))
    there = linear_algebra.rotated(jnp.asarray(x), jnp.asarray(left), jnp.asarray(right))
    np.testing.assert_allclose(there, adjoint(p) @ x @ q, rtol=1e-12)
    back = linear_algebra.rotated_back(jnp.asarray(x), jnp.asarray(left), jnp.asarray(right))
    np.testing.assert_allclose(back, p @ x @ adjoint(q), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("double")
def test_bases():
    x, basis = jnp.asarray(HERMITIAN), jnp.asarray(UNITARY)
    values = np.linalg.eigvalsh(HERMITIAN)[:, ::-1]
    found = np.asarray(linear_algebra.eigenbasis(x))
    np.testing.assert_allclose(HERMITIAN @ found, found * values[:, None], atol=1e-12)
    quotients = np.stack(
        [np.diag(adjoint(q) @ h @ q).real for q, h in zip(UNITARY, HERMITIAN, strict=True)]
    )
    order = np.argsort(-quotients, axis=1)
    np.testing.assert_array_equal(linear_algebra.by_eigenvalue(x, basis), order)
    np.testing.assert_array_equal(linear_algebra.by_eigenvalue(x[0], basis[0]), order[0])
    want = np.linalg.qr(HERMITIAN @ UNITARY)[0]
    np.testing.assert_allclose(linear_algebra.orthogonal_iteration(x, basis), want, atol=1e-12)
    for function in (
        linear_algebra.eigenbasis,
        lambda x: linear_algebra.orthogonal_iteration(x, x),
    ):
        assert function(jnp.asarray(WITHOUT)).shape == WITHOUT.shape
    wide = RNG.normal(size=(2, 3, 5))
    found = linear_algebra.right_singular_vectors(jnp.asarray(wide))
    want = adjoint(np.linalg.svd(wide, full_matrices=False)[2])
    np.testing.assert_allclose(found, want, atol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("double")
def test_the_bound_of_a_spectral_norm():
    """Of the column with the largest norm, multiplied twice; squares of entries may be infinite."""
    large = np.diag([1e200, -2e200, 0])
    x = np.stack([HERMITIAN[0], np.roll(HERMITIAN[1], 1, (0, 1)), np.zeros((3, 3)), large])
    got = linear_algebra.spectral_norm_bound(jnp.asarray(x))
    assert got.shape == (4, 1, 1)
    for found, h in zip(got[:2, 0, 0], x[:2], strict=True):
        e = np.eye(3)[np.argmax(np.linalg.norm(h, axis=0))]
        want = np.linalg.norm(h @ h @ h @ e) / np.linalg.norm(h @ h @ e)
        np.testing.assert_allclose(found, want, rtol=1e-12)
        assert 0.7 * np.linalg.norm(h, 2) < found < np.linalg.norm(h, 2) * (1 + 1e-12)
    np.testing.assert_allclose(got[2:, 0, 0], [0, 2e200], rtol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("double")
def test_an_eigenvalue_below_zero_counts_as_zero():
    values = np.array([[-0.1, 1.0, 16.0], [0.5, 2.0, 3.0]])
    x = UNITARY * values[:, None] @ adjoint(UNITARY)
    scales = (np.maximum(values, 0) + 0.2) ** (-1 / 3)
    want = UNITARY * scales[:, None] @ adjoint(UNITARY)
    got = linear_algebra.eigen_inverse_root(jnp.asarray(x), 3, 0.2)
    np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_damped_inverse(dtype):
    """Of one matrix, of a batch, and of one that has a null space, beside others."""
    with jax.enable_x64(True):
        a = jax.random.normal(jax.random.key(0), (3, 6, 4), dtype)
        x = np.array(a.mT.conj() @ a)
        want = np.linalg.inv(x + 0.2 * np.eye(4))
        got = linear_algebra.damped_inverse(jnp.asarray(x), 0.2)
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
        one = linear_algebra.damped_inverse(jnp.asarray(x[0]), 0.2)
        np.testing.assert_allclose(one, want[0], rtol=1e-9)
        x[1] = x[1, :, :1] @ x[1, :, :1].T.conj()
        got = jax.jit(linear_algebra.damped_inverse)(jnp.asarray(x), 1e-300)
        want = np.linalg.pinv(x, rcond=1e-12, hermitian=True)
        np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-12)
        # Cholesky's factors exist, and one of their squares is within the precision.
        got = linear_algebra.damped_inverse(jnp.diag(jnp.array([1e6, 4.0, 1e-10], dtype)), 0.0)
        np.testing.assert_allclose(got, np.diag([1e-6, 0.25, 0.0]), rtol=1e-12)


@pytest.mark.slow
def test_damped_inverse_of_zeros_and_of_what_is_not_finite():
    x = jnp.stack([jnp.zeros((3, 3)), jnp.diag(jnp.array([1.0, jnp.nan, 1.0]))])
    found = linear_algebra.damped_inverse(x, 0.5)
    np.testing.assert_allclose(found[0], 2 * np.eye(3), rtol=1e-6)
    assert not np.any(np.isfinite(found[1]))


def newton(x, root, eps):
    """The coupled iteration as the docstring writes it, and how many there are."""
    precision, one = np.finfo(x.dtype).eps, np.eye(len(x))
    x = x + max(eps, 8 * precision * np.linalg.norm(x)) * one
    z = (root + 1) / (2 * np.linalg.norm(x))
    y, m, count = z ** (1 / root) * one, z * x, 0
    while np.max(abs(m - one)) > precision**0.5:
        f = (root + 1) / root * one - m / root
        y, m, count = y @ f, np.linalg.matrix_power(f, root) @ m, count + 1
    return y @ ((root + 1) * one - m) / root, count


@pytest.mark.slow
@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("root", "eps"), [(2, 0.0), (3, 0.1)])
def test_newton_s_iteration(root, eps):
    """As many iterations for each matrix of a batch; after too few it is NaN."""
    x = np.stack([*POSITIVE, np.diag([1.0, 0.0, 4.0])])
    want, counts = zip(*(newton(m, root, eps) for m in x), strict=True)
    got = linear_algebra.newton_inverse_root(jnp.asarray(x), root, eps)
    np.testing.assert_allclose(got, np.stack(want), rtol=1e-9, atol=1e-9)
    for most in {count - less for count in counts for less in (0, 1)}:
        got = linear_algebra.newton_inverse_root(jnp.asarray(x), root, eps, most)
        np.testing.assert_array_equal(np.isnan(got[:, 0, 0]), np.array(counts) > most)


def textbook(x, root, tolerance=1e-6):
    """The coupled iteration in float32, until it is at 1e-6 or comes no nearer: as in R. Anil et
    al., Scalable Second Order Optimization for Deep Learning, 2020, arXiv:2002.09018."""
    one = np.eye(len(x), dtype=np.float32)
    z = np.float32((root + 1) / (2 * np.linalg.norm(x, 2)))
    y, m = z ** np.float32(1 / root) * one, z * x
    error = np.max(abs(m - one))
    while error > tolerance:
        f = ((root + 1) * one - m) / np.float32(root)
        after = np.linalg.matrix_power(f, root) @ m
        if np.max(abs(after - one)) >= 1.2 * error:
            break
        y, m, error = y @ f, after, np.max(abs(after - one))
    return y


@pytest.mark.slow
@pytest.mark.parametrize("root", [1, 2, 4])
def test_newton_s_iteration_is_as_exact_as_the_textbook_s(root):
    """In float32, against eigenvalues in float64, for conditions from 1 to 1e4."""
    rng = np.random.default_rng(0)
    x = []
    for condition in (1.0, 3.0, 10.0, 100.0, 1e3, 1e4):
        q = np.linalg.qr(rng.normal(size=(16, 16)))[0]
        x.append(q * np.logspace(0, -np.log10(condition), 16) @ q.T)
    x = np.asarray(x, np.float32)
    ridge = 8 * np.finfo("f").eps * np.linalg.norm(x, axis=(1, 2), keepdims=True)
    values, q = np.linalg.eigh((x + ridge * np.eye(16)).astype(float))
    want = q * values[:, None] ** (-1 / root) @ adjoint(q)

    def error(found):
        return np.max(abs(found - want) / np.max(want, (1, 2), keepdims=True), (1, 2))

    theirs = np.stack([textbook(each, root) for each in x + ridge * np.eye(16, dtype="f")])
    got = error(linear_algebra.newton_inverse_root(jnp.asarray(x), root, 0.0))
    assert np.all(got <= 3 * error(theirs) + 1e-6), (got, error(theirs))


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 16, 64])
def test_newton_s_iteration_takes_roots_of_what_rounding_made_indefinite(size):
    """Averages of Gram matrices of rank one: without a ridge of 5 precisions some are NaN."""
    g = jnp.asarray(np.random.default_rng(1).normal(size=(16, size, 1)), jnp.float32)

    def body(i, x):
        u = g * (1 + 0.3 * jax.random.normal(jax.random.fold_in(jax.random.key(0), i), (16, 1, 1)))
        return 0.999 * x + 0.001 * (u @ u.mT)

    x = jax.jit(lambda: jax.lax.fori_loop(0, 3000, body, jnp.zeros((16, size, size))))()
    assert np.min(np.linalg.eigvalsh(np.asarray(x, float))) < 0
    assert np.all(np.isfinite(linear_algebra.newton_inverse_root(x, 2, 0.0)))


@pytest.mark.slow
@pytest.mark.parametrize("root", [2, 4])
@pytest.mark.parametrize("method", ["eigen", "newton"])
def test_roots_are_taken_of_very_large_and_small_matrices(method, root):
    """The squares of their entries are infinite, or 0, and the largest eigenvalue may be."""
    one = np.kron(np.eye(2), 0.5 * np.eye(4) + 0.5)
    values, q = np.linalg.eigh(one)
    for size in (1e-30, 1e30, 1e38, 3e38):
        x = jnp.asarray(size * one, jnp.float32)
        for eps in (0.0, 0.1 * size):
            want = q * (size * values + eps) ** (-1 / root) @ q.T
            got = getattr(linear_algebra, f"{method}_inverse_root")(x, root, eps)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6 * np.max(want))


FACTORIZATIONS = {
    "eigenbasis": (linear_algebra.eigenbasis, ["syevd"]),
    "orthogonal_iteration": (
        lambda x: linear_algebra.orthogonal_iteration(x, x),
        ["geqrf", "orgqr"],
    ),
    "eigen_inverse_root": (lambda x: linear_algebra.eigen_inverse_root(x, 4, 0.1), ["syevd"]),
    "damped_inverse": (
        lambda x: linear_algebra.damped_inverse(x, 0.1),
        ["potrf", "syevd", "trsm"],
    ),
    "right_singular_vectors": (linear_algebra.right_singular_vectors, ["gesdd"]),
    "spectral_norm": (lambda x: linear_algebra.spectral_norm(x) * x, ["gesdd"]),
    "two arrays": (
        lambda x: decompositions.factorized(jax.lax.linalg.triangular_solve, x, x[..., ::-1, :]),
        ["trsm"],
    ),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("name", "batch"),
    [*((name, (2, 3)) for name in FACTORIZATIONS), ("eigenbasis", (3,))],
)
def test_a_cpu_factorizes_one_matrix_after_the_other(name, batch):
    """A batch would wait in one of XLA's threads for all the others: two of them, forever."""
    function, routines = FACTORIZATIONS[name]
    a = np.random.default_rng(0).normal(size=(*batch, 4, 4)).astype(np.float32)
    x = jnp.asarray(a @ np.swapaxes(a, -1, -2))
    run = jax.jit(function).lower(x).compile()
    calls = [line for line in run.as_text().splitlines() if "lapack_" in line]
    assert [r for r in routines if f"lapack_s{r}_ffi" in run.as_text()] == routines
    assert not [c for c in calls if re.search(r"f32\[\d+,\d+,\d+", c)]
    want = np.stack([function(m) for m in x.reshape(-1, 4, 4)]).reshape(x.shape)
    np.testing.assert_allclose(run(x), want, rtol=1e-4, atol=1e-5)


@pytest.mark.quick(1)
@pytest.mark.parametrize("values", [(0.0, 0.0, 0.0), (2.0, 2.0, 2.0), (3.0, 3.0, 1.0)])
def test_the_slope_of_a_root_of_equal_eigenvalues(values):
    rng = np.random.default_rng(0)
    q = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    half = rng.normal(size=(3, 3))
    x, change = (q * np.array(values)) @ q.T, half @ half.T

    def root(t):
        return linear_algebra.eigen_inverse_root(x + t * change, 4, 0.3 + t)

    h = 1e-6
    with jax.enable_x64():
        run = jax.jit(root)
        want = (-3 * run(0.0) + 4 * run(h) - run(2 * h)) / (2 * h)  # from one side: 0 is an end
        got = jax.jit(jax.jacfwd(root))(0.0)
        reverse = jax.jit(jax.jacrev(root))(0.0)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(reverse, got, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("matrix", [[[2, 1j], [-1j, 2]], [[2, 1], [1, 2]]])
@pytest.mark.parametrize("given", [None, [1.0, 0.5]])
def test_power_iteration_of_complex_and_integer_matrices(matrix, given):
    v0 = None if given is None else jnp.array(given)
    value, vector = linear_algebra.power_iteration(jnp.array(matrix), v0=v0)
    np.testing.assert_allclose(value, 3, rtol=1e-4)
    np.testing.assert_allclose(jnp.array(matrix) @ vector, 3 * vector, rtol=1e-2)
