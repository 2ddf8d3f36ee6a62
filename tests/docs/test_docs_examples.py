"""The commands in the documentation run, in the order in which they stand there."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

import dovetail
from docs.shown import shown
from dovetail.cli.main import main

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "docs/how-to/keys.md",
    "docs/how-to/pcp-broker.md",
    "docs/how-to/set-up.md",
    "docs/how-to/won-talk.md",
)
NOUNS = ("config", "doctor", "keys")  # the others' examples need servers, and are run by their own tests
_EXAMPLE = re.compile(r"^    (?:\.venv/bin/)?dovetail (.+)$", re.MULTILINE)


def commands(page: str) -> list[str]:
    found = _EXAMPLE.findall((ROOT / page).read_text())
    # Starting Spark takes long; tests/system does it.
    return [command for command in found if command.split()[0] in NOUNS and "--spark" not in command]


def run(command: str) -> int:
    words = shlex.split(command, comments=True)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        if ">" in words:
            words, target = words[: words.index(">")], words[-1]
            code = main(words)
            Path(target).write_text(output.getvalue())
            return code
        return main(words)


@pytest.mark.parametrize("page", PAGES)
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site.toml").write_text("")
    examples = commands(page)
    assert examples
    for command in examples:
        assert run(command) == 0, command
    if page.endswith("keys.md"):
        (key,) = shown(ROOT / page)
        name, mark, public = (tmp_path / "keys" / "pcp_broker.example_server.vkey").read_text().strip().split("+", 2)
        assert (name, len(mark), len(public)) == (key.split("+")[0], *map(len, key.split("+", 2)[1:]))


def test_what_pages_show_as_output_is_compared_by_a_test():
    """A page with a block of ```text is one of those whose commands a test runs: add the test, then the page here."""
    pages = [page for page in (ROOT / "docs").rglob("*.md") if shown(page)]
    compared = {"tutorial/three-fabrics.md", "tutorial/prove-it.md", "how-to/operate.md", "how-to/keys.md"}
    assert {str(page.relative_to(ROOT / "docs")) for page in pages} == compared


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_what_the_examples_in_python_import_is_there(page):
    for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        exec("\n".join(re.findall(r"^(?:from dovetail|import dovetail).*$", block, re.MULTILINE)), {})


def test_what_the_reference_of_python_names_is_there():
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    names = re.findall(r"^\.\. auto(?:class|function):: dovetail\.(\w+)$", page, re.MULTILINE)
    assert set(names) <= set(dovetail.__all__)
    missing = [name for name in dovetail.__all__ if not re.search(rf"\b{name}\b", page)]
    assert missing == ["__version__"]
