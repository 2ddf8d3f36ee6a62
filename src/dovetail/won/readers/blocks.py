"""TriG in the layout that this project writes: graphs as blocks, subjects grouped, one statement a line.

    <graph> {
    <subject> predicate object ;
     predicate object .
    }

`encode_block` writes it. `decode_blocks` reads it back without a general parser, which costs more than everything else
that is done with a frame. It takes nothing but this layout, with a narrow set of IRIs and literals whose text is the
same in canonical N-Quads; for anything else it gives None, and the general parser decides. What it takes, that one
would have read alike: `tests/properties/test_won_blocks.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from dovetail.won import vocabulary as v
from dovetail.won.canonical import MAX_DATASET_QUADS, Statement

HEADER = "".join(f"@prefix {name}: <{uri}> .\n" for name, uri in v.PREFIXES.items())
_HEADER_BYTES = HEADER.encode()

_WORDS = (
    *("envelope", "content", "signature", "messageType", "timestamp", "protocolVersion", "atom", "connection"),
    *("senderSocket", "recipientSocket", "respondingTo", "respondingToMessageType", "previousMessage", "signer"),
    *("forwardedMessage", "signedGraph", "hash", "signatureValue", "publicKeyFingerprint", "EnvelopeGraph"),
    *(kind.value for kind in v.MessageType if kind is not v.MessageType.REGISTER),
    *(direction.value for direction in v.Direction),
)
_SHORT_OBJECTS = {v.msg(word): f"msg:{word}" for word in _WORDS}
_SHORT_OBJECTS |= {v.P_TEXT: "con:text", v.P_SOCKET: "won:socket", v.P_CERT_KEY: "cert:key"}
_SHORT_PREDICATES = {**_SHORT_OBJECTS, v.RDF_TYPE: "a"}  # `a` is a word for predicates only
_LONG_OBJECTS = {short: term for term, short in _SHORT_OBJECTS.items()}
_LONG_PREDICATES = {short: term for term, short in _SHORT_PREDICATES.items()}

IRI = (
    r"<(?:https?://[A-Za-z0-9.-]+(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~-]+)*/?|wm:/[A-Za-z0-9]+|urn:dovetail:won:[a-z]+)"
    r"(?:#[A-Za-z0-9._~-]*)?>"
)
# Characters that canonical N-Quads neither escapes nor changes.
_LITERAL = '"[ !#-\\[\\]-~\u00a0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*"' + f"(?:{re.escape(v.XSD_LONG)})?"
is_iri = re.compile(IRI).fullmatch
_is_object = re.compile(f"{IRI}|{_LITERAL}").fullmatch


def encode_block(graph: str, statements: Iterable[Statement]) -> str:
    """One graph; '' is the default graph. Needs the prefixes of HEADER before it."""
    subjects: dict[str, list[str]] = {}
    for s, p, o in statements:
        pair = f"{_SHORT_PREDICATES.get(p, p)} {_SHORT_OBJECTS.get(o, o)}"
        if s in subjects:
            subjects[s].append(pair)
        else:
            subjects[s] = [pair]
    body = " .\n".join([subject + " " + " ;\n ".join(pairs) for subject, pairs in subjects.items()])
    return f"{graph} {{\n{body} .\n}}\n" if graph else f"{body} .\n"


def decode_blocks(data: bytes, max_quads: int = MAX_DATASET_QUADS) -> dict[str, list[Statement]] | None:
    """Graph -> statements, or None if this is not the layout above, or not all of it; duplicates are not removed."""
    if not data.startswith(_HEADER_BYTES):
        return None
    try:
        lines = data[len(_HEADER_BYTES) :].decode().split("\n")
    except UnicodeDecodeError:
        return None
    if lines.pop() or len(lines) > max_quads:
        return None
    graphs: dict[str, list[Statement]] = {}
    graph = subject = ""
    known: set[str] = set()
    for line in lines:
        if not graph:
            graph = line[:-2]
            if not line.endswith(" {") or graph in graphs or not is_iri(graph):
                return None
            statements = graphs[graph] = []
            known.add(graph)
            continue
        if line == "}":
            if subject or not statements:
                return None
            graph = ""
            continue
        words = line.split(" ", 2)
        if len(words) != 3:
            return None
        start, predicate, rest = words
        if not subject:
            if start not in known and not is_iri(start):
                return None
            known.add(start)
            subject = start
        elif start:
            return None
        target, end = rest[:-2], rest[-2:]
        p = _LONG_PREDICATES.get(predicate) or (predicate if is_iri(predicate) else None)
        o = _LONG_OBJECTS.get(target) or (target if target in known or _is_object(target) else None)
        if p is None or o is None or end not in (" ;", " ."):
            return None
        statements.append((subject, p, o))
        if end == " .":
            subject = ""
    return graphs if not graph else None
