"""Manifests that somebody without the server's key puts where its next sealing would be."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.audit_worlds import BROKER, SECOND, T0_US, append_and_seal, quiet_pcp, signer_of, write_lake
from dovetail.journal.continuity import check_writable
from dovetail.lake.head import read_head
from dovetail.lake.known import known_to_lake
from dovetail.lake.layout import manifest_key, range_manifest_name
from dovetail.lake.manifest import SPARE_NUMBERS, Manifest, encode_manifest
from dovetail.lake.reader import open_lake, open_server
from dovetail.lake.retain import sweep
from dovetail.lake.rollup import read_manifest
from dovetail.lake.snapshot import manifest_keys, settle, snapshot
from dovetail.lake.store import LocalStore
from dovetail.model.errors import JournalRolledBack
from dovetail.tlog.keys import Signer
from lake.hostile_lakes import continued
from lake.lakes import files_in, manifest_file, manifests_of

OWN = signer_of(BROKER)
OTHER = Signer(BROKER, Ed25519PrivateKey.from_private_bytes(b"x" * 32))


def new_hops(number: int) -> list:
    return quiet_pcp(2, T0_US + number * SECOND, 1 + 10 * number)


@pytest.fixture
def lake(tmp_path) -> Path:
    """Sealed three times, four hops each."""
    return write_lake(tmp_path, *({BROKER: new_hops(number)} for number in range(3)))


def put(lake: Path, manifest: Manifest, **changes: object) -> str:
    made = msgspec.structs.replace(manifest, **changes)
    manifest_file(lake, made).write_bytes(encode_manifest(made))
    return str(manifest_file(lake, made).relative_to(lake))


def unsigned(manifest: Manifest) -> Manifest:
    note = manifest.checkpoint
    return msgspec.structs.replace(manifest, checkpoint=f"{note[:-12]}{'A' * 8}{note[-4:]}")


def other_files(manifest: Manifest) -> list:
    return [msgspec.structs.replace(file, root="11" * 32) for file in manifest.files]


FORGED: dict[str, Callable[[list[Manifest]], Manifest]] = {
    "another key": lambda sealed: continued(sealed[-1], OTHER, 3),
    "another key, the server's name for it": lambda sealed: msgspec.structs.replace(
        continued(sealed[-1], OTHER, 3), key=sealed[-1].key
    ),
    "another key, far more hops": lambda sealed: continued(sealed[-1], OTHER, 3, hops=1 << 40),
    "another key, from the start": lambda sealed: continued(None, OTHER, 3, like=sealed[0]),
    "no signature": lambda sealed: unsigned(continued(sealed[-1], OWN, 3)),
    "a copied checkpoint": lambda sealed: msgspec.structs.replace(sealed[-1], files=other_files(sealed[-1]), number=3),
    "a copy of the newest": lambda sealed: msgspec.structs.replace(sealed[-1], number=3),
    "a copy of the first": lambda sealed: msgspec.structs.replace(sealed[0], number=3),
    "a copy far away": lambda sealed: msgspec.structs.replace(sealed[0], number=SPARE_NUMBERS),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_a_forged_manifest_stops_nobody_and_is_believed_by_nobody(lake, tmp_path, forgery):
    store, sealed = LocalStore(lake), manifests_of(lake)
    key = put(lake, FORGED[forgery](sealed))
    journal = next(tmp_path.glob("*.journal"))

    def check(hops: int) -> None:
        assert read_head(store, OWN.verifier).end == hops
        own = snapshot(store, BROKER, [OWN.verifier]).check().servers[BROKER]
        assert own[:3] == tuple(sealed)
        assert own[-1].end == hops
        assert open_server(store, OWN.verifier).size == hops
        assert settle(manifest_keys(store), partial(read_manifest, store), [OWN.verifier])[1] == {key}
        check_writable(journal, OWN.verifier, known_to_lake(store, OWN.verifier))
        if "from the start" not in forgery:  # two keys for the first hops: only who knows one can tell
            assert [server.size for server in open_lake(store)] == [hops]

    check(12)
    for number in range(3, 6):
        append_and_seal(tmp_path, lake, BROKER, new_hops(number))
        check(4 + 4 * number)
    sweep(store, grace_s=0, orphan_age_s=0)
    check(24)
    (lake / key).unlink()
    assert snapshot(store).check().hops == 24


@pytest.mark.parametrize("garbage", [b"", b"{}", b"\0" * 100])
@pytest.mark.parametrize("number", [3, 10**18])
def test_something_unreadable_stops_nobody(lake, tmp_path, garbage, number):
    store = LocalStore(lake)
    (lake / manifest_key(BROKER, number)).write_bytes(garbage)
    for part in range(3, 5):
        append_and_seal(tmp_path, lake, BROKER, new_hops(part))
        assert snapshot(store).check().hops == 4 + 4 * part
        assert [server.size for server in open_lake(store)] == [4 + 4 * part]


def test_what_is_ignored_is_logged(lake, tmp_path, caplog):
    key = put(lake, FORGED["another key"](manifests_of(lake)))
    with caplog.at_level(logging.ERROR, "dovetail.lake"):
        append_and_seal(tmp_path, lake, BROKER, new_hops(3))
    assert [key in record.getMessage() for record in caplog.records] == [True]


def test_a_new_server_is_sealed_behind_what_somebody_put_there(tmp_path):
    for number in range(2):
        append_and_seal(tmp_path, tmp_path / "elsewhere", BROKER, new_hops(number))
    (tmp_path / "lake" / manifest_key(BROKER, 0)).parent.mkdir(parents=True)
    forged = continued(None, OTHER, 0, like=manifests_of(tmp_path / "elsewhere")[0])
    put(tmp_path / "lake", forged)
    append_and_seal(tmp_path, tmp_path / "lake", BROKER, new_hops(2))
    assert [each.number for each in snapshot(LocalStore(tmp_path / "lake"), BROKER, [OWN.verifier]).manifests()] == [1]
    assert open_server(LocalStore(tmp_path / "lake"), OWN.verifier).size == 12


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_second_history_with_the_servers_own_signature_stops_sealing(lake, tmp_path, is_whole):
    sealed = manifests_of(lake)
    fork = continued(sealed[-2], OWN, 3)
    put(lake, fork if is_whole else msgspec.structs.replace(fork, files=sealed[-1].files))
    before = files_in(lake)
    with pytest.raises(JournalRolledBack, match="other hops among its first 12"):
        append_and_seal(tmp_path, lake, BROKER, new_hops(3))
    assert files_in(lake) == before
    assert settle(manifest_keys(LocalStore(lake)), partial(read_manifest, LocalStore(lake)))[1] == set()
    with pytest.raises(JournalRolledBack):
        check_writable(next(tmp_path.glob("*.journal")), OWN.verifier, known_to_lake(LocalStore(lake), OWN.verifier))


@pytest.mark.parametrize("forger", [OTHER, None])
def test_a_compaction_holds_whatever_is_put_in_place_of_what_it_replaced(lake, forger):
    sealed = manifests_of(lake)
    files = [file for manifest in sealed for file in manifest.files]
    whole = msgspec.structs.replace(sealed[-1], files=files, number=3, replaces=[0, 1, 2])
    for manifest in sealed:
        manifest_file(lake, manifest).unlink()
    put(lake, whole)
    forged = continued(None, OTHER, 1, like=sealed[0])
    put(lake, forged if forger else unsigned(forged))
    assert snapshot(LocalStore(lake), BROKER, [OWN.verifier]).check().manifests() == [whole]


def test_a_copy_in_an_older_format_deletes_nothing(lake):
    first = manifests_of(lake)[0]
    paths = [file.path.replace(f".{file.sha256[:8]}.", ".") for file in first.files]
    files = [msgspec.structs.replace(file, path=path) for file, path in zip(first.files, paths, strict=True)]
    put(lake, first, format=1, number=None, files=files)
    assert (lake / f"_manifests/{manifest_file(lake, first).parent.name}/{range_manifest_name(0, 4)}.json").exists()
    assert [manifest.number for manifest in manifests_of(lake)] == [0, 1, 2]
    before = files_in(lake)
    sweep(LocalStore(lake), grace_s=0, orphan_age_s=0)
    assert files_in(lake) == before
