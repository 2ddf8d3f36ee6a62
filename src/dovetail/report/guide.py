"""What each check of the audit means to a reader, and what to do about it.

The audit's own list holds the rules and needs Spark; a test keeps the ids of both lists the same. Contradictions are
explained by the fabrics that know them.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from dovetail.fabrics import every_fabric
from dovetail.report.arrays import count_by
from dovetail.report.numbers import SEVERITIES, CheckCount


class Guide(NamedTuple):
    """A check for a reader."""

    title: str
    meaning: str
    advice: str


_RESEAL = "Compare the file with the server's journal or a backup; seal it anew from the journal if that verifies."
_ASK_OPERATOR = "Ask the server's operator, and keep the lake as it is: it is the evidence."

GUIDES: dict[str, Guide] = {
    "integrity.altered_row": Guide("Altered row", "A row is not the one that was sealed.", _RESEAL),
    "integrity.removed_rows": Guide("Removed rows", "A file has fewer rows than were sealed.", _RESEAL),
    "integrity.repeated_rows": Guide("Repeated rows", "A file has more rows than were sealed.", _RESEAL),
    "integrity.order": Guide(
        "Rows out of order", "The rows of a file are not in the order of their positions.", _RESEAL
    ),
    "integrity.foreign_rows": Guide("Foreign rows", "A file holds rows of another server.", _RESEAL),
    "integrity.subtree_mismatch": Guide(
        "File and manifest differ", "The rows of a file do not lead to the root that its manifest announces.", _RESEAL
    ),
    "integrity.root_mismatch": Guide(
        "Signed root differs", "The files of a server do not lead to the root that it signed.", _ASK_OPERATOR
    ),
    "integrity.bad_signature": Guide(
        "Bad checkpoint signature", "The signature of a checkpoint does not verify.", _ASK_OPERATOR
    ),
    "integrity.key_changed": Guide(
        "Signing key changed",
        "A server signed with another key than before.",
        "Find out whether the key was changed on purpose; pin the right one with --trust.",
    ),
    "integrity.missing_file": Guide(
        "Missing file", "A file that a manifest announces is not there, or cannot be read.", _RESEAL
    ),
    "integrity.kept_lost": Guide(
        "Kept part lost",
        "What a compaction kept of the bytes that it removed is gone, or was altered.",
        "Bring the file back from a backup of the lake: the bytes themselves were removed and cannot be sealed anew.",
    ),
    "integrity.bad_manifest": Guide("Bad manifest", "A manifest cannot be read, or contradicts itself.", _RESEAL),
    "integrity.manifest_changed": Guide(
        "Manifest changed",
        "A manifest is gone, or no longer says what it said when it was first read.",
        "Nobody may change a manifest: find out who wrote to the lake.",
    ),
    "integrity.overlapping_manifests": Guide(
        "Overlapping manifests", "Two manifests announce the same positions.", _ASK_OPERATOR
    ),
    "integrity.missing_hops": Guide(
        "Missing hops",
        "Positions of a journal that no manifest announces (yet).",
        "Seal the journal up to its end and run the audit again.",
    ),
    "integrity.unannounced_file": Guide(
        "Unannounced file",
        "A file that no manifest announces; it is set aside.",
        "A sealing may be under way: run the audit again later. If it stays, remove the file.",
    ),
    "integrity.file_altered": Guide(
        "File changed after it was audited",
        "A file has other bytes than when the audit first read it.",
        "The tables have what it said then. Bring the file back from a backup, and find out who can write to the lake.",
    ),
    "integrity.time_ahead": Guide(
        "Clock far ahead",
        "A server's hops are ahead of the auditor's clock; they do not move `as_of`.",
        "Check the server's time synchronisation.",
    ),
    "integrity.file_rewritten": Guide(
        "Rewritten file",
        "A file has other bytes than announced, but the very same hops.",
        "Nothing is lost; find out which program rewrote it.",
    ),
    "integrity.time_backwards": Guide(
        "Clock went backwards",
        "A server's clock went backwards from one hop to the next.",
        "Check the server's time synchronisation; latencies near this moment are not to be trusted.",
    ),
    "server.hops_lost": Guide(
        "Hops lost for good",
        "A journal lost hops, and its operator let the server go on without them.",
        "The hop says how many: ask the operator why, and treat what the server handled at that time as unproven.",
    ),
    "server.clock_stepped": Guide(
        "Clock stepped",
        "The clock of a server was set, or went wrong.",
        "Check the server's time synchronisation; its times around this hop are not to be trusted.",
    ),
    "quarantine.unreadable": Guide(
        "Unreadable message taken in",
        "A server took in or made a message whose bytes do not decode or are not those of its address.",
        "The server's own checks failed: look at the bytes with `dovetail audit show quarantine`.",
    ),
    "quarantine.refused": Guide(
        "Unreadable bytes refused",
        "A server refused bytes, and the audit cannot read them either.",
        "The server did right. Talk to the sender if it goes on.",
    ),
    "message.bad_signature": Guide(
        "Forged message taken in",
        "A server took in a message whose signature does not verify.",
        "Do not believe this message; find out why the node accepted it.",
    ),
    "message.unknown_key": Guide(
        "Unknown signer",
        "The signer's key is neither published in the lake nor given to the audit.",
        "Give the key to the audit with --trust, or seal the journal that holds its Create message.",
    ),
    "message.bad_work": Guide(
        "Too little work",
        "A peer took in a message whose work is not below the swarm's target.",
        "The peer does not check what it takes in, or runs with another target.",
    ),
    "delivery.no_outcome": Guide(
        "No outcome",
        "A server accepted a message and never said what became of it for a recipient, though its lifetime is over.",
        "Treat it as lost for this recipient. The server owes the outcome: look at its log, and when it was stopped.",
    ),
    "delivery.unreported": Guide(
        "Outcome not reported yet",
        "A message's lifetime is over, and the journal of the server that owes its outcome does not reach that far.",
        "See whether the server runs and its journal is sealed; the next audit after that knows more.",
    ),
    "delivery.echoed": Guide(
        "Only the sender has it",
        "Only the sender's side has a message, and the loss timeout is over.",
        "See whether the recipient's node can be reached; the sender's node goes on trying until it gives up.",
    ),
    "delivery.overdue": Guide(
        "No outcome so far",
        "A message without a lifetime has no outcome, and the loss timeout is over.",
        "The recipient's connection may be slow; look at the server's queues.",
    ),
    "delivery.lost": Guide(
        "Lost on the way",
        "A server says that it forwarded a message, and the next one never saw it.",
        "Look at the connection between the two servers at that time; the sender should send again.",
    ),
    "delivery.undeliverable": Guide(
        "Nobody there", "Nobody was there to take a message.", "Check whether the recipient should have been connected."
    ),
    "delivery.expired": Guide(
        "Expired before delivery",
        "A message's lifetime was over before it was delivered.",
        "Give messages a longer lifetime, or find out what kept this one waiting.",
    ),
    "delivery.unauthorized": Guide(
        "Not allowed",
        "A message was not allowed to all of its targets, and went to none.",
        "If it should be allowed, add a rule; `dovetail pcp trace` shows which one decides.",
    ),
    "delivery.rejected": Guide(
        "Refused", "A server refused a message.", "The reason says what the sender must change."
    ),
    "chain.failed": Guide(
        "Answered with a failure", "A message was answered with a failure.", "The failure response says why."
    ),
    "chain.orphan_response": Guide(
        "Answer to nothing",
        "A response answers a message that nobody has.",
        "A journal may be missing from the lake, or the response was made up.",
    ),
    "chain.incomplete": Guide(
        "Chain not complete",
        "A chain was not complete when patience was over.",
        "See which response is missing: the sender's node makes s1, the recipient's node s2.",
    ),
    "chain.copies_differ": Guide(
        "Copies differ",
        "Two nodes hold different parts of a chain when patience was over.",
        "The two owners do not see the same conversation: compare both logs.",
    ),
    "gap.nobody": Guide(
        "Missing parent",
        "A message refers to one that nobody has and that may still be live, or never expires.",
        "Something was lost or never published; the author may still have it.",
    ),
    "gap.expired": Guide(
        "Parent expired", "A message refers to one that nobody has, and that is expired by now.", "Nothing to do."
    ),
    "gap.unknown_request": Guide(
        "Answer to an unknown request",
        "A reply answers a message whose bytes are not in the lake.",
        "Nothing to do if the request came before the journal began.",
    ),
    "gap.server": Guide(
        "A server lacks a parent",
        "A server has a message and lacks what it refers to, though others have that.",
        "It should pull it by itself; if it does not, look at its connections.",
    ),
    "fork.self_reference": Guide("Refers to itself", "A message refers to itself.", "The author's program is wrong."),
    "fork.against_time": Guide(
        "Refers to the future", "A message refers to one that is not older.", "One of the two clocks is wrong."
    ),
    "fork.cycle": Guide(
        "Cycle",
        "Two messages refer to each other.",
        "Where senders choose ids, they chose these beforehand; elsewhere an address was known before its content.",
    ),
}


def guide_to(check: str) -> Guide:
    """What a check means; a check that is newer than this program is named by its id."""
    if check in GUIDES:
        return GUIDES[check]
    for fabric in every_fabric():
        conflict = fabric.conflicts.get(check.removeprefix("fork."))
        if conflict is not None:
            return Guide(conflict.title, conflict.sentence, conflict.advice)
    return Guide(check, "A check that this version of the report does not know.", "")


def count_checks(findings: pa.Table) -> list[CheckCount]:
    """Findings by check, the worst first."""
    counts = [
        CheckCount(check=check, severity=severity, findings=count, **guide_to(check)._asdict())
        for check, severity, count in count_by(findings, ("check", "severity"))
    ]
    return sorted(counts, key=lambda item: (rank_severity(item.severity), item.check))


def rank_severity(severity: str) -> int:
    """0 is worst."""
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)
