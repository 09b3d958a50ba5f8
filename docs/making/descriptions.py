"""What a page is about in a sentence: for search engines, and for programs that read llms.txt."""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

LONGEST = 160
API = "api/generated/index"
INDEXES = (API, "recipes/index")


def shortened(text: str) -> str:
    """The first sentences of a text, up to `LONGEST` characters, or what fits of the first."""
    text = " ".join(text.split())
    if len(text) <= LONGEST:
        return text
    ends = [end.end() for end in re.finditer(r"[.!?](?= |$)", text) if end.end() <= LONGEST]
    return text[: ends[-1]] if ends else f"{text[: LONGEST - 1].rsplit(' ', 1)[0]}…"


def description(doctree: nodes.document) -> str:
    """The first paragraph of a page that is one, and not a line of facts or links."""
    for paragraph in doctree.findall(nodes.paragraph):
        above = paragraph.parent
        text = paragraph.astext()
        plain = not isinstance(above, nodes.container | nodes.entry | nodes.list_item)
        if plain and len(text.split()) > 4:
            return shortened(text)
    return ""


def add_description(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    del app, page, template
    if doctree is not None and (found := description(doctree)):
        context["metatags"] = context.get("metatags", "") + (
            f'<meta name="description" content="{html.escape(found)}">'
        )


def contents(app: Sphinx, page: str) -> Iterator[str]:
    """The pages of the guide in the order of the sidebar; recipes and the API by their index."""
    yield page
    if page not in INDEXES:
        for below in app.env.toctree_includes.get(page, []):
            yield from contents(app, below)
    elif page == API:
        yield from (below for below in app.env.toctree_includes[page] if "/" not in below)


def lines(app: Sphinx) -> list[str]:
    """The lines of llms.txt: each page of the tables of contents, with what it is about."""
    found = [
        "# gradtx",
        "",
        "> Gradient transformations on JAX, with Optax's names: optimizers that are data.",
        "",
    ]
    env = app.env
    for page in contents(app, env.config.root_doc):
        title = env.titles[page].astext()
        about = description(env.get_doctree(page))
        found.append(f"- [{title}]({page}.html){f': {about}' if about else ''}")
    return found


def write_llms(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        Path(app.outdir, "llms.txt").write_text("\n".join(lines(app)) + "\n", encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-page-context", add_description)
    app.connect("build-finished", write_llms)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
