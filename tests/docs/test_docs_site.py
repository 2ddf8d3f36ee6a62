"""The documentation site builds without a warning, every link and anchor resolves, it needs no server.

`make site` installs the tools it needs; without them these tests are skipped.
"""

from __future__ import annotations

import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from docs.kit import ROOT, program

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


class Page(HTMLParser):
    """The links, loaded files and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {value for value in (values.get("id"), values.get("name")) if value}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        elif tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.append(values["href"])
        elif tag in ("script", "img", "source", "iframe") and values.get("src"):
            self.loaded.append(values["src"])


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    if not (ROOT / ".venv-site" / "ready.json").exists():
        pytest.skip("there is no .venv-site: `make site` makes it")
    out = tmp_path_factory.mktemp("site")
    command = [ROOT / ".venv-site" / "bin" / "sphinx-build", "-q", "-W", "--keep-going", "-c", "docs", "-b", "html"]
    ran = subprocess.run([*command, ".", out / "html"], cwd=ROOT, text=True, capture_output=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    return out / "html"


@pytest.fixture(scope="module")
def pages(built) -> dict[Path, Page]:
    return {path.resolve(): Page(path.read_text()) for path in built.rglob("*.html")}


def test_every_page_of_the_documentation_is_there(built):
    for source in (ROOT / "docs").rglob("*.md"):
        assert (built / source.relative_to(ROOT)).with_suffix(".html").exists()


def test_every_link_and_anchor_leads_somewhere(pages):
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.exists(), f"{path.name}: {link}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].anchors, f"{path.name}: {link}"


def test_nothing_is_loaded_from_elsewhere(pages):
    loaded = {link for page in pages.values() for link in page.loaded}
    assert loaded
    assert [link for link in loaded if urlsplit(link).scheme or link.startswith("//")] == []


def test_the_search_works_from_a_file(built):
    command = [program("chromium"), "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000"]
    url = f"{(built / 'search.html').as_uri()}?q=witness"
    ran = subprocess.run([*command, "--dump-dom", url], text=True, capture_output=True, check=True, timeout=120)
    assert int(re.search(r"found (\d+) pages? matching", ran.stdout)[1]) > 3
