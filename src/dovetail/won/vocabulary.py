"""The vocabulary of won: namespaces, message types, the envelope properties of each type, and how URIs are built.

Terms are kept as N-Quads text (`<https://...>`), because canonical N-Quads is hashed, signed and journaled.
"""

from __future__ import annotations

import enum
import functools

from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Reason

MSG = "https://w3id.org/won/message#"
WON = "https://w3id.org/won/core#"
CON = "https://w3id.org/won/content#"
CERT = "http://www.w3.org/ns/auth/cert#"
RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
RDFS = "http://www.w3.org/2000/01/rdf-schema#"
XSD = "http://www.w3.org/2001/XMLSchema#"
DOVETAIL = "urn:dovetail:won:"
"""Terms of this project only: the registration of a client and a frame's position."""

SELF = "wm:/SELF"
"""The placeholder under which a message is built, signed and hashed; never a valid incoming URI."""

MESSAGE_SCHEME = "wm:/"
PROTOCOL_VERSION = "1.0"
NODE_PATH = "/won/resource"
ENVELOPE, SIGNATURE, KEY = "#envelope", "#signature", "#key"


class MessageType(enum.StrEnum):
    """What a message requests or answers; the value is the local name in `msg:`."""

    CREATE = "CreateMessage"
    REPLACE = "ReplaceMessage"
    ACTIVATE = "ActivateMessage"
    DEACTIVATE = "DeactivateMessage"
    DELETE = "DeleteMessage"
    CONNECT = "ConnectMessage"
    CONNECTION = "ConnectionMessage"
    CLOSE = "CloseMessage"
    CHANGE = "ChangeNotificationMessage"
    SUCCESS = "SuccessResponse"
    FAILURE = "FailureResponse"
    REGISTER = "RegisterMessage"


ATOM_TYPES = frozenset(
    {MessageType.CREATE, MessageType.REPLACE, MessageType.ACTIVATE, MessageType.DEACTIVATE, MessageType.DELETE}
)
CONNECTION_TYPES = frozenset({MessageType.CONNECT, MessageType.CONNECTION, MessageType.CLOSE, MessageType.CHANGE})
RESPONSE_TYPES = frozenset({MessageType.SUCCESS, MessageType.FAILURE})


class Direction(enum.StrEnum):
    """Who made a message: its `rdf:type`."""

    OWNER = "FromOwner"
    SYSTEM = "FromSystem"
    EXTERNAL = "FromExternal"


def msg(name: str) -> str:
    """A term of the message namespace."""
    return f"<{MSG}{name}>"


RDF_TYPE = f"<{RDF}type>"
P_ENVELOPE, P_CONTENT, P_SIGNATURE = msg("envelope"), msg("content"), msg("signature")
P_MESSAGE_TYPE, P_TIMESTAMP, P_VERSION = msg("messageType"), msg("timestamp"), msg("protocolVersion")
P_ATOM, P_CONNECTION = msg("atom"), msg("connection")
P_SENDER_SOCKET, P_RECIPIENT_SOCKET = msg("senderSocket"), msg("recipientSocket")
P_RESPONDING_TO, P_RESPONDING_TO_TYPE = msg("respondingTo"), msg("respondingToMessageType")
P_PREVIOUS, P_FORWARDED = msg("previousMessage"), msg("forwardedMessage")
P_SIGNER, P_SIGNED_GRAPH, P_HASH = msg("signer"), msg("signedGraph"), msg("hash")
P_SIGNATURE_VALUE, P_FINGERPRINT = msg("signatureValue"), msg("publicKeyFingerprint")
P_TEXT = f"<{CON}text>"
P_SOCKET = f"<{WON}socket>"
P_CERT_KEY, P_PUBLIC_KEY = f"<{CERT}key>", f"<{WON}ed25519PublicKey>"
P_AFTER, P_POSITION, P_SIZE = (f"<{DOVETAIL}{name}>" for name in ("after", "position", "size"))
T_ENVELOPE_GRAPH = msg("EnvelopeGraph")
XSD_LONG = f"^^<{XSD}long>"

TYPE_TERMS = {
    kind: f"<{DOVETAIL}{kind.value}>" if kind is MessageType.REGISTER else msg(kind.value) for kind in MessageType
}
TYPES_BY_TERM = {term: kind for kind, term in TYPE_TERMS.items()}
DIRECTION_TERMS = {direction: msg(direction.value) for direction in Direction}
DIRECTIONS_BY_TERM = {term: direction for direction, term in DIRECTION_TERMS.items()}

REQUIRED_BY_ALL = frozenset({RDF_TYPE, P_ENVELOPE, P_MESSAGE_TYPE, P_TIMESTAMP, P_VERSION})
REPEATABLE = frozenset({P_CONTENT, P_PREVIOUS, P_FORWARDED})
_SOCKETS = frozenset({P_SENDER_SOCKET, P_RECIPIENT_SOCKET})
_RESPONSE = frozenset({P_RESPONDING_TO, P_RESPONDING_TO_TYPE})
_RESPONSE_OPTIONAL = _SOCKETS | {P_ATOM, P_CONNECTION}

# (also required, optional) per type; anything not listed is refused.
PROPERTIES: dict[MessageType, tuple[frozenset[str], frozenset[str]]] = {
    MessageType.CREATE: (frozenset({P_ATOM, P_CONTENT}), frozenset()),
    MessageType.REPLACE: (frozenset({P_ATOM, P_CONTENT}), frozenset()),
    MessageType.ACTIVATE: (frozenset({P_ATOM}), frozenset()),
    MessageType.DEACTIVATE: (frozenset({P_ATOM}), frozenset()),
    MessageType.DELETE: (frozenset({P_ATOM}), frozenset({P_CONTENT})),
    MessageType.CONNECT: (_SOCKETS, frozenset({P_CONTENT})),
    MessageType.CONNECTION: (_SOCKETS, frozenset({P_CONTENT, P_FORWARDED})),
    MessageType.CLOSE: (_SOCKETS, frozenset({P_CONTENT})),
    MessageType.CHANGE: (_SOCKETS, frozenset({P_CONTENT})),
    MessageType.SUCCESS: (_RESPONSE, _RESPONSE_OPTIONAL | {P_PREVIOUS}),
    MessageType.FAILURE: (_RESPONSE, _RESPONSE_OPTIONAL | {P_CONTENT}),
    MessageType.REGISTER: (frozenset({P_ATOM, P_AFTER}), frozenset()),
}

REQUIRED = {kind: also | REQUIRED_BY_ALL for kind, (also, _) in PROPERTIES.items()}
ALLOWED = {kind: also | optional | REQUIRED_BY_ALL for kind, (also, optional) in PROPERTIES.items()}

PREFIXES = {"msg": MSG, "won": WON, "con": CON, "cert": CERT, "rdf": RDF, "xsd": XSD}
_MAX_URI_CHARS = 1024
_CACHED_URIS = 4096


def atom_of_socket(socket: str) -> str:
    """Socket -> atom: drop the fragment."""
    return socket.partition("#")[0]


def node_of_atom(atom: str) -> str:
    """Atom -> node: cut at `/atom/`."""
    return atom.partition("/atom/")[0]


def atom_of_connection(connection: str) -> str:
    """Connection -> atom: cut at `/c/`."""
    return connection.rpartition("/c/")[0]


def message_of_graph(graph: str) -> str:
    """Graph -> message: drop the fragment."""
    return graph.partition("#")[0]


def check_socket_uri(socket: str) -> str:
    """Return the socket if it is `NODE/atom/ID#name`; otherwise the message that names it is refused.

    Not cached: the length of a name is not limited.
    """
    atom, hash_sign, name = socket.partition("#")
    if not (hash_sign and name):
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"socket {socket[:200]!r} has no name after '#'")
    check_atom_uri(atom)
    return socket


@functools.lru_cache(_CACHED_URIS)
def check_atom_uri(atom: str) -> str:
    """Return the atom if it is `https://HOST/won/resource/atom/ID`; otherwise the message that names it is refused."""
    node, middle, name = atom.partition("/atom/")
    if not (middle and name) or "/" in name or "#" in atom or "?" in atom or len(atom) > _MAX_URI_CHARS:
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{atom[:200]!r} is not an atom's URI")
    if not node.endswith(NODE_PATH) or not node.startswith(("https://", "http://")):
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{atom[:200]!r} does not lie below a node's URI")
    return atom
