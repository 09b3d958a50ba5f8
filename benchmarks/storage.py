"""Does an optimizer learn with its slots in fewer bits? Losses of a small character transformer.

    python -m benchmarks.storage               all codecs with AdamW, Lion and Muon, as a table
    python -m benchmarks.storage int8 int4     these alone
    python -m benchmarks.storage dither        dithered int4 beside nearest int4 over 10,000 steps
    python -m benchmarks.storage time          a step on 16M parameters beside float32, interleaved

The text is Python's own: the help topics in ``pydoc_data``. Every run has the same batches.
"""

import functools
import sys
import time
from pydoc_data.topics import topics

import jax
import jax.numpy as jnp
import numpy as np

import gradtx
from gradtx.storage import FORMATS

CONTEXT, WIDTH, HEADS, LAYERS, VOCABULARY = 64, 64, 4, 2, 128
OPTIMIZERS = {
    "adamw": lambda: gradtx.adamw(3e-3),
    "lion": lambda: gradtx.lion(5e-4),
    "muon": lambda: gradtx.muon(1e-2),
}


def text():
    """The help topics as characters below 128, the last tenth apart."""
    joined = "".join(topics[name] for name in sorted(topics))
    found = np.frombuffer(joined.encode("ascii", "replace"), np.uint8).astype(np.int32)
    return np.split(found, [len(found) * 9 // 10])


def batches(found, count, size, seed):
    starts = np.random.default_rng(seed).integers(0, len(found) - CONTEXT - 1, (count, size))
    return found[starts[..., None] + np.arange(CONTEXT + 1)]


def start(key):
    keys = iter(jax.random.split(key, 4 * LAYERS + 3))

    def matrix(rows, columns):
        return jax.random.normal(next(keys), (rows, columns)) / np.sqrt(rows)

    return {
        "embed": matrix(VOCABULARY, WIDTH),
        "position": matrix(CONTEXT, WIDTH) * 0.1,
        "head": matrix(WIDTH, VOCABULARY),
        "layers": [
            {
                "attention": matrix(WIDTH, 3 * WIDTH),
                "out": matrix(WIDTH, WIDTH),
                "up": matrix(WIDTH, 4 * WIDTH),
                "down": matrix(4 * WIDTH, WIDTH),
            }
            for _ in range(LAYERS)
        ],
    }


def normalized(x):
    return x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)


def loss(params, batch):
    """The mean cross-entropy of the next character."""
    inputs, targets = batch[:, :-1], batch[:, 1:]
    x = params["embed"][inputs] * np.sqrt(WIDTH) + params["position"]
    for layer in params["layers"]:
        q, k, v = jnp.split(normalized(x) @ layer["attention"], 3, -1)
        q, k, v = (a.reshape(*a.shape[:2], HEADS, -1) for a in (q, k, v))
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + mixed.reshape(x.shape) @ layer["out"]
        x = x + jax.nn.gelu(normalized(x) @ layer["up"]) @ layer["down"]
    scores = jax.nn.log_softmax(normalized(x) @ params["head"])
    return -jnp.mean(jnp.take_along_axis(scores, targets[..., None], -1))


def trained(tx, steps, seed):
    """The loss on held-out text after a number of steps."""
    train, test = text()
    held = jnp.asarray(batches(test, 1, 64, 0)[0])

    def body(carry, batch):
        params, state = carry
        updates, state = tx.update(jax.grad(loss)(params, batch), state, params)
        return (gradtx.apply_updates(params, updates), state), None

    @jax.jit
    def run(key, data):
        params = start(key)
        (params, _), _ = jax.lax.scan(body, (params, tx.init(params)), data)
        return loss(params, held)

    return float(run(jax.random.key(seed), jnp.asarray(batches(train, steps, 8, seed + 1))))


def table(codecs, steps=400, seeds=(0, 1, 2)):
    """The mean loss of each optimizer in float32, and with each codec relative to that."""
    print("| codec |", " | ".join(OPTIMIZERS), "|")
    print("|---|" + "---|" * len(OPTIMIZERS))
    plain = {}
    for name in ("float32", *codecs):
        row = []
        for optimizer, make in OPTIMIZERS.items():
            tx = make() if name == "float32" else gradtx.store(make(), name, exempt=())
            mean = np.mean([trained(tx, steps, seed) for seed in seeds])
            base = plain.setdefault(optimizer, mean)
            row.append(f"{mean:.3f}" if name == "float32" else f"{100 * (mean / base - 1):+.2f} %")
        print(f"| {name} |", " | ".join(row), "|", flush=True)


@functools.partial(jax.jit, static_argnums=(0, 1))
def drift(codec, steps):
    """The mean distance of noisy momentum from the minimum of a quadratic, in its last tenth."""
    curvature = jnp.logspace(-2, 0, 1024)
    target = jnp.sin(jnp.arange(1024.0))
    tx = gradtx.sgd(0.01, momentum=0.99)
    tx = tx if codec is None else gradtx.store(tx, codec, min_size=1)

    def body(carry, key):
        x, state = carry
        g = curvature * (x - target) + 0.1 * jax.random.normal(key, x.shape)
        updates, state = tx.update(g, state, x)
        x = gradtx.apply_updates(x, updates)
        return (x, state), 0.5 * jnp.mean(curvature * (x - target) ** 2)

    x = jnp.zeros(1024)
    keys = jax.random.split(jax.random.key(0), steps)
    return jnp.mean(jax.lax.scan(body, (x, tx.init(x)), keys)[1][-steps // 10 :])


def timed(codecs, rows=4096, columns=4096, repeats=5):
    """The least time of a donated step of AdamW, over that in float32, in one interleaved run."""
    runs = {}
    for name in (None, *codecs):
        tx = gradtx.adamw(1e-3) if name is None else gradtx.store(gradtx.adamw(1e-3), name)

        def step(params, state, g, tx=tx):
            updates, state = tx.update(g, state, params)
            return gradtx.apply_updates(params, updates), state

        params = jnp.zeros((rows, columns))
        runs[name or "float32"] = [jax.jit(step, donate_argnums=(0, 1)), params, tx.init(params)]
    g = jax.random.normal(jax.random.key(0), (rows, columns))
    best = dict.fromkeys(runs, np.inf)
    for _ in range(repeats + 1):
        for name, run in runs.items():
            before = time.perf_counter()
            run[1:] = jax.block_until_ready(run[0](*run[1:], g))
            best[name] = min(best[name], time.perf_counter() - before)
    for name, seconds in best.items():
        print(f"{name}: {1e3 * seconds:.0f} ms, {seconds / best['float32']:.2f} of float32")


def main(arguments):
    if arguments == ["dither"]:
        for codec in (None, "int4_dithered", "int4", "int8"):
            print(codec or "float32", f"{float(drift(codec, 10_000)):.2e}")
    elif arguments == ["time"]:
        timed(["bf16", "int8", "int4"])
    else:
        table(arguments or FORMATS)


if __name__ == "__main__":
    main(sys.argv[1:])
