"""Search finds by every key, the same in parts as at once, and names what it cannot read."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from dashboard import dashboard_world as world
from dovetail.dashboard.message import trace_message
from dovetail.dashboard.query import parse_query
from dovetail.dashboard.search import MAX_RESULTS, search
from dovetail.dashboard.site_sources import Site
from dovetail.journal.purge import purge_step
from dovetail.journal.reader import JournalReader
from dovetail.lake.seal import seal_journal
from dovetail.lake.store import LocalStore
from dovetail.model.address import Address, address_of, won_uri
from dovetail.model.errors import UsageError
from dovetail.model.hop import Observation, Stage
from journal import worlds

REQUEST, REPLY, HOSTILE = (address_of(raw) for raw in (world.REQUEST, world.REPLY, world.HOSTILE))
LADDER, _, ANSWER = (each.address for each in world.won_chain())


def find_all(site: Site, *, seconds: float = 0.0, **given: str) -> tuple[set[tuple[str, Address]], list[str]]:
    """Everything a search finds, part by part; with no time each part is a single range."""
    found: set[tuple[str, Address]] = set()
    damages: list[str] = []
    token = ""
    while True:
        with site.open() as (sources, opening):
            answer = search(sources, parse_query(given), token, seconds=seconds)
        found |= answer.found.keys()
        damages += [each.text for each in (*opening, *answer.damages)]
        token = answer.token
        if not token:
            return found, damages


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"address": REQUEST.hex()}, {REQUEST}),
        ({"address": REQUEST.hex()[:9].upper()}, {REQUEST}),
        ({"address": won_uri(LADDER)}, {LADDER}),
        ({"address": won_uri(LADDER)[:14]}, {LADDER}),
        ({"id": world.REPLY_ID.upper()}, {REPLY}),
        ({"address": world.REPLY_ID}, {REPLY}),
        ({"any": world.REPLY_ID}, {REPLY}),
        ({"id": world.REQUEST_ID}, {REQUEST, REPLY}),
        ({"uri": world.AGENT}, {REQUEST, REPLY, HOSTILE, address_of(b"not a frame")}),
        ({"uri": f"{world.NODE_B}/atom/bob", "stage": "delivered"}, {LADDER, ANSWER}),
        ({"text": "RESTART the pump"}, {REQUEST}),
        ({"text": "grüSSe"}, {REQUEST}),
        ({"text": 'Friday, "as agreed"'}, {LADDER}),
        ({"text": world.HOSTILE_TEXT}, {HOSTILE}),
        ({"any": "pump"}, {REQUEST}),
        ({"any": REPLY.hex()[:10]}, {REPLY}),
        ({"any": "xxxxxxx/agent"}, {HOSTILE}),
        ({"reason": "malformed"}, {address_of(b"not a frame")}),
        ({"since": "2026-11-15T20:00:00"}, {address_of(b"not a frame"), HOSTILE}),
        ({"since": "2026-11-15T19:59:01", "until": "2026-11-15T19:59:03"}, {REQUEST}),
        ({"text": "pump", "stage": "delivered"}, {REQUEST}),
        ({"text": "pump", "uri": world.AGENT, "since": "2026-11-15T19:59:02Z"}, {REQUEST}),
        ({"text": "pump", "server": world.NODE_A}, set()),
        ({"text": "no such thing"}, set()),
    ],
)
def test_finds_by_each_key(site, given, expected):
    found, damages = find_all(site, seconds=5, **given)
    noise_after = {"since"} & given.keys() and "until" not in given and "text" not in given
    addresses = {address for _, address in found}
    if noise_after:  # later noise has the time of what came before it
        addresses -= {address_of(b"noise %d" % number) for number in range(3000)}
    assert addresses == expected
    assert not damages


def test_parts_are_bounded_and_lose_nothing(site):
    with site.open() as (sources, _):
        part = search(sources, parse_query({"text": "noise"}), seconds=60)
        assert len(part.found) == MAX_RESULTS
        assert part.token
        assert part.hops_left > 2000
    found, _ = find_all(site, text="noise")
    assert len(found) == 2800


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_a_plain_look_at_every_hop(tmp_path, seed):
    rng = random.Random(seed)
    with worlds.open_writer(tmp_path / "a.journal") as writer:
        for number in range(30):
            writer.append(worlds.random_observations(rng, worlds.START_US + number * 1000, rng.randint(1, 20)))
        writer.checkpoint()
    with JournalReader.open(tmp_path / "a.journal") as reader:
        hops = list(reader.hops())
        bodies = {hop.message: reader.raw(hop.message) for hop in hops}
    site = Site((tmp_path,))
    assert {a for _, a in find_all(site)[0]} == set(bodies)
    wanted = {a for a, raw in bodies.items() if raw is not None and b"message 3" in raw}
    assert {a for _, a in find_all(site, text="message 3")[0]} == wanted
    heard = {hop.message for hop in hops if "host7/" in (hop.counterpart or "")}
    assert {a for _, a in find_all(site, uri="host7/")[0]} == heard
    both = {hop.message for hop in hops if "host7/" in (hop.counterpart or "") and hop.stage is Stage.DELIVERED}
    assert {a for _, a in find_all(site, uri="host7/", stage="delivered")[0]} == both


def test_damage_is_named_and_the_rest_found(tmp_path):
    path = world.write_pcp(tmp_path, before=2000)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE commits SET runs = zeroblob(10) WHERE first_seq = 2003")
    connection.close()
    (tmp_path / "junk.journal").write_bytes(b"junk" * 5000)
    found, damages = find_all(Site((tmp_path,)), text="pump")
    assert {address for _, address in found} == {REQUEST}
    assert any("hops 2003 to 2003" in text for text in damages)
    assert any("junk.journal" in text for text in damages)


def test_finds_in_the_lake_what_no_journal_has(tmp_path):
    path = world.write_pcp(tmp_path, before=300)
    lake = tmp_path / "lake"
    assert seal_journal(path, LocalStore(lake)) is not None
    site = Site((), lake)
    for given in ({"text": "pump"}, {"text": "pump", "stage": "delivered"}, {"address": REQUEST.hex()[:12]}):
        assert {address for _, address in find_all(site, **given)[0]} == {REQUEST}
    assert len(find_all(site, text="noise")[0]) == 300


def test_says_how_many_cannot_be_searched_by_text(tmp_path):
    with world.open_writer(tmp_path / "a.journal", world.BROKER) as writer:
        seen = world.observe(b"large", Stage.REJECTED, world.AGENT)
        writer.append([type(seen)(at_us=seen.at_us, stage=seen.stage, message=seen.message, size=70_000)])
    with Site((tmp_path,)).open() as (sources, _):
        assert search(sources, parse_query({"text": "large"})).without_bytes == 1


@pytest.mark.parametrize("token", ["!", "AAAA", "x" * 20_000])
def test_bad_tokens_are_refused(site, token):
    with site.open() as (sources, _), pytest.raises(UsageError):
        search(sources, parse_query({"text": "pump"}), token)


@pytest.mark.parametrize(
    "given", [{"since": "yesterday"}, {"stage": "eaten"}, {"reason": "because"}, {"text": "x" * 1001}]
)
def test_bad_terms_are_refused(given):
    with pytest.raises(UsageError):
        parse_query(given)


def order(number: int) -> bytes:
    """A message that expires soon, except the last, which has no lifetime."""
    text = b'{"order": "gravel %d"}' % number
    return worlds.expiring(text, world.T0 + 10) if number < 2 else text


def write_purged(folder: Path) -> Path:
    """A journal that is completely sealed, with the bytes of all requests but the last purged."""
    path, lake = folder / "broker.journal", folder / "lake"
    with world.open_writer(path, world.BROKER) as writer:
        for number in range(3):
            raw = order(number)
            expires_us = world.T0 + 10 if number < 2 else None
            writer.append([replace(world.observe(raw, Stage.ACCEPTED, world.CONTROLLER), expires_us=expires_us)])
        writer.append([world.observe(order(0), Stage.DELIVERED, world.AGENT)])
        writer.checkpoint()
    assert seal_journal(path, LocalStore(lake)) is not None
    with world.open_writer(path, world.BROKER) as writer:
        assert purge_step(writer, now_us=world.T0 + world.SECOND) == 2
    return lake


def test_what_was_purged_is_found_by_its_sealed_bytes(tmp_path):
    lake = write_purged(tmp_path)
    orders = [address_of(order(number)) for number in range(3)]
    found, _ = find_all(Site((tmp_path,)), text="gravel")
    assert {address for _, address in found} == {orders[2]}, "without the lake its bytes are gone"
    for given in ({"text": "gravel"}, {"any": "GRAVEL"}):
        found, damages = find_all(Site((tmp_path,), lake), **given)
        assert {address for _, address in found} == set(orders)
        assert damages == []
    for stage, expected in (("delivered", {orders[0]}), ("purged", set(orders[:2]))):
        found, _ = find_all(Site((tmp_path,), lake), text="gravel", stage=stage)
        assert {address for _, address in found} == expected
    with Site((tmp_path,), lake).open() as (sources, _):
        trace, _ = trace_message(sources, orders[0])
        assert trace.raw == order(0)


def test_altered_bytes_of_the_lake_are_not_taken_for_purged_ones(tmp_path):
    lake = write_purged(tmp_path)
    for path in lake.glob("fabric=*/date=*/*.parquet"):
        rows = pq.read_table(path, partitioning=None).to_pylist()
        altered = [row | {"raw": row["raw"] and row["raw"].replace(b"gravel", b"marble")} for row in rows]
        pq.write_table(pa.Table.from_pylist(altered, schema=pq.read_schema(path)), path)
    with Site((tmp_path,), lake).open() as (sources, _):
        trace, _ = trace_message(sources, address_of(order(0)))
    assert trace.raw is None


def test_a_lake_that_is_gone_says_how_many_bytes_are_too(tmp_path):
    lake = write_purged(tmp_path)
    for file in lake.rglob("*.parquet"):
        file.unlink()
    with Site((tmp_path,), lake).open() as (sources, _):
        answer = search(sources, parse_query({"text": "gravel"}))
    assert len(answer.found) == 1
    assert answer.without_bytes == 2


def test_a_bad_file_or_manifest_of_the_lake_hides_no_other(tmp_path):
    lake, number = tmp_path / "lake", 0
    for server in (world.BROKER, "pcp://other/server"):
        path = tmp_path / "j" / f"{len(server)}.journal"
        for count in (5, 3):
            with world.open_writer(path, server) as writer:
                writer.append([world.noise(number + each) for each in range(count)])
                writer.checkpoint()
            number += count
            assert seal_journal(path, LocalStore(lake)) is not None
    assert len(find_all(Site((), lake), text="noise")[0]) == 16
    first, *_ = sorted(lake.rglob("*server-*.0000000000000000000-*.parquet"))
    gone = pq.ParquetFile(first).metadata.num_rows
    first.unlink()
    found, damages = find_all(Site((), lake), text="noise")
    assert len(found) == 16 - gone
    assert any("cannot be read" in text for text in damages)
    last, manifest = len(found), max((lake / "_manifests").rglob("*.json"))
    manifest.write_text("{}")
    found, damages = find_all(Site((), lake), text="noise")
    assert len(found) == last - 3
    assert {server for server, _ in found} == {world.BROKER, "pcp://other/server"}
    assert any(str(manifest.relative_to(lake)) in text for text in damages)


def test_a_beginning_that_several_addresses_share_is_looked_for_in_every_file(tmp_path):
    addresses = [Address(b"\x11\x22\x33\x44" + bytes([number]) * 28) for number in range(4)]
    path, lake = tmp_path / "broker.journal", tmp_path / "lake"
    for address in addresses:
        with world.open_writer(path, world.BROKER) as writer:
            writer.append([Observation(at_us=world.T0, stage=Stage.PULLED, message=address)])
            writer.checkpoint()
        assert seal_journal(path, LocalStore(lake)) is not None
    for site in (Site((path,)), Site((), lake)):
        assert {address for _, address in find_all(site, address="11223344")[0]} == set(addresses)


def test_a_row_of_this_moment_is_found(tmp_path):
    with world.open_writer(tmp_path / "a.journal", world.BROKER) as writer:
        for number in range(3):
            writer.append([world.observe(b"just now %d" % number, Stage.ACCEPTED, world.AGENT)])
            assert len(find_all(Site((tmp_path,)), text="JUST NOW")[0]) == number + 1


@pytest.mark.system
def test_many_messages_are_looked_through_in_short_parts(tmp_path):
    with world.open_writer(tmp_path / "a.journal", world.BROKER) as writer:
        for start in range(0, 10_000, 1000):
            writer.append([world.noise(number) for number in range(start, start + 1000)])
    for given, count in (({"text": "noise 17"}, 111), ({"uri": "pcp://host7/agent"}, 200), ({"any": "nowhere"}, 0)):
        token, found, parts = "", 0, 0
        while token or not parts:
            with Site((tmp_path,)).open() as (sources, _):
                answer = search(sources, parse_query(given), token, seconds=0)
            assert answer.hops_read <= 1000, "one commit is read, then the clock is looked at"
            found, token, parts = found + len(answer.found), answer.token, parts + 1
        assert (found, parts >= 10) == (count, True)
