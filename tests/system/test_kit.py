"""The operator's kit against real servers: what rules and dashboards query exists, and Prometheus itself agrees.

The servers are those of deploy/site.toml, on loopback and free ports; Prometheus gets the rules and the job of
deploy/prometheus.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from docs import kit
from dovetail.site.config import load_config
from dovetail.site.servers import Site
from dovetail.site.site_metrics import SiteCollector
from report.sample_tables import small_world
from system.up_site import dovetail, free_port, running, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]
METRICS = {"supervisor": "9140", "broker": "9142", "node": "9143", "peer": "9144"}
REFERENCE = kit.ROOT / "docs" / "reference" / "metrics.md"
_GIVEN_BY_PROMETHEUS = {"job", "instance", "role"}


@dataclass(frozen=True)
class Running:
    """The servers: their directory, and the port of each one's metrics."""

    directory: Path
    ports: dict[str, str]

    def scrape(self, name: str) -> str:
        return fetch(f"http://127.0.0.1:{self.ports[name]}/metrics")


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


def rewritten(text: str, directory: Path) -> tuple[str, dict[str, str]]:
    """The configuration on loopback, with free ports and directories; and the new port of each old one."""
    kinds = dict.fromkeys(("8142", "8443", "9140", "9142", "9143", "9144"), socket.SOCK_STREAM)
    ports = {port: str(free_port(kind)) for port, kind in (kinds | {"4711": socket.SOCK_DGRAM}).items()}
    text = text.replace('host = "0.0.0.0"\n', f'host = "127.0.0.1"\nport = {ports["8142"]}\n', 1)
    text = re.sub(r"\b(\d{4})\b", lambda match: ports.get(match[1], match[1]), text)
    text = text.replace("0.0.0.0", "127.0.0.1").replace("https://hub:", "https://localhost:")
    text = text.replace("/var/lib/dovetail", str(directory)).replace("/etc/dovetail", str(directory))
    return text.replace("[journal]\n", '[journal]\ncheckpoint_interval_s = 0.2\ncosigned = "cosigned"\n'), ports


@pytest.fixture(scope="module")
def servers() -> Iterator[Running]:
    with tempfile.TemporaryDirectory(prefix="kit") as name:
        directory = Path(name)
        text, ports = rewritten((kit.DEPLOY / "site.toml").read_text(), directory)
        (directory / "site.toml").write_text(text)
        node = f"https://localhost:{ports['8443']}/won/resource"
        for words in (
            ("ca", "Test"),
            ("issue", "broker", "--dns", "localhost", "--ip", "127.0.0.1"),
            ("issue", "localhost", "--kind", "peer"),
            ("issue", "controller-1", "--kind", "client"),
            ("issue", "pcp://broker/server", "--kind", "signing"),
            ("issue", node, "--kind", "signing"),
        ):
            assert dovetail("keys", *words, cwd=directory).returncode == 0
        with running(directory, "site.toml", "--role", "hub", "--role", "edge") as up:
            up.await_line('"state": "running"', 4)
            files = (
                "--certificate",
                "keys/controller-1.pem",
                "--tls-key",
                "keys/controller-1.key",
                "--authority",
                "keys/ca.pem",
            )
            url = ("--url", f"wss://127.0.0.1:{ports['8142']}/pcp", "--as", "pcp://controller-1/controller", *files)
            sent = dovetail("pcp", "send", "pcp://gone/agent", *url, cwd=directory)
            assert sent.returncode == 3, sent.stderr
            found = Running(directory, {name: ports[port] for name, port in METRICS.items()})
            until(lambda: 'dovetail_seal_lag_seconds{server="pcp://broker/server"}' in found.scrape("supervisor"), 60)
            yield found
            assert up.stop() == 0


def audit_text(directory: Path) -> str:
    """What the supervisor on the audit's machine exposes."""
    path = directory / "audit.toml"
    path.write_text("[audit]\nenabled = true\n")
    small_world().write(directory / "audit")
    collector = SiteCollector(Site.choose(load_config(path, {}).config))
    collector.read()
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry).decode()


@pytest.fixture(scope="module")
def exposed(servers, tmp_path_factory) -> dict[str, str]:
    texts = {name: servers.scrape(name) for name in servers.ports}
    return {**texts, "audit": audit_text(tmp_path_factory.mktemp("audit"))}


class Family(NamedTuple):
    """A family of metrics as exposed by the servers."""

    kind: str
    help: str
    labels: set[str]
    samples: int
    servers: set[str]


def families(texts: dict[str, str]) -> dict[str, Family]:
    """Every family by its queried name."""
    found: dict[str, Family] = {}
    for server, text in texts.items():
        for read in text_string_to_metric_families(text):
            name = f"{read.name}_total" if read.type == "counter" else read.name
            before = found.get(name, Family(read.type, read.documentation, set(), 0, set()))
            labels = {label for sample in read.samples for label in sample.labels if label != "le"}
            found[name] = before._replace(
                labels=before.labels | labels,
                samples=before.samples + len(read.samples),
                servers=before.servers | {server},
            )
    return found


def test_every_metric_of_a_rule_or_dashboard_is_exposed_with_its_labels(exposed):
    known = families(exposed)
    expressions = [*kit.rules().values(), *(each for queries in kit.panels().values() for each in queries)]
    asked = set().union(*map(kit.metrics_of, expressions))
    assert len(asked) > 40
    for name, labels in asked:
        family = known.get(family_name(name))
        assert family is not None, f"no server exposes {name}"
        assert not family.samples or labels <= family.labels | _GIVEN_BY_PROMETHEUS, f"{name} has no {set(labels)}"


def family_name(metric: str) -> str:
    return re.sub("_(bucket|sum|count)$", "", metric)


def test_the_reference_names_every_metric_and_no_other(exposed):
    """Series ending in `_created` are added by the library for each counter, and mean nothing here."""
    known = {
        name: family
        for name, family in families(exposed).items()
        if name.startswith("dovetail_") and not name.endswith("_created")
    }
    row = re.compile(r"^\| `(dovetail_\w+)(?:\{([\w, ]+)\})?` \| (\w+) \|", re.MULTILINE)
    rows = row.findall(REFERENCE.read_text())
    assert {name: kind for name, _, kind in rows} == {name: family.kind for name, family in known.items()}
    for name, labels, _ in rows:
        assert known[name].labels <= set(labels.split(", ")), f"{name} has the labels {known[name].labels}"


@pytest.mark.parametrize("server", [*METRICS, "audit"])
def test_promtool_finds_nothing_to_mend_in_the_exposition(exposed, server):
    kit.run(kit.program("promtool"), "check", "metrics", stdin=exposed[server])


@contextlib.contextmanager
def prometheus(servers: Running) -> Iterator[str]:
    """Prometheus with the kit's job and rules; its URL."""
    job = (kit.DEPLOY / "prometheus" / "prometheus.yml").read_text().replace("15s", "1s")
    for port, new in zip(METRICS.values(), servers.ports.values(), strict=True):
        job = re.sub(rf'"\w+:{port}"', f'"127.0.0.1:{new}"', job)
    job = job.replace("[rules.yml]", f'["{kit.RULES}"]')
    (servers.directory / "prometheus.yml").write_text(job)
    port = free_port()
    command = [
        kit.program("prometheus"),
        f"--config.file={servers.directory}/prometheus.yml",
        f"--storage.tsdb.path={servers.directory}/tsdb",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (servers.directory / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}/api/v1"
            until(lambda: is_answering(f"{url}/targets"), 60)
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def is_answering(url: str) -> bool:
    try:
        return bool(fetch(url))
    except (urllib.error.URLError, ConnectionError):
        return False


def ask(url: str, **words: str) -> dict:
    return json.loads(fetch(f"{url}?{urllib.parse.urlencode(words)}"))["data"]


def test_prometheus_scrapes_the_servers_and_evaluates_rules_and_dashboards(servers, exposed):
    sampled = {name for name, family in families(exposed).items() if family.samples and family.servers != {"audit"}}
    with prometheus(servers) as url:
        until(lambda: {target["health"] for target in ask(f"{url}/targets")["activeTargets"]} == {"up"}, 60)

        def evaluated() -> list[dict]:
            return [rule for group in ask(f"{url}/rules")["groups"] for rule in group["rules"]]

        until(lambda: all(rule["health"] != "unknown" for rule in evaluated()), 60)
        assert {rule["name"]: rule["health"] for rule in evaluated()} == dict.fromkeys(kit.rules(), "ok")
        assert [alert for alert in ask(f"{url}/alerts")["alerts"] if alert["state"] == "firing"] == []
        for (dashboard, title), expressions in kit.panels().items():
            for expression in expressions:
                if {family_name(name) for name, _ in kit.metrics_of(expression)} <= sampled:
                    until(lambda asked=expression: ask(f"{url}/query", query=asked)["result"], 60)
                else:
                    assert "result" in ask(f"{url}/query", query=expression), f"{dashboard}: {title}"
