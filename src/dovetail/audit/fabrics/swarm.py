"""swarm: every peer of a swarm is a recipient, and has a message once it accepted or created it.

Swarms have most of the messages of a lake. These are a few integers and hashes at fixed offsets, decoded by native
columns with the offsets of `swarm.content`: moving the bytes to Python and the fields back took longer than all other
work on them. While there are few peers, each has its own column when holdings are computed: an aggregation over
fixed-width numbers is several times as fast as one that collects lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the conventional name

from dovetail.audit.decode import DECODED_SCHEMA, Agreements
from dovetail.audit.fabric_audit import FabricAudit, Moment, NativeColumns, Rows
from dovetail.audit.native import SHA256_BYTES, big_endian, little_endian, sha256
from dovetail.audit.transforms.deliveries import PART, owed_outcome, reach_from, refusal_outcome
from dovetail.audit.transforms.holdings import TAKEN
from dovetail.model.fabric import Agreement
from dovetail.model.hop import Reason, Relation, Stage
from dovetail.model.outcome import Outcome
from dovetail.model.times import FIRST_US, LAST_US
from dovetail.swarm import content as c
from dovetail.swarm.fabric import COLLISION, FABRIC, MESSAGE_TYPE
from dovetail.swarm.uri import SCHEME

_REASONS = sorted(reason.value for reason in Reason)
_NO_REASON, _REASON_BITS = 0, 10

HEAD_BYTES = c.FIXED_BYTES + c.MAX_REFERENCES * c.REFERENCE_BYTES
_TIME_BITS = 48
_HEAD_BITS = 64 - 8 * (c.VERSION_OFFSET + 1)
_SATURATED = -0x8000
_END = 1 << 30


def fields(waiting: DataFrame, agreements: Agreements) -> DataFrame:
    """Decode content messages from their first `HEAD_BYTES`."""
    epoch = _by_community(agreements, lambda one: F.lit(one.epoch_ms))
    parsed = waiting.select(
        "digest",
        "size",
        "work_valid",
        "raw",
        F.octet_length("raw").alias("length"),
        F.shiftrightunsigned(big_endian(_slice(0, c.VERSION_OFFSET + 1)), _HEAD_BITS).alias("head"),
        little_endian(_slice(c.TIME_OFFSET, c.FLAGS_OFFSET - c.TIME_OFFSET)).alias("times"),
        little_endian(_slice(c.FLAGS_OFFSET, 1)).bitwiseAND(c.COUNT_MASK).cast("int").alias("count"),
        epoch.cast("bigint").alias("epoch"),
    )
    created = F.col("times").bitwiseAND((1 << _TIME_BITS) - 1)
    lifetime = F.greatest(F.shiftrightunsigned("times", _TIME_BITS), F.lit(1).cast("bigint")) * F.col("epoch")
    judged = parsed.select(
        "*", created.alias("created"), (created + lifetime).alias("expires"), _refusal_reason().alias("reject")
    )
    key = F.substring("digest", 1, c.HASH_BYTES)
    references = F.array(*(_reference(i) for i in range(c.MAX_REFERENCES)))
    said = {
        "message": F.col("digest"),
        "key": key,
        "id": F.lower(F.hex(key)),
        "type": F.lit(MESSAGE_TYPE),
        "version": F.lit(str(c.VERSION)),
        "created_us": _dated(F.col("created") * 1000),
        "expires_us": _dated(F.col("expires") * 1000),
        "address_valid": F.lit(True),
        "work_valid": F.col("work_valid"),
        "links": F.slice(references, F.lit(1), F.col("count")),
    }
    is_good = F.col("reject").isNull()
    own = {name: F.when(is_good, column) for name, column in said.items()}
    own |= {"fabric": F.lit(FABRIC.name), **{name: F.col(name) for name in ("digest", "size", "reject")}}
    return judged.select(
        *(own.get(field.name, F.lit(None).cast(field.dataType)).alias(field.name) for field in DECODED_SCHEMA)
    )


def _dated(us: Column) -> Column:
    """Same as `times.with_date`."""
    return F.least(F.greatest(us, F.lit(FIRST_US)), F.lit(LAST_US))


def has_work(swarm: Column, agreements: Agreements) -> Column:
    """True if the work of `raw` is below its swarm's target; binary compares like big-endian numbers."""
    high = _slice(c.TIME_HIGH_OFFSET, c.TTL_OFFSET - c.TIME_HIGH_OFFSET)
    work = sha256(F.concat(high, _slice(0, c.TIME_HIGH_OFFSET), _slice(c.TTL_OFFSET, _END)))
    return work <= _by_community(agreements, lambda one: F.lit((one.work_target - 1).to_bytes(SHA256_BYTES)), swarm)


def _slice(start: int, length: int) -> Column:
    return F.substring("raw", start + 1, length)


def _by_community(
    agreements: Agreements, choose: Callable[[Agreement], Column], community: Column | None = None
) -> Column:
    community = F.col("community") if community is None else community
    chosen = choose(agreements[""])
    for name, agreement in agreements.items():
        if name:
            chosen = F.when(community == name, choose(agreement)).otherwise(chosen)
    return chosen


def _refusal_reason() -> Column:
    """Why a message is refused, in the order of refusals of reading 16."""
    length, head, count = F.col("length"), F.col("head"), F.col("count")
    needed = F.least(c.FIXED_BYTES + c.REFERENCE_BYTES * count, F.lit(HEAD_BYTES))
    byte = [F.shiftright(head, 8 * (c.VERSION_OFFSET - i)).bitwiseAND(0xFF) for i in range(c.VERSION_OFFSET + 1)]
    refusals = (
        (length < 2, Reason.TRUNCATED),
        (F.col("size") > c.MAX_CONTENT_BYTES, Reason.TOO_LARGE),
        (byte[0] != c.INDICATOR, Reason.BAD_INDICATOR),
        (byte[1] != c.OPCODE_CONTENT, Reason.UNKNOWN_OPCODE),
        ((length > c.VERSION_OFFSET) & (byte[c.VERSION_OFFSET] != c.VERSION), Reason.UNSUPPORTED_VERSION),
        ((length >= c.FIXED_BYTES) & (count > c.MAX_REFERENCES), Reason.BAD_REFERENCE_COUNT),
        (length < needed, Reason.TRUNCATED),
    )
    refusal = F.lit(None).cast("string")
    for is_refused, reason in reversed(refusals):
        refusal = F.when(is_refused, reason.value).otherwise(refusal)
    return refusal


def _reference(index: int) -> Column:
    """One reference: its target, and when that is certainly expired, unless the difference is saturated."""
    at = c.FIXED_BYTES + c.REFERENCE_BYTES * index
    # the low sixteen bits are the signed number
    epochs = little_endian(_slice(at + c.HASH_BYTES, c.REFERENCE_BYTES - c.HASH_BYTES)).cast("smallint")
    expires = F.col("expires") - epochs.cast("bigint") * F.col("epoch")
    reference = F.struct(
        _slice(at, c.HASH_BYTES).alias("parent"),
        F.lit(Relation.REFERS.value).alias("relation"),
        F.when(epochs > _SATURATED, _dated(expires * 1000)).alias("parent_expires_us"),
    )
    # skip what is dropped in the end: messages have two references on average, not four
    return F.when(F.col("count") > index, reference)


def community(server: Column) -> Column:
    """The swarm in a peer's URI, "" for any other; same as `Fabric.community`."""
    # several times as fast as a regular expression
    head = F.substring_index(server, "/", 3)
    is_peer = server.startswith(f"{SCHEME}://") & (head != server)
    return F.when(is_peer, F.substring_index(head, "/", -1)).otherwise(F.lit(""))


def deliveries(rows: Rows, moment: Moment) -> DataFrame:
    """One row per peer in the lake that has a message, refused it, or should have it.

    A peer must have every message of its swarm by the time it expires, or a reason why not. It is excused if it was
    away: it had not been started, or was stopped from the message's beginning to its end.
    """
    own_holders = F.filter("holders", lambda one: community(one["server"]) == F.col("swarm"))
    own_refusals = F.filter("refusals", lambda one: community(one["server"]) == F.col("swarm"))
    swarms = F.array_union(
        F.transform("holders", lambda one: community(one["server"])),
        F.transform("refusals", lambda one: community(one["server"])),
    )
    peers = rows.servers.groupBy(community(F.col("server")).alias("swarm")).agg(
        F.collect_list(F.struct("server", "first_at", "reaches", "absences")).alias("peers")
    )
    spread = (
        rows.holdings.where(F.size(swarms) > 0)
        .select("message", "sender", "expires", "holders", "refusals", F.explode(swarms).alias("swarm"))
        .select("swarm", "message", "sender", "expires", own_holders.alias("holders"), own_refusals.alias("refusals"))
        .join(peers.hint("broadcast"), on="swarm", how="inner")
        .withColumn("first", F.get("holders", F.lit(0)))
    )
    each = spread.select("message", "sender", "expires", "first", F.explode(_each_peer(moment)).alias("one"))
    is_refused = F.col("one.held").isNull() & F.col("one.refused").isNotNull()
    is_held = F.col("one.held").isNotNull()
    owed = owed_outcome(F.col("expires"), F.col("one.reach"), moment, is_excused=F.col("one.is_away"))
    is_over = ~is_held & ~is_refused & owed.isNotNull()
    outcome = (
        F.when(is_held, Outcome.DELIVERED)
        .when(is_refused, refusal_outcome(F.col("one.reason")))
        .otherwise(F.coalesce(owed, F.lit(Outcome.IN_FLIGHT)))
    )
    is_excused = is_over & F.col("one.is_away")
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
        F.when(is_excused, Reason.LIFETIME_OVER.value).when(is_refused, F.col("one.reason")).alias("reason"),
        F.coalesce("first.since", "one.refused").alias("begun"),
        F.coalesce("first.server", "one.server").alias("begun_at"),
        F.coalesce("one.held", "one.refused", F.when(is_over, F.col("expires"))).alias("finished"),
        F.when(is_held | is_refused, F.col("one.server")).alias("finished_at"),
        "expires",
        F.when(is_held & ~is_made_here, 1).otherwise(0).cast("bigint").alias("attempts"),
    ).select(*PART)


def _each_peer(moment: Moment) -> Column:
    """Peers with the time they held or refused it; if any peer holds it, also those that do neither."""
    holding, refusing = F.col("holders.server"), F.col("refusals.server")
    time, text = F.lit(None).cast("timestamp"), F.lit(None).cast("string")

    def entry(
        server: Column,
        *,
        held: Column = time,
        refused: Column = time,
        reason: Column = text,
        reach: Column = time,
        is_away: Column | None = None,
    ) -> Column:
        return F.struct(
            server.alias("server"),
            held.alias("held"),
            refused.alias("refused"),
            reason.alias("reason"),
            reach.alias("reach"),
            (F.lit(False) if is_away is None else is_away).alias("is_away"),
        )

    held = F.transform("holders", lambda one: entry(one["server"], held=one["since"]))
    refused = F.transform(
        F.filter("refusals", lambda one: ~F.array_contains(holding, one["server"])),
        lambda one: entry(one["server"], refused=one["at"], reason=one["reason"]),
    )
    lacking = F.transform(
        F.filter("peers", lambda peer: ~F.array_contains(F.concat(holding, refusing), peer["server"])),
        lambda peer: entry(
            peer["server"],
            reach=reach_from(F.col("first.since"), peer["reaches"], moment),
            is_away=_was_away(peer, moment),
        ),
    )
    # a message that no peer holds was only ever refused: no peer should have it
    return (
        F.when(F.size("holders") == F.size("peers"), held)
        .when(F.size("holders") == 0, refused)
        .otherwise(F.concat(held, refused, lacking))
    )


def _was_away(peer: Column, moment: Moment) -> Column:
    """True if a peer's journal shows that it was not running while a message could have reached it.

    A message may take the loss timeout to arrive, so a peer that is stopped or started so close to its beginning or
    end is not expected to have it. A peer that was stopped only after the end was there all the time.
    """
    expires = F.unix_micros("expires")
    soon = F.least(F.unix_micros("first.since") + moment.loss_timeout_us, expires - 1)
    late = expires - moment.loss_timeout_us
    was_stopped = F.exists(
        peer["absences"], lambda one: (F.unix_micros(one["since"]) <= soon) & (F.unix_micros(one["until"]) >= late)
    )
    return (F.unix_micros(peer["first_at"]) >= late) | F.coalesce(was_stopped, F.lit(False))


def few_holders(hops: DataFrame, messages: DataFrame, peers: Sequence[str]) -> DataFrame:
    """Holdings at these few peers. Times are aggregated as numbers, with a refusal's reason in the low bits."""
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
        F.substring("message", 1, c.HASH_BYTES).alias("key"),
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
    """The position of a reason among all, so that the minimum number is the minimum pair of time and reason."""
    names = F.array(*(F.lit(reason) for reason in _REASONS))
    return F.when(F.col("reason").isNull(), _NO_REASON).otherwise(F.array_position(names, F.col("reason")))


def _is_against_time() -> Column:
    """UEP-12 requires a strictly greater time."""
    return F.col("parent_created") >= F.col("created")


AUDIT = FabricAudit(
    fabric=FABRIC,
    deliveries=deliveries,
    native=NativeColumns(head_bytes=HEAD_BYTES, has_work=has_work, fields=fields),
    shared_key=COLLISION,
    against_time=_is_against_time,
    forwards=True,
    community=community,
    few_holders=few_holders,
)
