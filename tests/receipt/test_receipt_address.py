from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.model.address import address_of
from dovetail.model.hop import Fabric, Relation
from dovetail.receipt.address import READERS
from dovetail.won.canonical import read_quads
from receipt import receipt_samples as samples


def test_pcp_and_swarm_addresses_are_hashes_of_bytes():
    for fabric in (Fabric.PCP, Fabric.SWARM):
        reading = READERS[fabric](b"bytes")
        assert reading.address == address_of(b"bytes")
        assert reading.names == frozenset()


def test_a_won_message_has_the_address_of_its_content_and_names_its_parents():
    message, first, second = samples.won_chain()
    assert READERS[Fabric.WON](message.raw).address == message.address != address_of(message.raw)
    assert READERS[Fabric.WON](second.raw).names == {
        (Relation.RESPONDING_TO, message.uri),
        (Relation.PREVIOUS, first.uri),
    }


def test_a_won_message_under_a_false_name_has_no_address():
    message, first, _ = samples.won_chain()
    assert READERS[Fabric.WON](message.raw.replace(message.uri.encode(), first.uri.encode())).address is None


def test_unreadable_won_bytes_have_the_hash_of_the_bytes():
    assert READERS[Fabric.WON](b"not rdf").address == address_of(b"not rdf")


@given(st.binary(max_size=200))
def test_arbitrary_bytes_have_an_address_or_none(raw):
    assert READERS[Fabric.WON](raw).address in (None, address_of(raw))


@settings(max_examples=150, deadline=None)
@given(place=st.integers(0, 3000), with_=st.binary(max_size=4))
def test_damaged_won_messages_never_keep_their_address(place, with_):
    message, _, _ = samples.won_chain()
    place %= len(message.raw)
    damaged = message.raw[:place] + with_ + message.raw[place + 1 :]
    if READERS[Fabric.WON](damaged).address == message.address:
        # white space between terms is no part of a dataset; the leaf's digest binds the bytes themselves
        assert set(read_quads(damaged)) == set(read_quads(message.raw))
