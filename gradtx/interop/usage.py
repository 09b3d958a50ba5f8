"""Which names of Optax a code base uses, and how they differ here. Code is read, never run."""

import ast
import inspect
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import gradtx
from gradtx.names.absences import DIFFERENT, DROPPED, LEFT_OUT, NEWER, PASSED_ON
from gradtx.names.namespace import MOVED, homes, is_module

# No code that someone wrote has more bytes, and its tree takes many times these. Notebooks have
# pictures in them.
_LARGEST = {".py": 10_000_000, ".ipynb": 200_000_000}


@dataclass(frozen=True, order=True)
class Use:
    """One use of a name of Optax: where it is, and the name without ``optax.``.

    line: in its file, or in its cell of a notebook; cell: its number from 1, or 0 in a file; call:
    the call of it, if it is called there; outer: the call of the result, if it is called at once;
    compared: whether it is compared with something.
    """

    line: int
    name: str
    cell: int = field(default=0, repr=False)
    call: ast.Call | None = field(default=None, compare=False, repr=False)
    outer: ast.Call | None = field(default=None, compare=False, repr=False)
    compared: bool = field(default=False, compare=False, repr=False)


@dataclass(frozen=True)
class Reading:
    """The uses of Optax that were found in a file.

    uses: of names of Optax; assigned: the names that the file itself gives to Optax's modules;
    faults: the parts that could not be read, and why; notes: the same where nothing of Optax is in
    them.
    """

    uses: list[Use]
    assigned: set[str]
    faults: list[str]
    notes: list[str] = field(default_factory=list)


def uses(source: str | bytes) -> list[Use]:
    """The names of Optax that a file uses: by import, by attribute, or by ``getattr``.

    Args:
        source: a Python file, as text or as bytes in the encoding that they declare.

    Raises:
        SyntaxError: it is not valid Python.
        ValueError, MemoryError, RecursionError: it cannot be read by this Python.

    >>> uses("import optax as ox; from optax.contrib import muon; tx = ox.adam(1e-3)")
    [Use(line=1, name='adam'), Use(line=1, name='contrib.muon')]
    """
    return _reading([(0, _parsed(source))]).uses


def read(path: Path) -> Reading:
    """The names of Optax that a Python file or a notebook uses, and faults in the file.

    Text that is no Python is a fault if a name of Optax may stand in it, and so is an import of all
    names of Optax, by which the uses are not seen.
    """
    try:
        if not path.is_file():
            return Reading([], set(), ["it is not a regular file"])
        most = _LARGEST.get(path.suffix, _LARGEST[".py"])
        if path.stat().st_size > most:
            return Reading([], set(), [f"it has more than {most:,} bytes"])
        source = path.read_bytes()
        cells = _cells(json.loads(source)) if path.suffix == ".ipynb" else [(0, source)]
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        return Reading([], set(), [_words(error)])
    trees: list[tuple[int, ast.Module]] = []
    unread: list[tuple[str, str]] = []
    for number, text in cells:
        try:
            trees.append((number, _parsed(text) if isinstance(text, bytes) else _parsed_cell(text)))
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            words = f"cell {number}: {_words(error)}" if number else _words(error)
            unread.append((text.decode("latin-1") if isinstance(text, bytes) else text, words))
    reading = _reading(trees)
    nodes = (node for _, tree in trees for node in ast.walk(tree)) if unread else ()
    names = {"optax", *(local for node in nodes for local, _, _ in _imports(node))}
    faults = [
        f"{f'cell {use.cell}, ' if use.cell else ''}line {use.line}: `import *` does not say which "
        "names are Optax's; import optax, or the names"
        for use in reading.uses
        if use.name.rpartition(".")[2] == "*"
    ]
    notes: list[str] = []
    for text, words in unread:
        (faults if any(name in text for name in names) else notes).append(words)
    return Reading(reading.uses, reading.assigned, faults, notes)


def _words(error: BaseException) -> str:
    if isinstance(error, OSError):
        return str(error.strerror)
    if isinstance(error, SyntaxError):  # code for a newer Python is none for an older one
        return f"{error}; it was read by Python {'.'.join(map(str, sys.version_info[:2]))}"
    return str(error) or f"it is nested too deeply ({type(error).__name__})"


def _parsed(source: str | bytes) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the escapes in someone else's strings
        return ast.parse(source)


# Magics whose cell is Python all the same, and lines that are for IPython alone.
_TIMING = ("%%time", "%%timeit", "%%capture", "%%prun")
_MAGIC = re.compile(r"(\s*)(?:[\w.,\s]+=\s*)?(?:[%!].*|\?\S.*|[\w.]+\?\??\s*$)")


def _cells(notebook: Any) -> list[tuple[int, str | bytes]]:
    """The Python cells of a notebook, numbered from 1."""
    python_cells: list[tuple[int, str | bytes]] = []
    sheets = [notebook, *notebook.get("worksheets", [])]  # of the third format
    cells = [cell for sheet in sheets for cell in sheet.get("cells", [])]
    for number, cell in enumerate(cells, 1):
        text = cell.get("source", cell.get("input", ""))
        text = "".join(text) if isinstance(text, list) else text
        if cell.get("cell_type") != "code" or not isinstance(text, str):
            continue
        first = next(iter(text.split()), "")
        if not first.startswith("%%") or first in _TIMING:
            python_cells.append((number, text))
    return python_cells


def _parsed_cell(text: str) -> ast.Module:
    """The parsed code of a cell; IPython's own commands become ``pass``.

    One after the other, where Python does not go on: ``% 2`` can stand in a line of its own.
    """
    lines = text.split("\n")
    while True:
        try:
            return _parsed("\n".join(lines))
        except SyntaxError as error:
            at = (error.lineno or 1) - 1
            command = _MAGIC.match(lines[at]) if at < len(lines) else None
            if command is None:
                raise
            last = at
            while lines[last].endswith("\\") and last + 1 < len(lines):
                last += 1
            lines[at : last + 1] = [f"{command[1]}pass", *[""] * (last - at)]


def _reading(trees: list[tuple[int, ast.Module]]) -> Reading:
    """The uses in several pieces of code that share their names."""
    places: dict[str, str] = {}  # what each local name stands for, "" for Optax itself
    all_uses: list[Use] = []
    assigned: set[str] = set()
    for cell, tree in trees:
        for node in ast.walk(tree):
            for local, place, name in _imports(node):
                places[local] = place
                if name:
                    all_uses.append(Use(node.lineno, name, cell))  # type: ignore[attr-defined]
    for cell, tree in trees:
        for node, name, is_assigned, more in _mentions(tree, places):
            if is_assigned:
                assigned.add(name)
            else:
                all_uses.append(Use(node.lineno, name, cell, **more))
    # One use is kept of those in one line that are neither called nor compared.
    called = {(use.cell, use.line, use.name) for use in all_uses if use.call is not None}
    compared_last = sorted((use for use in all_uses if use.call is None), key=lambda u: u.compared)
    plain = {(use.cell, use.line, use.name): use for use in compared_last}
    distinct_uses = [use for use in all_uses if use.call is not None]
    distinct_uses += [use for at, use in plain.items() if at not in called or use.compared]
    return Reading(sorted(distinct_uses, key=lambda u: (u.cell, u.line, u.name)), assigned, [])


def _mentions(
    tree: ast.Module, places: dict[str, str]
) -> Iterator[tuple[ast.expr, str, bool, dict[str, Any]]]:
    """Each use besides imports: node, name, whether a value is assigned, fields of its `Use`."""
    nodes = list(ast.walk(tree))
    calls = {id(node.func): node for node in nodes if isinstance(node, ast.Call)}
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    comparisons = [node for node in nodes if isinstance(node, ast.Compare)]
    compared = {id(part) for node in comparisons for part in (node.left, *node.comparators)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            if name := _meant(node, places):
                call = calls.get(id(node))
                more = {
                    "call": call,
                    "outer": calls.get(id(call)),
                    "compared": id(node) in compared,
                }
                yield node, name, isinstance(node.ctx, ast.Store), more
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and (name := _meant(node.func, places)):
                yield node, name, False, {"call": node, "outer": calls.get(id(node))}
            elif (name := _by_text(node, places)) is not None:
                called = node.func.attr if isinstance(node.func, ast.Attribute) else _id(node.func)
                if called == "setattr" or (called == "getattr" and len(node.args) == 2):
                    yield node, name, called == "setattr", {}


def _by_text(node: ast.Call, places: dict[str, str]) -> str | None:
    """The name in a call such as ``getattr(optax, "adam")``."""
    match node.args:
        case [module, ast.Constant(str(last)), *_]:
            home = _meant(module, places)
            return None if home is None else f"{home}.{last}".removeprefix(".")
    return None


def _imports(node: ast.AST) -> Iterator[tuple[str, str, str]]:
    """The local name of each import from Optax, what it stands for, and the name that it uses."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.split(".")[0] == "optax":
                name = alias.name.removeprefix("optax").removeprefix(".")
                yield alias.asname or "optax", name if alias.asname else "", name
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        module = node.module or ""
        if module.split(".")[0] == "optax":
            place = module.removeprefix("optax").removeprefix(".")
            for alias in node.names:
                name = f"{place}.{alias.name}".removeprefix(".")
                yield alias.asname or alias.name, name, name


def _meant(node: ast.expr, places: dict[str, str]) -> str | None:
    """The name of Optax that ``a.b.c`` stands for, "" for Optax itself, None for another."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    root = _id(node)
    if root not in places:
        return None
    return ".".join(filter(None, [places[root], *reversed(names)]))


def _id(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def verdict(name: str) -> tuple[str, str] | None:
    """``("missing" or "differs", what to know)`` about a name of Optax; None if it is the same.

    Args:
        name: the name without ``optax.``.

    >>> verdict("contrib.muon"), verdict("momo")
    (None, ('differs', 'divides the whole step by one plus the decay, as the paper does'))
    """
    parts = name.split(".")
    # A name in a private module is known by itself, without the module.
    bare = parts[-1] if any(_is_private(part) for part in parts[:-1]) else name
    for left_out in (*(".".join(parts[: i + 1]) for i in range(len(parts))), bare):
        if (reason := LEFT_OUT.get(left_out)) is not None:
            return "missing", reason
    if (dropped := DROPPED.get(bare)) is not None:
        kind = "differs" if f"gradtx.{bare}" in MOVED else "missing"
        return kind, f"Optax has dropped it, in {dropped[0]}; {dropped[1]}"
    if parts[-1] in NEWER and not hasattr(gradtx, parts[-1]):
        return "missing", f"Optax has it since its development version 0.2.9; {NEWER[parts[-1]]}"
    if parts[0] in PASSED_ON:
        return "differs", f"is Optax's own, which has to be installed; {PASSED_ON[parts[0]]}"
    home: Any = gradtx
    for part in parts:
        if part == "*" or not isinstance(home, ModuleType):
            break  # an attribute of a class or of a function
        try:
            home = getattr(home, part)
        except AttributeError as error:
            return "missing", _private(parts) or str(error)
        if part in DIFFERENT:
            return "differs", DIFFERENT[part]
    return None


def _is_private(part: str) -> bool:
    return part.startswith("_") and not part.endswith("__")


def _private(parts: list[str]) -> str | None:
    """A note about a private name of Optax; None if it is not private."""
    if not any(_is_private(part) for part in parts):
        return None
    public = parts[-1].lstrip("_")
    if public in homes("gradtx") and not isinstance(getattr(gradtx, public), ModuleType):
        return f"private in Optax; use gradtx.{public}"
    module = ".".join(("gradtx", *parts[:-1]))
    return (
        f"private in Optax; {module} has public names" if is_module(module) else "private in Optax"
    )


def verdicts(uses: Iterable[Use], assigned: set[str]) -> Iterator[tuple[Use, str, str]]:
    """Each use that is missing here, is refused here or differs: with which, and what to know.

    Args:
        uses: the uses in a file.
        assigned: the names that the code base itself gives to Optax's modules.
    """
    imported = {use.name for use in uses if use.call is None}
    for use in uses:
        name = use.name
        if any(name == mine or name.startswith(f"{mine}.") for mine in assigned):
            continue
        result = verdict(name)
        if result is None or result[0] == "differs":
            refusal = None if use.call is None else _refusal(name, use.call)
            if refusal is not None:
                yield use, "refused", refusal
        if result is not None and _concerns(use, result[0], imported):
            yield use, *result


def _concerns(use: Use, kind: str, imported: set[str]) -> bool:
    """Whether a verdict on a name concerns this use, and is not reported for the import."""
    only = _ONLY.get(use.name.rpartition(".")[2]) if kind == "differs" else None
    if only is not None:
        return only(use)
    bare = use.call is not None and isinstance(use.call.func, ast.Name)
    return not (bare and use.name in imported)


def _refusal(name: str, call: ast.Call) -> str | None:
    """Why the arguments of a call do not fit gradtx's signature; None if they do."""
    home: Any = gradtx
    for part in name.split("."):
        if not isinstance(home, ModuleType):
            return None
        home = getattr(home, part)
    try:
        signature = inspect.signature(home)
    except (TypeError, ValueError):
        return None
    positional = [a for a in call.args if not isinstance(a, ast.Starred)]
    named = {k.arg: None for k in call.keywords if k.arg is not None}
    complete = len(positional) == len(call.args) and len(named) == len(call.keywords)
    try:
        (signature.bind if complete else signature.bind_partial)(*positional, **named)
    except TypeError as error:
        return f"{error}; its arguments are {', '.join(signature.parameters)}"
    return None


def _argument(use: Use, place: int, name: str) -> ast.expr | None:
    """The argument of a call at a position or with a name; None if the argument is not given."""
    assert use.call is not None
    if place < len(use.call.args):
        return use.call.args[place]
    return next((k.value for k in use.call.keywords if k.arg in (name, None)), None)


def _is_none(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _passes(place: int, name: str) -> Callable[[Use], bool]:
    """The test whether a call may give this argument a value other than None."""
    return lambda use: (
        use.call is not None
        and (argument := _argument(use, place, name)) is not None
        and not _is_none(argument)
    )


def _without_rate(use: Use) -> bool:
    rate = None if use.call is None else _argument(use, 0, "learning_rate")
    return use.call is not None and (rate is None or _is_none(rate))


def _without_key(place: int) -> Callable[[Use], bool]:
    """Whether a call gives neither a key nor a seed."""
    return lambda use: (
        use.call is not None
        and _argument(use, place, "key") is None
        and _argument(use, place, "seed") is None
    )


def _with_schedule(use: Use) -> bool:
    """Whether a call may give a schedule: its rate is no number that stands there."""
    return use.call is not None and not isinstance(_argument(use, 1, "learning_rate"), ast.Constant)


def _injects_functions(use: Use) -> bool:
    """Whether a function that is no hyperparameter may be among the injected arguments."""
    if use.call is None or use.outer is None:
        return use.call is not None
    names = [k.arg or "mask" for k in use.outer.keywords]
    values = [*use.outer.args, *(k.value for k in use.outer.keywords)]
    named = any("mask" in name or name.endswith("_fn") for name in names)
    return named or any(isinstance(v, ast.Lambda | ast.Starred) for v in values)


# Names that differ only in some uses, and in which.
_ONLY: dict[str, Callable[[Use], bool]] = {
    "MaskedNode": lambda use: use.call is not None or use.compared,
    "adadelta": _without_rate,
    "differentially_private_aggregate": _without_key(2),
    "dpsgd": _without_key(3),
    "inject_hyperparams": _injects_functions,
    "microbatch": _passes(3, "accumulator"),
    "momo": _passes(3, "weight_decay"),
    "momo_adam": _passes(5, "weight_decay"),
    "polyak_sgd": _passes(1, "scaling"),
    "scale_by_learning_rate": _without_rate,
    "schedule_free": _with_schedule,
}


def python_files(paths: list[Path]) -> list[Path]:
    """The Python files and notebooks among `paths` and below them, without links that lead out.

    A path that is no folder is among them whatever it is.
    """
    files: list[Path] = []
    for path in paths:
        files += sorted(_below(path)) if path.is_dir() else [path]
    return files


def _below(folder: Path) -> Iterator[Path]:
    home = folder.resolve()
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            if path.suffix not in (".py", ".ipynb"):
                continue
            if path.is_file() and path.resolve().is_relative_to(home):
                yield path
