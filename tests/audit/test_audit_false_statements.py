"""What a server states in its own signed journal about messages of others changes none of their deliveries.

Without `--trust` anybody who can write to the lake can make a key for a new server, and sign what they like.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from audit.audit_worlds import (
    BROKER,
    NODE_A,
    NODE_B,
    SECOND,
    SETTINGS,
    T0_US,
    A,
    B,
    append_and_seal,
    pcp_frame,
    quiet_pcp,
    see,
    won_world,
    write_lake,
)
from dovetail.audit.run import Audit
from dovetail.audit.tables import open_tables
from dovetail.model.hop import Reason, Stage
from dovetail.won.message import decode_message

pytestmark = pytest.mark.timeout(600)

LIAR, LYING_NODE = "pcp://liar.example/server", "https://liar.example/won/resource"
HOUR = 3600 * SECOND


def deliveries_of(spark, lake: Path, out: Path) -> Counter:
    Audit(spark=spark, lake=lake, tables=out, settings=SETTINGS).run()
    return Counter(repr(sorted(row.items())) for row in open_tables(out).read("deliveries").to_pylist())


def test_a_broker_speaks_for_itself_alone(spark, tmp_path):
    lost, handed, expired = (pcp_frame(number, [B], expires_us=T0_US + HOUR) for number in range(1, 4))
    own = [
        see(T0_US, Stage.ACCEPTED, lost, A),
        see(T0_US + 1, Stage.ACCEPTED, handed, A),
        see(T0_US + 2, Stage.DELIVERED, handed, B),
        see(T0_US + 3, Stage.ACCEPTED, expired, A),
        see(T0_US + HOUR, Stage.EXPIRED, expired, B, reason=Reason.LIFETIME_OVER),
        *quiet_pcp(2, T0_US + 3 * HOUR, 900),
    ]
    lake = write_lake(tmp_path, {BROKER: own})
    expected = deliveries_of(spark, lake, tmp_path / "alone")
    assert "no_outcome" in repr(expected)
    lies = [
        *(see(T0_US - 9, Stage.ACCEPTED, raw, A) for raw in (lost, handed, expired)),
        see(T0_US - 8, Stage.DELIVERED, lost, B),
        see(T0_US - 7, Stage.DELIVERED, expired, B),
        see(T0_US - 6, Stage.REJECTED, handed, B, reason=Reason.UNAUTHORIZED),
        see(T0_US - 5, Stage.ACCEPTED, pcp_frame(9, [A], sender=B, reply_to=2), B),
        see(T0_US - 4, Stage.ROUTED, handed, "pcp://nobody/agent"),
    ]
    append_and_seal(tmp_path, lake, LIAR, lies)
    assert not expected - deliveries_of(spark, lake, tmp_path / "beside")


def test_a_node_that_is_no_party_cannot_say_that_a_message_arrived_or_is_lost(spark, tmp_path):
    world = won_world(random.Random(5), 12)
    lake = write_lake(tmp_path, world)
    expected = deliveries_of(spark, lake, tmp_path / "alone")
    assert "'echoed'" in repr(expected)
    lies = []
    for seen in [each for node in (NODE_A, NODE_B) for each in world[node] if each.raw is not None]:
        recipient = decode_message(seen.raw).recipient
        if recipient is not None:
            lies += [
                see(seen.at_us, Stage.DELIVERED, seen.raw, recipient, address=seen.message),
                see(seen.at_us, Stage.FORWARDED, seen.raw, NODE_A, address=seen.message),
            ]
    append_and_seal(tmp_path, lake, LYING_NODE, sorted(lies, key=lambda one: one.at_us))
    assert deliveries_of(spark, lake, tmp_path / "beside") == expected
