"""From start to end in Equinox: early stopping, a picture, a checkpoint, and on from it.

``eqx.partition`` separates the arrays of a model, which are the parameters, from its functions.
`make_step` writes into the memory of what it is given, which the model shares: train what the step
returns, and join it again by ``eqx.combine``. The ``State`` of a model that has one, such as one
with batch norm, is saved beside its parameters as ``model_state``.

Search: equinox early stopping, equinox checkpoint, equinox resume, equinox training loop
"""

import tempfile

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
from sklearn.datasets import load_digits

import gradtx

images, labels = load_digits(return_X_y=True)
order = jax.random.permutation(jax.random.key(0), len(labels))
images, labels = jnp.asarray(images, jnp.float32)[order] / 16, jnp.asarray(labels)[order]
held_out = slice(320, 1000)  # the first 320 are trained on


def build(seed):
    return eqx.nn.MLP(64, 10, 128, depth=2, key=jax.random.key(seed))


params, static = eqx.partition(build(0), eqx.is_inexact_array)


def loss(params, x, y):
    logits = jax.vmap(eqx.combine(params, static))(x)
    return gradtx.softmax_cross_entropy_with_integer_labels(logits, y).mean()


rate = gradtx.warmup_cosine_decay_schedule(0.0, 1e-2, warmup_steps=50, decay_steps=1000)
tx = gradtx.adamw(rate)
step = gradtx.make_step(loss, tx)
state = step.init(params)
validate = jax.jit(loss)
path = f"{tempfile.mkdtemp()}/best.npz"
best, waited, patience = float("inf"), 0, 3
rates, losses, validations = [], [], []
for _ in range(100):
    for i in range(0, 320, 32):
        rates.append(float(gradtx.hyperparams(tx, state)["learning_rate"]))
        params, state, value = step(params, state, images[i : i + 32], labels[i : i + 32])
        losses.append(float(value))
    validations.append(float(validate(params, images[held_out], labels[held_out])))
    if validations[-1] < best:
        best, waited = validations[-1], 0
        gradtx.save_checkpoint(path, params, state, tx, step=len(losses))
    else:
        waited += 1
    if waited == patience:
        break
print(f"stopped after {len(validations)} epochs; the best validation loss is {best:.3f}")
assert len(validations) < 100

figure, (above, below) = plt.subplots(2, sharex=True)
above.plot(losses, label="training")
above.plot(range(9, len(losses), 10), validations, label="held out")
above.set(ylabel="loss", yscale="log")
above.legend()
below.plot(rates)
below.set(xlabel="step", ylabel="learning rate")
figure.savefig(path.replace("best.npz", "run.png"))
plt.close(figure)

# Another process would begin here: a new model, and into it what was saved.
params, static = eqx.partition(build(1), eqx.is_inexact_array)
run = gradtx.load_checkpoint(path, params=params)
assert float(validate(run.params, images[held_out], labels[held_out])) == best
assert gradtx.iterations(run.state) == run.step
params, state = run.params, run.state
first = losses[run.step :]  # of the steps after the best epoch, here once more
again = []
for i in range(0, 32 * len(first), 32):
    at = i % 320
    params, state, value = step(params, state, images[at : at + 32], labels[at : at + 32])
    again.append(float(value))
assert again == first
model = eqx.combine(params, static)
print(f"went on from step {run.step}, with a loss of {again[0]:.3f}, as the first time")
found = jnp.argmax(jax.vmap(model)(images[held_out]), axis=1)
print(f"{float(jnp.mean(found == labels[held_out])):.1%} of the held-out digits are recognised")
