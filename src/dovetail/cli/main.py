"""The entry point: finds the noun, loads only its module, and turns errors into one line and an exit code.

0 success, 1 failure, 2 misuse, 3 done but the answer is no, 4 server unreachable or client refused, 130 interrupted,
141 the reader of our output closed the pipe
"""

from __future__ import annotations

import difflib
import importlib
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer.core import TyperGroup

from dovetail import __version__
from dovetail.cli.exit_codes import (
    EXIT_BROKEN_PIPE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_MISUSE,
    EXIT_NO,
    EXIT_NOT_REACHED,
)
from dovetail.cli.metavars import name_values

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter
    from typer._click.shell_completion import CompletionItem

COMPLETE_VARIABLE = "_DOVETAIL_COMPLETE"
"""A shell that wants to know how a line goes on sets it to its name; the line is the only argument."""


@dataclass(frozen=True, slots=True)
class Noun:
    """A row of the table of nouns: its module in this package has an `app`, loaded on demand."""

    name: str
    help: str
    verbless: bool = False
    """The app has one command, which is the noun itself."""


NOUNS = (
    Noun("audit", "Audit the lake on Spark, and inspect its tables."),
    Noun("completion", "Print the script that completes commands in a shell.", verbless=True),
    Noun("config", "Check, show and write configuration files."),
    Noun("context", "Save servers, keys and files under a name for commands to use."),
    Noun("dashboard", "Serve a live, read-only web page over journals, lake and audit.", verbless=True),
    Noun("demo", "Inject faults in every fabric; check that the audit finds them.", verbless=True),
    Noun("dev", "Run a broker with an echo agent here, to try things out.", verbless=True),
    Noun("doctor", "Check this machine and suggest fixes.", verbless=True),
    Noun("journal", "Inspect, verify, seal and purge journals."),
    Noun("keys", "A private CA, certificates and signing keys."),
    Noun("otel", "Export hops of journals as OpenTelemetry spans.", verbless=True),
    Noun("pcp", "The broker and its clients."),
    Noun("receipt", "Prove one delivery to anybody; check a proof offline."),
    Noun("report", "One page that shows what an audit found; works offline.", verbless=True),
    Noun("sim", "Simulated worlds: same seed, same journals, byte for byte."),
    Noun("swarm", "Peers that keep one DAG of messages complete."),
    Noun("up", "Run and supervise the servers defined in a configuration file.", verbless=True),
    Noun("won", "Nodes and owners: signed messages in delivery chains."),
)


SERVERS = {
    *((noun,) for noun in ("dashboard", "demo", "otel", "up")),
    *((noun, "serve") for noun in ("pcp", "won", "swarm")),
    ("audit", "follow"),
}
"""Commands that run until they are stopped log what they do; `dev` and the others log only what is wrong."""

RELOADING = {("up",), ("pcp", "serve")}
"""Commands that reload their configuration on SIGHUP."""


def is_among(arguments: Sequence[str], commands: Set[tuple[str, ...]]) -> bool:
    """True if a command line is for one of these commands; options of `dovetail` itself may come first."""
    words = [word for word in arguments if not word.startswith("-")]
    names = {noun.name for noun in NOUNS}
    while words and words[0] not in names:
        del words[0]
    return tuple(words[:1]) in commands or tuple(words[:2]) in commands


if is_among(sys.argv[1:], RELOADING):
    # a SIGHUP that arrives during imports must not end the process
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})


class LazyGroup(TyperGroup):
    """The root command. Its help comes from the table, so that no noun's module has to be loaded."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        ctx.meta["is_server"] = is_among(args, SERVERS)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Context) -> list[str]:  # noqa: ARG002
        return sorted([*(noun.name for noun in NOUNS), *self.commands])

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:  # noqa: ARG002
        for noun in NOUNS:
            if noun.name == cmd_name:
                return load_noun(noun)
        return self.commands.get(cmd_name)

    def _rows(self) -> list[tuple[str, str]]:
        rows = {noun.name: noun.help for noun in NOUNS}
        rows |= {name: command.get_short_help_str(limit=80) for name, command in self.commands.items()}
        return sorted(rows.items())

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(self._rows())

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        from typer._click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=said) for name, said in self._rows() if name.startswith(incomplete)]
        return [*found, *super(TyperGroup, self).shell_complete(ctx, incomplete)]

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        command = self.get_command(ctx, args[0])
        if command is None:
            ctx.fail(f"no such command {args[0]!r}; {self._hint(ctx, args[0])}")
        return args[0], command, args[1:]

    def _hint(self, ctx: Context, word: str) -> str:
        """What was meant by a word that is no command: a similar one, or the nouns with such a verb."""
        near = difflib.get_close_matches(word, self.list_commands(ctx), n=1)
        if near:
            return f"did you mean {near[0]!r}?"
        groups = [(noun.name, load_noun(noun)) for noun in NOUNS if not noun.verbless]
        verbs = [f"{name} {word}" for name, group in groups if group.get_command(ctx, word) is not None]  # type: ignore[attr-defined]
        if verbs:
            return f"did you mean {' or '.join(map(repr, verbs))}?"
        return f"there are: {', '.join(self.list_commands(ctx))}"


_WHOLE_SENTENCE = 200
"""Longest first sentence of a help text, which the list of commands shows; it would be cut at the end of its line."""


def load_noun(noun: Noun) -> Command:
    """The command of a noun, from its module."""
    app: typer.Typer = importlib.import_module(f"dovetail.cli.{noun.name}").app
    app.rich_markup_mode = None
    group = typer.main.get_group(app)
    command: Command = group
    if noun.verbless:
        (command,) = group.commands.values()
    else:
        for verb in group.commands.values():
            verb.short_help = verb.get_short_help_str(limit=_WHOLE_SENTENCE)
    command.name = noun.name
    name_values(command)
    return command


root = typer.Typer(
    cls=LazyGroup,
    name="dovetail",
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        "Results go to stdout, messages and logs to stderr. Exit codes: 0 done, 1 could not be done, 2 misuse, 3 done "
        "and the answer is no, 4 the server could not be reached or refused the client."
    ),
)


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"dovetail {__version__}\n")
        raise typer.Exit


@root.callback()
def start(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,  # noqa: ARG001
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None,
        typer.Option(
            metavar="debug|info|warning|error",
            help="Minimum log level; `info` by default for servers, `warning` for the rest.",
        ),
    ] = None,
    log_format: Annotated[
        Literal["text", "json"] | None,
        typer.Option(metavar="text|json", help="Log format: text or one JSON object per line; `text` by default."),
    ] = None,
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Message delivery you can prove: deliver messages, journal every hop, audit the journals."""
    from dovetail.cli import logs

    logs.configure(level=log_level or ("info" if context.meta["is_server"] else "warning"), form=log_format or "text")


@root.command("version")
def print_version(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Print the versions of Dovetail and Python."""
    import platform

    from dovetail.cli.output import print_record

    print_record({"dovetail": __version__, "python": platform.python_version()}, as_json=as_json)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: discard the output
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - for the life of the process
    code = _run(arguments)
    try:
        sys.stdout.flush()
    except OSError as error:
        # Python flushes stdout again at exit; give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return EXIT_BROKEN_PIPE
        if code in (0, EXIT_NO):  # otherwise an error was already printed
            return report(error)
    return code


def _run(arguments: Sequence[str] | None) -> int:
    command = typer.main.get_group(root)
    context: Context | None = None
    try:
        if arguments is None and answer_completion(command):
            return 0
        context = command.make_context("dovetail", list(sys.argv[1:] if arguments is None else arguments))
        with context:
            command.invoke(context)
    except typer.Exit as exit_:
        return exit_.exit_code
    except (KeyboardInterrupt, typer.Abort):
        warnings.simplefilter("ignore")  # do not warn of coroutines that were never awaited
        sys.stderr.write("\n")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE
    except Exception as error:
        if context is not None and context.params["debug"]:
            traceback.print_exc()
        return report(error)
    return 0


def answer_completion(command: Command) -> bool:
    """Answer a shell's request for completions; True if there was one."""
    shell = os.environ.get(COMPLETE_VARIABLE)
    if shell is None or len(sys.argv) != 2:
        return False
    from dovetail.cli.completion import answer

    for candidate in answer(command, shell, sys.argv[1]):
        sys.stdout.write(f"{candidate}\n")
    return True


def report(error: Exception) -> int:
    """Report an error in one line and return its exit code."""
    from dovetail.cli.output import say
    from dovetail.model.errors import ConnectFailed, DovetailError, MissingExtra, NotAllowed, UsageError

    match error:
        case UsageError():
            say(f"dovetail: {error}")
            return EXIT_MISUSE
        case ConnectFailed() | NotAllowed():
            say(f"dovetail: {error}")
            return EXIT_NOT_REACHED
        case ImportError() if (missing := MissingExtra.explain(error)) is not None:
            say(f"dovetail: {missing}")
        case DovetailError():
            say(f"dovetail: {error}")
        case typer.TyperException():
            return _report_misuse(error)
        case OSError(filename=str(name)):
            say(f"dovetail: {name}: {error.strerror or error}")
        case OSError():
            say(f"dovetail: {error.strerror or error}")
        case _:
            say(f"dovetail: internal error: {type(error).__name__}: {error} (--debug shows where)")
    return EXIT_FAILED


def _report_misuse(error: typer.TyperException) -> int:
    from typer._click.exceptions import NoSuchOption

    from dovetail.cli.output import say

    context: Context | None = getattr(error, "ctx", None)
    if isinstance(error, NoSuchOption) and error.possibilities and context is not None:
        shown = [option for option in context.command.get_params(context) if not getattr(option, "hidden", False)]
        error.possibilities = difflib.get_close_matches(error.option_name, [n for each in shown for n in each.opts])
    text = error.format_message()
    if context is not None and text == context.get_help():
        # No arguments: the message is the help text.
        sys.stderr.write(text + "\n")
        return error.exit_code
    # words of the validator that mean nothing to a user
    text = " ".join(text.split()).replace("Value error, ", "").replace("Input should be ", "it should be ")
    hint = f" (see {context.command_path} --help)" if context is not None else ""
    say(f"dovetail: {text[:1].lower()}{text[1:].rstrip('.')}{hint}")
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
