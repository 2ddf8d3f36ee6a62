"""Damaged and hostile tables and journals: the dashboard stays correct, small and inert."""

from __future__ import annotations

import datetime as dt
import html
import json

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from dashboard import dashboard_world as world
from dashboard.asgi import ask
from dashboard.test_dashboard_app import build, message
from dovetail.dashboard import audit, live
from dovetail.dashboard.site_sources import Site
from dovetail.model.hop import Stage
from report.agreement import assert_pages_agree, tiles_of
from report.sample_tables import BROKER, World, address, small_world
from report.test_report_bad_input import SCRIPTS, million_findings
from tables_on_disk import SCHEMAS, write_tables

MAX_PAGE_BYTES = 200_000


def tables_of(tmp_path, rows):
    return write_tables(tmp_path / "out", {name: rows.get(name, []) for name in SCHEMAS})


def test_pages_of_a_small_world_agree(tmp_path):
    small = small_world()
    pending = next(row for row in small.rows["deliveries"] if row["outcome"] == "in_flight")
    small.find("delivery.overdue", "swarm", pending["message"], at=1, detail=f"for {pending['recipient']}")
    assert_pages_agree(small.write(tmp_path / "out"))


def test_tables_without_rows_say_that_there_is_nothing_to_judge(site, tmp_path):
    root = tables_of(tmp_path, {})
    page = ask(build(site, tables=root), "/audit").text
    assert "No data" in page
    assert tiles_of(page)["errors"] == tiles_of(page)["did not arrive"] == "0"
    assert "nothing was found" in page
    assert_pages_agree(root)


def test_one_row_of_everything(site, tmp_path):
    only = World()
    only.hop(BROKER, 0, "accepted", address("only"), "pcp://a/agent")
    only.add("deliveries", fabric="pcp", message=address("only"), recipient="pcp://b/agent", outcome="lost")
    only.find("delivery.lost", "pcp", address("only"), BROKER, at=0, detail="for pcp://b/agent")
    root = only.write(tmp_path / "out")
    page = ask(build(site, tables=root), "/audit").text
    assert "1 to 1 of 1" in page
    assert "for pcp://b/agent" in page
    assert_pages_agree(root)


def test_a_million_findings_are_counted_and_shown_in_small_pages(site, tmp_path, monkeypatch):
    root = tables_of(tmp_path, {})
    write_deltalake(root / "findings", million_findings(), mode="overwrite")
    write_tables(root, {})
    largest = 0
    order = audit.read_worst.__globals__["order_findings"]

    def watch(findings, limit):
        nonlocal largest
        largest = max(largest, findings.num_rows)
        return order(findings, limit)

    monkeypatch.setitem(audit.read_worst.__globals__, "order_findings", watch)
    app = build(site, tables=root)
    causes = ask(app, "/audit")
    assert "the worst 10,000 of 1,000,000 findings" in causes.text
    assert len(causes.body) < MAX_PAGE_BYTES
    page = ask(app, "/audit?show=each")
    assert "1 to 100 of 1,000,000" in page.text
    assert tiles_of(page.text)["warnings"] == "999,999"
    assert page.text.index("delivery.lost") < page.text.index("chain.failed")
    assert len(page.body) < MAX_PAGE_BYTES
    assert largest < 250_000, "the table was held whole"
    last = ask(app, "/audit?show=each&offset=999999999").text
    assert f"{audit.MAX_OFFSET + 1:,} to 100,000 of 1,000,000" in last
    assert "later" not in last
    assert len(ask(app, "/api/live").body) < MAX_PAGE_BYTES


@pytest.mark.parametrize("script", SCRIPTS)
def test_names_in_every_script_and_of_a_thousand_characters(script, tmp_path):
    name = (SCRIPTS[script] * 1000)[:1000]
    given = World()
    given.find("delivery.lost", "pcp", address("only"), name, at=0, detail=name)
    given.find(f"unknown.{name}", "pcp", address("only"), name, at=0, detail=name)
    root = given.write(tmp_path / "out")
    folder = tmp_path / "journals"
    folder.mkdir()
    with world.open_writer(folder / "broker.journal", world.BROKER) as writer:
        writer.append([world.observe(world.REQUEST, Stage.ACCEPTED, f"pcp://{name}/agent")])
    app = build(Site((folder,)), tables=root)
    for path in ("/audit", message(world.REQUEST)):
        page = ask(app, path)
        assert page.status == 200
        assert "\u202e" not in page.text
        assert "<img src=x" not in page.text
        assert "(1,0" in html.unescape(page.text), "the length of what was cut is told"
        assert len(page.body) < MAX_PAGE_BYTES
    found = json.loads(ask(app, "/api/search?all=1").body)["results"]
    assert [each["counterpart"].partition("… (")[2] for each in found] == ["1,012 characters)"]


@pytest.mark.parametrize("year", [1601, 1969, 2400, 9999])
def test_clocks_of_other_centuries(year, tmp_path):
    at = dt.datetime(year, 6, 1, 12, tzinfo=dt.UTC)
    row = {"check": "delivery.lost", "severity": "error", "fabric": "pcp", "server": BROKER, "at": at, "detail": ""}
    root = tables_of(tmp_path, {"findings": [row | {"message": address("only")}]})
    folder = tmp_path / "journals"
    folder.mkdir()
    at_us = (at - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    with world.open_writer(folder / "broker.journal", world.BROKER) as writer:
        writer.append([world.observe(world.REQUEST, Stage.ACCEPTED, world.CONTROLLER, at_us=max(at_us, 0))])
        writer.checkpoint()
    app = build(Site((folder,)), tables=root)
    assert f"{year}-06-01 12:00:00.000" in ask(app, "/audit").text
    assert ask(app, message(world.REQUEST)).status == 200
    state = json.loads(ask(app, "/api/live").body)
    assert state["alerts"][0]["first_us"] == at_us
    assert state["servers"][0]["state"] == "idle", "nobody writes it, whatever its clock says"


def test_a_time_that_no_calendar_has(tmp_path):
    row = {"check": "delivery.lost", "severity": "error", "at": 2**62, "detail": ""}
    columns = {field.name: pa.array([row.get(field.name)], field.type) for field in SCHEMAS["findings"]}
    root = tables_of(tmp_path, {})
    write_deltalake(root / "findings", pa.table(columns, SCHEMAS["findings"]), mode="overwrite")
    write_tables(root, {})
    assert f"{2**62:,} µs since 1970" in ask(build(Site((tmp_path,)), tables=root), "/audit").text


def test_a_journal_that_grows_is_being_written_whatever_its_clock_says(tmp_path):
    with world.open_writer(tmp_path / "a.journal", world.BROKER) as writer:
        writer.append([world.noise(1)])
        writer.checkpoint()
        watched = live.Live(Site((tmp_path,)))
        assert watched.look()["servers"][0]["state"] == "idle"
        writer.append([world.noise(2)])
        writer.checkpoint()
        assert watched.look()["servers"][0]["state"] == "writing"
        watched.close()


def test_a_run_that_is_being_written_is_shown_when_it_is_whole(site, tmp_path):
    """The numbers and the list below them are of one run, and the tables of the next appear only after it ends."""
    root = small_world().write(tmp_path / "out")
    app = build(site, tables=root)
    before = ask(app, "/audit").text
    write_deltalake(root / "findings", SCHEMAS["findings"].empty_table(), mode="overwrite")
    write_deltalake(root / "deliveries", SCHEMAS["deliveries"].empty_table(), mode="overwrite")
    assert ask(app, "/audit").text == before
    assert ask(build(site, tables=root), "/audit").text == before
    write_tables(root, {})
    assert ask(app, "/audit").text == before, "until the hub has looked again"
    assert tiles_of(ask(build(site, tables=root), "/audit").text)["errors"] == "0"
