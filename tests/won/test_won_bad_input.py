"""Bad input: refused with its reason, answered if the protocol has an answer, journaled, nothing else affected."""

from __future__ import annotations

import pytest

from counting import count_calls
from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Reason, Stage
from dovetail.model.wire import SendFrames
from dovetail.won import compose as c
from dovetail.won import rules
from dovetail.won import vocabulary as v
from dovetail.won.canonical import rename
from dovetail.won.chain import ChainState
from dovetail.won.conversation import MAX_EARLY_RESPONSES, Conversations
from dovetail.won.links import LinkKind
from dovetail.won.message import decode_bundle
from dovetail.won.settings import WonSettings
from dovetail.won.trig import encode_bundle, encode_document, encode_position
from dovetail.won.vocabulary import Direction
from dovetail.won.vocabulary import MessageType as T
from won.won_samples import ALICE, ALICE_CHAT, BOB, BOB_CHAT, KEYS, NODE_A, NODE_B, build, success
from won.won_world import Pair

MAX_CALLS_FOR_A_REFUSAL = 20_000


def make(
    pair, kind=T.CONNECTION, *, signer=ALICE, key=None, sockets=(ALICE_CHAT, BOB_CHAT), skew_ms=0, text="x", **changes
):
    arguments = {
        "type": kind,
        "direction": Direction.OWNER,
        "signer": signer,
        "key": key or KEYS[signer],
        "timestamp_ms": pair.world.now // 1000 + 100 + skew_ms,
        "envelope": c.socket_pair(*sockets),
        "content": c.text_content(text),
    }
    return c.compose(**(arguments | changes))


class Link:
    """A raw link into a node, and what comes back."""

    def __init__(self, pair, party, kind):
        self.pair, self.party, self.name = pair, party, f"raw {kind}"
        party.core.receive_accepted(self.name, LinkKind(kind), pair.world.now)

    def send(self, *messages):
        data = messages[0] if isinstance(messages[0], bytes) else encode_bundle(messages)
        self.party.core.receive_frame(data, self.name, self.pair.world.now)
        events = self.party.core.events()
        self.party.observations += [e for e in events if hasattr(e, "stage")]
        for event in events:
            if type(event).__name__ == "KeyWanted":
                self.pair.world._serve(self.party, event.uri)
        self.party.observations += [e for e in self.party.core.events() if hasattr(e, "stage")]
        answers = []
        for item in self.party.core.to_send():
            if isinstance(item, SendFrames) and item.links == (self.name,):
                answers += decode_bundle(item.frames[0]).messages
            elif isinstance(item, SendFrames):
                self.pair.world._carry(self.party, item)
        self.pair.run()
        return answers


@pytest.fixture
def pair():
    return Pair().connect()


@pytest.fixture
def owner_link(pair):
    return Link(pair, pair.a, "owner")


@pytest.fixture
def node_link(pair):
    return Link(pair, pair.b, "node")


def assert_refused(party, reason, answers=None):
    rejected = [o for o in party.observations if o.stage is Stage.REJECTED]
    assert [o.reason for o in rejected] == [reason]
    assert rejected[0].raw is not None
    if answers is not None:
        failure = answers[-1]
        assert failure.type is T.FAILURE
        assert failure.text.startswith(f"{reason.value}: ")
        assert failure.previous == ()


def assert_undisturbed(pair):
    assert pair.state(pair.alice, pair.say(text="still")) is ChainState.COMPLETE
    assert pair.state(pair.bob, pair.reply(text="here")) is ChainState.COMPLETE


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"not rdf", Reason.MALFORMED),
        (b"", Reason.MALFORMED),
        (b"\xff\xff\xff", Reason.MALFORMED),
        (b'<a:s> <a:p> "x" <a:g> .', Reason.INVALID_SCHEMA),
        (b"x" * (2 << 20), Reason.TOO_LARGE),
        (b'<a:s> <a:p> "ten megabytes of triples" <a:g> .\n' * 220_000, Reason.TOO_LARGE),
    ],
)
def test_unreadable_frame_is_journaled_and_nothing_else_happens(pair, owner_link, data, reason):
    answers = []
    assert count_calls(lambda: answers.extend(owner_link.send(data))) < MAX_CALLS_FOR_A_REFUSAL
    assert answers == []
    assert_refused(pair.a, reason)
    kept = pair.a.observations[-1]
    assert len(kept.raw) <= pair.world.settings.max_evidence_bytes
    assert kept.size == len(data)
    assert_undisturbed(pair)


def test_half_a_dataset(pair, owner_link):
    data = encode_bundle([make(pair)])
    owner_link.send(data[: len(data) // 2])
    assert_refused(pair.a, Reason.MALFORMED)
    assert_undisturbed(pair)


def test_wrong_address(pair, owner_link):
    message = make(pair)
    owner_link.send(encode_document(rename(message.quads, message.uri, "wm:/QmWrong"), "application/n-quads"))
    assert_refused(pair.a, Reason.WRONG_ADDRESS)
    assert_undisturbed(pair)


def test_altered_after_signing(pair, owner_link):
    message = make(pair)
    owner_link.send(message.raw.replace(b'"x"', b'"y"'))
    assert_refused(pair.a, Reason.WRONG_ADDRESS)
    assert_undisturbed(pair)


def test_signed_with_anothers_key(pair, owner_link):
    assert_refused(pair.a, Reason.BAD_SIGNATURE, owner_link.send(make(pair, key=KEYS["mallory"])))
    assert pair.a.core.ledger.atoms[ALICE].log[-1][0] not in [o.message for o in pair.a.observations if o.reason]
    assert_undisturbed(pair)


def test_signed_by_another_atom_in_its_own_name(pair, owner_link):
    assert_refused(pair.a, Reason.WRONG_SIGNER, owner_link.send(make(pair, signer=BOB)))
    assert_undisturbed(pair)


def test_owner_cannot_speak_as_the_system(pair, owner_link):
    owner_link.send(make(pair, T.CLOSE, direction=Direction.SYSTEM))
    assert_refused(pair.a, Reason.INVALID_SCHEMA)
    assert_undisturbed(pair)


def test_atom_of_another_node(pair, owner_link):
    owner_link.send(make(pair, signer=BOB, sockets=(BOB_CHAT, ALICE_CHAT)))
    assert_refused(pair.a, Reason.WRONG_NODE)
    assert_undisturbed(pair)


def test_create_of_an_atom_that_exists_with_another_key(pair, owner_link):
    content = c.atom_content(ALICE, [ALICE_CHAT], KEYS["mallory"].public)
    create = make(pair, T.CREATE, key=KEYS["mallory"], envelope=[(v.P_ATOM, f"<{ALICE}>")], content=content)
    assert_refused(pair.a, Reason.ATOM_EXISTS, owner_link.send(create))
    assert pair.a.core.ledger.atoms[ALICE].key == KEYS[ALICE].public
    assert_undisturbed(pair)


def test_atoms_of_a_node_are_bounded_and_refused_ones_leave_nothing_in_memory():
    pair = Pair(WonSettings(max_atoms=1)).connect()
    link = Link(pair, pair.a, "owner")
    answered = len(pair.a.core.ledger.first)
    atom = f"{NODE_A}/atom/mallory"
    content = c.atom_content(atom, [f"{atom}#chat"], KEYS["mallory"].public)
    create = make(pair, T.CREATE, signer=atom, key=KEYS["mallory"], envelope=[(v.P_ATOM, f"<{atom}>")], content=content)
    assert_refused(pair.a, Reason.QUEUE_FULL, link.send(create))
    assert (list(pair.a.core.ledger.atoms), len(pair.a.core.ledger.first)) == ([ALICE], answered)
    assert_undisturbed(pair)


def test_unknown_recipient_gets_a_failure_of_the_other_node(pair):
    stranger = f"{NODE_B}/atom/nobody#chat"
    message = pair.alice.core.send_message(T.CONNECT, ALICE_CHAT, stranger, pair.world.now)
    pair.run()
    assert pair.state(pair.alice, message) is ChainState.FAILED
    assert_refused(pair.b, Reason.UNKNOWN_ATOM)
    assert_undisturbed(pair)


def test_unknown_socket(pair):
    message = pair.alice.core.send_message(T.CONNECT, ALICE_CHAT, f"{BOB}#door", pair.world.now)
    pair.run()
    assert pair.state(pair.alice, message) is ChainState.FAILED
    assert_refused(pair.b, Reason.UNKNOWN_SOCKET)


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("reason", [Reason.UNKNOWN_ATOM, Reason.ATOM_EXISTS])
def test_only_the_senders_own_node_doubts_a_sender_whose_atom_it_does_not_know(reason, is_first):
    assert rules.is_genuine(reason, is_first=is_first) is not is_first
    assert not rules.is_genuine(Reason.BAD_SIGNATURE, is_first=is_first)
    assert rules.is_genuine(Reason.WRONG_STATE, is_first=is_first)


def test_closed_connection(pair, owner_link):
    pair.say(T.CLOSE)
    answers = owner_link.send(make(pair))
    assert_refused(pair.a, Reason.WRONG_STATE, answers)
    assert answers[-1].connection == pair.a.core.ledger.find_connection(ALICE_CHAT, BOB_CHAT).uri
    message = pair.say()
    assert pair.state(pair.alice, message) is ChainState.FAILED


def test_self_connection(pair):
    message = pair.alice.core.send_message(T.CONNECT, ALICE_CHAT, ALICE_CHAT, pair.world.now)
    pair.run()
    assert pair.state(pair.alice, message) is ChainState.FAILED
    assert_refused(pair.a, Reason.SELF_CONNECTION)


def test_clock_an_hour_ahead(pair, owner_link):
    assert_refused(pair.a, Reason.CLOCK_SKEW, owner_link.send(make(pair, skew_ms=3_600_000)))


@pytest.mark.parametrize("hours", [-1, 1])
def test_registration_with_a_clock_an_hour_off(pair, owner_link, hours):
    register = c.compose(
        type=T.REGISTER,
        direction=v.Direction.OWNER,
        signer=ALICE,
        key=KEYS[ALICE],
        timestamp_ms=pair.world.now // 1000 + hours * 3_600_000,
        envelope=[(v.P_ATOM, f"<{ALICE}>"), (v.P_AFTER, f'"0"{v.XSD_LONG}')],
    )
    assert_refused(pair.a, Reason.CLOCK_SKEW, owner_link.send(register))
    assert_undisturbed(pair)


@pytest.mark.parametrize(("check", "sides"), [(rules.check_clock, (1,)), (rules.check_registration_clock, (1, -1))])
def test_a_clock_may_be_off_by_exactly_the_skew_that_is_allowed(pair, check, sides):
    limit = WonSettings().max_clock_skew_ms
    now = 1_000 * make(pair).timestamp_ms
    for side in sides:
        check(make(pair), now - side * limit * 1_000, WonSettings())
        with pytest.raises(RemoteProtocolError, match="timestamp is"):
            check(make(pair), now - side * (limit + 1) * 1_000, WonSettings())


def test_node_whose_clock_is_ahead(pair, node_link):
    message = make(pair, skew_ms=3_600_000)
    assert_refused(pair.b, Reason.CLOCK_SKEW, node_link.send(message, first_of(pair, message)))


def test_content_in_the_envelopes_namespace(pair, owner_link):
    message = make(pair)
    owner_link.send(message.raw + f"<a:s> <{v.MSG}timestamp> <a:o> <{message.uri}#content> .\n".encode())
    assert_refused(pair.a, Reason.RESERVED_NAMESPACE)
    assert_undisturbed(pair)


def test_poison_graph_is_refused_at_once(pair, owner_link):
    uri = make(pair).uri
    clique = "".join(f"_:n{i} <a:p> _:n{j} <{uri}#content> .\n" for i in range(12) for j in range(12) if i != j)
    frame = make(pair).raw + clique.encode()
    assert count_calls(lambda: owner_link.send(frame)) < MAX_CALLS_FOR_A_REFUSAL
    assert_refused(pair.a, Reason.POISON_GRAPH)
    assert_undisturbed(pair)


def first_of(pair, message, **changes):
    arguments = {
        "success": True,
        "signer": NODE_A,
        "key": KEYS[NODE_A],
        "timestamp_ms": message.timestamp_ms,
        "connection": pair.a.core.ledger.find_connection(ALICE_CHAT, BOB_CHAT).uri,
        "sender_socket": message.sender_socket,
        "recipient_socket": message.sender_socket,
    }
    return c.respond(message, **(arguments | changes))


def test_message_without_the_response_of_its_own_node(pair, node_link):
    node_link.send(make(pair))
    assert_refused(pair.b, Reason.INVALID_SCHEMA)
    assert_undisturbed(pair)


def test_message_replayed_to_another_connection_is_still_its_own(pair, node_link):
    """The sockets are signed: a replay elsewhere is the same message, answered with the same response."""
    message = pair.say()
    first = decode_bundle(pair.b.frames_in[-1]).messages[1]
    stored = len(pair.b.core.ledger.atoms[BOB].log)
    (answer,) = node_link.send(message, first)
    assert answer.uri == pair.alice.core.conversations.deliveries[message.uri].chain.second
    assert len(pair.b.core.ledger.atoms[BOB].log) == stored


def test_message_with_the_response_to_another(pair, node_link):
    answers = node_link.send(make(pair), first_of(pair, make(pair, text="other")))
    assert_refused(pair.b, Reason.BAD_REFERENCE, answers)
    assert_undisturbed(pair)


def test_first_response_that_references_what_nobody_said(pair, node_link):
    message = make(pair)
    answers = node_link.send(message, first_of(pair, message, previous=["wm:/QmNobody"]))
    assert_refused(pair.b, Reason.BAD_REFERENCE, answers)
    assert_undisturbed(pair)


def test_node_cannot_speak_for_anothers_atom(pair, node_link):
    message = make(pair)
    forged = first_of(pair, message, signer=NODE_B, key=KEYS[NODE_B])
    answers = node_link.send(message, forged)
    assert_refused(pair.b, Reason.WRONG_SIGNER, answers)
    assert_undisturbed(pair)


def test_response_to_a_message_never_sent(pair):
    link = Link(pair, pair.a, "node")
    ghost = make(pair, text="never sent")
    link.send(
        first_of(pair, ghost, signer=NODE_B, key=KEYS[NODE_B], sender_socket=BOB_CHAT, recipient_socket=ALICE_CHAT)
    )
    assert_refused(pair.a, Reason.ORPHAN_RESPONSE)
    assert_undisturbed(pair)


def second_of(message, pair, **changes):
    there = pair.b.core.ledger.find_connection(BOB_CHAT, ALICE_CHAT)
    arguments = {"signer": NODE_B, "key": KEYS[NODE_B], "sender_socket": BOB_CHAT, "recipient_socket": ALICE_CHAT}
    return first_of(pair, message, connection=there.uri, **(arguments | changes))


def test_second_different_response(pair):
    message = pair.say()
    Link(pair, pair.a, "node").send(second_of(message, pair, timestamp_ms=1, previous=[]))
    assert_refused(pair.a, Reason.CONFLICTING_RESPONSE)
    assert_undisturbed(pair)


def hold_message(pair):
    """A message of alice that is stored by her node and not yet by bob's."""
    pair.world.unreachable.add(NODE_B)
    pair.world.cut(pair.b)
    return pair.say(text="on its way")


def test_node_that_lies_about_s2_for_another_node(pair):
    message = hold_message(pair)
    link = Link(pair, pair.a, "node")
    link.send(second_of(message, pair, key=KEYS["mallory"]))
    assert_refused(pair.a, Reason.BAD_SIGNATURE)
    assert pair.state(pair.alice, message) is ChainState.AWAITING_RECIPIENT


def test_s2_that_does_not_reference_s1(pair):
    message = hold_message(pair)
    Link(pair, pair.a, "node").send(second_of(message, pair, previous=[]))
    assert_refused(pair.a, Reason.BAD_REFERENCE)
    assert pair.state(pair.alice, message) is ChainState.AWAITING_RECIPIENT
    pair.world.unreachable.clear()
    pair.world.pass_time(60)
    assert pair.state(pair.alice, message) is ChainState.COMPLETE


def test_unknown_key_is_refused_without_an_answer_and_tried_again(pair, node_link):
    stranger = "https://c.example/won/resource/atom/carol"
    message = make(pair, sockets=(f"{stranger}#chat", BOB_CHAT), signer=stranger, key=KEYS["mallory"])
    first = first_of(pair, message, signer="https://c.example/won/resource", connection=f"{stranger}/c/1")
    assert node_link.send(message, first) == []
    assert_refused(pair.b, Reason.UNKNOWN_KEY)
    assert_undisturbed(pair)


def test_frames_that_wait_for_a_key_are_bounded():
    pair = Pair(WonSettings(max_held_frames=3)).connect()
    stranger = "https://c.example/won/resource/atom/carol"
    pair.b.core.receive_accepted("raw", LinkKind.NODE, pair.world.now)
    for i in range(4):
        message = make(pair, sockets=(f"{stranger}#chat", BOB_CHAT), signer=stranger, key=KEYS["mallory"], text=str(i))
        data = encode_bundle([message, first_of(pair, message, connection=f"{stranger}/c/1")])
        pair.b.core.receive_frame(data, "raw", pair.world.now)
    reasons = [e.reason for e in pair.b.core.events() if hasattr(e, "stage")]
    assert reasons == [Reason.QUEUE_FULL]
    assert pair.b.core.status(pair.world.now).links_waiting == 0


def deliver(pair, *messages, position=None):
    """A frame to alice as if sent by her node."""
    party = pair.alice
    log = f"{ALICE}/msg"
    at = party.core.position if position is None else position
    data = encode_bundle(messages) + encode_position(log, at, at + 1, trig=True)
    party.core.receive_frame(data, party.core._link, pair.world.now)
    pair.world.step(party)


def test_owner_refuses_a_response_its_node_cannot_have_made(pair):
    message = hold_message(pair)
    deliver(pair, second_of(message, pair, key=KEYS[NODE_A], previous=[]))
    assert_refused(pair.alice, Reason.BAD_SIGNATURE)
    assert pair.state(pair.alice, message) is ChainState.AWAITING_RECIPIENT


def test_owner_refuses_s2_without_its_s1(pair):
    message = hold_message(pair)
    deliver(pair, second_of(message, pair, previous=[]))
    assert_refused(pair.alice, Reason.BAD_REFERENCE)


def test_owner_refuses_references_to_what_it_does_not_know(pair):
    message = hold_message(pair)
    thread = pair.alice.core.conversations.deliveries[message.uri]
    deliver(pair, second_of(message, pair, previous=[thread.chain.first, "wm:/QmHidden"]))
    assert_refused(pair.alice, Reason.BAD_REFERENCE)


def test_owner_refuses_messages_for_others(pair):
    stranger = f"{NODE_A}/atom/carol#chat"
    pair.alice.core.keys.pin(BOB, KEYS[BOB].public)
    deliver(pair, make(pair, signer=BOB, sockets=(BOB_CHAT, stranger)))
    assert_refused(pair.alice, Reason.UNKNOWN_ATOM)


def test_owner_copes_with_s2_before_m_and_s1(pair):
    message = hold_message(pair)
    chain = pair.alice.core.conversations.deliveries[message.uri].chain
    second = second_of(message, pair, previous=[chain.first])
    first = decode_bundle(pair.alice.frames_in[-1]).messages[1]
    fresh = type(pair.alice.core.conversations)(ALICE)
    for raw in [o.raw for o in pair.alice.observations if o.raw and o.message not in (message.address, first.address)]:
        fresh.take(decode_bundle(raw).messages[0])
    assert fresh.take(second) == []
    assert fresh.take(message) == [message]
    assert fresh.take(first) == [first, second]
    assert fresh.state_of(message.uri) is ChainState.COMPLETE


def test_responses_kept_aside_are_bounded():
    conversations = Conversations(ALICE)
    for number in range(MAX_EARLY_RESPONSES):
        assert conversations.take(success(build(text=str(number)))) == []
    with pytest.raises(RemoteProtocolError) as caught:
        conversations.take(success(build(text="one more")))
    assert caught.value.reason is Reason.ORPHAN_RESPONSE


def test_s2_whose_s1_never_comes_does_not_stop_the_owner(pair):
    message = pair.alice.core.send_message(T.CONNECTION, ALICE_CHAT, BOB_CHAT, pair.world.now, "x")
    pair.alice.core.to_send()
    before = pair.alice.core.position
    deliver(pair, second_of(message, pair, previous=[]))
    assert pair.alice.core.position == before + 1
    assert pair.alice.core._link is not None
    assert pair.state(pair.alice, message) is ChainState.AWAITING_SENDER


def test_lying_node_does_not_stop_the_owner_for_ever(pair):
    message = hold_message(pair)
    deliver(pair, second_of(message, pair, previous=[]))
    before = pair.alice.core.position
    pair.world.restart(pair.alice)
    assert pair.alice.core.position == before
