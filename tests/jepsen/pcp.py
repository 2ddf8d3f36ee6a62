"""pcp: controllers write to agents, to one by name or to all by wildcard; every second message is answered."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Sequence
from pathlib import Path

from dovetail.model.errors import DovetailError
from dovetail.runtime.pcp_client import PcpClient
from jepsen.machine import Disk, Relay, Server, break_things
from jepsen.verdict import Seen

AGENTS, CONTROLLERS = 4, 3
TTL_MS = 6_000
SHORT_TTLS_MS = (100, 300, 1_000, TTL_MS)
TYPE, ANSWER = "http://example.com/jepsen", "http://example.com/jepsen-answer"


async def run(directory: Path, seconds: float, seed: int, is_unusual: bool) -> Seen:
    """Run traffic under faults; returns what clients saw."""
    seen = Seen("pcp", journals=[directory / "broker.journal"])
    disk = Disk(directory / "disk")
    journal = disk.path / "broker.journal"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    chance = random.Random(seed)
    durability = chance.choice(("full", "relaxed")) if is_unusual else "full"
    serve = ["pcp", "serve", "--insecure-plain", "--allow-all", "--port", port, "--durability", durability]
    if is_unusual:
        (directory / "pcp.toml").write_text(_draw_settings(chance))
        serve += ["--config", directory / "pcp.toml"]
    server = Server([*serve, "--journal", journal, "--json"], directory / "broker.log")
    relays = [Relay(), Relay()]
    await server.start()
    for relay in relays:
        await relay.start(port)
    stopping = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as group:
            pauses = random.Random(seed) if is_unusual else None
            ttls_ms = SHORT_TTLS_MS if is_unusual else (TTL_MS,)
            listening = [group.create_task(_listen(relays[0].port, n, seen, pauses)) for n in range(AGENTS)]
            speaking = [
                group.create_task(_speak(relays[1].port, n, seen, stopping, ttls_ms)) for n in range(CONTROLLERS)
            ]
            may_kill = durability == "full"
            seen.faults = await break_things([server], relays, disk, seconds, seed, may_kill=may_kill)
            seen.faults += f", {durability}"
            stopping.set()
            await asyncio.wait(speaking)
            await asyncio.sleep(TTL_MS / 1000 + 4)
            # one message after all lifetimes, so that the journal reaches past them
            await _speak(relays[1].port, CONTROLLERS, seen, None, (TTL_MS,))
            for task in listening:
                task.cancel()
    finally:
        await server.stop()
        for relay in relays:
            await relay.stop()
        for path in disk.path.glob("broker.journal*"):
            (directory / path.name).write_bytes(path.read_bytes())
        disk.release()
    return seen


def _draw_settings(chance: random.Random) -> str:
    """Little room for messages that wait, and other settings that are unusual."""
    lines = [
        "[pcp]",
        f"queue_bytes = {chance.choice((20_000, 200_000))}",
        f"redelivery_messages = {chance.randint(3, 50)}",
        f"sender_queue_messages = {chance.randint(5, 200)}",
        f"max_lifetime_ms = {chance.choice((1_000, TTL_MS))}",
        f"clock_skew_ms = {chance.choice((0, 500))}",
        f"hops = {chance.choice(('true', 'false'))}",
    ]
    return "\n".join(lines) + "\n"


async def _listen(port: int, number: int, seen: Seen, pauses: random.Random | None) -> None:
    """Take messages; with `pauses`, stop reading now and then."""
    uri = f"pcp://agent{number}/agent"
    async with PcpClient(f"ws://127.0.0.1:{port}/pcp", uri) as client:
        async for message in client.messages():
            if message.message_type == TYPE:
                seen.arrived[message.id, uri] += 1
                if pauses is not None and pauses.random() < 0.005:
                    await asyncio.sleep(pauses.uniform(0.5, 5))
                if int(message.id[-1], 16) % 2:
                    with contextlib.suppress(DovetailError, TimeoutError):
                        await client.reply(message, ANSWER, ttl_ms=TTL_MS)


async def _speak(port: int, number: int, seen: Seen, stopping: asyncio.Event | None, ttls_ms: Sequence[int]) -> None:
    """Send until told to stop, or once."""
    targets = [f"pcp://agent{n}/agent" for n in range(AGENTS)]
    async with PcpClient(f"ws://127.0.0.1:{port}/pcp", f"pcp://control{number}/controller") as client:
        count = 0
        while stopping is None or not stopping.is_set():
            count += 1
            ttl_ms = ttls_ms[count % len(ttls_ms)]
            target = "pcp://*/agent" if count % 4 == 0 else targets[count % AGENTS]
            with contextlib.suppress(DovetailError, TimeoutError):
                async with client.posting(TYPE, target, {"n": count}, ttl_ms=ttl_ms, wants_report=True) as posted:
                    seen.sent += 1
                    report = await posted.report
                    seen.acknowledged |= {(posted.id, uri) for uri in report if uri in targets}
            if stopping is None:
                return
            await asyncio.sleep(0.01)
