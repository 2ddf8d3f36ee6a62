"""The public client of a won node: an owner, with its atom's key and journal in a directory."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from dovetail.api.failures import files_as
from dovetail.api.receiving import Receiving
from dovetail.api.values import Message, Outcome, Sent, check_text, is_utf8, moment
from dovetail.model.address import parse_address, parse_prefix
from dovetail.model.errors import (
    Closed,
    ConfigError,
    ConnectFailed,
    DovetailError,
    JournalError,
    RemoteProtocolError,
    UsageError,
)
from dovetail.runtime.http import probe
from dovetail.runtime.mailbox import MAX_UNREAD_MESSAGES, Mailbox
from dovetail.runtime.tls import client_context
from dovetail.runtime.won_client import AtomFile, OwnerClient, OwnerHome, read_bodies
from dovetail.runtime.won_server import check_node_uri
from dovetail.won.canonical import find_iri_error
from dovetail.won.compose import read_description
from dovetail.won.conversation_text import ConversationText, read_conversation
from dovetail.won.events import Event, MessageReceived
from dovetail.won.integrity import LogFinding
from dovetail.won.keys import read_key_document
from dovetail.won.message import Message as WireMessage
from dovetail.won.message import decode_message
from dovetail.won.owner import Owner
from dovetail.won.vocabulary import NODE_PATH, MessageType, check_socket_uri, node_of_atom

DEFAULT_SOCKET = "chat"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationLog:
    """An owner's copy of its conversations, and what is wrong with it."""

    messages: tuple[Message, ...]
    """Without responses, oldest first, each with the state of its chain."""
    findings: tuple[LogFinding, ...]
    """Messages that are altered, forged, missing or contradictory; none if the log is intact."""
    size: int
    """Number of messages and responses."""
    _text: ConversationText = field(repr=False, compare=False)

    def records(self) -> Iterator[dict[str, object]]:
        """One record per message, with the addresses of its responses, as `dovetail won log --json` prints."""
        return self._text.records()

    def lines(self) -> Iterator[str]:
        """One line per message, as `dovetail won log` prints."""
        return self._text.lines()

    def trig(self) -> bytes:
        """All messages and responses in full, in one TriG dataset."""
        return self._text.dataset()


def _size_of(message: Message) -> int:
    return len(message.raw)


class WonClient(Receiving):
    """The owner of an atom. Use it with `async with`, which catches up with the node, or raises ConnectFailed at once.

    `home` is the owner's directory, as created by `WonClient.create` or `dovetail won create`. Every call can be
    cancelled; journaled messages are sent when the owner connects again.
    """

    def __init__(self, home: Path | str, *, wait: float = 0, timeout: float = 20) -> None:
        self._home = OwnerHome(Path(home))
        self._wait_s = wait
        self._timeout_s = timeout
        self._is_created = True
        self._unread: Mailbox[Message] = Mailbox(MAX_UNREAD_MESSAGES, _size_of)
        self._wire: OwnerClient | None = None
        self.created: Sent | None = None
        """The outcome of creating the atom, if `WonClient.create` returned this client."""

    @classmethod
    async def create(
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
        """A new atom at a node, with its own key in `home`; returns its client, not connected yet.

        `content` describes the atom in Turtle, with its URI as the base. Nothing is left in `home` if the node cannot
        be reached; NotDelivered if it refuses the atom or does not answer in time.
        """
        atom = f"{check_node_uri(node)}/atom/{name or secrets.token_hex(10)}"
        description = read_description(content, atom) if content is not None else ()
        file = _atom_file(atom, sockets, authority)
        await check_node(node, file.authority, timeout, wait)
        with files_as(ConfigError):
            owned = OwnerHome.create(Path(home), file)
        creating = cls(owned.directory, timeout=timeout)
        creating._is_created = False
        async with creating:
            sent = await creating._act(lambda owner, now: owner.create(file.sockets, now, description))
        sent.raise_for_outcome()
        client = cls(owned.directory, wait=wait, timeout=timeout)
        client.created = sent
        return client

    @classmethod
    async def create_further(
        cls, first: Path | str, home: Path | str, *, wait: float = 0, timeout: float = 20
    ) -> WonClient:
        """A further client of the atom whose owner's directory is `first`, with the same key in `home`."""
        known = OwnerHome(Path(first))
        await check_node(node_of_atom(known.file.atom), known.file.authority, timeout, wait)
        with files_as(ConfigError):
            made = OwnerHome.create(Path(home), known.file, known.private_key)
        return cls(made.directory, wait=wait, timeout=timeout)

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
        return node_of_atom(self.atom)

    async def _connect(self) -> None:
        await check_node(self.node, self._home.file.authority, self._timeout_s, self._wait_s)
        self._unread = Mailbox(MAX_UNREAD_MESSAGES, _size_of)
        with files_as(JournalError):
            wire = OwnerClient(self._home, is_created=self._is_created, observer=self._observe)
        await wire.__aenter__()
        self._wire = wire
        try:
            if self._is_created and not await wire.wait_registered(self._timeout_s):
                silent = ConnectFailed(self.node, f"did not answer {self.atom} within {self._timeout_s:g} s")
                raise wire.journal.stalled or silent
        except BaseException:
            await self._disconnect(None, None, None)
            raise

    async def _disconnect(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        wire, self._wire = self._wire, None
        self._unread.close()
        if wire is not None:
            await wire.__aexit__(kind, error, trace)

    async def send(self, to: str, data: str, *, socket: str = DEFAULT_SOCKET, forward: Sequence[str] = ()) -> Sent:
        """Send text on a connection; waits until both nodes have stored and signed it, or the time is over.

        `forward` refers to messages in this owner's log: `wm:/...`, hex, or a prefix of either.
        """
        return await self._speak(MessageType.CONNECTION, to, data, socket, self._find(forward))

    async def open(self, to: str, text: str | None = None, *, socket: str = DEFAULT_SOCKET) -> Sent:
        """Request a connection with another atom's socket, or accept its request."""
        return await self._speak(MessageType.CONNECT, to, text, socket)

    async def close(self, to: str, text: str | None = None, *, socket: str = DEFAULT_SOCKET) -> Sent:
        """End a connection."""
        return await self._speak(MessageType.CLOSE, to, text, socket)

    async def replace(self, sockets: Sequence[str] | None = None, content: bytes | None = None) -> Sent:
        """Replace the atom's description, in Turtle, and its sockets; without `sockets` it keeps those it has.

        Partners are notified; connections of removed sockets are closed.
        """
        named = self.sockets if sockets is None else _socket_uris(self.atom, sockets)
        description = read_description(content, self.atom) if content is not None else ()
        sent = await self._act(lambda owner, now: owner.replace(named, now, description))
        if sent.ok and sent.is_final:
            self._home.set_sockets(named)
        return sent

    async def activate(self) -> Sent:
        """Let an inactive atom take connections again."""
        return await self._change(MessageType.ACTIVATE)

    async def deactivate(self) -> Sent:
        """Close the atom's connections and take no new ones until it is activated."""
        return await self._change(MessageType.DEACTIVATE)

    async def delete(self) -> Sent:
        """Delete the atom for good: its connections are closed, its description is removed; its log stays."""
        return await self._change(MessageType.DELETE)

    async def read(self, uri: str) -> bytes:
        """A document of a conversation in TriG, which a node gives to its participants only; needs no connection."""
        host, path, _ = uri.partition(NODE_PATH)
        if not path:
            raise UsageError(f"{uri[:80]!r} is not at a node, expected https://HOST{NODE_PATH}/...")
        await check_node(host + path, self._home.file.authority, self._timeout_s, self._wait_s)
        data = await self._home.read_signed(uri)
        if data is None:
            raise DovetailError(f"{uri} does not exist, or this atom may not read it")
        return data

    def conversation(self, with_: str | None = None) -> list[Message]:
        """The messages this owner has, of all conversations or with one socket; each with the state of its chain."""
        return self._messages(read_conversation(self.atom, self._bodies(), with_))

    async def log(self, with_: str | None = None, *, offline: bool = False) -> ConversationLog:
        """The same with a check of every address, signature and reference; needs no connection.

        Fetches the keys of signers that are not in `home` yet, unless `offline`.
        """
        text = read_conversation(self.atom, self._bodies(), with_)
        if not offline:
            await self._home.fetch_keys(text.signers)
        findings = text.check(self._home.find_keys(text.signers))
        return ConversationLog(
            messages=tuple(self._messages(text)), findings=tuple(findings), size=text.size, _text=text
        )

    def _bodies(self) -> list[bytes]:
        return self._home.read_messages() if self._wire is None else read_bodies(self._wire.journal)

    def _messages(self, text: ConversationText) -> list[Message]:
        return [self._message(message, state.value) for message, state in text.messages()]

    def _find(self, names: Sequence[str]) -> list[str]:
        if not names:
            return []
        uris = {parse_address(uri): uri for uri in read_conversation(self.atom, self._bodies()).uris}
        found: list[str] = []
        for text in names:
            try:
                name = parse_prefix(text)
                found.append(uris[name.choose([address for address in uris if name.matches(address)])])
            except ValueError as error:
                raise UsageError(str(error)) from None
            except LookupError as error:
                raise DovetailError(str(error)) from None
        return found

    async def _change(self, kind: MessageType) -> Sent:
        return await self._act(lambda owner, now: owner.change(kind, now))

    async def _act(self, action: Callable[[Owner, int], WireMessage]) -> Sent:
        """Let the owner make a message, and wait for its outcome."""
        if self._wire is None:
            raise Closed("the client is not connected: use `async with`")
        self._check_loop()
        message = await self._wire.say(action, self._timeout_s)
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
            stalled = self._wire.journal.stalled
            reason = str(stalled) if stalled else f"{self.node} did not answer within {self._timeout_s:g} s"
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
        if text is not None and not is_utf8(text):
            raise UsageError("the text cannot be encoded in UTF-8")
        own = f"{self.atom}#{socket}"
        check_target(to)
        check_target(own)
        return await self._act(lambda owner, now: owner.send_message(kind, own, to, now, text, forward))

    async def _next_message(self) -> Message | None:
        return await self._unread.get()

    def _take_missed(self) -> int:
        return self._unread.take_missed()

    def _observe(self, event: Event) -> None:
        if not isinstance(event, MessageReceived) or self._wire is None:
            return
        raw = self._wire.journal.raw(parse_address(event.uri))
        if raw is None:
            return  # it expired and was purged while we were away
        self._unread.put(self._message(decode_message(raw), None))

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


def check_target(socket: str) -> None:
    """Raise UsageError unless this is the URI of an atom's socket."""
    try:
        check_socket_uri(check_text(socket, "socket"))
    except RemoteProtocolError as error:
        raise UsageError(error.detail) from None
    why = find_iri_error(socket)
    if why is not None:
        raise UsageError(f"socket {socket[:200]!r} is not a URI: {why}")


def _atom_file(atom: str, sockets: Sequence[str], authority: Path | str | None) -> AtomFile:
    ca = None if authority is None else str(Path(authority).absolute())
    return AtomFile(atom, _socket_uris(atom, sockets), ca)


def _socket_uris(atom: str, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise UsageError(f"sockets {names[:80]!r}, expected a sequence of names")
    uris = tuple(f"{atom}#{name}" for name in names)
    for uri in uris:
        check_target(uri)
    return uris


async def check_node(node: str, authority: str | None, timeout_s: float, wait_s: float = 0) -> None:
    """Check that a node answers at this URI; raises ConnectFailed at once, or after `wait_s`."""
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
