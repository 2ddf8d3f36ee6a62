"""An object store beyond what all stores promise: lost answers, invalid names, no access."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from dovetail.lake.location import is_url, open_store
from dovetail.lake.object_store import MAX_PUT_BYTES, ObjectStore, parse_location
from dovetail.model.errors import ConfigError, ConnectFailed, JournalDamaged, JournalError
from lake.s3_proxy import run_proxy
from lake.s3_servers import BUCKET, fresh_store, use


@pytest.fixture
def store(moto, request):
    with use(moto):
        yield fresh_store(request.node.name.partition("[")[0])


@pytest.fixture
def proxied(moto, request):
    """A store behind a proxy, and the proxy."""
    with run_proxy(moto) as proxy:
        yield fresh_store(f"{request.node.name.partition('[')[0]}-{os.urandom(4).hex()}"), proxy


def test_locations():
    for text, bucket, prefix in (
        ("s3://lakes", "lakes", ""),
        ("s3://lakes/", "lakes", ""),
        ("s3a://lakes/a/b", "lakes", "a/b"),
        ("s3://lakes/a/b//", "lakes", "a/b"),
    ):
        assert open_store(text) == ObjectStore(bucket, prefix)
        assert is_url(text)
    assert str(ObjectStore("lakes", "a")) == "s3://lakes/a"
    assert str(ObjectStore("lakes")) == "s3://lakes"
    assert ObjectStore("lakes", "a").url("b/c") == "s3a://lakes/a/b/c"
    assert ObjectStore("lakes").url("b/c") == "s3a://lakes/b/c"
    for bad in ("s3://", "s3://a", "s3:///x", "s3://UPPER/x", "s3://lakes/../x", "s3://lakes/a b", "s3://lakes//x"):
        with pytest.raises(ConfigError, match="s3://"):
            parse_location(bad)


@pytest.mark.parametrize("times", [1, 2])
def test_a_create_whose_answer_was_lost_is_our_own(proxied, times):
    store, proxy = proxied
    lost = Counter()

    def judge(method, path):
        lost[method] += method == "PUT"
        return "lose" if method == "PUT" and lost["PUT"] <= times else "pass"

    proxy.judge = judge
    assert store.create("a", b"bytes"), "the first try made it, whatever the next was told"
    assert store.get("a") == b"bytes"
    assert not store.create("a", b"bytes")


def test_a_create_that_lost_the_race_and_its_answer_is_not_our_own(proxied):
    store, proxy = proxied
    assert store.create("a", b"theirs")
    lost = Counter()

    def judge(method, path):
        lost[method] += 1
        return "lose" if method == "PUT" and lost["PUT"] == 1 else "pass"

    proxy.judge = judge
    assert not store.create("a", b"ours")
    assert not store.create("a", b"theirs")
    assert store.get("a") == b"theirs"


def test_a_file_whose_answer_was_lost_is_there(proxied, tmp_path):
    store, proxy = proxied
    lost = Counter()

    def judge(method, path):
        lost[method] += 1
        return "lose" if method == "PUT" and lost["PUT"] == 1 else "pass"

    proxy.judge = judge
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    store.put_file("a", tmp_path / "file")
    assert store.get("a") == b"x" * 100_000


def test_a_store_that_is_busy_for_a_moment_is_asked_again(proxied):
    store, proxy = proxied
    seen = Counter()

    def judge(method, path):
        seen[method] += 1
        return "refuse" if seen[method] == 1 else "pass"

    proxy.judge = judge
    assert store.create("a", b"bytes")
    assert store.get("a") == b"bytes"
    assert [entry.key for entry in store.list()] == ["a"]


def test_a_store_that_does_not_answer_says_nothing_about_objects(store, monkeypatch):
    monkeypatch.setattr("dovetail.lake.object_store._MAX_RETRIES", 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("dovetail.lake.object_store._clients", {})
    for act in (
        lambda: store.get("a"),
        lambda: store.entry("a"),
        lambda: store.open("a"),
        lambda: list(store.list()),
        lambda: store.directories("a/"),
        lambda: store.delete(["a"]),
        lambda: store.create("a", b""),
    ):
        with pytest.raises(ConnectFailed, match=f"s3://{BUCKET}/"):
            act()


def test_a_bucket_that_is_not_there(store):
    missing = ObjectStore("nobodys-bucket")
    with pytest.raises((ConnectFailed, FileNotFoundError)):
        missing.create("a", b"")
    with pytest.raises((ConnectFailed, FileNotFoundError)):
        list(missing.list())


@pytest.mark.system
def test_wrong_keys_are_let_in_nowhere(versitygw, monkeypatch):
    with use(versitygw):
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        store = fresh_store("closed")
        for act in (lambda: store.get("a"), lambda: list(store.list()), lambda: store.create("a", b"")):
            with pytest.raises(ConnectFailed) as told:
                act()
            assert "wrong" not in str(told.value)
            assert "\n" not in str(told.value)


def test_bad_settings_are_named(store, monkeypatch):
    monkeypatch.setattr("dovetail.lake.object_store._clients", {})
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "nonsense")
    with pytest.raises((ConfigError, ConnectFailed), match=f"s3://{BUCKET}"):
        store.get("a")


def test_a_file_beyond_one_request_is_refused(store, tmp_path):
    with (tmp_path / "file").open("wb") as file:
        file.truncate(MAX_PUT_BYTES + 1)
    with pytest.raises(JournalError, match="expected at most"):
        store.put_file("a", tmp_path / "file")


ODD = ["a//b", "a/../b", "a/./b", "/x", "z~", "ä", "n%00", 'q"//<x>&']


def test_names_that_are_none_of_ours_hide_nothing(moto, store):
    good = sorted(["a/0", "a/1", "a-b", "b/c", "m/x", "n/y", "zz/z", "_manifests/one/1", "_manifests/two/1"])
    for key in good:
        store.create(key, b"x")
    odd = [*ODD, *(f"_manifests/{key}" for key in ODD)]
    for key in odd:
        moto.put_unsigned(f"{store.prefix}/{key}", b"odd")
        assert [entry.key for entry in store.list()] == good, key
        assert {"one", "two"} <= set(store.directories("_manifests/"))
    assert [entry.key for entry in store.list("a")] == ["a-b", "a/0", "a/1"]
    assert [entry.key for entry in store.list("_manifests/", "_manifests/one/1")] == ["_manifests/two/1"]


def test_names_that_no_client_reads_stop_only_what_is_beside_them(moto, store):
    store.create("_manifests/one/1", b"x")
    store.create("_manifests/two/1", b"x")
    moto.put_unsigned(f"{store.prefix}/_manifests/two/a\0b", b"odd")
    assert [entry.key for entry in store.list("_manifests/one/")] == ["_manifests/one/1"]
    assert store.directories("_manifests/") == ["one", "two"]
    with pytest.raises(JournalDamaged, match="an object's name cannot be read"):
        list(store.list("_manifests/two/"))


def test_reading_is_a_request_for_each_part(proxied):
    store, proxy = proxied
    store.create("a", bytes(1000))
    proxy.requests.clear()
    with store.open("a") as file:
        file.read_at(10, 500)
    assert proxy.requests == {"HEAD": 1, "GET": 1}
    proxy.requests.clear()
    store.get("a", 5, 10)
    next(store.list())
    store.directories("")
    assert proxy.requests == {"GET": 1, "LIST": 2}


@pytest.mark.system
def test_without_obstore_it_says_what_to_install():
    code = (
        "import importlib.util\n"
        "importlib.util.find_spec = lambda name: None\n"
        "from dovetail.lake.location import open_store\n"
        "from dovetail.model.errors import ConfigError\n"
        "try: open_store('s3://lakes').get('a')\n"
        "except (ConfigError, ImportError) as error: print(type(error).__name__, error)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told == "ConfigError object stores need the extra `s3`: pip install 'dovetail[s3]'\n"


def test_an_altered_copy_of_a_sealed_file_is_refused(store, tmp_path):
    (tmp_path / "file").write_bytes(b"one")
    store.put_file("a", tmp_path / "file")
    (tmp_path / "file").write_bytes(b"two")
    with pytest.raises(JournalDamaged, match="exists with different bytes"):
        store.put_file("a", tmp_path / "file")
