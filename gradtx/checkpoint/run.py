"""A run on disk: parameters, state, configuration, step and keys, together and checked."""

import concurrent.futures
import functools
import json
import operator
import os
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.checkpoint import container
from gradtx.checkpoint.config import from_config, to_config
from gradtx.checkpoint.state_dict import (
    adopt_state,
    checksum,
    checksum_of_header,
    described_state,
    header_array,
    trained_leaves,
)
from gradtx.checkpoint.templates import like, listed, named
from gradtx.core.pair import GradientTransformation
from gradtx.leaves.packed import packed_like, unpack
from gradtx.leaves.paths import select
from gradtx.programs.tracing import is_tracer
from gradtx.types import Params, PyTree, State

_HEADER = "gradtx"
_VERSION = 1
# A zip file ends a name at a zero byte, and has 16 bits for its length in bytes.
_LONGEST_NAME = 65_000


class Checkpoint(NamedTuple):
    """The contents of a checkpoint; None for each part that was not saved.

    Read it by the names of its fields, of which there may be more in a later version.

    params: the parameters; state: the state; tx: the transformation; step: the number of steps;
    keys: the random keys, and whatever else was saved with them; model_state: the model's other
    state.
    """

    params: Params
    state: State
    tx: GradientTransformation | None
    step: int | None
    keys: PyTree
    model_state: PyTree


class _Entry(NamedTuple):
    """An array as the header describes it.

    kind: ``"jax"``, ``"numpy"``, ``"python"`` for a number, or the name of a generator for its
    keys.
    """

    kind: str
    dtype: str
    shape: tuple[int, ...]
    checksum: int


def save_checkpoint(
    path: str | os.PathLike[str],
    params: Params,
    state: State = None,
    tx: GradientTransformation | None = None,
    *,
    step: int | None = None,
    keys: PyTree = None,
    model_state: PyTree = None,
    form: str | None = None,
    background: bool = False,
) -> Future[None] | None:
    """Write a run to a file, whole or not at all.

    It is written under another name beside `path`, flushed to disk, and renamed: whenever the
    process ends, `path` holds either the previous file or the new one in full. Every array has a
    checksum, and so does the header that lists the arrays.

    Args:
        path: where to write. The suffix says how: ``.npz`` (NumPy), ``.safetensors`` or
            ``.orbax`` (a directory).
        params: the parameters, any tree of arrays; random keys and Python numbers may be in it.
            Parameters without slots in the state were not trained, and will not be.
        state: the state; None for a state that is not to be saved.
        tx: the transformation, whose configuration is then saved too.
        step: how many steps were taken.
        keys: a tree of random keys, and of any other arrays that the run needs to continue, such as
            the position in the data.
        model_state: the model's state besides parameters, such as batch statistics and the keys of
            dropout: the rest of ``nnx.split(model, nnx.Param, ...)``, linen's collections,
            Equinox's ``State``, the state of Haiku's ``transform_with_state``.
        form: ``"npz"``, ``"safetensors"`` or ``"orbax"``; by the suffix by default.
        background: return as soon as everything has been copied, and write meanwhile. The run may
            go on, and donate its arrays. The next save waits for this one, and so does the end of
            the process, except that Orbax cannot write then: wait for its result.
            If the process is killed, the previous file stays.

    Returns:
        None, or with `background` a `concurrent.futures.Future`: its ``result()`` waits until the
        file is there, and raises any error, of which there is a warning too.

    Raises:
        ValueError: two leaves have the same path, since a name has a ``/`` in it; ``.npz`` cannot
            keep a name; the form is unknown; an array lies in part on other hosts; `state` is not
            one of `tx` for `params`, and could not be loaded with them; `path` exists and is not a
            file.
        TypeError: a leaf is not an array, or `tx` cannot be written as a configuration; `step` is
            no integer; arguments have changed places.
        ImportError: safetensors or Orbax is not installed.

    >>> import gradtx, tempfile
    >>> tx, params = gradtx.adam(1e-3), {"w": jnp.ones(2)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = f"{folder}/run.npz"
    ...     save_checkpoint(path, params, tx.init(params), tx, step=3, keys=jax.random.key(0))
    ...     run = load_checkpoint(path)
    >>> run.step, run.params, run.tx == tx
    (3, {'w': Array([1., 1.], dtype=float32)}, True)
    """
    if isinstance(state, GradientTransformation):
        raise TypeError("save_checkpoint takes path, params, state, tx, in this order")
    path = Path(path)
    where = container.form_of(path, form)
    container.check_files("save_checkpoint", path, where)
    flat, described = ({}, None) if state is None else described_state(state, None)
    trained = None if state is None or tx is None else trained_leaves(tx, params, state)
    leaves = [
        *named("params", unpack(params)),
        *named("keys", keys),
        *named("model_state", model_state),
        *((f"state/{name}", x) for name, x in flat.items()),
    ]
    names = [name for name, _ in leaves]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"save_checkpoint: two leaves are called {twice!r}; is a '/' in a name?")
    for name in names:
        _check_name(name, where)
    header = {
        "version": _VERSION,
        "step": None if step is None else _index(step),
        "config": None if tx is None else to_config(tx),
        "state": state is not None,
        **({} if trained is None else {"trained": sorted(trained)}),
    }
    _finish_last()  # which may write to the same path
    saved = {name: _saved(name, leaf, copy=background) for name, leaf in leaves}
    write = functools.partial(_write, path, where, header, described, saved)
    if background:  # one after another: at the end of a process no more threads can be started
        return _start(lambda: write(lambda arrays: map(checksum, arrays)))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        write(lambda arrays: pool.map(checksum, arrays))
    return None


def _index(step: Any) -> int:
    try:
        return operator.index(step)
    except TypeError:
        raise TypeError(f"save_checkpoint: step must be an integer, not {step!r:.80}") from None


def load_checkpoint(
    path: str | os.PathLike[str],
    tx: GradientTransformation | None = None,
    params: Params = None,
    *,
    state: State = None,
    keys: PyTree = None,
    model_state: PyTree = None,
    strict: bool = True,
    custom_objects: Mapping[str, Callable[..., Any]] | None = None,
    form: str | None = None,
) -> Checkpoint:
    """Read a checkpoint of :func:`save_checkpoint`, bit for bit, or raise.

    Args:
        path: the file, or Orbax's directory.
        tx: the transformation to continue with, perhaps another one (see :func:`load_state_dict`);
            that of the saved configuration by default.
        params: a tree of parameters, or of ``jax.ShapeDtypeStruct``, whose structure the saved ones
            are to have: a leaf with a `NamedSharding` gets it, and one that was put on a device
            (``jax.device_put(x, device)``) gets that, with the state. On a mesh place the state by
            the method ``put`` of :func:`state_sharding`. Without `params`, parameters come as
            nested dicts by their paths, without empty containers, and as ``OrderedDict`` where
            their order is not that of the sorted names.
        state: a state whose types of containers the loaded one takes, where a library has its own,
            such as ``opt_state`` of ``nnx.Optimizer``.
        keys: as `params`, for the saved `keys`.
        model_state: as `params`, for the saved `model_state`.
        strict: refuse a state that does not fit `tx` altogether; otherwise warn. It does not make
            damaged arrays pass.
        custom_objects: the objects other than gradtx's that the configuration names, as in
            :func:`from_config`.
        form: as in :func:`save_checkpoint`.

    Returns:
        A `Checkpoint`. It shares no memory with anything. NumPy arrays are NumPy arrays again.

    Raises:
        FileNotFoundError: there is nothing at `path`.
        ValueError: it is damaged (the error names the arrays), is a device or a pipe, the tree of
            parameters is another, or the state does not fit.
        TypeError: the configuration has a value of the wrong type.

    In Flax's nnx, a new model and its optimizer continue so::

        _, params, rest = nnx.split(model, nnx.Param, ...)
        run = load_checkpoint(path, params=params, state=optimizer.opt_state, model_state=rest)
        nnx.update(model, run.params, run.model_state)
        optimizer.opt_state = run.state
        optimizer.step[...] = run.step  # nnx's own count

    >>> import gradtx, tempfile
    >>> path, tx = f"{tempfile.mkdtemp()}/run.npz", gradtx.adam(1e-3)
    >>> gradtx.save_checkpoint(path, {"w": 1.0}, tx.init({"w": 1.0}), tx, step=7)
    >>> run = load_checkpoint(path)
    >>> run.step, run.tx == tx, gradtx.slot_names(run.state)
    (7, True, ['mu', 'nu'])
    """
    path = Path(path)
    where = container.form_of(path, form)
    container.check_files("load_checkpoint", path, where)
    try:
        with container.opened(path, where) as arrays:
            header, entries = _header(arrays)
            leaves = _checked(arrays, entries)
    except ValueError as error:
        raise ValueError(f"load_checkpoint: {str(path)!r} is damaged: {error}") from error
    new_params = packed_like(_restored("params", leaves, entries, unpack(params)), params)
    new_keys = _restored("keys", leaves, entries, keys)
    new_rest = _restored("model_state", leaves, entries, model_state)
    if tx is None and header["config"] is not None:
        tx = from_config(header["config"], custom_objects)
    new_state = None
    if header["state"]:
        if tx is None:
            raise ValueError(
                "load_checkpoint: no configuration was saved beside the state: give tx"
            )
        flat = {k.removeprefix("state/"): leaves.pop(k) for k in list(leaves)}
        of = new_params
        if header.get("trained") is not None:
            trained = frozenset(header["trained"])
            of = select(new_params, lambda at, _: at in trained)
        new_state = adopt_state(tx, of, flat, strict)
        if state is not None:
            new_state = like("load_checkpoint", "state", dict(named("state", new_state)), state)
    return Checkpoint(new_params, new_state, tx, header["step"], new_keys, new_rest)


def _check_name(name: str, where: container.Form) -> None:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ValueError(f"save_checkpoint: the name {name!r:.60} is no text in UTF-8") from None
    if where is container.FORMS["npz"] and ("\0" in name or size > _LONGEST_NAME):
        raise ValueError(
            f"save_checkpoint: the name {name!r:.60} is too long or has a zero byte in it, "
            "which .npz cannot keep; .safetensors can"
        )


class _Saved(NamedTuple):
    """A leaf to be saved: its kind, and an array of JAX on one device, or of NumPy."""

    kind: str
    array: Any


def _saved(name: str, leaf: Any, copy: bool) -> _Saved:
    """A leaf as it is written; with `copy`, in memory that the caller does not share."""
    kind = "jax" if hasattr(leaf, "dtype") else "python"
    if kind == "jax" and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        kind = str(jax.random.key_impl(leaf))
        leaf = jax.random.key_data(leaf)
    elif isinstance(leaf, np.ndarray | np.generic):
        kind = "numpy"
    if is_tracer(leaf):
        raise TypeError(f"save_checkpoint: {name} is traced: call this outside of jit")
    if not getattr(leaf, "is_fully_addressable", True):
        raise ValueError(
            f"save_checkpoint: {name} lies in part on other hosts: gather it, or write state_dict "
            "and the parameters with Orbax"
        )
    if isinstance(leaf, jax.Array) and len(leaf.devices()) == 1:
        # A copy is made on the host, since memory of a device may be scarce; nobody waits for it.
        host = jax.local_devices(backend="cpu")[0]
        return _Saved(kind, jax.device_put(leaf, host, may_alias=False) if copy else leaf)
    x = np.asarray(leaf)
    if not (jnp.issubdtype(x.dtype, jnp.number) or x.dtype == bool):
        raise TypeError(f"save_checkpoint: {name} is {leaf!r:.80}, not an array of numbers")
    return _Saved(kind, x.astype(x.dtype.newbyteorder("="), copy=copy))


def _write(
    path: Path,
    where: container.Form,
    header: dict[str, Any],
    described: dict[str, Any] | None,
    saved: dict[str, _Saved],
    sums_of: Callable[[Iterable[np.ndarray]], Iterable[int]],
) -> None:
    """Write leaves with a header that has a checksum of each."""
    on_host = {name: np.asarray(leaf.array) for name, leaf in saved.items()}
    sums = dict(zip(on_host, sums_of(on_host.values()), strict=True))
    if described is not None:
        of_state = {
            k.removeprefix("state/"): crc for k, crc in sums.items() if k.startswith("state/")
        }
        name = f"state/{_HEADER}"
        saved = {**saved, name: _Saved("jax", header_array(described, of_state))}
        on_host[name] = np.asarray(saved[name].array)
        sums[name] = checksum(on_host[name])
    entries = {
        name: _Entry(saved[name].kind, str(x.dtype), x.shape, sums[name])
        for name, x in on_host.items()
    }
    header = {**header, "entries": entries}
    text = json.dumps({**header, "checksum": checksum_of_header(header)}).encode()
    arrays: dict[str, Any] = {_HEADER: np.frombuffer(text, np.uint8)}
    for name, x in on_host.items():
        if not x.size:  # no format can write an array without entries and read it back
            continue
        if where.knows(x.dtype):
            arrays[name] = saved[name].array if where.takes_jax else x
        else:
            arrays[name] = _as_bytes(x)
    container.write(path, arrays, where)


_running: list[Future[None]] = []


def _finish_last() -> None:
    """Wait for saves in the background, since the copies of several may not fit into memory."""
    concurrent.futures.wait(_running)
    _running.clear()


def _start(write: Callable[[], None]) -> Future[None]:
    def run() -> None:
        try:
            write()
        except BaseException as error:
            warnings.warn(f"save_checkpoint: nothing was saved: {error}", stacklevel=1)
            raise

    pool = ThreadPoolExecutor()
    _running.append(pool.submit(run))
    pool.shutdown(wait=False)
    return _running[-1]


def _as_bytes(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).ravel().view(np.uint8)


def _header(arrays: container.Held) -> tuple[dict[str, Any], dict[str, _Entry]]:
    if _HEADER not in arrays.names:
        raise ValueError("it was not written by save_checkpoint, or its header has no name")
    written = arrays.take(_HEADER)
    try:
        header = json.loads(np.asarray(written, np.uint8).tobytes())
        version, step = header["version"], header["step"]
        if header.pop("checksum") != checksum_of_header(header):
            raise ValueError("its checksum differs")
        if version == _VERSION:
            entries = {
                name: _Entry(str(kind), str(jnp.dtype(dtype)), tuple(map(int, shape)), crc)
                for name, (kind, dtype, shape, crc) in header["entries"].items()
            }
            fields = [isinstance(step, int | None), isinstance(header["state"], bool)]
            if not all([*fields, isinstance(header.get("trained"), list | None)]):
                raise ValueError("its fields have the wrong types")
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(f"the header: {type(error).__name__} {error}") from None
    if version != _VERSION:
        raise ValueError(f"it has the format {version!r:.80}, and this gradtx reads {_VERSION}")
    return header, entries


def _checked(arrays: container.Held, entries: dict[str, _Entry]) -> dict[str, Any]:
    """The leaves, one after another by their names, so that few at a time are in memory twice.

    Arrays of a type that JAX has not enabled stay NumPy's.

    Raises:
        ValueError: one is missing, is not in the header, or differs from the one that was written.
    """
    names = set(arrays.names) - {_HEADER}
    full = {name for name, entry in entries.items() if 0 not in entry.shape}
    problems: dict[str, set[str]] = {"missing": full - names, "unknown": names - full}
    _refuse(problems)
    leaves, problems = {}, {"other bytes": set()}
    for name, entry in sorted(entries.items()):
        x = arrays.take(name) if name in full else np.zeros(entry.shape, entry.dtype)
        if name in full and not _is(x, entry):
            problems["other bytes"].add(name)
            continue
        x = _typed(x, entry)
        is_jax = entry.kind not in ("numpy", "python")
        leaves[name] = x if is_jax and not _is_enabled(entry.dtype) else _leaf(x, entry)
        del x  # before the next one is read
    _refuse(problems)
    return leaves


def _is_enabled(dtype: str) -> bool:
    return str(jax.dtypes.canonicalize_dtype(dtype)) == dtype


def _refuse(problems: dict[str, set[str]]) -> None:
    if any(problems.values()):
        raise ValueError("; ".join(f"{k}: {listed(sorted(v))}" for k, v in problems.items() if v))


def _is(x: Any, entry: _Entry) -> bool:
    """Whether an array, or its bytes, has the type, shape and checksum of a header's entry."""
    same = str(x.dtype) == entry.dtype and x.shape == entry.shape
    if not same and not (x.dtype == np.uint8 and x.size == _bytes(entry)):
        return False
    return checksum(x) == entry.checksum


def _bytes(entry: _Entry) -> int:
    return int(np.prod(entry.shape, dtype=object)) * np.dtype(entry.dtype).itemsize


def _typed(x: Any, entry: _Entry) -> Any:
    if str(x.dtype) == entry.dtype:
        return x
    return x.ravel().view(np.dtype(entry.dtype)).reshape(entry.shape)


def _restored(
    root: str, leaves: dict[str, Any], entries: dict[str, _Entry], template: PyTree
) -> PyTree:
    saved = {
        name: leaves.pop(name) for name in entries if name == root or name.startswith(f"{root}/")
    }
    for name, x in saved.items():
        if isinstance(x, np.ndarray) and entries[name].kind not in ("numpy", "python"):
            raise ValueError(f"load_checkpoint: {name} is {x.dtype}: enable jax_enable_x64")
    return (
        _nested(root, saved) if template is None else like("load_checkpoint", root, saved, template)
    )


def _leaf(x: Any, entry: _Entry) -> Any:
    if entry.kind == "numpy":
        return np.array(x)
    if entry.kind == "python":
        return x.item()
    # Copied now, not when JAX finds the time: until then the array that was read is kept too.
    array = jax.block_until_ready(jnp.array(x, copy=True))
    return array if entry.kind == "jax" else jax.random.wrap_key_data(array, impl=entry.kind)


def _nested(root: str, saved: dict[str, Any]) -> PyTree:
    """Nested dicts by the paths of leaves, in the order in which they were saved.

    The vector of :func:`flatten` has the leaves in that order.
    """
    if root in saved:
        return saved[root]
    tree: dict[str, Any] = {}
    placed = {name: _Placed(place, leaf) for place, (name, leaf) in enumerate(saved.items())}
    # A leaf comes before those that have its name and a slash in theirs.
    for name, leaf in sorted(placed.items(), key=lambda item: item[0].count("/")):
        *above, last = name.removeprefix(f"{root}/").split("/")
        node = tree
        while above and isinstance(node.get(above[0], {}), dict):
            node = node.setdefault(above.pop(0), {})
        node["/".join([*above, last])] = leaf  # a name with a "/" in it, where another leaf is
    return _in_order(tree).leaf if saved else None


class _Placed(NamedTuple):
    """A leaf, or a dict of leaves, and the place of its first leaf among those that were saved."""

    place: int
    leaf: Any


def _in_order(node: Any) -> _Placed:
    """An OrderedDict where the keys of leaves were not sorted, as those of a dict are in JAX."""
    if isinstance(node, _Placed):
        return node
    parts = sorted(
        ((key, _in_order(part)) for key, part in node.items()), key=lambda item: item[1].place
    )
    names = [key for key, _ in parts]
    kind = dict if names == sorted(names) else OrderedDict
    return _Placed(parts[0][1].place, kind((key, part.leaf) for key, part in parts))
