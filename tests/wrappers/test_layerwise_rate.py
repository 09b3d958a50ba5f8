"""Rates that decay with the depth of a layer."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.leaves.paths import leaves_with_path, path_string


def model(layers=3):
    layer = {"attention": {"kernel": jnp.ones((2, 2))}, "norm2": {"scale": jnp.ones(2)}}
    return {
        "cls_token": jnp.ones((1, 1, 2)),
        "patch_embed": {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)},
        "blocks": [layer] * layers,
        "norm": {"scale": jnp.ones(2)},
        "head": {"kernel": jnp.ones((2, 5))},
    }


def beit(path, layers):
    """The depths of BEiT: embeddings 0, block i at i + 1, all others after the last block."""
    first = path.split("/")[0]
    if first in ("cls_token", "patch_embed"):
        return 0
    return int(path.split("/")[1]) + 1 if first == "blocks" else layers + 1


@pytest.mark.slow
def test_each_layer_takes_the_steps_of_adamw_with_its_own_rate():
    """Weight decay and a schedule with it."""
    p, rng = model(), np.random.default_rng(0)
    gs = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=(4, *x.shape)), jnp.float32), p)

    def rate(count):
        return 0.1 / (1 + count)

    def run(tx, p, gs):
        def step(carry, g):
            return gradtx.apply_gradients(tx, g, *carry), None

        return jax.lax.scan(step, (p, tx.init(p)), gs)[0][0]

    found = run(gradtx.layerwise_rate_decay(gradtx.adamw(rate), 0.6), p, gs)
    paths = [path_string(path) for path, _ in leaves_with_path(p)[0]]
    for path, x, g, got in zip(paths, *map(jax.tree.leaves, (p, gs, found)), strict=True):
        factor = 0.6 ** (4 - beit(path, 3))
        alone = gradtx.adamw(lambda count, factor=factor: factor * rate(count))
        np.testing.assert_allclose(got, run(alone, x, g), rtol=1e-5)


def test_stacked_layers_and_rows():
    p = {"table": jnp.ones((4, 2)), "stack": {"w": jnp.ones((3, 2))}, "out": None}
    depths = {"table": 0, "stack/w": range(1, 4)}
    tx = gradtx.layerwise_rate_decay(gradtx.sgd(1.0), 0.5, lambda path, leaf: depths[path], 4)
    rows = gradtx.Rows(jnp.array([2]), jnp.ones((1, 2)), (4, 2))
    updates, _ = tx.update({**p, "table": rows}, tx.init(p), p)
    assert updates["stack"]["w"][:, 0].tolist() == [-0.125, -0.25, -0.5]
    assert updates["table"].to_dense()[:, 0].tolist() == [0, 0, -0.0625, 0]
    assert updates["out"] is None
    depths["table"] = range(4)
    with pytest.raises(TypeError, match="'table' is Rows"):
        tx.update({**p, "table": rows}, tx.init(p), p)


def test_a_leaf_without_a_gradient_counts():
    """The top is that of the parameters, not of the leaves that have gradients."""
    p = model()
    g = gradtx.select(p, ["blocks/0", "patch_embed"])
    tx = gradtx.layerwise_rate_decay(gradtx.sgd(-1.0), 0.5)
    updates, _ = tx.update(g, tx.init(p), p)
    chex.assert_trees_all_close(updates["blocks"][0]["norm2"]["scale"], jnp.full(2, 0.125))
    assert updates["head"]["kernel"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.5,), "no path has the number of a layer; pass depth.* w"),
        ((0.5, lambda path, leaf: 1.5), "the depth of 'w' must be an integer from 0 to 1, not 1.5"),
        ((0.5, lambda path, leaf: -1), "the depth of 'w' must be an integer"),
        ((0.5, lambda path, leaf: 3, 2), "from 0 to 2, not 3"),
        ((0.5, lambda path, leaf: [1, 2, 3]), r"'w' has the shape \(2,\), and depth gives 3"),
    ],
)
def test_depths_that_are_none_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        gradtx.layerwise_rate_decay(gradtx.sgd(1.0), *arguments).init({"w": jnp.ones(2)})
