"""Peaks of a step with the optimizer inside of the backward pass: compiled and not run.

    python -m benchmarks.inside

24 layers of 1024 x 4096 and back under `jax.checkpoint`, 2,048 tokens, for TPU v5e and H100: AdamW
in float32, and with slots in int8 and parameters in bfloat16. Prints the peak of the ordinary step
and of the step inside, beside the bytes of parameters and slots. The packages are those of the
extra `aot`.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks import aot  # isort: split

import jax
import jax.numpy as jnp

import gradtx
from benchmarks.tables import markdown, size

LAYERS, WIDTH, TOKENS = 24, 1024, 2048
SHAPES = {"a": (LAYERS, WIDTH, 4 * WIDTH), "b": (LAYERS, 4 * WIDTH, WIDTH)}
ADAMW = gradtx.adamw(1e-3)
CASES = {
    "AdamW, float32": (ADAMW, jnp.float32),
    "AdamW in int8, bfloat16 parameters": (gradtx.store(ADAMW), jnp.bfloat16),
}


class Peak(NamedTuple):
    """Bytes: parameters, slots, the peak, and what there must be besides a layer's gradients."""

    parameters: int
    slots: int
    peak: int
    least: float


def layer(h: Any, w: Any) -> Any:
    return h + jnp.tanh(h @ w["a"]) @ w["b"], None


def loss(p: Any, x: Any, y: Any) -> Any:
    h, _ = jax.lax.scan(jax.checkpoint(layer), x, p)
    return jnp.mean((h.astype(jnp.float32) - y) ** 2)


def peaks(inside: bool) -> Iterator[tuple[str, str, Peak]]:
    """The chip, the case, and the bytes of its step."""
    for chip, device in aot.available().items():
        here = aot.SingleDeviceSharding(device)
        for case, (tx, dtype) in CASES.items():
            p = {n: jax.ShapeDtypeStruct(shape, dtype) for n, shape in SHAPES.items()}
            s = jax.eval_shape(tx.init, p)
            x = jax.ShapeDtypeStruct((TOKENS, WIDTH), dtype)
            y = jax.ShapeDtypeStruct((TOKENS, WIDTH), jnp.float32)

            def step(p: Any, s: Any, x: Any, y: Any, tx: Any = tx) -> Any:
                return gradtx.minimize(loss, tx, p, s, x, y, inside=inside or None)

            run = jax.jit(step, donate_argnums=(0, 1), in_shardings=here, out_shardings=here)
            memory = run.lower(p, s, x, y).compile().memory_analysis()
            held = aot.stored(p), aot.stored(s)
            yield (
                chip,
                case,
                Peak(*held, memory.peak_memory_in_bytes, sum(held) + LAYERS * aot.stored(x)),
            )


def main() -> None:
    ordinary = {(chip, case): peak for chip, case, peak in peaks(False)}
    rows = [
        [chip, case, size(peak.parameters), size(peak.slots)]
        + [size(x.peak) for x in (ordinary[chip, case], peak)]
        for chip, case, peak in peaks(True)
    ]
    header = ["", "", "parameters", "slots", "ordinary", "inside"]
    print(markdown("the step inside of the backward pass, peaks", header, rows))


if __name__ == "__main__":
    main()
