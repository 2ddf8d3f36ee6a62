"""The commands in the documentation run, in page order."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest
import typer

import dovetail
from docs.shown import shown
from dovetail.cli import main as cli
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
    """A page with a block of ```text is one whose commands a test runs: add the test, then the page here."""
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


_ROOT = typer.main.get_group(cli.root)
PREFIXES = {"won message v1", "retained fields"}
"""Not commands: what signed data begins with."""
_NAMED = re.compile(r"(?:^ {4,}|`)(?:\.venv/bin/)?dovetail ((?:[^`\n]|\\\n)+)", re.MULTILINE)


def named_commands(page: Path) -> list[str]:
    """Commands on a page, in blocks and in sentences, with their lines joined."""
    found = [text.replace("\\\n", " ") for text in _NAMED.findall(page.read_text())]
    return [text for text in found if text not in PREFIXES]


def unknown_words(text: str) -> list[str]:
    """The parts of a command that the command line does not know: noun, verb, or option."""
    text = re.sub(r"\$\(.*?\)|\s(#|\||>|&&).*", "", text.strip()).replace("/--", " --")
    words = re.split(r"\s+", text)
    command = _ROOT
    context = typer.Context(_ROOT)
    while words and hasattr(command, "get_command"):
        name = words.pop(0)
        if not re.fullmatch(r"[a-z][a-z0-9-]*", name):  # a placeholder, or an option of the root
            return []
        command = command.get_command(context, name)
        if command is None:
            return [name]
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]  # not the old names
    options = {option for parameter in shown for option in (*parameter.opts, *parameter.secondary_opts)}
    asked = {word.partition("=")[0].rstrip(".,;:)|]") for word in words if re.match(r"-{1,2}[a-z]", word.lstrip("["))}
    return sorted({option.lstrip("[") for option in asked} - options - {"--help", "-h"})


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: page.name
)
def test_every_command_and_option_that_a_page_names_exists(page):
    if page.name == "cli.md":  # generated from the commands
        return
    unknown = {text: words for text in named_commands(page) if (words := unknown_words(text))}
    assert unknown == {}
