"""Removing from the lake what no manifest that counts announces any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dovetail.audit.compaction import KEPT
from dovetail.audit.rewrite import TEMPORARY
from dovetail.lake.index import INDEXES, index_path
from dovetail.lake.manifest import Manifest, manifest_name, read_manifest, server_slug, standing_paths
from dovetail.model.errors import JournalDamaged


def sweep(lake: Path, directory: Path, standing: Sequence[Manifest]) -> None:
    """Clear away what an interrupted compaction left of one server."""
    for path in set(directory.glob("[0-9]*.json")) - set(standing_paths(directory.glob("[0-9]*.json"))):
        if is_readable(path):
            remove_files(lake, sorted(announced_paths([read_manifest(path)]) - announced_paths(standing)))
            path.unlink()
    slug = server_slug(standing[0].server)
    announced = announced_paths(standing)
    written = [
        *lake.glob(f"fabric=*/date=*/{slug}.*.g[0-9]*.parquet"),
        *lake.glob(f"{KEPT}/*/*/{slug}.*.parquet"),
        *lake.glob(f"{INDEXES}/{slug}/*.g[0-9]*.index"),
    ]
    remove_files(lake, [name for path in written if (name := str(path.relative_to(lake))) not in announced])
    for pattern in (f"fabric=*/date=*/{TEMPORARY}{slug}.*.tmp", f"{KEPT}/*/*/{TEMPORARY}{slug}.*.tmp"):
        for path in lake.glob(pattern):
            path.unlink()


def remove_replaced(
    lake: Path, directory: Path, old: Sequence[Manifest], new: Manifest, say: Callable[[str], None]
) -> None:
    """Remove the files that `new` does not announce, and then, since nobody reads them any more, the old manifests."""
    remove_files(lake, sorted(announced_paths(old) - announced_paths([new])))
    say("compact: remove old manifests")
    for manifest in old:
        (directory / manifest_name(manifest.first_seq, manifest.end, manifest.generation)).unlink(missing_ok=True)


def announced_paths(manifests: Sequence[Manifest]) -> set[str]:
    """All files that these manifests announce, with what lies beside them."""
    paths: set[str] = set()
    for manifest in manifests:
        for file in manifest.files:
            paths |= {file.path, str(index_path(Path(), manifest.server, file.path))}
            if file.kept is not None:
                paths.add(file.kept.path)
    return paths


def remove_files(lake: Path, paths: Sequence[str]) -> None:
    """Remove files of the lake; those that are gone already are no error."""
    for path in paths:
        (lake / path).unlink(missing_ok=True)


def is_readable(path: Path) -> bool:
    """Whether this is a whole manifest."""
    try:
        read_manifest(path)
    except (JournalDamaged, OSError):
        return False
    return True
