"""A step goes the way that docs/a_step.md describes, in few calls."""

import json
import pathlib
import re
import subprocess
import sys

import jax.numpy as jnp
import pytest

import gradtx
from gradtx.expansion import Expansion

ROOT = pathlib.Path(gradtx.__file__).parent
PAGE = ROOT.parent / "docs" / "a_step.md"


def loss(params, x):
    return jnp.sum((params["w"] * x) ** 2)


def called(run):
    """The functions of gradtx that are called while `run` runs: file, name and line of each."""
    found = []

    def note(frame, event, _):
        path = pathlib.Path(frame.f_code.co_filename)
        if event == "call" and ROOT in path.parents:
            code = frame.f_code
            where = path.relative_to(ROOT).as_posix()
            found.append((where, code.co_qualname, code.co_firstlineno))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return found


def a_step(tx, size, **options):
    params, x = {"w": jnp.ones(size)}, jnp.ones(size)
    step, state = gradtx.make_step(loss, tx, **options), tx.init(params)
    return lambda: step(params, state, x)


def the_optimizer():
    return gradtx.chain(gradtx.clip_by_global_norm(1.0), gradtx.adamw(1e-3))


def while_traced():
    """What is called while a step is traced, when what is done once is done."""
    tx = the_optimizer()
    a_step(tx, 3)()
    return called(a_step(tx, 4))


@pytest.fixture(scope="module")
def calls():
    """In a process of its own: JAX compares an optimizer with those that it has seen before."""
    program = "import json; from tests import test_a_step as a; print(json.dumps(a.while_traced()))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT.parent)
    return [tuple(call) for call in json.loads(done.stdout)]


@pytest.mark.slow
def test_the_page_lists_the_files_in_their_order(calls):
    listed = re.findall(r"^\| `([\w/]+\.py)` \|", PAGE.read_text(), re.MULTILINE)
    assert listed == list(dict.fromkeys(file for file, *_ in calls))


def test_a_step_that_is_compiled_enters_what_the_page_says():
    run = a_step(the_optimizer(), 5, donate=False)
    run()
    said = re.search(r"The second call of the step\n?(.*?);", PAGE.read_text(), re.DOTALL)[1]
    assert {file for file, *_ in called(run)} == set(re.findall(r"`([\w/]+\.py)`", said))


ADAPTERS = {
    "explanations.py": "explained.<locals>.run",
    "declaration.py": "Declaration.check_numbers",
    "paths.py": "without_objects",
    "packed.py": "on_leaves",
    "eager.py": "Eager.steps",
    "shardings.py": "on_explicit_axes",
    "scheduled.py": "Schedules.update",
    "materialized.py": "on_arrays",
}


def test_the_adapters_of_an_eager_step_stand_in_the_order_of_the_page():
    """All of them: of packed leaves, a schedule, and a pair made by hand that keeps a slot."""
    tx = gradtx.hyperball(gradtx.sgd(0.1), gradtx.linear_schedule(0.1, 0.0, 10))
    params = gradtx.pack({"w": jnp.ones((2, 2)), "v": jnp.ones((2, 2))})
    state = tx.init(params)
    found = called(lambda: tx.update(params, state, params))
    entered = [file for file, name, _ in found if ADAPTERS.get(file) == name]
    listed = re.findall(r"^\d\. `([\w/]+\.py)`", PAGE.read_text(), re.MULTILINE)
    assert list(dict.fromkeys(entered)) == listed == list(ADAPTERS)


def test_every_file_that_the_page_names_is_there():
    for name in re.findall(r"`([\w/]+\.py)`", PAGE.read_text()):
        assert (ROOT / name).is_file(), name


@pytest.mark.slow
def test_tracing_a_step_takes_few_calls(calls):
    """Dict and list comprehensions count as calls before Python 3.12: it has fewer."""
    named = {call for call in calls if not call[1].rpartition(".")[2].startswith("<")}
    assert len(calls) <= 560
    assert len(named) <= 120
    assert len({file for file, *_ in calls}) <= 26


@pytest.mark.parametrize("leaves", [1, 20])
def test_an_eager_chain_is_entered_once(monkeypatch, leaves):
    entered = []
    update = Expansion.update

    def noted(self, *args, **kwargs):
        entered.append(self.declaration.name)
        return update(self, *args, **kwargs)

    tx = gradtx.chain(gradtx.clip_by_global_norm(1.0), gradtx.adamw(1e-3))
    params = [jnp.ones(3)] * leaves
    state = tx.init(params)
    monkeypatch.setattr(Expansion, "update", noted)
    tx = gradtx.replace(tx, max_norm=1.5)  # whose way in is the noted one
    tx.update(params, state, params)
    assert entered[0] == "chain"
    assert entered.count("chain") == len(entered) <= 2  # again where the program is traced
