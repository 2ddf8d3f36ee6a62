"""What each check of the audit means to a reader, and what to do about it.

The rules themselves are in `checks`, which needs Spark. Contradictions are explained by their fabrics.
"""

from __future__ import annotations

from typing import NamedTuple

from dovetail.fabrics import every_fabric

SEVERITIES = ("error", "warning", "note")
"""The most severe first."""


class Guide(NamedTuple):
    """A check as explained to a reader."""

    title: str
    meaning: str
    advice: str


_RESEAL = "Compare the file with the server's journal or a backup; if the journal verifies, seal it again."
_ASK_OPERATOR = "Ask the server's operator, and preserve the lake: it is the evidence."

GUIDES: dict[str, Guide] = {
    "integrity.altered_row": Guide("Altered row", "A row differs from the one that was sealed.", _RESEAL),
    "integrity.removed_rows": Guide("Removed rows", "A file has fewer rows than were sealed.", _RESEAL),
    "integrity.repeated_rows": Guide("Repeated rows", "A file has more rows than were sealed.", _RESEAL),
    "integrity.order": Guide("Rows out of order", "The rows of a file are out of order.", _RESEAL),
    "integrity.foreign_rows": Guide("Foreign rows", "A file contains rows of another server.", _RESEAL),
    "integrity.subtree_mismatch": Guide(
        "File and manifest differ", "The rows of a file do not hash to the root in its manifest.", _RESEAL
    ),
    "integrity.root_mismatch": Guide(
        "Signed root differs", "The files of a server do not hash to the root that it signed.", _ASK_OPERATOR
    ),
    "integrity.bad_signature": Guide(
        "Bad checkpoint signature", "The signature of a checkpoint does not verify.", _ASK_OPERATOR
    ),
    "integrity.key_changed": Guide(
        "Signing key changed",
        "A server signed with a different key than before.",
        "Find out whether the key was changed intentionally; pin the right one with --trust.",
    ),
    "integrity.shared_key": Guide(
        "Shared signing key",
        "Two servers sign with the same key: what both say is the word of one party.",
        "Give each server a key of its own; do not count the two as independent.",
    ),
    "integrity.missing_file": Guide(
        "Missing file", "A file listed in a manifest is missing, cannot be read, or keeps changing.", _RESEAL
    ),
    "integrity.kept_lost": Guide(
        "Kept part lost",
        "The fields that a compaction kept of removed messages are missing or were altered.",
        "Restore the file from a backup of the lake: the messages' bytes were removed and cannot be sealed again.",
    ),
    "integrity.kept_unsigned": Guide(
        "Kept part unsigned",
        "The fields that a compaction kept of removed messages are not signed with a trusted key; they are not used.",
        "Name the key of whoever compacts with --trust; sign with it by `audit compact --signing-key`.",
    ),
    "integrity.false_times": Guide(
        "False times",
        "A manifest states other times for a file than its hops have: who searches by time may miss them.",
        "Somebody altered the manifest: find out who wrote to the lake, and restore it from a backup.",
    ),
    "integrity.no_manifest": Guide(
        "Server missing",
        "The key of a server was given, but the lake has nothing of this server.",
        "Seal its journal, or leave out its key; if it was sealed before, find out who removed it from the lake.",
    ),
    "integrity.bad_manifest": Guide("Bad manifest", "A manifest cannot be read or is inconsistent.", _RESEAL),
    "integrity.manifest_changed": Guide(
        "Manifest changed",
        "A manifest is missing or has changed since it was first read.",
        "Manifests never change: find out who wrote to the lake.",
    ),
    "integrity.overlapping_manifests": Guide(
        "Overlapping manifests", "Two manifests cover the same positions.", _ASK_OPERATOR
    ),
    "integrity.missing_hops": Guide(
        "Missing hops",
        "Positions of a journal are not covered by a manifest (yet).",
        "Seal the journal up to its end and run the audit again.",
    ),
    "integrity.unannounced_file": Guide(
        "Unannounced file",
        "A file is not listed in any manifest and is ignored.",
        "Sealing may be in progress: run the audit again later. If the finding persists, remove the file.",
    ),
    "integrity.file_altered": Guide(
        "File changed after it was audited",
        "A file has changed since the audit first read it.",
        "The tables reflect the original file. Restore it from a backup, and find out who can write to the lake.",
    ),
    "integrity.false_replacement": Guide(
        "False replacement of manifests",
        "A manifest claims to replace others but lacks their hops; it is ignored. Anybody may have written it.",
        "Keep a copy as evidence, remove the manifest, and find out who can write to the lake.",
    ),
    "integrity.forged_manifest": Guide(
        "Forged manifest",
        "A manifest is not signed by its server, or repeats others; it is ignored. Anybody may have written it.",
        "Keep a copy as evidence, remove the manifest, and find out who can write to the lake.",
    ),
    "integrity.time_ahead": Guide(
        "Clock far ahead",
        "A server's hops are ahead of the auditor's clock; they do not advance `as_of`.",
        "Check the server's time synchronization.",
    ),
    "integrity.file_rewritten": Guide(
        "Rewritten file",
        "A file has different bytes than its manifest says, but exactly the same hops.",
        "Nothing is lost; find out which program rewrote the file.",
    ),
    "integrity.time_backwards": Guide(
        "Clock went backwards",
        "A server's clock went back from one hop to the next.",
        "Check the server's time synchronization; latencies around this time are unreliable.",
    ),
    "server.hops_lost": Guide(
        "Hops lost for good",
        "A journal lost hops, and its operator let the server continue without them.",
        "The hop states how many. Ask the operator why, and treat what the server handled at that time as unproven.",
    ),
    "server.clock_stepped": Guide(
        "Clock stepped",
        "A server's clock was set or drifted.",
        "Check the server's time synchronization; its times around this hop are unreliable.",
    ),
    "quarantine.unreadable": Guide(
        "Unreadable message accepted",
        "A server accepted or created a message whose bytes cannot be decoded or do not match its address.",
        "The server's own checks failed: inspect the bytes with `dovetail audit show quarantine`.",
    ),
    "quarantine.refused": Guide(
        "Unreadable bytes rejected",
        "A server rejected bytes that the audit cannot decode either.",
        "The server behaved correctly. Contact the sender if it continues.",
    ),
    "message.bad_signature": Guide(
        "Forged message accepted",
        "A server accepted a message whose signature does not verify.",
        "Do not trust this message; find out why the node accepted it.",
    ),
    "message.unknown_key": Guide(
        "Unknown signer",
        "The signer's key is neither in the lake nor among the trusted keys.",
        "Pass the key to the audit with --trust, or seal the journal that contains its Create message.",
    ),
    "message.bad_work": Guide(
        "Insufficient proof of work",
        "A peer accepted a message whose proof of work does not meet the swarm's target.",
        "The peer does not verify what it accepts, or uses a different target.",
    ),
    "delivery.no_outcome": Guide(
        "No outcome",
        "A message expired, and the server that must record an outcome for a recipient never did.",
        "Treat it as lost for this recipient. Check the server's log, and whether others could reach it.",
    ),
    "delivery.two_outcomes": Guide(
        "Two outcomes",
        "A server recorded that a recipient got a message, and another outcome besides.",
        "The recipient may have the message twice. Look at the server's hops with `dovetail audit why`, and report it.",
    ),
    "delivery.unreported": Guide(
        "Outcome not reported yet",
        "A message has expired, but the journal of the server that must record its outcome is not known that far.",
        "Check that the server is running and its journal is being sealed; then run the audit again.",
    ),
    "delivery.echoed": Guide(
        "Only the sender has it",
        "Only the sender's side has a message, and the loss timeout has passed.",
        "Check whether the recipient's node is reachable; the sender's node keeps retrying until it gives up.",
    ),
    "delivery.overdue": Guide(
        "No outcome yet",
        "A message whose lifetime is not known has no outcome, and the loss timeout has passed.",
        "The recipient's connection may be slow; check the server's queues.",
    ),
    "delivery.lost": Guide(
        "Lost in transit",
        "A server forwarded a message, but the next server never received it.",
        "Check the connection between the two servers at that time; the sender should send the message again.",
    ),
    "delivery.undeliverable": Guide(
        "Undeliverable",
        "A message could not be delivered; the reason says why.",
        "`no_recipient`: check whether the recipient should have been connected. Otherwise check the recipient: "
        "it does not read, loses its connection, or its node cannot be reached.",
    ),
    "delivery.expired": Guide(
        "Expired before delivery",
        "A message expired before it was delivered.",
        "Use a longer lifetime, or find out what delayed the message.",
    ),
    "delivery.unauthorized": Guide(
        "Not allowed",
        "A message was not allowed for all of its targets and was delivered to none.",
        "If it should be allowed, add a rule; `dovetail pcp trace` shows which one decides.",
    ),
    "delivery.rejected": Guide(
        "Refused", "A server rejected a message.", "The reason states what the sender must change."
    ),
    "chain.failed": Guide(
        "Failure response", "A message was answered with a failure response.", "The failure response states the reason."
    ),
    "chain.orphan_response": Guide(
        "Orphan response",
        "A response refers to a message that nobody has.",
        "A journal may be missing from the lake, or the response was fabricated.",
    ),
    "chain.incomplete": Guide(
        "Incomplete chain",
        "A chain was not complete when the loss timeout had passed.",
        "Check which response is missing: the sender's node creates s1, the recipient's node s2.",
    ),
    "chain.copies_differ": Guide(
        "Copies differ",
        "Two nodes held different parts of a chain when the loss timeout had passed.",
        "The two owners do not see the same conversation: compare both logs.",
    ),
    "gap.nobody": Guide(
        "Missing parent",
        "A message refers to one that nobody has and that may not have expired.",
        "Something was lost or never published; the author may still have it.",
    ),
    "gap.expired": Guide(
        "Parent expired", "A message refers to one that nobody has and that has expired.", "No action needed."
    ),
    "gap.unknown_request": Guide(
        "Reply to an unknown request",
        "A reply refers to a request whose bytes are not in the lake.",
        "No action needed if the request predates the journal.",
    ),
    "gap.server": Guide(
        "Parent missing at a server",
        "A server has a message but lacks one that it refers to, although others have it.",
        "The server should pull it automatically; if it does not, check its connections.",
    ),
    "fork.self_reference": Guide("Refers to itself", "A message refers to itself.", "The author's program is faulty."),
    "fork.against_time": Guide(
        "Reference to a newer message",
        "A message refers to one that is not older than itself.",
        "One of the two clocks is wrong.",
    ),
    "fork.cycle": Guide(
        "Cycle",
        "Two messages refer to each other.",
        "In pcp the sender chose both ids in advance; in other fabrics this requires breaking the hash.",
    ),
}


def guide_to(check: str) -> Guide:
    """The explanation of a check; an unknown check is named by its id."""
    if check in GUIDES:
        return GUIDES[check]
    for fabric in every_fabric():
        conflict = fabric.conflicts.get(check.removeprefix("fork."))
        if conflict is not None:
            return Guide(conflict.title, conflict.sentence, conflict.advice)
    return Guide(check, "This version does not know this check.", "")
