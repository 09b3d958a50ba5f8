"""Examples that can be pasted: each shows the imports of the names that its module has already.

A docstring's example runs in its own module, where `jnp` and the function itself are known. Where
it is read, they are not.
"""

import builtins
import doctest
import inspect
import re
import symtable
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from sphinx.application import Sphinx

import gradtx

PROMPT = re.compile(r"^( *)>>> ")


def code(text: str) -> str:
    """What a reader would paste: the examples of a docstring without prompts and results."""
    return "".join(example.source for example in doctest.DocTestParser().get_examples(text))


def unbound(source: str) -> set[str]:
    """The names that code reads, and neither binds nor finds among the built-in ones."""

    def read(scope: symtable.SymbolTable) -> Iterator[str]:
        for symbol in scope.get_symbols():
            if symbol.is_referenced() and (scope is top or symbol.is_global()):
                yield symbol.get_name()
        for inner in scope.get_children():
            yield from read(inner)

    top = symtable.symtable(source, "example", "exec")
    bound = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    bound |= {scope.get_name() for scope in top.get_children()}
    return set(read(top)) - bound - set(vars(builtins))


def home(name: str, value: Any) -> str:
    """The module from which a reader imports a name: gradtx itself, where it is public there."""
    modules = [getattr(gradtx, m) for m in gradtx.__all__ if inspect.ismodule(getattr(gradtx, m))]
    for module in (gradtx, *modules):
        # Names of older versions warn when they are read, and are not listed.
        public = getattr(module, "__all__", vars(module))
        if name in public and getattr(module, name) is value:
            return module.__name__
    return str(value.__module__)


def statements(names: Iterable[str], scope: dict[str, Any]) -> list[str]:
    """The lines that import names as a module has them; a name that it lacks is a KeyError."""
    modules, members = [], {}
    for name in sorted(names):
        value = scope[name]
        if not isinstance(value, ModuleType):
            members.setdefault(home(name, value), []).append(name)
        elif value.__name__ == name:
            modules.append(f"import {name}")
        elif value.__name__.endswith(f".{name}"):
            members.setdefault(value.__name__.rpartition(".")[0], []).append(name)
        else:
            modules.append(f"import {value.__name__} as {name}")
    return modules + [f"from {m} import {', '.join(members[m])}" for m in sorted(members)]


def module_of(public: Any) -> str:
    """Where a function, class, method or property is written."""
    inner = public.fget if isinstance(public, property) else public
    return str(getattr(inner, "__module__", None) or getattr(inner, "__name__", ""))


def pasteable(lines: list[str], module: str) -> list[str]:
    """The lines of a docstring whose first example opens with the imports that it needs."""
    starts = [i for i, line in enumerate(lines) if PROMPT.match(line)]
    needed = unbound(code("\n".join(lines))) if starts else set()
    if not needed:
        return lines
    margin = lines[starts[0]].partition(">")[0]
    added = [f"{margin}>>> {line}" for line in statements(needed, vars(sys.modules[module]))]
    return [*lines[: starts[0]], *added, *lines[starts[0] :]]


def add_imports(
    app: Any, what: Any, name: Any, public: Any, options: Any, lines: list[str]
) -> None:
    del app, what, name, options
    if (module := module_of(public)).startswith("gradtx"):
        lines[:] = pasteable(lines, module)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", add_imports, priority=450)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
