"""Commands that talk to servers: what they print, how they end, contexts, and `dev`."""

import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import dovetail as api
from dovetail.cli.client_options import BrokerOptions, parse_duration
from dovetail.cli.main import SERVERS, is_among
from dovetail.cli.output import fit_widths, shorten
from dovetail.keys.signing import create_signing_key
from tables_on_disk import write_tables

ROOT = Path(__file__).parents[2]
ECHO = "pcp://echo/agent"


@pytest.fixture(autouse=True)
def config_directory(tmp_path, monkeypatch):
    """No test sees the user's contexts."""
    monkeypatch.setenv("DOVETAIL_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.delenv("DOVETAIL_CONTEXT", raising=False)
    return tmp_path / "config"


@pytest.fixture(scope="module")
def site():
    with api.local() as site:
        yield site


@pytest.fixture
def at(site):
    return ("--url", site.url, "--as", "pcp://you/agent")


def refused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.system
def test_send_prints_address_outcome_targets_and_id(dovetail, site, at):
    with api.sync.connect(site.url, "pcp://ben/agent") as ben:
        ran = dovetail("pcp", "send", "pcp://ben/agent", '{"n": 1}', *at)
        message = ben.receive(timeout=60)
        assert (ran.code, ran.err) == (0, "")
        assert ran.out == (
            f"address  {message.address}\noutcome  accepted\ntargets  pcp://ben/agent\nid       {message.id}\n"
        )
        sent = json.loads(dovetail("pcp", "send", "pcp://ben/agent", *at, "--type", "x", "--json").out)
        message = ben.receive(timeout=60)
        assert (sent["address"], sent["targets"], message.type) == (message.address, ["pcp://ben/agent"], "x")
        old = dovetail("pcp", "send", "http://example.com/x", "pcp://ben/agent", "--data", "7", "--report", *at)
        message = ben.receive(timeout=60)
        assert (old.code, message.type, message.data) == (0, "http://example.com/x", 7)
        assert "the old form will be removed in the next release" in old.err
        assert "--data is called DATA now" in old.err
        assert "--report has no effect any more" in old.err
        for text in (message.address, message.id, message.address[:10], message.id[:13], message.id.upper()):
            for command in (
                ("receipt", "show", "--trust", site.trust[0], "--journal"),
                ("receipt", "build", "--journal"),
            ):
                ran = dovetail(*command, site.journals[0], text)
                assert (ran.code, message.address in ran.out) == (0, True), (text, ran.err)
            assert dovetail("journal", "tail", site.journals[0], "--message", text).code == 0


@pytest.mark.system
def test_what_is_not_delivered_exits_with_3(dovetail, at):
    ran = dovetail("pcp", "send", "pcp://gone/agent", *at)
    assert (ran.code, ran.err) == (3, "")
    assert "outcome  nobody_there" in ran.out
    ran = dovetail("pcp", "send", "pcp://gone/agent", *at, "--reply")
    assert (ran.code, "outcome  nobody_there" in ran.out) == (3, True)
    ran = dovetail("pcp", "send", "pcp://gone/agent", *at, "--type", "a b", "--report")
    assert (ran.code, "has characters that are not allowed" in ran.out) == (3, True)


@pytest.mark.system
def test_a_server_that_is_not_there_is_one_line_and_4(dovetail, tmp_path):
    url = f"ws://127.0.0.1:{refused_port()}/pcp"
    for words in (("send", ECHO), ("listen",), ("inventory",), ("send", ECHO, "--wait", "200ms")):
        ran = dovetail("pcp", *words, "--url", url, "--as", "pcp://you/agent")
        assert (ran.code, ran.out) == (4, "")
        assert ran.err == f"dovetail: {url} cannot be reached: connection refused\n"
    ran = dovetail("swarm", "publish", "x", "--dir", tmp_path)
    assert (ran.code, ran.out, ran.err.count("\n")) == (4, "", 1)
    assert "has no running peer" in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pcp", "send", ECHO), "no broker"),
        (("pcp", "send", ECHO, "--url", "ws://127.0.0.1:1/pcp"), "no identity"),
        (("pcp", "send", "nowhere", "--url", "ws://127.0.0.1:1/pcp", "--as", ECHO), "is not a PCP URI"),
        (
            ("pcp", "send", ECHO, "hello", "--url", "ws://127.0.0.1:1/pcp", "--as", ECHO),
            """'hello' is not JSON; to send text, quote it twice: '"hello"'""",
        ),
        (("pcp", "send", ECHO, "1", "2", "--url", "ws://127.0.0.1:1/pcp", "--as", ECHO), "too many"),
        (("pcp", "send", ECHO, "--url", "wss://127.0.0.1:1/pcp", "--as", ECHO), "needs --certificate, --tls-key"),
        (("pcp", "send", ECHO, "--wait", "soon"), "is not a duration"),
        (("pcp", "send", ECHO, "--url", "ws://127.0.0.1:1/pcp", "--as", "me"), "'me' is not a PCP URI"),
        (("pcp", "send", ECHO, "--ttl", "0"), "it should be greater than"),
        (("pcp", "inventory", "agents", "--url", "ws://127.0.0.1:1/pcp", "--as", ECHO), "'agents' is not a PCP URI"),
        (("swarm", "publish", "x"), "no peer"),
        (("won", "log"), "`dovetail won create` makes one"),
        (("receipt", "show", "00"), "no trusted keys"),
        (("receipt", "build", "00"), "name at least one --journal"),
        (("receipt", "build", "zz", "--journal", "J"), "neither hex, a UUID nor"),
        (("context", "show"), "no context is current"),
        (("context", "check"), "no context is current"),
        (("context", "use", "../x"), "expected letters"),
        (("context", "save", "x", "--url", "gopher://x"), "is not the URL of a broker"),
        (("context", "save", "x", "--as", "me"), "'me' is not a PCP URI"),
        (("completion", "csh"), "csh"),
        (("completion",), "Choose from: bash, zsh, fish"),
        (("send", ECHO), "did you mean 'pcp send' or 'won send'?"),
        (("listne",), "there are: audit, "),
    ],
)
def test_misuse_is_one_line_and_2(dovetail, words, said, tmp_path, site):
    ran = dovetail(*(site.journals[0] if word == "J" else word for word in words))
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    assert said in ran.err


def test_an_unknown_context_is_one_line(dovetail):
    for words in (("context", "use", "nobody"), ("pcp", "inventory", "--context", "nobody")):
        ran = dovetail(*words)
        assert (ran.code, ran.err) == (1, "dovetail: there is no context 'nobody'; there are: none yet\n")


@pytest.mark.system
def test_contexts(dovetail, site, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert dovetail("context", "save", "a", "--url", site.url, "--as", "pcp://you/agent").code == 0
    assert dovetail("context", "save", "b", "--url", "ws://127.0.0.1:1/pcp", "--trust", "keys").code == 0
    assert dovetail("context", "use", "a").code == 0
    assert json.loads(dovetail("context", "show", "b", "--json").out)["trust"] == [str(tmp_path / "keys")]
    listed = [json.loads(line) for line in dovetail("context", "list", "--json").out.splitlines()]
    assert [(each["name"], each["current"]) for each in listed] == [("a", "*"), ("b", "")]
    assert dovetail("pcp", "inventory").out == "uri\npcp://you/agent\n"
    monkeypatch.setenv("DOVETAIL_CONTEXT", "b")
    assert dovetail("pcp", "inventory", "--as", "pcp://you/agent").code == 4
    assert dovetail("pcp", "inventory", "--context", "a").code == 0
    assert dovetail("context", "check", "a").out == f"{site.url} answers\n"
    ran = dovetail("context", "check", "b")
    assert (ran.code, ran.err) == (3, f"trust: {tmp_path / 'keys'} does not exist\n")
    assert (tmp_path / "config" / "contexts" / "a.toml").stat().st_mode & 0o077 == 0


@contextlib.contextmanager
def listening(*words: str):
    """`pcp listen` in another terminal."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "dovetail", "pcp", "listen", "--count", "1", *words]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert " listens at " in process.stderr.readline()
            yield process
        finally:
            process.kill()


@pytest.mark.system
def test_a_listener_is_not_disturbed_by_commands_of_its_context(dovetail, site, config_directory):
    """They say which option makes them work, and then do."""
    you = "pcp://you/agent"
    dovetail("context", "save", "a", "--url", site.url, "--as", you)
    dovetail("context", "use", "a")
    with listening() as process:
        for words in (("send", you, "1"), ("send", you, "1", "--reply"), ("inventory",), ("listen",)):
            ran = dovetail("pcp", *words)
            assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
            assert ran.err.endswith("give this one an identity of its own: --as pcp://you-2/agent\n")
        assert dovetail("pcp", "send", you, "2", "--as", "pcp://you-2/agent").code == 0
        said, troubles = process.communicate(timeout=60)
    assert (json.loads(said)["data"], json.loads(said)["sender"], troubles) == (2, "pcp://you-2/agent", "")
    assert sorted(path.name for path in (config_directory / "contexts").iterdir()) == ["a.toml", "current"]
    assert dovetail("pcp", "inventory").code == 0


@pytest.mark.system
def test_a_listener_that_was_killed_is_in_nobodys_way(dovetail, site):
    dovetail("context", "save", "a", "--url", site.url, "--as", "pcp://you/agent")
    with listening("--context", "a"):
        pass
    assert dovetail("pcp", "inventory", "--context", "a").code == 0


def test_a_certificate_fixes_the_name_of_an_identity(dovetail, config_directory):
    url = "wss://127.0.0.1:1/pcp"
    dovetail("context", "save", "a", "--url", url, "--as", "pcp://you/agent")
    dovetail("context", "use", "a")
    with (config_directory / "contexts" / "a.listening").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(api.DovetailError, match="--as pcp://you/agent-2"), BrokerOptions().turn():
            pass
    with BrokerOptions(url="wss://127.0.0.1:2/pcp").turn(), BrokerOptions().turn():
        pass


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("url = 7", "expected `str | null`, got `int`"),
        ("url = " + "[" * 5000, "maximum recursion depth exceeded"),
        ("url = " + "9" * 5000, "exceeds the limit (4300 digits)"),
    ],
    ids=["type", "nested", "number"],
)
def test_a_broken_context_is_one_line(dovetail, config_directory, text, problem):
    (config_directory / "contexts").mkdir(parents=True)
    (config_directory / "contexts" / "x.toml").write_text(text)
    ran = dovetail("context", "show", "x")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert f"x.toml: {problem}" in ran.err


def test_old_names_of_options_warn(dovetail, tmp_path):
    ran = dovetail("journal", "purge", tmp_path / "x.journal", "--key", tmp_path / "no.skey")
    assert ran.code == 1
    assert ran.err.splitlines()[0].startswith("dovetail: --key is called --signing-key now")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["pcp", "serve"], True),
        (["--log-level", "debug", "pcp", "serve"], True),
        (["up", "site.toml"], True),
        (["pcp", "send", "serve"], False),
        (["journal", "list"], False),
        ([], False),
    ],
)
def test_only_servers_log_what_they_do(words, expected):
    assert is_among(words, SERVERS) is expected


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("500ms", 0.5), ("2m", 120), ("1.5h", 5400), ("7", 7), (0.0, 0)]
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


def test_long_cells_are_shortened_in_the_middle():
    assert (
        shorten("swarm://harbour/51ae0123456789abcdef068c", 26)
        == "swarm://harb...bcdef068c"[:12] + "..." + "9abcdef068c"
    )
    assert shorten("short", 8) == "short"
    assert sum(fit_widths([10, 64, 20], 60)) == 60
    assert fit_widths([10, 64, 20], 200) == [10, 64, 20]
    assert min(fit_widths([64, 64, 64], 10)) == 8


def run_process(*words: object, **more: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")} | more.pop("env", {})
    return subprocess.run(
        [sys.executable, "-m", "dovetail", *map(str, words)], capture_output=True, text=True, env=environment, **more
    )


@contextlib.contextmanager
def running_dev(directory: Path, *words: str):
    """`dovetail dev` in a directory; its first line."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(
        [sys.executable, "-m", "dovetail", "dev", "--json", "--port", "0", *words],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process, json.loads(process.stdout.readline())
    finally:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in said


@pytest.mark.system
def test_three_commands_send_receive_and_prove(tmp_path):
    """What the README promises."""
    for _ in range(2):  # a second time with the same directory, whose journal continues
        with running_dev(tmp_path) as (_, ready):
            assert ready["context"] == "dev"
            sent = run_process("pcp", "send", ECHO, '"hello"', "--reply", cwd=tmp_path)
            assert (sent.returncode, sent.stderr) == (0, "")
            lines = dict(line.split(maxsplit=1) for line in sent.stdout.splitlines())
            assert lines["outcome"] == "accepted"
            assert lines["data"] == '{"echo": "hello"}'
            shown = run_process("receipt", "show", lines["address"][:8], cwd=tmp_path)
            assert (shown.returncode, shown.stderr) == (0, "")
            assert (
                'pcp://broker/server handed the message over to the connection of "pcp://echo/agent" at '
                in shown.stdout
            )
            reply = run_process("receipt", "show", lines["reply"], cwd=tmp_path)
            assert 'accepted the message from "pcp://echo/agent"' in reply.stdout
    gone = run_process("pcp", "send", ECHO, "1", cwd=tmp_path)
    assert (gone.returncode, gone.stdout, gone.stderr.count("\n")) == (4, "", 1)


@pytest.mark.system
def test_dev_does_not_take_a_port_or_a_context_that_is_used(tmp_path):
    run_process("context", "save", "mine", "--url", "ws://127.0.0.1:1/pcp", cwd=tmp_path)
    run_process("context", "use", "mine", cwd=tmp_path)
    with running_dev(tmp_path) as (_, ready):
        assert run_process("context", "show", "--json", cwd=tmp_path).stdout.startswith('{"name":"mine"')
        port = re.search(r":(\d+)/", ready["url"])[1]
        second = run_process("dev", "--port", port, "--dir", "other", cwd=tmp_path)
        assert (second.returncode, second.stdout) == (1, "")
        assert "choose another port" in second.stderr.splitlines()[-1]
        assert not (tmp_path / "other").exists()


def test_a_place_for_contexts_that_cannot_be_written_is_named(dovetail, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DOVETAIL_CONFIG_DIR", str(tmp_path / "file"))
    for words in (("context", "save", "x", "--url", "ws://a/pcp"), ("dev", "--port", 0, "--dir", tmp_path / "new")):
        ran = dovetail(*words)
        place = tmp_path / "file" / "contexts"
        said = f"dovetail: {place} cannot be written: File exists; $DOVETAIL_CONFIG_DIR can name another place\n"
        assert (ran.code, ran.out, ran.err) == (1, "", said)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.system
def test_an_atom_is_made_where_its_context_says(dovetail, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dovetail("context", "save", "a", "--home", "ann")
    with api.local("won", directory=tmp_path / "site") as site:
        made = dovetail("won", "create", "--node", site.node, "--context", "a")
        assert (made.code, (tmp_path / "ann" / "atom.json").exists()) == (0, True)
        assert dovetail("won", "log", "--context", "a").code == 0


@pytest.mark.system
def test_the_dashboard_of_a_context_opens_before_anything_is_sealed(dovetail, site, tmp_path):
    dovetail("context", "save", "a", "--journals", site.journals[0], "--lake", tmp_path / "lake", "--tables", tmp_path)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "dovetail", "dashboard", "--context", "a", "--port", "0"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        said = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert "http://127.0.0.1:" in said


def test_a_context_has_journals_lake_tables_and_trust(dovetail, site, tmp_path, monkeypatch):
    """Each command that takes one of them takes it from the context, and asks for it where there is none."""
    lake, tables = tmp_path / "lake", write_tables(tmp_path / "tables", {"findings": []})
    journal, key = site.journals[0], site.trust[0]
    with api.sync.connect(site.url, "pcp://ann/agent") as ann:
        sent = ann.send("pcp://ann/agent", "x")
    site.receipt(sent.address).save(tmp_path / "x.receipt")
    api.open_lake(lake).seal(journal)
    commands = (
        ("journal", "list"),
        ("journal", "keys"),
        ("journal", "tail"),
        ("journal", "verify"),
        ("journal", "seal"),
        ("audit", "tables"),
        ("audit", "show", "findings"),
        ("audit", "compact", "--before", "2000-01-01", "--dry-run"),
        ("receipt", "verify", tmp_path / "x.receipt"),
        ("receipt", "show", sent.address[:16]),
        ("receipt", "build", sent.address[:16]),
        ("receipt", "complete", "--from", "2020-01-01", "--until", "2099-01-01"),
        ("report",),
    )
    for words in commands:
        asked = dovetail(*words)
        assert (asked.code, asked.err.count("\n")) == (2, 1), (words, asked)
    assert dovetail("dashboard").code == 2
    given = ("--journals", journal, "--lake", lake, "--tables", tables, "--trust", key)
    assert dovetail("context", "save", "all", *given).code == 0
    monkeypatch.chdir(tmp_path)
    for words in commands:
        assert dovetail(*words, "--context", "all").code == 0, words
        assert dovetail(*words).code == 2, "only the one command"
    monkeypatch.setenv("DOVETAIL_CONTEXT", "all")
    for words in commands:
        assert dovetail(*words).code == 0, words
    create_signing_key(tmp_path / "strangers", "pcp://broker/server")
    dovetail("context", "save", "all", "--trust", tmp_path / "strangers")
    assert (dovetail("journal", "verify").code, dovetail("journal", "verify", journal).code) == (3, 0)
    wrong = dovetail("audit", "show", "findings", "--columns", "check,severty")
    assert (wrong.code, wrong.out, "there is no column 'severty'" in wrong.err) == (2, "", True)
    assert "called --tables now" in dovetail("report", tables).err


@pytest.mark.system
def test_commands_of_one_context_take_turns(dovetail, site):
    """The second does not take over the name of the first, which waits for a reply."""
    dovetail("context", "save", "desk", "--url", site.url, "--as", "pcp://desk/agent")
    dovetail("context", "use", "desk")
    command = [sys.executable, "-m", "dovetail", "pcp", "send", "pcp://ben/agent"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    pipes = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with (
        api.sync.connect(site.url, "pcp://ben/agent") as ben,
        subprocess.Popen([*command, "1", "--reply"], **pipes) as first,
    ):
        question = ben.receive(timeout=30)
        with subprocess.Popen([*command, "2"], **pipes) as second:
            assert "waiting for another command of this context" in second.stderr.readline()
            assert ben.reply(question, "yes").ok
            assert "yes" in first.communicate(timeout=30)[0]
            assert ben.receive(timeout=30).data == 2
            assert "accepted" in second.communicate(timeout=30)[0]
    assert (first.returncode, second.returncode) == (0, 0)
