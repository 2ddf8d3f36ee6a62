"""swarm: every peer publishes through its own control socket; a message is acknowledged when its peer says so."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

from dovetail.api.swarm import SwarmPeer
from dovetail.demo.relays import LossyRelay
from dovetail.journal.reader import JournalReader
from dovetail.model.errors import DovetailError
from dovetail.model.hop import Stage
from jepsen.machine import Disk, Server, break_things
from jepsen.verdict import Seen

PEERS = 4
LOSS = 0.2
SETTLE_S = 90
AGREEMENT = 'name = "jepsen"\nwork = 1000\nmax_ttl_epochs = 1000\n'


async def run(directory: Path, seconds: float, seed: int, is_unusual: bool) -> Seen:
    """Run traffic under faults; returns what clients saw."""
    settings = directory / "swarm.toml"
    chance = random.Random(seed)
    settings.write_text(AGREEMENT + (f"epoch_ms = {chance.choice((10_000, 30_000))}\n" if is_unusual else ""))
    durability = chance.choice(("full", "relaxed")) if is_unusual else "full"
    seen = Seen("swarm", audit_options=["--swarm", str(settings)])
    disk = Disk(directory / "disk")
    relay = LossyRelay(LOSS, random.Random(seed))
    doors = [relay.add_door() for _ in range(PEERS)]
    homes = [disk.path / f"peer{number}" for number in range(PEERS)]
    servers = []
    for number, home in enumerate(homes):
        serve = ["swarm", "serve", "--settings", settings, "--dir", home, "--listen", "127.0.0.1:0", "--threads", "1"]
        serve += ["--durability", durability, "--purge-interval", "5" if is_unusual else "60"]
        known = [part for door in doors[:number] for part in ("--peer", relay.endpoint(door))]
        server = Server([*serve, *known], directory / f"peer{number}.log")
        await server.start()
        (endpoint,) = server.ready["listen"]
        server.arguments[server.arguments.index("127.0.0.1:0")] = str(endpoint)
        relay.place(number, str(endpoint))
        servers.append(server)
    published: set[str] = set()
    stopping = asyncio.Event()
    try:
        tasks = [
            asyncio.create_task(_publish(home, seen, published, stopping, 1 if is_unusual else 60)) for home in homes
        ]
        may_kill = durability == "full"
        seen.faults = await break_things(servers, (), disk, seconds, seed, may_kill=may_kill)
        seen.faults += f", {LOSS:.0%} of datagrams lost, {durability}"
        stopping.set()
        await asyncio.gather(*tasks)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while any(published - _held(home)[1] for home in homes):  # noqa: ASYNC110 - the peers are processes
                    await asyncio.sleep(1)
    finally:
        for server in servers:
            await server.stop()
        relay.close()
        for number, home in enumerate(homes):
            for path in home.glob("journal.db*"):
                (directory / path.name.replace("journal", f"peer{number}")).write_bytes(path.read_bytes())
            for path in home.glob("*.skey"):
                (directory / f"peer{number}.skey").write_bytes(path.read_bytes())
            seen.journals.append(directory / f"peer{number}.db")
            peer, held = _held(home)
            seen.acknowledged |= {(address, peer) for address in published}
            seen.arrived.update((address, peer) for address in held)
        disk.release()
    return seen


def _held(home: Path) -> tuple[str, set[str]]:
    with JournalReader.open(home / "journal.db") as reader:
        hops = list(reader.hops())
    return hops[0].server, {hop.message.hex() for hop in hops if hop.stage in (Stage.ACCEPTED, Stage.CREATED)}


async def _publish(home: Path, seen: Seen, published: set[str], stopping: asyncio.Event, ttl_epochs: int) -> None:
    number = 0
    while not stopping.is_set():
        number += 1
        with contextlib.suppress(DovetailError):
            seen.sent += 1
            async with SwarmPeer(home) as peer:
                published.add((await peer.publish(f"{home.name} {number}", ttl_epochs=ttl_epochs)).address)
        await asyncio.sleep(0.2)
