import importlib
import re
import subprocess
import sys

import pytest
import typer

from dovetail import __version__
from dovetail.cli import main as main_module
from dovetail.cli.main import NOUNS, RELOADING, Noun, is_among, load_noun, main
from dovetail.model.errors import JournalFull, UsageError

HEAVY = ("pyspark", "pyarrow", "pyoxigraph", "picows", "cryptography", "rich", "pandas", "numpy")
MAX_MODULES_FOR_HELP = 250


def raising(error: BaseException) -> typer.Typer:
    """An app with one command that raises."""
    app = typer.Typer()

    @app.command()
    def fail() -> None:
        raise error

    return app


@pytest.fixture
def mount(monkeypatch):
    """Adds an app to the table as a noun `trial`, in its own module."""

    def put(app: typer.Typer) -> None:
        module = type(sys)("dovetail.cli.trial")
        module.app = app
        monkeypatch.setitem(sys.modules, "dovetail.cli.trial", module)
        monkeypatch.setattr(main_module, "NOUNS", (*NOUNS, Noun("trial", "A trial.", verbless=True)))

    return put


def test_help_names_every_noun_with_its_sentence(dovetail):
    ran = dovetail("--help")
    assert ran.code == 0
    assert ran.err == ""
    for noun in NOUNS:
        assert f"{noun.name} " in ran.out
        assert noun.help in ran.out


@pytest.mark.parametrize("noun", NOUNS, ids=lambda noun: noun.name)
def test_every_noun_loads_and_explains_itself(dovetail, noun):
    ran = dovetail(noun.name, "--help")
    assert ran.code == 0
    assert ran.out.startswith(f"Usage: dovetail {noun.name} ")


@pytest.mark.parametrize("noun", [noun for noun in NOUNS if not noun.verbless], ids=lambda noun: noun.name)
def test_every_verb_has_a_sentence(dovetail, noun):
    listed = " ".join(dovetail(noun.name, "--help").out.split())
    assert "..." not in listed.partition("Commands:")[2], "a sentence is cut"
    for name, command in load_noun(noun).commands.items():
        assert command.help, f"dovetail {noun.name} {name} has no help"
        assert dovetail(noun.name, name, "--help").code == 0


def parameters(command, path):
    """Every parameter of a command and of those below it, with the first column of its help."""
    context = command.make_context(path, [], resilient_parsing=True)
    for parameter in command.get_params(context):
        shown = parameter.get_help_record(context)
        if shown is not None:
            yield path, parameter, shown[0]
    for name, below in getattr(command, "commands", {}).items():
        yield from parameters(below, f"{path} {name}")


def test_help_names_values_in_words_not_in_types(dovetail):
    assert "<" not in dovetail("--help").out
    found = [each for noun in NOUNS for each in parameters(load_noun(noun), noun.name)]
    assert {path.partition(" ")[0] for path, _, _ in found} == {noun.name for noun in NOUNS}
    for path, parameter, shown in found:
        if parameter.param_type_name == "argument":
            assert shown == parameter.metavar, f"{path}: {shown}"
        elif not parameter.is_flag:
            assert re.fullmatch(r"(-\w, )?--[\w-]+ [^<>]+", shown), f"{path}: {shown}"


def test_help_loads_nothing_heavy():
    script = "import sys; from dovetail.cli.main import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in ran.stderr.split()}
    assert loaded.isdisjoint(HEAVY)
    assert len(ran.stderr.split()) < MAX_MODULES_FOR_HELP
    assert not [name for name in ran.stderr.split() if name in {f"dovetail.cli.{noun.name}" for noun in NOUNS}]


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (["pcp", "send", "--url", "ws://127.0.0.1:1/pcp", "--as", "pcp://me/agent", "pcp://a/agent"], {"picows"}),
        (["context", "list"], set()),
    ],
)
def test_commands_load_nothing_heavy_that_they_do_not_need(words, needed):
    script = f"import sys; from dovetail.cli.main import main; main({words}); print(*sys.modules, file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in ran.stderr.split()}
    assert loaded & {*HEAVY, "sqlite3", "prometheus_client"} == needed


def test_version(dovetail):
    assert dovetail("--version").out == f"dovetail {__version__}\n"
    assert f'"dovetail":"{__version__}"' in dovetail("version", "--json").out


def test_nothing_asked_is_misuse_and_shows_help(dovetail):
    ran = dovetail()
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("Usage: dovetail ")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["keyz"], "did you mean 'keys'?"),
        (["config", "chek"], "Did you mean 'check'?"),
        (["config", "show", "--jsn"], "--json"),
        (["zzzz"], "there are: audit,"),
    ],
)
def test_mistyped_words_are_misuse_and_suggest_the_near_one(dovetail, arguments, hint):
    ran = dovetail(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("dovetail: no such ")
    assert hint in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("command", [("pcp", "listen"), ("journal", "checkpoint"), ("audit", "run")])
def test_hidden_options_are_not_suggested(dovetail, command):
    for mistyped in ("--kee", "--patienc"):
        ran = dovetail(*command, mistyped)
        assert ran.err == f"dovetail: no such option: {mistyped} (see dovetail {' '.join(command)} --help)\n"


def test_a_bad_value_is_misuse_and_names_what_is_allowed(dovetail):
    ran = dovetail("--log-level", "loud", "version")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        "dovetail: invalid value for '--log-level': 'loud' is not one of 'debug', 'info', 'warning', 'error'"
        " (see dovetail --help)\n"
    )


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (JournalFull("no room"), 1, "dovetail: no room\n"),
        (UsageError("two of one"), 2, "dovetail: two of one\n"),
        (JournalFull("a\x1b[31m\nb\u202e"), 1, "dovetail: a\\x1b[31m\\nb\\u202e\n"),
        (PermissionError(13, "Permission denied", "/x"), 1, "dovetail: /x: Permission denied\n"),
        (KeyError("k"), 1, "dovetail: internal error: KeyError: 'k' (--debug shows where)\n"),
        (KeyboardInterrupt(), 130, "\n"),
        (typer.Exit(7), 7, ""),
    ],
)
def test_errors_are_one_line_and_an_exit_code(dovetail, mount, error, code, line):
    mount(raising(error))
    ran = dovetail("trial")
    assert (ran.code, ran.out, ran.err) == (code, "", line)


def test_debug_shows_the_traceback(dovetail, mount):
    mount(raising(JournalFull("no room")))
    ran = dovetail("--debug", "trial")
    assert ran.code == 1
    assert ran.err.startswith("Traceback ")
    assert ran.err.endswith("dovetail: no room\n")


def test_a_reader_that_goes_away_is_no_error():
    script = "yes '' | head -n 1 >/dev/null; {} -m dovetail config example | true; exit ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", script.format(sys.executable)], capture_output=True, text=True, check=False)
    assert ran.stderr == ""
    assert ran.returncode in (0, 141)


def test_a_broken_pipe_has_its_own_exit_code(mount, tmp_path):
    script = (
        "import sys, typer; from dovetail.cli import main as m\n"
        "app = typer.Typer()\n"
        "@app.command()\n"
        "def flood() -> None:\n"
        "    while True: sys.stdout.write('x' * 65536)\n"
        "module = type(sys)('dovetail.cli.flood'); module.app = app; sys.modules[module.__name__] = module\n"
        "m.NOUNS = (m.Noun('flood', '', True),)\n"
        "sys.exit(m.main(['flood']))\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=30) == 141


def test_modules_of_all_nouns_exist():
    for noun in NOUNS:
        assert hasattr(importlib.import_module(f"dovetail.cli.{noun.name}"), "app")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("pcp serve --config site.toml", True),
        ("up site.toml", True),
        ("up", True),
        ("--log-level debug --log-format json pcp serve", True),
        ("--log-format=json --debug up site.toml", True),
        ("pcp send serve", False),
        ("upload", False),
        ("--log-level info won serve", False),
        ("", False),
    ],
)
def test_what_rereads_its_configuration_outlives_an_early_sighup(line, expected):
    assert is_among(line.split(), RELOADING) is expected


def test_main_reads_the_command_line_of_the_process(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["dovetail", "--version"])
    assert main() == 0
    assert __version__ in capsys.readouterr().out
