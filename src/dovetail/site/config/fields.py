"""Value types shared by several sections, and the base class of sections."""

from __future__ import annotations

import re
from typing import Annotated, Final

from msgspec import Meta, Struct

LISTEN_TCP = "listen_tcp"
LISTEN_UDP = "listen_udp"
PATH_TEXT = "path_text"
LOCATION = "location"
PRIVATE = "private"
_PORT_PATTERN = "(?:[0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
LISTEN_PATTERN = rf"^(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]*):({_PORT_PATTERN})\Z"

# Server sections use these two for the addresses they listen on; `dovetail doctor` thus knows which ports to try.
ListenTcp = Annotated[str, Meta(pattern=LISTEN_PATTERN, extra={"role": LISTEN_TCP, "allowed": "HOST:PORT"})]
ListenUdp = Annotated[str, Meta(pattern=LISTEN_PATTERN, extra={"role": LISTEN_UDP, "allowed": "HOST:PORT"})]
Endpoint = Annotated[str, Meta(pattern=LISTEN_PATTERN, extra={"allowed": "HOST:PORT"})]
"""An address that another process listens on."""

path_text: Final = Meta(extra={"role": PATH_TEXT, "allowed": "a path"})
"""Marks text that is a path: relative to the directory of the file, as for `Path`."""
location_text: Final = Meta(
    min_length=1, pattern=r"^[^\0]*\Z", extra={"role": LOCATION, "allowed": "a path, or s3://bucket/prefix"}
)
"""Marks text that is a path or a location in an object store."""
is_private: Final = Meta(extra={"role": PRIVATE, "allowed": "40 hex digits"})
"""Marks a value that is never shown."""


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections."""


def parse_listen(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; an empty host means every interface. Raises ValueError if it is invalid."""
    match = re.match(LISTEN_PATTERN, text)
    if match is None:
        raise ValueError(f"{text[:80]!r} is not HOST:PORT")
    return match[1].strip("[]"), int(match[2])
