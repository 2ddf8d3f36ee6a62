"""A conversation as readable text: who said what, when, how far each message got, and whether the log is intact."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from dovetail.model.errors import RemoteProtocolError
from dovetail.model.times import time_text
from dovetail.won import vocabulary as v
from dovetail.won.chain import Chain, ChainState, role_of
from dovetail.won.integrity import LogFinding, check_conversation
from dovetail.won.message import Message, decode_message
from dovetail.won.signing import PublicKey
from dovetail.won.trig import encode_bundle
from dovetail.won.vocabulary import MessageType

_SHOWN_CHARS = 20
"""Characters of an address to show: enough to look it up."""
_MARKS = {"complete": "✓✓", "awaiting_recipient": "✓ ", "awaiting_sender": "… ", "failed": "✗ ", "atom": "  "}


class ConversationText:
    """The messages of an owner's copy, grouped by the other side's socket."""

    def __init__(self, atom: str, raws: list[bytes], messages: list[Message]) -> None:
        self._atom = atom
        self._raws = raws
        self._all = messages
        self._messages = [m for m in messages if not m.is_response]
        self._chains: dict[str, Chain] = {m.uri: Chain(type=m.type) for m in self._messages}
        self._details: dict[str, str | None] = {}
        for response in messages:
            if response.is_response:
                self._join(response)
        self.signers = {m.signer for m in messages}

    def _join(self, response: Message) -> None:
        chain = self._chains.get(response.responding_to or "")
        if chain is None:
            return
        chain.add(role_of(response), response.uri)
        if response.type is MessageType.FAILURE:
            self._details[response.responding_to or ""] = response.text

    @property
    def size(self) -> int:
        """Number of messages and responses, unreadable ones included."""
        return len(self._raws)

    def check(self, keys: Mapping[str, PublicKey]) -> list[LogFinding]:
        """What is wrong with the log."""
        return check_conversation(self._raws, keys)

    def messages(self) -> Iterator[tuple[Message, ChainState]]:
        """Each message with how far it got, oldest first."""
        return ((message, self._chains[message.uri].state) for message in self._messages)

    def records(self) -> Iterator[dict[str, object]]:
        """One record per message, oldest first."""
        for message in self._messages:
            chain = self._chains[message.uri]
            record = {
                "address": message.uri,
                "type": message.type.value,
                "sender": message.sender_socket or message.atom,
                "targets": [message.recipient_socket] if message.recipient_socket else None,
                "at_us": message.timestamp_ms * 1000,
                "data": message.text,
                "forwarded": list(message.forwarded) or None,
                "state": chain.state.value,
                "s1": chain.first,
                "s2": chain.second,
                "failure": chain.failure,
                "failed": self._details.get(message.uri),
            }
            yield {name: value for name, value in record.items() if value is not None}

    def dataset(self) -> bytes:
        """All messages and responses in full, in one TriG dataset."""
        return encode_bundle(self._all)

    @property
    def uris(self) -> list[str]:
        """The messages, by name."""
        return [message.uri for message in self._messages]

    def lines(self) -> Iterator[str]:
        """The same as text: `✓` stored by the sender's node, `✓✓` by both, `✗` failed, `…` not stored yet."""
        for message in self._messages:
            state = self._chains[message.uri].state.value
            who = "me" if message.sender == self._atom else v.atom_of_socket(message.sender_socket or "?")
            text = message.text or ""
            failed = self._details.get(message.uri)
            begin = f"{time_text(message.timestamp_ms * 1000)}  {message.uri[:_SHOWN_CHARS]}  {_MARKS[state]} {who}"
            yield f"{begin}  {message.type.value}  {text}" + (f"  ({failed})" if failed else "")


def read_conversation(atom: str, raws: Iterable[bytes], target: str | None = None) -> ConversationText:
    """Read the messages of a log, or only the conversation with one socket."""
    kept: list[tuple[bytes, Message | None]] = []
    for raw in raws:
        try:
            kept.append((raw, decode_message(raw)))
        except RemoteProtocolError:
            kept.append((raw, None))
    wanted = {m.uri for _, m in kept if m and target in (m.sender_socket, m.recipient_socket)} if target else None
    if wanted is not None:
        kept = [(raw, m) for raw, m in kept if m is None or m.uri in wanted or m.responding_to in wanted]
    return ConversationText(atom, [raw for raw, _ in kept], [m for _, m in kept if m is not None])
