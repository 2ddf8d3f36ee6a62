"""Manifests that contradict themselves, or that name anything but what sealing their hops writes."""

from __future__ import annotations

import json

import msgspec
import pytest

from audit.audit_worlds import BROKER, quiet_pcp, write_lake
from dovetail.lake.layout import (
    check_data_key,
    data_key,
    hops_of_key,
    index_key,
    manifest_key,
    parse_data_key,
    parse_manifest_key,
    range_manifest_name,
    retained_key,
    server_slug,
)
from dovetail.lake.manifest import MAX_MANIFEST_BYTES, encode_manifest, parse_manifest
from dovetail.model.errors import JournalDamaged
from lake.lakes import manifests_of

OTHER = "pcp://other/server"


@pytest.fixture
def manifest(tmp_path):
    return manifests_of(write_lake(tmp_path, {BROKER: quiet_pcp(3)}))[0]


def parse(manifest, key=None):
    return parse_manifest(manifest_key(BROKER, 0) if key is None else key, encode_manifest(manifest))


def edited(manifest, change) -> bytes:
    record = json.loads(encode_manifest(manifest))
    change(record)
    return json.dumps(record).encode()


def test_a_manifest_is_read_as_it_was_written(manifest):
    assert parse(manifest) == manifest
    assert (manifest.format, manifest.number, manifest.id, manifest.is_compaction) == (3, 0, 0, False)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"number": 1}, "named after other hops or another server"),
        ({"number": None}, "format 3 with the fields of another"),
        ({"generation": 1}, "format 3 with the fields of another"),
        ({"format": 1}, "format 1 with the fields of another"),
        ({"format": 9, "number": None}, "format 9, expected 1 or 3"),
        ({"format": 1, "number": None, "generation": 1}, "format 1, expected 2 or 3"),
        ({"format": 1, "number": None}, "named after other hops or another server"),
        ({"replaces": [0]}, "replaces manifests that are not older"),
        ({"files": []}, "announces no file"),
        ({"frontier": []}, "is not a manifest"),
        ({"checkpoint": "nothing"}, "is not a manifest"),
    ],
)
def test_one_that_contradicts_itself_is_refused(manifest, changes, text):
    with pytest.raises(JournalDamaged, match=text):
        parse(msgspec.structs.replace(manifest, **changes))


def test_one_under_the_name_of_another_server_is_refused(manifest):
    with pytest.raises(JournalDamaged, match="another server"):
        parse(manifest, manifest_key(OTHER, 0))


def test_one_that_is_too_large_is_not_parsed():
    with pytest.raises(JournalDamaged, match="expected at most"):
        parse_manifest(manifest_key(BROKER, 0), bytes(MAX_MANIFEST_BYTES + 1))


def planted_paths(path: str) -> list[str]:
    name = path.rpartition("/")[2]
    return [
        "/etc/passwd",
        f"/{path}",
        "../precious.parquet",
        f"fabric=pcp/date=2025-11-15/../../../{name}",
        f"fabric=pcp/../{name}",
        f"fabric=pcp/{name}",
        f"fabric=won/date=2025-11-15/{name}",
        f"fabric=pcp/date=today/{name}",
        path.replace(server_slug(BROKER), server_slug(OTHER)),
        path.replace("0000000000000000003", "0000000000000000007"),
        f"{path}/x",
        path.removesuffix(".parquet"),
        f"_manifests/{server_slug(BROKER)}/0000000000000000000.json",
        "",
    ]


@pytest.mark.parametrize("number", range(14))
def test_a_file_elsewhere_is_refused(manifest, number):
    path = planted_paths(manifest.files[0].path)[number]
    data = edited(manifest, lambda record: record["files"][0].update(path=path))
    with pytest.raises(JournalDamaged, match="is not a key for hops 0 to 3"):
        parse_manifest(manifest_key(BROKER, 0), data)


@pytest.mark.parametrize("path", ["/etc/passwd", "_kept/../x", "_kept/fabric=pcp/date=2025-11-15/x.parquet"])
def test_retained_fields_elsewhere_are_refused(manifest, path):
    kept = {"path": path, "rows": 1, "bytes": 1, "sha256": ""}
    data = edited(manifest, lambda record: record["files"][0].update(kept=kept))
    with pytest.raises(JournalDamaged, match="is not what is retained of"):
        parse_manifest(manifest_key(BROKER, 0), data)


def test_keys_say_what_they_are_of():
    key = data_key(BROKER, "pcp", "2025-11-15", 8, 16, "0123abcd")
    assert parse_data_key(key) == check_data_key(key, BROKER, "pcp", 8, 16)
    assert parse_data_key(key) == ("pcp", "2025-11-15", server_slug(BROKER), 8, 16)
    for other in (key, index_key(BROKER, key), retained_key(key)):
        assert hops_of_key(other) == (server_slug(BROKER), 8)
    assert hops_of_key("_index/x/readme.txt") is None
    assert parse_manifest_key(manifest_key(BROKER, 7)).id == 7
    named = parse_manifest_key(f"_manifests/x/{range_manifest_name(8, 16, 2)}.json")
    assert (named.first_seq, named.end, named.generation, named.number) == (8, 16, 2, None)
    assert named.id == range_manifest_name(8, 16, 2)
    assert parse_manifest_key("_manifests/x/7.json") is None
