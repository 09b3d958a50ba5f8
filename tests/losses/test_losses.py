"""Losses: against live Optax, in NumPy's double precision, at the ends of the range."""

import functools
import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special as sp

import gradtx
from gradtx import losses
from tests.programs import temporary_bytes
from tests.quick import quick

RNG = np.random.default_rng(0)
B, K = 5, 4


def normal(*shape, scale=2.0):
    return (scale * RNG.normal(size=shape)).astype(np.float32)


def distribution(*shape):
    return sp.softmax(RNG.normal(size=shape), -1).astype(np.float32)


X, Y, Z = normal(B, K), normal(B, K), normal(B, K)
BINARY, SIGNS = (RNG.integers(0, 2, (B, K)).astype(np.float32) for _ in range(2))
SIGNS = 2 * SIGNS - 1
LABELS = RNG.integers(0, K, B)
P, Q = distribution(B, K), distribution(B, K)
ONE_HOT = np.eye(K, dtype=np.float32)[LABELS]
MASK = RNG.random((B, K)) < 0.7
MASK[:, 0] = True
EXAMPLES = np.array([True, True, False, True, False])
PIXELS, REGIONS = normal(2, 6, 3), np.eye(3, dtype=np.float32)[RNG.integers(0, 3, (2, 6))]
CTC = (
    normal(2, 7, K),
    np.array([[0] * 7, [0] * 5 + [1] * 2], np.float32),
    np.array([[1, 1, 3], [2, 3, 0]]),
    np.array([[0, 0, 0], [0, 0, 1]], np.float32),
)

# Name of the loss: lists of arguments, the first of which is differentiated.
CASES = {
    "binary_dice_loss": [
        (PIXELS[..., 0], REGIONS[..., 0], {"smooth": 0.1}),
        (PIXELS[..., :1], REGIONS[..., :1]),
    ],
    "convex_kl_divergence": [(np.log(P), Q)],
    "cosine_distance": [(X, Y), (X, Y, {"axis": 0, "where": MASK}), (X, Y, {"epsilon": 20.0})],
    "cosine_similarity": [(X, Y), (X, Y, {"axis": (0, 1)})],
    "ctc_loss": [CTC],
    "dice_loss": [
        (PIXELS, REGIONS),
        (PIXELS, REGIONS, {"reduction": "none", "class_weights": np.array([1, 2, 3], np.float32)}),
        (PIXELS, REGIONS, {"alpha": 0.2, "beta": 0.9, "smooth": 0.1, "ignore_background": True}),
        (PIXELS, REGIONS, {"reduction": "sum", "axis": 0}),
        (PIXELS[..., 0], REGIONS[..., :1]),
    ],
    "generalized_kl_divergence": [(X, Q), (X, Q, {"where": MASK})],
    "hinge_loss": [(X, SIGNS), (X, Y)],
    "huber_loss": [(X, Y), (X,), (X, Y, {"delta": 0.3})],
    "kl_divergence": [(np.log(P), Q), (np.log(P), Q, {"axis": 0, "where": MASK})],
    "kl_divergence_with_log_targets": [
        (np.log(P), np.log(Q)),
        (np.log(P), np.log(Q), {"where": MASK}),
    ],
    "l2_loss": [(X, Y), (X,)],
    "log_cosh": [(X, Y), (X,)],
    "multiclass_generalized_dice_loss": [
        (PIXELS, REGIONS),
        (PIXELS, REGIONS, {"smooth": 0.1, "ignore_background": True}),
        (PIXELS, np.float32(1e-4) * REGIONS),
    ],
    "multiclass_hinge_loss": [(X, LABELS), (Z[:, None], np.argmax(Z, -1)[:, None])],
    "multiclass_perceptron_loss": [(X, LABELS), (X[:, None], LABELS[:, None])],
    "multiclass_sparsemax_loss": [(X, LABELS)],
    "ntxent": [(X, np.array([0, 1, 0, 2, 1])), (X, np.array([0, 0, 0, 2, 2]), 0.5)],
    "perceptron_loss": [(X, SIGNS), (X, Y)],
    "poly_loss_cross_entropy": [(X, Q), (X, Q, {"epsilon": -1.0, "where": MASK, "axis": 0})],
    "ranking_softmax_loss": [
        (X, BINARY),
        (X, BINARY, {"where": MASK, "weights": Q}),
        (X, BINARY, {"where": MASK & EXAMPLES[:, None], "reduce_fn": None}),
        (X, BINARY, {"where": MASK & EXAMPLES[:, None]}),
        (X, BINARY, {"where": MASK, "reduce_fn": jnp.sum}),
    ],
    "safe_softmax_cross_entropy": [(X, Q)],
    "sigmoid_binary_cross_entropy": [(X, BINARY), (X, Q)],
    "sigmoid_focal_loss": [(X, BINARY), (X, Q, {"alpha": 0.25, "gamma": 0.5})],
    "smooth_labels": [(ONE_HOT, 0.1), (ONE_HOT, 0.1, {"where": MASK})],
    "softmax_cross_entropy": [
        (X, ONE_HOT),
        (X, Q, {"where": MASK}),
        (X, Q, {"where": EXAMPLES}),
        (X, Q, {"axis": (0, 1)}),
    ],
    "softmax_cross_entropy_with_integer_labels": [
        (X, LABELS),
        (X, LABELS[:K], {"axis": 0}),
        (X, LABELS, {"where": MASK}),
        (X, LABELS, {"where": EXAMPLES}),
        (normal(B, 3, K), LABELS, {"axis": (1, 2)}),
        (np.stack([X, Y, Z])[..., None], LABELS[:3, None], {"axis": (1, 2)}),
        (
            normal(B, 2, K, 3),
            LABELS[:2],
            {"axis": (3, 0, 2), "where": RNG.random((B, 2, K, 3)) > 0},
        ),
    ],
    "sparsemax_loss": [(X, BINARY)],
    "squared_error": [(X, Y), (X,)],
    "triplet_margin_loss": [
        (X, Y, Z),
        (X, Y, Z, {"margin": 3.0, "norm_degree": 4, "axis": 0}),
        (X, Y, Z, {"norm_degree": 4, "eps": 500.0}),
    ],
}
NOT_ARRAYS = {"make_fenchel_young_loss", "ctc_loss_with_forward_probs"}
# What Optax lacks: whole losses, and arguments after Optax's.
OURS = {"absolute_error", "linear_softmax_cross_entropy"}
ADDED = {
    "softmax_cross_entropy": ["z_loss"],
    "softmax_cross_entropy_with_integer_labels": ["z_loss", "ignore_index"],
}
BOTH = (gradtx, optax)


def bound(library, name, i):
    """A loss with all arguments but the first, and that one."""
    first, *rest = CASES[name][i]
    keywords = rest.pop() if rest and isinstance(rest[-1], dict) else {}
    rest = [jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in rest]
    keywords = {k: jnp.asarray(v) if isinstance(v, np.ndarray) else v for k, v in keywords.items()}
    function = getattr(library.losses, name)
    return (lambda x: function(x, *rest, **keywords)), jnp.asarray(first)


def value_and_gradient(function, x):
    loss, pullback = jax.vjp(function, x)
    weights = np.linspace(1.0, 2.0, loss.size).reshape(loss.shape)
    return loss, pullback(jnp.asarray(weights, loss.dtype))[0]


def test_all_are_here():
    public = {name for name in vars(optax.losses) if name[0] != "_"}
    assert public == set(losses.__all__) - OURS == CASES.keys() | NOT_ARRAYS
    assert not OURS & public
    for name in public:
        ours, theirs = (
            [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]
            for function in (getattr(losses, name), getattr(optax.losses, name))
        )
        defaults = {"z_loss": 0.0, "ignore_index": None}
        only = inspect.Parameter.KEYWORD_ONLY
        added = [(x, only, defaults[x]) for x in ADDED.get(name, [])]
        assert ours == theirs + added


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*convex_kl_divergence:DeprecationWarning")
@pytest.mark.parametrize("name", quick(CASES, *[*CASES][::4]))
def test_like_optax(name):
    """The value and the gradient in double precision, and the value in single precision."""
    with jax.enable_x64(True):
        ours, theirs = ([bound(lib, name, i) for i in range(len(CASES[name]))] for lib in BOTH)

        @jax.jit  # one compilation for all
        def run(*inputs):
            wide = [x.astype(jnp.float64) for x in inputs]
            got = [value_and_gradient(f, x) for (f, _), x in zip(ours, wide, strict=True)]
            want = [value_and_gradient(f, x) for (f, _), x in zip(theirs, wide, strict=True)]
            return got, want, [f(x) for (f, _), x in zip(ours, inputs, strict=True)]

        results = run(*(x for _, x in ours))
        for i, (got, want, single) in enumerate(zip(*results, strict=True)):
            for a, b in zip(got, want, strict=True):
                assert a.shape == b.shape
                np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7, err_msg=f"case {i}")
            assert (got[0].dtype, single.dtype) == (jnp.float64, jnp.float32)
            np.testing.assert_allclose(single, got[0], rtol=2e-6, atol=2e-6, err_msg=f"case {i}")


@pytest.mark.quick(3)
@pytest.mark.filterwarnings("ignore:.*convex_kl_divergence:DeprecationWarning")
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", CASES)
def test_types_of_halves(name, dtype):
    ours, x = bound(gradtx, name, 0)
    loss, gradient = jax.eval_shape(lambda x: value_and_gradient(ours, x), x.astype(dtype))
    assert gradient.dtype == dtype
    assert loss.dtype == (dtype if name == "smooth_labels" else jnp.float32)


@pytest.mark.slow
def test_halves_are_computed_in_float32():
    assert losses.squared_error(jnp.float16(300.0)) == 90_000
    x, y = jnp.asarray(X, jnp.bfloat16), jnp.asarray(Q)
    wide = losses.softmax_cross_entropy(x.astype(jnp.float32), y)
    np.testing.assert_array_equal(losses.softmax_cross_entropy(x, y), wide)


BIG, TINY = 3e38, 1e-38
INF = np.inf
ENDS = {
    "sigmoid_binary_cross_entropy": [
        (([INF, -INF, BIG, -BIG, BIG, -200.0], [1, 0, 1, 0, 0, 1]), [0, 0, 0, 0, BIG, 200.0]),
    ],
    "sigmoid_focal_loss": [
        (([BIG, -BIG, 200.0, -200.0], [1, 0, 0, 1]), [0, 0, 200.0, 200.0]),
        (([BIG, 200.0, 100.0], [1, 1, 1], {"gamma": 0.5}), [0, 0, 0]),
        (([INF, -INF], [1, 0]), [0, 0]),
        (([INF, -INF], [1, 0], {"gamma": 0.0}), [0, 0]),
        (([-INF, 0.0], [1, 0], {"alpha": 0.0, "gamma": 0.0}), [0, np.log(2.0)]),
    ],
    "softmax_cross_entropy": [
        (([[-INF, 0.0, 0.0]], [[0.0, 0.5, 0.5]]), [np.log(2.0)]),
        (([[BIG, -BIG, 0.0]], [[1.0, 0.0, 0.0]]), [0.0]),
        (([[1e4, 1e4 - 1.0, -INF]], [[1.0, 0.0, 0.0]]), [np.log1p(np.exp(-1.0))]),
        (([[INF, np.nan, 1.0]], [[0.0, 0.0, 1.0]], {"where": [[False, False, True]]}), [0.0]),
        (([[1.0, 2.0, 3.0]], [[0.0, 0.0, 1.0]], {"where": [[False] * 3]}), [0.0]),
    ],
    "safe_softmax_cross_entropy": [(([[-INF, 0.0]], [[0.0, 1.0]]), [0.0])],
    "softmax_cross_entropy_with_integer_labels": [
        (([[-INF, 0.0, 0.0], [BIG, -BIG, 0.0]], [1, 0]), [np.log(2.0), 0.0]),
        (([[1.0, 2.0]], [1], {"where": [[False, False]]}), [0.0]),
    ],
    "poly_loss_cross_entropy": [(([[-INF, 0.0]], [[0.0, 1.0]]), [0.0])],
    "kl_divergence": [
        (([[-INF, 0.0]], [[0.0, 1.0]]), [0.0]),
        (([[-INF, 0.0]], [[0.5, 1.0]], {"where": [[False, True]]}), [0.0]),
        (([[-80.0, 0.0]], [[TINY, 1.0]]), [TINY * (np.log(TINY) + 80.0)]),
    ],
    "kl_divergence_with_log_targets": [
        (([[-INF, 0.0]], [[-INF, 0.0]]), [0.0]),
        (([[-INF, 0.0]], [[-1.0, 0.0]], {"where": [[False, True]]}), [0.0]),
        (([[INF, 0.0]], [[1e4, 0.0]], {"where": [[0.0, 1.0]]}), [0.0]),
    ],
    "generalized_kl_divergence": [
        (([[-INF, 0.0]], [[0.0, 1.0]]), [0.0]),
        (([[1e4, 0.0]], [[INF, 1.0]], {"where": [[False, True]]}), [0.0]),
    ],
    "ranking_softmax_loss": [
        (([1.0, INF], [1.0, 0.0], {"where": [True, False]}), 0.0),
        (([1.0, 2.0], [1.0, 0.0], {"where": [False, False]}), 0.0),
    ],
    "log_cosh": [(([1e-4, 0.0, BIG, -BIG],), [0.5e-8, 0.0, BIG, BIG])],
    "huber_loss": [
        (([0.0, BIG],), [0.0, BIG]),
        (([0.0, 3.0, 1e18], {"delta": INF}), [0.0, 4.5, 0.5e36]),
    ],
    "hinge_loss": [(([BIG, -BIG], [1, 1]), [0.0, BIG])],
    "sparsemax_loss": [(([BIG, -BIG], [0, 0]), [BIG, 0.0])],
    "multiclass_sparsemax_loss": [(([[1e30, 0.0], [0.0, 1e30]], [0, 0]), [0.0, 1e30])],
    "cosine_similarity": [
        (([[0.0, 0.0], [1e30, 1e30], [1e-25, 1e-25]], [[1.0, 0.0]]), [0.0, 0.5**0.5, 0.5**0.5]),
        (([[0.0, 0.0]], [[0.0, 0.0]]), [0.0]),
    ],
    "triplet_margin_loss": [
        (([1e25, 0.0], [0.0, 0.0], [1e25, 0.0]), 1e25),
        (([0.0, 0.0], [0.0, 0.0], [0.0, 0.0], {"eps": 0.0}), 1.0),
        (([0.0, 0.0], [-1.0, 1.0], [0.0, 0.0], {"eps": 0.0, "norm_degree": 3}), 1 + 2 ** (1 / 3)),
    ],
    "ntxent": [
        (([[1.0, 0.0], [0.0, 0.0]], [0, 1]), 0.0),
        (([[1.0, 0.0], [0.0, 0.0]], [0, 0]), 0.0),
    ],
    "dice_loss": [(([[[BIG, -BIG]]], [[[1.0, 0.0]]], {"smooth": 0.0}), [0.0])],
    "ctc_loss": [
        (([[[-INF, 0.0]]], [[0.0]], [[1]], [[0.0]]), [0.0]),
        (([[[0.0, 0.0]]], [[0.0]], [[-1]], [[1.0]]), [np.log(2.0)]),
        (([[[0.0, 0.0], [np.nan, INF]]], [[0, 1]], [[1]], [[0]]), [np.log(2.0)]),
    ],
}


def at_an_end(name, i):
    """A loss, its arguments, and which of them are numbers to differentiate by."""
    (first, *rest), _ = ENDS[name][i]
    keywords = rest.pop() if rest and isinstance(rest[-1], dict) else {}
    keywords = {k: jnp.asarray(v) if k == "where" else v for k, v in keywords.items()}
    floats = [j + 1 for j, x in enumerate(rest) if np.asarray(x).dtype == np.float64]
    loss = functools.partial(getattr(losses, name), **keywords)
    return loss, [jnp.asarray(x) for x in (first, *rest)], (0, *floats)


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", ENDS)
def test_ends_of_the_range(name):
    def run(loss, arrays, by):
        return loss(*arrays), jax.grad(lambda *a: jnp.sum(loss(*a)), by)(*arrays)

    cases = [at_an_end(name, i) for i in range(len(ENDS[name]))]
    inputs = [arrays for _, arrays, _ in cases]
    results = jax.jit(
        lambda inputs: [run(f, x, by) for (f, _, by), x in zip(cases, inputs, strict=True)]
    )(inputs)
    for i, (got, gradients) in enumerate(results):
        np.testing.assert_allclose(got, ENDS[name][i][1], rtol=1e-5, atol=1e-37, err_msg=f"{i}")
        for gradient in gradients:
            assert np.isfinite(gradient).all(), (i, gradients)


@pytest.mark.slow
def test_nothing_to_sum_over():
    """No frames, of which only no labels are a path; no examples; and no features or classes."""
    labels, pads = jnp.array([[1, 2], [1, 2]]), jnp.array([[0, 0], [1, 1]])
    arguments = jnp.zeros((2, 0, 4)), jnp.zeros((2, 0)), labels, pads
    got, blank, label = jax.jit(losses.ctc_loss_with_forward_probs)(*arguments)
    np.testing.assert_allclose(got, [1e5, 0], rtol=1e-5, atol=1e-5)
    assert (blank.shape, label.shape) == ((0, 2, 3), (0, 2, 2))
    assert losses.ntxent(jnp.zeros((0, 3)), jnp.zeros(0, jnp.int32)) == 0
    nothing = jnp.zeros((2, 0))
    assert losses.triplet_margin_loss(nothing, nothing, nothing).tolist() == [1, 1]
    none = losses.smooth_labels(jnp.ones(2), 0.5, where=jnp.zeros(2, bool))
    assert none.tolist() == [1, 1]


@pytest.mark.slow
def test_masks_and_weights_in_lists():
    first = [True] + [False] * (B - 1)
    for got, want in [
        (losses.softmax_cross_entropy(X, Q, where=first), losses.softmax_cross_entropy(X, Q)),
        (
            losses.linear_softmax_cross_entropy(X, jnp.eye(K), LABELS, where=first),
            losses.linear_softmax_cross_entropy(X, jnp.eye(K), LABELS),
        ),
    ]:
        np.testing.assert_allclose(got, jnp.where(jnp.array(first), want, 0))
    classes = [True] + [False] * (K - 1)
    for loss in (
        losses.kl_divergence,
        losses.kl_divergence_with_log_targets,
        losses.generalized_kl_divergence,
        losses.cosine_similarity,
    ):
        want = loss(X, Q, where=jnp.array(classes))
        np.testing.assert_array_equal(loss(X, Q, where=classes), want)
    doubled = losses.ranking_softmax_loss(X, Q, weights=[2.0] * K, where=[True] * K)
    np.testing.assert_allclose(doubled, 2 * losses.ranking_softmax_loss(X, Q), rtol=1e-6)


def transcribed_ctc(logits, labels, blank):
    """The probability of the labels, over all paths."""
    p = sp.softmax(np.asarray(logits, np.float64), -1)
    total = 0.0
    for path in np.ndindex(*[p.shape[1]] * len(p)):
        kept = [c for t, c in enumerate(path) if t == 0 or c != path[t - 1]]
        if [c for c in kept if c != blank] == list(labels):
            total += np.prod([p[t, c] for t, c in enumerate(path)])
    return -np.log(total)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("labels", "blank"), [([1, 1], 0), ([1, 2], 0), ([0], 2), ([], 1), ([1, 2, 2], 0)]
)
def test_ctc_counts_every_path(labels, blank):
    x = normal(5, 3)
    padded = np.array([[*labels, *[0] * (3 - len(labels))]])
    pads = np.array([[0.0] * len(labels) + [1.0] * (3 - len(labels))])
    longer = np.concatenate([x, normal(2, 3)])[None]
    got = jax.jit(losses.ctc_loss, static_argnames="blank_id")(
        longer, np.array([[0.0] * 5 + [1.0] * 2]), padded, pads, blank_id=blank
    )
    np.testing.assert_allclose(got[0], transcribed_ctc(x, labels, blank), rtol=1e-5)


@pytest.mark.slow
def test_a_label_of_padding_is_a_blank_whatever_its_number():
    """One that is no class would be NaN, and its gradient too."""
    probabilities = jax.jit(functools.partial(losses.ctc_loss_with_forward_probs, blank_id=2))
    x, frames = normal(1, 4, 3), np.zeros((1, 4))
    padded = probabilities(x, frames, np.array([[0, 99]]), np.array([[0, 1]]))
    blank = probabilities(x, frames, np.array([[0, 2]]), np.array([[0, 0]]))
    for got, want in zip(padded[1:], blank[1:], strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.slow
def test_ctc_has_optax_forward_probabilities():
    ours, theirs = (
        jax.jit(lib.losses.ctc_loss_with_forward_probs)(*CTC) for lib in (gradtx, optax)
    )
    for a, b in zip(ours, theirs, strict=True):
        possible = np.asarray(b) > -1e4
        np.testing.assert_allclose(a[possible], b[possible], rtol=1e-5)
        assert (np.asarray(a)[~possible] < -1e4).all()


def transcribed_ntxent(x, y, tau):
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    e = np.exp(unit @ unit.T / tau)
    pairs = [(i, j) for i in range(len(y)) for j in range(len(y)) if i != j and y[i] == y[j]]
    against = {i: sum(e[i, k] for k in range(len(y)) if y[k] != y[i]) for i, _ in pairs}
    return np.mean([-np.log(e[i, j] / (e[i, j] + against[i])) for i, j in pairs])


def xlogy(y, p):
    return np.sum(sp.xlogy(y, p), -1)


# The formulas of the docstrings, in NumPy; those that are only sums of these are left to Optax.
FORMULAS = {
    "cosine_similarity": lambda x, y: (
        (x * y).sum(-1) / (np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1))
    ),
    "hinge_loss": lambda x, y: np.maximum(0, 1 - x * y),
    "huber_loss": lambda x, y: np.where(abs(x - y) <= 1, 0.5 * (x - y) ** 2, abs(x - y) - 0.5),
    "kl_divergence": lambda x, y: xlogy(y, y) - (y * x).sum(-1),
    "l2_loss": lambda x, y: 0.5 * (x - y) ** 2,
    "log_cosh": lambda x, y: np.log(np.cosh(x - y)),
    "multiclass_hinge_loss": lambda x, y: (
        np.max(x + (np.arange(K) != y[:, None]), -1) - x[np.arange(B), y]
    ),
    "multiclass_perceptron_loss": lambda x, y: x.max(-1) - x[np.arange(B), y],
    "ntxent": lambda x, y: transcribed_ntxent(x, y, 0.07),
    "perceptron_loss": lambda x, y: np.maximum(0, -x * y),
    "poly_loss_cross_entropy": lambda x, y: (
        -xlogy(y, sp.softmax(x, -1)) + 2 * (y * (1 - sp.softmax(x, -1))).sum(-1)
    ),
    "sigmoid_binary_cross_entropy": lambda x, y: (
        -sp.xlogy(y, sp.expit(x)) - sp.xlogy(1 - y, sp.expit(-x))
    ),
    "sigmoid_focal_loss": lambda x, y: np.where(
        y == 1,
        -(sp.expit(-x) ** 2) * np.log(sp.expit(x)),
        -(sp.expit(x) ** 2) * np.log(sp.expit(-x)),
    ),
    "softmax_cross_entropy": lambda x, y: -xlogy(y, sp.softmax(x, -1)),
    "softmax_cross_entropy_with_integer_labels": lambda x, y: (
        -sp.log_softmax(x, -1)[np.arange(B), y]
    ),
    "squared_error": lambda x, y: (x - y) ** 2,
    "triplet_margin_loss": lambda x, y, z: np.maximum(
        np.sqrt(((x - y) ** 2).sum(-1) + 1e-6) - np.sqrt(((x - z) ** 2).sum(-1) + 1e-6) + 1, 0
    ),
}


@pytest.mark.quick(7)
@pytest.mark.parametrize("name", FORMULAS)
def test_like_its_formula(name):
    arguments = [np.asarray(x, np.float64) if x.dtype == np.float32 else x for x in CASES[name][0]]
    got = jax.jit(getattr(losses, name))(*CASES[name][0])  # in single precision
    np.testing.assert_allclose(got, FORMULAS[name](*arguments), rtol=3e-6, atol=1e-6)


@pytest.mark.slow
def test_the_gradient_of_a_cosine_at_zero():
    """Zero, or where the norm has a lower bound that of any vector below it."""
    y = jnp.array([3.0, 4.0])
    slope = jax.jit(jax.grad(losses.cosine_similarity))
    assert slope(jnp.zeros(2), y).tolist() == [0.0, 0.0]
    for x in (0.0, 1e-3):
        for bound in (0.1, 2.0):
            got = slope(jnp.full(2, x), y, epsilon=bound**2)
            np.testing.assert_allclose(got, [0.6 / bound, 0.8 / bound], rtol=1e-6)


@pytest.mark.slow
def test_dice_of_other_shapes():
    x, t = PIXELS[..., :2], REGIONS[..., :2]
    options = {"reduction": "none", "axis": (0, 1)}
    each = losses.dice_loss(x, t, **options)
    assert losses.dice_loss(x, t, **options, ignore_background=True) == each[1:]
    assert losses.dice_loss(x, t, axis=(0, 1)) == jnp.mean(each)
    one = losses.dice_loss(x[..., :1], t[..., :1])
    np.testing.assert_array_equal(losses.dice_loss(x[..., :1], t[..., 0]), one)
    flat = losses.binary_dice_loss(x[..., 0], t[..., 0])
    for shape in ((2, 1, 6), (2, 3, 2)):
        got = losses.binary_dice_loss(x[..., 0].reshape(shape), t[..., 0].reshape(shape))
        np.testing.assert_allclose(got, flat, rtol=1e-6)


@pytest.mark.slow
def test_fenchel_young_is_cross_entropy_of_logsumexp():
    loss = losses.make_fenchel_young_loss(jax.nn.logsumexp)
    theirs = optax.losses.make_fenchel_young_loss(jax.nn.logsumexp)
    np.testing.assert_allclose(
        loss(X, ONE_HOT), losses.softmax_cross_entropy(X, ONE_HOT), rtol=1e-5
    )
    np.testing.assert_allclose(loss(X, Q), theirs(X, Q), rtol=1e-5)
    np.testing.assert_allclose(loss(X[0], Q[0]), theirs(X, Q)[0], rtol=1e-5)


@pytest.mark.slow
def test_multiclass_sparsemax_at_ties():
    """Its gradient is the sparsemax minus the one-hot label wherever scores are a whole number
    apart too, where the sparsemax itself has no derivative; beside Optax and by differences."""
    x = np.array(list(itertools.product([0.0, 1.0, 2.0], repeat=3)), np.float32)
    for label in range(3):
        y = np.full(len(x), label)
        loss, slope = jax.vmap(jax.value_and_grad(gradtx.losses.multiclass_sparsemax_loss))(x, y)
        descending = -np.sort(-x, -1)
        means = (np.cumsum(descending, -1) - 1) / np.arange(1, 4)
        last = np.sum(descending > means, -1) - 1
        sparsemax = np.maximum(x - np.take_along_axis(means, last[:, None], -1), 0)
        np.testing.assert_allclose(slope, sparsemax - np.eye(3)[y], atol=1e-6)
        theirs = optax.losses.multiclass_sparsemax_loss
        np.testing.assert_allclose(loss, theirs(x, y), atol=1e-6)
        np.testing.assert_allclose(slope, jax.grad(lambda x: theirs(x, y).sum())(x), atol=1e-6)  # noqa: B023
    curvature = jax.hessian(gradtx.losses.multiclass_sparsemax_loss)(jnp.array([0.3, 0.1, -2]), 1)
    np.testing.assert_allclose(curvature, [[0.5, -0.5, 0], [-0.5, 0.5, 0], [0, 0, 0]], atol=1e-6)


@pytest.mark.slow
def test_dice_takes_probabilities():
    """Compiled too, and of one class, where Optax does not."""
    p, t = sp.softmax(PIXELS, -1), REGIONS
    got = jax.jit(functools.partial(losses.dice_loss, apply_softmax=False))(p, t)
    np.testing.assert_allclose(got, losses.dice_loss(PIXELS, t), rtol=1e-5)
    whole = losses.multiclass_generalized_dice_loss
    np.testing.assert_allclose(whole(p, t, apply_softmax=False), whole(PIXELS, t), rtol=1e-5)
    got = losses.binary_dice_loss(sp.expit(PIXELS[..., 0]), t[..., 0], apply_sigmoid=False)
    np.testing.assert_allclose(got, losses.binary_dice_loss(PIXELS[..., 0], t[..., 0]), rtol=1e-5)


@pytest.mark.slow
def test_labels_out_of_range():
    loss = losses.softmax_cross_entropy_with_integer_labels
    x, y = X[:, None], np.ones((B, 1), np.int32)
    assert np.isnan(loss(x, K * y)).all()
    for loss_of in (loss, losses.multiclass_hinge_loss):
        np.testing.assert_array_equal(loss_of(x, -y.astype(np.int8)), loss_of(x, (K - 1) * y))
    np.testing.assert_array_equal(loss(x, y.astype(np.uint8)), loss(x, y))


@pytest.mark.parametrize("z_loss", [0.0, 1e-4])
def test_the_cross_entropy_of_labels_stores_no_array_of_its_own(z_loss):
    """The gradient is computed from the logits; without jit it keeps one array like them."""
    x, y = jnp.zeros((64, 256)), jnp.arange(64)

    def mean(x, y):
        loss = losses.softmax_cross_entropy_with_integer_labels
        return jnp.mean(loss(x, y, z_loss=z_loss, ignore_index=3))

    compiled = jax.jit(jax.value_and_grad(mean)).lower(x, y).compile()
    assert temporary_bytes(compiled) < x.nbytes / 4
    kept = jax.tree.leaves(jax.eval_shape(lambda x: jax.vjp(mean, x, y)[1], x))
    assert sum(a.size * a.dtype.itemsize for a in kept) < 1.5 * x.nbytes


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: losses.softmax_cross_entropy(LABELS, Q), TypeError, "logits must be floating"),
        (
            lambda: losses.softmax_cross_entropy_with_integer_labels(X, Q),
            TypeError,
            "labels must be integers",
        ),
        (
            lambda: losses.softmax_cross_entropy_with_integer_labels(X, LABELS, None),
            ValueError,
            "axis must be an integer",
        ),
        (lambda: losses.l2_loss(X, X[:, :1]), ValueError, "shapes must be the same"),
        (lambda: losses.perceptron_loss(X, X[0]), ValueError, "shapes must be the same"),
        (lambda: losses.ntxent(X, LABELS[:2]), ValueError, "labels"),
        (lambda: losses.ntxent(X, LABELS[:, None]), ValueError, "labels must have 1 dim"),
        (lambda: losses.dice_loss(PIXELS, REGIONS, reduction="max"), ValueError, "one of"),
        (lambda: losses.ctc_loss(*CTC, blank_id=99), ValueError, "blank_id is 99"),
        (lambda: losses.squared_error(X, X + 1j), TypeError, "real labels"),
        (lambda: losses.hinge_loss(X + 1j, X), TypeError, "real labels"),
        (lambda: losses.ctc_loss(X, *CTC[1:]), ValueError, "3 dimensions"),
        (lambda: losses.ctc_loss(CTC[0][:1], CTC[1][:1], *CTC[2:]), ValueError, "a batch of 1"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_labels_and_targets_of_other_shapes_are_refused():
    by_labels = gradtx.losses.softmax_cross_entropy_with_integer_labels
    for logits, labels in (((4, 2, 3), (2,)), ((2, 3, 2, 2), (3, 2))):
        axis = (len(labels), len(labels) + 1)
        with pytest.raises(ValueError, match="labels have the shape"):
            by_labels(jnp.zeros(logits), jnp.zeros(labels, int), axis=axis)
    loss = gradtx.losses.make_fenchel_young_loss(jax.nn.logsumexp)
    for targets in (jnp.ones((2, 1)), jnp.array(1.0)):
        with pytest.raises(ValueError, match="do not fit"):
            loss(jnp.zeros((2, 3)), targets)
