from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail.audit.tables import Tables
from dovetail.lake.seal import seal_journal
from dovetail.lake.store import LocalStore
from dovetail.model.address import address_of
from dovetail.receipt.verify import verify_receipt
from dovetail.report.page import gather_content
from dovetail.report.receipts import Origins, ReceiptStore, build_receipts
from dovetail.report.survey import take_numbers
from receipt import receipt_samples as samples
from report.sample_tables import small_world

TRUSTED = samples.verifiers()


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, samples.Case]:
    return {name: make(tmp_path_factory.mktemp(name)) for name, make in samples.CASES.items()}


@pytest.fixture(scope="module")
def origins(cases: dict[str, samples.Case]) -> Origins:
    return Origins(journals=[path for case in cases.values() for path in case.journals])


def responses(cases: dict[str, samples.Case]) -> dict[bytes, list[bytes]]:
    _, first, second = samples.won_chain()
    return {cases["won"].address: [first.address, second.address]}


def test_receipts_are_those_that_the_command_builds(cases, origins) -> None:
    addresses = [case.address for case in cases.values()]
    kept = build_receipts(origins, addresses, responses(cases))
    assert [text.encode() for text in kept.receipts.values()] == [case.build() for case in cases.values()]
    assert list(kept.receipts) == [0, 1, 2]
    assert kept.bytes == sum(len(case.build()) for case in cases.values())
    assert kept.reasons == {}


def test_a_lake_gives_the_same(cases, tmp_path) -> None:
    for path in cases["won"].journals:
        seal_journal(path, LocalStore(tmp_path / "lake"))
    kept = build_receipts(Origins(lake=tmp_path / "lake"), [cases["won"].address], responses(cases))
    assert kept.receipts[0].encode() == cases["won"].build()


def test_a_response_that_is_not_there_is_left_out(cases, origins) -> None:
    address = cases["won"].address
    kept = build_receipts(origins, [address], {address: [address_of(b"nobody has this response")]})
    assert len(verify_receipt(kept.receipts[0].encode(), TRUSTED).messages) == 1


def test_what_cannot_be_proven_has_a_reason(cases, origins, tmp_path) -> None:
    kept = build_receipts(origins, [address_of(b"nobody saw this"), cases["pcp"].address], {})
    assert "no signed checkpoint covers a hop" in kept.reasons[0]
    assert list(kept.receipts) == [1]
    kept = build_receipts(Origins(lake=tmp_path), [cases["pcp"].address], {})
    assert "is not a lake" in kept.reasons[0]


def test_number_bytes_and_time_are_bounded(cases, origins) -> None:
    addresses = [case.address for case in cases.values()]
    assert list(build_receipts(origins, addresses, {}, max_receipts=1).receipts) == [0]
    kept = build_receipts(origins, addresses, {}, max_bytes=len(cases["pcp"].build()) + 10)
    assert list(kept.receipts) == [0]
    assert "too many for this page" in kept.reasons[1]
    assert build_receipts(origins, addresses, {}, max_seconds=-1.0).receipts == {}
    strangers = [address_of(b"%d" % number) for number in range(50)]
    assert len(build_receipts(origins, strangers, {}, max_receipts=10).reasons) == 20


def test_the_page_gets_receipts_of_the_messages_of_its_findings(cases, origins, tmp_path: Path) -> None:
    world = small_world()
    world.find("chain.awaiting_recipient", "won", cases["won"].address, samples.NODE_B, at=1, detail="x")
    tables = Tables.open(world.write(tmp_path / "out"))
    content = gather_content(tables, take_numbers(tables), origins=origins)
    (number,) = content.receipts.receipts
    assert content.findings["addresses"][number]
    assert json.loads(content.receipts.receipts[number])["messages"][0]["address"] == cases["won"].address.hex()
    assert gather_content(tables, take_numbers(tables)).receipts == ReceiptStore()
