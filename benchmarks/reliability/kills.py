"""A run that is killed again and again while it saves ends with the bits of one that is not.

`kills` writes each file whole or not at all, as `save_checkpoint` does; `plain_kills` writes over
one of two files in turn, as a copy does, so that a kill leaves a part of a file behind.
"""

import multiprocessing
import pathlib
import random
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gradtx
from benchmarks.reliability.outcome import Outcome

ENTRIES = 400_000  # that saving takes most of a step's time
PIECE = 4096  # bytes
# Made, and so imported, before a process is forked: none of it starts a device.
TX = gradtx.adamw(gradtx.cosine_decay_schedule(0.1, 1000), weight_decay=0.1)
SAVE, LOAD, APPLY = gradtx.save_checkpoint, gradtx.load_checkpoint, gradtx.apply_updates


@jax.jit
def step(params: Any, state: Any, count: Any) -> tuple[Any, Any]:
    key = jax.random.key(count)
    grads = jax.tree.map(lambda p: jnp.sin(p) + 0.1 * jax.random.normal(key, p.shape), params)
    updates, state = TX.update(grads, state, params)
    return APPLY(params, updates), state


def plainly(path: pathlib.Path, *args: Any, **kwargs: Any) -> None:
    """The file of `save_checkpoint`, written over the one at `path` piece by piece."""
    made = path.with_name(f"made-{path.name}")
    SAVE(made, *args, **kwargs)
    whole = made.read_bytes()
    with path.open("wb", buffering=0) as file:
        for at in range(0, len(whole), PIECE):
            file.write(whole[at : at + PIECE])


def steps_read(paths: Iterable[pathlib.Path]) -> tuple[dict[int, pathlib.Path], list[str]]:
    """The files that can be read, by the step that they are of, and why the others cannot."""
    found, refused = {}, []
    for path in filter(pathlib.Path.exists, paths):
        try:
            found[LOAD(path).step or 0] = path
        except ValueError as error:
            refused.append(str(error))
    return found, refused


def trained(
    paths: list[pathlib.Path], save: Callable[..., None] = SAVE, last: int | None = None
) -> dict[str, Any]:
    """Continues from the last checkpoint, to the last step or forever, and writes one at each."""
    params = {"b": np.zeros(3, "f4"), "w": np.linspace(-1.0, 1.0, ENTRIES, dtype="f4")}
    found, _ = steps_read(paths)
    if found:
        run = LOAD(found[max(found)], TX, params)
        params, state, count = run.params, run.state, run.step
    else:
        state, count = jax.jit(TX.init)(params), 0
    while last is None or count < last:
        params, state = step(params, state, count)
        count += 1
        if paths:
            save(paths[count % len(paths)], params, state, TX, step=count)
    return {"params": params, "state": state}


def kills(quick: bool) -> Outcome:
    return killed(quick, ["run.npz"], SAVE)


def plain_kills(quick: bool) -> Outcome:
    return killed(quick, ["even.npz", "odd.npz"], plainly)


def killed(quick: bool, names: list[str], save: Callable[..., None]) -> Outcome:
    done, rng, hits = Outcome(), random.Random(13), 0
    # Each life starts where gradtx is imported and no device is there yet.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with tempfile.TemporaryDirectory() as folder:
        paths, reached = [pathlib.Path(folder) / name for name in names], 0
        for kill in range(2 if quick else 50):
            before = written(paths)
            life = context.Process(target=trained, args=(paths, save))
            life.start()
            while written(paths) == before:
                if not life.is_alive():
                    raise RuntimeError(f"the run ended by itself, at kill {kill}")
                time.sleep(0.001)
            time.sleep(rng.uniform(0, 0.1))
            life.kill()
            life.join()
            for unfinished in set(pathlib.Path(folder).iterdir()) - set(paths):
                unfinished.unlink()
                hits += save is SAVE
            found, refused = steps_read(paths)
            hits += len(refused)
            count = max(found, default=0)
            if save is SAVE:
                whole = not refused and count > reached
            else:  # in the middle of the first file there is none
                whole = len(refused) <= 1 and count >= reached
            done.check(whole, f"kill {kill}: step {count} after step {reached}; {refused}")
            reached = count
        broken, unbroken = trained(paths, save, reached + 2), trained([], save, reached + 2)
    done.check(bits(broken) == bits(unbroken), f"the bits at step {reached + 2}")
    done.notes = {"kills in the middle of a file": hits, "steps": reached + 2}
    return done


def written(paths: list[pathlib.Path]) -> list[int]:
    """When each was written last."""
    return [path.stat().st_mtime_ns if path.exists() else 0 for path in paths]


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]
