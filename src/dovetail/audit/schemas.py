"""Every table's schema, in one place, with the meaning of each column; `docs/reference/tables.md` is generated from it.

Times are UTC timestamps with microseconds, addresses are binary. Columns are only ever added, at the end. The schemas
are Arrow's, so readers need no Spark; `Table.schema` is the same for Spark.
"""

from __future__ import annotations

import pyarrow as pa

from dovetail.audit.table import BINARIES, BINARY, BOOLEAN, LONG, STRING, STRINGS, TIMESTAMP, Table, column
from dovetail.lake.rows import LAKE_SCHEMA
from dovetail.model.outcome import Outcome

LAKE = Table(
    "lake",
    "silver",
    "A file of the lake, with the columns given by its path.",
    ("server", "seq"),
    pa.schema([*(pa.field(f.name, f.type) for f in LAKE_SCHEMA), ("fabric", STRING), ("date", STRING)]),
)

_FABRIC = column("fabric", STRING, "`pcp`, `won` or `swarm`")
_SERVER = column("server", STRING, "URI of the broker, node or peer that observed")
_MESSAGE = column("message", BINARY, "the address")
_RUN = column("run", LONG, "the run of the audit that read it")
_REASON = column("reason", STRING, "why it was refused or did not arrive, one of the documented codes")

HOPS = Table(
    "hops",
    "silver",
    "Every hop of the lake that could be read, without the bytes.",
    ("server", "seq"),
    pa.schema(
        [
            _FABRIC,
            _SERVER,
            column("seq", LONG, "position in that server's journal"),
            column("at", TIMESTAMP, "when, by that server's clock"),
            column("stage", STRING, "what happened"),
            _MESSAGE,
            column("counterpart", STRING, "whom it came from or went to"),
            _REASON,
            column("size", LONG, "bytes on the wire, on the hop that first saw the message"),
            column("has_bytes", BOOLEAN, "the lake held the message's bytes on this hop when it was read"),
            column(
                "proven",
                BOOLEAN,
                "the rows of its file lead to the root its manifest announces; `integrity` says if that was signed",
            ),
            _RUN,
        ]
    ),
    skipping=(
        "run",
        "at",
    ),
)

MESSAGES = Table(
    "messages",
    "silver",
    "One row per address whose bytes were found: its fields, and whether they can be trusted. Each is verified once.",
    ("fabric", "message"),
    pa.schema(
        [
            _FABRIC,
            _MESSAGE,
            column(
                "key", BINARY, "how links name it: address (won), first 8 bytes (swarm), 16 bytes of the UUID (pcp)"
            ),
            column("id", STRING, "its own name: UUID (pcp), URI (won), hex of the 8 bytes (swarm)"),
            column("type", STRING, "message type"),
            column("sender", STRING, "author, if the message names one"),
            column("recipients", STRINGS, "recipients as written, patterns included"),
            column("created", TIMESTAMP, "when it was created, by its author's clock"),
            column("expires", TIMESTAMP, "end of its lifetime"),
            column("size", LONG, "bytes"),
            column("version", STRING, "protocol version"),
            column("direction", STRING, "won: FromOwner or FromSystem"),
            column("connection", STRING, "won: the connection a response belongs to"),
            column("sender_socket", STRING, "won: the socket it comes from"),
            column("recipient_socket", STRING, "won: the socket it goes to"),
            column("responding_to_type", STRING, "won: the type of the message a response answers"),
            column("signer", STRING, "won: who signed it"),
            column("address_valid", BOOLEAN, "its address matches its content"),
            column("schema_valid", BOOLEAN, "it decodes, and every field is valid"),
            column("signature", STRING, "won: `valid`, `invalid`, or `unknown_key`"),
            column("work_valid", BOOLEAN, "swarm: its work is below the swarm's target"),
        ]
    ),
    skipping=(
        "created",
        "expires",
    ),
)

LINKS = Table(
    "links",
    "silver",
    "One row per reference that a message makes to an earlier one.",
    ("fabric", "child", "parent", "relation"),
    pa.schema(
        [
            _FABRIC,
            column("child", BINARY, "address of the referring message"),
            column("parent", BINARY, "the parent as the wire names it; joins `messages.key`"),
            column("relation", STRING, "`responding_to`, `previous`, `refers` or `in_reply_to`"),
            column("parent_expires", TIMESTAMP, "swarm: the parent has certainly expired by then; null if unknown"),
            column("child_created", TIMESTAMP, "when the referring message was created, by its author's clock"),
            _RUN,
        ]
    ),
    skipping=(
        "run",
        "child_created",
    ),
)

QUARANTINE = Table(
    "quarantine",
    "silver",
    "Rows that could not be read or trusted, with their reason and bytes.",
    ("server", "seq"),
    pa.schema(
        [
            _FABRIC,
            _SERVER,
            column("seq", LONG, "position in that server's journal"),
            column("at", TIMESTAMP, "when, by that server's clock"),
            column("stage", STRING, "what the server says happened; `rejected` means that it refused the bytes itself"),
            _MESSAGE,
            column("reason", STRING, "`leaf_mismatch`, `address_mismatch`, or why the bytes do not decode"),
            column("detail", STRING, "the decoder's own words"),
            column("bytes", BINARY, "the bytes"),
            _RUN,
        ]
    ),
    skipping=(
        "run",
        "at",
    ),
)

KEYS = Table(
    "keys",
    "silver",
    "Public keys that won Create messages publish.",
    ("owner", "key"),
    pa.schema(
        [
            column("owner", STRING, "URI of the atom or node"),
            column("key", BINARY, "Ed25519 public key"),
            column("message", BINARY, "the Create message that publishes it; null if given to the audit"),
            _RUN,
        ]
    ),
    skipping=("run",),
)

DELIVERIES = Table(
    "deliveries",
    "gold",
    "One row per message and intended recipient: its outcome.",
    ("fabric", "message", "recipient"),
    pa.schema(
        [
            _FABRIC,
            _MESSAGE,
            column("type", STRING, "message type"),
            column("sender", STRING, "sender; swarm: the peer that created it, null if its journal is not in the lake"),
            column("recipient", STRING, "recipient; null if the message failed before it had one"),
            column("outcome", STRING, "one of " + ", ".join(f"`{outcome}`" for outcome in Outcome)),
            column("failed_stage", STRING, "the stage at which it failed; if it arrived, that of a second outcome"),
            column("failed_at", STRING, "the server where that was"),
            _REASON,
            column("accepted", TIMESTAMP, "when a server first accepted, created or refused it"),
            column("finished", TIMESTAMP, "when it was handed over, failed or expired"),
            column(
                "latency_us",
                LONG,
                "from accepted to handed over, in microseconds, corrected by the clock offset; null if nothing was "
                "handed over, or if the clocks do not allow an estimate",
            ),
            column("attempts", LONG, "how often it was handed over, redeliveries included"),
            column(
                "clock_offset_us",
                LONG,
                "correction for the difference of the two servers' clocks; 0 for one server, null if unknown",
            ),
            column(
                "skew_known",
                BOOLEAN,
                "both times are of one clock, or the offset could be estimated, and the latency is not negative",
            ),
            column("expires", TIMESTAMP, "end of its lifetime; null if it has none, or its bytes are unknown"),
        ]
    ),
    skipping=(
        "accepted",
        "finished",
        "expires",
    ),
)

CHAINS = Table(
    "chains",
    "gold",
    "One row per won message or pcp request with the responses that acknowledge it, across all journals.",
    ("fabric", "message"),
    pa.schema(
        [
            _FABRIC,
            _MESSAGE,
            column(
                "kind",
                STRING,
                "`atom`, `connection` (won), `request` (pcp), `orphan` (a response to an unknown message)",
            ),
            column("type", STRING, "type of the message"),
            column("sender", STRING, "the sender"),
            column("recipient", STRING, "the recipient"),
            column("conversation", STRING, "won: both sockets, the smaller first"),
            column("state", STRING, "complete, awaiting_sender, awaiting_recipient, failed, orphan_response"),
            column("first_response", BINARY, "s or s1, or the pcp response"),
            column("second_response", BINARY, "s2"),
            column("failure", BINARY, "the FailureResponse, or the broker's error"),
            column("begun", TIMESTAMP, "when a server first accepted the message"),
            column("answered", TIMESTAMP, "when the first response was created"),
            column("completed", TIMESTAMP, "when the chain was complete at the sender's side"),
            column("first_leg_us", LONG, "from begun to answered"),
            column("second_leg_us", LONG, "from answered to completed"),
            column("only_at", STRINGS, "won: servers that hold a part of the chain which the other side lacks"),
        ]
    ),
    skipping=("begun",),
)

GAPS = Table(
    "gaps",
    "gold",
    "Links whose parent nobody has, or that a server lacks though others have it.",
    ("fabric", "child", "parent", "relation", "server"),
    pa.schema(
        [
            _FABRIC,
            column("child", BINARY, "the referring message"),
            column("parent", BINARY, "what it refers to, as the wire names it"),
            column("relation", STRING, "how it refers to it"),
            column("server", STRING, "the server that lacks it; null if nobody has it"),
            column("scope", STRING, "`nobody` or `server`"),
            column("holders", LONG, "how many servers have it"),
            column("since", TIMESTAMP, "when the referring message was first seen (there)"),
            column("expires", TIMESTAMP, "when the parent's lifetime ends, or ended, at the latest; null if unknown"),
            column("unexpired", BOOLEAN, "the parent may still be live as of the audit; null if unknown"),
        ]
    ),
    skipping=(
        "since",
        "expires",
    ),
)

FORKS = Table(
    "forks",
    "gold",
    "Messages that contradict each other or the rules of the graph, with the messages as evidence.",
    ("fabric", "kind", "subject", "evidence"),
    pa.schema(
        [
            _FABRIC,
            column("kind", STRING, "see the checks whose id begins with `fork`"),
            column("author", STRING, "the author of the contradiction, if known"),
            column("subject", BINARY, "what they are about: the parent, id or hash in common"),
            column("evidence", BINARIES, "addresses of the messages, sorted"),
            column("first_seen", TIMESTAMP, "when the contradiction was complete"),
        ]
    ),
    skipping=("first_seen",),
)

COVERAGE = Table(
    "coverage",
    "gold",
    "Swarm: how many peers hold a message and how fast it spread; and what each peer lacks.",
    ("swarm", "scope", "message", "peer"),
    pa.schema(
        [
            column("swarm", STRING, "the swarm"),
            column("scope", STRING, "`message`: one row per message; `peer`: one row per peer"),
            column("message", BINARY, "the address (scope `message`)"),
            column("peer", STRING, "the peer (scope `peer`)"),
            column("peers", LONG, "peers of the swarm in the lake"),
            column("holders", LONG, "how many of them hold it; for a peer: how many messages it holds"),
            column("lacking", LONG, "how many do not; for a peer: messages of the swarm that it never held"),
            column("expires", TIMESTAMP, "when its lifetime ends, or ended; null if its bytes are unknown"),
            column("first_seen", TIMESTAMP, "when the first peer had it"),
            column("half_us", LONG, "microseconds until 50 % of the peers had it"),
            column("most_us", LONG, "microseconds until 95 % had it"),
            column("all_us", LONG, "microseconds until all had it"),
        ]
    ),
    skipping=(
        "first_seen",
        "expires",
    ),
)

BREAK = pa.struct(
    [
        column("check", STRING, "id of the check"),
        column("file", STRING, "the file or manifest in the lake"),
        column("seq", LONG, "the first bad hop"),
        column("detail", STRING, "what was found"),
    ]
)

INTEGRITY = Table(
    "integrity",
    "gold",
    "One row per server: whether its hops are complete, in order, unaltered and signed.",
    ("server",),
    pa.schema(
        [
            _FABRIC,
            _SERVER,
            column(
                "verdict", STRING, "`proven` (all hops lead to signed roots), `incomplete` (some are missing), `broken`"
            ),
            column("hops", LONG, "hops that were read"),
            column("signed_hops", LONG, "hops that the latest valid checkpoint commits to"),
            column("signed_at", TIMESTAMP, "time of the last of these hops; null if it could not be read"),
            column("proven_hops", LONG, "number of hops in the proven prefix of the journal"),
            column("missing_hops", LONG, "positions that no row has"),
            column("repeated_hops", LONG, "rows that repeat a position"),
            column("backwards", LONG, "times the clock went backwards from one hop to the next"),
            column("checkpoints", LONG, "checkpoints in the lake"),
            column("proven_checkpoints", LONG, "of these, with valid signature and recomputed root"),
            column("key_source", STRING, "`pinned` (given to the audit) or `lake` (as stated by the manifest)"),
            column("breaks", pa.list_(BREAK), "all faults, each with its first bad hop"),
        ]
    ),
)

TRAFFIC = Table(
    "traffic",
    "gold",
    "Hops per minute.",
    ("minute", "fabric", "server", "type", "stage", "reason"),
    pa.schema(
        [
            column("minute", TIMESTAMP, "start of the minute"),
            _FABRIC,
            _SERVER,
            column("type", STRING, "message type, null if the bytes are unknown"),
            column("stage", STRING, "what happened"),
            _REASON,
            column("hops", LONG, "how often"),
            column("messages", LONG, "how many messages"),
            column("bytes", LONG, "bytes of the messages first seen then"),
        ]
    ),
    skipping=("minute",),
    sums=(
        "hops",
        "messages",
        "bytes",
    ),
)

LATENCY = Table(
    "latency",
    "gold",
    "Histogram of delivery times: powers of two of a millisecond.",
    ("fabric", "type", "up_to_ms"),
    pa.schema(
        [
            _FABRIC,
            column("type", STRING, "message type"),
            column("up_to_ms", LONG, "upper end of the bucket in milliseconds"),
            column("deliveries", LONG, "how many"),
        ]
    ),
    sums=("deliveries",),
)

SKEW = Table(
    "skew",
    "gold",
    "Clock difference of two servers, estimated from messages that went both ways.",
    ("server", "other"),
    pa.schema(
        [
            column("server", STRING, "the first server"),
            column("other", STRING, "the other one"),
            column(
                "offset_us", LONG, "the other's clock minus the first's; null if unknown: messages went one way only"
            ),
            column("error_us", LONG, "maximum error of the offset: half of the fastest round trip"),
            column("there", LONG, "messages from the first to the other"),
            column("back", LONG, "messages from the other to the first"),
        ]
    ),
)

FINDINGS = Table(
    "findings",
    "gold",
    "One row per finding: its check, and what it is about.",
    ("check", "fabric", "server", "message", "seq", "detail"),
    pa.schema(
        [
            column("check", STRING, "id of the check, see the page of checks"),
            column("severity", STRING, "`error`, `warning` or `note`"),
            _FABRIC,
            _SERVER,
            column("message", BINARY, "the message it is about"),
            column("seq", LONG, "the hop it is about"),
            column("at", TIMESTAMP, "when it happened"),
            column("detail", STRING, "what was found"),
        ]
    ),
    skipping=("at",),
)

INGEST = Table(
    "ingest",
    "log",
    "One row per manifest and per file of the lake that the audit has read, with the result.",
    ("kind", "path"),
    pa.schema(
        [
            column("run", LONG, "the run that read it"),
            column("kind", STRING, "`manifest` or `file`"),
            column("path", STRING, "its key in the lake"),
            column("fabric", STRING, "the fabric, if known"),
            column("server", STRING, "the server whose manifest announces it, if known"),
            column("hops", LONG, "hops that were read from it"),
            column("error", STRING, "why it cannot be read or trusted; null if it can"),
            column("fact", BINARY, "the full result, as JSON: hashes, subtrees, order"),
        ]
    ),
    skipping=("run",),
)

RUNS = Table(
    "runs",
    "log",
    "One row per run, written last: the version of every table that belongs to it.",
    ("run",),
    pa.schema(
        [
            column("run", LONG, "number of the run"),
            column("began", TIMESTAMP, "when it began, by the clock of its machine"),
            column("finished", TIMESTAMP, "when its tables were complete"),
            column("lake", STRING, "the lake"),
            column("as_of", TIMESTAMP, "the time as of which the tables were computed"),
            column("fingerprint", STRING, "digest of the settings and the state of the lake"),
            column("basis", STRING, "digest of the inputs shared by all rows: form, settings, servers"),
            column("hops", LONG, "hops in the lake that were read"),
            column("is_whole", BOOLEAN, "all gold tables were rebuilt"),
            column("is_reread", BOOLEAN, "everything was read again, because something was restored"),
            column("versions", pa.map_(STRING, LONG), "version of each Delta table"),
        ]
    ),
)

TABLES = (
    RUNS,
    INGEST,
    HOPS,
    MESSAGES,
    LINKS,
    QUARANTINE,
    KEYS,
    DELIVERIES,
    CHAINS,
    GAPS,
    FORKS,
    COVERAGE,
    INTEGRITY,
    TRAFFIC,
    LATENCY,
    SKEW,
    FINDINGS,
)
BY_NAME = {table.name: table for table in TABLES}
