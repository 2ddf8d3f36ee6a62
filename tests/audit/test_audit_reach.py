"""How far journals are known: a file that is altered or missing is a gap, until it is there as it was sealed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from audit.audit_worlds import BROKER, SECOND, T0_US, quiet_pcp, write_lake
from audit.test_audit_tampering import rewrite, set_cell
from dovetail.audit.reach import is_less_known, newly_known, reaches_of, with_reaches
from dovetail.audit.state_tables import SERVERS_TABLE
from lake.lakes import manifests_of
from lake.test_hostile_lakes import learn_here

OTHER = "pcp://other/server"
SERVERS = pa.Table.from_pylist(
    [dict.fromkeys(SERVERS_TABLE.names) | {"fabric": "pcp", "server": server} for server in (BROKER, OTHER)],
    schema=SERVERS_TABLE.arrow,
)


@pytest.fixture
def lake(tmp_path) -> Path:
    """A lake in which the broker sealed three files."""
    parts = [quiet_pcp(8, T0_US + 1000 * number * SECOND, 1 + 10 * number) for number in range(3)]
    return write_lake(tmp_path, {BROKER: parts[0], OTHER: quiet_pcp(2)}, {BROKER: parts[1]}, {BROKER: parts[2]})


def alter(path: Path) -> None:
    rewrite(path, lambda rows: set_cell(rows, 2, counterpart="pcp://mallory/agent"))


def known(lake: Path) -> pa.Table:
    facts = learn_here(lake)
    return with_reaches(SERVERS, facts.manifests, facts.files)


@pytest.mark.parametrize("harm", [alter, Path.unlink])
@pytest.mark.parametrize("number", range(3))
def test_a_file_that_is_altered_or_missing_is_a_gap(lake, harm, number):
    files = [manifest.files[0] for manifest in manifests_of(lake, BROKER)]
    starts, ends = [file.first_at_us for file in files], [file.last_at_us for file in files]
    facts, before = learn_here(lake), known(lake)
    assert reaches_of(facts.manifests, facts.files)["pcp", BROKER] == [(None, ends[2])]
    data = (lake / files[number].path).read_bytes()
    harm(lake / files[number].path)
    facts, after = learn_here(lake), known(lake)
    expected = [[(starts[1], ends[2])], [(None, ends[0]), (starts[2], ends[2])], [(None, ends[1])]][number]
    assert reaches_of(facts.manifests, facts.files)["pcp", BROKER] == expected
    assert is_less_known(before, after)
    assert not is_less_known(after, before)
    (lake / files[number].path).write_bytes(data)
    assert newly_known(after, known(lake)) == {BROKER: ([0, ends[0], ends[1]][number], ends[2])}
    assert newly_known(before, known(lake)) == {}
