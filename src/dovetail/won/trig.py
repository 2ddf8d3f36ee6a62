"""Messages as TriG, for the wire and for documents: graphs as blocks, subjects grouped, known terms abbreviated."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.won import vocabulary as v
from dovetail.won.canonical import Quad, Statement, encode_lines, join_lines
from dovetail.won.message import Message
from dovetail.won.readers.blocks import HEADER, block_writer, encode_block


def encode_bundle(messages: Iterable[Message]) -> bytes:
    """One TriG dataset of some messages."""
    return block_writer.write([message.raw for message in messages])


def encode_position(log: str, position: int, size: int | None, *, trig: bool) -> bytes:
    """The addition to a bundle that tells an owner its position in the atom's log; `size` ends a page."""
    graph, subject = f"<{log}#position>", f"<{log}>"
    facts = [f'{v.P_POSITION} "{position}"{v.XSD_LONG}']
    if size is not None:
        facts.append(f'{v.P_SIZE} "{size}"{v.XSD_LONG}')
    if trig:
        pairs = " ;\n ".join(facts)
        return f"{graph} {{\n{subject} {pairs} .\n}}\n".encode()
    return "".join(f"{subject} {fact} {graph} .\n" for fact in facts).encode()


def encode_graphs(quads: Iterable[Quad]) -> bytes:
    """TriG blocks, one per graph, for quads in any order; needs the prefixes of `encode_bundle`'s header."""
    graphs: dict[str, list[Statement]] = {}
    for s, p, o, g in quads:
        graphs.setdefault(g, []).append((s, p, o))
    return "".join([encode_block(graph, statements) for graph, statements in graphs.items()]).encode()


def encode_document(quads: list[Quad], media_type: str) -> bytes:
    """Quads as TriG, N-Quads or Turtle (which drops graph names)."""
    if media_type == "application/n-quads":
        return join_lines(encode_lines(quads))
    if media_type == "text/turtle":
        return HEADER.encode() + encode_graphs({(s, p, o, "") for s, p, o, _ in quads})
    return HEADER.encode() + encode_graphs(quads)
