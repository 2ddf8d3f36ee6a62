"""The documentation site: Sphinx with furo and MyST, over the Markdown pages as they are read in the repository.

The source directory is the root of the project, so that links between docs/ and README.md are links of the site too.
The menu follows from the links of docs/index.md: a page that is not linked there is an error, and so is a dead link.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from dovetail import __version__  # noqa: E402

project = "Dovetail"
version = release = __version__
copyright = "the Dovetail authors"  # noqa: A001 - Sphinx's name
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "docs/index"
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "tests/README.md", "docs/**"]
exclude_patterns = ["**/.*", ".venv*", "build", "src", "deploy", "benchmarks", "examples", "tools", "requirements"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"Dovetail {__version__}"
html_copy_source = False
html_show_sphinx = False
html_additional_pages = {"index": "to-docs.html"}
templates_path = ["_templates"]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
highlight_language = "none"
default_role = "literal"

_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#:]+)\.md\)")


def add_menu(_: Sphinx, docname: str, source: list[str]) -> None:
    """Give the first page a menu: a part for each of its headings, with the pages that are linked below it."""
    if docname != root_doc:
        return
    _, *parts = _HEADING.split(source[0])
    menus = [
        "\n".join(["```{toctree}", ":hidden:", f":caption: {heading}", "", *_LINK.findall(text), "```"])
        for heading, text in zip(parts[::2], parts[1::2], strict=True)
    ]
    source[0] += "\n\n" + "\n\n".join(menus) + "\n"


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_menu)
