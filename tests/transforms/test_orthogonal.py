"""Newton-Schulz iterations: their coefficients, their form on the Gram matrix, their types."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.transforms.orthogonal import STANDARD, _shrink, coefficients, orthogonalized
from tests.optimizers.matrices import HARD, conditioned, with_singular_values
from tests.optimizers.papers import newton_schulz

NAMES = ["standard", "dion", "polar_express", "cans", "turbo", "deepseek", "cubic"]


def reference(x, rows, eps=0.0):
    """The iteration as it is written everywhere, on the whole matrix; also in float64."""
    x = x.T if x.shape[0] > x.shape[1] else x
    x = x / ((x * x).sum() ** 0.5 + eps)
    for a, b, *c in rows:
        gram = x @ x.T
        x = a * x + (b * gram + (c[0] * gram @ gram if c else 0)) @ x
    return x


def polar(x):
    u, _, v = np.linalg.svd(x, full_matrices=False)
    return u @ v


@functools.partial(jax.jit, static_argnames=("name", "eps", "dtype", "gram"))
def orthogonal(x, name, eps, dtype, gram):
    rows = jnp.asarray(gradtx.muon_coefficients(name))
    return orthogonalized(x[None], rows, 5, "frobenius", eps, dtype, gram=gram)[0]


def run(x, name, eps=0.0, dtype=None, gram=None):
    return np.asarray(orthogonal(jnp.asarray(x), name, eps, dtype, gram))


def off(x, wanted):
    return np.linalg.norm(x - wanted) / np.linalg.norm(wanted)


@pytest.mark.parametrize(
    ("name", "steps", "least", "low", "high"),
    [
        ("standard", 5, 1e-2, 0.68, 1.14),
        ("dion", 5, 1e-2, 0.97, 1.04),
        ("polar_express", 5, 1e-2, 0.87, 1.13),
        ("polar_express", 9, 1e-3, 1 - 1e-9, 1 + 1e-9),
        ("cans", 5, 1e-2, 0.88, 1.12),
        ("turbo", 4, 3e-2, 0.97, 1.04),
        ("deepseek", 10, 1e-3, 1 - 1e-9, 1 + 1e-3),
        ("cubic", 5, 2e-2, 0.77, 1.3),
    ],
)
def test_coefficients_bring_singular_values_near_one(name, steps, least, low, high):
    s = np.logspace(np.log10(least), 0, 1001)
    for row in gradtx.muon_coefficients(name, steps):
        s = sum(c * s ** (2 * i + 1) for i, c in enumerate(row))
    assert low < s.min() <= s.max() < high


def test_names_have_a_length_of_their_own_or_that_of_the_steps():
    lengths = {name: len(gradtx.muon_coefficients(name, 7)) for name in NAMES}
    own = {"dion": 5, "cans": 5, "turbo": 4, "deepseek": 10, "cubic": 5}
    assert lengths == {"standard": 7, "polar_express": 7, **own}


def test_a_safety_factor_shrinks_the_argument_of_all_but_the_limit():
    """As in implementation 1 of arXiv:2505.16932, whichever iteration is the last."""
    limit = (1.875, -1.25, 0.375)
    plain = gradtx.muon_coefficients("polar_express", 12, safety=1.0)
    first = plain.index(limit)
    assert set(plain[first:]) == {limit}
    for steps in (3, first, first + 1, 12):
        safe = gradtx.muon_coefficients("polar_express", steps, safety=1.1)
        want = [(a / 1.1, b / 1.1**3, c / 1.1**5) for a, b, c in plain[:first]] + [limit] * 12
        np.testing.assert_allclose(safe, want[:steps])
    given, default = (gradtx.muon_coefficients("polar_express", 3, s) for s in (1.01, None))
    assert given == default
    (a, b, c), last = gradtx.muon_coefficients("standard", 2, safety=1.1)
    np.testing.assert_allclose((a * 1.1, b * 1.1**3, c * 1.1**5), last)


def test_what_is_no_schedule_is_refused():
    for wrong in [("newton",), ("standard", 0), ("polar_express", 5, 0.9)]:
        with pytest.raises(ValueError, match="muon_coefficients"):
            gradtx.muon_coefficients(*wrong)
    with pytest.raises(ValueError, match="newton"):
        gradtx.scale_by_muon("newton")
    with pytest.raises(TypeError, match="ns_dtype"):
        gradtx.orthogonalize(ns_dtype=jnp.int32)
    x = jnp.ones((2, 2), jnp.complex64)
    with pytest.raises(TypeError, match="complex"):
        gradtx.orthogonalize(ns_dtype=jnp.bfloat16).update(x, ())


@pytest.mark.slow
@pytest.mark.parametrize("gram", [False, True])
@pytest.mark.parametrize("matrix", HARD)
def test_both_forms_are_one_polynomial(matrix, gram):
    """In float64, for seven schedules, on ill-conditioned and degenerate matrices."""
    x = HARD[matrix]
    with jax.enable_x64(True):
        for name in NAMES:
            rows = gradtx.muon_coefficients(name)
            wanted = reference(x, rows, 0.01)
            wanted = wanted.T if x.shape[0] > x.shape[1] else wanted
            got = orthogonalized(
                jnp.asarray(x)[None], jnp.asarray(rows), 5, "frobenius", 0.01, gram=gram
            )
            np.testing.assert_allclose(got[0], wanted, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["aol", "schatten"])
def test_both_forms_start_from_a_gram_matrix_that_is_there(how):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4, 9)))
    rows = jnp.asarray(gradtx.muon_coefficients("turbo"))
    one, other = (orthogonalized(x, rows, 5, how, 1e-8, gram=gram) for gram in (False, True))
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["frobenius", "spectral", "aol", "schatten"])
def test_what_the_first_iterate_is_divided_by(how):
    """Each matrix of a batch by its own, which is not small beside epsilon."""
    x = np.random.default_rng(0).normal(size=(2, 3, 7)) * np.array([[[1.0]], [[5.0]]])
    rows = gradtx.muon_coefficients("turbo")
    with jax.enable_x64(True):
        for gram, eps in itertools.product((False, True), (0.3, 30.0)):
            want = np.stack([newton_schulz(m, rows, how, eps) for m in x])
            got = orthogonalized(jnp.asarray(x), jnp.asarray(rows), 5, how, eps, gram=gram)
            np.testing.assert_allclose(got, want, rtol=1e-8)


@pytest.mark.slow
def test_large_matrices_are_divided_by_a_power_of_two():
    """To between 1 and 2, as long as the power and its reciprocal are normal numbers."""
    sizes = (
        (0.75, 0.5),
        (1.5, 1),
        (3, 2),
        (5, 4),
        (3e38, 2**125),
        (1e-30, 2.0**-100),
        (0, 2.0**-103),
    )
    largest, want = zip(*sizes, strict=True)
    x = jnp.array(largest, jnp.float32)[:, None, None] * jnp.array([[0.0, -1.0]])
    np.testing.assert_array_equal(_shrink(x)[:, 0, 0], 1 / np.float32(want))


def test_coefficients_are_found_by_their_names():
    for name, want in (("standard", STANDARD), ("cans", gradtx.muon_coefficients("cans"))):
        np.testing.assert_array_equal(coefficients("test", name, 5, "aol"), want)


@functools.cache
def operations(aspect, dtype=None):
    """Those of the compiled program, over those of the iteration on the whole matrix."""
    x = jax.ShapeDtypeStruct((128, 128 * aspect), jnp.float32)
    rows = gradtx.muon_coefficients("standard")

    def ours(x):
        return orthogonalized(x[None], jnp.asarray(rows[0]), 5, "frobenius", 1e-8, dtype)

    counts = [
        jax.jit(function).lower(x).compile().cost_analysis()["flops"]
        for function in (ours, lambda x: reference(x, rows))
    ]
    return counts[0] / counts[1]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
def test_wide_matrices_take_fewer_operations(dtype):
    assert operations(4, dtype) < 0.68
    assert operations(8, dtype) < 0.55


def test_the_form_changes_where_both_cost_the_same():
    """At 1.5: 8 r + 28 products of squares for five iterations on the Gram matrix, 20 r + 10."""

    def loops(rows, columns):
        x = jnp.zeros((1, rows, columns))
        given = jnp.asarray(gradtx.muon_coefficients("dion"))
        return "scan" in str(jax.make_jaxpr(orthogonalized, (2, 3))(x, given, 5, "frobenius", 0.1))

    assert loops(64, 96)
    assert not loops(64, 97)
    assert not loops(97, 64)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
@pytest.mark.parametrize("name", ["standard", "polar_express", "deepseek"])
def test_iterating_on_the_gram_matrix_is_no_worse_on_a_condition_of_1e8(name, dtype):
    """Farther from the polar factor by at most a thousandth; in bfloat16 never by more."""
    x = conditioned(64, 256).astype(np.float32)
    gram, whole = (run(x, name, dtype=dtype, gram=gram) for gram in (True, False))
    wanted = polar(x.astype(np.float64))
    assert off(gram, wanted) <= off(whole, wanted) * (1.001 if dtype is None else 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["standard", "polar_express"])
def test_rounding_stays_small(name):
    """Beside the same polynomial in float64: in float32 6e-5, in bfloat16 less than 0.3."""
    x = conditioned(64, 256)
    wanted = reference(x, gradtx.muon_coefficients(name))
    assert off(run(x.astype(np.float32), name), wanted) < 6e-5
    assert off(run(x.astype(np.float32), name, dtype=jnp.bfloat16), wanted) < 0.3


@pytest.mark.slow
def test_products_have_operands_of_the_given_type_and_sums_in_float32():
    x = jnp.asarray(with_singular_values(np.ones(4), 4, 16), jnp.float32)[None]
    rows = jnp.asarray(gradtx.muon_coefficients("deepseek"))
    program = jax.make_jaxpr(lambda x: orthogonalized(x, rows, 5, "frobenius", 0.0, jnp.bfloat16))(
        x
    )
    products = [e for e in program.eqns if e.primitive.name == "dot_general"]
    assert {v.aval.dtype for e in products for v in e.invars} == {jnp.dtype(jnp.bfloat16)}
    assert {v.aval.dtype for e in products for v in e.outvars} == {jnp.dtype(jnp.float32)}
    np.testing.assert_allclose(
        run(np.asarray(x[0]), "deepseek", dtype=jnp.bfloat16), x[0], atol=2e-2
    )
