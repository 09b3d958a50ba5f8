"""Does an optimizer learn with its slots in fewer bits? Losses of a small character transformer.

    python -m benchmarks.storage               all codecs with AdamW, Lion and Muon, as a table
    python -m benchmarks.storage int8 int4     these alone
    python -m benchmarks.storage dither        dithered int4 beside nearest int4 over 10,000 steps
    python -m benchmarks.storage time          a step on 16M parameters beside float32 and others'

The text is Python's own: the help topics in ``pydoc_data``. Every run has the same batches.
"""

import functools
import importlib
import sys
import time
from pydoc_data.topics import topics

import jax
import jax.numpy as jnp
import numpy as np
from sklearn import datasets

import gradtx
from benchmarks.convergence import cross_entropy, layers, logits
from gradtx.storage import FORMATS

CONTEXT, WIDTH, HEADS, LAYERS, VOCABULARY = 64, 64, 4, 2, 128
OPTIMIZERS = {
    "adamw": (gradtx.adamw, 3e-3),
    "lion": (gradtx.lion, 5e-4),
    "muon": (gradtx.muon, 1e-2),
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


@functools.partial(jax.jit, static_argnums=0)
def _ended(tx, key, data, held):
    def body(carry, batch):
        params, state = carry
        updates, state = tx.update(jax.grad(loss)(params, batch), state, params)
        return (gradtx.apply_updates(params, updates), state), None

    params = start(key)
    (params, _), _ = jax.lax.scan(body, (params, tx.init(params)), data)
    return loss(params, held)


def trained(tx, steps, seed):
    """The loss on held-out text after a number of steps."""
    train, test = text()
    held = jnp.asarray(batches(test, 1, 64, 0)[0])
    data = jnp.asarray(batches(train, steps, 8, seed + 1))
    return float(_ended(tx, jax.random.key(seed), data, held))


NOISE = 0.25  # added to the brightness of each pixel, from 0 to 1, anew in each batch


@functools.partial(jax.jit, static_argnums=0)
def _classified(tx, params, images, labels, rows, key):
    def mean(params, rows, key):
        noisy = images[rows] + NOISE * jax.random.normal(key, images[rows].shape)
        return cross_entropy(logits(params, noisy), labels[rows])

    def body(carry, at):
        params, state = carry
        updates, state = tx.update(jax.grad(mean)(params, *at), state, params)
        return (gradtx.apply_updates(params, updates), state), None

    keys = jax.random.split(key, len(rows))
    (params, _), _ = jax.lax.scan(body, (params, tx.init(params)), (rows, keys))
    last = jax.random.split(jax.random.key(0), 8)
    return jnp.mean(jax.vmap(lambda key: mean(params, slice(None), key))(last))


def classified(tx, steps, seed, widths=(256, 256)):
    """The loss of a classifier of scikit-learn's digits with noise, after a number of steps."""
    rng = np.random.default_rng(seed)
    images, labels = datasets.load_digits(return_X_y=True)
    images, labels = jnp.asarray(images / 16, jnp.float32), jnp.asarray(labels)
    params = layers(rng, 64, *widths, 10)
    rows = jnp.asarray(rng.integers(len(images), size=(steps, 64)))
    return float(_classified(tx, params, images, labels, rows, jax.random.key(seed)))


PROBLEMS = {"characters": (trained, 200), "digits": (classified, 400)}


def table(codecs, seeds=(0, 1, 2)):
    """The mean loss of each optimizer in float32, and with each codec relative to that, by seed."""
    for problem, (learn, steps) in PROBLEMS.items():
        print(f"| {problem} |", " | ".join(OPTIMIZERS), "|")
        print("|---|" + "---|" * len(OPTIMIZERS))
        plain = {}
        for name in ("float32", *codecs):
            row = []
            for optimizer, (make, rate) in OPTIMIZERS.items():
                tx = make(gradtx.cosine_decay_schedule(rate, steps))
                tx = tx if name == "float32" else gradtx.store(tx, name)
                found = np.array([learn(tx, steps, seed) for seed in seeds])
                base = plain.setdefault(optimizer, found)
                row.append(f"{found.mean():.3f}" if name == "float32" else compared(found, base))
            print(f"| {name} |", " | ".join(row), "|", flush=True)


def compared(found, base):
    """How much more the losses are on average than others, and seed by seed."""
    each = ", ".join(f"{100 * x:+.2f}" for x in found / base - 1)
    return f"{100 * (found.mean() / base.mean() - 1):+.2f} % ({each})"


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


PEERS = {
    "torch": ("torch.optim", "AdamW", {"fused": True}),
    "torchao int8": ("torchao.optim", "AdamW8bit", {}),
    "torchao int4": ("torchao.optim", "AdamW4bit", {}),
    "bitsandbytes int8": ("bitsandbytes.optim", "AdamW8bit", {}),
}


def steps_of_peers(shape):
    """A step of AdamW in other libraries, where they are installed."""
    for name, (module, kind, options) in PEERS.items():
        try:
            torch, optimizers = map(importlib.import_module, ("torch", module))
        except ImportError:
            continue
        p = torch.nn.Parameter(torch.zeros(shape))
        p.grad = torch.randn(shape)
        yield name, getattr(optimizers, kind)([p], lr=1e-3, **options).step


def steps_of_ours(codecs, shape):
    """A donated step of AdamW in float32, and with its slots in codecs."""
    g = jax.random.normal(jax.random.key(0), shape)
    for name in ("float32", *codecs):
        tx = gradtx.adamw(1e-3)
        tx = tx if name == "float32" else gradtx.store(tx, name)
        step = jax.jit(functools.partial(gradtx.apply_gradients, tx), donate_argnums=(1, 2))
        held = [jnp.zeros(shape)]
        held.append(tx.init(held[0]))

        def run(step=step, held=held):
            held[:] = jax.block_until_ready(step(g, *held))

        yield name, run


def timed(codecs, shape=(4096, 4096), repeats=3):
    """The least time of a step of AdamW over that in float32, in one interleaved run."""
    runs = {**dict(steps_of_ours(codecs, shape)), **dict(steps_of_peers(shape))}
    best = {name: np.full(2, np.inf) for name in runs}
    for k in range(repeats + 1):
        for name, run in runs.items():
            before = time.perf_counter(), time.process_time()
            run()
            spent = np.subtract((time.perf_counter(), time.process_time()), before)
            best[name] = np.minimum(best[name], spent if k else np.inf)  # the first one compiles
    print("| slots | ms | over float32 | processor, ns a parameter | over float32 |")
    print("|---|---:|---:|---:|---:|")
    for name, (wall, processor) in best.items():
        more = best[name] / best["float32"]
        each = 1e9 * processor / np.prod(shape)
        print(f"| {name} | {1e3 * wall:.0f} | {more[0]:.2f} | {each:.1f} | {more[1]:.2f} |")


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
