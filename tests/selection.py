"""The slow cases of sweeps over the catalogue that `pytest --sweeps=changed` takes, as `.ci/run`.

A sweep is a test with a case for each of many transformations of the catalogue. Of its slow cases
are taken

- those of each transformation that has changed since the last whole run: its entry in the
  catalogue, or a module of gradtx that one of its builders imports, directly or not;
- those of FIXED, which are of each scope, each composition and the main wrappers;
- a twentieth of the others, in turn by the number of the commit.

All are taken of a file of tests that has changed, and all of every file if what the tests share has
changed or git cannot tell. `tests/whole_run.json` names the commit of the last whole run.

    python -m tests.selection            says how many transformations that are now
"""

import ast
import functools
import json
import pathlib
import subprocess
from collections import defaultdict

from tests.catalogue import CATALOGUE

ROOT = pathlib.Path(__file__).parents[1]
RECORD = ROOT / "tests" / "whole_run.json"
SWEEP = 30  # a test with cases for so many transformations is a sweep
TURNS = 20  # every case is taken once in so many commits

# Of each scope; chains, groups and masks; what acts on any transformation; averages, examples.
FIXED = {
    *("adam", "adamw", "sgd", "lion", "rowwise_adam", "adafactor", "lamb", "muon", "soap"),
    *("lora_plus", "kron", "prodigy", "lbfgs", "dion", "clip_by_global_norm", "chain", "masked"),
    *("partition", "accumulate", "store", "guard", "sam", "lookahead", "exact_rows", "offload"),
    *("ema_params", "stochastic_rounding", "schedule_free_adamw", "differentially_private"),
    "aggregate",
}
# What all tests share.
SHARED = {f"tests/{name}.py" for name in ("conftest", "oracle", "processes", "quick", "selection")}


def git(*arguments):
    """What git prints, or None if it does not know."""
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def last_whole_run():
    """The commit of which everything was tested, if it is known."""
    return json.loads(RECORD.read_text())["commit"] if RECORD.exists() else None


def modules():
    """The file of each module of gradtx, by the module's name."""
    files = {}
    for path in sorted((ROOT / "gradtx").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def imports(path):
    """What a file imports from gradtx: pairs of a module and a name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "gradtx":
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (a.name.rpartition(".")[::2] for a in node.names if "gradtx." in a.name)


@functools.cache
def graph():
    """The modules of gradtx that each module imports; what a package passes on is at its home."""
    files, passed_on = modules(), {}
    for module, path in files.items():
        if path.name == "__init__.py":
            stub = path.with_suffix(".pyi")
            homes = {name: home for home, name in imports(stub if stub.exists() else path)}
            passed_on[module] = homes

    def home(module, name):
        inner = f"{module}.{name}"
        return inner if inner in files else passed_on.get(module, {}).get(name, module)

    return {
        module: {home(*pair) for pair in imports(path) if path.name != "__init__.py"}
        for module, path in files.items()
    }


def closure(module):
    """The module and those that it imports, directly or not."""
    seen, left = set(), [module]
    while left:
        module = left.pop()
        if module not in seen:
            seen.add(module)
            left += graph().get(module, ())
    return seen


@functools.cache
def built_from(name):
    """The modules on which what the catalogue makes of this name depends."""
    tx = CATALOGUE[name].make()
    pairs = (tx, *getattr(tx, "within", ()))
    declared = [pair.declaration for pair in pairs if getattr(pair, "declaration", None)]
    homes = {declaration.builder.function.__module__ for declaration in declared}
    return set().union(*map(closure, homes))


def entries(source):
    """The text of each entry of a catalogue, with that of the functions that the entry names."""
    known, texts = {}, {}
    for node in ast.parse(source).body:
        for target in getattr(node, "targets", [getattr(node, "target", node)]):
            known[getattr(target, "id", getattr(target, "name", None))] = node
    catalogue = known.pop("CATALOGUE").value
    for key, value in zip(catalogue.keys, catalogue.values, strict=True):
        names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
        parts = [
            value,
            *(known[name] for name in sorted(names & {*known})),
        ]
        texts[key.value] = "\n".join(map(ast.dump, parts))
    return texts


def changed(paths, catalogue=None):
    """The names of the catalogue that differ where these paths do.

    catalogue: the source of the catalogue before; None if it is as it was.
    """
    files = {path.relative_to(ROOT).as_posix(): module for module, path in modules().items()}
    touched = {files.get(path, path) for path in paths}
    names = {name for name in CATALOGUE if built_from(name) & touched}
    if catalogue is not None:
        before = entries(catalogue)
        now = entries((ROOT / "tests" / "catalogue.py").read_text())
        names |= {name for name in now if now[name] != before.get(name)}
    return names


def in_turn(number):
    """The names whose turn comes with this commit."""
    return set(sorted(CATALOGUE)[number % TURNS :: TURNS])


class Selection:
    """Which cases a run takes.

    Args:
        since: the commit of the last whole run; None if that is not known.
    """

    def __init__(self, since):
        listed = None if since is None else git("diff", "--name-only", since, "--")
        number = git("rev-list", "--count", "HEAD")
        self.paths = set((listed or "").splitlines())
        self.everything = listed is None or number is None or bool(self.paths & SHARED)
        if not self.everything:
            before = "tests/catalogue.py" in self.paths
            catalogue = git("show", f"{since}:tests/catalogue.py") if before else None
            self.names = changed(self.paths, catalogue) | FIXED | in_turn(int(number))

    def takes(self, path, name):
        """Whether the case of this name is taken, of a sweep in the file of this path."""
        return self.everything or path in self.paths or name in self.names

    def __str__(self):
        if self.everything:
            return "sweeps: all cases"
        return f"sweeps: the slow cases of {len(self.names)} of {len(CATALOGUE)} transformations"


def names_of_sweeps(items):
    """The name of the catalogue that each case of a sweep is for, by the case."""
    tests = defaultdict(dict)
    for item in items:
        for argument, value in (
            getattr(item, "callspec", None).params.items() if hasattr(item, "callspec") else ()
        ):
            if isinstance(value, str) and value in CATALOGUE:
                tests[item.nodeid.partition("[")[0], argument][item] = value
    sweeps = [cases for cases in tests.values() if len({*cases.values()}) >= SWEEP]
    return {item: name for cases in sweeps for item, name in cases.items()}


def left_out(items, selection):
    """The slow cases of sweeps that a selection does not take."""
    sweeps = names_of_sweeps(item for item in items if item.get_closest_marker("slow"))
    return {
        item
        for item, name in sweeps.items()
        if not selection.takes(item.path.relative_to(ROOT).as_posix(), name)
    }


if __name__ == "__main__":
    print(Selection(last_whole_run()))
