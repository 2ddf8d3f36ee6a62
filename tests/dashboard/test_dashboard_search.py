"""Search finds by every key, in parts as in one go, and names what it cannot read."""

from __future__ import annotations

import random
import sqlite3

import pytest

from dashboard import dashboard_world as world
from dovetail.dashboard.places import Site
from dovetail.dashboard.query import parse_query
from dovetail.dashboard.search import MAX_RESULTS, search
from dovetail.errors import UsageError
from dovetail.hop import Address, Stage, address_of, won_uri
from dovetail.journal.reader import JournalReader
from dovetail.journal.seal import seal_journal
from journal import worlds

REQUEST, REPLY, HOSTILE = (address_of(raw) for raw in (world.REQUEST, world.REPLY, world.HOSTILE))
LADDER, _, ANSWER = (each.address for each in world.won_chain())


def find_all(site: Site, *, seconds: float = 0.0, **given: str) -> tuple[set[tuple[str, Address]], list[str]]:
    """Everything a search finds, part by part; with no time each part is a single stretch."""
    found: set[tuple[str, Address]] = set()
    damages: list[str] = []
    token = ""
    while True:
        with site.open() as (places, opening):
            answer = search(places, parse_query(given), token, seconds=seconds)
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
    if noise_after:  # the noise behind has the time of what came before it
        addresses -= {address_of(b"noise %d" % number) for number in range(3000)}
    assert addresses == expected
    assert not damages


def test_parts_are_bounded_and_lose_nothing(site):
    with site.open() as (places, _):
        part = search(places, parse_query({"text": "noise"}), seconds=60)
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
    assert seal_journal(path, lake) is not None
    site = Site((), lake)
    for given in ({"text": "pump"}, {"text": "pump", "stage": "delivered"}, {"address": REQUEST.hex()[:12]}):
        assert {address for _, address in find_all(site, **given)[0]} == {REQUEST}
    assert len(find_all(site, text="noise")[0]) == 300


def test_says_how_many_cannot_be_searched_by_text(tmp_path):
    with world.open_writer(tmp_path / "a.journal", world.BROKER) as writer:
        seen = world.observe(b"large", Stage.REJECTED, world.AGENT)
        writer.append([type(seen)(at_us=seen.at_us, stage=seen.stage, message=seen.message, size=70_000)])
    with Site((tmp_path,)).open() as (places, _):
        assert search(places, parse_query({"text": "large"})).without_bytes == 1


@pytest.mark.parametrize("token", ["!", "AAAA", "x" * 20_000])
def test_bad_tokens_are_refused(site, token):
    with site.open() as (places, _), pytest.raises(UsageError):
        search(places, parse_query({"text": "pump"}), token)


@pytest.mark.parametrize(
    "given", [{"since": "yesterday"}, {"stage": "eaten"}, {"reason": "because"}, {"text": "x" * 1001}]
)
def test_bad_terms_are_refused(given):
    with pytest.raises(UsageError):
        parse_query(given)
