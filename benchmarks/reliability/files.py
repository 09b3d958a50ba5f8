"""Damaged files are refused, or what is read from them is equal to what was written."""

import importlib.util
import pathlib
import random
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gradtx
from benchmarks.reliability.outcome import Outcome, raised

TX = gradtx.chain(gradtx.clip_by_global_norm(1.0), gradtx.adamw(1e-2, b1=0.8))
PARAMS = {"b": jnp.arange(3.0), "w": jnp.linspace(-1.0, 1.0, 24, dtype="bfloat16").reshape(4, 6)}


def trained() -> Any:
    state = TX.init(PARAMS)
    for _ in range(3):
        _, state = TX.update(PARAMS, state, PARAMS)
    return state


def write_run(path: pathlib.Path, state: Any) -> None:
    gradtx.save_checkpoint(path, PARAMS, state, TX, step=3, keys=jax.random.key(3))


def read_run(path: pathlib.Path) -> Any:
    run = gradtx.load_checkpoint(path)
    return run.params, run.state, run.tx, run.step, jax.random.key_data(run.keys)


def load(flat: Any) -> Any:
    state = gradtx.load_state_dict(TX, PARAMS, flat)
    return state, gradtx.from_config(gradtx.saved_config(flat))


def write_npz(path: pathlib.Path, state: Any) -> None:
    np.savez(path, **gradtx.state_dict(state, TX))


def read_npz(path: pathlib.Path) -> Any:
    with np.load(path) as file:
        return load(dict(file))


def write_safetensors(path: pathlib.Path, state: Any) -> None:
    from safetensors.flax import save_file

    save_file(gradtx.state_dict(state, TX), path)


def read_safetensors(path: pathlib.Path) -> Any:
    from safetensors.flax import load_file

    return load(load_file(path))


def write_flax(path: pathlib.Path, state: Any) -> None:
    from flax.serialization import to_bytes

    path.write_bytes(to_bytes(gradtx.state_dict(state, TX)))


def read_flax(path: pathlib.Path) -> Any:
    from flax.serialization import msgpack_restore

    return load(msgpack_restore(path.read_bytes()))


# Writer, reader, and the package it takes besides NumPy.
FORMATS: dict[str, tuple[Callable[..., None], Callable[..., Any], str]] = {
    "run.npz": (write_run, read_run, "numpy"),
    "run.safetensors": (write_run, read_run, "safetensors"),
    "state.npz": (write_npz, read_npz, "numpy"),
    "state.safetensors": (write_safetensors, read_safetensors, "safetensors"),
    "state.msgpack": (write_flax, read_flax, "flax"),
}


def damaged(whole: bytes, rng: random.Random) -> bytes:
    """One bit, or a stretch of the file that is lost, zero, noise or somewhere else's."""
    at = rng.randrange(len(whole))
    end = min(len(whole), at + rng.choice([1, 4, 16, 64, 512]))
    other = rng.randrange(len(whole))
    match rng.randrange(7):
        case 0 | 1:
            return whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :]
        case 2:
            return whole[:at]
        case 3:
            return whole[:at] + whole[end:]
        case 4:
            return whole[:at] + bytes(end - at) + whole[end:]
        case 5:
            return whole[:at] + rng.randbytes(end - at) + whole[end:]
        case _:
            return whole[:at] + whole[other : other + end - at] + whole[end:]


def equal(a: Any, b: Any) -> bool:
    ours, theirs = (jax.tree.flatten(tree) for tree in (a, b))
    return ours[1] == theirs[1] and all(
        x == y if not hasattr(x, "dtype") else x.dtype == y.dtype and np.array_equal(x, y)
        for x, y in zip(ours[0], theirs[0], strict=True)
    )


def files(quick: bool) -> Outcome:
    done, refused = Outcome(), 0
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's reader warns of what it reads next
        for name, (write, read, package) in FORMATS.items():
            if importlib.util.find_spec(package) is None:
                continue
            path = pathlib.Path(folder) / name
            write(path, trained())
            whole, good = path.read_bytes(), read(path)
            for i in range(20 if quick else 400):
                path.write_bytes(damaged(whole, random.Random(f"{name} {i}")))
                try:
                    found = read(path)
                # Readers of other libraries raise what they like; our own must not.
                except Exception as error:
                    refused += 1
                    own = name.startswith("run") and not isinstance(error, ValueError)
                    done.check(not own, f"{name} {i}: {raised(error)}")
                else:
                    done.check(equal(found, good), f"{name} {i}: read, and not equal")
    done.notes = {"refused": refused}
    return done
