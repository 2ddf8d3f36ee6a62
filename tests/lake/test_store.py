"""A directory as a store: nothing outside it, everything synced. What all stores promise: test_store_conformance."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dovetail.lake.location import is_url, open_store
from dovetail.lake.store import SCRATCH, SCRATCH_AGE_S, LocalStore
from dovetail.model.errors import JournalDamaged, JournalError

KEY = "fabric=pcp/date=2026-11-15/one.parquet"


@pytest.fixture
def store(tmp_path) -> LocalStore:
    return LocalStore(tmp_path / "lake")


def put(store: LocalStore, key: str, data: bytes) -> None:
    with store.scratch() as directory:
        (directory / "file").write_bytes(data)
        store.put_file(key, directory / "file")


def keys(store: LocalStore, prefix: str = "") -> list[str]:
    return [entry.key for entry in store.list(prefix)]


def test_an_entry_notes_a_file_that_was_touched_and_set_back(store):
    store.create("a", b"one")
    before, times = store.entry("a"), (store.root / "a").stat()
    assert before.modified_s == times.st_mtime
    (store.root / "a").write_bytes(b"two")
    os.utime(store.root / "a", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert store.entry("a").modified_s == before.modified_s
    assert store.entry("a").tag != before.tag


def test_a_lake_that_is_made_is_for_its_owner_alone(store):
    """It has the bytes of journals, which nobody else can read. Who wants to share it makes the directory first."""
    with store.scratch() as directory:
        assert {path.stat().st_mode & 0o777 for path in (directory, store.root)} == {0o700}


def test_what_is_no_url_is_a_directory(tmp_path):
    assert open_store(tmp_path / "s3") == LocalStore(tmp_path / "s3")
    assert open_store("lake") == LocalStore(Path("lake"))
    assert not is_url(Path("s3://bucket"))
    assert not is_url("s3/bucket")


@pytest.fixture
def outside(tmp_path) -> Path:
    """A directory beside the lake with a file in it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "one.parquet").write_bytes(b"precious")
    return tmp_path / "outside"


@pytest.mark.parametrize("place", ["fabric=pcp", "fabric=pcp/date=2026-11-15", KEY])
def test_links_are_not_followed(store, outside, place):
    link = store.root / place
    link.parent.mkdir(parents=True)
    link.symlink_to(outside / "one.parquet" if place == KEY else outside)
    before = sorted(outside.rglob("*"))
    for read in (store.get, store.open):
        with pytest.raises((JournalDamaged, FileNotFoundError)):
            read(KEY)
    assert keys(store) == []
    with pytest.raises(JournalDamaged):
        put(store, KEY, b"other")
    if place == KEY:
        assert not store.create(KEY, b"other")
        store.delete([KEY])  # the link itself
        assert not link.is_symlink()
    else:
        with pytest.raises(JournalDamaged, match="is a link"):
            store.create(KEY, b"other")
        with pytest.raises(JournalDamaged, match="is a link"):
            store.delete([KEY])
    assert sorted(outside.rglob("*")) == before
    assert (outside / "one.parquet").read_bytes() == b"precious"


def test_only_plain_files_are_objects(store, outside):
    (store.root / "a").mkdir(parents=True)
    (store.root / "a" / "link").symlink_to(outside / "one.parquet")
    (store.root / "a" / ".hidden").write_bytes(b"")
    os.mkfifo(store.root / "a" / "pipe")
    assert keys(store) == []
    for key in ("a/pipe", "a"):
        with pytest.raises(JournalDamaged):
            store.get(key)


def nest(directory: Path, depth: int = 2 * sys.getrecursionlimit()) -> None:
    """Directories in each other, more than any function can call itself."""
    inside = os.open(directory, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("a", dir_fd=inside)
        deeper = os.open("a", os.O_RDONLY, dir_fd=inside)
        os.close(inside)
        inside = deeper
    os.close(inside)


@pytest.fixture
def nested(store):
    """A directory of the lake and an abandoned one for writing, with directories in each other without end."""
    store.create("a/object", b"")
    abandoned = store.root / SCRATCH / "abandoned"
    abandoned.mkdir(parents=True)
    for directory in (store.root / "a", abandoned):
        nest(directory)
    os.utime(abandoned, (1, 1))
    yield store
    subprocess.run(["rm", "-rf", store.root], check=True)  # shutil would call itself as often


def test_directories_in_each_other_without_end_stop_nobody(nested):
    assert keys(nested) == ["a/object"]
    assert nested.create("a/other", b"")


def test_what_may_not_be_read_stops_nobody(store, monkeypatch):
    """Whoever owns the directories of a lake may close one of them, or a file, to all others."""
    for key in ("a/closed/1", "a/open/1", "a/open/closed"):
        store.create(key, b"")
    opened = os.open

    def refuse(path, *given, **more):
        if path == "closed":
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, *given, **more)

    monkeypatch.setattr(os, "open", refuse)
    assert keys(store) == ["a/open/1", "a/open/closed"]
    assert keys(store, "a/closed/") == []
    assert store.directories("a/") == ["closed", "open"]
    for read in (store.get, store.entry, store.open):
        for key in ("a/closed/1", "a/open/closed"):
            with pytest.raises(JournalDamaged, match="closed cannot be opened: Permission denied"):
                read(key)


def test_the_lake_itself_may_be_a_link(tmp_path, store):
    store.create("a", b"x")
    (tmp_path / "alias").symlink_to(store.root)
    assert LocalStore(tmp_path / "alias").get("a") == b"x"


@pytest.mark.parametrize("write", [put, LocalStore.create], ids=["put_file", "create"])
def test_bytes_are_synced_before_the_name_and_the_name_before_the_end(store, monkeypatch, write):
    done = []
    fsync, link = os.fsync, os.link

    def noted_fsync(descriptor):
        done.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def noted_link(*given, **more):
        done.append("link")
        link(*given, **more)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "link", noted_link)
    write(store, KEY, b"x")
    path = store.root / KEY
    at = done.index("link")
    assert path.stat().st_ino in done[:at]
    assert done[at + 1 :] == [path.parent.stat().st_ino]
    # the new directories too, each in the one above it
    assert {store.root.stat().st_ino, path.parent.parent.stat().st_ino} <= set(done[:at])


def test_a_file_system_without_links_is_named(store, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(JournalError, match="has no hard links"):
        store.create(KEY, b"x")
    assert keys(store) == []


def test_scratch_is_gone_afterwards_and_what_was_abandoned_after_a_day(store):
    with store.scratch() as kept:
        old, young = kept.with_name("old"), kept.with_name("young")
        for path in (old, young):
            path.mkdir()
            (path / "half").write_bytes(b"")
        long_ago = time.time() - SCRATCH_AGE_S - 60
        os.utime(old, (long_ago, long_ago))
        with store.scratch() as own:
            assert own != kept
            (own / "half").write_bytes(b"")
            assert keys(store) == [], "what is being written is no object"
        assert sorted(path.name for path in kept.parent.iterdir()) == sorted([kept.name, "young"])
    assert [path.name for path in (store.root / SCRATCH).iterdir()] == ["young"]
