"""Digits with faults thrown in: what they cost a guarded run, and that each of them is counted.

    python -m benchmarks.guards [SEEDS]

A hidden layer of 64 on scikit-learn's digits, a third of them held out, 3,000 micro-batches of 64
in windows of two, AdamW on a cosine. One micro-batch in ten is hit: its gradient is NaN, its loss
is infinite, both are a thousand times too large, or it is dead (all zero), as one without examples
would be.
"""

import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from sklearn import datasets

import gradtx
from benchmarks.convergence import cross_entropy, layers, logits
from benchmarks.tables import markdown

STEPS, BATCH, CALM = 3000, 64, 100  # no fault in the first steps, in which the guard learns
COUNTED = ("not_finite", "loss_spikes", "norm_spikes", "zero")
FAULTS = ("none", "NaN gradient", "infinite loss", "1,000-fold spike", "dead micro-batch")


class Outcome(NamedTuple):
    """Test accuracy in percent, how often each fault occurred, and the guard's report if any."""

    accuracy: float
    faults: dict[str, int]
    report: dict[str, int]


def optimizer(guarded: bool) -> gradtx.GradientTransformation:
    rate = gradtx.cosine_decay_schedule(5e-3, STEPS // 2)
    tx = gradtx.accumulate(gradtx.chain(gradtx.clip_by_global_norm(1.0), gradtx.adamw(rate)), 2)
    return gradtx.guard(tx, skip_zero=True) if guarded else tx


def hit(fault: jax.Array, value: jax.Array, grads: Any) -> tuple[jax.Array, Any]:
    """The loss and its gradient, as a fault leaves them."""
    of_value = jnp.array([1.0, 1.0, jnp.inf, 1000.0, 0.0])[fault]
    of_grads = jnp.array([1.0, jnp.nan, 1.0, 1000.0, 0.0])[fault]
    return value * of_value, jax.tree.map(lambda g: g * of_grads, grads)


def run(seed: int, *, guarded: bool, faulty: bool, steps: int = STEPS) -> Outcome:
    rng = np.random.default_rng(seed)
    images, labels = datasets.load_digits(return_X_y=True)
    order = rng.permutation(len(images))
    images, labels = jnp.asarray(images[order] / 16, jnp.float32), jnp.asarray(labels[order])
    held_out = len(images) // 3
    rows = jnp.asarray(rng.integers(held_out, len(images), size=(steps, BATCH)))
    faults = np.where(rng.random(steps) < 0.1, rng.integers(1, len(FAULTS), steps), 0)
    faults[:CALM] = 0
    faults *= faulty
    tx, start = optimizer(guarded), layers(rng, 64, 64, 10)

    def loss(params: Any, rows: jax.Array) -> jax.Array:
        return cross_entropy(logits(params, images[rows]), labels[rows])

    def step(carry: Any, batch: Any) -> Any:
        params, state = carry
        rows, fault = batch
        value, grads = hit(fault, *gradtx.compute_gradients(loss, params, rows))
        return gradtx.apply_gradients(tx, grads, params, state, value=value), None

    @jax.jit
    def trained() -> Any:
        carry = start, tx.init(start)
        (params, state), _ = jax.lax.scan(step, carry, (rows, jnp.asarray(faults)))
        right = jnp.argmax(logits(params, images[:held_out]), axis=1) == labels[:held_out]
        return 100 * jnp.mean(right), state

    accuracy, state = trained()
    report = gradtx.guard_report(state)._asdict() if guarded else {}
    counts = {n: int(x) for n, x in report.items() if x.dtype == jnp.int32}
    return Outcome(
        float(accuracy), {f: int(np.sum(faults == i)) for i, f in enumerate(FAULTS)}, counts
    )


def main(seeds: int) -> None:
    ways = {
        "clean, alone": {"guarded": False, "faulty": False},
        "clean, guarded": {"guarded": True, "faulty": False},
        "faulty, alone": {"guarded": False, "faulty": True},
        "faulty, guarded": {"guarded": True, "faulty": True},
    }
    runs = {name: [run(seed, **way) for seed in range(seeds)] for name, way in ways.items()}
    rows = []
    for name, found in runs.items():
        accuracies = [o.accuracy for o in found]
        mean, each = f"{np.mean(accuracies):.2f}", ", ".join(f"{a:.2f}" for a in accuracies)
        hits = [sum(o.faults[fault] for o in found) for fault in FAULTS[1:]]
        told = [sum(o.report[c] for o in found) if found[0].report else "-" for c in COUNTED]
        rows.append([name, mean, each, *hits, *told])
    header = ["run", "accuracy, %", "by seed", *FAULTS[1:], *(f"counted: {c}" for c in COUNTED)]
    print(markdown(f"Digits with faults, {seeds} seeds", header, rows))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
