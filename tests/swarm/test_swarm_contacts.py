"""Contacts: bounded tables, validation, amplification."""

from __future__ import annotations

import random

from dovetail.swarm import contacts as module
from dovetail.swarm.contacts import Contact, Contacts

LOCAL = bytes(20)


def made() -> Contacts:
    return Contacts(LOCAL, "test", random.Random(1), 1000, 10)


def test_strangers_give_way_to_newer_ones_and_never_to_known_contacts(monkeypatch):
    monkeypatch.setattr(module, "MAX_STRANGERS", 10)
    contacts = made()
    contacts.validate(contacts.get_or_add("friend", 0))
    for number in range(1000):
        contacts.get_or_add(f"stranger {number}", number)
    assert contacts.stranger_count == 10
    assert contacts.find("friend") is not None
    assert contacts.find("stranger 999") is not None
    assert contacts.find("stranger 0") is None


def test_known_contacts_are_bounded_and_links_pins_and_proven_ones_stay(monkeypatch):
    monkeypatch.setattr(module, "MAX_CONTACTS", 6)
    contacts = made()
    pinned = contacts.pin("pinned", 0)
    linked, proven = contacts.get_or_add("linked", 0), contacts.get_or_add("proven", 0)
    for contact in (linked, proven):
        contacts.validate(contact)
    contacts.set_link(linked, forward=True)
    proven.is_proven = True
    for number in range(100):
        other = contacts.get_or_add(f"other {number}", number)
        other.heard_us = number
        contacts.validate(other)
    assert len(contacts.known) == 6
    assert {pinned, linked, proven} <= set(contacts.known)


def test_an_identity_names_the_contact_in_the_journal():
    contacts = made()
    contact = contacts.get_or_add("192.0.2.1:9", 0)
    assert contact.uri == "udp://192.0.2.1:9"
    contacts.identify(contact, b"\x01" + bytes(19))
    assert contact.uri == "swarm://test/01" + "00" * 19
    assert contact.is_ahead is True


def test_a_stranger_is_sent_three_times_what_it_sent_and_a_validated_contact_its_rate():
    contacts = made()
    contact = contacts.get_or_add("a", 0)
    contact.received_bytes = 100
    assert [contact.may_send(100, 0) for _ in range(4)] == [True, True, True, False]
    contacts.validate(contact)
    assert [contact.may_send(250, 0) for _ in range(3)] == [True, True, False]
    assert contact.may_send(250, 1_000_000)


def test_proven_contacts_are_picked_first():
    contacts = made()
    for number in range(20):
        contacts.validate(contacts.get_or_add(f"{number}", 0))
    for number in (3, 4):
        contacts.find(f"{number}").is_proven = True
    assert {contact.endpoint for contact in contacts.pick(2, lambda contact: True)} == {"3", "4"}


def test_a_route_leads_to_all_that_are_relayed_to_but_not_back_and_follows_every_change():
    contacts = Contacts(b"\x05" * 20, "test", random.Random(3), 1000, 1000)
    first, second, third = (contacts.get_or_add(f"192.0.2.{number}:9", 0) for number in range(3))
    for contact in (first, second, third):
        contacts.validate(contact)
    assert contacts.route_from(first).receivers == ()
    for contact in (first, second):
        contacts.set_link(contact, forward=True)
    assert contacts.route_from(first).receivers == (second,)
    assert contacts.route_from(third).receivers == (first, second)
    contacts.identify(second, b"\x09" * 20)
    assert contacts.route_from(first).uris == (f"swarm://test/{'09' * 20}",)
    contacts.set_link(second, forward=False)
    assert contacts.route_from(third).receivers == (first,)
    contacts.forget(first)
    assert contacts.route_from(third).receivers == ()


NOW = 1_700_000_000_000_000


def answered(contacts: Contacts, endpoint: str, number: int) -> Contact:
    contact = contacts.get_or_add(endpoint, NOW)
    contacts.identify(contact, number.to_bytes(20))
    contacts.validate(contact)
    return contact


def test_a_forgotten_contact_that_is_back_is_asked_from_where_it_was_left():
    contacts = made()
    asked, heard, claimed = (answered(contacts, f"peer {number}", number) for number in (1, 2, 3))
    asked.watermark_ms = NOW // 1000 - 5
    claimed.is_validated = False
    for contact in (asked, heard, claimed):
        contacts.forget(contact)
    back = [answered(contacts, f"elsewhere {number}", number) for number in (1, 2, 3, 4)]
    assert [contact.known_until_ms for contact in back] == [
        NOW // 1000 - 5,
        NOW // 1000 - module.HEARD_MARGIN_MS,
        None,
        None,
    ]


def test_a_claimed_address_does_not_set_a_watermark_back_and_a_clock_that_is_set_back_voids_all():
    contacts = made()
    contacts.forget(answered(contacts, "peer 1", 1))
    other = answered(contacts, "peer 2", 2)
    other.watermark_ms = NOW // 1000
    contacts.identify(other, (1).to_bytes(20))
    assert other.watermark_ms == NOW // 1000
    contacts.handle_clock_step()
    assert other.watermark_ms is None
    assert other.known_until_ms is None
    assert answered(contacts, "elsewhere", 1).known_until_ms is None


def test_what_is_remembered_of_forgotten_contacts_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_FORGOTTEN", 10)
    contacts = made()
    for number in range(30):
        contacts.forget(answered(contacts, "peer", number))
    found = [answered(contacts, f"elsewhere {number}", number).known_until_ms is not None for number in range(30)]
    assert found == [False] * 20 + [True] * 10
