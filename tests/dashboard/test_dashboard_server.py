"""Connections that send nothing: they end, and keep nobody out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest
import uvicorn
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import ASGIApp

from dovetail.dashboard import server
from dovetail.dashboard.server import configure, listen

pytestmark = pytest.mark.system
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


CHUNKED = b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


async def stream(scope, receive, send) -> None:
    """An application that answers without end."""

    async def parts():
        while True:
            yield b"here" * 16_000
            await asyncio.sleep(0.001)

    await StreamingResponse(parts())(scope, receive, send)


def serving(work: Callable[[int], Awaitable[None]], app: ASGIApp | None = None) -> None:
    async def run() -> None:
        with listen("127.0.0.1", 0) as listener:
            running = uvicorn.Server(configure(app or PlainTextResponse("here\n")))
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


@pytest.mark.parametrize("begins", [False, True], ids=["before the answer", "amid the answer"])
def test_a_body_that_is_not_http_raises_nothing(begins, caplog):
    async def work(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(CHUNKED)
        if begins:
            await reader.readuntil(b"here")
        writer.write(b"zz\r\n")
        with contextlib.suppress(ConnectionResetError):
            got = await asyncio.wait_for(reader.read(), 60)
            assert begins or got.startswith(b"HTTP/1.1 400")
        writer.close()

    serving(work, stream)
    assert [(record.name, record.message) for record in caplog.records] == [
        ("dovetail.dashboard", "Invalid HTTP request received.")
    ]


def test_lines_about_bytes_that_are_not_http_are_limited(caplog):
    async def work(port: int) -> None:
        ends = [await asyncio.open_connection("127.0.0.1", port) for _ in range(60)]
        for _, writer in ends:
            writer.write(b"\0\r\n\r\n")
        for reader, writer in ends:
            assert b"400" in await asyncio.wait_for(reader.readline(), 60)
            writer.close()

    serving(work)
    assert 0 < len(caplog.records) < 60
    assert {record.name for record in caplog.records} == {"dovetail.dashboard"}


def test_a_client_that_does_not_read_a_stream_is_dropped(monkeypatch):
    monkeypatch.setattr(server, "REQUEST_TIMEOUT_S", 0.05)

    async def work(port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.transport.pause_reading()
        writer.write(GET)
        async with asyncio.timeout(60):
            while not writer.transport.is_closing():  # once the connection is reset, a write fails
                await asyncio.sleep(0.01)
                writer.write(b"G")

    serving(work, stream)
