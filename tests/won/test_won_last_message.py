"""The seed's one gap: the last message of a conversation, altered by its own author. Checkpoints close it."""

from __future__ import annotations

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dovetail.journal.journal import Journal
from dovetail.journal.verify import verify_journal
from dovetail.model.hop import Stage
from dovetail.tlog.keys import Signer
from dovetail.won import compose as c
from dovetail.won.integrity import check_conversation
from dovetail.won.message import decode_message
from won.won_samples import ALICE, BOB, KEYS, NODE_A, NODE_B
from won.won_world import conversation_raws, record_conversation

PUBLIC = {name: KEYS[name].public for name in (NODE_A, NODE_B, ALICE, BOB)}


def sign_again(last, messages):
    """The last response signed again by the same node, with another time: genuine in every respect."""
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


def write_journal(path, observations):
    """A journal of node b with these observations, its checkpoint, and the conversation in it."""
    signer = Signer(NODE_B, Ed25519PrivateKey.from_private_bytes(bytes([2]) * 32))
    with Journal.open(path, server=NODE_B, signer=signer) as journal:
        journal.append(observations)
        checkpoint = journal.checkpoint()
        kept = [h.raw for h in journal.hops() if h.raw and h.stage in (Stage.ACCEPTED, Stage.CREATED)]
    return checkpoint, [raw for raw in kept if decode_message(raw).sender_socket is not None]


def test_last_message_altered_by_its_author_is_found_by_the_checkpoint(tmp_path):
    pair = record_conversation()
    checkpoint, raws = write_journal(tmp_path / "true.db", pair.b.observations)
    messages = [decode_message(raw) for raw in raws]
    assert check_conversation(raws, PUBLIC) == []
    assert verify_journal(tmp_path / "true.db", since=checkpoint).is_intact

    # The node has all keys it needs: it signs its last response again and rewrites its whole journal.
    last = messages[-1]
    altered = sign_again(last, messages)
    observations = [
        msgspec.structs.replace(o, message=altered.address, raw=altered.raw if o.raw else None)
        if o.message == last.address
        else o
        for o in pair.b.observations
    ]
    _, forged = write_journal(tmp_path / "forged.db", observations)
    assert decode_message(forged[-1]) == altered

    # Every address, signature and reference is valid, and the forged journal is consistent in itself ...
    assert check_conversation(forged, PUBLIC) == []
    assert verify_journal(tmp_path / "forged.db").is_intact
    # ... but it does not begin with what the checkpoint, once given to anyone, commits to,
    assert not verify_journal(tmp_path / "forged.db", since=checkpoint).is_intact
    # and the other parties' copies differ from it in exactly this message.
    assert set(forged) ^ set(conversation_raws(pair.alice)) == {last.raw, altered.raw}
