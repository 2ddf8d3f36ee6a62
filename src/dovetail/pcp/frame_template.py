"""The bytes of a sender's last message as a template: the next one that matches is not decoded or decided again.

Theory of operation. What one client sends to another differs from message to message in its id, its expiry and its
data; all other bytes of the envelope are the same. A template is built from a message that was decoded, checked,
authorised and routed; it holds the bytes around the two parts that may differ. A later message of the same session with
the same bytes around them, a UUID in one place and a time in the other, would decode to the same envelope: neither part
can then contain a quotation mark or a backslash, so the JSON around it means what it meant before. The session caches
the decision with it, and drops both when the rules change; the receiver's state and the lifetime are checked for each
message. Anything that does not match is decoded in full, which also finds its error.
"""

from __future__ import annotations

import re
from struct import Struct

from msgspec import UNSET

from dovetail.fast import twin
from dovetail.pcp.codec_v1 import CHUNK_DATA, Frame
from dovetail.pcp.envelope import UUID_CHARS, is_uuid
from dovetail.pcp.timestamps import decode_timestamp

MAX_TEMPLATE_BYTES = 2_048
MAX_SECONDS_KEPT = 1_024
_ID = b'"id":"'
_EXPIRES = b'"expires":"'
_SECOND_BYTES = len("2026-11-15T19:55:07")
_SECOND = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_POINT = ord(".")
_read_chunk = Struct(">Bi").unpack_from
_seconds: dict[bytes, int] = {}


@twin
class Template:
    """The bytes of a message around its id and its expiry, up to the envelope's end."""

    __slots__ = ("_parts",)

    def __init__(
        self,
        head: bytes,
        id_end: int,
        middle: bytes,
        second_end: int,
        zone_at: int,
        tail: bytes,
        end: int,
        fraction_us: int,
    ) -> None:
        self._parts = head, id_end, middle, second_end, zone_at, tail, end, fraction_us

    def expiry(self, message: bytes) -> int | None:
        """The expiry of a message that matches, in microseconds; None if it does not match."""
        head, id_end, middle, second_end, zone_at, tail, end, fraction_us = self._parts
        if not (message.startswith(head) and message.startswith(middle, id_end) and message.startswith(tail, zone_at)):
            return None
        if not is_uuid(message[id_end - UUID_CHARS : id_end]):
            return None
        size = len(message)
        if size != end and (size < end + 6 or _read_chunk(message, end) != (CHUNK_DATA, size - end - 5)):
            return None
        second = message[second_end - _SECOND_BYTES : second_end]
        fraction = message[second_end + 1 : zone_at]
        if message[second_end] != _POINT or not fraction.isdigit():
            return None
        second_us = _seconds.get(second)
        if second_us is None:
            second_us = _decode_second(second)
            if second_us is None:
                return None
        return second_us + int(fraction) * fraction_us


match_template = Template.expiry


def make_template(message: bytes, frame: Frame) -> Template | None:
    """Build the template of a message that is forwarded unchanged; None if that is not possible."""
    envelope = frame.envelope
    end = 6 + int.from_bytes(message[2:6])
    if end > MAX_TEMPLATE_BYTES or envelope.in_reply_to is not UNSET or frame.debug or frame.forward is not message:
        return None
    # Unescaped quotation marks occur only around strings, and the schema is closed: what reads like the key is the key.
    id_at = message.find(_ID, 6, end) + len(_ID)
    second_at = message.find(_EXPIRES, 6, end) + len(_EXPIRES)
    id_end, zone_at = id_at + UUID_CHARS, second_at + len(envelope.expires) - 1
    second_end = second_at + _SECOND_BYTES
    digits = zone_at - second_end - 1
    if (
        not len(_ID) <= id_at < second_at
        or message[id_at:id_end] != envelope.id.encode()
        or message[second_at : zone_at + 1] != envelope.expires.encode()
        or message[zone_at : zone_at + 1] != b"Z"
        or not 1 <= digits <= 6
        or message[second_end] != _POINT
    ):
        return None
    return Template(
        message[:id_at],
        id_end,
        message[id_end:second_at],
        second_end,
        zone_at,
        message[zone_at:end],
        end,
        10 ** (6 - digits),
    )


def _decode_second(second: bytes) -> int | None:
    if _SECOND.fullmatch(second) is None:
        return None
    try:
        second_us = decode_timestamp(second.decode() + "Z")
    except ValueError:
        return None
    if len(_seconds) >= MAX_SECONDS_KEPT:
        _seconds.clear()
    _seconds[second] = second_us
    return second_us
