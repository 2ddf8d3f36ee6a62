"""Real journals in a simulated world."""

import pytest
from sim_cores import note

from dovetail.journal.reader import JournalReader
from dovetail.journal.verify import verify_journal
from dovetail.sim import SECOND_US
from dovetail.sim.disk import JournalFolder
from dovetail.sim.scenario import Setting, run_scenario
from sim.pingpong import PINGPONG

SETTING = Setting(places=3, duration_us=SECOND_US)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_world_on_disk_is_the_world_in_memory(tmp_path, seed):
    on_disk = run_scenario(PINGPONG, seed, setting=SETTING, faults="all", journal_factory=JournalFolder(tmp_path, seed))
    assert on_disk == run_scenario(PINGPONG, seed, setting=SETTING, faults="all")
    verdicts = [verify_journal(path) for path in sorted(tmp_path.glob("*.journal"))]
    assert [verdict.server for verdict in verdicts] == [f"swarm://pingpong/place-000{n}" for n in range(3)]
    assert all(verdict.is_intact and verdict.committed == verdict.hops for verdict in verdicts)
    assert sum(verdict.hops for verdict in verdicts) == on_disk.hops


def test_same_seed_writes_the_same_files_and_signatures(tmp_path):
    def files(folder):
        run_scenario(PINGPONG, 4, setting=SETTING, faults="all", journal_factory=JournalFolder(folder, 4))
        return {path.name: path.read_bytes() for path in folder.glob("*.journal")}

    first = files(tmp_path / "first")
    assert len(first) == SETTING.places
    assert first == files(tmp_path / "again")


def test_journal_is_found_again_and_may_be_closed_twice(tmp_path):
    folder = JournalFolder(tmp_path, 1)
    journal = folder("a", "swarm://test/a")
    assert journal.append([note("x", 1)]) == journal.size == 1
    journal.close()
    journal.close()
    again = folder("a", "swarm://test/a")
    assert [hop.raw for hop in again.hops()] == [b"x"]
    again.close()


def test_keys_differ_by_seed_and_place(tmp_path):
    def key(seed, place):
        path = tmp_path / str(seed)
        folder = JournalFolder(path, seed)
        folder(place, f"swarm://test/{place}").close()
        with JournalReader.open(path / f"{place}.journal") as reader:
            return reader.identity.verifier.text().rpartition("+")[2]

    assert len({key(1, "a"), key(1, "b"), key(2, "a")}) == 3
    assert key(1, "a") == key(1, "a")
