"""What crosses the border between a core and its driver: frames that came in, and what is to be sent.

A link is an ordered, reliable connection that carries frames, such as a WebSocket. Whoever opens it names it, the core
for links it asks for and the transport for links that others open; a name is never used twice. A datagram has no link:
its endpoint stands in the same place.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

LinkId = str
Frame = tuple[bytes, LinkId, bool]
"""What came in: the bytes, the link or endpoint they came from, and whether it was a text frame."""

CLOSE_NORMAL = 1000
CLOSE_ABNORMAL = 1006
CLOSE_INTERNAL_ERROR = 1011
"""Close codes of WebSocket (RFC 6455, 7.4.1); 1006 is never sent: it means that a link ended without a close."""


class SendFrames(msgspec.Struct, frozen=True, gc=False):
    """Frames for the other end of each of these links, in order; a fan-out is one of these."""

    links: Sequence[LinkId]
    frames: Sequence[bytes]


class OpenLink(msgspec.Struct, frozen=True, gc=False):
    """Open a link; frames may follow at once. `label` is what the opener shows of itself, such as a path."""

    link: LinkId
    destination: str
    label: str = ""


class CloseLink(msgspec.Struct, frozen=True, gc=False):
    """End a link: after the frames sent before, or at once with `abort`, which shows the other end no code."""

    link: LinkId
    code: int = CLOSE_NORMAL
    detail: str = ""
    abort: bool = False


class Datagrams(msgspec.Struct, frozen=True, gc=False):
    """Datagrams for one endpoint, in order; any of them may be lost."""

    endpoint: str
    datagrams: Sequence[bytes]


Outgoing = SendFrames | OpenLink | CloseLink | Datagrams
