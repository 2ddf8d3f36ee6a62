"""UEP-10 swarm headers against the vectors."""

from __future__ import annotations

import pytest

from dovetail.swarm import refusals
from dovetail.swarm.packet import SLOT_MS, SwarmSigner, crc64, decode_packet, encode_packet, swarm_key
from swarm.vectors import of_layer

KEY = bytes(range(20))


@pytest.mark.parametrize("vector", of_layer("uep10"), ids=lambda vector: vector["name"])
def test_swarm_header(vector):
    data = bytes.fromhex(vector["hex"])
    secret = vector.get("secret")
    key = swarm_key(bytes.fromhex(vector.get("dht_address", KEY.hex())), bytes.fromhex(secret) if secret else None)
    signer = SwarmSigner(key)
    now = vector.get("now", 0)
    if vector["expect"] != "ok":
        with pytest.raises(getattr(refusals, vector["expect"])):
            decode_packet(data, signer, now)
        return
    assert decode_packet(data, signer, now).hex() == vector["inner"]
    assert signer.subband_of(data, now) == vector["subband"]
    assert encode_packet(bytes.fromhex(vector["inner"]), signer, now, vector["subband"]) == data


def test_crc64_check_value_of_the_reflected_ecma_polynomial():
    # CRC-64/XZ of "123456789" is 995DC9BBDF1939FA with initial value and final xor of all ones
    assert crc64(b"123456789", (1 << 64) - 1) ^ (1 << 64) - 1 == 0x995DC9BBDF1939FA


@pytest.mark.parametrize(("slots", "heard"), [(-2, False), (-1, True), (0, True), (1, True), (2, False)])
def test_signatures_of_the_slots_beside_ours_are_known(slots, heard):
    now = 1_700_000_001_000
    packet = encode_packet(b"x", SwarmSigner(KEY), now + slots * SLOT_MS, 3)
    signer = SwarmSigner(KEY)
    if heard:
        assert decode_packet(packet, signer, now) == b"x"
    else:
        with pytest.raises(refusals.UnknownSwarm):
            decode_packet(packet, signer, now)


@pytest.mark.parametrize("slack", [1, 2, 3])
def test_slot_slack_widens_the_table_on_both_sides_and_no_further(slack):
    now, signer = 1_700_000_001_000, SwarmSigner(KEY, slack)
    heard = [
        slots
        for slots in range(-6, 7)
        if encode_packet(b"", SwarmSigner(KEY), now + slots * SLOT_MS, slots % 16) in signer.known_headers(now)
    ]
    assert heard == list(range(-slack, slack + 1))


def test_the_table_follows_the_clock():
    signer = SwarmSigner(KEY)
    for slot in range(100, 120):
        packet = encode_packet(b"x", SwarmSigner(KEY), slot * SLOT_MS, slot % 16)
        assert decode_packet(packet, signer, slot * SLOT_MS + 5) == b"x"


def test_other_swarm_and_other_secret_are_unknown():
    packet = encode_packet(b"x", SwarmSigner(swarm_key(KEY, bytes(20))), 0, 0)
    for key in (KEY, swarm_key(KEY, b"s" * 20), bytes(20)):
        with pytest.raises(refusals.UnknownSwarm):
            decode_packet(packet, SwarmSigner(key), 0)


def test_wrong_sizes_of_address_and_secret():
    with pytest.raises(ValueError, match="19"):
        swarm_key(bytes(19))
    with pytest.raises(ValueError, match="21"):
        swarm_key(KEY, bytes(21))
