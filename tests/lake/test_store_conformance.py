"""What every store promises, checked on a directory, moto and versitygw."""

from __future__ import annotations

import multiprocessing
import pickle
import random
import string
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail.lake.location import open_store
from dovetail.lake.store import SCRATCH, Store, check_key
from dovetail.model.errors import JournalDamaged

KEY = "fabric=pcp/date=2026-11-15/one.parquet"


@pytest.fixture
def store(any_store) -> Store:
    return any_store


def put(store: Store, key: str, data: bytes) -> None:
    with store.scratch() as directory:
        (directory / "file").write_bytes(data)
        store.put_file(key, directory / "file")


def keys(store: Store, prefix: str = "", after: str = "") -> list[str]:
    return [entry.key for entry in store.list(prefix, after)]


def test_an_object_is_made_once(store):
    assert store.create("a/b.json", b"first")
    assert not store.create("a/b.json", b"second")
    assert not store.create("a/b.json", b"first")
    assert store.get("a/b.json") == b"first"


def test_a_file_may_be_put_again_but_never_changed(store):
    put(store, KEY, b"bytes")
    put(store, KEY, b"bytes")
    for other in (b"bytez", b"byte", b"bytes and more", b""):
        with pytest.raises(JournalDamaged, match="exists with different bytes"):
            put(store, KEY, other)
    assert store.get(KEY) == b"bytes"


def test_large_and_empty_objects(store):
    large = random.Random(1).randbytes(9_000_000)
    for key, data in (("large", large), ("empty", b"")):
        put(store, key, data)
        put(store, key, data)
        assert store.get(key) == data
        assert store.entry(key).size == len(data)
    with pytest.raises(JournalDamaged, match="exists with different bytes"):
        put(store, "large", large[:-1] + bytes([large[-1] ^ 1]))
    assert (store.get("empty", 0, 5), store.get("empty", 3)) == (b"", b"")


def test_parts_of_objects(store):
    put(store, KEY, b"0123456789")
    assert store.get(KEY, 3, 4) == b"3456"
    assert store.get(KEY, 8, 100) == b"89"
    assert store.get(KEY, 4) == b"456789"
    assert store.get(KEY, 10, 5) == store.get(KEY, 20, 5) == store.get(KEY, 20) == store.get(KEY, 3, 0) == b""
    with store.open(KEY) as file:
        assert (file.size(), file.read_at(2, 5)) == (10, b"56")
    with store.open(KEY) as file:
        assert (file.read(4), file.read(), file.read()) == (b"0123", b"456789", b"")


def test_parquet_is_read_in_place(store):
    table = pa.table({"a": list(range(1000)), "b": [b"x" * 50] * 1000})
    with store.scratch() as directory:
        pq.write_table(table, directory / "rows", row_group_size=100)
        store.put_file(KEY, directory / "rows")
    with store.open(KEY) as source, pq.ParquetFile(source) as parquet:
        assert parquet.metadata.num_row_groups == 10
        assert parquet.read_row_group(7, columns=["a"]).column("a").to_pylist() == list(range(700, 800))


def test_what_is_missing(store):
    for read in (store.get, store.open, store.entry, lambda key: store.get(key, 5, 0), lambda key: store.get(key, 5)):
        with pytest.raises(FileNotFoundError):
            read(KEY)
    store.delete([KEY, "nothing"])
    assert keys(store) == keys(store, "fabric=") == store.directories("fabric=/") == []
    store.create("fabric=pcp/x", b"")
    with pytest.raises(FileNotFoundError):
        store.get(KEY)


def test_listings_are_sorted_and_limited_by_prefix_and_start(store):
    rng = random.Random(1)
    made = {
        "/".join("".join(rng.choices(string.ascii_letters[:3] + "._=-", k=2)).replace(".", "b", 1) + "x" for _ in "ab")
        for _ in range(40)
    }
    made = {key for key in made if all(part[0] not in ".=-" for part in key.split("/"))} | {"ax", "ax.b", "ax-b"}
    made -= {key for key in made if any(other.startswith(f"{key}/") for other in made)}
    for key in made:
        store.create(key, key.encode())
    ordered = sorted(made)
    assert keys(store) == ordered
    for prefix in ("a", "ax", "ax-", ordered[3], "nothing", "nothing/at/all", ordered[-1].partition("/")[0] + "/"):
        assert keys(store, prefix) == [key for key in ordered if key.startswith(prefix)]
        for after in ("", "a", ordered[0], ordered[3], ordered[-1], "ax-", "zz"):
            expected = [key for key in ordered if key.startswith(prefix) and key > after]
            assert keys(store, prefix, after) == expected, (prefix, after)
    entry = next(store.list("ax.b"))
    assert entry == store.entry("ax.b")
    assert entry.size == 4


def test_the_directories_below_a_prefix(store):
    for key in ("_manifests/b/1", "_manifests/a-1/1", "_manifests/a-1/2", "_manifests/loose", "other/c/1"):
        store.create(key, b"")
    assert store.directories("_manifests/") == ["a-1", "b"]
    assert store.directories("other/") == ["c"]
    assert store.directories("nothing/") == []


def test_more_objects_than_one_page(store):
    for number in range(1005):
        store.create(f"many/{number:04d}", b"")
    assert keys(store, "many/") == [f"many/{number:04d}" for number in range(1005)]
    assert keys(store, "many/", "many/0999") == [f"many/{number:04d}" for number in range(1000, 1005)]
    store.delete(keys(store, "many/"))
    assert keys(store) == []


def test_deleting_takes_only_what_was_named(store):
    for key in ("a/1", "a/2", "b/1"):
        store.create(key, b"")
    store.delete(["a/1", "b/1", "b/2"])
    assert keys(store) == ["a/2"]


def test_a_tag_tells_other_bytes(store):
    store.create("a", b"one")
    before = store.entry("a")
    assert store.entry("a") == before
    assert before.tag
    store.delete(["a"])
    store.create("a", b"two")
    assert store.entry("a").tag != before.tag


@pytest.mark.parametrize(
    "key",
    [
        *("", "/etc/passwd", "../x", "a/../x", "a//b", "a/", ".hidden", "a/.b", "a b", "a\0b", "a\nb", "x" * 256),
        *("a\\b", "ä", "s3://bucket/a", "a/" * 600 + "a"),
    ],
)
def test_keys_that_lead_elsewhere_are_refused(store, key):
    with pytest.raises(JournalDamaged, match="not a key of the lake"):
        check_key(key)
    acts = (store.get, store.open, store.url, store.entry, lambda key: store.delete([key]))
    for act in (*acts, lambda key: store.create(key, b""), lambda key: put(store, key, b"")):
        with pytest.raises(JournalDamaged):
            act(key)


def test_what_is_being_written_is_no_object(store):
    with store.scratch() as directory:
        (directory / "half").write_bytes(b"half")
        assert keys(store) == []
    assert not directory.exists()
    assert keys(store) == []


def test_a_store_may_be_sent_to_another_process(store):
    store.create("a", b"x")
    again = pickle.loads(pickle.dumps(store))
    assert (again, again.get("a")) == (store, b"x")
    assert open_store(str(store)) == store


def test_of_several_threads_one_makes_the_object(store):
    threads, rounds = 4, 10
    barrier = threading.Barrier(threads)
    made: list[tuple[int, bytes]] = []

    def race(name: bytes) -> None:
        for number in range(rounds):
            barrier.wait(60)
            if store.create(f"race/{number:04d}", name):
                made.append((number, name))

    racing = [threading.Thread(target=race, args=(b"%d" % number,)) for number in range(threads)]
    for thread in racing:
        thread.start()
    for thread in racing:
        thread.join(60)
    assert sorted(number for number, _ in made) == list(range(rounds))
    assert all(store.get(f"race/{number:04d}") == name for number, name in made)


def race_in_process(location: str, barrier, results, name: bytes) -> None:
    store = open_store(location)
    for number in range(25):
        barrier.wait(60)
        results.put((number, name, store.create(f"race/{number:04d}", name)))


@pytest.mark.system
def test_of_several_processes_one_makes_the_object(store):
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(4), context.Queue()
    names = [b"%d" % number for number in range(4)]
    processes = [context.Process(target=race_in_process, args=(str(store), barrier, results, name)) for name in names]
    for process in processes:
        process.start()
    told = [results.get(timeout=120) for _ in range(100)]
    for process in processes:
        process.join(60)
    winners = {number: name for number, name, is_made in told if is_made}
    assert sum(is_made for *_, is_made in told) == len(winners) == 25
    assert all(store.get(f"race/{number:04d}") == name for number, name in winners.items())
    assert not [key for key in keys(store) if key.startswith(SCRATCH)]
