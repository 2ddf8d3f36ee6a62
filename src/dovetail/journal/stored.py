"""Functions on a journal's stored rows that also exist in native code: leaf hashes, and checks of message bytes.

Anyone may have changed the file. A row that is not in the one form that is written is rejected with ValueError by both
implementations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from dovetail.fast import twin
from dovetail.journal.layout import Run, encode_runs, unpack_names
from dovetail.journal.messages import MAX_NUMBER, StoredMessage, decode_messages, encode_messages
from dovetail.model.fabric import ExpiryTemplate
from dovetail.model.hop import Reason, Stage
from dovetail.tlog.leaf import MAX_COUNTERPART_BYTES, NO_DIGEST, encode_head, encode_tail, hash_run

MAX_MESSAGES_KEPT = 1 << 17
MAX_NAMES_KEPT = 1 << 18
MAX_TAILS_KEPT = 1 << 18
PURGES = 0x80
"""In `HashedCommit.carried`: the commit says that the bytes were purged."""

HAS_BODY, HAS_SIZE, HAS_DIGEST, HAS_BYTES, HAS_EXPIRY, IS_CHANGED, IS_OTHER_EXPIRY, STATES_NO_EXPIRY = (
    1 << bit for bit in range(8)
)
"""What `survey_messages` reports of a message: which fields it has; that its bytes do not match its digest; that they
state a different expiry than the stored one, or none."""

_PURGED = Stage.PURGED.code
_runs = msgspec.msgpack.Decoder(list[Run])


class HashedCommit(NamedTuple):
    """The contents of one commit. `message_ids` and `name_ids` are sorted and unique.

    `carried` has a byte for each of `message_ids`: the code of the stage at which its bytes or size were added in this
    commit, 0 if they were not; plus PURGES if they were purged.
    """

    leaves: bytes
    last_at_us: int
    goes_back: bool
    body_bytes: int
    message_ids: list[int]
    carried: bytes
    name_ids: list[int]


class Missing(NamedTuple):
    """Messages and counterparts named by a commit that the hasher has not been given yet."""

    message_ids: list[int]
    name_ids: list[int]


Survey = tuple[bytes, list[bytes], int | None, list[tuple[int, bytes, int]], bytes]
"""For the messages of one row: one byte each, their addresses, the earliest expiry, and those whose expiry no template
could read, each with its index in the row, its bytes and the stored expiry; and the row without expiries and bytes,
which is enough for `HopHasher.add_messages`."""


class _Tails(dict[tuple[int, int, int | None], bytes]):
    """The tails of leaf entries by stage code, reason code and counterpart number.

    The name of a counterpart is None if it is too long for an entry; its tail is empty.
    """

    def __init__(
        self, stages: Mapping[int, Stage], reasons: Mapping[int, Reason], names: Mapping[int, str | None]
    ) -> None:
        self._stages = stages
        self._reasons = reasons
        self._names = names

    def __missing__(self, key: tuple[int, int, int | None]) -> bytes:
        if len(self) >= MAX_TAILS_KEPT:
            self.clear()
        stage, reason, number = key
        if stage not in self._stages or (reason and reason not in self._reasons):
            raise ValueError("a hop has a stage or reason that is unknown")
        name = "" if number is None else self._names[number]
        words = self._stages[stage], self._reasons[reason] if reason else None
        tail = self[key] = b"" if name is None else encode_tail(*words, name)
        return tail


@twin
class HopHasher:
    """Computes leaf hashes of stored commits. It caches the messages and names it is given, up to a limit.

    `stages` and `reasons` are their texts by code.
    """

    __slots__ = ("_bare", "_messages", "_names", "_tails")

    def __init__(self, stages: Mapping[int, Stage], reasons: Mapping[int, Reason]) -> None:
        self._names: dict[int, str | None] = {}
        self._tails = _Tails(stages, reasons, self._names)
        self._messages: dict[int, StoredMessage] = {}
        self._bare: dict[int, StoredMessage] = {}

    def add_names(self, names: Iterable[tuple[int, str]]) -> None:
        """Add counterparts by number."""
        for number, name in names:
            self._names[number] = name if len(name.encode()) <= MAX_COUNTERPART_BYTES else None

    def add_messages(self, first_id: int, rows: bytes) -> int:
        """Add the messages of a row, numbered from `first_id`; returns how many there are."""
        messages = _decode_messages(rows)
        for number, message in enumerate(messages, first_id):
            if message.body_seq is None:
                # a later commit may add its bytes: until then it is looked up each time
                self._bare[number] = message
                self._messages.pop(number, None)
            else:
                self._messages[number] = message
        return len(messages)

    def hash_commit(self, seq: int, at_us: int, rows: bytes, first: int, end: int) -> HashedCommit | Missing:
        """Read a commit whose first hop is `seq`, with times relative to `at_us`; hash its hops from `first` to `end`.

        If it returns Missing, add those messages and names, then call it again.
        """
        runs = _decode_runs(rows)
        known = self._messages | self._bare if self._bare else self._messages
        ids = {run.message_id for run in runs}
        names = {run.counterparts for run in runs if run.counterparts.__class__ is int}
        names.update(*[unpack_names(run.counterparts) for run in runs if run.counterparts.__class__ is bytes])
        missing = Missing(sorted(ids.difference(known)), sorted(names.difference(self._names)))
        if missing.message_ids or missing.name_ids:
            return missing
        last_us, goes_back, start = at_us, False, seq
        leaves: list[bytes] = []
        carried: dict[int, int] = dict.fromkeys(sorted(ids), 0)
        sha256, tails = hashlib.sha256, self._tails
        for run in runs:
            stage, counterparts, after_us = run.stage, run.counterparts, run.after_us
            last_us += after_us
            if after_us < 0:
                goes_back = True
            if not -MAX_NUMBER - 1 <= last_us <= MAX_NUMBER:
                raise ValueError(f"hop {seq} has a time that is out of range")
            message = known[run.message_id]
            digest, size = NO_DIGEST, 0
            if message.body_seq == seq:
                digest, size = digest_of(message), message.size or 0
                carried[run.message_id] |= stage
            if stage == _PURGED:
                carried[run.message_id] |= PURGES
            if isinstance(counterparts, bytes):
                name_ids: list[int | None] = [*unpack_names(counterparts)] or [None]
                own = [tails[stage, run.reason, number] for number in name_ids]
                following = seq + len(own)
                if following > first and seq < end:
                    if not all(own):
                        raise ValueError(f"hop {seq} has a counterpart that is too long")
                    hashed = hash_run(seq, last_us, message.address, own, digest, size)
                    leaves += hashed[max(first - seq, 0) : end - seq]
                seq = following
            else:
                tail = tails[stage, run.reason, counterparts]
                if first <= seq < end:
                    if not tail:
                        raise ValueError(f"hop {seq} has a counterpart that is too long")
                    leaves.append(sha256(encode_head(seq, last_us, message.address, digest, size) + tail).digest())
                seq += 1
        brought = [message for number in ids if start <= ((message := known[number]).body_seq or 0) < seq]
        body_bytes = sum([message.size or 0 for message in brought if message.body_seq is not None])
        self._forget()
        return HashedCommit(
            b"".join(leaves), last_us, goes_back, body_bytes, list(carried), bytes(carried.values()), sorted(names)
        )

    def _forget(self) -> None:
        self._bare.clear()
        if len(self._messages) > MAX_MESSAGES_KEPT:
            self._messages.clear()
        if len(self._names) > MAX_NAMES_KEPT:
            self._names.clear()
            self._tails.clear()


def digest_of(message: StoredMessage) -> bytes:
    """The digest that the hop carrying a message commits to."""
    return NO_DIGEST if message.digest is None else message.digest or message.address


@twin
def survey_messages(rows: bytes, templates: Sequence[ExpiryTemplate]) -> Survey:
    """Check a row of messages, apart from their numbers.

    Compares the stored expiry with the one that the bytes state, if one of the templates can read it.
    """
    messages = _decode_messages(rows)
    sha256, states = hashlib.sha256, bytearray()
    unread: list[tuple[int, bytes, int]] = []
    for place, message in enumerate(messages):
        raw, expires_us = message.raw, message.expires_us
        body_seq, size, digest = message.body_seq, message.size, message.digest
        state = (
            (body_seq is not None and HAS_BODY)
            | (size is not None and HAS_SIZE)
            | (digest is not None and HAS_DIGEST)
            | (expires_us is not None and HAS_EXPIRY)
        )
        if raw is not None:
            state |= HAS_BYTES
            if sha256(raw).digest() != (NO_DIGEST if digest is None else digest or message.address):
                state |= IS_CHANGED
            if expires_us is None:
                pass
            elif len(raw) != size:
                state |= STATES_NO_EXPIRY
            elif (stated_us := _read_expiry(raw, templates)) is None:
                unread.append((place, raw, expires_us))
            elif stated_us != expires_us:
                state |= IS_OTHER_EXPIRY
        states.append(state)
    expiries = [message.expires_us for message in messages if message.expires_us is not None]
    heads = [StoredMessage(m.address, m.body_seq, m.size, m.digest, None, None) for m in messages]
    addresses = [message.address for message in messages]
    return bytes(states), addresses, min(expiries, default=None), unread, encode_messages(heads)


def _read_expiry(raw: bytes, templates: Sequence[ExpiryTemplate]) -> int | None:
    for template in templates:
        expires_us = template.expiry(raw)
        if expires_us is not None:
            return expires_us
    return None


def _decode_runs(rows: bytes) -> list[Run]:
    try:
        runs = _runs.decode(rows)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
    if encode_runs(runs) != rows:
        raise ValueError("the hops are not in the form in which they are written")
    return runs


def _decode_messages(rows: bytes) -> list[StoredMessage]:
    messages = decode_messages(rows)
    if encode_messages(messages) != rows:
        raise ValueError("the messages are not in the form in which they are written")
    return messages
