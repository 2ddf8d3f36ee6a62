"""Builds the page: one HTML file that holds its style, scripts, charts, pictures and data, and loads nothing.

Whatever peers wrote passes one of three doors: the template (escapes every value), `svg` (escapes words and attributes)
or the embedded JSON, in which `<`, `>` and `&` are written as escapes and which the script shows only as text. A policy
in the page's head names the hashes of its own scripts, so that nothing else would run even if a door were left open.
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
from dovetail.audit.tables import Tables
from dovetail.model.errors import DovetailError
from dovetail.model.outcome import ARRIVED
from dovetail.report.charts import Chart, make_charts
from dovetail.report.evidence import read_chains, read_hops, read_messages
from dovetail.report.findings import MAX_FINDINGS, addresses_of, encode_findings, order_findings
from dovetail.report.gallery import draw_conversations, draw_dag_examples, draw_findings, draw_spreads
from dovetail.report.headline import write_headline
from dovetail.report.numbers import Numbers
from dovetail.report.pictures import Picture
from dovetail.report.receipts import Origins, Related, Shelf, build_shelf
from dovetail.report.text import name_server, name_server_briefly, show, show_path, write_duration, write_time
from dovetail.report.vega import bundle_script

STATIC = "dovetail.report"
MAX_TABLE_ROWS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What the page shows beside the numbers."""

    findings: dict[str, Any]
    gallery: list[Picture]
    finding_pictures: list[tuple[int, Picture]]
    receipts: Shelf


def gather_content(
    tables: Tables, numbers: Numbers, *, max_findings: int = MAX_FINDINGS, origins: Origins | None = None
) -> Content:
    """Read the stories, draw the pictures, and build the receipts where it is known from what."""
    rows = tables.read("findings")
    findings = order_findings(rows, max_findings)
    addresses = addresses_of(findings)
    messages = read_messages(tables, addresses)
    peers = [peer.peer for peer in numbers.peers]
    places = {address: number for number, address in enumerate(addresses)}
    return Content(
        findings=encode_findings(
            findings,
            messages,
            read_hops(tables, addresses),
            total=rows.num_rows,
            aliases=origins.name_servers() if origins is not None else {},
        ),
        gallery=[*draw_conversations(tables), *draw_dag_examples(tables, findings), *draw_spreads(tables, peers)],
        finding_pictures=[(places[address], picture) for address, picture in draw_findings(tables, findings, peers)],
        receipts=Shelf() if origins is None else build_shelf(origins, addresses, _responses(tables, addresses)),
    )


def _responses(tables: Tables, addresses: list[bytes]) -> Related:
    """The responses to these messages."""
    kinds = ("first_response", "second_response", "failure")
    chains = read_chains(tables, addresses)
    return {message: [row[kind] for kind in kinds if row[kind] is not None] for message, row in chains.items()}


def build_page(numbers: Numbers, content: Content, *, tables_path: str) -> str:
    """The whole page."""
    style, script, library = read_static("report.css"), read_static("report.js"), bundle_script()
    charts = make_charts(numbers)
    return (
        _environment()
        .get_template("page.html")
        .render(
            n=numbers,
            arrived_outcomes=ARRIVED,
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
                    "tables": show(show_path(tables_path)),
                    "lake": show(show_path(numbers.lake)),
                    "receipts": content.receipts.encode(),
                }
            ),
            max_rows=MAX_TABLE_ROWS,
        )
    )


def write_page(
    tables: Tables, numbers: Numbers, path: Path, *, max_findings: int = MAX_FINDINGS, origins: Origins | None = None
) -> int:
    """Write the page under another name and rename it, so that nobody reads half of one; returns its size in bytes.

    `origins` are the journals and the lake from which it is to have receipts.
    """
    content = gather_content(tables, numbers, max_findings=max_findings, origins=origins)
    page = build_page(numbers, content, tables_path=str(tables.root))
    data = page.encode()
    beside = path.with_name(f"{path.name}.new")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise DovetailError(f"{path} cannot be written: {error.strerror or error}") from error
    return len(data)


def write_policy(*, scripts: tuple[str, ...], style: str) -> str:
    """The content security policy: our own scripts by their hashes, our own style, and nothing from anywhere else."""
    hashes = " ".join(_hash(script) for script in scripts)
    # Vega writes style attributes into the charts that it draws; they can name no address, since nothing may be loaded.
    styles = f"style-src-elem {_hash(style)}; style-src-attr 'unsafe-inline'"
    return f"default-src 'none'; script-src {hashes}; {styles}; img-src data:; base-uri 'none'; form-action 'none'"


def embed_json(value: object) -> Markup:
    """JSON for a script element: nothing in it can end the element or begin a comment."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 - escaped above, for the place it goes to


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
        "time": write_time,
        "server": name_server,
        "brief": name_server_briefly,
        "words": lambda value: value.replace("_", " "),
        "svg": Markup,
        "chart_label": _label_chart,
    }
    return environment


def _label_chart(chart: Chart) -> str:
    return f"{chart.title}: {chart.caption}. The same numbers are in the table below."


def _finalize(value: Any) -> Any:
    """Every value that the template writes: peers' text is made visible before it is escaped."""
    return show(value) if isinstance(value, str) and not isinstance(value, Markup) else value
