"""`connect`: a client for the server that a URL or a saved context names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from dovetail.api.values import TLS, Message, Sent, check_text
from dovetail.model.errors import UsageError


class Client(Protocol):
    """What clients of brokers and nodes have in common; use them with `async with`."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def send(self, to: str, data: Any) -> Sent:
        """Send; returns the outcome."""

    async def receive(self, timeout: float | None = None) -> Message:
        """The next message; raises TimedOut if none arrives in time."""

    def __aiter__(self) -> AsyncIterator[Message]:
        """Messages as they arrive."""


def connect(
    url: str | None = None,
    identity: str | Path | None = None,
    *,
    context: str | None = None,
    tls: TLS | None = None,
    protocol: int = 1,
    wait: float = 0,
    timeout: float = 10,
) -> Any:
    """A client, by the scheme of the URL; omitted arguments come from the context. Use it with `async with`.

    - `ws://HOST:PORT/pcp` or `wss://...`, with an identity such as `pcp://NAME/TYPE`: a PcpClient
    - `https://HOST/won/resource`, with the owner's directory as identity: a WonClient
    - `unix:DIR`: a SwarmPeer for the running peer with this directory

    A client that cannot connect raises an error at once; `wait` makes it retry for this many seconds. `timeout` limits
    one attempt. No type checker can know the class from a URL: annotate the variable, `client: PcpClient = connect()`.
    """
    from dovetail.api.contexts import load_context

    known = load_context(context)
    if url is None:
        url = known.url or (f"unix:{known.directory}" if known.directory else known.home)
        if url is None:
            raise UsageError("no url is given, and there is no current context: see `dovetail context save`")
    scheme = check_text(url, "url").partition(":")[0]
    if scheme in ("ws", "wss"):
        from dovetail.api.pcp import PcpClient

        name = str(identity or known.identity or "")
        if not name:
            raise UsageError("no identity is given, such as pcp://me/agent")
        tls = tls or TLS(certificate=known.certificate, key=known.tls_key, authority=known.authority)
        return PcpClient(url, name, tls=tls, protocol=protocol, wait=wait, timeout=timeout)
    if scheme in ("unix", "swarm"):
        from dovetail.api.swarm import SwarmPeer

        return SwarmPeer(url.partition(":")[2].removeprefix("//"))
    from dovetail.api.won import WonClient

    if not url or ("://" in url and scheme not in ("http", "https")):
        raise UsageError(
            f"{url[:80]!r} is no URL of a server: expected ws:, wss:, https:, unix: or an owner's directory"
        )
    home = identity or known.home or (url if scheme not in ("http", "https") else None)
    if home is None:
        raise UsageError("no directory of a won owner is given")
    client = WonClient(home, wait=wait, timeout=timeout)
    if scheme in ("http", "https") and not client.atom.startswith(url):
        raise UsageError(f"{home} is the owner of {client.atom}, which is not at {url}")
    return client
