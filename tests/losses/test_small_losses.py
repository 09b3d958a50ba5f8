"""Losses of float32 logits keep five digits, however small they are: against double precision."""

# Sees mutants of: arguments, classification.

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradtx import losses

K = 4
WEIGHTS = np.eye(K, dtype=np.float32)


def program(loss):
    def both(x):
        values, pullback = jax.vjp(loss, x)
        return values, pullback(jnp.ones_like(values))[0]

    return jax.jit(both)


def compare(run, x):
    """Values one by one; gradients relative to the largest of an example's."""
    with jax.enable_x64():
        want = [np.asarray(v) for v in run(jnp.asarray(x, jnp.float64))]
    got = [np.asarray(v, np.float64) for v in run(jnp.asarray(x, jnp.float32))]
    # Numbers below the least normal one have fewer digits.
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5, atol=1e-36)
    size = np.abs(want[1]).max(tuple(range(1, want[1].ndim)), keepdims=True)
    assert (np.abs(got[1] - want[1]) <= 1e-5 * size + 1e-36).all(), (got[1], want[1])


@pytest.mark.slow
def test_a_ctc_loss_below_the_precision_of_a_probability():
    """The label is missed if both frames are blank: the square of a small number."""
    run = jax.jit(losses.ctc_loss)
    for logit in (10.0, 17.0):
        x = jnp.array([[[0.0, logit], [0.0, logit]]])
        p = 1 / (1 + np.exp(logit))
        got = run(x, jnp.zeros((1, 2)), jnp.array([[1]]), jnp.zeros((1, 1)))
        np.testing.assert_allclose(got, -np.log1p(-(p**2)), rtol=1e-5)


@pytest.mark.slow
def test_a_small_ctc_loss_of_many_frames():
    rng = np.random.default_rng(0)
    y = rng.integers(1, 30, 100)
    x = 0.5 * rng.normal(size=(1000, 30)).astype(np.float32)
    x[np.arange(1000), np.where(np.arange(1000) % 10 < 6, y[np.arange(1000) // 10], 0)] += 17

    def loss(x):
        none = np.zeros((1, 1000), np.float32), np.int32(y)[None], np.zeros((1, 100), np.float32)
        return losses.ctc_loss(x, *none)

    compare(program(loss), x[None])


@pytest.mark.slow
def test_what_is_ignored():
    """Its logits may be anything; the mean of the others is PyTorch's."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 3, K)).astype(np.float32)
    y = np.array([[0, -100, 3], [-100, 2, 1]])
    counts = y != -100
    dense, linear = (
        losses.softmax_cross_entropy_with_integer_labels,
        losses.linear_softmax_cross_entropy,
    )
    want = dense(x, np.where(counts, y, 0), where=counts, z_loss=0.1)
    np.testing.assert_array_equal(dense(x, y, z_loss=0.1, ignore_index=-100), want)
    every = counts & np.array([[True], [False]])
    got = dense(x, y, where=np.array([[True], [False]]) & (y > -200), ignore_index=-100)
    np.testing.assert_array_equal(got, np.where(every, dense(x, np.where(counts, y, 0)), 0))
    got = linear(x, WEIGHTS, y, z_loss=0.1, ignore_index=-100)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    wild = x.copy()
    wild[~counts] = np.nan
    slopes = jax.grad(lambda x: jnp.sum(dense(x, y, ignore_index=-100)))(wild)
    assert (np.asarray(slopes)[~counts] == 0).all()
    assert np.isfinite(slopes).all()
    # Of a type that cannot hold the number, all labels count.
    bytes_ = np.uint8([[0, 1, 3], [1, 2, 1]])
    np.testing.assert_array_equal(dense(x, bytes_, ignore_index=-100), dense(x, bytes_))
    for loss in (lambda **o: dense(x, y, **o), lambda **o: linear(x, WEIGHTS, y, **o)):
        with pytest.raises(TypeError, match="ignore_index must be an integer or None, not 1.5"):
            loss(ignore_index=1.5)
    torch = pytest.importorskip("torch")
    theirs = torch.nn.functional.cross_entropy(
        torch.tensor(x).reshape(-1, K), torch.tensor(y).reshape(-1)
    )
    ours = dense(x, y, ignore_index=-100)
    np.testing.assert_allclose(ours.sum() / counts.sum(), theirs.numpy(), rtol=1e-6)


@pytest.mark.slow
def test_a_mask_of_the_entries_of_two_classes():
    """The label's own entry is masked in the first example, and the other one in the second."""
    x, y = jnp.array([[1.0, 3.0], [1.0, 3.0]]), jnp.array([1, 1])
    where = jnp.array([[True, False], [False, True]])
    loss = losses.softmax_cross_entropy_with_integer_labels(x, y, where=where)
    np.testing.assert_array_equal(loss, [-2.0, 0.0])  # the entry that is left minus the label's


@pytest.mark.slow
def test_a_derivative_along_a_direction():
    """Forward, where `jax.grad` would not see what is added to each."""
    rng = np.random.default_rng(0)
    x, v = rng.normal(size=(2, 3, K)).astype(np.float32)
    y = jnp.array([0, 3, 1])

    def loss(x):
        return losses.softmax_cross_entropy_with_integer_labels(x, y)

    p = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    want = ((p - np.eye(K)[y]) * v).sum(-1)
    np.testing.assert_allclose(jax.jvp(loss, (x,), (v,))[1], want, rtol=1e-5)


def test_the_absolute_error():
    x, y = np.float32([1.0, 3.0, 2.0]), np.float32([1.0, 5.0, -2.0])
    np.testing.assert_array_equal(losses.absolute_error(x, y), [0, 2, 4])
    np.testing.assert_array_equal(losses.absolute_error(-x), x)
    slopes = jax.grad(lambda x: jnp.sum(losses.absolute_error(x, y)))(x)
    np.testing.assert_array_equal(slopes, [0, -1, 1])
    assert losses.absolute_error(jnp.bfloat16(1)).dtype == jnp.float32
    with pytest.raises(ValueError, match="absolute_error: the shapes must be the same"):
        losses.absolute_error(x, y[:2])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["uint8", "uint16", "uint32", "int8"])
def test_labels_of_any_integer_type(kind):
    x = jnp.array([[[0.0, 0.0, 9.0], [9.0, 0.0, 0.0], [0.0, 9.0, 0.0], [9.0, 0.0, 0.0]]])
    rest = jnp.zeros((1, 4)), jnp.array([[2, 1, 0]]), jnp.array([[0.0, 0.0, 1.0]])
    want = losses.ctc_loss(x, *rest)
    found = losses.ctc_loss(x, rest[0], rest[1].astype(kind), rest[2])
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("name", ["squared_error", "l2_loss", "huber_loss", "log_cosh"])
def test_large_integers_beside_float64(name):
    with jax.enable_x64(True):
        x, y = jnp.array([16777217.0, 1.7e9 + 1]), jnp.array([16777217, 1_700_000_001])
        np.testing.assert_array_equal(getattr(losses, name)(x, y), 0)
        np.testing.assert_array_equal(losses.absolute_error(x, y), 0)


@pytest.mark.slow
def test_a_mask_of_classes_is_broadcast_before_they_are_counted():
    y = jnp.eye(2, 4)
    got = losses.smooth_labels(y, 0.4, where=jnp.ones((2, 1), bool))
    np.testing.assert_array_equal(got, losses.smooth_labels(y, 0.4))


@pytest.mark.slow
def test_weights_with_more_dimensions_than_logits():
    x, y = jnp.array([0.0, 2.0, -1.0]), jnp.array([1.0, 0.0, 1.0])
    want = losses.sigmoid_focal_loss(x, y, alpha=0.25)
    got = losses.sigmoid_focal_loss(x, y, alpha=jnp.full((2, 3), 0.25))
    np.testing.assert_array_equal(got, [want, want])


def test_embeddings_without_features_are_refused():
    with pytest.raises(ValueError, match="embeddings must have 2 dimensions"):
        losses.ntxent(jnp.ones(4), jnp.array([0, 0, 1, 1]))
