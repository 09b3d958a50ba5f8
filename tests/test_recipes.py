"""Each script under examples/recipes runs to its end; what it shows, it asserts itself."""

import ast
import json
import re
import runpy
import warnings
from pathlib import Path

import pytest

from benchmarks import recipes

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "recipes"
RECIPES = sorted(path.stem for path in FOLDER.glob("*.py"))
RUNS = json.loads(recipes.KEPT.read_text())
NEEDS = {
    "early_stopping": "sklearn",
    "end_to_end_equinox": "equinox",
    "end_to_end_nnx": "flax.nnx",
    "equinox_module": "equinox",
    "flax_linen": "flax",
    "flax_nnx": "flax",
    "flax_nnx_groups": "flax",
    "flax_nnx_lbfgs": "flax",
    "flax_nnx_transformer": "flax",
    "from_keras": "keras",
    "from_pytorch": "torch",
    "haiku_network": "haiku",
    "keras_fit": "keras",
    "progress_bar": "tqdm",
    "resume_orbax": "orbax.checkpoint",
    "step_inside": "flax",
    "step_inside_equinox": "equinox",
}
# Of these only the words are compared, for these reasons.
OTHER_NUMBERS = {
    "step_inside": "the tests have XLA compile without optimization, and temporaries are others",
    "step_inside_equinox": "the same, with another XLA",
    "early_stopping": "so is rounding, and the epoch in which it stops may be another",
    "end_to_end_equinox": "the same",
    "end_to_end_nnx": "the same",
    "lbfgs": "the same, for the steps of a search that ends at 1e-12",
}
NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")


def test_there_are_recipes():
    assert len(RECIPES) >= 12
    assert set(NEEDS) <= set(RECIPES)
    assert set(OTHER_NUMBERS) <= set(RECIPES)


@pytest.mark.parametrize("name", recipes.SCRIPTS)
def test_what_a_page_shows_came_out_of_the_script_as_it_is(name):
    """If this fails, run ``python -m benchmarks.recipes`` and look at what changed."""
    assert RUNS[name]["digest"] == recipes.digest(recipes.SCRIPTS[name])
    assert RUNS[name]["printed"].strip()
    drawn = [recipes.PICTURES / f"{name}{part}.png" for part in ("", "_dark")]
    assert "figure" not in recipes.SCRIPTS[name].read_text() or all(p.exists() for p in drawn)


def test_what_is_kept_has_a_script():
    assert set(RUNS) == set(recipes.SCRIPTS)
    pictures = {path.stem.removesuffix("_dark") for path in recipes.PICTURES.glob("*")}
    assert pictures <= set(recipes.SCRIPTS)


def numbers(text):
    return [float(found.replace(",", "")) for found in NUMBER.findall(text)]


def agree(name, printed):
    """The words are those that the page shows, and so are the numbers, but for rounding."""
    shown = RUNS[name]["printed"]
    printed = printed.replace("PartitionSpec(", "P(")  # as JAX before 0.9.2 prints the name
    assert NUMBER.sub("0", printed).split() == NUMBER.sub("0", shown).split()
    if name not in OTHER_NUMBERS:
        assert numbers(printed) == pytest.approx(numbers(shown), rel=0.05, abs=2e-3)


def test_another_output_is_seen():
    agree("zero", RUNS["zero"]["printed"])
    for changed in ("4096 -> 5096", "entries -> numbers"):
        old, _, new = changed.partition(" -> ")
        with pytest.raises(AssertionError):
            agree("zero", RUNS["zero"]["printed"].replace(old, new))


@pytest.fixture
def prepared(monkeypatch):
    def prepare(name):
        monkeypatch.setenv("KERAS_BACKEND", "jax")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other libraries, as they are imported
            module = pytest.importorskip(NEEDS[name]) if name in NEEDS else None
        if name == "end_to_end_nnx" and not hasattr(module, "view"):
            pytest.skip("Flax 0.12.0, beside the oldest JAX, has no nnx.view")

    return prepare


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_runs(name, capsys, prepared):
    prepared(name)
    runpy.run_path(str(FOLDER / f"{name}.py"))
    agree(name, capsys.readouterr().out)


@pytest.fixture
def notebooks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from making import notebooks

    return notebooks


@pytest.mark.parametrize("name", RECIPES)
def test_a_notebook_has_the_code_of_its_recipe(name, notebooks):
    source = (FOLDER / f"{name}.py").read_text()
    book = json.loads(notebooks.notebook(source))
    about, *code = book["cells"]
    title = ast.get_docstring(ast.parse(source)).splitlines()[0]
    assert about["source"].startswith(f"# {title.rstrip('.')}\n\n")
    assert "Search:" not in about["source"]
    assert "__file__" not in source  # a notebook has none
    said, *statements = ast.parse(source).body
    assert isinstance(said, ast.Expr)
    shown = ["figure"] if code[-1]["source"] == "figure" else []
    trees = [ast.parse(cell["source"]).body for cell in code]
    found = [ast.dump(statement) for cell in trees for statement in cell]
    assert found[: len(found) - len(shown)] == [ast.dump(statement) for statement in statements]
    assert bool(shown) == ("\nfigure, " in source)
    # What version 4.5 of the format requires of a notebook and of its cells.
    assert book.keys() == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert book["metadata"]["kernelspec"].keys() >= {"name", "display_name"}
    ids = [cell["id"] for cell in book["cells"]]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in ids)
    of_code = {"cell_type", "execution_count", "id", "metadata", "outputs", "source"}
    assert about.keys() == {"cell_type", "id", "metadata", "source"}
    assert all(cell.keys() == of_code and cell["cell_type"] == "code" for cell in code)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras
@pytest.mark.parametrize("name", ["early_stopping", "from_keras", "zero"])
def test_a_notebook_runs(name, capsys, prepared, notebooks):
    """With a figure at its end, and without: the code of the others is compared above."""
    prepared(name)
    book = json.loads(notebooks.notebook((FOLDER / f"{name}.py").read_text()))
    names = {"__name__": "__main__"}
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            exec(compile(cell["source"], f"{name}, {cell['id']}", "exec"), names)
    agree(name, capsys.readouterr().out)
