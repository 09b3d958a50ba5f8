"""What a compiled program says of itself: the sizes of its types, its collectives."""

import collections
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

ARRAY = re.compile(r"\b(pred|[a-z]+(\d+)\w*)\[([\d,]*)\]")
KINDS = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute")
COLLECTIVE = re.compile(
    rf"^\s+(?:ROOT )?%\S+ = (?P<type>\(.*?\)|\S+) (?P<kind>{'|'.join(KINDS)})(?P<start>-start)?\("
    r"(?P<args>.*?)\)(?P<rest>.*)$"
)
PRODUCT = re.compile(r" (?:convolution|dot)\(|__cublas")
COMPUTATION = re.compile(r"^(?:ENTRY )?%(?P<name>\S+) \(")


def type_bytes(text: str) -> int:
    """Bytes of an HLO type, `f32[16,8]{1,0}` or a tuple of such."""
    total = 0
    for name, bits, dims in ARRAY.findall(text):
        width = 8 if name == "pred" else int(bits)
        total += math.ceil(width * math.prod(int(dim) for dim in dims.split(",") if dim) / 8)
    return total


# In a TPU's program space 1 is the memory on its chip.
ON_CHIP = re.compile(r"\b\w+\[[\d,]*\]\{[^{}]*S\(1\)[^{}]*\}")


def outside_bytes(text: str) -> int:
    """Bytes of what an HLO type has in a chip's main memory."""
    return type_bytes(ON_CHIP.sub("", text))


def most_entries(text: str) -> int:
    """The number of entries of the largest array in an HLO type."""
    shapes = [dims.split(",") if dims else [] for _, _, dims in ARRAY.findall(text)]
    return max((math.prod(map(int, shape)) for shape in shapes), default=0)


class Collective(NamedTuple):
    """kind, and the bytes of the arrays that are reduced or gathered, whole."""

    kind: str
    bytes: int


def group_size(attributes: str) -> int:
    """How many devices reduce together."""
    listed = re.search(r"replica_groups=(?:\{\{([\d,]*)\}|\[\d+,(\d+)\])", attributes)
    if listed:
        return int(listed[2] or len(listed[1].split(",")))
    mesh = re.search(r"replica_groups=mesh\[(.*?)\][^{]*\{(.*?)\}", attributes)
    if mesh is None:
        return 1
    sizes = dict(axis.split("=") for axis in mesh[1].split(","))
    return math.prod(int(sizes[axis]) for axis in mesh[2].split(","))


def collectives(text: str) -> list[Collective]:
    """The collectives of a compiled program, each once."""
    found: dict[object, Collective] = {}
    computation, pipelined = "", "async_collective" in text
    for i, line in enumerate(text.splitlines()):
        if header := COMPUTATION.match(line):
            computation = header["name"]
        instruction = COLLECTIVE.match(line)
        if instruction is None:
            continue
        kind, written = instruction["kind"], instruction["type"]
        if instruction["start"] and kind != "all-reduce":  # what goes in and what comes out
            inner = written[1:-1]
            written = inner.split("), ", 1)[1] if inner.startswith("(") else inner.split(", ")[1]
        size = type_bytes(written)
        if kind == "reduce-scatter":
            size *= group_size(instruction["rest"])
        channel = re.search(r"channel_id=(\d+)", instruction["rest"])
        key: object = i
        if computation.startswith("all-reduce-scatter"):  # how a TPU's compiler writes it
            kind = "reduce-scatter"
        elif pipelined and channel:
            # It writes a pipelined collective in parts that name one channel; on CPU different
            # collectives may have the same number.
            key = kind, channel[1]
        found[key] = Collective(kind, size)
    return list(found.values())


def by_kind(found: Iterable[Collective]) -> dict[str, tuple[int, int]]:
    """For each kind that occurs how many there are, and their bytes."""
    totals: dict[str, tuple[int, int]] = collections.defaultdict(lambda: (0, 0))
    for kind, size in found:
        totals[kind] = totals[kind][0] + 1, totals[kind][1] + size
    return dict(totals)


def _computations(text: str) -> dict[str, str]:
    """The bodies of a program's computations, by name."""
    pattern = r"^(?:ENTRY )?%?([\w.\-]+) \([^\n]*\{\n(.*?)^\}"
    return dict(re.findall(pattern, text, re.MULTILINE | re.DOTALL))


def overlapped(text: str) -> list[int]:
    """For each collective that a chip starts and then awaits: the products of matrices between."""
    computations = _computations(text)
    entry = re.search(r"^ENTRY %([\w.\-]+)", text, re.MULTILINE)

    def end(line: str) -> End | None:
        name = rf"\s+(?:ROOT )?%((?:async-collective|{'|'.join(KINDS)})-)(start|done)([\w.\-]*) = "
        found = re.match(name, line)
        return End(found[2] == "start", found[1] + found[3]) if found else None

    return _products_between(computations[entry[1]], computations, end) if entry else []


def meanwhile(text: str, kind: str) -> list[int]:
    """For each copy that a TPU starts in a loop, of a `kind` such as `dynamic-slice`.

    The products of matrices that the program does until it awaits the copy.
    """
    computations = _computations(text)

    def end(line: str) -> End | None:
        instruction = rf"\s+(?:ROOT )?%([\w.\-]+) = .* {kind}-(start|done)\(%?(.*?)\)"
        found = re.match(instruction, line)
        starts = found is not None and found[2] == "start"
        return End(starts, found[1] if starts else found[3]) if found else None

    bodies = set(re.findall(r"body=%?([\w.\-]+)", text))
    each = (_products_between(computations.get(body, ""), computations, end) for body in bodies)
    return sorted(itertools.chain.from_iterable(each))


class End(NamedTuple):
    """An instruction that starts a transfer, or awaits the transfer of that name."""

    starts: bool
    transfer: str


def _products_between(
    body: str, computations: Mapping[str, str], end: Callable[[str], End | None]
) -> list[int]:
    """The products of matrices between the two ends of each transfer in a computation."""
    found: list[int] = []
    under_way: dict[str, int] = {}
    for line in body.splitlines():
        this = end(line)
        if this is not None and this.starts:
            under_way[this.transfer] = 0
        elif this is not None:
            found.append(under_way.pop(this.transfer))
        else:
            called = re.search(r"calls=%([\w.\-]+)", line)
            inside = computations.get(called[1], "") if called else ""
            if PRODUCT.search(line) or PRODUCT.search(inside):
                under_way = {transfer: n + 1 for transfer, n in under_way.items()}
    return found


def in_loops(text: str) -> str:
    """The bodies of the loops of a program, and what they call."""
    computations = _computations(text)
    found: set[str] = set()
    todo = re.findall(r"body=%?([\w.\-]+)", text)
    while todo:
        name = todo.pop()
        if name in computations and name not in found:
            found.add(name)
            todo += re.findall(r"%([\w.\-]+)", computations[name])
    return "\n".join(computations[name] for name in found)
