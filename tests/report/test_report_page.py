from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dovetail.audit.tables import Tables
from dovetail.receipt.witness_memory import Witnessed
from dovetail.report.page import build_page, embed_json, gather_content, write_page
from dovetail.report.survey import take_numbers
from dovetail.report.text import write_duration
from report.sample_tables import BROKER, HOSTILE, add_many_findings, small_world

pytest.importorskip("vl_convert", reason="the charts' library is not installed")

MANY = 100_000
MAX_PAGE_BYTES = 25_000_000


class Page(HTMLParser):
    """What a browser would take from the page: its elements, scripts and visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.words = ""
        self._script: dict[str, str | None] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag == "script":
            self._script = dict(attrs)
            self.scripts.append((self._script, ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._script = None

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            attributes, before = self.scripts[-1]
            self.scripts[-1] = attributes, before + data
        else:
            self.words += data

    def embedded(self, id_: str) -> dict[str, object]:
        return dict(json.loads(next(text for attributes, text in self.scripts if attributes.get("id") == id_)))


def render(tables: Tables) -> str:
    numbers = take_numbers(tables)
    return build_page(numbers, gather_content(tables, numbers), tables_path="out")


@pytest.fixture(scope="module")
def page(tables: Tables) -> str:
    return render(tables)


@pytest.fixture(scope="module")
def hostile_page(hostile_tables: Tables) -> str:
    return render(hostile_tables)


def test_the_page_says_what_the_numbers_say(page: str, tables: Tables) -> None:
    numbers = take_numbers(tables)
    words = " ".join(Page(page).words.split())
    failed = numbers.deliveries - numbers.arrived - numbers.pending
    assert f"{numbers.arrived:,} of {numbers.deliveries:,} deliveries arrived, {failed:,} did not" in words
    assert f"{numbers.proven} of {len(numbers.servers)} journals are proven" in words
    broken = sum(server.verdict == "broken" for server in numbers.servers)
    assert f"{failed:,} deliveries did not arrive; {broken} of {len(numbers.servers)} journals" in words
    assert f"{numbers.found('warning')} warnings" in words
    for item in numbers.checks:
        assert item.check in words


def test_each_journal_tells_when_it_was_last_signed_and_witnessed(tables: Tables) -> None:
    as_of_us = tables.run.as_of_us
    looks = {BROKER: Witnessed(7, "witness.example", as_of_us // 1_000_000 - 3 * 86_400)}
    numbers = take_numbers(tables, looks)
    words = " ".join(Page(build_page(numbers, gather_content(tables, numbers), tables_path="out")).words.split())
    (broker,) = (server for server in numbers.servers if server.server == BROKER)
    assert f"last: {write_duration(as_of_us - broker.signed_at_us)} before the audit" in words
    assert "hop 7: 3 days before the audit" in words
    assert words.count("none known") == len(numbers.servers) - 1


def test_the_headline_and_every_tile_lead_somewhere(page: str) -> None:
    found = Page(page)
    ids = {value for _, name, value in found.attributes if name == "id"}
    targets = {value for tag, name, value in found.attributes if tag == "a" and name == "href"}
    assert {"#findings", "#integrity", "#arrival", "#traffic"} <= targets
    assert {str(target).removeprefix("#") for target in targets} <= ids
    filtered = {value for _, name, value in found.attributes if name == "data-filter-severity"}
    assert {"error", "warning", "note"} <= filtered


def test_no_path_of_the_machine_is_on_the_page(page: str, tables: Tables) -> None:
    assert str(Path(tables.root).parent) not in page


def test_the_page_loads_nothing(page: str) -> None:
    loaded = {"src", "href", "srcset", "data", "poster", "action", "background"}
    for tag, name, value in Page(page).attributes:
        if name in loaded:
            assert (value or "").startswith(("#", "data:,")), f"<{tag} {name}={value}>"
    assert "@import" not in page
    assert "url(" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def test_the_policy_allows_exactly_the_scripts_of_the_page(page: str) -> None:
    found = Page(page)
    policy = next(
        value or "" for tag, name, value in found.attributes if tag == "meta" and "default-src" in (value or "")
    )
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    allowed = set(re.findall(r"'sha256-([^']+)'", policy.partition("script-src")[2].partition(";")[0]))
    scripts = [text for attributes, text in found.scripts if attributes.get("type") != "application/json"]
    assert len(scripts) == 2
    assert {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts} == allowed
    assert not [name for _, name, _ in found.attributes if name.startswith("on") or name == "style"]


def test_peers_text_is_text_everywhere(hostile_page: str, page: str) -> None:
    hostile, plain = Page(hostile_page), Page(page)
    assert hostile.tags.count("script") == plain.tags.count("script") == 4
    assert hostile.tags.count("img") == 0
    assert not [name for _, name, _ in hostile.attributes if name.startswith("on")]
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200e\u200f]", hostile_page)
    assert "x" * 301 not in hostile_page
    assert "<script>window.hacked=1</script>" in hostile.words


def test_embedded_findings_hold_hostile_text_whole(hostile_page: str) -> None:
    texts = Page(hostile_page).embedded("findings-data")["texts"]
    assert isinstance(texts, list)
    assert HOSTILE[0] in texts
    assert HOSTILE[1] in texts
    assert HOSTILE[2] in texts


@pytest.mark.parametrize("text", ["</script>", "<!--", "]]>", "&amp;", "\u2028"])
def test_embedded_json_cannot_end_its_element(text: str) -> None:
    written = embed_json({"key": text})
    assert not re.search("[<>&\u2028]", written)
    assert json.loads(written) == {"key": text}


def test_an_empty_audit_gives_a_page(empty_tables: Tables) -> None:
    words = Page(render(empty_tables)).words
    assert "No data" in words
    assert "No check found anything" in words


@pytest.mark.system
def test_a_hundred_thousand_findings_fit(tmp_path: Path) -> None:
    world = small_world()
    add_many_findings(world, MANY)
    tables = Tables.open(world.write(tmp_path / "out"))
    size = write_page(tables, take_numbers(tables), tmp_path / "report.html")
    assert size < MAX_PAGE_BYTES
    found = Page((tmp_path / "report.html").read_text()).embedded("findings-data")
    assert found["total"] == len(world.rows["findings"]) > MANY
    assert len(found["findings"]["check"]) == MANY  # type: ignore[index]


def test_the_page_takes_the_place_of_an_older_one_whole(tables: Tables, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    target.write_text("older")
    size = write_page(tables, take_numbers(tables), target, max_findings=1)
    assert target.stat().st_size == size
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
