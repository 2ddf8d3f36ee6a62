"""Canonical N-Quads in the narrow form used by messages of this project, as stored in journals and receipts.

    <subject> <predicate> object <graph> .

`decode_lines` reads it without a general parser, as `decode_blocks` reads our TriG. It accepts only lines in ascending
order, without duplicates, with a narrow set of terms: no blank nodes, no literal with an escape or with `<` in it, no
message's URI as a predicate. For anything else it returns None, and the general parser decides. Both give the same
result for what it accepts: `tests/properties/test_won_lines.py`. So every `<` in the text begins an IRI, and
`rename_text` may rename a message in the text itself.
"""

from __future__ import annotations

import re

from dovetail.won import vocabulary as v
from dovetail.won.canonical import MAX_DATASET_QUADS, Statement
from dovetail.won.readers.blocks import IRI, is_iri

# Characters that canonical N-Quads neither escapes nor changes, without `<`.
PLAIN_LITERAL = '"[ !#-;=-\\[\\]-~\u00a0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*"'
_is_object = re.compile(f"{IRI}|{PLAIN_LITERAL}(?:{re.escape(v.XSD_LONG)})?").fullmatch
_PREDICATES = frozenset().union(*v.ALLOWED.values()) | {
    *(v.P_SIGNATURE, v.P_SIGNER, v.P_SIGNED_GRAPH, v.P_HASH, v.P_SIGNATURE_VALUE, v.P_FINGERPRINT),
    *(v.P_TEXT, v.P_SOCKET, v.P_CERT_KEY, v.P_PUBLIC_KEY),
}
_WORDS = frozenset({*v.TYPES_BY_TERM, *v.DIRECTIONS_BY_TERM, v.T_ENVELOPE_GRAPH})
_MESSAGE_PREFIX = "<" + v.MESSAGE_SCHEME


def decode_lines(data: bytes, max_quads: int = MAX_DATASET_QUADS) -> dict[str, list[Statement]] | None:
    """Graph -> statements in ascending order, without duplicates; None if the data are not in the form above."""
    if data[:1] != b"<" or data[-3:] != b" .\n":
        return None
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError:
        return None
    lines.pop()
    if len(lines) > max_quads:
        return None
    graphs: dict[str, list[Statement]] = {}
    known = set(_WORDS)
    previous = subject = ""
    graph: str | None = None
    for line in lines:
        words = line.split(" ", 2)
        if len(words) != 3 or line <= previous or line[-2:] != " .":
            return None
        previous = line
        start, predicate, rest = words
        target, _, end = rest[:-2].rpartition(" ")
        # neighbours share subject and graph: do not check or hash the same text again
        if start != subject:
            if start not in known and not is_iri(start):
                return None
            subject = start
            known.add(subject)
        if end != graph:
            if end not in known and not is_iri(end):
                return None
            graph = end
            known.add(graph)
            statements = graphs.setdefault(graph, [])
        if predicate not in _PREDICATES and (not is_iri(predicate) or predicate.startswith(_MESSAGE_PREFIX)):
            return None
        if target not in known and not _is_object(target):
            return None
        statements.append((subject, predicate, target))
    return graphs


def rename_text(text: str, old: str, new: str) -> str:
    """Replace `old` and `old#x` with `new` and `new#x` in lines accepted by `decode_lines`; may need sorting again."""
    # faster than `replace` if there is much to replace
    return f"<{new}#".join(f"<{new}>".join(text.split(f"<{old}>")).split(f"<{old}#"))
