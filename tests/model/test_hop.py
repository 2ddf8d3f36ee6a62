import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.model.address import Address, address_of, parse_address, parse_address_prefix, won_uri
from dovetail.model.hop import Reason, Stage


def test_the_address_of_bytes_is_their_sha256():
    assert address_of(b"abc").hex() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_won_uri_is_the_base58_multihash():
    # the multihash of the empty input, as content-addressed systems write it
    assert won_uri(address_of(b"")) == "wm:/QmdfTbBqBPQ7VNxZEYEj14VmRuZBkqFbiwReogJgS1zR1n"


@given(st.binary(min_size=32, max_size=32))
def test_addresses_survive_their_text_forms(data):
    address = Address(data)
    for text in (address.hex(), won_uri(address)):
        assert parse_address(text) == address
    assert parse_address_prefix(address.hex()[:10]) == address[:5]


@pytest.mark.parametrize(
    "text",
    ["", "zz", "ab", "ab" * 33, "wm:/", "wm:/W1abc", "wm:/0OIl", "wm:/" + "z" * 100, "wm:/Qm", "http://example.com"],
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        parse_address(text)


def test_every_stage_and_reason_has_a_sentence():
    for member in (*Stage, *Reason):
        assert member.sentence
        assert member.value == member.name.lower()
        assert not member.sentence.endswith(".")
