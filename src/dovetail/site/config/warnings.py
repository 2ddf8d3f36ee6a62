"""Risks in a valid configuration, for `config check` and `doctor` to warn about."""

from __future__ import annotations

from dovetail.pcp.open_rules import find_open_rules
from dovetail.site.config.sections import Config


def find_warnings(config: Config) -> list[str]:
    """One sentence for each setting that lets strangers do more than they should."""
    return [
        f"pcp[{number}] {broker.name}: {found}"
        for number, broker in enumerate(config.pcp)
        if not broker.insecure_plain
        for found in find_open_rules(broker)
    ]
