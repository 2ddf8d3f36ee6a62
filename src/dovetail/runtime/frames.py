"""Parts of WebSocket messages: frames that a server sends, and fragments reassembled within limits."""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from dovetail.fast import twin


class Holder(Protocol, Hashable):
    """A holder of memory: a link."""

    def refuse_more(self, size: int) -> None:
        """Give up the `size` bytes that are held."""


class Memory:
    """Memory of one kind held by many links; over the limit the largest holder must give up its share.

    Its `refuse_more` is called, or `give_up` if that is given.
    """

    def __init__(self, limit_bytes: int, give_up: Callable[[Any, int], None] | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._give_up = give_up
        self._holders: dict[Holder, int] = {}
        self.used_bytes = 0

    def hold(self, holder: Holder, more_bytes: int) -> int:
        """Count bytes received, or passed on if negative; returns what the holder has now."""
        held = self._holders[holder] = self._holders.get(holder, 0) + more_bytes
        self.used_bytes += more_bytes
        if more_bytes > 0 and self.used_bytes > self._limit_bytes:
            largest = max(self._holders, key=lambda each: (self._holders[each], each is holder))
            if self._give_up is not None:
                self._give_up(largest, self._holders[largest])
            else:
                largest.refuse_more(self._holders[largest])
        return held

    def release(self, holder: Holder) -> None:
        """Forget a holder; idempotent."""
        self.used_bytes -= self._holders.pop(holder, 0)


@twin
def encode_frames(payloads: Sequence[bytes], is_text: bool) -> bytes:
    """Encode messages as consecutive unmasked frames, as a server sends them (RFC 6455, 5.2)."""
    opcode = 0x81 if is_text else 0x82
    parts: list[bytes] = []
    for payload in payloads:
        size = len(payload)
        if size < 126:
            parts.append(bytes((opcode, size)))
        elif size < 65_536:
            parts.append(struct.pack(">BBH", opcode, 126, size))
        else:
            parts.append(struct.pack(">BBQ", opcode, 127, size))
        parts.append(payload)
    return b"".join(parts)


class Assembler:
    """Reassembles the fragments of one message."""

    __slots__ = ("_count", "_max_bytes", "_max_fragments", "is_text", "parts")

    def __init__(self, max_bytes: int, max_fragments: int, *, is_text: bool) -> None:
        self._max_bytes = max_bytes
        self._max_fragments = max_fragments
        self._count = 0
        self.is_text = is_text
        self.parts = bytearray()

    def add(self, payload: bytes) -> None:
        """Add a fragment, which may be empty; OverflowError over a limit."""
        self._count += 1
        if self._count > self._max_fragments:
            raise OverflowError(f"more than {self._max_fragments} fragments")
        if len(self.parts) + len(payload) > self._max_bytes:
            raise OverflowError(f"more than {self._max_bytes} bytes")
        self.parts += payload
