"""Splits a stream of bytes into lines of text of bounded length."""

from __future__ import annotations

from collections.abc import Iterator

MAX_LINE_BYTES = 64 * 1024


class LineSplitter:
    """Feed it bytes as they arrive; a line longer than the maximum is returned in pieces."""

    def __init__(self, max_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[str]:
        """The complete lines so far, without line ends."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield from self._pieces(line)
        while len(self._rest) > self._max_bytes:
            piece, self._rest = self._rest[: self._max_bytes], self._rest[self._max_bytes :]
            yield _text(piece)

    def finish(self) -> Iterator[str]:
        """The rest when the stream ends."""
        rest, self._rest = self._rest, b""
        if rest:
            yield _text(rest)

    def _pieces(self, line: bytes) -> Iterator[str]:
        yield from (
            _text(line[start : start + self._max_bytes]) for start in range(0, max(len(line), 1), self._max_bytes)
        )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace").rstrip("\r")
