"""Messages become datagrams: plain for some receivers, masked for others, counted byte by byte."""

from __future__ import annotations

import random

import pytest

from dovetail.swarm.contacts import Contacts
from dovetail.swarm.fragments import Assembler
from dovetail.swarm.obfuscation import decode_obfuscated, is_obfuscated
from dovetail.swarm.outbox import DRAWN_BITS, Outbox, Purpose
from dovetail.swarm.packet import SwarmSigner, decode_packet
from swarm.peers import SETTINGS, START

SIGNER = SwarmSigner(SETTINGS.key)


def outbox(masks_all: bool = False) -> tuple[Outbox, list]:
    contacts = Contacts(b"\x05" * 20, "test", random.Random(3), 1000, 1000)
    receivers = [contacts.get_or_add(f"192.0.2.{number}:9", START) for number in range(4)]
    return Outbox(SIGNER, random.Random(4), masks_all), receivers


def drain(box: Outbox) -> list[tuple[str, bytes]]:
    return [(each.endpoint, data) for each in box.drain() for data in each.datagrams]


@pytest.mark.parametrize("size", [20, 1400, 1401, 1413, 5000, 11_256])
@pytest.mark.parametrize("masked", [(), (0,), (1, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("masks_all", [False, True])
def test_every_receiver_gets_the_message_in_its_own_form_and_all_bytes_are_counted(size, masked, masks_all):
    box, receivers = outbox(masks_all)
    for number in masked:
        receivers[number].is_masked = True
    message = random.Random(size).randbytes(size)
    box.send(message, receivers, Purpose.RELAY, START)
    sent = drain(box)
    assert box.bytes_sent == {Purpose.RELAY: sum(len(datagram) for _, datagram in sent)}
    assert box.datagrams_sent == len(sent)
    for number, receiver in enumerate(receivers):
        found = None
        assembler: Assembler = Assembler()
        for datagram in [datagram for endpoint, datagram in sent if endpoint == receiver.endpoint]:
            assert is_obfuscated(datagram) == (masks_all or number in masked)
            packet = decode_obfuscated(datagram) if is_obfuscated(datagram) else datagram
            found = assembler.add(packet, receiver.endpoint, START) if packet[0] == 0x66 else packet
        assert found is not None
        assert decode_packet(found, SIGNER, START // 1000) == message
    assert box.drain() == []


def test_subbands_and_masks_are_drawn_anew_each_time():
    box, receivers = outbox(masks_all=True)
    for _ in range(DRAWN_BITS):
        box.send(b"the same", receivers, Purpose.RELAY, START)
    sent = [datagram for _, datagram in drain(box)]
    subbands = {SIGNER.subband_of(decode_obfuscated(datagram), START // 1000) for datagram in sent}
    assert subbands == set(range(16))
    assert len({datagram[:2] for datagram in sent}) > 3000
    assert len({datagram[0] for datagram in sent}) == 64
