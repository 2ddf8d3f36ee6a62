"""One peer on one core: messages per second that it receives over UDP, decodes, verifies, journals and relays.

    python -m benchmarks.swarm_peer [--links 4] [--messages 40000] [--size 300] [--mixed] [--durability full]
                                    [--under-way 1000] [--one-by-one] [--rounds 1]

The peer is a process of its own, bound to one core with its journal's threads. This process plays its neighbours: one
that sends, `links` that are relayed to. It keeps a bounded number of messages under way and counts every message at
every link, so nothing is lost unseen. The work target is the easiest, since checking is one hash whatever
the target; solving 40,000 messages at the real one would only make the preparation longer.

The neighbours send and receive as Dovetail's own peers do: many datagrams of one size by one system call
(`runtime/swarm_batches.py`). With `--one-by-one` they do not. Messages of one size are the best case for that. With
`--mixed` the sizes are spread evenly from 100 bytes to as far above `--size`, and few neighbouring messages are of
one size.

A checkpoint of the journal is signed every 5 s: 40,000 messages may fall between two. 200,000 do not.

Every round has a new peer with a new journal; the figures are those of the median round by messages a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from operator import itemgetter
from pathlib import Path

from benchmarks.scratch import describe_rounds
from dovetail.journal.journal import JournalOptions
from dovetail.runtime.swarm_batches import UDP_GRO, BatchReceiver, BatchSender
from dovetail.runtime.swarm_node import SwarmNode
from dovetail.runtime.swarm_serve import serve_peer
from dovetail.runtime.swarm_udp import MAX_DATAGRAM_BYTES, SOCKET_BUFFER_BYTES
from dovetail.swarm.content import Content, MsgHash, Reference, encode_content, message_address
from dovetail.swarm.packet import SwarmSigner, encode_packet
from dovetail.swarm.peer_exchange import (
    I_RELAY_TO_YOU,
    YOU_RELAY_TO_ME,
    Answer,
    Hello,
    PeerAddress,
    decode_exchange,
    encode_hello,
)
from dovetail.swarm.settings import PeerSettings, SwarmSettings

SETTINGS = SwarmSettings(name="bench", work=1)
UNDER_WAY = 1_000
"""Half of what the kernel keeps for a socket, where every datagram comes alone."""
CONTENT_HEAD = b"\x79\x10"
PER_MS = 20
"""Messages with the same timestamp."""
STALLED_S = 1.0


def run_peer(directory: str, durability: str, links: int) -> None:
    """The child process: a peer on one core that prints its figures on request from stdin."""
    os.sched_setaffinity(0, {0})

    async def serve() -> None:
        options = JournalOptions(durability="full" if durability == "full" else "relaxed")
        peer_settings = PeerSettings(forward_links=max(links, 1), spare_links=2)
        node = SwarmNode(SETTINGS, Path(directory), settings=peer_settings, journal_options=options)
        answering: list[asyncio.Task[None]] = []

        async def answer() -> None:
            while await asyncio.to_thread(sys.stdin.readline):
                status = node.status()
                numbers = {"cpu": time.process_time(), "accepted": status.accepted, "refused": status.refused}
                print(json.dumps(numbers | {"hops": node.journal.size}), flush=True)
            os.kill(os.getpid(), signal.SIGTERM)

        def on_ready(_: dict[str, object]) -> None:
            print(json.dumps({"endpoint": node.endpoints[0]}), flush=True)
            answering.append(asyncio.create_task(answer()))

        await serve_peer(node, None, on_ready)

    asyncio.run(serve())


class Neighbour:
    """One neighbour simulated by the benchmark."""

    def __init__(self, number: int, peer: tuple[str, int], wishes: int, is_one_by_one: bool) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
        self.socket.connect(peer)
        self.socket.settimeout(2)
        signer = SwarmSigner(SETTINGS.key)
        token = bytes(4)
        for wish in (0, wishes):
            hello = encode_hello(Hello(b"tick", PeerAddress(bytes([number]) * 20), wish, token))
            self.socket.send(encode_packet(hello, signer, int(time.time() * 1000), 0))
            answer = self._answer()
            token = answer.token
        assert answer.granted == I_RELAY_TO_YOU ^ YOU_RELAY_TO_ME ^ wishes, f"granted {answer.granted}, wished {wishes}"
        self.socket.setblocking(False)
        self.received = 0
        self._peer = peer
        self._is_one_by_one = is_one_by_one
        self._sender = BatchSender(self.socket)
        self._receiver = BatchReceiver(self.socket, MAX_DATAGRAM_BYTES)
        if is_one_by_one:
            self.socket.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 0)

    def _answer(self) -> Answer:
        while True:
            message = self.socket.recv(2048)[8:]
            if message[:2] == b"\x70\x02":
                answer = decode_exchange(message)
                assert isinstance(answer, Answer)
                return answer

    def send(self, datagrams: list[bytes]) -> None:
        """Send all; what the kernel does not take shows as missing at the links."""
        if self._is_one_by_one:
            for datagram in datagrams:
                self.socket.send(datagram)
        else:
            self._sender.send(self._peer, datagrams)

    def drain(self) -> None:
        """Count the messages that have arrived."""
        for _, datagrams in self._receiver.receive(UNDER_WAY):
            self.received += [datagram[8:10] for datagram in datagrams].count(CONTENT_HEAD)


def make_datagrams(count: int, size: int, is_mixed: bool = False) -> list[bytes]:
    chance = random.Random(1)
    signer, now_ms = SwarmSigner(SETTINGS.key), int(time.time() * 1000)
    edges: list[Reference] = []
    datagrams = []
    for number in range(count):
        # what a composer refers to is strictly older: here of the millisecond before
        references = tuple(edges[-PER_MS - 4 : -PER_MS])
        room = (chance.randint(100, 2 * size - 100) if is_mixed else size) - 20 - 10 * len(references)
        payload = number.to_bytes(4) + bytes(room - 4)
        content = Content(
            timestamp_ms=now_ms - 2000 + number // PER_MS, ttl_epochs=60, references=references, payload=payload
        )
        message = encode_content(content)
        edges.append(Reference(MsgHash(message_address(message)[:8]), 0))
        datagrams.append(encode_packet(message, signer, now_ms, number % 16))
    return datagrams


def measure(
    links: int,
    messages: int,
    size: int,
    durability: str,
    is_mixed: bool = False,
    under_way: int = UNDER_WAY,
    is_one_by_one: bool = False,
) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "benchmarks.swarm_peer", "--child", directory]
        command += ["--durability", durability, "--links", str(links)]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        asking, answering = child.stdin, child.stdout
        assert asking is not None
        assert answering is not None
        host, _, port = json.loads(answering.readline())["endpoint"].rpartition(":")
        peer = host, int(port)
        source = Neighbour(100, peer, I_RELAY_TO_YOU, is_one_by_one)
        sinks = [Neighbour(number + 1, peer, YOU_RELAY_TO_ME, is_one_by_one) for number in range(links)]

        def ask() -> dict[str, float]:
            asking.write("\n")
            asking.flush()
            answer: dict[str, float] = json.loads(answering.readline())
            return answer

        datagrams = make_datagrams(messages, size, is_mixed)
        os.sched_setaffinity(0, {(os.cpu_count() or 1) - 1})
        before, start = ask(), time.perf_counter()
        sent, lost, arrived, progress = 0, 0, 0, start
        while arrived + lost < messages:
            free = under_way - (sent - lost - arrived)
            if free > 0:
                source.send(datagrams[sent : sent + free])
                sent = min(messages, sent + free)
            waiting, _, _ = select.select([sink.socket for sink in sinks], [], [], 0.05)
            for sink in sinks:
                sink.drain()
            source.drain()
            arrived = min(sink.received for sink in sinks)
            if waiting:
                progress = time.perf_counter()
            elif time.perf_counter() - progress > STALLED_S:
                # the kernel dropped what did not fit into a socket's buffer: count it and continue
                lost = sent - arrived
                progress = time.perf_counter()
        elapsed, after = time.perf_counter() - start, ask()
        asking.close()
        child.wait(timeout=20)
    accepted, cpu = after["accepted"] - before["accepted"], after["cpu"] - before["cpu"]
    return {
        "accepted": accepted,
        "relayed_to_all": arrived,
        "lost": lost,
        "hops": after["hops"],
        "seconds": round(elapsed, 2),
        "cpu_seconds": round(cpu, 2),
        "messages_per_second": round(accepted / elapsed),
        "messages_per_cpu_second": round(accepted / cpu),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", type=int, default=4)
    parser.add_argument("--messages", type=int, default=40_000)
    parser.add_argument("--size", type=int, default=300)
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--durability", choices=["full", "relaxed"], default="full")
    parser.add_argument("--under-way", type=int, default=UNDER_WAY)
    parser.add_argument("--one-by-one", action="store_true")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run_peer(arguments.child, arguments.durability, arguments.links)
        return
    rounds = [
        measure(
            arguments.links,
            arguments.messages,
            arguments.size,
            arguments.durability,
            arguments.mixed,
            arguments.under_way,
            arguments.one_by_one,
        )
        for _ in range(arguments.rounds)
    ]
    rate = itemgetter("messages_per_second")
    result = sorted(rounds, key=rate)[len(rounds) // 2] | {"by round": describe_rounds(map(rate, rounds))}
    shown = {"links": arguments.links, "size": arguments.size, "mixed": arguments.mixed}
    shown |= {"one_by_one": arguments.one_by_one, "durability": arguments.durability}
    print(json.dumps({**shown, **result}))


if __name__ == "__main__":
    main()
