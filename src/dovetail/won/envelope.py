"""The two closed graphs of a message, envelope and signature: from statements to checked fields.

A statement is (subject, predicate, object) as N-Quads terms. Every statement of a graph must be on its type's list and
have the right kind of value; a message with anything else is refused.
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Reason
from dovetail.won import vocabulary as v
from dovetail.won.canonical import Statement
from dovetail.won.vocabulary import MessageType

_SINGLE_REFERENCES = (("connection", v.P_CONNECTION), ("responding_to", v.P_RESPONDING_TO))
_SOCKET_REFERENCES = (("sender_socket", v.P_SENDER_SOCKET), ("recipient_socket", v.P_RECIPIENT_SOCKET))
_SET_REFERENCES = (("previous", v.P_PREVIOUS), ("forwarded", v.P_FORWARDED))
_SIGNATURE_PROPERTIES = frozenset({v.P_SIGNER, v.P_SIGNED_GRAPH, v.P_HASH, v.P_SIGNATURE_VALUE, v.P_FINGERPRINT})
_VERSION = f'"{v.PROTOCOL_VERSION}"'

ENVELOPE_FORMS = {
    v.RDF_TYPE: ("direction", "direction"),
    v.P_MESSAGE_TYPE: ("type", "type"),
    v.P_RESPONDING_TO_TYPE: ("responding_to_type", "type"),
    v.P_TIMESTAMP: ("timestamp_ms", "long"),
    v.P_AFTER: ("after", "long"),
    v.P_ATOM: ("atom", "atom"),
    v.P_ENVELOPE: ("", "envelope"),
    v.P_VERSION: ("", "version"),
    v.P_CONTENT: ("", "graphs"),
    **{term: (name, "iri") for name, term in _SINGLE_REFERENCES},
    **{term: (name, "socket") for name, term in _SOCKET_REFERENCES},
    **{term: (name, "iris") for name, term in _SET_REFERENCES},
}
"""Property -> the field it becomes, and the form of its objects: this module's rules, for native code."""
SIGNATURE_FORMS = {
    v.P_SIGNER: ("signer", "iri"),
    v.P_HASH: ("hash", "plain"),
    v.P_SIGNATURE_VALUE: ("signature", "plain"),
    v.P_FINGERPRINT: ("fingerprint", "plain"),
    v.P_SIGNED_GRAPH: ("", "graphs"),
}
TERMS = {
    "message": "<" + v.MESSAGE_SCHEME,
    "placeholder": v.SELF,
    "envelope": v.ENVELOPE,
    "signature": v.SIGNATURE,
    "reserved": "<" + v.MSG,
    "version": _VERSION,
    "rdf_type": v.RDF_TYPE,
    "envelope_graph": v.T_ENVELOPE_GRAPH,
    "attached": v.P_SIGNATURE,
    "long": v.XSD_LONG,
}


def decode_envelope(uri: str, envelope: Iterable[Statement], contents: set[str]) -> dict[str, object]:
    """The fields of an envelope; `contents` are the existing content graphs; raises RemoteProtocolError."""
    values, sets = _collect(uri, envelope)
    kind = v.TYPES_BY_TERM.get(values.get(v.P_MESSAGE_TYPE, ""))
    if kind is None:
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{uri} has no known messageType")
    _check_properties(kind, values)
    if values[v.P_VERSION] != _VERSION:
        raise RemoteProtocolError(Reason.UNSUPPORTED_VERSION, f"protocolVersion {values[v.P_VERSION][:40]}")
    direction = v.DIRECTIONS_BY_TERM.get(values[v.RDF_TYPE])
    if direction is None or values[v.P_ENVELOPE] != f"<{uri}{v.ENVELOPE}>":
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{uri} has a wrong direction or envelope")
    if set(sets.get(v.P_CONTENT, ())) != contents:
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{uri} does not list exactly the content graphs it has")
    answered = v.TYPES_BY_TERM.get(values.get(v.P_RESPONDING_TO_TYPE, ""))
    if (answered is None) == (kind in v.RESPONSE_TYPES):
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{uri} responds to an unknown messageType")
    fields: dict[str, object] = {
        "type": kind,
        "direction": direction,
        "timestamp_ms": decode_long(values[v.P_TIMESTAMP], "timestamp"),
        "responding_to_type": answered,
        "contents": tuple(sorted([graph[1:-1] for graph in contents])),
    }
    if v.P_AFTER in values:
        fields["after"] = decode_long(values[v.P_AFTER], "after")
    _decode_references(values, sets, fields)
    return fields


def _collect(uri: str, envelope: Iterable[Statement]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Property -> object of the message node, and property -> objects for repeatable properties.

    The only other statement allowed is the type of the envelope graph itself.
    """
    values: dict[str, str] = {}
    sets: dict[str, list[str]] = {}
    subject, own_graph, is_typed = f"<{uri}>", f"<{uri}{v.ENVELOPE}>", False
    for s, p, o in envelope:
        if s == subject:
            if p in v.REPEATABLE:
                sets.setdefault(p, []).append(o)
            elif p in values:
                raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{uri} carries {p[:200]} more than once")
            values[p] = o
        elif s == own_graph and p == v.RDF_TYPE and o == v.T_ENVELOPE_GRAPH:
            is_typed = True
        else:
            raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"the envelope has a statement about {s[:200]}")
    if not is_typed:
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{own_graph} is not declared an EnvelopeGraph")
    return values, sets


def _check_properties(kind: MessageType, values: dict[str, str]) -> None:
    """Check that the envelope has what its type requires and nothing unlisted."""
    if v.REQUIRED[kind] <= values.keys() <= v.ALLOWED[kind]:
        return
    for term in sorted(v.REQUIRED[kind] - values.keys()):
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{kind} lacks {term}")
    for term in sorted(values.keys() - v.ALLOWED[kind]):
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{kind} may not carry {term[:200]}")


def _decode_references(values: dict[str, str], sets: dict[str, list[str]], fields: dict[str, object]) -> None:
    for name, term in _SINGLE_REFERENCES:
        if term in values:
            fields[name] = decode_iri(values[term], name)
    for name, term in _SOCKET_REFERENCES:
        if term in values:
            fields[name] = v.check_socket_uri(decode_iri(values[term], name))
    for name, term in _SET_REFERENCES:
        if term in sets:
            fields[name] = tuple(sorted([decode_iri(text, name) for text in sets[term]]))
    if v.P_ATOM in values:
        fields["atom"] = v.check_atom_uri(decode_iri(values[v.P_ATOM], "atom"))


def decode_signature(uri: str, signature: Iterable[Statement], contents: set[str]) -> dict[str, str]:
    """The fields of the signature graph. It is closed too: free parts would allow a second URI for the same message."""
    subject, node = f"<{uri}>", f"<{uri}{v.SIGNATURE}>"
    values: dict[str, str] = {}
    signed: set[str] = set()
    is_attached = False
    for s, p, o in signature:
        if s == node and p in _SIGNATURE_PROPERTIES:
            if p == v.P_SIGNED_GRAPH:
                signed.add(o)
            elif p in values:
                raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{uri} has more than one signature")
            values[p] = o
        elif s == subject and p == v.P_SIGNATURE and o == node:
            is_attached = True
        else:
            raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"the signature graph may not state {p[:200]}")
    if not (is_attached or values):
        raise RemoteProtocolError(Reason.UNSIGNED, f"{uri} has no signature graph")
    if not is_attached or len(values) != len(_SIGNATURE_PROPERTIES):
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{uri} has an incomplete signature")
    if signed != {f"<{uri}{v.ENVELOPE}>", *contents}:
        raise RemoteProtocolError(Reason.UNSIGNED, f"{uri} is not signed over its envelope and all of its contents")
    return {
        "signer": decode_iri(values[v.P_SIGNER], "signer"),
        "hash": _decode_plain(values[v.P_HASH], "hash"),
        "signature": _decode_plain(values[v.P_SIGNATURE_VALUE], "signatureValue"),
        "fingerprint": _decode_plain(values[v.P_FINGERPRINT], "publicKeyFingerprint"),
    }


def _decode_plain(term: str, name: str) -> str:
    """The text of a literal without escapes, datatype and language: a second spelling would give a second URI."""
    if term[0] != '"' or term[-1] != '"' or "\\" in term:
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{name} is not a plain literal: {term[:80]}")
    return term[1:-1]


def decode_iri(term: str, name: str) -> str:
    """The text of an IRI term; raises RemoteProtocolError."""
    if term[0] != "<" or term[1] == "<":
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{name} is not an IRI: {term[:80]}")
    return term[1:-1]


def decode_long(term: str, name: str) -> int:
    """The value of a non-negative xsd:long; raises RemoteProtocolError."""
    digits = term[1 : -len(v.XSD_LONG) - 1]
    if not term.endswith('"' + v.XSD_LONG) or not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"{name} is not a non-negative xsd:long: {term[:80]}")
    return int(digits)


_UNESCAPE = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\", "'": "'"}


def literal_value(term: str) -> str:
    """The lexical form of a literal term, unescaped; the text of an IRI."""
    if term[:1] != '"':
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
