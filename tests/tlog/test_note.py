from __future__ import annotations

import hashlib

import pytest

from dovetail.model.errors import ReceiptError
from dovetail.receipt.format import NoteRecord, carry_note, check_note
from dovetail.tlog.checkpoint import Checkpoint, sign_checkpoint
from dovetail.tlog.keys import Verifier
from dovetail.tlog.note import SIGNS_COSIGNATURE, cosign, key_text, parse_key
from receipt import receipt_samples as samples

SERVER = samples.signer_of(samples.BROKER)
WITNESS = samples.signer_of(samples.WITNESSES[0])
CHECKPOINT = Checkpoint(samples.BROKER, 12, bytes(32))
NOTE = sign_checkpoint(CHECKPOINT, SERVER).note


def test_keys_survive_as_text():
    assert parse_key(key_text(SERVER.verifier)) == (SERVER.verifier, 1)
    assert parse_key(key_text(WITNESS.verifier, SIGNS_COSIGNATURE)) == (WITNESS.verifier, 4)
    assert key_text(SERVER.verifier) == SERVER.verifier.text()


def test_a_witness_key_has_the_id_of_c2sp():
    name, key_id, _ = key_text(WITNESS.verifier, SIGNS_COSIGNATURE).split("+", 2)
    digest = hashlib.sha256(name.encode() + b"\n\x04" + WITNESS.verifier.public_key).hexdigest()
    assert key_id == digest[:8]


@pytest.mark.parametrize(
    "text",
    [
        "no plus",
        "a+b",
        f"x{key_text(SERVER.verifier)}",
        key_text(SERVER.verifier).upper(),
        key_text(Verifier("a b", bytes(32))),
        key_text(SERVER.verifier, 2),
        key_text(SERVER.verifier)[:-4],
    ],
)
def test_other_keys_are_refused(text):
    with pytest.raises(ReceiptError, match=r"^(key|form): "):
        parse_key(text)


def test_what_a_witness_signs_is_what_c2sp_says():
    line = cosign(CHECKPOINT, WITNESS, 1_679_315_147)
    note = check_note(carry_note(NOTE + line, [SERVER.verifier, WITNESS.verifier]))
    assert [(c.witness, c.at_s) for c in note.cosignatures] == [(WITNESS.verifier, 1_679_315_147)]
    signed = b"cosignature/v1\ntime 1679315147\n" + CHECKPOINT.body().encode()
    import base64

    blob = base64.b64decode(line.rsplit(" ", 1)[1])
    assert len(blob) == 76
    WITNESS.verifier.verify(blob[12:], signed)


def test_a_checkpoint_signature_is_no_cosignature():
    other = sign_checkpoint(Checkpoint(WITNESS.name, 12, bytes(32)), WITNESS)
    line = other.note.rsplit("\n", 2)[1]
    record = NoteRecord(checkpoint=f"{NOTE}{line}\n", keys=[key_text(SERVER.verifier), key_text(WITNESS.verifier)])
    with pytest.raises(ReceiptError, match="is not a cosignature"):
        check_note(record)


def test_a_cosignature_alone_is_not_enough():
    line = cosign(CHECKPOINT, WITNESS, 5)
    with pytest.raises(ReceiptError, match="no known key of"):
        carry_note(f"{CHECKPOINT.body()}\n{line}", [WITNESS.verifier])
    record = NoteRecord(checkpoint=f"{CHECKPOINT.body()}\n{line}", keys=[key_text(WITNESS.verifier, SIGNS_COSIGNATURE)])
    with pytest.raises(ReceiptError, match="the first is not that of"):
        check_note(record)


def test_extension_lines_are_refused():
    body = CHECKPOINT.body() + "more\n"
    from dovetail.model.canonical_base64 import encode_base64

    signature = encode_base64(SERVER.verifier.key_id + SERVER.sign(body.encode()))
    record = NoteRecord(checkpoint=f"{body}\n— {SERVER.name} {signature}\n", keys=[key_text(SERVER.verifier)])
    with pytest.raises(ReceiptError, match="more than three lines"):
        check_note(record)


def test_keys_and_signatures_must_be_as_many():
    with pytest.raises(ReceiptError, match="1 signatures and 2 keys"):
        check_note(NoteRecord(checkpoint=NOTE, keys=[key_text(SERVER.verifier)] * 2))
