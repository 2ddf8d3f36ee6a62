"""What strangers can make a broker take, and what an honest client notices of it.

    python -m benchmarks.pcp_hostile [--sockets N] [--only NAME] [--json]

Attacks on a broker with TLS and client certificates, each on a fresh process: N connections that never say a word, that
send half of their TLS hello, or all of it and no more; 30 connections, upgraded but not associated, each with 60 MiB of
a frame or of fragments that never end; and 3,000 TLS 1.2 sessions that end at once. Memory is the resident set of the
broker: before, the most during the attack, and 15 seconds after it. `honest s` is how long a client needs for TLS and
the upgrade while the attack lasts: the median, where 8 seconds is the time limit. It comes from the address of the
attack; `elsewhere s` is the same for one from another address.
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
import struct
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from benchmarks.scratch import Row, make_parser, print_rows
from dovetail.keys.authority import CertificateKind, Names, create_authority

MIB = 1 << 20
HOLD_S = 8.0
AFTER_S = 15.0
_UPGRADE = (
    b"GET /pcp HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
_RUN = "from dovetail.cli.pcp import app; app()"


class Site:
    """A CA with a broker's and a client's certificate."""

    def __init__(self, directory: Path) -> None:
        authority = create_authority(directory, "CA")
        authority.issue("localhost", CertificateKind.SERVER, Names(dns=["localhost"]))
        authority.issue("client", CertificateKind.CLIENT, Names())
        self.directory = directory

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.directory / "ca.pem")
        context.load_cert_chain(self.directory / "client.pem", self.directory / "client.key")
        return context

    def hello(self) -> bytes:
        """The first record of a client's handshake."""
        outgoing = ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):
            self.context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
        return outgoing.read()

    @contextlib.contextmanager
    def broker(self) -> Iterator[tuple[int, int]]:
        """Process ID and port."""
        files = {"certificate": "localhost.pem", "key": "localhost.key", "authority": "ca.pem"}
        options = [text for name, file in files.items() for text in (f"--{name}", str(self.directory / file))]
        command = [sys.executable, "-c", _RUN, "serve", "--allow-all", "--port", "0", "--json", *options]
        log = (self.directory / "log").open("w")
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=dict(os.environ))
        try:
            assert process.stdout is not None
            yield process.pid, int(json.loads(process.stdout.readline())["url"].split(":")[2].split("/")[0])
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
    writer.write(_UPGRADE)
    await reader.readuntil(b"\r\n\r\n")
    return reader, writer


def frame_head(opcode: int, size: int, *, is_final: bool) -> bytes:
    """The head of a frame masked with zeros."""
    return struct.pack(">BBQI", (0x80 if is_final else 0) | opcode, 0xFF, size, 0)


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


async def measure(site: Site, pid: int, port: int, attack: Awaitable[None]) -> dict[str, float]:
    def resident_mib() -> float:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / MIB

    await connect(site, port)  # so that what the first handshake loads is not measured
    before = peak = resident_mib()
    waits: dict[str, list[float]] = {"127.0.0.1": [], "127.0.0.2": []}

    async def be_honest(address: str) -> None:
        while True:
            began = time.monotonic()
            with contextlib.suppress(OSError, TimeoutError, EOFError):
                async with asyncio.timeout(HOLD_S):
                    _, writer = await connect(site, port, address)
                    writer.transport.abort()
            waits[address].append(time.monotonic() - began)
            await asyncio.sleep(0.2)

    attacking = asyncio.ensure_future(attack)
    honest = [asyncio.create_task(be_honest(address)) for address in waits]
    while not attacking.done():
        peak = max(peak, resident_mib())
        await asyncio.sleep(0.05)
    for task in honest:
        task.cancel()
    await attacking
    await asyncio.sleep(AFTER_S)
    same, other = (statistics.median(each or [HOLD_S]) for each in waits.values())
    return {
        "before MiB": before,
        "peak MiB": peak,
        "after MiB": resident_mib(),
        "honest s": same,
        "elsewhere s": other,
    }


def attacks(count: int) -> dict[str, Callable[[Site, int], Awaitable[None]]]:
    """The attacks by name."""
    chunk = bytes(MIB)
    endless = [frame_head(2, 60 * MIB, is_final=True), *[chunk] * 59]
    fragments = [frame_head(2, MIB, is_final=False) + chunk, *[frame_head(0, MIB, is_final=False) + chunk] * 59]
    return {
        f"{count} silent": lambda site, port: attack_silently(site, port, count),
        f"{count} half hellos": lambda site, port: attack_silently(site, port, count, site.hello()[:100]),
        f"{count} hellos": lambda site, port: attack_silently(site, port, count, site.hello()),
        "30 endless frames": lambda site, port: attack_unfinished(site, port, endless),
        "30 endless fragments": lambda site, port: attack_unfinished(site, port, fragments),
        "3000 TLS 1.2 sessions": attack_sessions,
    }


def measure_all(arguments: argparse.Namespace, directory: Path) -> Iterator[Row]:
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    site = Site(directory)
    for name, attack in attacks(arguments.sockets).items():
        if arguments.only not in name:
            continue
        with site.broker() as (pid, port):
            found = asyncio.run(measure(site, pid, port, attack(site, port)))
        yield {"attack": name, **{key: round(value, 2) for key, value in found.items()}}


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--sockets", type=int, default=10_000)
    parser.add_argument("--only", default="", help="attacks whose name has this in it")
    return print_rows(parser, measure_all)


if __name__ == "__main__":
    sys.exit(main())
