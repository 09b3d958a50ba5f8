"""Mutants of every rule, and those that the tests of its paper let live.

    python -m tests.mutants [NAME ...] [--jobs N] [--left | --list | --table] [--again]
                            [--selected N]

NAME is a module or a folder: a path, such as ``gradtx/projections/norms.py``, or any whole parts of
it that follow each other, with slashes or dots, such as ``projections``, ``projections/norms``,
``projections.norms`` or ``norms``, which is every module of that name. Without one it is every
module. Each mutant is a rule with one thing changed: a constant, a sign, epsilon moved into a root
or out of it, the old slot for the new one or the other way round, a comparison, a maximum for a
minimum, the branches of a `where`, a hyperparameter that is its default whatever is given. The
tests run on it in a process of their own until one fails: in files of the module's name those
marked `paper`, then the others, those of its neighbours that import the changed function, those of
other files (see `shared`), and the slow ones (of one with many cases a few, in EVERY_CASE all). Of
each kind those that reach the changed line come before those that only reach the function, then
what failed last, then one case of each test before its others, then the quickest. What passes all
is listed with file and line. `mutants.toml` lists those that compute the same by function and text,
whatever file and line these are in, and why. What a test file builds when it is collected keeps the
functions as they are: tests that are to see mutants of them build it themselves.

All modules take hours, so that a run can be stopped and continued: `mutants_run.json` has for each
function whose mutants were tried its name, the digest of its code, and the names of those
that lived, written as soon as its module is done. A run skips a function that is as recorded,
wherever it has moved, but for those that lived in it. ``--left`` says what a run would try,
``--list`` which mutants, ``--again`` has all tried that are named, and ``--table`` prints the table
of docs/reliability.md. ``--selected N`` tries N mutants that all tests have seen, drawn at random,
on those tests alone that `.ci/run` takes where nothing but the module has changed
(tests/selection.py), and records nothing.

Left alone are the checks of arguments, what steers the compiler and changes no value
(:mod:`gradtx.numerics.compiler_hints`), and what is said of zero gradients (`ZeroGradient`), which
tests/engine/test_zero_gradients.py compares with the rule itself.
"""

import argparse
import ast
import collections
import concurrent.futures
import contextlib
import copy
import dataclasses
import functools
import hashlib
import importlib
import itertools
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import types
import warnings

import jax
import pytest

from tests import selection

TESTS = pathlib.Path(__file__).parent
ROOT = TESTS.parent
RECORD = TESTS / "mutants_run.json"
# So many files of those that use a module, and of those of its importers: the nearest.
NEAR = 8
# A test that takes so much longer than without a mutant hangs, and sees the mutant. Where Python
# cannot interrupt the test, as in a loop of a program, the process ends after as long again.
SECONDS = 15
# A slow test that goes over the catalogue would take minutes for each mutant that it does not see.
SLOW_CASES = 6
# The modules and folders of which each case of a slow test tries what no other does: all run.
EVERY_CASE = ("own_batches", "owners", "keras_optimizers", "torch_optimizers", "losses", "lookup")

OPTIONS = ("-q", "--tb=native", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib")

COMPILED = "JAX_COMPILATION_CACHE_DIR"
# JAX reads these when it is imported, which is before tests/conftest.py.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "PYTHONPATH": str(ROOT),
}

SWAPS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Lt: ast.Gt,
    ast.Gt: ast.Lt,
    ast.LtE: ast.GtE,
    ast.GtE: ast.LtE,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
NAMES = {"id", "arg", "name"}  # the fields of a node of a program that name a variable
EXTREMA = {"maximum": "minimum", "minimum": "maximum", "max": "min", "min": "max"}
# Functions that steer the compiler, and the places of the arguments that are values: the keywords
# are none.
STEERED = {
    "delay": (0,),
    "recompute": range(99),
    "replace": (1,),
    "fuse": (0,),
    "true_after": (),
    "written_and_summed": range(99),
    "CompilerParams": (),
}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One changed expression in a function of a module."""

    module: str
    function: str
    kind: str
    before: str
    after: str
    text: str
    line: int
    column: int
    node: ast.FunctionDef = dataclasses.field(compare=False, repr=False)
    recorded_as: str = dataclasses.field(compare=False, repr=False)

    @property
    def owner(self) -> str:
        """The function or class at the top of the module."""
        return self.function.partition(".")[0]

    @property
    def name(self) -> str:
        """What tells it from others, whatever file and line it is in: the text, with a mark."""
        return f"{self.function}: {self.text}  ->  {self.after}"

    def __str__(self) -> str:
        path = self.module.replace(".", "/")
        return f"{path}.py:{self.line}: {self.kind}: {self.name}"

    @contextlib.contextmanager
    def living(self):
        """The function of the module, changed."""
        owner = imported(self.module)
        for part in self.function.split("."):
            owner = vars(owner)[part] if isinstance(owner, type) else getattr(owner, part)
        function = getattr(owner, "builder", owner)
        # What a decorator such as `contextmanager` returns is a function too.
        while not isinstance(function, types.FunctionType) or hasattr(function, "__wrapped__"):
            names = ("function", "fget", "func", "__func__", "__wrapped__")
            function = next(getattr(function, name) for name in names if hasattr(function, name))
        module = ast.Module([self.node], type_ignores=[])
        with warnings.catch_warnings(action="ignore"):  # of `10 is None`
            compiled = compile(ast.fix_missing_locations(module), self.module, "exec")
        code = next(c for c in compiled.co_consts if isinstance(c, types.CodeType))
        original, function.__code__ = function.__code__, code
        try:
            yield
        finally:
            function.__code__ = original


def imported(module):
    """The module; a package by its own name, as others import it."""
    return importlib.import_module(module.removesuffix(".__init__"))


def mutants(module):
    """All mutants of a module, in the order of its lines."""
    path = ROOT / (module.replace(".", "/") + ".py")
    source = path.read_text()
    lines = [line.encode() for line in source.splitlines()]
    for name, function in functions(ast.parse(source)):
        key = recorded_as(name, function)
        for kind, old, new in _changes(function):
            yield Mutant(
                module,
                name,
                kind,
                ast.unparse(old),
                ast.unparse(new),
                _marked(lines, old),
                old.lineno,
                old.col_offset,
                _changed(function, old, new),
                key,
            )


def functions(tree):
    """The functions of a module and the methods of its classes, by name."""
    for top in tree.body:
        of_class = isinstance(top, ast.ClassDef)
        for function in top.body if of_class else [top]:
            if isinstance(function, ast.FunctionDef):
                yield f"{top.name}.{function.name}" if of_class else function.name, function


def recorded_as(name, function):
    """The name of a function and the digest of its code: other docstrings, annotations, names of
    variables, decorators, and imports from gradtx make no other mutants."""
    function = copy.deepcopy(function)
    function.decorator_list, variables = [], {}
    for node in ast.walk(function):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            node.body, node.returns = [each for each in body if not _imports_ours(each)], None
        elif isinstance(node, ast.AnnAssign | ast.arg):
            node.annotation = ast.Constant(None)
        stored = isinstance(getattr(node, "ctx", None), ast.Store)
        if stored or isinstance(node, ast.FunctionDef | ast.arg | ast.ExceptHandler):
            for field in NAMES & {*node._fields}:
                variables.setdefault(getattr(node, field), f"v{len(variables)}")
    for node in ast.walk(function):
        if not isinstance(node, ast.keyword | ast.alias):  # these are names of others
            for field in NAMES & {*node._fields}:
                setattr(node, field, variables.get(getattr(node, field), getattr(node, field)))
    return f"{name} {hashlib.sha256(ast.unparse(function).encode()).hexdigest()[:10]}"


def _imports_ours(node):
    return isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gradtx")


def _marked(lines, node):
    """The lines of a node as one, with the node in angle quotes."""
    before = lines[node.lineno - 1][: node.col_offset].decode()
    after = lines[node.end_lineno - 1][node.end_col_offset :].decode()
    return f"{before.lstrip()}«{ast.unparse(node)}»{after}"


def _changed(function, old, new):
    """A copy of the function with one node in the place of another."""

    class Change(ast.NodeTransformer):
        def visit(self, node):
            return new if node is old else self.generic_visit(node)

    # The transformer changes lists in place: it works on a copy that keeps the node to be found.
    return Change().visit(copy.deepcopy(function, {id(old): old}))


def _changes(function):
    """``(kind, old, new)`` for each change; only what is computed is looked at."""
    rules = [f for f in ast.walk(function) if isinstance(f, ast.FunctionDef)]
    slots = {id(n): pairs for f in rules if (pairs := _slots(f)) for n in ast.walk(f)}
    arguments = function.args.args[::-1], function.args.defaults[::-1]
    keywords = function.args.kwonlyargs, function.args.kw_defaults
    defaults = {
        argument.arg: default
        for names, values in (arguments, keywords)
        for argument, default in zip(names, values, strict=False)
        if isinstance(default, ast.Constant) and isinstance(default.value, int | float)
    }
    inner = collections.defaultdict(set)
    for f in ast.walk(function):
        if isinstance(f, ast.FunctionDef | ast.Lambda):
            for argument in f.args.args:
                inner[argument.arg] |= {id(n) for n in ast.walk(f)}
    named = {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and _is_root(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in _computed(function):
        yield from _of_node(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            yield from _roots(node, named)
        for name, default in defaults.items():
            if _reads(node, name):
                yield "default", node, ast.copy_location(copy.copy(default), node)
        for slot, name in slots.get(id(node), ()):
            old_slot = isinstance(node, ast.Attribute) and ast.unparse(node) == f"s.{slot}"
            if old_slot:
                yield "new slot", node, ast.copy_location(ast.Name(name, ast.Load()), node)
            elif _reads(node, name) and id(node) not in inner[name]:
                changed = ast.Attribute(ast.Name("s", ast.Load()), slot, ast.Load())
                yield "old slot", node, ast.copy_location(changed, node)


def _reads(node, name):
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)


def _slots(rule):
    """The slots of a rule with the names of their new values: what its last dict says."""
    found = {}
    for node in ast.walk(rule):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Name):
                    found[key.value] = value.id
    names = {ast.unparse(n) for n in ast.walk(rule) if isinstance(n, ast.Attribute)}
    return [(slot, name) for slot, name in found.items() if f"s.{slot}" in names]


def _computed(node):
    """The nodes below `node` that make values: no annotation, default, check or steering."""
    skipped = []
    if isinstance(node, ast.FunctionDef):
        skipped = [node.args, *node.decorator_list, node.returns]
    elif isinstance(node, ast.AnnAssign):
        skipped = [node.annotation]
    elif isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in {"ZeroGradient", "isinstance", "check_integer", "check_key"}:
            return
        if name == "once":  # the key under which a number of the step is kept
            skipped = node.args[:2]
        if name in STEERED:
            skipped = [a for i, a in enumerate(node.args) if i not in STEERED[name]]
            skipped += node.keywords
        skipped += [k for k in node.keywords if k.arg in ("keepdims", "strict")]
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
        # What is plain at 0 is so at 0 alone; that it is compared is a mutant already.
        skipped = [c for c in [node.left, *node.comparators] if ast.unparse(c) == "0"]
    elif _is_check(node) or isinstance(node, ast.Raise | ast.JoinedStr):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        if not any(child is s for s in skipped):
            yield from _computed(child)


def _is_check(node):
    if isinstance(node, ast.If):
        return isinstance(node.body[-1], ast.Raise) and not node.orelse
    return isinstance(node, ast.For) and all(map(_is_check, node.body))


def _of_node(node):
    def like(**changed):
        new = copy.copy(node)
        vars(new).update(changed)
        return new

    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        value = node.value + 1 if isinstance(node.value, int) else 1.5 * node.value or 0.5
        yield "constant", node, like(value=value)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield "sign", node, node.operand
    elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
        yield "sign", node, like(op=SWAPS[type(node.op)]())
    elif isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            if type(op) in SWAPS:
                swapped = [*node.ops[:i], SWAPS[type(op)](), *node.ops[i + 1 :]]
                yield "comparison", node, like(ops=swapped)
    elif isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in EXTREMA and isinstance(node.func, ast.Attribute):
            function = ast.Attribute(node.func.value, EXTREMA[name], ast.Load())
            yield "extremum", node, like(func=function)
        elif name in EXTREMA:
            yield "extremum", node, like(func=ast.Name(EXTREMA[name], ast.Load()))
        elif name == "where" and len(node.args) == 3:
            yield "branch", node, like(args=[node.args[i] for i in (0, 2, 1)])
        elif _is_root(node) and isinstance(node.args[0], ast.BinOp):
            inside = node.args[0]
            if isinstance(inside.op, ast.Add):
                parts = [like(args=[part]) for part in (inside.left, inside.right)]
                yield (
                    "root",
                    node,
                    ast.copy_location(ast.BinOp(parts[0], ast.Add(), parts[1]), node),
                )


ROOT_FUNCTIONS = ("root", "numerics.root", "jnp.sqrt", "cube_root")


def _is_root(node):
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ROOT_FUNCTIONS


def _roots(node, named):
    """What is added to a root, or to a name of one, put under it: as its power, so that of the two
    only a sum differs."""
    for root, added in ((node.left, node.right), (node.right, node.left)):
        if not (_is_root(root) or (isinstance(root, ast.Name) and root.id in named)):
            continue
        cubic = ast.unparse(root).startswith("cube_root")
        power = 3 if cubic else 2
        below = root.args[0] if _is_root(root) else _power(root, power)
        function = root.func if _is_root(root) else ast.parse("jnp.sqrt", mode="eval").body
        new = ast.Call(function, [ast.BinOp(below, ast.Add(), _power(added, power))], [])
        yield "root", node, ast.copy_location(new, node)


def _power(x, power):
    return ast.BinOp(x, ast.Pow(), ast.Constant(power))


class Trial:
    """A plugin of pytest that runs the collected tests of each mutant's module on it."""

    def __init__(self, chosen, beside, report, tell, selected):
        self.chosen, self.beside, self.report, self.tell = chosen, beside, report, tell
        self.selected = selected

    def pytest_collection(self):
        """One failure is enough: hypothesis looks for no smaller one."""
        import hypothesis  # after pytest, which rewrites its asserts

        found = [phase for phase in hypothesis.Phase if phase.name in ("explicit", "generate")]
        hypothesis.settings.register_profile("mutants", hypothesis.settings(), phases=found)
        hypothesis.settings.load_profile("mutants")

    def pytest_runtestloop(self, session):
        files = {}
        for item in session.items:
            kind = (item.path, bool(item.get_closest_marker("slow")))
            files.setdefault((*kind, bool(item.get_closest_marker("paper"))), []).append(item)
        tests, out_of = {}, {}
        for module in {mutant.module for mutant in self.chosen} if self.selected else ():
            out_of[module] = selection.left_out(session.items, selection.Selection({module}))
        for i, mutant in enumerate(self.chosen):
            own, further = of_its_name(mutant.module), shared(mutant.module)
            others = itertools.chain(*map(of_its_name, self.beside[mutant.module][mutant.owner]))
            slow = [*own, *further]
            quick = list(dict.fromkeys((*own, *others, *further)))
            kinds = [(path, False, paper) for path in quick for paper in (True, False)]
            kinds += [(path, True, paper) for path in slow for paper in (True, False)]
            lives = True
            forget()
            for kind in kinds:
                key = (mutant.module, *kind)
                if key not in tests:
                    items = files.get(kind, [])
                    if self.selected:
                        items = [item for item in items if item not in out_of[mutant.module]]
                    tests[key] = list(tests_of(items, mutant.module, kind[1]))
                tests[key].sort(key=lambda test: test.order(mutant))
                if any(test.sees(mutant, i) for test in tests[key]):
                    lives = False
                    break
            self.report(i, lives)
        for test in itertools.chain(*tests.values()):
            if test.broken:
                self.tell(test.item.nodeid)
            # A mutant may have left something behind, by which others fail.
            forget()
            if test.failed >= 0 and (failures := test.failures()):
                raise RuntimeError(f"{test.item.nodeid} fails after the mutants: {failures}")
        return True


def tests_of(items, module, slow):
    """The tests of a file, of slow ones with many cases those that are named as the module or a
    function of it is, and some that lie evenly among the others."""
    cases = collections.defaultdict(list)
    for item in items:
        cases[item.name.partition("[")[0]].append(item)
    few = slow and not any(_is_of(module, name) for name in EVERY_CASE)
    names = {module.rpartition(".")[2], *public(module)}
    for same in cases.values():
        named = [item for item in same if any(n in item.name.partition("[")[2] for n in names)]
        others = [item for item in same if item not in named]
        chosen = [*named, *_some(others)] if few else same
        yield from (Test(item, module, case) for case, item in enumerate(chosen))


@functools.cache
def public(module):
    """The names of its functions that others call."""
    tree = ast.parse((ROOT / (module.replace(".", "/") + ".py")).read_text())
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [name for name in names if not name.startswith("_")]


def _some(items):
    return items[:: max(1, -(-len(items) // SLOW_CASES))]


class Test:
    """A test, and what it reaches in a module: its lines, and its functions by name.

    Attributes:
        case: how many tests with the same function and other parameters stand before it.
        seconds: how long it takes; None before it has run.
        failed: the number of the last mutant that it saw.
        broken: whether it fails without a mutant, and so tells nothing.
    """

    def __init__(self, item, module, case=0):
        self.item, self.case = item, case
        self.seconds, self.failed, self.broken = None, -1, False
        self.path = imported(module).__file__
        self.lines, self.functions = set(), set()

    def order(self, mutant):
        if self.seconds is None:
            return True, 0, 0, 0
        return mutant.line not in self.lines, -self.failed, self.case, self.seconds

    def sees(self, mutant, number):
        """Whether it fails on a mutant; it runs without one first."""
        if self.seconds is None:
            self.trace()
        if mutant.function not in self.functions:
            return False
        with mutant.living(), limit(SECONDS + self.seconds):
            failed = bool(self.failures())
        if failed:
            self.failed = number
        return failed

    def trace(self):
        def of_line(frame, event, _):
            self.lines.add(frame.f_lineno)
            return of_line

        def of_call(frame, event, _):
            if frame.f_code.co_filename == self.path:
                self.functions.add(frame.f_code.co_qualname.partition(".<locals>")[0])
                return of_line(frame, event, None)

        forget()
        start = time.process_time()
        sys.settrace(of_call)
        try:
            failures = self.failures()
        finally:
            sys.settrace(None)
        forget()
        self.seconds = time.process_time() - start
        if failures:
            self.functions.clear()
            self.broken = True

    def failures(self):
        from _pytest.runner import runtestprotocol
        from _pytest.warnings import catch_warnings_for_item

        item = self.item
        item._initrequest()  # what a rerun needs
        # The warnings that its marks ignore, which pytest does around what is called here.
        with catch_warnings_for_item(item.config, item.ihook, when="runtest", item=item):
            reports = runtestprotocol(item, log=False, nextitem=None)
        return [report.longreprtext for report in reports if report.failed]


@contextlib.contextmanager
def limit(seconds):
    """Raise TimeoutError after so many seconds of the processors' time, and end the process after
    as many again, of which those of the system do not count."""

    def late(*_):
        raise TimeoutError(f"more than {seconds:.0f} s")

    signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_VIRTUAL, 2 * seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def forget():
    """Empty all caches: a program of another mutant may be in them."""
    jax.clear_caches()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("gradtx", "tests"):
            for value in list(vars(module).values()):
                for clear in ("cache_clear", "clear_cache"):
                    if hasattr(type(value), clear):
                        getattr(value, clear)()


def importers(module):
    """The modules beside it that import from it, by the name of what they import."""
    path, found = ROOT / (module.replace(".", "/") + ".py"), collections.defaultdict(list)
    for other in sorted(path.parent.glob("[!_]*.py")):
        for node in ast.parse(other.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module == module:
                for alias in node.names:
                    found[alias.name].append(f"{module.rpartition('.')[0]}.{other.stem}")
    return found


@functools.cache
def files():
    """The test files of each name, wherever they are."""
    paths = collections.defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        paths[path.stem.removeprefix("test_")].append(path)
    return paths


@functools.cache
def said():
    """The test files that say of which modules they see mutants, by what they say."""
    paths = collections.defaultdict(list)
    for path in itertools.chain(*files().values()):
        for text in selection.said(path):
            paths[text].append(path)
    return paths


@functools.cache
def users():
    """For each module those, of tests too, that import it or a name of it."""
    modules_of = collections.defaultdict(set)
    for module, imports in selection.graph().items():
        for each in imports - {module}:
            modules_of[each].add(module)
    return modules_of


def place(module):
    """The folders within gradtx, and the name, which for a package is that of its folder."""
    parts = module.removesuffix(".__init__").split(".")
    return parts[1:] or parts


def of_its_name(module):
    """The test files of a module's name, that in its folder first, or else of its folder's name."""
    *folders, name = place(module)
    same = files()[name.strip("_")] or files()[folders[-1] if folders else ""]
    mirrored = TESTS.joinpath(*folders)
    return sorted(same, key=lambda path: (path.parent != mirrored, path))


@functools.cache
def shared(module):
    """The test files that have another name: those that say so, those that use the module, and
    those of the name of a module that does. Of the users the nearest: those in a folder of the same
    name, then those that use few modules."""
    module = module.removesuffix(".__init__")
    *folders, name = place(module)
    source = selection.modules()[module].read_text()

    def near(user):
        uses = sum(each.startswith("gradtx.") for each in selection.graph()[user])
        return user.split(".")[1:-1] != folders, uses, user

    every = set(itertools.chain(*files().values()))
    nearest = sorted(users()[module], key=near)
    tests = [path for path in map(selection.modules().get, nearest) if path in every]
    importers = [user for user in nearest if user.startswith("gradtx.")]
    theirs = list(dict.fromkeys(itertools.chain(*map(of_its_name, importers))))
    say_so = itertools.chain(
        *(paths for text, paths in said().items() if selection.means(text, name, source))
    )
    others = dict.fromkeys((*say_so, *tests[:NEAR], *theirs[:NEAR]))
    return [path for path in others if path not in of_its_name(module)]


def trial(places, selected):
    """In a process of its own: the mutants of these modules, by their place in the list of each."""
    every = {module for module, _ in places}
    lists = {module: list(mutants(module)) for module in every}
    beside = {module: importers(module) for module in every}
    chosen = [lists[module][i] for module, i in places]
    for mutant in chosen:
        every.update(beside[mutant.module][mutant.owner])
    found = {path for module in every for path in (*of_its_name(module), *shared(module))}
    out = os.fdopen(os.dup(1), "w", buffering=1)

    def report(i, lives):
        print(json.dumps([i, lives]), file=out)

    def tell(test):
        print(json.dumps({"fails without a mutant": test}), file=out)

    with contextlib.redirect_stdout(sys.stderr):
        return pytest.main(
            [*OPTIONS, *sorted(map(str, found))],
            plugins=[Trial(chosen, beside, report, tell, selected)],
        )


def survivors(chosen, selected=False):
    """Those of the mutants that pass the tests of their modules. One that hangs does not pass.

    selected: whether to run those tests only that `.ci/run` takes for a change of the module.
    """
    # Most mutants leave most programs as they are.
    with tempfile.TemporaryDirectory() as compiled:
        words = ["--trial", *(["--selected", "1"] if selected else [])]
        return _survivors(chosen, words, {**os.environ, **ENVIRONMENT, COMPILED: compiled})


def _survivors(chosen, words, environment):
    chosen, alive, start = list(chosen), [], 0
    lists = {module: list(mutants(module)) for module in {m.module for m in chosen}}
    places = [(m.module, lists[m.module].index(m)) for m in chosen]
    while start < len(chosen):
        done = subprocess.run(
            [sys.executable, "-m", "tests.mutants", *words],
            input=json.dumps(places[start:]),
            capture_output=True,
            check=False,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        said = [json.loads(line) for line in done.stdout.splitlines() if line[:1] in ("[", "{")]
        results = [each for each in said if isinstance(each, list)]
        for each in said:
            if isinstance(each, dict):
                print(*(f"{problem}: {test}" for problem, test in each.items()), flush=True)
        if done.returncode not in (pytest.ExitCode.OK, -signal.SIGVTALRM):
            raise RuntimeError(done.stderr)
        alive += [chosen[start + i] for i, lives in results if lives]
        start += len(results) + 1  # one more hung, where some are left
    return alive


def recorded():
    """The names of those that lived, by the function of which all mutants were tried."""
    return json.loads(RECORD.read_text()) if RECORD.exists() else {}


@functools.cache
def every_function():
    """What any function of gradtx is recorded as."""
    sources = [path.read_bytes() for path in (ROOT / "gradtx").rglob("*.py")]
    trees = map(ast.parse, sources)
    return {recorded_as(*pair) for tree in trees for pair in functions(tree)}


def record(module, lived):
    """Write the entries of a module's functions, in a file that takes the place of the old one,
    without those of functions that are gone."""
    entries = {key: names for key, names in recorded().items() if key in every_function()}
    entries |= {mutant.recorded_as: [] for mutant in mutants(module)}
    for mutant in sorted(lived, key=lambda mutant: mutant.name):
        entries[mutant.recorded_as].append(mutant.name)
    new = RECORD.with_suffix(".new")
    entries = dict(sorted(entries.items()))
    new.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n")
    new.replace(RECORD)


def left(module, entries):
    """The mutants to be tried: those that lived, and all of a function that is not recorded, or of
    which those that lived have other names since it has moved or its variables were renamed."""
    every = list(mutants(module))
    names = {mutant.name for mutant in every}

    def is_left(mutant):
        lived = entries.get(mutant.recorded_as)
        known = lived is not None and names.issuperset(lived)
        return mutant.name not in same() and (not known or mutant.name in lived)

    return list(filter(is_left, every))


@functools.cache
def same():
    """The names of the mutants that are listed as computing the same."""
    with (TESTS / "mutants.toml").open("rb") as file:
        return {name for group in tomllib.load(file)["same"] for name in group["mutants"]}


def modules(names):
    """The modules of these names and folders, or all."""
    paths = sorted((ROOT / "gradtx").rglob("*.py"))
    every = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    unknown = {n for n in names if not any(_is_of(m, n) for m in every)}
    if unknown:
        raise SystemExit(f"no such module: {sorted(unknown)}")
    return [m for m in every if not names or any(_is_of(m, n) for n in names)]


def table():
    """For each folder what is recorded of its modules as they are now."""
    rows = {}
    for module in modules(()):
        folder, _, inner = module.removeprefix("gradtx.").partition(".")
        row = rows.setdefault(folder if inner else "other modules", collections.Counter())
        names, count = [mutant.name for mutant in mutants(module)], len(left(module, recorded()))
        row.update(
            {"modules": 1, "tried": int(not count), "mutants": len(names) - count, "left": count}
        )
        row["same"] += sum(name in same() for name in names)
    rows["all"] = sum(rows.values(), collections.Counter())
    yield "| Folder | Modules tried | Mutants | The same | Left |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for folder, row in rows.items():
        numbers = (f"{row[key]:,}" for key in ("mutants", "same", "left"))
        yield f"| {folder} | {row['tried']} of {row['modules']} | {' | '.join(numbers)} |"


def _is_of(module, name):
    """Whether `name`, with slashes or dots, is that of the module or a folder, or a part of it."""
    return f".{name.removesuffix('.py').strip('/').replace('/', '.')}." in f".{module}."


def on_selected(named, count):
    """Try mutants of these modules that all tests have seen, drawn at random, on the tests that
    `.ci/run` takes for them."""
    seen = {key for key, lived in recorded().items() if not lived}
    each = itertools.chain(*map(mutants, named))
    every = [m for m in each if m.recorded_as in seen and m.name not in same()]
    chosen = random.Random(0).sample(every, min(count, len(every)))
    chosen.sort(key=lambda mutant: mutant.module)
    alive = survivors(chosen, selected=True)
    print(f"{len(chosen)} mutants of {len(every)}, {len(alive)} live", *alive, sep="\n  ")
    return bool(alive)


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--left", action="store_true", help="how many are to be tried where")
    parser.add_argument("--list", action="store_true", help="the mutants, without running them")
    parser.add_argument("--again", action="store_true", help="also those that were seen")
    parser.add_argument("--table", action="store_true", help="what is recorded, by folder")
    parser.add_argument("--selected", type=int, default=0, metavar="N")
    parser.add_argument("--trial", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.trial:
        return trial(json.load(sys.stdin), bool(given.selected))
    if given.table:
        print(*table(), sep="\n")
        return 0
    if given.selected:
        return on_selected(modules(given.names), given.selected)
    count, alive, writes, failed = 0, 0, threading.Lock(), []

    def tried(module, chosen):
        if not chosen or given.left or given.list:
            return module, chosen, chosen if given.list else []
        try:
            lived = survivors(chosen)
        except RuntimeError as error:
            failed.append(f"{module} is not tried: {error}")
            return module, chosen, []
        with writes:
            record(module, lived)
        return module, chosen, lived

    before = {} if given.again else recorded()
    named = modules(given.names)
    # In this thread: Python 3.11 fails at times to parse in several at once.
    asked = [left(module, before) for module in named]
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        for module, chosen, lived in pool.map(tried, named, asked):
            if not chosen:
                continue
            count, alive = count + len(chosen), alive + len(lived)
            live = "" if given.left else f", {len(lived)} live"
            print(f"{module}: {len(chosen)} mutants{live}", flush=True)
            for mutant in lived:
                print(f"  {mutant}", flush=True)
    if given.left:
        print(f"{count} mutants are left")
        return 0
    print(*failed, f"{count} mutants, {alive} live", sep="\n")
    return bool(failed or alive) and not given.list


if __name__ == "__main__":
    sys.exit(main())
