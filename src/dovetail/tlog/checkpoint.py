"""Signed checkpoints: C2SP signed notes whose body is the origin, size and root of a journal's tree.

    pcp://broker.example/server          origin: the server's URI, also the key's name
    1234                                 number of hops
    <base64 of the 32-byte root>
    (empty line)
    — pcp://broker.example/server <base64 of key id (4 bytes) and Ed25519 signature (64 bytes)>

The signature covers the body up to and including its last newline. The key id is the first 4 bytes of
SHA-256(name, 0x0A, 0x01, public key): it lets a verifier select the key before trying it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dovetail.model.canonical_base64 import encode_base64, parse_base64
from dovetail.model.errors import CheckpointError
from dovetail.tlog.keys import KEY_ID_BYTES, Signer, Verifier, check_name
from dovetail.tlog.tree import HASH_BYTES

MAX_NOTE_BYTES = 16_384
MAX_SIGNATURES = 64
_SIGNATURE_MARK = "— "
_CONTROL = re.compile("[\x00-\x09\x0b-\x1f]")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A commitment to the first `size` hops of the journal of `origin`."""

    origin: str
    size: int
    root: bytes

    def body(self) -> str:
        """The signed text."""
        return f"{self.origin}\n{self.size}\n{encode_base64(self.root)}\n"


@dataclass(frozen=True, slots=True)
class SignedCheckpoint:
    """A checkpoint with the note it was parsed from or signed as."""

    checkpoint: Checkpoint
    note: str

    @property
    def size(self) -> int:
        """How many hops it commits to."""
        return self.checkpoint.size

    @property
    def root(self) -> bytes:
        """The root over those hops."""
        return self.checkpoint.root


def sign_checkpoint(checkpoint: Checkpoint, signer: Signer) -> SignedCheckpoint:
    """Sign a checkpoint as a note; deterministic."""
    if checkpoint.origin != signer.name:
        raise CheckpointError(f"the key of {signer.name} cannot sign for {checkpoint.origin}")
    body = checkpoint.body()
    blob = signer.verifier.key_id + signer.sign(body.encode())
    line = f"{_SIGNATURE_MARK}{signer.name} {encode_base64(blob)}\n"
    return SignedCheckpoint(checkpoint, f"{body}\n{line}")


def parse_checkpoint(note: str) -> SignedCheckpoint:
    """Parse the checkpoint in a note; checks its form, not its signatures."""
    body, _ = _split_note(note)
    lines = body.split("\n")
    if len(lines) < 4 or lines[-1]:
        raise CheckpointError("a checkpoint has three lines: origin, size, root")
    origin, size_text, root_text = lines[:3]
    if not size_text.isascii() or not size_text.isdigit() or (size_text[0] == "0" and size_text != "0"):
        raise CheckpointError(f"checkpoint size {size_text[:40]!r} is not a whole number")
    if len(size_text) > 19:
        raise CheckpointError(f"checkpoint size of {len(size_text)} digits, expected at most 19")
    root = _decode_base64(root_text, "checkpoint root")
    if len(root) != HASH_BYTES:
        raise CheckpointError(f"checkpoint root of {len(root)} bytes, expected {HASH_BYTES}")
    return SignedCheckpoint(Checkpoint(check_name(origin), int(size_text), root), note)


def verify_checkpoint(note: str, verifiers: Iterable[Verifier]) -> SignedCheckpoint:
    """Return the checkpoint in a note that its origin's key, one of `verifiers`, has signed.

    Signatures by unknown keys are ignored (C2SP signed-note). Raises CheckpointError if the signature of a known key
    does not verify, or if none of the origin's keys has signed.
    """
    signed = parse_checkpoint(note)
    body, signatures = _split_note(note)
    known = {(v.name, v.key_id): v for v in verifiers}
    origin_signed = False
    for name, key_id, signature in signatures:
        verifier = known.get((name, key_id))
        if verifier is None:
            continue
        verifier.verify(signature, body.encode())
        origin_signed = origin_signed or name == signed.checkpoint.origin
    if not origin_signed:
        raise CheckpointError(f"no trusted key of {signed.checkpoint.origin} has signed this checkpoint")
    return signed


def _split_note(note: str) -> tuple[str, list[tuple[str, bytes, bytes]]]:
    if len(note) > MAX_NOTE_BYTES:
        raise CheckpointError(f"note of {len(note)} characters, expected at most {MAX_NOTE_BYTES}")
    if not _is_encodable(note):
        raise CheckpointError("note is not valid Unicode")
    if _CONTROL.search(note):
        raise CheckpointError("note contains control characters")
    body, separator, tail = note.rpartition("\n\n")
    if not separator or not tail.endswith("\n"):
        raise CheckpointError("note has no signatures behind an empty line")
    lines = tail[:-1].split("\n")
    if len(lines) > MAX_SIGNATURES:
        raise CheckpointError(f"note with {len(lines)} signatures, expected at most {MAX_SIGNATURES}")
    return body + "\n", [_parse_signature(line) for line in lines]


def _parse_signature(line: str) -> tuple[str, bytes, bytes]:
    name, separator, encoded = line.removeprefix(_SIGNATURE_MARK).partition(" ")
    if not line.startswith(_SIGNATURE_MARK) or not separator:
        raise CheckpointError("signature line does not have the form '— name base64'")
    blob = _decode_base64(encoded, f"signature of {name[:80]}")
    if len(blob) < KEY_ID_BYTES + 1:
        raise CheckpointError(f"signature of {name[:80]} is too short")
    return check_name(name), blob[:KEY_ID_BYTES], blob[KEY_ID_BYTES:]


def _decode_base64(text: str, what: str) -> bytes:
    """Strict: accept only the canonical encoding."""
    try:
        return parse_base64(text)
    except ValueError as error:
        raise CheckpointError(f"{what} {error}") from None


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
