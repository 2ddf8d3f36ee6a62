"""Canonical N-Quads of a message, guarded against graphs that make canonicalisation explode.

The canonical form is W3C RDFC-1.0 with SHA-256. Without blank nodes it is just the sorted, deduplicated N-Quads
lines, so such messages (nearly all) never reach the canonicalisation algorithm. With blank nodes the worst case is
exponential: a clique of 8 blank nodes (56 quads) takes 12 s with the interpreter lock held. `check_poison` therefore
first counts the blank nodes that share a first-degree hash, and refuses a graph whose estimated work is too large,
before any canonicalisation.

A quad is four N-Quads terms as text: renaming works on terms, never on bytes, because a literal may contain the text
of a URI.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
import pyoxigraph as ox

from dovetail.fast import twin
from dovetail.model.address import Address
from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Reason

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

Quad = tuple[str, str, str, str]
Statement = tuple[str, str, str]
"""A quad without its graph."""
Graphs = dict[str, list[str]]
"""Graph -> the N-Quads lines in it."""

MAX_DATASET_QUADS = 6_000


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Maximum size of a dataset and of a message in it; a message's bytes are those of its canonical N-Quads."""

    dataset_bytes: int = 1 << 20
    dataset_quads: int = MAX_DATASET_QUADS
    message_bytes: int = 896 << 10
    message_quads: int = 2_000


WIRE = Limits()
"""Limits for what is read from others, and written. A message leaves room for its responses in the same dataset."""
STORED = Limits(dataset_bytes=64 << 20, dataset_quads=1_000_000, message_bytes=64 << 20, message_quads=1_000_000)
"""Limits for reading one's own journal, which holds only what was once accepted or made."""

_EXPANSION = 8
"""N-Quads may be at most this many times larger than the TriG they were read from: prefixes expand."""
MAX_CANONICAL_WORK = 20_000
"""Upper bound of `sum(size! * quads)` over groups of indistinguishable, linked blank nodes: about 40 ms."""
_MAX_GROUP = 8


def read_quads(data: bytes, limits: Limits = WIRE) -> list[Quad]:
    """All quads of a TriG or N-Quads document as terms; raises RemoteProtocolError."""
    return split_lines(read_lines(data, limits))


def read_lines(data: bytes, limits: Limits = WIRE) -> list[str]:
    """All quads of a TriG or N-Quads document as canonical N-Quads lines, unsorted; raises RemoteProtocolError."""
    if len(data) > limits.dataset_bytes:
        raise RemoteProtocolError(Reason.TOO_LARGE, f"read {len(data)} bytes, expected at most {limits.dataset_bytes}")
    form = ox.RdfFormat.N_QUADS if is_nquads(data) else ox.RdfFormat.TRIG
    output = _BoundedOutput(limits.dataset_bytes * _EXPANSION)
    try:
        parsed = islice(ox.parse(data, form), limits.dataset_quads + 1)
        ox.serialize(parsed, output, format=ox.RdfFormat.N_QUADS)
    except (SyntaxError, ValueError) as error:
        raise RemoteProtocolError(Reason.MALFORMED, f"not {form.name}: {error}") from None
    lines = output.getvalue().decode().split("\n")
    lines.pop()
    if len(lines) > limits.dataset_quads:
        raise RemoteProtocolError(Reason.TOO_LARGE, f"more than {limits.dataset_quads} quads")
    return lines


class _BoundedOutput(io.BytesIO):
    """Refuses a dataset whose N-Quads exceed a limit."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes

    def write(self, data: Buffer, /) -> int:
        """Keep the data; raises RemoteProtocolError."""
        if self.tell() + memoryview(data).nbytes > self._max_bytes:
            raise RemoteProtocolError(Reason.TOO_LARGE, f"more than {self._max_bytes} bytes as N-Quads")
        return super().write(data)


def is_nquads(data: bytes) -> bool:
    """True if the first statement looks like N-Quads: a predicate follows the first term (in TriG `{` does)."""
    if data.startswith(b"@prefix"):
        return False
    for line in data[:8192].split(b"\n"):
        statement = line.strip()
        if not statement or statement.startswith(b"#"):
            continue
        if not statement.startswith((b"<", b"_:")):
            return False
        _, _, rest = statement.partition(b" ")
        return rest.lstrip().startswith(b"<")
    return False


def find_iri_error(uri: str) -> str | None:
    """Why readers of a dataset would refuse this URI in it; None if they take it."""
    try:
        ox.NamedNode(uri)
    except ValueError as error:  # a lone surrogate, too
        return str(error).encode("unicode_escape").decode()
    return None


def split_lines(lines: list[str]) -> list[Quad]:
    """Split N-Quads lines as written by pyoxigraph into four terms; the graph is '' for the default graph."""
    return [
        # Four words and a full stop; the fourth is not the end of a literal that contains a space.
        (words[0], words[1], words[2], words[3])
        if len(words := line.split(" ")) == 5 and '"' not in words[3]
        else _split_line(line)
        for line in lines
    ]


def _split_line(line: str) -> Quad:
    subject, predicate, rest = line.split(" ", 2)
    if subject.startswith("<<") or rest.startswith("<<"):
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, "quoted triples are not part of the protocol")
    if rest.startswith('"'):
        target, _, graph = rest[:-2].rpartition(" ")
        # Without a graph the last word is the end of the literal, which contains or follows a quotation mark.
        if not target or '"' in graph:
            return subject, predicate, rest[:-2], ""
        return subject, predicate, target, graph
    target, _, graph = rest[:-2].partition(" ")
    return subject, predicate, target, graph


def sort_lines(lines: Iterable[str]) -> Graphs:
    """Group the lines of a dataset by their last term: the graph, or an object in the default graph."""
    graphs: Graphs = {}
    end = "\n"
    for line in lines:
        # Serialisers write the quads of a graph consecutively.
        if not line.endswith(end):
            end = line[line.rfind(" ", 0, -2) :]
            group = graphs.setdefault(end[1:-2], [])
        group.append(line)
    return graphs


def split_statements(graph: str, lines: list[str]) -> tuple[Statement, ...]:
    """The statements of one graph, from its lines as grouped by `sort_lines`; raises RemoteProtocolError."""
    cut = -len(graph) - 3
    words = [line[:cut].split(" ", 2) for line in lines]
    # Without a graph the last term is an object: a literal, or an IRI missing from the rest.
    if '"' in graph or any(len(three) != 3 for three in words):
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, "the default graph is not empty")
    return tuple([(s, p, o) for s, p, o in words])


def encode_lines(quads: Iterable[Quad]) -> list[str]:
    """Sorted, deduplicated N-Quads lines."""
    return sorted({f"{s} {p} {o} {g} ." if g else f"{s} {p} {o} ." for s, p, o, g in quads})


def join_lines(lines: list[str]) -> bytes:
    """The bytes to hash: every line ends with a line feed."""
    return ("\n".join(lines) + "\n").encode() if lines else b""


class Renaming(dict[str, str]):
    """Term -> the term with `old` and `old#x` replaced by `new` and `new#x`; each is computed once.

    For graph names, subjects and objects only. Predicates are not renamed; literals stay unchanged.
    """

    __slots__ = ("_fresh", "_prefix")

    def __init__(self, old: str, new: str) -> None:
        super().__init__({f"<{old}>": f"<{new}>"})
        self._prefix = f"<{old}#"
        self._fresh = f"<{new}#"

    def __missing__(self, term: str) -> str:
        renamed = self._fresh + term[len(self._prefix) :] if term.startswith(self._prefix) else term
        self[term] = renamed
        return renamed


@twin
def encode_graphs(graphs: Iterable[tuple[str, Sequence[Statement]]]) -> bytes:
    """The canonical N-Quads of graphs that have no blank nodes, or only canonically labelled ones."""
    return join_lines(sorted({f"{s} {p} {o} {graph} ." for graph, group in graphs for s, p, o in group}))


@twin
def digest_graphs(
    graphs: Iterable[tuple[str, Sequence[Statement]]], old: str, new: str, apart: str
) -> tuple[Address, Address]:
    """The digests of such graphs with `old` renamed to `new`: of all, and of all but the graph then named `apart`."""
    names = Renaming(old, new)
    rest: set[str] = set()
    lines: set[str] = set()
    for graph, statements in graphs:
        name = names[graph]
        renamed = [f"{names[s]} {p} {names[o]} {name} ." for s, p, o in statements]
        lines.update(renamed)
        if name != apart:
            rest.update(renamed)
    return digest_of(sorted(lines)), digest_of(sorted(rest))


def rename(quads: Iterable[Quad], old: str, new: str) -> list[Quad]:
    """Replace `old` and `old#x` with `new` and `new#x` in graph names, subjects and objects."""
    names = Renaming(old, new)
    return [(names[s], p, names[o], names[g]) for s, p, o, g in quads]


def canonical_lines(quads: list[Quad]) -> list[str]:
    """The canonical N-Quads lines (RDFC-1.0, SHA-256) of a dataset that passed `check_poison`."""
    lines = encode_lines(quads)
    if not has_blank_nodes(quads):
        return lines
    check_poison(quads)
    dataset = ox.Dataset(ox.parse(join_lines(lines), ox.RdfFormat.N_QUADS))
    dataset.canonicalize(ox.CanonicalizationAlgorithm.RDFC_1_0)
    return sorted(str(dataset).split("\n")[:-1])


def has_blank_nodes(quads: Iterable[Quad]) -> bool:
    """True if any subject, object or graph name is a blank node."""
    return any(s[0] == "_" or o[0] == "_" or g[:1] == "_" for s, _, o, g in quads)


def check_poison(quads: list[Quad]) -> None:
    """Refuse a dataset whose blank nodes would make canonicalisation expensive; costs one hash per blank node."""
    touching: dict[str, list[Quad]] = defaultdict(list)
    for quad in quads:
        for node in _blank_nodes_of(quad):
            touching[node].append(quad)
    by_hash: dict[bytes, list[str]] = defaultdict(list)
    for node, near in touching.items():
        by_hash[_first_degree_hash(node, near)].append(node)
    alike = {node for group in by_hash.values() if len(group) > 1 for node in group}
    work = 0
    for component in _components(alike, touching):
        quad_count = sum(len(touching[node]) for node in component)
        work += math.factorial(min(len(component), _MAX_GROUP)) * quad_count
        if work > MAX_CANONICAL_WORK or len(component) > _MAX_GROUP:
            raise RemoteProtocolError(
                Reason.POISON_GRAPH,
                f"{len(component)} linked blank nodes look alike, work {work}, expected at most {MAX_CANONICAL_WORK}",
            )


def _blank_nodes_of(quad: Quad) -> set[str]:
    subject, _, target, graph = quad
    return {term for term in (subject, target, graph) if term.startswith("_:")}


def _first_degree_hash(node: str, near: list[Quad]) -> bytes:
    def mask(term: str) -> str:
        if not term.startswith("_:"):
            return term
        return "_:a" if term == node else "_:z"

    lines = sorted(f"{mask(s)} {p} {mask(o)} {mask(g)} ." for s, p, o, g in near)
    return hashlib.sha256("\n".join(lines).encode()).digest()


def _components(alike: set[str], touching: dict[str, list[Quad]]) -> Iterator[set[str]]:
    """Groups of indistinguishable blank nodes that share a quad; permutations are tried only within a group."""
    unseen = set(alike)
    while unseen:
        component: set[str] = set()
        frontier = [unseen.pop()]
        while frontier:
            node = frontier.pop()
            component.add(node)
            for quad in touching[node]:
                neighbours = _blank_nodes_of(quad) & unseen
                unseen -= neighbours
                frontier.extend(neighbours)
        yield component


def digest_of(lines: list[str]) -> Address:
    """SHA-256 of canonical lines."""
    return Address(hashlib.sha256(join_lines(lines)).digest())
