"""The broker as a separate process, with its real journal: the command line, drain, and restart."""

import asyncio
import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest

from dovetail.journal.reader import JournalReader
from dovetail.model.errors import DovetailError
from dovetail.model.hop import Stage
from dovetail.pcp.vocabulary import is_outcome
from dovetail.runtime.hangup import hangup_held
from dovetail.runtime.pcp_client import PcpClient
from pcp.pcp_frames import read_v1
from system.pcp_raw import RawClient
from system.pcp_site import scrape
from system.test_pcp_handover import read_rest

pytestmark = pytest.mark.system
RUN = "from dovetail.cli.main import report; from dovetail.cli.pcp import app; import sys\n"
RUN += "try: sys.exit(app(sys.argv[1:], standalone_mode=False))\nexcept Exception as error: sys.exit(report(error))"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}


def pcp(*arguments: str, timeout_s: float = 60, **more) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", RUN, *arguments]
    return subprocess.run(command, env=ENVIRONMENT, text=True, capture_output=True, timeout=timeout_s, **more)


def launch(command: list[str], **more) -> subprocess.Popen[str]:
    return subprocess.Popen(command, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)


@contextmanager
def serving(*arguments: str, largest_file_bytes: int = resource.RLIM_INFINITY):
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
    process = launch(
        command,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file_bytes, largest_file_bytes)),
    )
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
        sent = pcp("send", "pcp://*/agent", '{"n": 1}', *client)
        assert json.loads(sent.stdout)["targets"] == ["pcp://agent1/agent"]
        message = json.loads(listener.communicate(timeout=20)[0])
        assert (message["sender"], message["data"]) == ("pcp://boss/controller", {"n": 1})
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    with JournalReader.open(path) as reader:
        assert reader.identity.server == "pcp://broker1/server"
        stages = {hop.stage for hop in reader.hops()}
    assert {Stage.ACCEPTED, Stage.CREATED, Stage.DELIVERED} <= stages


@contextmanager
def agent(url: str, uri: str):
    """The example agent: it echoes each message."""
    script = Path(__file__).parents[2] / "examples" / "pcp_agent.py"
    command = [sys.executable, str(script), url, uri]
    process = subprocess.Popen(command, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == f"{uri} is connected\n"
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=20)


def test_send_awaits_the_reply_and_prints_it():
    with serving() as (_, url), agent(url, "pcp://agent1/agent"):
        client = ["--url", url, "--as", "pcp://boss/controller", "--json", "--reply"]
        sent = pcp("send", "pcp://agent1/agent", '{"n": 1}', *client, "--ttl", "5")
        reply = json.loads(sent.stdout)["reply"]
        assert sent.returncode == 0
        assert (reply["sender"], reply["type"]) == ("pcp://agent1/agent", "http://example.com/pong")
        assert reply["data"] == {"heard": {"n": 1}}
        assert reply["in_reply_to"]
        gone = pcp("send", "pcp://ghost/agent", *client, "--ttl", "5")
        assert (gone.returncode, json.loads(gone.stdout)["outcome"], gone.stderr) == (3, "nobody_there", "")
        many = pcp("send", "pcp://a/agent", "--to", "pcp://b/agent", *client)
        assert (many.returncode, "expected one" in many.stderr) == (2, True)


def test_inventory_follows_who_comes_and_goes():
    with serving() as (_, url):
        command = ["inventory", "pcp://*/agent", "--follow", "--url", url, "--as", "pcp://boss/controller"]
        with agent(url, "pcp://agent1/agent"):
            follower = subprocess.Popen(
                [sys.executable, "-c", RUN, *command], env=ENVIRONMENT, text=True, stdout=subprocess.PIPE
            )
            try:
                assert json.loads(follower.stdout.readline()) == {"client": "pcp://agent1/agent", "change": 1}
                with agent(url, "pcp://agent2/agent"):
                    assert json.loads(follower.stdout.readline()) == {"client": "pcp://agent2/agent", "change": 1}
                assert json.loads(follower.stdout.readline()) == {"client": "pcp://agent2/agent", "change": -1}
            finally:
                follower.terminate()
                follower.communicate(timeout=20)


def test_trace_asks_a_live_broker_who_is_connected_and_delivers_nothing(tmp_path):
    config = tmp_path / "broker.toml"
    config.write_text('[pcp]\n[[pcp.rules]]\nname = "agents"\nallow = true\ntarget = "pcp://*/agent"\n')
    with serving() as (_, url), agent(url, "pcp://agent1/agent") as listening:
        where = ["--config", str(config), "--sender", "pcp://boss/controller", "--url", url, "--json"]
        traced = pcp("trace", "http://example.com/ping", "pcp://*/*", *where, "--as", "pcp://tracer/controller")
        rows = {row["target"]: row for row in map(json.loads, traced.stdout.splitlines())}
        # the tracer itself is connected while it asks, and no rule lets anyone write to it
        assert {uri: row["verdict"] for uri, row in rows.items()} == {
            "pcp://agent1/agent": "allow",
            "pcp://tracer/controller": "deny",
        }
        assert rows["pcp://agent1/agent"]["connected"] is True
        assert traced.returncode == 3
        only = pcp("trace", "http://example.com/ping", "pcp://*/agent", *where, "--as", "pcp://tracer/controller")
        assert (only.returncode, len(only.stdout.splitlines())) == (0, 1)
        assert "would be delivered" in only.stderr
        unnamed = pcp("trace", "http://example.com/ping", "pcp://*/agent", *where)
        assert (unnamed.returncode, "--as" in unnamed.stderr) == (2, True)
        listening.terminate()
        assert listening.stdout.read() == ""


RULES = """
[pcp]
name = "rules"
port = 0
metrics_port = 0
insecure_plain = true
journal = "{journal}"
[[pcp.rules]]
name = "{name}"
allow = {allow}
target = "pcp://*/agent"
[[pcp.rules]]
allow = true
"""


def test_sighup_reads_the_rules_again_and_keeps_the_old_ones_where_the_file_is_bad(tmp_path):
    config, journal = tmp_path / "broker.toml", tmp_path / "broker.journal"
    config.write_text(RULES.format(journal=journal, name="first", allow="true"))
    command = [sys.executable, "-c", RUN, "serve", "--config", str(config), "--json"]
    process = launch(command)
    try:
        started = json.loads(process.stdout.readline())

        def reload(counted: str) -> None:
            process.send_signal(signal.SIGHUP)
            for _ in range(100):
                if counted in urllib.request.urlopen(started["metrics"]).read().decode():
                    return
                time.sleep(0.05)
            pytest.fail(f"{counted} was never counted")

        def ping() -> str:
            client = ["--url", started["url"], "--as", "pcp://boss/controller", "--reply", "--ttl", "5", "--json"]
            sent = pcp("send", "pcp://agent1/agent", "1", *client)
            return sent.stdout or sent.stderr

        with agent(started["url"], "pcp://agent1/agent"):
            assert "heard" in ping()
            config.write_text(RULES.format(journal=journal, name="second", allow="false"))
            reload('dovetail_pcp_rule_changes_total{outcome="done"} 1.0')
            assert "no rule of the broker allows it" in ping()
            config.write_text("[pcp]\nrules = 7\n")
            reload('dovetail_pcp_rule_changes_total{outcome="failed"} 1.0')
            assert "no rule of the broker allows it" in ping()
            config.write_text(
                RULES.format(journal=journal, name="third", allow="true").replace("port = 0", "port = 1", 1)
            )
            reload('dovetail_pcp_rule_changes_total{outcome="done"} 2.0')
            assert "heard" in ping()
        process.send_signal(signal.SIGTERM)
        talk = process.communicate(timeout=20)[1]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert "rules not loaded, keeping the previous ones" in talk
    assert "changed settings that need a restart: port" in talk
    with JournalReader.open(journal) as reader:
        changes = [hop.raw for hop in reader.hops() if b"dovetail:rules_changed" in (hop.raw or b"")]
    assert [b'"second"' in raw for raw in changes] == [True, False]


def test_sighup_before_the_broker_can_read_its_rules_waits_for_it(tmp_path):
    config = tmp_path / "broker.toml"
    config.write_text(RULES.format(journal=tmp_path / "broker.journal", name="first", allow="true"))
    with hangup_held():  # as the supervisor starts its processes
        process = launch([sys.executable, "-c", RUN, "serve", "--config", str(config), "--json"])
    try:
        process.send_signal(signal.SIGHUP)
        metrics = json.loads(process.stdout.readline())["metrics"]
        done = 'dovetail_pcp_rule_changes_total{outcome="done"} 1.0'
        while done not in urllib.request.urlopen(metrics).read().decode():
            time.sleep(0.05)
        assert process.poll() is None
    finally:
        process.terminate()
        process.communicate()


def test_a_restarted_broker_goes_on_with_its_journal(tmp_path):
    path = str(tmp_path / "broker.journal")
    for _ in range(2):
        with serving("--journal", path, "--durability", "full") as (process, url):
            sent = pcp("send", "pcp://ghost/agent", "--url", url, "--as", "pcp://a/b", "--json")
            assert sent.returncode == 3, sent.stderr
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
    with JournalReader.open(Path(path)) as reader:
        missed = [hop for hop in reader.hops() if hop.stage is Stage.UNDELIVERABLE]
    assert len(missed) == 2


DEAF = """
[pcp]
name = "broker1"
port = 0
metrics_port = 0
insecure_plain = true
journal = "{journal}"
durability = "full"
drain_timeout_ms = 300
[[pcp.rules]]
allow = true
"""


def test_sigterm_ends_a_broker_whose_clients_do_not_read_and_a_restart_settles_the_rest(tmp_path):
    config, journal = tmp_path / "broker.toml", tmp_path / "broker.journal"
    config.write_text(DEAF.format(journal=journal))
    command = [sys.executable, "-c", RUN, "serve", "--config", str(config), "--json"]
    names = [f"pcp://deaf{number}/agent" for number in range(50)]

    @contextmanager
    def running():
        process = launch(command)
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()
            process.communicate()

    def port_of(url: str) -> int:
        return int(url.rpartition(":")[2].partition("/")[0])

    async def end(process) -> int:
        process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(process.wait)

    async def scenario() -> tuple[list[str], dict[str, list[str]]]:
        with running() as (process, started):
            port, metrics = port_of(started["url"]), port_of(started["metrics"])
            sender = await RawClient.associate(port, "pcp://boss/controller")
            deaf = [await RawClient.associate(port, name) for name in names]
            for each in deaf:
                each.writer.transport.pause_reading()
            sent = []
            while (await scrape(metrics))[1].count("dovetail_pcp_client_queue_bytes{") < len(names):
                message = {"data": b"x" * 500_000, "destination_report": True}
                sent.append(sender.send_v1("http://example.com/ping", ["pcp://*/agent"], **message))
                await sender.receive_v1()  # the report: it is accepted
            assert await end(process) == 0
            received = {
                each.uri: [one for one in sent if one in rest] for each in deaf if (rest := await read_rest(each))
            }
        with running() as (process, started):
            for name in names:
                again = await RawClient.associate(port_of(started["url"]), name)
                received[name] += [(await again.receive_v1())[0]["id"] for _ in sent[len(received[name]) :]]
            assert await end(process) == 0
        await RawClient.close_all()
        return sent, received

    sent, received = asyncio.run(scenario())
    assert received == dict.fromkeys(names, sent)
    with JournalReader.open(journal) as reader:
        hops = list(reader.hops())
    ids = {hop.message: read_v1(hop.raw)[0]["id"] for hop in hops if b"/ping" in (hop.raw or b"")}
    ends = [hop for hop in hops if hop.message in ids and is_outcome(hop.stage, hop.counterpart)]
    assert Counter((ids[hop.message], hop.counterpart) for hop in ends) == dict.fromkeys(product(sent, names), 1)
    assert {hop.stage for hop in ends} == {Stage.DELIVERED, Stage.REDELIVERED}


@pytest.mark.parametrize("durability", ["full", "relaxed"])
def test_a_disk_that_fails_stops_the_broker(tmp_path, durability):
    async def send_until_it_ends(process, url):
        async with PcpClient(url, "pcp://a/b") as client:
            await client.wait_associated(10)
            while process.poll() is None:  # a broker that goes on without a journal meets the test's time limit
                with contextlib.suppress(DovetailError, TimeoutError):
                    await client.send("http://example.com/x", "pcp://ghost/agent", os.urandom(8000).hex(), ttl_ms=200)
                await asyncio.sleep(0.002)

    path = tmp_path / "broker.journal"
    options = ("--journal", str(path), "--durability", durability)
    with serving(*options, largest_file_bytes=600_000) as (process, url):
        asyncio.run(send_until_it_ends(process, url))
        told = [line for line in process.stderr.read().splitlines() if "disk I/O error" in line]
        assert process.returncode == 1
    assert told[-1].startswith("dovetail: ")
    lost = [line for line in told if re.search("[0-9]+ appends not written", line)]
    unsigned = [line for line in told if "no checkpoint" in line]
    assert len(lost) == (durability == "relaxed")
    assert len(told) == len(lost) + min(len(unsigned), 1) + 1
    with JournalReader.open(path) as reader:
        assert reader.size > 0


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
        (["serve", "--insecure-plain", "--durability", "maybe"], 2, "durability"),
        (["decode", "--layer", "v9", "00"], 2, "layer"),
        (["send", "pcp://a/b", "--url", "wss://x/pcp", "--as", "pcp://a/b"], 2, "--certificate"),
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
        assert agent.stdout.readline() == "pcp://agent1/agent is connected\n"
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
