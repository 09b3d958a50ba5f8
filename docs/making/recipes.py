"""The pages of the recipes: the script, what it printed and drew, and a notebook of it."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from making import notebooks, pictures
from making.writing import heading, indented, patterns_linked, raw

DOCS = Path(__file__).parents[1]
FOLDER = DOCS / "recipes"
EXAMPLES = DOCS.parent / "examples"
RUNS = json.loads((DOCS / "runs.json").read_text(encoding="utf-8"))

PROGRAMS = ("train_digits", "recommender")
LONGEST = 200  # characters of what a card says
REMARKS = {
    "recommender": "The times are those of this run, on two cores that were busy with other work; "
    ":doc:`/sparse` has those of a quiet machine.",
}
GROUPS = {
    "A run from start to end": [
        *("early_stopping", "end_to_end_nnx", "end_to_end_equinox", "train_digits", "recommender"),
        *("warmup", "plateau", "progress_bar", "resume", "resume_orbax"),
    ],
    "Which leaves, and how": [
        *("frozen_layers", "layerwise_rates", "several_optimizers", "muon_with_adamw"),
        *("decay_on_matrices", "decay_for_any_optimizer", "current_rates", "lora"),
    ],
    "Better steps": [
        *("micro_batches", "skip_bad_steps", "average_for_evaluation", "sharpness_aware"),
        *("no_schedule", "many_settings", "lbfgs", "lasso_path"),
    ],
    "Memory and devices": [
        *("bfloat16_parameters", "step_inside", "step_inside_equinox", "zero"),
        *("sharded_table", "finetune_without_backward"),
    ],
    "In other libraries": [
        *("flax_nnx", "flax_nnx_groups", "flax_nnx_lbfgs", "flax_nnx_transformer", "flax_linen"),
        *("equinox_module", "haiku_network", "keras_fit", "from_keras", "from_pytorch"),
    ],
    "Research": ["meta_learned_rate", "hypergradient", "private", "target_network"],
}


def script(name: str) -> Path:
    return (EXAMPLES if name in PROGRAMS else EXAMPLES / "recipes") / f"{name}.py"


def parts(name: str) -> tuple[str, str, list[str], list[str]]:
    """Of a script the title, what it is about, the words it is found by, and the code."""
    source = script(name).read_text(encoding="utf-8")
    text = ast.get_docstring(ast.parse(source)) or ""
    title, _, rest = text.partition("\n\n")
    about, _, words = rest.partition("Search: ")
    code = source[source.index('"""', 3) + 3 :].strip().splitlines()
    return title.rstrip("."), about.strip("\n"), " ".join(words.split()).split(", "), code


def about_lines(text: str) -> Iterator[str]:
    """Paragraphs, of which those that are indented are commands."""
    for part in text.split("\n\n"):
        if part.startswith("    "):
            yield from [".. code-block:: sh", "", *part.splitlines(), ""]
        else:
            yield from [patterns_linked(part), ""]


def picture(name: str, alt: str, where: str = "") -> list[str]:
    return [f".. image:: /_static/recipes/{name}.png", f"   :alt: {alt}", f"   :class: {where}", ""]


def outcome(name: str, run: dict[str, Any]) -> list[str]:
    """What a run printed and drew."""
    lines = [".. rubric:: What it prints", "", ".. code-block:: text", ""]
    lines += [*indented(run["printed"].rstrip().splitlines()), ""]
    lines += [REMARKS.get(name, ""), ""]
    if drawn(name):
        lines += [".. rubric:: What it draws", ""]
        lines += picture(name, f"The picture that the script draws: {parts(name)[0]}", "run")
    return lines


def drawn(name: str) -> bool:
    return (DOCS / "_static" / "recipes" / f"{name}.png").exists()


def page(name: str) -> list[str]:
    title, about, words, code = parts(name)
    path = script(name).relative_to(DOCS.parent)
    last = f"The whole script is ``{path}``; the tests run it."
    if name not in PROGRAMS:
        last += f" It is also a :download:`notebook <{name}.ipynb>`."
    return [
        f".. index:: {', '.join(f'! {word}' for word in words)}",
        "",
        *heading(title),
        *about_lines(about),
        *[".. code-block:: python", "", *indented(code), ""],
        *outcome(name, RUNS[name]),
        last,
    ]


def thumbnail(name: str) -> list[str]:
    """What is seen of a recipe in the index: its picture, its losses, or what it prints."""
    if drawn(name):
        return picture(name, "", "thumbnail")
    run = RUNS[name]
    svg = pictures.sparkline(run["losses"]) if "losses" in run else pictures.lines(run["printed"])
    return raw(svg)


def card(name: str) -> list[str]:
    prose = next(part for part in parts(name)[1].split("\n\n") if not part.startswith("    "))
    first = re.split(r"(?<=[\w`)][\w`)][.])\s", " ".join(prose.split()))[0]
    if len(first) > LONGEST:
        first = f"{first.partition(' (')[0]}."
    inside = [*thumbnail(name), ".. rst-class:: title", "", f":doc:`{name}`", "", first]
    return [".. container:: recipe", "", *indented(inside), ""]


def index() -> list[str]:
    lines = [*heading("Recipes"), "Short scripts, each for one task and complete, with what they "]
    lines += ["printed and drew. Each is also a notebook.", ""]
    found = [path.stem for path in sorted((EXAMPLES / "recipes").glob("*.py"))]
    listed = {name for names in GROUPS.values() for name in names}
    for title, names in {**GROUPS, "More": [n for n in found if n not in listed]}.items():
        if names:
            lines += [*heading(title, "-"), ".. toctree::", "   :hidden:", ""]
            lines += [*indented(names), "", ".. container:: recipes", ""]
            lines += indented(line for name in names for line in card(name))
            lines += [""]
    return lines


def pages() -> Iterator[tuple[Path, list[str]]]:
    """Every page and notebook, and its lines."""
    scripts = [path.stem for path in sorted((EXAMPLES / "recipes").glob("*.py"))]
    for name in [*scripts, *PROGRAMS]:
        yield FOLDER / f"{name}.rst", page(name)
    for name in scripts:
        source = script(name).read_text(encoding="utf-8")
        yield FOLDER / f"{name}.ipynb", [notebooks.notebook(source)]
    yield FOLDER / "index.rst", index()
