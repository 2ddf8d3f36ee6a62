"""The health of a running site: never green when something is wrong."""

import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from prometheus_client.core import GaugeMetricFamily

from dovetail.runtime.server_health import WARN_CERTIFICATE_S, is_healthy, judge_certificates
from dovetail.site.doctor import Status
from dovetail.site.running import SiteHealth, ask_health, check_running, is_stopped

NOW = 1_800_000_000


@pytest.mark.parametrize(
    ("health", "expiries", "expected", "well"),
    [
        ("ok", {}, "ok", True),
        ("ok", {"certificate": NOW + WARN_CERTIFICATE_S + 1, "authority": None}, "ok", True),
        ("ok", {"certificate": NOW + 3600}, "ok, but certificate expires at 2027-01-15T09:00:00.000000Z", True),
        ("ok", {"certificate": NOW - 3600}, "certificate expired at 2027-01-15T07:00:00.000000Z", False),
        ("waiting for the disk", {"certificate": NOW - 3600}, "waiting for the disk", False),
    ],
)
def test_certificates_are_part_of_the_health(health, expiries, expected, well):
    said = judge_certificates(health, expiries, NOW)
    assert (said, is_healthy(said)) == (expected, well)


@pytest.fixture
def server():
    """A server whose /healthz returns what the test sets."""
    answer = SimpleNamespace(code=200, text="ok\n")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(answer.code if self.path == "/healthz" else 404)
            self.end_headers()
            self.wfile.write(answer.text.encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        answer.url = f"http://127.0.0.1:{running.server_port}/healthz"
        yield answer
        running.shutdown()
        thread.join()


def site_with(url, metrics=None, mute=(), more=()):
    return SimpleNamespace(
        health_urls=lambda: [("pcp/broker", url), *more],
        servers=lambda: [SimpleNamespace(label=name) for name in ("pcp/broker", *mute)],
        config=SimpleNamespace(
            supervisor=SimpleNamespace(metrics=metrics),
            lake=SimpleNamespace(seal_interval_s=10),
            audit=SimpleNamespace(interval_s=10),
        ),
    )


@pytest.mark.parametrize(
    ("code", "text", "said"),
    [
        (200, "ok\n", "ok"),
        (200, "ok, but certificate ends soon", "ok, but certificate ends soon"),
        (503, "waiting for the disk\n", "waiting for the disk"),
        (200, "<html>", "answers '<html>', which is not a health status of Dovetail"),
        (500, "", "answers 500"),
    ],
)
def test_a_server_is_asked(server, code, text, said):
    server.code, server.text = code, text
    assert ask_health(server.url) == said


def test_a_server_that_does_not_answer_is_told():
    assert ask_health("http://127.0.0.1:1/healthz") == "does not answer: connection refused"


def health_of(site, own="ok", pids=None, lags=(), unread=None):
    running = {"pcp/broker": 1} if pids is None else pids
    health = SiteHealth(site, lambda: own, lambda: running, lambda: list(lags), lambda: unread or {})
    health.ask()
    return health.health()


def test_the_health_of_up_is_that_of_everything_in_it(server):
    site = site_with(server.url)
    assert health_of(site) == "ok"
    server.text = "ok, but no other peer is in reach"
    assert health_of(site) == "ok, but pcp/broker: no other peer is in reach"
    server.code, server.text = 503, "waiting for the disk"
    assert health_of(site) == "pcp/broker: waiting for the disk"
    assert health_of(site, own="seal: waiting", pids={}) == "seal: waiting"
    assert health_of(site_with("http://127.0.0.1:1/healthz")) == "pcp/broker: does not answer: connection refused"


def test_a_dashboard_that_runs_and_does_not_answer_is_told(server, monkeypatch):
    monkeypatch.setattr("dovetail.site.running.ASK_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        site = site_with(server.url, more=[("dashboard", f"http://127.0.0.1:{silent.getsockname()[1]}/healthz")])
        assert health_of(site, pids={"pcp/broker": 1, "dashboard": 1}) == "dashboard: does not answer: timed out"
        assert {each.check: each.status for each in check_running(site)}["dashboard"] is Status.FAIL


def test_sealing_and_audit_that_are_behind_are_told(server):
    lag = GaugeMetricFamily("dovetail_seal_lag_seconds", "", labels=["server"])
    lag.add_metric(["pcp://a/server"], 100)
    lag.add_metric(["pcp://b/server"], 1000)
    audit = GaugeMetricFamily("dovetail_audit_lag_seconds", "", value=500)
    assert health_of(site_with(server.url), lags=[lag, audit]) == (
        "sealing of pcp://b/server is 1000 s behind; the audit is 500 s behind"
    )


def test_what_cannot_be_read_is_not_well(server):
    """A lake that cannot be opened has no lag that could be too long."""
    unread = {"sealing of pcp://a/server": (59, "x"), "the audit": (100, "x")}
    assert health_of(site_with(server.url), unread=unread) == "ok"
    unread = {"sealing of pcp://a/server": (61, "Not a directory"), "the audit": (200, "it holds no tables")}
    assert health_of(site_with(server.url), unread=unread) == (
        "sealing of pcp://a/server could not be read for 61 s: Not a directory; "
        "the audit could not be read for 200 s: it holds no tables"
    )


def test_a_poll_that_has_not_ended_is_not_well(server):
    times = [0.0]
    health = SiteHealth(site_with(server.url), lambda: "ok", dict, list, dict, clock=lambda: times[-1])
    health.ask()
    assert health.health() == "ok"
    times.append(100.0)
    assert health.health() == "no server has been asked for 100 s"


def test_journals_without_a_witness_are_told(server):
    age = GaugeMetricFamily("dovetail_witness_age_seconds", "", labels=["server"])
    for name, value in (("a", 3600), ("b", 3 * 86_400), ("c", float("inf"))):
        age.add_metric([f"pcp://{name}/server"], value)
    assert health_of(site_with(server.url), lags=[age]) == (
        "ok, but no witness has cosigned the journal of pcp://b/server for 72 h; "
        "no witness has cosigned the journal of pcp://c/server"
    )


@pytest.mark.system
def test_a_stopped_process_is_told(server):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert not is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert is_stopped(process.pid)
        said = health_of(site_with(server.url), pids={"pcp/broker": process.pid})
        assert said == "pcp/broker: stopped by a signal"
    finally:
        process.kill()
        process.communicate()


def test_the_doctor_asks_a_running_site(server):
    found = list(check_running(site_with(server.url, "127.0.0.1:1")))
    assert [(each.check, each.status) for each in found] == [("up", Status.FAIL), ("pcp/broker", Status.OK)]
    server.text = "ok, but x"
    found = list(check_running(site_with(server.url, mute=["swarm/a/b"])))
    assert [(each.check, each.status) for each in found] == [
        ("up", Status.WARN),
        ("swarm/a/b", Status.WARN),
        ("pcp/broker", Status.WARN),
    ]
    assert "not asked" in found[0].detail
    assert "not asked" in found[1].detail
