"""Existing logs: rebuilds delivery chains from any dataset dump, even damaged or from another implementation.

Nothing is refused. Readable messages are shown, and faults become findings. Message URIs that are not SHA-256
addresses (the reference implementation's begin with `wm:/W1`) are `foreign`: neither verified nor broken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec
import pyoxigraph as ox

from dovetail.model.address import won_uri
from dovetail.model.errors import RemoteProtocolError
from dovetail.won import vocabulary as v
from dovetail.won.canonical import Quad, is_nquads, rename, split_lines
from dovetail.won.chain import Chain, ChainState, Role, role_of
from dovetail.won.envelope import literal_value
from dovetail.won.integrity import cyclic_members
from dovetail.won.message import compute_address, uri_address
from dovetail.won.vocabulary import MessageType

MAX_DAMAGES = 1000
_BLOCK = re.compile(rb"^\s*(?:GRAPH\s+)?(?:<[^>\s]*>|[\w-]*:[^\s{]*)\s*\{", re.IGNORECASE | re.MULTILINE)
_PREFIX = re.compile(rb"^\s*(?:@prefix|PREFIX|@base|BASE)\b.*$", re.IGNORECASE | re.MULTILINE)
_RESPONDING = (v.P_RESPONDING_TO, v.msg("isResponseTo"), v.msg("isRemoteResponseTo"))


class DumpedMessage(msgspec.Struct, kw_only=True):
    """The readable parts of one message of a dump."""

    uri: str
    type: str
    direction: str | None = None
    sender: str | None = None
    recipient: str | None = None
    sender_socket: str | None = None
    recipient_socket: str | None = None
    connection: str | None = None
    timestamp: str | None = None
    responding_to: tuple[str, ...] = ()
    previous: tuple[str, ...] = ()
    signer: str | None = None
    address: str = "foreign"
    responses: list[tuple[str, Role]] = []
    state: ChainState | None = None
    findings: list[str] = []

    @property
    def is_response(self) -> bool:
        """True for SuccessResponse and FailureResponse."""
        return self.type in v.RESPONSE_TYPES


class Dump(msgspec.Struct, kw_only=True):
    """All messages of some dumps, and faults in the files themselves."""

    messages: dict[str, DumpedMessage]
    damages: list[str]

    @property
    def findings(self) -> list[str]:
        """All faults, each with the message it is about."""
        return self.damages + [f"{m.uri}: {text}" for m in self.messages.values() for text in m.findings]


def read_dumps(files: Iterable[tuple[str, bytes]]) -> Dump:
    """Read dumps (name, bytes) together and rebuild the chains in them."""
    damages: list[str] = []
    quads: dict[Quad, None] = {}
    for name, data in files:
        for quad in _read_leniently(name, data, damages):
            quads[quad] = None
    messages = _collect_messages(quads)
    _join_responses(messages)
    _check_references(messages)
    return Dump(messages=messages, damages=damages)


def _read_leniently(name: str, data: bytes, damages: list[str]) -> Iterator[Quad]:
    """All readable quads; each unreadable place is recorded and skipped."""
    if is_nquads(data):
        yield from _read_lines(name, data, damages)
        return
    prefixes = b"\n".join(_PREFIX.findall(data)) + b"\n"
    rest, offset = data, 0
    while True:
        try:
            yield from _parse(rest, ox.RdfFormat.TRIG)
        except (SyntaxError, ValueError) as error:
            if not _note_damage(damages, f"{name}: {error}"):
                return
            line = getattr(error, "lineno", None) or 1
            cut = _offset_of_line(rest, line + 1)
            block = _BLOCK.search(rest, cut)
            if block is None:
                return
            offset = block.start()
            rest = prefixes + rest[offset:] if offset else b""
            continue
        return


def _read_lines(name: str, data: bytes, damages: list[str]) -> Iterator[Quad]:
    try:
        yield from list(_parse(data, ox.RdfFormat.N_QUADS))
        return
    except (SyntaxError, ValueError):
        pass
    for number, line in enumerate(data.split(b"\n"), start=1):
        try:
            yield from _parse(line, ox.RdfFormat.N_QUADS)
        except (SyntaxError, ValueError) as error:
            if not _note_damage(damages, f"{name}: line {number}: {error}"):
                return


def _parse(data: bytes, form: ox.RdfFormat) -> Iterator[Quad]:
    for quad in ox.parse(data, form, base_iri=v.MESSAGE_SCHEME if form == ox.RdfFormat.TRIG else None):
        try:
            yield from split_lines([f"{quad} ."])
        except RemoteProtocolError:
            continue


def _note_damage(damages: list[str], text: str) -> bool:
    if len(damages) < MAX_DAMAGES:
        damages.append(text)
        return True
    return False


def _offset_of_line(data: bytes, line: int) -> int:
    offset = 0
    for _ in range(line - 1):
        offset = data.find(b"\n", offset) + 1
        if offset == 0:
            return len(data)
    return offset


def _collect_messages(quads: Iterable[Quad]) -> dict[str, DumpedMessage]:
    graphs: dict[str, list[Quad]] = {}
    elsewhere: dict[str, list[Quad]] = {}
    for quad in quads:
        base = v.message_of_graph(quad[3][1:-1])
        graphs.setdefault(base, []).append(quad)
        if quad[1].startswith("<" + v.MSG) and quad[0][1:-1] != base:
            elsewhere.setdefault(quad[0][1:-1], []).append(quad)
    messages = {}
    for uri in dict.fromkeys([*graphs, *elsewhere]):
        own = graphs.get(uri, [])
        facts = [quad for quad in own if quad[0] == f"<{uri}>"]
        if not any(quad[1] == v.P_MESSAGE_TYPE for quad in facts):
            # Not in its own graphs: some dumps put all statements in one graph, or in none.
            facts = [quad for quad in elsewhere.get(uri, ()) if not quad[3].startswith("<" + v.MESSAGE_SCHEME)]
        if any(quad[1] == v.P_MESSAGE_TYPE for quad in facts):
            messages[uri] = _describe(uri, facts, own)
    return messages


def _describe(uri: str, facts: list[Quad], own: list[Quad]) -> DumpedMessage:
    values: dict[str, list[str]] = {}
    for _, p, o, _ in facts:
        values.setdefault(p, []).append(literal_value(o))

    def first(*terms: str) -> str | None:
        return next((min(values[term]) for term in terms if term in values), None)

    kind = (first(v.P_MESSAGE_TYPE) or "").rpartition("#")[2]
    atom, sender_socket, recipient_socket = first(v.P_ATOM), first(v.P_SENDER_SOCKET), first(v.P_RECIPIENT_SOCKET)
    directions = [d.value for d in v.Direction if v.MSG + d.value in values.get(v.RDF_TYPE, ())]
    message = DumpedMessage(
        uri=uri,
        type=kind,
        direction=directions[0] if directions else None,
        sender=sender_socket or first(v.msg("senderAtom"), v.msg("sender")) or atom,
        recipient=recipient_socket or first(v.msg("recipientAtom"), v.msg("recipient")) or atom,
        sender_socket=sender_socket,
        recipient_socket=recipient_socket,
        connection=first(v.P_CONNECTION),
        timestamp=first(v.P_TIMESTAMP, v.msg("sentTimestamp"), v.msg("receivedTimestamp")),
        responding_to=tuple(sorted({o for term in _RESPONDING for o in values.get(term, ())})),
        previous=tuple(sorted(set(values.get(v.P_PREVIOUS, ())))),
        signer=next((literal_value(q[2]) for q in own if q[1] == v.P_SIGNER), None),
    )
    _judge_address(message, own)
    if len(values[v.P_MESSAGE_TYPE]) > 1:
        message.findings.append("has more than one messageType")
    return message


def _judge_address(message: DumpedMessage, own: list[Quad]) -> None:
    """`ok` or `broken` for SHA-256 addresses, `foreign` for all others."""
    expected = uri_address(message.uri)
    if expected is None:
        return
    try:
        found = compute_address(rename(own, message.uri, v.SELF))[0]
    except RemoteProtocolError as error:
        message.address = "broken"
        message.findings.append(error.detail)
        return
    message.address = "ok" if found == expected else "broken"
    if found != expected:
        message.findings.append(f"its content has the address {won_uri(found)}")


def _join_responses(messages: dict[str, DumpedMessage]) -> None:
    for response in messages.values():
        if not response.is_response:
            continue
        for uri in response.responding_to:
            message = messages.get(uri)
            if message is not None and uri != response.uri:
                message.responses.append((response.uri, _role(response, message)))
    for message in messages.values():
        if message.is_response:
            continue
        chain = Chain(type=message.type)
        for uri, role in sorted(message.responses):
            before = chain.add(role, uri)
            if before is not None and role is not Role.FAILURE:
                message.findings.append(f"has two responses in the role {role.value}: {before} and {uri}")
        message.responses.sort(key=lambda response: (response[1], response[0]))
        message.state = chain.state


def _role(response: DumpedMessage, message: DumpedMessage) -> Role:
    """The role by the sockets; if they are missing, by the connection, then by the signer's node."""
    if message.type in v.ATOM_TYPES and response.type == MessageType.SUCCESS:
        return Role.ATOM
    if response.type == MessageType.FAILURE or (response.sender_socket and response.recipient_socket):
        return role_of(response)
    sender = message.sender or ""
    if response.connection:
        is_first = v.atom_of_connection(response.connection) == v.atom_of_socket(sender)
    else:
        is_first = v.node_of_atom(response.signer or response.sender or "") == v.node_of_atom(sender)
    return Role.FIRST if is_first else Role.SECOND


def _check_references(messages: dict[str, DumpedMessage]) -> None:
    edges: dict[str, list[str]] = {}
    for message in messages.values():
        named = [("respondingTo", uri) for uri in message.responding_to]
        named += [("previousMessage", uri) for uri in message.previous]
        edges[message.uri] = [uri for _, uri in named if uri in messages and uri != message.uri]
        for name, uri in named:
            target = messages.get(uri)
            if uri == message.uri:
                message.findings.append(f"self-reference: {name} names the message itself")
            elif target is None:
                message.findings.append(f"dangling reference: {name} {uri} is not in the dump")
            elif name == "previousMessage" and target.type != MessageType.SUCCESS:
                message.findings.append(f"previousMessage {uri} is no SuccessResponse but a {target.type}")
        if message.previous and message.type != MessageType.SUCCESS:
            message.findings.append(f"a {message.type} carries previousMessage")
    for uri in sorted(cyclic_members(edges)):
        messages[uri].findings.append("cycle: it references itself by way of others")
