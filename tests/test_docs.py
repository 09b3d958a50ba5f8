"""What the pages of the documentation are made with."""

import inspect
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import gradtx
from gradtx.names.namespace import homes

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture
def mathematics(monkeypatch):
    pytest.importorskip("math_core")
    pytest.importorskip("ziamath")
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(DOCS))
    from making import mathematics

    return mathematics


@pytest.mark.slow
def test_an_aligned_equation_has_a_row_for_each_line(mathematics):
    found = mathematics.display(r"a &= b, & c &= d \\ e &= \hat f")
    assert found.count("<mtr>") == 2
    assert found.count("<mtd") == 6
    assert mathematics.display("a\n\nb").count("<math") == 2


@pytest.mark.parametrize("latex", ["a & b", r"\frac{a}", r"\undefined", r"\left( a", "a}", "a^b^c"])
def test_an_equation_that_cannot_be_rendered_is_an_error(mathematics, latex):
    with pytest.raises(mathematics.LatexError):
        mathematics.inline(latex)


def test_pages_that_speak_of_path_patterns_link_to_where_they_are_explained():
    home = (DOCS / "composition.md").read_text()
    assert "(path-patterns)=\n## Path patterns\n" in home
    spoken = []
    for path in {*DOCS.glob("*.md"), DOCS.parent / "README.md"} - {DOCS / "composition.md"}:
        for start, end in re.findall(r"(.?)path patterns?(.{0,40})", path.read_text()):
            assert start == "[", path.name
            assert end.startswith("](composition.md#path-patterns)"), path.name
            spoken.append(path.name)
    assert len(spoken) >= 2


# How to do something, and the page with what was measured for it.
HOW_TO = {
    "benchmarks": "measurements",
    "choosing": "choosing_measured",
    "distributed": "distributed_measured",
    "guards": "reliability",
    "leaderboard": "leaderboard_measured",
    "storage": "storage_measured",
}
FENCED = re.compile(r"^(```|:::).*?^\1[^\n]*$", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```(?:python|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def words(text):
    """The number of words; a link counts as what is read of it."""
    return len(re.sub(r"\]\([^)]*\)", "]", text).split())


def paragraphs(text):
    """The paragraphs of a page, and each entry of a list by itself."""
    for part in re.split(r"\n\s*\n", FENCED.sub("", text)):
        if not part.lstrip().startswith(("|", "#")):
            yield from re.split(r"\n(?=\s*(?:[-*]|\d+\.)\s)", part)


@pytest.mark.parametrize("page", HOW_TO)
def test_what_people_act_on_is_short_and_leads_to_the_evidence(page):
    text = (DOCS / f"{page}.md").read_text()
    assert words(FENCED.sub("", text)) <= 700
    assert f"({HOW_TO[page]}.md" in text
    evidence = (DOCS / f"{HOW_TO[page]}.md").read_text()
    assert f"({page}.md" in evidence or page == "benchmarks"


def test_no_paragraph_is_long():
    pages = [*DOCS.glob("*.md")]
    long = {
        f"{path.name}: {part.strip()[:50]}": words(part)
        for path in [*pages, DOCS.parent / "README.md"]
        for part in paragraphs(path.read_text())
        if words(part) > 100
    }
    assert len(pages) > 25
    assert long == {}


def test_code_fits_the_column():
    """Lines of a page's code; what a program prints is as long as it prints it."""
    lines = [
        (path.name, line)
        for path in [*DOCS.glob("*.md"), DOCS.parent / "README.md"]
        for block in BLOCK.findall(path.read_text())
        for line in block.splitlines()
    ]
    assert len(lines) > 500
    assert [line for line in lines if len(line[1]) > 85] == []


def contents(path):
    """The pages that a page's tables of contents name."""
    text = path.read_text()
    if path.suffix == ".md":
        blocks = re.findall(r"^```\{toctree\}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    else:
        blocks = re.findall(r"^\.\. toctree::\n((?:[ ]{3}.*\n|\n)+)", text, re.MULTILINE)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    entries = [line for line in lines if line and not line.startswith(":")]
    return [re.sub(r"^.*<(.*)>$", r"\1", entry).lstrip("/") for entry in entries]


def test_every_page_is_in_one_table_of_contents():
    pages = [*DOCS.glob("*.md"), DOCS / "api" / "about.rst"]
    listed = [name for path in pages for name in contents(path)]
    written = {"catalogue", "recipes/index", "api/generated/index"}
    assert sorted(listed) == sorted({path.stem for path in DOCS.glob("*.md")} - {"index"} | written)


def test_the_sidebar_opens_with_at_most_twelve_entries():
    top = contents(DOCS / "index.md")
    assert len(top) <= 12
    assert (top[0], top[-1]) == ("getting_started", "measured")
    # What was measured is an appendix.
    assert set(HOW_TO.values()) <= set(contents(DOCS / "measured.md"))


def names_for_optax():
    """The names of which the page that chooses between names says that they are for Optax's."""
    for line in (DOCS / "which_one.md").read_text().splitlines():
        names, _, why = line.strip("| ").partition(" | ")
        if why.startswith("for Optax's"):
            yield from re.findall(r"`(\w+)`", names)


def test_names_for_users_of_optax_say_so_where_they_are_explained(making):
    _, pages = making
    names = list(names_for_optax())
    assert len(names) >= 9
    for name in names:
        page = "\n".join(pages.documented(name)) + getattr(gradtx, name).__doc__
        assert "Kept for code written for Optax" in page, name
    for name in ("accumulate", "guard", "partition", "apply_updates"):
        assert "Kept for" not in "\n".join(pages.documented(name)) + getattr(gradtx, name).__doc__


# Names that do nearly the same, after the one to prefer.
ALIKE = {
    "accumulate": ("multi_steps", "MultiSteps", "apply_every", "microbatch"),
    "guard": (
        *("apply_if_finite", "skip_not_finite", "skip_large_updates", "skip_if_none"),
        *("conditionally_transform", "conditionally_mask"),
    ),
    "ema_params": ("ema", "swa_params", "ema_nesterov", "primal_averaging", "lookahead"),
    "schedule": ("replace", "injected"),
    "make_step": ("evaluated",),
    "replace": ("inject_hyperparams",),
    "inject_hyperparams": ("inject_stateful_hyperparams",),
}


def test_of_names_that_do_nearly_the_same_each_says_which_to_prefer():
    page = (DOCS / "which_one.md").read_text()
    for preferred, others in ALIKE.items():
        for name in others:
            assert f"`{name}`" in page
            opening = inspect.getdoc(getattr(gradtx, name)).partition("Args:")[0]
            assert "prefer" in opening or "Kept for code" in opening, name
            assert preferred in opening, name


@pytest.fixture
def making(monkeypatch):
    pytest.importorskip("math_core")
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(DOCS))
    from making import arguments, pages

    return arguments, pages


def test_arguments_have_types_ranges_and_numbers(making):
    arguments, _ = making
    muon = arguments.written(gradtx.muon)
    assert arguments.default(muon["ns_coeffs"]) == "(3.4445, -4.775, 2.0315)"
    assert arguments.default(muon["learning_rate"]) == "required"
    for name, text in {"beta": " in [0, 1)", "weight_decay": " in [0, ∞)", "mu_dtype": ""}.items():
        hint = gradtx.muon.builder.hints[name]
        assert arguments.interval(arguments.hyperparameter_range(hint)) == text
    tx = inspect.signature(gradtx.make_step).parameters["tx"]
    assert arguments.shown(tx.annotation) == "GradientTransformation"
    # No default is an object's address, no type an annotation's inside.
    for name in homes("gradtx"):
        public = getattr(gradtx, name)
        if inspect.isfunction(public):
            for parameter in arguments.written(public).values():
                assert " at 0x" not in arguments.default(parameter), name
            for parameter in inspect.signature(public).parameters.values():
                assert "Range(" not in arguments.shown(parameter.annotation), name


def test_the_api_opens_with_what_people_do(making):
    _, pages = making
    assert list(pages.PAGES)[:3] == ["Training", "Optimizers", "Schedules"]
    assert pages.GROUPS["Training"][:4] == [
        "make_step",
        "TrainStep",
        "minimize",
        "apply_gradients",
    ]
    assert pages.GROUPS["Composition"][0] == "chain"
    assert set(pages.FIRST) <= set(pages.NAMES)
    assert not {"diloco", "aggregate_int8"} & set(pages.GROUPS["Training"])
    assert any("0.017 on a character transformer" in line for line in pages.rates("adamw"))


@pytest.mark.slow
def test_every_public_name_has_an_entry_that_says_where_its_home_is(making):
    _, pages = making
    listed = [name for names in pages.GROUPS.values() for name in names]
    assert sorted(listed) == sorted(pages.NAMES)
    assert homes("gradtx").keys() <= {*listed, *pages.GATHERED}
    assert list(pages.PAGES)[-4:] == ["Losses", "Measuring", "Contrib", "States"]
    assert {"dion3", "trust_gate"} <= {*pages.GROUPS["Contrib"]}
    assert "muon" in pages.GROUPS["Optimizers"]
    for name in homes("gradtx").keys() - {*pages.GATHERED}:
        said = re.findall(r"Its home is ``(gradtx\.\w+)``", "\n".join(pages.documented(name)))
        assert len(said) == (name not in gradtx.__all__), name
        for room in said:
            assert getattr(getattr(gradtx, room.removeprefix("gradtx.")), name)


# What people type, and the page that tells them how.
SEARCHED = {
    "freeze layers": "recipes/frozen_layers",
    "gradient accumulation": "recipes/micro_batches",
    "ema": "recipes/average_for_evaluation",
    "muon": "recipes/muon_with_adamw",
    "clip": "clipping",
    "nan": "recipes/skip_bad_steps",
    "plot schedule": "recipes/early_stopping",
    "multi-gpu": "distributed",
    "layerwise learning rate": "recipes/layerwise_rates",
    "early stopping": "recipes/early_stopping",
    "distributed": "distributed",
    "checkpoint": "recipes/resume",
    "learning rate schedule": "recipes/warmup",
    "bfloat16": "low_precision",
    "8-bit": "storage",
    "hyperparameter sweep": "recipes/many_settings",
    "pytorch": "recipes/from_pytorch",
    "parameter groups": "recipes/several_optimizers",
    "differential privacy": "recipes/private",
    "custom optimizer": "writing_a_rule",
}


# What users of other libraries ask for in their trackers, and what new users typed.
ASKED = {
    "current learning rate": "recipes/current_rates",
    "log learning rate": "recipes/current_rates",
    "nnx parameter groups": "recipes/flax_nnx_groups",
    "nnx freeze": "recipes/flax_nnx_groups",
    "weight decay for any optimizer": "recipes/decay_for_any_optimizer",
    "decoupled weight decay": "recipes/decay_for_any_optimizer",
    "independent weight decay": "recipes/decay_for_any_optimizer",
    "reduce on plateau": "recipes/plateau",
    "several hosts": "distributed",
    "optimizer state sharding": "distributed",
    "grad accumulation": "recipes/micro_batches",
    "gradient clipping": "clipping",
    "no decay bias": "recipes/decay_on_matrices",
    "lasso": "recipes/lasso_path",
    "implicit differentiation": "recipes/hypergradient",
    "progress bar": "recipes/progress_bar",
    "install gpu": "getting_started",
    "l-bfgs bounds": "solutions",
    "param groups": "recipes/several_optimizers",
    "resume dropout": "recipes/end_to_end_nnx",
    "root finding": "elsewhere",
    "mental model": "mental_model",
    "learning rate": "rates",
    "save and load": "checkpoints",
    "zeroth order": "without_backward",
    "mezo": "recipes/finetune_without_backward",
}


def main_entries():
    """The pages of each main entry of the index: to a search for its words Sphinx gives 100
    points, and at most 16 to a title, so that they come first."""
    found = {}
    for path in DOCS.glob("*.md"):
        for entries in re.findall(r"^```\{index\} ! (.*)$", path.read_text(), re.MULTILINE):
            for word in entries.split(", ! "):
                found.setdefault(word.lower(), []).append(path.stem)
    for path in (DOCS.parent / "examples" / "recipes").glob("*.py"):
        said = path.read_text().partition("Search: ")[2].partition('"""')[0]
        for word in " ".join(said.split()).split(", "):
            found.setdefault(word.lower(), []).append(f"recipes/{path.stem}")
    return found


def test_a_search_finds_how_to_do_it_first():
    entries = main_entries()
    assert len(SEARCHED) == 20
    for words, page in {**SEARCHED, **ASKED}.items():
        assert entries.get(words) == [page], words
        # Longer entries that contain the words get fewer points, by their length.
        longer = [entry for entry in entries if words in entry and entry != words]
        assert all(len(words) / len(entry) < 1 for entry in longer)


@pytest.mark.skipif(shutil.which("node") is None, reason="the search runs in JavaScript")
def test_the_built_search_shows_the_right_page_first():
    """In the pages as they were built last, with the search that they have."""
    built = DOCS / "_build" / "html"
    index = built / "searchindex.js"
    sources = [*DOCS.glob("*.md"), *(DOCS.parent / "examples" / "recipes").glob("*.py")]
    newest = max(path.stat().st_mtime for path in sources)
    if not index.exists() or index.stat().st_mtime < newest:
        pytest.skip("the documentation is not built, or was before a page changed")
    expected = {**SEARCHED, **ASKED}
    program = Path(__file__).with_name("first_hits.js")
    command = ["node", str(program), str(built), *expected]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    hits = json.loads(done.stdout)
    assert {words: hits[words] for words in expected} == expected


@pytest.fixture
def leaders(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    from making import leaders

    return leaders


def test_choosing_says_what_the_leaderboard_saw(leaders):
    """The first page's picture, the list under it in the guide, and the tables are one story."""
    text = (DOCS / "choosing.md").read_text().partition("## What wins where")[2]
    names = {"SOAP": "soap", "Muon": "muon", "Schedule-free AdamW": "schedule_free_adamw"}
    names |= {"Lion": "lion", "SGD with momentum": "sgd, momentum"}
    assert set(names.values()) == set(leaders.SHOWN)
    said = {}
    for entry in re.findall(r"^- (.*?)(?=\n- |\n\n)", text, re.MULTILINE | re.DOTALL)[:4]:
        subject, _, rest = " ".join(entry.split()).removeprefix("**").partition("**")
        wins, _, loses = rest.partition("loses")
        for name in subject.split(" and "):
            found = [
                {p for p in leaders.PROBLEMS if p.replace("tabular", "table") in part}
                for part in (wins.partition("On the")[0], loses)
            ]
            said[names[name]] = found
    for name in leaders.SHOWN:
        verdicts = {p: leaders.results(p)[name].verdict for p in leaders.PROBLEMS}
        for verdict, found in zip(leaders.SEEN, said[name], strict=True):
            assert found == {p for p, v in verdicts.items() if v == verdict}, (name, verdict)
    drawn = "pictures/leaders.html"
    assert drawn in text
    assert drawn in (DOCS / "index.md").read_text()
    ratio = leaders.results("image")["sgd, momentum"].ratio
    assert f"{ratio:.0f}\ntimes AdamW's loss" in text


def curves():
    return json.loads((DOCS / "curves.json").read_text())


@pytest.fixture
def benchmark():
    pytest.importorskip("sklearn")
    from benchmarks import curves

    return curves


def test_curves_are_those_of_the_table_and_fall(benchmark):
    """A new optimizer joins when the curves are drawn again; its page has none until then."""
    assert set(curves()) <= set(benchmark.optimizers())
    assert len(curves()) >= 86
    for name, found in curves().items():
        assert found["rate"] == benchmark.rates()[name]
        # Rprop, made for full batches, rises again.
        assert min(found["losses"][5:]) < 0.6 * found["losses"][0], name


@pytest.mark.slow
def test_a_curve_is_drawn_again(benchmark):
    np.testing.assert_allclose(benchmark.curve("sgd", "1"), curves()["sgd"]["losses"], rtol=0.05)
