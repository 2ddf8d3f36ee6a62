"""The files in deploy/ match the project, and are valid for their programs."""

import json
import re
import runpy
import subprocess
from pathlib import Path

import pytest

from docs import kit
from docs.kit import DEPLOY, ROOT, program, run
from dovetail import __version__
from dovetail.cli.main import main
from dovetail.site.config import load_config
from dovetail.site.config.sections import SupervisorSection
from dovetail.site.servers import ShutdownStage, Site

UNITS = sorted((DEPLOY / "systemd").iterdir())
CHART = DEPLOY / "helm" / "dovetail"
RUNBOOK = ROOT / "docs" / "how-to" / "runbook.md"
GRACE_S = len(ShutdownStage) * SupervisorSection().grace_s


def settings(unit: Path) -> dict[str, str]:
    return dict(re.findall(r"^(\w+)=(.*)$", unit.read_text(), re.MULTILINE))


def hardening(unit: Path) -> str:
    return unit.read_text().partition("NoNewPrivileges")[2]


def test_everybody_waits_longer_than_all_waves_may_take():
    assert int(settings(DEPLOY / "systemd" / "dovetail.service")["TimeoutStopSec"]) > GRACE_S
    assert int(re.search(r"stop_grace_period: (\d+)s", (DEPLOY / "compose.yaml").read_text())[1]) > GRACE_S
    text = (CHART / "templates" / "statefulset.yaml").read_text()
    assert int(re.search(r"terminationGracePeriodSeconds: (\d+)", text)[1]) > GRACE_S


@pytest.mark.parametrize("name", ["ExecStartPre", "ExecStart"])
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_commands_of_the_units_exist(unit, name, tmp_path, capsys):
    program, *words = settings(unit)[name].split()
    assert program == "/opt/dovetail/.venv/bin/dovetail"
    (tmp_path / "site.toml").write_text('[[swarm]]\nname = "s"\n')
    words = [word.replace("/etc/dovetail", str(tmp_path)).replace("%I", "seal") for word in words]
    assert main(words + (["--list"] if words[0] == "up" else [])) == 0, capsys.readouterr().err


def test_the_units_are_hardened_alike():
    first, second = map(hardening, UNITS)
    assert first == second != ""


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_understands_the_units(unit, tmp_path):
    copy = tmp_path / unit.name.replace("@", "@seal")
    copy.write_text(unit.read_text().replace("/opt/dovetail/.venv/bin/dovetail", "/bin/true"))
    ran = subprocess.run([program("systemd-analyze"), "verify", copy], text=True, capture_output=True, check=False)
    assert [line for line in ran.stderr.splitlines() if "dovetail" in line] == []


def test_the_container_file_copies_what_there_is_and_the_context_holds_it():
    text = (DEPLOY / "Containerfile").read_text()
    copied = {word for line in re.findall(r"^COPY (.+)$", text, re.MULTILINE) for word in line.split()[:-1]}
    assert {"pyproject.toml", "requirements", "tools", "src"} <= copied
    assert all((ROOT / name).exists() for name in copied)
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert kept == copied
    assert "python tools/setup.py" in text


def test_each_role_of_the_compose_file_is_in_its_configuration():
    config = load_config(DEPLOY / "site.toml", {}).config
    roles = re.findall(r"--role, (\w+)\]", (DEPLOY / "compose.yaml").read_text())
    names = {role: [process.name for process in Site.choose(config, [role]).processes()] for role in roles}
    assert names == {
        "hub": ["pcp/broker", "won/hub:8443", "seal"],
        "edge": ["swarm/fleet/peer", "seal"],
        "analysis": ["audit", "dashboard"],
    }


def test_prometheus_scrapes_every_address_that_the_configuration_serves():
    config = load_config(DEPLOY / "site.toml", {}).config
    scraped = set(re.findall(r'"(\w+:\d+)"', (DEPLOY / "prometheus" / "prometheus.yml").read_text()))
    served = {f"{role}:9140" for role in ("hub", "edge", "analysis")}
    for role in ("hub", "edge"):
        endpoints = Site.choose(config, [role]).metrics_endpoints()
        served |= {url.replace("http://0.0.0.0", role).removesuffix("/metrics") for _, url in endpoints}
    assert scraped == served


def test_compose_understands_its_file():
    run(program("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")


def test_the_version_of_the_chart_is_that_of_the_project():
    text = (CHART / "Chart.yaml").read_text()
    assert re.findall(r"^(?:version|appVersion): (.*)$", text, re.MULTILINE) == [__version__, __version__]


def test_the_configuration_of_the_chart_runs_its_role(tmp_path):
    block = re.search(r"^config: \|\n((?:  .*\n|\n)+)", (CHART / "values.yaml").read_text(), re.MULTILINE)[1]
    path = tmp_path / "site.toml"
    path.write_text(re.sub("^  ", "", block, flags=re.MULTILINE))
    site = Site.choose(load_config(path, {}).config, ["hub"])
    assert [process.name for process in site.processes()] == ["pcp/broker", "seal"]
    assert site.config.supervisor.metrics == "0.0.0.0:9140"


ALL = ("podMonitor.enabled=true", "prometheusRule.enabled=true", "lake.existingClaim=lake")
PEER = {"ports": [{"name": "peer", "port": 4711, "protocol": "UDP"}], "metricsPorts": [9140], "storage": "1Gi"}
EDGE = f"roles.edge={json.dumps(PEER)}"


def test_helm_renders_the_chart_and_kubernetes_knows_all_of_it(tmp_path):
    helm = program("helm")
    run(helm, "lint", "--strict", CHART)
    render = (helm, "template", "site", CHART, "--kube-version", "1.33.0", "--set-json", EDGE)
    plain = tmp_path / "plain.yaml"
    plain.write_text(run(*render, "--set", ALL[2]))
    assert plain.read_text().count("kind: StatefulSet") == 2
    # Kubernetes does not know the kinds of the Prometheus operator: only rendered here
    operated = run(*render, *(word for value in ALL for word in ("--set", value)))
    assert operated.count("kind: PodMonitor") == 2
    assert operated.count("- alert: ") == len(kit.rules())
    run(program("kubernetes-validate"), "--strict", plain)


@pytest.mark.parametrize("value", ["roles.hub.storage=20", "roles.hub.metricsPorts=null", "image.tga=1", "roles=null"])
def test_helm_refuses_values_that_cannot_work(value):
    command = [program("helm"), "template", "site", CHART, "--kube-version", "1.33.0", "--set", value]
    ran = subprocess.run(command, text=True, capture_output=True, check=False)
    assert ran.returncode != 0
    assert "schema" in ran.stderr


def test_prometheus_understands_configuration_and_rules_and_every_alert_is_tested():
    promtool = program("promtool")
    assert f"{len(kit.rules())} rules found" in run(promtool, "check", "rules", kit.RULES)
    run(promtool, "check", "config", DEPLOY / "prometheus" / "prometheus.yml")
    run(promtool, "test", "rules", "rules.test.yml", cwd=kit.RULES.parent)


def test_each_alert_has_a_test_that_fires_and_a_page_of_the_runbook():
    tests = (kit.RULES.parent / "rules.test.yml").read_text()
    fires = set(re.findall(r"alertname: (\w+)\n +exp_alerts:", tests))
    headings = set(re.findall(r"^## (Dovetail\w+)$", RUNBOOK.read_text(), re.MULTILINE))
    links = set(re.findall(r"runbook: docs/how-to/runbook.md#(\w+)$", kit.RULES.read_text(), re.MULTILINE))
    assert fires == headings == set(kit.rules())
    assert links == {name.lower() for name in headings}


def test_the_runbook_says_of_each_alert_what_it_means_where_to_look_and_what_to_do():
    sections = re.split(r"^## (Dovetail\w+)$", RUNBOOK.read_text(), flags=re.MULTILINE)[1:]
    for name, text in zip(sections[::2], sections[1::2], strict=True):
        for word in ("**Means**", "**Look**", "**Do**"):
            assert word in text, f"{name} lacks {word}"


def test_the_dashboards_are_as_their_source_makes_them():
    source = runpy.run_path(str(ROOT / "tools" / "dashboards.py"))
    written = {path.stem: path.read_text() for path in kit.DASHBOARDS}
    assert written == {name: source["render"](name) for name in source["DASHBOARDS"]}, "run `make docs`"


def test_every_expression_of_a_dashboard_is_promql(tmp_path):
    expressions = [expression for queries in kit.panels().values() for expression in queries]
    rules = [{"record": f"dashboard:{number}", "expr": text} for number, text in enumerate(expressions)]
    path = tmp_path / "rules.json"  # JSON is YAML
    path.write_text(json.dumps({"groups": [{"name": "dashboards", "rules": rules}]}))
    run(program("promtool"), "check", "rules", path)


GRAFANA = """
import json, sys
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
plugins.register_default_plugins()
for line in sys.stdin:
    print(json.dumps(Dashboard.from_json(json.loads(line)), cls=JSONEncoder))
"""


def test_grafanas_own_types_know_every_field_of_the_dashboards():
    """They drop fields that they do not know."""
    python = Path(program("check-jsonschema")).parent / "python"
    given = [json.loads(path.read_text()) for path in kit.DASHBOARDS]
    answer = run(python, "-c", GRAFANA, stdin="".join(json.dumps(each) + "\n" for each in given))
    for before, after in zip(given, map(json.loads, answer.splitlines()), strict=True):
        assert list(lost(before, after)) == []


def lost(before: object, after: object, path: str = ""):
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            yield from lost(value, after.get(key), f"{path}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from lost(one, other, f"{path}/{number}")
    elif before != after:
        yield f"{path}: {before!r} became {after!r}"


@pytest.mark.parametrize(
    ("name", "constant"),
    [
        ("net.core.somaxconn", "BACKLOG"),
        ("net.core.rmem_max", "SOCKET_BUFFER_BYTES"),
        ("net.core.wmem_max", "SOCKET_BUFFER_BYTES"),
    ],
)
def test_the_kernel_grants_what_the_servers_ask_for(name, constant):
    source = "\n".join(path.read_text() for path in (ROOT / "src" / "dovetail" / "runtime").glob("*.py"))
    (wanted,) = re.findall(rf"^{constant}(?:: Final)? = (.+)$", source, re.MULTILINE)
    text = (DEPLOY / "sysctl.d" / "dovetail.conf").read_text()
    assert int(re.search(rf"^{re.escape(name)} = (\d+)$", text, re.MULTILINE)[1]) == eval(wanted)
