"""Everything named on the page about the swarm exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "protocols" / "swarm.md").read_text()


def test_every_file_named_on_the_protocol_page_exists():
    names = re.findall(r"`((?:tests|swarm|benchmarks|src)/[\w/]+\.\w+)`", PAGE)
    assert names
    places = [ROOT, ROOT / "src" / "dovetail"]
    assert [name for name in names if not any((place / name).exists() for place in places)] == []
