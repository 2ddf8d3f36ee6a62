"""Clients for programs without asyncio: `dovetail.sync.connect` and `with`.

    with dovetail.sync.connect("ws://127.0.0.1:8142/pcp", "pcp://me/agent") as client:
        print(client.send("pcp://echo/agent", "hello").outcome)

Each client has an event loop in its own thread, which ends with the `with` block.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, Protocol, Self, TypeVar, cast

from anyio.from_thread import start_blocking_portal

from dovetail.api.connect import connect as _connect
from dovetail.api.pcp import PcpClient as _PcpClient
from dovetail.api.swarm import SwarmPeer as _SwarmPeer
from dovetail.api.won import DEFAULT_SOCKET
from dovetail.api.won import WonClient as _WonClient
from dovetail.model.errors import Closed, UsageError

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence
    from pathlib import Path

    from anyio.from_thread import BlockingPortal

    from dovetail.api.swarm import Evidence, Gap, Progress
    from dovetail.api.values import Message, Presence, Sent
    from dovetail.api.won import ConversationLog
    from dovetail.model.errors import Missed
    from dovetail.swarm.settings import SwarmSettings

T = TypeVar("T")
P = ParamSpec("P")


class _Receiver(Protocol):
    async def receive(self, timeout: float | None = None) -> Message: ...
    async def __aenter__(self) -> Any: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


C = TypeVar("C", bound=_Receiver)


class Twin(Generic[C]):
    """A client whose calls block instead of being awaited. Use it with `with`."""

    def __init__(self, made: C) -> None:
        self._made = made
        self._stack = contextlib.ExitStack()
        self._portal: BlockingPortal | None = None
        self._client: C | None = None

    def __enter__(self) -> Self:
        if self._client is not None:
            raise UsageError("the client is open already: it can be in one `with` at a time")
        with contextlib.ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal("asyncio"))
            self._client = stack.enter_context(self._portal.wrap_async_context_manager(self._made))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client = None
        self._stack.__exit__(kind, error, trace)

    def receive(self, timeout: float | None = None) -> Message:
        """The next message since the client connected; TimedOut if none comes in time, Missed if some were dropped."""
        return self._run(partial(self._open.receive, timeout))

    def __iter__(self) -> Iterator[Message]:
        """Messages as they arrive, until the client is closed; raises Missed if some arrived too fast to be read."""
        _ = self._open
        with contextlib.suppress(Closed):
            while True:
                yield self.receive()

    @property
    def _open(self) -> C:
        if self._client is None:
            raise Closed("the client is not connected: use `with`")
        return self._client

    def _run(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of a call in the loop's thread; Ctrl-C here ends it there, too."""
        ended = threading.Event()

        async def working() -> T:
            try:
                return await work()
            finally:
                ended.set()

        waiting = self._running.start_task_soon(working)
        try:
            return waiting.result()
        except BaseException:
            if waiting.cancel():
                ended.wait(_ENDING_S)
            raise

    @property
    def _running(self) -> BlockingPortal:
        if self._portal is None:
            raise Closed("the client is not connected: use `with`")
        return self._portal

    def _each(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The items of an asynchronous generator, which ends with the iteration or the client."""

        async def following() -> T | object:
            return await anext(items, _END)

        try:
            while (item := self._run(following)) is not _END:
                yield cast("T", item)
        except GeneratorExit:
            if self._client is not None:
                self._run(items.aclose)  # type: ignore[attr-defined]  # always a generator
            raise


_END = object()
_ENDING_S = 10.0
"""The longest that an interrupted call is waited for."""


class Asked(NamedTuple):
    """A message that wants a reply."""

    sent: Sent
    reply: Callable[[], Message]
    """Waits for the first reply; raises TimedOut when the lifetime is over."""


class PcpClient(Twin[_PcpClient]):
    """A client of a broker."""

    @property
    def url(self) -> str:
        """The broker's URL."""
        return self._made.url

    @property
    def identity(self) -> str:
        """The client's own URI."""
        return self._made.identity

    def send(
        self,
        to: str | Sequence[str],
        data: Any = None,
        *,
        type: str = "text",
        ttl: float = 30,
        in_reply_to: str | None = None,
    ) -> Sent:
        """Send a message; returns what the broker did with it."""
        return self._run(partial(self._open.send, to, data, type=type, ttl=ttl, in_reply_to=in_reply_to))

    def request(self, to: str, data: Any = None, *, type: str = "text", ttl: float = 30) -> Message:
        """Send a message and wait for the first reply to it."""
        return self._run(partial(self._open.request, to, data, type=type, ttl=ttl))

    @contextlib.contextmanager
    def asking(self, to: str, data: Any = None, *, type: str = "text", ttl: float = 30) -> Iterator[Asked]:
        """Send a message that wants a reply: `sent` has its outcome, `reply()` waits for the answer."""
        asking = self._open.asking(to, data, type=type, ttl=ttl)
        with self._running.wrap_async_context_manager(asking) as asked:
            yield Asked(asked.sent, partial(self._run, asked.reply))

    def reply(self, message: Message, data: Any = None, *, type: str | None = None) -> Sent:
        """Answer a message."""
        return self._run(partial(message.reply, data, type=type))

    def inventory(self, *patterns: str) -> list[str]:
        """The connected clients."""
        return self._run(partial(self._open.inventory, *patterns))

    def watch(self, *patterns: str) -> Iterator[Presence]:
        """The connected clients, then each connect and disconnect; continues after a reconnect."""
        return self._each(self._open.watch(*patterns))


class WonClient(Twin[_WonClient]):
    """The owner of an atom."""

    @classmethod
    def create(
        cls,
        node: str,
        home: Path | str,
        *,
        name: str | None = None,
        sockets: Sequence[str] = (DEFAULT_SOCKET,),
        content: bytes | None = None,
        authority: Path | str | None = None,
        wait: float = 0,
        timeout: float = 20,
    ) -> WonClient:
        """A new atom at a node, with its own key in `home`; returns its client, not connected yet."""
        make = partial(_WonClient.create, node, home, name=name, sockets=sockets, content=content)
        with start_blocking_portal("asyncio") as portal:
            return cls(portal.call(partial(make, authority=authority, wait=wait, timeout=timeout)))

    @classmethod
    def create_further(cls, first: Path | str, home: Path | str, *, wait: float = 0, timeout: float = 20) -> WonClient:
        """A further client of the atom whose owner's directory is `first`, with the same key in `home`."""
        with start_blocking_portal("asyncio") as portal:
            return cls(portal.call(partial(_WonClient.create_further, first, home, wait=wait, timeout=timeout)))

    @property
    def atom(self) -> str:
        """The atom's URI."""
        return self._made.atom

    @property
    def sockets(self) -> tuple[str, ...]:
        """The URIs that others connect to."""
        return self._made.sockets

    @property
    def node(self) -> str:
        """The node's URI."""
        return self._made.node

    @property
    def created(self) -> Sent | None:
        """The outcome of creating the atom, if `create` returned this client."""
        return self._made.created

    def send(self, to: str, data: str, *, socket: str = DEFAULT_SOCKET, forward: Sequence[str] = ()) -> Sent:
        """Send text on a connection; waits until both nodes have stored it."""
        return self._run(partial(self._open.send, to, data, socket=socket, forward=forward))

    def open(self, to: str, text: str | None = None, *, socket: str = DEFAULT_SOCKET) -> Sent:
        """Request, or accept, a connection."""
        return self._run(partial(self._open.open, to, text, socket=socket))

    def close(self, to: str, text: str | None = None, *, socket: str = DEFAULT_SOCKET) -> Sent:
        """End a connection."""
        return self._run(partial(self._open.close, to, text, socket=socket))

    def replace(self, sockets: Sequence[str] | None = None, content: bytes | None = None) -> Sent:
        """Replace the atom's description, in Turtle, and its sockets."""
        return self._run(partial(self._open.replace, sockets, content))

    def activate(self) -> Sent:
        """Let an inactive atom take connections again."""
        return self._run(self._open.activate)

    def deactivate(self) -> Sent:
        """Close the atom's connections and take no new ones until it is activated."""
        return self._run(self._open.deactivate)

    def delete(self) -> Sent:
        """Delete the atom for good."""
        return self._run(self._open.delete)

    def reply(self, message: Message, data: str) -> Sent:
        """Answer a message."""
        return self._run(partial(message.reply, data))

    def read(self, uri: str) -> bytes:
        """A document of a conversation in TriG."""
        return self._run(partial(self._open.read, uri))

    def conversation(self, with_: str | None = None) -> list[Message]:
        """The messages this owner has."""
        return self._open.conversation(with_)

    def log(self, with_: str | None = None, *, offline: bool = False) -> ConversationLog:
        """The same with a check of every address, signature and reference."""
        return self._run(partial(self._open.log, with_, offline=offline))


class SwarmPeer(Twin[_SwarmPeer]):
    """A peer of a swarm: one that runs here, by `join`, or one in another process."""

    @classmethod
    def join(
        cls,
        settings: SwarmSettings | Path | str,
        directory: Path | str,
        *,
        listen: Sequence[str] = ("127.0.0.1:0",),
        bootstrap: Sequence[str] = (),
    ) -> SwarmPeer:
        """A peer that runs in this process; `settings` is the agreement of the swarm, or its file."""
        return cls(_SwarmPeer.join(settings, directory, listen=listen, bootstrap=bootstrap))

    @property
    def endpoints(self) -> list[str]:
        """Where other peers can reach a peer of this process."""
        return self._made.endpoints

    def linked(self, timeout: float | None = None) -> None:
        """Wait until a peer of this process knows another one; raises TimedOut if none answers in time."""
        self._run(partial(self._open.linked, timeout))

    def publish(
        self,
        data: bytes | str,
        *,
        ttl_epochs: int = 60,
        timeout: float | None = 10,
        progress: Progress | None = None,
    ) -> Sent:
        """Do the proof of work, journal the message and push it; `timeout` limits the wait for a full disk."""
        return self._run(partial(self._open.publish, data, ttl_epochs=ttl_epochs, timeout=timeout, progress=progress))

    def events(self, since: dt.datetime | None = None) -> Iterator[Message | Gap | Evidence | Missed]:
        """All messages and gaps as they arrive; with `since`, again from there: the unexpired ones come first."""
        return self._each(self._open.events(since))

    def query(self, start: dt.datetime, end: dt.datetime | None = None) -> list[Message]:
        """The unexpired messages of this period."""
        return self._run(partial(self._open.query, start, end))

    def status(self) -> dict[str, Any]:
        """What the peer knows and does."""
        return self._run(self._open.status)


def _waiting(make: Callable[P, object]) -> Callable[P, Any]:
    @wraps(make)
    def connect(*args: P.args, **options: P.kwargs) -> Any:
        made = make(*args, **options)
        twin = next(twin for kind, twin in _TWINS if isinstance(made, kind))
        return twin(made)

    connect.__doc__ = "The same client as `dovetail.connect` gives, for programs without asyncio; `with` it."
    return connect


_TWINS: tuple[tuple[type, Any], ...] = ((_PcpClient, PcpClient), (_WonClient, WonClient), (_SwarmPeer, SwarmPeer))
connect = _waiting(_connect)
