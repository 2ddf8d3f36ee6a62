"""Roles of responses, contradictions between them, and states of chains."""

from __future__ import annotations

import pytest

from dovetail.won.chain import Chain, ChainState, Role, answer_key, is_answer, role_of
from dovetail.won.vocabulary import MessageType
from won.won_samples import ALICE, BOB, BOB_CHAT, KEYS, NODE_B, build, success

MESSAGE = build()
S1 = success(MESSAGE)
S2 = success(MESSAGE, signer=NODE_B, key=KEYS[NODE_B], sender_socket=BOB_CHAT, connection=f"{BOB}/c/two")
FAILED_HERE = success(MESSAGE, success=False)
FAILED_THERE = success(MESSAGE, success=False, signer=NODE_B, key=KEYS[NODE_B], sender_socket=BOB_CHAT)
CHANGE = build(MessageType.DEACTIVATE)
WITHOUT_SOCKETS = {"sender_socket": None, "recipient_socket": None, "connection": None}
S = success(CHANGE, atom=ALICE, **WITHOUT_SOCKETS)


@pytest.mark.parametrize(
    ("response", "role"),
    [(S1, Role.FIRST), (S2, Role.SECOND), (S, Role.ATOM), (FAILED_HERE, Role.FAILURE), (FAILED_THERE, Role.FAILURE)],
)
def test_role_is_told_by_type_and_sockets(response, role):
    assert role_of(response) is role


@pytest.mark.parametrize("response", [S1, S2, FAILED_HERE, FAILED_THERE])
def test_answers_lie_between_the_sockets_of_their_message(response):
    assert is_answer(response, MESSAGE)
    assert not is_answer(response, build(MessageType.CLOSE)), "the type that it names is another"
    assert not is_answer(response, CHANGE)


def test_response_from_or_to_another_socket_is_no_answer():
    assert not is_answer(success(MESSAGE, sender_socket=f"{BOB}#other"), MESSAGE)
    assert not is_answer(success(MESSAGE, recipient_socket=BOB_CHAT), MESSAGE)
    assert not is_answer(success(MESSAGE, sender_socket=BOB_CHAT, recipient_socket=BOB_CHAT), MESSAGE)


def test_answer_to_an_atom_message_names_its_atom_and_no_socket():
    assert is_answer(S, CHANGE)
    assert not is_answer(success(CHANGE, atom=BOB, **WITHOUT_SOCKETS), CHANGE)
    assert not is_answer(success(CHANGE, atom=ALICE), CHANGE)


def test_each_node_may_answer_once():
    assert answer_key(MESSAGE.uri, S1) == answer_key(MESSAGE.uri, FAILED_HERE)
    assert answer_key(MESSAGE.uri, S2) == answer_key(MESSAGE.uri, FAILED_THERE)
    assert answer_key(MESSAGE.uri, S1) != answer_key(MESSAGE.uri, S2)
    assert answer_key(MESSAGE.uri, S1) != answer_key(CHANGE.uri, S1)


@pytest.mark.parametrize(
    ("before", "response", "expected"),
    [
        ({}, S1, False),
        ({"first": "s1"}, S2, False),
        ({"first": "s1"}, FAILED_THERE, False),
        ({"first": "s1", "failure": "f", "is_undeliverable": True}, FAILED_THERE, False),
        ({"first": "s1", "second": "s2", "failure": "f", "is_undeliverable": True}, FAILED_THERE, True),
        ({"failure": "f", "is_undeliverable": True}, S1, False),
        ({"failure": "f"}, S1, True),
        ({"first": "s1"}, S1, True),
        ({"first": "s1"}, FAILED_HERE, True),
        ({"first": "s1", "second": "s2"}, S2, True),
        ({"first": "s1", "second": "s2"}, FAILED_THERE, True),
        ({"first": "s1", "failure": "f"}, S2, True),
        ({"first": "s"}, success(CHANGE, success=False, atom=ALICE, **WITHOUT_SOCKETS), True),
    ],
)
def test_second_answer_of_a_node_contradicts_the_first(before, response, expected):
    assert Chain(type=MessageType.CONNECTION, **before).contradicts(response) is expected


@pytest.mark.parametrize(
    ("kind", "roles", "state", "is_stored"),
    [
        (MessageType.CREATE, [], ChainState.ATOM, False),
        (MessageType.CREATE, [Role.ATOM], ChainState.ATOM, True),
        (MessageType.CREATE, [Role.FAILURE], ChainState.FAILED, False),
        (MessageType.CONNECT, [], ChainState.AWAITING_SENDER, False),
        (MessageType.CONNECT, [Role.SECOND], ChainState.AWAITING_SENDER, False),
        (MessageType.CONNECT, [Role.FIRST], ChainState.AWAITING_RECIPIENT, False),
        (MessageType.CONNECT, [Role.FIRST, Role.SECOND], ChainState.COMPLETE, True),
        (MessageType.CONNECT, [Role.FIRST, Role.FAILURE], ChainState.FAILED, False),
    ],
)
def test_state_of_a_chain(kind, roles, state, is_stored):
    chain = Chain(type=kind)
    for role in roles:
        assert chain.add(role, f"{role.value} of m") is None
    assert chain.state is state
    assert chain.is_stored is is_stored
    assert chain.is_answered is bool({Role.ATOM, Role.FIRST, Role.FAILURE} & set(roles))


def test_chain_tells_whose_role_a_response_takes():
    chain = Chain(type=MessageType.CONNECT)
    chain.add(Role.FIRST, "one")
    assert chain.add(Role.FIRST, "other") == "one"
    assert chain.first == "other"
