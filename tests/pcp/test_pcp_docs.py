"""The clause table names tests that exist, and the example configuration is one the broker accepts."""

import re
import tomllib
from pathlib import Path

import msgspec

from dovetail.pcp.open_rules import find_open_rules
from dovetail.pcp.settings import PcpSettings

ROOT = Path(__file__).parents[2]


def test_every_test_in_the_clause_table_exists():
    page = (ROOT / "docs/protocols/pcp.md").read_text()
    named = set(re.findall(r"`(test_\w+)` \|", page))
    written: set[str] = set()
    for path in (ROOT / "tests").glob("*/test_pcp_*.py"):
        written |= set(re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE))
    assert len(named) > 50
    assert named <= written, named - written


def test_the_configuration_of_the_how_to_is_accepted():
    page = (ROOT / "docs/how-to/pcp-broker.md").read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    settings = msgspec.convert(tomllib.loads(example)["pcp"], PcpSettings)
    assert len(settings.rules) == 3
    assert find_open_rules(settings) == []
