"""Sphinx configuration. The API pages are written here, from the public names of gradtx."""

import inspect
import re
import sys
from enum import Enum
from functools import reduce
from pathlib import Path

from sphinx.pycode import ModuleAnalyzer

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))

import gradtx  # noqa: E402

project = "gradtx"
author = "the gradtx contributors"
copyright = author
version = release = gradtx.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build", "api/about", "api/about.rst"]
nitpicky = False
default_role = "code"

html_theme = "furo"
html_title = f"gradtx {release}"
html_show_copyright = False
html_copy_source = False

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

# A hyperparameter's annotation is its range, which the docstring states in words.
autodoc_typehints = "none"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
add_module_names = False
python_maximum_signature_line_length = 88

napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False


# Which modules' names stand on which page.
PAGES = {
    "Training": ("training", "eager", "distributed"),
    "Composition": ("composition",),
    "Optimizers": ("optimizers",),
    "Transforms": ("transforms",),
    "Wrappers": ("wrappers", "storage"),
    "Schedules": ("declared_schedule", "schedules"),
    "Losses": ("losses",),
    "Projections": ("projections",),
    "Trees": ("tree", "paths", "linear_algebra"),
    "Sparse rows": ("sparse", "rows"),
    "Other frameworks": ("interop",),
    "Inspection": ("inspection",),
    "Checkpoints": ("checkpoint",),
    "Writing a rule": ("pair", "engine", "numerics", "types", "checks", ""),
}


def public(name: str) -> object:
    return reduce(getattr, name.split("."), gradtx)


def page_of(name: str) -> str:
    found = public(name)
    module = found.__name__ if inspect.ismodule(found) else getattr(found, "__module__", "")
    part = ([*module.split("."), ""])[1] if module.startswith("gradtx.") else ""
    return next(title for title, parts in PAGES.items() if part in parts)


def by_file(name: str) -> tuple[str, bool, str]:
    """What stands in one file stands together, state classes last."""
    found = public(name)
    return getattr(found, "__module__", ""), inspect.isclass(found), name


# Modules that hold names of the top level: nothing is said twice.
GATHERED = ("checks", "contrib", "losses", "schedules", "transforms", "tree_utils")
RANGES = [f"checks.{n}" for n, v in vars(gradtx.checks).items() if hasattr(v, "__metadata__")]
NAMES = [name for name in gradtx.__all__ if name not in GATHERED] + RANGES
GROUPS = {title: sorted((n for n in NAMES if page_of(n) == title), key=by_file) for title in PAGES}
GROUPS = {title: names for title, names in GROUPS.items() if names}


def slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")


def entry(name: str) -> str:
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
    lines = [".. currentmodule:: gradtx", "", f".. {kind}:: {target}"]
    return "\n".join([*lines, *(f"   {line}".rstrip() for line in body), ""])


def source_docstring(name: str) -> list[str]:
    """What stands under the assignment to `name` in the source of gradtx."""
    for module in [m for m in sys.modules if m.split(".")[0] == "gradtx"]:
        docs = ModuleAnalyzer.for_module(module).find_attr_docs()
        if ("", name) in docs:
            return docs["", name]
    return []


def write(path: Path, text: str) -> None:
    """Write only what changed, so that an incremental build stays one."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def write_api_pages() -> None:
    """One page per group, opened by ``api/about/<group>.rst`` if it exists."""
    generated = DOCS / "api" / "generated"
    about = DOCS / "api" / "about"
    generated.mkdir(parents=True, exist_ok=True)

    pages = {slug(title): (title, group) for title, group in GROUPS.items()}
    stale = sorted(path.name for path in about.glob("*.rst") if path.stem not in pages)
    if stale:
        raise ValueError(f"docs/api/about describes no page of the API: {', '.join(stale)}")

    for path in generated.glob("*.rst"):
        if path.stem not in pages and path.stem != "index":
            path.unlink()
    for page, (title, group) in pages.items():
        opening = about / f"{page}.rst"
        text = [title, "=" * len(title), ""]
        if opening.exists():
            text += [opening.read_text(encoding="utf-8"), ""]
        text += map(entry, group)
        write(generated / f"{page}.rst", "\n".join(text))
    index = ["API", "===", "", (DOCS / "api" / "about.rst").read_text(encoding="utf-8")]
    index += [".. toctree::", "   :maxdepth: 2", "", *(f"   {page}" for page in pages), ""]
    write(generated / "index.rst", "\n".join(index))


def skip_member(app, what, name, obj, skip, options):
    """NamedTuples document each field as "Alias for field number 0": leave those out."""
    del app, what, name, options
    alias = (getattr(obj, "__doc__", None) or "").startswith("Alias for field number")
    return True if alias else skip


def keep_colons(app, what, name, obj, options, lines):
    """Napoleon reads "a: b" that opens an attribute's docstring as "type: text": prevent it."""
    del app, name, obj, options
    if what in {"attribute", "data", "property"}:
        lines[:0] = ["..", ""]  # an empty comment


write_api_pages()


def setup(app):
    app.connect("autodoc-process-docstring", keep_colons, priority=400)
    app.connect("autodoc-skip-member", skip_member)
