"""A message: RDF graphs with one URI, decoded into a typed record with its true address and signed digest.

Decoding is strict: each type has a closed list of envelope properties, content graphs must be listed and may not use
the envelope's namespace, the default graph is empty. Decoding does not decide whether the message is genuine:
`verify_address` here and `verify_signature` in `signing` do, from what decoding computed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from dovetail.errors import RemoteProtocolError
from dovetail.hop import Address, Reason, parse_address, won_uri
from dovetail.won import vocabulary as v
from dovetail.won.canonical import (
    MAX_DATASET_BYTES,
    MAX_MESSAGE_QUADS,
    Quad,
    canonical_lines,
    digest_of,
    encode_lines,
    has_blank_nodes,
    read_lines,
    rename,
    split_lines,
)
from dovetail.won.vocabulary import Direction, MessageType

MAX_MESSAGES_PER_DATASET = 16
MAX_TEXT_CHARS = 256


class Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One decoded message. `uri` is what it calls itself; `address` and `true_uri` are computed from its content.

    `raw` are its own graphs as canonical N-Quads under its URI: what journals keep.
    """

    uri: str
    raw: bytes
    address: Address
    true_uri: str
    signed_digest: bytes
    type: MessageType
    direction: Direction
    timestamp_ms: int
    atom: str | None = None
    sender_socket: str | None = None
    recipient_socket: str | None = None
    connection: str | None = None
    responding_to: str | None = None
    responding_to_type: MessageType | None = None
    previous: tuple[str, ...] = ()
    forwarded: tuple[str, ...] = ()
    contents: tuple[str, ...] = ()
    after: int | None = None
    signer: str
    hash: str
    signature: str
    fingerprint: str
    quads: tuple[Quad, ...]

    @property
    def sender(self) -> str | None:
        """The atom that sends it, or whose node sends it."""
        return v.atom_of_socket(self.sender_socket) if self.sender_socket else self.atom

    @property
    def recipient(self) -> str | None:
        """The atom it is meant for."""
        return v.atom_of_socket(self.recipient_socket) if self.recipient_socket else self.atom

    @property
    def is_response(self) -> bool:
        """True for SuccessResponse and FailureResponse."""
        return self.type in v.RESPONSE_TYPES

    @property
    def text(self) -> str | None:
        """The first `con:text` of its contents, unescaped."""
        texts = [o for _, p, o, _ in self.quads if p == v.P_TEXT]
        return literal_value(min(texts)) if texts else None


class Bundle(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The messages of one dataset; in frames to an owner also where they stand in the atom's `log`, and its `size`."""

    messages: tuple[Message, ...]
    position: int | None = None
    size: int | None = None
    log: str | None = None


def decode_message(raw: bytes) -> Message:
    """The one message in `raw` (N-Quads or TriG); raises RemoteProtocolError."""
    messages = decode_bundle(raw).messages
    if len(messages) != 1:
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"found {len(messages)} messages, expected 1")
    return messages[0]


def decode_bundle(
    data: bytes, *, max_bytes: int = MAX_DATASET_BYTES, known: Mapping[str, Message] | None = None
) -> Bundle:
    """All messages of a dataset, each after the message it responds to; raises RemoteProtocolError.

    Messages in `known` with the very same bytes are not decoded again.
    """
    graphs: dict[str, list[str]] = {}
    for line in read_lines(data, max_bytes=max_bytes):
        graphs.setdefault(line[line.rfind(" ", 0, -2) + 1 : -2], []).append(line)
    groups: dict[str, list[str]] = {}
    place: dict[str, int] = {}
    log: str | None = None
    for graph, lines in graphs.items():
        if graph.startswith("<" + v.MESSAGE_SCHEME):
            groups.setdefault(v.message_of_graph(graph[1:-1]), []).extend(lines)
            continue
        for s, p, o, g in split_lines(lines):
            if p not in (v.P_POSITION, v.P_SIZE) or p in place:
                raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"graph {g[:200] or 'default'} belongs to no message")
            place[p] = _decode_long(o, "position")
            log = _iri(s, "position")
    if not groups:
        raise RemoteProtocolError(Reason.MALFORMED, "the dataset holds no message")
    if len(groups) > MAX_MESSAGES_PER_DATASET:
        raise RemoteProtocolError(
            Reason.TOO_LARGE, f"{len(groups)} messages in a dataset, expected at most {MAX_MESSAGES_PER_DATASET}"
        )
    messages = []
    for uri, lines in groups.items():
        before = known.get(uri) if known else None
        if before is not None and before.raw == ("\n".join(sorted(set(lines))) + "\n").encode():
            messages.append(before)
        else:
            messages.append(decode_lines(uri, lines))
    return Bundle(
        messages=tuple(sorted(messages, key=_order)),
        position=place.get(v.P_POSITION),
        size=place.get(v.P_SIZE),
        log=log,
    )


def _order(message: Message) -> tuple[int, bool, str]:
    """m before its responses, s1 (which speaks for m's sender alone) before s2."""
    is_second = message.is_response and message.sender_socket != message.recipient_socket
    return (int(message.is_response), is_second, message.uri)


def decode_quads(uri: str, quads: Iterable[Quad]) -> Message:
    """One message from its quads under its own URI; raises RemoteProtocolError."""
    return decode_lines(uri, encode_lines(quads))


def decode_lines(uri: str, lines: list[str], digests: tuple[Address, bytes] | None = None) -> Message:
    """One message from its N-Quads lines under its own URI; raises RemoteProtocolError.

    `digests` are its address and signed digest, where they are known because this party has just made the message.
    """
    if len(lines) > MAX_MESSAGE_QUADS:
        raise RemoteProtocolError(Reason.TOO_LARGE, f"{len(lines)} quads, expected at most {MAX_MESSAGE_QUADS}")
    if uri == v.SELF:
        raise RemoteProtocolError(Reason.WRONG_ADDRESS, f"{v.SELF} is a placeholder, not an address")
    lines = sorted(set(lines))
    quads = split_lines(lines)
    text = "\n".join(lines)
    is_blank = "_:" in text and has_blank_nodes(quads)
    if is_blank:
        lines = canonical_lines(quads)
        quads, text = split_lines(lines), "\n".join(lines)
    envelope, signature, contents = _sort_graphs(uri, quads)
    fields = _decode_envelope(uri, envelope, contents)
    if digests is not None:
        address, signed_digest = digests
    elif is_blank or any(uri in o for _, _, o, _ in quads if o[0] == '"'):
        address, signed_digest = compute_address(rename(quads, uri, v.SELF))
    else:
        # No literal holds the text of the URI, so that replacing text is renaming terms.
        under_self = text.replace(f"<{uri}>", f"<{v.SELF}>").replace(f"<{uri}#", f"<{v.SELF}#")
        address, signed_digest = _digest_lines(sorted(under_self.split("\n")))
    return Message(
        uri=uri,
        raw=(text + "\n").encode(),
        address=address,
        true_uri=won_uri(address),
        signed_digest=signed_digest,
        quads=tuple(quads),
        **fields,  # type: ignore[arg-type]
        **_decode_signature(uri, signature, contents),  # type: ignore[arg-type]
    )


def compute_address(quads_under_self: list[Quad]) -> tuple[Address, bytes]:
    """The address of a message built under the placeholder, and the digest of all its graphs but the signature."""
    return _digest_lines(canonical_lines(quads_under_self))


def _digest_lines(lines: list[str]) -> tuple[Address, bytes]:
    mark = f" <{v.SELF}{v.SIGNATURE}> ."
    return digest_of(lines), digest_of([line for line in lines if not line.endswith(mark)])


def verify_address(message: Message) -> bool:
    """True if the message's URI is the address of its content."""
    return message.uri == message.true_uri


def uri_address(uri: str) -> Address | None:
    """The 32 bytes in a message URI, None if it is not a SHA-256 one (as in logs of the reference implementation)."""
    try:
        return parse_address(uri) if uri.startswith(v.MESSAGE_SCHEME) else None
    except ValueError:
        return None


def _sort_graphs(uri: str, quads: list[Quad]) -> tuple[list[Quad], list[Quad], dict[str, None]]:
    """Envelope quads, signature quads and the names of the content graphs."""
    envelope_graph, signature_graph = f"<{uri}{v.ENVELOPE}>", f"<{uri}{v.SIGNATURE}>"
    envelope, signature = [], []
    contents: dict[str, None] = {}
    for quad in quads:
        graph = quad[3]
        if not graph:
            raise RemoteProtocolError(Reason.INVALID_SCHEMA, "the default graph is not empty")
        if graph == envelope_graph:
            envelope.append(quad)
        elif graph == signature_graph:
            signature.append(quad)
        else:
            contents[graph] = None
            _check_content(quad)
    if not envelope:
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{uri} has no envelope graph")
    if f"<{uri}>" in contents:
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{uri} names a graph without a fragment")
    return envelope, signature, contents


def _check_content(quad: Quad) -> None:
    subject, predicate, target, _ = quad
    reserved = "<" + v.MSG
    datatype = target[target.rfind('"') :] if target[0] == '"' else target
    if predicate.startswith(reserved) or subject.startswith(reserved) or reserved in datatype:
        raise RemoteProtocolError(
            Reason.RESERVED_NAMESPACE, f"content uses {predicate[:120]} of the envelope's namespace"
        )


def _decode_envelope(uri: str, envelope: list[Quad], contents: dict[str, None]) -> dict[str, object]:
    values = _collect(uri, envelope)
    kind = v.TYPES_BY_TERM.get(values.get(v.P_MESSAGE_TYPE, [""])[0])
    if kind is None:
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{uri} has no known messageType")
    check_properties(kind, values)
    if values[v.P_VERSION] != [f'"{v.PROTOCOL_VERSION}"']:
        raise RemoteProtocolError(Reason.UNSUPPORTED_VERSION, f"protocolVersion {values[v.P_VERSION][0][:40]}")
    direction = v.DIRECTIONS_BY_TERM.get(values[v.RDF_TYPE][0])
    if direction is None or values[v.P_ENVELOPE] != [f"<{uri}{v.ENVELOPE}>"]:
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{uri} has a wrong direction or envelope")
    if set(values.get(v.P_CONTENT, ())) != set(contents):
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{uri} does not list exactly the content graphs it has")
    answered = v.TYPES_BY_TERM.get(values.get(v.P_RESPONDING_TO_TYPE, [""])[0])
    if (answered is None) == (kind in v.RESPONSE_TYPES):
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{uri} responds to an unknown messageType")
    fields: dict[str, object] = {
        "type": kind,
        "direction": direction,
        "timestamp_ms": _decode_long(values[v.P_TIMESTAMP][0], "timestamp"),
        "responding_to_type": answered,
        "contents": tuple(sorted(graph[1:-1] for graph in contents)),
    }
    if v.P_AFTER in values:
        fields["after"] = _decode_long(values[v.P_AFTER][0], "after")
    return fields | _decode_references(values)


_SINGLE_REFERENCES = (("atom", v.P_ATOM), ("connection", v.P_CONNECTION), ("responding_to", v.P_RESPONDING_TO))
_SOCKET_REFERENCES = (("sender_socket", v.P_SENDER_SOCKET), ("recipient_socket", v.P_RECIPIENT_SOCKET))
_SET_REFERENCES = (("previous", v.P_PREVIOUS), ("forwarded", v.P_FORWARDED))


def _decode_references(values: dict[str, list[str]]) -> dict[str, object]:
    fields: dict[str, object] = {}
    for name, term in _SINGLE_REFERENCES:
        if term in values:
            fields[name] = _iri(values[term][0], name)
    for name, term in _SOCKET_REFERENCES:
        if term in values:
            fields[name] = v.check_socket_uri(_iri(values[term][0], name))
    for name, term in _SET_REFERENCES:
        if term in values:
            fields[name] = tuple(sorted([_iri(text, name) for text in values[term]]))
    if "atom" in fields:
        v.check_atom_uri(str(fields["atom"]))
    return fields


def _collect(uri: str, envelope: list[Quad]) -> dict[str, list[str]]:
    """Property -> objects of the message node; the only other statement allowed is the envelope graph's own type."""
    values: dict[str, list[str]] = {}
    subject, is_typed = f"<{uri}>", False
    own_type = (f"<{uri}{v.ENVELOPE}>", v.RDF_TYPE, v.T_ENVELOPE_GRAPH)
    for s, p, o, _ in envelope:
        if s == subject:
            values.setdefault(p, []).append(o)
        elif (s, p, o) == own_type:
            is_typed = True
        else:
            raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"the envelope speaks about {s[:200]}")
    if not is_typed:
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{uri}{v.ENVELOPE} is not declared an EnvelopeGraph")
    return values


def check_properties(kind: MessageType, values: dict[str, list[str]]) -> None:
    """The envelope has what its type requires, nothing that it does not list, and most of it once."""
    if not v.REQUIRED[kind] <= values.keys() <= v.ALLOWED[kind]:
        for term in sorted(v.REQUIRED[kind] - values.keys()):
            raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{kind} lacks {term}")
        for term in sorted(values.keys() - v.ALLOWED[kind]):
            raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{kind} may not carry {term[:200]}")
    for term, objects in values.items():
        if len(objects) > 1 and term not in v.REPEATABLE:
            raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{kind} carries {term} {len(objects)} times")


_SIGNATURE_PROPERTIES = frozenset({v.P_SIGNER, v.P_SIGNED_GRAPH, v.P_HASH, v.P_SIGNATURE_VALUE, v.P_FINGERPRINT})


def _decode_signature(uri: str, signature: list[Quad], contents: dict[str, None]) -> dict[str, object]:
    """The signature graph, closed as well: with anything free in it, others could make a second URI for the message."""
    if not signature:
        raise RemoteProtocolError(Reason.UNSIGNED, f"{uri} has no signature graph")
    node = f"<{uri}{v.SIGNATURE}>"
    values: dict[str, list[str]] = {}
    is_attached = False
    for s, p, o, _ in signature:
        if s == node and p in _SIGNATURE_PROPERTIES:
            values.setdefault(p, []).append(o)
        elif (s, p, o) == (f"<{uri}>", v.P_SIGNATURE, node):
            is_attached = True
        else:
            raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"the signature graph may not state {p[:200]}")
    if not is_attached or values.keys() != _SIGNATURE_PROPERTIES:
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{uri} has an incomplete signature")
    signed = values.pop(v.P_SIGNED_GRAPH)
    if any(len(objects) != 1 for objects in values.values()):
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{uri} has more than one signature")
    if set(signed) != {f"<{uri}{v.ENVELOPE}>", *contents}:
        raise RemoteProtocolError(Reason.UNSIGNED, f"{uri} is not signed over its envelope and all of its contents")
    return {
        "signer": _iri(values[v.P_SIGNER][0], "signer"),
        "hash": literal_value(values[v.P_HASH][0]),
        "signature": literal_value(values[v.P_SIGNATURE_VALUE][0]),
        "fingerprint": literal_value(values[v.P_FINGERPRINT][0]),
    }


def _iri(term: str, name: str) -> str:
    if not term.startswith("<"):
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{name} is not an IRI: {term[:80]}")
    return term[1:-1]


def _decode_long(term: str, name: str) -> int:
    digits = term[1 : -len(v.XSD_LONG) - 1]
    if not term.endswith('"' + v.XSD_LONG) or not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{name} is not a non-negative xsd:long: {term[:80]}")
    return int(digits)


_UNESCAPE = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\", "'": "'"}


def literal_value(term: str) -> str:
    """The lexical form of a literal term, unescaped; an IRI's text for an IRI."""
    if not term.startswith('"'):
        return term.strip("<>")
    body = term[1 : term.rfind('"')]
    if "\\" not in body:
        return body
    out: list[str] = []
    index = 0
    while index < len(body):
        if body[index] != "\\":
            out.append(body[index])
            index += 1
            continue
        code = body[index + 1]
        if code in "uU":
            width = 4 if code == "u" else 8
            out.append(chr(int(body[index + 2 : index + 2 + width], 16)))
            index += 2 + width
        else:
            out.append(_UNESCAPE[code])
            index += 2
    return "".join(out)


def collect_quads(messages: Iterable[Message]) -> list[Quad]:
    """All quads of several messages, for one dataset."""
    return [quad for message in messages for quad in message.quads]


def describe(message: Message) -> dict[str, object]:
    """The fields of a message as plain data, for people and JSON."""
    fields: dict[str, object] = {
        "uri": message.uri,
        "address": "ok" if verify_address(message) else "broken",
        "computed": message.true_uri,
        "type": message.type.value,
        "direction": message.direction.value,
        "timestamp_ms": message.timestamp_ms,
        "atom": message.atom,
        "senderSocket": message.sender_socket,
        "recipientSocket": message.recipient_socket,
        "connection": message.connection,
        "respondingTo": message.responding_to,
        "respondingToMessageType": message.responding_to_type.value if message.responding_to_type else None,
        "previousMessage": list(message.previous),
        "forwardedMessage": list(message.forwarded),
        "content": list(message.contents),
        "text": message.text,
        "signer": message.signer,
        "publicKeyFingerprint": message.fingerprint,
        "quads": len(message.quads),
    }
    return {name: value for name, value in fields.items() if value not in (None, [])}


def bundle_uris(messages: Sequence[Message]) -> tuple[str, ...]:
    """The URIs of some messages, in order."""
    return tuple(message.uri for message in messages)
