"""Which names of Optax a code base uses, and how they differ here. Code is read, never run."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import gradtx
from gradtx.absences import DIFFERENT, LEFT_OUT


@dataclass(frozen=True, order=True)
class Use:
    """One use of a name of Optax: where it is, and the name without ``optax.``."""

    line: int
    name: str


def uses(source: str) -> list[Use]:
    """The names of Optax that a file uses, by import or by attribute.

    Args:
        source: the text of a Python file.

    Raises:
        SyntaxError: it is not valid Python.

    >>> uses("import optax as ox; from optax.contrib import muon; tx = ox.adam(1e-3)")
    [Use(line=1, name='adam'), Use(line=1, name='contrib.muon')]
    """
    tree = ast.parse(source)
    found: set[Use] = set()
    places: dict[str, str] = {}  # what each local name stands for, "" for Optax itself
    for node in ast.walk(tree):
        for local, name, imported in _imports(node):
            places[local] = name
            if imported:
                found.add(Use(node.lineno, name))  # type: ignore[attr-defined]
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            root, names = _chain(node)
            if root in places:
                found.add(Use(node.lineno, ".".join(filter(None, [places[root], *names]))))
    return sorted(found)


def _imports(node: ast.AST) -> Iterator[tuple[str, str, bool]]:
    """The local name of each import from Optax, what it refers to, and whether that is a use."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.split(".")[0] == "optax":
                name = alias.name.removeprefix("optax").removeprefix(".")
                yield alias.asname or "optax", name if alias.asname else "", bool(name)
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        module = node.module or ""
        if module.split(".")[0] == "optax":
            place = module.removeprefix("optax").removeprefix(".")
            for alias in node.names:
                yield alias.asname or alias.name, f"{place}.{alias.name}".removeprefix("."), True


def _chain(node: ast.expr) -> tuple[str | None, list[str]]:
    """The name at the start of ``a.b.c``, if there is one, and the attributes after it."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return (node.id if isinstance(node, ast.Name) else None), names


def verdict(name: str) -> tuple[str, str] | None:
    """``("missing" or "differs", what to know)`` about a name of Optax; None if it is the same.

    Args:
        name: the name without ``optax.``.

    >>> verdict("contrib.muon"), verdict("momo")
    (None, ('differs', 'divides the whole step by one plus the decay, as the paper does'))
    """
    parts = name.split(".")
    for i in range(len(parts)):
        if (reason := LEFT_OUT.get(".".join(parts[: i + 1]))) is not None:
            return "missing", reason
    if any(part[0] == "_" and not part.endswith("__") for part in parts):
        public = next((part for part in parts if part in gradtx.__all__), None)
        return "missing", f"private in Optax{f'; use gradtx.{public}' if public else ''}"
    home: Any = gradtx
    for part in parts:
        if part == "*" or not isinstance(home, ModuleType):
            break  # an attribute of a class or of a function
        try:
            home = getattr(home, part)
        except AttributeError as error:
            return "missing", str(error)
        if part in DIFFERENT:
            return "differs", DIFFERENT[part]
    return None


def python_files(paths: list[Path]) -> list[Path]:
    """The Python files among `paths` and below them."""
    below = ([path] if path.is_file() else sorted(path.rglob("*.py")) for path in paths)
    return [file for files in below for file in files]
