"""The order of refusals, and what is kept of an accepted message."""

from __future__ import annotations

import pytest

from dovetail.swarm import refusals
from dovetail.swarm.acceptance import Acceptance, Entry, read_entry
from dovetail.swarm.content import (
    Content,
    ContentRules,
    Reference,
    check_work,
    decode_content,
    encode_content,
    message_address,
    work_of,
)
from swarm.vectors import of_layer, raw

NO_WORK = 1 << 256


def admit(data: bytes, now_ms: int | None, **rules: int) -> Entry:
    return Acceptance(ContentRules(**rules)).admit(data, message_address(data), now_ms)


@pytest.mark.parametrize("vector", of_layer("uep12-accept"), ids=lambda vector: vector["name"])
def test_life_cycle_acceptance_at_a_time(vector):
    data, limit = bytes.fromhex(vector["hex"]), vector.get("max_ttl_epoch", 65535)
    if vector["expect"] == "ok":
        assert admit(data, vector["now"], max_ttl_epochs=limit).raw == data
    else:
        with pytest.raises(getattr(refusals, vector["expect"])):
            admit(data, vector["now"], max_ttl_epochs=limit)


def test_life_cycle_one_millisecond_too_far_ahead_is_refused():
    timestamp_ms = decode_content(raw("c0_text")).timestamp_ms
    admit(raw("c0_text"), timestamp_ms - 60_000)
    with pytest.raises(refusals.FromFuture):
        admit(raw("c0_text"), timestamp_ms - 60_001)


def test_life_cycle_first_millisecond_after_expiration_is_refused():
    assert admit(raw("c0_text"), 1700003600999).expires_ms == 1700003601000
    with pytest.raises(refusals.Expired):
        admit(raw("c0_text"), 1700003601000)


def test_the_largest_ttl_of_the_swarm_is_accepted_and_one_more_is_not():
    data = encode_content(Content(timestamp_ms=10**12, ttl_epochs=8))
    admit(data, 10**12, max_ttl_epochs=8, pow_target=NO_WORK)
    with pytest.raises(refusals.TtlTooLong):
        admit(data, 10**12, max_ttl_epochs=7, pow_target=NO_WORK)


def test_anti_spamming_a_message_is_accepted_iff_its_work_is_strictly_below_the_target():
    data = raw("c0_text")
    work = int.from_bytes(work_of(data))
    assert admit(data, None, pow_target=work + 1).raw == data
    for target in (work, work - 1):
        with pytest.raises(refusals.BadProofOfWork):
            admit(data, None, pow_target=target)


def test_anti_spamming_the_largest_target_accepts_every_work():
    check_work(raw("pow_payload_flipped"), NO_WORK)
    with pytest.raises(refusals.BadProofOfWork):
        check_work(raw("pow_payload_flipped"), 1)


def test_refusals_are_work_then_ttl_then_future_then_expired_then_self_reference():
    """Each message breaks all rules from some point on, and is refused for the first broken one."""
    rules = {"max_ttl_epochs": 8, "max_future_ms": 1000, "epoch_ms": 1}
    now_ms = 10**12

    def verdict(ttl_epochs: int, timestamp_ms: int, target: int) -> str:
        data = encode_content(
            Content(timestamp_ms=timestamp_ms, ttl_epochs=ttl_epochs, references=(Reference(b"himself!", 0),))
        )
        with pytest.raises(refusals.Refusal) as caught:
            Acceptance(ContentRules(pow_target=target, **rules)).admit(data, b"himself!" + bytes(24), now_ms)
        return type(caught.value).__name__

    assert verdict(9, now_ms + 2000, 1) == "BadProofOfWork"
    assert verdict(9, now_ms + 2000, NO_WORK) == "TtlTooLong"
    assert verdict(9, now_ms - 2000, NO_WORK) == "TtlTooLong"
    assert verdict(8, now_ms + 2000, NO_WORK) == "FromFuture"
    assert verdict(8, now_ms - 2000, NO_WORK) == "Expired"
    assert verdict(8, now_ms, NO_WORK) == "SelfReference"


def test_an_entry_carries_what_a_peer_needs_of_a_message():
    data = raw("c3")
    entry = read_entry(data, message_address(data), 60_000)
    content = decode_content(data)
    assert entry.msg_hash == message_address(data)[:8]
    assert (entry.timestamp_ms, entry.ttl_epochs) == (content.timestamp_ms, content.ttl_epochs)
    assert entry.refers == tuple(edge.msg_hash for edge in content.references)
    assert len(entry.refers) == 3
    assert entry.expires_ms == content.timestamp_ms + content.ttl_epochs * 60_000
