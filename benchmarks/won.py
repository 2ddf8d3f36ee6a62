"""What a delivery chain costs, beside the floor of its signatures: `python -m benchmarks.won [--help]`.

    floor      3 signatures and 9 verifications (Ed25519): what four parties cannot avoid, nothing shared between them
    core       the same chain through two nodes and two owners without sockets and journal
    loopback   with WebSocket over TLS, and all four journals with fsync; CPU of all parties and their threads
    processes  chains per second with two nodes as processes of their own
    growth     CPU per chain after 100, 1,000, ... messages of one long conversation, without sockets and journal

Floor and chain take turns in every round, and CPU time is counted, so that a noisy machine is noisy for both.
"""

from __future__ import annotations

import argparse
import asyncio
import copyreg
import json
import pickle
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.scratch import describe_rounds
from dovetail.keys import CertificateKind, Names, create_authority
from dovetail.model.address import Address
from dovetail.model.hop import Observation
from dovetail.model.wire import OpenLink, SendFrames
from dovetail.runtime.won_client import AtomFile, OwnerClient, OwnerHome
from dovetail.runtime.won_server import NodeOptions, NodeServer
from dovetail.won.archive import RecentArchive
from dovetail.won.chain import ChainState
from dovetail.won.events import KeyWanted
from dovetail.won.links import LinkKind
from dovetail.won.message import Message
from dovetail.won.node import Node
from dovetail.won.owner import Owner
from dovetail.won.resources import encode_resource
from dovetail.won.settings import WonSettings
from dovetail.won.signing import SIGNATURE_DOMAIN, SigningKey
from dovetail.won.vocabulary import MessageType

SIGNATURES, VERIFICATIONS = 3, 9
TEXT = "The quick brown fox jumps over the lazy dog, and the dog does not mind."
GROWTH_WINDOW, GROWTH_STEP = 200, 10
SETTINGS = WonSettings(retry_ms=50, max_retry_ms=500)


def measure_floor(rounds: int) -> float:
    """CPU microseconds of one chain's signatures and verifications."""
    keys = [SigningKey(bytes([number]) * 32) for number in range(1, 4)]
    data = [SIGNATURE_DOMAIN + bytes([number]) * 32 for number in range(3)]
    started = time.process_time()
    for _ in range(rounds):
        signed = [(key, key.sign(body), body) for key, body in zip(keys, data, strict=True)]
        for _ in range(VERIFICATIONS // SIGNATURES):
            for key, signature, body in signed:
                assert key.public.verifies(signature, body)
    return (time.process_time() - started) * 1e6 / rounds


def find_nothing(_: Address) -> None:
    """An archive behind the recent messages that has nothing."""


copyreg.pickle(SigningKey, lambda key: (SigningKey, (key._key.private_bytes_raw(),)))


class Trio:
    """Two nodes and two owners in one process; frames are handed over directly."""

    def __init__(self) -> None:
        chance = random.Random(1)
        self.now = time.time_ns() // 1000
        self.nodes = {f"https://{n}.example/won/resource": bytes([i]) * 32 for i, n in enumerate("ab", 1)}
        self.cores: list[Node | Owner] = [
            Node(uri, SigningKey(seed), chance, settings=SETTINGS, archive=RecentArchive(find_nothing, 4096, 64 << 20))
            for uri, seed in self.nodes.items()
        ]
        self.by_uri = dict(zip(self.nodes, self.cores, strict=True))
        self.owners = [
            Owner(f"{uri}/atom/owner", SigningKey(bytes([i]) * 32), chance, settings=SETTINGS)
            for i, uri in enumerate(self.nodes, 8)
        ]
        self.cores += self.owners
        self.peers: dict[tuple[int, str], tuple[int, str]] = {}
        for owner in self.owners:
            owner.create([f"{owner.atom}#chat"], self.now)
            owner.start(self.now)
        self.pump()
        for one, other in (self.owners, self.owners[::-1]):
            one.send_message(MessageType.CONNECT, f"{one.atom}#chat", f"{other.atom}#chat", self.now)
            self.pump()

    def chain(self) -> str:
        """One message from the first owner to the second and all that belongs to it."""
        self.now += 1000
        one, other = self.owners
        uri = one.send_message(MessageType.CONNECTION, f"{one.atom}#chat", f"{other.atom}#chat", self.now, TEXT).uri
        self.pump()
        return uri

    def pump(self) -> None:
        is_busy = True
        while is_busy:
            is_busy = False
            for core in self.cores:
                for event in core.events():
                    if isinstance(event, KeyWanted):
                        self._answer(core, event.uri)
                    is_busy = is_busy or not isinstance(event, Observation)
                for item in core.to_send():
                    is_busy = True
                    self._carry(core, item)

    def _answer(self, core: Node | Owner, uri: str) -> None:
        node = self.by_uri[uri.partition("/atom/")[0]]
        assert isinstance(node, Node)
        path = "/" + uri.partition("://")[2].partition("/")[2]
        core.receive_document(uri, encode_resource(node, path, "", "application/trig"), self.now)

    def _carry(self, core: Node | Owner, item: object) -> None:
        if isinstance(item, OpenLink):
            target, name = self.by_uri[item.destination], f"in {len(self.peers)}"
            here, there = self.cores.index(core), self.cores.index(target)
            self.peers[here, item.link] = (there, name)
            self.peers[there, name] = (here, item.link)
            assert isinstance(target, Node)
            kind = LinkKind.OWNER if isinstance(core, Owner) else LinkKind.NODE
            target.receive_accepted(name, kind, self.now)
            core.receive_opened(item.link, self.now)
        elif isinstance(item, SendFrames):
            number, name = self.peers[self.cores.index(core), item.links[0]]
            self.cores[number].receive_frame(item.frames[0], name, self.now)


def measure_core(trio: Trio, chains: int) -> float:
    """CPU microseconds per chain without sockets and journal."""
    started = time.process_time()
    for _ in range(chains):
        last = trio.chain()
    spent = time.process_time() - started
    assert all(owner.conversations.state_of(last) is ChainState.COMPLETE for owner in trio.owners)
    return spent * 1e6 / chains


def create_atom(sockets: Sequence[str], owner: Owner, now: int) -> Message:
    return owner.create(sockets, now)


class Site:
    """Two nodes with TLS on loopback and two owners, all in this process, each with a journal of its own."""

    def __init__(self, directory: Path, conversations: int) -> None:
        self.directory = directory
        self.conversations = conversations
        authority = create_authority(directory / "keys", "benchmark CA")
        self.key, self.certificate = authority.issue("localhost", CertificateKind.SERVER, Names(dns=("localhost",)))
        self.authority = directory / "keys" / "ca.pem"

    async def start(self, ports: list[int]) -> None:
        self.servers = []
        for port in ports:
            options = NodeOptions(
                uri=f"https://localhost:{port}/won/resource",
                host="127.0.0.1",
                port=port,
                journal=self.directory / f"{port}.db",
                certificate=str(self.certificate),
                certificate_key=str(self.key),
                authority=str(self.authority),
                settings=SETTINGS,
            )
            server = NodeServer(options, Ed25519PrivateKey.generate())
            await server.start()
            self.servers.append(server)
        await self.join([server.options.uri for server in self.servers])

    async def join(self, nodes: list[str]) -> None:
        """An owner at each node, with as many connections as conversations are under way."""
        self.clients: list[OwnerClient] = []
        names = [f"chat{number}" for number in range(self.conversations)]
        for number, node in enumerate(nodes):
            atom = f"{node}/atom/owner"
            sockets = tuple(f"{atom}#{name}" for name in names)
            home = OwnerHome.create(self.directory / f"owner{number}", AtomFile(atom, sockets, str(self.authority)))
            client = OwnerClient(home, is_created=False, settings=SETTINGS)
            await client.__aenter__()
            message = await client.say(partial(create_atom, sockets))
            await client.wait_settled(message.uri, 20)
            self.clients.append(client)
        for pair in (self.clients, self.clients[::-1]):
            await asyncio.gather(*(self.say(pair, n, MessageType.CONNECT) for n in range(self.conversations)))

    async def say(self, pair: list[OwnerClient], number: int, kind: MessageType) -> None:
        """One chain on one connection, until it is complete."""
        one, other = pair
        sockets = one.home.file.sockets[number], other.home.file.sockets[number]
        message = await one.say(lambda owner, now: owner.send_message(kind, *sockets, now, TEXT))
        assert await one.wait_settled(message.uri, 60) is ChainState.COMPLETE

    async def exchange(self, chains: int) -> None:
        """Chains on all connections at a time, each connection one message after the other, in turns."""

        async def converse(number: int) -> None:
            for turn in range(chains // self.conversations):
                await self.say(self.clients if turn % 2 else self.clients[::-1], number, MessageType.CONNECTION)

        await asyncio.gather(*(converse(number) for number in range(self.conversations)))

    async def stop(self) -> None:
        for client in self.clients:
            await client.__aexit__()
        for server in self.servers:
            await server.stop()


def free_ports(count: int) -> list[int]:
    import socket

    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


async def measure_loopback(
    directory: Path, chains: int, rounds: int, conversations: int
) -> tuple[list[float], list[float]]:
    """(floor, CPU microseconds per chain with everything on), round by round."""
    site = Site(directory, conversations)
    await site.start(free_ports(2))
    await site.exchange(chains // 4)
    floors, costs = [], []
    for _ in range(rounds):
        floors.append(measure_floor(chains // 2))
        started = time.process_time()
        await site.exchange(chains)
        costs.append((time.process_time() - started) * 1e6 / chains)
    await site.stop()
    return floors, costs


async def measure_processes(directory: Path, chains: int, conversations: int) -> float:
    """Chains per second with two nodes as processes; both owners are in this one."""
    import subprocess

    from dovetail.keys import create_signing_key

    site = Site(directory, conversations)
    processes, uris = [], []
    for port in free_ports(2):
        uri = f"https://localhost:{port}/won/resource"
        key, _ = create_signing_key(directory / "keys", uri)
        arguments = ["serve", "--uri", uri, "--signing-key", key, "--journal", directory / f"{port}.db"]
        arguments += ["--listen", f"127.0.0.1:{port}", "--certificate", site.certificate]
        arguments += ["--tls-key", site.key, "--authority", site.authority]
        command = [sys.executable, "-c", "from dovetail.cli.won import app; app()", *map(str, arguments)]
        process = await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        await asyncio.to_thread(process.stdout.readline)
        processes.append(process)
        uris.append(uri)
    site.servers = []
    await site.join(uris)
    await site.exchange(chains // 4)
    started = time.perf_counter()
    await site.exchange(chains)
    spent = time.perf_counter() - started
    await site.stop()
    for process in processes:
        process.terminate()
        process.communicate()
    return chains / spent


def measure_growth(length: int, state: Path | None, seconds: float) -> dict[int, tuple[float, float]]:
    """CPU per chain where one conversation has 100 messages, ten times as many, and so on up to `length`.

    Both in floors and relative to a conversation of 100 to 300 messages that alternates with it on the same machine. It
    stops after `seconds`; with a `state` file the next call continues the same conversation.
    """
    started = time.monotonic()
    trio, said, costs = Trio(), 0, {}
    if state is not None and state.exists():
        trio, said, costs = pickle.loads(state.read_bytes())
    marks = [100 * 10**power for power in range(10) if 100 * 10**power < length] + [length]
    for mark in [mark for mark in marks if mark not in costs]:
        while said < mark - GROWTH_WINDOW // 2 and time.monotonic() - started < seconds:
            trio.chain()
            said += 1
        if time.monotonic() - started >= seconds:
            break
        short = Trio()
        measure_core(short, 100)
        rounds = []
        for _ in range(GROWTH_WINDOW // GROWTH_STEP):
            floor, brief = measure_floor(GROWTH_STEP), measure_core(short, GROWTH_STEP)
            cost = measure_core(trio, GROWTH_STEP)
            rounds.append((cost / floor, cost / brief))
            said += GROWTH_STEP
        costs[mark] = statistics.median(one for one, _ in rounds), statistics.median(two for _, two in rounds)
        print(describe_growth(mark, *costs[mark]), file=sys.stderr)
    if state is not None:
        state.write_bytes(pickle.dumps((trio, said, costs)))
    print(f"growth     the conversation has {said} messages", file=sys.stderr)
    return costs


def describe_growth(length: int, floors: float, shorts: float) -> str:
    return f"growth     {floors:8.2f} x floor at {length} messages of one conversation, {shorts:.2f} x a short one"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.won", description=__doc__.splitlines()[0])
    parser.add_argument("--chains", type=int, default=400, help="chains per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--conversations", type=int, default=32, help="connections that talk at a time")
    parser.add_argument("--length", type=int, default=10_000, help="length of the long conversation, 0 for none")
    parser.add_argument("--state", type=Path, help="file that keeps the long conversation from one run to the next")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop the long conversation after so long")
    parser.add_argument("--only-growth", action="store_true", help="nothing but the long conversation")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    show: Callable[[dict[str, object]], None] = print_json if options.json else print_table
    result: dict[str, object] = {} if options.only_growth else measure_all(options)
    if options.length:
        result["growth"] = measure_growth(options.length, options.state, options.seconds)
    show(result)
    return 0


def measure_all(options: argparse.Namespace) -> dict[str, object]:
    """Everything but the growth."""
    trio = Trio()
    measure_core(trio, options.chains // 4)
    pairs = [(measure_floor(options.chains // 2), measure_core(trio, options.chains)) for _ in range(options.rounds)]
    result: dict[str, object] = {
        "floor_us": statistics.median(floor for floor, _ in pairs),
        "core_us": statistics.median(core for _, core in pairs),
        "core_ratio": statistics.median(core / floor for floor, core in pairs),
    }
    with tempfile.TemporaryDirectory() as name:
        floors, costs = asyncio.run(measure_loopback(Path(name), options.chains, options.rounds, options.conversations))
    result["loopback_us"] = statistics.median(costs)
    ratios = [cost / floor for floor, cost in zip(floors, costs, strict=True)]
    result["loopback_ratio"] = statistics.median(ratios)
    result["loopback_ratio by round"] = describe_rounds(ratios)
    with tempfile.TemporaryDirectory() as name:
        result["chains_per_second"] = asyncio.run(
            measure_processes(Path(name), options.chains * 2, options.conversations)
        )
    return result


def print_json(result: dict[str, object]) -> None:
    print(json.dumps(result))


def print_table(result: dict[str, object]) -> None:
    if "floor_us" in result:
        print(f"floor      {result['floor_us']:8.0f} us CPU per chain, {SIGNATURES} signatures, {VERIFICATIONS} checks")
        print(f"core       {result['core_us']:8.0f} us CPU per chain, {result['core_ratio']:.2f} x floor")
        ratio = result["loopback_ratio"]
        print(f"loopback   {result['loopback_us']:8.0f} us CPU per chain, {ratio:.2f} x floor (aim: 2.5)")
        print(f"processes  {result['chains_per_second']:8.0f} chains per second")
    growth = result.get("growth")
    if isinstance(growth, dict):
        for length, ratios in growth.items():
            print(describe_growth(length, *ratios))


if __name__ == "__main__":
    sys.exit(main())
