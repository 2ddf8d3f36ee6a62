"""The local store: objects whole and once, nothing outside its directory, everything synced."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import string
import time
from pathlib import Path

import pytest

from dovetail.lake.store import SCRATCH, SCRATCH_AGE_S, LocalStore, check_key
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


def test_an_object_is_made_once(store):
    assert store.create("a/b.json", b"first")
    assert not store.create("a/b.json", b"second")
    assert not store.create("a/b.json", b"first")
    assert store.get("a/b.json") == b"first"


def test_a_file_may_be_put_again_but_never_changed(store):
    put(store, KEY, b"bytes")
    put(store, KEY, b"bytes")
    for other in (b"bytez", b"byte", b"bytes and more", b""):
        with pytest.raises(JournalDamaged, match="exists with other bytes"):
            put(store, KEY, other)
    assert store.get(KEY) == b"bytes"


def test_parts_of_objects(store):
    put(store, KEY, b"0123456789")
    assert store.get(KEY, 3, 4) == b"3456"
    assert store.get(KEY, 8, 100) == b"89"
    assert store.get(KEY, 20, 5) == b""
    file = store.open(KEY)
    assert (file.size(), file.read_at(2, 5)) == (10, b"56")


def test_what_is_missing(store):
    for read in (store.get, store.open):
        with pytest.raises(FileNotFoundError):
            read(KEY)
    store.delete([KEY, "nothing"])
    assert keys(store) == keys(store, "fabric=") == []
    store.create("fabric=pcp/x", b"")
    with pytest.raises(FileNotFoundError):
        store.get(KEY)


def test_listings_are_sorted_by_key_and_limited_by_prefix(store):
    rng = random.Random(1)
    made = {
        "/".join("".join(rng.choices(string.ascii_letters[:3] + "._=-", k=2)).replace(".", "b", 1) + "x" for _ in "ab")
        for _ in range(40)
    }
    made = {key for key in made if all(part[0] not in ".=-" for part in key.split("/"))} | {"ax", "ax.b", "ax-b"}
    made -= {key for key in made if any(other.startswith(f"{key}/") for other in made)}
    for key in made:
        store.create(key, key.encode())
    assert keys(store) == sorted(made)
    for prefix in ("a", "ax", "ax-", sorted(made)[3], "nothing", "nothing/at/all"):
        assert keys(store, prefix) == sorted(key for key in made if key.startswith(prefix))
    entry = next(store.list("ax.b"))
    assert entry.size == 4
    assert entry.modified_s == (store.root / "ax.b").stat().st_mtime


def test_deleting_takes_only_what_was_named(store):
    for key in ("a/1", "a/2", "b/1"):
        store.create(key, b"")
    store.delete(["a/1", "b/1", "b/2"])
    assert keys(store) == ["a/2"]


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/etc/passwd",
        "../x",
        "a/../x",
        "a//b",
        "a/",
        ".hidden",
        "a/.b",
        "a b",
        "a\0b",
        "a\nb",
        "x" * 256,
        "a\\b",
        "ä",
    ],
)
def test_keys_that_lead_elsewhere_are_refused(store, key):
    with pytest.raises(JournalDamaged, match="not a key of the lake"):
        check_key(key)
    for act in (store.get, store.open, store.url, lambda key: store.create(key, b""), lambda key: store.delete([key])):
        with pytest.raises(JournalDamaged):
            act(key)


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


def race(root: Path, barrier, results, name: bytes) -> None:
    store = LocalStore(root)
    for number in range(50):
        barrier.wait(60)
        results.put((number, name, store.create(f"race/{number:04d}", name)))


@pytest.mark.system
def test_of_several_processes_one_makes_the_object(store):
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(4), context.Queue()
    names = [b"%d" % number for number in range(4)]
    processes = [context.Process(target=race, args=(store.root, barrier, results, name)) for name in names]
    for process in processes:
        process.start()
    told = [results.get(timeout=60) for _ in range(200)]
    for process in processes:
        process.join(60)
    winners = {number: name for number, name, is_made in told if is_made}
    assert sum(is_made for *_, is_made in told) == len(winners) == 50
    assert all(store.get(f"race/{number:04d}") == name for number, name in winners.items())
