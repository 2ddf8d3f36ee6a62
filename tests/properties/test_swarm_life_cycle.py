"""UEP-12, Message Life-Cycle: nothing unexpired is ever dropped, nothing expired is ever served, whatever happens."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dovetail.model.hop import Stage
from dovetail.swarm.content import decode_content, expiration_ms, message_address
from dovetail.swarm.queries import Content, encode_pull_hashes, encode_pull_range
from dovetail.swarm.settings import SwarmSettings
from swarm.peers import SECOND, Bench, refer, uep12

EPOCH_MS = 1_000
ALICE, BOB = "192.0.2.1:9", "192.0.2.2:9"


class LifeCycle(RuleBasedStateMachine):
    """One peer against a model: the set of accepted messages that are not expired."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(SwarmSettings(name="life", work=1, epoch_ms=EPOCH_MS, max_ttl_epochs=20))
        self.bench.link(ALICE, 1)
        self.bench.link(BOB, 9)
        self.model: dict[bytes, bytes] = {}
        self.number = 0

    def live(self) -> dict[bytes, bytes]:
        now_ms = self.bench.now // 1000
        return {
            address: message
            for address, message in self.model.items()
            if now_ms < expiration_ms(*_lifetime(message), EPOCH_MS)
        }

    @rule(
        ttl=st.integers(1, 6),
        age=st.integers(-3000, 8000),
        count=st.integers(0, 3),
        sender=st.sampled_from([ALICE, BOB]),
    )
    def receive(self, ttl, age, count, sender):
        self.number += 1
        parents = list(self.live().values())[-count:] if count else []
        payload = self.number.to_bytes(4)
        message = self.bench.content(payload, ttl=ttl, age_ms=age, references=refer(*parents))
        self.bench.feed(message, sender)
        if age < ttl * EPOCH_MS:
            self.model[message_address(message)] = message

    @rule(ttl=st.integers(1, 6))
    def publish(self, ttl):
        self.number += 1
        message = self.bench.peer.compose(self.number.to_bytes(4), ttl, self.bench.now)
        self.bench.peer.publish_solved(message, self.bench.now)
        self.bench.drain()
        self.model[message_address(message)] = message

    @rule(seconds=st.floats(0, 3))
    def wait(self, seconds):
        self.bench.wait(seconds)

    @rule(micros=st.integers(0, 2 * SECOND))
    def sleep_through_the_timers(self, micros):
        self.bench.now += micros

    @rule()
    def pull_everything(self):
        live = self.live()
        hashes = [address[:8] for address in self.model][-255:]
        served = uep12(self.bench.feed(encode_pull_hashes(hashes), ALICE), ALICE, Content)
        expected = {address for address in live if address[:8] in hashes}
        assert {content.payload for content in served} == {
            decode_content(live[address]).payload for address in expected
        }

    @rule()
    def list_everything(self):
        sent = self.bench.feed(encode_pull_range(b"tick", 0, 1 << 47), BOB)
        listed = [data for to, data in sent if to == BOB and data[:2] == b"\x79\x11"]
        live = {address[:8] for address in self.live()}
        (answer,) = listed
        hashes = {answer[at : at + 8] for at in range(19, len(answer), 8)}
        assert hashes == live or (len(live) > 170 and hashes <= live)

    @invariant()
    def nothing_unexpired_is_dropped(self):
        assert set(self.live()) <= self.bench.peer.addresses()

    @invariant()
    def what_is_expired_is_gone_once_the_timer_ran(self):
        self.bench.peer.handle_timer(self.bench.now)
        self.bench.drain()
        assert set(self.live()) == self.bench.peer.addresses()
        assert not [one for one in self.bench.observed(Stage.REJECTED) if one.reason is None]


def _lifetime(message: bytes) -> tuple[int, int]:
    content = decode_content(message)
    return content.timestamp_ms, content.ttl_epochs


LifeCycle.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestLifeCycle = LifeCycle.TestCase
