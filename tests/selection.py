"""Which slow tests `pytest --slow=changed` takes, as `.ci/run` calls it, and `--slow=turn`.

A sweep is a test with a case for each of many transformations of the catalogue, and so are the
examples in their docstrings together. `changed` takes

- from sweeps, the cases of each transformation that has changed (in its entry in the catalogue, or
  in a module of gradtx that one of its builders imports, directly or not); if most have changed,
  one in PARTS of these cases, in turn;
- from other tests, those in files that reach a changed module, by imports and by the names of
  gradtx that they use; if most transformations have changed, one in PARTS of these files, in turn,
  and the files that have the name of a changed module or say that they see mutants of it; of the
  files whose reach cannot be seen those in the folder of a changed module, and of the others one in
  PARTS;
- the cases of FIXED, which cover each scope, each composition and the main wrappers, and the tests
  of WHOLE.

Both take in turn a twentieth of the transformations and of the files, by the number of the commit;
not `changed` where most transformations have changed, for parts take turns there, and `turn` runs
in the same run of CI, with other versions. A file of tests is taken whole if it has changed, but
for its marks of what is slow, or a helper that it imports has; of its sweeps one case in PARTS,
where most transformations have changed. If what all tests share has changed, that counts as a
change of every module. All is taken if git cannot tell.

Changed is what differs from the last commit that is known to have passed. `tests/whole_run.json`
names that of the last whole run, and the last to have landed since, of which one tells it:

    python -m tests.selection [all|changed|turn]         says how much is taken now
    python -m tests.selection landed COMMIT              notes that CI has passed for a commit
"""

import ast
import datetime
import functools
import json
import pathlib
import re
import subprocess
import sys
import zlib
from collections import defaultdict

from tests.catalogue import CATALOGUE

ROOT = pathlib.Path(__file__).parents[1]
RECORD = ROOT / "tests" / "whole_run.json"
PAGE = ROOT / "docs" / "reliability.md"
WHOLE_RUN = re.compile("^The last whole run, .*\n", re.MULTILINE)
SWEEP = 30  # a test with cases for so many transformations is a sweep
TURNS = 20  # every slow case is taken once in so many commits
PARTS = 8  # where most transformations have changed: in so many, in turn

# What a test file says of modules of which it sees mutants, though neither its name nor its imports
# show that, or others are nearer: their last names, or what their sources have.
SAID = re.compile(r"^# Sees mutants of: (.+)\.$", re.MULTILINE)

# Of each scope; chains, groups and masks; what acts on any transformation; averages, examples.
FIXED = {
    *("adamw", "sgd", "rowwise_adam", "adafactor", "muon", "soap", "lora_plus", "prodigy"),
    *("lbfgs", "clip_by_global_norm", "chain", "masked", "partition", "accumulate", "store"),
    *("guard", "sam", "exact_rows", "offload", "ema_params", "stochastic_rounding"),
    *("schedule_free_adamw", "differentially_private", "aggregate"),
}
# Tests of the code and the pages as a whole.
WHOLE = {f"tests.test_{name}" for name in ("docs", "docstrings", "layers", "packaging", "typing")}
# What all tests share.
SHARED = {f"tests.{name}" for name in ("conftest", "oracle", "processes", "quick")}
# Tests of these start programs, or run code with the import changed: what these use is not seen.
UNSEEN = {"interop"}


def git(*arguments):
    """What git prints, or None if it does not know."""
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def last_passed():
    """The commit that landed last, or else that of the last whole run, if one is known."""
    said = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return said.get("landed", said.get("commit"))


@functools.cache
def modules():
    """The file of each module of gradtx, of the tests and of the benchmarks, by its name."""
    files = {}
    for package in ("gradtx", "tests", "benchmarks"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def imports(path):
    """What a file imports, and the names of gradtx that it uses: pairs of a module and a name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name.rpartition(".")[::2] for alias in node.names)
        elif isinstance(node, ast.Attribute) and (module := dotted(node.value)):
            yield module, node.attr


def dotted(node):
    """``"gradtx.sparse"`` for such an expression, and None for one that is no module of gradtx."""
    if isinstance(node, ast.Name):
        return "gradtx" if node.id == "gradtx" else None
    inner = dotted(node.value) if isinstance(node, ast.Attribute) else None
    return f"{inner}.{node.attr}" if inner else None


@functools.cache
def graph():
    """The modules that each module imports; what a package passes on is at its home."""
    files, passed_on, stars = modules(), {}, {}
    for module, path in files.items():
        if path.name == "__init__.py":
            stub = path.with_suffix(".pyi")
            source = stub if stub.exists() else path
            passed_on[module] = {name: home for home, name in imports(source) if name != "*"}
            stars[module] = [home for home, name in imports(source) if name == "*"]
    for module, rooms in stars.items():
        for room in rooms:
            passed_on[module] = passed_on[room] | passed_on[module]

    def home(module, name):
        inner = f"{module}.{name}" if module else name
        if inner in files:
            return inner
        further = passed_on.get(module, {}).get(name, module)
        return module if further == module else home(further, name)

    def reached(module, path):
        direct = {home(*pair) for pair in imports(path)}
        if not module.startswith("tests."):
            return direct
        # A test may take any name of a package that it imports, by `getattr` too.
        packages = direct & {*passed_on} - {"gradtx"}
        return direct | {home(package, name) for package in packages for name in passed_on[package]}

    return {
        module: set() if path.name == "__init__.py" else reached(module, path)
        for module, path in files.items()
    }


@functools.cache
def closure(module, inside=""):
    """The module and those that it imports, directly or not; only those `inside` of a package."""
    seen, left = set(), [module]
    while left:
        module = left.pop()
        if module not in seen:
            seen.add(module)
            left += (each for each in graph().get(module, ()) if each.startswith(inside))
    return seen & set(modules())


@functools.cache
def built_from(name):
    """The modules on which what the catalogue makes of this name depends."""
    tx = CATALOGUE[name].made
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


def changed(touched, catalogue=None):
    """The names of the catalogue that differ where these modules do.

    catalogue: the source of the catalogue before; None if it is as it was.
    """
    names = {name for name in CATALOGUE if built_from(name) & touched}
    if catalogue is not None:
        before = entries(catalogue)
        now = entries((ROOT / "tests" / "catalogue.py").read_text())
        names |= {name for name in now if now[name] != before.get(name)}
    return names


def in_turn(names, number, turns=TURNS):
    """Those of the names whose turn comes with the commit of this number."""
    return set(sorted(names)[number % turns :: turns])


def seen(module):
    """The modules that the tests of a module reach, or None if that cannot be seen."""
    reached = closure(module)
    folders = module.split(".")[1:-1]
    by_name = "getattr(gradtx" in modules()[module].read_text() or "tests.catalogue" in reached
    return None if by_name or not folders or folders[0] in UNSEEN else reached


def code(source):
    """The code of a module without docstrings, comments and such marks, or None if it is none."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            node.body[0] = ast.Pass()
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = [each for each in node.decorator_list if not says_when(each)]
    return ast.dump(tree)


def says_when(decorator):
    """Whether a decorator is a mark that decides only in which runs a test takes part."""
    return ast.unparse(decorator).partition("(")[0] in ("pytest.mark.slow", "pytest.mark.quick")


def differs_in_words(commit, path):
    """Whether a file has the same code as at a commit: then its examples alone are run again."""
    file = ROOT / path
    before = git("show", f"{commit}:{path}") if file.suffix == ".py" and file.exists() else None
    return before is not None and code(before) == code(file.read_text())


def changed_since(commit):
    """The modules, or else the files, that have changed since a commit; None if git cannot tell.

    A module whose docstrings or comments alone have changed is named as a file.
    """
    listed = None if commit is None else git("diff", "--name-only", commit, "--")
    if listed is None:
        return None
    files = {path.relative_to(ROOT).as_posix(): module for module, path in modules().items()}
    return {
        path if differs_in_words(commit, path) else files.get(path, path)
        for path in listed.splitlines()
    }


@functools.cache
def said(path):
    """What a test file says of the modules of which it sees mutants."""
    return [text for texts in SAID.findall(path.read_text()) for text in texts.split(", ")]


def means(text, name, source):
    """Whether what a test file says means the module of this name and source."""
    return text == name or (not text.isidentifier() and text in source)


class Selection:
    """Which slow tests a run takes.

    Args:
        touched: what has changed since the last commit that passed; None if that is not known.
        changed_too: whether to take what has changed since, or only what is fixed and in turn.
        since: the last commit that passed, from which the catalogue before is read.
    """

    def __init__(self, touched, changed_too=True, since=None):
        number = git("rev-list", "--count", "HEAD")
        self.touched = set(touched or ())
        self.number = int(number or 0)
        self.everything = changed_too and (touched is None or number is None)
        self.shared = changed_too and bool(self.touched & SHARED)
        self.touched -= SHARED
        self.changed = set()
        if not changed_too:
            self.touched = set()
        elif not self.everything:
            before = "tests.catalogue" in self.touched
            catalogue = git("show", f"{since}:tests/catalogue.py") if before else None
            self.touched -= {"tests.catalogue"}
            self.changed = set(CATALOGUE) if self.shared else changed(self.touched, catalogue)
        self.most = len(self.changed) > len(CATALOGUE) / 2
        turn = set() if self.most else in_turn(CATALOGUE, self.number)
        self.always = turn | (FIXED if changed_too else set())

    def takes_case(self, module, test, name):
        """Whether the case of this name is taken, of a sweep in a module of tests."""
        if self.everything or name in self.always:
            return True
        touched = name in self.changed or self._is_changed(module)
        return touched and (not self.most or self._in_its_part(f"{test} {name}"))

    def _is_changed(self, module):
        """Whether a file has changed, be it in words, or what tests in it share with others."""
        others = {m for m in closure(module, "tests") if m.rpartition(".")[2][:5] != "test_"}
        file = modules()[module].relative_to(ROOT).as_posix()
        return bool({module, file, *others} & self.touched)

    def _sees(self, module, changed):
        """Whether a file of tests has the name of what has changed, or says that it sees mutants
        of it."""
        path = modules().get(changed)
        name = changed.removesuffix(".__init__").rpartition(".")[2]
        if module.rpartition(".test_")[2] == name:
            return True
        source = "" if path is None else path.read_text()
        return any(means(text, name, source) for text in said(modules()[module]))

    def _in_its_part(self, text):
        return (zlib.crc32(text.encode()) + self.number) % PARTS == 0

    @functools.cached_property
    def _folders(self):
        """Those of modules that have changed, within gradtx as tests have them too."""
        return [each.split(".")[1:-1] for each in self.touched if each.count(".") > 1]

    @functools.cached_property
    def _files_in_turn(self):
        return in_turn(modules(), self.number)

    def takes_file(self, module):
        """Whether the slow tests of a module that are not sweeps are taken."""
        if self.everything or (not self.most and module in self._files_in_turn):
            return True
        if module in WHOLE and (self.touched or self.shared):
            return True
        if self._is_changed(module) or any(self._sees(module, each) for each in self.touched):
            return True
        reached = seen(module)
        if reached is None and module.split(".")[1:-1] in self._folders:
            return True
        touched = bool(self.touched) if reached is None else bool(reached & self.touched)
        in_part = self.most or reached is None
        return (touched or self.shared) and (not in_part or self._in_its_part(module))

    def __str__(self):
        if self.everything:
            return "slow tests: all"
        names = len(self.always | self.changed)
        part = f", one in {PARTS} of them" if self.most else ""
        tests = [module for module in modules() if module.rpartition(".")[2].startswith("test_")]
        files = sum(map(self.takes_file, tests))
        return (
            f"slow tests: sweeps over {names} of {len(CATALOGUE)} transformations{part}; "
            f"others in {files} of {len(tests)} files"
        )


def since_last_passed(changed_too=True):
    """The selection for what has changed since then."""
    commit = last_passed()
    return Selection(changed_since(commit), changed_too, commit)


def names_of_sweeps(items):
    """The name of the catalogue that each case of a sweep is for, by the case."""
    tests = defaultdict(dict)
    for item in items:
        arguments = item.callspec.params if hasattr(item, "callspec") else {}
        for argument, value in arguments.items():
            if isinstance(value, str) and value in CATALOGUE:
                tests[test_of(item), argument][item] = value
        example = getattr(item, "dtest", None)
        documented = "" if example is None else example.name.rpartition(".")[2]
        if documented in CATALOGUE:
            tests["examples", ""][item] = documented
    sweeps = [cases for cases in tests.values() if len({*cases.values()}) >= SWEEP]
    return {item: name for cases in sweeps for item, name in cases.items()}


def test_of(item):
    return item.nodeid.partition("[")[0]


def left_out(items, selection):
    """The slow cases that a selection does not take."""
    slow = [item for item in items if item.get_closest_marker("slow")]
    names, files = names_of_sweeps(slow), {}
    by_file = {path: module for module, path in modules().items()}

    def takes(item):
        module = by_file.get(item.path)
        if module is None:
            return True
        if item in names:
            return selection.takes_case(module, test_of(item), names[item])
        if module not in files:
            files[module] = selection.takes_file(module)
        return files[module]

    return {item for item in slow if not takes(item)}


def record(duration, result):
    """Note that everything was tested, in the record and on the page that tells users of it."""
    said = {
        "commit": (git("rev-parse", "HEAD") or "").strip(),
        "date": f"{datetime.date.today():%d %B %Y}",
        "duration": duration,
        "result": result.strip("= \n"),
    }
    write(said)
    PAGE.write_text(WHOLE_RUN.sub(sentence(said), PAGE.read_text()))


def landed(commit):
    """Note that CI has passed for a commit: what follows is compared with it."""
    known = (git("rev-parse", "--verify", f"{commit}^{{commit}}") or "").strip()
    if not known:
        raise SystemExit(f"git knows no commit {commit}")
    write(json.loads(RECORD.read_text()) | {"landed": known})


def write(said):
    RECORD.write_text(json.dumps(said, indent=2) + "\n")


def sentence(said):
    return (
        f"The last whole run, `.ci/run --all`, was on {said['date']}: {said['duration']}, "
        f"{said['result']}.\n"
    )


if __name__ == "__main__":
    how, *words = sys.argv[1:] or ["changed"]
    if how == "record":
        record(*words)
    elif how == "landed":
        landed(*words)
    else:
        print("slow tests: all" if how == "all" else since_last_passed(how == "changed"))
