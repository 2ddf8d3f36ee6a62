"""Long runs for `make soak`: many open connections, reconnect storms, two processes with one identity."""

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from system.pcp_raw import RECONNECT_S, Closed, RawClient, Refused
from system.pcp_site import Site, scrape

pytestmark = [pytest.mark.system, pytest.mark.soak, pytest.mark.timeout(600)]
RUN = "from dovetail.cli.pcp import app; app()"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
TESTS = Path(__file__).parents[1]
KIB = 1024


def raise_file_limit(wanted: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"{wanted} open files needed, {hard} allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def serving(*arguments: str):
    command = [sys.executable, "-c", RUN, "serve", "--allow-all", "--port", "0", "--metrics-port", "0", "--json"]
    process = subprocess.Popen([*command, *arguments], env=ENVIRONMENT, text=True, stdout=subprocess.PIPE)
    try:
        started = json.loads(process.stdout.readline())
        yield process, *(int(started[name].split(":")[2].split("/")[0]) for name in ("url", "metrics"))
    finally:
        RawClient.writers.clear()  # a failed test must not leave its event loop's connections to the next
        process.terminate()
        process.communicate(timeout=60)


def resident_bytes(process: subprocess.Popen[str]) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) * KIB


def open_sockets(process: subprocess.Popen[str]) -> int:
    return sum("socket:" in str(entry.readlink()) for entry in Path(f"/proc/{process.pid}/fd").iterdir())


async def hold(port: int, count: int, context=None) -> list[RawClient]:
    clients: list[RawClient] = []
    for first in range(0, count, 100):
        numbers = range(first, min(first + 100, count))
        uris = [f"pcp://agent{number}/agent" if context is None else f"pcp://many/t{number}" for number in numbers]
        clients += await asyncio.gather(*(RawClient.associate(port, uri, context) for uri in uris))
    return clients


async def come_back(port: int, uri: str) -> RawClient:
    """Retry 200 ms after any failure, as existing clients do."""
    while True:
        try:
            return await RawClient.associate(port, uri)
        except (Closed, Refused, OSError, TimeoutError):
            await asyncio.sleep(RECONNECT_S)


def test_10_000_plain_connections_are_held_in_at_most_20_kb_each():
    raise_file_limit(12_000)

    async def scenario() -> None:
        with serving("--insecure-plain") as (process, port, metrics):
            before = resident_bytes(process)
            clients = await hold(port, 10_000)
            assert "dovetail_pcp_connections 10000.0" in (await scrape(metrics))[1]
            per_connection = (resident_bytes(process) - before) / len(clients)
            print(f"{per_connection / KIB:.1f} KiB a plain connection")  # noqa: T201
            assert per_connection <= 20_000
            clients[0].send_v1("http://example.com/ping", ["pcp://*/agent"], b"1")
            assert len(await asyncio.gather(*(client.receive_v1(60) for client in clients))) == 10_000
            await RawClient.close_all()

    asyncio.run(scenario())


def test_2_000_tls_connections_are_held_in_about_45_kb_each(tmp_path):
    raise_file_limit(4_000)

    async def scenario() -> None:
        site = Site(tmp_path)
        keys = [text for name, value in site.settings.items() for text in (f"--{name}", value)]
        with serving(*keys) as (process, port, metrics):
            await hold(port, 1, site.client("many"))  # what the first handshake loads does not belong to a connection
            before = resident_bytes(process)
            clients = await hold(port, 2_000, site.client("many"))
            assert "dovetail_pcp_connections 2000.0" in (await scrape(metrics))[1]
            per_connection = (resident_bytes(process) - before) / len(clients)
            print(f"{per_connection / KIB:.1f} KiB a TLS connection")  # noqa: T201
            assert per_connection <= 46_000
            await RawClient.close_all()

    asyncio.run(scenario())


def test_10_000_that_reconnect_at_once_are_all_back_soon():
    raise_file_limit(12_000)

    async def scenario() -> None:
        with serving("--insecure-plain") as (_, port, metrics):
            await hold(port, 10_000)
            await RawClient.close_all()
            began = time.monotonic()
            clients = await asyncio.gather(*(come_back(port, f"pcp://agent{number}/agent") for number in range(10_000)))
            print(f"10,000 back after {time.monotonic() - began:.1f} s")  # noqa: T201
            assert len(clients) == 10_000
            assert "dovetail_pcp_connections 10000.0" in (await scrape(metrics))[1]
            await RawClient.close_all()

    asyncio.run(scenario())


def twins(port: int, seconds: float, pause_s: float) -> list[int]:
    """Two processes with one identity; returns the close codes of all their connections."""
    arguments = ["-m", "system.pcp_twin", str(port), "pcp://twin/agent", str(seconds), str(pause_s)]
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join((ENVIRONMENT["PYTHONPATH"], str(TESTS)))}
    running = [
        subprocess.Popen([sys.executable, *arguments], env=environment, text=True, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=seconds + 30)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    return [code for output in outputs for code in json.loads(output)]


@pytest.mark.parametrize("pause_s", [RECONNECT_S, 0.002], ids=["as existing clients do", "as fast as they can"])
def test_two_processes_with_one_identity_for_ten_seconds_leak_neither_sockets_nor_memory(pause_s):
    with serving("--insecure-plain") as (process, port, metrics):
        twins(port, 3, pause_s)
        sockets, memory = open_sockets(process), resident_bytes(process)
        codes = twins(port, 10, pause_s)
        time.sleep(2)
        print(f"{len(codes)} evictions")  # noqa: T201
        assert len(codes) > 30
        # 1006: evicted before its association was answered
        assert set(codes) <= {4000, 1006}
        assert codes.count(4000) > len(codes) / 2
        assert open_sockets(process) <= sockets + 2
        assert resident_bytes(process) - memory < 8 * 1024 * KIB
        assert "dovetail_pcp_connections 0.0" in asyncio.run(scrape(metrics))[1]
