"""`dovetail audit`: run the pipeline over a lake and inspect its tables. Only `run` and `follow` start Spark."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dovetail.cli.audit_options import (
    AuditOptions,
    CompactionKey,
    Conf,
    Lake,
    Memory,
    RunSource,
    Swarms,
    TableSource,
    open_spark,
)
from dovetail.cli.client_options import each_of, given_or_known, in_context, key_values, read_context
from dovetail.cli.exit_codes import EXIT_NO
from dovetail.cli.option_groups import takes_groups
from dovetail.cli.table_options import Form

app = typer.Typer(
    help="Audit the lake of sealed journals on Spark, and look into the tables.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Journals = Annotated[
    list[Path] | None,
    typer.Option(
        "--journals",
        metavar="PATH",
        help="Journals, or directories of them, that name their servers; from the context by default.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
FailOn = Annotated[
    Literal["error", "warning"] | None,
    typer.Option(help="Exit with 3 if there is a finding of this severity or worse.", show_default=False),
]


@app.command()
@in_context
@takes_groups
def run(
    options: AuditOptions,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", help="Seconds to wait for another audit that writes the tables.", min=0)
    ] = 0,
    as_of: Annotated[
        dt.datetime | None, typer.Option(help="Audit as of this time (UTC); defaults to the newest hop.")
    ] = None,
    fail_on: FailOn = None,
    as_json: AsJson = False,
) -> None:
    """Audit what is new in LAKE, write the tables to --tables, and report findings.

    With --fail-on it exits with 3 if there are findings of that severity or worse.
    """
    from dovetail.cli.output import print_json, print_text

    moment = as_of if as_of is None or as_of.tzinfo is not None else as_of.replace(tzinfo=dt.UTC)
    audit = options.open(moment, is_once=True)
    audit.wait_s = wait
    summary = _run_with_progress(audit)
    if as_json:
        print_json(summary)
    else:
        print_text(summary.text())
    if fail_on is not None and summary.has_findings(fail_on):
        raise typer.Exit(EXIT_NO)


@app.command()
@in_context
@takes_groups
def follow(
    options: AuditOptions,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", help="Seconds between checks for new files in the lake.", min=0.1)
    ] = 10,
    webhook: Annotated[
        str | None, typer.Option(metavar="URL", help="URL that each alert is posted to as JSON.")
    ] = None,
    sealing: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="Seconds to wait for late hops before a chain is reported as incomplete.", min=0
        ),
    ] = 60,
    as_json: AsJson = False,
) -> None:
    """Keep auditing LAKE as it grows, and print each new finding once. Exits with 1 if the disk is full."""
    import signal

    from dovetail.audit.alerts import Alerts
    from dovetail.audit.follow import Follower
    from dovetail.audit.webhook import Webhook, check_webhook
    from dovetail.cli.output import escape, print_json, say

    url = check_webhook(webhook) if webhook is not None else None
    audit = options.open()
    hook = Webhook(url, say) if url is not None else None

    def tell(finding: dict[str, Any]) -> None:
        if as_json:
            print_json(finding)
        else:
            place = " ".join(str(finding[name]) for name in ("server", "message") if finding[name])
            sys.stdout.write(escape(f"{finding['severity']} {finding['check']} {place} {finding['detail']}") + "\n")
        sys.stdout.flush()
        if hook is not None:
            hook.put(finding)

    overdue_us = int((options.loss_timeout_s + sealing) * 1_000_000)
    follower = Follower(audit, Alerts(options.root, tell, overdue_us=overdue_us), every)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: follower.stop.set())
    say(f"following {options.place} every {every:g} s; stop with Ctrl-C")
    try:
        follower.run()
    finally:
        if hook is not None:
            hook.close()


@app.command()
@in_context
def compact(
    before: Annotated[
        str, typer.Option(metavar="DATE", help="Compact files from before this UTC date, for example 2026-11-01.")
    ],
    lake: Lake = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and change nothing.")] = False,
    grace: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long replaced files are kept for readers.", min=0)
    ] = 86_400,
    wait: Annotated[float | None, typer.Option(hidden=True)] = None,
    master: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Run on Spark with this master; by default in processes of this machine."),
    ] = None,
    conf: Conf = None,
    driver_memory: Memory = None,
    swarm: Swarms = None,
    signing_key: CompactionKey = None,
    as_json: AsJson = False,
) -> None:
    """Merge small files of LAKE and remove the bytes of messages that expired; addresses and verdicts stay.

    Bytes of swarm messages are removed only with --swarm. Audits read retained fields only with a trusted signature.
    """
    from dovetail.audit.settings import load_settings
    from dovetail.cli.output import print_json, print_text, say
    from dovetail.cli.progress import Bar
    from dovetail.keys.signing import load_signing_key
    from dovetail.lake.compact import Compaction, RunTasks, parse_before, run_in_processes
    from dovetail.lake.location import open_store
    from dovetail.lake.snapshot import check_lake
    from dovetail.model.errors import UsageError

    if wait is not None:
        say("--wait has no effect any more: a compaction no longer waits for audits")
    if master is None and (conf or driver_memory):
        raise UsageError("--conf and --driver-memory are for Spark; name its --master")
    moment = parse_before(before, dt.datetime.now(dt.UTC))
    place = given_or_known(lake, "lake", "no lake: name it")
    store, agreements = open_store(check_lake(place)), load_settings(swarm or []).named_agreements
    run_tasks: RunTasks = run_in_processes
    if master is not None:
        from dovetail.audit.compact import SparkTasks

        run_tasks = SparkTasks(open_spark(master, conf, driver_memory, place))
    with Bar("compact", "files") as bar:
        summary = Compaction(
            store=store,
            before=moment,
            agreements=agreements,
            signer=None if signing_key is None else load_signing_key(signing_key),
            is_dry=dry_run,
            grace_s=grace,
            run_tasks=run_tasks,
            progress=bar.update,
        ).run()
    print_json(summary) if as_json else print_text(summary.text())
    if summary.left_alone:
        raise typer.Exit(1)


@app.command()
@in_context
@takes_groups
def verify(
    source: RunSource,
    lake: Annotated[
        str | None, typer.Argument(help="The lake; by default the one that was audited.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read again everything that was audited; exits with 3 if a file was altered or is gone, and names its server.

    A run of the audit notices such a file by its size and times, or its ETag. This reads the bytes, without Spark.
    """
    from dovetail.audit.verify import verify_lake
    from dovetail.cli.output import escape, print_json, print_text
    from dovetail.cli.progress import Bar
    from dovetail.lake.location import open_store
    from dovetail.lake.snapshot import check_lake

    opened = source.open()
    store = open_store(check_lake(lake or opened.run.lake))
    with Bar("verify", "files") as bar:
        done = verify_lake(opened, store, bar.update)
    if as_json:
        print_json(done)
    else:
        print_text("".join(escape(line) + "\n" for line in done.lines()))
    if done.problems:
        raise typer.Exit(EXIT_NO)


@app.command("tables")
@in_context
@takes_groups
def list_tables(
    source: RunSource,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print how DuckDB, Polars, Trino and Spark open the same versions.")
    ] = False,
    *,
    form: Form,
) -> None:
    """List the tables of a run with their rows, or how other engines open them."""
    from dovetail.audit.schemas import BY_NAME
    from dovetail.cli.output import print_rows, print_text

    opened = source.open()
    if sql:
        from dovetail.audit.engines import recipes

        print_text(recipes(opened))
        return
    rows = [
        {
            "table": name,
            "rows": opened.count(name),
            "version": opened.run.versions.get(name),
            "meaning": BY_NAME[name].sentence,
        }
        for name in opened.names
    ]
    print_rows(rows, ["table", "rows", "version", "meaning"], form)


@app.command()
@in_context
@takes_groups
def show(
    table: Annotated[str, typer.Argument(help="The table's name.")],
    source: RunSource,
    limit: Annotated[int, typer.Option(help="Maximum number of rows (0: no limit).", min=0, max=1_000_000_000)] = 20,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=VALUE", help="Only rows with this value; messages by address, id or prefix."),
    ] = None,
    columns: Annotated[str | None, typer.Option(metavar="NAMES", help="Columns to print, separated by commas.")] = None,
    journals: Journals = None,
    *,
    form: Form,
) -> None:
    """Print rows of one table; servers whose journals are known have their names, with --wide their URIs."""
    from dovetail.audit.tables import check_columns
    from dovetail.cli.output import print_rows, say

    opened = source.open()
    schema = opened.dataset(table).schema
    names = columns.split(",") if columns else schema.names
    check_columns(schema, names)
    servers = _server_names(journals)
    uris = {name: server for server, name in servers.items()}
    conditions = {column: uris.get(value, value) for column, value in key_values(where or [], "--where").items()}
    expression = opened.equals(table, conditions)
    rows = opened.scan(table, expression, limit or None)
    print_rows(rows if form.is_whole else (_name_servers(row, servers) for row in rows), names, form)
    total = opened.count(table, expression)
    if 0 < limit < total:
        say(f"{limit} of {total:,} rows; --limit 0 prints all")


@app.command()
@in_context
@takes_groups
def why(
    source: RunSource,
    address: Annotated[
        str, typer.Argument(help="The message: hex, wm:/..., a pcp id, or a prefix of any of them.", metavar="ADDRESS")
    ],
    journals: Journals = None,
    as_json: AsJson = False,
) -> None:
    """Trace one message: every hop, and where and why it stopped."""
    from dovetail.audit.message_trace import trace_message, trace_text
    from dovetail.audit.server_names import named_by
    from dovetail.cli.output import escape, print_json

    trace = trace_message(source.open(), address)
    if as_json:
        print_json(trace)
    else:
        with named_by(_server_names(journals)):
            sys.stdout.write("".join(escape(line) + "\n" for line in trace_text(trace)))


@app.command()
@in_context
@takes_groups
def vacuum(
    source: TableSource,
    keep: Annotated[int, typer.Option(help="Number of newest runs to keep.", min=1)] = 10,
    older_than: Annotated[
        float, typer.Option(metavar="HOURS", help="Also keep runs that ended in the last HOURS.", min=0, max=1_000_000)
    ] = 24,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and change nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove old runs, and delete files that no remaining run uses."""
    from dovetail.audit.vacuum import vacuum_tables
    from dovetail.cli.output import print_json, print_text

    done = vacuum_tables(source.root, keep_runs=keep, older_than_h=older_than, is_dry=dry_run)
    if as_json:
        print_json(done)
    else:
        print_text(done.text())


@app.command()
def package(
    directory: Annotated[Path, typer.Argument(help="Output directory; created if missing.", metavar="DIR")],
) -> None:
    """Write our code as dovetail.zip, and the programs run.py and compact.py, for `spark-submit --py-files`."""
    from dovetail.audit.package import write_package
    from dovetail.cli.output import print_text

    for path in write_package(directory):
        print_text(f"{path}\n")


@app.command()
@takes_groups
def explain(form: Form) -> None:
    """Print the step graph: which tables each table is computed from."""
    from dovetail.audit.schemas import BY_NAME
    from dovetail.audit.steps import graph
    from dovetail.cli.output import print_rows

    rows = [
        {"table": name, "layer": BY_NAME[name].layer, "made_from": list(inputs), "meaning": BY_NAME[name].sentence}
        for name, inputs in graph().items()
    ]
    print_rows(rows, ["table", "layer", "made_from", "meaning"], form)


def _server_names(journals: list[Path] | None) -> dict[str, str]:
    from dovetail.audit.server_names import read_names

    return read_names(each_of(journals, read_context().journals))


def _name_servers(row: dict[str, Any], servers: dict[str, str]) -> dict[str, Any]:
    return {column: servers.get(value, value) if isinstance(value, str) else value for column, value in row.items()}


def _run_with_progress(job: Any) -> Any:
    """Run an audit, with progress on a terminal."""
    if not sys.stderr.isatty():
        return job.run()
    from dovetail.audit.progress import TerminalProgress

    with TerminalProgress(job.spark) as progress:
        job.progress = progress
        return job.run()
