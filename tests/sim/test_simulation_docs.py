"""The example in docs/explain/simulation.md runs and gives the output on the page."""

import re
from pathlib import Path

from dovetail.sim.core import CrashPoint
from dovetail.sim.faults import KINDS

PAGE = (Path(__file__).parents[2] / "docs" / "explain" / "simulation.md").read_text()


def test_example_runs_as_told():
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = {}
    exec(compile(example, "simulation.md", "exec"), names)
    assert names["is_quiet"]
    assert f"`accepted` is `{names['accepted']!r}`".replace("'", '"') in PAGE


def test_every_kind_of_fault_and_crash_point_is_on_the_page():
    for name in [*KINDS, *CrashPoint]:
        assert f"| `{name}` |" in PAGE
