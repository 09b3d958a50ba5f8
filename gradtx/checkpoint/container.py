"""Named arrays on disk, in NumPy's, safetensors' or Orbax's format, written whole or not at all."""

import contextlib
import ctypes
import json
import math
import os
import secrets
import shutil
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from gradtx.checks import is_numpys_number


class Held(NamedTuple):
    """Arrays on disk: their names, and a function that reads one of them, each only once."""

    names: list[str]
    take: Callable[[str], np.ndarray]


class Form(NamedTuple):
    """How arrays are written to a free path, and read; which types it supports.

    takes_jax: whether arrays of JAX are written with fewer copies than NumPy's; is_directory:
    whether there is a directory at the path.
    """

    write: Callable[[Path, dict[str, Any]], None]
    opened: Callable[[Path], contextlib.AbstractContextManager[Held]]
    knows: Callable[[np.dtype], bool]
    takes_jax: bool = False
    is_directory: bool = False


def _write_npz(path: Path, arrays: dict[str, Any]) -> None:
    with path.open("xb") as file:
        np.savez(file, **arrays)


_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


@contextlib.contextmanager
def _opened_npz(path: Path) -> Iterator[Held]:
    """The entries of an archive, which are never more than its bytes: none is compressed.

    They are read past `zipfile`, which computes a checksum of its own: each array has one already.
    """
    with path.open("rb") as file:
        with zipfile.ZipFile(file) as archive:
            entries = {e.filename.removesuffix(".npy"): e for e in archive.infolist()}
        packed = [name for name, e in entries.items() if e.compress_type != zipfile.ZIP_STORED]
        if packed:
            raise ValueError(f"the entry {packed[0]!r:.80} is compressed, as none that was saved")
        _check_sizes(file, [entry.file_size for entry in entries.values()])

        def take(name: str) -> np.ndarray:
            entry = entries[name]
            try:
                file.seek(entry.header_offset)
                head = file.read(30)
                _, crc, length, extra = struct.unpack("<14sL8x2H", head)
                called = file.read(length).decode()
                if (called, crc) != (entry.filename, entry.CRC) or head[:4] != b"PK\x03\x04":
                    raise ValueError("it is not what the archive says")
                start = file.seek(extra, os.SEEK_CUR)
                header = _HEADERS[np.lib.format.read_magic(file)]
                shape, by_columns, dtype = header(file)
                x = _from_file(file, dtype, shape, start + entry.file_size - file.tell())
                return x.reshape(shape[::-1]).T if by_columns else x
            except Exception as error:
                raise ValueError(f"the entry {name!r:.80}: {error}") from error

        yield Held(list(entries), take)


def _check_sizes(file: Any, sizes: list[int]) -> None:
    """Raise if the entries together are larger than the file, as where they share bytes."""
    if min(sizes, default=0) < 0 or sum(sizes) > os.fstat(file.fileno()).st_size:
        raise ValueError("its entries are larger than the file")


def _from_file(file: Any, dtype: np.dtype, shape: tuple[int, ...], size: int) -> np.ndarray:
    """An array of `size` bytes, read from the current position of a file."""
    count = math.prod(shape)
    if dtype.hasobject or min(shape, default=0) < 0 or count * dtype.itemsize != size:
        raise ValueError(f"{size} bytes are no array of {dtype}{list(shape)}")
    x = np.fromfile(file, dtype, count)
    if x.size != count:
        raise ValueError("the file ends within it")
    return x.reshape(shape)


def _write_safetensors(path: Path, arrays: dict[str, Any]) -> None:
    from safetensors.numpy import save_file

    save_file({name: np.asarray(x, order="C") for name, x in arrays.items()}, path)


# The names of types in safetensors' files.
_SAFE = {
    "BOOL": "bool",
    "BF16": "bfloat16",
    "C64": "complex64",
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}


@contextlib.contextmanager
def _opened_safetensors(path: Path) -> Iterator[Held]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        _check_sizes(file, [8 + length])
        said = json.loads(file.read(length))
        said.pop("__metadata__", None)
        places = {name: entry["data_offsets"] for name, entry in said.items()}
        _check_sizes(file, [8 + length, *(end - start for start, end in places.values())])

        def take(name: str) -> np.ndarray:
            start, end = places[name]
            try:
                dtype, shape = jnp.dtype(_SAFE[said[name]["dtype"]]), tuple(said[name]["shape"])
                file.seek(8 + length + start)
                return _from_file(file, dtype, shape, end - start)
            except Exception as error:
                raise ValueError(f"the entry {name!r:.80}: {error}") from error

        yield Held(list(places), take)


def _write_orbax(path: Path, arrays: dict[str, Any]) -> None:
    with _orbax() as (_, checkpointer):
        checkpointer.save(path.absolute(), arrays)


@contextlib.contextmanager
def _opened_orbax(path: Path) -> Iterator[Held]:
    with _orbax() as (orbax, checkpointer):
        metadata = checkpointer.metadata(path.absolute())
        tree = getattr(metadata, "item_metadata", metadata)
        sizes = {name: _size(array) for name, array in getattr(tree, "tree", tree).items()}
        left, read = sorted(sizes), dict[str, np.ndarray]()
        # One call for all would keep two copies of everything, and each call takes a while.
        most = max(sum(sizes.values()) // 32, 2**22)

        def take(name: str) -> np.ndarray:
            if name not in read:
                _trim()
                some = list(_beginning(left[left.index(name) :], sizes, most))
                as_numpy = {n: orbax.RestoreArgs(restore_type=np.ndarray) for n in some}
                try:
                    restored = checkpointer.restore(
                        path.absolute(),
                        item=dict.fromkeys(some, 0),
                        restore_args=as_numpy,
                        transforms={},
                    )
                except Exception as error:
                    raise ValueError(f"the entry {name!r:.80}: {error}") from error
                read.update(restored)
                left[:] = [n for n in left if n not in restored]
            return read.pop(name)

        yield Held(list(sizes), take)


def _size(array: Any) -> int:
    """The bytes of an array as Orbax describes it; a number has no shape."""
    dtype = getattr(array, "dtype", None)
    return 8 if dtype is None else math.prod(getattr(array, "shape", ())) * np.dtype(dtype).itemsize


def _beginning(names: list[str], sizes: Mapping[str, int], most: int) -> Iterator[str]:
    """The first of these arrays, with at most `most` bytes together, and at least one."""
    total = 0
    for name in names:
        total += sizes[name]
        if total > most and total > sizes[name]:
            return
        yield name


def _trim() -> None:
    """Have glibc give free memory back to the system.

    It keeps the memory of arrays below 32 MB for later ones of the same thread, and other threads
    make those.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another system
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def _orbax() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about an interface that will change
        import orbax.checkpoint as orbax

        with orbax.PyTreeCheckpointer() as checkpointer:
            yield orbax, checkpointer


FORMS = {
    "npz": Form(_write_npz, _opened_npz, is_numpys_number),
    "safetensors": Form(
        _write_safetensors,
        _opened_safetensors,
        lambda dtype: dtype.name in _SAFE.values(),
    ),
    "orbax": Form(
        _write_orbax,
        _opened_orbax,
        lambda dtype: dtype == jnp.bfloat16 or is_numpys_number(dtype),
        takes_jax=True,
        is_directory=True,
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


def write(path: Path, arrays: Mapping[str, Any], form: Form) -> None:
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


@contextlib.contextmanager
def opened(path: Path, form: Form) -> Iterator[Held]:
    """The arrays in the file or the directory at `path`, in one of the formats.

    Raises:
        FileNotFoundError: there is nothing.
        ValueError: they cannot be read; reading one of them raises it too.
    """
    # Between the two renamings of a directory the old one is still there.
    source = path if path.exists() else _old(path)
    if not source.exists():
        raise FileNotFoundError(f"there is no checkpoint {str(path)!r}")
    with contextlib.ExitStack() as stack:
        try:
            arrays = stack.enter_context(form.opened(source))
        except ImportError:
            raise
        except Exception as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        yield arrays


def check_files(where: str, path: Path, form: Form) -> None:
    """Raise if `path`, or a part of a directory there, is neither a file nor a directory.

    Reading a device may never end, and reading a pipe may never begin.

    Raises:
        ValueError: it is a device, a pipe or a socket; the error begins with `where`.
    """
    parts = path.rglob("*") if form.is_directory and path.is_dir() else [path, _old(path)]
    for part in parts:
        if part.exists() and not (part.is_file() or part.is_dir()):
            raise ValueError(
                f"{where}: {str(part)!r} is no regular file, but a device, a pipe or a socket"
            )


def _old(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _replace_directory(new: Path, path: Path) -> None:
    """Replace a directory, which cannot be done atomically: the old one is kept until then.

    Raises:
        FileExistsError: the old directory was not written by Orbax.
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
    """Flush a file or directory to disk, except a directory on systems that cannot do that."""
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
