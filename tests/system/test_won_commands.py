"""`dovetail won` as users run it: every command in its own process, two nodes, TLS."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

import dovetail
from system.pcp_site import scrape
from system.won_processes import Site

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]


def won(*arguments, code=0):
    environment = os.environ | {"PYTHONPATH": str(Path(dovetail.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-m", "dovetail", "won", *map(str, arguments)],
        capture_output=True,
        env=environment,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr.decode()
    return done


def record(*arguments, code=0):
    return json.loads(won(*arguments, "--json", code=code).stdout)


@pytest.fixture
def nodes(tmp_path):
    site = Site(tmp_path)
    a, b = site.node("a"), site.node("b")

    async def start():
        await asyncio.gather(a.start(), b.start())

    asyncio.run(start())
    yield site, a, b
    assert (a.stop(), b.stop()) == (0, 0)


def test_create_connect_send_close_log(nodes):
    site, a, b = nodes
    homes = {name: site.directory / name for name in ("alice", "bob", "alice2")}
    for name, node in (("alice", a), ("bob", b)):
        made = record(
            "create", "--node", node.uri, "--name", name, "--home", homes[name], "--authority", site.authority
        )
        assert made["atom"] == f"{node.uri}/atom/{name}"
    alice, bob = f"{a.uri}/atom/alice#chat", f"{b.uri}/atom/bob#chat"
    early = record("send", bob, "hello?", "--home", homes["alice"], code=3)
    assert (early["state"], early["outcome"]) == ("failed", "rejected")
    assert early["reason"].startswith("wrong_state")
    assert record("connect", bob, "--home", homes["alice"])["state"] == "complete"
    assert record("connect", alice, "--home", homes["bob"])["state"] == "complete"
    assert b"Container" in won("get", f"{a.uri}/atom/alice/c", "--home", homes["alice"]).stdout
    assert b"may not read it" in won("get", f"{a.uri}/atom/alice/c", "--home", homes["bob"], code=1).stderr
    sent = record("send", bob, "hello", "--home", homes["alice"])
    assert sent["outcome"] == "delivered"
    assert [each.startswith("wm:/Qm") for each in sent["responses"]] == [True, True]
    forwarding = record("send", bob, "as I said", "--forward", sent["address"][:20], "--home", homes["alice"])
    assert (
        b"no message begins with wm:/QmYyyyyyyyyy"
        in won("send", bob, "x", "--forward", "wm:/QmYyyyyyyyyy", "--home", homes["alice"], code=1).stderr
    )
    assert record("close", alice, "--home", homes["bob"])["state"] == "complete"

    logs = {}
    for name in ("alice", "bob"):
        done = won("log", "--home", homes[name], "--json")
        assert b"the log is intact" in done.stderr
        logs[name] = [json.loads(line) for line in done.stdout.splitlines()]
    assert {r["address"]: r["forwarded"] for r in logs["bob"] if "forwarded" in r} == {
        forwarding["address"]: [sent["address"]]
    }
    talk = [r["address"] for r in logs["bob"] if r["type"] != "CreateMessage"]
    assert talk == [r["address"] for r in logs["alice"] if r["type"] != "CreateMessage" and r["state"] != "failed"]
    assert b"hello" in won("log", bob, "--home", homes["alice"], "--offline").stdout

    status, numbers = asyncio.run(scrape(a.metrics_port))
    assert status == 200
    assert 'dovetail_won_connections{state="Closed"} 1.0' in numbers
    assert 'dovetail_won_messages_total{reason="wrong_state",stage="rejected"} 1.0' in numbers

    further = record("create", "--node", a.uri, "--home", homes["alice2"], "--further-client-of", homes["alice"])
    assert further["state"] == "registered"
    again = won("log", "--home", homes["alice2"], "--offline", "--json").stdout
    assert [json.loads(line)["address"] for line in again.splitlines()] == [r["address"] for r in logs["alice"]]


def test_replace_deactivate_activate_and_delete(nodes):
    """The node answers each, and each has its effect on the document and on open connections."""
    site, a, b = nodes
    homes = {name: site.directory / name for name in ("alice", "bob")}
    for name, node in (("alice", a), ("bob", b)):
        record("create", "--node", node.uri, "--name", name, "--home", homes[name], "--authority", site.authority)
    atom = f"{a.uri}/atom/alice"
    alice, bob = f"{atom}#chat", f"{b.uri}/atom/bob#chat"
    record("connect", bob, "--home", homes["alice"])
    record("connect", alice, "--home", homes["bob"])

    description = site.directory / "alice.ttl"
    description.write_text('<> <https://schema.org/name> "Alice" .')
    replaced = record(
        *("replace", "--socket", "chat", "--socket", "more", "--content", description, "--home", homes["alice"])
    )
    assert replaced["state"] == "atom"
    status, _, body = get(site, a, atom)
    assert status == 200
    assert "Alice" in body
    assert f"{atom}#more" in body
    assert "ChangeNotificationMessage" in won("log", alice, "--home", homes["bob"]).stdout.decode()

    assert record("deactivate", "--home", homes["alice"])["state"] == "atom"
    assert "Inactive" in get(site, a, atom)[2]
    assert b"CloseMessage" in won("log", alice, "--home", homes["bob"]).stdout
    refused = record("connect", alice, "--home", homes["bob"], code=3)
    assert "atom_inactive" in json.dumps(refused)
    record("activate", "--home", homes["alice"])
    record("connect", alice, "--home", homes["bob"])

    record("delete", "--home", homes["alice"])
    status, headers, body = get(site, a, atom)
    assert status == 410
    assert f'<{atom}/msg>; rel="archives"' in headers
    assert "Alice" not in body
    assert get(site, a, f"{atom}/msg")[0] == 401, "its log is for its owner"
    assert b"member" in won("get", f"{atom}/msg", "--home", homes["alice"]).stdout
    assert b"the log is intact" in won("log", "--home", homes["bob"]).stderr
    record("activate", "--home", homes["alice"], code=3)

    dump = site.directory / "log.trig"
    dump.write_bytes(won("log", "--home", homes["alice"], "--trig").stdout)
    told = [json.loads(line) for line in won("chains", dump, "--json").stdout.splitlines()]
    kinds = {each["type"] for each in told}
    assert {"ReplaceMessage", "DeactivateMessage", "ActivateMessage", "DeleteMessage"} <= kinds
    assert all(each["address"] == "ok" for each in told)


def get(site, node, uri):
    """Status, headers and body of a document."""
    context = ssl.create_default_context(cafile=str(site.authority))
    connection = http.client.HTTPSConnection("localhost", node.port, context=context)
    connection.request("GET", uri.partition(f":{node.port}")[2], headers={"Accept": "application/trig"})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, str(answer.headers), body


def test_node_that_is_not_there_is_said_at_once(tmp_path):
    site = Site(tmp_path)
    absent = site.node("absent")
    done = won(
        *("create", "--node", absent.uri, "--name", "alice", "--home", tmp_path / "alice"),
        *("--authority", site.authority, "--json"),
        code=4,
    )
    assert (done.stdout, done.stderr.decode()) == (
        b"",
        f"dovetail: {absent.uri} cannot be reached: connection refused\n",
    )
    assert not (tmp_path / "alice").exists()
