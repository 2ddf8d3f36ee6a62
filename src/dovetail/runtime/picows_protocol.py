"""How picows reads from a transport, with counted buffers. Extends an internal class of picows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import picows
import picows.picows

from dovetail.runtime.limits import Limits

READ_BUFFER_BYTES = 2_048
READ_BYTES = 1_400

_picows_log = logging.getLogger("dovetail.websocket.picows")
_picows_log.setLevel(logging.CRITICAL)  # it logs two lines per connection; what matters is journaled and counted
_quiet = logging.LoggerAdapter(_picows_log)  # given a Logger it would create another adapter per connection

_PicowsProtocol: Any = picows.picows.WSProtocol  # type: ignore[attr-defined]
_get_buffer = _PicowsProtocol.get_buffer


class LinkProtocol(_PicowsProtocol):  # type: ignore[misc]
    """Reads from the transport; tells the link how large its read buffer becomes, which never shrinks."""

    __slots__ = ("_counted_bytes",)

    def __init__(self, make_link: Callable[..., Any], limits: Limits, authority: str | None, path: str | None) -> None:
        super().__init__(
            authority,
            path,
            authority is not None,
            make_link,
            _quiet,
            True,  # disconnect on an exception
            None,  # the caller limits the handshake's time
            limits.ping_s is not None,
            limits.ping_s,
            limits.ping_s,
            picows.WSAutoPingStrategy.PING_PERIODICALLY,
            False,  # the link answers pings
            limits.max_message_bytes,
            None,
            READ_BUFFER_BYTES,
        )
        self._counted_bytes = READ_BUFFER_BYTES

    def get_buffer(self, size_hint: int) -> memoryview:
        """Space for the next read. The buffer doubles when it is nearly full: then at least half of it is free.

        Only part of it is returned: otherwise it would double each time a fast peer fills it, and everything read at
        once is handled in one turn.
        """
        free: memoryview = _get_buffer(self, size_hint)
        while len(free) > self._counted_bytes and self.listener is not None:
            self.listener.hold(self._counted_bytes)
            self._counted_bytes *= 2
        return free[: max(READ_BYTES, len(free) // 2)]
