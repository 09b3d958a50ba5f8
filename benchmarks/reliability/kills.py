"""A run that is killed again and again while it saves ends with the bits of one that is not."""

import multiprocessing
import pathlib
import random
import tempfile
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gradtx
from benchmarks.reliability.outcome import Outcome

ENTRIES = 400_000  # that saving takes most of a step's time
# Made, and so imported, before a process is forked: none of it starts a device.
TX = gradtx.adamw(gradtx.cosine_decay_schedule(0.1, 1000), weight_decay=0.1)
SAVE, LOAD, APPLY = gradtx.save_checkpoint, gradtx.load_checkpoint, gradtx.apply_updates


@jax.jit
def step(params: Any, state: Any, count: Any) -> tuple[Any, Any]:
    key = jax.random.key(count)
    grads = jax.tree.map(lambda p: jnp.sin(p) + 0.1 * jax.random.normal(key, p.shape), params)
    updates, state = TX.update(grads, state, params)
    return APPLY(params, updates), state


def trained(path: str | None, last: int | None = None) -> dict[str, Any]:
    """Goes on from a checkpoint, which is written at each step, to the last step or for ever."""
    params = {"b": np.zeros(3, "f4"), "w": np.linspace(-1.0, 1.0, ENTRIES, dtype="f4")}
    if path and pathlib.Path(path).exists():
        params, state, _, count, _ = LOAD(path, TX, params)
    else:
        state, count = jax.jit(TX.init)(params), 0
    while last is None or count < last:
        params, state = step(params, state, count)
        count += 1
        if path:
            SAVE(path, params, state, TX, step=count)
    return {"params": params, "state": state}


def kills(quick: bool) -> Outcome:
    done, rng, hits = Outcome(), random.Random(13), 0
    # Each life starts where gradtx is imported and no device is there yet.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
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
                count = LOAD(path).step
            except ValueError as error:
                done.check(False, f"kill {kill}: {error}")
                break
            done.check(count > reached, f"kill {kill}: step {count} after step {reached}")
            reached = count
        broken, whole = trained(str(path), reached + 2), trained(None, reached + 2)
    done.check(bits(broken) == bits(whole), f"the bits at step {reached + 2}")
    done.notes = {"kills in the midst of a file": hits, "steps": reached + 2}
    return done


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]
