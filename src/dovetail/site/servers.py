"""What of a configuration runs on this machine: the processes of a site, and the settings of each.

A site's processes stop in stages: first those that only read (audit, dashboard), then the servers, and last the sealer,
so that it seals everything the servers wrote.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dovetail.journal.folder import PEER_JOURNAL, SUFFIX
from dovetail.keys.files import make_private_directory
from dovetail.keys.signing import SIGNING_SUFFIX, file_stem
from dovetail.lake.location import local_directory
from dovetail.model.errors import ConfigError, UsageError
from dovetail.pcp.settings import PcpSettings
from dovetail.site.config import Config, parse_listen
from dovetail.site.config.schema import toml_value
from dovetail.site.config.servers import (
    PcpServerSection,
    ServerSection,
    SwarmServerSection,
    WonServerSection,
    join_host,
)
from dovetail.swarm.settings import SwarmSettings

if TYPE_CHECKING:
    from dovetail.journal.journal import JournalOptions
    from dovetail.runtime.won_server import NodeOptions

SEAL = "seal"
AUDIT = "audit"
DASHBOARD = "dashboard"
_EVERYWHERE = {"0.0.0.0", "::"}  # noqa: S104 - for comparison, not to listen on


class ShutdownStage(enum.IntEnum):
    """When a process is stopped: lower stages first. Processes start in reverse order."""

    WATCHING = 0
    SERVING = 1
    SEALING = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteProcess:
    """One process of the site: its name, its stage, and its table if it is a server."""

    name: str
    stage: ShutdownStage
    section: ServerSection | None = None


@dataclass(frozen=True, slots=True)
class Site:
    """A configuration with the roles of this machine; no roles means all of them."""

    config: Config
    roles: frozenset[str] = frozenset()

    @classmethod
    def choose(cls, config: Config, roles: Sequence[str] = ()) -> Site:
        """The site of these roles; raises UsageError if a role is not in the file, or nothing is left to run."""
        watchers = [section for section in (config.audit, config.dashboard) if section.enabled]
        known = {table.role for table in (*_tables(config), *watchers)} - {""}
        for role in roles:
            if role not in known:
                there = f"there are: {', '.join(sorted(known))}" if known else "no table has a role"
                raise UsageError(f"--role {role}: no table of the configuration has this role; {there}")
        site = cls(config, frozenset(roles))
        if not site.servers() and not site.runs_audit and not site.runs_dashboard:
            raise UsageError("nothing to run: the configuration has no [[pcp]], [[won]] or [[swarm]] table")
        _check_apart(site)
        _check_ports(site)
        return site

    @property
    def runs_audit(self) -> bool:
        """True if the audit runs here."""
        return self.config.audit.enabled and self._has(self.config.audit.role)

    @property
    def runs_dashboard(self) -> bool:
        """True if the dashboard runs here."""
        return self.config.dashboard.enabled and self._has(self.config.dashboard.role)

    def servers(self) -> list[ServerSection]:
        """The servers that run here."""
        return [table for table in _tables(self.config) if self._has(table.role)]

    def processes(self) -> list[SiteProcess]:
        """All processes, in start order."""
        processes = [SiteProcess(name=each.label, stage=ShutdownStage.SERVING, section=each) for each in self.servers()]
        if processes:
            processes.append(SiteProcess(name=SEAL, stage=ShutdownStage.SEALING))
        if self.runs_audit:
            processes.append(SiteProcess(name=AUDIT, stage=ShutdownStage.WATCHING))
        if self.runs_dashboard:
            processes.append(SiteProcess(name=DASHBOARD, stage=ShutdownStage.WATCHING))
        return processes

    def process(self, name: str) -> SiteProcess:
        """The process of this name; raises UsageError if there is none."""
        processes = {process.name: process for process in self.processes()}
        if name not in processes:
            raise UsageError(f"--only {name}: no such process; there are: {', '.join(processes)}")
        return processes[name]

    def role_of(self, process: SiteProcess) -> str:
        """The role of a process; the sealer has none, since it runs alongside servers of any role."""
        if process.section is not None:
            return process.section.role
        return {AUDIT: self.config.audit.role, DASHBOARD: self.config.dashboard.role}.get(process.name, "")

    def listens_of(self, process: SiteProcess) -> list[tuple[str, str]]:
        """Kind and address of everything a process listens on."""
        if process.section is not None:
            return process.section.listens()
        return [("tcp", self.config.dashboard.listen)] if process.name == DASHBOARD else []

    def journals(self) -> list[Path]:
        """The journals written here."""
        return [self.journal_of(each) for each in self.servers()]

    def journal_of(self, table: ServerSection) -> Path:
        """A server's journal."""
        match table:
            case PcpServerSection():
                return Path(table.journal or self._journal_file(table.server_uri))
            case WonServerSection():
                return Path(table.journal or self._journal_file(table.uri))
            case SwarmServerSection():
                return self.swarm_directory(table) / PEER_JOURNAL

    def journal_options(self, table: ServerSection) -> JournalOptions:
        """The options of a server's journal."""
        from dovetail.journal.journal import JournalOptions

        journal = self.config.journal
        return JournalOptions(
            durability=table.durability or journal.durability,
            checkpoint_interval_s=journal.checkpoint_interval_s,
            max_queue_bytes=journal.max_queue_bytes,
            relaxed_flush_ms=journal.relaxed_flush_ms,
            relaxed_sync_s=journal.relaxed_sync_s,
            max_clock_jump_s=journal.max_clock_jump_s,
        )

    def broker_settings(self, table: PcpServerSection) -> PcpSettings:
        """The complete settings of a broker."""
        keys = self.config.keys.directory
        revocations = table.revocations
        if revocations is None and (keys / "crl.pem").exists():
            revocations = str(keys / "crl.pem")
        files = {}
        if not table.insecure_plain:
            files = {
                "certificate": table.certificate or str(keys / f"{table.name}.pem"),
                "key": table.key or str(keys / f"{table.name}.key"),
                "authority": table.authority or str(keys / "ca.pem"),
                "revocations": revocations,
            }
        return msgspec.structs.replace(
            table,
            **files,
            journal=str(self.journal_of(table)),
            signing_key=str(self.signing_key_of(table)),
            durability=self.journal_options(table).durability,
        )

    def node_options(self, table: WonServerSection) -> NodeOptions:
        """The complete settings of a node."""
        from dovetail.runtime.won_server import NodeOptions

        keys = self.config.keys.directory
        host, port = parse_listen(table.listen)
        return NodeOptions(
            uri=table.uri,
            host=host,
            port=port,
            journal=self.journal_of(table),
            certificate=table.certificate or str(keys / f"{table.host}.pem"),
            certificate_key=table.key or str(keys / f"{table.host}.key"),
            authority=table.authority or (str(keys / "ca.pem") if (keys / "ca.pem").exists() else None),
            metrics=parse_listen(table.metrics) if table.metrics is not None else None,
            settings=table.limits,
            journal_options=self.journal_options(table),
        )

    def signing_key_of(self, table: PcpServerSection | WonServerSection) -> Path:
        """The file of the key that signs a server's checkpoints."""
        if table.signing_key is not None:
            return Path(table.signing_key)
        return self.config.keys.directory / (file_stem(server_uri(table)) + SIGNING_SUFFIX)

    def swarm_directory(self, table: SwarmServerSection) -> Path:
        """Where a peer keeps its key, journal and control socket."""
        return Path(table.directory or self.config.journal.directory / f"swarm_{table.name}_{table.peer}")

    def metrics_endpoints(self) -> list[tuple[str, str]]:
        """Name and URL of the metrics of every server here that has them."""
        found = []
        for table in self.servers():
            match table:
                case PcpServerSection(metrics_port=int(port)) if port:
                    found.append((table.label, f"http://{join_host(table.metrics_host, port)}/metrics"))
                case WonServerSection(metrics=str(address)) | SwarmServerSection(metrics=str(address)):
                    found.append((table.label, f"http://{address}/metrics"))
        return found

    def health_urls(self) -> list[tuple[str, str]]:
        """Name and /healthz of everything here that can be asked: servers with metrics, and the dashboard."""
        found = [(name, f"{url.removesuffix('/metrics')}/healthz") for name, url in self.metrics_endpoints()]
        dashboard = self.config.dashboard.listen
        if self.runs_dashboard and parse_listen(dashboard)[1]:
            found.append((DASHBOARD, f"http://{dashboard}/healthz"))
        return found

    def needed_files(self, table: ServerSection) -> Iterator[tuple[Path, str]]:
        """Files that a server needs to start, each with the command that creates it."""
        directory = self.config.keys.directory
        if isinstance(table, SwarmServerSection):
            return
        uri = server_uri(table)
        if isinstance(table, WonServerSection):
            options = self.node_options(table)
            issue = f"dovetail keys issue {table.host} --kind peer --dir {directory}"
            files = [(options.certificate, issue), (options.certificate_key, issue), (options.authority, None)]
        else:
            settings = self.broker_settings(table)
            issue = f"dovetail keys issue {table.name} --dns HOST --dir {directory}"
            files = [(settings.certificate, issue), (settings.key, issue), (settings.revocations, None)]
            files.append((settings.authority, f"dovetail keys ca --dir {directory}"))
        for path, command in files:
            if path is not None:
                yield Path(path), f"create it with `{command}`" if command else "correct the path"
        yield self.signing_key_of(table), f"create it with `dovetail keys issue {uri} --kind signing --dir {directory}`"

    def _has(self, role: str) -> bool:
        return not self.roles or role in self.roles

    def _journal_file(self, uri: str) -> Path:
        return self.config.journal.directory / (file_stem(uri) + SUFFIX)


def write_agreements(config: Config) -> list[Path]:
    """Write the agreement of each swarm of the file, for the audit; returns the paths. Omits the secret."""
    directory = (local_directory(config.audit.directory) or config.journal.directory) / "_agreements"
    make_private_directory(directory)
    agreements = {table.name: table for table in config.swarm}
    paths = []
    for name, table in agreements.items():
        agreed = {key: getattr(table, key) for key in SwarmSettings.__struct_fields__ if key != "secret"}
        path = directory / f"{name}.toml"
        path.write_text("".join(f"{key} = {toml_value(value)}\n" for key, value in agreed.items() if value is not None))
        paths.append(path)
    return paths


def _tables(config: Config) -> list[ServerSection]:
    return [*config.pcp, *config.won, *config.swarm]


def server_uri(table: PcpServerSection | WonServerSection) -> str:
    """The name of a server in journals, checkpoints and receipts."""
    return table.server_uri if isinstance(table, PcpServerSection) else table.uri


def _check_apart(site: Site) -> None:
    """Check that no two servers on one machine share a name or a journal; raises ConfigError."""
    names: set[str] = set()
    journals: dict[Path, str] = {}
    for table in site.servers():
        if table.label in names:
            key = "peer" if isinstance(table, SwarmServerSection) else "name or uri"
            raise ConfigError(f"two tables are {table.label}: give one of them another {key}, or another role")
        names.add(table.label)
        journal = site.journal_of(table)
        if journal in journals:
            raise ConfigError(f"{journals[journal]} and {table.label} share one journal, {journal}: use two")
        journals[journal] = table.label


def _check_ports(site: Site) -> None:
    """Check that no two processes on one machine share a port; raises ConfigError."""
    listens = [
        (process.name, kind, address) for process in site.processes() for kind, address in site.listens_of(process)
    ]
    if site.config.supervisor.metrics is not None:
        listens.append(("the supervisor", "tcp", site.config.supervisor.metrics))
    taken: dict[tuple[str, int], list[tuple[str, str]]] = {}
    for name, kind, address in listens:
        host, port = parse_listen(address)
        for other, other_host in taken.setdefault((kind, port), []):
            is_one_family = (":" in host) == (":" in other_host)
            if port and is_one_family and (host == other_host or {host, other_host} & _EVERYWHERE):
                who = f"{other} and {name} both listen" if other != name else f"{name} listens twice"
                raise ConfigError(f"{who} on {kind} port {port}: give one of them another port, or another role")
        taken[kind, port].append((name, host))
