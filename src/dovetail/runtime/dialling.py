"""Opening a WebSocket so that whoever gives up waiting leaves no socket behind.

picows forgets the transport of a handshake that is cancelled: it stays open until the peer or a timeout ends it. Here
the socket is ours, so that giving up ends it, and with it the handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import picows

GIVE_UP_S = 1.0


async def dial(listener: picows.WSListener, url: str, **options: Any) -> None:
    """Connect `listener` to `url`; `options` are those of picows. Raises OSError, TimeoutError or picows.WSError."""
    sockets: list[socket.socket] = []

    async def connect_socket(to: Any) -> socket.socket:
        connected = await _connect_socket(to.host, to.port)
        sockets.append(connected)
        return connected

    dialling = asyncio.ensure_future(
        picows.ws_connect(lambda: listener, url, socket_factory=connect_socket, max_redirects=0, **options)
    )
    try:
        await asyncio.shield(dialling)
    except asyncio.CancelledError:
        if sockets:
            with contextlib.suppress(OSError):
                sockets[0].shutdown(socket.SHUT_RDWR)
        else:
            dialling.cancel()
        await asyncio.wait([dialling], timeout=GIVE_UP_S)
        raise


async def _connect_socket(host: str, port: int) -> socket.socket:
    """A connected socket, of the first address of `host` that answers."""
    loop = asyncio.get_running_loop()
    failure: OSError | None = None
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        candidate = socket.socket(family, kind, protocol)
        try:
            candidate.setblocking(False)
            await loop.sock_connect(candidate, address)
            return candidate
        except OSError as error:
            candidate.close()
            failure = error
        except BaseException:
            candidate.close()
            raise
    raise failure or OSError(f"{host} has no address")
