"""The public client of a won node: an owner, with its atom's key and journal in a directory."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dovetail.api.values import Message, Outcome, Sent, moment
from dovetail.model.address import parse_address
from dovetail.model.errors import Closed, ConnectFailed, Missed, RemoteProtocolError, TimedOut, UsageError
from dovetail.runtime.http import probe
from dovetail.runtime.tls import client_context
from dovetail.runtime.won_client import AtomFile, OwnerClient, OwnerHome, read_bodies
from dovetail.runtime.won_server import check_node_uri
from dovetail.won.conversation_text import read_conversation
from dovetail.won.events import Event, MessageReceived
from dovetail.won.keys import read_key_document
from dovetail.won.message import Message as WireMessage
from dovetail.won.message import decode_message
from dovetail.won.owner import Owner
from dovetail.won.vocabulary import MessageType, check_socket_uri

MAX_UNREAD_MESSAGES = 10_000
DEFAULT_SOCKET = "chat"


class WonClient:
    """The owner of an atom. `async with` it: that catches up with the node, or raises ConnectFailed at once.

    `home` is the owner's directory, as `WonClient.create` or `dovetail won create` makes it; `is_created` is False only
    for the client that is to create the atom. Every call can be
    cancelled; what was journaled is sent when the owner connects again.
    """

    def __init__(self, home: Path | str, *, wait: float = 0, timeout: float = 20, is_created: bool = True) -> None:
        self._home = OwnerHome(Path(home))
        self._wait_s = wait
        self._timeout_s = timeout
        self._is_created = is_created
        self._unread: asyncio.Queue[Message | None] = asyncio.Queue()
        self._missed = 0
        self._wire: OwnerClient | None = None

    @classmethod
    async def create(
        cls,
        node: str,
        home: Path | str,
        *,
        name: str | None = None,
        sockets: Sequence[str] = (DEFAULT_SOCKET,),
        authority: str | None = None,
        timeout: float = 20,
    ) -> WonClient:
        """A new atom at a node, with a key of its own in `home`; the client for it, not connected yet."""
        atom = f"{check_node_uri(node)}/atom/{name or secrets.token_hex(10)}"
        await check_node(node, authority, timeout)
        owned = OwnerHome.create(Path(home), AtomFile(atom, tuple(f"{atom}#{each}" for each in sockets), authority))
        client = cls(owned.directory, timeout=timeout, is_created=False)
        async with client:
            sent = await client.act(lambda owner, now: owner.create(client._home.file.sockets, now, ()))
        sent.raise_for_outcome()
        return cls(owned.directory, timeout=timeout)

    @property
    def atom(self) -> str:
        """The atom's URI."""
        return self._home.file.atom

    @property
    def sockets(self) -> tuple[str, ...]:
        """The URIs that others connect to."""
        return self._home.file.sockets

    @property
    def node(self) -> str:
        """The node's URI."""
        return self.atom.partition("/atom/")[0]

    async def __aenter__(self) -> Self:
        await check_node(self.node, self._home.file.authority, self._timeout_s, self._wait_s)
        wire = OwnerClient(self._home, is_created=self._is_created, observer=self._observe)
        await wire.__aenter__()
        self._wire = wire
        try:
            if self._is_created and not await wire.wait_registered(self._timeout_s):
                raise ConnectFailed(self.node, f"did not answer {self.atom} within {self._timeout_s:g} s")
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        wire, self._wire = self._wire, None
        self._unread.put_nowait(None)
        if wire is not None:
            await wire.__aexit__(kind, error, trace)

    async def send(self, to: str, data: str, *, socket: str = DEFAULT_SOCKET, forward: Sequence[str] = ()) -> Sent:
        """Send text on a connection; waits until both nodes have stored and signed it, or the time is over."""
        return await self._speak(MessageType.CONNECTION, to, data, socket, forward)

    async def open(self, to: str, text: str | None = None, *, socket: str = DEFAULT_SOCKET) -> Sent:
        """Ask for a connection with another atom's socket, or accept the one that it asks for."""
        return await self._speak(MessageType.CONNECT, to, text, socket)

    async def close(self, to: str, text: str | None = None, *, socket: str = DEFAULT_SOCKET) -> Sent:
        """End a connection."""
        return await self._speak(MessageType.CLOSE, to, text, socket)

    async def receive(self, timeout: float | None = None) -> Message:
        """The next message of another atom; TimedOut where none comes in time."""
        try:
            async with asyncio.timeout(timeout):
                message = await self._next()
        except TimeoutError:
            raise TimedOut(f"no message within {timeout:g} s") from None
        if message is None:
            raise Closed("the client is closed")
        return message

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages of other atoms as they come, until the client is closed."""
        while (message := await self._next()) is not None:
            yield message

    def conversation(self, with_: str | None = None) -> list[Message]:
        """What this owner holds of its conversations, or of that with one socket; each with the state of its chain."""
        raws = self._home.read_messages() if self._wire is None else read_bodies(self._wire.journal)
        found = read_conversation(self.atom, raws, with_)
        return [self._message(message, state.value) for message, state in found.messages()]

    async def act(self, action: Callable[[Owner, int], WireMessage]) -> Sent:
        """Let the owner make a message, and wait for what becomes of it."""
        if self._wire is None:
            raise Closed("the client is not connected: use `async with`")
        message = await self._wire.say(action)
        await self._wire.wait_settled(message.uri, self._timeout_s)
        delivery = self._wire.owner.conversations.deliveries[message.uri]
        chain = delivery.chain
        outcome: Outcome = "unknown"
        if chain.failure is not None:
            outcome = "rejected"
        elif chain.is_stored:
            outcome = "delivered" if message.recipient_socket else "accepted"
        elif chain.first is not None:
            outcome = "accepted"
        reason = delivery.detail
        if reason is None and outcome == "unknown":
            reason = f"{self.node} did not answer within {self._timeout_s:g} s"
        return Sent(
            address=message.uri,
            id=message.uri,
            outcome=outcome,
            targets=(message.recipient_socket,) if message.recipient_socket else (),
            reason=reason,
            state=chain.state.value,
            responses=tuple(each for each in (chain.first, chain.second) if each is not None),
            is_final=chain.is_stored or chain.failure is not None,
            at=moment(message.timestamp_ms * 1000),
        )

    async def _speak(
        self, kind: MessageType, to: str, text: str | None, socket: str, forward: Sequence[str] = ()
    ) -> Sent:
        if text is not None and not isinstance(text, str):
            raise UsageError(f"won carries text, got {type(text).__name__}")
        try:
            check_socket_uri(to)
        except RemoteProtocolError as error:
            raise UsageError(error.detail) from None
        own = f"{self.atom}#{socket}"
        return await self.act(lambda owner, now: owner.send_message(kind, own, to, now, text, forward))

    async def _next(self) -> Message | None:
        if self._missed:
            count, self._missed = self._missed, 0
            raise Missed(count)
        message = await self._unread.get()
        if message is None:
            self._unread.put_nowait(None)
        return message

    def _observe(self, event: Event) -> None:
        if not isinstance(event, MessageReceived) or self._wire is None:
            return
        raw = self._wire.journal.raw(parse_address(event.uri))
        if raw is None:
            return  # it was expired and purged while we were away
        if self._unread.qsize() >= MAX_UNREAD_MESSAGES:
            self._unread.get_nowait()
            self._missed += 1
        self._unread.put_nowait(self._message(decode_message(raw), None))

    def _message(self, message: WireMessage, state: str | None) -> Message:
        return Message(
            address=message.uri,
            id=message.uri,
            type=message.type.value,
            sender=message.sender_socket or message.atom or "",
            targets=(message.recipient_socket,) if message.recipient_socket else (),
            data=message.text,
            raw=message.raw,
            at=moment(message.timestamp_ms * 1000),
            in_reply_to=message.responding_to,
            state=state,
            _answer=self._answer,
        )

    async def _answer(self, message: Message, data: Any, kind: str | None) -> Sent:
        del kind
        return await self.send(message.sender, data)


async def check_node(node: str, authority: str | None, timeout_s: float, wait_s: float = 0) -> None:
    """That a node answers by this URI; ConnectFailed says at once what is wrong, or after `wait_s`."""
    context = client_context(authority=authority) if node.startswith("https:") else None
    deadline = asyncio.get_running_loop().time() + wait_s
    while True:
        try:
            document = await probe(node, context, timeout_s)
            if document is None or read_key_document(node, document) is None:
                raise ConnectFailed(node, "answers, but not as a won node")
            return
        except ConnectFailed:
            if asyncio.get_running_loop().time() >= deadline:
                raise
        with contextlib.suppress(TimeoutError):
            await asyncio.sleep(0.2)
