"""Followed journals: counts by stage and reason, growth, unreadable parts."""

from __future__ import annotations

import sqlite3

from dashboard import dashboard_world as world
from dovetail.dashboard import live
from dovetail.dashboard.site_sources import Site
from dovetail.model.address import NO_MESSAGE
from dovetail.model.hop import Observation, Reason, Stage


def broker_in(snapshot):
    return next(each for each in snapshot["servers"] if each["server"] == world.BROKER)


def test_counts_stages_reasons_and_growth(tmp_path):
    with world.open_writer(tmp_path / "a.journal", world.BROKER) as writer:
        writer.append([world.observe(b"one", Stage.ACCEPTED, "pcp://a/b", "pcp://c/d")])
        watched = live.Live(Site((tmp_path,)))
        assert broker_in(watched.look())["stages"] == {"accepted": 2}
        writer.append([world.observe(b"two", Stage.REJECTED, reason=Reason.MALFORMED)])
        writer.checkpoint()
        grown = broker_in(watched.look())
        watched.close()
    assert grown["stages"] == {"accepted": 2, "rejected": 1}
    assert grown["reasons"] == {"malformed": 1}
    assert grown["hops"] == grown["counted"] == grown["signed"] == 3
    assert sum(grown["history"]) == 1
    assert grown["rate"] > 0


def test_notes_of_a_server_are_no_failures(tmp_path):
    with world.open_writer(tmp_path / "a.journal", world.BROKER) as writer:
        writer.append([Observation(at_us=world.T0, stage=Stage.NOTED, message=NO_MESSAGE, reason=Reason.STOPPED)])
        watched = live.Live(Site((tmp_path,)))
        seen = broker_in(watched.look())
        watched.close()
    assert (seen["stages"], seen["reasons"]) == ({"noted": 1}, {})


def test_long_journals_are_counted_in_parts(tmp_path, monkeypatch):
    world.write_pcp(tmp_path, before=5000)
    monkeypatch.setattr(live, "SECONDS_PER_LOOK", -1.0)
    watched = live.Live(Site((tmp_path,)))
    first = broker_in(watched.look())
    assert first["hops"] == 5007
    assert first["counted"] == 0
    monkeypatch.setattr(live, "SECONDS_PER_LOOK", 30.0)
    second = broker_in(watched.look())
    watched.close()
    assert second["counted"] == 5007
    assert sum(second["stages"].values()) == 5007


def test_journals_come_go_and_break(tmp_path):
    watched = live.Live(Site((tmp_path,)))
    assert watched.look()["servers"] == []
    path = world.write_pcp(tmp_path)
    assert broker_in(watched.look())["hops"] == 7
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE commits SET crc = crc + 1 WHERE first_seq = 2")
    watched.close()
    connection.close()  # the last connection to close writes the log into the file
    path.rename(tmp_path / "moved.journal")
    (tmp_path / "junk.journal").write_bytes(b"junk" * 5000)
    snapshot = watched.look()
    watched.close()
    assert broker_in(snapshot)["counted"] == 7
    assert sum(broker_in(snapshot)["stages"].values()) == 6
    assert {each["file"] for each in snapshot["damaged"]} == {"junk.journal", "moved.journal"}


def test_journals_of_peers_are_found_by_their_folder_and_too_many_are_told(tmp_path, monkeypatch):
    for number in range(3):
        with world.open_writer(tmp_path / f"peer-{number}" / "journal.db", f"swarm://s/{number}") as writer:
            writer.append([world.noise(number)])
    site = Site((tmp_path,))
    watch = live.Live(site)
    assert [each["file"] for each in watch.look()["servers"]] == [f"peer-{n}/journal.db" for n in range(3)]
    watch.close()
    monkeypatch.setattr("dovetail.dashboard.site_sources.MAX_SOURCES", 2)
    with site.open() as (sources, damages):
        assert len(sources) == 2
        assert [damage.text for damage in damages] == ["there are 3; only 2 are shown"]


def test_a_journal_that_another_file_has_replaced_is_followed_anew(tmp_path):
    path = tmp_path / "a.journal"
    with world.open_writer(path, world.BROKER) as writer:
        writer.append([world.noise(number) for number in range(5)])
    watch = live.Live(Site((tmp_path,)))
    assert watch.look()["hops"] == 5
    with world.open_writer(tmp_path / "other", world.BROKER) as writer:
        writer.append([world.noise(number) for number in range(2)])
    for leftover in tmp_path.glob("a.journal-*"):
        leftover.unlink()
    (tmp_path / "other").replace(path)
    assert watch.look()["hops"] == 2
    watch.close()


def test_the_state_of_a_server_says_what_is_not_well(tmp_path, monkeypatch):
    with world.open_writer(tmp_path / "a.journal", world.BROKER) as writer:
        writer.append([world.noise(1)])
        watched = live.Live(Site((tmp_path,)))
        assert broker_in(watched.look())["state"] == "unsigned", "its hop is old and no checkpoint covers it"
        writer.checkpoint()
        assert broker_in(watched.look())["state"] == "idle"
        monkeypatch.setattr(live, "now_us", lambda: world.T0 + 1_000_000)
        assert broker_in(watched.look())["state"] == "writing"
        watched.close()


def test_hops_that_the_lake_lacks_for_an_hour_are_told(tmp_path, monkeypatch):
    lake = tmp_path / "lake"
    lake.mkdir()
    with world.open_writer(tmp_path / "a.journal", world.BROKER) as writer:
        writer.append([world.noise(1)])
        writer.checkpoint()
        watched = live.Live(Site((tmp_path / "a.journal",), lake))
        assert broker_in(watched.look())["state"] == "sealing behind"
        assert broker_in(watched.look())["sealed"] == 0
        monkeypatch.setattr(live, "now_us", lambda: world.T0 + 1_000_000)
        assert broker_in(watched.look())["state"] == "writing"
        watched.close()


def test_a_quarter_of_an_hour_is_kept_in_parts(tmp_path):
    with (
        world.open_writer(tmp_path / "a.journal", world.BROKER) as writer,
        live.JournalReader.open(tmp_path / "a.journal") as reader,
    ):
        follower = live.Follower(tmp_path / "a.journal", reader, 0)
        for number in range(2 * live.PARTS):
            writer.append([world.noise(number)])
            follower.look(number * live.PART_S, 0)
        assert follower.history(number * live.PART_S) == [1] * live.PARTS
        assert follower.history((number + 3) * live.PART_S) == [1] * (live.PARTS - 3) + [0] * 3
        assert len(follower.sizes) < live.PARTS, "sizes are kept for two minutes"
