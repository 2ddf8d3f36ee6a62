"""The error when a server cannot listen on its address."""

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
