"""The first screen of README: its three commands, and its program, do what it shows."""

import re
import shlex
from pathlib import Path

import pytest

from cli.test_cli_clients import config_directory, run_process, running_dev  # noqa: F401 - a fixture
from docs.shown import assert_printed

pytestmark = pytest.mark.system
ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^    dovetail (.*?)(?:  +#.*)?$", README, re.MULTILINE)


def test_the_three_commands_print_what_is_shown(tmp_path):
    dev, send, show = COMMANDS[:3]
    blocks = re.findall(r"^```text\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    sent_lines, proven = (block.splitlines() for block in blocks)
    assert dev == "dev"
    with running_dev(tmp_path):
        sent = run_process(*shlex.split(send), cwd=tmp_path)
        assert (sent.returncode, sent.stderr) == (0, "")
        assert_printed(sent_lines, sent.stdout)
        address = sent.stdout.split()[1]
        shown = run_process(*shlex.split(show)[:-1], address[:8], cwd=tmp_path)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert_printed(proven, shown.stdout)


def test_the_program_is_the_example():
    (program,) = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    example = (ROOT / "examples" / "send_and_prove.py").read_text()
    body = program[program.index("async def main") : program.index("asyncio.run")]
    assert body.strip() in example
