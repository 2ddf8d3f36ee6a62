"""won: two owners at two nodes write to each other; a message is acknowledged once its own node has stored it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dovetail.journal.reader import JournalReader
from dovetail.keys import CertificateKind, Names, create_authority, create_signing_key
from dovetail.model.address import won_uri
from dovetail.model.errors import DovetailError
from dovetail.model.hop import Stage
from dovetail.runtime.won_client import AtomFile, OwnerClient, OwnerHome
from dovetail.won.settings import WonSettings
from dovetail.won.vocabulary import MessageType
from jepsen.machine import Disk, Relay, Server, break_things
from jepsen.verdict import Seen

SETTLE_S = 90
QUICK = WonSettings(retry_ms=50, max_retry_ms=500)


async def run(directory: Path, seconds: float, seed: int, is_unusual: bool) -> Seen:
    """Run traffic under faults; returns what clients saw. Unusual owners also close their connection, and open it."""
    seen = Seen("won")
    disk = Disk(directory / "disk")
    keys = directory / "keys"
    authority = create_authority(keys, "jepsen CA")
    certificate_key, certificate = authority.issue("localhost", CertificateKind.SERVER, Names(dns=("localhost",)))
    servers, relays, homes = [], [], []
    for name in ("a", "b"):
        relay = Relay()
        await relay.start()
        uri = f"https://localhost:{relay.port}/won/resource"
        key, _ = create_signing_key(keys, uri)
        seen.journals.append(directory / f"{name}.journal")
        serve = ["won", "serve", "--uri", uri, "--signing-key", key, "--journal", disk.path / f"{name}.journal"]
        serve += ["--listen", "127.0.0.1:0", "--certificate", certificate, "--tls-key", certificate_key]
        server = Server([*serve, "--authority", keys / "ca.pem"], directory / f"{name}.log")
        await server.start()
        relay.target = int(server.ready["port"])
        server.arguments[server.arguments.index("127.0.0.1:0")] = f"127.0.0.1:{relay.target}"
        atom = f"{uri}/atom/{name}"
        homes.append(
            OwnerHome.create(directory / f"owner-{name}", AtomFile(atom, (f"{atom}#chat",), str(keys / "ca.pem")))
        )
        servers.append(server)
        relays.append(relay)
    try:
        async with contextlib.AsyncExitStack() as stack:
            owners = [
                await stack.enter_async_context(OwnerClient(home, is_created=False, settings=QUICK)) for home in homes
            ]
            for owner in owners:
                made = await owner.say(lambda core, now, home=owner.home: core.create(home.file.sockets, now))
                await owner.wait_settled(made.uri, 30)
            for one, other in ((owners[0], owners[1]), (owners[1], owners[0])):
                asked = await _say(one, MessageType.CONNECT, other, None)
                await one.wait_settled(asked.uri, 30)
            stopping = asyncio.Event()
            said: dict[str, OwnerClient] = {}
            tasks = [asyncio.create_task(_speak(*pair, seen, said, stopping)) for pair in (owners, owners[::-1])]
            if is_unusual:
                tasks.append(asyncio.create_task(_close_and_connect(owners, stopping)))
            seen.faults = await break_things(servers, relays, disk, seconds, seed)
            stopping.set()
            await asyncio.gather(*tasks)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_S):
                    for uri, owner in said.items():
                        await owner.wait_settled(uri, SETTLE_S)
            for uri, owner in said.items():
                other = owners[1] if owner is owners[0] else owners[0]
                if owner.owner.conversations.deliveries[uri].chain.first is not None:
                    seen.acknowledged.add((uri, other.home.file.atom))
            await asyncio.sleep(2)
        for home in homes:
            own = {uri for uri, owner in said.items() if owner.home is home}
            seen.arrived.update(
                {(uri, home.file.atom): count for uri, count in _taken(home).items() if uri in said and uri not in own}
            )
    finally:
        for server in servers:
            await server.stop()
        for relay in relays:
            await relay.stop()
        for path in disk.path.glob("*.journal*"):
            (directory / path.name).write_bytes(path.read_bytes())
        disk.release()
    return seen


def _taken(home: OwnerHome) -> Counter[str]:
    """The messages that an owner's client took, from its own journal."""
    with JournalReader.open(home.journal_path) as reader:
        return Counter(won_uri(hop.message) for hop in reader.hops() if hop.stage is Stage.ACCEPTED)


async def _say(owner: OwnerClient, kind: MessageType, other: OwnerClient, text: str | None):
    sockets = owner.home.file.sockets[0], other.home.file.sockets[0]
    return await owner.say(lambda core, now: core.send_message(kind, *sockets, now, text))


async def _close_and_connect(owners: Sequence[OwnerClient], stopping: asyncio.Event) -> None:
    one, other = owners
    while not stopping.is_set():
        await asyncio.sleep(3)
        for speaker, kind in ((one, MessageType.CLOSE), (one, MessageType.CONNECT), (other, MessageType.CONNECT)):
            with contextlib.suppress(DovetailError):
                await _say(speaker, kind, other if speaker is one else one, None)
                await asyncio.sleep(0.5)


async def _speak(
    owner: OwnerClient, other: OwnerClient, seen: Seen, said: dict[str, OwnerClient], stopping: asyncio.Event
) -> None:
    while not stopping.is_set():
        with contextlib.suppress(DovetailError):
            message = await _say(owner, MessageType.CONNECTION, other, f"message {seen.sent}")
            seen.sent += 1
            said[message.uri] = owner
        await asyncio.sleep(0.1)
