"""Anatomy of a message: closed property lists, addresses, several messages in one dataset."""

from __future__ import annotations

import pytest

from dovetail.model.address import parse_address
from dovetail.model.errors import LocalProtocolError, RemoteProtocolError
from dovetail.model.hop import Reason
from dovetail.won import compose as c
from dovetail.won import vocabulary as v
from dovetail.won.canonical import WIRE, rename
from dovetail.won.message import (
    compute_address,
    decode_bundle,
    decode_message,
    verify_address,
)
from dovetail.won.trig import encode_bundle, encode_document, encode_position
from dovetail.won.vocabulary import MessageType
from won.won_samples import ALICE, ALICE_CHAT, BOB_CHAT, build, success


def assert_refused(reason, data):
    with pytest.raises(RemoteProtocolError) as caught:
        decode_bundle(data)
    assert caught.value.reason is reason, caught.value.detail


def altered(message, change):
    """The message's dataset after `change` on its quads, under the same URI."""
    quads = [changed for quad in message.quads if (changed := change(quad)) is not None]
    return encode_document(quads, "application/n-quads")


def extended(message, *quads):
    return encode_document([*message.quads, *quads], "application/n-quads")


def test_message_has_the_address_of_its_content():
    message = build()
    assert verify_address(message)
    assert message.uri.startswith("wm:/Qm")
    assert parse_address(message.uri) == message.address
    assert compute_address(rename(message.quads, message.uri, v.SELF))[0] == message.address


def test_building_again_gives_the_same_uri():
    assert build() == build()


@pytest.mark.parametrize("kind", [k for k in MessageType if k not in (*v.RESPONSE_TYPES, MessageType.REGISTER)])
def test_every_type_survives_trig_and_nquads(kind):
    message = build(kind)
    assert decode_bundle(encode_bundle([message])).messages == (message,)
    assert decode_message(message.raw) == message


def test_several_messages_travel_in_one_dataset_m_first_then_s1():
    message = build()
    response = success(message)
    assert decode_bundle(encode_bundle([response, message])).messages == (message, response)


def test_frame_position_is_read_and_belongs_to_no_message():
    log = f"{ALICE}/msg"
    trig = decode_bundle(encode_bundle([build()]) + encode_position(log, 7, 9, trig=True))
    nquads = decode_bundle(build().raw + encode_position(log, 7, 9, trig=False))
    assert trig == nquads
    assert (trig.position, trig.size, trig.log, len(trig.messages)) == (7, 9, log, 1)


def test_response_carries_references_in_sorted_order():
    message, first, second = build(), build(text="1"), build(text="2")
    response = success(message, previous=[second.uri, first.uri])
    assert response.previous == tuple(sorted((first.uri, second.uri)))
    assert response.responding_to == message.uri
    assert response.responding_to_type is MessageType.CONNECTION
    assert response.is_response


def test_altered_content_breaks_the_address():
    message = build(text="I owe you 5")
    data = altered(message, lambda q: (q[0], q[1], q[2].replace("5", "9"), q[3]) if q[1] == v.P_TEXT else q)
    assert not verify_address(decode_message(data))


def test_literal_that_contains_the_placeholder_is_left_alone():
    message = build(text="see <wm:/SELF#content> and wm:/SELF")
    assert verify_address(message)
    assert decode_message(message.raw).text == "see <wm:/SELF#content> and wm:/SELF"


def test_predicate_that_looks_like_the_placeholder_is_left_alone():
    content = [("<a:s>", f"<{v.SELF}#p>", '"1"', f"<{c.CONTENT_GRAPH}>")]
    message = build(content=content)
    assert [p for _, p, _, g in message.quads if g == f"<{message.uri}#content>"] == [f"<{v.SELF}#p>"]
    assert decode_message(message.raw) == message
    assert verify_address(decode_message(message.raw))


def test_longer_uri_that_begins_with_the_messages_own_is_left_alone():
    message = build()
    longer = (f"<{message.uri}x>", "<a:p>", f"<{message.uri}/y>", f"<{message.uri}#content>")
    decoded = decode_message(extended(message, longer))
    expected = compute_address(rename([*message.quads, longer], message.uri, v.SELF))
    assert (decoded.address, decoded.signed_digest) == expected


def test_blank_nodes_in_content_are_addressed_whatever_their_labels():
    content = [("_:x", "<a:p>", '"1"', f"<{c.CONTENT_GRAPH}>"), ("_:y", "<a:q>", "_:x", f"<{c.CONTENT_GRAPH}>")]
    message = build(content=content)
    assert decode_message(message.raw) == message
    relabelled = altered(message, lambda q: tuple(term.replace("_:c14n", "_:other") for term in q))
    assert verify_address(decode_message(relabelled))
    assert decode_message(relabelled) == message


SOCKETS = {v.P_SENDER_SOCKET, v.P_RECIPIENT_SOCKET}
ANSWER = {v.P_RESPONDING_TO, v.P_RESPONDING_TO_TYPE}
LISTED = {
    MessageType.CREATE: ({v.P_ATOM, v.P_CONTENT}, set()),
    MessageType.REPLACE: ({v.P_ATOM, v.P_CONTENT}, set()),
    MessageType.ACTIVATE: ({v.P_ATOM}, set()),
    MessageType.DEACTIVATE: ({v.P_ATOM}, set()),
    MessageType.DELETE: ({v.P_ATOM}, {v.P_CONTENT}),
    MessageType.CONNECT: (SOCKETS, {v.P_CONTENT}),
    MessageType.CLOSE: (SOCKETS, {v.P_CONTENT}),
    MessageType.CONNECTION: (SOCKETS, {v.P_CONTENT, v.P_FORWARDED}),
    MessageType.CHANGE: (SOCKETS, {v.P_CONTENT}),
    MessageType.SUCCESS: (ANSWER, SOCKETS | {v.P_ATOM, v.P_CONNECTION, v.P_PREVIOUS}),
    MessageType.FAILURE: (ANSWER, SOCKETS | {v.P_ATOM, v.P_CONNECTION, v.P_CONTENT}),
}
"""What each type requires beyond what all require, and what it may also carry."""


@pytest.mark.parametrize("kind", sorted(LISTED))
def test_every_type_carries_what_is_listed_for_it_and_nothing_else(kind):
    message = success(build(), success=kind is MessageType.SUCCESS) if kind in v.RESPONSE_TYPES else build(kind)
    subject, envelope = f"<{message.uri}>", f"<{message.uri}#envelope>"
    required, optional = LISTED[kind]
    present = {term for where, term, _, graph in message.quads if (where, graph) == (subject, envelope)}
    for term in required:
        assert_refused(
            Reason.INVALID_SCHEMA, altered(message, lambda q, term=term: None if q[:2] == (subject, term) else q)
        )
    for term in set().union(*(also | more for also, more in LISTED.values())) - present:
        value = f"<{message.uri}#content>" if term == v.P_CONTENT else f"<{message.uri}>"
        data = extended(message, (subject, term, value, envelope))
        if term not in optional:
            assert_refused(Reason.INVALID_SCHEMA, data)


@pytest.mark.parametrize("term", sorted(v.REQUIRED_BY_ALL | {v.P_SENDER_SOCKET, v.P_RECIPIENT_SOCKET, v.P_CONTENT}))
def test_envelope_must_carry_what_its_type_requires(term):
    message = build()
    assert_refused(
        Reason.INVALID_SCHEMA, altered(message, lambda q: None if (q[1], q[0]) == (term, f"<{message.uri}>") else q)
    )


@pytest.mark.parametrize("kind", [MessageType.CONNECT, MessageType.CLOSE, MessageType.CHANGE])
def test_only_connection_messages_forward(kind):
    forwarded = [(v.P_FORWARDED, f"<{build(text=text).uri}>") for text in "12"]
    sockets = c.socket_pair(ALICE_CHAT, BOB_CHAT)
    message = build(envelope=[*sockets, *forwarded])
    assert message.forwarded == tuple(sorted(term[1:-1] for _, term in forwarded))
    assert decode_message(message.raw) == message
    with pytest.raises(LocalProtocolError, match="forwardedMessage"):
        build(kind, envelope=[*sockets, *forwarded])


def test_property_may_not_be_repeated():
    message = build()
    extra = (f"<{message.uri}>", v.P_TIMESTAMP, f'"1"{v.XSD_LONG}', f"<{message.uri}#envelope>")
    assert_refused(Reason.INVALID_SCHEMA, extended(message, extra))


@pytest.mark.parametrize("time", ['"1"', '"-1"^^', '"x"^^', '""^^', '"1234567890123456789"^^', "<a:b>"])
def test_timestamp_must_be_a_long(time):
    message = build()
    term = time[:-2] + v.XSD_LONG if time.endswith("^^") else time
    data = altered(message, lambda q: (q[0], q[1], term, q[3]) if q[1] == v.P_TIMESTAMP else q)
    assert_refused(Reason.INVALID_SCHEMA, data)


def test_other_protocol_version_is_refused():
    message = build()
    data = altered(message, lambda q: (q[0], q[1], '"2.0"', q[3]) if q[1] == v.P_VERSION else q)
    assert_refused(Reason.UNSUPPORTED_VERSION, data)


@pytest.mark.parametrize(
    "quad",
    [
        ("<a:s>", f"<{v.MSG}timestamp>", '"1"', f"<{c.CONTENT_GRAPH}>"),
        ("<a:s>", "<a:p>", f"<{v.MSG}SuccessResponse>", f"<{c.CONTENT_GRAPH}>"),
        (f"<{v.MSG}x>", "<a:p>", '"1"', f"<{c.CONTENT_GRAPH}>"),
        ("<a:s>", "<a:p>", f'"1"^^<{v.MSG}x>', f"<{c.CONTENT_GRAPH}>"),
    ],
)
def test_content_may_not_use_the_envelope_namespace(quad):
    message = build()
    assert_refused(Reason.RESERVED_NAMESPACE, extended(message, *rename([quad], v.SELF, message.uri)))


def test_text_about_the_namespace_is_allowed():
    assert verify_address(build(text=f"see <{v.MSG}timestamp>"))


def test_content_graph_must_be_listed():
    message = build()
    assert_refused(Reason.INVALID_SCHEMA, extended(message, ("<a:s>", "<a:p>", '"1"', f"<{message.uri}#more>")))


def test_default_graph_must_be_empty():
    assert_refused(Reason.INVALID_SCHEMA, build().raw + b"<a:s> <a:p> <a:o> .\n")


def test_blank_graph_name_is_refused():
    assert_refused(Reason.INVALID_SCHEMA, build().raw + b"<a:s> <a:p> <a:o> _:g .\n")


def test_missing_signature_is_refused():
    message = build()
    assert_refused(Reason.UNSIGNED, altered(message, lambda q: None if q[3].endswith("#signature>") else q))


def test_signature_must_cover_every_graph():
    message = build()
    graph = f"<{message.uri}#content>"
    assert_refused(
        Reason.UNSIGNED, altered(message, lambda q: None if (q[1], q[2]) == (v.P_SIGNED_GRAPH, graph) else q)
    )


def test_signature_graph_is_closed():
    message = build()
    assert_refused(Reason.INVALID_SCHEMA, extended(message, ("<a:s>", "<a:p>", '"1"', f"<{message.uri}#signature>")))


@pytest.mark.parametrize("term", [v.P_HASH, v.P_SIGNATURE_VALUE, v.P_FINGERPRINT])
@pytest.mark.parametrize("ending", ["@en", "^^<a:t>"])
def test_signature_is_written_in_exactly_one_way(term, ending):
    """Otherwise anyone could give a signed message a second URI."""
    message = build()
    data = altered(message, lambda q: (q[0], q[1], q[2] + ending, q[3]) if q[1] == term else q)
    assert_refused(Reason.INVALID_SCHEMA, data)


def test_triple_terms_are_refused():
    message = build()
    term = "<<( <a:a> <a:b> <a:c> )>>"
    assert_refused(Reason.INVALID_SCHEMA, extended(message, ("<a:s>", "<a:p>", term, f"<{message.uri}#content>")))
    assert_refused(
        Reason.INVALID_SCHEMA,
        altered(message, lambda q: (q[0], q[1], term, q[3]) if q[1] == v.P_SENDER_SOCKET else q),
    )


def test_statement_without_graph_is_refused_even_if_its_object_is_a_graph_of_the_message():
    message = build()
    assert_refused(Reason.INVALID_SCHEMA, message.raw + f"<a:s> <a:p> <{message.uri}#content> .\n".encode())
    literal = f'"x <{message.uri}#content"^^<a:t>'
    assert_refused(Reason.INVALID_SCHEMA, message.raw + f"<a:s> <a:p> {literal} .\n".encode())


def test_placeholder_is_never_a_valid_uri():
    message = build()
    data = encode_document(rename(message.quads, message.uri, v.SELF), "application/n-quads")
    assert_refused(Reason.WRONG_ADDRESS, data)


def test_empty_dataset_is_refused():
    assert_refused(Reason.MALFORMED, b"")


def test_too_many_messages_in_one_dataset_are_refused():
    assert_refused(Reason.TOO_LARGE, encode_bundle([build(text=str(i)) for i in range(17)]))


def test_message_of_too_many_statements_is_refused():
    message = build()
    graph = c.CONTENT_GRAPH.replace(v.SELF, message.uri)
    more = [(f"<a:s{number}>", "<a:p>", '"1"', f"<{graph}>") for number in range(WIRE.message_quads)]
    assert_refused(Reason.TOO_LARGE, extended(message, *more))


def test_socket_must_belong_to_an_atom():
    with pytest.raises(LocalProtocolError, match="socket"):
        build(envelope=c.socket_pair(ALICE_CHAT, BOB_CHAT.partition("#")[0]))
    with pytest.raises(LocalProtocolError, match="atom"):
        build(envelope=c.socket_pair("https://a.example/elsewhere#chat", BOB_CHAT))


def test_failure_response_never_carries_previous_message():
    message = build()
    with pytest.raises(LocalProtocolError, match="previousMessage"):
        success(message, success=False, previous=[message.uri])


def test_message_whose_statements_take_more_room_than_is_read_back_is_refused():
    """A subject is written once in TriG and on every line of what is journaled."""
    message = build()
    subject = "<https://a.example/" + "x" * 1_000 + ">"
    quads = [*message.quads, *((subject, v.P_TEXT, f'"{n}"', f"<{message.uri}#content>") for n in range(1_000))]
    data = encode_document(quads, "application/trig")
    assert len(data) < 50_000
    with pytest.raises(RemoteProtocolError) as caught:
        decode_message(data)
    assert caught.value.reason is Reason.TOO_LARGE


@pytest.mark.parametrize(
    "content",
    [[f"<https://a.example/{n}>" for n in range(2_000)], ["<https://a.example/" + "x" * 920_000 + ">"]],
    ids=["statements", "bytes"],
)
def test_message_that_others_would_refuse_cannot_be_made(content):
    quads = [(f"<{v.SELF}>", v.P_TEXT, term, f"<{v.SELF}#content>") for term in content]
    with pytest.raises(LocalProtocolError, match="expected at most"):
        build(content=quads)
