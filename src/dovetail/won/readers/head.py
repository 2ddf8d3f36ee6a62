"""Fast reader for the two most common messages: a node's SuccessResponse, and a text from one socket to another.

Checking many receipts needs only the address of a message and what it names. All lines of such a message in canonical
N-Quads, as stored in journals and receipts, are one pattern: the closed lists of `envelope` written out for its type,
in the only possible order. Anything that does not match it exactly is left to `decode_message`, which also says what is
wrong with it. Both give the same result for what is accepted here: `tests/properties/test_won_head.py`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from dovetail.model.address import Address
from dovetail.model.errors import RemoteProtocolError
from dovetail.won import vocabulary as v
from dovetail.won.canonical import WIRE
from dovetail.won.readers.blocks import IRI
from dovetail.won.readers.lines import PLAIN_LITERAL, rename_text
from dovetail.won.vocabulary import MessageType

MAX_PREVIOUS = 1000
"""Messages with more predecessors go to the general reader; a node writes a handful."""
_CONTENT = "#content"


class Head(NamedTuple):
    """The claimed URI of a message, the address of its content, and what it names."""

    uri: str
    address: Address
    responding_to: str | None = None
    previous: tuple[str, ...] = ()


def read_head(raw: bytes) -> Head | None:
    """The head of a message of these two kinds in canonical N-Quads; None for anything else."""
    if len(raw) > WIRE.message_bytes:
        return None
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    match = _match_response(text)
    if match is not None:
        uri, atom, named, recipient, responding_to, sender = match.groups()
        previous = _find_uris(named)
        # Canonical lines ascend. They do so under the placeholder too, if none of several in a row names the message.
        if not _ascend(previous) or uri in previous:
            return None
    else:
        match = _match_text(text)
        if match is None:
            return None
        uri, recipient, sender = match.groups()
        atom, responding_to, previous = None, None, []
    if uri == v.SELF or not _are_well_formed(atom, recipient, sender):
        return None
    address = Address(hashlib.sha256(rename_text(text, uri, v.SELF).encode()).digest())
    return Head(uri, address, responding_to, tuple(sorted(previous)))


def _ascend(uris: list[str]) -> bool:
    """True if the lines that differ only in these URIs are in order and unique; and not too many."""
    return len(uris) <= MAX_PREVIOUS and all(f"{one}>" < f"{other}>" for one, other in pairwise(uris))


def _are_well_formed(atom: str | None, *sockets: str | None) -> bool:
    try:
        if atom is not None:
            v.check_atom_uri(atom)
        for socket in sockets:
            if socket is not None:
                v.check_socket_uri(socket)
    except RemoteProtocolError:
        return False
    return True


def _line(predicate: str, target: str, graph: str = v.ENVELOPE, subject: str = "") -> str:
    """One line about the message or one of its graphs; `target` is a pattern."""
    return f"<(?P=uri){subject}> {re.escape(predicate)} {target} <(?P=uri){graph}> \\.\n"


def _any_of(terms: Iterable[str]) -> str:
    return f"(?:{'|'.join(map(re.escape, terms))})"


def _optional(line: str) -> str:
    return f"(?:{line})?"


def _begin(signed_graphs: Iterable[str]) -> str:
    """The lines about the two closed graphs, before the type of the message."""
    return "".join(
        (
            f"<(?P<uri>wm:/[A-Za-z0-9]+){v.ENVELOPE}> {re.escape(v.RDF_TYPE)} {re.escape(v.T_ENVELOPE_GRAPH)} ",
            f"<(?P=uri){v.ENVELOPE}> \\.\n",
            _line(v.P_HASH, PLAIN_LITERAL, v.SIGNATURE, v.SIGNATURE),
            _line(v.P_FINGERPRINT, PLAIN_LITERAL, v.SIGNATURE, v.SIGNATURE),
            _line(v.P_SIGNATURE_VALUE, PLAIN_LITERAL, v.SIGNATURE, v.SIGNATURE),
            *(_line(v.P_SIGNED_GRAPH, f"<(?P=uri){graph}>", v.SIGNATURE, v.SIGNATURE) for graph in signed_graphs),
            _line(v.P_SIGNER, IRI, v.SIGNATURE, v.SIGNATURE),
            _line(v.RDF_TYPE, _any_of(v.DIRECTIONS_BY_TERM)),
        )
    )


_CAPTURED_IRI = f"<({IRI[1:-1]})>"
_ENVELOPE = _line(v.P_ENVELOPE, f"<(?P=uri){v.ENVELOPE}>")
_VERSION = _line(v.P_VERSION, f'"{re.escape(v.PROTOCOL_VERSION)}"')
_RECIPIENT = _line(v.P_RECIPIENT_SOCKET, _CAPTURED_IRI)
_SENDER = _line(v.P_SENDER_SOCKET, _CAPTURED_IRI)
_PREVIOUS = _line(v.P_PREVIOUS, "<wm:/[A-Za-z0-9]+>")
_END = _line(v.P_SIGNATURE, f"<(?P=uri){v.SIGNATURE}>", v.SIGNATURE) + _line(
    v.P_TIMESTAMP, f'"[0-9]{{1,18}}"{re.escape(v.XSD_LONG)}'
)
_find_uris = re.compile(f"{re.escape(v.P_PREVIOUS)} <(wm:/[A-Za-z0-9]+)>").findall
_match_response = re.compile(
    "".join(
        (
            _begin([v.ENVELOPE]),
            _optional(_line(v.P_ATOM, _CAPTURED_IRI)),
            _optional(_line(v.P_CONNECTION, IRI)),
            _ENVELOPE,
            _line(v.P_MESSAGE_TYPE, re.escape(v.TYPE_TERMS[MessageType.SUCCESS])),
            f"((?:{_PREVIOUS})*)",
            _VERSION,
            _optional(_RECIPIENT),
            _line(v.P_RESPONDING_TO, _CAPTURED_IRI),
            _line(v.P_RESPONDING_TO_TYPE, _any_of(v.TYPES_BY_TERM)),
            _optional(_SENDER),
            _END,
        )
    )
).fullmatch
_match_text = re.compile(
    "".join(
        (
            _begin([_CONTENT, v.ENVELOPE]),
            _line(v.P_TEXT, PLAIN_LITERAL, _CONTENT),
            _line(v.P_CONTENT, f"<(?P=uri){_CONTENT}>"),
            _ENVELOPE,
            _line(v.P_MESSAGE_TYPE, re.escape(v.TYPE_TERMS[MessageType.CONNECTION])),
            _VERSION,
            _RECIPIENT,
            _SENDER,
            _END,
        )
    )
).fullmatch
