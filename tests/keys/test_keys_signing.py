import base64
import hashlib
import stat

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dovetail.keys import (
    create_signing_key,
    load_signing_key,
    load_verifier_keys,
)
from dovetail.model.errors import CheckpointError, KeyFileError
from dovetail.tlog.keys import Signer, Verifier, parse_verifier

NAME = "pcp://broker.example/server"


def test_a_new_key_signs_and_its_public_half_verifies(tmp_path):
    private_path, public_path = create_signing_key(tmp_path, NAME)
    key = load_signing_key(private_path)
    (verifier,) = load_verifier_keys(public_path)
    assert key.name == verifier.name == NAME
    assert key.verifier == verifier
    Ed25519PublicKey.from_public_bytes(verifier.public_key).verify(key.sign(b"data"), b"data")


def test_the_text_form_is_that_of_signed_notes(tmp_path):
    _, public_path = create_signing_key(tmp_path, NAME)
    text = public_path.read_text()
    name, key_id, encoded = text.rstrip("\n").split("+", 2)
    decoded = base64.b64decode(encoded)
    assert (name, decoded[0], len(decoded)) == (NAME, 1, 33)
    assert key_id == hashlib.sha256(name.encode() + b"\n" + decoded).hexdigest()[:8]


def test_text_and_key_are_one_to_one():
    key = Verifier(name="a", public_key=bytes(range(32)))
    assert parse_verifier(key.text()) == key


def test_files_are_named_after_the_key_and_private(tmp_path):
    private_path, public_path = create_signing_key(tmp_path / "new", NAME)
    assert private_path == tmp_path / "new" / "pcp_broker.example_server.skey"
    assert public_path == tmp_path / "new" / "pcp_broker.example_server.vkey"
    assert stat.S_IMODE(private_path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    assert private_path.read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----\n")


def test_nothing_is_overwritten_unless_forced(tmp_path):
    private_path, public_path = create_signing_key(tmp_path, NAME)
    before = private_path.read_bytes(), public_path.read_bytes()
    with pytest.raises(KeyFileError, match="exists; --force overwrites it"):
        create_signing_key(tmp_path, NAME)
    assert (private_path.read_bytes(), public_path.read_bytes()) == before
    create_signing_key(tmp_path, NAME, force=True)
    assert private_path.read_bytes() != before[0]
    assert load_signing_key(private_path).name == NAME


@pytest.mark.parametrize("name", ["", "a b", "a+b", "a\nb", "tab\t", "\x1b", "x" * 1025])
def test_bad_names_are_refused(tmp_path, name):
    with pytest.raises(KeyFileError, match="key name"):
        create_signing_key(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda text: text.replace("+", " "), "has the form name"),
        (lambda text: text.replace("example.com/foo", "example.com/bar"), "does not belong"),
        (lambda text: text[:-1] + "!", "is not base64"),
        (lambda text: text[:-4], "is not an Ed25519 key"),
        (lambda text: text.replace("+A", "+B"), "is not an Ed25519 key"),
        (lambda text: text[:-1] + ("D" if text[-1] == "C" else "C"), "does not belong"),
    ],
)
def test_a_changed_verifier_key_is_refused(change, problem):
    key = Verifier(name="example.com/foo", public_key=hashlib.sha256(b"seed").digest())
    assert parse_verifier(key.text()) == key
    with pytest.raises(CheckpointError, match=problem):
        parse_verifier(change(key.text()))


def test_a_trust_store_is_a_file_of_lines_or_a_directory(tmp_path):
    keys = [Verifier(name=f"n{number}", public_key=bytes([number]) * 32) for number in range(3)]
    file = tmp_path / "trust.txt"
    file.write_text("# trusted\n\n" + "\n".join(key.text() for key in [*keys, keys[0]]) + "\n")
    assert load_verifier_keys(file) == tuple(keys)
    store = tmp_path / "store"
    store.mkdir()
    for key in keys:
        (store / f"{key.name}.vkey").write_text(key.text() + "\n")
    (store / "other.txt").write_text("not a key")
    assert load_verifier_keys(store) == tuple(keys)


def test_a_bad_line_in_a_trust_store_is_named(tmp_path):
    file = tmp_path / "trust.txt"
    file.write_text("# first\nnonsense\n")
    with pytest.raises(KeyFileError, match=r"trust\.txt:2: a verifier key has the form"):
        load_verifier_keys(file)


def test_an_empty_trust_store_trusts_nobody_and_says_so(tmp_path):
    with pytest.raises(KeyFileError, match="holds no verifier keys"):
        load_verifier_keys(tmp_path)


def test_the_public_half_beside_a_key_must_be_its_own(tmp_path):
    private_path, public_path = create_signing_key(tmp_path, NAME)
    public_path.write_text(Verifier(name=NAME, public_key=bytes(32)).text())
    with pytest.raises(KeyFileError, match="is not the public half"):
        load_signing_key(private_path)
    assert load_signing_key(private_path, name="other").name == "other"


def test_what_is_no_key_is_refused(tmp_path):
    path = tmp_path / "x.skey"
    path.write_text("nonsense")
    with pytest.raises(KeyFileError, match="is not an unencrypted private key"):
        load_signing_key(path)
    with pytest.raises(KeyFileError, match="cannot be read: No such file"):
        load_signing_key(tmp_path / "none.skey")


def test_the_private_key_shows_in_no_repr():
    key = Signer("a", Ed25519PrivateKey.generate())
    assert repr(key) == "Signer('a')"
