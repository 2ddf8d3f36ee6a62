"""Who holds or refused each message, beside what its bytes say: gathered once, and used by most answers.

Hops and messages meet in one aggregation by address instead of one join per answer. A row per message that a server
took in, made or refused, or whose bytes are known.

Swarms have most of the messages. As long as their peers are few, each peer has a column of its own while gathering: an
aggregation over numbers of fixed width is several times as fast as one that collects lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by
from pyspark.sql.types import ArrayType, StructField, StructType

from dovetail.audit.schemas import BINARY, BOOLEAN, STRING, TIMESTAMP, Table
from dovetail.model.hop import Reason, Stage
from dovetail.swarm.content import HASH_BYTES

HOLDER = StructType([StructField("since", TIMESTAMP), StructField("server", STRING)])
REFUSAL = StructType([StructField("at", TIMESTAMP), StructField("reason", STRING), StructField("server", STRING)])

SIGHTINGS = Table(
    "_state/sightings",
    "silver",
    "Who holds or refused each message, and when.",
    ("fabric", "message"),
    StructType(
        [
            StructField("fabric", STRING),
            StructField("message", BINARY),
            StructField("key", BINARY),
            StructField("is_decoded", BOOLEAN),
            StructField("sender", STRING),
            StructField("signer", STRING),
            StructField("created", TIMESTAMP),
            StructField("expires", TIMESTAMP),
            StructField("work_valid", BOOLEAN),
            StructField("first_seen", TIMESTAMP),
            StructField("holders", ArrayType(HOLDER, False)),
            StructField("refusals", ArrayType(REFUSAL, False)),
        ]
    ),
)
"""`holders` are in the order of time and name, each server once; `first_seen` is null where nobody holds it."""

_TAKEN = (Stage.ACCEPTED.value, Stage.CREATED.value)
_BODY = ("key", "sender", "signer", "created", "expires", "work_valid")
_REASONS = sorted(reason.value for reason in Reason)
_NO_REASON, _REASON_BITS = 0, 10

MAX_COLUMNS = 16
"""Up to so many peers have columns of their own."""


def sightings(hops: DataFrame, messages: DataFrame, *, peers: Sequence[str] = ()) -> DataFrame:
    """One row per message; `peers` are all servers of swarms, if they are known and few."""
    if not 0 < len(peers) <= MAX_COLUMNS:
        return collect_sightings(hops, messages)
    is_swarm = F.col("fabric") == "swarm"
    others = collect_sightings(hops.where(~is_swarm), messages.where(~is_swarm))
    return swarm_sightings(hops.where(is_swarm), messages.where(is_swarm), peers).unionByName(others)


def swarm_sightings(hops: DataFrame, messages: DataFrame, peers: Sequence[str]) -> DataFrame:
    """Messages of swarms with these few peers. Times are gathered as numbers, a refusal's reason in its low bits."""
    is_taken = F.col("stage").isin(*_TAKEN)
    is_refused = F.col("stage") == Stage.REJECTED.value
    at_us, nothing = F.unix_micros("at"), F.lit(None).cast("bigint")
    body = {"created_us": F.unix_micros("created"), "expires_us": F.unix_micros("expires")}
    body["worked"] = F.col("work_valid").cast("bigint")
    columns = {f"held{i}": F.when(is_taken & (F.col("server") == peer), at_us) for i, peer in enumerate(peers)}
    columns |= {
        f"refused{i}": F.when(is_refused & (F.col("server") == peer), F.shiftleft(at_us, _REASON_BITS) + _reason_rank())
        for i, peer in enumerate(peers)
    }
    events = hops.where(is_taken | is_refused).select(
        "message",
        *(column.alias(name) for name, column in columns.items()),
        *(nothing.alias(name) for name in body),
        F.lit(0).cast("bigint").alias("bodies"),
    )
    bodies = messages.select(
        "message",
        *(nothing.alias(name) for name in columns),
        *(column.alias(name) for name, column in body.items()),
        F.lit(1).cast("bigint").alias("bodies"),
    )
    gathered = (
        events.unionByName(bodies)
        .groupBy("message")
        .agg(*(F.min(name).alias(name) for name in (*columns, *body)), F.max("bodies").alias("bodies"))
    )
    listed = gathered.select(
        "*",
        _listed(peers, "held", lambda us: F.struct(F.timestamp_micros(us).alias("since"))).alias("holders"),
        _listed(peers, "refused", _refusal).alias("refusals"),
    )
    return listed.select(
        F.lit("swarm").alias("fabric"),
        "message",
        F.substring("message", 1, HASH_BYTES).alias("key"),
        (F.col("bodies") > 0).alias("is_decoded"),
        F.lit(None).cast("string").alias("sender"),
        F.lit(None).cast("string").alias("signer"),
        F.timestamp_micros("created_us").alias("created"),
        F.timestamp_micros("expires_us").alias("expires"),
        F.col("worked").cast("boolean").alias("work_valid"),
        F.get("holders", F.lit(0))["since"].alias("first_seen"),
        "holders",
        "refusals",
    )


def _listed(peers: Sequence[str], name: str, entry: Callable[[Column], Column]) -> Column:
    """The peers' columns as one list, in order."""
    each = [
        F.when(F.col(f"{name}{i}").isNotNull(), entry(F.col(f"{name}{i}")).withField("server", F.lit(peer)))
        for i, peer in enumerate(peers)
    ]
    if len(each) == 1:
        return F.when(F.col(f"{name}0").isNotNull(), F.array(each[0])).otherwise(F.filter(F.array(each[0]), _is_there))
    return F.sort_array(F.filter(F.array(*each), _is_there))


def _is_there(one: Column) -> Column:
    return one.isNotNull()


def _refusal(packed: Column) -> Column:
    at = F.timestamp_micros(F.shiftright(packed, _REASON_BITS))
    reasons = F.array(F.lit(None).cast("string"), *(F.lit(reason) for reason in _REASONS))
    return F.struct(
        at.alias("at"), F.get(reasons, packed.bitwiseAND((1 << _REASON_BITS) - 1).cast("int")).alias("reason")
    )


def _reason_rank() -> Column:
    """Where a reason stands among all, so that the least number is the least pair of time and reason."""
    names = F.array(*(F.lit(reason) for reason in _REASONS))
    return F.when(F.col("reason").isNull(), _NO_REASON).otherwise(F.array_position(names, F.col("reason")))


def collect_sightings(hops: DataFrame, messages: DataFrame) -> DataFrame:
    """Messages of any fabric, with any number of servers."""
    is_taken = F.col("stage").isin(*_TAKEN)
    is_refused = F.col("stage") == Stage.REJECTED.value
    events = hops.where(is_taken | is_refused).select(
        "fabric",
        "message",
        F.when(is_taken, F.struct(F.col("at").alias("since"), "server")).alias("holder"),
        F.when(is_refused, F.struct("at", "reason", "server")).alias("refusal"),
        F.lit(None).cast(messages.select(F.struct(*_BODY)).schema[0].dataType).alias("body"),
    )
    bodies = messages.select(
        "fabric",
        "message",
        F.lit(None).cast(HOLDER).alias("holder"),
        F.lit(None).cast(REFUSAL).alias("refusal"),
        F.struct(*_BODY).alias("body"),
    )
    gathered = (
        events.unionByName(bodies)
        .groupBy("fabric", "message")
        .agg(
            F.collect_list("holder").alias("holders"),
            F.collect_list("refusal").alias("refusals"),
            F.any_value("body", ignoreNulls=F.lit(True)).alias("body"),
        )
        .select("fabric", "message", "body", _each_server("holders"), _each_server("refusals"))
    )
    return gathered.select(
        "fabric",
        "message",
        F.coalesce("body.key", F.when(F.col("fabric") != "pcp", key_of_address())).alias("key"),
        F.col("body").isNotNull().alias("is_decoded"),
        *(F.col(f"body.{name}").alias(name) for name in _BODY if name != "key" and name != "work_valid"),
        "body.work_valid",
        F.get("holders", F.lit(0))["since"].alias("first_seen"),
        "holders",
        "refusals",
    ).select(*SIGHTINGS.schema.names)


def key_of_address() -> Column:
    """How links name a message, from its address alone: swarm by 8 bytes, won by all of it; pcp names ids instead."""
    return F.when(F.col("fabric") == "swarm", F.substring("message", 1, HASH_BYTES)).otherwise(F.col("message"))


def swarm_of(server: Column) -> Column:
    """The swarm in a peer's URI, "" for any other."""
    is_peer = server.startswith("swarm://")
    return F.when(is_peer, F.substring_index(F.substring_index(server, "/", 3), "/", -1)).otherwise(F.lit(""))


def swarm_peers(servers: DataFrame) -> DataFrame:
    """The peers of each swarm, sorted by name, from the servers of the lake."""
    peers = servers.where("fabric = 'swarm'").withColumn("swarm", swarm_of(F.col("server")))
    return peers.groupBy("swarm").agg(F.sort_array(F.collect_set("server")).alias("peers"))


def _each_server(name: str) -> Column:
    """The earliest of each server, in order; hardly ever is there more than one."""
    ordered = F.sort_array(name)
    servers = F.transform(ordered, lambda one: one["server"])
    earliest = F.filter(ordered, lambda one, index: F.array_position(servers, one["server"]) == index + 1)
    return F.when(F.size(name) < 2, F.col(name)).otherwise(earliest).alias(name)
