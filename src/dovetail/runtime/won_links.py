"""The links and documents of a won core, node or owner: the transport of its driver, and the keys it requests.

Input from links goes to the driver, links that the core requests are dialled, and a `KeyWanted` is answered with the
document, stored or fetched. There are no protocol rules here.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Protocol

from dovetail.journal.journal import Journal
from dovetail.model.errors import ConnectFailed
from dovetail.model.hop import Reason
from dovetail.model.wire import CLOSE_GOING_AWAY, CLOSE_NORMAL, CloseLink, LinkId, OpenLink, Outgoing, SendFrames
from dovetail.runtime.addresses import AddressGuard
from dovetail.runtime.driver import Durability, LinkCore
from dovetail.runtime.frames import Memory
from dovetail.runtime.key_fetches import KeyFetches
from dovetail.runtime.limited_log import LimitedLog
from dovetail.runtime.limits import Limits
from dovetail.runtime.loop import come_to_rest, drive
from dovetail.runtime.websocket import Link, LinkHandler, dial
from dovetail.won.events import DestinationChanged, Event, HopUnreadable, KeyWanted
from dovetail.won.settings import WonSettings

# Messages larger than the core accepts still reach it, so that their refusal is journaled
LIMITS = Limits(
    max_message_bytes=16 << 20, max_unsent_bytes=32 << 20, ping_s=20.0, turn_messages=16, turn_bytes=256 * 1024
)
log = logging.getLogger("dovetail.won")


class Core(LinkCore[Event], Protocol):
    """A node or an owner."""

    def receive_document(self, uri: str, data: bytes | None, now: int) -> None: ...


class Documents(Protocol):
    """Stored documents of nodes and atoms; `OwnerHome` implements it."""

    def read_document(self, uri: str) -> bytes | None: ...

    def keep_document(self, uri: str, data: bytes) -> None: ...


class WonLinks(LinkHandler[LinkId]):
    """One core on the event loop. `start` it, and `stop` it when done.

    Others choose the hosts that are contacted for keys and, with `is_dialling_others`, for links: `guard` says which
    are allowed. `on_accepted` is called, in order with all input, for incoming links; their label is their kind.
    """

    def __init__(
        self,
        core: Core,
        journal: Journal,
        *,
        durability: Durability = "full",
        context: Callable[[], ssl.SSLContext],
        guard: AddressGuard,
        is_dialling_others: bool,
        settings: WonSettings,
        on_accepted: Callable[[LinkId, str, int], None] | None = None,
        observer: Callable[[Event], None] | None = None,
        documents: Documents | None = None,
    ) -> None:
        self._core = core
        self._context = context
        self._guard = guard if is_dialling_others else None
        self.fetches = KeyFetches(guard, context)
        self._on_accepted = on_accepted
        self._observer = observer
        self._documents = documents
        self.memory = Memory(settings.unfinished_share)
        self.unsent = Memory(settings.unsent_share, Link.drop_unread)
        self._refusals = LimitedLog(log, "links closed")
        self._links: dict[LinkId, Link] = {}
        self.hosts: Counter[str] = Counter()
        """How many links each address has opened to us."""
        self._opened_from: dict[LinkId, str] = {}
        self._opening: set[LinkId] = set()
        self._unwanted: set[LinkId] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_reading = True
        self._is_stopping = False
        self._loop = asyncio.get_running_loop()
        self._unlinked = LimitedLog(log, "nodes have no link")
        self.driver, self.failed = drive(
            core,
            journal,
            self,
            durability=durability,
            on_events=self._act,
            max_inbox_bytes=settings.inbox_share,
        )
        self.frame = self.driver.receive  # type: ignore[method-assign]

    @property
    def count(self) -> int:
        """How many links are open."""
        return len(self._links)

    def start(self) -> None:
        """Start to journal and send; whatever the core already has to send goes first."""
        self.driver.wake()

    def stop_reading(self) -> None:
        """Stop reading; otherwise a peer that keeps sending would keep a stopping node busy."""
        self._is_stopping = True
        self.set_reading(False)

    async def stop(self) -> None:
        """Journal and send what arrived, then close all links; what the journal cannot take in time is dropped."""
        self.driver.drain()
        await come_to_rest(self.driver)
        self.driver.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in list(self._links.values()):
            link.set_reading(True)  # TLS reads up to its end; what arrives for a closed link is dropped
            link.close(CLOSE_GOING_AWAY)
        await asyncio.sleep(0)

    # Link events

    def opened(self, link: Link, label: str) -> None:
        """A link is open: one that we opened, or, with a label, an incoming one."""
        name: LinkId = link.id
        if name in self._unwanted:
            link.close(CLOSE_NORMAL)
            return
        self._links[name] = link
        link.set_reading(self._is_reading)
        if label and self._on_accepted is not None:
            accept = self._on_accepted
            self._opened_from[name] = link.host
            self.hosts[link.host] += 1
            self.driver.call(lambda now: accept(name, label, now))
        else:
            self.driver.call(lambda now: self._core.receive_opened(name, now))

    def refused(self, data: bytes, link: LinkId, reason: Reason, size: int) -> None:  # noqa: ARG002
        """A message was refused before it was complete."""
        known = self._links.get(link)
        peer = "gone" if known is None else known.peer
        self._refusals.warning("link %s is closed peer=%s: %s, %d bytes or more", link, peer, reason.value, size)

    def exhausted(self, link: LinkId, messages: int, size: int) -> None:  # noqa: ARG002
        """A link used up its turn: it continues when what it sent is fed."""
        self.driver.call(lambda _: self._links[link].give_turn() if link in self._links else None)

    def closed(self, link: LinkId, code: int) -> None:  # noqa: ARG002
        """A link was closed."""
        host = self._opened_from.pop(link, None)
        if host is not None:
            self.hosts[host] -= 1
            if not self.hosts[host]:
                del self.hosts[host]
        if self._links.pop(link, None) is not None:
            self._report_closed(link)

    def _report_closed(self, link: LinkId) -> None:
        self.driver.receive_closed(link, lambda now: self._core.receive_closed(link, now))

    # Called by the driver

    def set_reading(self, wanted: bool) -> None:
        """Stop or resume reading from all links."""
        self._is_reading = wanted = wanted and not self._is_stopping
        for link in self._links.values():
            link.set_reading(wanted)

    def send(self, outgoing: Sequence[Outgoing], made_at: int) -> None:  # noqa: ARG002
        """Write frames, open and close links; frames for a closed link are dropped."""
        for item in outgoing:
            match item:
                case SendFrames():
                    for link in [self._links[name] for name in item.links if name in self._links]:
                        for data in item.frames:
                            link.send(data, is_text=True)
                case OpenLink():
                    self._spawn(self._open(item))
                case CloseLink():
                    closing = self._links.pop(item.link, None)
                    if closing is not None:
                        closing.close(item.code)
                    elif item.link in self._opening:
                        self._unwanted.add(item.link)
                case _:
                    raise AssertionError(f"a won core sends no {type(item).__name__}")

    def _act(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, KeyWanted):
                if event.link is None:
                    self.ask(event.uri, None)
                elif event.link in self._links:
                    self.ask(event.uri, self._links[event.link].host)
            elif isinstance(event, HopUnreadable):
                log.warning("hop %d of the journal is skipped: %s", event.seq, event.detail)
            elif isinstance(event, DestinationChanged):
                if event.is_reachable:
                    log.info("linked to %s again", event.node)
                else:
                    self._unlinked.warning("no link to %s: what is for it waits", event.node)
            if self._observer is not None:
                self._observer(event)

    async def _open(self, item: OpenLink) -> None:
        url = link_url(item.destination, item.label)
        self._opening.add(item.link)
        try:
            address = None if self._guard is None else await self._guard.resolve(item.destination)
            await dial(
                self,
                url,
                item.link,
                tls=self._context(),
                limits=LIMITS,
                address=address,
                memory=self.memory,
                unsent=self.unsent,
            )
        except (ConnectFailed, OSError, ValueError) as error:
            log.debug("%s", error)
            self._report_closed(item.link)
        finally:
            self._opening.discard(item.link)
            self._unwanted.discard(item.link)

    def ask(self, uri: str, source: str | None) -> None:
        """Fetch the document of a node or atom for the core; `source` is the address whose message needs it."""
        self._spawn(self._answer(uri, source))

    async def _answer(self, uri: str, source: str | None) -> None:
        kept = self._documents
        data = None if kept is None else await asyncio.to_thread(kept.read_document, uri)
        if data is None:
            if self.fetches.join(uri, source):
                return  # whoever asked first gives the answer
            data = await self.fetches.fetch(uri, source)
            if data is not None and kept is not None:
                await asyncio.to_thread(kept.keep_document, uri, data)
        self.driver.call(lambda now: self._core.receive_document(uri, data, now))

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def link_url(node: str, kind: str) -> str:
    """The URL where a node accepts links of a kind."""
    return f"{node.replace('http', 'ws', 1)}/link/{kind}"
