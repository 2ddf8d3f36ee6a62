"""Encodes observations as the rows of one commit, and the leaf entries of its hops.

Pure functions whose results depend only on their arguments; each has a native twin.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from dovetail.fast import twin
from dovetail.journal.layout import (
    MAX_COUNTERPARTS,
    REASON_OF_CODE,
    STAGE_OF_CODE,
    Counterparts,
    encode_runs,
    pack_names,
)
from dovetail.journal.messages import MessageTuple, encode_messages
from dovetail.model.address import ADDRESS_BYTES
from dovetail.model.hop import Observation
from dovetail.tlog.leaf import NO_DIGEST, encode_head, encode_tail, hash_run

MAX_TAILS_CACHED = 100_000

RunRow = tuple[int, int, int, int, Counterparts]
Entries = Any
"""Leaf entries of hops to pass to `hash_entries`; each twin has its own representation."""

Encoded = tuple[
    tuple[int, int, int, int], bytes, bytes, list[bytes], dict[bytes, int], dict[int, MessageTuple], int | None, Entries
]
"""(size after it, first time, last time, bytes of messages), runs, rows of messages, addresses of new messages, numbers
of messages that are new or have bytes now, bytes of messages of earlier commits, earliest expiry, entries."""


@twin
def encode_commit(
    observations: list[Observation],
    recalled: dict[bytes, int],
    names: Mapping[str, int],
    new_names: Mapping[str, int],
    next_message: int,
    size: int,
    last_at_us: int,
    hashes_bytes: bool,
) -> Encoded | list[str]:
    """Encode what these observations add to a journal of `size` hops, whose next message gets number `next_message`.

    `recalled` maps the messages that are not new to their numbers, negative if they have no bytes so far; `names` and
    `new_names` do so for counterparts. If names are in neither, the result is a list of them. With `hashes_bytes` the
    address of a message is the SHA-256 of its bytes. Times never decrease. Raises ValueError for what no journal can
    hold.
    """
    seen: dict[bytes, int] = {}
    messages: list[MessageTuple] = []
    bodies: dict[int, MessageTuple] = {}
    runs: list[RunRow] = []
    entries: list[tuple[int, int, Observation, tuple[bytes, int]]] = []
    unknown: list[str] = []
    end, body_bytes = size, 0
    at_us = first_at_us = max(last_at_us, observations[0].at_us) if observations else last_at_us
    for observation in observations:
        before_us, at_us = at_us, max(at_us, observation.at_us)
        address = observation.message
        if len(address) != ADDRESS_BYTES:
            raise ValueError(f"an address has {ADDRESS_BYTES} bytes, got {len(address)}")
        number = seen.get(address) or recalled.get(address)
        carried = _NO_BODY
        if number is None and hashes_bytes and (raw := observation.raw) is not None and observation.size is None:
            # the common case: a new message with all of its bytes
            number = seen[address] = next_message + len(messages)
            raw_bytes = len(raw)
            messages.append((address, end, raw_bytes, b"", observation.expires_us, raw))
            body_bytes += raw_bytes
            carried = address, raw_bytes
        elif number is None or number < 0:
            stored = _store(observation, end, hashes_bytes=hashes_bytes and number is None)
            has_body = stored[1] is not None
            if number is None:
                number = next_message + len(messages)
                messages.append(stored)
                seen[address] = number if has_body else -number
            else:
                number = -number
                if has_body:
                    if number >= next_message:
                        messages[number - next_message] = stored
                    else:
                        bodies[number] = stored
                    seen[address] = number
            if has_body:
                body_bytes += stored[2] or 0
                carried = (NO_DIGEST if stored[3] is None else stored[3] or address, stored[2] or 0)
        counterparts = observation.counterparts
        if len(counterparts) > MAX_COUNTERPARTS:
            raise ValueError(f"{len(counterparts)} counterparts, expected at most {MAX_COUNTERPARTS}")
        packed: Counterparts = None
        if len(counterparts) == 1 and (packed := names.get(counterparts[0])) is not None:
            pass
        elif counterparts:
            try:
                packed = pack_names([names[name] for name in counterparts])
            except KeyError:
                ids = [names.get(name) or new_names.get(name) for name in counterparts]
                unknown += [name for name, known in zip(counterparts, ids, strict=True) if known is None]
                packed = pack_names([known or 0 for known in ids])
        reason = observation.reason
        entries.append((end, at_us, observation, carried))
        runs.append((number, observation.stage.code, reason.code if reason else 0, at_us - before_us, packed))
        end += len(counterparts) or 1
    if unknown:
        return unknown
    return (
        (end, first_at_us, at_us, body_bytes),
        encode_runs(runs),
        encode_messages(messages) if messages else b"",
        [message[0] for message in messages],
        seen,
        bodies,
        min((message[4] for message in messages if message[4] is not None), default=None),
        entries,
    )


_NO_BODY = (NO_DIGEST, 0)


def _store(observation: Observation, seq: int, *, hashes_bytes: bool) -> MessageTuple:
    """A message as stored in the file, with what this observation adds to it on hop `seq`."""
    address, raw, size = observation.message, observation.raw, observation.size
    if raw is None and size is None:
        return (address, None, None, None, None, None)
    if raw is None:
        known = observation.digest
        if known is not None and len(known) != ADDRESS_BYTES:
            raise ValueError(f"a digest has {ADDRESS_BYTES} bytes, got {len(known)}")
        return (address, seq, size, b"" if known == address else known, None, None)
    if hashes_bytes and size is None:
        return (address, seq, len(raw), b"", observation.expires_us, raw)
    digest = hashlib.sha256(raw).digest()
    size = len(raw) if size is None else size
    return (address, seq, size, b"" if digest == address else digest, observation.expires_us, raw)


class _Tails(dict[tuple[int, int, str | None], bytes]):
    """The tails of leaf entries. There are few combinations of stage, reason and counterpart: each is encoded once."""

    def __missing__(self, key: tuple[int, int, str | None]) -> bytes:
        if len(self) >= MAX_TAILS_CACHED:
            self.clear()
        stage, reason, counterpart = key
        tail = self[key] = encode_tail(STAGE_OF_CODE[stage], REASON_OF_CODE[reason] if reason else None, counterpart)
        return tail


TAILS = _Tails()


@twin
def hash_entries(entries: Entries) -> bytes:
    """The concatenated leaf hashes of what `encode_commit` prepared."""
    sha256, leaves = hashlib.sha256, []
    for seq, at_us, observation, (digest, size) in entries:
        counterparts = observation.counterparts
        reason = observation.reason
        stage_code, reason_code = observation.stage.code, reason.code if reason else 0
        if len(counterparts) < 2:
            tail = TAILS[stage_code, reason_code, counterparts[0] if counterparts else None]
            leaves.append(sha256(encode_head(seq, at_us, observation.message, digest, size) + tail).digest())
        else:
            tails = [TAILS[stage_code, reason_code, name] for name in counterparts]
            leaves += hash_run(seq, at_us, observation.message, tails, digest, size)
    return b"".join(leaves)
