"""Sphinx configuration. `making` writes pages from public names and from scripts."""

import os
import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS.parent), str(DOCS)]

import gradtx  # noqa: E402

project = "gradtx"
author = "the gradtx contributors"
copyright = author
version = release = gradtx.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "making.descriptions",
    "making.examples",
    "making.mathematics",
    "making.pages",
]
exclude_patterns = ["_build", "api/about", "api/about.rst", "making"]
nitpicky = False
default_role = "code"

html_theme = "furo"
html_title = f"gradtx {release}"
html_show_copyright = False
html_copy_source = False
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["gradtx.css"]
html_js_files = ["catalogue.js"]
# Of a session the button copies what was typed.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
html_favicon = "_static/favicon.svg"
# Links to the repository, where the build knows which it is.
repository = os.environ.get("GRADTX_REPOSITORY", "").rstrip("/")
if repository:
    html_theme_options = {
        "source_repository": repository,
        "source_branch": "main",
        "source_directory": "docs/",
        "footer_icons": [{"name": "Repository", "url": repository, "class": ""}],
    }

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
