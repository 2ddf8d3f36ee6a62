"""Damaged and hostile tables: the page stays correct and inert."""

from __future__ import annotations

import datetime as dt
import re

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from dovetail.audit.server_names import name_server_briefly
from dovetail.audit.tables import Tables
from dovetail.report.headline import write_headline
from dovetail.report.page import build_page, gather_content
from dovetail.report.survey import take_numbers
from dovetail.report.text import fit, show_path, write_time
from dovetail.report.waterfall import MAX_SERVERS, draw_waterfall
from report.sample_tables import BROKER, World, address, small_world
from tables_on_disk import SCHEMAS, write_tables

SCRIPTS = {
    "arabic": "\u0633\u0644\u0627\u0645",
    "hebrew": "\u05e9\u05dc\u05d5\u05dd",
    "han": "\u6d88\u606f\u5df2\u9001\u8fbe",
    "devanagari": "\u0938\u0902\u0926\u0947\u0936",
    "emoji": "\U0001f4e8\U0001f469\u200d\U0001f4bb",
    "combining": "e" + "\u0301" * 50,
    "turned": "\u202egnp.exe",
    "markup": "<img src=x onerror=hacked=1>&amp;'\"",
}


def page_of(world: World, tmp_path) -> str:
    tables = Tables.open(world.write(tmp_path / "out"))
    numbers = take_numbers(tables)
    return build_page(numbers, gather_content(tables, numbers), tables_path=str(tables.root))


@pytest.mark.parametrize("script", SCRIPTS)
def test_names_in_every_script_and_of_a_thousand_characters(script, tmp_path):
    name = (SCRIPTS[script] * 1000)[:1000]
    world = small_world(names=[name])
    page = page_of(world, tmp_path)
    assert "\u202e" not in page
    assert "<img src=x" not in page
    assert "(1,000 characters)" in page


def test_one_row_of_everything(tmp_path):
    world = World()
    world.hop(BROKER, 0, "accepted", address("only"), "pcp://a/agent")
    world.find("delivery.lost", "pcp", address("only"), BROKER, at=0, detail="for pcp://b/agent")
    tables = Tables.open(world.write(tmp_path / "out"))
    numbers = take_numbers(tables)
    assert [part.words for part in write_headline(numbers)] == ["1 error"]
    assert "for pcp://b/agent" in build_page(numbers, gather_content(tables, numbers), tables_path="out")


@pytest.mark.parametrize("seconds", [-(10**10), 10**10, 2 * 10**11])
def test_clocks_of_other_centuries(seconds, tmp_path):
    world = small_world()
    world.hop(BROKER, seconds, "accepted", address("old"), "pcp://a/agent")
    world.hop(BROKER, seconds + 1, "undeliverable", address("old"), "pcp://b/agent", "no_recipient")
    world.find("delivery.undeliverable", "pcp", address("old"), BROKER, at=seconds, detail="for pcp://b/agent")
    page = page_of(world, tmp_path)
    assert "Undeliverable" in page
    assert len(re.findall(r"<h2", page)) >= 5


def test_a_time_that_no_calendar_has_is_still_text():
    assert write_time(2**62) != ""
    assert write_time(-(2**62)) != ""


def million_findings() -> pa.Table:
    """All but the last are warnings about one message."""
    count = 1_000_000
    same = {"fabric": "pcp", "server": BROKER, "message": b"\0" * 32, "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}
    columns = {
        field.name: pa.repeat(pa.scalar(same.get(field.name), field.type), count) for field in SCHEMAS["findings"]
    }
    columns["check"] = pa.array(["chain.failed"] * (count - 1) + ["delivery.lost"])
    columns["severity"] = pa.array(["warning"] * (count - 1) + ["error"])
    return pa.table(columns, schema=SCHEMAS["findings"])


def test_a_million_findings_are_cut_to_the_worst_and_counted(tmp_path):
    """The page holds 100,000 of them, the most severe first, and says how many there are."""
    root = write_tables(tmp_path, {name: [] for name in SCHEMAS})
    write_deltalake(root / "findings", million_findings(), mode="overwrite")
    tables = Tables.open(write_tables(root, {}))
    numbers = take_numbers(tables)
    content = gather_content(tables, numbers)
    assert content.findings["total"] == 1_000_000
    assert len(content.findings["findings"]["check"]) == 100_000
    assert content.findings["checks"][content.findings["findings"]["check"][0]] == ["delivery.lost", "error"]
    assert [part.words for part in write_headline(numbers)] == ["1 error", "999,999 warnings"]
    assert len(build_page(numbers, content, tables_path="out")) < 5_000_000


def test_tables_without_rows(tmp_path):
    page = page_of(World(), tmp_path)
    assert "No data" in page
    assert "No check found anything." in page


def test_a_run_that_is_being_written_is_not_mixed_with_the_one_before(tmp_path):
    root = small_world().write(tmp_path / "out")
    tables = Tables.open(root)
    before = take_numbers(tables)
    write_deltalake(root / "findings", SCHEMAS["findings"].empty_table(), mode="overwrite")
    write_deltalake(root / "deliveries", SCHEMAS["deliveries"].empty_table(), mode="overwrite")
    assert take_numbers(Tables.open(root)) == before, "its tables are committed one by one, and no run names them yet"
    write_tables(root, {})
    assert take_numbers(tables) == before, "whoever opened a run goes on to see that run"
    assert take_numbers(Tables.open(root)).deliveries == 0


def test_names_fit_their_boxes_also_where_characters_are_wide():
    assert len(fit("a" * 100, 20)) <= 20
    assert len(fit("\u6d88" * 100, 20)) <= 10
    assert fit("short", 20) == "short"


def test_long_keys_are_shortened_in_the_middle():
    assert name_server_briefly("swarm://harbour/9f15c76141444246012168b4f28bc0d22ff2d014") == "harbour/9f15\u2026d014"
    assert name_server_briefly("not a uri") == "not a uri"


def test_paths_of_the_machine_are_not_handed_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert show_path(str(tmp_path / "audit" / "tables")) == "audit/tables"
    assert show_path("/somewhere/else/tables") == "tables"
    assert show_path("s3://bucket/tables") == "s3://bucket/tables"
    assert show_path("") == ""


class Seen:
    def __init__(self, server: str, at_us: int, stage: str = "accepted") -> None:
        self.server, self.at_us, self.stage = server, at_us, stage


def test_a_waterfall_of_one_turn_of_many_servers_and_of_nothing():
    assert "within one turn" in draw_waterfall([Seen("pcp://a/server", 5), Seen("pcp://a/server", 5)])
    many = draw_waterfall([Seen(f"swarm://s/{number}", number) for number in range(MAX_SERVERS + 7)])
    assert "and 7 more servers" in many
    assert "<svg" in draw_waterfall([])


def test_a_waterfall_shows_hostile_names_as_text():
    drawn = draw_waterfall([Seen("<script>1</script>", 0), Seen("<script>1</script>", 7)])
    assert "<script>" not in drawn
    assert "7 \u00b5s" in drawn
