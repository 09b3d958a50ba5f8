"""Every loss in single precision, against itself in double precision of the same numbers.

A value may be off by 1e-5 of its size, and an entry of a gradient by 1e-5 of the largest entry of
its example: what an optimizer sees is a vector, and where classes share a gradient of 1, one of
1e-9 is a difference of them. To this comes what is lost before any arithmetic: a logit of 10,000
stands for all numbers within 0.0005 of it. That is what moving each logit by half a unit in its
last place changes, in double precision, summed over the logits.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradtx import losses

K = 4
RNG = np.random.default_rng(0)
LABELS = np.int32([0, 2])
ONE_HOT = np.eye(K, dtype=np.float32)[LABELS]
SIGNS = 2 * ONE_HOT - 1
Q = np.float32([[0.1, 0.2, 0.3, 0.4], [0.97, 0.01, 0.02, 0.0]])
WEIGHTS = RNG.normal(size=(5, K)).astype(np.float32)
WEIGHTS[:2] = np.eye(K)[:2]
SHARDS = np.stack([WEIGHTS[:2], WEIGHTS[2:4]])
OTHERS = RNG.normal(size=(2, 2, K)).astype(np.float32)


PATHS = np.zeros((1, 5), np.float32), np.int32([[1, 1, 2]]), np.zeros((1, 3), np.float32)


def forward(x):
    """Of prefixes that can be: of no label, and of one."""
    _, blank, label = losses.ctc_loss_with_forward_probs(x[None], *PATHS)
    return jnp.sum(blank[:, 0, 0] + label[:, 0, 0])


def of(loss, *arguments, shape=(2, K), **keywords):
    """A loss of logits of a shape, and the shape."""
    return lambda x: loss(x, *arguments, **keywords), shape


def of_shards(x):
    def of_words(w):
        return losses.linear_softmax_cross_entropy(x, w, LABELS, axis_name="words")

    return jax.vmap(of_words, axis_name="words")(SHARDS)[0]


# Each value is of one example, which are the first axes of the logits.
LOSSES = {
    "absolute_error": of(losses.absolute_error, Q),
    "binary_dice_loss": of(losses.binary_dice_loss, ONE_HOT),
    "cosine_distance": of(losses.cosine_distance, OTHERS[0]),
    "cosine_similarity": of(losses.cosine_similarity, OTHERS[0]),
    "ctc_loss": (lambda x: losses.ctc_loss(x[None], *PATHS)[0], (5, 3)),
    "ctc_loss_with_forward_probs": (forward, (5, 3)),
    "dice_loss": of(losses.dice_loss, ONE_HOT[:, None], shape=(2, 1, K)),
    "generalized_kl_divergence": (lambda x: losses.generalized_kl_divergence(-abs(x), Q), (2, K)),
    "hinge_loss": of(losses.hinge_loss, SIGNS),
    "huber_loss": of(losses.huber_loss, Q),
    "kl_divergence": of(losses.kl_divergence, Q),
    "kl_divergence_with_log_targets": of(losses.kl_divergence_with_log_targets, np.log(Q + 1e-3)),
    "l2_loss": of(losses.l2_loss, Q),
    "linear_softmax_cross_entropy": of(
        losses.linear_softmax_cross_entropy, WEIGHTS, LABELS, chunk=2
    ),
    "linear_softmax_cross_entropy of sharded words": (of_shards, (2, K)),
    "log_cosh": of(losses.log_cosh, Q),
    "multiclass_hinge_loss": of(losses.multiclass_hinge_loss, LABELS),
    "multiclass_perceptron_loss": of(losses.multiclass_perceptron_loss, LABELS),
    "multiclass_sparsemax_loss": of(losses.multiclass_sparsemax_loss, LABELS),
    "perceptron_loss": of(losses.perceptron_loss, SIGNS),
    "poly_loss_cross_entropy": of(losses.poly_loss_cross_entropy, Q),
    "ranking_softmax_loss": of(losses.ranking_softmax_loss, ONE_HOT, reduce_fn=None),
    "safe_softmax_cross_entropy": of(losses.safe_softmax_cross_entropy, Q),
    "sigmoid_binary_cross_entropy": of(losses.sigmoid_binary_cross_entropy, Q),
    "sigmoid_focal_loss": of(losses.sigmoid_focal_loss, ONE_HOT, alpha=0.25),
    "softmax_cross_entropy": of(losses.softmax_cross_entropy, ONE_HOT, z_loss=1e-3),
    "softmax_cross_entropy_with_integer_labels": of(
        losses.softmax_cross_entropy_with_integer_labels, LABELS
    ),
    "sparsemax_loss": of(losses.sparsemax_loss, ONE_HOT),
    "squared_error": of(losses.squared_error, Q),
    "triplet_margin_loss": (lambda x: losses.triplet_margin_loss(*x), (3, K)),
    "triplet_margin_loss of anchors": of(losses.triplet_margin_loss, *OTHERS),
    "triplet_margin_loss of degree 3": (
        lambda x: losses.triplet_margin_loss(*x, norm_degree=3),
        (3, K),
    ),
    "ntxent": of(losses.ntxent, np.int32([0, 0, 1, 1]), shape=(4, 3)),
    "multiclass_generalized_dice_loss": of(
        losses.multiclass_generalized_dice_loss, ONE_HOT[:, None], shape=(2, 1, K)
    ),
}
NOT_COMPARED = {
    "convex_kl_divergence": "generalized_kl_divergence under its older name",
    "make_fenchel_young_loss": "the caller's maximum minus a product: 1e-7 of these, however "
    "small the loss is; with logsumexp and logits of 17 it is 0 for 3.6e-15",
    "smooth_labels": "no loss",
}


# The exponent of the smallest size.
LEAST = {"ntxent": (-2, "squared norms are at least the machine epsilon, which types differ in")}


def inputs(name, shape):
    """Logits of all sizes; right and wrong ones; and others near what they are compared with."""
    rng = np.random.default_rng(0)
    sizes = 10.0 ** np.arange(LEAST.get(name, (-3,))[0], 5)
    xs = [size * rng.uniform(-1, 1, shape) for size in sizes for _ in range(8)]
    right = SIGNS.reshape(shape) if np.prod(shape) == SIGNS.size else rng.choice([-1, 1], shape)
    xs += [sign * size * right for size in (5.0, 17.0, 40.0, 80.0) for sign in (1, -1)]
    if shape == (2, K):
        xs += [(1 - gap) * ONE_HOT for gap in (1e-2, 1e-3)]  # margins that are nearly met
        targets = OTHERS[0], Q, np.log(Q + 1e-3)
        near = (1e-1, 1e-3, 1e-4)
        xs += [y * (1 + gap * rng.uniform(-1, 1, shape)) for y in targets for gap in near]
    return np.float32(xs)


def program(loss):
    def both(x):
        values, pullback = jax.vjp(loss, x)
        return values, pullback(jnp.ones_like(values))[0]

    return jax.jit(jax.vmap(both))


def test_every_loss_is_compared():
    compared = {name.partition(" ")[0] for name in LOSSES}
    assert compared | NOT_COMPARED.keys() == set(losses.__all__)
    assert not compared & NOT_COMPARED.keys()


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", LOSSES)
def test_against_double_precision(name):
    loss, shape = LOSSES[name]
    x = inputs(name, shape)
    got = [np.float64(v) for v in program(loss)(x)]
    moves = 2.0**-24 * np.eye(x[0].size).reshape(-1, *shape)
    moved = np.float64(x)[:, None] * (1 + np.concatenate([0 * moves[:1], moves, -moves]))
    with jax.enable_x64():
        wide = [np.asarray(v) for v in program(loss)(jnp.asarray(moved.reshape(-1, *shape)))]
    wide = [v.reshape(*moved.shape[:2], *v.shape[1:]) for v in wide]
    entries = tuple(range(got[0].ndim, x.ndim))  # those of an example
    for part, have, all_ in zip(("value", "gradient"), got, wide, strict=True):
        want, changes = all_[:, 0], np.abs(all_[:, 1:] - all_[:, :1])
        lost = changes.reshape(len(x), 2, -1, *want.shape[1:]).max(1).sum(1)
        size = np.abs(want)
        if part == "gradient" and entries:
            size = size.max(entries, keepdims=True)
        # Numbers below the least normal one have fewer digits.
        far = np.abs(have - want) / (1e-5 * size + lost + 1e-36)
        worst = np.unravel_index(np.argmax(far), far.shape)
        assert (far <= 1).all(), (part, x[worst[0]], have[worst], want[worst], far[worst])
