"""Weight decay on matrices only.

A mask is a tree of booleans, a path pattern, or a function of the parameters. Biases and the
scales of norms have one dimension, and shrinking them is harmful.

Search: weight decay mask, no decay bias, no decay on bias and layer norm,
exclude from weight decay
"""

import jax
import jax.numpy as jnp

import gradtx

params = {
    "dense": {"kernel": jnp.ones((4, 4)), "bias": jnp.ones(4)},
    "norm": {"scale": jnp.ones(4)},
}
grads = jax.tree.map(jnp.zeros_like, params)


def matrices(params):
    return jax.tree.map(lambda p: p.ndim > 1, params)


for mask in (matrices, "*/kernel"):
    tx = gradtx.adamw(0.1, weight_decay=0.5, mask=mask)
    updates, _ = tx.update(grads, tx.init(params), params)
    print(jax.tree.map(lambda u: round(float(u.mean()), 3), updates))
    assert float(updates["dense"]["kernel"].mean()) < 0
    assert float(updates["norm"]["scale"].mean()) == 0
