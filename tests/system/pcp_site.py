"""A broker in this process on a free port, with or without TLS, and a journal in memory."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from dovetail.keys.authority import Authority, CertificateKind, Names, create_authority
from dovetail.model.address import address_of
from dovetail.model.errors import JournalError
from dovetail.model.hop import Observation, Reason, Stage
from dovetail.pcp.settings import ALLOW_ALL, PcpSettings
from dovetail.runtime.pcp_server import PcpServer
from dovetail.runtime.tls import client_context
from system.pcp_raw import RawClient


class MemoryJournal:
    """Records observations; while `hold` is in effect, commits wait for `release`."""

    on_failure: Callable[[JournalError], None] | None = None
    stalled: JournalError | None = None

    def __init__(self) -> None:
        self.observations: list[Observation] = []
        self._is_held = False
        self._waiting: list[tuple[Sequence[Observation], Callable[[JournalError | None], None]]] = []

    def commit(self, observations: Sequence[Observation], done: Callable[[JournalError | None], None]) -> None:
        self._waiting.append((observations, done))
        if not self._is_held:
            self.release()

    def hold(self) -> None:
        self._is_held = True

    def release(self) -> None:
        self._is_held = False
        waiting, self._waiting = self._waiting, []
        for observations, done in waiting:
            self.observations += observations
            done(None)

    def hops_of(self, message: bytes) -> list[tuple[Stage, str | None, Reason | None]]:
        return [
            (seen.stage, counterpart, seen.reason)
            for seen in self.observations
            if seen.message == address_of(message)
            for counterpart in (seen.counterparts or (None,))
        ]

    def reasons(self) -> list[Reason]:
        return [seen.reason for seen in self.observations if seen.reason is not None]


@asynccontextmanager
async def broker(journal: MemoryJournal | None = None, **settings: object) -> AsyncIterator[PcpServer]:
    settings = {"port": 0, "rules": ALLOW_ALL, "drain_timeout_ms": 300, "access_log": False, **settings}
    if "certificate" not in settings:
        settings["insecure_plain"] = True
    server = PcpServer(PcpSettings(**settings), journal)
    await server.start()
    try:
        yield server
    finally:
        await RawClient.close_all()
        await server.stop()


class Site:
    """Keys of a private CA for one test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority: Authority = create_authority(directory, "Test CA")
        self.authority.issue("localhost", CertificateKind.SERVER, Names(dns=["localhost"], ip=["127.0.0.1"]))

    @property
    def settings(self) -> dict[str, str]:
        folder = self.directory
        return {
            "certificate": str(folder / "localhost.pem"),
            "key": str(folder / "localhost.key"),
            "authority": str(folder / "ca.pem"),
        }

    def client(self, name: str) -> ssl.SSLContext:
        if not (self.directory / f"{name}.pem").exists():
            self.authority.issue(name, CertificateKind.CLIENT, Names())
        folder = self.directory
        return client_context(str(folder / f"{name}.pem"), str(folder / f"{name}.key"), str(folder / "ca.pem"))


async def scrape(port: int, path: str = "/metrics") -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return int(head.split(b" ")[1]), body.decode()


async def until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Wait until a condition is true; fails the test if it never is."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
