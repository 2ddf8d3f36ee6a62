"""The application's door to a swarm: join, publish, subscribe, query by time.

    async with SwarmNode(settings, directory, listen=["0.0.0.0:4711"], bootstrap=["192.0.2.7:4711"]) as swarm:
        await swarm.publish(b"hello", ttl_epochs=60)
        async for item in swarm.subscribe():
            ...

A node keeps its identity (`peer.skey`) and its journal (`journal.db`) in a directory of its own. After a restart
everything unexpired is back from the journal.

While the disk is full a node waits: nothing is sent, `publish` does not return. When the journal fails for good, or its
file is removed or replaced, the node reads and sends nothing more, and the block of `async with` is cancelled and ends
with the JournalError, as that of a TaskGroup does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dovetail.journal.journal import Journal, JournalOptions
from dovetail.journal.purger import start_purging
from dovetail.keys import load_signing_key
from dovetail.keys.files import make_private_directory, write_private
from dovetail.model.address import Address, address_of
from dovetail.runtime.clock import note_clock_steps, now_us
from dovetail.runtime.loop import ask
from dovetail.runtime.server_health import OK
from dovetail.runtime.swarm_solver import WorkSolver
from dovetail.runtime.swarm_udp import SwarmUdp
from dovetail.swarm.content import MsgHash, decode_content
from dovetail.swarm.events import (
    CollisionFound,
    CycleFound,
    Event,
    GapFilled,
    GapFound,
    GapGivenUp,
    IdentityConflict,
    MessageAccepted,
    PeerLinked,
)
from dovetail.swarm.peer import Peer
from dovetail.swarm.peer_exchange import Endpoint, PeerAddress
from dovetail.swarm.settings import PeerSettings, SwarmSettings
from dovetail.swarm.status import PeerStatus
from dovetail.tlog.keys import Signer

log = logging.getLogger("dovetail.swarm")

PURGE_S: Final = 60.0
"""How often the bytes of expired messages are removed from the journal (UEP-12, Message Life-Cycle)."""
MAX_WAITING: Final = 65_536
"""Items kept for a subscriber that does not read; then the oldest give way, and it is told how many."""
KEY_FILE: Final = "peer.skey"
JOURNAL_FILE: Final = "journal.db"


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the swarm; each comes once."""

    address: Address
    timestamp_ms: int
    ttl_epochs: int
    references: tuple[MsgHash, ...]
    payload: bytes
    source: str | None = None


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """A referenced message is missing, has come after all, or was given up."""

    msg_hash: MsgHash
    state: Literal["missing", "filled", "given_up"]
    referrer: Address | None = None


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that collide in their 8 bytes, or refer to each other in a circle."""

    kind: Literal["collision", "cycle"]
    messages: tuple[Address, ...]


class Missed(msgspec.Struct, frozen=True, kw_only=True):
    """This subscriber read too slowly: so many items before this one are lost to it; `query` has the messages."""

    count: int


Item = Message | Gap | Evidence | Missed


class _Subscription:
    def __init__(self) -> None:
        self.items: asyncio.Queue[Item | None] = asyncio.Queue()
        self.missed = 0

    def put(self, item: Item) -> None:
        if self.items.qsize() >= MAX_WAITING:
            self.items.get_nowait()
            self.missed += 1
        self.items.put_nowait(item)


class SwarmNode:
    """One peer with its journal, sockets and solver."""

    def __init__(
        self,
        swarm: SwarmSettings,
        directory: Path,
        *,
        listen: Sequence[str] = ("127.0.0.1:0",),
        bootstrap: Iterable[str] = (),
        settings: PeerSettings | None = None,
        journal_options: JournalOptions | None = None,
        threads: int | None = None,
        purge_interval_s: float = PURGE_S,
    ) -> None:
        make_private_directory(directory)
        for text in swarm.warnings:
            log.warning("swarm %s: %s", swarm.name, text)
        options = journal_options or JournalOptions()
        now = now_us()
        key = _load_key(directory / KEY_FILE)
        address = PeerAddress(address_of(key.public_key().public_bytes_raw())[:20])
        contacts = [Endpoint(text) for text in bootstrap]
        self.peer = Peer(
            swarm,
            address,
            random.SystemRandom(),
            now,
            settings=settings,
            bootstrap=contacts,
        )
        self.journal = Journal.open(
            directory / JOURNAL_FILE, server=self.peer.uri, signer=Signer(self.peer.uri, key), options=options
        )
        note_clock_steps(self.journal)
        self.peer.has_application = False
        self.restored = self.peer.restore(self.journal.hops(), now)
        self._purge_interval_s = purge_interval_s
        self.endpoints: list[Endpoint] = []
        self._listen = listen
        self._udp = SwarmUdp(
            self.peer,
            self.journal,
            durability=options.durability,
            listener=self._hear,
            on_failure=self._fail,
        )
        self.failure: Exception | None = None
        """Why the node had to stop."""
        self._block: asyncio.Task[Any] | None = None
        self._threads = threads
        self._solver: WorkSolver | None = None
        self._subscriptions: set[_Subscription] = set()
        self._linked = asyncio.Event()
        self._knows_others = bool(contacts)

    async def __aenter__(self) -> Self:
        self.endpoints = await self._udp.start(self._listen)
        if self._purge_interval_s:
            start_purging(
                self.journal,
                lambda: self.journal.size,
                interval_s=self._purge_interval_s,
                now_us=now_us,
                agreement=self.peer.swarm.agreement,
            )
        self._block = asyncio.current_task()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        block, self._block = self._block, None
        is_cancelled = False
        if self.failure is not None and block is not None:
            if kind is not asyncio.CancelledError:
                # the block ended before our cancellation reached it
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
            is_cancelled = block.uncancel() > 0
        await self.close()
        if self.failure is not None and kind in (None, asyncio.CancelledError):
            # somebody else's cancellation goes before our error
            raise asyncio.CancelledError if is_cancelled else self.failure

    async def close(self) -> None:
        """Leave: commit, close sockets and journal, end all subscriptions."""
        await self._udp.stop()
        for subscription in self._subscriptions:
            subscription.items.put_nowait(None)
        if self._solver is not None:
            self._solver.close()
        await asyncio.to_thread(self.journal.close)

    async def publish(
        self, payload: bytes, ttl_epochs: int, *, progress: Callable[[int], None] = lambda _: None
    ) -> Address:
        """Compose, solve and push a message; returns when it is journaled and on its way. Safe to cancel before."""
        message = self.peer.compose(payload, ttl_epochs, now_us())
        if self._solver is None:
            self._solver = await asyncio.to_thread(WorkSolver, self._threads)
        solved = await self._solver.solve(message, self.peer.rules.pow_target, progress)
        return await ask(self._udp.driver, lambda now: self.peer.publish_solved(solved, now))

    async def subscribe(self) -> AsyncIterator[Item]:
        """Everything that joins the flow from now on, with its gaps; ends when the node closes."""
        subscription = _Subscription()
        self._subscriptions.add(subscription)
        self.peer.has_application = True
        try:
            while (item := await subscription.items.get()) is not None:
                if subscription.missed:
                    count, subscription.missed = subscription.missed, 0
                    yield Missed(count=count)
                yield item
        finally:
            self._subscriptions.discard(subscription)
            self.peer.has_application = bool(self._subscriptions)

    def query(self, start_ms: int, end_ms: int) -> list[Message]:
        """Unexpired messages of this time, both ends included, by time."""
        found = []
        for entry in self.peer.messages_between(start_ms, end_ms):
            content = decode_content(entry.raw)
            found.append(
                Message(
                    address=entry.address,
                    timestamp_ms=content.timestamp_ms,
                    ttl_epochs=content.ttl_epochs,
                    references=tuple([edge.msg_hash for edge in content.references]),
                    payload=content.payload,
                )
            )
        return found

    def status(self) -> PeerStatus:
        """The peer in numbers."""
        return self.peer.status()

    @property
    def health(self) -> str:
        """Whether the peer can do its work, and whether it knows another one."""
        health = self._udp.driver.health
        if health != OK or not self._knows_others or self.peer.status().forward:
            return health
        return f"{OK}, but no other peer is in reach"

    async def linked(self) -> None:
        """Wait until the first peer is there that we relay to."""
        await self._linked.wait()

    def _fail(self, error: Exception) -> None:
        self.failure = error
        if self._block is not None:
            self._block.cancel()

    def _hear(self, events: list[Event]) -> None:
        for event in events:
            if type(event) is IdentityConflict:
                log.warning("another peer, at %s, uses the key of this one; each needs its own", event.endpoint)
        if not self._linked.is_set() and any(isinstance(event, PeerLinked) and event.is_forward for event in events):
            self._linked.set()
        if not self._subscriptions:
            return
        for event in events:
            item = _item_of(event)
            if item is not None:
                for subscription in self._subscriptions:
                    subscription.put(item)


def _item_of(event: Event) -> Item | None:
    match event:
        case MessageAccepted(address, content, source):
            return Message(
                address=address,
                timestamp_ms=content.timestamp_ms,
                ttl_epochs=content.ttl_epochs,
                references=tuple([edge.msg_hash for edge in content.references]),
                payload=content.payload,
                source=source,
            )
        case GapFound(msg_hash, referrer):
            return Gap(msg_hash=msg_hash, state="missing", referrer=referrer)
        case GapFilled(msg_hash):
            return Gap(msg_hash=msg_hash, state="filled")
        case GapGivenUp(msg_hash, referrer):
            return Gap(msg_hash=msg_hash, state="given_up", referrer=referrer)
        case CollisionFound(first, second):
            return Evidence(kind="collision", messages=(first, second))
        case CycleFound(path):
            return Evidence(kind="cycle", messages=path)
        case _:
            return None


def _load_key(path: Path) -> Ed25519PrivateKey:
    """The peer's signing key, made at the first start; the peer's address is the hash of its public half."""
    if not path.exists():
        pem = Ed25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_private(path, pem)
    return load_signing_key(path, name="peer").private_key
