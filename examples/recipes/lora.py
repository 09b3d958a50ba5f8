"""LoRA beside a frozen base: LoRA+, the preconditioned step and LoRA-FA.

What `trainable` leaves out has no gradient, no slots and no update, so that the optimizer keeps
numbers for the factors alone. `lora_plus` gives B a larger rate, `scale_by_riemannian_lora` divides
the gradient of each factor by the Gram matrix of the other, and `lora_fa` leaves A as it was drawn.
They know the factors by their names, those of Flax, Qwix, Keras, Levanter and PEFT; `pairs` names
others, and `describe` shows what was found.

A step writes into the memory of the parameters that it is given, the base too. With `donate=False`
it copies the base each time. A base that several adapters share is an argument of the loss instead,
here in int8 with a scale for each column.

Search: lora, qlora, peft, adapter, fine-tuning, frozen base, int8 base, shared base, lora plus
"""

import jax
import jax.numpy as jnp

import gradtx

WIDTH, RANK, LAYERS = 64, 4, ("up", "down")
keys = iter(jax.random.split(jax.random.key(0), 16))
normal = jax.nn.initializers.normal(WIDTH**-0.5)


def layer():
    kernel, lora_a = normal(next(keys), (WIDTH, WIDTH)), normal(next(keys), (WIDTH, RANK))
    return {"kernel": kernel, "lora_a": lora_a, "lora_b": jnp.zeros((RANK, WIDTH))}


def apply(params, x):
    for name in LAYERS:
        p = params[name]
        x = x + jnp.tanh(x @ p["kernel"] + (x @ p["lora_a"]) @ p["lora_b"])
    return x


params = {name: layer() for name in LAYERS}
# The task: what the base does, but for a change of low rank in each layer.
task = {n: {**p, "lora_b": normal(next(keys), (RANK, WIDTH))} for n, p in params.items()}
task = {n: {**p, "lora_a": 3 * normal(next(keys), (WIDTH, RANK))} for n, p in task.items()}
x = jax.random.normal(next(keys), (512, WIDTH))
y = apply(task, x)


def loss(params, x, y):
    return jnp.mean((apply(params, x) - y) ** 2)


def decayed(rate):
    return gradtx.cosine_decay_schedule(rate, 200)


metric = gradtx.scale_by_riemannian_lora()
optimizers = {
    # At one rate that is small for both: B, which begins at zero, has further to go than A. At the
    # best of the rates 0.001, 0.003, 0.01, 0.03 and 0.1, which is the last, both reach 1e-8.
    "adam": gradtx.adam(decayed(3e-3)),
    "lora_plus": gradtx.lora_plus(decayed(3e-3), ratio=8.0),
    # Each at the best of the rates 0.3, 1, 3, 10 and 30. With Adam in place of `sgd` the metric is
    # `riemannian_lora`; Adam divides by the size of gradients itself, and it gains nothing here.
    "sgd": gradtx.sgd(3.0),
    "metric, sgd": gradtx.chain(metric, gradtx.sgd(10.0)),
    # Half of the slots; A, which was drawn for another task, limits what B can do.
    "lora_fa": gradtx.lora_fa(decayed(3e-2)),
}
found = {"before": float(loss(params, x, y))}
for name, tx in optimizers.items():
    # Gradients, slots and updates are those of the factors. Each optimizer trains a copy.
    step = gradtx.make_step(loss, tx, trainable=["*/lora_a", "*/lora_b"])
    trained, state = jax.tree.map(jnp.copy, params), step.init(params)
    for _ in range(200):
        trained, state, value = step(trained, state, x, y)
    found[name] = float(value)
    kept = sum(slot.nbytes for slot in jax.tree.leaves(state) if slot.ndim)
    one = 4 * WIDTH * RANK * len(LAYERS)  # bytes of A, or of B, in all layers
    assert kept == {"adam": 4, "lora_plus": 4, "lora_fa": 2}.get(name, 0) * one
    assert jnp.array_equal(trained["up"]["kernel"], params["up"]["kernel"])
print(gradtx.describe(optimizers["lora_fa"], gradtx.select(params, "*/lora_?")))
print(", ".join(f"{name} {value:.5f}" for name, value in found.items()))
assert found["lora_plus"] < 0.6 * found["adam"]
assert found["metric, sgd"] < 0.5 * found["sgd"]
assert found["lora_fa"] < 0.9 * found["before"]


def quantized(kernel):
    scale = jnp.max(jnp.abs(kernel), axis=0) / 127
    return {"codes": jnp.round(kernel / scale).astype(jnp.int8), "scale": scale}


def loss_on_base(adapter, base, x, y):
    decoded = {n: {"kernel": q["codes"] * q["scale"], **adapter[n]} for n, q in base.items()}
    return loss(decoded, x, y)


base = {name: quantized(p["kernel"]) for name, p in params.items()}
step = gradtx.make_step(loss_on_base, gradtx.lora_plus(decayed(3e-2), ratio=8.0))
other = apply({n: {**p, "lora_b": -p["lora_b"]} for n, p in task.items()}, x)
for name, target in {"the task": y, "another": other}.items():
    adapter = {n: {k: jnp.copy(p[k]) for k in ("lora_a", "lora_b")} for n, p in params.items()}
    state = step.init(adapter)
    for _ in range(200):
        adapter, state, value = step(adapter, state, base, x, target)
    print(f"{name}, on a base in int8: {value:.5f}")
    assert value < 0.01 * found["before"]
