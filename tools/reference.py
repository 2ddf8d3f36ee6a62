"""Write docs/reference/{cli,config,errors,reasons}.md from the code; `--check` only reports outdated pages."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer
from typer.core import TyperGroup

from dovetail.cli import main as cli
from dovetail.model import errors
from dovetail.model.hop import Reason, Stage
from dovetail.site.config import Config
from dovetail.site.config.schema import allowed_text, keys_of, sections_of, toml_value, variable_of

if TYPE_CHECKING:
    from typer._click import Command, Context

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
WIDTH = 100
_RANGES = (("Any fabric", 1, 31), ("pcp", 32, 95), ("won", 96, 159), ("swarm", 160, 223))


def config_page() -> str:
    """The configuration: every section and key."""
    lines = [
        "# Configuration",
        "",
        "One TOML file. Every setting has a default, so an empty file is a complete configuration; unknown",
        "settings are errors. `dovetail config example` prints a file with all settings, `config check FILE` lists",
        "everything that is wrong with a file, and `config show FILE` prints the effective values and where each",
        "comes from.",
        "",
        "An environment variable overrides a setting: `DOVETAIL_`, followed by the parts of its name in upper",
        "case, joined by two underscores. Strings, paths and choices are written as they are, everything else as",
        "in TOML:",
        "",
        "    DOVETAIL_LAKE__DIRECTORY=/srv/lake DOVETAIL_LAKE__SEAL_INTERVAL_S=30 dovetail config show site.toml",
        "",
        "A variable with two underscores that matches no setting is an error, and so is a section's name followed",
        "by only one underscore. Relative paths are resolved against the directory of the file or, in a variable,",
        "the current directory. The file contains no keys, which are separate files. It may contain the `secret`",
        "of a private swarm, which `config show` hides.",
        "",
        "`[[pcp]]`, `[[won]]` and `[[swarm]]` are arrays of tables: one table for each server that `dovetail up`",
        "runs. Their settings have no environment variables.",
    ]
    for heading, section in sections_of(Config):
        name = heading.strip("[]")
        is_list = heading.startswith("[[")
        lines += ["", f"## {heading}", "", inspect.getdoc(section) or ""]
        for key in keys_of(section):
            full = f"{name}.{key.name}"
            lines += ["", f"### {full}", "", key.description, "", f"- allowed: {allowed_text(key.kind)}"]
            if key.default is msgspec.NODEFAULT:
                lines.append("- required")
            elif key.default is None:
                lines.append("- default: none")
            else:
                lines.append(f"- default: `{toml_value(key.default)}`")
            if not is_list:
                lines.append(f"- variable: `{variable_of(full)}`")
    return finish(lines)


def reasons_page() -> str:
    """Stages and reasons."""
    lines = [
        "# Stages and reasons",
        "",
        "What a server observed about a message, and why a message was rejected or did not arrive. Both lists are",
        "closed. The codes are stored in journals and never reused.",
        "",
        "## Stages",
        "",
        "| stage | code | meaning |",
        "|---|---|---|",
        *(f"| `{stage.value}` | {stage.code} | {stage.sentence} |" for stage in Stage),
        "",
        "## Reasons",
    ]
    for title, first, last in _RANGES:
        lines += ["", f"### {title} ({first}-{last})", "", "| reason | code | meaning |", "|---|---|---|"]
        members = sorted((r for r in Reason if first <= r.code <= last), key=lambda reason: reason.code)
        lines += [f"| `{reason.value}` | {reason.code} | {reason.sentence} |" for reason in members]
    return finish(lines)


def errors_page() -> str:
    """The tree of errors."""
    lines = [
        "# Errors",
        "",
        "All errors that Dovetail raises intentionally are subclasses of `DovetailError`. On the command line an",
        "error is one line on stderr and an [exit code](cli.md); `dovetail --debug` shows the traceback. A",
        "retriable error may be temporary: the same call can be repeated.",
        "",
        "| error | is a | retriable | meaning |",
        "|---|---|---|---|",
    ]
    for error, parent in error_tree(errors.DovetailError, None):
        is_a = f"`{parent.__name__}`" if parent else ""
        meaning = (inspect.getdoc(error) or "").splitlines()[0]
        lines.append(f"| `{error.__name__}` | {is_a} | {'yes' if error.retriable else 'no'} | {meaning} |")
    return finish(lines)


def error_tree(
    error: type[errors.DovetailError], parent: type[errors.DovetailError] | None
) -> Iterator[tuple[type[errors.DovetailError], type[errors.DovetailError] | None]]:
    """All subclasses of an error in errors.py, parents before children, in the order of the file."""
    yield error, parent
    for name, child in vars(errors).items():
        if (
            isinstance(child, type)
            and name == child.__name__
            and issubclass(child, errors.DovetailError)
            and error in child.__bases__
        ):
            yield from error_tree(child, error)


def cli_page() -> str:
    """The command line: the help of every command."""
    root = typer.main.get_group(cli.root)
    lines = [
        "# Command line",
        "",
        "Results go to stdout, messages and logs to stderr. `--json` prints one object per line.",
        "",
        "| exit code | meaning |",
        "|---|---|",
        "| 0 | done |",
        "| 1 | could not be done |",
        "| 2 | misuse: a wrong option, argument or configuration |",
        "| 3 | done, and the answer is no: not delivered, receipt invalid, journal broken, findings with `--fail-on` |",
        "| 4 | the server could not be reached, or refused the client |",
        "| 130 | interrupted |",
        "| 141 | the reader of the output has closed it |",
    ]
    for path, text in help_texts(root, "dovetail", None):
        lines += ["", f"## {path}", "", *(f"    {line}".rstrip() for line in text.splitlines())]
    return finish(lines)


def help_texts(command: Command, path: str, parent: Context | None) -> Iterator[tuple[str, str]]:
    """Path and help of a command and of all below it."""
    # A fixed width: the page must not depend on the terminal.
    context = command.make_context(
        path.rpartition(" ")[2],
        [],
        parent=parent,
        resilient_parsing=True,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
    )
    yield path, command.get_help(context)
    if isinstance(command, TyperGroup):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from help_texts(below, f"{path} {name}", context)


def finish(lines: list[str]) -> str:
    """A page's text, with a note that it is generated."""
    return "\n".join([*lines, "", "<!-- made by tools/reference.py: make docs -->", ""])


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "config.md": config_page,
    "errors.md": errors_page,
    "reasons.md": reasons_page,
}


def stale_pages(directory: Path = REFERENCE) -> list[str]:
    """The pages that are outdated."""
    return [
        name
        for name, make in PAGES.items()
        if not (directory / name).exists() or (directory / name).read_text() != make()
    ]


def main() -> int:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is not current")
    options = parser.parse_args()
    stale = stale_pages()
    for name in stale:
        if options.check:
            print(f"docs/reference/{name} is not current: make docs", file=sys.stderr)
        else:
            REFERENCE.mkdir(parents=True, exist_ok=True)
            (REFERENCE / name).write_text(PAGES[name]())
            print(f"docs/reference/{name} written", file=sys.stderr)
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
