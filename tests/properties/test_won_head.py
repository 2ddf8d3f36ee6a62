"""The fast reader of heads accepts nothing that decoding the whole message would refuse or read differently."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dovetail.won import compose
from dovetail.won import vocabulary as v
from dovetail.won.canonical import encode_lines, join_lines
from dovetail.won.readers.head import MAX_PREVIOUS, read_head
from dovetail.won.vocabulary import Direction, MessageType
from properties.test_won_lines import EDITS, decode_slowly
from won.won_samples import ALICE, ALICE_CHAT, BOB_CHAT, KEYS, NODE_A, build, success

TEXT = build(text="the ladder is yours on Friday")
RESPONSE = success(TEXT, previous=["wm:/QmA", "wm:/QmA1", "wm:/QmB"])
BARE = success(TEXT, connection=None, sender_socket=None, recipient_socket=None)
MESSAGES = (TEXT, RESPONSE, BARE)


def assert_read_alike(raw: bytes) -> bool:
    """True if the fast reader accepted it."""
    head = read_head(raw)
    if head is None:
        return False
    message = decode_slowly(raw)
    assert message is not None, "the quick reader took what is no message"
    assert (head.uri, head.address) == (message.uri, message.address)
    assert (head.responding_to, head.previous) == (message.responding_to, message.previous)
    assert message.raw == raw
    return True


@pytest.mark.parametrize("message", MESSAGES)
def test_the_common_messages_are_read_quickly(message):
    assert assert_read_alike(message.raw)


@pytest.mark.parametrize("kind", [k for k in MessageType if k not in (*v.RESPONSE_TYPES, MessageType.REGISTER)])
def test_all_others_are_left_to_the_general_way(kind):
    message = build(kind)
    assert assert_read_alike(message.raw) == (kind is MessageType.CONNECTION)
    assert assert_read_alike(success(message).raw)
    assert not assert_read_alike(success(message, success=False).raw)


@pytest.mark.parametrize(
    "message",
    [
        build(text='he said "yes"'),
        build(text="1 < 2"),
        build(text="two\nlines"),
        build(content=[]),
        build(content=compose.text_content("a") + compose.text_content("b")),
        success(TEXT, previous=[f"wm:/Qm{number}" for number in range(MAX_PREVIOUS + 1)]),
    ],
)
def test_unusual_ones_are_left_to_the_general_way(message):
    assert not assert_read_alike(message.raw)
    assert decode_slowly(message.raw) == message


@given(
    st.sampled_from(MESSAGES),
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 12), st.sampled_from(EDITS)), max_size=2),
)
@settings(max_examples=1500, deadline=None)
def test_altered_messages_are_read_alike_or_left(message, edits):
    raw = message.raw
    for at, length, piece in edits:
        at %= len(raw) + 1
        raw = raw[:at] + piece + raw[at + length :]
    assert_read_alike(raw)


OTHERS = (
    "<wm:/QmA>",
    "<wm:/QmA1>",
    "<wm:/QmAB>",
    "<wm:/QmA#x>",
    "<https://a.example/x>",
    f"<{ALICE}>",
    f"<{BOB_CHAT}>",
)
TERMS = (
    *OTHERS,
    *('"x"', '"1.0"', '"1.1"', f'"7"{v.XSD_LONG}', f'"-7"{v.XSD_LONG}', f'"{"7" * 19}"{v.XSD_LONG}', '"a"@en', "_:b"),
    *(f"<{message.uri}{part}>" for message in MESSAGES for part in ("", v.ENVELOPE, v.SIGNATURE, "#content")),
    *(*v.TYPES_BY_TERM, *v.DIRECTIONS_BY_TERM, v.T_ENVELOPE_GRAPH, v.P_PREVIOUS, v.P_ATOM, v.P_TEXT, v.P_CONTENT),
    *(v.P_CONNECTION, v.P_SENDER_SOCKET, v.P_SIGNED_GRAPH, v.P_FORWARDED, v.P_AFTER, v.RDF_TYPE),
)


@given(
    st.sampled_from(MESSAGES),
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 3), st.sampled_from(TERMS)), max_size=2),
    st.sets(st.integers(0, 40), max_size=1),
)
@settings(max_examples=3000, deadline=None)
@example(RESPONSE, [], set())
def test_canonical_datasets_with_other_terms_are_read_alike_or_left(message, changes, left_out):
    quads = [list(quad) for number, quad in enumerate(message.quads) if number not in left_out]
    for number, place, term in changes:
        copy = list(quads[number % len(quads)])
        copy[place] = term
        # added if the number is odd, else replaces the one before
        if number % 2:
            quads.append(copy)
        else:
            quads[number % len(quads)] = copy
    assert_read_alike(join_lines(encode_lines(tuple(quad) for quad in quads)))


ids = st.text("1Q9AZaz", min_size=1, max_size=4).map("wm:/{}".format)


@given(
    st.lists(ids, max_size=5),
    st.sampled_from([None, f"{ALICE}/c/one", "https://b.example:8443/won/resource/atom/x/c/1"]),
    st.sampled_from([None, ALICE_CHAT, BOB_CHAT, f"{ALICE}#", "https://a.example/elsewhere#chat"]),
    st.sampled_from(list(Direction)),
    st.integers(0, 10**18 - 1),
)
@settings(max_examples=500, deadline=None)
def test_responses_of_any_kind_are_read_alike(previous, connection, socket, direction, at_ms):
    envelope = [(v.P_RESPONDING_TO, f"<{TEXT.uri}>"), (v.P_RESPONDING_TO_TYPE, v.TYPE_TERMS[MessageType.CONNECTION])]
    envelope += [(v.P_PREVIOUS, f"<{uri}>") for uri in set(previous)]
    envelope += [(term, f"<{uri}>") for term, uri in ((v.P_CONNECTION, connection), (v.P_SENDER_SOCKET, socket)) if uri]
    quads = compose_quads(envelope, direction, at_ms)
    raw = join_lines(encode_lines(quads))
    is_message = decode_slowly(raw) is not None
    assert assert_read_alike(raw) == is_message
    assert is_message == (socket in (None, ALICE_CHAT, BOB_CHAT))


def compose_quads(envelope, direction, at_ms):
    """A response with this envelope, under a wrong URI."""
    template = success(TEXT, timestamp_ms=at_ms)
    kept = {v.P_PREVIOUS, v.P_CONNECTION, v.P_SENDER_SOCKET, v.P_RECIPIENT_SOCKET, v.P_RESPONDING_TO, v.RDF_TYPE}
    kept |= {v.P_RESPONDING_TO_TYPE}
    subject, graph = f"<{template.uri}>", f"<{template.uri}{v.ENVELOPE}>"
    quads = [quad for quad in template.quads if quad[0] != subject or quad[1] not in kept]
    envelope = [*envelope, (v.RDF_TYPE, v.DIRECTION_TERMS[direction])]
    return [*quads, *((subject, p, o, graph) for p, o in envelope)]


def test_a_response_that_names_itself_is_left_to_the_general_way():
    quads = [(s, p, f"<{RESPONSE.uri}>" if o == "<wm:/QmB>" else o, g) for s, p, o, g in RESPONSE.quads]
    raw = join_lines(encode_lines(quads))
    assert not assert_read_alike(raw)
    assert decode_slowly(raw) is not None


def test_signatures_are_not_looked_at():
    other = success(TEXT, key=KEYS["mallory"])
    assert other.signer == NODE_A
    assert assert_read_alike(other.raw)
