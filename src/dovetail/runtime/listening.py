"""Whether a server can listen on its address, and the error if not."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator

from dovetail.model.errors import ResourceBusy

BIND_ERRORS = {
    errno.EADDRINUSE: ("is in use", "stop the program that uses it, or choose another port"),
    errno.EACCES: ("is not permitted", "ports below 1024 need privileges, choose another port"),
    errno.EADDRNOTAVAIL: ("is not an address of this machine", "choose one of its own"),
}
"""The usual reasons why an address cannot be bound, each with advice."""


def try_listening(kind: str, host: str, port: int) -> None:
    """Bind a port as a server does, and release it; raises OSError if it cannot be bound."""
    socket_type = socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM
    family, *_, address = socket.getaddrinfo(host, port, type=socket_type, flags=socket.AI_PASSIVE)[0]
    with socket.socket(family, socket_type) as trial:
        if kind == "tcp":
            # As servers do: connections still closing do not matter.
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        trial.bind(address)
        if kind == "tcp":
            trial.listen()


def check_port(kind: str, host: str, port: int) -> None:
    """Raise ResourceBusy if a port cannot be bound, before a server that needs it makes keys and a journal."""
    with listening(kind, host, port):
        try_listening(kind, host, port)


@contextlib.contextmanager
def listening(kind: str, host: str, port: int) -> Iterator[None]:
    """Wrap the call that binds: its usual failures become a ResourceBusy with a hint."""
    try:
        yield
    except OSError as error:
        known = BIND_ERRORS.get(errno.EADDRNOTAVAIL if isinstance(error, socket.gaierror) else error.errno or 0)
        if known is None:
            raise
        raise ResourceBusy(f"{kind} port {port} of {host} {known[0]}: {known[1]}") from error
