"""Commands in bad conditions: signals, closed streams, narrow terminals."""

import contextlib
import os
import pty
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import dovetail as api
from cli.grid_site import NODE
from dovetail.keys.signing import create_signing_key

pytestmark = pytest.mark.system
ROOT = Path(__file__).parents[2]


@pytest.fixture
def environment(tmp_path):
    return os.environ | {"PYTHONPATH": str(ROOT / "src"), "DOVETAIL_CONFIG_DIR": str(tmp_path / "config")}


@pytest.fixture(scope="module")
def site():
    with api.local() as site:
        yield site


def start(environment, *words, **more):
    return subprocess.Popen([sys.executable, "-m", "dovetail", *map(str, words)], env=environment, text=True, **more)


def one_line(text):
    return text.count("\n") == 1 and text.startswith("dovetail: ") and "Traceback" not in text


@pytest.mark.parametrize("number", [signal.SIGINT])
def test_ctrl_c_ends_a_listener_in_silence(site, environment, number):
    words = ("pcp", "listen", "--url", site.url, "--as", "pcp://ben/agent")
    process = start(environment, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert "listens at" in process.stderr.readline()
    process.send_signal(number)
    out, said = process.communicate(timeout=60)
    assert (process.returncode, out, said) == (130, "", "\n")


def test_a_reader_that_goes_away(site, environment):
    with api.sync.connect(site.url, "pcp://ann/agent") as ann:
        words = ("pcp", "listen", "--url", site.url, "--as", "pcp://ben/agent")
        process = start(environment, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert "listens at" in process.stderr.readline()
        process.stdout.close()
        while process.poll() is None and ann.send("pcp://ben/agent", "x" * 10_000).ok:
            pass
        said = process.stderr.read()
        process.wait(60)
        process.stderr.close()
    assert (process.returncode, said) == (141, "")


def test_stdin_that_is_closed(site, environment, tmp_path):
    shell = f'exec "{sys.executable}" -m dovetail pcp send pcp://ben/agent - --url {site.url} --as pcp://a/agent <&-'
    ran = subprocess.run(["sh", "-c", shell], env=environment, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert one_line(ran.stderr)


def test_a_terminal_of_40_columns(site, environment):
    master, slave = pty.openpty()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, master)
        process = start(environment | {"COLUMNS": "40"}, "journal", "list", site.journals[0], stdout=slave)
        os.close(slave)
        shown = b""
        with contextlib.suppress(OSError):
            while part := os.read(master, 4096):
                shown += part
        assert process.wait(60) == 0
    assert [line.split()[0] for line in shown.decode().splitlines()] == [
        *("path", "server", "hops", "messages", "signed", "last", "bytes")
    ]
    wide = subprocess.run(
        [sys.executable, "-m", "dovetail", "journal", "list", str(site.journals[0]), "--markdown"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert str(site.journals[0]) in wide.stdout
    assert wide.stdout.startswith("| path | server |")


@pytest.mark.parametrize("fabric", ["pcp", "pcp's metrics", "won", "swarm", "certificate"])
def test_a_server_that_cannot_start_leaves_nothing_behind(dovetail, tmp_path, fabric):
    """Its port is in use, or its certificate is not one: no keys and no journal are made for it."""
    key, _ = create_signing_key(tmp_path, NODE)
    (tmp_path / "swarm.toml").write_text('name = "s"')
    before = set(tmp_path.iterdir())
    kind = socket.SOCK_DGRAM if fabric == "swarm" else socket.SOCK_STREAM
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1", 0))
        if fabric != "swarm":
            taken.listen()
        port = taken.getsockname()[1]
        new, where = tmp_path / "new", ("--listen", f"127.0.0.1:{port}")
        pcp = ("pcp", "serve", "--journal", new / "j.db")
        files = [word for name in ("--certificate", "--tls-key", "--authority") for word in (name, key)]
        ran = dovetail(
            *{
                "pcp": (*pcp, "--insecure-plain", "--allow-all", "--port", port),
                "pcp's metrics": (*pcp, "--insecure-plain", "--allow-all", "--port", 0, "--metrics-port", port),
                "won": ("won", "serve", "--uri", NODE, "--signing-key", key, "--journal", new / "j.db", *where),
                "swarm": ("swarm", "serve", "--settings", tmp_path / "swarm.toml", "--dir", new, *where),
                "certificate": (*pcp, "--port", 0, *files),
            }[fabric]
        )
    assert ran.code == 1
    assert one_line(ran.err)
    assert (f"port {port} of 127.0.0.1 is in use" in ran.err) is (fabric != "certificate")
    assert set(tmp_path.iterdir()) == before
