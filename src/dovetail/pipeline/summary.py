"""What a person wants to know first: how many messages, how many arrived, what is wrong, and how sure that is."""

from __future__ import annotations

import datetime as dt

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by

from dovetail.pipeline.checks import BY_ID
from dovetail.pipeline.store import RunRecord, Store

MAX_EXAMPLES = 3
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class FoundCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One check with how often it found something."""

    check: str
    severity: str
    sentence: str
    findings: int
    examples: list[str]


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """How sure the hops of one server are."""

    server: str
    verdict: str
    hops: int
    proven_hops: int
    signed_hops: int
    key_source: str


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run."""

    lake: str
    as_of: str
    hops: int
    messages: dict[str, int]
    deliveries: dict[str, dict[str, int]]
    chains: dict[str, int]
    servers: list[ServerState]
    found: list[FoundCheck]

    @property
    def errors(self) -> int:
        """How many findings are errors."""
        return sum(item.findings for item in self.found if item.severity == "error")

    def text(self) -> str:
        """The summary for a terminal."""
        total = sum(self.messages.values())
        by_fabric = ", ".join(f"{count:,} {fabric}" for fabric, count in sorted(self.messages.items()))
        lines = [f"{total:,} messages ({by_fabric or 'none'}), {self.hops:,} hops, as of {self.as_of}"]
        for fabric, outcomes in sorted(self.deliveries.items()):
            all_of = sum(outcomes.values())
            arrived = outcomes.get("delivered", 0)
            rest = ", ".join(f"{count:,} {name}" for name, count in sorted(outcomes.items()) if name != "delivered")
            lines.append(f"  {fabric:<6} {arrived:,} of {all_of:,} deliveries arrived{'; ' + rest if rest else ''}")
        if self.chains:
            lines.append("  chains " + ", ".join(f"{count:,} {state}" for state, count in sorted(self.chains.items())))
        lines.append(self._certainty())
        for item in self.found:
            lines.append(f"  {item.severity:<8} {item.check:<28} {item.findings:>7,}  {item.sentence}")
            lines += [f"           {example}" for example in item.examples]
        if not self.found:
            lines.append("nothing is wrong")
        return "\n".join(lines) + "\n"

    def _certainty(self) -> str:
        proven = [state for state in self.servers if state.verdict == "proven"]
        pinned = sum(state.key_source == "pinned" for state in self.servers)
        if pinned == 0:
            keys = "keys as the lake states them (--trust pins them)"
        elif pinned == len(self.servers):
            keys = "keys pinned"
        else:
            keys = f"keys of {pinned} pinned (--trust names none of the others)"
        broken = [state.server for state in self.servers if state.verdict != "proven"]
        text = f"{len(proven)} of {len(self.servers)} servers proven to their signed checkpoints, {keys}"
        return text + (f"; not proven: {', '.join(broken)}" if broken else "")


def summarize(spark: SparkSession, store: Store, record: RunRecord) -> Summary:
    """Read the summary off the tables."""
    deliveries: dict[str, dict[str, int]] = {}
    for row in store.read(spark, "deliveries").groupBy("fabric", "outcome").count().collect():
        deliveries.setdefault(row["fabric"], {})[row["outcome"]] = row["count"]
    servers = [
        ServerState(**{name: row[name] for name in ServerState.__struct_fields__})
        for row in store.read(spark, "integrity").where("server != ''").orderBy("server").collect()
    ]
    return Summary(
        lake=record.lake,
        as_of=(_EPOCH + dt.timedelta(microseconds=record.as_of_us)).isoformat().replace("+00:00", "Z"),
        hops=store.read(spark, "hops").count(),
        messages=_counts(store.read(spark, "messages"), "fabric"),
        deliveries=deliveries,
        chains=_counts(store.read(spark, "chains"), "state"),
        servers=servers,
        found=_found(store.read(spark, "findings")),
    )


def _counts(rows: DataFrame, by: str) -> dict[str, int]:
    return {row[by]: row["count"] for row in rows.groupBy(by).count().collect()}


def _found(findings: DataFrame) -> list[FoundCheck]:
    example = F.concat_ws(
        " ", "server", F.concat(F.lit("hop "), F.col("seq")), F.substring(F.lower(F.hex("message")), 1, 16), "detail"
    )
    rows = (
        findings.withColumn("example", example)
        .groupBy("check", "severity")
        .agg(
            F.count("*").alias("findings"),
            F.slice(F.sort_array(F.collect_set("example")), 1, MAX_EXAMPLES).alias("examples"),
        )
        .collect()
    )
    order = {"error": 0, "warning": 1, "note": 2}
    found = [
        FoundCheck(
            check=row["check"],
            severity=row["severity"],
            sentence=BY_ID[row["check"]].sentence,
            findings=row["findings"],
            examples=list(row["examples"]),
        )
        for row in rows
    ]
    return sorted(found, key=lambda item: (order[item.severity], item.check))
