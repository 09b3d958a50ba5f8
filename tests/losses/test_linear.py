"""The cross entropy of a linear layer: in double precision, from whole logits, sharded."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special as sp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import gradtx
from gradtx.losses import linear as linear_module
from tests.test_aot import chips, printed

RNG = np.random.default_rng(0)
FEATURES, WORDS = 6, 40
X = RNG.normal(size=(2, 3, FEATURES)).astype(np.float32)
W = RNG.normal(size=(WORDS, FEATURES)).astype(np.float32)
BIAS = RNG.normal(size=WORDS).astype(np.float32)
LABELS = RNG.integers(0, WORDS, (2, 3))
SLOPES = RNG.normal(size=(2, 3)).astype(np.float32)
WHERE = np.array([[True, False, True], [True, True, False]])

linear = gradtx.linear_softmax_cross_entropy
dense = gradtx.softmax_cross_entropy_with_integer_labels


def transcribed(x, w, b, y, slopes, z):
    """The losses, and the gradients of their sum weighted by `slopes`, from whole logits."""
    x, w, b, slopes = (np.asarray(v, np.float64) for v in (x, w, b, slopes))
    logits = x @ w.T + b
    log_sum = sp.logsumexp(logits, -1)
    one_hot = np.eye(len(w))[y]
    loss = log_sum - (one_hot * logits).sum(-1) + z * log_sum**2
    p = np.exp(logits - log_sum[..., None])
    d = slopes[..., None] * ((1 + 2 * z * log_sum)[..., None] * p - one_hot)
    return loss, (d @ w, np.einsum("abv,abf->vf", d, x), d.sum((0, 1)))


def weighted(x, w, b, y=LABELS, slopes=SLOPES, **options):
    return jnp.sum(slopes * linear(x, w, y, bias=b, **options))


def from_logits(x, w, b, y=LABELS, slopes=SLOPES, **options):
    return jnp.sum(slopes * dense(x @ w.T + b, y, **options))


def gradients(x, w, b, y=LABELS, slopes=SLOPES, loss=weighted, **options):
    """With respect to inputs, weights and bias, in one program."""
    run = jax.grad(functools.partial(loss, **options), (0, 1, 2))
    return jax.jit(run)(*map(jnp.asarray, (x, w, b, y, slopes)))


def close(got, want, rtol=2e-6):
    """Within a bound relative to the largest entry of each array."""
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        a, b = (np.asarray(v, np.float64) for v in (a, b))
        np.testing.assert_allclose(a, b, rtol=0, atol=rtol * np.abs(b).max(initial=1e-30))


# Chunks that divide the words and that do not, one word at a time, all at once, and more.
@pytest.mark.quick(1)
@pytest.mark.parametrize("chunk", [None, 1, 7, 8, 39, 40, 41])
@pytest.mark.parametrize("axis", [0, 1])
def test_like_its_formula(chunk, axis):
    want = transcribed(X, W, BIAS, LABELS, SLOPES, 0.1)
    w = W.T if axis else W
    options = {"z_loss": 0.1, "vocabulary_axis": axis, "chunk": chunk}

    @jax.jit
    def run(x, w, b):
        return linear(x, w, LABELS, bias=b, **options), gradients(x, w, b, **options)

    loss, (dx, dw, db) = run(X, w, BIAS)
    close((loss, (dx, dw.T if axis else dw, db)), want)


@pytest.mark.slow
def test_double_precision():
    with jax.enable_x64(True):
        arrays = [jnp.asarray(v, jnp.float64) for v in (X, W, BIAS)]
        loss = linear(*arrays[:2], LABELS, bias=arrays[2], z_loss=0.1, chunk=7)
        assert loss.dtype == jnp.float64
        got = loss, gradients(*arrays, z_loss=0.1, chunk=7)
        close(got, transcribed(X, W, BIAS, LABELS, SLOPES, 0.1), 1e-14)
        # The inputs decide about the type, not the z-loss.
        assert linear(X, W, LABELS, z_loss=np.float64(0.1)).dtype == jnp.float32


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(
            jnp.bfloat16,
            marks=pytest.mark.skipif(
                jax.__version_info__ < (0, 8, 1),
                reason="XLA for CPUs multiplies no bfloat16 with a result in float32",
            ),
        ),
        jnp.float16,
    ],
)
def test_halves_are_summed_in_float32(dtype):
    """Losses as from the same numbers in float32; gradients up to rounding, not more than whole."""
    rng = np.random.default_rng(1)
    x, w, b = (jnp.asarray(rng.normal(size=s), dtype) for s in ((4, 64, 64), (2000, 64), (2000,)))
    w, y, slopes = w / 8, rng.integers(0, 2000, (4, 64)), rng.normal(size=(4, 64))
    want = transcribed(x, w, b, y, slopes, 0.1)
    options = {"y": y, "slopes": jnp.asarray(slopes, jnp.float32), "z_loss": 0.1}
    loss = linear(x, w, y, bias=b, z_loss=0.1, chunk=300)
    assert loss.dtype == jnp.float32
    close(loss, want[0], 1e-6)
    ours = gradients(x, w, b, chunk=300, **options)
    whole = gradients(x, w, b, loss=from_logits, **options)
    for got, other, exact in zip(ours, whole, want[1], strict=True):
        assert got.dtype == dtype
        error, theirs = (
            np.linalg.norm(np.asarray(v, np.float64) - exact) / np.linalg.norm(exact)
            for v in (got, other)
        )
        # Rounding a gradient to bfloat16 alone costs 1.7e-3 in this norm, to float16 an eighth.
        assert error < (2.5e-3 if dtype == jnp.bfloat16 else 3e-4)
        assert error < 1.02 * theirs


def test_logits_further_apart_than_exponentials_reach():
    x, w = jnp.ones((1, 1)), jnp.array([[100.0], [-100.0]])
    assert linear(x, w, jnp.array([1])).tolist() == [200.0]


@pytest.mark.slow
def test_types_may_differ():
    x, b = jnp.asarray(X, jnp.bfloat16), jnp.asarray(BIAS, jnp.float16)
    want = gradients(x.astype(jnp.float32), W, b.astype(jnp.float32))
    got = gradients(x, W, b)
    assert [v.dtype for v in got] == [jnp.bfloat16, jnp.float32, jnp.float16]
    close(got[1], want[1])
    close(got[0], want[0], 4e-3)
    small = linear(X, W, LABELS.astype(np.int8), chunk=7)
    np.testing.assert_array_equal(small, linear(X, W, LABELS, chunk=7))


@pytest.mark.slow
def test_inputs_wider_than_weights():
    w = jnp.asarray(W, jnp.bfloat16)
    got, want = gradients(X, w, BIAS), gradients(X, w.astype(jnp.float32), BIAS)
    assert [v.dtype for v in got] == [jnp.float32, jnp.bfloat16, jnp.float32]
    close((got[0], got[2]), (want[0], want[2]))
    np.testing.assert_array_equal(got[1], want[1].astype(jnp.bfloat16))
    with jax.enable_x64(True):
        wide = linear(X, W, LABELS, bias=jnp.asarray(BIAS, jnp.float64), chunk=7)
        assert wide.dtype == jnp.float32


@pytest.mark.slow
@pytest.mark.parametrize("z", [0.0, 0.1])
def test_masked_tokens_cost_nothing(z):
    labels = np.where(WHERE, LABELS, -100)
    got = linear(X, W, labels, bias=BIAS, where=labels != -100, z_loss=z, chunk=7)
    want = dense(X @ W.T + BIAS, LABELS, where=WHERE, z_loss=z)
    close(got, want)
    assert not got[~WHERE].any()
    # Whatever is there, also what is not finite.
    x = jnp.where(WHERE[..., None], X, 1e38)
    got = gradients(x, W, BIAS, y=labels, where=WHERE, z_loss=z, chunk=7)
    want = transcribed(X, W, BIAS, LABELS, SLOPES * WHERE, z)[1]
    close(got, want)
    with jax.set_mesh(mesh("Auto")):
        shares = gradients(x, W, BIAS, y=labels, where=WHERE, z_loss=z, axis_name="model")
    close(shares, want)


@pytest.mark.slow
def test_labels_out_of_range():
    y = np.array([[WORDS, -1, -WORDS], [-WORDS - 1, WORDS - 1, 0]])
    got, want = linear(X, W, y, chunk=7), dense(X @ W.T, y)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    close(got[np.isfinite(want)], want[np.isfinite(want)])
    arrays = X, W, jnp.zeros(WORDS)
    close(gradients(*arrays, y=y, chunk=7), gradients(*arrays, y, loss=from_logits))


# What is at some words, as their bias.
@pytest.mark.slow
@pytest.mark.parametrize(
    "special",
    [
        {3: np.nan},
        {3: np.inf},
        {3: -np.inf},
        dict.fromkeys(range(10, 30), -np.inf),
        dict.fromkeys(range(WORDS), -np.inf),
    ],
)
def test_logits_that_are_not_finite(special):
    b = BIAS.copy()
    b[list(special)] = list(special.values())
    y = np.array([[3, 3, 0], [1, 2, 35]])
    for z in (0.0, 0.1):
        got, want = linear(X, W, y, bias=b, z_loss=z, chunk=7), dense(X @ W.T + b, y, z_loss=z)
        np.testing.assert_allclose(got, want, rtol=1e-5)
    if len(special) == 20:  # words that are only padding
        y = np.minimum(y, 9)
        b = jnp.asarray(b)
        close(gradients(X, W, b, y=y, chunk=7), gradients(X, W, b, y, loss=from_logits))


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0, 100])  # the exponential of 100 is infinite in float32
def test_large_logits_keep_their_digits(spread):
    b = BIAS + 1e4
    b[::2] += spread
    close(linear(X, W, LABELS, bias=b, chunk=7), dense(X @ W.T + b, LABELS))
    close(gradients(X, W, b, chunk=7), gradients(X, W, b, loss=from_logits))


@pytest.mark.slow
def test_no_tokens_and_one_word():
    empty = linear(X[:0], W, LABELS[:0])
    assert (empty.shape, empty.dtype) == ((0, 3), jnp.float32)
    dx, dw, _ = gradients(X[:0], W, BIAS, y=LABELS[:0], slopes=SLOPES[:0])
    assert dx.shape == X[:0].shape
    assert not dw.any()
    np.testing.assert_allclose(linear(X, W[:1], LABELS * 0), 0)
    assert linear(X[0, 0], W, 5).shape == ()


@pytest.mark.slow
def test_under_vmap():
    tables = np.stack([W, 2 * W])
    run = functools.partial(gradients, chunk=7)
    got = jax.vmap(run, (0, 0, None, 0, 0))(X, tables, BIAS, LABELS, SLOPES)
    for i, table in enumerate(tables):
        one = np.arange(2) == i  # the slopes of the other are 0
        dx, dw, db = transcribed(X, table, BIAS, LABELS, SLOPES * one[:, None], 0.0)[1]
        close([v[i] for v in got], (dx[i], dw, db))
    shared = jax.jit(jax.vmap(lambda x, y: linear(x, W, y, chunk=7)))(X, LABELS)
    close(shared, linear(X, W, LABELS))


@pytest.mark.slow
def test_second_derivatives():
    """Of a gradient, forward and in reverse; also along slopes that are 0."""
    arrays = tuple(map(jnp.asarray, (X, W, BIAS)))
    slopes = SLOPES * WHERE

    def squares(loss, *arrays, **options):
        terms = loss(*arrays, z_loss=0.1, **options) - 3.0
        return jnp.sum(jnp.asarray(slopes) * terms + terms**2)

    ours = functools.partial(
        squares, lambda x, w, b, **options: linear(x, w, LABELS, bias=b, **options), chunk=7
    )
    whole = functools.partial(
        squares, lambda x, w, b, **options: dense(x @ w.T + b, LABELS, **options)
    )

    def products(loss):
        gradient = jax.grad(loss, (0, 1, 2))
        forward = jax.jvp(gradient, arrays, arrays)[1]
        _, pullback = jax.vjp(gradient, *arrays)
        return forward, pullback(arrays)

    close(jax.jit(products, static_argnums=0)(ours), jax.jit(products, static_argnums=0)(whole))
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda x: linear(x, W, LABELS), arrays[:1], arrays[:1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["z_loss", "where"])
def test_the_plain_losses_have_a_z_loss(name):
    logits = X @ W.T + BIAS
    where = WHERE if name == "where" else None
    log_sum = sp.logsumexp(logits.astype(np.float64), -1)
    added = 0.1 * log_sum**2 * (1 if where is None else where)
    labels = np.eye(WORDS, dtype=np.float32)[LABELS]
    for loss, y in ((dense, LABELS), (gradtx.softmax_cross_entropy, labels)):
        plain = loss(logits, y, where=where)
        close(loss(logits, y, where=where, z_loss=0.1), plain + added)
        np.testing.assert_array_equal(loss(logits, y, where=where, z_loss=0.0), plain)
        _, pullback = jax.vjp(functools.partial(loss, labels=y, where=where, z_loss=0.1), logits)
        (gradient,) = pullback(jnp.ones(LABELS.shape))
        p = sp.softmax(logits.astype(np.float64), -1)
        want = (1 + 0.2 * log_sum)[..., None] * p - labels
        close(gradient, want if where is None else want * where[..., None])


@pytest.mark.slow
def test_a_z_loss_over_several_axes_and_entries():
    logits = np.moveaxis(X @ W.T, -1, 1).reshape(2, 4, 10, 3)
    mask = RNG.random(logits.shape) < 0.5
    mask[0, ..., 0] = False  # an example without any
    full = np.where(mask, logits.astype(np.float64), -np.inf)
    log_sum = sp.logsumexp(full, (1, 2))
    added = 0.1 * np.where(np.isfinite(log_sum), log_sum, 0) ** 2
    for loss, y in (
        (dense, LABELS),
        (gradtx.softmax_cross_entropy, np.full(logits.shape, 1 / WORDS, np.float32)),
    ):
        got = loss(logits, y, axis=(1, 2), where=mask, z_loss=0.1)
        plain = loss(logits, y, axis=(1, 2), where=mask)
        finite = np.isfinite(plain)
        close(got[finite], (plain + added)[finite])
        assert not got[0, 0]


def mesh(kind):
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType[kind],) * 2)


def of_shards(check_vma):
    """Value and gradients, in a shard_map over tokens and words."""

    def local(x, w, b, y, slopes):
        one = weighted(x, w, b, y, slopes, z_loss=0.1, chunk=3, axis_name="model")
        return jax.lax.psum(one, "data")

    run = jax.shard_map(
        local,
        mesh=mesh("Auto"),
        in_specs=(P("data"), P("model"), P("model"), P("data"), P("data")),
        out_specs=P(),
        check_vma=check_vma,
    )
    return jax.jit(jax.value_and_grad(run, (0, 1, 2)))


WANT = jax.value_and_grad(functools.partial(from_logits, z_loss=0.1), (0, 1, 2))


@pytest.mark.slow
@pytest.mark.parametrize("check_vma", [True, False])
def test_words_sharded_in_a_shard_map(check_vma):
    close(of_shards(check_vma)(X, W, BIAS, LABELS, SLOPES), WANT(X, W, BIAS))


@pytest.mark.slow
def test_labels_count_through_all_shards():
    y = np.array([[WORDS, -1, 11], [9, 10, -WORDS - 1]])
    got = jax.vmap(lambda w: linear(X, w, y, axis_name="words"), axis_name="words")(
        W.reshape(4, 10, FEATURES)
    )
    want = dense(X @ W.T, y)
    for one in got:
        np.testing.assert_allclose(one, want, rtol=1e-5)


@pytest.mark.slow
def test_a_shard_of_padding():
    b = np.where(np.arange(WORDS) < 30, BIAS, -np.inf).astype(np.float32)
    y = LABELS % 30
    close(of_shards(True)(X, W, b, y, SLOPES), WANT(X, W, jnp.asarray(b), y))


# Named on automatic axes; known from the types on explicit ones.
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "options"), [("Auto", {"axis_name": "model"}), ("Explicit", {})])
@pytest.mark.parametrize("axis", [0, 1])
def test_whole_arrays_with_sharded_words(kind, options, axis):
    """Right, sharded like the arguments, and without weights or logits sent to others."""
    m = mesh(kind)
    parts = (P("data"), P(*[None] * axis, "model"), P("model"), P("data"), P("data"))
    arrays = X, W.T if axis else W, BIAS, LABELS, SLOPES
    with jax.set_mesh(m):
        arrays = [
            jax.device_put(jnp.asarray(v), NamedSharding(m, s))
            for v, s in zip(arrays, parts, strict=True)
        ]
        loss = functools.partial(weighted, z_loss=0.1, chunk=3, vocabulary_axis=axis, **options)
        compiled = jax.jit(jax.value_and_grad(loss, (0, 1, 2))).lower(*arrays).compile()
        value, (dx, dw, db) = compiled(*arrays)
        eager = loss(*arrays)
        # More words in a chunk than a device has.
        linear(arrays[0], arrays[1], arrays[3], vocabulary_axis=axis, **options)
        unnamed = jax.jit(functools.partial(weighted, z_loss=0.1, vocabulary_axis=axis))(*arrays)
    close((value, (dx, dw.T if axis else dw, db)), WANT(X, W, BIAS))
    close(eager, value)
    close(unnamed, value)
    for got, given in zip((dx, dw, db), arrays, strict=False):
        assert got.sharding.is_equivalent_to(given.sharding, given.ndim)
    assert not re.search(r"all-gather|all-to-all|collective-permute", compiled.as_text())


@pytest.mark.slow
def test_a_step_on_explicit_axes():
    """Tokens and words on the same devices, as when every parameter is sharded; no mesh is set."""
    m = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    x, w, y = np.tile(X.reshape(6, -1), (4, 1)), W, np.tile(LABELS.ravel(), 4)
    parts = jax.device_put((jnp.asarray(x), jnp.asarray(w), y), NamedSharding(m, P("data")))
    step = gradtx.make_step(lambda w, x, y: linear(x, w, y).mean(), gradtx.sgd(1.0))
    start = jnp.copy(parts[1])
    params, _, value = step(start, step.init(start), parts[0], parts[2])
    want, slope = jax.value_and_grad(lambda w: dense(x @ w.T, y).mean())(w)
    close((value, params), (want, w - slope))
    assert jax.typeof(params).sharding.spec == P("data", None)
    # Of the arguments only the weights' axis counts; others may be whole.
    close(linear(parts[0], jax.device_put(w, NamedSharding(m, P())), parts[2]), dense(x @ w.T, y))


@pytest.mark.slow
def test_an_axis_that_is_not_there():
    with pytest.raises(ValueError, match=r"no axis 'rows' here; .* jax\.set_mesh"):
        linear(X, W, LABELS, axis_name="rows")
    with jax.set_mesh(mesh("Auto")), pytest.raises(ValueError, match="39 words cannot be shared"):
        linear(X, W[:39], LABELS % 39, axis_name="model")


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((LABELS, W, LABELS), {}, TypeError, "inputs must be floating"),
        ((X, W.astype(int), LABELS), {}, TypeError, "weights must be floating"),
        ((X, W, LABELS), {"bias": np.zeros(WORDS, int)}, TypeError, "bias must be floating"),
        ((X, W, SLOPES), {}, TypeError, "labels must be integers"),
        ((X, W[0], LABELS), {}, ValueError, "2 dimensions"),
        ((X, W.T, LABELS), {}, ValueError, "must end in the features"),
        ((X, W, LABELS), {"vocabulary_axis": 1}, ValueError, "must end in the features"),
        ((X, W, LABELS), {"vocabulary_axis": 2}, ValueError, "must be 0 or 1"),
        ((X, W, LABELS[0]), {}, ValueError, "shapes must be the same"),
        ((X, W[:0], LABELS), {}, ValueError, "no words"),
        ((X, W, LABELS), {"bias": np.zeros(3, np.float32)}, ValueError, r"must be \(40,\)"),
        ((X, W, LABELS), {"chunk": 0}, ValueError, "positive integer"),
    ],
)
def test_bad_arguments(arguments, options, error, message):
    with pytest.raises(error, match=message):
        linear(*arguments, **options)


def test_the_default_chunk_divides_the_words_where_it_can():
    assert linear_module._chunk(8192, 131_072) == 512
    assert linear_module._chunk(8192, 128_256) == 384
    assert linear_module._chunk(8192, 50_257) == 512
    assert linear_module._chunk(8192, 1280) == 512
    assert linear_module._chunk(10**6, 50_257) == 128
    assert linear_module._chunk(0, 40) == 512


# The compilers read the environment when jax is imported: they run in a process of their own.
TEMPORARY = """
import json
from benchmarks import linear_loss
for row in linear_loss.figures(linear_loss.ASSERTED):
    print(json.dumps(row))
"""


@pytest.mark.slow
def test_temporaries_on_chips():
    """At most 150 MB for 8,192 tokens and 128K words in bfloat16."""
    rows = printed(TEMPORARY)
    assert {chip for _, chip, _ in rows} == set(chips())
    assert len(rows) >= 3 * len(chips())
    assert {case: size for case, _, size in rows if size > 150e6} == {}


@pytest.mark.slow
def test_a_mask_of_integers_counts_what_is_not_zero():
    x, w = (jax.random.normal(jax.random.key(i), (n, 3)) for i, n in enumerate((4, 5)))
    labels, mask = jnp.arange(4), jnp.array([1, 2, 3, 0])
    results = [
        gradtx.losses.linear_softmax_cross_entropy(x, w, labels, where=where, ignore_index=-100)
        for where in (mask, mask != 0)
    ]
    np.testing.assert_array_equal(*results)
    assert (results[0] > 0).tolist() == [True, True, True, False]
