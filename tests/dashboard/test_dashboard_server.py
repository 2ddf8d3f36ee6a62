"""Connections that send nothing: they end, and keep nobody out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvicorn
from starlette.responses import PlainTextResponse

from dovetail.dashboard import server
from dovetail.dashboard.server import configure, listen

pytestmark = pytest.mark.system
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def serving(work: Callable[[int], Awaitable[None]]) -> None:
    async def run() -> None:
        with listen("127.0.0.1", 0) as listener:
            running = uvicorn.Server(configure(PlainTextResponse("here\n")))
            task = asyncio.create_task(running.serve(sockets=[listener]))
            await work(listener.getsockname()[1])
            running.should_exit = True
            await task

    asyncio.run(run())


@pytest.mark.parametrize("sent", [b"", GET[:20], GET], ids=["nothing", "half a request", "one request"])
def test_a_connection_on_which_no_request_arrives_is_ended(monkeypatch, sent):
    monkeypatch.setattr(server, "REQUEST_TIMEOUT_S", 0.05)

    async def work(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        try:
            got = await asyncio.wait_for(reader.read(), 60)
        except ConnectionResetError:
            got = b""
        assert (b"here" in got) is (sent == GET)
        writer.close()

    serving(work)


def test_silent_connections_keep_nobody_out(monkeypatch):
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 4)

    async def work(port: int) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        assert b"200 OK" in await reader.readline()
        for _, each in [*silent, (reader, writer)]:
            each.close()

    serving(work)
