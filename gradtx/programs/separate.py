"""Whether a program computes layers of stacked arrays separately, so that each may be run alone.

Each entry of an array has an owner, a number: the layer that it belongs to. The program is followed
from its inputs to its results. A result of entries of one owner has that owner; a result of entries
of two is refused, and so is every operation that is not known. An operation that takes some entries
of one layer takes the same entries of all: layers have consecutive numbers, and are computed alike.
Random numbers that are drawn for each entry by itself may be drawn with another key in each layer.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import Literal

from gradtx.programs.dataflow import Lattice, follow
from gradtx.programs.interpreter import constants_in, inner_jaxprs
from gradtx.programs.tracing import is_tracer
from gradtx.types.keys import is_key

NOBODY = -1
"""The owner of entries that are filled in, such as padding: they may differ between places."""

OUTSIDE = -2
"""The owner of arrays that belong to no layer, such as other leaves."""


class Mixed(Exception):
    """The error where an operation combines entries of several owners; it names the operation."""


@dataclass(frozen=True, eq=False)
class Layered:
    """An array whose entries have owners: one for each index along an axis, or one for all.

    Attributes:
        axis: the axis; None if all entries have the one owner in `owners`.
        owners: int[n], the owner of each place along the axis.
    """

    axis: int | None
    owners: Any

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Layered)
            and self.axis == other.axis
            and np.array_equal(self.owners, other.owners)
        )

    def __hash__(self) -> int:
        return hash((self.axis, *self.owners.tolist()))


class Free(NamedTuple):
    """An array whose entries have no owner.

    Attributes:
        flat: the axes along which all its entries are equal.
        drawn: for an array computed from a random key of the state, the axes along which the
            entries are drawn independently and alike; None for other arrays.
    """

    flat: frozenset[int]
    drawn: frozenset[int] | None = None


Kind = Layered | Free


def owned_by(owner: int) -> Layered:
    """The kind of an array all of whose entries have one owner."""
    return Layered(None, np.array([owner]))


def in_layers(first: int, layers: int, size: int) -> Layered:
    """The kind of an array whose first axis is cut into layers with owners from `first` on."""
    return Layered(0, first + np.repeat(np.arange(layers), size // layers))


def owners_after(closed: Any, kinds: Sequence[Kind]) -> list[Kind]:
    """The owners of the results of a program, from the owners of its inputs.

    Raises:
        Mixed: something is computed from entries of several owners.
    """
    return follow(closed, kinds, Owners())


def free(shape: Sequence[int], is_random: bool = False) -> Free:
    """The kind of an array whose entries have no owner, such as a random key or a count."""
    flat = frozenset(i for i, n in enumerate(shape) if n == 1)
    return Free(flat, frozenset() if is_random else None)


def check_owner(kind: Kind, expected: Kind) -> None:
    """Raise Mixed unless a new array's entries have the owners of the array that it replaces."""
    if not isinstance(expected, Layered):
        return
    if isinstance(kind, Free):
        same = kind.flat if kind.drawn is None else kind.drawn
        if expected.axis is not None and expected.axis not in same:
            raise Mixed("a result that differs between layers is not computed from them")
    elif expected.axis is None:
        if not set(kind.owners.tolist()) <= {NOBODY, OUTSIDE}:
            raise Mixed("what is kept of other leaves, or of all, is computed from the layers")
    elif kind.axis not in (expected.axis, None) or any(kind.owners != expected.owners):
        raise Mixed("a layer is computed from others")


_SHAPES = ("broadcast_in_dim", "expand_dims", "reshape", "squeeze", "transpose")
"""Operations that change no number. A single layer may have fewer of them, or more."""


def formula(closed: Any) -> list[Any]:
    """The operations of a program and their numbers, without shapes, for a comparison."""

    def literals(eqn: Any) -> list[Any]:
        numbers = [v.val for v in eqn.invars if isinstance(v, Literal)]
        return [_number(x) if np.shape(x) else str(x) for x in numbers]

    def of(jaxpr: Any) -> list[Any]:
        return [
            (
                eqn.primitive.name,
                literals(eqn),
                [x for x in eqn.params.values() if isinstance(x, int | float)],
                [of(inner) for inner in inner_jaxprs(eqn)],
                list(map(_number, constants_in(eqn))),
            )
            for eqn in jaxpr.eqns
            if eqn.primitive.name not in _SHAPES or literals(eqn)
        ]

    return [*of(closed.jaxpr), *map(_number, closed.consts)]


def _number(x: Any) -> Any:
    """The form in which an array of a program is compared, however long its equal axes are."""
    if is_tracer(x) or is_key(x):
        return id(x)  # of a value from outside, which all programs share
    x = np.asarray(x)
    for axis in range(x.ndim):
        first = x.take([0], axis) if x.shape[axis] else x
        x = first if np.array_equal(np.broadcast_to(first, x.shape), x) else x
    return x.shape, str(x.dtype), x.tobytes()


def _is_random(kind: Kind) -> bool:
    return isinstance(kind, Free) and kind.drawn is not None


def _drawn(kinds: Sequence[Kind]) -> frozenset[int] | None:
    """The axes along which all random numbers among `kinds` are drawn independently."""
    axes = [k.drawn for k in kinds if isinstance(k, Free) and k.drawn is not None]
    return frozenset.intersection(*axes) if axes else None


class Owners(Lattice[Kind]):
    """The owners of the entries of arrays; numbers that stand in the program have none."""

    def enters(self, eqn: Any) -> bool:
        return bool(eqn.primitive.name != "shard_map")  # arrays have other shapes inside of it

    def number(self, x: Any) -> Kind:
        return free(np.shape(x))

    def join(self, a: Kind, b: Kind, shape: Sequence[int]) -> Kind:
        if isinstance(a, Free) and isinstance(b, Free):
            return Free(a.flat & b.flat, _drawn_in_both(a, b))
        kind = _joined("a loop", [k for k in (a, b) if isinstance(k, Layered)], shape)
        _check_same("a loop", kind, (a, b))
        return kind

    def taken(self, known: Kind) -> Kind:
        if isinstance(known, Free):
            return _moved(known, -1)
        if not known.axis:
            return _of_one("a loop over layers", known)
        return Layered(known.axis - 1, known.owners)

    def stacked(self, known: Kind) -> Kind:
        if isinstance(known, Free):
            return _moved(known, 1)
        return known if known.axis is None else Layered(known.axis + 1, known.owners)

    def chosen(self, by: Kind, known: list[Kind], name: str) -> list[Kind]:
        """The kinds of results that a number chooses.

        A number of one owner may choose entries of that owner, or of nobody.

        Raises:
            Mixed: a number of a layer chooses for others, or a random one for layers.
        """
        if isinstance(by, Layered):
            if not all(isinstance(k, Free) or _is_one(by, k) for k in known):
                raise Mixed(name)
            return [by] * len(known)
        if by.drawn is None:
            return known
        _check_outside(name, known)
        return [k._replace(drawn=frozenset()) if isinstance(k, Free) else k for k in known]

    def results(self, eqn: Any, known: list[Kind]) -> list[Kind]:
        """The kinds of the results of an equation.

        Raises:
            Mixed: something is computed from entries of several owners.
        """
        name, shapes = eqn.primitive.name, [v.aval.shape for v in eqn.outvars]
        same = name == "bitcast_convert_type" and eqn.invars[0].aval.shape == shapes[0]
        if same or name in _ELEMENTWISE:
            return [_elementwise(eqn, known)] * len(shapes)
        is_random = any(map(_is_random, known))
        if all(isinstance(k, Free) for k in known):
            if name == "broadcast_in_dim":
                return [_broadcast(eqn, known)]
            kinds = [free(shape, is_random) for shape in shapes]
            if name == "random_bits" and is_random:
                drawn = range(len(eqn.invars[0].aval.shape), len(shapes[0]))
                return [x._replace(drawn=frozenset(drawn)) for x in kinds]
            return list(kinds)
        if is_random:
            _check_outside(name, known)
        if name in _OTHERS:
            return [_OTHERS[name](eqn, known)] * len(shapes)
        # Whatever the operation computes, its operands may have entries of one owner only.
        owners = {o for k in known if isinstance(k, Layered) for o in k.owners.tolist()} - {NOBODY}
        if len(owners) <= 1 and all(
            isinstance(k, Layered) or _is_small(k, v) for k, v in _with(eqn, known)
        ):
            return [owned_by(owners.pop() if owners else NOBODY)] * len(shapes)
        raise Mixed(name)


def _with(eqn: Any, kinds: Sequence[Kind]) -> list[tuple[Kind, Any]]:
    return list(zip(kinds, eqn.invars, strict=True))


def _is_small(kind: Kind, v: Any) -> bool:
    return isinstance(kind, Free) and len(kind.flat) == len(v.aval.shape)


def _unified(name: str, a: Any, b: Any) -> Any:
    differ = a != b
    if np.any(differ & (a != NOBODY) & (b != NOBODY)):
        raise Mixed(name)
    owners = np.where(a == NOBODY, b, a)
    if len(np.unique(owners[differ & (owners >= 0)])) > 1:
        raise Mixed(f"{name} with what is filled in, which may differ between layers")
    return owners


def _joined(name: str, kinds: Sequence[Layered], shape: Sequence[int]) -> Layered:
    """The kind of a result that is computed entry by entry from arrays of one shape."""
    axis = next((k.axis for k in kinds if k.axis is not None), None)
    places = []
    for kind in kinds:
        if kind.axis not in (axis, None):
            only = np.unique(kind.owners)
            if len(only) > 1:
                raise Mixed(name)
            kind = Layered(None, only)
        places.append(np.broadcast_to(kind.owners, [1 if axis is None else shape[axis]]))
    return Layered(axis, functools.reduce(functools.partial(_unified, name), places))


def _elementwise(eqn: Any, kinds: Sequence[Kind]) -> Kind:
    (shape, *_), name = [v.aval.shape for v in eqn.outvars], eqn.primitive.name
    owned = [k for k in kinds if isinstance(k, Layered)]
    others, scalars = [], []
    for kind, v in _with(eqn, kinds):
        if isinstance(kind, Free) and len(v.aval.shape) == len(shape):
            others.append(_stretched(kind, v.aval.shape, shape))
        elif _is_random(kind):
            scalars.append(kind)
    if not owned:
        flat = frozenset.intersection(frozenset(range(len(shape))), *(k.flat for k in others))
        axes = _drawn([*others, *scalars])
        if axes is not None:  # draws are no longer alike after a product with, say, an iota
            axes = axes.intersection(*(k.flat for k in others if not _is_random(k)))
        return Free(flat, axes)
    joined = _joined(name, owned, shape)
    _check_same(name, joined, [*others, *scalars])
    return joined


def _stretched(kind: Free, before: Sequence[int], after: Sequence[int]) -> Free:
    """The kind of an array that is repeated along axes of size 1 to have a shape."""
    if kind.drawn is None:
        return kind
    drawn = [i for i in kind.drawn if before[i] == after[i]]
    return kind._replace(drawn=frozenset(drawn))


def _check_same(name: str, kind: Layered, others: Sequence[Kind]) -> None:
    """Raise Mixed if arrays without an owner differ along the axis that separates owners."""
    for other in others:
        if not isinstance(other, Free):
            continue
        if other.drawn is not None:
            if kind.axis not in other.drawn:
                _check_outside(name, [kind])
        elif kind.axis is not None and kind.axis not in other.flat:
            raise Mixed(f"{name} with numbers that differ between layers, such as noise")


def _check_outside(name: str, kinds: Sequence[Kind]) -> None:
    """Raise Mixed if layers are among `kinds`, which meet a random number that they would share."""
    if any(isinstance(k, Layered) and np.any(k.owners >= 0) for k in kinds):
        raise Mixed(f"{name} with random numbers that are not drawn for each entry by itself")


def _owned(kinds: Sequence[Kind]) -> Layered:
    (kind,) = [k for k in kinds if isinstance(k, Layered)]
    return kind


def _broadcast(eqn: Any, kinds: Sequence[Kind]) -> Kind:
    kind, shape = kinds[0], eqn.outvars[0].aval.shape
    to, before = eqn.params["broadcast_dimensions"], eqn.invars[0].aval.shape
    if isinstance(kind, Free):
        new = set(range(len(shape))) - set(to)
        same = {to[i] for i, n in enumerate(before) if i in kind.flat or n != shape[to[i]]}
        drawn = {to[i] for i in kind.drawn or () if before[i] == shape[to[i]]}
        return Free(frozenset(new | same), None if kind.drawn is None else frozenset(drawn))
    if kind.axis is None or before[kind.axis] != shape[to[kind.axis]]:
        return Layered(None, np.unique(kind.owners))
    return Layered(to[kind.axis], kind.owners)


def _reshape(eqn: Any, kinds: Sequence[Kind]) -> Kind:
    kind = _owned(kinds)
    before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    if kind.axis is None:
        return kind
    if not math.prod(before):
        return owned_by(NOBODY)
    n, inner = before[kind.axis], math.prod(before[kind.axis + 1 :])
    for axis, size in enumerate(after):
        step = math.prod(after[axis + 1 :])
        if (step * size) % (inner * n):
            continue
        if inner % step == 0:  # each index along the old axis is several along the new one
            return Layered(axis, kind.owners[np.arange(size) * step // inner % n])
        if step % inner == 0 and n % (step // inner) == 0:
            groups = kind.owners.reshape(-1, step // inner)
            if np.all(groups == groups[:, :1]):
                return Layered(axis, np.resize(groups[:, 0], size))
    return _of_one("reshape", kind)


def _of_one(name: str, kind: Layered) -> Layered:
    only = np.setdiff1d(kind.owners, [NOBODY])
    if len(only) > 1:
        raise Mixed(name)
    return owned_by(int(only[0]) if len(only) else NOBODY)


def _without(eqn: Any, kind: Layered, axes: Sequence[int]) -> Layered:
    """The kind of the result where some axes of an array are reduced or removed."""
    if kind.axis is None or kind.axis in axes:
        return _of_one(eqn.primitive.name, kind)
    return Layered(kind.axis - sum(a < kind.axis for a in axes), kind.owners)


def _reduced(eqn: Any, kinds: Sequence[Kind]) -> Kind:
    axes = eqn.params.get("axes", eqn.params.get("dimensions"))
    owned = [k for k in kinds if isinstance(k, Layered)]
    shape = eqn.invars[0].aval.shape
    joined = _joined(eqn.primitive.name, owned, shape)
    _check_same(eqn.primitive.name, joined, kinds[: len(eqn.outvars)])
    return _without(eqn, joined, axes)


def _along(eqn: Any, kinds: Sequence[Kind]) -> Kind:
    """The kind of the result of an operation along some axes of arrays of one shape."""
    name, params = eqn.primitive.name, eqn.params
    axes = next(params[key] for key in ("axis", "dimension", "dimensions") if key in params)
    owned = [k for k in kinds if isinstance(k, Layered)]
    kind = _joined(name, owned, eqn.outvars[0].aval.shape)
    _check_same(name, kind, kinds)
    is_along = kind.axis in (axes if isinstance(axes, tuple | list) else (axes,))
    return _of_one(name, kind) if is_along else kind


def _transpose(eqn: Any, kinds: Sequence[Kind]) -> Kind:
    kind = _owned(kinds)
    if kind.axis is None:
        return kind
    return Layered(list(eqn.params["permutation"]).index(kind.axis), kind.owners)


def _squeeze(eqn: Any, kinds: Sequence[Kind]) -> Kind:
    return _without(eqn, _owned(kinds), eqn.params["dimensions"])


def _slice(eqn: Any, kinds: Sequence[Kind]) -> Kind:
    kind, params = _owned(kinds), eqn.params
    if kind.axis is None:
        return kind
    step = (params["strides"] or [1] * len(params["start_indices"]))[kind.axis]
    start, stop = (params[f"{end}_indices"][kind.axis] for end in ("start", "limit"))
    taken = np.arange(start, stop, step)
    _check_alike(kind.owners, np.isin(np.arange(len(kind.owners)), taken))
    return Layered(kind.axis, kind.owners[taken])


def _check_alike(owners: Any, taken: Any) -> None:
    """Raise Mixed unless the same entries are taken of layers whose numbers follow each other."""
    layers = np.unique(owners[owners >= 0])
    for a, b in itertools.pairwise(layers.tolist()):
        if b == a + 1 and not np.array_equal(taken[owners == a], taken[owners == b]):
            raise Mixed("a slice of some of the layers")


def _dynamic_slice(eqn: Any, kinds: Sequence[Kind]) -> Kind:
    kind = kinds[0]
    if isinstance(kind, Free) or any(isinstance(k, Layered) for k in kinds[1:]):
        raise Mixed("dynamic_slice")
    takes_all = kind.axis is None or (
        eqn.outvars[0].aval.shape[kind.axis] == eqn.invars[0].aval.shape[kind.axis]
    )
    return kind if takes_all else _of_one("dynamic_slice", kind)


def _pad(eqn: Any, kinds: Sequence[Kind]) -> Kind:
    kind = kinds[0]
    if isinstance(kind, Free) or isinstance(kinds[1], Layered):
        raise Mixed("pad")
    if kind.axis is None:
        return kind
    low, high, within = eqn.params["padding_config"][kind.axis]
    if min(low, high) < 0 or within:
        return _of_one("pad", kind)
    return Layered(kind.axis, np.pad(kind.owners, (low, high), constant_values=NOBODY))


def _concatenate(eqn: Any, kinds: Sequence[Kind]) -> Kind:
    along, shape = eqn.params["dimension"], eqn.outvars[0].aval.shape
    owned = [k for k in kinds if isinstance(k, Layered)]
    if all(k.axis in (None, along) for k in owned):
        parts = []
        for kind, v in _with(eqn, kinds):
            if isinstance(kind, Free):
                parts.append(np.full(v.aval.shape[along], NOBODY))
            else:
                parts.append(np.broadcast_to(kind.owners, v.aval.shape[along]))
        return Layered(along, np.concatenate(parts))
    owned = [_of_one("concatenate", k) if k.axis == along else k for k in owned]
    kind = _joined("concatenate", owned, shape)
    _check_same("concatenate", kind, kinds)
    return kind


def _stack(eqn: Any, kinds: Sequence[Kind]) -> Kind:
    along = eqn.params["axis"]
    owned = [k for k in kinds if isinstance(k, Layered)]
    if all(k.axis is None for k in owned):
        owners = [k.owners[0] if isinstance(k, Layered) else NOBODY for k in kinds]
        return Layered(along, np.array(owners))
    kind = _joined("stack", owned, eqn.invars[0].aval.shape)
    _check_same("stack", kind, kinds)
    return Layered(kind.axis + (along <= kind.axis), kind.owners) if kind.axis is not None else kind


def _unstack(eqn: Any, kinds: Sequence[Kind]) -> Kind:
    return _without(eqn, _owned(kinds), [eqn.params["axis"]])


def _split(eqn: Any, kinds: Sequence[Kind]) -> Kind:
    kind = _owned(kinds)
    return _of_one("split", kind) if kind.axis == eqn.params["axis"] else kind


def _dot(eqn: Any, kinds: Sequence[Kind]) -> Kind:
    (contracted, batched) = eqn.params["dimension_numbers"]
    ranks = [len(v.aval.shape) for v in eqn.invars]
    count, owned = len(batched[0]), []
    others = [
        [a for a in range(rank) if a not in (*contracted[side], *batched[side])]
        for side, rank in enumerate(ranks)
    ]
    others_free: list[Free] = []
    for side, kind in enumerate(kinds):
        at = list(batched[side])
        place = {axis: i for i, axis in enumerate(at)}
        begin = count + (len(others[0]) if side else 0)
        place |= {axis: begin + i for i, axis in enumerate(others[side])}
        if isinstance(kind, Free):
            flat = {place[a] for a in kind.flat if a in place}
            elsewhere = set(range(len(eqn.outvars[0].aval.shape))) - set(place.values())
            others_free.append(Free(frozenset(flat | elsewhere)))
        elif kind.axis in place:
            owned.append(Layered(place[kind.axis], kind.owners))
        else:
            owned.append(_of_one("dot_general", kind))
    kind = _joined("dot_general", owned, eqn.outvars[0].aval.shape)
    _check_same("dot_general", kind, others_free)
    return kind


def _linear_algebra(eqn: Any, kinds: Sequence[Kind]) -> Kind:
    name, shape = eqn.primitive.name, eqn.invars[0].aval.shape
    batch = shape[: -1 if name == "tridiagonal_solve" else -2]  # that one is given the diagonals
    owned = [
        k if k.axis in range(len(batch)) else _of_one(name, k)
        for k in kinds
        if isinstance(k, Layered)
    ]
    kind = _joined(name, owned, batch)
    _check_same(name, kind, kinds)
    return kind


def _drawn_in_both(a: Free, b: Free) -> frozenset[int] | None:
    if a.drawn is None or b.drawn is None:
        return None if a.drawn is b.drawn else frozenset()
    return a.drawn & b.drawn


def _is_one(kind: Layered, other: Layered) -> bool:
    """Whether all entries of both have one owner, and the same."""
    alone = kind.axis is None and other.axis is None
    return alone and len({*kind.owners.tolist(), *other.owners.tolist()}) == 1


def _moved(kind: Free, by: int) -> Free:
    """The kind with its axes moved by one, where the first axis is added or taken away."""

    def moved(axes: frozenset[int]) -> frozenset[int]:
        return frozenset(a + by for a in axes if a + by >= 0)

    return Free(moved(kind.flat), None if kind.drawn is None else moved(kind.drawn))


_ELEMENTWISE = frozenset(
    (
        *("abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2"),
        *("atanh", "cbrt", "ceil", "clamp", "complex", "conj", "convert_element_type", "copy"),
        *("copy_p", "cos", "cosh", "digamma", "div", "eq", "erf", "erf_inv"),
        *("erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "imag", "integer_pow"),
        *("is_finite", "le", "lgamma", "log", "log1p", "logistic", "lt", "max", "min", "mul"),
        *("ne", "neg", "nextafter", "not", "or", "population_count", "pow", "real", "rem"),
        *("reduce_precision", "root", "round", "rsqrt", "select_n", "shift_left"),
        *("shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "sqrt"),
        *("square", "stop_gradient", "sub", "tan", "tanh", "xor", "pvary", "pbroadcast"),
        "sharding_constraint",
        "reshard",
    )
)
_OTHERS: dict[str, Callable[[Any, Sequence[Kind]], Kind]] = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "squeeze": _squeeze,
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "pad": _pad,
    "concatenate": _concatenate,
    "stack": _stack,
    "unstack": _unstack,
    "split": _split,
    "dot_general": _dot,
    **{f"reduce_{name}": _reduced for name in ("sum", "max", "min", "prod", "and", "or", "xor")},
    **dict.fromkeys(("argmax", "argmin", "reduce"), _reduced),
    **dict.fromkeys(
        ("sort", "rev", "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), _along
    ),
    **dict.fromkeys(
        (
            *("cholesky", "eigh", "householder_product", "lu", "qr", "geqrf", "svd"),
            *("triangular_solve", "tridiagonal_solve"),
        ),
        _linear_algebra,
    ),
}
