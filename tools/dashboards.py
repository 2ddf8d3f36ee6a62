"""Write deploy/grafana/dashboards/*.json: each panel is defined once, here, and the JSON is generated from it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).resolve().parent.parent / "deploy" / "grafana" / "dashboards"
SCHEMA_VERSION = 39
COLUMNS, HEIGHT = 24, 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: its unit, and its queries with their legends. A stat shows only the last value."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    description: str = ""
    kind: str = "timeseries"
    width: int = 12


def here(metric: str, where: str = "") -> str:
    """A metric of the chosen servers."""
    return f'{metric}{{instance=~"$instance"{", " if where else ""}{where}}}'


def rate(metric: str, *by: str, where: str = "") -> str:
    """The rate of a counter, by server and the given labels."""
    return f"sum by ({', '.join(('instance', *by))}) (rate({here(metric, where)}[$__rate_interval]))"


def chart(title: str, unit: str, expr: str, legend: str, description: str = "") -> Panel:
    """A chart of one query."""
    return Panel(title, unit, ((expr, legend),), description)


def stat(title: str, expr: str, unit: str = "none", description: str = "") -> Panel:
    """A single number."""
    return Panel(title, unit, ((expr, ""),), description, "stat", 6)


def quantiles(title: str, metric: str, description: str) -> Panel:
    """Median and 99th percentile of a histogram."""
    buckets = rate(f"{metric}_bucket", "le")
    queries = tuple((f"histogram_quantile({q}, {buckets})", f"p{round(100 * q)} {{{{instance}}}}") for q in (0.5, 0.99))
    return Panel(title, "s", queries, description)


SITE = (
    stat("Targets down", 'sum(up{job="dovetail"} == bool 0)', description="Servers that do not answer Prometheus."),
    stat("Unhealthy", f"sum({here('dovetail_healthy')} == bool 0)", description="/healthz answers 503."),
    stat("Alerts firing", 'count(ALERTS{alertname=~"Dovetail.*", alertstate="firing"}) or vector(0)'),
    stat("Next expiry", f"min({here('dovetail_certificate_expiry_timestamp_seconds')} - time())", "s"),
    chart("Processes that run", "none", here("dovetail_process_running"), "{{instance}} {{process}}"),
    chart(
        "Restarts in 15 minutes",
        "none",
        f"increase({here('dovetail_process_restarts_total')}[15m])",
        "{{instance}} {{process}}",
    ),
    chart("Processor time", "percentunit", rate("process_cpu_seconds_total"), "{{instance}}"),
    chart("Memory", "bytes", here("process_resident_memory_bytes"), "{{instance}}"),
    chart(
        "File descriptors in use",
        "percentunit",
        f"{here('process_open_fds')} / {here('process_max_fds')}",
        "{{instance}}",
    ),
    chart("Room on disks", "bytes", here("dovetail_disk_free_bytes"), "{{instance}} {{kind}}"),
    quantiles("Commit", "dovetail_journal_commit_seconds", "One group commit of a journal, fsync included."),
    quantiles("Waiting for the disk", "dovetail_journal_wait_seconds", "From the queue until the hops are committed."),
    chart("Bytes that wait for the disk", "bytes", here("dovetail_journal_queue_bytes"), "{{instance}}"),
    chart(
        "Since everything was signed",
        "s",
        here("dovetail_checkpoint_age_seconds"),
        "{{instance}}",
        "Since a signed checkpoint covered every committed hop.",
    ),
    chart(
        "Since a witness looked",
        "s",
        here("dovetail_witness_age_seconds"),
        "{{server}}",
        "Since a trusted witness cosigned a checkpoint of the journal.",
    ),
    chart("Hops committed", "ops", rate("dovetail_journal_hops_total"), "{{instance}}"),
    chart("Size of journals", "bytes", here("dovetail_journal_bytes"), "{{instance}}"),
    chart(
        "Versions",
        "none",
        f"sum by (version, python) ({here('dovetail_build_info')})",
        "{{version}}, Python {{python}}",
    ),
)

_LOST = 'stage=~"rejected|undeliverable|expired"'
FABRICS = (
    chart("pcp: clients", "none", here("dovetail_pcp_clients"), "{{instance}} {{type}}"),
    chart("pcp: hops by stage", "ops", rate("dovetail_pcp_messages_total", "stage"), "{{instance}} {{stage}}"),
    chart(
        "pcp: not delivered, by reason",
        "ops",
        rate("dovetail_pcp_messages_total", "stage", "reason", where=_LOST),
        "{{instance}} {{stage}}: {{reason}}",
    ),
    quantiles("pcp: one turn", "dovetail_pcp_routing_seconds", "Decode, authorise, route, journal and write."),
    quantiles("pcp: handshake", "dovetail_pcp_handshake_seconds", "From the upgrade to the association."),
    Panel(
        "pcp: bytes held",
        "bytes",
        (
            (here("dovetail_pcp_queue_bytes"), "{{instance}} all"),
            (f"topk(5, {here('dovetail_pcp_client_queue_bytes')})", "{{instance}} {{client}}"),
        ),
        "All of them, and the five clients that most is held for.",
    ),
    Panel(
        "pcp: connections refused or closed",
        "ops",
        (
            (rate("dovetail_pcp_refused_upgrades_total", "status"), "{{instance}} HTTP {{status}}"),
            (rate("dovetail_pcp_closes_total", "code"), "{{instance}} code {{code}}"),
            (rate("dovetail_pcp_slow_consumers_total"), "{{instance}} slow"),
        ),
    ),
    chart(
        "Handshakes that failed",
        "ops",
        rate("dovetail_handshake_failures_total", "kind"),
        "{{instance}} {{kind}}",
        "Connections of a broker or node that failed before they were links.",
    ),
    chart("won: hops by stage", "ops", rate("dovetail_won_messages_total", "stage"), "{{instance}} {{stage}}"),
    chart("won: chains by state", "none", here("dovetail_won_chains"), "{{instance}} {{state}}"),
    chart(
        "won: owed to other nodes",
        "s",
        f"topk(10, {here('dovetail_won_queue_oldest_seconds')})",
        "{{instance}} to {{node}}",
        "For how long the oldest message has been owed, the ten longest.",
    ),
    chart("swarm: links", "none", here("dovetail_swarm_links"), "{{instance}} {{direction}}"),
    Panel(
        "swarm: messages",
        "none",
        tuple(
            (here(f"dovetail_swarm_{name}"), f"{{{{instance}}}} {name}")
            for name in ("messages", "missing", "unconfirmed")
        ),
        "Held, wanted and not come, and own ones that nobody was seen to have.",
    ),
    chart("swarm: sent", "Bps", rate("dovetail_swarm_sent_bytes_total", "purpose"), "{{instance}} {{purpose}}"),
    chart("swarm: refused", "ops", rate("dovetail_swarm_refused_total", "reason"), "{{instance}} {{reason}}"),
)

_ERRORS, _WARNINGS = (here("dovetail_findings", f'severity="{severity}"') for severity in ("error", "warning"))
AUDIT = (
    stat("Errors", f"sum({_ERRORS}) or vector(0)"),
    stat("Warnings", f"sum({_WARNINGS}) or vector(0)"),
    stat("Tables behind the lake", f"max({here('dovetail_audit_lag_seconds')})", "s"),
    stat("Since the tables were replaced", f"time() - max({here('dovetail_audit_timestamp_seconds')})", "s"),
    chart("Errors by check", "none", _ERRORS, "{{check}}"),
    chart("Warnings by check", "none", _WARNINGS, "{{check}}"),
    chart(
        "Sealing behind the journal",
        "s",
        here("dovetail_seal_lag_seconds"),
        "{{server}}",
        "Age of the oldest hop that is not in the lake.",
    ),
    chart("Audit behind the lake", "s", here("dovetail_audit_lag_seconds"), "{{instance}}"),
)

DASHBOARDS = {
    "site": ("Dovetail: site", SITE),
    "fabrics": ("Dovetail: fabrics", FABRICS),
    "audit": ("Dovetail: audit", AUDIT),
}


def build(name: str, title: str, panels: tuple[Panel, ...]) -> dict[str, Any]:
    """A dashboard as Grafana imports it."""
    placed, x, y = [], 0, 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > COLUMNS:
            x, y = 0, y + HEIGHT
        placed.append(_panel(panel, number, x, y))
        x += panel.width
    instances = 'label_values(up{job="dovetail"}, instance)'
    return {
        "uid": f"dovetail-{name}",
        "title": title,
        "tags": ["dovetail"],
        "timezone": "utc",
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "schemaVersion": SCHEMA_VERSION,
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
                {
                    "name": "instance",
                    "type": "query",
                    "label": "Server",
                    "datasource": _SOURCE,
                    "query": {"query": instances, "refId": "instance"},
                    "refresh": 2,
                    "multi": True,
                    "includeAll": True,
                    "allValue": ".*",
                    "sort": 1,
                },
            ]
        },
        "panels": placed,
    }


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": expr, "legendFormat": legend, "range": True}
        for index, (expr, legend) in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": targets,
    }


def render(name: str) -> str:
    """The contents of one dashboard's file."""
    return json.dumps(build(name, *DASHBOARDS[name]), indent=1) + "\n"


def main() -> None:
    """Write all dashboards."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for name in DASHBOARDS:
        (DIRECTORY / f"{name}.json").write_text(render(name))


if __name__ == "__main__":
    main()
