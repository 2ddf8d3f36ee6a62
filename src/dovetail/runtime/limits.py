"""The limits of a WebSocket, on either side."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.runtime.acceptor import HandshakeLimits

HANDSHAKE = HandshakeLimits()
NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a link, the same for listening and dialling.

    With `turn_messages`, a link that received this many frames, or `turn_bytes`, is read again only when its handler
    says so.
    """

    max_message_bytes: int
    max_fragments: int = 16_384
    max_unsent_bytes: int | None = None
    untrusted_bytes: int | None = None
    turn_messages: int | None = None
    turn_bytes: int = 64 * 1024
    handshake: HandshakeLimits = HANDSHAKE
    ping_s: float | None = None
