"""The broker as a process of its own, with its real journal: the command line, drain, and restart."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from dovetail.hop import Stage
from dovetail.journal.reader import JournalReader

pytestmark = pytest.mark.system
RUN = "from dovetail.cli.main import report; from dovetail.cli.pcp import app; import sys\n"
RUN += "try: app(sys.argv[1:], standalone_mode=False)\nexcept Exception as error: sys.exit(report(error))"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}


def pcp(*arguments: str, timeout_s: float = 30, **more) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", RUN, *arguments]
    return subprocess.run(command, env=ENVIRONMENT, text=True, capture_output=True, timeout=timeout_s, **more)


@contextmanager
def serving(*arguments: str):
    command = [
        sys.executable,
        "-c",
        RUN,
        "serve",
        "--insecure-plain",
        "--allow-all",
        "--port",
        "0",
        "--json",
        *arguments,
    ]
    process = subprocess.Popen(command, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        started = json.loads(process.stdout.readline())
        yield process, started["url"]
    finally:
        process.terminate()
        process.communicate(timeout=20)


def test_send_listen_and_inventory_through_a_broker_with_a_journal(tmp_path):
    path = tmp_path / "broker.journal"
    with serving("--journal", str(path), "--name", "broker1") as (process, url):
        command = [sys.executable, "-c", RUN, "listen", "--url", url, "--as", "pcp://agent1/agent", "--count", "1"]
        listener = subprocess.Popen(command, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE)
        client = ["--url", url, "--as", "pcp://boss/controller", "--json"]
        for _ in range(50):
            found = pcp("inventory", "pcp://*/agent", *client)
            if found.stdout:
                break
        assert [json.loads(line) for line in found.stdout.splitlines()] == [{"uri": "pcp://agent1/agent"}]
        sent = pcp("send", "http://example.com/ping", "pcp://*/agent", *client, "--data", '{"n": 1}', "--report")
        assert json.loads(sent.stdout) == {"targets": ["pcp://agent1/agent"]}
        message = json.loads(listener.communicate(timeout=20)[0])
        assert (message["sender"], message["data"]) == ("pcp://boss/controller", {"n": 1})
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    with JournalReader.open(path) as reader:
        assert reader.identity.server == "pcp://broker1/server"
        stages = {hop.stage for hop in reader.hops()}
    assert {Stage.ACCEPTED, Stage.CREATED, Stage.DELIVERED} <= stages


def test_a_restarted_broker_goes_on_with_its_journal(tmp_path):
    path = str(tmp_path / "broker.journal")
    for _ in range(2):
        with serving("--journal", path, "--durability", "full") as (process, url):
            sent = pcp("send", "http://example.com/x", "pcp://ghost/agent", "--url", url, "--as", "pcp://a/b", "--json")
            assert sent.returncode == 0, sent.stderr
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
    with JournalReader.open(Path(path)) as reader:
        missed = [hop for hop in reader.hops() if hop.stage is Stage.UNDELIVERABLE]
    assert len(missed) == 2


def test_trace_names_the_rule_for_each_client(tmp_path):
    config = tmp_path / "broker.toml"
    config.write_text(
        """
        [pcp]
        [[pcp.rules]]
        name = "no secrets for b"
        target = "pcp://b/agent"
        allow = false
        [[pcp.rules]]
        allow = true
        """
    )
    clients = ["--client", "pcp://a/agent", "--client", "pcp://b/agent"]
    arguments = ["trace", "http://example.com/ping", "pcp://*/agent", "--config", str(config), "--json", *clients]
    traced = pcp(*arguments, "--sender", "pcp://boss/controller")
    rows = [json.loads(line) for line in traced.stdout.splitlines()]
    assert [(row["target"], row["verdict"]) for row in rows] == [("pcp://a/agent", "allow"), ("pcp://b/agent", "deny")]
    assert "no secrets for b" in rows[1]["rule"]
    assert "nobody gets it" in traced.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["serve"], 1, "certificate is missing"),
        (["serve", "--insecure-plain", "--host", "0.0.0.0"], 1, "loopback"),
        (["serve", "--config", "/does/not/exist.toml"], 1, "cannot be read"),
        (["serve", "--insecure-plain", "--durability", "maybe"], 1, "durability"),
        (["decode", "--layer", "v9", "00"], 2, "layer"),
        (["send", "t", "pcp://a/b", "--url", "wss://x/pcp", "--as", "pcp://a/b"], 2, "--certificate"),
    ],
)
def test_errors_are_one_line(arguments, code, text):
    result = pcp(*arguments)
    assert result.returncode == code
    assert text in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_examples_run(tmp_path):
    examples = Path(__file__).parents[2] / "examples"
    with serving() as (_, url):
        agent = subprocess.Popen(
            [sys.executable, str(examples / "pcp_agent.py"), url, "pcp://agent1/agent"],
            env=ENVIRONMENT,
            text=True,
            stdout=subprocess.PIPE,
        )
        assert agent.stdout.readline() == "pcp://agent1/agent is associated\n"
        controller = subprocess.run(
            [sys.executable, str(examples / "pcp_controller.py"), url, "pcp://boss/controller"],
            env=ENVIRONMENT,
            text=True,
            capture_output=True,
            timeout=30,
        )
        agent.terminate()
        agent.communicate(timeout=20)
    assert controller.stdout.splitlines() == [
        "1 agents are connected, 1 were sent a hello",
        "pcp://agent1/agent answers {'heard': {'question': 42}}",
    ]
