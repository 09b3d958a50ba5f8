"""Several optimizers over one model, and one group started afresh.

Muon takes the matrices, Adagrad by rows the table of words, and Adam everything else. Each group
keeps its own state; `reset_group` gives one of them a new one in the middle of a run.

Search: several optimizers, multiple optimizers, parameter groups, param groups,
partition, reset optimizer
"""

import jax
import jax.numpy as jnp

import gradtx

first, second = jax.random.split(jax.random.key(0))
params = {
    "words": 0.1 * jax.random.normal(first, (50, 16)),
    "hidden": {"w": 0.2 * jax.random.normal(second, (16, 16)), "b": jnp.zeros(16)},
    "out": {"w": 0.1 * jnp.ones((16, 16)), "b": jnp.zeros(16)},
}
tx = gradtx.partition(
    {
        "matrices": gradtx.muon(0.02),
        "table": gradtx.rowwise_adagrad(0.1),
        "rest": gradtx.adam(1e-2),
    },
    [("words", "table"), ("*/w", "matrices"), ("*", "rest")],
)
print(gradtx.describe(tx, params))


def loss(params, ids, y):
    x = gradtx.sparse.take(params["words"], ids)  # the gradient of the table is its rows
    x = jnp.tanh(x @ params["hidden"]["w"] + params["hidden"]["b"])
    return jnp.mean((x @ params["out"]["w"] + params["out"]["b"] - y) ** 2)


ids = jnp.arange(32) % 20
y = jax.nn.one_hot(ids % 16, 16)
step = gradtx.make_step(loss, tx, donate=False)
state = step.init(params)
trained, losses = params, []
for _ in range(31):
    trained, state, value = step(trained, state, ids, y)
    losses.append(float(value))
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
assert losses[-1] < 0.5 * losses[0]
assert jnp.array_equal(trained["words"][20:], params["words"][20:])  # words that were not looked up

fresh = gradtx.reset_group(tx, trained, state, "rest")
again, fresh, _ = step(trained, fresh, ids, y)
assert int(gradtx.tree.get(fresh.inner_states["rest"], "count")) == 1
