"""The dashboard in a real browser: live counters, search by each key, a message's page, hostile text, the token."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dashboard import dashboard_world as world
from dovetail.model.address import address_of
from dovetail.model.hop import Stage
from system.browser import Browser, find_chromium, start_browser
from tables_on_disk import write_tables

CHROMIUM = find_chromium()
TOKEN = "correct-horse-battery"
SCREENSHOTS = os.environ.get("DOVETAIL_SCREENSHOTS")
pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(300),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt-get install chromium"),
]


@contextmanager
def run_dashboard(*arguments: str) -> Iterator[str]:
    """A dashboard process on a free port; yields its URL, and expects it to end on Ctrl-C."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dovetail", "dashboard", "--port", "0", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    )
    try:
        line = process.stderr.readline()
        found = re.search(r"http://\S+[^/ ]", line)
        assert found, line
        yield found[0]
    finally:
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=30)[1]
    assert "Traceback" not in rest


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    with start_browser(CHROMIUM, tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return world.write_site(tmp_path_factory.mktemp("site") / "journals", before=3000, after=50)


@pytest.fixture(scope="module")
def dashboard(folder) -> Iterator[str]:
    with run_dashboard("--journals", str(folder)) as address:
        yield address


def show(browser: Browser, address: str, condition: str, *, width: int = 1280, name: str = "") -> None:
    # the previous page may still poll its own, ended dashboard for events
    browser.call("Page.navigate", url="about:blank")
    browser.wait("location.href === 'about:blank' && document.readyState === 'complete'")
    browser.errors.clear()
    browser.requests.clear()
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
    browser.call("Page.navigate", url=address)
    browser.wait(f"document.readyState === 'complete' && ({condition})")
    if SCREENSHOTS and name:
        browser.photograph(Path(SCREENSHOTS) / f"dashboard-{name}-{width}.png", whole=True)


def wait_for_page(browser: Browser, condition: str) -> None:
    """Wait during navigation, when there may briefly be no page."""
    for _ in range(20):
        try:
            browser.wait(condition)
        except AssertionError as error:
            if not any(words in str(error) for words in ("navigated", "context")):
                raise
        else:
            return
    pytest.fail(f"the pages never came to rest: {condition}")


def assert_quiet(browser: Browser, address: str) -> None:
    """No errors, no script from a peer run, and no request to another host."""
    assert browser.errors == []
    assert browser.evaluate("window.hacked") is None
    assert all(url.startswith((f"{address}/", "data:")) for url in browser.requests), browser.requests


def text_of(browser: Browser) -> str:
    return browser.evaluate("document.body.innerText")


def test_live_counters_move_while_a_journal_is_written(browser, tmp_path):
    with (
        world.open_writer(tmp_path / "broker.journal", world.BROKER) as writer,
        run_dashboard("--journals", str(tmp_path)) as address,
    ):
        shown = "document.getElementById('tile-hops').textContent"
        show(browser, f"{address}/", f"{shown} === '0'")
        for number in range(1, 4):
            writer.append([world.noise(number * 100 + each) for each in range(100)])
            browser.wait(f"{shown} === '{number * 100}'")
        writer.append([world.observe(b"bad", Stage.REJECTED, reason=next(iter(world.Reason)))])
        browser.wait("document.getElementById('tile-refused').textContent === '1'")
        browser.wait("document.querySelector('.server .spark rect') !== null")
        browser.evaluate("document.querySelector('.server details').open = true")
        browser.wait("document.body.innerText.includes('rejected 1')")
        writer.append([world.noise(1000)])
        browser.wait("document.querySelector('.server .hops').textContent === '302'")
        assert browser.evaluate("document.querySelector('.server details').open"), "what was unfolded stays so"
        assert_quiet(browser, address)


def test_the_pulse_tells_of_the_page_and_of_the_newest_hop(browser, folder, dashboard):
    show(browser, f"{dashboard}/", "document.querySelector('.server') !== null")
    pulse = browser.evaluate("document.getElementById('pulse').textContent")
    assert pulse.startswith("page connected; newest hop ")
    assert browser.evaluate("document.getElementById('pulse').className") == "pulse unsure", "its hops are old"


def test_an_unsigned_journal_comes_first_and_says_so(browser, tmp_path):
    world.write_site(tmp_path, before=0, after=0)
    with world.open_writer(tmp_path / "zz.journal", "pcp://zz/server") as writer:
        writer.append([world.noise(1)])
        with run_dashboard("--journals", str(tmp_path)) as address:
            show(browser, f"{address}/", "document.querySelectorAll('.server').length > 1")
            first = "document.querySelector('.server').dataset"
            assert browser.evaluate(f"{first}.server") == "pcp://zz/server"
            assert browser.evaluate(f"{first}.state") == "unsigned"


def test_damage_is_an_alert(browser, tmp_path):
    world.write_pcp(tmp_path)
    (tmp_path / "junk.journal").write_bytes(b"junk" * 5000)
    with run_dashboard("--journals", str(tmp_path)) as address:
        show(browser, f"{address}/", "document.getElementById('tile-now').textContent === '1'")
        assert "junk.journal" in text_of(browser)
        assert browser.evaluate("document.querySelector('#alerts .chip').textContent") == "error"
        assert browser.evaluate("document.querySelectorAll('.server').length") == 1


@pytest.mark.parametrize(
    ("field", "term", "raw"),
    [
        ("address", address_of(world.REQUEST).hex()[:11], world.REQUEST),
        ("id", world.REPLY_ID, world.REPLY),
        ("uri", world.CONTROLLER, world.REPLY),
        ("text", "restart the pump", world.REQUEST),
        ("since", "2026-11-15T20:00:00", world.HOSTILE),
        ("any", "restart the pump", world.REQUEST),
    ],
)
def test_search_finds_by_each_key(browser, dashboard, field, term, raw):
    show(browser, f"{dashboard}/search", "location.pathname === '/search' && location.search === ''")
    browser.evaluate(f"document.querySelector('form[role=search] [name={field}]').value = {term!r}")
    browser.evaluate("document.querySelector('.primary').click()")
    wait_for_page(browser, "document.querySelector('#progress[data-state]:not([data-state=running])') !== null")
    assert browser.evaluate(f"document.querySelector('[data-address=\"{address_of(raw).hex()}\"]') !== null")
    assert "hops looked through" in text_of(browser)
    assert_quiet(browser, dashboard)


def test_a_long_search_goes_on_when_asked(browser, dashboard):
    state = "document.getElementById('progress').dataset.state"
    show(browser, f"{dashboard}/search?text=noise", f"{state} === 'stopped'", name="search")
    assert "not everything yet" in text_of(browser)
    before = browser.evaluate("document.querySelectorAll('[data-address]').length")
    browser.evaluate("document.querySelector('#progress button').click()")
    browser.wait(f"document.querySelectorAll('[data-address]').length > {before} && {state} === 'stopped'")


@pytest.mark.parametrize("width", [1280, 390])
def test_a_message_page_shows_its_hops_and_chain(browser, dashboard, width):
    first, second, third = world.won_chain()
    address = f"{dashboard}/message/{first.address.hex()}"
    show(browser, address, "document.querySelector('#hops tbody tr') !== null", width=width, name="message")
    page = text_of(browser)
    for words in ("accepted", "forwarded", "delivered", world.BOB, "the ladder is yours on Friday"):
        assert words in page
    assert browser.evaluate("document.querySelectorAll('#hops tbody tr').length") == 4
    for response in (second, third):
        link = f'#links a[href="/message/{response.address.hex()}"]'
        assert browser.evaluate(f"document.querySelector('{link}') !== null")
    assert browser.evaluate("document.querySelectorAll('svg.diagram .arrow').length") >= 6
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert_quiet(browser, dashboard)


def test_the_verdict_on_a_message_is_as_wide_as_the_screen(browser, folder, tmp_path):
    recipient = "https://node.example/won/resource/atom/" + "a" * 80
    row = {"fabric": "pcp", "message": address_of(world.REQUEST), "recipient": recipient, "outcome": "lost"}
    root = write_tables(tmp_path, {"deliveries": [row]})
    with run_dashboard("--journals", str(folder), "--tables", str(root)) as address:
        page = f"{address}/message/{address_of(world.REQUEST).hex()}"
        show(browser, page, "document.querySelector('.verdict') !== null", width=390)
        assert "lost" in text_of(browser)
        assert browser.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("width", [1280, 390])
def test_hostile_text_shows_as_text(browser, dashboard, width):
    address = f"{dashboard}/message/{address_of(world.HOSTILE).hex()}"
    show(browser, address, "document.querySelector('#raw') !== null", width=width, name="hostile")
    page = text_of(browser)
    assert "<script>window.hacked=1</script>" in page
    assert "\\u202e" in page
    assert "\u202e" not in page
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert_quiet(browser, dashboard)
    found = "document.querySelector('#progress').dataset.state === 'done'"
    show(browser, f"{dashboard}/search?uri=xxxxxxxx", found, width=width)
    assert "\u202e" not in text_of(browser)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert_quiet(browser, dashboard)


def test_the_token_is_required(browser, folder, tmp_path):
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    with run_dashboard("--journals", str(folder), "--token-file", str(tmp_path / "token")) as address:
        show(browser, f"{address}/", "document.body.dataset.page === 'login'", name="login")
        assert "pcp://" not in text_of(browser)
        for given in ("wrong", TOKEN):
            browser.evaluate(f"document.querySelector('[name=token]').value = {given!r}")
            browser.evaluate("document.querySelector('#login button').click()")
            if given == "wrong":
                browser.wait("document.getElementById('login-problem').textContent !== ''")
        wait_for_page(browser, "document.body?.dataset.page === 'live'")
        browser.wait("document.querySelector('.server') !== null")
        assert TOKEN not in " ".join(browser.requests)
