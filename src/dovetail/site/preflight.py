"""Finds what would keep a site from running, before anything is started: one line per problem, with advice."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from dovetail.audit import jars
from dovetail.audit.java import Java, Rejected, find_java
from dovetail.journal.continuity import check_writable
from dovetail.journal.high_water import mark_path
from dovetail.journal.reader import read_identity
from dovetail.keys.signing import load_signing_key
from dovetail.lake.head import read_head
from dovetail.lake.known import known_to_lake
from dovetail.lake.location import local_directory, open_store
from dovetail.model.errors import DovetailError, JournalRolledBack, KeyFileError
from dovetail.site.config import parse_listen
from dovetail.site.config.sections import DashboardSection
from dovetail.site.config.servers import ServerSection, SwarmServerSection
from dovetail.site.doctor.finding import Finding, Status, fail, ok
from dovetail.site.doctor.machine import check_java, check_spark
from dovetail.site.doctor.site import check_directory, check_file_system, check_object_store, check_port, check_room
from dovetail.site.servers import Site, server_uri

MAX_SOCKET_PATH_BYTES = 107
FindJava = Callable[[], tuple[Java | None, list[Rejected]]]


def find_problems(site: Site, look_for_java: FindJava = find_java) -> Iterator[str]:
    """Everything that would keep the site from running, one line each."""
    for finding in check_needed_files(site):
        yield f"{finding.check}: {finding.detail}: {finding.advice}"
    for table in site.servers():
        if isinstance(table, SwarmServerSection):
            yield from _find_long_path(table.label, site.swarm_directory(table))
        else:
            yield from _find_bad_key(table.label, site.signing_key_of(table))
        yield from _find_rolled_back(site, table)
    token_file = site.config.dashboard.token_file
    if site.runs_dashboard and token_file is not None:
        problem = _why_unreadable(token_file)
        if problem is not None:
            yield f"dashboard: {token_file}: {problem}: write a token into it, for example with `openssl rand -hex 32`"
    for finding in _findings(site, look_for_java):
        # the doctor's warnings do not keep anything from running
        if finding.status is Status.FAIL or (finding.check == "spark" and finding.status is not Status.OK):
            yield f"{finding.check}: {finding.detail}: {finding.advice}"


def check_needed_files(site: Site) -> Iterator[Finding]:
    """Check the keys and certificates that servers need to start and work: missing or expired."""
    for table in site.servers():
        for path, advice in site.needed_files(table):
            problem = _why_unreadable(path)
            if problem is None and path.suffix == ".pem":
                problem = _why_out_of_date(path)
            if problem is not None:
                yield fail(table.label, f"{path}: {problem}", advice)


def _why_out_of_date(path: Path) -> str | None:
    from dovetail.keys import describe

    try:
        records = list(describe(path))
    except DovetailError as error:
        return str(error)
    over = [record for record in records if record.get("valid") is False]
    return f"valid from {over[0]['valid_from']} until {over[0]['valid_until']}, not now" if over else None


def _findings(site: Site, look_for_java: FindJava) -> Iterator[Finding]:
    config = site.config
    places = {"lake": config.lake.directory}
    if site.runs_audit:
        places["audit"] = config.audit.directory
        java, rejected = look_for_java()
        yield check_java(java, rejected, java_home=os.environ.get("JAVA_HOME"))
        yield check_spark(jars.missing())
    directories = {f"journals in {journal.parent}": journal.parent for journal in site.journals()}
    for name, place in places.items():
        if (directory := local_directory(place)) is None:
            yield check_object_store(place)
        else:
            directories[name] = directory
    for name, directory in directories.items():
        yield check_directory(name, directory)
    for journal in site.journals():
        yield check_file_system(f"journal {journal.name}", journal.parent)
    yield from check_room(directories)
    for table in site.servers():
        for kind, address in table.listens():
            yield check_port(kind, address)
    if site.runs_dashboard:
        yield check_port("tcp", config.dashboard.listen)
        yield check_exposure(config.dashboard)
    if config.supervisor.metrics is not None:
        yield check_port("tcp", config.supervisor.metrics)


def check_exposure(dashboard: DashboardSection) -> Finding:
    """Check that the dashboard asks for a token if others can reach it."""
    from dovetail.dashboard.guard import is_loopback

    host, _ = parse_listen(dashboard.listen)
    if dashboard.token_file is None and not is_loopback(host):
        detail = f"{dashboard.listen} can be reached from outside"
        return fail("dashboard", detail, "set dashboard.token_file, or listen on 127.0.0.1")
    return ok("dashboard", f"{dashboard.listen} is safe to listen on")


def check_journal(site: Site, table: ServerSection) -> None:
    """Raise JournalRolledBack if a server's journal lacks hops that its mark or the lake knows.

    The server would reuse their numbers for other hops. Other faults are reported by the server itself.
    """
    journal, lake = site.journal_of(table), open_store(site.config.lake.directory)
    try:
        if journal.exists():
            identity = read_identity(journal)
            check_writable(journal, identity.verifier, known_to_lake(lake, identity.verifier))
            return
        # a peer is named by its key, which it creates with its journal
        server, sealed = "", 0
        if not isinstance(table, SwarmServerSection):
            server = server_uri(table)
            sealed = read_head(lake, load_signing_key(site.signing_key_of(table), server).verifier).end
    except JournalRolledBack:
        raise
    except (DovetailError, OSError):
        return
    if sealed or mark_path(journal).exists():
        held = f"the lake has {sealed} hops of {server}" if sealed else f"{mark_path(journal).name} is there"
        raise JournalRolledBack(
            f"{journal} is missing, but {held}: restore it, see what `dovetail journal recover {journal}` can do, or "
            "start under a new name"
        )


def _find_rolled_back(site: Site, table: ServerSection) -> Iterator[str]:
    try:
        check_journal(site, table)
    except JournalRolledBack as error:
        yield f"{table.label}: {error}"


def _find_long_path(label: str, directory: Path) -> Iterator[str]:
    from dovetail.runtime.swarm_control import CONTROL_FILE

    size = len(os.fsencode(directory / CONTROL_FILE))
    if size > MAX_SOCKET_PATH_BYTES:
        yield (
            f"{label}: the path of its control socket has {size} bytes, at most {MAX_SOCKET_PATH_BYTES} are possible: "
            "name a shorter `directory`"
        )


def _find_bad_key(label: str, path: Path) -> Iterator[str]:
    """Find a signing key that exists and cannot be used."""
    if _why_unreadable(path) is None:
        try:
            load_signing_key(path, label)
        except KeyFileError as error:
            yield f"{label}: {error}: restore its own key from a backup; a new key needs a new journal"


def _why_unreadable(path: Path) -> str | None:
    if path.is_fifo():
        return "is a pipe"
    try:
        with path.open("rb"):
            return None
    except OSError as error:
        return error.strerror or str(error)
