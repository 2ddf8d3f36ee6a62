"""The journal in memory keeps the contract of hop.py."""

import pytest

from dovetail.model.address import Address, address_of
from dovetail.model.errors import JournalError
from dovetail.model.hop import Observation, Reason, Stage
from dovetail.sim.memory import MemoryDisks, MemoryJournal, digest_hops

RAW = b"message"
MESSAGE = address_of(RAW)


def observe(stage=Stage.ACCEPTED, at_us=1, **fields):
    return Observation(at_us=at_us, stage=stage, message=fields.pop("message", MESSAGE), **fields)


def journal_of(*observations):
    journal = MemoryJournal("swarm://test/a")
    journal.append(observations)
    return journal


def test_one_hop_per_counterpart_with_the_bytes_on_the_first():
    journal = journal_of(observe(counterparts=("x", "y"), raw=RAW), observe(Stage.DELIVERED, raw=RAW))
    rows = [(hop.seq, hop.stage, hop.counterpart, hop.raw, hop.size) for hop in journal.hops()]
    assert rows == [
        (0, Stage.ACCEPTED, "x", RAW, 7),
        (1, Stage.ACCEPTED, "y", None, None),
        (2, Stage.DELIVERED, None, None, None),
    ]
    assert journal.size == 3


def test_bytes_that_come_late_stand_on_the_first_hop_that_has_them():
    journal = journal_of(observe(Stage.PULLED), observe(raw=RAW), observe(Stage.DELIVERED, raw=RAW))
    assert [hop.raw for hop in journal.hops()] == [None, RAW, None]


def test_size_on_the_wire_is_kept_where_bytes_are_cut_or_left_out():
    other = address_of(b"other")
    journal = journal_of(
        observe(Stage.REJECTED, raw=RAW[:3], size=7, reason=Reason.TOO_LARGE),
        observe(Stage.REJECTED, message=other, size=9, reason=Reason.TOO_LARGE),
        observe(message=other, raw=b"other"),
    )
    rows = [(hop.raw, hop.size, hop.reason) for hop in journal.hops()]
    assert rows == [(RAW[:3], 7, Reason.TOO_LARGE), (None, 9, Reason.TOO_LARGE), (None, None, None)]


def test_time_never_goes_backwards():
    journal = journal_of(observe(at_us=-5), observe(at_us=10), observe(at_us=3))
    journal.append([observe(at_us=7), observe(at_us=11)])
    assert [hop.at_us for hop in journal.hops()] == [-5, 10, 10, 10, 11]


def test_hops_read_before_are_read_again_with_the_new_ones():
    journal = journal_of(observe(raw=RAW))
    assert [hop.seq for hop in journal.hops()] == [0]
    assert journal.append([observe(Stage.DELIVERED)]) == 2
    assert [(hop.seq, hop.server, hop.fabric) for hop in journal.hops()] == [
        (0, "swarm://test/a", "swarm"),
        (1, "swarm://test/a", "swarm"),
    ]


@pytest.mark.parametrize("bad", [observe(message=Address(b"short")), observe(counterparts=("x", ""))])
def test_append_is_all_or_nothing(bad):
    journal = journal_of(observe())
    with pytest.raises(JournalError):
        journal.append([observe(), bad])
    assert journal.size == len(list(journal.hops())) == 1


def test_disks_give_the_same_journal_again():
    disks = MemoryDisks()
    journal = disks("a", "swarm://test/a")
    assert disks("a", "swarm://test/a") is journal
    assert disks("b", "swarm://test/b") is not journal


def test_digest_tells_journals_apart_in_every_field():
    plain = observe(counterparts=("x",), raw=RAW)
    variants = [
        plain,
        observe(at_us=2, counterparts=("x",), raw=RAW),
        observe(Stage.CREATED, counterparts=("x",), raw=RAW),
        observe(counterparts=("y",), raw=RAW),
        observe(counterparts=("x",), raw=RAW, reason=Reason.MALFORMED),
        observe(counterparts=("x",), raw=b"massage"),
        observe(counterparts=("x",), raw=RAW, size=8),
        observe(counterparts=("x",), raw=RAW, message=address_of(b"other")),
    ]
    digests = {digest_hops(journal_of(variant).hops()) for variant in variants}
    assert len(digests) == len(variants)
    assert digest_hops(journal_of(plain).hops()) == digest_hops(journal_of(plain).hops())
