from __future__ import annotations

import pytest

from dovetail.journal.source import JournalSource
from dovetail.lake.reader import open_lake
from dovetail.lake.seal import seal_journal
from dovetail.lake.store import LocalStore
from dovetail.model.address import address_of
from dovetail.model.errors import ReceiptError
from dovetail.receipt.build_conversation import build_conversation
from dovetail.receipt.verify import verify_receipt
from dovetail.won.message import decode_message
from receipt import receipt_samples as samples
from receipt.conversation_samples import NODE_KEYS, TRUSTED, speak

pytestmark = pytest.mark.exhaustive  # whole worlds are sealed


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    return speak(tmp_path_factory.mktemp("spoken"))


@pytest.fixture(scope="module")
def statement(spoken):
    return spoken.build()


@pytest.mark.exhaustive
def test_any_message_of_it_gives_the_same_statement(spoken, statement):
    """From a message in the middle, the beginning is found through references, the end by searching."""
    for message in verify_receipt(statement, TRUSTED).messages[::6]:
        assert spoken.build(message.address) == statement


def test_the_lake_gives_the_same_statement(spoken, statement, tmp_path):
    for path in spoken.journals:
        seal_journal(path, LocalStore(tmp_path / "lake"), target_bytes=20_000)
    assert build_conversation(open_lake(LocalStore(tmp_path / "lake")), spoken.said[0].address, NODE_KEYS) == statement


def test_without_a_search_it_ends_with_the_message_that_was_named(spoken, statement):
    proof = verify_receipt(statement, TRUSTED)
    response = next(
        m for m in proof.messages if decode_message(m.raw).responding_to == spoken.said[3].uri and b"#chat> <" in m.raw
    )
    shorter = verify_receipt(spoken.build(response.address, search_hops=0), TRUSTED)
    assert {m.address for m in shorter.messages} < {m.address for m in proof.messages}


def test_a_message_alone_is_no_conversation(spoken):
    with pytest.raises(ReceiptError, match="no successful response to wm:/"):
        spoken.build(search_hops=0)


def test_atoms_and_strangers_have_no_conversation(spoken):
    with JournalSource.open(spoken.journals[0]) as source:
        create = next(m for m, raw in source.bodies_between(0, 5) if decode_message(raw).atom is not None)
        with pytest.raises(ReceiptError, match="belongs to no conversation of two sockets"):
            build_conversation([source], create, NODE_KEYS)
        with pytest.raises(ReceiptError, match="no signed checkpoint covers a hop of"):
            build_conversation([source], address_of(b"never seen"), NODE_KEYS)


def test_other_fabrics_have_no_conversation_of_this_kind(tmp_path):
    case = samples.pcp_case(tmp_path)
    with (
        JournalSource.open(case.journals[0]) as source,
        pytest.raises(ReceiptError, match="messages of pcp form no conversations"),
    ):
        build_conversation([source], case.address)
