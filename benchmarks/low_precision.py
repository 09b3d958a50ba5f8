"""Parameters in bfloat16: rounding to nearest stalls, the four cures do not.

    python -m benchmarks.low_precision [--out docs/_static/low_precision.png]

Draws a parameter of 2.0 that AdamW at 1e-3 is to move down, and the training loss of a classifier
of scikit-learn's digits (a hidden layer of 64, all parameters in bfloat16, AdamW at 3e-4 on a
cosine, batches of 64); prints a table of the losses after the last step, for three seeds.
"""

import argparse
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib

matplotlib.use("Agg")  # before pyplot, so that no display is needed
import matplotlib.pyplot as plt
import numpy as np
from sklearn import datasets

import gradtx
from benchmarks.convergence import cross_entropy, layers, logits
from benchmarks.tables import markdown
from benchmarks.variants import light_and_dark

STEPS, BATCH, SEEDS, POINTS = 6000, 64, 3, 60

Cure = Callable[[gradtx.GradientTransformation], gradtx.GradientTransformation]

WAYS: dict[str, tuple[str, Cure]] = {
    "float32": ("float32", lambda tx: tx),
    "bfloat16, to nearest": ("bfloat16", lambda tx: tx),
    "stochastic_rounding": ("bfloat16", gradtx.stochastic_rounding),
    "compensated, int8": ("bfloat16", lambda tx: gradtx.compensated(tx, "int8")),
    "compensated": ("bfloat16", gradtx.compensated),
    "master_weights": ("bfloat16", gradtx.master_weights),
}


def adamw(rate: Any) -> gradtx.GradientTransformation:
    return gradtx.adamw(rate, mu_dtype="float32")


def slope(way: str, steps: int = 1000) -> np.ndarray:
    """The mean of 100 parameters of 2.0 with a gradient of 1, after each step."""
    dtype, cure = WAYS[way]
    tx, p = cure(adamw(1e-3)), jnp.full(100, 2.0, dtype)

    def step(carry: Any, _: Any) -> Any:
        p, state = gradtx.apply_gradients(tx, jnp.ones(100, dtype), *carry)
        return (p, state), jnp.mean(p.astype(jnp.float32))

    run = jax.jit(lambda p, state: jax.lax.scan(step, (p, state), length=steps)[1])
    return np.asarray(run(p, tx.init(p)))


def digits(way: str, seed: int, steps: int = STEPS) -> np.ndarray:
    """The loss on all training digits, at `POINTS` points of the run."""
    dtype, cure = WAYS[way]
    rng = np.random.default_rng(seed)
    images, labels = datasets.load_digits(return_X_y=True)
    images, labels = jnp.asarray(images / 16, jnp.float32), jnp.asarray(labels)
    start = jax.tree.map(lambda p: p.astype(dtype), layers(rng, 64, 64, 10))
    tx = cure(adamw(gradtx.cosine_decay_schedule(3e-4, steps)))
    rows = jnp.asarray(rng.integers(len(images), size=(POINTS, steps // POINTS, BATCH)))

    def loss(params: Any, rows: Any) -> jax.Array:
        wide = jax.tree.map(lambda p: p.astype(jnp.float32), params)
        return cross_entropy(logits(wide, images[rows]), labels[rows])

    def step(carry: Any, rows: jax.Array) -> Any:
        return gradtx.minimize(loss, tx, *carry, rows)[:2], None

    def some(carry: Any, rows: jax.Array) -> Any:
        carry, _ = jax.lax.scan(step, carry, rows)
        return carry, loss(carry[0], slice(None))

    run = jax.jit(lambda p, state: jax.lax.scan(some, (p, state), rows)[1])
    return np.asarray(run(start, tx.init(start)))


def draw(slopes: dict[str, np.ndarray], losses: dict[str, np.ndarray], out: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for i, way in enumerate(WAYS):
        style = {"color": f"C{i}", "linestyle": "--" if way == "float32" else "-", "label": way}
        style["linewidth"] = 3 if way == "float32" else 1.5
        left.plot(np.arange(1, len(slopes[way]) + 1), slopes[way], **style)
        at = np.arange(1, POINTS + 1) * (STEPS // POINTS)
        right.plot(at, losses[way].mean(axis=0), **style)
    left.set(xlabel="step", ylabel="parameter", title="AdamW at 1e-3, gradient 1")
    right.set(xlabel="step", ylabel="training loss", yscale="log")
    right.set_title(f"digits, mean of {len(losses['float32'])} seeds")
    left.legend(frameon=False)
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110, transparent=True)
    plt.close(figure)


def main(out: Path) -> None:
    slopes = {way: slope(way) for way in WAYS}
    losses = {way: np.stack([digits(way, seed) for seed in range(SEEDS)]) for way in WAYS}
    exact = losses["float32"][:, -1]
    rows = [
        [
            way,
            f"{slopes[way][-1]:.3f}",
            ", ".join(f"{x:.4f}" for x in losses[way][:, -1]),
            f"{np.mean(losses[way][:, -1] / exact):.3f}",
        ]
        for way in WAYS
    ]
    header = ["parameters", "2.0 after 1,000 steps", "losses on digits", "over float32"]
    print(markdown("AdamW on parameters in bfloat16", header, rows))
    light_and_dark(functools.partial(draw, slopes, losses), out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Parameters in bfloat16, five ways.")
    default = Path(__file__).parent.parent / "docs" / "_static" / "low_precision.png"
    parser.add_argument("--out", type=Path, default=default)
    main(parser.parse_args().out)
