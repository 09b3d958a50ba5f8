"""Peaks of a step without a backward pass: compiled for a TPU v5e and an H100, and not run.

    python -m benchmarks.without_backward [NAME ...]

24 layers of 1024 x 4096 and back, 2,048 tokens, 805 MB of parameters in float32, gradient descent.
Prints the peak of the loss alone, of the step inside of the scan, and of the plain form. The
packages are those of the extra `aot`.
"""

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks import aot  # isort: split

import jax
import jax.numpy as jnp

import gradtx
from benchmarks.inside import arguments, layer
from benchmarks.tables import markdown, size

ESTIMATORS = {
    "spsa": gradtx.spsa(),
    "spsa, 4 samples": gradtx.spsa(samples=4),
    "forward_gradients": gradtx.forward_gradients(),
}


class Peaks(NamedTuple):
    """Bytes at the peak: of the loss alone, of the step inside, and of the plain form."""

    loss: int
    inside: int
    plain: int


def loss(p: Any, x: Any, y: Any) -> Any:
    h, _ = jax.lax.scan(layer, x, p)
    return jnp.mean((h.astype(jnp.float32) - y) ** 2)


def peaks(names: Any = tuple(ESTIMATORS)) -> Iterator[tuple[str, str, Peaks]]:
    """The chip, the estimator, and its peaks."""
    for chip, device in aot.available().items():
        here = aot.SingleDeviceSharding(device)

        def on_chip(tree: Any, here: Any = here) -> Any:
            return jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), tree
            )

        def peak(lowered: Any) -> int:
            return int(lowered.compile().memory_analysis().peak_memory_in_bytes)

        given = on_chip(arguments(jnp.float32))
        keep = jax.jit(lambda p, x, y: (p, loss(p, x, y)), donate_argnums=0)
        alone = peak(keep.lower(*given))
        for name in names:
            found = []
            for inside in (True, None):
                step = gradtx.make_step(
                    loss, gradtx.sgd(1e-6), gradients=ESTIMATORS[name], inside=inside
                )
                state = on_chip(jax.eval_shape(step.init, given[0]))
                found.append(peak(step.lower(given[0], state, *given[1:])))
            yield chip, name, Peaks(alone, *found)


def main(names: list[str]) -> None:
    rows = [(chip, name, *map(size, each)) for chip, name, each in peaks(names or ESTIMATORS)]
    print(markdown("", ("chip", "estimator", "the loss alone", "inside", "plain"), rows))


if __name__ == "__main__":
    main(sys.argv[1:])
