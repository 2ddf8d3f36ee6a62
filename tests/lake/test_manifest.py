"""Names of manifests: which ones count after a compaction, told by the names alone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from audit.audit_worlds import BROKER, quiet_pcp, write_lake
from dovetail.lake.manifest import (
    COMPACTED_FORMAT,
    encode_manifest,
    manifest_name,
    manifest_paths,
    read_manifest,
    standing_paths,
)
from dovetail.model.errors import JournalDamaged

SERVER = Path("_manifests/one")


def names(*ranges: tuple[int, int, int]) -> list[Path]:
    return [SERVER / manifest_name(first, end, generation) for first, end, generation in ranges]


def standing(*ranges: tuple[int, int, int]) -> list[str]:
    return [path.name for path in standing_paths(names(*ranges))]


def test_without_compactions_all_count_in_order():
    assert standing((4, 8, 0), (0, 4, 0)) == [manifest_name(0, 4), manifest_name(4, 8)]


def test_one_of_a_higher_generation_replaces_all_that_it_covers():
    assert standing((0, 4, 0), (4, 8, 0), (8, 9, 0), (0, 8, 1)) == [manifest_name(0, 8, 1), manifest_name(8, 9)]
    assert standing((0, 8, 1), (8, 9, 0), (0, 9, 2)) == [manifest_name(0, 9, 2)]
    assert standing((0, 8, 1), (0, 8, 2)) == [manifest_name(0, 8, 2)]


def test_one_that_covers_only_a_part_replaces_nothing():
    assert len(standing((0, 8, 0), (0, 4, 1), (4, 12, 1))) == 3


def test_other_servers_and_other_names_are_not_touched():
    other = Path("_manifests/two") / manifest_name(0, 4)
    strange = SERVER / "0.json"
    assert standing_paths([*names((0, 4, 0), (0, 4, 1)), other, strange]) == [
        strange,
        SERVER / manifest_name(0, 4, 1),
        other,
    ]


def test_generation_format_and_name_of_a_manifest_must_fit(tmp_path):
    lake = write_lake(tmp_path, {BROKER: quiet_pcp(2)})
    (path,) = manifest_paths(lake)
    manifest = read_manifest(path)
    assert b"generation" not in path.read_bytes()
    compacted = msgspec.structs.replace(manifest, generation=1, format=COMPACTED_FORMAT)
    (path.parent / manifest_name(0, manifest.end, 1)).write_bytes(encode_manifest(compacted))
    assert manifest_paths(lake) == [path.parent / manifest_name(0, manifest.end, 1)]
    assert read_manifest(manifest_paths(lake)[0]) == compacted
    for wrong, text in (
        (msgspec.structs.replace(compacted, format=1), "has manifest format 1, expected 2"),
        (msgspec.structs.replace(manifest, format=2), "has manifest format 2, expected 1"),
        (msgspec.structs.replace(compacted, generation=2), "is named after other hops"),
    ):
        manifest_paths(lake)[0].write_bytes(encode_manifest(wrong))
        with pytest.raises(JournalDamaged, match=text):
            read_manifest(manifest_paths(lake)[0])
