"""What passes between a core and its driver: frames received, and what to send.

A link is an ordered, reliable connection that carries frames, such as a WebSocket. The side that opens it names it: the
core for links it requests, the transport for incoming ones; names are never reused. A datagram has no link: its
endpoint takes that place.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

LinkId = str
Frame = tuple[bytes, LinkId, bool]
"""A received frame: the bytes, the link or endpoint they came from, and whether it was a text frame."""

CLOSE_NORMAL = 1000
CLOSE_GOING_AWAY = 1001
CLOSE_ABNORMAL = 1006
CLOSE_TOO_BIG = 1009
CLOSE_INTERNAL_ERROR = 1011
"""WebSocket close codes (RFC 6455, 7.4.1); 1006 is never sent: it means that a link ended without a close."""


class SendFrames(msgspec.Struct, frozen=True, gc=False):
    """Frames for the other end of each of these links, in order; a fan-out is one `SendFrames`."""

    links: Sequence[LinkId]
    frames: Sequence[bytes]


class OpenLink(msgspec.Struct, frozen=True, gc=False):
    """Open a link; frames may follow immediately. `label` is how the opener identifies itself, such as a path."""

    link: LinkId
    destination: str
    label: str = ""


class CloseLink(msgspec.Struct, frozen=True, gc=False):
    """Close a link after the frames sent before, or immediately with `abort`, which sends no close code."""

    link: LinkId
    code: int = CLOSE_NORMAL
    detail: str = ""
    abort: bool = False


class Datagrams(msgspec.Struct, frozen=True, gc=False):
    """Datagrams for one endpoint, in order; any of them may be lost."""

    endpoint: str
    datagrams: Sequence[bytes]


Outgoing = SendFrames | OpenLink | CloseLink | Datagrams
