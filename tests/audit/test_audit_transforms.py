"""Transforms on a few inline rows, and the plans they produce."""

from __future__ import annotations

import datetime as dt
import hashlib

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the conventional name
from pyspark.testing import assertDataFrameEqual

from dovetail.audit import schemas
from dovetail.audit.checks import every_check, find
from dovetail.audit.fabric_audit import Moment
from dovetail.audit.fabrics import AUDITS, audits_of
from dovetail.audit.leaves import with_leaves
from dovetail.audit.state_tables import DECODED_TABLE
from dovetail.audit.steps import gold_steps, graph
from dovetail.audit.transforms.answers import answers
from dovetail.audit.transforms.coverage import peer_counts
from dovetail.audit.transforms.deliveries import deliveries, latency
from dovetail.audit.transforms.forks import forks
from dovetail.audit.transforms.gaps import gaps
from dovetail.audit.transforms.holdings import holdings
from dovetail.audit.transforms.hops import servers
from dovetail.audit.transforms.messages import unread
from dovetail.audit.transforms.skew import least_delays, skew
from dovetail.audit.transforms.suspect_links import suspect_links
from dovetail.audit.transforms.traffic import traffic
from dovetail.model.address import Address
from dovetail.model.hop import Hop, Reason, Stage
from dovetail.model.times import time_text, to_us
from dovetail.tlog.leaf import NO_DIGEST, encode_entry
from dovetail.tlog.tree import hash_leaf

T0 = dt.datetime(2026, 11, 15, 12, 0, tzinfo=dt.UTC)
M1, M2, M3 = (bytes([number]) * 32 for number in (1, 2, 3))


def at(us: int) -> dt.datetime:
    return T0 + dt.timedelta(microseconds=us)


def frame(spark, table, *rows):
    """Rows of a table with the columns given and nulls for the others."""
    names = table.schema.names
    return spark.createDataFrame([tuple(row.get(name) for name in names) for row in rows], table.schema)


def hop(seq, stage, message=M1, **more):
    row = {"fabric": "swarm", "server": "swarm://s/a", "seq": seq, "at": at(seq), "stage": stage, "message": message}
    return row | {"has_bytes": False, "proven": True} | more


def test_the_native_leaf_hash_is_that_of_the_journal(spark):
    hops = [
        Hop(server="s", seq=0, at_us=0, fabric="pcp", stage=Stage.CREATED, message=Address(M1)),
        Hop(
            server="s",
            seq=(1 << 62) + 5,
            at_us=-1_000_001,
            fabric="pcp",
            stage=Stage.REJECTED,
            message=Address(M2),
            counterpart="pcp://ä/" + "x" * 40_000,
            reason=Reason.REDELIVERY_OVERFLOW,
            raw=b"bytes",
            size=1 << 40,
        ),
        Hop(server="s", seq=7, at_us=1, fabric="pcp", stage=Stage.EXPIRED, message=Address(M3), raw=b"", size=0),
    ]
    digests = [NO_DIGEST, hashlib.sha256(b"bytes").digest(), hashlib.sha256(b"").digest()]
    leaves = [hash_leaf(encode_entry(one, digest)) for one, digest in zip(hops, digests, strict=True)]
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    rows = [
        (
            one.server,
            one.seq,
            epoch + dt.timedelta(microseconds=one.at_us),
            one.stage.value,
            bytes(one.message),
            one.counterpart,
            one.reason and one.reason.value,
            one.raw,
            one.size,
            None if digest == NO_DIGEST else digest,
            leaf[:8],
            "pcp",
            "2026-11-15",
        )
        for one, digest, leaf in zip(hops, digests, leaves, strict=True)
    ]
    found = with_leaves(spark.createDataFrame(rows, schemas.LAKE.schema)).collect()
    assert [bytes(row["leaf_hash"]) for row in found] == leaves
    assert all(row["leaf_valid"] for row in found)


def test_traffic_counts_hops_messages_and_bytes_by_minute(spark):
    hops = frame(
        spark,
        schemas.HOPS,
        hop(0, "created", size=10),
        hop(1, "forwarded"),
        hop(2, "forwarded"),
        hop(60_000_000, "created", M2, size=7),
        hop(60_000_001, "rejected", M3, reason="truncated"),
    )
    messages = frame(spark, schemas.MESSAGES, *({"fabric": "swarm", "message": m, "type": "content"} for m in (M1, M2)))
    minute = at(60_000_000)
    expected = frame(
        spark,
        schemas.TRAFFIC,
        *(
            dict(zip(schemas.TRAFFIC.schema.names, values, strict=True))
            for values in [
                (T0, "swarm", "swarm://s/a", "content", "created", None, 1, 1, 10),
                (T0, "swarm", "swarm://s/a", "content", "forwarded", None, 2, 1, 0),
                (minute, "swarm", "swarm://s/a", "content", "created", None, 1, 1, 7),
                (minute, "swarm", "swarm://s/a", None, "rejected", "truncated", 1, 1, 0),
            ]
        ),
    )
    assertDataFrameEqual(traffic(hops, messages), expected, ignoreNullable=True)


def test_a_server_lacks_what_others_have_unless_it_refused_it(spark):
    a, b, c = (f"swarm://s/{name}" for name in "abc")
    hops = frame(
        spark,
        schemas.HOPS,
        hop(0, "created", M1, server=a, at=at(0)),
        *(hop(1, "accepted", M2, server=server, at=at(10)) for server in (a, b, c)),
        hop(0, "rejected", M1, server=b, reason="from_future", at=at(5)),
    )
    messages = frame(spark, schemas.MESSAGES, *({"fabric": "swarm", "message": m, "key": m[:8]} for m in (M1, M2)))
    links = frame(spark, schemas.LINKS, {"fabric": "swarm", "child": M2, "parent": M1[:8], "relation": "refers"})
    seen = holdings(hops, messages, audits=AUDITS)
    (row,) = gaps(suspect_links(links, seen, servers(hops), audits=AUDITS), seen, as_of=at(100)).collect()
    assert (row["server"], row["scope"], row["holders"], row["since"]) == (c, "server", 1, at(10).replace(tzinfo=None))


def known_servers(hops, reaches=None):
    """The servers of these hops; unless others are given, their journals are known from the first hop to the last."""
    given = F.array(F.struct(F.lit(None).cast("timestamp").alias("since"), F.col("last_at").alias("until")))
    for server, spans in (reaches or {}).items():
        each = [[F.lit(time).cast("timestamp") for time in span] for span in spans]
        parts = F.array(*(F.struct(since.alias("since"), until.alias("until")) for since, until in each))
        given = F.when(F.col("server") == server, parts).otherwise(given)
    return servers(hops).withColumn("reaches", given)


def deliveries_of(spark, hops, fabric, messages=(), links=(), *, as_of, skew_rows=(), reaches=None):
    known, refers = frame(spark, schemas.MESSAGES, *messages), frame(spark, schemas.LINKS, *links)
    audits = audits_of([fabric])
    return deliveries(
        hops,
        known,
        holdings(hops, known, audits=audits),
        answers(hops, known, refers, audits=audits),
        known_servers(hops, reaches),
        frame(spark, schemas.SKEW, *skew_rows),
        moment=Moment(as_of),
        audits=audits,
    )


BROKER, X, Y, Z = "pcp://b/server", "pcp://x/agent", "pcp://y/agent", "pcp://z/agent"
PCP = {"fabric": "pcp", "server": BROKER}


def pcp_message(message=M1, sender=X, recipients=("pcp://*/agent",)):
    kind = {"fabric": "pcp", "type": "t", "message": message, "key": message[:16]}
    return kind | {"sender": sender, "recipients": list(recipients), "expires": at(1_000_000)}


def outcomes_of(table):
    return {row["recipient"]: (row["outcome"], row["failed_at"]) for row in table.collect()}


def test_a_broker_owes_an_outcome_to_everyone_that_a_wildcard_meant(spark):
    """Only the `routed` hops name them; the error names the message, the recipient and the broker."""
    held = [hop(0, "accepted", **PCP, counterpart=X)]
    held += [hop(n, "routed", **PCP, counterpart=who) for n, who in ((1, Y), (2, Z))]
    held += [hop(3, "delivered", **PCP, counterpart=Y)]
    hops = frame(spark, schemas.HOPS, *held)
    outcomes = [
        outcomes_of(deliveries_of(spark, hops, "pcp", [pcp_message()], as_of=at(when)))[Z]
        for when in (999_000, 31_000_000, 31_000_001)
    ]
    assert outcomes == [("in_flight", None), ("in_flight", None), ("unreported", BROKER)]
    later = frame(spark, schemas.HOPS, *held, hop(40_000_000, "accepted", M2, **PCP, counterpart=X))
    table = deliveries_of(spark, later, "pcp", [pcp_message()], as_of=at(40_000_000))
    assert outcomes_of(table) == {Y: ("handed_over", None), Z: ("no_outcome", BROKER)}
    found = find(table.withColumn("overdue", F.lit(False)), "deliveries").collect()
    told = [(row["check"], row["severity"], bytes(row["message"]), row["server"], row["detail"]) for row in found]
    assert told == [("delivery.no_outcome", "error", M1, BROKER, f"for {Z}")]


def test_a_broker_owes_an_outcome_for_what_states_no_lifetime_a_week_later(spark):
    """The message is of version 2, or its bytes are not kept."""
    held = [hop(0, "accepted", **PCP, counterpart=X), hop(1, "routed", **PCP, counterpart=Y)]
    week = dt.timedelta(days=7, seconds=31)
    silent = frame(spark, schemas.HOPS, *held, hop(2, "accepted", M2, **PCP, counterpart=X, at=T0 + week))
    waiting = deliveries_of(spark, silent, "pcp", as_of=T0 + dt.timedelta(days=6))
    late = find(waiting.withColumn("overdue", F.lit(True)), "deliveries").collect()
    assert (outcomes_of(waiting), [row["check"] for row in late]) == ({Y: ("in_flight", None)}, ["delivery.overdue"])
    assert outcomes_of(deliveries_of(spark, silent, "pcp", as_of=T0 + week)) == {Y: ("no_outcome", BROKER)}


S = 1_000_000
GAPS = {
    "none": ([(None, 70)], True),
    "long-before": ([(None, -60), (-30, 70)], True),
    "just-before": ([(None, -60), (-29, 70)], False),
    "at-the-start": ([(10, 70)], False),
    "within": ([(None, 20), (25, 70)], False),
    "at-the-end": ([(None, 30), (50, 70)], False),
    "after": ([(None, 40), (50, 70)], True),
}


@pytest.mark.parametrize("case", GAPS)
def test_nothing_is_called_missing_where_the_journal_that_lacks_it_has_a_gap(spark, case):
    """Neither an outcome that a broker owes, nor a message that a node forwarded to another."""
    spans, is_known = GAPS[case]
    reach = [(None if since is None else at(since * S), at(until * S)) for since, until in spans]
    hops = [hop(0, "accepted", **PCP, counterpart=X), hop(1, "routed", **PCP, counterpart=Y)]
    hops += [hop(70 * S, "accepted", M2, **PCP, counterpart=X)]
    options = {"as_of": at(70 * S), "reaches": {BROKER: reach}}
    table = deliveries_of(spark, frame(spark, schemas.HOPS, *hops), "pcp", [pcp_message()], **options)
    assert outcomes_of(table)[Y][0] == ("no_outcome" if is_known else "unreported")
    nodes = "https://n/won/resource", "https://o/won/resource"
    recipient = f"{nodes[1]}/atom/b"
    sender = {"fabric": "won", "server": nodes[0]}
    sent = [hop(0, "accepted", **sender), hop(1, "forwarded", **sender, counterpart=nodes[1])]
    sent += [hop(70 * S, "accepted", M2, fabric="won", server=nodes[1])]
    message = {"fabric": "won", "message": M1, "key": M1, "type": "ConnectionMessage", "recipients": [recipient]}
    message["sender"] = f"{nodes[0]}/atom/a"
    options["reaches"] = {nodes[1]: reach}
    table = deliveries_of(spark, frame(spark, schemas.HOPS, *sent), "won", [message], **options)
    assert outcomes_of(table)[recipient][0] == ("lost" if is_known else "in_flight")


def test_a_delivery_with_a_second_outcome_is_an_error_unless_the_bytes_were_accepted_again(spark):
    hops = frame(
        spark,
        schemas.HOPS,
        hop(0, "accepted", **PCP, counterpart=X),
        hop(1, "delivered", **PCP, counterpart=Y),
        hop(2, "expired", **PCP, counterpart=Y, reason="lifetime_over"),
        hop(3, "delivered", **PCP, counterpart=Z),
        hop(4, "redelivered", **PCP, counterpart=Z),
        hop(5, "delivered", **PCP, counterpart=X),
        hop(6, "accepted", M2, **PCP, counterpart=X),
        hop(7, "delivered", M2, **PCP, counterpart=Y),
        hop(8, "accepted", M2, **PCP, counterpart=X),
        hop(9, "redelivered", M2, **PCP, counterpart=Y),
    )
    table = deliveries_of(spark, hops, "pcp", [pcp_message(), pcp_message(M2)], as_of=at(20))
    found = find(table.withColumn("overdue", F.lit(False)), "deliveries").collect()
    told = {(row["check"], row["severity"], bytes(row["message"]), row["server"], row["detail"]) for row in found}
    assert told == {
        ("delivery.two_outcomes", "error", M1, BROKER, f"for {whom}, also {stage}")
        for whom, stage in ((Y, "expired"), (Z, "delivered"))
    }


@pytest.mark.parametrize("is_accepted_first", [True, False])
def test_a_refusal_of_the_sender_is_no_outcome_of_what_was_accepted_at_another_time(spark, is_accepted_first):
    """The sender is one of the recipients here."""
    stages = ["accepted", "rejected"][:: 1 if is_accepted_first else -1]
    reasons = {"rejected": "not_associated"}
    taken = [hop(n, stage, **PCP, counterpart=X, reason=reasons.get(stage)) for n, stage in enumerate(stages)]
    hops = frame(spark, schemas.HOPS, *taken, hop(2, "routed", **PCP, counterpart=X))
    table = deliveries_of(spark, hops, "pcp", [pcp_message()], as_of=at(9))
    assert outcomes_of(table) == {X: ("in_flight", None)}


def test_an_answer_of_the_recipient_proves_that_a_message_arrived(spark):
    """Not an answer of another client, nor one that the broker refused."""
    twin = bytes([4]) * 32  # from Z, with the same id
    hops = frame(
        spark,
        schemas.HOPS,
        hop(0, "accepted", **PCP, counterpart=X),
        hop(1, "delivered", **PCP, counterpart=Y),
        hop(2, "delivered", **PCP, counterpart=Z),
        hop(3, "delivered", **PCP, counterpart="pcp:///server"),
        hop(4, "accepted", M2, **PCP, counterpart=Y),
        hop(5, "rejected", M3, **PCP, counterpart=X, reason="sender_mismatch"),
        hop(6, "accepted", twin, **PCP, counterpart=Z),
        hop(7, "delivered", twin, **PCP, counterpart=Y),
    )
    messages = [pcp_message(), pcp_message(M2, Y, [X]), pcp_message(M3, Z, [X])]
    messages.append(pcp_message(twin, Z, [Y]) | {"key": M1[:16]})
    links = [{"fabric": "pcp", "child": m, "parent": M1[:16], "relation": "in_reply_to"} for m in (M2, M3)]
    everything = deliveries_of(spark, hops, "pcp", messages, links, as_of=at(9))
    assert outcomes_of(everything.where(F.col("message") == twin)) == {Y: ("handed_over", None)}, "Y answered X"
    table = everything.where(F.col("message") == M1)
    assert outcomes_of(table) == {
        Y: ("delivered", None),
        Z: ("handed_over", None),
        "pcp:///server": ("delivered", None),
    }


def test_a_won_message_is_handed_over_when_the_other_node_has_answered_for_its_recipient(spark):
    """Before that only the sender has it: a finding after the loss timeout."""
    node, sender, recipient = "https://n/won/resource", "https://n/won/resource/atom/a", "https://o/won/resource/atom/b"
    won = {"fabric": "won", "server": node}
    asked = {"fabric": "won", "message": M1, "key": M1, "type": "ConnectionMessage", "recipients": [recipient]}
    answer = {"fabric": "won", "message": M2, "key": M2, "sender": recipient, "recipients": [sender]}
    messages = [asked | {"sender": sender}, answer | {"type": "SuccessResponse"}]
    links = [{"fabric": "won", "child": M2, "parent": M1, "relation": "responding_to"}]
    before = [hop(0, "accepted", **won), hop(1, "echoed", **won)]
    after = [*before, hop(2, "accepted", M2, **won)]
    told = []
    for seen in (before, after):
        table = deliveries_of(spark, frame(spark, schemas.HOPS, *seen), "won", messages, links, as_of=at(9))
        late = table.withColumn("overdue", F.lit(True))
        told.append((outcomes_of(table), [row["check"] for row in find(late, "deliveries").collect()]))
    kept = {recipient: ("handed_over", None), sender: ("handed_over", None)}
    assert told == [({recipient: ("echoed", None)}, ["delivery.echoed"]), (kept, [])]
    week = dt.timedelta(days=7, seconds=31)
    silent = [*before, hop(3, "accepted", M3, **won, at=T0 + week)]
    table = deliveries_of(spark, frame(spark, schemas.HOPS, *silent), "won", messages, as_of=T0 + week)
    assert outcomes_of(table)[recipient] == ("no_outcome", node)


def test_rows_of_a_swarm_name_the_peer_that_made_the_message(spark):
    """And latencies between clocks that were never compared are unknown."""
    a, b, c = (f"swarm://s/{name}" for name in "abc")
    hops = frame(
        spark,
        schemas.HOPS,
        hop(1, "created", server=a),
        hop(2, "accepted", server=b, counterpart=a),
        hop(3, "rejected", server=c, counterpart=a, reason="from_future"),
        hop(4, "rejected", M2, server=c, counterpart=a, reason="from_future"),
    )
    messages = [{"fabric": "swarm", "message": m, "key": m[:8], "expires": at(99)} for m in (M1, M2)]
    rows = {
        (bytes(row["message"]), row["recipient"]): row
        for row in deliveries_of(spark, hops, "swarm", messages, as_of=at(9)).collect()
    }
    assert {key[1]: row["sender"] for key, row in rows.items() if key[0] == M1} == {a: a, b: a, c: a}
    assert rows[M2, c]["sender"] is None
    assert all(row["accepted"] and row["finished"] for row in rows.values())
    assert [(rows[M1, peer]["latency_us"], rows[M1, peer]["skew_known"]) for peer in (a, b)] == [
        (None, True),
        (None, False),
    ]
    assert rows[M1, b]["clock_offset_us"] is None


def test_a_peer_that_was_there_owes_every_message_of_its_swarm_by_its_expiry(spark):
    """The error names message and peer; one that was away is excused, one whose journal ends early unreported."""
    maker, lacking, late, stopped, restarted, short, stale = (f"swarm://s/{name}" for name in "abcdefg")
    ends, after, timeout = 600_000_000, 640_000_000, 30_000_000

    def restart(server, since, at_us):
        said = since if isinstance(since, str) else time_text(to_us(T0) + since)
        return hop(1, "noted", bytes(32), server=server, at=at(at_us), reason="restarted", counterpart=said)

    hops = [hop(0, "created", server=maker, at=at(0)), hop(0, "rejected", server=stale, at=at(9), reason="from_future")]
    hops += [hop(0, "created", M2, server=late, at=at(ends - timeout))]
    hops += [hop(0, "created", M2, server=peer, at=at(-1)) for peer in (lacking, stopped, restarted, short)]
    hops += [restart(stopped, timeout, ends - timeout)]
    hops += [restart(restarted, timeout + 1, ends - timeout), restart(restarted, 0, ends - timeout - 1)]
    hops += [restart(restarted, since, ends) for since in ("never", ends)]
    everyone = (maker, lacking, late, stopped, restarted, stale)
    hops += [hop(2, "purged", M2, server=peer, at=at(after)) for peer in everyone]
    hops += [hop(2, "purged", M2, server=short, at=at(ends + timeout))]
    messages = [{"fabric": "swarm", "message": M1, "key": M1[:8], "expires": at(ends)}]
    found = {}
    for when in (ends + timeout, after):
        table = deliveries_of(spark, frame(spark, schemas.HOPS, *hops), "swarm", messages, as_of=at(when))
        found[when] = outcomes_of(table.where(F.col("message") == M1))
    assert found[after] == {
        maker: ("delivered", None),
        lacking: ("no_outcome", lacking),
        late: ("expired", late),
        stopped: ("expired", stopped),
        restarted: ("no_outcome", restarted),
        short: ("unreported", short),
        stale: ("rejected", stale),
    }
    assert {found[ends + timeout][peer] for peer in (lacking, late, stopped, short)} == {("in_flight", None)}
    errors = find(table.withColumn("overdue", F.lit(False)), "deliveries").where("severity = 'error'").collect()
    named = {(bytes(row["message"]), row["server"], row["detail"]) for row in errors}
    assert named == {(M1, peer, f"for {peer}") for peer in (lacking, restarted)}


def test_a_peer_that_was_stopped_after_a_brief_message_expired_still_owes_it(spark):
    """The message lives shorter than the loss timeout: its peer may be stopped within that time and too late."""
    maker, before, after = (f"swarm://s/{name}" for name in "abc")
    ends, back, done = 10_000_000, 20_000_000, 60_000_000
    hops = [hop(0, "created", server=maker, at=at(0))]
    for peer, since in ((before, ends - 1), (after, ends)):
        said = time_text(to_us(T0) + since)
        hops.append(hop(0, "created", M2, server=peer, at=at(-60_000_000)))
        hops.append(hop(1, "noted", bytes(32), server=peer, at=at(back), reason="restarted", counterpart=said))
        hops.append(hop(2, "purged", M2, server=peer, at=at(done)))
    messages = [{"fabric": "swarm", "message": M1, "key": M1[:8], "expires": at(ends)}]
    table = deliveries_of(spark, frame(spark, schemas.HOPS, *hops), "swarm", messages, as_of=at(done))
    found = outcomes_of(table.where(F.col("message") == M1))
    assert (found[before], found[after]) == (("expired", before), ("no_outcome", after))


def test_skew_says_when_it_is_unknown(spark):
    a, b = "swarm://s/a", "swarm://s/b"
    hops = frame(
        spark,
        schemas.HOPS,
        hop(0, "forwarded", M1, server=b, counterpart=a),
        hop(1, "accepted", M1, server=a, counterpart=b),
    )
    (row,) = skew(least_delays(hops)).collect()
    assert tuple(row) == (a, b, None, None, 0, 1)


def test_a_latency_before_its_beginning_is_marked(spark):
    """The clock was set back by 5 s between accepting the first message and handing it over."""
    broker = "pcp://b/server"
    hops = frame(
        spark,
        schemas.HOPS,
        hop(0, "accepted", M1, fabric="pcp", server=broker, counterpart="pcp://x/agent", at=at(7_000_000)),
        hop(1, "delivered", M1, fabric="pcp", server=broker, counterpart="pcp://y/agent", at=at(2_000_000)),
        hop(2, "accepted", M2, fabric="pcp", server=broker, counterpart="pcp://x/agent", at=at(3_000_000)),
        hop(3, "delivered", M2, fabric="pcp", server=broker, counterpart="pcp://y/agent", at=at(3_000_400)),
    )
    table = deliveries_of(spark, hops, "pcp", as_of=at(9_000_000))
    told = {bytes(row["message"]): (row["latency_us"], row["skew_known"]) for row in table.collect()}
    assert told == {M1: (None, False), M2: (400, True)}
    assert [(row["up_to_ms"], row["deliveries"]) for row in latency(table).collect()] == [(1, 1)]


def test_skew_is_half_the_difference_of_the_fastest_legs(spark):
    a, b = "swarm://s/a", "swarm://s/b"
    hops = frame(
        spark,
        schemas.HOPS,
        hop(0, "forwarded", M1, server=a, counterpart=b, at=at(0)),
        hop(0, "accepted", M1, server=b, counterpart=a, at=at(1300)),
        hop(1, "forwarded", M2, server=a, counterpart=b, at=at(5000)),
        hop(1, "accepted", M2, server=b, counterpart=a, at=at(9000)),
        hop(2, "served", M3, server=b, counterpart=a, at=at(20_000)),
        hop(2, "accepted", M3, server=a, counterpart=b, at=at(19_100)),
    )
    (row,) = skew(least_delays(hops)).collect()
    # 1300 us there, -900 us back: clocks differ by 1100 us, the trip takes 200 us
    assert (row["server"], row["other"], row["offset_us"], row["error_us"]) == (a, b, 1100, 200)
    assert (row["there"], row["back"]) == (2, 1)


def test_latency_is_counted_in_powers_of_two(spark):
    rows = [{"fabric": "pcp", "type": "t", "latency_us": us} for us in (0, 1000, 1001, 900_000, None)]
    found = {(row["up_to_ms"], row["deliveries"]) for row in latency(frame(spark, schemas.DELIVERIES, *rows)).collect()}
    assert found == {(1, 2), (2, 1), (1024, 1)}


def test_a_won_message_that_its_node_gave_up_is_undeliverable(spark):
    node, recipient = "https://n/won/resource", "https://o/won/resource/atom/b"
    seen_by = {"fabric": "won", "server": node}
    gave_up = {"counterpart": recipient, "reason": "unreachable_node"}
    hops = frame(
        spark,
        schemas.HOPS,
        hop(0, "accepted", **seen_by),
        hop(1, "echoed", **seen_by),
        hop(2, "forwarded", **seen_by, counterpart="https://o/won/resource"),
        hop(3, "undeliverable", **seen_by, **gave_up),
    )
    known = {"fabric": "won", "message": M1, "key": M1, "type": "ConnectionMessage", "recipients": [recipient]}
    (row,) = deliveries_of(spark, hops, "won", [known], as_of=at(9_000_000)).collect()
    assert (row["outcome"], row["failed_stage"], row["failed_at"]) == ("undeliverable", "undeliverable", node)
    assert (row["reason"], row["recipient"]) == ("unreachable_node", recipient)


def test_a_response_and_the_notice_that_a_message_was_given_up_do_not_contradict_each_other(spark):
    node = "https://n/won/resource"
    said = {"fabric": "won", "signer": node, "sender": "https://n/won/resource/atom/a", "created": T0}
    own, other = "https://n/won/resource/atom/a#chat", "https://o/won/resource/atom/b#chat"
    first = {"type": "SuccessResponse", "message": M1, "key": M1, "sender_socket": own, "recipient_socket": own}
    notice = {"type": "FailureResponse", "message": M2, "key": M2, "sender_socket": other, "recipient_socket": own}
    hops = [hop(0, "created", M1, fabric="won", server=node), hop(1, "created", M2, fabric="won", server=node)]
    links = [
        {"fabric": "won", "child": child, "parent": M3, "relation": "responding_to", "number": 0} for child in (M1, M2)
    ]
    assert forks_of(spark, hops, [said | first, said | notice], links, ["won"]).count() == 0
    twice = [said | first, said | first | {"message": M2, "key": M2}]
    assert forks_of(spark, hops, twice, links, ["won"]).count() == 1


def forks_of(spark, hops, messages, links, fabrics=("pcp", "won", "swarm")):
    rows = frame(spark, schemas.HOPS, *hops)
    known, refers = frame(spark, schemas.MESSAGES, *messages), frame(spark, schemas.LINKS, *links)
    audits = audits_of(fabrics)
    seen = holdings(rows, known, audits=audits)
    return forks(suspect_links(refers, seen, servers(rows), audits=audits), seen, known, refers, audits=audits)


def test_forks_name_the_contradiction_and_its_evidence(spark):
    key = M1[:8]
    node, atom = "https://n/won/resource", "https://n/won/resource/atom/a"
    twin = M1[:8] + bytes(24)
    swarm = {"fabric": "swarm", "created": T0}
    log = {"fabric": "won", "type": "SuccessResponse", "signer": node, "sender": atom, "created": T0}
    messages = [
        {**swarm, "message": M1, "key": key},
        {**swarm, "message": twin, "key": key},
        {**swarm, "message": M2, "key": M2[:8]},
        {**log, "message": M1, "key": M1},
        {**log, "message": M2, "key": M2},
        {"fabric": "won", "type": "CreateMessage", "sender": atom, "message": M3, "key": M3, "created": T0},
        {"fabric": "won", "type": "CreateMessage", "sender": atom, "message": twin, "key": twin, "created": T0},
    ]
    links = [
        {"fabric": "swarm", "child": M2, "parent": M2[:8], "relation": "refers", "child_created": T0},
        {"fabric": "won", "child": M1, "parent": M3, "relation": "previous"},
        {"fabric": "won", "child": M2, "parent": M3, "relation": "previous"},
    ]
    hops = [hop(i, "accepted", m["message"], fabric=m["fabric"]) for i, m in enumerate(messages)]
    found = forks_of(spark, hops, messages, links)
    kinds = {(row["kind"], tuple(bytes(item) for item in row["evidence"])) for row in found.collect()}
    assert kinds == {
        ("collision", tuple(sorted([M1, twin]))),
        ("self_reference", (M2,)),
        ("forked_log", (M1, M2)),
        ("two_creates", tuple(sorted([M3, twin]))),
    }


def test_pcp_messages_that_answer_each_other_are_a_cycle(spark):
    ids = {M1: b"1" * 16, M2: b"2" * 16, M3: b"3" * 16}
    answers = {M1: M2, M2: M1, M3: M3}
    messages = [{"fabric": "pcp", "message": m, "key": key, "sender": "pcp://a/b"} for m, key in ids.items()]
    # an ordinary answer, and one that no server accepted
    messages += [{"fabric": "pcp", "message": bytes([n]) * 32, "key": bytes([n]) * 16} for n in (7, 8)]
    links = [
        {"fabric": "pcp", "child": child, "parent": ids[parent], "relation": "in_reply_to"}
        for child, parent in answers.items()
    ]
    links += [
        {"fabric": "pcp", "child": bytes([7]) * 32, "parent": ids[M1], "relation": "in_reply_to"},
        {"fabric": "pcp", "child": bytes([8]) * 32, "parent": bytes([8]) * 16, "relation": "in_reply_to"},
    ]
    hops = [hop(i, "accepted", m, fabric="pcp", at=at(i)) for i, m in enumerate((*ids, bytes([7]) * 32))]
    hops.append(hop(9, "rejected", bytes([8]) * 32, fabric="pcp"))
    found = forks_of(spark, hops, messages, links, fabrics=["pcp"])
    rows = found.select("kind", "evidence", F.unix_micros("first_seen").alias("us")).collect()
    start_us = int(T0.timestamp()) * 1_000_000
    assert {(row["kind"], tuple(bytes(one) for one in row["evidence"]), row["us"] - start_us) for row in rows} == {
        ("cycle", (M1, M2), 1),
        ("self_reference", (M3,), 2),
    }


def test_a_rejected_message_is_no_evidence(spark):
    messages = [{"fabric": "pcp", "message": m, "key": b"0" * 16, "sender": "pcp://a/b"} for m in (M1, M2)]
    hops = [hop(0, "accepted", M1, fabric="pcp"), hop(1, "rejected", M2, fabric="pcp")]
    found = forks_of(spark, hops, messages, [], fabrics=["pcp"])
    assert found.count() == 0


def test_a_check_finds_its_rows_and_no_others(spark):
    rows = frame(
        spark,
        schemas.DELIVERIES,
        {"fabric": "won", "message": M1, "outcome": "lost", "recipient": "x", "failed_at": "n"},
        {"fabric": "won", "message": M2, "outcome": "delivered", "recipient": "x"},
        {"fabric": "pcp", "message": M3, "outcome": None},
        {"fabric": "pcp", "message": M3, "outcome": "in_flight", "recipient": "y"},
        {"fabric": "pcp", "message": M3, "outcome": "in_flight", "recipient": "z", "expires": T0},
    )
    found = [
        (row["check"], row["severity"], bytes(row["message"]), row["server"], row["detail"])
        for row in find(rows.withColumn("overdue", F.lit(True)), "deliveries").collect()
    ]
    assert found == [
        ("delivery.lost", "error", M1, "n", "for x"),
        ("delivery.overdue", "warning", M3, None, "for y"),
    ]


def test_every_check_is_about_a_table_and_named_once():
    checks = every_check()
    assert sorted(checks) == sorted({check.id for check in checks.values()})
    assert {check.table for check in checks.values()} <= set(schemas.BY_NAME)
    assert all(check.sentence.endswith(".") for check in checks.values())


def test_the_graph_names_every_table():
    assert set(graph()) == set(schemas.BY_NAME)


@pytest.fixture(scope="module")
def silver(spark, tmp_path_factory):
    """Silver tables on disk: a plan over rows in memory would be optimised away."""
    root = tmp_path_factory.mktemp("plans")
    rows = {
        "hops": frame(spark, schemas.HOPS, hop(0, "created")),
        "messages": frame(spark, schemas.MESSAGES, {"fabric": "swarm", "message": M1, "key": M1[:8]}),
        "links": frame(spark, schemas.LINKS, {"fabric": "swarm", "child": M1, "parent": M2[:8], "relation": "refers"}),
    }
    tables = {}
    rows["holdings"] = holdings(rows["hops"], rows["messages"], audits=AUDITS)
    rows["servers"] = known_servers(rows["hops"])
    rows["answers"] = answers(rows["hops"], rows["messages"], rows["links"], audits=AUDITS)
    rows["one_way_delays"] = least_delays(rows["hops"])
    rows["peer_counts"] = peer_counts(rows["holdings"], audits=AUDITS)
    rows["suspect_links"] = suspect_links(rows["links"], rows["holdings"], rows["servers"], audits=AUDITS)
    for name, df in rows.items():
        df.write.parquet(str(root / name))
        tables[name] = spark.read.schema(df.schema).parquet(str(root / name))
    return tables


@pytest.mark.parametrize("step", gold_steps(), ids=lambda step: step.name)
def test_gold_is_native_and_joins_by_key(silver, spark, step):
    tables = {**silver, "skew": frame(spark, schemas.SKEW), "deliveries": frame(spark, schemas.DELIVERIES)}
    inputs = [tables[name] for name in step.inputs]
    made = step.transform(*inputs, as_of=T0) if step.is_dated else step.transform(*inputs)
    assert [field.name for field in made.schema] == step.table.schema.names
    assert made.schema.simpleString() == step.table.schema.simpleString()
    plan = made._jdf.queryExecution().executedPlan().toString()
    for node in ("Python", "MapInArrow", "CartesianProduct", "NestedLoop"):
        assert node not in plan


def test_leaves_are_hashed_natively(silver, spark):
    rows = spark.createDataFrame([], schemas.LAKE.schema).withColumn("file", F.lit("f"))
    assert "Python" not in with_leaves(rows)._jdf.queryExecution().executedPlan().toString()


def test_retained_fields_speak_only_of_messages_that_are_there_without_bytes(spark):
    def row(message: bytes, raw: bytes | None = None, **more):
        return {"fabric": "pcp", "digest": message, "message": message, "size": 9, "raw": raw} | more

    hops = [row(M1), row(M2, b"raw"), row(M3, fabric="won")]
    stranger = bytes([4]) * 32
    fields = [row(message, address_valid=True) for message in (M1, M2, stranger)]
    fields.insert(0, row(M1, address_valid=True) | {"message": stranger})  # it must not displace the right one
    fields += [row(M3, fabric="won", address_valid=True), row(M3, address_valid=True)]
    recorded, nothing = (frame(spark, DECODED_TABLE, *rows) for rows in (fields, []))
    rows = frame(spark, schemas.LAKE, *hops)
    assert [one.message for one in unread(recorded, rows, nothing, nothing, audits=AUDITS).collect()] == [M1]
    links = [(b"parent", "refers", None)]
    twice = frame(spark, DECODED_TABLE, *[row(M1, address_valid=True, links=links)] * 2)
    assert [one.links for one in unread(twice, rows, nothing, nothing, audits=AUDITS).collect()] == [links]
    lie = twice.unionByName(frame(spark, DECODED_TABLE, row(M1, address_valid=True, sender="mallory")))
    assert not unread(lie, rows, nothing, nothing, audits=AUDITS).count()
    others = frame(spark, schemas.LAKE, row(M1, size=8))
    assert not unread(recorded, others, nothing, nothing, audits=AUDITS).count()
