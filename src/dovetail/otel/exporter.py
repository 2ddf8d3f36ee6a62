"""Follows journals and exports their hops as spans until stopped.

The journal is the queue: nothing is read before the target has accepted what was sent, so a target that is slow, full
or down costs neither memory nor spans, and delays no server, since servers know nothing of this process. The position
is saved to a file after every accepted request; hops exported twice give the same spans.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from dovetail.journal.reader import JournalReader
from dovetail.model.errors import ConfigError, JournalError
from dovetail.otel.journal_spans import JournalSpans
from dovetail.otel.otlp import encode_request, encode_span, rejected_spans
from dovetail.otel.spans import Span
from dovetail.otel.target import NotTaken, Target

MAX_REQUEST_BYTES = 1 << 20
MAX_STATE_BYTES = 16 << 20
POLL_S = 0.5
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0

log = logging.getLogger("dovetail.otel")


class Positions:
    """How far each server's journal is exported; saved to a file, if one is given."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, int] = {}
        if path is not None and path.exists():
            try:
                if path.stat().st_size > MAX_STATE_BYTES:
                    raise ValueError(f"{path.stat().st_size} bytes, expected at most {MAX_STATE_BYTES}")
                self._known = msgspec.json.decode(path.read_bytes(), type=dict[str, int])
            except ValueError as error:
                raise ConfigError(f"{path} does not say where the export stands: {error}") from None

    def get(self, server: str) -> int | None:
        """The position of a server; None if unknown."""
        return self._known.get(server)

    def put(self, server: str, position: int) -> None:
        """Save a position, without fsync: an older one only repeats some exports."""
        if self._known.get(server) == position:
            return
        self._known[server] = position
        if self._path is not None:
            temporary = self._path.with_name(f".{self._path.name}.tmp")
            temporary.write_bytes(msgspec.json.encode(self._known))
            temporary.replace(self._path)


class Exporter:
    """Exports the hops of journals; `run` it, and set `stopped` to end it."""

    def __init__(
        self, paths: Sequence[Path], target: Target, positions: Positions, *, settle_s: float, from_start: bool
    ) -> None:
        self._paths = paths
        self._target = target
        self._positions = positions
        self._settle_s = settle_s
        self._from_start = from_start
        self._following: dict[Path, tuple[JournalReader, JournalSpans]] = {}
        self._problems: dict[Path, str] = {}
        self._is_away = False
        self._is_patient = True
        self.stopped = threading.Event()
        self.exported = 0
        self.refused = 0

    def run(self, *, once: bool = False) -> None:
        """Export until stopped; with `once`, only what exists now, and NotTaken if the target does not accept it.

        A journal that cannot be read is skipped until it can be; with `once` it is an error.
        """
        self._is_patient = not once
        try:
            while not self.stopped.is_set():
                behind = [path for path in self._paths if not self._follow(path, once=once)]
                if not behind and (once or self.stopped.wait(POLL_S)):
                    return
        finally:
            for reader, _ in self._following.values():
                reader.close()

    def _follow(self, path: Path, *, once: bool) -> bool:
        """Export a slice of one journal; True if its end was reached.

        A journal that cannot be read now is skipped, unless `once`.
        """
        try:
            spans = self._open(path)
            closed, is_at_end = spans.read(time.monotonic())
            if once and is_at_end:
                closed += spans.finish()
        except JournalError as error:
            if once:
                raise
            self._note(path, f"{path} cannot be read: {error}")
            if (following := self._following.pop(path, None)) is not None:
                following[0].close()
            return True
        self._note(path, None)
        if self._send(spans.server, closed):
            self._positions.put(spans.server, spans.done)
        return is_at_end

    def _open(self, path: Path) -> JournalSpans:
        if path not in self._following:
            reader = JournalReader.open(path)
            position = self._positions.get(reader.identity.server)
            if position is None and self._from_start:
                position = 0
            self._following[path] = reader, JournalSpans(reader, settle_s=self._settle_s, position=position)
        return self._following[path][1]

    def _send(self, server: str, spans: Sequence[Span]) -> bool:
        """Send spans, however long the target is down; False if stopped before."""
        for encoded in _batches(spans):
            body = encode_request(server, encoded)
            pause_s = _FIRST_PAUSE_S
            while (wanted_s := self._post(body, len(encoded))) is not None:
                if self.stopped.wait(max(pause_s, min(wanted_s, _LONGEST_PAUSE_S))):
                    return False
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return True

    def _post(self, body: bytes, count: int) -> float | None:
        """Post once; returns the delay before a retry that the target asks for, None if the batch is done."""
        try:
            lost, why = rejected_spans(self._target.post(body))
        except NotTaken as error:
            if error.is_refused:
                self.refused += count
                log.error("%s: %d spans are dropped", error, count)
                return None
            if not self._is_patient:
                raise
            if not self._is_away:
                log.warning("%s: waiting and retrying", error)
            self._is_away = True
            return error.after_s or 0.0
        if self._is_away:
            log.info("%s accepts spans again", self._target.url)
        self._is_away = False
        if lost:
            log.warning("%s rejected %d of %d spans: %s", self._target.url, lost, count, why[:200])
        self.refused += lost
        self.exported += count - lost
        return None

    def _note(self, path: Path, problem: str | None) -> None:
        """Report a problem when it is new, and when it ends."""
        before = self._problems.pop(path, None)
        if problem is not None:
            self._problems[path] = problem
            if problem != before:
                log.warning("%s", problem)
        elif before is not None:
            log.info("%s can be read again", path)


def _batches(spans: Sequence[Span]) -> Iterator[list[bytes]]:
    """Encoded spans in groups of at most MAX_REQUEST_BYTES; a larger span goes alone."""
    batch: list[bytes] = []
    size = 0
    for encoded in map(encode_span, spans):
        if batch and size + len(encoded) > MAX_REQUEST_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(encoded)
        size += len(encoded)
    if batch:
        yield batch
