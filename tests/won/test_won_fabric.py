"""What won messages mean to the packages above."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.model.address import address_of, won_uri
from dovetail.model.fabric import Link, Refused, Role
from dovetail.model.hop import Relation
from dovetail.won.canonical import rename
from dovetail.won.fabric import CONFLICTING_RESPONSE, FABRIC, FORKED_LOG, TWO_CREATES, explain_message
from dovetail.won.message import decode_message, decode_quads
from dovetail.won.vocabulary import MessageType
from won.won_samples import ALICE, ALICE_CHAT, BOB, BOB_CHAT, KEYS, NODE_A, NODE_B, NOW_MS, build, success

OTHER_SIDE = {"signer": NODE_B, "key": KEYS[NODE_B], "sender_socket": BOB_CHAT}
ATOM_SIDE = {"connection": None, "sender_socket": None, "recipient_socket": None}


def test_a_message_says_who_made_it_for_whom_and_when():
    message = build(text="hi")
    info = FABRIC.read(message.raw)
    assert (info.address, info.key, info.id, info.address_valid) == (
        message.address,
        message.address,
        message.uri,
        True,
    )
    assert (info.type, info.sender, info.recipients) == ("ConnectionMessage", ALICE, (BOB,))
    assert (info.created_us, info.expires_us, info.role) == (NOW_MS * 1000, None, None)
    assert (info.channel.sender_socket, info.channel.recipient_socket) == (ALICE_CHAT, BOB_CHAT)


def test_links_name_the_parents_by_address_or_by_their_foreign_uri():
    message, earlier = build(), build(text="earlier")
    response = success(message, previous=[earlier.uri, "wm:/W1foreign"])
    links = FABRIC.read(response.raw).links
    assert links[0] == Link(message.address, Relation.RESPONDING_TO)
    assert set(links[1:]) == {Link(earlier.address, Relation.PREVIOUS), Link(b"wm:/W1foreign", Relation.PREVIOUS)}
    assert [FABRIC.show_key(link.parent) for link in links[:1]] == [message.uri]
    assert FABRIC.show_key(b"wm:/W1foreign") == "wm:/W1foreign"
    assert all(FABRIC.needle(link.parent) in response.raw.lower() for link in links)


def test_the_role_of_a_response_is_told_by_its_sockets():
    message, create = build(), build(MessageType.CREATE)
    roles = {
        Role.FIRST: [success(message), success(create, **ATOM_SIDE)],
        Role.SECOND: [success(message, **OTHER_SIDE)],
        Role.FAILURE: [success(message, success=False), success(message, success=False, **OTHER_SIDE)],
    }
    for role, responses in roles.items():
        assert [FABRIC.read(response.raw).role for response in responses] == [role] * len(responses)


def test_a_signature_is_verified_with_the_key_that_the_message_names():
    signed = FABRIC.read(build().raw).signed
    assert (signed.signer, signed.entitled, signed.claims_valid) == (ALICE, ALICE, True)
    assert FABRIC.verify(signed, KEYS[ALICE].public.raw)
    assert not FABRIC.verify(signed, KEYS[BOB].public.raw)
    assert not FABRIC.verify(signed, b"short")
    for change in ({"signed_digest": bytes(32)}, {"signature": None}, {"signature": bytes(64)}, {"fingerprint": "x"}):
        assert not FABRIC.verify(msgspec.structs.replace(signed, **change), KEYS[ALICE].public.raw)


def test_who_may_not_sign_is_told_from_who_signed():
    signed = FABRIC.read(build(signer=BOB, key=KEYS[BOB]).raw).signed
    assert (signed.signer, signed.entitled, signed.claims_valid) == (BOB, ALICE, False)
    assert FABRIC.verify(signed, KEYS[BOB].public.raw)


def test_a_stated_hash_that_is_not_that_of_the_content_makes_the_signature_unusable():
    message, other = build(text="one"), build(text="two")
    signed = FABRIC.read(message.raw.replace(message.hash.encode(), other.hash.encode())).signed
    assert (signed.signature, signed.claims_valid) == (None, False)


def test_a_create_message_publishes_a_key():
    signed = FABRIC.read(build(MessageType.CREATE).raw).signed
    assert (signed.key_owner, signed.public_key) == (ALICE, KEYS[ALICE].public.raw)
    assert FABRIC.read(build().raw).signed.public_key is None


def test_what_contradicts_what():
    message, create = build(), build(MessageType.CREATE)

    def keys(*responses, kind):
        return {FABRIC.conflict_keys(FABRIC.read(each.raw)).get(kind) for each in responses}

    same_role = keys(success(message), success(message, timestamp_ms=NOW_MS + 2), kind=CONFLICTING_RESPONSE)
    assert len(same_role) == 1
    assert len(same_role | keys(success(message, success=False), kind=CONFLICTING_RESPONSE)) == 1
    assert len(same_role | keys(success(message, **OTHER_SIDE), kind=CONFLICTING_RESPONSE)) == 2
    logs = [success(create, previous=[message.uri], timestamp_ms=NOW_MS + n, **ATOM_SIDE) for n in (1, 2)]
    assert len(keys(*logs, kind=FORKED_LOG)) == 1
    assert keys(success(message, previous=[create.uri]), kind=FORKED_LOG) == {None}
    assert keys(create, build(MessageType.CREATE, timestamp_ms=NOW_MS + 1), kind=TWO_CREATES) == {ALICE}


def test_addresses_and_names_are_identified_without_reading_all():
    message = build()
    first = success(message)
    second = success(message, previous=[first.uri], timestamp_ms=NOW_MS + 2, **OTHER_SIDE)
    assert FABRIC.identify(message.raw) == (message.address, frozenset())
    assert FABRIC.identify(second.raw).names == {
        (Relation.RESPONDING_TO, message.uri),
        (Relation.PREVIOUS, first.uri),
    }
    assert FABRIC.identify(build(MessageType.CREATE).raw).address == build(MessageType.CREATE).address


def test_bytes_under_another_name_have_no_address():
    message, other = build(text="one"), build(text="two")
    raw = message.raw.replace(message.uri.encode(), other.uri.encode())
    assert FABRIC.identify(raw).address is None
    info = FABRIC.read(raw)
    assert (info.address_valid, info.id) == (False, other.uri)


def test_bytes_that_are_no_message_have_the_hash_of_the_bytes():
    assert FABRIC.identify(b"not rdf").address == address_of(b"not rdf")
    assert isinstance(FABRIC.read(b"not rdf"), Refused)


@given(st.data())
def test_a_changed_byte_changes_the_address(data):
    message = build(text="hello")
    at = data.draw(st.integers(0, len(message.raw) - 1))
    raw = bytearray(message.raw)
    raw[at] ^= data.draw(st.integers(1, 255))
    damaged = bytes(raw)
    if FABRIC.identify(damaged).address == message.address:
        # the same dataset in another spelling
        assert decode_message(damaged).raw == message.raw


def test_an_explanation_names_the_parts_people_ask_for():
    fields = FABRIC.explain(build(text="hi").raw)
    assert (fields["address"], fields["timestamp_ms"], fields["text"]) == ("ok", NOW_MS, "hi")
    assert fields["senderSocket"] == ALICE_CHAT
    assert FABRIC.explain(b"") == {"error": "malformed", "detail": "the dataset holds no message"}


def test_a_broken_address_is_explained_with_the_true_one():
    message = build()
    other = decode_quads("wm:/QmWrong", rename(message.quads, message.uri, "wm:/QmWrong"))
    assert explain_message(other)["address"] == "broken"
    assert explain_message(other)["computed"] == won_uri(message.address)


def test_the_node_of_a_response_is_entitled_to_sign_it():
    signed = FABRIC.read(success(build()).raw).signed
    assert (signed.entitled, FABRIC.verify(signed, KEYS[NODE_A].public.raw)) == (NODE_A, True)


@pytest.mark.parametrize("key", [b"", b"\xff\xfe", bytes(31)])
def test_a_key_that_is_no_address_is_shown_as_text(key):
    assert isinstance(FABRIC.show_key(key), str)
