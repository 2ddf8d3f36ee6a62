"""What can be configured: one Struct per section of the TOML file, with defaults, limits and a sentence for each key.

To add a section, write a Struct like the others here and add one field to `Config`. The checks, the environment
variables, `config example` and the reference page follow from it. `reader` reads files into these.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from dovetail.site.config.fields import ListenTcp, Section, location_text
from dovetail.site.config.servers import PcpServerSection, Role, SwarmServerSection, WonServerSection

MIB = 1024 * 1024
GIB = 1024 * MIB


class JournalSection(Section, frozen=True, kw_only=True):
    """Where and how hops are stored."""

    directory: Annotated[Path, Meta(description="Directory of the journals, one SQLite file per server.")] = Path(
        "journals"
    )
    durability: Annotated[
        Literal["full", "relaxed"],
        Meta(
            description="`full` acknowledges after fsync. `relaxed` acknowledges earlier: a power cut may lose what"
            " arrived in the last `relaxed_sync_s`."
        ),
    ] = "full"
    checkpoint_interval_s: Annotated[
        float, Meta(ge=0.1, le=3600, description="How often the journal's Merkle tree is signed.")
    ] = 5.0
    max_queue_bytes: Annotated[
        int,
        Meta(
            ge=MIB,
            le=16 * GIB,
            description="Maximum number of bytes waiting for the disk; above it, appends are refused as busy.",
        ),
    ] = 64 * MIB
    relaxed_flush_ms: Annotated[
        int, Meta(ge=1, le=10_000, description="With `relaxed`: how long hops are collected before they are written.")
    ] = 20
    relaxed_sync_s: Annotated[
        float, Meta(ge=0.1, le=60, description="With `relaxed`: how often the journal is synced to disk.")
    ] = 1.0
    max_clock_jump_s: Annotated[
        float,
        Meta(
            ge=1,
            le=86_400,
            description="How far the clock may jump ahead and be accepted at once; a larger jump must last 10 s first.",
        ),
    ] = 60.0
    purge_interval_s: Annotated[
        int,
        Meta(
            ge=0,
            le=30 * 86_400,
            description="With `dovetail up`: how often the bytes of expired, sealed messages are deleted from the"
            " journals (0: never). Addresses, hops and proofs stay.",
        ),
    ] = 3600
    cosigned: Annotated[
        Path | None,
        Meta(
            description="Directory of checkpoints cosigned by witnesses (`receipt cosign`), one `.note` file each."
            " Metrics report their age; the keys are expected in `keys.directory`."
        ),
    ] = None


class LakeSection(Section, frozen=True, kw_only=True):
    """Where journals are sealed as Parquet."""

    directory: Annotated[
        str, location_text, Meta(description="Directory of the lake, or its location in an object store.")
    ] = "lake"
    seal_interval_s: Annotated[
        int, Meta(ge=1, le=86_400, description="How often closed ranges of the journals are sealed.")
    ] = 60
    target_file_mb: Annotated[int, Meta(ge=64, le=256, description="Target size of a busy server's files, in MiB.")] = (
        128
    )
    grace_s: Annotated[
        int, Meta(ge=0, le=2_592_000, description="How long files replaced by a compaction are kept for readers.")
    ] = 86_400


class KeysSection(Section, frozen=True, kw_only=True):
    """Where keys and certificates are."""

    directory: Annotated[
        Path, Meta(description="Directory of the CA, the certificates and the signing keys of `dovetail keys`.")
    ] = Path("keys")


class LogsSection(Section, frozen=True, kw_only=True):
    """Log output on stderr. The journal is the audit trail; logs are not."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="The lowest level that is shown.")
    ] = "info"
    format: Annotated[
        Literal["text", "json"], Meta(description="`text` for people, `json` for machines: one object per line.")
    ] = "text"


class SupervisorSection(Section, frozen=True, kw_only=True):
    """How `dovetail up` supervises its processes."""

    metrics: Annotated[
        ListenTcp | None, Meta(description="Address of the supervisor's own /metrics and /healthz; none if not given.")
    ] = None
    restart_min_s: Annotated[
        float, Meta(ge=0.05, le=60, description="Pause before a process that exited is restarted for the first time.")
    ] = 0.5
    restart_max_s: Annotated[
        float, Meta(ge=0.05, le=3600, description="The longest pause; each pause is twice the previous one.")
    ] = 30.0
    well_after_s: Annotated[
        float,
        Meta(
            ge=0.1,
            le=3600,
            description="A process that ran this long counts as healthy: its next pause is the shortest again.",
        ),
    ] = 60.0
    grace_s: Annotated[
        float, Meta(ge=0.1, le=600, description="How long processes may take to exit before they are killed.")
    ] = 15.0

    def __post_init__(self) -> None:
        if self.restart_min_s > self.restart_max_s:
            raise ValueError(f"restart_min_s {self.restart_min_s} is above restart_max_s {self.restart_max_s}")


class AuditSection(Section, frozen=True, kw_only=True):
    """The audit that follows the lake, on Spark."""

    enabled: Annotated[bool, Meta(description="Whether `dovetail up` runs it; it needs Java and Spark.")] = False
    role: Annotated[Role, Meta(description="`dovetail up --role` runs only what has one of the named roles.")] = ""
    directory: Annotated[
        str, location_text, Meta(description="The tables: a directory, or `s3://bucket/prefix` in an object store.")
    ] = "audit"
    interval_s: Annotated[float, Meta(ge=0.1, le=86_400, description="How often it checks the lake for new files.")] = (
        10.0
    )
    loss_timeout_s: Annotated[
        float, Meta(ge=0, le=86_400, description="How long a message may be in transit before it counts as lost.")
    ] = 30.0
    master: Annotated[str | None, Meta(description="Spark's master; this machine if not given.")] = None
    driver_memory: Annotated[str | None, Meta(description="Memory of Spark's driver, such as `4g`.")] = None
    spark: Annotated[dict[str, str], Meta(description="Spark settings by name.")] = msgspec.field(default_factory=dict)
    trust: Annotated[
        tuple[Path, ...],
        Meta(description="Files of trusted keys. If any are given, every server's key must be in one."),
    ] = ()
    proven_only: Annotated[
        bool, Meta(description="Whether the rows of a file that does not lead to a signed root count as missing.")
    ] = False
    webhook: Annotated[str | None, Meta(description="URL that each new finding is posted to as JSON.")] = None


class DashboardSection(Section, frozen=True, kw_only=True):
    """The live web page over journals, lake and audit."""

    enabled: Annotated[bool, Meta(description="Whether `dovetail up` runs it.")] = False
    role: Annotated[Role, Meta(description="`dovetail up --role` runs only what has one of the named roles.")] = ""
    listen: Annotated[ListenTcp, Meta(description="Address of the page. Off loopback it needs a token.")] = (
        "127.0.0.1:8600"
    )
    token_file: Annotated[Path | None, Meta(description="File with the token that clients must present.")] = None
    allow_hosts: Annotated[tuple[str, ...], Meta(description="Additional host names of the page.")] = ()


class Config(Section, frozen=True, kw_only=True):
    """A whole configuration: the sections of the file."""

    journal: JournalSection = msgspec.field(default_factory=JournalSection)
    lake: LakeSection = msgspec.field(default_factory=LakeSection)
    keys: KeysSection = msgspec.field(default_factory=KeysSection)
    logs: LogsSection = msgspec.field(default_factory=LogsSection)
    supervisor: SupervisorSection = msgspec.field(default_factory=SupervisorSection)
    pcp: tuple[PcpServerSection, ...] = ()
    won: tuple[WonServerSection, ...] = ()
    swarm: tuple[SwarmServerSection, ...] = ()
    audit: AuditSection = msgspec.field(default_factory=AuditSection)
    dashboard: DashboardSection = msgspec.field(default_factory=DashboardSection)
