"""Dovetail: message delivery you can prove.

What is named here is the public API; every other module is private and may change. Names are loaded when they are first
used, so that `import dovetail` costs next to nothing; `__init__.pyi` tells type checkers where they are.
"""

from __future__ import annotations

import importlib

from dovetail import _moved

__version__ = "0.1.0"

_HOMES = {
    "api.audit": "Audit Lake MessageTrace Table Tables open_lake open_tables",
    "api.connect": "Client connect",
    "api.local": "Site local",
    "api.pcp": "PcpClient",
    "api.receipts": "Receipt verify_journal",
    "api.swarm": "Evidence Gap SwarmPeer",
    "api.values": "TLS Message Outcome Presence Sent",
    "api.won": "ConversationLog WonClient",
    "journal.verify": "Verdict",
    "model.errors": (
        "AuditError Closed ConfigError ConnectFailed DovetailError JournalError KeyFileError Missed MissingExtra "
        "NotAllowed NotDelivered ReceiptError ResourceBusy TimedOut UsageError"
    ),
    "receipt.proof": "Proof",
    "won.integrity": "LogFinding",
}
_MODULES = {name: f"dovetail.{module}" for module, names in _HOMES.items() for name in names.split()}

__all__ = sorted([*_MODULES, "sync", "__version__"])


def __getattr__(name: str) -> object:
    if name == "sync":
        return importlib.import_module("dovetail.sync")
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'dovetail' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


_moved.install()
