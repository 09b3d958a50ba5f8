"""Keras's step with a transformation in place of Keras's own Adam, on one model.

python -m benchmarks.keras_step
"""

import os

os.environ["KERAS_BACKEND"] = "jax"  # before Keras is imported

import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

import gradtx
from benchmarks.tables import markdown
from benchmarks.timing import Donated, interleaved, ratio

ROUNDS = 40
BATCHES = 30
BATCH = 64
CLOCK = time.process_time  # of all threads, whatever else the machine does


def optimizers() -> dict[str, Any]:
    """Keras's Adam, ours with the same formula, and Keras's again, to see what chance does."""
    return {
        "Keras": keras.optimizers.Adam(1e-3),
        "gradtx": gradtx.interop.keras_optimizer(
            gradtx.adam(1e-3, eps=1e-7, epsilon_hat=True), name="adam"
        ),
        "again": keras.optimizers.Adam(1e-3),
    }


def model(width: int, depth: int, optimizer: Any) -> Any:
    keras.utils.set_random_seed(0)
    hidden = [keras.layers.Dense(width, activation="relu") for _ in range(depth)]
    made = keras.Sequential([keras.Input((width,)), *hidden, keras.layers.Dense(1)])
    made.compile(optimizer, loss="mse")
    optimizer.build(made.trainable_variables)
    return made


class Epochs:
    """Calls of `fit`, of one epoch each."""

    def __init__(self, fitted: Any, x: Any, y: Any) -> None:
        self._fitted, self._x, self._y = fitted, x, y

    def __call__(self) -> None:
        self._fitted.fit(self._x, self._y, batch_size=BATCH, verbose=0, shuffle=False)


def measure(width: int, depth: int) -> list[object]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCHES * BATCH, width)).astype(np.float32)
    models = {name: model(width, depth, each) for name, each in optimizers().items()}
    runs = {name: Epochs(m, x, x[:, :1]) for name, m in models.items()}
    fits = interleaved(runs, ROUNDS, clock=CLOCK)
    steps = {}
    for name, m in models.items():
        values = [v.value for v in m.trainable_variables]

        def step(state: Any, values: Any, grads: Any, m: Any = m) -> Any:
            return m.optimizer.stateless_apply(state, grads, values)[::-1]

        state = [v.value for v in m.optimizer.variables]
        compiled = jax.jit(step, donate_argnums=(0, 1))
        steps[name] = Donated(compiled, (state, values), list(map(jnp.ones_like, values)))
    applied = interleaved(steps, 5 * ROUNDS, clock=CLOCK)
    row: list[object] = [f"{depth + 1} layers of {width}"]
    for seconds, count in ((fits, BATCHES), (applied, 1)):
        row.append(1e3 * statistics.median(seconds["Keras"]) / count)
        row += [ratio(seconds[name], seconds["Keras"]) for name in ("gradtx", "again")]
    return row


def table() -> str:
    return markdown(
        f"A step with Keras's Adam, and with ours and Keras's again in relation to it, on "
        f"{jax.default_backend()}",
        ["model", "fit, ms", "gradtx", "Keras", "stateless_apply, ms", "gradtx", "Keras"],
        [measure(64, 4), measure(512, 4), measure(1024, 4), measure(64, 40)],
    )


if __name__ == "__main__":
    print(table())
