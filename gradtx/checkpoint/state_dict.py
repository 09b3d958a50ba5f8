"""State as named data: arrays by path, for any container of arrays, and back."""

import collections
import functools
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.checkpoint import matching
from gradtx.checkpoint.config import to_config
from gradtx.checkpoint.encoded import gathered, parts_of, written
from gradtx.checkpoint.matching import Node, form_of, is_empty, match
from gradtx.checkpoint.templates import like as in_containers_of, listed, named
from gradtx.core.pair import GradientTransformation, with_extra_args_support
from gradtx.leaves.packed import holds_packed, packed_like, unpack
from gradtx.leaves.paths import leaves_with_path, path_string, select
from gradtx.leaves.shardings import committed
from gradtx.names.namespace import warn
from gradtx.ownership.owned_slots import apart, in_stacks, is_owned
from gradtx.programs.tracing import is_tracer
from gradtx.storage import is_encoded
from gradtx.types import Array, Params, State
from gradtx.types.keys import is_key

_HEADER = "gradtx"
_VERSION = 5


def state_dict(state: State, tx: GradientTransformation | None = None) -> dict[str, Array]:
    """A state as arrays by path: ``{"0/mu/head/kernel": array, ...}``.

    Anything that writes arrays can write it: safetensors, NumPy, Orbax, ``flax.serialization``.

    Args:
        state: a state of any transformation, also of other libraries.
        tx: the transformation, whose configuration is then written beside the state.

    Returns:
        The arrays that have entries; random keys as the integers behind them; for a slot in a
        codec, its codes and scales, ``"0/mu/w/codes"``; slots that lie in owners' stacks of
        matrices, each by itself, so that a run on any number of devices can load them. The entry
        ``"gradtx"`` is the header, JSON as bytes: the format's version, the kinds of the states,
        the configuration, the arrays' types, the codecs, and checksums of itself and of every array
        that this process can read.

    Raises:
        ValueError: two leaves have the same path, since a name has a ``/`` in it.
        TypeError: a leaf is not an array, or `tx` cannot be written as a configuration.

    >>> import gradtx
    >>> tx = gradtx.sgd(0.1, momentum=0.9)
    >>> list(state_dict(tx.init({"w": jnp.zeros(2)}), tx))
    ['gradtx', '0/trace/w']
    """
    arrays, header = described_state(state, tx)
    sums = {path: checksum(x) for path, x in arrays.items() if is_readable(x)}
    return {_HEADER: header_array(header, sums), **arrays}


def described_state(
    state: State, tx: GradientTransformation | None
) -> tuple[dict[str, Array], dict[str, Any]]:
    """The arrays of a state by path, and its header without their checksums."""
    arrays: dict[str, Array] = {}
    encoded: dict[str, Any] = {}
    state = _one_by_one(unpack(state))
    for path, leaf in matching.leaves(state):
        if is_empty(leaf):
            continue
        if is_encoded(leaf):
            encoded[path] = written(leaf)
        for name, array in parts_of(path, leaf):
            if name in arrays:
                raise ValueError(f"state_dict: two leaves are called {name!r}; is a '/' in a name?")
            arrays[name] = _data(name, array)
    header = {
        "version": _VERSION,
        "states": [[node.prefix, node.kind] for node in matching.nodes(state)],
        "config": None if tx is None else to_config(tx),
        "dtypes": {path: str(x.dtype) for path, x in arrays.items()},
        "checksums": {},
        "encoded": encoded,
    }
    return arrays, header


def trained_leaves(
    tx: GradientTransformation, params: Params, state: State
) -> frozenset[str] | None:
    """The paths of the parameters for which a state has slots; None if it is made for all of them.

    Raises:
        ValueError: the state is not one of `tx` for these parameters, nor for those for which it
            has slots, and so could not be loaded.
    """
    problem = _misfit(tx, params, state)
    if problem is None:
        return None
    nodes = matching.nodes(state, empty=True)
    slots = {name.partition("/")[2] for node in nodes for name in node.leaves}
    leaves = {path_string(path) for path, _ in leaves_with_path(params)[0]}
    # The slots of a leaf that `split_leaves` takes apart are below its path.
    parts = tuple(slots - leaves)
    trained = {p for p in leaves if p in slots or any(s.startswith(f"{p}/") for s in parts)}
    some = select(params, lambda path, _: path in trained)
    of_some = _misfit(tx, some, state)
    if holds_packed(params) or of_some is not None:
        if jax.tree.leaves(some):  # else it has no slots by which to know what was trained
            problem = of_some or problem
        raise ValueError(
            "save_checkpoint: the state could not be loaded, since it is not one of this "
            f"transformation and these parameters: {problem}. The state of a step of make_step is "
            "that of step.tx, with what gradients= or rounding_key= put around the optimizer; what "
            "else the model keeps goes into model_state; without tx any state is saved"
        )
    return frozenset(trained)


def _misfit(tx: GradientTransformation, params: Params, state: State) -> str | None:
    """Why a state is not one of `tx` for these parameters, or None."""
    init = with_extra_args_support(tx).init
    try:
        try:
            start = jax.eval_shape(init, params)
        except Exception:  # it may look at values
            start = init(params)
    except (TypeError, ValueError) as error:
        return str(error)
    ours, theirs = (dict(_forms(_one_by_one(unpack(x)))) for x in (state, start))
    for path, there in ours.items():
        if path not in theirs:
            return f"it has {path!r}, {there}, for which these have no place"
        if there != theirs[path]:
            return f"{path!r} is {there}, and would be {theirs[path]}"
    return next((f"it lacks {path!r}, {x}" for path, x in theirs.items() if path not in ours), None)


def _forms(state: State) -> Iterator[tuple[str, str]]:
    """The paths of the arrays of a state, with their types, or codecs, and shapes."""
    for path, leaf in matching.leaves(state):
        yield path, matching.shown(leaf if is_encoded(leaf) else _data(path, leaf))


def header_array(header: Mapping[str, Any], sums: Mapping[str, int]) -> Array:
    """A header with the checksums of its arrays, as bytes."""
    header = {**header, "checksums": dict(sums)}
    text = json.dumps({**header, "checksum": checksum_of_header(header)})
    return jnp.asarray(np.frombuffer(text.encode(), np.uint8))


def saved_config(flat: Mapping[str, Any]) -> dict[str, Any] | None:
    """The configuration that was written beside a state, or None; for :func:`from_config`.

    Args:
        flat: the result of :func:`state_dict`.

    Raises:
        ValueError: this was not written by :func:`state_dict`, or by a later version of it.

    >>> import gradtx
    >>> tx = gradtx.adam(1e-3)
    >>> gradtx.from_config(saved_config(state_dict(tx.init(0.0), tx)))
    adam(learning_rate=0.001, b1=0.9, b2=0.999, eps=1e-08, eps_root=0.0)
    """
    config: dict[str, Any] | None = _header(flat)["config"]
    return config


class StateMatch(NamedTuple):
    """How a saved state fits a transformation.

    state: the new state; kept: the old path of each leaf that was kept; missing: the leaves that
    had to be initialised; extra: the saved leaves that were not used; changed: leaves of another
    shape (initialised), type (converted) or kind of state (kept), with the old one; damaged: the
    saved leaves whose bytes are not those that were written (kept as they are).
    """

    state: State
    kept: dict[str, str]
    missing: list[str]
    extra: list[str]
    changed: dict[str, str]
    damaged: list[str]

    def __str__(self) -> str:
        parts = [f"damaged or edited: {', '.join(self.damaged)}"] if self.damaged else []
        parts += [f"missing: {', '.join(self.missing)}"] if self.missing else []
        parts += [f"extra: {', '.join(self.extra)}"] if self.extra else []
        changes = [f"{path}, {what}" for path, what in self.changed.items()]
        return "; ".join(parts + ([f"changed: {'; '.join(changes)}"] if changes else []))


def load_state_dict(
    tx: GradientTransformation,
    params: Params,
    flat: Mapping[str, Any],
    strict: bool = True,
    *,
    state: State = None,
) -> State:
    """The state of a transformation from the arrays of :func:`state_dict`.

    A slot in a codec is converted to the codec, or the type, in which `tx` keeps it. A slot is kept
    even if its transformation has moved: when clipping or an average is added to a chain, a group
    is renamed, added or split, or Adam becomes AMSGrad. New leaves are as ``tx.init(params)`` makes
    them. :func:`match_state_dict` says what went where.

    A state that was restored without its classes, with dicts and lists in place of named tuples, as
    by Orbax or ``flax.serialization``, goes through :func:`state_dict` too. Its arrays are found by
    their paths, so `tx` must be the one that was saved, with the same codecs.

    Args:
        tx: the transformation, perhaps another than the one that was saved.
        params: the parameters.
        flat: the arrays by path.
        strict: refuse if anything is missing, left over, changed in shape, type or kind, or
            damaged, as by a bit flip in a file; otherwise warn.
        state: as in :func:`match_state_dict`.

    Returns:
        The state, on the device of the parameters if they were put on one; the arguments stay
        unchanged.

    Raises:
        ValueError: this was not written by :func:`state_dict`; nothing in it fits, as when it is of
            other parameters; or `strict` and not everything fits (the error lists it by path).
        TypeError: an entry is not an array of numbers.

    >>> import gradtx
    >>> params = {"w": jnp.ones(2)}
    >>> saved = state_dict(gradtx.adam(1e-3).init(params))
    >>> tx = gradtx.chain(gradtx.clip(1.0), gradtx.adam(1e-3))
    >>> gradtx.slot_names(load_state_dict(tx, params, saved))
    ['mu', 'nu']
    """
    fit = match_state_dict(tx, params, flat, state=state)
    return _strictly(fit, strict)


def adopt_state(
    tx: GradientTransformation, params: Params, flat: dict[str, Any], strict: bool
) -> State:
    """As `load_state_dict`, from arrays that are not shared and whose bytes were checked.

    `flat` is emptied, one array after another, so that only one at a time is in memory twice.
    """
    return _strictly(_match(tx, params, flat, adopted=True), strict)


def _strictly(state_match: StateMatch, strict: bool) -> State:
    if str(state_match):
        if strict:
            raise ValueError(
                f"load_state_dict: the saved state is not one of this transformation and these "
                f"parameters. {state_match}. With strict=False the rest is kept"
            )
        warn(f"load_state_dict: {state_match}")
    return state_match.state


def match_state_dict(
    tx: GradientTransformation,
    params: Params,
    flat: Mapping[str, Any],
    *,
    state: State = None,
) -> StateMatch:
    """The result of :func:`load_state_dict` on a saved state, with a report.

    Args:
        tx: the transformation, perhaps another than the one that was saved.
        params: the parameters, for the shapes of new leaves.
        flat: the result of :func:`state_dict`.
        state: a state of `tx` whose types of containers the new one takes, where a library has its
            own, such as ``opt_state`` of ``nnx.Optimizer``.

    States are matched by their class and their slots' names and parameters; if two fit equally
    well, their order decides, or their path if there are more of them than before.

    Raises:
        ValueError: this was not written by :func:`state_dict`, nothing in it fits, or `state` is
            not one of `tx` for these parameters.
        TypeError: an entry is not an array of numbers.

    >>> import gradtx
    >>> saved = state_dict(gradtx.adam(1e-3).init(jnp.ones(2)))
    >>> tx = gradtx.chain(gradtx.ema(0.9), gradtx.adam(1e-3))
    >>> match_state_dict(tx, jnp.ones(2), saved).missing
    ['0/count', '0/ema']
    """
    flat = dict(flat) if isinstance(flat, Mapping) else flat
    result = _match(tx, params, flat, adopted=False)
    if state is None:
        return result
    leaves = dict(named("state", result.state))
    return result._replace(state=in_containers_of("match_state_dict", "state", leaves, state))


def _match(
    tx: GradientTransformation, params: Params, entries: dict[str, Any], adopted: bool
) -> StateMatch:
    header = _header(entries)
    by_name = {k: typed(x, header["dtypes"].get(k)) for k, x in entries.items() if k != _HEADER}
    entries.clear()
    for name, x in by_name.items():
        _check_array(name, x)
    damaged = [] if adopted else _damaged(by_name, header["checksums"])
    # New leaves have to be initialised; where everything was saved, shapes and types are enough.
    start = _shapes_of_state(tx, params)
    flat = gathered(by_name, header["encoded"], header["version"])
    del by_name
    states = [(prefix, kind) for prefix, kind in header["states"] if kind]
    names = _adopt_names(flat, states, start)
    fresh = _as_saved(start, flat)
    saved = _saved_nodes(flat, states, matching.nodes(fresh))
    arrays = {k: _data(k, leaf) for k, leaf in matching.leaves(fresh) if not is_empty(leaf)}
    saved_paths, changed, extra = match(saved, matching.nodes(fresh), flat, arrays)
    if not saved_paths.keys() >= arrays.keys():
        start = with_extra_args_support(tx).init(params)
        fresh = _as_saved(start, flat)
        arrays = {k: _data(k, leaf) for k, leaf in matching.leaves(fresh) if not is_empty(leaf)}
        saved_paths, changed, extra = match(saved, matching.nodes(fresh), flat, arrays)
    if arrays and header["states"] and not saved_paths:
        raise ValueError(
            "load_state_dict: nothing in the saved state fits this transformation and these "
            f"parameters; it holds {listed(sorted(flat))}, and what is needed "
            f"is {listed(arrays)}"
        )
    left = collections.Counter(saved_paths.values())
    leaves = []
    for path, leaf in matching.leaves(fresh):
        if path in saved_paths:
            left[saved_paths[path]] -= 1
            last = adopted and not left[saved_paths[path]]
            value = flat.pop(saved_paths[path]) if last else flat[saved_paths[path]]
            restored = _restored(leaf, arrays[path], value, copy=not last)
            leaves.append(_placed_like(leaf, restored))
            del value
        else:
            leaves.append(jnp.zeros(leaf.shape, leaf.dtype) if _is_shape(leaf) else leaf)
    structure: Any = jax.tree.structure(fresh, is_leaf=is_encoded)
    state = packed_like(_in_stacks(structure.unflatten(leaves), unpack(start)), start)
    # Where parameters or slots are bound to a device, a step binds the other arrays to it too.
    (_, state), _ = committed((params, state))
    return StateMatch(
        state=state,
        kept={path: names.get(name, name) for path, name in saved_paths.items()},
        missing=[path for path in arrays if path not in saved_paths and path not in changed],
        extra=sorted(names.get(name, name) for name in extra),
        changed=changed,
        damaged=damaged,
    )


def _holds_stacks(state: State) -> bool:
    return any(map(is_owned, jax.tree.leaves(state, is_leaf=is_owned)))


def _one_by_one(state: State) -> State:
    """A state, or its shapes, with every slot by itself."""
    if not _holds_stacks(state):
        return state
    shapes = any(map(_is_shape, jax.tree.leaves(state)))
    return jax.eval_shape(apart, state) if shapes else apart(state)


def _as_saved(start: State, flat: Mapping[str, Any]) -> State:
    """A state in the form of a saved one: an older version of gradtx wrote stacks as they are.

    It had their matrices in order, also of experts, whose stacks are laid out in another way now.
    """
    state = unpack(start)
    if state is not start and _paths(start) - _paths(state) <= flat.keys():
        return start  # vectors, which were saved as they are
    slots = jax.tree.leaves(state, is_leaf=is_owned)
    in_order = all(x.share.own is None for x in slots if is_owned(x))
    unstacked = _one_by_one(state)
    paths, stacks = _paths(unstacked), _paths(state)
    return state if in_order and stacks - paths and stacks <= flat.keys() else unstacked


def _paths(state: State) -> set[str]:
    return {path for path, x in matching.leaves(state) if not is_empty(x)}


def _in_stacks(state: State, like: State) -> State:
    """A state with the same slots in stacks as in `like`."""
    needs_stacks = _holds_stacks(like) and not _holds_stacks(state)
    return in_stacks(state, like) if needs_stacks else state


def _shapes_of_state(tx: GradientTransformation, params: Params) -> State:
    """The shapes of the state for `params`; the state itself where shapes do not say enough."""
    init = with_extra_args_support(tx).init
    try:
        program, shapes = jax.make_jaxpr(init, return_shape=True)(params)
    except Exception:
        return init(params)
    # Shapes do not say in which memory an array is kept, nor with which key codes are made.
    host = jax.memory.Space.Host
    on_host = any(getattr(x, "memory_space", None) == host for x in program.out_avals)
    in_codes = any(map(is_encoded, jax.tree.leaves(shapes, is_leaf=is_encoded)))
    return init(params) if on_host or in_codes else shapes


def _is_shape(leaf: Any) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct)


def is_readable(x: Any) -> bool:
    """Whether `x` is an array, all bytes of which this process can read."""
    is_concrete = isinstance(x, jax.Array | np.ndarray | np.generic) and not is_tracer(x)
    return is_concrete and getattr(x, "is_fully_addressable", True)


def checksum(x: Any) -> int:
    """The CRC-32 of an array's bytes."""
    return zlib.crc32(np.ascontiguousarray(x).ravel().view(np.uint8).data)


def checksum_of_header(header: Mapping[str, Any]) -> int:
    """The CRC-32 of a header without its own checksum."""
    return zlib.crc32(json.dumps(header, sort_keys=True).encode())


def typed(x: Any, dtype: str | None) -> Any:
    """An array read from a file, in the `dtype` it had: NumPy's files forget types of JAX."""
    if dtype is None or getattr(x, "dtype", np.dtype(bool)).kind != "V":
        return x
    return x if x.dtype == jnp.dtype(dtype) else x.view(jnp.dtype(dtype))


def _damaged(flat: Mapping[str, Any], known: Mapping[str, int]) -> list[str]:
    here = [path for path in flat if path in known and is_readable(flat[path])]
    return sorted(path for path in here if checksum(flat[path]) != known[path])


def _adopt_names(
    flat: dict[str, Any], states: list[tuple[str, str]], start: State
) -> dict[str, str]:
    """Rename arrays that were saved without classes to their names in the state to fill.

    Args:
        flat: the saved arrays by name, which is changed.
        states: the paths and the classes of the states that were saved with these.
        start: the state to fill.

    Returns:
        The names that they had, by the new ones.
    """
    names: dict[str, str] = {}
    loose = {name for name in flat if _owner(name, states) is None}
    for form in (start, unpack(start), _one_by_one(unpack(start))) if loose else ():
        renamed = matching.saved_names(form, loose)
        for path, name in renamed.items():
            flat[path] = flat.pop(name)
        names |= renamed
        loose -= set(renamed.values())
        encoded = dict(_in_parts(form, flat))
        if encoded:
            entries = gathered(flat, encoded, _VERSION)
            flat.clear()
            flat.update(entries)
    return names


def _in_parts(state: State, flat: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The slots of a state in codecs whose parts were saved, and these codecs."""
    for path, leaf in matching.leaves(state):
        parts = [name for name, _ in parts_of(path, leaf)]
        if is_encoded(leaf) and path not in flat and any(name in flat for name in parts):
            yield path, written(leaf)


def _owner(name: str, states: Iterable[tuple[str, str]]) -> str | None:
    """The path of the innermost state that has an array of this name, or None."""
    above = (at for at, _ in states if not at or name.startswith(f"{at}/"))
    return max(above, key=len, default=None)


def _saved_nodes(
    flat: Mapping[str, Any], states: list[tuple[str, str]], new: list[Node]
) -> list[Node]:
    """The saved states with their arrays; an array without one is of the new state at its path."""
    nodes = {prefix: Node(prefix, kind) for prefix, kind in states}
    by_path = {path: node for node in new for path in node.leaves.values()}
    for path in sorted(flat):
        if is_empty(flat[path]):
            continue
        at = _owner(path, states)
        like = by_path.get(path)
        if like is not None and (at is None or len(like.prefix) > len(at)):
            nodes.setdefault(like.prefix, Node(like.prefix, like.kind, by_path=True))
            at = like.prefix
        owner = nodes.setdefault("", Node("", "")) if at is None else nodes[at]
        owner.leaves[path[len(owner.prefix) :].lstrip("/")] = path
    return list(nodes.values())


def _data(path: str, leaf: Any) -> Any:
    """A leaf of a state as an array of numbers; for a random key these are its integers."""
    if is_key(leaf):
        data = jax.random.key_data
        return jax.eval_shape(data, leaf) if _is_shape(leaf) else data(leaf)
    if isinstance(leaf, bool | int | float | complex | np.ndarray | np.generic):
        leaf = jnp.asarray(leaf)
    _check_array(path, leaf)
    return leaf


def _check_array(path: str, value: Any) -> None:
    dtype = getattr(value, "dtype", None)
    if dtype is None or not (jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)):
        kind = type(value).__name__ if dtype is None else dtype
        raise TypeError(f"the entry {path!r} of a state dict is {kind}, not an array of numbers")


def _restored(leaf: Any, array: Any, value: Any, *, copy: bool) -> Any:
    # The state may be donated, so that arrays of someone else are copied.
    make = functools.partial(jnp.array, copy=True) if copy else jnp.asarray
    if is_encoded(leaf) and is_encoded(value) and form_of(leaf) == form_of(value):
        value = leaf.holding(value)
        return jax.tree.map(lambda old, new: make(new, old.dtype), leaf, value)
    value = value.load() if is_encoded(value) else value
    if is_encoded(leaf):
        return leaf.store(jnp.asarray(value))
    loaded = make(value, array.dtype)
    if is_key(leaf):
        return jax.random.wrap_key_data(loaded, impl=_generator(leaf))
    return loaded


def _placed_like(leaf: Any, value: Any) -> Any:
    """A restored leaf in the memory space in which the transformation keeps it."""

    def one(old: Any, x: Any) -> Any:
        if not isinstance(x, jax.Array) or is_tracer(x) or is_tracer(old):
            return x
        if _is_shape(old):  # of a state that has nothing in the memory of the host
            device: Any = next(iter(x.sharding.addressable_devices), None)
            kind = None if device is None else device.default_memory().kind
        elif isinstance(old, jax.Array):
            kind = old.sharding.memory_kind
        else:
            return x
        if kind is None or kind == x.sharding.memory_kind:
            return x
        return jax.device_put(x, x.sharding.with_memory_kind(kind))

    return jax.tree.map(one, leaf, value)


def _generator(key: Any) -> Any:
    """The name of the generator of a random key, or of an abstract one."""
    if not _is_shape(key):
        return jax.random.key_impl(key)
    generators: list[Any] = []
    jax.eval_shape(lambda k: generators.append(jax.random.key_impl(k)), key)
    return generators[0]


def _header(flat: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(flat, Mapping) or _HEADER not in flat:
        raise ValueError(f"this was not written by state_dict: it has no entry {_HEADER!r}")
    if unnamed := [k for k in flat if not isinstance(k, str)]:
        raise TypeError(f"the names in a state dict are text; one is {unnamed[0]!r}")
    try:
        header = json.loads(np.asarray(flat[_HEADER], np.uint8).tobytes().decode())
        version, states, config = header["version"], header["states"], header["config"]
        good = all(isinstance(prefix, str) and isinstance(kind, str) for prefix, kind in states)
        if not (good and type(version) is int and isinstance(config, dict | None)):
            raise ValueError("its fields have the wrong types")
        if version < 1 or (version == 1 and "checksum" in header):
            raise ValueError(f"there is no format {version}, or not with these fields")
        if 1 < version <= _VERSION and header.pop("checksum") != checksum_of_header(header):
            raise ValueError("its checksum differs")
        # Checksums came with the second format, types with the third, codecs with the fourth; the
        # fifth has codes of four bits in another order.
        header = {"checksums": {}, "dtypes": {}, "encoded": {}, **header}
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise ValueError(
            f"the header of the state dict is damaged: {type(error).__name__} {error}"
        ) from None
    if version > _VERSION:
        raise ValueError(
            f"the state dict has the format {version}; this version of gradtx reads {_VERSION}"
        )
    return dict(header)
