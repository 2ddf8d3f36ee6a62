"""What strangers can make a broker take, and what an honest client notices of it.

    python -m benchmarks.pcp_hostile [--sockets N] [--only NAME] [--json]

Attacks on a broker with TLS and client certificates, each on a fresh process: N connections that never say a word, that
send half of their TLS hello, or all of it and no more; 30 connections, upgraded but not associated, each with 60 MiB of
a frame or of fragments that never end; and 3,000 TLS 1.2 sessions that end at once. Memory is the resident set of the
broker: before, the most during the attack, and 15 seconds after it. `honest s` is how long a client needs for TLS and
the upgrade while the attack lasts: the median, where 8 seconds is the time limit; `longest s` is the longest. It comes
from the address of the attack; `elsewhere` is the same for one from another address. Each is a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import socket
import ssl
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from benchmarks.pcp_hostile_clients import LIMIT_S, UPGRADE, client_context, frame_head
from benchmarks.scratch import Row, make_parser, print_rows
from dovetail.keys.authority import CertificateKind, Names, create_authority

MIB = 1 << 20
HOLD_S = 8.0
AFTER_S = 15.0
_RUN = "from dovetail.cli.pcp import app; app()"


class Site:
    """A CA with a broker's and a client's certificate."""

    def __init__(self, directory: Path) -> None:
        authority = create_authority(directory, "CA")
        authority.issue("localhost", CertificateKind.SERVER, Names(dns=["localhost"]))
        authority.issue("client", CertificateKind.CLIENT, Names())
        self.directory = directory

    def context(self) -> ssl.SSLContext:
        return client_context(self.directory)

    def hello(self) -> bytes:
        """The first record of a client's handshake."""
        outgoing = ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):
            self.context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
        return outgoing.read()

    @contextlib.contextmanager
    def broker(self, *more: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
        """Process and port."""
        files = {"certificate": "localhost.pem", "key": "localhost.key", "authority": "ca.pem"}
        options = [text for name, file in files.items() for text in (f"--{name}", str(self.directory / file))]
        command = [sys.executable, "-c", _RUN, "serve", "--allow-all", "--port", "0", "--json", *options, *more]
        log = (self.directory / "log").open("w")
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=dict(os.environ))
        try:
            assert process.stdout is not None
            yield process, int(json.loads(process.stdout.readline())["url"].split(":")[2].split("/")[0])
        finally:
            process.kill()
            process.communicate()
            log.close()


async def connect(
    site: Site, port: int, address: str = "127.0.0.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open an upgraded connection from a local address."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=site.context(), server_hostname="localhost", local_addr=(address, 0)
    )
    writer.write(UPGRADE)
    await reader.readuntil(b"\r\n\r\n")
    return reader, writer


def silent(port: int, count: int, said: bytes) -> list[socket.socket]:
    """Connections that send only this."""
    peers = []
    for _ in range(count):
        peer = socket.create_connection(("127.0.0.1", port))
        with contextlib.suppress(OSError):
            peer.send(said)
        peers.append(peer)
    return peers


async def attack_silently(_: Site, port: int, count: int, said: bytes = b"") -> None:
    peers = await asyncio.to_thread(silent, port, count, said)
    await asyncio.sleep(HOLD_S)
    for peer in peers:
        peer.close()


async def attack_unfinished(site: Site, port: int, pieces: list[bytes]) -> None:
    """Thirty upgraded connections that each send one endless message and do not reconnect when closed."""

    async def send() -> None:
        _, writer = await connect(site, port)
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(HOLD_S):
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                await asyncio.sleep(HOLD_S)
        writer.transport.abort()

    await asyncio.gather(*(send() for _ in range(30)))


async def attack_sessions(site: Site, port: int) -> None:
    context = site.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    for _ in range(30):
        opened = [
            asyncio.open_connection("localhost", port, ssl=context, server_hostname="localhost") for _ in range(100)
        ]
        for reader, writer in await asyncio.gather(*opened):
            del reader
            writer.close()


def knock(site: Site, port: int, address: str) -> subprocess.Popen[str]:
    """An honest client in a process of its own, so that it does not wait for the work of the attackers."""
    command = [sys.executable, "-m", "benchmarks.pcp_hostile_clients", "knock", str(site.directory), str(port), address]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def count_waits(client: subprocess.Popen[str]) -> list[float]:
    """End an honest client; how long it waited each time."""
    client.terminate()
    return [float(line) for line in client.communicate()[0].splitlines()] or [LIMIT_S]


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / MIB


async def measure(site: Site, pid: int, port: int, attack: Awaitable[None]) -> dict[str, float]:
    await connect(site, port)  # so that what the first handshake loads is not measured
    before = peak = resident_mib(pid)
    honest = [knock(site, port, address) for address in ("127.0.0.1", "127.0.0.2")]
    attacking = asyncio.ensure_future(attack)
    while not attacking.done():
        peak = max(peak, resident_mib(pid))
        await asyncio.sleep(0.05)
    same, other = (count_waits(each) for each in honest)
    await attacking
    await asyncio.sleep(AFTER_S)
    return {
        "before MiB": before,
        "peak MiB": peak,
        "after MiB": resident_mib(pid),
        "honest s": statistics.median(same),
        "longest s": max(same),
        "elsewhere s": statistics.median(other),
        "elsewhere longest s": max(other),
    }


def attacks(count: int) -> dict[str, Callable[[Site, int], Awaitable[None]]]:
    """The attacks by name."""
    chunk = bytes(MIB)
    endless = [frame_head(2, 60 * MIB, is_final=True), *[chunk] * 59]
    fragments = [frame_head(2, MIB, is_final=False) + chunk, *[frame_head(0, MIB, is_final=False) + chunk] * 59]
    return {
        f"{count:,} silent connections": lambda site, port: attack_silently(site, port, count),
        f"{count:,} with half a TLS hello": lambda site, port: attack_silently(site, port, count, site.hello()[:100]),
        f"{count:,} with a whole TLS hello": lambda site, port: attack_silently(site, port, count, site.hello()),
        "30 endless frames": lambda site, port: attack_unfinished(site, port, endless),
        "30 endless fragments": lambda site, port: attack_unfinished(site, port, fragments),
        "3,000 TLS 1.2 sessions": attack_sessions,
    }


def measure_all(arguments: argparse.Namespace, directory: Path) -> Iterator[Row]:
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    site = Site(directory)
    for name, attack in attacks(arguments.sockets).items():
        if arguments.only not in name:
            continue
        with site.broker() as (broker, port):
            found = asyncio.run(measure(site, broker.pid, port, attack(site, port)))
        yield {"attack": name, **{key: round(value, 2) for key, value in found.items()}}


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--sockets", type=int, default=10_000)
    parser.add_argument("--only", default="", help="attacks whose name has this in it")
    return print_rows(parser, measure_all)


if __name__ == "__main__":
    sys.exit(main())
