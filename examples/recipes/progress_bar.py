"""A progress bar, and the line of a log.

A guard measures each step in the program that takes it. With ``report=True`` the step returns the
norm of the gradient, the rate in force, and how far the parameters moved in relation to their
norm. To measure and skip no spikes, pass ``deviations=None``. Reading a number waits for its
step, so the loop reads every tenth.

Search: progress bar, tqdm, training log, log gradient norm, log loss, update ratio, log metrics
"""

import jax
import jax.numpy as jnp
from tqdm import tqdm

import gradtx


def loss(params, x, y):
    return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)


x = jax.random.normal(jax.random.key(0), (256, 8))
y = x @ jnp.arange(8.0) + 1.0
params = {"w": jnp.zeros(8), "b": jnp.zeros(())}

steps = 200
rate = gradtx.warmup_cosine_decay_schedule(0.0, 0.3, warmup_steps=20, decay_steps=steps)
tx = gradtx.guard(gradtx.adamw(rate), deviations=None)
step = gradtx.make_step(loss, tx, report=True)
state = step.init(params)

losses = []
with tqdm(range(steps), unit="step") as progress:
    for i in progress:
        params, state, value, report = step(params, state, x, y)
        if i % 10 == 9:
            losses.append(float(value))
            line = {
                "loss": f"{value:.3g}",
                "rate": f"{report.learning_rate:.3g}",
                "gradient": f"{report.gradient_norm:.3g}",
                "update / parameters": f"{report.update_ratio:.2g}",
            }
            progress.set_postfix(line)  # on the bar
            if i % 50 == 49:  # and in the log, above the bar
                said = ", ".join(f"{name} {number}" for name, number in line.items())
                progress.write(f"step {i + 1}: {said}")
assert losses[-1] < 0.01 * losses[0]
