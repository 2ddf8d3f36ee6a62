"""The checks: what is a finding, as data. `docs/reference/checks.md` is generated from this list.

A check applies to one table: a row for which `where` is true is a finding, and `detail` describes it. Both are Spark
SQL over the columns of that table. All checks of a table run in one pass over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the conventional name

from dovetail.audit import schemas
from dovetail.audit.local_rows import local_rows
from dovetail.fabrics import every_fabric
from dovetail.model.hop import Reason, Stage

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Check:
    """One rule."""

    id: str
    severity: Severity
    sentence: str
    table: str
    where: str
    detail: str


def _integrity(name: str, severity: Severity, sentence: str) -> Check:
    return Check(
        f"integrity.{name}",
        severity,
        sentence,
        "integrity",
        f"check = 'integrity.{name}'",
        "concat_ws(': ', file, detail)",
    )


def _fork(kind: str, severity: Severity, sentence: str) -> Check:
    return Check(
        f"fork.{kind}",
        severity,
        sentence,
        "forks",
        f"kind = '{kind}'",
        "concat(coalesce(concat(author, ': '), ''), "
        "array_join(transform(evidence, e -> substr(lower(hex(e)), 1, 16)), ', '))",
    )


_COMMON = (
    _integrity("altered_row", "error", "A row differs from the one that was sealed."),
    _integrity("removed_rows", "error", "A file has fewer rows than were sealed."),
    _integrity("repeated_rows", "error", "A file has more rows than were sealed."),
    _integrity("order", "error", "The rows of a file are out of order."),
    _integrity("foreign_rows", "error", "A file contains rows of another server."),
    _integrity("subtree_mismatch", "error", "The rows of a file do not hash to the root in its manifest."),
    _integrity("root_mismatch", "error", "The files of a server do not hash to the root that it signed."),
    _integrity("bad_signature", "error", "The signature of a checkpoint does not verify."),
    _integrity("key_changed", "error", "A server signed with a different key than before."),
    _integrity("missing_file", "error", "A file listed in a manifest is missing, cannot be read, or keeps changing."),
    _integrity(
        "kept_lost", "error", "The fields that a compaction kept of removed messages are missing or were altered."
    ),
    _integrity("bad_manifest", "error", "A manifest cannot be read or is inconsistent."),
    _integrity("manifest_changed", "error", "A manifest is missing or has changed since it was first read."),
    _integrity("overlapping_manifests", "error", "Two manifests cover the same positions."),
    _integrity(
        "false_replacement",
        "error",
        "A manifest claims to replace others but lacks their hops; it is ignored. Anybody may have written it.",
    ),
    _integrity(
        "forged_manifest",
        "error",
        "A manifest is not signed by its server, or repeats others; it is ignored. Anybody may have written it.",
    ),
    _integrity("missing_hops", "warning", "Positions of a journal are not covered by a manifest (yet)."),
    _integrity(
        "unannounced_file",
        "warning",
        "A file is not listed in any manifest and is ignored. Sealing may be in progress.",
    ),
    _integrity("file_altered", "error", "A file has changed since the audit first read it."),
    _integrity(
        "time_ahead", "warning", "A server's hops are ahead of the auditor's clock; they do not advance `as_of`."
    ),
    _integrity(
        "file_rewritten", "warning", "A file has different bytes than its manifest says, but exactly the same hops."
    ),
    _integrity("time_backwards", "warning", "A server's clock went back from one hop to the next."),
    Check(
        "server.hops_lost",
        "error",
        "A journal lost hops, and its operator let the server continue without them.",
        "hops",
        f"stage = '{Stage.NOTED.value}' AND reason = '{Reason.HOPS_LOST.value}'",
        "counterpart",
    ),
    Check(
        "server.clock_stepped",
        "warning",
        "A server's clock was set or drifted.",
        "hops",
        f"stage = '{Stage.NOTED.value}' AND reason = '{Reason.CLOCK_STEPPED.value}'",
        "counterpart",
    ),
    Check(
        "quarantine.unreadable",
        "error",
        "A server accepted or created a message whose bytes cannot be decoded or do not match its address.",
        "quarantine",
        f"stage != '{Stage.REJECTED.value}' AND reason != 'leaf_mismatch'",
        "concat_ws(': ', reason, detail)",
    ),
    Check(
        "quarantine.refused",
        "note",
        "A server rejected bytes that the audit cannot decode either.",
        "quarantine",
        f"stage = '{Stage.REJECTED.value}' AND reason != 'leaf_mismatch'",
        "concat_ws(': ', reason, detail)",
    ),
    Check(
        "message.bad_signature",
        "error",
        "A server accepted a message whose signature does not verify.",
        "messages",
        "signature = 'invalid' AND taken",
        "concat('signed in the name of ', signer)",
    ),
    Check(
        "message.unknown_key",
        "note",
        "The signer's key is neither in the lake nor among the trusted keys.",
        "messages",
        "signature = 'unknown_key' AND taken",
        "concat('signed by ', signer)",
    ),
    Check(
        "message.bad_work",
        "error",
        "A peer accepted a message whose proof of work does not meet the swarm's target.",
        "messages",
        "work_valid = false AND taken",
        "'its work is not below the target'",
    ),
    Check(
        "delivery.no_outcome",
        "error",
        "A message expired, and the server that must record an outcome for a recipient never did.",
        "deliveries",
        "outcome = 'no_outcome'",
        "concat('for ', recipient)",
    ),
    Check(
        "delivery.two_outcomes",
        "error",
        "A server recorded that a recipient got a message, and another outcome besides.",
        "deliveries",
        "outcome IN ('delivered', 'handed_over') AND failed_stage IS NOT NULL",
        "concat('for ', recipient, ', also ', failed_stage)",
    ),
    Check(
        "delivery.unreported",
        "warning",
        "A message has expired, but the journal of the server that must record its outcome is not known that far.",
        "deliveries",
        "outcome = 'unreported'",
        "concat('for ', recipient)",
    ),
    Check(
        "delivery.echoed",
        "warning",
        "Only the sender's side has a message, and the loss timeout has passed.",
        "deliveries",
        "outcome = 'echoed' AND overdue",
        "concat('for ', recipient)",
    ),
    Check(
        "delivery.overdue",
        "warning",
        "A message whose lifetime is not known has no outcome, and the loss timeout has passed.",
        "deliveries",
        "outcome = 'in_flight' AND expires IS NULL AND overdue",
        "concat('for ', recipient)",
    ),
    Check(
        "delivery.lost",
        "error",
        "A server forwarded a message, but the next server never received it.",
        "deliveries",
        "outcome = 'lost'",
        "concat('for ', recipient)",
    ),
    Check(
        "delivery.undeliverable",
        "warning",
        "A message could not be delivered; the reason says why.",
        "deliveries",
        "outcome = 'undeliverable'",
        "concat_ws(' ', 'for', recipient, reason)",
    ),
    Check(
        "delivery.expired",
        "warning",
        "A message expired before it was delivered.",
        "deliveries",
        "outcome = 'expired'",
        "concat_ws(' ', 'for', recipient, reason)",
    ),
    Check(
        "delivery.unauthorized",
        "warning",
        "A message was not allowed for all of its targets and was delivered to none.",
        "deliveries",
        "outcome = 'unauthorized'",
        "concat_ws(' ', 'from', sender)",
    ),
    Check(
        "delivery.rejected",
        "note",
        "A server rejected a message.",
        "deliveries",
        "outcome = 'rejected'",
        "concat_ws(' ', reason, 'at', failed_at)",
    ),
    Check(
        "chain.failed",
        "warning",
        "A message was answered with a failure response.",
        "chains",
        "state = 'failed'",
        "concat_ws(' ', type, 'from', sender)",
    ),
    Check(
        "chain.orphan_response",
        "warning",
        "A response refers to a message that nobody has.",
        "chains",
        "state = 'orphan_response'",
        "concat_ws(' ', type, 'from', sender)",
    ),
    Check(
        "chain.incomplete",
        "warning",
        "A chain was not complete when the loss timeout had passed.",
        "chains",
        "state IN ('awaiting_sender', 'awaiting_recipient') AND overdue",
        "concat_ws(' ', state, type, 'from', sender)",
    ),
    Check(
        "chain.copies_differ",
        "warning",
        "Two nodes held different parts of a chain when the loss timeout had passed.",
        "chains",
        "size(only_at) > 0 AND overdue",
        "concat('only at ', array_join(only_at, ', '))",
    ),
    Check(
        "gap.nobody",
        "error",
        "A message refers to one that nobody has and that may not have expired.",
        "gaps",
        "scope = 'nobody' AND relation != 'in_reply_to' AND coalesce(unexpired, true)",
        "concat('lacks ', substr(lower(hex(parent)), 1, 16))",
    ),
    Check(
        "gap.expired",
        "note",
        "A message refers to one that nobody has and that has expired.",
        "gaps",
        "scope = 'nobody' AND unexpired = false",
        "concat('lacks ', substr(lower(hex(parent)), 1, 16))",
    ),
    Check(
        "gap.unknown_request",
        "note",
        "A reply refers to a request whose bytes are not in the lake.",
        "gaps",
        "scope = 'nobody' AND relation = 'in_reply_to'",
        "concat('lacks ', lower(hex(parent)))",
    ),
    Check(
        "gap.server",
        "warning",
        "A server has a message but lacks one that it refers to, although others have it.",
        "gaps",
        "scope = 'server' AND coalesce(unexpired, true)",
        "concat('lacks ', substr(lower(hex(parent)), 1, 16), ', which ', holders, ' have')",
    ),
    _fork("self_reference", "warning", "A message refers to itself."),
    _fork("against_time", "warning", "A message refers to one that is not older than itself."),
    _fork("cycle", "warning", "Two messages refer to each other."),
)


def every_check() -> dict[str, Check]:
    """All checks by id: the common ones, and one for each kind of contradiction defined by a fabric."""
    conflicts = [item for fabric in every_fabric() for item in fabric.conflicts.items()]
    own = [_fork(kind, conflict.severity, conflict.sentence) for kind, conflict in conflicts]
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
