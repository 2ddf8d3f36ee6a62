"""Linked data: documents, pages, content negotiation, keys found in them."""

from __future__ import annotations

import pytest

from dovetail.model.address import won_uri
from dovetail.won import compose as c
from dovetail.won import vocabulary as v
from dovetail.won.canonical import read_quads
from dovetail.won.chain import ChainState
from dovetail.won.keys import KeyRing, Verifier, read_key_document
from dovetail.won.message import decode_message
from dovetail.won.resources import (
    choose_media_type,
    encode_resource,
    find_document,
    find_log_of_deleted,
    find_parties,
    needs_proof,
)
from dovetail.won.settings import WonSettings
from dovetail.won.signing import key_quads
from dovetail.won.trig import encode_document
from dovetail.won.vocabulary import MessageType as T
from won.won_samples import ALICE, ALICE_CHAT, BOB, BOB_CHAT, KEYS, NODE_A, build
from won.won_world import Pair

BASE = "/won/resource"


@pytest.fixture
def node():
    pair = Pair(WonSettings(page_size=4, serve_conversations=True)).connect()
    pair.say()
    return pair.a.core


def members(quads):
    return [o[1:-1] for _, p, o, _ in quads if p.endswith("#member>")]


def test_node_publishes_its_key(node):
    for media_type in ("application/trig", "application/n-quads", "text/turtle"):
        document = encode_resource(node, BASE, "", media_type)
        assert read_key_document(NODE_A, document) == KEYS[NODE_A].public


def test_atom_publishes_its_key_by_its_create_message(node):
    document = encode_resource(node, f"{BASE}/atom/alice", "", "application/trig")
    assert read_key_document(ALICE, document) == KEYS[ALICE].public


def test_a_replaced_atom_still_publishes_its_key():
    replaced = encode_document(list(build(T.REPLACE).quads), "application/trig")
    assert read_key_document(ALICE, replaced) == KEYS[ALICE].public
    forged = encode_document(list(build(T.REPLACE, key=KEYS["mallory"]).quads), "application/trig")
    assert read_key_document(ALICE, forged) is None


def objects(quads, name):
    return [o for s, p, o, _ in quads if s == f"<{ALICE}>" and p.endswith(f"{name}>")]


def test_replace_changes_the_document_that_is_served():
    pair = Pair()
    path = f"{BASE}/atom/alice"
    description = [(f"<{ALICE}>", f"<{v.CON}text>", f'"{text}"', "") for text in ("old", "new")]
    for quad in description:
        pair.alice.core.replace([ALICE_CHAT], pair.world.now, [quad])
        pair.run()
    document = find_document(pair.a.core, path)
    assert objects(document, "#text") == ['"new"']
    assert find_log_of_deleted(pair.a.core, path) is None
    assert read_key_document(ALICE, encode_document(document, "application/trig")) == KEYS[ALICE].public


@pytest.mark.parametrize("brings_key", [True, False])
def test_delete_ends_the_document_and_leaves_the_key_and_the_log(brings_key):
    """Old messages of the atom can still be verified, even after a Delete from a client that does not support this."""
    pair = Pair()
    path = f"{BASE}/atom/alice"
    text = (f"<{ALICE}>", f"<{v.CON}text>", '"to be forgotten"', "")
    pair.alice.core.replace([ALICE_CHAT], pair.world.now, [text])
    pair.run()
    if brings_key:
        pair.alice.core.change(T.DELETE, pair.world.now)
    else:
        pair.alice.core._submit(T.DELETE, [(v.P_ATOM, f"<{ALICE}>")], (), pair.world.now)
    pair.run()
    document = find_document(pair.a.core, path)
    assert objects(document, "#text") == []
    assert objects(document, "#atomState") == [f"<{v.WON}Deleted>"]
    assert objects(document, "#messageContainer") == [f"<{ALICE}/msg>"]
    assert find_log_of_deleted(pair.a.core, path) == f"{ALICE}/msg"
    assert read_key_document(ALICE, encode_document(document, "application/trig")) == KEYS[ALICE].public
    assert len(members(find_document(pair.a.core, f"{path}/msg", reader=ALICE))) == 6


def test_a_delete_cannot_bring_another_key():
    pair = Pair()
    content = c.atom_content(ALICE, (), KEYS["mallory"].public)
    message = pair.alice.core._submit(T.DELETE, [(v.P_ATOM, f"<{ALICE}>")], content, pair.world.now)
    pair.run()
    assert pair.state(pair.alice, message) is ChainState.FAILED
    assert find_log_of_deleted(pair.a.core, f"{BASE}/atom/alice") is None


def test_nodes_own_word_about_an_atoms_key_is_not_enough(node):
    claim = encode_document(key_quads(ALICE, KEYS["mallory"].public, "g:g"), "application/trig")
    assert read_key_document(ALICE, claim) is None
    forged = build(T.CREATE, key=KEYS["mallory"])
    assert read_key_document(ALICE, encode_document(list(forged.quads), "application/trig")) is None
    assert read_key_document(ALICE, b"not rdf") is None


def test_containers_come_in_pages_with_their_size(node):
    connection = node.ledger.find_connection(ALICE_CHAT, BOB_CHAT)
    path = connection.uri.removeprefix("https://a.example") + "/msg"
    first, second, third = (find_document(node, path, f"page={n}") for n in range(3))
    assert members(first) + members(second) + members(third) == [won_uri(a) for a in connection.messages]
    assert [len(members(page)) for page in (first, second, third)] == [4, 4, 1]
    assert any(p.endswith("#nextPage>") and o.endswith("?page=1>") for _, p, o, _ in first)
    assert not any(p.endswith("#nextPage>") for _, p, _, _ in third)
    assert any(p == v.P_SIZE and o.startswith('"9"') for _, p, o, _ in first)
    assert find_document(node, path, "page=3") is None


def test_every_message_of_a_container_is_served(node):
    connection = node.ledger.find_connection(ALICE_CHAT, BOB_CHAT)
    path = connection.uri.removeprefix("https://a.example") + "/msg"
    for uri in members(find_document(node, path)):
        document = encode_resource(node, f"{BASE}/msg/{uri[4:]}", "", "application/trig")
        assert decode_message(document).uri == uri


def test_connection_says_its_state_and_sockets(node):
    connection = node.ledger.find_connection(ALICE_CHAT, BOB_CHAT)
    quads = find_document(node, connection.uri.removeprefix("https://a.example"))
    assert f"<{v.WON}Connected>" in {o for _, _, o, _ in quads}
    assert connection.uri in members(find_document(node, f"{BASE}/atom/alice/c"))


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/", ""),
        (f"{BASE}/atom/nobody", ""),
        (f"{BASE}/atom/alice/msg", "page=-1"),
        (f"{BASE}/atom/alice/msg", "page=99999999999999999999"),
        (f"{BASE}/atom/alice/msg", "x=1"),
        (f"{BASE}/msg/QmNothing", ""),
        (f"{BASE}/msg/", ""),
        (f"{BASE}x", ""),
    ],
)
def test_what_is_not_there_is_not_found(node, path, query):
    assert find_document(node, path, query) is None


CONVERSATIONS = ("connection", "connection/msg", "atom/alice/c", "atom/alice/msg", "msg", "response")


def paths_of(pair: Pair) -> dict[str, str]:
    node = pair.a.core
    connection = node.ledger.find_connection(ALICE_CHAT, BOB_CHAT)
    path = connection.uri.removeprefix("https://a.example")
    message, response = (won_uri(address)[4:] for address in connection.messages[:2])
    found = {"connection": path, "connection/msg": f"{path}/msg"}
    found |= {"msg": f"{BASE}/msg/{message}", "response": f"{BASE}/msg/{response}"}
    return found | {name: f"{BASE}/{name}" for name in ("atom/alice/c", "atom/alice/msg")}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_conversations_are_read_only_by_who_takes_part(name):
    pair = Pair().connect()
    pair.say()
    node, path = pair.a.core, paths_of(pair)[name]
    allowed = {ALICE} if name.startswith("atom") else {ALICE, BOB}
    assert needs_proof(node, path)
    assert find_parties(node, path) == allowed
    for reader in (ALICE, BOB, f"{NODE_A}/atom/mallory", None):
        assert (find_document(node, path, reader=reader) is not None) is (reader in allowed), reader


def test_keys_and_atoms_are_for_everybody_and_all_is_where_it_was_asked_for():
    pair = Pair().connect()
    assert find_document(pair.a.core, BASE) is not None
    assert find_document(pair.a.core, f"{BASE}/atom/alice") is not None
    assert not needs_proof(pair.a.core, f"{BASE}/atom/alice")
    open_pair = Pair(WonSettings(serve_conversations=True)).connect()
    assert all(find_document(open_pair.a.core, path) is not None for path in paths_of(open_pair).values())


def test_what_is_not_there_has_no_parties(node):
    for path in (f"{BASE}/msg/Qmnothing", f"{BASE}/atom/nobody/c", f"{BASE}/x", "/elsewhere"):
        assert find_parties(node, path) == frozenset()


def test_only_what_the_reader_finds_is_served(node):
    assert find_document(node, f"{BASE}/atom/alice", read=lambda address: None) is None


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("", "application/trig"),
        ("*/*", "application/trig"),
        ("text/turtle", "text/turtle"),
        ("text/*", "text/turtle"),
        ("application/n-quads, text/turtle;q=0.5", "application/n-quads"),
        ("text/turtle;q=0.1, application/trig;q=0.9", "application/trig"),
        ("text/html, */*;q=0.1", "application/trig"),
        ("text/turtle;q=0", None),
        ("text/turtle;q=x", None),
        ("image/png", None),
    ],
)
def test_content_negotiation(accept, chosen):
    assert choose_media_type(accept) == chosen


def test_turtle_of_a_document_parses():
    pair = Pair()
    document = encode_resource(pair.a.core, f"{BASE}/atom/alice", "", "text/turtle")
    assert read_quads(document)


def test_fetched_keys_are_bounded_and_grow_old():
    ring = KeyRing(capacity=2, lifetime_us=10)
    for number, name in enumerate("abc"):
        ring.add(name, KEYS[ALICE].public, number)
    assert ring.find("a", 3) is None
    assert ring.find("c", 3) == KEYS[ALICE].public
    assert ring.find("c", 13) is None
    ring.pin("p", KEYS[ALICE].public)
    assert ring.find("p", 10**9) == KEYS[ALICE].public


def test_verdicts_are_remembered_and_bounded():
    verifier = Verifier(capacity=1)
    one, two = build(text="1"), build(text="2")
    for message in (one, two):
        verifier.verify(message, KEYS[ALICE].public)
    assert list(verifier._passed) == [two.address]
