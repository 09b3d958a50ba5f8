"""Muon for the matrices inside, AdamW for the rest.

`muon` takes every leaf with two dimensions. Embeddings and heads are better left to AdamW: `ByRole`
goes by paths and shapes, and `describe` shows the role given to each leaf.

Search: muon, matrix optimizer, newton-schulz, transformer, embedding and head
"""

import jax
import jax.numpy as jnp

import gradtx

normal = jax.nn.initializers.normal(0.1)
keys = jax.random.split(jax.random.key(0), 3)
params = {
    "embed": {"embedding": normal(keys[0], (16, 8))},
    "mlp": {"kernel": normal(keys[1], (8, 8)), "bias": jnp.zeros(8)},
    "lm_head": {"kernel": normal(keys[2], (8, 16))},
}


def loss(params, tokens):
    x = params["embed"]["embedding"][tokens[:-1]]
    x = x + jnp.tanh(x @ params["mlp"]["kernel"] + params["mlp"]["bias"])
    logits = x @ params["lm_head"]["kernel"]
    return gradtx.softmax_cross_entropy_with_integer_labels(logits, tokens[1:]).mean()


tx = gradtx.muon(0.02, adam_learning_rate=3e-2, muon_weight_dimension_numbers=gradtx.ByRole())
print(gradtx.describe(tx, params))
step = gradtx.make_step(loss, tx)
state = step.init(params)
tokens = jnp.arange(33) % 16
values = []
for _ in range(50):
    params, state, value = step(params, state, tokens)
    values.append(float(value))
print(f"loss {values[0]:.2f} -> {values[-1]:.3f}")
assert values[-1] < 0.5
