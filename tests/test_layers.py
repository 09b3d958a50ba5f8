"""Imports point downward only, and importing costs little."""

import ast
import graphlib
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent / "gradtx"

# Lowest first: a folder or a module may import from itself and from those before it in this list.
LAYERS = (
    *("names", "types", "checks", "programs", "numerics"),
    *("declarations", "leaves", "core"),
    *("tree", "tree_utils", "linalg", "storage", "kernels", "ownership", "engine"),
    *("composition", "estimators", "inspection", "sharding", "backward", "training", "checkpoint"),
    *("schedules", "projections", "losses", "transforms", "optimizers"),
    *("distributed", "wrappers", "sparse"),
    *("interop", "assignment", "microbatching", "perturbations", "testing"),
    *("commands", "_src", "contrib", "measuring", "states", "__main__"),
)


def test_the_design_draws_every_layer():
    picture = (ROOT.parent / "docs" / "making" / "layers.html").read_text()
    drawn = re.findall('class="middle code"[^>]*>([^<]*)<', picture)
    assert sorted(" ".join(drawn).split()) == sorted(LAYERS)


def layer(module):
    return LAYERS.index(module.split(".")[1])


def imports(path):
    """What a file imports, inside of functions too: the module, and the name if there is one."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gradtx":
            for alias in node.names:
                if node.module == "gradtx":
                    yield f"gradtx.{alias.name}", None
                else:
                    yield node.module, alias.name
        elif isinstance(node, ast.Import):
            yield from ((a.name, None) for a in node.names if a.name.startswith("gradtx."))


FILES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")


def upward(path):
    own = ".".join(("gradtx", *path.relative_to(ROOT).with_suffix("").parts))
    return [module for module, _ in imports(path) if layer(module) > layer(own)]


def by_file(faults):
    """The files that have faults, with them."""
    found = {str(path.relative_to(ROOT)): faults(path) for path in FILES}
    return {path: names for path, names in found.items() if names}


@pytest.mark.slow
def test_imports_point_downward():
    assert by_file(upward) == {}


@pytest.mark.slow
def test_no_modules_import_each_other_in_a_circle():
    """Inside of a room too, where no order is listed."""
    names = {".".join(("gradtx", *p.relative_to(ROOT).with_suffix("").parts)): p for p in FILES}
    needs = {}
    for name, path in names.items():
        pairs = [(module, f"{module}.{inner}") for module, inner in imports(path)]
        needs[name] = {inner if inner in names else module for module, inner in pairs}
    assert [*graphlib.TopologicalSorter(needs).static_order()]


def private(path):
    return [name for _, name in imports(path) if (name or "").startswith("_")]


@pytest.mark.slow
def test_no_private_name_crosses_a_module():
    assert by_file(private) == {}


@pytest.mark.slow
def test_no_two_classes_share_a_name():
    found = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name.lstrip("_"), []).append(str(path.relative_to(ROOT)))
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


def lines_beside_docstring(function):
    documented = ast.get_docstring(function) is not None
    docstring = function.body[0].end_lineno - function.body[0].lineno + 1 if documented else 0
    return function.end_lineno - function.lineno + 1 - docstring


def long_functions(tree):
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and lines_beside_docstring(node) > 60
    ]


@pytest.mark.slow
def test_a_function_is_seen_at_once():
    """Of at most 60 lines beside its docstring, so that it need not be scrolled."""
    by_name = {str(path): long_functions(ast.parse(path.read_text())) for path in FILES}
    assert {path: names for path, names in by_name.items() if names} == {}
    long = ast.parse("def f():\n" + "    'a docstring'\n" + 60 * "    pass\n")
    assert long_functions(long) == ["f"]


PAIRS = ("GradientTransformation", "GradientTransformationExtraArgs")


def makers(node, inside=""):
    """The outermost functions of a file that make a pair of an `init` and an `update`."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", None) in PAIRS:
        yield inside
    if isinstance(node, ast.FunctionDef):
        inside = inside or node.name
    for child in ast.iter_child_nodes(node):
        yield from makers(child, inside)


@pytest.mark.slow
def test_the_design_names_what_is_built_by_hand():
    built = [name for path in FILES for name in makers(ast.parse(path.read_text()))]
    page = (ROOT.parent / "docs" / "design.md").read_text()
    section = page.partition("## Built by hand\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[2] for line in section.splitlines() if line.startswith("| ")]
    named = re.findall(r"`(\w+)`", " ".join(rows))
    assert sorted({*named}) == sorted({*built})


@pytest.mark.slow
def test_only_jax_jaxlib_and_numpy_at_run_time():
    allowed = {"jax", "jaxlib", "numpy", "gradtx", *sys.stdlib_module_names}
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= allowed, path


def test_all_contexts_are_made_in_one_module_that_every_transformation_imports():
    made = [p.name for p in FILES if "make_user_context" in p.read_text()]
    assert made == ["contexts.py"]
    assert ("gradtx.programs.contexts", "check_indices") in imports(ROOT / "leaves/rows.py")
    assert ("gradtx.leaves.rows", "is_rows") in imports(ROOT / "core/eager.py")


@pytest.mark.slow
def test_the_first_step_of_a_process_compiles_once():
    """What is imported within its trace adds nothing to the keys of JAX's caches."""
    program = (
        "import gradtx, jax, jax.numpy as jnp\n"
        "tx, x = gradtx.adam(0.1), jnp.ones(2)\n"
        "traced = []\n"
        "def loss(x):\n"
        "    traced.append(1)\n"
        "    return jnp.sum(x**2)\n"
        "step = jax.jit(lambda x, state: gradtx.minimize(loss, tx, x, state))\n"
        "state = tx.init(x)\n"
        "for _ in range(3):\n"
        "    x, state, _ = step(x, state)\n"
        "assert len(traced) == 1, traced\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ}, cwd=ROOT.parent)


@pytest.mark.slow
def test_importing_and_building_touch_no_device():
    """They may come before ``jax.distributed.initialize``, and before a process is forked."""
    program = (
        "import gradtx, jax\n"
        "rate = gradtx.warmup_cosine_decay_schedule(0.0, 0.1, 10, 100)\n"
        "gradtx.chain(gradtx.clip_by_global_norm(1.0), gradtx.adamw(rate), gradtx.ema(rate))\n"
        "gradtx.muon(lambda count: 0.1 / (count + 1)), gradtx.sgd(lambda: 0.1)\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge._backends, xla_bridge._backends\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ}, cwd=ROOT.parent)


@pytest.mark.slow
def test_the_tests_are_collected_without_pytorch():
    tests = pathlib.Path(__file__).parent
    files = [str(p) for p in sorted(tests.rglob("test_*.py")) if '"torch"' in p.read_text()]
    program = (
        "import sys, pytest\n"
        "class NotInstalled:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'torch':\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, NotInstalled())\n"
        "sys.exit(pytest.main(['--collect-only', '-qq', '-m', '', *sys.argv[1:]]))\n"
    )
    assert len(files) >= 5
    subprocess.run([sys.executable, "-c", program, *files], check=True, cwd=ROOT.parent)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lbfgs", "lbfgsb"])
def test_flax_is_told_of_a_pair_that_is_made_while_its_module_is_imported(name):
    """As a default of an argument, say: telling Flax imports no optimizer, whichever is first."""
    program = (
        "import sys, types\n"
        "sys.modules['flax'] = types.ModuleType('flax')\n"
        "import gradtx\n"
        f"gradtx.{name}()\n"
        "print('gradtx.checkpoint.flax' in sys.modules, 'gradtx.interop' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["True", "False"]
