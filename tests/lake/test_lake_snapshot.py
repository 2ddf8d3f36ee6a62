"""Which manifests are active, how far a server is sealed, and who may add the next one."""

from __future__ import annotations

import tarfile
import time
from functools import partial
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.audit_worlds import BROKER, PEERS, SECOND, T0_US, append_and_seal, quiet_pcp, signer_of, write_lake
from dovetail.lake.head import read_head
from dovetail.lake.layout import manifest_key, range_manifest_name
from dovetail.lake.manifest import Manifest, encode_manifest
from dovetail.lake.reader import open_lake
from dovetail.lake.retain import sweep
from dovetail.lake.rollup import read_manifest
from dovetail.lake.snapshot import commit, not_replaced, settle, snapshot
from dovetail.lake.store import LocalStore
from dovetail.model.errors import JournalDamaged
from dovetail.tlog.checkpoint import Checkpoint, sign_checkpoint
from dovetail.tlog.keys import Signer
from dovetail.tlog.tree import Frontier
from lake.hostile_lakes import continued
from lake.lakes import manifest_file, manifest_files, manifests_of

DAY = 86_400 * SECOND
VECTOR = Path(__file__).parents[1] / "vectors" / "lake-formats-1-2.tar.gz"


def replacing(*replaced) -> Manifest:
    """A manifest with only the fields that decide what is active."""
    made = {"format": 3, "server": "s", "fabric": "pcp", "key": "", "checkpoint": "", "frontier": [], "files": []}
    return msgspec.convert(made | {"replaces": list(replaced)}, Manifest)


def numbered(number: int) -> str:
    return f"_manifests/one/{number:019d}.json"


def ranged(first: int, end: int, generation: int = 0, directory: str = "one") -> str:
    return f"_manifests/{directory}/{range_manifest_name(first, end, generation)}.json"


def counting(manifests) -> set[str]:
    read = []

    def look(key):
        read.append(key)
        return manifests[key]

    chosen = not_replaced(manifests, look)
    assert sorted(read) == sorted(chosen), "none that does not count is read"
    return set(chosen)


def test_all_count_that_none_replaces():
    manifests = {numbered(number): replacing() for number in range(3)}
    assert counting(manifests) == set(manifests)


def test_those_that_a_newer_one_names_do_not_count():
    manifests = {numbered(number): replacing() for number in range(4)} | {numbered(4): replacing(0, 1)}
    assert counting(manifests) == {numbered(2), numbered(3), numbered(4)}


def test_what_was_replaced_twice_stays_replaced_whatever_was_deleted():
    manifests = {numbered(0): replacing(), numbered(1): replacing(), numbered(3): replacing(0, 1, 2)}
    assert counting(manifests) == {numbered(3)}


def test_one_that_cannot_be_read_counts_and_replaces_nothing():
    assert counting({numbered(0): replacing(), numbered(1): None}) == {numbered(0), numbered(1)}
    assert counting({numbered(0): None, numbered(1): replacing(0)}) == {numbered(1)}


def test_without_numbers_a_higher_generation_replaces_what_it_covers():
    for keys, expected in (
        ([ranged(4, 8), ranged(0, 4)], [ranged(0, 4), ranged(4, 8)]),
        ([ranged(0, 4), ranged(4, 8), ranged(8, 9), ranged(0, 8, 1)], [ranged(0, 8, 1), ranged(8, 9)]),
        ([ranged(0, 8, 1), ranged(8, 9), ranged(0, 9, 2)], [ranged(0, 9, 2)]),
        ([ranged(0, 8, 1), ranged(0, 8, 2)], [ranged(0, 8, 2)]),
        ([ranged(0, 8), ranged(0, 4, 1), ranged(4, 12, 1)], [ranged(0, 8), ranged(0, 4, 1), ranged(4, 12, 1)]),
    ):
        assert counting(dict.fromkeys(keys, replacing())) == set(expected)


def test_other_servers_and_other_names_are_not_touched():
    other, strange = ranged(0, 4, directory="two"), "_manifests/one/0.json"
    manifests = dict.fromkeys([ranged(0, 4), ranged(0, 4, 1), other, strange], replacing())
    manifests |= {numbered(0): replacing(range_manifest_name(0, 4, 1))}
    assert counting(manifests) == {numbered(0), ranged(0, 4), other, strange}


@pytest.fixture
def sealed(tmp_path) -> LocalStore:
    """Sealed three times."""
    parts = [quiet_pcp(2, T0_US + part * SECOND, 1 + 10 * part) for part in range(3)]
    return LocalStore(write_lake(tmp_path, *({BROKER: part} for part in parts)))


def test_numbers_follow_each_other(sealed):
    found = snapshot(sealed)
    assert [manifest.number for manifest in found.servers[BROKER]] == [0, 1, 2]
    assert (found.next_numbers, found.hops, found.damages) == ({BROKER: 3}, 12, {})
    head = read_head(sealed, signer_of(BROKER).verifier)
    assert (head.manifest, head.next_number, head.end) == (found.servers[BROKER][-1], 3, 12)
    assert read_head(sealed, signer_of("pcp://nobody/server").verifier).end == 0


def add(store: LocalStore, manifest: Manifest, **changes) -> Manifest:
    changed = msgspec.structs.replace(manifest, **changes)
    manifest_file(store.root, changed).write_bytes(encode_manifest(changed))
    return changed


def compacted(store: LocalStore, *manifests: Manifest, number: int) -> Manifest:
    files = [file for manifest in manifests for file in manifest.files]
    return add(store, manifests[-1], files=files, number=number, replaces=[manifest.number for manifest in manifests])


def test_the_head_needs_nothing_older_than_the_newest_sealing(sealed):
    first, second, third = manifests_of(sealed.root)
    compacted(sealed, first, second, number=3)
    manifest_file(sealed.root, first).write_bytes(b"never read")
    manifest_file(sealed.root, second).write_bytes(b"never read")
    head = read_head(sealed, signer_of(BROKER).verifier)
    assert (head.manifest.number, head.next_number, head.end) == (2, 4, third.end)


def test_the_head_after_all_sealings_are_replaced(sealed):
    whole = compacted(sealed, *manifests_of(sealed.root), number=3)
    assert read_head(sealed, signer_of(BROKER).verifier).manifest == whole
    for path in sorted(sealed.root.glob("_manifests/*/*.json"))[:3]:
        path.unlink()
    head = read_head(sealed, signer_of(BROKER).verifier)
    assert (head.manifest, head.next_number) == (whole, 4)


def test_a_compaction_takes_a_number_and_sealing_goes_on_behind_it(sealed, tmp_path):
    first, second, _ = manifests_of(sealed.root)
    compacted(sealed, first, second, number=3)
    append_and_seal(tmp_path, sealed.root, BROKER, quiet_pcp(1, T0_US + DAY, 50))
    assert [manifest.number for manifest in manifests_of(sealed.root)] == [3, 2, 4]


def test_who_comes_second_takes_the_next_number_unless_there_is_a_conflict(sealed):
    *_, third = manifests_of(sealed.root)
    again = msgspec.structs.replace(third, replaces=[2])
    assert commit(sealed, again, 1, lambda _: True) is None
    assert commit(sealed, again, 1, lambda newer: newer.number == 7).number == 3
    seen = []
    assert commit(sealed, again, 2, lambda newer: seen.append(newer.number)).number == 4
    assert seen == [2, 3]


def test_a_gap_is_a_damage_of_that_server_alone(sealed, tmp_path):
    append_and_seal(tmp_path, sealed.root, PEERS[0], quiet_pcp(1))
    manifest_files(sealed.root, BROKER)[1].unlink()
    found = snapshot(sealed)
    assert list(found.servers) == [PEERS[0]]
    (damage,) = found.damages.values()
    assert str(damage) == f"hops 4 to 7 of {BROKER} are in no manifest"
    with pytest.raises(JournalDamaged):
        found.check()


def test_hops_that_were_signed_twice_are_a_damage(sealed):
    first, _, _ = manifests_of(sealed.root)
    add(sealed, continued(first, signer_of(BROKER), 3))
    (damage,) = snapshot(sealed).damages.values()
    assert str(damage) == f"hops from 4 of {BROKER} are in two manifests"


# manifests that claim the place of others


def forged(sealed: LocalStore, number: int = 9, **changes) -> str:
    """A manifest that replaces all others as a compaction would, with some changes, by somebody without a key."""
    manifests = manifests_of(sealed.root)
    whole = {
        "files": [file for manifest in manifests for file in manifest.files],
        "number": number,
        "replaces": [manifest.number for manifest in manifests],
    }
    return str(manifest_file(sealed.root, add(sealed, manifests[-1], **(whole | changes))).relative_to(sealed.root))


def signed_anew(manifests: list[Manifest]) -> dict[str, object]:
    """Other hops than those that were sealed, signed by a key that somebody made for it."""
    signer = Signer(BROKER, Ed25519PrivateKey.from_private_bytes(b"x" * 32))
    files = [msgspec.structs.replace(file, root="11" * 32) for manifest in manifests for file in manifest.files]
    tree = Frontier()
    for file in files:
        tree.append(bytes.fromhex(file.root), file.level)
    note = sign_checkpoint(Checkpoint(BROKER, tree.size, tree.root()), signer).note
    frontier = [peak.hex() for peak in tree.peaks()]
    return {"files": files, "key": signer.verifier.text(), "checkpoint": note, "frontier": frontier}


def other_roots(manifests: list[Manifest]) -> dict[str, object]:
    return {"files": [msgspec.structs.replace(file, root="11" * 32) for each in manifests for file in each.files]}


FORGERIES = {
    "other hops under the signed root": other_roots,
    "one other file": lambda each: {
        "files": [*(file for one in each[:-1] for file in one.files), *other_roots(each[-1:])["files"]]
    },
    "signed by another key": signed_anew,
    "the first ones for all": lambda each: {
        name: getattr(each[0], name) for name in ("files", "checkpoint", "frontier", "key")
    },
    "the last ones for all": lambda each: {"files": each[-1].files},
    "other hops behind those of another": lambda each: {
        "files": [file for one in other_roots(each[1:]).values() for file in one],
        "replaces": [each[1].number, each[2].number],
    },
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_manifest_that_has_not_the_hops_of_those_it_replaces_counts_for_nobody(sealed, tmp_path, forgery):
    manifests = manifests_of(sealed.root)
    key = forged(sealed, **FORGERIES[forgery](manifests))
    assert list(snapshot(sealed).check().servers[BROKER]) == manifests
    log = [entry.key for entry in sealed.list("_manifests/")]
    assert settle(log, partial(read_manifest, sealed))[1] == {key}
    # behind it another forgery, which replaces it and all others
    forged(sealed, 10, **(FORGERIES[forgery](manifests) | {"replaces": [0, 1, 2, 9]}))
    assert list(snapshot(sealed).check().servers[BROKER]) == manifests
    files = {file.path for manifest in manifests for file in manifest.files}
    sweep(sealed, grace_s=0, orphan_age_s=0)
    assert files <= {entry.key for entry in sealed.list("fabric=")}, "nothing is deleted for it"
    append_and_seal(tmp_path, sealed.root, BROKER, quiet_pcp(1, T0_US + DAY, 50))
    assert snapshot(sealed).check().hops == manifests[-1].end + 2


@pytest.mark.parametrize("garbage", [None, b"garbage"])
def test_originals_stay_while_what_replaced_them_does_not_hold_what_was_signed(sealed, garbage):
    """The right roots, and no such files: nobody can tell that from the manifest alone."""
    manifests = manifests_of(sealed.root)
    files = [file for manifest in manifests for file in manifest.files]
    moved = [
        msgspec.structs.replace(file, path=file.path.replace(file.sha256[:8], "0" * 8), sha256="0" * 64)
        for file in files
    ]
    forged(sealed, files=moved)
    for file in moved if garbage else ():
        (sealed.root / file.path).write_bytes(garbage * (file.bytes // len(garbage)))
    sweep(sealed, grace_s=0, orphan_age_s=0)
    assert {file.path for file in files} <= {entry.key for entry in sealed.list("fabric=")}
    for old, new in zip(files, moved, strict=True):
        (sealed.root / new.path).write_bytes((sealed.root / old.path).read_bytes())
    time.sleep(0.01)
    sweep(sealed, grace_s=0, orphan_age_s=0)
    assert {entry.key for entry in sealed.list("fabric=")} == {file.path for file in moved}


def test_a_compaction_counts_whatever_is_still_there_of_what_it_replaced(sealed):
    first, second, third = manifests_of(sealed.root)
    whole = compacted(sealed, second, third, number=3)
    for path in (None, manifest_file(sealed.root, third), manifest_file(sealed.root, second)):
        if path is not None:
            path.unlink()
        assert list(snapshot(sealed).check().servers[BROKER]) == [first, whole]


# lakes of earlier formats


OLD_SIGNER = Signer(BROKER, Ed25519PrivateKey.from_private_bytes(bytes([77]) * 32))


@pytest.fixture
def old(tmp_path) -> LocalStore:
    """A lake in the format before numbers: a broker sealed twice, compacted, sealed again; and a peer."""
    with tarfile.open(VECTOR) as archive:
        archive.extractall(tmp_path, filter="data")
    return LocalStore(tmp_path / "lake")


def test_formats_1_and_2_are_read(old):
    found = snapshot(old).check()
    assert list(found.servers) == [BROKER, PEERS[0]]
    assert [(item.format, item.generation, item.end) for item in found.servers[BROKER]] == [(2, 1, 10), (1, 0, 12)]
    assert [item.end for item in found.servers[PEERS[0]]] == [3]
    assert read_head(old, OLD_SIGNER.verifier).next_number == 0
    broker, peer = open_lake(old)
    assert [item.hop.seq for item in broker.hops_between(0, 12)] == list(range(12))
    assert [broker.raw(item.hop.message) is None for item in broker.hops_between(0, 12)] == [True] * 10 + [False] * 2
    assert broker.find(broker.hops_between(4, 5)[0].hop.message[:8]) == {broker.hops_between(4, 5)[0].hop.message}
    assert peer.size == 3


def test_sealing_goes_on_in_a_lake_of_format_2(old, tmp_path):
    # the same hops again, as the old code wrote and signed them
    for part in range(2):
        hops = quiet_pcp(3 - part, T0_US + part * 600 * SECOND, 1 + 10 * part)
        append_and_seal(tmp_path, tmp_path / "other", BROKER, hops, OLD_SIGNER)
    append_and_seal(tmp_path, tmp_path / "other", BROKER, quiet_pcp(1, T0_US + 3 * DAY, 21), OLD_SIGNER)
    append_and_seal(tmp_path, old.root, BROKER, quiet_pcp(2, T0_US + 4 * DAY, 31), OLD_SIGNER)
    found = snapshot(old).check().servers[BROKER]
    assert [(item.format, item.number, item.first_seq) for item in found] == [(2, None, 0), (1, None, 10), (3, 0, 12)]
    assert manifest_key(BROKER, 0) in {entry.key for entry in old.list("_manifests/")}
    assert open_lake(old)[0].size == 16
