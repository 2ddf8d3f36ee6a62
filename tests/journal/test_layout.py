"""The bytes of a leaf entry, as on the reference page."""

import re
from pathlib import Path

import pytest

from dovetail.journal.layout import decode_runs, encode_runs, pack_names, unpack_names
from dovetail.model.address import address_of
from dovetail.model.errors import JournalDamaged
from dovetail.model.hop import Hop, Reason, Stage
from dovetail.tlog.leaf import NO_DIGEST, encode_entry, encode_tail, hash_run
from dovetail.tlog.tree import hash_leaf

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "journal-format.md"
HOP = Hop(
    server="pcp://broker.example/server",
    seq=0,
    at_us=1_700_000_000_000_000,
    fabric="pcp",
    stage=Stage.ACCEPTED,
    message=address_of(b"hello"),
    counterpart="pcp://a/agent",
    raw=b"hello",
    size=5,
)


def test_the_example_of_the_reference_page_is_right():
    example = re.search(r"^    entry((?:\s+[0-9a-f]+$)+)\n    leaf   ([0-9a-f]{64})$", PAGE.read_text(), re.MULTILINE)
    entry = bytes.fromhex("".join(example[1].split()))
    assert encode_entry(HOP, address_of(b"hello")) == entry
    assert hash_leaf(entry).hex() == example[2]


def test_a_run_hashes_as_its_hops_do_one_by_one():
    names = ["pcp://a/agent", "pcp://ü/agent", "x" * 300]
    for digest, size in ((NO_DIGEST, 0), (b"d" * 32, 7), (NO_DIGEST, 7)):
        tails = [encode_tail(Stage.REJECTED, Reason.TOO_LARGE, name) for name in names]
        leaves = hash_run(41, -5, HOP.message, tails, digest, size)
        expected = []
        for number, name in enumerate(names):
            hop = Hop(
                server=HOP.server,
                seq=41 + number,
                at_us=-5,
                fabric="pcp",
                stage=Stage.REJECTED,
                message=HOP.message,
                counterpart=name,
                reason=Reason.TOO_LARGE,
                size=size if number == 0 else None,
            )
            expected.append(hash_leaf(encode_entry(hop, digest if number == 0 else NO_DIGEST)))
        assert leaves == expected


@pytest.mark.parametrize("ids", [[], [7], [1, 2, 3], list(range(1000))])
def test_name_ids_survive_packing(ids):
    assert unpack_names(pack_names(ids) if ids else None) == ids


def test_damaged_runs_are_named_by_their_range():
    blob = encode_runs([(1, 2, 0, 0, None)])
    with pytest.raises(JournalDamaged, match="hops 10 to 12: "):
        decode_runs(blob[:-1], 10, 3)


def test_codes_are_permanent():
    """Journals store codes: a code that changes its meaning rewrites history."""
    assert [(stage.value, stage.code) for stage in Stage][:3] == [("created", 1), ("accepted", 2), ("rejected", 3)]
    for codes in ([stage.code for stage in Stage], [reason.code for reason in Reason]):
        assert len(codes) == len(set(codes))
        assert all(0 < code < 256 for code in codes)
