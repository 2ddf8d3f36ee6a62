"""Lakes for tests: the active manifests, and where they are."""

from __future__ import annotations

from pathlib import Path

from dovetail.lake.layout import manifest_prefix
from dovetail.lake.manifest import Manifest
from dovetail.lake.rollup import read_manifest
from dovetail.lake.snapshot import choose, manifest_keys, snapshot
from dovetail.lake.store import LocalStore


def manifests_of(lake: Path, server: str | None = None) -> list[Manifest]:
    """The active manifests, in hop order."""
    return snapshot(LocalStore(lake), server).check().manifests()


def manifest_files(lake: Path, server: str | None = None) -> list[Path]:
    """The files of the active manifests, each server's in hop order."""
    store = LocalStore(lake)
    chosen = choose(manifest_keys(store, server), lambda key: read_manifest(store, key))
    ordered = sorted((manifest.server, manifest.first_seq, key) for key, manifest in chosen.items() if manifest)
    return [lake / key for *_, key in ordered]


def manifest_file(lake: Path, manifest: Manifest) -> Path:
    """The file of one manifest."""
    name = f"{manifest.number:019d}" if manifest.number is not None else manifest.id
    return lake / f"{manifest_prefix(manifest.server)}{name}.json"


def files_in(lake: Path) -> set[str]:
    """The keys of all objects."""
    return {entry.key for entry in LocalStore(lake).list()}
