"""What the installed Optax has that gradtx does not have in the same place: names and arguments.

    python -m benchmarks.optax_signatures

With another Optax in front of `PYTHONPATH`, such as a checkout, it is that one: what is printed is
what a new release asks for. For the installed one a test asserts that it is what is known.
"""

import functools
import inspect
import warnings
from collections.abc import Iterator
from typing import Any

import optax

import gradtx
from gradtx.names.absences import LEFT_OUT

# What the modules of Optax import from elsewhere.
_FOREIGN = ("Any", "NamedTuple", "Protocol", "Sequence")


def public_names(module: Any = optax, path: str = "") -> Iterator[str]:
    """Dotted names of all that is public in a module of Optax and in those below it."""
    for name in {**vars(module), **getattr(module, "_deprecations", {})}:
        value = vars(module).get(name)
        if name.startswith("_") or name in _FOREIGN:
            continue
        if not inspect.ismodule(value):
            yield path + name
        elif value.__name__.startswith("optax."):
            yield from public_names(value, f"{path}{name}.")


def left_out(path: str) -> bool:
    """Whether gradtx leaves out a name, or a module around it, and says so."""
    parts = path.split(".")
    return any(".".join(parts[: i + 1]) in LEFT_OUT for i in range(len(parts)))


def found_in(library: Any, path: str) -> Any:
    """What a dotted name stands for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return functools.reduce(getattr, path.split("."), library)


def differences() -> Iterator[str]:
    """A sentence for each name, argument, place or default that is not as in Optax."""
    seen = set()
    for path in public_names():
        if left_out(path):
            continue
        name = path.rpartition(".")[2]
        try:
            ours = found_in(gradtx, path)
        except AttributeError:
            yield f"{path}: is missing"
            continue
        theirs = found_in(optax, path)
        for text in _compared(ours, theirs):
            if (name, text) not in seen:  # once for a name that several modules have
                seen.add((name, text))
                yield f"{name}: {text}"


def _compared(ours: Any, theirs: Any) -> Iterator[str]:
    if not callable(theirs) or getattr(theirs, "_is_protocol", False):
        return
    try:
        there = list(inspect.signature(theirs).parameters.values())
    except (TypeError, ValueError):  # an annotation, such as a union
        return
    here = list(inspect.signature(ours).parameters.values())
    placed = [p.name for p in here if p.kind is not p.KEYWORD_ONLY]
    known = {p.name: p for p in here}
    for place, p in enumerate(there):
        if p.name not in known:
            yield f"{p.name}, argument {place + 1}, is missing"
        elif p.kind is not p.KEYWORD_ONLY and placed[place : place + 1] != [p.name]:
            yield f"{p.name} is argument {place + 1} in Optax"
        elif p.kind is not p.KEYWORD_ONLY and known[p.name].kind is not p.kind:
            yield f"{p.name} is {p.kind.description} in Optax"
        elif not _same(known[p.name].default, p.default):
            yield f"{p.name} has another default in Optax"
    theirs_by_name = {p.name for p in there}
    for p in here:
        variadic = p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        if p.name not in theirs_by_name and p.default is p.empty and not variadic:
            yield f"{p.name} must be given here"


def _same(ours: Any, theirs: Any) -> bool:
    # float32 is written as a type by one and as a dtype by the other.
    return bool(ours is theirs or ours == theirs or str(ours) == str(theirs))


def main() -> None:
    print(f"Optax {optax.__version__}")
    for line in differences():
        print(line)


if __name__ == "__main__":
    main()
