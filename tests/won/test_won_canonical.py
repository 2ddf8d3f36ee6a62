"""Canonical form, renaming on terms, and the guard against poison graphs."""

from __future__ import annotations

import itertools

import pyoxigraph as ox
import pytest

from counting import count_calls
from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Reason
from dovetail.won.canonical import (
    MAX_DATASET_QUADS,
    canonical_lines,
    check_poison,
    encode_lines,
    read_lines,
    read_quads,
    rename,
    split_lines,
)

GRAPH = "<wm:/SELF#content>"


def blank_quads(pairs, predicate="<p:p>"):
    return [(f"_:{a}", predicate, f"_:{b}", GRAPH) for a, b in pairs]


def clique(size, prefix="n"):
    return blank_quads((f"{prefix}{a}", f"{prefix}{b}") for a, b in itertools.permutations(range(size), 2))


@pytest.mark.parametrize(
    ("line", "quad"),
    [
        ("<a:s> <a:p> <a:o> <a:g> .", ("<a:s>", "<a:p>", "<a:o>", "<a:g>")),
        ("<a:s> <a:p> <a:o> .", ("<a:s>", "<a:p>", "<a:o>", "")),
        ('<a:s> <a:p> "two words" <a:g> .', ("<a:s>", "<a:p>", '"two words"', "<a:g>")),
        ('<a:s> <a:p> "two words" .', ("<a:s>", "<a:p>", '"two words"', "")),
        ('<a:s> <a:p> "x <b" .', ("<a:s>", "<a:p>", '"x <b"', "")),
        ('<a:s> <a:p> "x <b"^^<a:t> .', ("<a:s>", "<a:p>", '"x <b"^^<a:t>', "")),
        ('<a:s> <a:p> "x <b> ."^^<a:t> <a:g> .', ("<a:s>", "<a:p>", '"x <b> ."^^<a:t>', "<a:g>")),
        ('<a:s> <a:p> "q\\" <b> .\\\\" <a:g> .', ("<a:s>", "<a:p>", '"q\\" <b> .\\\\"', "<a:g>")),
        ('<a:s> <a:p> "x"@en-us <a:g> .', ("<a:s>", "<a:p>", '"x"@en-us', "<a:g>")),
        ('_:b <a:p> "" _:g .', ("_:b", "<a:p>", '""', "_:g")),
    ],
)
def test_line_splits_into_its_four_terms(line, quad):
    assert split_lines([line, line]) == [quad, quad]


def test_renaming_touches_terms_and_never_literals():
    quads = [("<wm:/SELF>", "<a:p>", '"<wm:/SELF#x>"', "<wm:/SELF#c>"), ("<wm:/SELFISH>", "<a:p>", "<wm:/SELF>", "")]
    assert rename(quads, "wm:/SELF", "wm:/Qm1") == [
        ("<wm:/Qm1>", "<a:p>", '"<wm:/SELF#x>"', "<wm:/Qm1#c>"),
        ("<wm:/SELFISH>", "<a:p>", "<wm:/Qm1>", ""),
    ]


def test_blank_node_labels_do_not_change_the_canonical_form():
    one = [("_:x", "<a:p>", '"1"', GRAPH), ("_:y", "<a:p>", '"2"', GRAPH), ("_:x", "<a:q>", "_:y", GRAPH)]
    other = [("_:y", "<a:p>", '"1"', GRAPH), ("_:z", "<a:p>", '"2"', GRAPH), ("_:y", "<a:q>", "_:z", GRAPH)]
    assert canonical_lines(one) == canonical_lines(other)
    assert canonical_lines(one) != encode_lines(one)


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_small_symmetric_graphs_pass_the_guard(size):
    assert len(canonical_lines(clique(size))) == size * (size - 1)


@pytest.mark.parametrize(
    "quads",
    [
        pytest.param(clique(8), id="clique of 8: 12 s without the guard"),
        pytest.param(clique(40), id="clique of 40: never"),
        pytest.param([quad for k in range(60) for quad in clique(5, f"k{k}x")], id="many middle-sized cliques"),
        pytest.param(blank_quads((f"n{i}", f"n{(i + 1) % 60}") for i in range(60)), id="ring of 60"),
    ],
)
def test_poison_graph_is_refused_before_it_is_canonicalised(quads):
    def check() -> None:
        with pytest.raises(RemoteProtocolError) as caught:
            check_poison(quads)
        assert caught.value.reason is Reason.POISON_GRAPH

    assert count_calls(check) < 200 * len(quads)


def test_many_distinct_blank_nodes_are_not_poison():
    quads = [(f"_:n{i}", "<a:p>", f'"{i}"', GRAPH) for i in range(500)]
    assert len(canonical_lines(quads)) == 500


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff\xfe\x00", Reason.MALFORMED),
        (b"<a:s> <a:p>", Reason.MALFORMED),
        (b"<a:g> { <a:s> <a:p> ", Reason.MALFORMED),
        (b"hello", Reason.MALFORMED),
        (b'<a:s> <a:p> "\\uD800" <a:g> .', Reason.MALFORMED),
        (b"<a:s> <a:p> <<( <a:a> <a:b> <a:c> )>> <a:g> .", Reason.INVALID_SCHEMA),
        (b" " * (1 << 20) + b" ", Reason.TOO_LARGE),
        (
            b"<a:g> { <a:s> <a:p> " + b",".join(b"%d" % i for i in range(MAX_DATASET_QUADS + 1)) + b" }",
            Reason.TOO_LARGE,
        ),
    ],
)
def test_unreadable_dataset_is_refused_with_its_reason(data, reason):
    with pytest.raises(RemoteProtocolError) as caught:
        read_quads(data)
    assert caught.value.reason is reason


def test_ten_megabytes_of_triples_are_refused_without_parsing():
    data = b'<a:s> <a:p> "x" <a:g> .\n' * 450_000

    def read() -> None:
        with pytest.raises(RemoteProtocolError, match="expected at most"):
            read_quads(data)

    assert count_calls(read) < 1000


def test_trig_and_nquads_give_the_same_quads():
    trig = b'@prefix a: <a:> .\n<a:g> { a:s a:p "x y", 5 . }'
    nquads = (
        b'# comment\n\n<a:s> <a:p> "5"^^<http://www.w3.org/2001/XMLSchema#integer> <a:g> .\n<a:s> <a:p> "x y" <a:g> .'
    )
    assert sorted(read_quads(trig)) == sorted(read_quads(nquads))


def test_control_characters_are_escaped_as_canonical_nquads_demands():
    quad = ox.Quad(
        ox.NamedNode("a:s"), ox.NamedNode("a:p"), ox.Literal('\x07\x08\t\n\x0b\x0c\r\x7f"\\é'), ox.NamedNode("a:g")
    )
    data = bytes(ox.serialize([quad], format=ox.RdfFormat.N_QUADS))
    assert read_quads(data)[0][2] == '"\\u0007\\b\\t\\n\\u000B\\f\\r\\u007F\\"\\\\é"'


def test_prefixes_cannot_make_a_small_frame_huge():
    long = b"https://a.example/" + b"x" * 100_000
    many = b"".join(b"a:s%d a:p a:o .\n" % number for number in range(2_000))
    with pytest.raises(RemoteProtocolError) as caught:
        read_lines(b"@prefix a: <" + long + b"> .\n<wm:/Qm1#c> {\n" + many + b"}\n")
    assert caught.value.reason is Reason.TOO_LARGE
