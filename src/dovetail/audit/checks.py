"""The checks: what is a finding, as data. `docs/reference/checks.md` is generated from this list.

A check applies to one table: a row for which `where` is true is a finding, and `detail` describes it. Both are Spark
SQL over the columns of that table. All checks of a table run in one pass over it. `check_guides` says what each means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the conventional name

from dovetail.audit import schemas
from dovetail.audit.check_guides import guide_to
from dovetail.audit.local_rows import local_rows
from dovetail.fabrics import every_fabric
from dovetail.model.hop import Reason, Stage

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Check:
    """One rule."""

    id: str
    severity: Severity
    table: str
    where: str
    detail: str

    @property
    def sentence(self) -> str:
        """What is wrong."""
        return guide_to(self.id).meaning


def _integrity(name: str, severity: Severity) -> Check:
    return Check(
        f"integrity.{name}", severity, "integrity", f"check = 'integrity.{name}'", "concat_ws(': ', file, detail)"
    )


def _fork(kind: str, severity: Severity) -> Check:
    return Check(
        f"fork.{kind}",
        severity,
        "forks",
        f"kind = '{kind}'",
        "concat(coalesce(concat(author, ': '), ''), "
        "array_join(transform(evidence, e -> substr(lower(hex(e)), 1, 16)), ', '))",
    )


_COMMON = (
    _integrity("altered_row", "error"),
    _integrity("removed_rows", "error"),
    _integrity("repeated_rows", "error"),
    _integrity("order", "error"),
    _integrity("foreign_rows", "error"),
    _integrity("subtree_mismatch", "error"),
    _integrity("root_mismatch", "error"),
    _integrity("bad_signature", "error"),
    _integrity("key_changed", "error"),
    _integrity("shared_key", "warning"),
    _integrity("missing_file", "error"),
    _integrity("kept_lost", "error"),
    _integrity("kept_unsigned", "warning"),
    _integrity("false_times", "error"),
    _integrity("no_manifest", "warning"),
    _integrity("bad_manifest", "error"),
    _integrity("manifest_changed", "error"),
    _integrity("overlapping_manifests", "error"),
    _integrity("false_replacement", "error"),
    _integrity("forged_manifest", "error"),
    _integrity("missing_hops", "warning"),
    _integrity("unannounced_file", "warning"),
    _integrity("file_altered", "error"),
    _integrity("time_ahead", "warning"),
    _integrity("file_rewritten", "warning"),
    _integrity("time_backwards", "warning"),
    Check(
        "server.hops_lost",
        "error",
        "hops",
        f"stage = '{Stage.NOTED.value}' AND reason = '{Reason.HOPS_LOST.value}'",
        "counterpart",
    ),
    Check(
        "server.clock_stepped",
        "warning",
        "hops",
        f"stage = '{Stage.NOTED.value}' AND reason = '{Reason.CLOCK_STEPPED.value}'",
        "counterpart",
    ),
    Check(
        "quarantine.unreadable",
        "error",
        "quarantine",
        f"stage != '{Stage.REJECTED.value}' AND reason != 'leaf_mismatch'",
        "concat_ws(': ', reason, detail)",
    ),
    Check(
        "quarantine.refused",
        "note",
        "quarantine",
        f"stage = '{Stage.REJECTED.value}' AND reason != 'leaf_mismatch'",
        "concat_ws(': ', reason, detail)",
    ),
    Check(
        "message.bad_signature",
        "error",
        "messages",
        "signature = 'invalid' AND taken",
        "concat('signed in the name of ', signer)",
    ),
    Check(
        "message.unknown_key",
        "note",
        "messages",
        "signature = 'unknown_key' AND taken",
        "concat('signed by ', signer)",
    ),
    Check(
        "message.bad_work",
        "error",
        "messages",
        "work_valid = false AND taken",
        "'its work is not below the target'",
    ),
    Check(
        "delivery.no_outcome",
        "error",
        "deliveries",
        "outcome = 'no_outcome'",
        "concat('for ', recipient)",
    ),
    Check(
        "delivery.two_outcomes",
        "error",
        "deliveries",
        "outcome IN ('delivered', 'handed_over') AND failed_stage IS NOT NULL",
        "concat('for ', recipient, ', also ', failed_stage)",
    ),
    Check(
        "delivery.unreported",
        "warning",
        "deliveries",
        "outcome = 'unreported'",
        "concat('for ', recipient)",
    ),
    Check(
        "delivery.echoed",
        "warning",
        "deliveries",
        "outcome = 'echoed' AND overdue",
        "concat('for ', recipient)",
    ),
    Check(
        "delivery.overdue",
        "warning",
        "deliveries",
        "outcome = 'in_flight' AND expires IS NULL AND overdue",
        "concat('for ', recipient)",
    ),
    Check(
        "delivery.lost",
        "error",
        "deliveries",
        "outcome = 'lost'",
        "concat('for ', recipient)",
    ),
    Check(
        "delivery.undeliverable",
        "warning",
        "deliveries",
        "outcome = 'undeliverable'",
        "concat_ws(' ', 'for', recipient, reason)",
    ),
    Check(
        "delivery.expired",
        "warning",
        "deliveries",
        "outcome = 'expired'",
        "concat_ws(' ', 'for', recipient, reason)",
    ),
    Check(
        "delivery.unauthorized",
        "warning",
        "deliveries",
        "outcome = 'unauthorized'",
        "concat_ws(' ', 'from', sender)",
    ),
    Check(
        "delivery.rejected",
        "note",
        "deliveries",
        "outcome = 'rejected'",
        "concat_ws(' ', reason, 'at', failed_at)",
    ),
    Check(
        "chain.failed",
        "warning",
        "chains",
        "state = 'failed'",
        "concat_ws(' ', type, 'from', sender)",
    ),
    Check(
        "chain.orphan_response",
        "warning",
        "chains",
        "state = 'orphan_response'",
        "concat_ws(' ', type, 'from', sender)",
    ),
    Check(
        "chain.incomplete",
        "warning",
        "chains",
        "state IN ('awaiting_sender', 'awaiting_recipient') AND overdue",
        "concat_ws(' ', state, type, 'from', sender)",
    ),
    Check(
        "chain.copies_differ",
        "warning",
        "chains",
        "size(only_at) > 0 AND overdue",
        "concat('only at ', array_join(only_at, ', '))",
    ),
    Check(
        "gap.nobody",
        "error",
        "gaps",
        "scope = 'nobody' AND relation != 'in_reply_to' AND coalesce(unexpired, true)",
        "concat('lacks ', substr(lower(hex(parent)), 1, 16))",
    ),
    Check(
        "gap.expired",
        "note",
        "gaps",
        "scope = 'nobody' AND unexpired = false",
        "concat('lacks ', substr(lower(hex(parent)), 1, 16))",
    ),
    Check(
        "gap.unknown_request",
        "note",
        "gaps",
        "scope = 'nobody' AND relation = 'in_reply_to'",
        "concat('lacks ', lower(hex(parent)))",
    ),
    Check(
        "gap.server",
        "warning",
        "gaps",
        "scope = 'server' AND coalesce(unexpired, true)",
        "concat('lacks ', substr(lower(hex(parent)), 1, 16), ', which ', holders, ' have')",
    ),
    _fork("self_reference", "warning"),
    _fork("against_time", "warning"),
    _fork("cycle", "warning"),
)


def every_check() -> dict[str, Check]:
    """All checks by id: the common ones, and one for each kind of contradiction defined by a fabric."""
    conflicts = [item for fabric in every_fabric() for item in fabric.conflicts.items()]
    own = [_fork(kind, conflict.severity) for kind, conflict in conflicts]
    return {check.id: check for check in (*_COMMON, *own)}


_PLACES = {
    # table: fabric, server, message, seq, at
    "integrity": ("fabric", "server", "CAST(NULL AS binary)", "seq", "CAST(NULL AS timestamp)"),
    "hops": ("fabric", "server", "CAST(NULL AS binary)", "seq", "at"),
    "quarantine": ("fabric", "server", "message", "seq", "at"),
    "messages": ("fabric", "CAST(NULL AS string)", "message", "CAST(NULL AS bigint)", "created"),
    "deliveries": ("fabric", "failed_at", "message", "CAST(NULL AS bigint)", "coalesce(finished, accepted)"),
    "chains": ("fabric", "CAST(NULL AS string)", "message", "CAST(NULL AS bigint)", "begun"),
    "gaps": ("fabric", "server", "child", "CAST(NULL AS bigint)", "since"),
    "forks": ("fabric", "CAST(NULL AS string)", "get(evidence, 0)", "CAST(NULL AS bigint)", "first_seen"),
}


def findings(spark: SparkSession, tables: Mapping[str, DataFrame], *, overdue_before_us: int) -> DataFrame:
    """All findings over these tables; rows that began before `overdue_before_us` are overdue."""
    parts = [find(_viewed(tables, name, overdue_before_us), name) for name in _PLACES if name in tables]
    empty = local_rows(spark, [], schemas.FINDINGS.schema)
    return reduce(DataFrame.unionByName, parts, empty).select(*schemas.FINDINGS.schema.names)


def _viewed(tables: Mapping[str, DataFrame], name: str, overdue_before_us: int) -> DataFrame:
    """A table with the columns that its checks use."""
    rows = tables[name]
    match name:
        case "integrity":
            breaks = rows.select("fabric", "server", F.explode("breaks").alias("b"))
            return breaks.select("fabric", "server", "b.*")
        case "messages":
            taken = tables["holdings"].where("first_seen IS NOT NULL").select("fabric", "message")
            suspects = rows.where("signature != 'valid' OR work_valid = false")
            return suspects.join(taken, on=["fabric", "message"], how="left_semi").withColumn("taken", F.lit(True))
        case "deliveries":
            return rows.withColumn("overdue", F.unix_micros("accepted") < overdue_before_us)
        case "chains":
            return rows.withColumn("overdue", F.unix_micros("begun") < overdue_before_us)
    return rows


def find(rows: DataFrame, table: str) -> DataFrame:
    """The findings of all checks of one table, in one pass."""
    fabric, server, message, seq, at = _PLACES[table]
    checks = [check for check in every_check().values() if check.table == table]
    results = [
        F.when(
            F.expr(check.where),
            F.struct(
                F.lit(check.id).alias("check"),
                F.lit(check.severity).alias("severity"),
                F.expr(check.detail).alias("detail"),
            ),
        )
        for check in checks
    ]
    found = F.explode(F.filter(F.array(*results), lambda one: one.isNotNull())).alias("found")
    # hardly any row is a finding: the others are filtered out here, mostly before they are read
    suspects = rows.where(" OR ".join(f"({check.where})" for check in checks))
    return suspects.select(
        *(F.expr(text).alias(name) for name, text in (("fabric", fabric), ("server", server), ("message", message))),
        F.expr(seq).alias("seq"),
        F.expr(at).alias("at"),
        found,
    ).select("found.check", "found.severity", "fabric", "server", "message", "seq", "at", "found.detail")
