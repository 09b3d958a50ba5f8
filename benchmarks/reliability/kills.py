"""A run that is killed again and again while it saves ends with the bits of one that is not."""

import multiprocessing
import pathlib
import random
import tempfile
import time

import gradtx
from benchmarks.reliability.outcome import Outcome

ENTRIES = 400_000  # that saving takes most of a step's time


def trained(path: str | None, last: int | None = None) -> dict:
    """Goes on from a checkpoint, which is written at each step, to the last step or for ever."""
    import jax
    import jax.numpy as jnp

    tx = gradtx.adamw(gradtx.cosine_decay_schedule(0.1, 1000), weight_decay=0.1)

    @jax.jit
    def step(params, state, key):
        grads = jax.tree.map(lambda p: jnp.sin(p) + 0.1 * jax.random.normal(key, p.shape), params)
        updates, state = tx.update(grads, state, params)
        return gradtx.apply_updates(params, updates), state

    params = {"b": jnp.zeros(3), "w": jnp.linspace(-1.0, 1.0, ENTRIES)}
    state, count = tx.init(params), 0
    if path and pathlib.Path(path).exists():
        params, state, _, count, _ = gradtx.load_checkpoint(path, tx, params)
    while last is None or count < last:
        params, state = step(params, state, jax.random.key(count))
        count += 1
        if path:
            gradtx.save_checkpoint(path, params, state, tx, step=count)
    return {"params": params, "state": state}


def kills(quick: bool) -> Outcome:
    done, rng, hits = Outcome(), random.Random(13), 0
    # Each life starts where gradtx is imported and no device is there yet.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "jax"])
    with tempfile.TemporaryDirectory() as folder:
        path, reached = pathlib.Path(folder) / "run.npz", 0
        for kill in range(2 if quick else 50):
            life = context.Process(target=trained, args=(str(path),))
            life.start()
            before = path.stat().st_mtime_ns if path.exists() else 0
            while not path.exists() or path.stat().st_mtime_ns == before:
                if not life.is_alive():
                    raise RuntimeError(f"the run ended by itself, at kill {kill}")
                time.sleep(0.001)
            time.sleep(rng.uniform(0, 0.1))
            life.kill()
            life.join()
            for unfinished in set(path.parent.iterdir()) - {path}:
                unfinished.unlink()
                hits += 1
            try:
                step = gradtx.load_checkpoint(path).step
            except ValueError as error:
                done.check(False, f"kill {kill}: {error}")
                break
            done.check(step > reached, f"kill {kill}: step {step} after step {reached}")
            reached = step
        broken, whole = trained(str(path), reached + 2), trained(None, reached + 2)
    done.check(bits(broken) == bits(whole), f"the bits at step {reached + 2}")
    done.notes = {"kills in the midst of a file": hits, "steps": reached + 2}
    return done


def bits(tree: dict) -> list[bytes]:
    import jax
    import numpy as np

    return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]
