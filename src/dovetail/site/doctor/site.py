"""Checks of what a configuration names: directories, disk space, certificates, ports."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from dovetail.lake.layout import MANIFESTS
from dovetail.lake.location import local_directory, open_store
from dovetail.model.errors import DovetailError, KeyFileError
from dovetail.runtime.listening import BIND_ERRORS, try_listening
from dovetail.site.config import Config, Section, find_warnings, parse_listen
from dovetail.site.config.fields import LISTEN_TCP, LISTEN_UDP
from dovetail.site.config.schema import extra_of
from dovetail.site.config.servers import ServerSection, SwarmServerSection
from dovetail.site.doctor.finding import Finding, Status, fail, ok, warn
from dovetail.site.doctor.journals import check_journals

MIN_FREE_BYTES = 256 * 1024 * 1024
GOOD_FREE_BYTES = 5 * 1024 * 1024 * 1024
CERTIFICATE_WARN_DAYS = 30
REVOCATION_LIST_WARN_DAYS = 7
_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "fuse.sshfs", "fuse.glusterfs"}
)
_GIB = 1024**3


def check_site(config: Config) -> Iterator[Finding]:
    """Run every check of what a configuration names."""
    yield check_directory("journals", config.journal.directory)
    yield check_file_system("journals", config.journal.directory)
    lake = local_directory(config.lake.directory)
    yield check_object_store(config.lake.directory) if lake is None else check_directory("lake", lake)
    yield from check_room({"journals": config.journal.directory} | ({} if lake is None else {"lake": lake}))
    yield from check_journals(config.journal.directory, open_store(config.lake.directory))
    yield from check_keys(config.keys.directory)
    yield from check_swarms(config.swarm)
    yield from (warn("rules", found, "see how-to/pcp-broker.md") for found in find_warnings(config))
    yield from check_ports(listen_addresses(config))


def check_directory(check: str, path: Path) -> Finding:
    """Check that files, or the directory itself, can be created."""
    if path.is_dir():
        try:
            with tempfile.NamedTemporaryFile(dir=path, prefix=".doctor-") as file:
                file.write(b"x")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            return fail(check, f"{path}: {error.strerror}", "let this user write there, or choose another directory")
        return ok(check, f"{path} is writable")
    if os.path.lexists(path):
        return fail(check, f"{path} is not a directory", "move it away, or choose another directory")
    parent = existing_parent(path)
    if not os.access(parent, os.W_OK | os.X_OK):
        return fail(check, f"{path} does not exist and cannot be created in {parent}", "create it, writable to you")
    return ok(check, f"{path} will be created")


def check_object_store(location: str) -> Finding:
    """Check that the lake's object store answers and grants access."""
    try:
        open_store(location).directories(f"{MANIFESTS}/")
    except (DovetailError, OSError) as error:
        text = str(error).partition("\n")[0]
        return fail("lake", text, "check AWS_ENDPOINT_URL, AWS_REGION, the credentials, and that the bucket exists")
    return ok("lake", f"{location} answers")


def check_file_system(check: str, path: Path, mounts: str | None = None) -> Finding:
    """Check that a journal may be stored there: SQLite's WAL needs shared memory, which network mounts lack."""
    parent = existing_parent(path)
    kind = file_system_of(parent, read_mounts() if mounts is None else mounts)
    if kind in _NETWORK_FILE_SYSTEMS:
        return fail(f"{check} disk", f"{parent} is on {kind}, a network file system", "keep journals on a local disk")
    return ok(f"{check} disk", f"{parent} is on {kind or 'a file system of unknown type'}")


def check_room(directories: dict[str, Path]) -> Iterator[Finding]:
    """Check disk space, once per disk."""
    disks: dict[int, tuple[Path, list[str]]] = {}
    for name, path in directories.items():
        parent = existing_parent(path)
        disks.setdefault(parent.stat().st_dev, (parent, []))[1].append(name)
    for parent, names in disks.values():
        usage = shutil.disk_usage(parent)
        yield judge_room(f"room for {' and '.join(names)}", usage.free, usage.total)


def judge_room(check: str, free: int, total: int) -> Finding:
    """Judge `free` of `total` bytes."""
    detail = f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB are free"
    if free < MIN_FREE_BYTES:
        return fail(check, detail, "free some space: a full disk stops the journals and with them the servers")
    if free < GOOD_FREE_BYTES:
        return warn(check, detail, "free some space soon, or purge expired messages")
    return ok(check, detail)


def check_keys(directory: Path) -> Iterator[Finding]:
    """Find expired or soon expiring certificates and revocation lists, and private keys that others may read."""
    from dovetail.keys import describe

    if not directory.is_dir():
        yield ok("keys", f"{directory} does not exist; dovetail keys creates it")
        return
    bad: list[Finding] = []
    count = 0
    try:
        for record in describe(directory):
            count += 1
            finding = judge_key_file(record)
            if finding is not None:
                bad.append(finding)
    except (KeyFileError, OSError) as error:
        bad.append(fail("keys", str(error), "let this user read the keys directory"))
    yield from bad
    if not any(finding.status is Status.FAIL for finding in bad):
        yield ok("keys", f"{directory} has {count} keys, certificates and lists")


def check_swarms(peers: Iterable[SwarmServerSection]) -> Iterator[Finding]:
    """Find weaknesses in the agreements of swarms."""
    for peer in peers:
        for text in peer.warnings:
            yield warn(peer.label, text, "give all peers of the swarm an agreement with longer epochs")


def judge_key_file(record: dict[str, Any]) -> Finding | None:
    """The fault of one key file, from its description; None if there is none."""
    name = record["file"]
    match record["kind"]:
        case "unreadable":
            return warn("keys", record["problem"], "move it out of the keys directory")
        case "private key" if not str(record["mode"]).endswith("00"):
            return fail("keys", f"{name} has mode {str(record['mode'])[:4]}", f"chmod 600 {name}; consider a new key")
        case "ca" | "certificate" | "revocation list" as kind:
            limit = REVOCATION_LIST_WARN_DAYS if kind == "revocation list" else CERTIFICATE_WARN_DAYS
            advice = {
                "ca": "create a new CA and reissue its certificates",
                "certificate": "dovetail keys issue --force creates a new one",
                "revocation list": "dovetail keys crl signs a new one",
            }[kind]
            if not record["valid"]:
                detail = f"{name} is valid only from {record['valid_from']} until {record['valid_until']}"
                return fail("keys", detail, advice)
            if record["days_left"] < limit:
                return warn("keys", f"{name} expires in {record['days_left']} days", advice)
    return None


def listen_addresses(section: Section) -> Iterator[tuple[str, str]]:
    """Kind and address of everything a configuration listens on."""
    for each in msgspec.structs.fields(section):
        value = getattr(section, each.name)
        role = extra_of(each.type).get("role")
        if role in (LISTEN_TCP, LISTEN_UDP) and value is not None:
            yield "tcp" if role == LISTEN_TCP else "udp", value
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else [value]:
            if isinstance(inner, ServerSection):
                yield from inner.listens()
            elif isinstance(inner, Section) and getattr(inner, "enabled", True):
                yield from listen_addresses(inner)


def check_ports(addresses: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """Check that the ports to listen on are free."""
    for kind, address in addresses:
        yield check_port(kind, address)


def check_port(kind: str, address: str) -> Finding:
    """Try to bind a port, and release it."""
    name = f"port {kind}:{address}"
    host, port = parse_listen(address)
    try:
        try_listening(kind, host, port)
    except OSError as error:
        problem, advice = BIND_ERRORS.get(error.errno or 0, (error.strerror or str(error), "choose another address"))
        return fail(name, problem, advice)
    return ok(name, "is free")


def existing_parent(path: Path) -> Path:
    """The path itself, or its nearest existing parent directory."""
    path = path.absolute()
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path


def read_mounts() -> str:
    """The kernel's list of mounts; empty if there is none."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return Path("/proc/self/mounts").read_text(errors="replace")
    return ""


def file_system_of(path: Path, mounts: str) -> str | None:
    """The type of the file system of a path: that of the longest mount point above it, the last of equals."""
    best: tuple[int, str] | None = None
    real = path.resolve()
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = Path(fields[1].replace("\\040", " "))
        if real.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = len(point.parts), fields[2]
    return best[1] if best else None
