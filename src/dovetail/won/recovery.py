"""Rebuilds a node's ledger from its journal.

The journal has the messages in the order in which they were received or made, so replaying them through the ledger's
`store_*` calls restores the state. It also gives what other nodes have yet to answer: every message with s1 and without
the other node's response. A hop that cannot be used is recorded and skipped, with everything that depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.model.address import Address, won_uri
from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Hop, Reason, Stage
from dovetail.won import vocabulary as v
from dovetail.won.chain import Role, is_by_senders_node, is_undeliverable_notice, role_of
from dovetail.won.ledger import Ledger
from dovetail.won.message import Message, decode_stored, uri_address
from dovetail.won.rules import UNLOGGED_TYPES, is_genuine
from dovetail.won.vocabulary import MessageType


class Recovery:
    """Replays hops into an empty ledger; `unreadable` lists the skipped hops, each with the reason."""

    def __init__(self, ledger: Ledger) -> None:
        self.forwarded: set[Address] = set()
        self.unreadable: list[tuple[int, str]] = []
        self._ledger = ledger
        self._messages: dict[str, Message] = {}
        self._firsts: dict[str, Message] = {}
        self._refusals: dict[Address, Reason] = {}
        self._entries: dict[tuple[str, Address], int] = {}

    def replay(self, hops: Iterable[Hop]) -> None:
        """Replay all hops, oldest first."""
        for hop in hops:
            if hop.raw is not None:
                self._ledger.archive.put(hop.message, hop.raw)
            match hop.stage:
                case Stage.ACCEPTED | Stage.CREATED:
                    try:
                        self._take(hop)
                    except RemoteProtocolError as error:
                        self._leave_out(hop, error.detail)
                    except KeyError as error:
                        self._leave_out(hop, f"{error.args[0]} is missing, which it depends on")
                case Stage.REJECTED if hop.reason is not None:
                    self._refusals[hop.message] = hop.reason
                case Stage.DELIVERED | Stage.ECHOED:
                    self._note_delivery(hop)
                case Stage.FORWARDED:
                    self.forwarded.add(hop.message)
                case _:
                    pass

    def _leave_out(self, hop: Hop, detail: str) -> None:
        self.unreadable.append((hop.seq, detail))
        self._ledger.unreadable.add(won_uri(hop.message))

    def _take(self, hop: Hop) -> None:
        raw = hop.raw or self._ledger.archive.raw(hop.message)
        if raw is None:
            raise RemoteProtocolError(Reason.MALFORMED, "its message has no bytes")
        message = decode_stored(raw)
        if not message.is_response:
            self._messages[message.uri] = message
        elif hop.stage is Stage.CREATED:
            self._take_own_response(message)
        elif is_by_senders_node(message):
            self._firsts[message.responding_to or ""] = message
        elif message.responding_to in self._ledger.sent or message.responding_to in self._ledger.undeliverable:
            self._acknowledge(message)

    def _take_own_response(self, response: Message) -> None:
        uri = response.responding_to or ""
        address = uri_address(uri)
        if is_undeliverable_notice(response):
            self._note_entry(self._ledger.store_undeliverable(response).connection.atom)
            return
        if response.type is MessageType.FAILURE:
            self._refuse(uri, address, response)
            return
        message = self._messages[uri]
        role = role_of(response)
        if role is Role.ATOM:
            self._note_entry(self._ledger.store_atom_specific(message, response).uri)
            del self._messages[uri]
        elif role is Role.FIRST:
            self._note_entry(self._ledger.store_first(message, response).atom)
            if v.node_of_atom(message.recipient or "") == v.node_of_atom(message.sender or ""):
                self._firsts[uri] = response
            else:
                del self._messages[uri]
        else:
            self._note_entry(self._ledger.store_second(message, self._firsts.pop(uri), response).atom)
            if uri in self._ledger.sent:
                self._acknowledge(response)
            del self._messages[uri]

    def _refuse(self, uri: str, address: Address | None, response: Message) -> None:
        self._messages.pop(uri, None)
        first = is_by_senders_node(response)
        reason = self._refusals.get(address) if address else None
        if address is None or reason is None or not is_genuine(reason, is_first=first):
            return
        if response.responding_to_type in UNLOGGED_TYPES:
            return
        atom = self._ledger.store_refusal(address, response, is_first=first)
        if atom is not None:
            self._note_entry(atom.uri)
        if not first and uri in self._ledger.sent:
            self._acknowledge(response)

    def _acknowledge(self, response: Message) -> None:
        self._note_entry(self._ledger.store_acknowledgement(response).connection.atom)

    def _note_entry(self, atom: str) -> None:
        log = self._ledger.atoms[atom].log
        self._entries[atom, log[-1][-1]] = len(log) - 1

    def _note_delivery(self, hop: Hop) -> None:
        position = self._entries.pop((hop.counterpart or "", hop.message), None)
        if position is not None:
            self._ledger.atoms[hop.counterpart or ""].delivered.add(position)
