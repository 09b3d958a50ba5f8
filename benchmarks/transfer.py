"""The best rate of a character transformer at several widths, with and without transfer.

``python -m benchmarks.transfer [--widths 32 64 128] [--steps 200] [--seeds 1]`` prints a table: for
each optimizer and width the best of rates a root of 2 apart, and the loss there.
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gradtx
from benchmarks.leaderboard.problems import CONTEXT, cross_entropy, dense, normalized, text

HEAD = 16
RATES = {"adamw": 0.012, "muon": 0.03}
ROLES = gradtx.ByRole((("table", "embedding"), ("position", "embedding")), "in_out")
SPACING = 2**0.5


def start(width: int, size: int, seed: int) -> dict[str, Any]:
    """Initial values, of the standard size: one over the root of the inputs."""
    keys = iter(jax.random.split(jax.random.key(seed), 9))
    names = ("query", "key", "value", "out")
    found = {name: dense(next(keys), width, width) for name in names}
    return {
        "table": jax.random.normal(next(keys), (size, width)),
        "position": 0.1 * jax.random.normal(next(keys), (CONTEXT, width)),
        "hidden": found
        | {
            "up": dense(next(keys), width, 4 * width),
            "down": dense(next(keys), 4 * width, width),
        },
        "head": {"kernel": dense(next(keys), width, size)},
    }


def loss(p: Any, batch: jax.Array) -> jax.Array:
    inputs, targets = batch[:, :-1], batch[:, 1:]
    layer = p["hidden"]
    x = p["table"][inputs] + p["position"]
    heads = (normalized(x) @ layer[name] for name in ("query", "key", "value"))
    heads = (y.reshape(*y.shape[:2], -1, HEAD) for y in heads)
    x = x + jax.nn.dot_product_attention(*heads, is_causal=True).reshape(x.shape) @ layer["out"]
    x = x + jax.nn.gelu(normalized(x) @ layer["up"]) @ layer["down"]
    return cross_entropy(normalized(x) @ p["head"]["kernel"], targets)


def build(name: str, rate: Any) -> gradtx.GradientTransformation:
    if name == "adamw":
        return gradtx.adamw(rate, weight_decay=0.0)
    return gradtx.muon(
        rate, scale="moonshot", adam_learning_rate=rate, muon_weight_dimension_numbers=ROLES
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 64, 128])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rates", type=int, default=11)
    given = parser.parse_args()
    alphabet, codes = np.unique(
        np.frombuffer(text().encode("ascii", "replace"), np.uint8), return_inverse=True
    )
    print("| optimizer | transfer | width | best rate | loss | loss at the narrow one's |")
    print("|---|---|---|---|---|---|")
    for name, middle in RATES.items():
        rates = middle * SPACING ** np.arange(-(given.rates // 2), given.rates - given.rates // 2)
        for moved in (False, True):
            chosen = None
            for width in given.widths:
                final = np.zeros(given.rates)
                for seed in range(given.seeds):
                    rng = np.random.default_rng(seed)
                    at = rng.integers(0, len(codes) - CONTEXT - 1, (given.steps, 16, 1))
                    batches = jnp.asarray(codes[at + np.arange(CONTEXT + 1)], jnp.int32)
                    small = start(given.widths[0], len(alphabet), seed)
                    params = start(width, len(alphabet), seed)
                    how = _how(name, moved, small, params)
                    if moved:
                        params = gradtx.transfer_initial(how(0.1), params, small)
                    sweep = gradtx.find_rate(loss, how, params, batches, rates)
                    final += sweep.final / given.seeds
                best = int(np.argmin(final))
                chosen = best if chosen is None else chosen
                print(
                    f"| {name} | {'yes' if moved else 'no'} | {width} | {rates[best]:.2g} | "
                    f"{final[best]:.3f} | {final[chosen]:.3f} |",
                    flush=True,
                )


def _how(name: str, moved: bool, small: Any, params: Any) -> Any:
    def transferred(rate: Any) -> gradtx.GradientTransformation:
        return gradtx.transfer(build(name, rate), small, params, ROLES)

    return transferred if moved else lambda rate: build(name, rate)


if __name__ == "__main__":
    main()
