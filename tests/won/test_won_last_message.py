"""The seed's one gap: the last message of a conversation, altered by its own author. Checkpoints close it."""

from __future__ import annotations

import sqlite3

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dovetail.hop import Stage
from dovetail.journal.checkpoint import Signer
from dovetail.journal.journal import Journal
from dovetail.journal.verify import verify_journal
from dovetail.won import compose as c
from dovetail.won.integrity import check_conversation, compare_copies
from dovetail.won.message import decode_message
from won.won_samples import ALICE, BOB, KEYS, NODE_A, NODE_B
from won.won_world import conversation_raws, record_conversation

PUBLIC = {name: KEYS[name].public for name in (NODE_A, NODE_B, ALICE, BOB)}


def sign_again(last, messages):
    """The last response once more by the node that made it, with another time: genuine in every way."""
    message = next(m for m in messages if m.uri == last.responding_to)
    return c.respond(
        message,
        success=True,
        signer=last.signer,
        key=KEYS[last.signer],
        timestamp_ms=last.timestamp_ms + 60_000,
        connection=last.connection,
        sender_socket=last.sender_socket,
        recipient_socket=last.recipient_socket,
        previous=last.previous,
    )


def read_raws(path, signer):
    with Journal.open(path, server=NODE_B, signer=signer) as journal:
        kept = [h.raw for h in journal.hops() if h.raw and h.stage in (Stage.ACCEPTED, Stage.CREATED)]
    return [raw for raw in kept if decode_message(raw).sender_socket is not None]


def test_last_message_altered_by_its_author_is_found_by_the_checkpoint(tmp_path):
    pair = record_conversation()
    path, signer = tmp_path / "b.db", Signer(NODE_B, Ed25519PrivateKey.from_private_bytes(bytes([2]) * 32))
    with Journal.open(path, server=NODE_B, signer=signer) as journal:
        journal.append(pair.b.observations)
    raws = read_raws(path, signer)
    messages = [decode_message(raw) for raw in raws]
    assert check_conversation(raws, PUBLIC) == []
    assert verify_journal(path).is_intact

    last = messages[-1]
    altered = sign_again(last, messages)
    database = sqlite3.connect(path)
    changed = database.execute(
        "UPDATE messages SET address = ?, raw = ?, size = ? WHERE address = ?",
        (altered.address, altered.raw, len(altered.raw), last.address),
    ).rowcount
    database.commit()
    database.close()
    assert changed == 1

    # Every address, signature and reference of the altered log is right ...
    with_altered = [*raws[:-1], altered.raw]
    assert check_conversation(with_altered, PUBLIC) == []
    # ... but the journal's signed checkpoint says that this is not what was stored, and where,
    verdict = verify_journal(path)
    assert not verdict.is_intact
    assert verdict.first.seq is not None
    # and so does any other party's copy.
    differing = compare_copies(with_altered, conversation_raws(pair.alice))
    assert {finding.uri for finding in differing} == {last.uri, altered.uri}
