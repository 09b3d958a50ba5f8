"""Storage: any transformation with its slots kept in fewer bits."""

import fnmatch
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.checks import NonNegativeInt, check_patterns
from gradtx.composition.views import SameGradients
from gradtx.core.pair import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    transformation,
    with_extra_args_support,
)
from gradtx.declarations.declaration import Kept, in_order
from gradtx.inspection.slots import map_slots, walk_slots
from gradtx.kernels.stored_step import Kernels, in_kernels, without_kernels
from gradtx.leaves.paths import first_difference, map_with_paths, matches, path_string
from gradtx.leaves.whole import whole_of
from gradtx.names.namespace import warn
from gradtx.ownership.owned_slots import apart, in_stacks
from gradtx.storage import Encoded, as_codec, is_encoded
from gradtx.storage.format import Codec
from gradtx.storage.marked import plain
from gradtx.tree.search import children_of
from gradtx.types import (
    Params,
    PyTree,
    State,
    Updates,
    is_stored,
    nonnegative_fields,
    slot_fields,
    state_fields,
)

EMBEDDINGS = ("*embed*", "*Embed*")
"""The paths of embeddings: a row that few steps touch would change with the others in its block."""

MIN_SIZE = 4096
"""Leaves with fewer entries are kept as they are: they take little memory."""


class _Choice(NamedTuple):
    """The codec of leaves whose slot and path match patterns; None to keep them as arrays."""

    slot: str
    path: str
    codec: Codec | None


@transformation(native_schedules=True, update_size="proportional")
def store(
    inner: GradientTransformation,
    codecs: Annotated[Any, Kept(in_order)] = "int8",
    *,
    min_size: NonNegativeInt = MIN_SIZE,
    exempt: Any = EMBEDDINGS,
    seed: NonNegativeInt = 0,
    kernel: bool = True,
) -> GradientTransformation:
    r"""`inner` with its slots kept in fewer bits.

    Each step reads a slot :math:`s` from its codes :math:`c`, runs the rule, and rounds the new
    value to codes again, leaf by leaf:

    .. math:: u, s' = \mathrm{rule}(g, \mathrm{decode}(c)), \qquad c' = \mathrm{encode}(s')

    Args:
        inner: any transformation of gradtx, alone or composed. The state of another library's, such
            as Optax's, is kept as it is, with a warning.
        codecs: a codec for all slots, by its name (``"int8"``) or with options (`Codec`); or a dict
            of codecs by the names of slots, ``{"mu": "int8", "nu": "bf16"}``, in which a name may
            have wildcards or the path before it, as :func:`slot_names` writes it. In place of a
            codec there may be None, to keep a slot as it is, or a dict of these by path patterns:
            ``{"mu": {"head": None, "*": "int4"}}``. The first pattern that matches counts.
        min_size: leaves with fewer entries are kept as they are.
        exempt: a path pattern of leaves to keep as they are, or a tuple of them; by default
            those of embeddings. :func:`describe` lists them.
        seed: for the random keys of stochastic rounding and of dither, 0 or more.
        kernel: whether a compiled step is one kernel for each leaf, from codes to codes, where
            possible; see docs/storage_measured.md. The codes are the same.

    For tables whose gradients are `Rows` pass ``Codec("int8", axis=-1)``: where a block has entries
    of several rows, each step reads and writes the whole slot, and a warning names it.

    Counters, random keys, numbers of the whole tree, integers and complex leaves are kept as they
    are. Second moments, whose fields are annotated `NonNegativeSlots`, get unsigned codes, and are
    rounded at random where they would not fall as they should: see `Codec`.

    State: that of `inner`, with :class:`gradtx.storage.Encoded` in place of slots. ``init`` decides
    which leaves are in codecs, and how these round: another state of the same codecs goes on as it
    is kept, whatever `min_size` and `exempt` are, and :func:`in_storage_of` applies them to it.

    Raises:
        ValueError: an unknown codec, or an option that it does not have, when built; by ``init`` a
            slot that does not exist, a pattern that matches nothing, a name that is not a slot's,
            or a slot that :func:`offload` keeps elsewhere; by ``update`` a state in other codecs,
            which :func:`in_storage_of` converts.
        TypeError: something other than a codec in place of one.

    Source: T. Dettmers et al., 8-bit Optimizers via Block-wise Quantization, 2021,
    arXiv:2110.02861; each codec's own is in :mod:`gradtx.storage`.

    >>> import gradtx
    >>> tx = store(gradtx.adam(1e-3), {"mu": "int8", "nu": "bf16"})
    >>> state = tx.init({"w": jnp.zeros((64, 256)), "b": jnp.zeros(256)})
    >>> state[0].mu["w"], state[0].nu["w"], state[0].nu["b"].dtype
    (Encoded(int8, (64, 256)), Encoded(bf16, (64, 256)), dtype('float32'))
    >>> state[0].mu["w"].parts["scale"].shape  # one for each row of 256 entries
    (64, 1)
    """
    rules = list(_rules(codecs))
    several = isinstance(exempt, Iterable) and not isinstance(exempt, str)
    patterns = tuple(exempt) if several else () if exempt is None else (exempt,)
    check_patterns("store: exempt", patterns)
    named = isinstance(codecs, Mapping)
    tx = with_extra_args_support(inner)

    def init(params: Params) -> State:
        stacked = tx.init(params)
        state = apart(stacked)  # a codec is of one leaf
        encoder = _Encoder(rules, patterns, min_size, seed)
        new = map_slots(state, encoder.encoded)
        unknown = ", ".join(dict.fromkeys(_without_slots(state, min_size)))
        if unknown:
            warn(
                f"store: no field of {unknown} is annotated `Slots`, so that the arrays there are "
                "kept as they are; transformations of gradtx say which of their arrays are slots"
            )
        if named and encoder.paths:
            _check_used(state, rules, encoder.used, encoder.paths)
        if patterns != EMBEDDINGS and encoder.paths:
            _check_patterns(patterns, encoder.used, encoder.paths)
        return in_stacks(new, stacked)

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        if params is not None:
            _check_storage(init, rules, state, params)
        run = tx.update if kernel else without_kernels(tx.update)
        return in_kernels(run, updates, state, params, extra_args, whole=False)

    step = tx.step if kernel or tx.step is None else without_kernels(tx.step)
    record = tx.traits.passed_on()._replace(step=step, parts=(tx,), takes_vectors=True)
    fields = {**record._asdict(), "facets": (*record.facets, SameGradients(), Kernels(kernel))}
    return GradientTransformationExtraArgs(init, update, **fields)


def in_storage_of(tx: GradientTransformation, params: Params, state: State) -> State:
    """A state in the form in which `tx` keeps it: encoded, decoded, or in other codecs.

    Args:
        tx: the transformation.
        params: the parameters.
        state: a state of it, or of one that differs from it by :func:`store` alone.

    Raises:
        ValueError: the state is of another transformation, or of other parameters.

    >>> import gradtx
    >>> tx, params = gradtx.sgd(0.1, momentum=0.9), jnp.zeros(8192)
    >>> state = in_storage_of(store(tx, "int8"), params, tx.init(params))
    >>> state[0].trace
    Encoded(int8, (8192,))
    """
    fresh = with_extra_args_support(tx).init(params)
    treedef: Any
    wanted, treedef = jax.tree.flatten(fresh, is_leaf=is_stored)
    slots, other = jax.tree.flatten(state, is_leaf=is_stored)
    if treedef != other:
        problem = first_difference(fresh, state)
        raise ValueError(f"in_storage_of: the state is not one of this transformation: {problem}")

    def converted(want: Any, x: Any) -> Any:
        if want.shape != x.shape:
            raise ValueError(
                f"in_storage_of: a slot of shape {tuple(x.shape)}, where {tuple(want.shape)} "
                "is kept: these are other parameters"
            )
        if jax.tree.structure(want) == jax.tree.structure(x):  # type: ignore[operator]
            return x
        value = x.load() if is_stored(x) else x
        return want.store(value) if is_stored(want) else value.astype(want.dtype)

    return treedef.unflatten(map(converted, wanted, slots))


class _Encoder:
    """The slots of a new state in their codecs, and what has chosen these.

    Attributes:
        rules: which slots of which leaves are in which codecs.
        exempt: the path patterns of leaves that are kept as they are.
        min_size: leaves with fewer entries are kept as they are.
        seed: for the random keys.
        used: the rules and the patterns that have applied to a leaf.
        paths: those of all leaves of all slots.
    """

    def __init__(
        self, rules: list[_Choice], exempt: tuple[str, ...], min_size: int, seed: int
    ) -> None:
        self.rules, self.exempt, self.min_size, self.seed = rules, exempt, min_size, seed
        self.used: set[Any] = set()
        self.paths: list[str] = []

    def encoded(self, holder: Any, name: str, tree: PyTree) -> PyTree:
        """A slot of all leaves, by its name in the state that holds it."""
        signed = name.rpartition(".")[2] not in nonnegative_fields(holder)

        def one(path: Any, x: Any) -> Any:
            return self._leaf(name, path_string(path), x, signed)

        return map_with_paths(one, tree, is_leaf=is_stored)

    def _leaf(self, name: str, path: str, x: Any, signed: bool) -> Any:
        number = len(self.paths)
        self.paths.append(path)
        patterns = [p for p in self.exempt if matches(path, p)]
        rule = _first(self.rules, name, path)
        self.used.update([rule, *patterns])
        codec = None if rule is None or patterns else rule.codec
        if codec is None or not _is_large(x, self.min_size):
            return x
        if getattr(jax.typeof(x), "memory_space", None) == jax.memory.Space.Host:
            raise ValueError(
                f"store: {name}/{path} is in the memory of the host, where nothing is computed: "
                "offload(store(tx)) keeps codes there"
            )
        if codec.signed is None:
            codec = codec._replace(signed=signed)
        try:
            return _encoded(x, codec, self.seed, number)
        except ValueError as error:
            raise ValueError(f"store: at {name}/{path}: {error}") from None


@functools.partial(jax.jit, static_argnums=(1, 2))  # traced and compiled once for each shape
def _encoded(x: Any, codec: Codec, seed: int, number: Any) -> Encoded:
    """A slot in a codec, with a random key made from the seed and the number of the slot."""
    return Encoded.of(x, codec, jax.random.fold_in(jax.random.key(seed), number))


def _rules(codecs: Any) -> Iterator[_Choice]:
    """The codecs given for slots and leaves, in the order in which they are given."""
    if not isinstance(codecs, Mapping):
        yield _Choice("*", "*", as_codec("store", codecs))
        return
    for slot, of_slot in codecs.items():
        if not isinstance(slot, str):
            raise TypeError(f"store: a slot is given by its name, not by {slot!r:.80}")
        by_path = of_slot if isinstance(of_slot, Mapping) else {"*": of_slot}
        check_patterns(f"store: codecs[{slot!r}]", by_path)
        for path, codec in by_path.items():
            checked = None if codec is None else as_codec(f"store: {slot}", codec)
            yield _Choice(slot, path, checked)


def _first(rules: list[_Choice], slot: str, path: str) -> _Choice | None:
    """The first rule that applies to a leaf."""
    return next((r for r in rules if _is_slot(slot, r.slot) and _is_leaf(path, r.path)), None)


def _is_slot(name: str, pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(n, pattern) for n in (name, name.rpartition(".")[2]))


def _is_leaf(path: str, pattern: str) -> bool:
    return pattern == "*" or matches(path, pattern)


def _is_large(x: Any, min_size: int) -> bool:
    """Whether a leaf of a slot is to be stored: a real array with enough entries."""
    floating = hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)
    return floating and not is_stored(x) and x.ndim > 0 and x.size >= max(min_size, 1)


def _without_slots(state: State, min_size: int) -> Iterator[str]:
    """The classes of states, other than gradtx's, that hold large arrays and know no slots."""
    cls: Any = type(state)
    if is_stored(state):
        return
    if hasattr(cls, "_fields") and not cls.__module__.startswith("gradtx."):
        if not slot_fields(cls) and any(_is_large(x, min_size) for x in jax.tree.leaves(state)):
            yield cls.__name__
        return
    for _, child in children_of(state):
        yield from _without_slots(child, min_size)


def _check_used(state: State, rules: list[_Choice], used: set[Any], known: list[str]) -> None:
    """Raise ValueError if a rule applies to no slot, or its pattern to no leaf."""
    slots = [prefix + name for prefix, name, _ in walk_slots(state)]
    for rule in rules:
        if not any(_is_slot(name, rule.slot) for name in slots):
            what = dict(_others(state)).get(rule.slot)
            raise ValueError(
                f"store: {rule.slot!r} is {what}, and only slots are stored"
                if what
                else f"store: there is no slot {rule.slot!r}; the slots are "
                f"{', '.join(slots) or 'none'}"
            )
        if rule not in used and not any(_is_leaf(path, rule.path) for path in known):
            raise ValueError(
                f"store: the pattern {rule.path!r} matches no leaf of {rule.slot!r}; the leaves "
                f"are {', '.join(dict.fromkeys(known))}"
            )


def _check_patterns(patterns: tuple[str, ...], used: set[Any], known: list[str]) -> None:
    for pattern in patterns:
        if pattern not in used:
            raise ValueError(
                f"store: the pattern {pattern!r} in exempt matches no leaf; the leaves are "
                f"{', '.join(dict.fromkeys(known))}"
            )


def _others(state: State) -> Iterator[tuple[str, str]]:
    """The fields of a state that hold something other than slots or other states."""
    cls: Any = type(state)
    kinds = state_fields(cls) if hasattr(state, "_fields") else {}
    for key, child in children_of(state):
        name = str(getattr(key, "name", ""))
        kind = kinds.get(name)
        if kind not in (None, "slot"):
            yield name, f"a {kind}"
        elif name and jax.tree_util.all_leaves([child]):
            yield name, "no slot"
        elif kind is None:
            yield from _others(child)


def _codecs(state: State) -> tuple[Any, list[Any]]:
    """Which slots of a state are in which codecs, whatever their shapes are."""
    structure: Any
    leaves, structure = jax.tree.flatten(state, is_leaf=is_encoded)
    return structure, [x.codec if is_encoded(x) else None for x in leaves]


def _check_storage(init: Any, rules: list[_Choice], state: State, params: Params) -> None:
    """Raise ValueError if a state is in codecs that are not those of this transformation."""
    ours = {rule.codec.name for rule in rules if rule.codec is not None}
    leaves = jax.tree.leaves(state, is_leaf=is_encoded)
    theirs = {x.codec.name for x in leaves if is_encoded(x)}
    if theirs <= ours:
        return
    # What is inside may have codecs of its own.
    if _codecs(jax.eval_shape(init, whole_of(params))) != _codecs(plain(state)):
        raise ValueError(
            f"store: the state is kept as {', '.join(sorted(theirs - ours))}, and this keeps "
            f"{', '.join(sorted(ours))}: in_storage_of(tx, params, state) converts it"
        )
