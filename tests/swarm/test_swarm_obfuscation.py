"""UEP-6 obfuscation against the vectors."""

from __future__ import annotations

import pytest

from dovetail.swarm import refusals
from dovetail.swarm.obfuscation import decode_obfuscated, encode_obfuscated, is_obfuscated, mask_of
from swarm.vectors import of_layer


@pytest.mark.parametrize("vector", of_layer("uep6"), ids=lambda vector: vector["name"])
def test_obfuscation(vector):
    data = bytes.fromhex(vector["hex"])
    inner = bytes.fromhex(vector["inner"])
    assert decode_obfuscated(data) == inner
    assert f"{mask_of(data[0], data[1], len(inner)):08x}" == vector["mask"]
    choice = data[0] if data[0] < 32 else 287 - data[0]
    assert encode_obfuscated(inner, [(choice, data[1])]) == [data]


def test_every_choice_is_recognised_and_undone():
    draws = [(choice, choice * 4) for choice in range(64)]
    for data in encode_obfuscated(b"\x79\x20\x00packet", draws):
        assert is_obfuscated(data)
        assert decode_obfuscated(data) == b"\x79\x20\x00packet"


@pytest.mark.parametrize("first", [0x20, 0x62, 0x66, 0x79, 0xDF])
def test_plain_packets_are_not_obfuscated(first):
    assert not is_obfuscated(bytes([first, 0]))
    with pytest.raises(refusals.BadIndicator):
        decode_obfuscated(bytes([first, 0]))


def test_too_short():
    assert not is_obfuscated(b"")
    for data in (b"", b"\0"):
        with pytest.raises(refusals.Truncated):
            decode_obfuscated(data)
