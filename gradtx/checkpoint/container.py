"""Named arrays on disk, in NumPy's, safetensors' or Orbax's format, written whole or not at all."""

import contextlib
import os
import secrets
import shutil
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from gradtx.checks import is_numpys_number


class Form(NamedTuple):
    """How arrays are written to a free path, and read; which types it supports."""

    write: Callable[[Path, dict[str, Any]], None]
    read: Callable[[Path], dict[str, Any]]
    knows: Callable[[np.dtype], bool]


def _write_npz(path: Path, arrays: dict[str, Any]) -> None:
    with path.open("xb") as file:
        np.savez(file, **arrays)


def _read_npz(path: Path) -> dict[str, Any]:
    found = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            try:
                with archive.open(name) as file:
                    found[name.removesuffix(".npy")] = np.lib.format.read_array(file)
            except Exception as error:
                raise ValueError(f"the entry {name.removesuffix('.npy')!r}: {error}") from error
    return found


def _write_safetensors(path: Path, arrays: dict[str, Any]) -> None:
    from safetensors.numpy import save_file

    save_file({name: np.asarray(x, order="C") for name, x in arrays.items()}, path)


def _read_safetensors(path: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    return dict(load_file(path))


def _write_orbax(path: Path, arrays: dict[str, Any]) -> None:
    with _orbax() as checkpointer:
        checkpointer.save(path.absolute(), arrays)


def _read_orbax(path: Path) -> dict[str, Any]:
    with _orbax() as checkpointer:
        return dict(checkpointer.restore(path.absolute()))


@contextlib.contextmanager
def _orbax() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about an interface that will change
        import orbax.checkpoint as orbax

        with orbax.PyTreeCheckpointer() as checkpointer:
            yield checkpointer


FORMS = {
    "npz": Form(_write_npz, _read_npz, is_numpys_number),
    "safetensors": Form(
        _write_safetensors,
        _read_safetensors,
        lambda dtype: dtype == jnp.bfloat16 or (is_numpys_number(dtype) and dtype != np.complex128),
    ),
    "orbax": Form(
        _write_orbax, _read_orbax, lambda dtype: dtype == jnp.bfloat16 or is_numpys_number(dtype)
    ),
}


def form_of(path: Path, form: str | None) -> Form:
    """The form by its name, or else by the suffix of the path.

    Raises:
        ValueError: there is no such form.
    """
    name = form or path.suffix.removeprefix(".")
    if form is None and name not in FORMS and path.is_dir():
        name = "orbax"
    if name not in FORMS:
        raise ValueError(
            f"a checkpoint is one of {', '.join(FORMS)}, by the suffix of its path or by the "
            f"argument form; this is {name!r} for {str(path)!r}"
        )
    return FORMS[name]


def write(path: Path, arrays: Mapping[str, np.ndarray], form: Form) -> None:
    """Write the arrays beside `path`, flush them to disk, and only then rename them to it."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        form.write(temporary, dict(arrays))
        for part in (temporary, *temporary.rglob("*")):
            _sync(part)
        if temporary.is_dir():
            _replace_directory(temporary, path)
        else:
            temporary.replace(path)
        _sync(path.parent)
    finally:
        _remove(temporary)


def read(path: Path, form: Form) -> dict[str, Any]:
    """The arrays at `path`, whatever they are.

    Raises:
        FileNotFoundError: there is nothing.
        ValueError: they cannot be read.
    """
    # Between the two renamings of a directory the old one is still there.
    found = path if path.exists() else _old(path)
    if not found.exists():
        raise FileNotFoundError(f"there is no checkpoint {str(path)!r}")
    try:
        return form.read(found)
    except ImportError:
        raise
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _old(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _replace_directory(new: Path, path: Path) -> None:
    """Replace a directory, which cannot be done atomically: the old one is kept until then.

    Raises:
        FileExistsError: what is there was not written by Orbax.
    """
    if path.exists():
        if not (path / "_METADATA").exists():
            raise FileExistsError(f"{str(path)!r} is not an Orbax checkpoint: remove it yourself")
        _remove(_old(path))
        path.rename(_old(path))
    new.rename(path)
    _remove(_old(path))


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Flush to disk what was written, except a directory on systems that cannot do that."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        if path.is_dir():
            return
        raise
    try:
        with contextlib.suppress(OSError) if path.is_dir() else contextlib.nullcontext():
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
