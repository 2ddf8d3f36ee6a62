"""A partner whose keys cannot be found blocks no one else, and its entries are taken once they are found."""

from __future__ import annotations

import pytest

from dovetail.model.hop import Reason, Stage
from dovetail.won.chain import ChainState
from dovetail.won.events import KeyWanted
from dovetail.won.integrity import check_conversation
from dovetail.won.settings import WonSettings
from dovetail.won.vocabulary import MessageType as T
from won.won_samples import ALICE, ALICE_CHAT, BOB, BOB_CHAT, KEYS, NODE_A, NODE_B
from won.won_world import Pair

NODE_C = "https://c.example/won/resource"
CAROL = f"{NODE_C}/atom/carol"
CAROL_CHAT = f"{CAROL}#chat"
C_URIS = {NODE_C, CAROL}


class Trio(Pair):
    """Alice and bob, and carol at a third node."""

    def __init__(self, settings=None):
        super().__init__(settings)
        self.c = self.world.node(NODE_C, 6)
        self.carol = self.world.owner(CAROL, 7)
        self.carol.core.create([CAROL_CHAT], self.world.now)
        self.carol.core.start(self.world.now)
        self.run()

    def ask_bob(self, kind=T.CONNECT, text="hello from carol"):
        message = self.carol.core.send_message(kind, CAROL_CHAT, BOB_CHAT, self.world.now, text)
        self.run()
        return message

    def bob_is_away(self):
        self.bob.core.stop()
        self.run()

    def bob_is_back(self):
        self.bob.core.start(self.world.now)
        self.run()


def deferred_pair(settings=None):
    """Carol and alice have both written to bob, who was away; then carol's node is gone."""
    pair = Trio(settings)
    pair.bob_is_away()
    from_carol = pair.ask_bob()
    from_alice = pair.say(T.CONNECT)
    pair.world.dark |= C_URIS
    pair.bob_is_back()
    return pair, from_carol, from_alice


def test_stranger_whose_node_is_gone_does_not_block_the_owner():
    pair, from_carol, from_alice = deferred_pair()
    assert pair.state(pair.bob, from_alice) is ChainState.COMPLETE
    assert pair.state(pair.bob, from_carol) is None
    assert pair.bob.core.deferred == {CAROL: 1}
    assert pair.bob.core.position == len(pair.b.core.ledger.atoms[BOB].log)
    assert pair.state(pair.bob, pair.reply(T.CONNECT)) is ChainState.COMPLETE


def test_stranger_whose_key_server_never_answers_holds_the_log_up_for_a_moment_only():
    pair = Trio()
    pair.bob_is_away()
    pair.ask_bob()
    from_alice = pair.say(T.CONNECT)
    serve, pair.world._serve = pair.world._serve, lambda party, uri: uri in C_URIS or serve(party, uri)
    pair.bob_is_back()
    assert pair.state(pair.bob, from_alice) is None
    pair.world.pass_time(WonSettings().partner_key_timeout_ms / 1000)
    assert pair.state(pair.bob, from_alice) is ChainState.COMPLETE


def test_deferred_entries_are_taken_in_order_once_the_key_is_found():
    pair, from_carol, _ = deferred_pair()
    pair.world.dark.clear()
    again = pair.ask_bob(text="are you there?")
    assert pair.state(pair.bob, again) is None, "entries of one partner stay in order"
    pair.world.pass_time(60)
    assert pair.state(pair.bob, from_carol) is pair.state(pair.bob, again) is ChainState.COMPLETE
    assert pair.bob.core.deferred == {}
    assert pair.bob.core.position == len(pair.b.core.ledger.atoms[BOB].log)


def test_key_is_asked_for_again_after_pauses_that_grow():
    pair, _, _ = deferred_pair()
    pair.bob.events.clear()
    pair.world.pass_time(3600)
    asked = [event.uri for event in pair.bob.told(KeyWanted)]
    assert set(asked) == C_URIS
    assert 10 < len(asked) < 80


def test_restarted_client_still_waits_for_the_key_and_takes_the_entry():
    pair, from_carol, from_alice = deferred_pair()
    position = pair.bob.core.position
    pair.world.restart(pair.bob)
    assert pair.bob.core.position == position
    assert pair.bob.core.deferred == {CAROL: 1}
    pair.world.dark.clear()
    pair.bob_is_back()
    pair.world.pass_time(60)
    assert pair.state(pair.bob, from_carol) is pair.state(pair.bob, from_alice) is ChainState.COMPLETE
    pair.world.restart(pair.bob)
    assert pair.bob.core.position == len(pair.b.core.ledger.atoms[BOB].log)
    assert pair.bob.core.deferred == {}
    pair.bob_is_back()
    assert pair.state(pair.bob, pair.reply(T.CONNECT)) is ChainState.COMPLETE


def test_deferred_entry_is_in_the_journal_with_all_its_bytes():
    pair, from_carol, _ = deferred_pair()
    (refused,) = [o for o in pair.bob.observations if o.stage is Stage.REJECTED]
    assert refused.reason is Reason.UNKNOWN_KEY
    assert len(refused.raw) == refused.size
    assert from_carol.uri.encode() in refused.raw


def crowded_pair(*, page=256):
    """Five entries of carol, of which bob keeps two; then alice writes too."""
    pair = Trio(WonSettings(max_deferred=2, catch_up_page=page))
    pair.bob_is_away()
    from_carol = [pair.ask_bob(text=str(number)) for number in range(5)]
    from_alice = pair.say(T.CONNECT)
    pair.world.dark |= C_URIS
    pair.bob_is_back()
    return pair, from_carol, from_alice


def test_deferred_entries_are_bounded_the_others_stay_in_the_log_of_the_node():
    pair, _, from_alice = crowded_pair()
    assert (pair.bob.core.deferred, pair.bob.core.left_with_node) == ({CAROL: 2}, {CAROL: 3})
    assert pair.bob.core.position == len(pair.b.core.ledger.atoms[BOB].log)
    assert pair.state(pair.bob, from_alice) is ChainState.COMPLETE


@pytest.mark.parametrize("page", [1, 3, 256])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_entries_left_with_the_node_are_taken_in_order_once_the_key_is_found(page, is_restarted):
    pair, from_carol, _ = crowded_pair(page=page)
    if is_restarted:
        pair.world.restart(pair.bob)
        pair.bob_is_back()
    pair.world.dark.clear()
    from_carol.append(pair.ask_bob(text="are you there?"))
    pair.world.pass_time(120)
    assert [pair.state(pair.bob, message) for message in from_carol] == [ChainState.COMPLETE] * 6
    taken = [o.message for o in pair.bob.observations if o.stage is Stage.ACCEPTED]
    assert [address for address in taken if address in {m.address for m in from_carol}] == [
        m.address for m in from_carol
    ]
    assert (pair.bob.core.deferred, pair.bob.core.left_with_node) == ({}, {})
    position = pair.bob.core.position
    assert position == len(pair.b.core.ledger.atoms[BOB].log)
    pair.world.restart(pair.bob)
    assert pair.bob.core.position == position


def test_log_is_read_again_from_the_first_entry_left_out_where_the_link_breaks_meanwhile():
    pair, from_carol, _ = crowded_pair(page=1)
    pair.world.dark.clear()
    while pair.state(pair.bob, from_carol[2]) is None:
        pair.world.now = max(pair.world.now, pair.bob.core.next_timer() or 0)
        pair.bob.core.handle_timer(pair.world.now)
        pair.world.step(pair.bob)
        pair.world.step(pair.b)
    assert pair.state(pair.bob, from_carol[4]) is None
    assert pair.bob.core.left_with_node == {CAROL: 3}, "not before all were read"
    pair.world.cut(pair.bob)
    pair.world.pass_time(120)
    assert [pair.state(pair.bob, message) for message in from_carol] == [ChainState.COMPLETE] * 5


def test_answer_of_another_client_to_a_deferred_partner_waits_too():
    """Without carol's key, what follows in the conversation with her cannot be verified."""
    pair, from_carol, _ = deferred_pair()
    other = pair.world.owner(BOB, 4, is_created=True)
    pair.world.dark.clear()
    other.core.start(pair.world.now)
    pair.run()
    answer = other.core.send_message(T.CONNECT, BOB_CHAT, CAROL_CHAT, pair.world.now, "hello carol")
    pair.run()
    assert answer.uri not in pair.bob.core.conversations.deliveries
    pair.world.pass_time(120)
    assert pair.bob.core.deferred == {}
    assert pair.state(pair.bob, from_carol) is ChainState.COMPLETE
    assert answer.uri in pair.bob.core.conversations.deliveries


def test_log_with_entries_taken_late_is_intact():
    pair, _, _ = deferred_pair()
    pair.world.dark.clear()
    pair.world.pass_time(60)
    raws = [o.raw for o in pair.bob.observations if o.raw and o.reason is None]
    keys = {name: KEYS[name].public for name in (NODE_A, NODE_B, ALICE, BOB)}
    keys |= {NODE_C: pair.c.core.key, CAROL: pair.carol.core._key.public}
    assert check_conversation(raws, keys) == []


def test_own_node_whose_key_is_not_found_is_tried_again_later():
    pair = Pair()
    pair.alice.core.stop()
    pair.run()
    pair.world.restart(pair.alice)
    pair.world.dark.add(NODE_A)
    pair.alice.core.start(pair.world.now)
    pair.world.pass_time(30)
    assert pair.alice.core.deferred == {}
    pair.world.dark.clear()
    pair.world.pass_time(120)
    message = pair.alice.core.send_message(T.CONNECT, ALICE_CHAT, BOB_CHAT, pair.world.now)
    pair.run()
    assert pair.state(pair.alice, message) is ChainState.COMPLETE
