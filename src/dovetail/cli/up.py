"""`dovetail up`: run and supervise the servers defined in a configuration file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.option_groups import takes_groups
from dovetail.cli.table_options import Form

if TYPE_CHECKING:
    from dovetail.site.config import Config
    from dovetail.site.servers import Site
    from dovetail.site.supervisor import Plan, Supervisor

app = typer.Typer(help="Run and supervise the servers defined in a configuration file.")


@app.command()
@takes_groups
def up(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(help="The configuration file.", metavar="CONFIG")],
    role: Annotated[
        list[str] | None, typer.Option(help="Run only processes with this role; repeatable.", metavar="NAME")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            help="Run only this process, unsupervised, for example `pcp/broker` or `seal`.", metavar="PROCESS"
        ),
    ] = None,
    as_list: Annotated[bool, typer.Option("--list", help="List the processes without starting them.")] = False,
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True)] = False,
    *,
    form: Form,
) -> None:
    """Run the servers, sealing, audit and dashboard that CONFIG names, until SIGTERM or SIGINT.

    Each runs in its own process. A process that exits is restarted after a pause that grows with every failure; one
    that cannot start as configured is reported and not restarted. When stopping, servers drain before sealing stops.
    SIGHUP makes brokers reload their rules.
    """
    from dovetail.site.config import load_config
    from dovetail.site.servers import Site

    loaded = load_config(config)
    site = Site.choose(loaded.config, role or ())
    if as_list:
        _print_list(site, form)
        return
    options, log_form = _configure_logs(loaded.config, context)
    if only is not None:
        _run_one(site, only, lambda: Site.choose(load_config(config).config, role or ()), supervised=supervised)
    else:
        _check(site)
        _supervise(site, _plan(site, config, role or [], options), is_json=log_form == "json")


def _check(site: Site) -> None:
    from dovetail.cli.output import say
    from dovetail.site.preflight import find_problems

    problems = list(find_problems(site))
    for problem in problems:
        say(f"dovetail: {problem}")
    if problems:
        raise typer.Exit(1)


def _configure_logs(config: Config, context: typer.Context) -> tuple[list[str], str]:
    """Set up logging from the command line, or else from the file; returns the options given and the format."""
    from dovetail.cli import logs

    given = context.parent.params if context.parent is not None else {}
    level, form = given.get("log_level"), given.get("log_format")
    logs.configure(level=level or config.logs.level, form=form or config.logs.format)
    options = {"--log-level": level, "--log-format": form}
    words = [word for option, value in options.items() if value for word in (option, value)]
    return words, form or config.logs.format


def _print_list(site: Site, form: Form) -> None:
    from dovetail.cli.output import print_rows

    rows: list[dict[str, object]] = []
    for process in site.processes():
        table = process.section
        rows.append(
            {
                "process": process.name,
                "role": site.role_of(process),
                "listens": [f"{kind}:{address}" for kind, address in site.listens_of(process)],
                "journal": str(site.journal_of(table)) if table is not None else None,
            }
        )
    print_rows(rows, ["process", "role", "listens", "journal"], form)


def _run_one(site: Site, name: str, read_site: Callable[[], Site], *, supervised: bool) -> None:
    from dovetail.cli.output import say
    from dovetail.model.errors import ResourceBusy
    from dovetail.runtime.hangup import release_hangup
    from dovetail.site.config.servers import PcpServerSection
    from dovetail.site.server_process import end_with_parent, run_process
    from dovetail.site.servers import AUDIT, DASHBOARD
    from dovetail.site.supervisor import EXIT_TAKEN

    process = site.process(name)
    if not isinstance(process.section, PcpServerSection):
        release_hangup()  # only brokers reload anything
    if supervised:
        end_with_parent()
    try:
        if name == AUDIT:
            _follow(site)
        elif name == DASHBOARD:
            _show(site)
        else:
            run_process(site, process, _print_ready, read_site)
    except ResourceBusy as error:
        say(f"dovetail: {error}")
        raise typer.Exit(EXIT_TAKEN) from None


def _print_ready(ready: dict[str, object]) -> None:
    from dovetail.cli.output import print_json
    from dovetail.site.supervisor import READY

    sys.stdout.write(READY)
    print_json(ready)
    sys.stdout.flush()


def _follow(site: Site) -> None:
    """Run the audit like `audit follow`; the agreements of the site's swarms are stored beside its tables."""
    from dovetail.cli.audit import follow
    from dovetail.keys.files import make_private_directory
    from dovetail.lake.layout import MANIFESTS
    from dovetail.lake.location import local_directory
    from dovetail.site.servers import write_agreements

    config = site.config
    if (directory := local_directory(config.lake.directory)) is not None:
        make_private_directory(directory / MANIFESTS)
    _print_ready({"lake": config.lake.directory, "tables": str(config.audit.directory)})
    _interrupt_on_sigterm()
    follow(
        lake=config.lake.directory,
        tables=str(config.audit.directory),
        every=config.audit.interval_s,
        webhook=config.audit.webhook,
        master=config.audit.master,
        conf=[f"{name}={value}" for name, value in config.audit.spark.items()],
        driver_memory=config.audit.driver_memory,
        swarm=write_agreements(config),
        trust=list(config.audit.trust),
        proven_only=config.audit.proven_only,
        loss_timeout=config.audit.loss_timeout_s,
        sealing=config.lake.seal_interval_s,
        as_json=config.logs.format == "json",
    )


def _show(site: Site) -> None:
    """Run the dashboard over the journals, the lake and the tables of this site."""
    from dovetail.dashboard import site_sources
    from dovetail.dashboard.gauges import parse_endpoint
    from dovetail.dashboard.guard import Access, read_token
    from dovetail.dashboard.hub import Sources
    from dovetail.dashboard.server import serve
    from dovetail.keys.files import make_private_directory
    from dovetail.lake.location import local_directory
    from dovetail.model.errors import ConfigError, UsageError
    from dovetail.site.config import parse_listen

    config = site.config
    section = config.dashboard
    if (directory := local_directory(config.lake.directory)) is not None:
        make_private_directory(directory)
    sources = Sources(
        site_sources.Site(tuple(site.journals()), config.lake.directory),
        config.audit.directory if config.audit.enabled else None,
        tuple(parse_endpoint(f"{name}={url}") for name, url in site.metrics_endpoints()),
    )
    host, port = parse_listen(section.listen)
    try:
        token = None if section.token_file is None else read_token(section.token_file)
    except ConfigError as error:
        raise UsageError(str(error)) from error
    access = Access.build(host, section.allow_hosts, token)
    serve(sources, access, host, port, lambda text: _print_ready({"page": text}))


def _interrupt_on_sigterm() -> None:
    """SIGTERM ends the audit as Ctrl-C does, so that Spark is stopped too."""
    import logging
    import signal

    # Spark's gateway logs a traceback, under either name, for the call that the signal interrupts.
    for name in ("root", "py4j"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def _plan(site: Site, config: Path, roles: list[str], options: list[str]) -> list[Plan]:
    from dovetail.site.config.servers import PcpServerSection
    from dovetail.site.supervisor import Plan

    chosen = [word for role in roles for word in ("--role", role)]
    start = [sys.executable, "-m", "dovetail", *options, "up", str(config.absolute()), *chosen, "--supervised"]
    return [
        Plan(
            name=each.name,
            command=[*start, "--only", each.name],
            stage=each.stage,
            reloads=isinstance(each.section, PcpServerSection),
        )
        for each in site.processes()
    ]


def _supervise(site: Site, plans: list[Plan], *, is_json: bool) -> None:
    import asyncio
    import signal

    from dovetail.cli.transcript import Transcript
    from dovetail.runtime.hangup import release_hangup
    from dovetail.runtime.metrics import MetricsServer
    from dovetail.site.config import parse_listen
    from dovetail.site.running import SiteHealth
    from dovetail.site.site_metrics import SiteCollector
    from dovetail.site.supervisor import Rules, Supervisor

    section = site.config.supervisor
    rules = Rules(
        restart_min_s=section.restart_min_s,
        restart_max_s=section.restart_max_s,
        well_after_s=section.well_after_s,
        grace_s=section.grace_s,
    )

    async def run() -> bool:
        transcript = Transcript(is_json=is_json, out=sys.stdout, err=sys.stderr)
        supervisor: Supervisor = Supervisor(plans, rules, transcript)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, supervisor.stop)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, supervisor.reload)
        release_hangup()
        readings = SiteCollector(site)
        health = SiteHealth(
            site, supervisor.health, lambda: supervisor.pids, lambda: list(readings.collect()), readings.unread
        )
        metrics = MetricsServer(supervisor.registry, health.health)
        if section.metrics is not None:
            readings.start()
            health.start()
            supervisor.registry.register(readings)
            await metrics.start(*parse_listen(section.metrics))
        try:
            return await supervisor.run()
        finally:
            await metrics.stop()

    if not asyncio.run(run()):
        raise typer.Exit(1)
