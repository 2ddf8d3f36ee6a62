"""The error when a server cannot listen on its address."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from dovetail.model.errors import ResourceBusy

_ADVICE = {
    errno.EADDRINUSE: "is in use: stop the program that has it, or name another port",
    errno.EACCES: "may not be taken: ports below 1024 need rights, name another port",
    errno.EADDRNOTAVAIL: "is no address of this machine: name one of its own",
}


@contextlib.contextmanager
def listening(kind: str, host: str, port: int) -> Iterator[None]:
    """Wrap the call that binds: its usual failures become a ResourceBusy with a hint."""
    try:
        yield
    except OSError as error:
        if error.errno in _ADVICE:
            raise ResourceBusy(f"{kind} port {port} of {host} {_ADVICE[error.errno]}") from error
        raise
