"""The broker accepts the example configuration of the how-to."""

import re
import tomllib
from pathlib import Path

import msgspec

from dovetail.pcp.open_rules import find_open_rules
from dovetail.pcp.settings import PcpSettings

ROOT = Path(__file__).parents[2]


def test_the_configuration_of_the_how_to_is_accepted():
    page = (ROOT / "docs/how-to/pcp-broker.md").read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    settings = msgspec.convert(tomllib.loads(example)["pcp"], PcpSettings)
    assert len(settings.rules) == 3
    assert find_open_rules(settings) == []
