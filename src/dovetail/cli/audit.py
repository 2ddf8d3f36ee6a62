"""`dovetail audit`: run the pipeline over a lake, and look into its tables. Only `run` and `follow` start Spark."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    help="Audit the lake of sealed journals on Spark, and look into the tables.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Lake = Annotated[str, typer.Argument(help="The lake that journals are sealed to: a directory, or s3://bucket/prefix.")]
TablesOption = Annotated[str | None, typer.Option("--tables", help="Directory of the audit tables.")]
OldOut = Annotated[str | None, typer.Option("--out", hidden=True)]
RunNumber = Annotated[int | None, typer.Option("--run", help="Open the tables as this run left them.", min=1)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Master = Annotated[str | None, typer.Option(help="Spark's master, such as spark://host:7077; local by default.")]
Conf = Annotated[list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting; repeatable.")]
Memory = Annotated[str | None, typer.Option("--driver-memory", help="Memory of the driver, such as 4g.")]
Swarms = Annotated[list[Path] | None, typer.Option("--swarm", help="Settings file of a swarm (TOML); repeatable.")]
Trust = Annotated[list[Path] | None, typer.Option("--trust", help="A file of trusted keys; repeatable.")]
Patience = Annotated[float, typer.Option(help="Seconds after which an undelivered message counts as lost.", min=0)]


@app.command()
def run(
    lake: Lake,
    tables: TablesOption = None,
    out: OldOut = None,
    master: Master = None,
    conf: Conf = None,
    driver_memory: Memory = None,
    swarm: Swarms = None,
    trust: Trust = None,
    patience: Patience = 30,
    wait: Annotated[float, typer.Option(help="Seconds to wait for another audit that writes the tables.", min=0)] = 0,
    as_of: Annotated[
        dt.datetime | None, typer.Option(help="Audit as of this time (UTC); defaults to the newest hop.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Audit what is new in LAKE, write the tables to --tables, and report findings."""
    from dovetail.cli.output import print_json, print_text

    root = _root(tables, out)
    audit = _open_audit(lake, root, master, conf, driver_memory, swarm, trust, patience, as_of, is_once=True)
    audit.wait_s = wait
    summary = _run_with_progress(audit)
    if as_json:
        print_json(summary)
    else:
        print_text(summary.text())


@app.command()
def follow(
    lake: Lake,
    tables: TablesOption = None,
    out: OldOut = None,
    every: Annotated[float, typer.Option(help="Seconds between checks for new files in the lake.", min=0.1)] = 10,
    webhook: Annotated[str | None, typer.Option(help="URL that each alert is posted to as JSON.")] = None,
    master: Master = None,
    conf: Conf = None,
    driver_memory: Memory = None,
    swarm: Swarms = None,
    trust: Trust = None,
    patience: Patience = 30,
    sealing: Annotated[
        float, typer.Option(help="Seconds to wait for late hops before a chain is reported as incomplete.", min=0)
    ] = 60,
    as_json: AsJson = False,
) -> None:
    """Keep auditing LAKE as it grows, and print each new finding once."""
    import signal

    from dovetail.audit.alerts import Alerts
    from dovetail.audit.follow import Follower
    from dovetail.audit.webhook import Webhook, check_webhook
    from dovetail.cli.output import escape, print_json, say

    url = check_webhook(webhook) if webhook is not None else None
    root = _root(tables, out)
    audit = _open_audit(lake, root, master, conf, driver_memory, swarm, trust, patience, None)
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

    follower = Follower(audit, Alerts(Path(root), tell, overdue_us=int((patience + sealing) * 1_000_000)), every)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: follower.stop.set())
    say(f"following {lake} every {every:g} s; stop with Ctrl-C")
    try:
        follower.run()
    finally:
        if hook is not None:
            hook.close()


@app.command()
def compact(
    lake: Lake,
    before: Annotated[
        str, typer.Option(metavar="DATE", help="Compact files from before this UTC date, for example 2026-11-01.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and change nothing.")] = False,
    grace: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long replaced files are kept for readers.", min=0)
    ] = 86_400,
    wait: Annotated[float | None, typer.Option(hidden=True)] = None,
    master: Annotated[
        str | None, typer.Option(help="Run on Spark with this master; by default in processes of this machine.")
    ] = None,
    conf: Conf = None,
    driver_memory: Memory = None,
    swarm: Swarms = None,
    as_json: AsJson = False,
) -> None:
    """Merge small files of LAKE and remove the bytes of messages that expired; addresses and verdicts stay.

    Bytes of swarm messages are removed only with --swarm, since the agreement says how long they live.
    """
    from dovetail.audit.settings import load_settings
    from dovetail.cli.output import print_json, print_text, say
    from dovetail.cli.progress import Bar
    from dovetail.lake.compact import Compaction, RunTasks, parse_before, run_in_processes
    from dovetail.lake.location import open_store
    from dovetail.lake.snapshot import check_lake
    from dovetail.model.errors import UsageError

    if wait is not None:
        say("--wait has no effect any more: a compaction no longer waits for audits")
    if master is None and (conf or driver_memory):
        raise UsageError("--conf and --driver-memory are for Spark; name its --master")
    moment = parse_before(before, dt.datetime.now(dt.UTC))
    store, agreements = open_store(check_lake(lake)), load_settings(swarm or []).agreements
    run_tasks: RunTasks = run_in_processes
    if master is not None:
        from dovetail.audit.compact import SparkTasks

        run_tasks = SparkTasks(_open_spark(master, conf, driver_memory))
    with Bar("compact", "files") as bar:
        summary = Compaction(
            store=store,
            before=moment,
            agreements=agreements,
            is_dry=dry_run,
            grace_s=grace,
            run_tasks=run_tasks,
            progress=bar.update,
        ).run()
    if as_json:
        print_json(summary)
    else:
        print_text(summary.text())
    if summary.left_alone:
        raise typer.Exit(1)


@app.command("tables")
def list_tables(
    tables: TablesOption = None,
    out: OldOut = None,
    run: RunNumber = None,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print how DuckDB, Polars, Trino and Spark open the same versions.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the tables of a run with their rows, or how other engines open them."""
    from dovetail.audit.schemas import BY_NAME
    from dovetail.audit.tables import open_tables
    from dovetail.cli.output import print_rows, print_text

    opened = open_tables(_root(tables, out), run)
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
    print_rows(rows, ["table", "rows", "version", "meaning"], as_json=as_json)


@app.command()
def show(
    table: Annotated[str, typer.Argument(help="The table's name.")],
    tables: TablesOption = None,
    out: OldOut = None,
    run: RunNumber = None,
    limit: Annotated[int, typer.Option(help="Maximum number of rows (0: no limit).", min=0)] = 20,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=VALUE", help="Only rows with this value; an address may be a hex prefix."),
    ] = None,
    columns: Annotated[str | None, typer.Option(help="Columns to print, separated by commas.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print rows of one table."""
    from dovetail.audit.tables import open_tables
    from dovetail.cli.output import print_rows, say
    from dovetail.model.errors import UsageError

    opened = open_tables(_root(tables, out), run)
    conditions = _pairs(where or [], "--where")
    names = columns.split(",") if columns else opened.dataset(table).schema.names
    try:
        expression = opened.equals(table, conditions)
    except ValueError as error:
        raise UsageError(f"--where: {error}") from None
    print_rows(opened.scan(table, expression, limit or None), names, as_json=as_json)
    total = opened.count(table, expression)
    if 0 < limit < total:
        say(f"{limit} of {total:,} rows; --limit 0 prints all")


@app.command()
def why(
    address: Annotated[str, typer.Argument(help="Message address in hex or as wm:/Qm..., or a prefix of either.")],
    tables: TablesOption = None,
    out: OldOut = None,
    run: RunNumber = None,
    as_json: AsJson = False,
) -> None:
    """Trace one message: every hop, and where and why it stopped."""
    from dovetail.audit.message_trace import story_text, tell_story
    from dovetail.audit.tables import open_tables
    from dovetail.cli.output import escape, print_json
    from dovetail.model.address import parse_prefix
    from dovetail.model.errors import UsageError

    try:
        beginning = parse_prefix(address)
    except ValueError as error:
        raise UsageError(str(error)) from None
    story = tell_story(open_tables(_root(tables, out), run), beginning)
    if as_json:
        print_json(story)
    else:
        sys.stdout.write("".join(escape(line) + "\n" for line in story_text(story)))


@app.command()
def vacuum(
    tables: TablesOption = None,
    out: OldOut = None,
    keep: Annotated[int, typer.Option(help="How many of the newest runs stay open to readers.", min=1)] = 10,
    older_than: Annotated[
        float, typer.Option(metavar="HOURS", help="Keep runs that ended later than this, too.", min=0)
    ] = 24,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and change nothing.")] = False,
) -> None:
    """Forget old runs, and delete files that no run needs any more."""
    from dovetail.audit.vacuum import vacuum_tables
    from dovetail.cli.output import print_text

    done = vacuum_tables(_root(tables, out), keep_runs=keep, older_than_h=older_than, is_dry=dry_run)
    print_text(done.text())


@app.command()
def explain(as_json: AsJson = False) -> None:
    """Print the step graph: which tables each table is computed from."""
    from dovetail.audit.schemas import BY_NAME
    from dovetail.audit.steps import graph
    from dovetail.cli.output import print_rows

    rows = [
        {"table": name, "layer": BY_NAME[name].layer, "made_from": list(inputs), "meaning": BY_NAME[name].sentence}
        for name, inputs in graph().items()
    ]
    print_rows(rows, ["table", "layer", "made_from", "meaning"], as_json=as_json)


def _open_audit(
    lake: str,
    tables: str,
    master: str | None,
    conf: list[str] | None,
    driver_memory: str | None,
    swarm: list[Path] | None,
    trust: list[Path] | None,
    patience: float,
    as_of: dt.datetime | None,
    *,
    is_once: bool = False,
) -> Any:
    from dovetail.audit.run import Audit
    from dovetail.audit.settings import load_settings
    from dovetail.audit.tables import refuse_old_format
    from dovetail.lake.location import open_store
    from dovetail.lake.snapshot import check_lake, snapshot

    place = check_lake(lake)
    refuse_old_format(tables)
    settings = load_settings(swarm or [], trust or [], patience_s=patience)
    rows = snapshot(open_store(place)).hops if is_once else None
    moment = as_of if as_of is None or as_of.tzinfo is not None else as_of.replace(tzinfo=dt.UTC)
    spark = _open_spark(master, conf, driver_memory, rows)
    return Audit(spark=spark, lake=place, tables=tables, settings=settings, as_of=moment)


def _open_spark(master: str | None, conf: list[str] | None, driver_memory: str | None, rows: int | None = None) -> Any:
    from dovetail.audit.session import SessionOptions, open_session

    options = SessionOptions(master=master, driver_memory=driver_memory, conf=_pairs(conf or [], "--conf"), rows=rows)
    return open_session(options)


def _root(tables: str | None, out: str | None) -> str:
    """The tables' directory, absolute, or their URL; `--out` was its name before."""
    from dovetail.cli.output import say
    from dovetail.model.errors import UsageError

    if out is not None:
        say("--out is now called --tables; the old name goes with the next release")
    root = tables if tables is not None else out
    if root is None:
        raise UsageError("name the directory of the tables with --tables")
    return root if "://" in root else str(Path(root).absolute())


def _run_with_progress(job: Any) -> Any:
    """Run an audit, with progress on a terminal."""
    if not sys.stderr.isatty():
        return job.run()
    from dovetail.audit.progress import TerminalProgress

    with TerminalProgress(job.spark) as progress:
        job.progress = progress
        return job.run()


def _pairs(items: list[str], option: str) -> dict[str, str]:
    from dovetail.model.errors import UsageError

    pairs = {}
    for item in items:
        name, equals_sign, value = item.partition("=")
        if not equals_sign or not name:
            raise UsageError(f"{option} takes KEY=VALUE, got {item[:80]!r}")
        pairs[name] = value
    return pairs
