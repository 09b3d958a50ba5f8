"""Which tests hold a transformation to its paper, and which beside a library that has it too.

Markers say so, with the names that the test builds: `paper` stands on a test that compares steps
with a transcription in NumPy's float64, `library` on one beside PyTorch, Keras, TensorFlow
or its authors' code.
"""

import functools
import pathlib

import optax
import pytest

import gradtx
from gradtx.names.namespace import homes
from tests import mutants
from tests.catalogue import CATALOGUE, builders, optimizers

TESTS = pathlib.Path(__file__).parent

# Links from papers; they train nothing by themselves.
LINKS = {
    "add_cautious_decayed_weights",
    "add_row_decayed_weights",
    "cautious",
    "ema_nesterov",
    "floor_update_ratio",
    "grokfast_ema",
    "grokfast_ma",
    "hyperball",
    "keep_radius",
    "mars",
    "mechanize",
    "primal_averaging",
    "qk_clip",
    "radial_brake",
    "scale_by_backtracking_linesearch",
    "scale_by_distance_over_gradients",
}


@pytest.fixture(scope="module")
def marked(request):
    """The names that each marker carries, with the files of their tests, over all tests."""
    return functools.partial(collected, request.session)


@functools.cache
def collected(session, mark):
    found = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        if f"mark.{mark}(" not in path.read_text():
            continue
        for item in session.genitems(pytest.Module.from_parent(session, path=path)):
            for marker in item.iter_markers(mark):
                for name in marker.args:
                    found.setdefault(name, set()).add(path)
    return found


@pytest.mark.slow
def test_every_optimizer_is_held_to_its_paper(marked):
    assert {*optimizers(), *LINKS} <= marked("paper").keys() <= set(homes("gradtx"))


def test_every_optimizer_is_beside_a_library_that_has_it(marked):
    """Optax's are compared in test_contracts and where test_optax_names says."""
    both = {n for n in optimizers() if hasattr(optax, n) or hasattr(optax.contrib, n)}
    alone = {name for name in optimizers() if CATALOGUE[name].alone}
    assert set(optimizers()) - both - marked("library").keys() == alone


def mirror(name):
    """The test file that mirrors the module of a public name."""
    module = getattr(gradtx, name).builder.function.__module__
    *folders, last = module.split(".")[1:]
    return TESTS.joinpath(*folders, f"test_{last}.py")


@pytest.mark.slow
def test_papers_are_tested_where_the_module_is_mirrored(marked):
    assert {n: {mirror(n)} for n in marked("paper")} == marked("paper")


def test_every_module_of_a_transformation_has_its_test_file():
    """Or one that says that it sees its mutants."""
    files = {mirror(builder.name) for builder in builders()}
    missing = {f.stem.removeprefix("test_") for f in files if not f.exists()}
    assert missing - mutants.said().keys() == set()


def test_every_folder_of_tests_mirrors_one():
    folders = {p.parent.relative_to(TESTS) for p in TESTS.glob("*/**/test_*.py")}
    assert [f for f in folders if not (TESTS.parent / "gradtx" / f).is_dir()] == []
