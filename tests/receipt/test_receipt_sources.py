from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.journal.hop_source import MAX_MATCHES
from dovetail.journal.source import JournalSource
from dovetail.lake.reader import open_lake
from dovetail.lake.seal import seal_journal
from dovetail.lake.store import LocalStore
from dovetail.model.address import MAX_CANDIDATES, Address, address_of, parse_prefix, won_uri
from dovetail.model.errors import ReceiptError
from dovetail.model.hop import Observation, Stage
from dovetail.receipt.sources import find_message
from receipt import receipt_samples as samples

pytestmark = pytest.mark.exhaustive  # whole worlds are sealed

addresses = st.binary(min_size=32, max_size=32).map(Address) | st.sampled_from([bytes(32), b"\xff" * 32])


class Held:
    """A source that has some addresses, and reveals no more about them than it must."""

    server = "https://a.example/won/resource"

    def __init__(self, *held: bytes) -> None:
        self.held = sorted(held)

    def find(self, prefix: bytes) -> set[Address]:
        return {Address(address) for address in [a for a in self.held if a.startswith(prefix)][:MAX_MATCHES]}


@pytest.mark.exhaustive
@settings(max_examples=300, deadline=None)
@given(addresses, st.integers(0, 46), st.integers(0, 64))
def test_an_address_lies_in_every_beginning_of_it(address, won_digits, hex_digits):
    for text in (won_uri(address)[: 4 + won_digits], address.hex()[:hex_digits], address.hex()[:hex_digits].upper()):
        beginning = parse_prefix(text)
        assert beginning.matches(address)
        assert address.startswith(beginning.coarse)
        assert sum(address.startswith(prefix) for prefix in beginning.fine) == 1
        assert len(beginning.fine) <= 256


@pytest.mark.exhaustive
@settings(max_examples=300, deadline=None)
@given(addresses, addresses, st.integers(3, 46))
def test_what_does_not_begin_so_does_not_match(address, other, digits):
    text = won_uri(address)[: 4 + digits]
    assert parse_prefix(text).matches(other) == won_uri(other).startswith(text)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("zz", "neither hex, a UUID nor"),
        ("00" * 33, "64 hex digits"),
        ("00" * 32 + "0", "64 hex digits"),
        ("wm:/Qm0", "'0' is not a base58 character"),
        ("wm:/QmÄ", "is not a base58 character"),
        ("wm:/" + "Q" * 47, "46 characters behind wm:/, got 47"),
        ("wm:/Z", "no SHA-256 message URI begins with 'wm:/Z'"),
        ("wm:/Qa", "no SHA-256 message URI begins with"),
    ],
)
def test_what_is_no_beginning_is_refused(text, match):
    with pytest.raises(ValueError, match=match):
        parse_prefix(text)


def test_more_than_a_source_tells_is_looked_for_in_parts():
    beginning = parse_prefix("wm:/QmZZZ")
    inside = Address(beginning.fine[1].ljust(32, b"\0"))
    outside = [beginning.coarse + bytes([number]) for number in range(256)]
    others = [Address(prefix.ljust(32, b"\0")) for prefix in outside if prefix not in beginning.fine]
    assert len(others) > MAX_MATCHES
    assert find_message([Held(inside, *others)], beginning.text) == inside


def spread(number: int) -> Address:
    return address_of(b"%d" % number)


def test_where_even_the_parts_hold_too_much_more_is_asked_for():
    text = "wm:/QmZZZ"
    beginning = parse_prefix(text)
    edge = int.from_bytes(beginning.fine[0].ljust(32, b"\0"))
    outside = [Address((edge + number).to_bytes(32)) for number in range(MAX_MATCHES)]
    assert not any(map(beginning.matches, outside))
    with pytest.raises(ReceiptError, match=r"too many messages begin like wm:/QmZZZ; give more"):
        find_message([Held(*outside)], beginning.text)


@pytest.mark.parametrize("is_won", [True, False])
def test_several_candidates_are_named_apart(is_won):
    write = won_uri if is_won else bytes.hex
    near = [Address(b"\x11" * 15 + bytes([number]) + bytes(16)) for number in range(6)]
    text = write(near[0])[:9]
    with pytest.raises(ReceiptError, match=f"^several messages begin with {text}: ") as caught:
        find_message([Held(*near[:2]), Held(*near)], text)
    names = str(caught.value).partition(": ")[2].removesuffix(", ...").split(", ")
    assert len(names) == len(set(names)) == MAX_CANDIDATES
    for name in names:
        assert find_message([Held(*near)], name) in near


def beginnings_of(address: Address) -> list[str]:
    return [won_uri(address)[:12], won_uri(address)[:13], won_uri(address), address.hex()[:11], address.hex()[:12]]


@pytest.fixture(scope="module")
def crowd(tmp_path_factory):
    """A journal of many messages and its lake."""
    folder = tmp_path_factory.mktemp("crowd")
    seen = [
        Observation(at_us=samples.T0 + number, stage=Stage.ACCEPTED, message=spread(number), raw=b"%d" % number)
        for number in range(2000)
    ]
    path = samples.write(folder / "a.journal", samples.NODE_A, seen)
    seal_journal(path, LocalStore(folder / "lake"), target_bytes=20_000)
    return path, folder / "lake"


@pytest.fixture(params=["journal", "lake"])
def sources(crowd, request):
    path, lake = crowd
    if request.param == "lake":
        yield open_lake(LocalStore(lake))
    else:
        with JournalSource.open(path) as source:
            yield [source]


def test_journal_and_lake_find_messages_by_their_beginnings(sources):
    for number in (0, 777, 1999):
        assert {find_message(sources, beginning) for beginning in beginnings_of(spread(number))} == {spread(number)}


def test_journal_and_lake_know_what_begins_alike(sources):
    uris = sorted(won_uri(spread(number)) for number in range(2000))
    for text in ("", "wm:/", "wm:/Qm", uris[1000][:7], uris[1999][:7]):
        with pytest.raises(ReceiptError, match=f"^several messages begin with {text or 'nothing'}: "):
            find_message(sources, text)
    with pytest.raises(ReceiptError, match=f"no message begins with {'00' * 32}"):
        find_message(sources, "00" * 32)
