"""Report and dashboard, checked by axe-core in a real browser, and used with the keyboard alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboard import dashboard_world as world
from dovetail.audit.tables import Tables
from dovetail.model.address import address_of
from dovetail.report.page import write_page
from dovetail.report.survey import take_numbers
from report.sample_tables import HOSTILE, small_world
from system.browser import Browser, find_chromium, start_browser
from system.test_dashboard_browser import run_dashboard, show

CHROMIUM = find_chromium()
AXE = Path(__file__).parents[2] / ".venv-axe" / "node_modules" / "axe-core" / "axe.min.js"
pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(300),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt-get install chromium"),
    pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: npm install --prefix .venv-axe axe-core"),
]
pytest.importorskip("vl_convert", reason="the charts' library is not installed")


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    with start_browser(CHROMIUM, tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> Tables:
    return Tables.open(small_world(names=HOSTILE).write(tmp_path_factory.mktemp("audit") / "out"))


@pytest.fixture(scope="module")
def report(tables, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(tables, take_numbers(tables), path)
    return path


@pytest.fixture(scope="module")
def dashboard(tables, tmp_path_factory) -> Iterator[str]:
    folder = world.write_site(tmp_path_factory.mktemp("site") / "journals", before=20, after=5)
    with run_dashboard("--journals", str(folder), "--tables", str(tables.root)) as address:
        yield address


def violations(browser: Browser) -> list[str]:
    """What axe finds, each with its first element."""
    browser.evaluate(AXE.read_text() + "; 0")
    found = browser.evaluate("axe.run({ resultTypes: ['violations'] }).then((found) => found.violations)")
    return [f"{each['id']}: {each['help']}: {each['nodes'][0]['html'][:200]}" for each in found]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_report_and_a_story_in_it(browser, report, width, dark):
    browser.open(report, width=width, height=900, dark=dark)
    assert violations(browser) == []
    browser.evaluate("document.querySelector('#list button[data-finding]').click()")
    assert browser.evaluate("document.getElementById('trace').open")
    assert violations(browser) == []


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, True)])
@pytest.mark.parametrize(
    ("path", "condition"),
    [
        ("/", "document.querySelector('.server') !== null"),
        ("/search?text=noise", "document.getElementById('progress').dataset.state !== undefined"),
        (f"/message/{address_of(world.HOSTILE).hex()}", "document.querySelector('#hops') !== null"),
        ("/audit", "document.querySelector('#findings') !== null"),
    ],
)
def test_the_pages_of_the_dashboard(browser, dashboard, path, condition, width, dark):
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.call("Emulation.setEmulatedMedia", media="", features=[scheme])
    show(browser, dashboard + path, condition, width=width)
    assert violations(browser) == []


def test_everything_on_the_live_page_is_reached_by_tab(browser, dashboard):
    show(
        browser,
        f"{dashboard}/",
        "document.querySelector('.server') !== null && document.querySelector('#alerts a') !== null",
    )
    browser.evaluate("document.activeElement.blur()")
    reached = set()
    for _ in range(browser.evaluate("document.querySelectorAll('a, button, input, summary, [tabindex]').length") + 5):
        browser.press("Tab")
        reached.add(
            browser.evaluate(
                "(document.activeElement.closest('.server, #alerts, .tiles, nav, form') || {}).className ?? ''"
            )
        )
    assert {"server", "tiles"} <= reached
