"""A fourth fabric takes one core module and one line in the registry: journal, lake, dashboard and receipts know it."""

from __future__ import annotations

import pytest

from dovetail import fabrics
from dovetail.dashboard import message
from dovetail.dashboard.message_page import message_page
from dovetail.dashboard.site_sources import Site
from dovetail.fabrics import Entry
from dovetail.journal.source import JournalSource
from dovetail.journal.verify import verify_journal
from dovetail.lake.reader import open_lake
from dovetail.lake.seal import seal_journal
from dovetail.lake.store import LocalStore
from dovetail.model.address import address_of
from dovetail.model.hop import Observation, Stage
from dovetail.receipt.build import build_receipt
from dovetail.receipt.request_reply import build_exchange
from dovetail.receipt.sources import find_message
from dovetail.receipt.verify import verify_receipt
from receipt import receipt_samples as samples

SERVER = "toy://corner/box"
ASK = b"card a1 toy://ann toy://bob 1763236800000: when do we meet?"
ANSWER = b"card b1 toy://bob toy://ann 1763236801000 re a1: at noon"
OTHER = b"card c1 toy://ann toy://cid 1763236802000: hello"


@pytest.fixture
def journal(tmp_path, monkeypatch):
    monkeypatch.setitem(fabrics.REGISTRY, "toy", Entry(("toy",), "fabrics.toy_fabric"))
    seen = [
        (ASK, Stage.ACCEPTED, "toy://ann"),
        (ASK, Stage.DELIVERED, "toy://bob"),
        (ANSWER, Stage.ACCEPTED, "toy://bob"),
        (ANSWER, Stage.DELIVERED, "toy://ann"),
        (OTHER, Stage.ACCEPTED, "toy://ann"),
    ]
    observations = [
        Observation(
            at_us=samples.T0 + number, stage=stage, message=address_of(raw), counterparts=(whom,), raw=raw, size=None
        )
        for number, (raw, stage, whom) in enumerate(seen)
    ]
    return samples.write(tmp_path / "box.journal", SERVER, observations)


def test_its_journal_is_verified_and_sealed(journal, tmp_path):
    assert verify_journal(journal, trusted=samples.verifiers(SERVER)).findings == []
    manifest = seal_journal(journal, LocalStore(tmp_path / "lake"))
    assert manifest.fabric == "toy"
    (source,) = open_lake(LocalStore(tmp_path / "lake"))
    assert source.raw(address_of(ASK)) == ASK


def test_the_dashboard_explains_a_message_and_finds_what_answers_it(journal):
    with Site((journal.parent,)).open() as (sources, _):
        trace, damages = message.trace_message(sources, address_of(ASK))
        page = message_page(trace, message.draw(trace, sources))
    assert damages == []
    assert [(each.address, each.is_child) for each in trace.relatives] == [(address_of(ANSWER), True)]
    assert "when do we meet?" in page


def test_a_receipt_proves_its_delivery_and_says_what_it_leaves_open(journal):
    with JournalSource.open(journal) as source:
        address = find_message([source], address_of(ASK).hex()[:12])
        proof = verify_receipt(build_receipt([source], address).data, samples.verifiers(SERVER))
    assert proof.fabric == "toy"
    assert "that anybody looked into the letter box" in proof.not_proven


def test_a_receipt_shows_all_of_an_exchange(journal):
    with JournalSource.open(journal) as source:
        proof = verify_receipt(build_exchange(source, address_of(ASK)), samples.verifiers(SERVER))
    assert [each.address for each in proof.messages] == [address_of(ASK), address_of(ANSWER)]
