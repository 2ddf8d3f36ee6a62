"""swarm: every peer of a swarm is a recipient, and has a message once it took it in or made it.

Swarms have most of the messages. As long as their peers are few, each peer has a column of its own while holdings are
gathered: an aggregation over numbers of fixed width is several times as fast as one that collects lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by

from dovetail.audit.fabric_audit import FabricAudit, Moment, Rows
from dovetail.audit.transforms.deliveries import PART
from dovetail.audit.transforms.holdings import TAKEN
from dovetail.model.hop import Reason, Stage
from dovetail.model.outcome import Outcome
from dovetail.swarm.content import HASH_BYTES
from dovetail.swarm.fabric import COLLISION, FABRIC, MESSAGE_TYPE
from dovetail.swarm.uri import SCHEME

_REASONS = sorted(reason.value for reason in Reason)
_NO_REASON, _REASON_BITS = 0, 10


def community(server: Column) -> Column:
    """The swarm in a peer's URI, "" for any other; as `Fabric.community` says it."""
    # several times as fast as a regular expression
    head = F.substring_index(server, "/", 3)
    is_peer = server.startswith(f"{SCHEME}://") & (head != server)
    return F.when(is_peer, F.substring_index(head, "/", -1)).otherwise(F.lit(""))


def deliveries(rows: Rows, moment: Moment) -> DataFrame:
    """One row per peer in the lake that has a message, refused it, or should have it."""
    own_holders = F.filter("holders", lambda one: community(one["server"]) == F.col("swarm"))
    own_refusals = F.filter("refusals", lambda one: community(one["server"]) == F.col("swarm"))
    swarms = F.array_union(
        F.transform("holders", lambda one: community(one["server"])),
        F.transform("refusals", lambda one: community(one["server"])),
    )
    peers = rows.servers.groupBy(community(F.col("server")).alias("swarm")).agg(
        F.sort_array(F.collect_set("server")).alias("peers")
    )
    spread = (
        rows.sightings.where(F.size(swarms) > 0)
        .select("message", "sender", "expires", "holders", "refusals", F.explode(swarms).alias("swarm"))
        .select("swarm", "message", "sender", "expires", own_holders.alias("holders"), own_refusals.alias("refusals"))
        .join(peers.hint("broadcast"), on="swarm", how="inner")
        .withColumn("first", F.get("holders", F.lit(0)))
    )
    each = spread.select("message", "sender", "expires", "first", F.explode(_each_peer()).alias("one"))
    is_refused = F.col("one.held").isNull() & F.col("one.refused").isNotNull()
    is_held = F.col("one.held").isNotNull()
    is_over = ~is_held & ~is_refused & (F.col("expires") <= F.lit(moment.as_of))
    outcome = (
        F.when(is_held, Outcome.DELIVERED)
        .when(is_refused & (F.col("one.reason") == Reason.LIFETIME_OVER.value), Outcome.EXPIRED)
        .when(is_refused, Outcome.REJECTED)
        .when(is_over, Outcome.EXPIRED)
        .otherwise(Outcome.IN_FLIGHT)
    )
    is_made_here = F.col("one.server").eqNullSafe(F.col("sender"))
    return each.select(
        F.lit(FABRIC.name).alias("fabric"),
        "message",
        F.lit(MESSAGE_TYPE).alias("type"),
        "sender",
        F.col("one.server").alias("recipient"),
        outcome.alias("outcome"),
        F.when(is_refused, Stage.REJECTED.value).alias("failed_stage"),
        F.when(is_refused | is_over, F.col("one.server")).alias("failed_at"),
        F.when(is_over, Reason.LIFETIME_OVER.value).otherwise(F.when(is_refused, F.col("one.reason"))).alias("reason"),
        F.coalesce("first.since", "one.refused").alias("begun"),
        F.coalesce("first.server", "one.server").alias("begun_at"),
        F.coalesce("one.held", "one.refused", F.when(is_over, F.col("expires"))).alias("finished"),
        F.when(is_held | is_refused, F.col("one.server")).alias("finished_at"),
        "expires",
        F.when(is_held & ~is_made_here, 1).otherwise(0).cast("bigint").alias("attempts"),
    ).select(*PART)


def _each_peer() -> Column:
    """Peers with when they held or refused it; where somebody holds it also those that do neither."""
    holding, refusing = F.col("holders.server"), F.col("refusals.server")
    time, text = F.lit(None).cast("timestamp"), F.lit(None).cast("string")
    held = F.transform(
        "holders",
        lambda one: F.struct(
            one["server"].alias("server"), one["since"].alias("held"), time.alias("refused"), text.alias("reason")
        ),
    )
    refused = F.transform(
        F.filter("refusals", lambda one: ~F.array_contains(holding, one["server"])),
        lambda one: F.struct(
            one["server"].alias("server"), time.alias("held"), one["at"].alias("refused"), one["reason"].alias("reason")
        ),
    )
    lacking = F.transform(
        F.array_except("peers", F.concat(holding, refusing)),
        lambda peer: F.struct(peer.alias("server"), time.alias("held"), time.alias("refused"), text.alias("reason")),
    )
    # a message that nobody holds was only ever refused: no peer should have it
    return (
        F.when(F.size("holders") == F.size("peers"), held)
        .when(F.size("holders") == 0, refused)
        .otherwise(F.concat(held, refused, lacking))
    )


def few_holders(hops: DataFrame, messages: DataFrame, peers: Sequence[str]) -> DataFrame:
    """Holdings at these few peers. Times are gathered as numbers, a refusal's reason in its low bits."""
    is_taken = F.col("stage").isin(*TAKEN)
    is_refused = F.col("stage") == Stage.REJECTED.value
    at_us, nothing = F.unix_micros("at"), F.lit(None).cast("bigint")
    body = {"created_us": F.unix_micros("created"), "expires_us": F.unix_micros("expires")}
    body["worked"] = F.col("work_valid").cast("bigint")
    columns = {f"held{i}": F.when(is_taken & (F.col("server") == peer), at_us) for i, peer in enumerate(peers)}
    columns |= {
        f"refused{i}": F.when(is_refused & (F.col("server") == peer), F.shiftleft(at_us, _REASON_BITS) + _reason_rank())
        for i, peer in enumerate(peers)
    }
    columns["maker"] = F.when(
        F.col("stage") == Stage.CREATED.value, F.array_position(F.array(*map(F.lit, peers)), F.col("server"))
    )
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
        F.lit(FABRIC.name).alias("fabric"),
        "message",
        F.substring("message", 1, HASH_BYTES).alias("key"),
        (F.col("bodies") > 0).alias("is_decoded"),
        F.get(F.array(*map(F.lit, peers)), (F.col("maker") - 1).cast("int")).alias("sender"),
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


def _is_against_time() -> Column:
    """UEP-12 wants a strictly greater time."""
    return F.col("parent_created") >= F.col("created")


AUDIT = FabricAudit(
    fabric=FABRIC,
    deliveries=deliveries,
    shared_key=COLLISION,
    against_time=_is_against_time,
    forwards=True,
    community=community,
    few_holders=few_holders,
)
