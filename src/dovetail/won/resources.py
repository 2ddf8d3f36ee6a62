"""Linked data: the documents a node serves over HTTP GET.

    NODE                      the node and its key
    NODE/atom/ID              an atom: its Create message or last Replace, which carries its key and certifies itself,
                              and its state; after deletion, its Delete message and where its log is (410)
    NODE/atom/ID/msg          its message container, in pages (`?page=N`)
    NODE/atom/ID/c            its connections, in pages
    NODE/atom/ID/c/ID         a connection: its state and sockets
    NODE/atom/ID/c/ID/msg     its message container, in pages
    NODE/msg/Qm...            a message

Facts stated by the node itself are in the graph `DOCUMENT#data`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dovetail.model.address import Address, won_uri
from dovetail.model.errors import RemoteProtocolError
from dovetail.won import vocabulary as v
from dovetail.won.canonical import Quad, read_quads
from dovetail.won.message import Message, decode_bundle, uri_address
from dovetail.won.node import Node
from dovetail.won.signing import find_key, key_quads
from dovetail.won.trig import encode_document

MEDIA_TYPES = ("application/trig", "application/n-quads", "text/turtle")
_MEMBER = f"<{v.RDFS}member>"
_MAX_PAGE_DIGITS = 9


def choose_media_type(accept: str) -> str | None:
    """The best supported type for an HTTP Accept header, None if there is none."""
    if not accept.strip():
        return MEDIA_TYPES[0]
    best: tuple[float, str] | None = None
    for part in accept.split(",")[:32]:
        name, *parameters = (piece.strip() for piece in part.split(";"))
        quality = next((_quality(p[2:]) for p in parameters if p.startswith("q=")), 1.0)
        matches = [kind for kind in MEDIA_TYPES if name in (kind, "*/*", kind.partition("/")[0] + "/*")]
        if matches and quality > 0 and (best is None or quality > best[0]):
            best = (quality, matches[0])
    return best[1] if best else None


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


Reader = Callable[[Address], bytes | None]


def needs_proof(node: Node, path: str) -> bool:
    """True if a document at this path is only for participants: all but the node and its atoms."""
    is_public = path == _base(node) or node.uri + path.removeprefix(_base(node)) in node.ledger.atoms
    return not (node.settings.serve_conversations or is_public)


def find_parties(node: Node, path: str, read: Reader | None = None) -> frozenset[str]:
    """The atoms that take part in the conversation at `path`, or own the container there."""
    uri = node.uri + path.removeprefix(_base(node))
    owner, _, last = uri.rpartition("/")
    if owner == f"{node.uri}/msg":
        read = read or node.ledger.archive.raw
        found = _messages_of(uri_address(v.MESSAGE_SCHEME + last), read)
        # a response by the sender's node names only one of the two: both are in what it responds to
        found += [each for message in found for each in _messages_of(uri_address(message.responding_to or ""), read)]
        return frozenset(each for message in found for each in (message.sender, message.recipient) if each)
    return _parties_of(node, uri) or _parties_of(node, owner) or frozenset({owner} & node.ledger.atoms.keys())


def _parties_of(node: Node, uri: str) -> frozenset[str]:
    """The two atoms of a connection of this node."""
    connection = node.ledger.connections.get(uri)
    return (
        frozenset() if connection is None else frozenset({connection.atom, v.atom_of_socket(connection.target_socket)})
    )


def find_document(
    node: Node, path: str, query: str = "", read: Reader | None = None, reader: str | None = None
) -> list[Quad] | None:
    """The quads of the resource at `path` (below the host), None if there is none for this reader.

    `read` finds durable messages; `reader` is the atom that provably sent the request.
    """
    read = read or node.ledger.archive.raw
    base = _base(node)
    if path == base:
        return _describe_node(node)
    if not path.startswith(base + "/"):
        return None
    uri = node.uri + path[len(base) :]
    page = _page_of(query)
    if uri in node.ledger.atoms:
        return _describe_atom(node, uri, read)
    if page is None or (needs_proof(node, path) and reader not in find_parties(node, path, read)):
        return None
    if uri in node.ledger.connections:
        return _describe_connection(node, uri)
    owner, _, last = uri.rpartition("/")
    if owner == f"{node.uri}/msg":
        return _read_message(uri_address(v.MESSAGE_SCHEME + last), read)
    if owner in node.ledger.atoms and last == "c":
        members = [connection.uri for connection in node.ledger.atoms[owner].connections.values()]
        return _list_page(node, uri, members, page)
    holder = node.ledger.atoms.get(owner) or node.ledger.connections.get(owner)
    if holder is None or last != "msg":
        return None
    return _list_page(node, uri, holder.messages, page)


def encode_resource(
    node: Node, path: str, query: str, media_type: str, read: Reader | None = None, reader: str | None = None
) -> bytes | None:
    """The document at `path` in a media type, None if there is none for this reader."""
    quads = find_document(node, path, query, read, reader)
    return encode_document(quads, media_type) if quads is not None else None


def _base(node: Node) -> str:
    """The node's own path."""
    return "/" + node.uri.partition("://")[2].partition("/")[2]


def _page_of(query: str) -> int | None:
    if not query:
        return 0
    name, _, digits = query.partition("=")
    if name != "page" or not (digits.isascii() and digits.isdigit()) or len(digits) > _MAX_PAGE_DIGITS:
        return None
    return int(digits)


def _describe_node(node: Node) -> list[Quad]:
    graph = f"{node.uri}#data"
    return [(f"<{node.uri}>", v.RDF_TYPE, f"<{v.WON}Node>", f"<{graph}>"), *key_quads(node.uri, node.key, graph)]


def find_log_of_deleted(node: Node, path: str) -> str | None:
    """The URI of the log of the deleted atom at `path`; None if there is no such atom or it is not deleted."""
    atom = node.ledger.atoms.get(node.uri + path.removeprefix(_base(node)))
    return f"{atom.uri}/msg" if atom is not None and atom.is_deleted else None


def _describe_atom(node: Node, uri: str, read: Reader) -> list[Quad] | None:
    atom = node.ledger.atoms[uri]
    subject, graph = f"<{uri}>", f"<{uri}#data>"
    sockets = () if atom.is_deleted else sorted(atom.sockets)
    facts = [
        (subject, v.RDF_TYPE, f"<{v.WON}Atom>", graph),
        (subject, f"<{v.WON}atomState>", f"<{v.WON}{atom.state.value}>", graph),
        (subject, f"<{v.WON}messageContainer>", f"<{uri}/msg>", graph),
        (subject, f"<{v.WON}connections>", f"<{uri}/c>", graph),
        *((subject, v.P_SOCKET, f"<{socket}>", graph) for socket in sockets),
    ]
    document = _read_message(atom.document, read)
    if document is not None and find_key(uri, document) is None:
        # a Replace or Delete by other software: the Create has the key
        document += _read_message(atom.messages[0], read) or []
    return facts + document if document is not None else None


def _describe_connection(node: Node, uri: str) -> list[Quad]:
    connection = node.ledger.connections[uri]
    subject, graph = f"<{uri}>", f"<{uri}#data>"
    return [
        (subject, v.RDF_TYPE, f"<{v.WON}Connection>", graph),
        (subject, f"<{v.WON}connectionState>", f"<{v.WON}{connection.state}>", graph),
        (subject, f"<{v.WON}sourceAtom>", f"<{connection.atom}>", graph),
        (subject, v.P_SOCKET, f"<{connection.socket}>", graph),
        (subject, f"<{v.WON}targetSocket>", f"<{connection.target_socket}>", graph),
        (subject, f"<{v.WON}messageContainer>", f"<{uri}/msg>", graph),
    ]


def _list_page(node: Node, uri: str, members: Sequence[Address | str], page: int) -> list[Quad] | None:
    """One page of a container, with its size and a link to the next page."""
    size = node.settings.page_size
    if page * size > max(len(members) - 1, 0):
        return None
    subject, graph = f"<{uri}>", f"<{uri}#data>"
    quads = [
        (subject, v.RDF_TYPE, f"<{v.WON}Container>", graph),
        (subject, v.P_SIZE, f'"{len(members)}"{v.XSD_LONG}', graph),
    ]
    for member in members[page * size : (page + 1) * size]:
        name = member if isinstance(member, str) else won_uri(member)
        quads.append((subject, _MEMBER, f"<{name}>", graph))
    if (page + 1) * size < len(members):
        quads.append((subject, f"<{v.WON}nextPage>", f"<{uri}?page={page + 1}>", graph))
    return quads


def _messages_of(address: Address | None, read: Reader) -> list[Message]:
    raw = read(address) if address is not None else None
    try:
        return list(decode_bundle(raw).messages) if raw is not None else []
    except RemoteProtocolError:
        return []


def _read_message(address: Address | None, read: Reader) -> list[Quad] | None:
    raw = read(address) if address is not None else None
    if raw is None:
        return None
    try:
        return read_quads(raw)
    except RemoteProtocolError:
        return None
