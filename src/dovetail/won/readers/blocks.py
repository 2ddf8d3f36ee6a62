"""TriG in the layout that this project writes: graphs as blocks, subjects grouped, one statement a line.

    <graph> {
    <subject> predicate object ;
     predicate object .
    }

`encode_block` writes it. `decode_blocks` reads it back without a general parser, which costs more than all other work
on a frame. It accepts only this layout, with a narrow set of IRIs and literals whose text is the same in canonical
N-Quads; for anything else it returns None, and the general parser decides. Both give the same result for what it
accepts: `tests/properties/test_won_blocks.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from dovetail.fast import twin
from dovetail.won import vocabulary as v
from dovetail.won.canonical import MAX_DATASET_QUADS, Statement

HEADER = "".join(f"@prefix {name}: <{uri}> .\n" for name, uri in v.PREFIXES.items())

_WORDS = (
    *("envelope", "content", "signature", "messageType", "timestamp", "protocolVersion", "atom", "connection"),
    *("senderSocket", "recipientSocket", "respondingTo", "respondingToMessageType", "previousMessage", "signer"),
    *("forwardedMessage", "signedGraph", "hash", "signatureValue", "publicKeyFingerprint", "EnvelopeGraph"),
    *(kind.value for kind in v.MessageType if kind is not v.MessageType.REGISTER),
    *(direction.value for direction in v.Direction),
)
_SHORT_OBJECTS = {v.msg(word): f"msg:{word}" for word in _WORDS}
_SHORT_OBJECTS |= {v.P_TEXT: "con:text", v.P_SOCKET: "won:socket", v.P_CERT_KEY: "cert:key"}
_SHORT_PREDICATES = {**_SHORT_OBJECTS, v.RDF_TYPE: "a"}  # `a` is a keyword for predicates only
LONG_TERMS = tuple({short: term for term, short in terms.items()} for terms in (_SHORT_PREDICATES, _SHORT_OBJECTS))
"""The expansions of short predicates and short objects."""

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


@twin
class BlockReader:
    """Reads the layout above: `header`, then blocks; `predicates` and `objects` expand short terms."""

    __slots__ = ("_header", "_objects", "_predicates")

    def __init__(self, header: bytes, predicates: dict[str, str], objects: dict[str, str]) -> None:
        self._header = header
        self._predicates = predicates
        self._objects = objects

    def read(self, data: bytes, max_quads: int) -> dict[str, list[Statement]] | None:
        """Graph -> statements, or None unless all of it is in the layout; duplicates are not removed."""
        if not data.startswith(self._header):
            return None
        try:
            lines = data[len(self._header) :].decode().split("\n")
        except UnicodeDecodeError:
            return None
        if lines.pop() or len(lines) > max_quads:
            return None
        graphs: dict[str, list[Statement]] = {}
        graph = subject = ""
        known: set[str] = set()
        predicates, objects = self._predicates, self._objects
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
            p = predicates.get(predicate) or (predicate if is_iri(predicate) else None)
            o = objects.get(target) or (target if target in known or _is_object(target) else None)
            if p is None or o is None or end not in (" ;", " ."):
                return None
            statements.append((subject, p, o))
            if end == " .":
                subject = ""
        return graphs if not graph else None


@twin
class BlockWriter:
    """Writes the layout above: `header`, then blocks by `encode_block`, whose tables native code needs."""

    __slots__ = ("_header",)

    def __init__(self, header: bytes, *_: object) -> None:
        self._header = header.decode()

    def write(self, messages: Iterable[bytes]) -> bytes:
        """One dataset of messages in canonical N-Quads."""
        blocks: list[str] = []
        for raw in messages:
            graphs: dict[str, list[Statement]] = {}
            for line in raw.decode().split("\n")[:-1]:
                subject, predicate, rest = line[:-2].split(" ", 2)
                target, _, graph = rest.rpartition(" ")
                graphs.setdefault(graph, []).append((subject, predicate, target))
            blocks += [encode_block(graph, statements) for graph, statements in sorted(graphs.items())]
        return (self._header + "".join(blocks)).encode()


block_reader = BlockReader(HEADER.encode(), *LONG_TERMS)
block_writer = BlockWriter(HEADER.encode(), _SHORT_PREDICATES, _SHORT_OBJECTS)


def decode_blocks(data: bytes, max_quads: int = MAX_DATASET_QUADS) -> dict[str, list[Statement]] | None:
    """Graph -> statements, or None unless all of it is in the layout above; duplicates are not removed."""
    return block_reader.read(data, max_quads)
