"""Builds the page: one HTML file that contains its style, scripts, charts, pictures and data, and loads nothing.

Text from peers is escaped in one of three places: the template (escapes every value), `svg` (escapes text and
attributes) or the embedded JSON, which writes `<`, `>` and `&` as escapes and which the script shows only as text. A
policy in the page's head lists the hashes of its own scripts, so nothing else would run even if an escape were missed.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from dovetail import __version__
from dovetail.audit.server_names import name_server_briefly, named_by, read_names
from dovetail.audit.tables import Tables
from dovetail.journal.durable_file import replace_file
from dovetail.model.errors import DovetailError
from dovetail.model.outcome import ARRIVED
from dovetail.report.charts import Chart, make_charts
from dovetail.report.check_counts import FAILED_CHECKS, NOT_ARRIVED
from dovetail.report.evidence import read_chains, read_hops, read_messages
from dovetail.report.findings import MAX_FINDINGS, addresses_of, encode_findings, read_worst
from dovetail.report.gallery import draw_conversations, draw_dag_examples, draw_findings, draw_spreads
from dovetail.report.headline import write_headline
from dovetail.report.numbers import Numbers
from dovetail.report.pictures import Picture
from dovetail.report.receipts import Origins, ReceiptStore, Related, build_receipts
from dovetail.report.text import (
    show,
    show_path,
    write_duration,
    write_latency,
    write_time,
)
from dovetail.report.vega import bundle_script

STATIC = "dovetail.report"
MAX_TABLE_ROWS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What the page shows in addition to the numbers."""

    findings: dict[str, Any]
    gallery: list[Picture]
    finding_pictures: list[tuple[int, Picture]]
    receipts: ReceiptStore


def gather_content(
    tables: Tables, numbers: Numbers, *, max_findings: int = MAX_FINDINGS, origins: Origins | None = None
) -> Content:
    """Read the message traces, draw the pictures, and build the receipts if their origins are known."""
    findings, total = read_worst(tables, max_findings)
    addresses = addresses_of(findings)
    messages = read_messages(tables, addresses)
    peers = [peer.peer for peer in numbers.peers]
    places = {address: number for number, address in enumerate(addresses)}
    return Content(
        findings=encode_findings(
            findings,
            messages,
            read_hops(tables, addresses),
            total=total,
        ),
        gallery=[*draw_conversations(tables), *draw_dag_examples(tables, findings), *draw_spreads(tables, peers)],
        finding_pictures=[(places[address], picture) for address, picture in draw_findings(tables, findings, peers)],
        receipts=ReceiptStore()
        if origins is None
        else build_receipts(origins, addresses, _responses(tables, addresses)),
    )


def _responses(tables: Tables, addresses: list[bytes]) -> Related:
    """The responses to these messages."""
    kinds = ("first_response", "second_response", "failure")
    chains = read_chains(tables, addresses)
    return {message: [row[kind] for kind in kinds if row[kind] is not None] for message, row in chains.items()}


def build_page(numbers: Numbers, content: Content, *, tables_path: str) -> str:
    """The complete page."""
    style, script, library = read_static("report.css"), read_static("report.js"), bundle_script()
    charts = make_charts(numbers)
    return (
        _environment()
        .get_template("page.html")
        .render(
            n=numbers,
            arrived_outcomes=ARRIVED,
            not_arrived=NOT_ARRIVED,
            content=content,
            charts=charts,
            tables_path=show_path(tables_path),
            lake=show_path(numbers.lake),
            headline=write_headline(numbers),
            version=__version__,
            policy=write_policy(scripts=(library, script), style=style),
            style=Markup(style),  # noqa: S704 - a file of ours or of the library
            script=Markup(script),  # noqa: S704 - a file of ours or of the library
            library=Markup(library),  # noqa: S704 - a file of ours or of the library
            specs=embed_json({chart.id: chart.spec for chart in charts.values()}),
            findings=embed_json(
                {
                    **content.findings,
                    "guides": _guides(numbers),
                    "groups": {NOT_ARRIVED: FAILED_CHECKS},
                    "tables": show(show_path(tables_path)),
                    "lake": show(show_path(numbers.lake)),
                    "receipts": content.receipts.encode(),
                }
            ),
            max_rows=MAX_TABLE_ROWS,
        )
    )


def write_page(
    tables: Tables,
    numbers: Numbers,
    path: Path,
    *,
    max_findings: int = MAX_FINDINGS,
    origins: Origins | None = None,
    with_receipts: bool = True,
) -> int:
    """Write the page to a temporary name and rename it, so that no one reads half of it; returns its size in bytes.

    `origins` are the journals and the lake to build receipts from; the journals also name their servers.
    """
    with named_by(read_names(origins.journals) if origins is not None else {}):
        content = gather_content(
            tables, numbers, max_findings=max_findings, origins=origins if with_receipts and origins else None
        )
        page = build_page(numbers, content, tables_path=str(tables.root))
    data = page.encode()
    try:
        replace_file(path, data)
    except OSError as error:
        raise DovetailError(f"{path} cannot be written: {error.strerror or error}") from error
    return len(data)


def write_policy(*, scripts: tuple[str, ...], style: str) -> str:
    """The content security policy: our own scripts by hash, our own style, and nothing from anywhere else."""
    hashes = " ".join(_hash(script) for script in scripts)
    # Vega writes style attributes into its charts; they can name no address, because nothing may be loaded.
    styles = f"style-src-elem {_hash(style)}; style-src-attr 'unsafe-inline'"
    return f"default-src 'none'; script-src {hashes}; {styles}; img-src data:; base-uri 'none'; form-action 'none'"


def embed_json(value: object) -> Markup:
    """JSON for a script element: nothing in it can end the element or begin a comment."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 - escaped above, for its destination


def read_static(name: str) -> str:
    """A file of this package."""
    return (resources.files(STATIC) / "static" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _guides(numbers: Numbers) -> dict[str, list[str]]:
    return {show(item.check): [show(item.title), item.meaning, item.advice] for item in numbers.checks}


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(read_static),
        autoescape=True,
        finalize=_finalize,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": lambda value: f"{value:,}",
        "duration": write_duration,
        "latency": write_latency,
        "time": write_time,
        "brief": name_server_briefly,
        "words": lambda value: value.replace("_", " "),
        "svg": Markup,
        "chart_label": _label_chart,
    }
    return environment


def _label_chart(chart: Chart) -> str:
    return f"{chart.title}: {chart.caption}. The same numbers are in the table below."


def _finalize(value: Any) -> Any:
    """Applied to every value that the template writes: makes peers' text visible before it is escaped."""
    return show(value) if isinstance(value, str) and not isinstance(value, Markup) else value
