"""The audit's tables in the oracle's form, and the oracle's own view of a lake's journals."""

from __future__ import annotations

from pathlib import Path

from audit.audit_worlds import EPOCH_MS, NODE_A, NODE_B, SETTINGS
from dovetail.audit.tables import open_tables
from dovetail.journal.reader import JournalReader
from oracle.audit_oracle import Oracle
from won.won_samples import KEYS

COLUMNS = {
    "deliveries": (
        "fabric",
        "message",
        "recipient",
        "outcome",
        "failed_stage",
        "failed_at",
        "reason",
        "latency_us",
        "attempts",
    ),
    "chains": ("fabric", "message", "kind", "state", "first_response", "second_response", "failure", "only_at"),
    "gaps": ("fabric", "child", "parent", "relation", "server", "holders", "unexpired"),
    "forks": ("fabric", "kind", "subject", "evidence"),
    "coverage": ("scope", "message", "peer", "holders", "lacking", "all_us"),
}


def ask_oracle(root: Path, *, epoch_ms: int = EPOCH_MS, node_keys: dict | None = None) -> dict[str, set[tuple]]:
    """What the journals beside a lake say."""
    hops = []
    for path in sorted(root.glob("*.journal")):
        with JournalReader.open(path) as reader:
            hops += list(reader.hops())
    oracle = Oracle(
        hops,
        epoch_ms=epoch_ms,
        loss_timeout_us=SETTINGS.loss_timeout_us,
        node_keys={node: KEYS[node].public for node in (NODE_A, NODE_B)} if node_keys is None else node_keys,
    )
    answers = {name: getattr(oracle, name)() for name in COLUMNS}
    answers["signatures"] = oracle.signatures()
    return answers


def ask_tables(out: Path) -> dict[str, set[tuple]]:
    """The content of the audit's tables; a duplicate row is an error."""
    tables = open_tables(out)
    answers = {}
    for name, columns in COLUMNS.items():
        rows = [tuple(_plain(row[column]) for column in columns) for row in tables.read(name).to_pylist()]
        assert len(rows) == len(set(rows)), f"{name} repeats rows"
        answers[name] = set(rows)
    messages = tables.read("messages").to_pylist()
    assert len(messages) == len({(row["fabric"], row["message"]) for row in messages})
    answers["signatures"] = {(row["message"], row["signature"]) for row in messages if row["fabric"] == "won"}
    return answers


def _plain(value):
    return tuple(value) if isinstance(value, list) else value
