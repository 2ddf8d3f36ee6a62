"""Builds messages: under the placeholder, signed, addressed, renamed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import pyoxigraph as ox

from dovetail.model.address import address_of, won_uri
from dovetail.model.canonical_base64 import encode_base64
from dovetail.model.errors import LocalProtocolError, RemoteProtocolError
from dovetail.won import vocabulary as v
from dovetail.won.canonical import (
    Quad,
    Renaming,
    Statement,
    canonical_lines,
    encode_graphs,
    has_blank_nodes,
    split_lines,
)
from dovetail.won.message import Message, assemble, check_size
from dovetail.won.signing import PublicKey, SigningKey, key_quads, sign_digest
from dovetail.won.vocabulary import Direction, MessageType

MAX_CONTENT_BYTES = 512 * 1024
_SELF = f"<{v.SELF}>"
_ENVELOPE = f"<{v.SELF}{v.ENVELOPE}>"
_SIGNATURE = f"<{v.SELF}{v.SIGNATURE}>"
CONTENT_GRAPH = f"{v.SELF}#content"
KEY_GRAPH = f"{v.SELF}{v.KEY}"


def compose(
    *,
    type: MessageType,  # noqa: A002 - the protocol's own word
    direction: Direction,
    signer: str,
    key: SigningKey,
    timestamp_ms: int,
    envelope: Iterable[tuple[str, str]] = (),
    content: Iterable[Quad] = (),
) -> Message:
    """A signed, addressed message. `envelope` is (property, term) pairs, `content` quads in graphs `wm:/SELF#x`."""
    contents = list(content)
    if has_blank_nodes(contents):
        # Blank node labels depend on the statements about them, which are all in the contents.
        contents = split_lines(canonical_lines(contents))
    named = sorted({quad[3] for quad in contents})
    signed = {_ENVELOPE: _build_envelope(type, direction, timestamp_ms, envelope, named)}
    for s, p, o, graph in contents:
        signed.setdefault(graph, []).append((s, p, o))
    digest = address_of(encode_graphs(signed.items()))
    proof = [
        (_SELF, v.P_SIGNATURE, _SIGNATURE),
        (_SIGNATURE, v.P_SIGNER, f"<{signer}>"),
        *((_SIGNATURE, v.P_SIGNED_GRAPH, graph) for graph in (_ENVELOPE, *named)),
        (_SIGNATURE, v.P_HASH, f'"{encode_base64(digest)}"'),
        (_SIGNATURE, v.P_SIGNATURE_VALUE, f'"{sign_digest(key, digest)}"'),
        (_SIGNATURE, v.P_FINGERPRINT, f'"{key.public.fingerprint}"'),
    ]
    address = address_of(encode_graphs([*signed.items(), (_SIGNATURE, proof)]))
    uri = won_uri(address)
    names = Renaming(v.SELF, uri)
    graphs = {
        names[graph]: [(names[s], p, names[o]) for s, p, o in statements]
        for graph, statements in (*signed.items(), (_SIGNATURE, proof))
    }
    try:
        message = assemble(uri, graphs, (address, digest), None)
        check_size(message)
        return message
    except RemoteProtocolError as error:
        raise LocalProtocolError(f"cannot build this message: {error.detail}") from None


def _build_envelope(
    kind: MessageType,
    direction: Direction,
    timestamp_ms: int,
    envelope: Iterable[tuple[str, str]],
    contents: list[str],
) -> list[Statement]:
    pairs = [
        (v.RDF_TYPE, v.DIRECTION_TERMS[direction]),
        (v.P_ENVELOPE, _ENVELOPE),
        (v.P_MESSAGE_TYPE, v.TYPE_TERMS[kind]),
        (v.P_TIMESTAMP, f'"{timestamp_ms}"{v.XSD_LONG}'),
        (v.P_VERSION, f'"{v.PROTOCOL_VERSION}"'),
        *((v.P_CONTENT, graph) for graph in contents),
        *envelope,
    ]
    statements = [(_SELF, name, term) for name, term in pairs]
    return [*statements, (_ENVELOPE, v.RDF_TYPE, v.T_ENVELOPE_GRAPH)]


def literal(text: str) -> str:
    """A plain string literal as a canonical term."""
    return str(ox.Literal(text))


def text_content(text: str) -> list[Quad]:
    """A content graph with one `con:text`."""
    return [(_SELF, v.P_TEXT, literal(text), f"<{CONTENT_GRAPH}>")]


def atom_content(atom: str, sockets: Iterable[str], key: PublicKey, description: Iterable[Quad] = ()) -> list[Quad]:
    """The contents of a Create message: sockets and description in `#content`, the public key in `#key`."""
    graph = f"<{CONTENT_GRAPH}>"
    quads = [(f"<{atom}>", v.P_SOCKET, f"<{socket}>", graph) for socket in sockets]
    return [*quads, *((s, p, o, graph) for s, p, o, _ in description), *key_quads(atom, key, KEY_GRAPH)]


def read_description(turtle: bytes, base: str) -> list[Quad]:
    """Statements from a Turtle document, as content; raises LocalProtocolError."""
    if len(turtle) > MAX_CONTENT_BYTES:
        raise LocalProtocolError(f"content of {len(turtle)} bytes, expected at most {MAX_CONTENT_BYTES}")
    try:
        triples = list(ox.parse(turtle, ox.RdfFormat.TURTLE, base_iri=base))
    except (SyntaxError, ValueError) as error:
        raise LocalProtocolError(f"content is not Turtle: {error}") from None
    graph = f"<{CONTENT_GRAPH}>"
    return [(str(t.subject), str(t.predicate), str(t.object), graph) for t in triples]


def sockets_of(message: Message) -> frozenset[str]:
    """The sockets that a Create or Replace message declares for its atom."""
    atom = f"<{message.atom}>"
    return frozenset(o[1:-1] for s, p, o, _ in message.quads if p == v.P_SOCKET and s == atom and o[0] == "<")


class Answerable(Protocol):
    """What a response needs from the message it answers."""

    @property
    def uri(self) -> str: ...
    @property
    def type(self) -> MessageType: ...


def respond(
    message: Answerable,
    *,
    success: bool,
    signer: str,
    key: SigningKey,
    timestamp_ms: int,
    atom: str | None = None,
    connection: str | None = None,
    sender_socket: str | None = None,
    recipient_socket: str | None = None,
    previous: Iterable[str] = (),
    text: str | None = None,
) -> Message:
    """A response of a node. FailureResponses carry the error as con:text and never previousMessage."""
    pairs = [
        (v.P_RESPONDING_TO, f"<{message.uri}>"),
        (v.P_RESPONDING_TO_TYPE, v.TYPE_TERMS[message.type]),
        *((v.P_PREVIOUS, f"<{uri}>") for uri in previous),
    ]
    for term, value in (
        (v.P_ATOM, atom),
        (v.P_CONNECTION, connection),
        (v.P_SENDER_SOCKET, sender_socket),
        (v.P_RECIPIENT_SOCKET, recipient_socket),
    ):
        if value is not None:
            pairs.append((term, f"<{value}>"))
    return compose(
        type=MessageType.SUCCESS if success else MessageType.FAILURE,
        direction=Direction.SYSTEM,
        signer=signer,
        key=key,
        timestamp_ms=timestamp_ms,
        envelope=pairs,
        content=text_content(text) if text is not None else (),
    )


def socket_pair(sender_socket: str, recipient_socket: str) -> list[tuple[str, str]]:
    """The envelope of a connection-specific message."""
    return [(v.P_SENDER_SOCKET, f"<{sender_socket}>"), (v.P_RECIPIENT_SOCKET, f"<{recipient_socket}>")]
