"""The pages that are written from the public names of gradtx, and links from every page to them."""

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import reduce
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.transforms import SphinxTransform

import gradtx
from gradtx.names.namespace import face, homes, rooms
from making import arguments, leaders, measured, pictures, recipes, surfaces
from making.entries import Entry, entries
from making.writing import figure, heading, indented, patterns_linked, slug, write

DOCS = Path(__file__).parents[1]
GENERATED = DOCS / "api" / "generated"

# Which modules' names stand on which page: first the face, in the order in which people need it,
# then rooms, each of which has the names that stand nowhere before it.
PAGES = {
    "Training": ("training", "backward", "estimators", "leaves.packed", "core.eager"),
    "Optimizers": ("optimizers",),
    "Schedules": ("declarations.declared_schedule", "schedules"),
    "Composition": ("composition",),
    "Transforms": ("transforms",),
    "Wrappers": ("wrappers", "storage"),
    "Checkpoints": ("checkpoint",),
    "Inspection": ("inspection",),
    "Projections": ("projections",),
    "Many devices": ("distributed", "sharding"),
    "Sparse rows": ("sparse", "leaves.rows"),
    "Other frameworks": ("interop",),
    "Trees": ("tree", "leaves.paths", "linalg"),
    "Writing a rule": (
        "core.pair",
        "testing",
        "leaves.matrix_layout",
        "engine",
        "numerics",
        "types",
        "checks",
        "",
    ),
    "Losses": ("losses",),
    "Measuring": (),
    "Contrib": (),
    "States": (),
}
# These open their page, in this order; the others follow by their files.
FIRST = (
    *("make_step", "TrainStep", "minimize", "apply_gradients", "apply_updates", "solve"),
    *("chain", "named_chain", "partition", "freeze", "masked", "ByRole"),
    *("clip_by_global_norm", "clip", "add_decayed_weights", "trace", "ema_params", "eval_params"),
    *("accumulate", "guard", "lookahead", "sam", "store", "offload"),
    *("warmup_cosine_decay_schedule", "cosine_decay_schedule", "linear_schedule"),
    *("save_checkpoint", "load_checkpoint", "to_config", "from_config"),
    *("describe", "hyperparams", "replace", "get_slot", "set_slot", "slot_names"),
    *("state_sharding", "init_sharded", "aggregate", "plan_step"),
    *("GradientTransformation", "transformation", "optimizer", "elementwise"),
)
# Modules that hold names of the top level: nothing is said twice.
ROOMS = [room.removeprefix("gradtx.") for room in rooms("gradtx")]
GATHERED = ("checks", "tree_utils", *ROOMS)
# In the chart of learning curves.
SHOWN = ("adamw", "muon", "lion", "soap", "schedule_free_adamw", "sgd")
# In the chart of what they keep; the catalogue has the others.
WEIGHED = (
    *("adafactor", "adagrad", "adahessian", "adam", "adam_mini", "adamw", "ademamix", "adopt"),
    *("dog", "galore", "kron", "lamb", "lbfgs", "lion", "mars_adamw", "muon", "nadamw", "prodigy"),
    *("rmsprop", "schedule_free_adamw", "sgd", "shampoo", "sm3", "soap", "sophia"),
)


def public(name: str) -> Any:
    return reduce(getattr, name.split("."), gradtx)


def home(name: str) -> str:
    """The module whose name it is: gradtx itself, or the room that the face leaves it to."""
    found = (room for room in rooms("gradtx") if name in homes(room))
    return "gradtx" if name in face("gradtx") else next(found, "gradtx")


def page_of(name: str) -> str:
    found = public(name)
    if home(name) in ("gradtx.contrib", "gradtx.states"):
        return home(name).removeprefix("gradtx.").title()
    if name in homes("gradtx.measuring"):
        return "Measuring"
    if name == "apply_updates":  # how it is done belongs to composition, when to training
        return "Training"
    module = found.__name__ if inspect.ismodule(found) else getattr(found, "__module__", "")
    parts = module.split(".")[1:3] if module.startswith("gradtx.") else [""]
    places = {parts[0], ".".join(parts)}
    return next(title for title, listed in PAGES.items() if places & {*listed})


def by_use(name: str) -> tuple[int, str, bool, str]:
    """What people use most comes first; then what stands in one file together, classes last."""
    found = public(name)
    place = FIRST.index(name) if name in FIRST else len(FIRST)
    return place, getattr(found, "__module__", ""), inspect.isclass(found), name


RANGES = [f"checks.{n}" for n, v in vars(gradtx.checks).items() if hasattr(v, "__metadata__")]
NAMES = [name for name in homes("gradtx") if name not in GATHERED] + RANGES
GROUPS = {title: sorted((n for n in NAMES if page_of(n) == title), key=by_use) for title in PAGES}


def documented(name: str) -> list[str]:
    """The autodoc directive for one public name; modules of functions are listed whole."""
    found = public(name)
    target = f"gradtx.{name}"
    if inspect.isclass(found) and found.__module__.startswith("gradtx"):
        kind, body = "autoclass", [":members:"]
        if issubclass(found, Enum):
            body.append(":undoc-members:")
    elif inspect.ismodule(found):
        kind, body, target = "automodule", [":members:"], found.__name__
    elif inspect.isroutine(found) or hasattr(found, "__wrapped__"):
        kind, body = "autofunction", []
    else:  # a type alias or a constant
        text = source_docstring(name) or [f"{m}." for m in getattr(found, "__metadata__", ())]
        kind, body, target = "py:data", ["", *text], name
    if (room := home(name)) != "gradtx":
        body += ["", f"Its home is ``{room}``; ``gradtx.{name}`` is the same.", ""]
    if other := same_as(name):
        body += [
            "",
            f"Kept for code written for Optax: :obj:`~gradtx.{other}` by another name.",
            "",
        ]
    return [".. currentmodule:: gradtx", "", f".. {kind}:: {target}", *indented(body), ""]


def same_as(name: str) -> str:
    """The name under which a class or a function was written, if it is public and another."""
    found = public(name)
    own = getattr(found, "__name__", name)
    same = own != name and own in homes("gradtx") and public(own) is found
    return own if same else ""


def source_docstring(name: str) -> list[str]:
    """What stands under the assignment to `name` in the source of gradtx."""
    modules = [(name, module) for name, module in sys.modules.items() if module is not None]
    # Modules of Optax's names have no source.
    written = [n for n, m in modules if n.split(".")[0] == "gradtx" and hasattr(m, "__file__")]
    for module in written:
        docs = ModuleAnalyzer.for_module(module).find_attr_docs()
        if ("", name) in docs:
            return docs["", name]
    return []


def paper_link(paper: str) -> str:
    host, _, number = paper.partition(":")
    site = {"arXiv": "https://arxiv.org/abs/", "doi": "https://doi.org/"}
    return f"`{paper} <{site[host]}{number}>`__" if paper else ""


def size(count: float | None) -> str:
    if count is None:
        return ""
    return f"{count:.3g}" if count >= 0.001 else "0"


def facts(entry: Entry, family: Iterable[Entry]) -> list[str]:
    """What can be said of an optimizer in a line, and what else stands in its file."""
    parts = []
    if entry.bytes is not None:
        parts += [f"{size(entry.bytes)} bytes of state for each float32 parameter"]
        parts += [f"needs {entry.needs}" if entry.needs else "needs gradients only"]
        parts += ["works on the rows of a table" if entry.rows else "on whole arrays"]
    parts += [x for x in (entry.year, paper_link(entry.paper)) if x]
    near = [f":func:`{e.name} <gradtx.{e.name}>`" for e in family if e.name != entry.name]
    beside = ", ".join([*near, ":doc:`all optimizers <../optimizers>`"])
    return [
        ".. container:: facts",
        "",
        *indented([" · ".join(parts), "", f"See also {beside}."]),
        "",
    ]


PROBLEMS = {"transformer": "a character transformer", "convolutions": "a convolutional network"}


def rates(name: str) -> list[str]:
    """Learning rates to start from: those that a search found on small problems."""
    try:
        tuned = gradtx.tuned_settings(name)
    except ValueError:
        return []
    if "learning_rate" not in tuned.ranges:
        return []
    least, most = (f"{rate:.2g}" for rate in tuned.ranges["learning_rate"])
    on = [
        f"{tuned.settings[problem]['learning_rate']:.2g} on {words}"
        for problem, words in PROBLEMS.items()
        if "learning_rate" in tuned.settings.get(problem, {})
    ]
    said = f"Peak learning rates that a search found best: {', '.join(on)}" if on else "Found best"
    return [
        ".. rubric:: A rate to start from",
        "",
        f"{said}; {least} to {most} over {len(tuned.settings)} small problems.",
        "Larger models need smaller ones.",
        f"``gradtx.tuned_settings({name!r})`` has the other arguments,",
        "and :doc:`/leaderboard` says how they were found.",
        "",
    ]


def optimizer_page(entry: Entry) -> list[str]:
    """A page outside of the tables of contents, which 150 more would make long and slow."""
    family = [e for e in entries().values() if e.file == entry.file]
    lines = [":orphan:", "", *heading(entry.name), *facts(entry, family), *documented(entry.name)]
    lines += rates(entry.name)
    if entry.name in pictures.CURVES:
        rate = pictures.CURVES[entry.name]["rate"]
        at = "" if rate == "-" else f"at the rate {rate}, "
        lines += figure(
            pictures.optimizer(entry.name),
            f"Training loss on handwritten digits, {at}the best of 13 that were tried, as in "
            ":doc:`/convergence`; each point is the mean of ten steps.",
        )
    return lines


def on_own_page(title: str) -> list[str]:
    """The optimizers and rules of a group: each has a page."""
    return [n for n in GROUPS[title] if n in entries() and ".optimizers." in homes("gradtx")[n]]


def optimizers_page(title: str) -> list[str]:
    lines = [
        "Each optimizer and rule has a page with its equations, arguments, source and a short run."
    ]
    lines += [":doc:`/catalogue` compares them, and :doc:`/choosing` says where to start.", ""]
    kinds = {"optimizer": "Optimizers", "rule": "Rules"}
    about = {
        "optimizer": "These take a step: chain nothing after them.",
        "rule": "The same without the learning rate, as links of a :func:`~gradtx.chain`.",
    }
    names = on_own_page(title)
    for kind, kind_title in kinds.items():
        of_kind = sorted(name for name in names if entries()[name].kind == kind)
        lines += [*heading(kind_title, "-"), about[kind], ""]
        lines += [f"- :func:`~gradtx.{name}`: {entries()[name].summary}" for name in of_kind]
        lines += [""]
    rest = [name for name in GROUPS[title] if name not in names]
    lines += heading("Others", "-") if title == "Contrib" else []
    return [*lines, *(line for name in rest for line in documented(name))]


def schedules(names: Iterable[str]) -> Iterator[str]:
    """Each schedule with its values drawn, and after them what acts on schedules."""
    for name in sorted(names, key=lambda name: name not in entries()):
        yield from documented(name)
        drawn = pictures.scheduled(name) if name in entries() else None
        if drawn is not None:
            yield from figure(drawn[1], f"``{drawn[0]}``")


COLUMNS = ("name", "kind", "what it does", "bytes", "needs", "rows", "year", "paper")


def catalogue_page() -> list[str]:
    lines = [*heading("Catalogue"), (DOCS / "making" / "catalogue.rst").read_text(encoding="utf-8")]
    lines += [".. list-table::", "   :class: catalogue", "   :header-rows: 1", ""]
    for row in [COLUMNS, *map(catalogue_row, entries().values())]:
        lines += [f"   {'*' if i == 0 else ' '} - {cell}".rstrip() for i, cell in enumerate(row)]
    return [*lines, ""]


def catalogue_row(entry: Entry) -> tuple[str, ...]:
    text = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", entry.summary)
    tried = entry.bytes is not None
    needs, rows = entry.needs or ("gradients" if tried else ""), {True: "yes", False: "no"}
    return (
        f":obj:`{entry.name} <gradtx.{entry.name}>`",
        entry.kind,
        text,
        size(entry.bytes),
        needs,
        rows.get(entry.rows, ""),
        entry.year,
        paper_link(entry.paper),
    )


def bars() -> str:
    kept = {name: entries()[name].bytes or 0.0 for name in WEIGHED}
    rows = {name: [kept[name]] for name in sorted(kept, key=lambda name: (kept[name], name))}
    return pictures.bars(rows, "Bytes of state for each parameter")


def bodies() -> Iterator[tuple[Path, list[str]]]:
    """Every page that is written, and its lines."""
    about = DOCS / "api" / "about"
    titles = {slug(title): title for title, names in GROUPS.items() if names}
    stale = sorted(path.name for path in about.glob("*.rst") if path.stem not in titles)
    if stale:
        raise ValueError(f"docs/api/about describes no page of the API: {', '.join(stale)}")
    for page, title in titles.items():
        opening = about / f"{page}.rst"
        text = [opening.read_text(encoding="utf-8"), ""] if opening.exists() else []
        if title in ("Optimizers", "Contrib"):
            text += optimizers_page(title)
        elif title == "Schedules":
            text += schedules(GROUPS[title])
        else:
            text += [line for name in GROUPS[title] for line in documented(name)]
        yield GENERATED / f"{page}.rst", [*heading(title), *text]
    for name in [*on_own_page("Optimizers"), *on_own_page("Contrib")]:
        yield GENERATED / "optimizers" / f"{name}.rst", optimizer_page(entries()[name])
    index = [*heading("API"), (DOCS / "api" / "about.rst").read_text(encoding="utf-8")]
    index += [".. toctree::", "   :maxdepth: 2", "", *indented(titles), ""]
    yield GENERATED / "index.rst", index
    yield DOCS / "catalogue.rst", catalogue_page()
    yield from recipes.pages()
    title = "Training loss on handwritten digits"
    yield DOCS / "pictures" / "learning.html", [pictures.learning(SHOWN, title)]
    yield DOCS / "pictures" / "leaders.html", [leaders.chart()]
    yield DOCS / "pictures" / "memory.html", [bars()]
    for name, drawn in {**measured.charts(), **surfaces.charts()}.items():
        yield DOCS / "pictures" / f"{name}.html", [drawn]


def write_pages() -> None:
    written = {write(path, "\n".join(lines)) for path, lines in bodies()}
    for path in {*GENERATED.rglob("*.rst"), *recipes.FOLDER.glob("*")} - written:
        path.unlink()


def in_field(node: nodes.Element | None) -> bool:
    """Whether it stands in a list of arguments, where a name is mostly that of an argument."""
    while node is not None and not isinstance(node, nodes.field | nodes.table):
        node = node.parent
    if isinstance(node, nodes.table):
        return "arguments" in node["classes"]
    return node is not None


class Linked(SphinxTransform):
    """A public name in a line of text, set as code, links to its entry."""

    default_priority = 500

    def apply(self, **kwargs: Any) -> None:
        del kwargs
        for literal in list(self.document.findall(nodes.literal)):
            name = re.sub(r"^gradtx\.|\(\)$", "", literal.astext())
            inside = isinstance(literal.parent, addnodes.pending_xref | nodes.reference)
            plain = set(literal.get("classes")) <= {"code"}  # not what another role has set
            if name in homes("gradtx") and plain and not inside and not in_field(literal):
                target = addnodes.pending_xref(
                    "", refdomain="py", reftype="obj", reftarget=f"gradtx.{name}", refexplicit=True
                )
                target["refdoc"] = self.env.docname
                literal.replace_self(target)
                target += literal


LONGEST_NUMBER = 28  # characters of a cell that may still be a number with its interval


class Columns(SphinxTransform):
    """A column of prose is left-aligned, also where the table's source says otherwise."""

    default_priority = 500

    def apply(self, **kwargs: Any) -> None:
        del kwargs
        for table in self.document.findall(nodes.tgroup):
            for column in zip(*(row.children for row in table.findall(nodes.row)), strict=False):
                if any(len(cell.astext()) > LONGEST_NUMBER for cell in column):
                    for cell in column:
                        cell["classes"] = [c for c in cell["classes"] if c != "text-right"]


class Variants(SphinxTransform):
    """A picture beside which there is one for dark pages is shown as the page is."""

    default_priority = 500

    def apply(self, **kwargs: Any) -> None:
        del kwargs
        for image in list(self.document.findall(nodes.image)):
            dark = re.sub(r"\.png$", "_dark.png", image["uri"])
            if dark != image["uri"] and (DOCS / dark.lstrip("/")).exists():
                image.parent.insert(image.parent.index(image) + 1, other := image.deepcopy())
                other["uri"] = dark
                image["classes"].append("only-light")
                other["classes"].append("only-dark")


def link_papers(app: Any, what: Any, name: Any, obj: Any, options: Any, lines: list[str]) -> None:
    """A paper's number links to the paper."""
    del app, what, name, obj, options
    found = r"(?<![`/\w])(?:arXiv:(?:\d{4}\.\d{4,5}|[\w.-]+/\d+)|doi:10\.[^\s,;]*[^\s,;.])"
    lines[:] = [re.sub(found, lambda match: paper_link(match[0]), line) for line in lines]


def link_patterns(app: Any, what: Any, name: Any, obj: Any, options: Any, lines: list[str]) -> None:
    del app, what, name, obj, options
    lines[:] = map(patterns_linked, lines)


def skip_member(app: Any, what: Any, name: Any, obj: Any, skip: bool, options: Any) -> bool:
    """NamedTuples document each field as "Alias for field number 0": leave those out."""
    del app, what, name, options
    alias = (getattr(obj, "__doc__", None) or "").startswith("Alias for field number")
    return True if alias else skip


def keep_colons(app: Any, what: str, name: Any, obj: Any, options: Any, lines: list[str]) -> None:
    """Napoleon reads "a: b" that opens an attribute's docstring as "type: text": prevent it."""
    del app, name, obj, options
    if what in {"attribute", "data", "property"}:
        lines[:0] = ["..", ""]  # an empty comment


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_transform(Linked)
    app.add_transform(Variants)
    app.add_transform(Columns)
    app.connect("autodoc-process-docstring", keep_colons, priority=400)
    app.connect("autodoc-process-docstring", link_papers, priority=900)
    app.connect("autodoc-process-docstring", link_patterns, priority=900)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("autodoc-process-signature", arguments.write_values)
    app.connect("object-description-transform", arguments.tabulate)
    write_pages()
    return {"parallel_read_safe": True, "parallel_write_safe": True}
