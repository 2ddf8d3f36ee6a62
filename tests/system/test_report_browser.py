"""The report in a real browser: no console errors, no requests, hostile text as text, fast with many findings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import dovetail
from dovetail.audit.tables import Tables
from dovetail.fabrics import address_text
from dovetail.model.address import Address
from dovetail.report.page import write_page
from dovetail.report.receipts import Origins
from dovetail.report.survey import take_numbers
from receipt import receipt_samples as samples
from report.sample_tables import HOSTILE, NODES, World, add_many_findings, address, small_world
from system.browser import Browser, find_chromium, start_browser

pytestmark = pytest.mark.system
pytest.importorskip("vl_convert", reason="the charts' library is not installed")

CHROMIUM = find_chromium()
if CHROMIUM is None:
    pytest.skip("no Chromium on this machine: apt-get install chromium", allow_module_level=True)

DESKTOP, PHONE = (1280, 900), (390, 844)
ROWS = "document.querySelectorAll('#list tbody tr').length"
CLICK_ALL = """[...document.querySelectorAll(
  '.tile[data-filter-check], h1 a[data-filter-check], .checks [data-filter-check]')].map((link) => {
    link.click();
    const row = link.closest('tr');
    const count = row ? row.querySelector('.number') : link;
    return [count.textContent, document.getElementById('found').textContent];
  })"""
PNG = b"\x89PNG\r\n"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert CHROMIUM is not None
    with start_browser(CHROMIUM, tmp_path_factory.mktemp("profile")) as started:
        yield started


def write(world: World, folder: Path) -> Path:
    tables = Tables.open(world.write(folder / "out"))
    write_page(tables, take_numbers(tables), folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every agent's name is hostile in a different way; everything else must still work."""
    return write(small_world(names=HOSTILE), tmp_path_factory.mktemp("page"))


def assert_quiet(browser: Browser, page: Path) -> None:
    assert browser.errors == []
    assert browser.requests == [page.as_uri()]


@pytest.mark.parametrize(("width", "height"), [DESKTOP, PHONE])
@pytest.mark.parametrize("dark", [False, True])
def test_it_opens_without_errors_or_requests(
    browser: Browser, page: Path, tmp_path: Path, width: int, height: int, dark: bool
) -> None:
    browser.open(page, width=width, height=height, dark=dark)
    assert_quiet(browser, page)
    charts = browser.evaluate(
        "[...document.querySelectorAll('.chart')].map(c => c.querySelectorAll('svg path').length)"
    )
    assert len(charts) == 11
    assert all(marks > 2 for marks in charts)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    back = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(18, 22, 28)") == dark
    assert browser.photograph(tmp_path / "page.png").startswith(PNG)


def test_hostile_names_are_text_and_run_nothing(browser: Browser, page: Path) -> None:
    browser.open(page, width=DESKTOP[0], height=DESKTOP[1])
    browser.evaluate("document.querySelector('[data-filter-check=\"delivery.overdue\"]').click()")
    show_each(browser)
    shown = browser.evaluate("document.getElementById('list').innerText")
    for name in (HOSTILE[0], HOSTILE[1], HOSTILE[2], "\\u202egnp.exe", "(10,240 characters)"):
        assert name in shown
    assert browser.evaluate("document.querySelectorAll('#list script, #list img, #list svg').length") == 0
    for index in range(browser.evaluate(ROWS)):
        browser.evaluate(f"document.querySelectorAll('#list button')[{index}].click()")
        assert browser.evaluate("document.getElementById('trace').open")
        browser.evaluate("document.getElementById('trace').close()")
    assert browser.evaluate("window.hacked === undefined")
    assert_quiet(browser, page)


def test_a_story_is_one_key_away_and_escape_closes_it(browser: Browser, page: Path) -> None:
    browser.open(page, width=DESKTOP[0], height=DESKTOP[1])
    browser.evaluate("document.querySelector('#list button').focus()")
    browser.press("Enter")
    assert browser.evaluate("document.getElementById('trace').open")
    trace = browser.evaluate("document.getElementById('trace').innerText")
    assert "Lost in transit" in trace
    assert "What each server saw" in trace
    assert "dovetail audit why wm:/Qm" in trace
    assert browser.evaluate("document.querySelectorAll('#trace svg.diagram').length") == 1
    assert browser.evaluate("location.hash") == "#finding-0"
    browser.press("Escape")
    assert not browser.evaluate("document.getElementById('trace').open")
    assert browser.evaluate("document.activeElement.dataset.finding") == "0"
    assert_quiet(browser, page)


def test_a_cause_is_unfolded_and_folded_by_the_keyboard(browser: Browser, tmp_path: Path) -> None:
    world = small_world()
    add_many_findings(world, 1_500)
    page = write(world, tmp_path)
    browser.open(page, width=DESKTOP[0], height=DESKTOP[1])
    search(browser, "agent-007")
    assert browser.evaluate(ROWS) == 1
    assert browser.evaluate("document.querySelector('#list tbody .number').textContent") == "3"
    browser.evaluate("document.querySelector('#list button').focus()")
    for expanded, rows in (("true", 4), ("false", 1)):
        browser.press("Enter")
        assert browser.evaluate("document.querySelector('#list button').getAttribute('aria-expanded')") == expanded
        assert browser.evaluate(ROWS) == rows
    assert_quiet(browser, page)


def test_a_cause_is_as_severe_as_the_worst_of_its_findings(browser: Browser, tmp_path: Path) -> None:
    world = small_world()
    refused = address("refused and answered")
    world.find("delivery.rejected", "won", refused, NODES[0], at=7, detail="bad_signature at the quay")
    world.find("chain.failed", "won", refused, at=7, detail="message of the quay")
    browser.open(write(world, tmp_path), width=DESKTOP[0], height=DESKTOP[1])
    search(browser, "the quay")
    assert browser.evaluate(ROWS) == 1
    cells = browser.evaluate("[...document.querySelectorAll('#list tbody td')].map((cell) => cell.innerText.trim())")
    assert cells[0] == "warning", "a note would hide that it failed"
    assert cells[1].startswith("Refused")
    assert cells[5] == "2026-03-01 09:00:07.000", "one time, not from itself to itself"


def test_the_headline_leads_to_just_the_findings_that_it_counts(browser: Browser, page: Path) -> None:
    """Clicks every count on the page that has a list: tiles, the headline, the table of checks."""
    browser.open(page, width=DESKTOP[0], height=DESKTOP[1])
    numbers = take_numbers(Tables.open(page.parent / "out"))
    clicked = browser.evaluate(CLICK_ALL)
    assert len(clicked) == 4 + 3 + len(numbers.checks)
    for words, found in clicked:
        count = re.search(r"[0-9,]+", words)
        assert count, words
        assert found.startswith(f"{count[0]} of "), words
    assert_quiet(browser, page)


def test_addresses_in_the_list_are_those_of_the_tables(browser: Browser, page: Path) -> None:
    browser.open(page, width=DESKTOP[0], height=DESKTOP[1])
    numbers = take_numbers(Tables.open(page.parent / "out"))
    evidence = [address for fork in numbers.forks for address in fork.evidence]
    for check in ("fork.cycle", "fork.forked_log"):
        browser.evaluate(f"document.querySelector('[data-filter-check=\"{check}\"]').click()")
        browser.evaluate("document.querySelector('#list button').click()")
        message = browser.evaluate("[...document.querySelectorAll('#trace dd code')].at(-1).textContent")
        assert message in evidence
        browser.evaluate("document.getElementById('trace').close()")


def test_a_message_is_found_by_address_and_by_id(browser: Browser, page: Path) -> None:
    """Findings are searched by hex, `wm:/...` and the message's own id, whichever of them the list shows."""
    browser.open(page, width=DESKTOP[0], height=DESKTOP[1])
    tables = Tables.open(page.parent / "out")
    about = {row["message"]: row["fabric"] for row in tables.scan("findings") if row["message"]}
    ids = {row["message"]: row["id"] for row in tables.scan("messages") if row["message"] in about}
    assert set(about.values()) >= {"pcp", "won"}
    assert ids
    for message, fabric in about.items():
        names = {message[:16], address_text(Address(bytes.fromhex(message)), fabric), ids.get(message, message)}
        for name in names:
            search(browser, name)
            assert not browser.evaluate("document.getElementById('found').textContent").startswith("0 of "), name
    search(browser, "ffffffff-0000")
    assert browser.evaluate("document.getElementById('found').textContent").startswith("0 of ")


def test_the_switch_turns_dark_to_light_and_back(browser: Browser, page: Path) -> None:
    browser.open(page, width=DESKTOP[0], height=DESKTOP[1])
    themes = []
    for _ in range(2):
        browser.evaluate("document.getElementById('theme').click()")
        themes.append(browser.evaluate("document.documentElement.dataset.theme"))
    assert themes == ["dark", "light"]
    browser.evaluate("localStorage.clear()")


def test_paper_is_white_and_has_no_controls(browser: Browser, page: Path) -> None:
    browser.open(page, width=DESKTOP[0], height=DESKTOP[1], dark=True)
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    browser.call("Emulation.setEmulatedMedia", media="print", features=[dark])
    browser.call("Emulation.setDeviceMetricsOverride", width=720, height=1000, deviceScaleFactor=1, mobile=False)
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for control in (".top", ".filters", ".pager button", "figure details"):
        assert browser.evaluate(f"getComputedStyle(document.querySelector('{control}')).display") == "none", control
    assert browser.evaluate("document.getElementById('page').getBoundingClientRect().height") > 0, "which page this is"
    assert browser.evaluate("document.documentElement.scrollWidth") <= 720
    assert len(browser.call("Page.printToPDF", printBackground=True)["data"]) > 50_000
    assert_quiet(browser, page)


def test_a_receipt_is_downloaded_and_verifies(browser: Browser, tmp_path: Path) -> None:
    """From the page alone: no lake, no journal, no network; then verified with nothing but the keys."""
    cases = {name: make(tmp_path / name) for name, make in samples.CASES.items()}
    world = small_world()
    for name, case in cases.items():
        world.find("delivery.lost", name, case.address, at=-1, detail="look at " + name)
    world.find("delivery.lost", "pcp", address("nobody"), at=-1, detail="look at nobody")
    tables = Tables.open(world.write(tmp_path / "out"))
    page = tmp_path / "report.html"
    origins = Origins(journals=[path for case in cases.values() for path in case.journals])
    write_page(tables, take_numbers(tables), page, origins=origins)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "keys").write_text("".join(f"{verifier.text()}\n" for verifier in samples.verifiers()))
    browser.open(page, width=DESKTOP[0], height=DESKTOP[1])
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    for name, case in cases.items():
        open_story(browser, "look at " + name)
        browser.evaluate("document.querySelector('#trace a[download]').click()")
        while not (found := [path for path in folder.glob("*.receipt") if path.stat().st_size]):
            browser.evaluate("1")  # without a download it meets the test's time limit
            time.sleep(0.05)
        (file,) = found
        assert file.name == f"{address_text(case.address, name).removeprefix('wm:/')[:16]}.receipt"
        ran = subprocess.run(
            [sys.executable, "-m", "dovetail", "receipt", "verify", file.name, "--trust", "keys"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(Path(dovetail.__file__).parent.parent)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        assert address_text(case.address, name) in ran.stdout
        file.unlink()
    open_story(browser, "look at nobody")
    assert browser.evaluate("document.querySelectorAll('#trace a[download]').length") == 0
    trace = browser.evaluate("document.getElementById('trace').innerText")
    assert "No receipt: no signed checkpoint covers a hop of message" in trace
    assert "dovetail receipt build " in trace
    assert browser.errors == []
    assert {url.partition(":")[0] for url in browser.requests} <= {"file", "blob"}


def open_story(browser: Browser, words: str) -> None:
    search(browser, words)
    browser.evaluate("document.querySelector('#list button').click()")


def show_each(browser: Browser) -> None:
    browser.evaluate(
        "(() => { const f = document.getElementById('filters');"
        " f.elements.show.value = 'each'; f.dispatchEvent(new Event('change')) })()"
    )


def search(browser: Browser, words: str) -> None:
    """Type into the filter; on return the list shows the results."""
    browser.evaluate(
        "(() => { const f = document.getElementById('filters');"
        f" f.elements.text.value = '{words}'; f.dispatchEvent(new Event('change')) }})()"
    )


def test_a_hundred_thousand_findings_can_be_searched_and_turned(browser: Browser, tmp_path: Path) -> None:
    world = small_world()
    add_many_findings(world, 100_000)
    page = write(world, tmp_path)
    browser.open(page, width=DESKTOP[0], height=DESKTOP[1])
    assert browser.evaluate(ROWS) == 25
    assert "100,000 of 100,0" in browser.evaluate("document.getElementById('found').textContent")
    assert browser.evaluate("document.getElementById('page').textContent") == "page 1 of 21", "one row a recipient"
    show_each(browser)
    assert browser.evaluate("document.getElementById('page').textContent") == "page 1 of 4,000"
    search(browser, "agent-499")
    assert browser.evaluate("document.getElementById('found').textContent").startswith(
        "199 of "
    )  # the last one is not among the worst 100,000
    browser.evaluate("document.getElementById('next').click()")
    assert browser.evaluate("document.getElementById('page').textContent") == "page 2 of 8"
    search(browser, address("many", 4711).hex()[:16])
    assert browser.evaluate("document.getElementById('found').textContent").startswith("1 of ")
    assert_quiet(browser, page)
