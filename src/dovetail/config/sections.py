"""What can be configured: one Struct per section of the TOML file, with defaults, limits and a sentence for each key.

To add a section, write a Struct like the others here and add one field to `Config`. The checks, the environment
variables, `config example` and the reference page follow from it. `reader` reads files into these.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

LISTEN_TCP = "listen_tcp"
LISTEN_UDP = "listen_udp"
_PORT_PATTERN = "(?:[0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
LISTEN_PATTERN = rf"^(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]*):({_PORT_PATTERN})\Z"

# Sections of servers use these two for the addresses they listen on; `dovetail doctor` then knows the ports to try.
ListenTcp = Annotated[str, Meta(pattern=LISTEN_PATTERN, extra={"role": LISTEN_TCP, "allowed": "HOST:PORT"})]
ListenUdp = Annotated[str, Meta(pattern=LISTEN_PATTERN, extra={"role": LISTEN_UDP, "allowed": "HOST:PORT"})]


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections."""


class JournalSection(Section, frozen=True, kw_only=True):
    """Where and how hops are kept."""

    directory: Annotated[Path, Meta(description="Directory of the journals, one SQLite file per server.")] = Path(
        "journals"
    )
    durability: Annotated[
        Literal["full", "relaxed"],
        Meta(
            description="`full` acknowledges after fsync. `relaxed` acknowledges before, and a power cut may lose what"
            " came in the last `relaxed_sync_s`."
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
            description="How much may wait for the disk before appending is refused as busy.",
        ),
    ] = 64 * MIB
    relaxed_flush_ms: Annotated[
        int, Meta(ge=1, le=10_000, description="With `relaxed`: how long hops are gathered before they are written.")
    ] = 20
    relaxed_sync_s: Annotated[
        float, Meta(ge=0.1, le=60, description="With `relaxed`: how often the disk is told to keep what was written.")
    ] = 1.0
    evidence_max_bytes: Annotated[
        int, Meta(ge=0, le=16 * MIB, description="How many bytes of a rejected message are kept as evidence.")
    ] = 64 * KIB


class LakeSection(Section, frozen=True, kw_only=True):
    """Where journals are sealed to, as Parquet."""

    directory: Annotated[Path, Meta(description="Directory of the lake.")] = Path("lake")
    seal_interval_s: Annotated[
        int, Meta(ge=1, le=86_400, description="How often closed ranges of the journals are sealed.")
    ] = 60
    target_file_mb: Annotated[
        int, Meta(ge=64, le=256, description="Size that a busy server's files are aimed at, in MiB.")
    ] = 128


class KeysSection(Section, frozen=True, kw_only=True):
    """Where keys and certificates are found."""

    directory: Annotated[
        Path, Meta(description="Directory of the CA, the certificates and the signing keys of `dovetail keys`.")
    ] = Path("keys")


class LogsSection(Section, frozen=True, kw_only=True):
    """What is told to people on stderr. The journal is the audit trail; logs are not."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="The least urgent level that is shown.")
    ] = "info"
    format: Annotated[
        Literal["text", "json"], Meta(description="`text` for people, `json` for machines: one object per line.")
    ] = "text"


class Config(Section, frozen=True, kw_only=True):
    """A whole configuration: the sections of the file."""

    journal: JournalSection = msgspec.field(default_factory=JournalSection)
    lake: LakeSection = msgspec.field(default_factory=LakeSection)
    keys: KeysSection = msgspec.field(default_factory=KeysSection)
    logs: LogsSection = msgspec.field(default_factory=LogsSection)


def parse_listen(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; an empty host is every interface. ValueError says what is wrong."""
    match = re.match(LISTEN_PATTERN, text)
    if match is None:
        raise ValueError(f"{text[:80]!r} is not HOST:PORT")
    return match[1].strip("[]"), int(match[2])
