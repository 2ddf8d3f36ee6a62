"""What hostile links and owners make a won node take, and what an honest conversation notices of them.

    python -m benchmarks.won_hostile [--seconds S] [--after S] [--amid] [--only NAME] [--json]

Attacks on a real `dovetail won serve` with TLS, each on a fresh process and from another process and address: 1,000
links that never send; 30 links with a frame, fragments or empty fragments that never end; an owner that connects to
3,000 nodes that do not exist; 100 node links whose frames wait for keys that a silent host never sends; 50 owner links
that repeat a large message and read nothing. Memory is the node's resident set: before, and the most during the attack.
Meanwhile two owners of the node talk: `chain s` is the median time of a whole delivery chain, `longest s` the longest,
`failed` the number that did not complete within 10 seconds. Then the attackers stay connected and fall silent:
`cpu after` is the share of a core that the node uses, and `SIGTERM s` is how long it takes to stop, with `stop cpu s`
of CPU time. With `--amid` it is stopped in the middle of the attack.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import itertools
import json
import logging
import multiprocessing
import os
import random
import resource
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path

from benchmarks.pcp_hostile_clients import frame_head
from benchmarks.scratch import Row, make_parser, print_rows
from dovetail.keys import CertificateKind, Names, create_authority, create_signing_key
from dovetail.runtime.won_client import AtomFile, OwnerClient, OwnerHome
from dovetail.won import compose as c
from dovetail.won import vocabulary as v
from dovetail.won.canonical import Quad
from dovetail.won.chain import ChainState
from dovetail.won.message import Message
from dovetail.won.owner import Owner
from dovetail.won.signing import SigningKey
from dovetail.won.trig import encode_bundle
from dovetail.won.vocabulary import Direction, MessageType

REST_S = 3.0
CHAIN_LIMIT_S = 10.0
MIB = 1 << 20
SILENT, ENDLESS, DEAD, WAITING, UNREAD = 1_000, 30, 3_000, 100, 50
_RUN = "from dovetail.cli.won import app; app()"
_ATTACKER = "127.0.0.2"
_KEY = SigningKey(bytes(range(32)))

Attack = Callable[["Target", float], Awaitable[None]]


class Target:
    """Where the attacked node is, as an attacking process needs it."""

    def __init__(self, uri: str, authority: Path, victim: str) -> None:
        self.uri = uri
        self.authority = authority
        self.victim = victim
        """A socket of an honest atom."""

    async def open(self, kind: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """An upgraded link."""
        port = int(self.uri.split(":")[2].split("/")[0])
        context = ssl.create_default_context(cafile=self.authority)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname="localhost", local_addr=(_ATTACKER, 0)
        )
        writer.write(
            f"GET {v.NODE_PATH}/link/{kind} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            "Sec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        await reader.readuntil(b"\r\n\r\n")
        return reader, writer


class Victim:
    """The attacked node, a running process, with two honest owners."""

    def __init__(self, directory: Path) -> None:
        authority = create_authority(directory / "keys", "CA")
        key, certificate = authority.issue("localhost", CertificateKind.SERVER, Names(dns=("localhost",)))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        uri = f"https://localhost:{port}{v.NODE_PATH}"
        signing_key, _ = create_signing_key(directory / "keys", uri)
        self._authority = directory / "keys" / "ca.pem"
        self._directory = directory
        self.uri = uri
        options = {
            "uri": uri,
            "signing-key": signing_key,
            "journal": directory / "journal.db",
            "listen": f"127.0.0.1:{port}",
            "certificate": certificate,
            "certificate-key": key,
            "authority": self._authority,
        }
        arguments = [str(text) for name, value in options.items() for text in (f"--{name}", value)]
        self._log = (directory / "log").open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-c", _RUN, "serve", *arguments], stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        assert self.process.stdout is not None
        json.loads(self.process.stdout.readline())

    def close(self) -> None:
        """Kill the process, if it still runs."""
        self.process.kill()
        self.process.communicate()
        self._log.close()

    def home(self, name: str) -> OwnerHome:
        """The directory of an honest owner."""
        atom = f"{self.uri}/atom/{name}"
        return OwnerHome.create(self._directory / name, AtomFile(atom, (f"{atom}#chat",), str(self._authority)))

    @property
    def target(self) -> Target:
        """What attackers know of it."""
        return Target(self.uri, self._authority, f"{self.uri}/atom/alice#chat")

    @property
    def resident_mib(self) -> float:
        """Resident memory of the process."""
        text = Path(f"/proc/{self.process.pid}/statm").read_text()
        return int(text.split()[1]) * resource.getpagesize() / MIB

    @property
    def cpu_s(self) -> float:
        """CPU seconds that the process has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def terminate(self) -> tuple[float, float]:
        """Seconds from SIGTERM to the end, at most 60, and of the CPU for it."""
        began, cpu_s = time.monotonic(), self.cpu_s
        earlier = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        whole_s = ended.ru_utime + ended.ru_stime - earlier.ru_utime - earlier.ru_stime
        return time.monotonic() - began, whole_s - cpu_s


def make_message(
    kind: MessageType, signer: str, envelope: Iterable[tuple[str, str]], content: Iterable[Quad] = ()
) -> Message:
    """A valid message of an attacker's atom."""
    return c.compose(
        type=kind,
        direction=Direction.OWNER,
        signer=signer,
        key=_KEY,
        timestamp_ms=int(time.time() * 1000),
        envelope=envelope,
        content=content,
    )


def frame(message: Message) -> bytes:
    """A message as one masked WebSocket frame."""
    data = encode_bundle((message,))
    return frame_head(2, len(data)) + data


async def send_all(writer: asyncio.StreamWriter, pieces: Iterable[bytes], seconds: float) -> None:
    """Send until the time is over or the node closes the link; read nothing."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(seconds):
            for piece in pieces:
                if writer.transport.is_closing():
                    return
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)  # else neither the time limit nor a close is noticed


async def be_silent(target: Target, seconds: float) -> None:
    del seconds
    opened = [await target.open(kind) for kind in itertools.islice(itertools.cycle(("owner", "node")), SILENT)]
    _keep.extend(opened)


async def send_endless(target: Target, seconds: float, first: bytes, more: bytes) -> None:
    links = [await target.open("owner") for _ in range(ENDLESS)]
    _keep.extend(links)
    pieces = [first, *[more] * 59] if len(more) > 1_000 else itertools.chain([first], itertools.repeat(more * 100))
    await asyncio.gather(*(send_all(writer, pieces, seconds) for _, writer in links))


async def send_frames(target: Target, seconds: float) -> None:
    await send_endless(target, seconds, frame_head(2, 60 * MIB, is_final=True), bytes(MIB))


async def send_fragments(target: Target, seconds: float) -> None:
    piece = bytes(MIB)
    first, more = (frame_head(opcode, MIB, is_final=False) + piece for opcode in (2, 0))
    await send_endless(target, seconds, first, more)


async def send_empty_fragments(target: Target, seconds: float) -> None:
    await send_endless(target, seconds, b"\x02\x80\0\0\0\0", b"\x00\x80\0\0\0\0")


def create_atom(target: Target, text: str = "") -> tuple[str, Message]:
    """An attacker's atom and its Create message."""
    atom = f"{target.uri}/atom/{random.getrandbits(32):08x}"
    description = [(f"<{atom}>", v.P_TEXT, c.literal(text), "")]
    content = c.atom_content(atom, [f"{atom}#chat"], _KEY.public, description)
    return atom, make_message(MessageType.CREATE, atom, [(v.P_ATOM, f"<{atom}>")], content)


async def connect_to_nobody(target: Target, seconds: float) -> None:
    atom, create = create_atom(target)
    reader, writer = await target.open("owner")
    _keep.append((reader, writer))
    _tasks.append(asyncio.create_task(_read_all(reader)))
    connects = (
        frame(
            make_message(
                MessageType.CONNECT,
                atom,
                c.socket_pair(f"{atom}#chat", f"https://localhost:{1 + number}{v.NODE_PATH}/atom/nobody#chat"),
            )
        )
        for number in range(DEAD)
    )
    await send_all(writer, itertools.chain([frame(create)], connects), 3 * seconds)


async def _read_all(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(65_536):
            pass


async def wait_for_keys(target: Target, seconds: float) -> None:
    """Frames of atoms at a host that takes connections and never answers."""
    silent = await asyncio.start_server(lambda reader, writer: _keep.append((reader, writer)), _ATTACKER, 0)
    port = silent.sockets[0].getsockname()[1]
    links = [await target.open("node") for _ in range(WAITING)]
    _keep.extend(links)

    def pieces(number: int) -> Iterator[bytes]:
        atom = f"https://localhost:{port}{v.NODE_PATH}/atom/{number}"
        pair = c.socket_pair(f"{atom}#chat", target.victim)
        message = frame(make_message(MessageType.CONNECT, atom, pair, c.text_content("x" * 100_000)))
        return itertools.repeat(message)

    await asyncio.gather(*(send_all(writer, pieces(number), seconds) for number, (_, writer) in enumerate(links)))


async def read_nothing(target: Target, seconds: float) -> None:
    _, create = create_atom(target, "x" * 200_000)
    links = [await target.open("owner") for _ in range(UNREAD)]
    _keep.extend(links)
    data = frame(create)
    await asyncio.gather(*(send_all(writer, itertools.repeat(data), seconds) for _, writer in links))


_keep: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
"""Links that stay open until the attacking process ends."""
_tasks: list[asyncio.Task[None]] = []
ATTACKS: dict[str, Attack] = {
    f"{SILENT:,} silent links": be_silent,
    f"{ENDLESS} endless frames": send_frames,
    f"{ENDLESS} endless fragments": send_fragments,
    f"{ENDLESS} endless empty fragments": send_empty_fragments,
    f"{DEAD:,} dead destinations": connect_to_nobody,
    f"{WAITING} links that wait for keys": wait_for_keys,
    f"{UNREAD} owners that do not read": read_nothing,
}


def attack_and_stay(name: str, target: Target, seconds: float, is_over: multiprocessing.synchronize.Event) -> None:
    """The attacking process: it keeps its links open until it is killed."""

    logging.disable()  # asyncio tells of every write to a link that the node has closed

    async def run() -> None:
        await ATTACKS[name](target, seconds)
        is_over.set()
        await asyncio.sleep(600)

    asyncio.run(run())


class Conversation:
    """Two honest owners."""

    def __init__(self, clients: list[OwnerClient]) -> None:
        self._clients = clients
        self.waits: list[float] = []
        self.failed = 0

    async def say(self, kind: MessageType, one: int, text: str | None = None) -> None:
        """One chain, timed."""
        began = time.monotonic()
        client, socket_uris = self._clients[one], [each.home.file.sockets[0] for each in self._clients]
        message = await client.say(
            lambda owner, now: owner.send_message(kind, socket_uris[one], socket_uris[1 - one], now, text)
        )
        state = await client.wait_settled(message.uri, CHAIN_LIMIT_S)
        self.waits.append(time.monotonic() - began)
        self.failed += state is not ChainState.COMPLETE

    async def talk(self) -> None:
        """Take turns until cancelled."""
        for number in itertools.count():
            await self.say(MessageType.CONNECTION, number % 2, f"turn {number}")
            await asyncio.sleep(0.1)


def create_honest(sockets: tuple[str, ...], owner: Owner, now: int) -> Message:
    return owner.create(sockets, now)


async def measure(victim: Victim, name: str, seconds: float, after_s: float, *, is_amid: bool) -> Row:
    """Run one attack and return its figures."""
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for owner in ("alice", "bob"):
            home = victim.home(owner)
            client = await stack.enter_async_context(OwnerClient(home, is_created=False))
            created = await client.say(functools.partial(create_honest, home.file.sockets))
            await client.wait_settled(created.uri, 60)
            clients.append(client)
        talk = Conversation(clients)
        for one in (0, 1):
            await talk.say(MessageType.CONNECT, one)
        for _ in range(5):
            await talk.say(MessageType.CONNECTION, 0, "before")
        idle_s = statistics.median(talk.waits)
        talk.waits.clear()
        talk.failed = 0
        before = peak = victim.resident_mib
        context = multiprocessing.get_context("spawn")
        is_over = context.Event()
        attacker = context.Process(target=attack_and_stay, args=(name, victim.target, seconds, is_over), daemon=True)
        attacker.start()
        talking = asyncio.create_task(talk.talk())
        try:
            began = time.monotonic()
            while not is_over.is_set() and attacker.is_alive():
                peak = max(peak, victim.resident_mib)
                await asyncio.sleep(0.05)
                if is_amid and time.monotonic() - began > seconds / 2:
                    break
            talking.cancel()
            await asyncio.sleep(0 if is_amid else after_s)
            peak = max(peak, victim.resident_mib)
            began, cpu_s = time.monotonic(), victim.cpu_s
            await asyncio.sleep(0 if is_amid else REST_S)
            cpu_after = (victim.cpu_s - cpu_s) / (time.monotonic() - began)
            after = victim.resident_mib
            stopped_s, stop_cpu_s = await asyncio.to_thread(victim.terminate)
        finally:
            talking.cancel()
            attacker.kill()
            attacker.join()
    return {
        "before MiB": round(before, 1),
        "peak MiB": round(peak, 1),
        "after MiB": round(after, 1),
        "idle s": round(idle_s, 3),
        "chain s": round(statistics.median(talk.waits or [CHAIN_LIMIT_S]), 3),
        "longest s": round(max(talk.waits, default=CHAIN_LIMIT_S), 3),
        "failed": talk.failed,
        "cpu after": round(cpu_after, 3),
        "SIGTERM s": round(stopped_s, 2),
        "stop cpu s": round(stop_cpu_s, 2),
    }


def measure_all(arguments: argparse.Namespace, directory: Path) -> Iterator[Row]:
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    for number, name in enumerate(ATTACKS):
        if arguments.only not in name:
            continue
        (directory / str(number)).mkdir()
        victim = Victim(directory / str(number))
        try:
            measuring = measure(victim, name, arguments.seconds, arguments.after, is_amid=arguments.amid)
            yield {"attack": name, **asyncio.run(measuring)}
        finally:
            victim.close()


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="how long each attack lasts")
    parser.add_argument("--after", type=float, default=3.0, help="how long after it the node's CPU time is taken")
    parser.add_argument("--amid", action="store_true", help="stop the node in the middle of each attack")
    parser.add_argument("--only", default="", help="attacks whose name has this in it")
    return print_rows(parser, measure_all)


if __name__ == "__main__":
    sys.exit(main())
