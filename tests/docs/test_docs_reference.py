"""The generated pages are current, and the others refer to things that exist."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from dovetail.model.hop import Reason, Stage

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), ROOT / "tests" / "README.md"])


@pytest.fixture(scope="module")
def reference():
    spec = importlib.util.spec_from_file_location("tools_reference", ROOT / "tools" / "reference.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_reference_pages_are_current(reference):
    assert reference.stale_pages() == [], "run `make docs`"


def test_a_page_that_is_not_current_is_noticed(reference, tmp_path):
    for name, make in reference.PAGES.items():
        (tmp_path / name).write_text(make())
    (tmp_path / "config.md").write_text("old")
    (tmp_path / "cli.md").unlink()
    assert reference.stale_pages(tmp_path) == ["cli.md", "config.md"]


def test_pages_do_not_depend_on_the_terminal(reference, monkeypatch):
    wide = reference.cli_page()
    monkeypatch.setenv("COLUMNS", "40")
    assert reference.cli_page() == wide


def test_every_stage_and_reason_has_a_row(reference):
    page = reference.reasons_page()
    for member in (*Stage, *Reason):
        assert page.count(f"| `{member.value}` | {member.code} |") == 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_make_target_that_is_named_exists(page):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"(?:^    |`)make ([a-z]+)", page.read_text(), re.MULTILINE)
    assert set(named) <= targets
