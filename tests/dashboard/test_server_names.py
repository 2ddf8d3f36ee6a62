"""A server has the same name on the report, on every page of the dashboard, in `audit show` and in `audit why`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cli.conftest import dovetail  # noqa: F401 - a fixture
from dashboard import dashboard_world as world
from dashboard.asgi import ask
from dashboard.test_dashboard_app import build
from dovetail.audit.server_names import name_server, name_servers_in, named_by, names_of, read_names
from dovetail.audit.tables import Tables
from dovetail.dashboard.site_sources import Site
from dovetail.model.address import address_of
from dovetail.model.hop import Stage
from dovetail.report.page import write_page
from dovetail.report.receipts import Origins
from dovetail.report.survey import take_numbers
from report.sample_tables import World, add_integrity

QUAY, YARD = "https://localhost:45379/won/resource", "https://localhost:45925/won/resource"
PEER = f"swarm://harbour/{'9f15' * 10}"
NAMES = {QUAY: "quay", YARD: "yard", PEER: "peer-11"}
RAW = b"a message"


@pytest.fixture
def folder(tmp_path) -> Path:
    """The journals of two nodes and a peer."""
    journals = {QUAY: "quay.journal", YARD: "yard.journal", PEER: "peer-11/journal.db"}
    for server, name in journals.items():
        path = tmp_path / "journals" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with world.open_writer(path, server) as writer:
            writer.append([world.observe(RAW, Stage.ACCEPTED, "https://localhost:1/won/resource/atom/ann")])
            writer.checkpoint()
    return tmp_path / "journals"


@pytest.fixture
def tables(tmp_path) -> Path:
    """An audit of them: a loss, and hops that are not signed."""
    audited = World()
    for server in NAMES:
        audited.hop(server, 0, "accepted", address_of(RAW), None)
        audited.find("integrity.unsigned", "won", None, server, at=0, detail="1 hop is not signed")
    audited.find("chain.copies_differ", "won", address_of(RAW), at=0, detail=f"only at {QUAY}")
    add_integrity(audited)
    audited.add(
        "deliveries", fabric="won", message=address_of(RAW), recipient="b", outcome="lost", failed_at=QUAY, reason=None
    )
    return audited.write(tmp_path / "tables")


def test_all_show_the_same_names(folder, tables, tmp_path, dovetail):  # noqa: F811
    opened = Tables.open(tables)
    page = tmp_path / "report.html"
    write_page(opened, take_numbers(opened), page, origins=Origins(journals=sorted(folder.rglob("*"))))
    app = build(Site((folder,)), tables=tables)
    message = f"/message/{address_of(RAW).hex()}"
    arguments = ("--tables", tables, "--journals", folder)
    shown = {
        "report": page.read_text(),
        "audit page": ask(app, "/audit").text,
        "message page": ask(app, message).text,
        "search page": ask(app, "/search").text,
        "audit show": dovetail("audit", "show", "integrity", "--columns", "server,verdict", *arguments).out,
        "audit why": dovetail("audit", "why", address_of(RAW).hex(), *arguments).out,
    }
    for where, text in shown.items():
        read = re.sub(r"<[^>]*>", " ", re.sub(r"(?s)<(script|style|title)\b.*?</\1>", "", text))
        for server, name in NAMES.items():
            assert re.search(rf"\b{name}\b", read), f"{where}: {name}"
            assert server.partition("://")[2].partition("/")[0] not in read, f"{where}: {server}"
    live = json.loads(ask(app, "/api/live").text)
    assert {each["server"]: each["name"] for each in live["servers"]} == NAMES
    results = json.loads(ask(app, "/api/search?text=message").text)["results"]
    assert {each["server_name"] for each in results} <= set(NAMES.values())
    assert results
    data = json.loads(re.search(r'(?s)<script[^>]*id="findings-data">(.*?)</script>', shown["report"])[1])
    assert {data["texts"][int(server)]: name for server, name in data["names"].items()} == NAMES
    assert dovetail("audit", "show", "integrity", "--where", "server=quay", "--wide", *arguments).out.count(QUAY) == 1


def test_a_name_of_two_servers_names_neither(folder):
    assert names_of({QUAY: Path("a/journal.db"), YARD: Path("b/a.journal"), PEER: Path("c/journal.db")}) == {PEER: "c"}
    (folder / "broken.journal").write_bytes(b"no journal")
    assert read_names([folder, folder / "absent.journal"]) == NAMES


def test_a_sentence_names_whole_uris_only():
    with named_by({QUAY: "quay"}):
        assert name_servers_in(f"only at {QUAY}, not {QUAY}/atom/ann") == f"only at quay, not {QUAY}/atom/ann"


def test_without_a_journal_a_server_is_called_by_its_uri():
    with named_by({QUAY: "quay"}):
        assert (name_server(QUAY), name_server(YARD)) == ("quay", YARD)
    assert name_server(QUAY) == QUAY
