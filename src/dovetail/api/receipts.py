"""Receipts for Python: build one from journals or a lake, save it to a file, verify it with trusted keys."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from dovetail.api.failures import files_as
from dovetail.api.values import check_text
from dovetail.journal.durable_file import replace_file
from dovetail.journal.hop_source import HopSource
from dovetail.journal.verify import Verdict
from dovetail.journal.verify import verify_journal as _verify_journal
from dovetail.keys.files import read_bounded
from dovetail.keys.signing import load_verifier_keys
from dovetail.model.address import Address
from dovetail.model.errors import JournalError, ReceiptError, UsageError
from dovetail.receipt.build import BuildOptions, build_receipt
from dovetail.receipt.consistency import View
from dovetail.receipt.format import MAX_RECEIPT_BYTES, Delivery, decode_receipt, notes_of
from dovetail.receipt.proof import Policy, Proof
from dovetail.receipt.sources import find_message, open_sources
from dovetail.receipt.verify import verify_receipt
from dovetail.runtime.clock import now_us
from dovetail.tlog.checkpoint import Checkpoint, parse_checkpoint
from dovetail.tlog.keys import Verifier

Paths = Path | str | Iterable[Path | str]
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Receipt:
    """The proof of one delivery: one small file. Nothing in it is trusted before `verify`."""

    data: bytes = field(repr=False)
    kind: str
    """delivery, completeness, conversation, exchange, split_view or fork."""
    subject: str | None
    """The address of the message it is about, if it is about one."""
    remarks: tuple[str, ...] = field(default=(), compare=False)
    """What a user should know about how it was built."""

    @classmethod
    @files_as(ReceiptError)
    def build(
        cls,
        address: str,
        *,
        journals: Paths = (),
        lake: Path | str | None = None,
        redact: bool = False,
        since: Sequence[Receipt] = (),
        wait: float = 0,
    ) -> Receipt:
        """The receipt of a message from the servers that saw it; raises ReceiptError if nothing can be proven.

        `address` is hex, `wm:/...` or a pcp id, or a prefix of any of them. The last hops of a live journal are not
        signed yet: `wait` allows its server this many seconds for the next checkpoint. `redact` omits the bytes of the
        message, `since` proves that the journals have only grown since earlier receipts.
        """
        check_text(address, "address")
        paths = _paths(journals)
        if not paths and lake is None:
            raise UsageError("name the journals, or a lake")
        older = [note for receipt in since for note in _checkpoints(receipt)]
        opening = partial(open_sources, paths, lake)
        await_signatures(opening, address, wait)
        with opening() as sources:
            found = find_message(sources, address)
            built = build_receipt(sources, found, BuildOptions(redact=redact, since=older))
        return cls._of(built.data, tuple(built.remarks))

    @classmethod
    def load(cls, path: Path | str) -> Receipt:
        """Read and decode a file without verifying it; raises ReceiptError if it is not a receipt."""
        return cls._of(read_bounded(Path(path), MAX_RECEIPT_BYTES, ReceiptError))

    @classmethod
    def _of(cls, data: bytes, remarks: tuple[str, ...] = ()) -> Receipt:
        decoded = decode_receipt(data)
        subject = decoded.messages[0].address if isinstance(decoded, Delivery) and decoded.messages else None
        return cls(data, type(decoded).__name__.lower(), subject, remarks)

    def save(self, path: Path | str) -> Receipt:
        """Write the file."""
        try:
            replace_file(Path(path), self.data)
        except OSError as error:
            raise ReceiptError(f"{path} cannot be written: {error.strerror or error}") from error
        return self

    def verify(
        self,
        *,
        trust: Paths,
        witnesses: int = 0,
        max_age: int | None = None,
        against: Sequence[Receipt] = (),
    ) -> Proof:
        """What it proves to anyone who trusts these keys; ReceiptError names the first step that fails.

        `trust` are files of public keys, or directories of `.vkey` files. `witnesses` is the number of trusted
        witnesses that must have cosigned, `max_age` the maximum age in seconds; `against` are receipts it must be
        consistent with.
        """
        trusted = load_trust(trust)
        policy = Policy(now_us=now_us(), witnesses=witnesses, max_age_s=max_age)
        others: list[View | Proof] = [verify_receipt(other.data, trusted) for other in against]
        return verify_receipt(self.data, trusted, policy, others)


@files_as(JournalError)
def verify_journal(path: Path | str, *, trust: Paths = ()) -> Verdict:
    """Recompute every hash and signature of a journal; the verdict names the first bad row."""
    return _verify_journal(Path(path), trusted=load_trust(trust))


def await_signatures(opening: Callable[[], AbstractContextManager[list[HopSource]]], message: str, wait: float) -> None:
    """Wait until the servers have signed what they saw of a message, for at most this many seconds."""
    deadline = time.monotonic() + wait
    while time.monotonic() < deadline:
        with opening() as sources:
            found = find_message(sources, message)
            if all(_is_signed(source, found) for source in sources):
                return
        time.sleep(_POLL_S)


def load_trust(trust: Paths) -> tuple[Verifier, ...]:
    """The public keys in these files and directories."""
    return load_verifier_keys(*_paths(trust))


def _paths(given: Paths) -> list[Path]:
    return [Path(given)] if isinstance(given, Path | str) else [Path(path) for path in given]


def _is_signed(source: HopSource, address: Address) -> bool:
    hops = source.hops_of(address)
    latest = source.latest_checkpoint()
    return not hops or (latest is not None and hops[-1].hop.seq < latest.size)


def _checkpoints(receipt: Receipt) -> list[Checkpoint]:
    return [parse_checkpoint(note.checkpoint).checkpoint for note in notes_of(decode_receipt(receipt.data))]
