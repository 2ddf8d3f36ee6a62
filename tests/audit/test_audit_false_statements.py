"""What a server states in its own signed journal about messages of others changes none of their deliveries, and what
nobody has signed changes nothing at all if only what is proven counts.

Without `--trust` anybody who can write to the lake can make a key for a new server, and sign what they like.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from audit.audit_worlds import (
    ALICE,
    ALICE_CHAT,
    BROKER,
    KEYS,
    NODE_A,
    NODE_B,
    PEERS,
    SECOND,
    SETTINGS,
    T0_US,
    A,
    B,
    C,
    append_and_seal,
    pcp_frame,
    quiet_pcp,
    see,
    signer_of,
    swarm_message,
    whole_world,
    won_world,
    write_lake,
)
from audit.test_audit_increments import ANSWERS, rows_of
from audit.test_audit_tampering import largest_file
from dovetail.audit.run import Audit
from dovetail.audit.tables import open_tables
from dovetail.model.address import NO_MESSAGE, address_of
from dovetail.model.hop import Reason, Stage
from dovetail.won import compose as c
from dovetail.won.message import decode_message
from dovetail.won.vocabulary import Direction, MessageType
from lake.hostile_lakes import write_forged

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


def of_bytes(raw: bytes) -> dict:
    """The columns of a row that these bytes determine."""
    return {"raw": raw, "size": len(raw), "message": bytes(address_of(raw)), "digest": bytes(address_of(raw))}


def invent(server: str, rows: list[dict]) -> None:
    """Let rows say what their server never recorded, at the expense of others."""
    if server == BROKER:  # a second message of the same sender with the same id
        rows[2] |= {"stage": "accepted", "counterpart": A, **of_bytes(pcp_frame(1, [B, C]))}
    elif server == NODE_A:  # the key of somebody else for alice
        create = c.compose(
            type=MessageType.CREATE,
            direction=Direction.OWNER,
            signer=ALICE,
            key=KEYS["mallory"],
            timestamp_ms=T0_US // 1000,
            envelope=[(c.v.P_ATOM, f"<{ALICE}>")],
            content=c.atom_content(ALICE, [ALICE_CHAT], KEYS["mallory"].public),
        )
        rows[2] |= {"stage": "accepted", "counterpart": ALICE, **of_bytes(create.raw), "message": bytes(create.address)}
    else:  # a message that no other peer ever had, and all of them owe; and other times
        rows[2] |= {
            "stage": "created",
            "counterpart": None,
            "reason": None,
            **of_bytes(swarm_message(random.Random(1), T0_US, [], ttl=1)),
        }
        for row in rows:
            row["at"] -= dt.timedelta(milliseconds=700)


def test_rows_that_nobody_signed_say_no_more_than_none(spark, tmp_path):
    """Whoever can write to the lake can put other rows in a file, each with its own leaf, without any key."""
    world = whole_world(3, 12)
    for seen in world.values():  # journals that go on, so that what is missing in them counts
        seen.append(
            see(T0_US + HOUR, Stage.NOTED, b"", "x", address=NO_MESSAGE, reason=Reason.CLOCK_STEPPED, keep=False)
        )
    lake = write_lake(tmp_path, world)
    trusted = [signer_of(server).verifier for server in world]
    settings = dataclasses.replace(SETTINGS, trusted=trusted, proven_only=True)
    answers = {}
    for name in ("forged", "unreadable"):
        for server in (BROKER, NODE_A, PEERS[0]):
            path = lake / largest_file(lake, server).path
            if name == "forged":
                sealed = pq.read_table(path, partitioning=None)
                cells = sealed.to_pylist()
                invent(server, cells)
                write_forged(path, pa.Table.from_pylist(cells, sealed.schema))
            else:
                path.write_bytes(b"no Parquet")
        Audit(spark=spark, lake=lake, tables=tmp_path / name, settings=settings).run()
        tables = open_tables(tmp_path / name)
        found = {table: rows_of(tmp_path / name, table) for table in ANSWERS if table != "integrity"}
        answers[name] = found | {"findings": [row for row in found["findings"] if "integrity." not in row]}
        verdicts = {row["server"]: row["verdict"] for row in tables.scan("integrity")}
        assert verdicts == {server: "broken" if server in (BROKER, NODE_A, PEERS[0]) else "proven" for server in world}
    for table, rows in answers["forged"].items():
        assert rows == answers["unreadable"][table], table
