"""How people name messages: addresses, ids, and prefixes of either."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.model.address import MIN_ID_CHARS, Address, parse_name, won_uri

addresses = st.binary(min_size=32, max_size=32).map(Address)


@given(addresses)
def test_an_address_is_taken_in_both_forms(address):
    for text in (address.hex(), address.hex().upper(), won_uri(address)):
        name = parse_name(text)
        assert name.address.matches(address)
        assert name.id is None


@given(st.uuids(), st.integers(MIN_ID_CHARS + 1, 36))
def test_a_uuid_and_its_beginnings_are_ids(own, length):
    name = parse_name(str(own).upper()[:length])
    assert (name.address, name.id) == (None, str(own)[:length])


@given(st.uuids(), st.integers(MIN_ID_CHARS, 32))
def test_a_uuid_without_dashes_may_be_an_id_or_an_address(own, digits):
    """Tables print the keys of requests like this."""
    name = parse_name(own.hex[:digits])
    assert name.address.matches(Address(bytes.fromhex(own.hex[:digits].ljust(64, "0"))))
    assert str(own).startswith(name.id)
    assert name.id.replace("-", "") == own.hex[:digits]


@pytest.mark.parametrize("text", ["x", "0b1f6e2-", "0b1f6e2c-7d4a4", f"{uuid.UUID(int=0)}0", "wm:/0", "0" * 65])
def test_what_names_no_message_is_refused(text):
    with pytest.raises(ValueError, match=r"hex|base58"):
        parse_name(text)
