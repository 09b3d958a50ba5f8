"""From start to end in Flax nnx: early stopping, a picture, a checkpoint, and on from it.

The model keeps its parameters, the keys of its dropout and the statistics of its batch norm, and
`nnx.Optimizer` the state, all in nnx's variables. ``nnx.split`` separates the parameters from the
rest; a checkpoint takes both, and returns them in the variables of a new model. `hyperparams`
evaluates the schedule at the state's step.

Search: nnx early stopping, nnx checkpoint, resume dropout, flax training loop
"""

import tempfile

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
from flax import nnx
from sklearn.datasets import load_digits

import gradtx

images, labels = load_digits(return_X_y=True)
order = jax.random.permutation(jax.random.key(0), len(labels))
images, labels = jnp.asarray(images, jnp.float32)[order] / 16, jnp.asarray(labels)[order]
held_out = slice(320, 1000)  # the first 320 are trained on


class Model(nnx.Module):
    def __init__(self, rngs):
        self.inner = nnx.Linear(64, 128, rngs=rngs)
        self.norm = nnx.BatchNorm(128, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.outer = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, x):
        return self.outer(self.dropout(nnx.relu(self.norm(self.inner(x)))))


def loss(model, x, y):
    return gradtx.softmax_cross_entropy_with_integer_labels(model(x), y).mean()


@nnx.jit
def step(model, optimizer, x, y):
    value, grads = nnx.value_and_grad(loss)(model, x, y)
    optimizer.update(model, grads)
    return value


@nnx.jit
def validate(model):
    view = nnx.view(model, deterministic=True, use_running_average=True)
    return loss(view, images[held_out], labels[held_out])


rate = gradtx.warmup_cosine_decay_schedule(0.0, 2e-2, warmup_steps=50, decay_steps=1000)
tx = gradtx.adamw(rate)
model = Model(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
path = f"{tempfile.mkdtemp()}/best.npz"
best, waited, patience = float("inf"), 0, 3
rates, losses, validations = [], [], []
for _ in range(100):
    for i in range(0, 320, 32):
        rates.append(float(gradtx.hyperparams(tx, optimizer.opt_state)["learning_rate"]))
        losses.append(float(step(model, optimizer, images[i : i + 32], labels[i : i + 32])))
    validations.append(float(validate(model)))
    if validations[-1] < best:
        best, waited = validations[-1], 0
        _, params, rest = nnx.split(model, nnx.Param, ...)
        gradtx.save_checkpoint(
            path, params, optimizer.opt_state, tx, model_state=rest, step=len(losses)
        )
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

# Another process would begin here: a new model and optimizer, and into them what was saved.
model = Model(nnx.Rngs(1))
optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
_, params, rest = nnx.split(model, nnx.Param, ...)
run = gradtx.load_checkpoint(path, params=params, state=optimizer.opt_state, model_state=rest)
nnx.update(model, run.params, run.model_state)
optimizer.opt_state = run.state
optimizer.step[...] = run.step
assert float(validate(model)) == best
assert int(gradtx.iterations(optimizer.opt_state)) == run.step
first = losses[run.step :]  # of the steps after the best epoch, here once more
again = []
for i in range(0, 32 * len(first), 32):
    at = i % 320
    again.append(float(step(model, optimizer, images[at : at + 32], labels[at : at + 32])))
assert again == first
print(f"went on from step {run.step}, with a loss of {again[0]:.3f}, as the first time")
