"""Equations as MathML, which browsers show without a script or a network.

What cannot be rendered is a warning, and the documentation is built with warnings as errors.
"""

import re
from pathlib import Path
from shutil import copyfile
from typing import Any

import ziamath
from docutils import nodes
from math_core import LatexError, LatexToMathML
from sphinx.application import Sphinx
from sphinx.util import logging

FONT = Path(ziamath.__file__).parent / "fonts" / "STIXTwoMath-Regular.ttf"

logger = logging.getLogger(__name__)
converter = LatexToMathML(fancy_error=False)


def mathml(latex: str, *, displaystyle: bool) -> str:
    """Chromium sets what is marked as an accent on the letter, not above it."""
    text = converter.convert_with_local_state(latex, displaystyle=displaystyle)
    return text.replace('<mover accent="true"><mi>', "<mover><mi>")


def inline(latex: str) -> str:
    return mathml(latex, displaystyle=False)


def display(latex: str) -> str:
    """Each paragraph is an equation; one with ``&`` or line ends is aligned."""

    def equation(part: str) -> str:
        aligned = "&" in part or r"\\" in part
        text = rf"\begin{{aligned}}{part}\end{{aligned}}" if aligned else part
        return mathml(text, displaystyle=True)

    return "".join(map(equation, re.split(r"\n\s*\n", latex.strip())))


def shown(node: nodes.Element, render: Any) -> str:
    latex = node.astext()
    try:
        return render(latex)
    except LatexError as error:
        logger.warning("equation %r: %s", latex, error, location=node)
        return f"<code>{nodes.unescape(latex)}</code>"


def visit_inline(writer: Any, node: nodes.Element) -> None:
    writer.body.append(f'<span class="math">{shown(node, inline)}</span>')
    raise nodes.SkipNode


def visit_block(writer: Any, node: nodes.Element) -> None:
    writer.body.append(f'<div class="math">{shown(node, display)}</div>\n')
    raise nodes.SkipNode


def copy_font(app: Sphinx) -> None:
    target = Path(app.outdir) / "_static" / FONT.name
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        copyfile(FONT, target)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    app.connect("builder-inited", copy_font)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
