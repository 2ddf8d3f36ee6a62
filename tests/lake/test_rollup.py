"""Roll-ups: many manifests in few requests, nothing trusted that a manifest would not be."""

from __future__ import annotations

import msgspec
import pytest

from audit.audit_worlds import BROKER, signer_of
from dovetail.lake.head import read_head
from dovetail.lake.layout import MAX_NUMBER, data_key, manifest_key, server_slug
from dovetail.lake.manifest import MANIFEST_FORMAT, SPARE_NUMBERS, Manifest, SealedFile, encode_manifest
from dovetail.lake.rollup import FAN, LEVELS, read_log, roll_up, rollup_key
from dovetail.lake.snapshot import commit, snapshot
from dovetail.tlog.checkpoint import Checkpoint, sign_checkpoint
from dovetail.tlog.tree import Frontier
from lake.memory_store import PAGE, MemoryStore

SLUG = server_slug(BROKER)


class Sealing:
    """Adds manifests of one hop each, as sealing does; their files do not exist, because nothing reads them here."""

    def __init__(self, store: MemoryStore) -> None:
        self.store, self.tree, self.number = store, Frontier(), 0
        self.signer = signer_of(BROKER)

    def make(self) -> Manifest:
        first = self.tree.size
        self.tree.append(first.to_bytes(32), 0)
        file = SealedFile(
            path=data_key(BROKER, "pcp", "2026-11-15", first, first + 1, "0" * 8),
            first_seq=first,
            rows=1,
            first_at_us=first,
            last_at_us=first,
            bytes=1,
            sha256="0" * 64,
            root=first.to_bytes(32).hex(),
        )
        return Manifest(
            format=MANIFEST_FORMAT,
            server=BROKER,
            fabric="pcp",
            key=self.signer.verifier.text(),
            checkpoint=sign_checkpoint(Checkpoint(BROKER, self.tree.size, self.tree.root()), self.signer).note,
            frontier=[peak.hex() for peak in self.tree.peaks()],
            files=[file],
        )

    def seal(self, count: int = 1) -> None:
        for _ in range(count):
            head = read_head(self.store, signer_of(BROKER).verifier)
            made = commit(self.store, self.make(), head.next_number, lambda other: True)
            assert made is not None
            roll_up(self.store, head.log, made.number + 1)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture(scope="module")
def long_sealed() -> MemoryStore:
    """Sealed slightly more often than a large roll-up has numbers."""
    store = MemoryStore()
    Sealing(store).seal(FAN**LEVELS + 3 * FAN + 5)
    return store


@pytest.mark.exhaustive
def test_a_cold_start_is_a_request_for_each_roll_up_and_the_tail(long_sealed):
    numbers = FAN**LEVELS + 3 * FAN + 5
    long_sealed.requests.clear()
    manifests = snapshot(long_sealed, BROKER).check().manifests()
    assert [manifest.number for manifest in manifests] == list(range(numbers))
    # one large one, three small ones, and five manifests; a listing of each, that of manifests in pages
    assert long_sealed.requests == {"list": LEVELS + 1 + numbers // PAGE, "get": 1 + 3 + 5}


def test_a_year_of_sealing_each_minute_is_hundreds_of_requests():
    year = 365 * 24 * 60
    large, rest = divmod(year, FAN**LEVELS)
    assert large + rest // FAN + rest % FAN < 300
    assert LEVELS + 1 + year // PAGE < 600


@pytest.mark.exhaustive
def test_sealing_asks_for_no_more_as_the_lake_grows(long_sealed):
    long_sealed.requests.clear()
    assert read_head(long_sealed, signer_of(BROKER).verifier).end == FAN**LEVELS + 3 * FAN + 5
    # roll-ups, manifests, and files beyond them; then the newest sealing and the one before it
    assert long_sealed.requests == {"list": LEVELS + 2, "get": 2}


def test_roll_ups_are_made_when_their_numbers_are_taken(store):
    sealing = Sealing(store)
    sealing.seal(FAN - 1)
    assert not [key for key in store.objects if key.startswith("_rollups/")]
    sealing.seal(1)
    assert rollup_key(SLUG, 1, 0) in store.objects
    log = read_log(store, SLUG)
    assert (len(log.known), len(log.keys), [each.first for each in log.rollups]) == (FAN, FAN, [0])
    sealing.seal(2)
    log = read_log(store, SLUG)
    assert (len(log.known), len(log.keys)) == (FAN, FAN + 2)
    assert read_head(store, signer_of(BROKER).verifier).end == FAN + 2


def test_a_lake_without_roll_ups_gets_them_little_by_little(store):
    sealing = Sealing(store)
    for number in range(6 * FAN):
        manifest = sealing.make()
        commit(store, manifest, number, lambda other: True)
    sealing.seal(1)
    assert len(read_log(store, SLUG).rollups) == 4
    sealing.seal(1)
    assert len(read_log(store, SLUG).rollups) == 6


@pytest.mark.parametrize(
    "bad",
    [
        b"no JSON\n",
        b'["_manifests/other/0000000000000000000.json", {}]\n',
        b'["_manifests/%s/0000000000000000099.json", {}]\n' % SLUG.encode(),
        b'["_manifests/%s/0000000000000000000.json", {}]\n' % SLUG.encode(),
        b"\xff\n",
        b"[" * 100_000,
    ],
)
def test_a_roll_up_that_cannot_be_read_is_passed_over(store, bad):
    Sealing(store).seal(FAN + 1)
    store.objects[rollup_key(SLUG, 1, 0)] = bad
    assert len(snapshot(store, BROKER).check().manifests()) == FAN + 1
    assert read_head(store, signer_of(BROKER).verifier).end == FAN + 1


def test_roll_ups_under_odd_names_are_passed_over(store):
    Sealing(store).seal(FAN + 1)
    for name in (
        "x",
        "1/x.jsonl",
        "1/0000000000000000001.jsonl",
        "1/" + "9" * 19 + ".jsonl",
        "2/" + "9" * 19 + ".jsonl",
    ):
        store.create(f"_rollups/{SLUG}/{name}", b"x")
    assert len(snapshot(store, BROKER).check().manifests()) == FAN + 1
    assert read_head(store, signer_of(BROKER).verifier).next_number == FAN + 1


def test_a_manifest_that_cannot_be_read_is_never_hidden_by_a_roll_up(store):
    sealing = Sealing(store)
    sealing.seal(FAN - 1)
    store.objects[manifest_key(BROKER, 3)] = b"broken"
    sealing.seal(1)
    assert rollup_key(SLUG, 1, 0) not in store.objects
    assert SLUG in snapshot(store).damages


def test_nobody_can_use_up_the_numbers(store):
    sealing = Sealing(store)
    sealing.seal(1)
    for number in (MAX_NUMBER, MAX_NUMBER - 1, SPARE_NUMBERS):
        manifest = snapshot(store).check().manifests()[0]
        store.create(manifest_key(BROKER, number), encode_manifest(msgspec.structs.replace(manifest, number=number)))
        sealing.seal(1)
    assert snapshot(store).check().hops == 4
