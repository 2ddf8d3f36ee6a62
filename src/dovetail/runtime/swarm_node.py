"""The application's interface to a swarm: join, publish, subscribe, query by time.

    async with SwarmNode(settings, directory, listen=["0.0.0.0:4711"], bootstrap=["192.0.2.7:4711"]) as swarm:
        await swarm.publish(b"hello", ttl_epochs=60)
        async for item in swarm.subscribe():
            ...

A node has its identity (`peer.skey`) and its journal (`journal.db`) in its own directory. A restart restores everything
unexpired from the journal.

While the disk is full a node waits: nothing is sent, and `publish` raises JournalFull after its `timeout_s`. When the
journal fails permanently, or its file is removed or replaced, the node reads and sends nothing more: `failed` gets the
JournalError, and `publish`, `subscribe`, `linked` and the end of the `async with` block raise it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dovetail.journal.journal import Journal, JournalOptions
from dovetail.journal.purger import start_purging
from dovetail.keys import load_signing_key
from dovetail.keys.files import make_private_directory, write_private
from dovetail.model.address import NO_MESSAGE, Address, address_of
from dovetail.model.errors import JournalError
from dovetail.model.hop import Observation, Reason, Stage
from dovetail.model.times import time_text
from dovetail.runtime.clock import note_clock_steps, now_us
from dovetail.runtime.listening import check_port
from dovetail.runtime.loop import ask, completed, wait_unless_failed
from dovetail.runtime.mailbox import MAX_UNREAD_MESSAGES, Mailbox
from dovetail.runtime.server_health import OK
from dovetail.runtime.swarm_solver import WorkSolver
from dovetail.runtime.swarm_udp import SwarmUdp, parse_endpoint
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
MAX_WAITING: Final = MAX_UNREAD_MESSAGES
"""Items queued for a slow subscriber; beyond that the oldest are dropped, and it learns how many it missed."""
LIFE_SIGN_S: Final = 5.0
"""How often a running peer touches its `LIFE_SIGN_FILE`: what is known of a peer that was killed."""
KEY_FILE: Final = "peer.skey"
JOURNAL_FILE: Final = "journal.db"
LIFE_SIGN_FILE: Final = "running"


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the swarm; each is returned once."""

    address: Address
    timestamp_ms: int
    ttl_epochs: int
    references: tuple[MsgHash, ...]
    payload: bytes
    source: str | None = None


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """A referenced message is missing, has arrived after all, or was given up."""

    msg_hash: MsgHash
    state: Literal["missing", "filled", "given_up"]
    referrer: Address | None = None


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that collide in their 8 bytes, or refer to each other in a cycle."""

    kind: Literal["collision", "cycle"]
    messages: tuple[Address, ...]


class Missed(msgspec.Struct, frozen=True, kw_only=True):
    """This subscriber read too slowly: it missed this many items before the next one; `query` has the messages."""

    count: int


Item = Message | Gap | Evidence | Missed


def _size_of(item: Item) -> int:
    return len(item.payload) if isinstance(item, Message) else 0


class Subscription:
    """What a node hears from now on, for one reader: messages, gaps, evidence, and how much it missed.

    It ends when it or the node is closed, or with the failure of the node. Cancelling a read loses nothing.
    """

    def __init__(self, node: SwarmNode) -> None:
        self._node = node
        self._mailbox: Mailbox[Item] = Mailbox(MAX_WAITING, _size_of)
        self._following: Item | None = None

    def put(self, item: Item) -> None:
        """Queue an item for the reader."""
        self._mailbox.put(item)

    def close(self) -> None:
        """Hear nothing more; a waiting reader gets the end."""
        self._mailbox.close()
        self._node.unsubscribe(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        item, self._following = self._following, None
        if item is not None:
            return item
        item = await self._mailbox.get()
        if item is None:
            if self._node.failed.done():
                self._node.failed.result()
            raise StopAsyncIteration
        if missed := self._mailbox.take_missed():
            self._following = item
            return Missed(count=missed)
        return item


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
        for endpoint in listen:
            check_port("udp", *parse_endpoint(endpoint))
        make_private_directory(directory)
        self.directory = directory
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
        with contextlib.ExitStack() as opened:
            opened.callback(self.journal.close)
            note_clock_steps(self.journal)
            _note_restart(self.journal, now, directory / LIFE_SIGN_FILE)
            self.peer.has_application = False
            self.restored = self.peer.restore(self.journal.hops(), now)
            opened.pop_all()
        self._purge_interval_s = purge_interval_s
        self.endpoints: list[Endpoint] = []
        self._listen = listen
        self._udp = SwarmUdp(
            self.peer,
            self.journal,
            durability=options.durability,
            listener=self._hear,
        )
        self._threads = threads
        self._solver: WorkSolver | None = None
        self._subscriptions: set[Subscription] = set()
        self._linked = asyncio.Event()
        self._knows_others = bool(contacts)
        self._living: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            self.endpoints = await self._udp.start(self._listen)
        except BaseException:
            await completed(asyncio.to_thread(self.journal.close))
            raise
        self._living = asyncio.create_task(_show_life(self.directory / LIFE_SIGN_FILE))
        if self._purge_interval_s:
            start_purging(
                self.journal,
                lambda: self.journal.size,
                interval_s=self._purge_interval_s,
                now_us=now_us,
                agreement=self.peer.swarm.agreement,
            )
        self.failed.add_done_callback(lambda _: self._end_subscriptions())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
        if kind is None and self.failed.done():
            self.failed.result()

    @property
    def failed(self) -> asyncio.Future[None]:
        """Gets the error if the node has to stop; available once it is started."""
        return self._udp.failed

    async def close(self) -> None:
        """Leave: commit, close sockets and journal, end all subscriptions."""
        await completed(self._close())

    async def _close(self) -> None:
        await self._udp.stop()
        if self._living is not None:
            self._living.cancel()
        self._end_subscriptions()
        if self._solver is not None:
            self._solver.close()
        _note_stop(self.journal)
        await asyncio.to_thread(self.journal.close)

    async def publish(
        self,
        payload: bytes,
        ttl_epochs: int,
        *,
        timeout_s: float | None = None,
        progress: Callable[[int], None] = lambda _: None,
    ) -> Address:
        """Compose, solve and push a message; returns when it is journaled and sent. Safe to cancel before.

        Raises JournalFull if the disk is full for this time after the solving; it may then still be sent later.
        """
        message = self.peer.compose(payload, ttl_epochs, now_us())
        if self._solver is None:
            self._solver = await asyncio.to_thread(WorkSolver, self._threads)
        solved = await self._solver.solve(message, self.peer.rules.pow_target, progress)
        return await ask(self._udp.driver, lambda now: self.peer.publish_solved(solved, now), timeout_s)

    def subscribe(self) -> Subscription:
        """Every message accepted from now on, and gaps, until it is closed, the node is closed, or fails."""
        subscription = Subscription(self)
        self._subscriptions.add(subscription)
        self.peer.has_application = True
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Tell this subscription nothing more."""
        self._subscriptions.discard(subscription)
        self.peer.has_application = bool(self._subscriptions)

    def query(self, start_ms: int, end_ms: int) -> list[Message]:
        """Unexpired messages of this time range, both ends inclusive, by time."""
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
        """The peer's state and counters."""
        return self.peer.status()

    @property
    def health(self) -> str:
        """Whether the peer works, and whether it knows another one."""
        health = self._udp.driver.health
        if health != OK or not self._knows_others or self.peer.status().forward:
            return health
        return f"{OK}, but no other peer is in reach"

    async def linked(self) -> None:
        """Wait until there is a peer that we relay to."""
        await wait_unless_failed(self._linked, self.failed)

    def _end_subscriptions(self) -> None:
        for subscription in list(self._subscriptions):
            subscription.close()

    def _hear(self, events: list[Event]) -> None:
        for event in events:
            if type(event) is IdentityConflict:
                log.warning("another peer, at %s, uses this peer's key; each peer needs its own", event.endpoint)
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


async def _show_life(path: Path) -> None:
    """Touch the file for as long as the event loop runs."""
    while True:
        with contextlib.suppress(OSError):
            await asyncio.to_thread(path.touch, 0o600)
        await asyncio.sleep(LIFE_SIGN_S)


def _note_restart(journal: Journal, now: int, life_sign: Path) -> None:
    """Record since when the peer had not been running: messages may have expired meanwhile."""
    size = journal.size
    for last in journal.hops(max(0, size - 1), size):
        alive_us = last.at_us
        with contextlib.suppress(OSError):
            alive_us = max(alive_us, life_sign.stat().st_mtime_ns // 1_000)
        _note(journal, Reason.RESTARTED, now, time_text(alive_us))


def _note_stop(journal: Journal) -> None:
    """Record when the peer was stopped, if that can be written."""
    if journal.size and journal.stalled is None:
        with contextlib.suppress(JournalError):
            _note(journal, Reason.STOPPED, now_us())


def _note(journal: Journal, reason: Reason, now: int, *counterparts: str) -> None:
    note = Observation(at_us=now, stage=Stage.NOTED, message=NO_MESSAGE, counterparts=counterparts, reason=reason)
    journal.commit([note], lambda _: None)


def _load_key(path: Path) -> Ed25519PrivateKey:
    """The peer's signing key, created at the first start; the peer's address is the hash of its public half."""
    if not path.exists():
        pem = Ed25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_private(path, pem)
    return load_signing_key(path, name="peer").private_key
