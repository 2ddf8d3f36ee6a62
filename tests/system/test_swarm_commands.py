"""`dovetail swarm serve|publish|tail|status` against a real process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dovetail.cli.swarm import app
from dovetail.model.errors import ConfigError, ConnectFailed, DovetailError

pytestmark = pytest.mark.system


def call(*arguments: str, stdin: str | None = None) -> str:
    result = CliRunner().invoke(app, list(arguments), input=stdin)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture
def served(tmp_path):
    settings, home = tmp_path / "swarm.toml", tmp_path / "peer"
    settings.write_text('name = "commands"\nwork = 1000\n')
    code = "from dovetail.cli.swarm import app; app()"
    command = [sys.executable, "-c", code, "serve", "--settings", str(settings), "--dir", str(home)]
    command += ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    ready = json.loads(process.stdout.readline())
    yield str(home), ready
    process.send_signal(signal.SIGTERM)
    process.stdout.close()
    assert process.wait(20) == 0


def test_publish_tail_status_and_metrics(served):
    home, ready = served
    published = call("publish", "hello\x1b[31m", "--dir", home)
    address = re.fullmatch(r"address  ([0-9a-f]{64})\noutcome  accepted\n", published)[1]
    second = json.loads(call("publish", "--dir", home, "--json", stdin="from a pipe"))["address"]
    assert second != address
    shown = call("tail", "--dir", home, "--since", "0", "-n", "2").splitlines()
    assert [line.split()[1] for line in shown] == [address[:16], second[:16]]
    assert "\x1b" not in shown[0]
    items = [json.loads(line) for line in call("tail", "--dir", home, "--since", "0", "-n", "2", "--json").splitlines()]
    assert items[1]["references"] == [address[:16]]
    assert [(each["address"], each["data"]) for each in items] == [(address, "hello\x1b[31m"), (second, "from a pipe")]
    status = json.loads(call("status", "--dir", home, "--json"))
    assert (status["uri"], status["messages"], status["tips"]) == (ready["peer"], 2, 1)
    assert re.search("^messages +2$", call("status", "--dir", home), re.MULTILINE)
    assert "tips" in call("status", "--dir", home)
    port = ready["metrics_port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert b"dovetail_swarm_messages 2.0" in answer.read()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz") as answer:
        assert answer.status == 200
    with pytest.raises(DovetailError, match="ttl of 60000"):
        call("publish", "x", "--ttl", "60000", "--dir", home)


def test_what_goes_wrong_is_said(tmp_path):
    with pytest.raises(ConnectFailed, match="has no running peer"):
        call("status", "--dir", str(tmp_path))
    with pytest.raises(ConfigError, match="No such file"):
        call("serve", "--settings", str(tmp_path / "none.toml"), "--dir", str(tmp_path))
