"""Who signed what: Ed25519 over the canonical graphs, keys published in Create messages."""

from __future__ import annotations

import pickle

import pytest

from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Reason
from dovetail.won import vocabulary as v
from dovetail.won.message import decode_message
from dovetail.won.signing import (
    PublicKey,
    decode_base64,
    expected_signer,
    extract_keys,
    find_key,
    key_quads,
    verify_signature,
)
from dovetail.won.trig import encode_document
from dovetail.won.vocabulary import Direction, MessageType
from won.won_samples import ALICE, KEYS, NODE_A, build, success


def replaced(message, predicate, old, new):
    quads = [(s, p, o.replace(old, new) if p == predicate else o, g) for s, p, o, g in message.quads]
    return decode_message(encode_document(quads, "application/n-quads"))


def test_signature_verifies_with_the_signers_key_only():
    message = build()
    assert verify_signature(message, KEYS[ALICE].public)
    assert not verify_signature(message, KEYS["mallory"].public)


@pytest.mark.parametrize(
    ("predicate", "old", "new"),
    [
        (v.P_TEXT, "hello", "hallo"),
        (v.P_TIMESTAMP, "0000", "0001"),
        (v.P_RECIPIENT_SOCKET, "bob", "eve"),
        (v.P_HASH, "=", ""),
        (v.P_FINGERPRINT, "=", ""),
        (v.P_SIGNATURE_VALUE, "==", ""),
    ],
)
def test_any_change_breaks_the_signature(predicate, old, new):
    message = build()
    changed = replaced(message, predicate, old, new)
    assert changed.quads != message.quads
    assert not verify_signature(changed, KEYS[ALICE].public)


def test_base64_has_one_form_per_value():
    assert decode_base64("AA==", 1) == b"\0"
    assert decode_base64("AB==", 1) is None
    assert decode_base64("AA", 1) is None
    assert decode_base64("AA==", 2) is None
    assert decode_base64("\x00", 1) is None


def test_create_message_publishes_the_atoms_key():
    assert extract_keys(build(MessageType.CREATE)) == {ALICE: KEYS[ALICE].public}


def test_other_messages_publish_no_key():
    assert extract_keys(build(MessageType.REPLACE)) == {}
    assert extract_keys(build()) == {}


def test_two_keys_for_one_owner_are_no_key():
    quads = key_quads(ALICE, KEYS[ALICE].public, "g:g") + key_quads(ALICE, KEYS["mallory"].public, "g:g")
    assert find_key(ALICE, quads) is None


def test_public_keys_travel_to_other_processes():
    key = pickle.loads(pickle.dumps(KEYS[ALICE].public))
    assert verify_signature(build(), key)


def test_public_key_has_thirty_two_bytes():
    with pytest.raises(ValueError, match="31 bytes"):
        PublicKey(b"x" * 31)


def test_owner_messages_are_signed_by_the_sending_atom():
    assert expected_signer(build()) == ALICE
    assert expected_signer(build(MessageType.DELETE)) == ALICE


def test_system_messages_are_signed_by_the_sending_atoms_node():
    assert expected_signer(success(build())) == NODE_A
    assert expected_signer(build(MessageType.CLOSE, direction=Direction.SYSTEM)) == NODE_A


def test_external_messages_cannot_be_sent():
    with pytest.raises(RemoteProtocolError) as caught:
        expected_signer(build(direction=Direction.EXTERNAL))
    assert caught.value.reason is Reason.INVALID_SCHEMA
