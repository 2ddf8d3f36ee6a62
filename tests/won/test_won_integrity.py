"""Tamper tests: any change in a recorded conversation is found and named; an untouched one raises no finding."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from dovetail.model.address import address_of, won_uri
from dovetail.model.canonical_base64 import encode_base64
from dovetail.won import integrity
from dovetail.won import vocabulary as v
from dovetail.won.canonical import encode_lines, join_lines, rename
from dovetail.won.integrity import FindingKind, check_conversation, cyclic_members
from dovetail.won.message import compute_address, decode_message
from dovetail.won.signing import sign_digest
from dovetail.won.vocabulary import MessageType as T
from won.won_samples import ALICE, ALICE_CHAT, BOB, BOB_CHAT, KEYS, NODE_A, NODE_B, NOW_MS, build, success
from won.won_world import Pair, conversation_raws, record_conversation

PUBLIC = {name: KEYS[name].public for name in (NODE_A, NODE_B, ALICE, BOB)}


PAIR = record_conversation()
RAWS = conversation_raws(PAIR.alice)
MESSAGES = [decode_message(raw) for raw in RAWS]
NEWEST = {m.uri for m in MESSAGES} - {u for m in MESSAGES for u in (*m.previous, m.responding_to)}


def findings_for(raws):
    return check_conversation(raws, PUBLIC)


def named(findings):
    return {finding.uri for finding in findings}


def encoded(quads):
    return join_lines(encode_lines(quads))


def readdressed(quads, uri):
    """The quads under their new address."""
    under_self = rename(quads, uri, v.SELF)
    fresh = won_uri(compute_address(under_self)[0])
    return encoded(rename(under_self, v.SELF, fresh)), fresh


@pytest.mark.parametrize("party", ["a", "b", "alice", "bob"])
def test_untouched_conversation_has_no_findings(party):
    raws = conversation_raws(getattr(PAIR, party))
    assert len(raws) == len(RAWS)
    assert findings_for(raws) == []


def test_order_of_reading_does_not_matter():
    assert findings_for(list(reversed(RAWS))) == []


def test_atom_containers_verify_too():
    pair = Pair()
    for kind in (T.DEACTIVATE, T.ACTIVATE, T.DEACTIVATE):
        pair.alice.core.change(kind, pair.world.now)
        pair.run()
    raws = [o.raw for o in pair.alice.observations if o.raw]
    assert len(raws) == 8
    assert findings_for(raws) == []
    missing = decode_message(raws[3])
    assert named(findings_for(raws[:3] + raws[4:])) == {missing.uri}


def field_changes():
    changes = []
    for index, message in enumerate(MESSAGES):
        for number, quad in enumerate(sorted(message.quads)):
            name = quad[1].rpartition("#")[2].strip(">")
            changes.append(pytest.param(index, number, id=f"{index}-{message.type.value}-{name}-{number}"))
    return changes


@pytest.mark.exhaustive
@pytest.mark.parametrize(("index", "number"), field_changes())
def test_each_field_of_each_message_altered_is_found_and_named(index, number):
    message = MESSAGES[index]
    quads = sorted(message.quads)
    s, p, o, g = quads[number]
    letter = "y" if "x" in o[-2:] else "x"
    quads[number] = (s, p, f"{o[:-2]}{letter}>" if o.endswith(">") else f'{o[:-1]}{letter}"', g)
    altered = encoded(quads)
    findings = findings_for([*RAWS[:index], altered, *RAWS[index + 1 :]])
    first = findings[0]
    assert message.uri in named(findings)
    assert first.kind in (FindingKind.ALTERED, FindingKind.UNREADABLE, FindingKind.MISSING)
    # Only the altered message is accused.
    assert named(findings) == {message.uri}


@pytest.mark.parametrize("index", range(len(MESSAGES)))
def test_altered_message_with_its_address_counted_anew_is_missing_where_others_reference_it(index):
    message = MESSAGES[index]
    quads = [
        (s, p, f'"{message.timestamp_ms + 1}"{v.XSD_LONG}' if p == v.P_TIMESTAMP else o, g)
        for s, p, o, g in message.quads
    ]
    altered, fresh = readdressed(quads, message.uri)
    findings = findings_for([*RAWS[:index], altered, *RAWS[index + 1 :]])
    assert fresh in {f.uri for f in findings if f.kind is FindingKind.FORGED}
    if message.uri not in NEWEST:
        assert message.uri in {f.uri for f in findings if f.kind is FindingKind.MISSING}
    assert named(findings) <= {fresh, message.uri}


@pytest.mark.parametrize("index", range(len(MESSAGES)))
def test_removed_message_is_named_as_missing(index):
    message = MESSAGES[index]
    findings = findings_for(RAWS[:index] + RAWS[index + 1 :])
    if message.uri in NEWEST:
        assert findings == []  # nothing references the newest yet; the other party's copy has it
        assert RAWS[index] in conversation_raws(PAIR.bob)
    else:
        assert {(f.kind, f.uri) for f in findings} == {(FindingKind.MISSING, message.uri)}


@pytest.mark.parametrize("index", range(len(MESSAGES)))
def test_message_signed_again_by_the_wrong_party_is_forged(index):
    message = MESSAGES[index]
    signature = sign_digest(KEYS["mallory"], message.signed_digest)
    quads = [(s, p, f'"{signature}"' if p == v.P_SIGNATURE_VALUE else o, g) for s, p, o, g in message.quads]
    quads = [
        (s, p, f'"{KEYS["mallory"].public.fingerprint}"' if p == v.P_FINGERPRINT else o, g) for s, p, o, g in quads
    ]
    forged, fresh = readdressed(quads, message.uri)
    findings = findings_for([*RAWS[:index], forged, *RAWS[index + 1 :]])
    assert (FindingKind.FORGED, fresh) in {(f.kind, f.uri) for f in findings}
    assert named(findings) <= {fresh, message.uri}


def test_signer_that_may_not_speak_for_the_sender_is_forged():
    index, message = next((i, m) for i, m in enumerate(MESSAGES) if m.is_response)
    quads = [
        (s, p, f"<{NODE_B if message.signer == NODE_A else NODE_A}>" if p == v.P_SIGNER else o, g)
        for s, p, o, g in message.quads
    ]
    forged, fresh = readdressed(quads, message.uri)
    findings = findings_for([*RAWS[:index], forged, *RAWS[index + 1 :]])
    assert (FindingKind.FORGED, fresh) in {(f.kind, f.uri) for f in findings}


def test_two_messages_with_exchanged_contents_are_both_named():
    texts = [m for m in MESSAGES if m.type is T.CONNECTION][:2]
    swapped = []
    for mine, other in itertools.permutations(texts):
        theirs = {p: o for _, p, o, _ in other.quads if p == v.P_TEXT}
        swapped.append(encoded([(s, p, theirs.get(p, o), g) for s, p, o, g in mine.quads]))
    rest = [raw for raw, m in zip(RAWS, MESSAGES, strict=True) if m not in texts]
    findings = findings_for(rest + swapped)
    assert {(f.kind, f.uri) for f in findings} == {(FindingKind.ALTERED, m.uri) for m in texts}


def test_message_of_another_conversation_is_not_taken_for_its_own():
    other = Pair()
    other.world.now += 5_000_000
    other.connect()
    foreign = next(raw for raw in conversation_raws(other.alice) if decode_message(raw).is_response)
    findings = findings_for([*RAWS, foreign])
    assert {f.kind for f in findings} == {FindingKind.MISSING}


def test_garbage_in_a_log_is_reported_not_raised():
    findings = findings_for([*RAWS, b"garbage", b"", b"<wm:/QmX#envelope> <a:b> broken"])
    assert [f.kind for f in findings] == [FindingKind.UNREADABLE] * 3
    assert "wm:/QmX" in named(findings)


@pytest.mark.parametrize(
    ("name", "is_taken"), [("a", True), ("Q" * 64, True), ("Q" * 65, False), ("", False), ("Qm.x", False)]
)
def test_unreadable_message_is_named_by_the_uri_it_claims_or_by_its_address(name, is_taken):
    raw = f"<wm:/{name}#envelope> <a:b> broken".encode()
    assert named(findings_for([raw])) == {f"wm:/{name}" if is_taken else won_uri(address_of(raw))}


def test_missing_key_is_said_and_not_taken_for_forgery():
    keys = {name: key for name, key in PUBLIC.items() if name != BOB}
    findings = check_conversation(RAWS, keys)
    assert {f.kind for f in findings} == {FindingKind.UNKNOWN_KEY}
    assert named(findings) == {m.uri for m in MESSAGES if m.signer == BOB}


def test_two_different_responses_of_one_node_accuse_each_other():
    message = next(m for m in MESSAGES if m.type is T.SUCCESS and m.signer == NODE_A)
    quads = rename(message.quads, message.uri, v.SELF)
    quads = [
        (s, p, f'"{message.timestamp_ms + 5}"{v.XSD_LONG}' if p == v.P_TIMESTAMP else o, g)
        for s, p, o, g in quads
        if not g.endswith("#signature>")
    ]
    digest = compute_address(quads)[0]
    mark = f"<{v.SELF}#signature>"
    quads += [
        *(
            (s, p, o, g)
            for s, p, o, g in rename(message.quads, message.uri, v.SELF)
            if g == mark and p not in (v.P_HASH, v.P_SIGNATURE_VALUE)
        ),
        (mark, v.P_HASH, f'"{encode_base64(digest)}"', mark),
        (mark, v.P_SIGNATURE_VALUE, f'"{sign_digest(KEYS[NODE_A], digest)}"', mark),
    ]
    fresh = won_uri(compute_address(quads)[0])
    findings = findings_for([*RAWS, encoded(rename(quads, v.SELF, fresh))])
    assert {(f.uri, f.detail.split()[0]) for f in findings if f.kind is FindingKind.CONFLICT} == {
        (fresh, message.uri),
        (message.uri, fresh),
    }


def test_both_parties_have_the_same_copy():
    assert set(RAWS) == set(conversation_raws(PAIR.bob))


def test_cycles_are_found_whatever_hangs_on_them():
    edges = {"a": ["b"], "b": ["c"], "c": ["b"], "d": ["a", "d"], "e": []}
    assert cyclic_members(edges) == {"b", "c", "d"}
    assert cyclic_members({"a": ["b"], "b": [], "c": ["a"]}) == set()
    assert cyclic_members({"a": ["b"], "b": ["c"], "c": ["a"]}) == {"a", "b", "c"}


def test_messages_that_reference_each_other_are_named(monkeypatch):
    """Only broken addresses allow it, so they are not checked here."""
    monkeypatch.setattr(integrity, "check_message", lambda message, keys: ())
    m, s, other, answer = MESSAGES[:2] + MESSAGES[-2:]
    looped = {s.uri: msgspec.structs.replace(s, previous=(answer.uri,))}
    looped[answer.uri] = msgspec.structs.replace(answer, previous=(s.uri,))
    read = {raw.raw: looped.get(raw.uri, raw) for raw in (m, s, other, answer)}
    monkeypatch.setattr(integrity, "decode_message", lambda raw: read[raw])
    cycles = [f for f in findings_for(list(read)) if f.kind is FindingKind.CYCLE]
    assert named(cycles) == {s.uri, answer.uri}


def refused_then_accepted():
    """Bob's atom does not exist when alice first asks; bob's node refuses, later it accepts."""
    pair = Pair()
    late = f"{NODE_B}/atom/late"
    for _ in range(2):
        pair.alice.core.send_message(T.CONNECT, ALICE_CHAT, f"{late}#chat", pair.world.now)
        pair.run()
        pair.world.now += 1_000_000
        if late not in pair.b.core.ledger.atoms:
            owner = pair.world.owner(late, 9)
            owner.core.create([f"{late}#chat"], pair.world.now)
            owner.core.start(pair.world.now)
            pair.run()
    owner.core.send_message(T.CONNECT, f"{late}#chat", ALICE_CHAT, pair.world.now)
    pair.run()
    for _ in range(2):
        pair.alice.core.send_message(T.CONNECTION, ALICE_CHAT, f"{late}#chat", pair.world.now, "x")
        pair.run()
    return pair, owner


def test_message_that_the_other_node_refused_is_not_taken_for_a_skipped_one():
    pair, owner = refused_then_accepted()
    keys = PUBLIC | {owner.core.atom: owner.core._key.public}
    assert pair.b.rejections() != []
    for party in (pair.a, pair.alice, owner):
        assert check_conversation(conversation_raws(party), keys) == []


def answered(message, sequence, *previous, by_recipient=False):
    """A response to alice's message, of her node or of bob's, signed and in order of time."""
    other = {"signer": NODE_B, "key": KEYS[NODE_B], "sender_socket": BOB_CHAT, "connection": f"{BOB}/c/two"}
    moment = {"timestamp_ms": NOW_MS + sequence, "previous": [response.uri for response in previous]}
    return success(message, **(other if by_recipient else {}), **moment)


def chain_of_three(references):
    """Three messages of alice; `references` says which of bob's responses her node's third response names."""
    messages = [build(text=str(number)) for number in range(3)]
    firsts = [answered(messages[0], 0), answered(messages[1], 1)]
    seconds = [
        answered(message, 10 + number, first, by_recipient=True)
        for number, (message, first) in enumerate(zip(messages, firsts, strict=False))
    ]
    third = answered(messages[2], 20, *[seconds[number] for number in references])
    return [m.raw for m in (*messages, *firsts, *seconds, third)], seconds


def test_response_that_the_other_node_left_out_is_named_as_skipped():
    raws, seconds = chain_of_three(references=[1])
    assert [(f.kind, f.uri) for f in findings_for(raws)] == [(FindingKind.SKIPPED, seconds[0].uri)]


@pytest.mark.parametrize("references", [[0, 1], [0], []])
def test_responses_referenced_in_order_are_not_skipped(references):
    raws, _ = chain_of_three(references)
    assert findings_for(raws) == []


def test_response_reached_by_way_of_another_is_not_skipped():
    messages = [build(text=str(number)) for number in range(3)]
    firsts = [answered(messages[0], 0), answered(messages[1], 1)]
    one = answered(messages[0], 10, firsts[0], by_recipient=True)
    other = answered(messages[1], 11, firsts[1], one, by_recipient=True)
    third = answered(messages[2], 20, other)
    assert findings_for([m.raw for m in (*messages, *firsts, one, other, third)]) == []


def test_references_go_to_success_responses_only():
    message, other = build(), build(text="other")
    failure = success(other, success=False)
    for wrong in (failure, other):
        response = answered(message, 5, wrong)
        findings = findings_for([m.raw for m in (message, other, failure, response)])
        assert (FindingKind.BAD_REFERENCE, response.uri) in {(f.kind, f.uri) for f in findings}
        assert f"references {wrong.uri}, which is no SuccessResponse" in {f.detail for f in findings}
