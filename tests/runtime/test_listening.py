"""The error when a server cannot listen."""

from __future__ import annotations

import asyncio
import socket

import pytest
from prometheus_client import CollectorRegistry

from dovetail.model.errors import ResourceBusy
from dovetail.runtime.acceptor import Acceptor, HandshakeLimits
from dovetail.runtime.listening import listening
from dovetail.runtime.metrics import MetricsServer


def start(host: str, port: int) -> int:
    server = MetricsServer(CollectorRegistry(), lambda: "ok")

    async def run() -> int:
        try:
            return await server.start(host, port)
        finally:
            await server.stop()

    return asyncio.run(run())


def test_a_free_port_is_taken():
    assert start("127.0.0.1", 0) > 0


def test_a_port_in_use_is_named_with_what_to_do():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ResourceBusy) as caught:
            start("127.0.0.1", port)
    assert str(caught.value) == (
        f"tcp port {port} of 127.0.0.1 is in use: stop the program that uses it, or choose another port"
    )


def test_an_address_of_another_machine_is_named():
    with pytest.raises(ResourceBusy, match=r"tcp port 0 of 192\.0\.2\.1 is not an address of this machine"):
        start("192.0.2.1", 0)


def test_a_name_of_several_addresses_of_other_machines_is_named(monkeypatch):
    async def resolve(*_: object, **__: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in ("192.0.2.1", "203.0.113.1")]

    async def run() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        with pytest.raises(ResourceBusy, match="elsewhere is not an address of this machine"):
            await Acceptor(lambda *_: asyncio.sleep(0), HandshakeLimits()).start("elsewhere", 0)

    asyncio.run(run())


def test_other_errors_stay_what_they_are():
    with pytest.raises(FileNotFoundError), listening("tcp", "127.0.0.1", 1):
        raise FileNotFoundError(2, "no such file")


def test_a_name_that_does_not_resolve_is_no_address_of_this_machine():
    with pytest.raises(ResourceBusy, match="nowhere is not an address of this machine"), listening("tcp", "nowhere", 1):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
