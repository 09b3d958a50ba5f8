"""Mutants of every rule, and those that the tests of its paper let live.

    python -m tests.mutants [NAME ...] [--jobs N] [--list]

NAME is a module of `gradtx.optimizers` or `gradtx.transforms`, such as ``adam``; without one it is
every module that a test marked `paper` mirrors. Each mutant is a rule with one thing changed: a
constant, a sign, epsilon moved into a root or out of it, the old slot for the new one or the other
way round, a comparison, a maximum for a minimum, the branches of a `where`, a hyperparameter that
is its default whatever is given. The marked tests of the module run on it in a process of their
own, and what passes them all is listed with file and line. `mutants.toml` lists those that compute
the same, each with its line, and the reason.

Left alone are the checks of arguments, what steers the compiler and changes no value
(:mod:`gradtx.numerics.steering`), and what is said of zero gradients (`ZeroGradient`), which
tests/engine/test_zero_gradients.py compares with the rule itself.
"""

import argparse
import ast
import collections
import concurrent.futures
import contextlib
import copy
import dataclasses
import faulthandler
import importlib
import json
import os
import pathlib
import subprocess
import sys
import tomllib
import types

import pytest

TESTS = pathlib.Path(__file__).parent
ROOT = TESTS.parent
FOLDERS = ("optimizers", "transforms")
# A test that takes longer hangs: its process ends, and the mutant with it.
SECONDS = 120

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
EXTREMA = {"maximum": "minimum", "minimum": "maximum", "max": "min", "min": "max"}
# Functions that steer the compiler, and which of their arguments are values: by position.
STEERED = {"after": (0,), "replace_slot": (1,), "is_computed": ()}


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

    @property
    def name(self) -> str:
        """What tells it from others wherever its line is: the line, with the place marked."""
        module = self.module.removeprefix("gradtx.")
        return f"{module}.{self.function}: {self.text}  ->  {self.after}"

    def __str__(self) -> str:
        path = self.module.replace(".", "/")
        return f"{path}.py:{self.line}: {self.kind}: {self.name}"

    @contextlib.contextmanager
    def living(self):
        """The function of the module, changed."""
        owner = importlib.import_module(self.module)
        for part in self.function.split("."):
            owner = vars(owner)[part] if isinstance(owner, type) else getattr(owner, part)
        function = getattr(owner, "builder", owner)
        while not isinstance(function, types.FunctionType):
            function = getattr(function, "function", None) or function.__wrapped__
        module = ast.Module([self.node], type_ignores=[])
        compiled = compile(ast.fix_missing_locations(module), owner.__module__, "exec")
        code = next(c for c in compiled.co_consts if isinstance(c, types.CodeType))
        original, function.__code__ = function.__code__, code
        try:
            yield
        finally:
            function.__code__ = original


def mutants(module):
    """All mutants of a module, in the order of its lines."""
    path = ROOT / (module.replace(".", "/") + ".py")
    source = path.read_text()
    tree, lines = ast.parse(source), [line.encode() for line in source.splitlines()]
    for top in tree.body:
        members = top.body if isinstance(top, ast.ClassDef) else [top]
        for function in members:
            if isinstance(function, ast.FunctionDef):
                owner = f"{top.name}." if isinstance(top, ast.ClassDef) else ""
                for kind, old, new in _changes(function):
                    yield Mutant(
                        module,
                        owner + function.name,
                        kind,
                        ast.unparse(old),
                        ast.unparse(new),
                        _marked(lines, old),
                        old.lineno,
                        old.col_offset,
                        _changed(function, old, new),
                    )


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
        if name in {"ZeroGradient", "isinstance", "check_integer"}:
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
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        yield "comparison", node, like(ops=[SWAPS[type(node.ops[0])]()])
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


def _is_root(node):
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("jnp.sqrt", "cube_root")


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

    def __init__(self, chosen, report):
        self.chosen, self.report = chosen, report

    def pytest_runtestloop(self, session):
        items = {}
        for item in session.items:
            items.setdefault(item.path, []).append(item)
        for i, mutant in enumerate(self.chosen):
            faulthandler.dump_traceback_later(SECONDS, exit=True)
            tests = items.get(mirror(mutant.module), [])
            with mutant.living():
                self.report(i, tests != [] and all(map(passes, tests)))
        faulthandler.cancel_dump_traceback_later()
        return True


def passes(item):
    from _pytest.runner import runtestprotocol

    item._initrequest()  # what a rerun needs
    return all(r.outcome != "failed" for r in runtestprotocol(item, log=False, nextitem=None))


def mirror(module):
    *folders, name = module.split(".")[1:]
    return TESTS.joinpath(*folders, f"test_{name}.py")


def trial(places):
    """In a process of its own: the mutants of these modules, by their place in the list of each."""
    lists = {module: list(mutants(module)) for module, _ in places}
    chosen = [lists[module][i] for module, i in places]
    files = sorted({str(mirror(mutant.module)) for mutant in chosen})
    out = os.fdopen(os.dup(1), "w", buffering=1)

    def report(i, lives):
        print(json.dumps([i, lives]), file=out)

    with contextlib.redirect_stdout(sys.stderr):
        arguments = ["-q", "-m", "paper", "-p", "no:cacheprovider", "-p", "no:xdist"]
        pytest.main(
            [*arguments, "-o", "addopts=--import-mode=importlib", *files],
            plugins=[Trial(chosen, report)],
        )


def survivors(chosen):
    """Those of the mutants that pass the tests of their modules. One that hangs does not pass."""
    chosen, alive, start = list(chosen), [], 0
    lists = {m.module: list(mutants(m.module)) for m in chosen}
    places = [(m.module, lists[m.module].index(m)) for m in chosen]
    while start < len(chosen):
        done = subprocess.run(
            [sys.executable, "-m", "tests.mutants", "--trial"],
            input=json.dumps(places[start:]),
            capture_output=True,
            check=False,
            text=True,
            cwd=ROOT,
            env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
        )
        results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
        if not results and done.returncode == 0:
            raise RuntimeError(done.stderr)
        alive += [chosen[start + i] for i, lives in results if lives]
        start += len(results) + 1  # one more hung, where some are left
    return alive


def same():
    """The names of the mutants that are listed as computing the same."""
    with (TESTS / "mutants.toml").open("rb") as file:
        return {name for group in tomllib.load(file)["same"] for name in group["mutants"]}


def modules(names):
    """The modules of these names, or all that a marked test mirrors."""
    found = [
        f"gradtx.{folder}.{path.stem.removeprefix('test_')}"
        for folder in FOLDERS
        for path in sorted((TESTS / folder).glob("test_*.py"))
        if "mark.paper(" in path.read_text()
        and (ROOT / "gradtx" / folder / path.name.removeprefix("test_")).exists()
    ]
    unknown = set(names) - {m.rsplit(".", 1)[1] for m in found} - set(found)
    if unknown:
        raise SystemExit(f"no such module, or no test of it is marked paper: {sorted(unknown)}")
    return [m for m in found if not names or {m, m.rsplit(".", 1)[1]} & {*names}]


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="the mutants, without running them")
    parser.add_argument("--trial", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.trial:
        return trial(json.load(sys.stdin))
    listed, alive, count = same(), 0, 0

    def tried(module):
        chosen = [mutant for mutant in mutants(module) if mutant.name not in listed]
        return module, chosen, chosen if given.list else survivors(chosen)

    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        for module, chosen, left in pool.map(tried, modules(given.names)):
            count, alive = count + len(chosen), alive + len(left)
            print(f"{module}: {len(chosen)} mutants, {len(left)} live", flush=True)
            for mutant in left:
                print(f"  {mutant}", flush=True)
    print(f"{count} mutants, {alive} live")
    return alive and not given.list


if __name__ == "__main__":
    sys.exit(main())
