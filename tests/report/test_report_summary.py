from __future__ import annotations

from collections import Counter

import pyarrow as pa

from dovetail.audit.tables import Tables
from dovetail.model.outcome import Outcome
from dovetail.report import summary
from dovetail.report.numbers import Numbers
from dovetail.report.survey import take_numbers
from report.sample_tables import BROKER, NODES, PEERS, after, small_world
from tables_on_disk import SCHEMAS


def deliveries(*rows: dict[str, object]) -> pa.Table:
    full = [{**dict.fromkeys(SCHEMAS["deliveries"].names), "fabric": "pcp", **row} for row in rows]
    return pa.Table.from_pylist(full, schema=SCHEMAS["deliveries"])


def test_the_numbers_are_those_of_the_rows(numbers: Numbers) -> None:
    world = small_world()
    expected = Counter((row["fabric"], row["outcome"]) for row in world.rows["deliveries"])
    found: Counter[tuple[str, str]] = Counter()
    for item in numbers.outcomes:
        found[item.fabric, item.outcome] += item.deliveries
    assert found == expected
    assert numbers.deliveries == len(world.rows["deliveries"])
    assert numbers.hops == len(world.rows["hops"])
    assert numbers.messages == Counter(row["fabric"] for row in world.rows["messages"])
    assert sum(item.findings for item in numbers.checks) == len(world.rows["findings"])
    assert sum(item.chains for item in numbers.chains) == len(world.rows["chains"])
    assert sum(slot.deliveries for slot in numbers.outcomes_over_time) == numbers.deliveries
    assert sum(slot.hops for slot in numbers.traffic) == numbers.hops
    assert numbers.lake == "the-lake"


def test_arrived_failed_and_pending_add_up(numbers: Numbers) -> None:
    failed = sum(item.deliveries for item in numbers.reasons)
    assert numbers.arrived + numbers.pending + failed == numbers.deliveries
    assert set(numbers.outcomes_of("pcp")) == set(Outcome) - {"echoed", "lost", "unreported", "no_outcome"}


def test_an_audit_of_nothing_gives_numbers(empty_tables: Tables) -> None:
    nothing = take_numbers(empty_tables)
    assert (nothing.deliveries, nothing.hops, nothing.servers, nothing.checks) == (0, 0, [], [])


def test_reasons_have_their_sentence_and_the_most_frequent_is_first() -> None:
    rows = [{"outcome": "expired", "reason": "lifetime_over"}] * 2 + [{"outcome": "lost"}, {"outcome": "delivered"}]
    first, second = summary.count_reasons(deliveries(*rows))
    assert (first.reason, first.deliveries) == ("lifetime_over", 2)
    assert first.sentence.startswith("it had expired")
    assert (second.outcome, second.reason, second.sentence) == ("lost", None, "")


def test_a_refused_delivery_without_a_begin_is_placed_at_its_end() -> None:
    (slot,) = summary.follow_outcomes(deliveries({"outcome": "rejected", "finished": after(5)}), 1_000_000)
    assert slot.at_us == int(after(5).timestamp() * 1e6)


def test_slow_recipients_come_first_and_few_deliveries_are_not_judged() -> None:
    rows = [{"recipient": "slow", "outcome": "delivered", "latency_us": 900 + n} for n in range(3)]
    rows += [{"recipient": "fast", "outcome": "delivered", "latency_us": 10 + n} for n in range(3)]
    rows += [{"recipient": "once", "outcome": "delivered", "latency_us": 10**6}]
    rows += [{"recipient": "at once", "outcome": "delivered", "latency_us": 0}] * 3
    rows += [{"recipient": "slow", "outcome": "expired"}, {"recipient": "slow", "outcome": "in_flight"}]
    slow, fast = summary.find_slow(deliveries(*rows))
    assert (slow.recipient, slow.failed, slow.times.max_us) == ("slow", 1, 902)
    assert fast.recipient == "fast"


def test_legs_of_all_fabrics(numbers: Numbers) -> None:
    legs = {(leg.fabric, leg.leg) for leg in numbers.legs if not leg.of}
    assert legs == {
        ("pcp", "delivery"),
        ("won", "delivery"),
        ("swarm", "delivery"),
        ("pcp", "to the first response"),
        ("won", "to the first response"),
        ("won", "first to second response"),
        ("swarm", "to half of the peers"),
        ("swarm", "to 95 %"),
        ("swarm", "to all peers"),
    }
    assert {leg.of for leg in numbers.legs if leg.fabric == "won" and leg.of} >= {"ConnectMessage", "CloseMessage"}


def test_servers_that_are_not_proven_come_first_with_what_is_wrong(numbers: Numbers) -> None:
    broken, incomplete, *rest = numbers.servers
    assert (broken.server, broken.verdict, broken.breaks[0].seq) == (NODES[1], "broken", 17)
    assert (incomplete.server, incomplete.missing_hops) == (PEERS[4], 20)
    assert {server.verdict for server in rest} == {"proven"}
    assert BROKER in {server.server for server in rest}
    assert numbers.proven == len(rest)


def test_the_peer_that_lacks_most_comes_first(numbers: Numbers) -> None:
    assert (numbers.peers[0].peer, numbers.peers[0].holds, numbers.peers[0].lacks) == (PEERS[11], 30, 30)
    assert [peer.lacks for peer in numbers.peers[1:]] == [0] * 11


def test_coverage_is_a_share_of_the_peers(numbers: Numbers) -> None:
    shares = {round(slot.share, 3) for slot in numbers.coverage}
    assert shares == {round(11 / 12, 3), 1.0}
    assert all(slot.worst <= slot.share for slot in numbers.coverage)
    assert sum(slot.messages for slot in numbers.coverage) == 60


def test_forks_name_their_evidence(numbers: Numbers) -> None:
    cycle, log = numbers.forks
    assert (cycle.kind, log.kind, numbers.fork_count) == ("cycle", "forked_log", 2)
    assert all(len(text) == 64 for text in cycle.evidence)
    assert all(text.startswith("wm:/") for text in log.evidence)
    assert log.author == f"{NODES[0]}/atom/a0"


def test_gaps_say_whether_the_parent_may_live(numbers: Numbers) -> None:
    assert [(gap.scope, gap.live, gap.gaps) for gap in numbers.gaps] == [("nobody", True, 1), ("server", None, 1)]
