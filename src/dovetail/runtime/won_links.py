"""The links and documents of a won core, node or owner: the transport of its driver, and the keys it asks for.

What comes by a link goes to the driver, links that the core asks for are dialled, and a `KeyWanted` is answered with
the document, kept earlier or fetched. There is no protocol rule here.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine, Sequence
from typing import Protocol

from dovetail.journal.journal import Journal
from dovetail.model.errors import ConnectFailed
from dovetail.model.hop import Reason
from dovetail.model.wire import CLOSE_NORMAL, CloseLink, LinkId, OpenLink, Outgoing, SendFrames
from dovetail.runtime.addresses import AddressGuard
from dovetail.runtime.driver import Driver, Durability, LinkCore
from dovetail.runtime.key_fetches import KeyFetches
from dovetail.runtime.limits import Limits
from dovetail.runtime.loop import LoopClock, LoopJournal, come_to_rest
from dovetail.runtime.websocket import CLOSE_GOING_AWAY, Link, LinkHandler, dial
from dovetail.won.events import Event, HopUnreadable, KeyWanted

# Larger messages than the core takes still reach it, so that their refusal is journaled
LIMITS = Limits(
    max_message_bytes=16 << 20, max_unsent_bytes=32 << 20, ping_s=20.0, turn_messages=16, turn_bytes=256 * 1024
)
log = logging.getLogger("dovetail.won")


class Core(LinkCore[Event], Protocol):
    """What is driven here: a node or an owner."""

    def receive_document(self, uri: str, data: bytes | None, now: int) -> None: ...


class Documents(Protocol):
    """Documents of nodes and atoms that are kept; `OwnerHome` is one."""

    def read_document(self, uri: str) -> bytes | None: ...

    def keep_document(self, uri: str, data: bytes) -> None: ...


class WonLinks(LinkHandler[LinkId]):
    """One core on the event loop. `start` it, and `stop` it when done.

    Others name the hosts that are connected to for keys and, with `is_dialling_others`, for links: `guard` says which
    of them may be. `on_accepted` is called, in order with all input, for links that others open; their label is their
    kind.
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
        self._links: dict[LinkId, Link] = {}
        self._opening: set[LinkId] = set()
        self._unwanted: set[LinkId] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_reading = True
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[None] = self._loop.create_future()
        """Done with the error once the journal can no longer be written."""
        self.driver: Driver[Event] = Driver(
            core,
            LoopJournal(journal, lambda error: self.driver.fail(error)),
            self,
            LoopClock(),
            durability=durability,
            on_events=self._act,
            on_failure=self.failed.set_exception,
        )
        self.frame = self.driver.receive  # type: ignore[method-assign]

    @property
    def count(self) -> int:
        """How many links are open."""
        return len(self._links)

    def start(self) -> None:
        """Begin to journal and send; whatever the core has to say already goes first."""
        self.driver.wake()

    async def stop(self) -> None:
        """Journal and send what came, then close all links; what the journal has no room for is dropped."""
        self.driver.drain()
        await come_to_rest(self.driver)
        self.driver.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in list(self._links.values()):
            link.close(CLOSE_GOING_AWAY)
        await asyncio.sleep(0)

    # What happens to links

    def opened(self, link: Link, label: str) -> None:
        """A link is ready: one that we opened, or with a label one that was opened to us."""
        name: LinkId = link.id
        if name in self._unwanted:
            link.close(CLOSE_NORMAL)
            return
        self._links[name] = link
        link.set_reading(self._is_reading)
        if label and self._on_accepted is not None:
            accept = self._on_accepted
            self.driver.call(lambda now: accept(name, label, now))
        else:
            self.driver.call(lambda now: self._core.receive_opened(name, now))

    def refused(self, data: bytes, link: LinkId, reason: Reason, size: int) -> None:  # noqa: ARG002
        """A message that was not taken in whole."""
        log.warning("link %s is closed: %s, %d bytes or more", link, reason.value, size)

    def exhausted(self, link: LinkId, messages: int, size: int) -> None:  # noqa: ARG002
        """A link had its turn: it goes on when what it sent is fed."""
        self.driver.call(lambda _: self._links[link].give_turn() if link in self._links else None)

    def closed(self, link: LinkId, code: int) -> None:  # noqa: ARG002
        """A link ended."""
        if self._links.pop(link, None) is not None:
            self._tell_closed(link)

    def _tell_closed(self, link: LinkId) -> None:
        self.driver.receive_closed(link, lambda now: self._core.receive_closed(link, now))

    # What the driver calls

    def set_reading(self, wanted: bool) -> None:
        """Stop or go on reading from all links."""
        self._is_reading = wanted
        for link in self._links.values():
            link.set_reading(wanted)

    def send(self, outgoing: Sequence[Outgoing], made_at: int) -> None:  # noqa: ARG002
        """Write frames, open and close links; frames for a link that is gone are dropped."""
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
                self.ask(event.uri)
            elif isinstance(event, HopUnreadable):
                log.warning("hop %d of the journal is left out: %s", event.seq, event.detail)
            if self._observer is not None:
                self._observer(event)

    async def _open(self, item: OpenLink) -> None:
        url = link_url(item.destination, item.label)
        self._opening.add(item.link)
        try:
            address = None if self._guard is None else await self._guard.resolve(item.destination)
            await dial(self, url, item.link, tls=self._context(), limits=LIMITS, address=address)
        except (ConnectFailed, OSError, ValueError) as error:
            log.debug("%s", error)
            self._tell_closed(item.link)
        finally:
            self._opening.discard(item.link)
            self._unwanted.discard(item.link)

    def ask(self, uri: str) -> None:
        """Have the core told the document of a node or atom."""
        self._spawn(self._answer(uri))

    async def _answer(self, uri: str) -> None:
        kept = self._documents
        data = None if kept is None else await asyncio.to_thread(kept.read_document, uri)
        if data is None:
            data = await self.fetches.fetch(uri)
            if data is not None and kept is not None:
                await asyncio.to_thread(kept.keep_document, uri, data)
        self.driver.call(lambda now: self._core.receive_document(uri, data, now))

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def link_url(node: str, kind: str) -> str:
    """Where a node takes links of a kind."""
    return f"{node.replace('http', 'ws', 1)}/link/{kind}"
