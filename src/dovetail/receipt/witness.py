"""Witnesses: parties that cosign a server's checkpoint after checking that its journal only grew.

A witness remembers the last checkpoint it cosigned for each server. It signs a newer one only with a proof that it
extends the remembered one, so showing two people two journals takes the help of every witness they trust. The caller
must make the state that `cosign` updates durable before it returns the note to anyone.

A request, as in C2SP tlog-witness: a line `old SIZE`, the proof's hashes in base64, one per line, an empty line, and
the checkpoint's note.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dovetail.fabrics import is_server_name
from dovetail.model.canonical_base64 import encode_base64
from dovetail.model.errors import CheckpointError, ReceiptError
from dovetail.receipt.format import carry_note
from dovetail.tlog.checkpoint import (
    MAX_NOTE_BYTES,
    Checkpoint,
    SignedCheckpoint,
    parse_checkpoint,
    verify_checkpoint,
)
from dovetail.tlog.keys import Signer, Verifier
from dovetail.tlog.note import cosign, decode_base64
from dovetail.tlog.tree import HASH_BYTES, MAX_LEVEL, verify_consistency

MAX_REQUEST_BYTES = MAX_NOTE_BYTES + 64 * (MAX_LEVEL + 2)


@dataclass(frozen=True, slots=True)
class CosignRequest:
    """A request to cosign `note`, which grew from a checkpoint of `old_size` hops by this proof."""

    old_size: int
    proof: tuple[bytes, ...]
    note: str


def encode_request(request: CosignRequest) -> bytes:
    """Encode a request."""
    lines = [f"old {request.old_size}", *(encode_base64(each) for each in request.proof)]
    return ("\n".join(lines) + "\n\n" + request.note).encode()


def decode_request(data: bytes) -> CosignRequest:
    """Decode a request; ReceiptError if it is malformed."""
    if len(data) > MAX_REQUEST_BYTES:
        raise ReceiptError(f"request: {len(data)} bytes, expected at most {MAX_REQUEST_BYTES}")
    try:
        head, separator, note = data.decode().partition("\n\n")
    except UnicodeDecodeError:
        raise ReceiptError("request: not UTF-8 text") from None
    first, *hashes = head.split("\n")
    size = first.removeprefix("old ")
    if not separator or first == size or not (size.isascii() and size.isdigit()) or len(size) > 19:
        raise ReceiptError("request: it does not begin with a line 'old SIZE'")
    if len(hashes) > MAX_LEVEL + 1:
        raise ReceiptError(f"request: {len(hashes)} hashes, expected at most {MAX_LEVEL + 1}")
    proof = tuple(decode_base64(line, "a hash of the request") for line in hashes)
    if any(len(each) != HASH_BYTES for each in proof):
        raise ReceiptError(f"request: a hash does not have {HASH_BYTES} bytes")
    return CosignRequest(int(size), proof, note)


class Witness:
    """One witness: its key, the server keys it knows, and the last checkpoint it cosigned for each server."""

    def __init__(self, signer: Signer, known: Iterable[Verifier], remembered: Iterable[Checkpoint] = ()) -> None:
        self._signer = signer
        self._known = list(known)
        self._remembered = {checkpoint.origin: checkpoint for checkpoint in remembered}

    def remembered(self, origin: str) -> Checkpoint | None:
        """The last checkpoint of this server that it cosigned."""
        return self._remembered.get(origin)

    def cosign(self, request: CosignRequest, now_s: int) -> str:
        """Return the note with this witness's cosignature; on refusal raise ReceiptError and remember nothing."""
        signed = self._check(request.note)
        checkpoint = signed.checkpoint
        name, own = self._signer.name, self._signer.verifier.public_key
        if is_server_name(name) or any(key.public_key == own and is_server_name(key.name) for key in self._known):
            raise ReceiptError(f"witness: {name} has the name or the key of a server; a witness needs its own")
        last = self._remembered.get(checkpoint.origin)
        last_size = 0 if last is None else last.size
        if request.old_size != last_size:
            raise ReceiptError(
                f"witness: the request proves growth from {request.old_size} hops of {checkpoint.origin}, "
                f"the last cosigned checkpoint has {last_size}"
            )
        if last is not None:
            self._check_growth(last, checkpoint, request.proof)
        elif request.proof:
            raise ReceiptError("witness: a first checkpoint needs no proof")
        self._remembered[checkpoint.origin] = checkpoint
        return request.note + cosign(checkpoint, self._signer, now_s)

    def _check(self, note: str) -> SignedCheckpoint:
        try:
            return verify_checkpoint(note, self._known)
        except CheckpointError as error:
            raise ReceiptError(f"witness: {error}") from None

    def _check_growth(self, last: Checkpoint, checkpoint: Checkpoint, proof: Sequence[bytes]) -> None:
        if checkpoint.size < last.size:
            raise ReceiptError(f"witness: a journal of {last.size} hops cannot shrink to {checkpoint.size}")
        try:
            verify_consistency(last.size, last.root, checkpoint.size, checkpoint.root, proof)
        except CheckpointError as error:
            raise ReceiptError(f"witness: {checkpoint.origin} did not only grow: {error}") from None


def merge_notes(notes: Sequence[str], keys: Iterable[Verifier]) -> SignedCheckpoint:
    """Merge notes over the same checkpoint into one with the signatures of all known keys."""
    verifiers = list(keys)
    bodies = {parse_checkpoint(note).checkpoint for note in notes}
    if len(bodies) != 1:
        raise ReceiptError(f"{len(bodies)} different checkpoints, expected one that all of them cosigned")
    lines: dict[str, None] = {}
    for note in notes:
        checkpoint = parse_checkpoint(note).checkpoint
        lines |= dict.fromkeys(note[len(checkpoint.body()) + 1 :].splitlines(keepends=True))
    merged = bodies.pop().body() + "\n" + "".join(lines)
    return parse_checkpoint(carry_note(merged, verifiers).checkpoint)
