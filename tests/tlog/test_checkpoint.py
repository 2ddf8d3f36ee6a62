import base64

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dovetail.model.errors import CheckpointError
from dovetail.tlog.checkpoint import MAX_NOTE_BYTES, Checkpoint, parse_checkpoint, sign_checkpoint, verify_checkpoint
from dovetail.tlog.keys import Signer, Verifier, parse_verifier

SERVER = "pcp://broker.example/server"
SIGNER = Signer(SERVER, Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
NOTE = sign_checkpoint(Checkpoint(SERVER, 1234, bytes(range(32))), SIGNER).note


def test_a_note_has_the_documented_form():
    body, _, signature = NOTE.partition("\n\n")
    assert body.split("\n") == [SERVER, "1234", base64.b64encode(bytes(range(32))).decode()]
    assert signature.startswith(f"— {SERVER} ")
    assert base64.b64decode(signature.split(" ")[2])[:4] == SIGNER.verifier.key_id


def test_a_signed_note_verifies_with_its_own_key():
    signed = verify_checkpoint(NOTE, [SIGNER.verifier])
    assert (signed.size, signed.root, signed.checkpoint.origin) == (1234, bytes(range(32)), SERVER)


def test_the_published_example_of_the_note_format_verifies():
    # golang.org/x/mod/sumdb/note, package documentation
    verifier = parse_verifier("PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW")
    body = b"If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n"
    blob = base64.b64decode(
        "x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM="
    )
    assert blob[:4] == verifier.key_id
    verifier.verify(blob[4:], body)
    with pytest.raises(CheckpointError, match="does not verify"):
        verifier.verify(blob[4:], body + b"!")


def test_signing_again_gives_the_same_note():
    assert sign_checkpoint(parse_checkpoint(NOTE).checkpoint, SIGNER).note == NOTE


def test_every_changed_byte_of_a_note_is_refused():
    for i in range(len(NOTE)):
        for replacement in ("0" if NOTE[i] != "0" else "1", "", "\n", "\ud800"):
            with pytest.raises(CheckpointError):
                verify_checkpoint(
                    NOTE[:i] + replacement + NOTE[i + 1 :] if replacement != NOTE[i] else "", [SIGNER.verifier]
                )


def test_another_key_of_the_same_name_is_not_trusted():
    other = Signer(SERVER, Ed25519PrivateKey.from_private_bytes(bytes(32)))
    with pytest.raises(CheckpointError, match="no trusted key"):
        verify_checkpoint(NOTE, [other.verifier])


def test_signatures_of_unknown_keys_are_left_alone():
    other = Signer("https://witness.example", Ed25519PrivateKey.from_private_bytes(bytes(32)))
    blob = base64.b64encode(other.verifier.key_id + other.sign(NOTE.partition("\n\n")[0].encode() + b"\n")).decode()
    cosigned = f"{NOTE}— {other.name} {blob}\n"
    assert verify_checkpoint(cosigned, [SIGNER.verifier]).size == 1234
    assert verify_checkpoint(cosigned, [SIGNER.verifier, other.verifier]).size == 1234


def test_a_witness_cannot_stand_in_for_the_origin():
    other = Signer("https://witness.example", Ed25519PrivateKey.from_private_bytes(bytes(32)))
    body = NOTE.partition("\n\n")[0] + "\n"
    blob = base64.b64encode(other.verifier.key_id + other.sign(body.encode())).decode()
    with pytest.raises(CheckpointError, match="no trusted key of pcp://broker"):
        verify_checkpoint(f"{body}\n— {other.name} {blob}\n", [other.verifier])


def test_a_key_signs_only_for_its_own_origin():
    with pytest.raises(CheckpointError, match="cannot sign for"):
        sign_checkpoint(Checkpoint("pcp://other/server", 1, bytes(32)), SIGNER)


@pytest.mark.parametrize("name", ["", "with space", "with+plus", "tab\t", "x" * 2000, "line\nbreak"])
def test_bad_key_names_are_refused(name):
    with pytest.raises(CheckpointError, match="key name"):
        Signer(name, Ed25519PrivateKey.from_private_bytes(bytes(32)))


@pytest.mark.parametrize(
    "text",
    ["", "name", "name+00000000", "name+00000000+AAAA", "name+zz+!!!", SIGNER.verifier.text().replace("+", "+0", 1)],
)
def test_bad_verifier_keys_are_refused(text):
    with pytest.raises(CheckpointError):
        parse_verifier(text)


def test_a_verifier_key_survives_its_text():
    assert parse_verifier(SIGNER.verifier.text()) == SIGNER.verifier == Verifier(SERVER, SIGNER.verifier.public_key)


@pytest.mark.parametrize("size", ["-1", "01", "1.0", "", "9" * 20, "١"])
def test_bad_sizes_are_refused(size):
    with pytest.raises(CheckpointError, match="size"):
        parse_checkpoint(NOTE.replace("\n1234\n", f"\n{size}\n"))


def test_a_huge_note_is_refused_before_it_is_read():
    with pytest.raises(CheckpointError, match=f"at most {MAX_NOTE_BYTES}"):
        parse_checkpoint(NOTE + "x" * MAX_NOTE_BYTES)
