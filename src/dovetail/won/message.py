"""A message: RDF graphs with one URI, decoded into a typed record with its computed address and signed digest.

Decoding is strict: each type has a closed list of envelope properties, content graphs must be listed and may not use
the envelope's namespace, the default graph is empty. Decoding does not decide whether the message is genuine:
`verify_address` here and `verify_signature` in `signing` do, from values computed once while decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from dovetail.fast import twin
from dovetail.model.address import Address, parse_address, won_uri
from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Reason
from dovetail.won import vocabulary as v
from dovetail.won.canonical import (
    STORED,
    WIRE,
    Limits,
    Quad,
    Statement,
    canonical_lines,
    digest_graphs,
    digest_of,
    encode_graphs,
    read_lines,
    rename,
    sort_lines,
    split_lines,
    split_statements,
)
from dovetail.won.chain import is_by_senders_node
from dovetail.won.envelope import (
    ENVELOPE_FORMS,
    SIGNATURE_FORMS,
    TERMS,
    decode_envelope,
    decode_iri,
    decode_long,
    decode_signature,
    literal_value,
)
from dovetail.won.readers.blocks import block_reader, decode_blocks
from dovetail.won.readers.lines import decode_lines, rename_text
from dovetail.won.vocabulary import Direction, MessageType

MAX_MESSAGES_PER_DATASET = 16
_MESSAGE_PREFIX = "<" + v.MESSAGE_SCHEME
_SIGNATURE_GRAPH = f"<{v.SELF}{v.SIGNATURE}>"
Dataset = dict[str, Sequence[Statement]]
"""Graph -> statements."""


class Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One decoded message. `uri` is its claimed URI; `address` and `true_uri` are computed from its content.

    `raw` holds its own graphs as canonical N-Quads under its URI, as stored in journals.
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

    @property
    def sender(self) -> str | None:
        """The sending atom, or the atom whose node sends it."""
        return v.atom_of_socket(self.sender_socket) if self.sender_socket else self.atom

    @property
    def recipient(self) -> str | None:
        """The atom it is addressed to."""
        return v.atom_of_socket(self.recipient_socket) if self.recipient_socket else self.atom

    @property
    def is_response(self) -> bool:
        """True for SuccessResponse and FailureResponse."""
        return self.type in v.RESPONSE_TYPES

    @property
    def quads(self) -> list[Quad]:
        """All its statements, in the order of their lines."""
        return split_lines(self.raw.decode().split("\n")[:-1])

    @property
    def text(self) -> str | None:
        """The first `con:text` of its contents, unescaped."""
        texts = [o for _, p, o, _ in self.quads if p == v.P_TEXT]
        return literal_value(min(texts)) if texts else None


class Bundle(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The messages of one dataset; in frames to an owner also their position in the atom's `log`, and its `size`."""

    messages: tuple[Message, ...]
    position: int | None = None
    size: int | None = None
    log: str | None = None


def decode_message(raw: bytes, limits: Limits = WIRE) -> Message:
    """The one message in `raw` (N-Quads or TriG); raises RemoteProtocolError."""
    messages = decode_bundle(raw, limits).messages
    if len(messages) != 1:
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"found {len(messages)} messages, expected 1")
    return messages[0]


def decode_stored(raw: bytes) -> Message:
    """A message from one's own journal; raises RemoteProtocolError."""
    return decode_message(raw, STORED)


def decode_bundle(data: bytes, limits: Limits = WIRE, *, known: dict[str, Message] | None = None) -> Bundle:
    """All messages of a dataset, each after the message it responds to; raises RemoteProtocolError.

    Messages in `known` with identical bytes are not decoded again.
    """
    bounds = limits.dataset_quads, limits.message_quads, limits.message_bytes
    plain = _reader.read_bundle(data, bounds, known) if len(data) <= limits.dataset_bytes else None
    if plain is not None:
        messages, others = plain
        place, log = _read_position(others)
    else:
        groups, others, is_canonical = _read_groups(data, limits)
        place, log = _read_position(others)
        messages = _decode_groups(groups, data if is_canonical and not others else None, limits, known)
    if len(messages) > 1:
        messages.sort(key=_order)
    return Bundle(messages=tuple(messages), position=place.get(v.P_POSITION), size=place.get(v.P_SIZE), log=log)


def _read_position(graphs: Dataset) -> tuple[dict[str, int], str | None]:
    """The position of a bundle in a log, and the log, from the graphs that belong to no message."""
    place: dict[str, int] = {}
    log: str | None = None
    for graph, statements in graphs.items():
        for s, p, o in statements:
            if p not in (v.P_POSITION, v.P_SIZE) or p in place:
                raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"graph {graph[:200]} belongs to no message")
            place[p] = decode_long(o, "position")
            log = decode_iri(s, "position")
    return place, log


def _read_groups(data: bytes, limits: Limits) -> tuple[dict[str, Dataset], Dataset, bool]:
    """The graphs of each message, those that belong to none, and whether the data are canonical (`_read_graphs`)."""
    groups: dict[str, Dataset] = {}
    others: Dataset = {}
    graphs, is_canonical = _read_graphs(data, limits)
    for graph, statements in graphs.items():
        if graph.startswith(_MESSAGE_PREFIX):
            groups.setdefault(v.message_of_graph(graph[1:-1]), {})[graph] = statements
        else:
            others[graph] = statements
    return groups, others, is_canonical


def _decode_groups(
    groups: dict[str, Dataset], raw: bytes | None, limits: Limits, known: dict[str, Message] | None
) -> list[Message]:
    if not groups:
        raise RemoteProtocolError(Reason.MALFORMED, "the dataset holds no message")
    if len(groups) > MAX_MESSAGES_PER_DATASET:
        raise RemoteProtocolError(
            Reason.TOO_LARGE, f"{len(groups)} messages in a dataset, expected at most {MAX_MESSAGES_PER_DATASET}"
        )
    raw = raw if len(groups) == 1 else None
    return [
        _find_known(uri, graphs, known) or decode_graphs(uri, graphs, raw, limits) for uri, graphs in groups.items()
    ]


def _read_graphs(data: bytes, limits: Limits) -> tuple[Mapping[str, Sequence[Statement]], bool]:
    """The statements of each graph, and whether the data are certain to be canonical N-Quads without blank nodes."""
    if len(data) <= limits.dataset_bytes:
        graphs = decode_lines(data, limits.dataset_quads)
        if graphs is not None:
            return graphs, True
        graphs = decode_blocks(data, limits.dataset_quads)
        if graphs is not None:
            return graphs, False
    lines = sort_lines(read_lines(data, limits))
    return {graph: split_statements(graph, group) for graph, group in lines.items()}, False


def _find_known(
    uri: str, graphs: Mapping[str, Sequence[Statement]], known: dict[str, Message] | None
) -> Message | None:
    before = known.get(uri) if known else None
    return before if before is not None and before.raw == encode_graphs(graphs.items()) else None


def _order(message: Message) -> tuple[bool, bool, str]:
    """m before its responses, s1 before s2."""
    return (message.is_response, message.is_response and not is_by_senders_node(message), message.uri)


def decode_quads(uri: str, quads: Iterable[Quad]) -> Message:
    """One message from its quads under its own URI; raises RemoteProtocolError."""
    graphs: dict[str, list[Statement]] = {}
    for s, p, o, graph in quads:
        graphs.setdefault(graph, []).append((s, p, o))
    return decode_graphs(uri, graphs)


def decode_graphs(
    uri: str, graphs: Mapping[str, Sequence[Statement]], raw: bytes | None = None, limits: Limits = WIRE
) -> Message:
    """One message from the statements of its graphs under its own URI; raises RemoteProtocolError.

    `raw` holds the same graphs as lines accepted by `decode_lines`, if they were read from such.
    """
    count = sum(map(len, graphs.values()))
    if count > limits.message_quads:
        raise RemoteProtocolError(Reason.TOO_LARGE, f"{count} quads, expected at most {limits.message_quads}")
    if uri == v.SELF:
        raise RemoteProtocolError(Reason.WRONG_ADDRESS, f"{v.SELF} is a placeholder, not an address")
    message = assemble(uri, graphs, None, raw)
    check_size(message, limits)
    return message


def check_size(message: Message, limits: Limits = WIRE) -> None:
    """Raise RemoteProtocolError if readers with these limits would refuse the message."""
    if len(message.raw) > limits.message_bytes:
        raise RemoteProtocolError(
            Reason.TOO_LARGE, f"{len(message.raw)} bytes as N-Quads, expected at most {limits.message_bytes}"
        )
    count = message.raw.count(b"\n")
    if count > limits.message_quads:
        raise RemoteProtocolError(Reason.TOO_LARGE, f"{count} quads, expected at most {limits.message_quads}")


def _assemble(
    uri: str, graphs: Mapping[str, Iterable[Statement]], digests: tuple[Address, bytes] | None, raw: bytes | None
) -> Message:
    """The general way of `MessageReader.read`."""
    parts = _Parts(uri, graphs)
    if parts.is_blank:
        lines = canonical_lines(parts.quads())
        parts = _Parts(uri, {graph: split_statements(graph, group) for graph, group in sort_lines(lines).items()})
    fields = decode_envelope(uri, parts.envelope, parts.contents)
    signature = decode_signature(uri, parts.signature, parts.contents)
    if digests is not None:
        address, signed_digest, true_uri = *digests, uri
    else:
        if raw is not None:
            address, signed_digest = _digest_raw(uri, raw)
        elif parts.is_blank:
            address, signed_digest = compute_address(rename(parts.quads(), uri, v.SELF))
        else:
            address, signed_digest = digest_graphs(parts.graphs, uri, v.SELF, _SIGNATURE_GRAPH)
        true_uri = won_uri(address)
    return Message(
        uri=uri,
        raw=encode_graphs(parts.graphs) if raw is None else raw,
        address=address,
        true_uri=true_uri,
        signed_digest=signed_digest,
        **fields,  # type: ignore[arg-type]
        **signature,  # type: ignore[arg-type]
    )


@twin
class MessageReader:
    """Builds messages. In native code it reads those without blank nodes and faults itself, all others by `general`."""

    __slots__ = ("read",)

    def __init__(self, general: Callable[..., Message], *_: object) -> None:
        self.read = general
        """Build a message from the statements of its graphs under its own URI; raises RemoteProtocolError.

        Its arguments: the URI; graph -> statements; the address and the signed digest, if known because this party has
        just made the message; the same graphs as lines accepted by `decode_lines`, if they were read from such.
        """

    def read_bundle(self, *_: object) -> tuple[list[Message], Dataset] | None:
        """The messages of a dataset in the layout of `readers.blocks`, and its other graphs.

        Its arguments: the data; the most quads of the dataset and of a message, and the most bytes of a message; known
        messages by their URI. None if the general reader has to decide, which in Python is always.
        """
        return None


_reader = MessageReader(
    _assemble,
    Message,
    block_reader,
    ENVELOPE_FORMS,
    SIGNATURE_FORMS,
    {term: (kind, list(v.REQUIRED[kind]), list(v.ALLOWED[kind])) for term, kind in v.TYPES_BY_TERM.items()},
    v.DIRECTIONS_BY_TERM,
    (v.check_socket_uri, v.check_atom_uri),
    TERMS,
)
assemble = _reader.read


class _Parts:
    """The graphs of a message by kind, each sorted and without duplicates."""

    __slots__ = ("contents", "envelope", "graphs", "is_blank", "signature")

    def __init__(self, uri: str, graphs: Mapping[str, Iterable[Statement]]) -> None:
        self.envelope: tuple[Statement, ...] = ()
        self.signature: tuple[Statement, ...] = ()
        self.contents: set[str] = set()
        self.graphs: list[tuple[str, tuple[Statement, ...]]] = []
        self.is_blank = False
        envelope, signature, prefix = f"<{uri}{v.ENVELOPE}>", f"<{uri}{v.SIGNATURE}>", f"<{uri}#"
        for graph in sorted(graphs):
            statements = tuple(sorted(set(graphs[graph])))
            if graph == envelope:
                self.envelope = statements
            elif graph == signature:
                self.signature = statements
            elif graph.startswith(prefix):
                self.contents.add(graph)
                self._check_content(statements)
            else:
                raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{graph[:200]} is not a graph of {uri}")
            self.graphs.append((graph, statements))
        if not self.envelope:
            raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{uri} has no envelope graph")

    def quads(self) -> list[Quad]:
        return [(s, p, o, graph) for graph, statements in self.graphs for s, p, o in statements]

    def _check_content(self, statements: tuple[Statement, ...]) -> None:
        reserved = "<" + v.MSG
        for subject, predicate, target in statements:
            datatype = target[target.rfind('"') :] if target[0] == '"' else target
            if predicate.startswith(reserved) or subject.startswith(reserved) or reserved in datatype:
                raise RemoteProtocolError(
                    Reason.RESERVED_NAMESPACE, f"content uses {predicate[:120]} of the envelope's namespace"
                )
            if target.startswith("<<"):
                raise RemoteProtocolError(Reason.INVALID_SCHEMA, "triple terms are not part of the protocol")
            self.is_blank = self.is_blank or subject[0] == "_" or target[0] == "_"


def compute_address(quads_under_self: list[Quad]) -> tuple[Address, bytes]:
    """The address of a message built under the placeholder, and the digest of all its graphs except the signature."""
    return _digest_lines(canonical_lines(quads_under_self))


def _digest_raw(uri: str, raw: bytes) -> tuple[Address, bytes]:
    """The same for lines accepted by `decode_lines`, in which the message can be renamed directly."""
    lines = rename_text(raw.decode(), uri, v.SELF).split("\n")
    lines.pop()
    lines.sort()
    return _digest_lines(lines)


def _digest_lines(lines: list[str]) -> tuple[Address, bytes]:
    mark = f" {_SIGNATURE_GRAPH} ."
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
