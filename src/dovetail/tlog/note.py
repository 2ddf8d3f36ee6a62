"""Signed checkpoints inside receipts: each signature is verified with the key that the receipt includes for it.

A key is the C2SP text `name+id+key`. The first byte of the key says what it signs: 0x01 the checkpoint itself, by the
server that owns the journal; 0x04 a cosignature (C2SP cosignature/v1), by a witness that saw the journal only grow:

    signature line    — name base64(key id, 8 bytes of POSIX time, 64 bytes of Ed25519 signature)
    what is signed    "cosignature/v1" LF "time " <decimal time> LF <the checkpoint's three lines>

Included keys are not trusted: the caller compares them with the keys it trusts. They ensure that every byte of every
signature is verified, even if the reader does not know the witness.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from dovetail.model.canonical_base64 import encode_base64, parse_base64
from dovetail.model.errors import CheckpointError, ReceiptError
from dovetail.tlog.checkpoint import Checkpoint, parse_checkpoint
from dovetail.tlog.keys import KEY_ID_BYTES, Signer, Verifier, check_name

SIGNS_CHECKPOINT = 0x01
SIGNS_COSIGNATURE = 0x04
_MAX_KEYS_KEPT = 1024
_MAX_NOTES_KEPT = 256
_MARK = "— "
_TIME = struct.Struct(">Q")
_MAX_TIME_S = 253_402_300_800


@dataclass(frozen=True, slots=True)
class Cosignature:
    """A witness saw this checkpoint at this time and found that the journal had only grown."""

    witness: Verifier
    at_s: int


@dataclass(frozen=True, slots=True)
class CheckedNote:
    """A checkpoint whose signatures all verify; whether its keys are trusted is not decided here."""

    checkpoint: Checkpoint
    verifier: Verifier
    cosignatures: tuple[Cosignature, ...]


def key_text(verifier: Verifier, kind: int = SIGNS_CHECKPOINT) -> str:
    """Format a key that signs checkpoints or cosignatures as C2SP text."""
    key = encode_base64(bytes([kind]) + verifier.public_key)
    return f"{verifier.name}+{_key_id(verifier, kind).hex()}+{key}"


@functools.lru_cache(maxsize=_MAX_KEYS_KEPT)
def parse_key(text: str) -> tuple[Verifier, int]:
    """Parse a key and what it signs; only the canonical spelling is accepted."""
    parts = text.split("+", 2)
    if len(parts) != 3:
        raise ReceiptError("key: it does not have the form name+id+key")
    data = decode_base64(parts[2], f"the key of {parts[0][:80]!r}")
    if len(data) != 33 or data[0] not in (SIGNS_CHECKPOINT, SIGNS_COSIGNATURE):
        raise ReceiptError(f"key: the key of {parts[0][:80]!r} is neither an Ed25519 key nor that of a witness")
    try:
        verifier = Verifier(check_name(parts[0]), data[1:])
    except CheckpointError as error:
        raise ReceiptError(f"key: {error}") from None
    if key_text(verifier, data[0]) != text:
        raise ReceiptError(f"key: the id {parts[1][:16]!r} does not belong to the key of {verifier.name}")
    return verifier, data[0]


@functools.lru_cache(maxsize=_MAX_NOTES_KEPT)
def check_signatures(note: str, keys: tuple[str, ...]) -> CheckedNote:
    """Check the form of a checkpoint and all of its signatures, the server's first, then each witness's.

    Verifying many receipts repeats the same checkpoints: recent valid ones are cached by text and keys.
    """
    try:
        checkpoint = parse_checkpoint(note).checkpoint
    except CheckpointError as error:
        raise ReceiptError(f"checkpoint: {error}") from None
    body = checkpoint.body()
    if not note.startswith(body + "\n"):
        raise ReceiptError(f"checkpoint: that of {checkpoint.origin} has more than three lines")
    lines = note[len(body) + 1 : -1].split("\n")
    if len(lines) != len(keys):
        raise ReceiptError(
            f"signature: the checkpoint of {checkpoint.origin} has {len(lines)} signatures and {len(keys)} keys"
        )
    verifier: Verifier | None = None
    cosignatures: list[Cosignature] = []
    for line, text in zip(lines, keys, strict=True):
        signer, kind = parse_key(text)
        signature = _split_line(line, signer, kind)
        if verifier is None:
            if kind != SIGNS_CHECKPOINT or signer.name != checkpoint.origin:
                raise ReceiptError(f"signature: the first is not that of {checkpoint.origin}")
            verifier = signer
            _verify(signer, signature, body.encode())
        elif kind != SIGNS_COSIGNATURE:
            raise ReceiptError(f"signature: that of {signer.name} is not a cosignature")
        else:
            cosignatures.append(_check_cosignature(signer, signature, body))
    names = [cosignature.witness.name for cosignature in cosignatures]
    if verifier is None or names != sorted(set(names)):
        raise ReceiptError(f"signature: the witnesses of {checkpoint.origin} are not in order")
    return CheckedNote(checkpoint, verifier, tuple(cosignatures))


def cosign(checkpoint: Checkpoint, signer: Signer, now_s: int) -> str:
    """Return a witness's signature line; the witness must have checked consistency before."""
    time = _TIME.pack(now_s)
    signature = signer.sign(_cosigned(now_s, checkpoint.body()))
    blob = _key_id(signer.verifier, SIGNS_COSIGNATURE) + time + signature
    return f"{_MARK}{signer.name} {encode_base64(blob)}\n"


def select_signatures(note: str, verifiers: Iterable[Verifier]) -> tuple[str, list[str]]:
    """Return a note and the keys of its signatures: the server's first, then the witnesses by name.

    Signatures by keys not in `verifiers` are dropped, since nobody could check them.
    """
    try:
        checkpoint = parse_checkpoint(note).checkpoint
    except CheckpointError as error:
        raise ReceiptError(f"checkpoint: {error}") from None
    lines = note[len(checkpoint.body()) + 1 :].splitlines()
    own: tuple[str, str] | None = None
    others: dict[str, tuple[str, str]] = {}
    for verifier in verifiers:
        cosigned = _find_line(lines, verifier, SIGNS_COSIGNATURE)
        if cosigned is not None:
            others[verifier.name] = (cosigned, key_text(verifier, SIGNS_COSIGNATURE))
        signed = _find_line(lines, verifier, SIGNS_CHECKPOINT)
        if signed is not None and verifier.name == checkpoint.origin:
            own = (signed, key_text(verifier))
    if own is None:
        raise ReceiptError(f"checkpoint: no known key of {checkpoint.origin} has signed it")
    chosen = [own, *(others[name] for name in sorted(others))]
    text = checkpoint.body() + "\n" + "".join(f"{line}\n" for line, _ in chosen)
    return text, [key for _, key in chosen]


def _find_line(lines: Sequence[str], verifier: Verifier, kind: int) -> str | None:
    """The last signature line of this kind that names the key."""
    start, key_id = f"{_MARK}{verifier.name} ", _key_id(verifier, kind)
    found = None
    for line in lines:
        if line.startswith(start) and decode_base64(line[len(start) :], "a signature")[:KEY_ID_BYTES] == key_id:
            found = line
    return found


def _split_line(line: str, signer: Verifier, kind: int) -> bytes:
    start = f"{_MARK}{signer.name} "
    if not line.startswith(start):
        raise ReceiptError(f"signature: the key of {signer.name} stands where somebody else has signed")
    blob = decode_base64(line[len(start) :], f"the signature of {signer.name}")
    if blob[:KEY_ID_BYTES] != _key_id(signer, kind):
        raise ReceiptError(f"signature: that of {signer.name} was made by another key than the receipt carries")
    return blob[KEY_ID_BYTES:]


def _check_cosignature(witness: Verifier, signature: bytes, body: str) -> Cosignature:
    if len(signature) != _TIME.size + 64:
        raise ReceiptError(f"signature: the cosignature of {witness.name} has {len(signature)} bytes, expected 72")
    (at_s,) = _TIME.unpack(signature[: _TIME.size])
    if not 0 < at_s < _MAX_TIME_S:
        raise ReceiptError(f"signature: the cosignature of {witness.name} has the impossible time {at_s}")
    _verify(witness, signature[_TIME.size :], _cosigned(at_s, body))
    return Cosignature(witness, at_s)


def _cosigned(at_s: int, body: str) -> bytes:
    return f"cosignature/v1\ntime {at_s}\n{body}".encode()


def _verify(verifier: Verifier, signature: bytes, body: bytes) -> None:
    try:
        _load_key(verifier.public_key).verify(signature, body)
    except InvalidSignature:
        raise ReceiptError(f"signature: signature of {verifier.name} does not verify") from None


@functools.lru_cache(maxsize=_MAX_KEYS_KEPT)
def _load_key(public_key: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(public_key)


@functools.lru_cache(maxsize=_MAX_KEYS_KEPT)
def _key_id(verifier: Verifier, kind: int) -> bytes:
    return hashlib.sha256(verifier.name.encode() + b"\n" + bytes([kind]) + verifier.public_key).digest()[:KEY_ID_BYTES]


def decode_base64(text: str, what: str) -> bytes:
    """Decode; only the canonical encoding is accepted."""
    try:
        return parse_base64(text)
    except ValueError as error:
        raise ReceiptError(f"form: {what} {error}") from None
