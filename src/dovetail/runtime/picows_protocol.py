"""How picows reads from a transport, with buffers that are counted. It is an internal class of picows."""

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
_quiet = logging.LoggerAdapter(_picows_log)  # of a Logger it would make one more for each connection

_PicowsProtocol: Any = picows.picows.WSProtocol  # type: ignore[attr-defined]
_get_buffer = _PicowsProtocol.get_buffer


class LinkProtocol(_PicowsProtocol):  # type: ignore[misc]
    """What reads from the transport; tells the link how large its read buffer gets, which never shrinks."""

    __slots__ = ("_counted_bytes",)

    def __init__(self, make_link: Callable[..., Any], limits: Limits, authority: str | None, path: str | None) -> None:
        super().__init__(
            authority,
            path,
            authority is not None,
            make_link,
            _quiet,
            True,  # hang up on an exception
            None,  # the handshake's time is limited by who waits for it
            limits.ping_s is not None,
            limits.ping_s,
            limits.ping_s,
            picows.WSAutoPingStrategy.PING_PERIODICALLY,
            False,  # pings are answered by the link
            limits.max_message_bytes,
            None,
            READ_BUFFER_BYTES,
        )
        self._counted_bytes = READ_BUFFER_BYTES

    def get_buffer(self, size_hint: int) -> memoryview:
        """Room for the next read. The buffer doubles when it is nearly full: half of it or more is free then.

        Only a part of it is given away: it would double each time a peer that sends fast fills it, and all that is read
        at once is handled in one turn.
        """
        free: memoryview = _get_buffer(self, size_hint)
        if len(free) > self._counted_bytes and self.listener is not None:
            more, self._counted_bytes = len(free) - self._counted_bytes, len(free)
            self.listener.hold(more)
        return free[: max(READ_BYTES, len(free) // 2)]
