"""A generator of hostile lakes: among honest servers, one that corrupts its own part in every conceivable way.

The culprit has its own key and may sign anything, so most of its files are announced and signed as if they were valid.
Each case is a function of a lake in a directory; `combined` puts several culprits into one lake.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import random
import shutil
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from audit.audit_worlds import BROKER, NODE_A, T0_US, append_and_seal, quiet_pcp, signer_of
from dovetail.lake import rollup
from dovetail.lake.layout import data_key, manifest_key, manifest_prefix, parse_data_key, server_slug
from dovetail.lake.manifest import MANIFEST_FORMAT, Manifest, SealedFile, encode_manifest
from dovetail.lake.rows import CHECK_BYTES, LAKE_SCHEMA, hash_rows
from dovetail.lake.snapshot import snapshot
from dovetail.lake.store import LocalStore
from dovetail.tlog.checkpoint import Checkpoint, sign_checkpoint
from dovetail.tlog.keys import Signer
from dovetail.tlog.tree import Frontier, aligned_ranges

CULPRIT = "pcp://culprit.example/server"
HONEST = (BROKER, "pcp://second.example/server")
DATE = "2026-11-15"
Harm = Callable[["Culprit"], None]


@dataclass(frozen=True)
class Culprit:
    """What a case may do: its server's name in this lake, and the lake's directory."""

    lake: Path
    server: str = CULPRIT
    sealed: Path | None = None

    @property
    def manifest(self) -> Manifest:
        return snapshot(LocalStore(self.lake), self.server).check().manifests()[0]

    @property
    def manifest_path(self) -> Path:
        return self.lake / manifest_key(self.server, 0)

    @property
    def file(self) -> Path:
        return self.lake / self.manifest.files[0].path

    def rows(self) -> pa.Table:
        return pq.read_table(self.file, partitioning=None)

    def announce(self, data: bytes, rows: int, **changes: object) -> SealedFile:
        """Replace its first file with these bytes, and sign a manifest that announces them."""
        old = self.manifest.files[0]
        root = hashlib.sha256(data).digest()
        digest = hashlib.sha256(data).hexdigest()
        key = data_key(self.server, "pcp", parse_data_key(old.path).date, 0, rows, digest[:8])
        self.file.unlink()
        path = self.lake / key
        path.write_bytes(data)
        fields = {
            **msgspec.structs.asdict(old),
            "path": key,
            "rows": rows,
            "bytes": len(data),
            "sha256": digest,
            "root": root.hex(),
        }
        file = SealedFile(**(fields | changes))
        self.sign([file])
        return file

    def sign(self, files: list[SealedFile], **changes: object) -> None:
        """A manifest over these files alone, signed with the culprit's key."""
        signer = signer_of(self.server)
        tree = Frontier()
        for file in files:
            tree.append(bytes.fromhex(file.root), file.rows.bit_length() - 1)
        made = Manifest(
            format=MANIFEST_FORMAT,
            server=self.server,
            fabric="pcp",
            key=signer.verifier.text(),
            checkpoint=sign_checkpoint(Checkpoint(self.server, tree.size, tree.root()), signer).note,
            frontier=[peak.hex() for peak in tree.peaks()],
            files=files,
            number=0,
        )
        for path in (self.lake / manifest_prefix(self.server)).iterdir():
            path.unlink()
        self.manifest_path.write_bytes(encode_manifest(msgspec.structs.replace(made, **changes)))

    def announce_table(self, table: pa.Table, **options: object) -> SealedFile:
        path = self.lake.parent / "hostile.parquet"
        pq.write_table(table, path, **({"compression": "zstd"} | options))
        return self.announce(path.read_bytes(), table.num_rows)

    def edit(self, change: Callable[[dict], None]) -> None:
        """Change the content of its manifest, without signing it again."""
        record = json.loads(self.manifest_path.read_text())
        change(record)
        self.manifest_path.write_text(json.dumps(record))


def continued(
    before: Manifest | None, signer: Signer, number: int, *, hops: int = 4, like: Manifest | None = None
) -> Manifest:
    """A manifest of other hops after those of another, or from the start, signed with this key."""
    model = like or before
    tree = Frontier() if before is None else before.tree()
    files = []
    for first, level in aligned_ranges(tree.size, tree.size + hops):
        tree.append(hashlib.sha256(b"forged").digest(), level)
        changes = {"first_seq": first, "rows": 1 << level, "root": hashlib.sha256(b"forged").hexdigest()}
        path = data_key(model.server, model.fabric, DATE, first, tree.size, "0" * 8)
        files.append(msgspec.structs.replace(model.files[0], path=path, **changes))
    return msgspec.structs.replace(
        model,
        key=signer.verifier.text(),
        checkpoint=sign_checkpoint(Checkpoint(model.server, tree.size, tree.root()), signer).note,
        frontier=[peak.hex() for peak in tree.peaks()],
        files=files,
        number=number,
    )


def write_honest(root: Path, servers: tuple[str, ...] = HONEST) -> Path:
    """A lake of honest servers."""
    lake = root / "lake"
    for number, server in enumerate(servers):
        append_and_seal(root, lake, server, quiet_pcp(8, T0_US, 1 + 100 * number))
    return lake


def add_culprit(root: Path, lake: Path, server: str = CULPRIT) -> Culprit:
    """One more server, honest so far, with sixteen hops in one file."""
    append_and_seal(root, lake, server, quiet_pcp(8, T0_US, 5000))
    return Culprit(lake, server)


def remove_culprit(culprit: Culprit) -> None:
    """Remove everything under its name."""
    slug = server_slug(culprit.server)
    for path in sorted(culprit.lake.rglob("*"), reverse=True):
        if slug in str(path.relative_to(culprit.lake)):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


CASES: dict[str, Harm] = {}


def case(name: str) -> Callable[[Harm], Harm]:
    def add(harm: Harm) -> Harm:
        assert name not in CASES
        CASES[name] = harm
        return harm

    return add


# types

_TYPES = {
    "int32": pa.int32(),
    "double": pa.float64(),
    "text": pa.string(),
    "bytes": pa.binary(),
    "list": pa.list_(pa.int64()),
    "struct": pa.struct([("a", pa.int64())]),
    "time": pa.timestamp("ns"),
    "flag": pa.bool_(),
}


def _retype(name: str, kind: pa.DataType) -> Harm:
    def harm(culprit: Culprit) -> None:
        table = culprit.rows()
        index = table.schema.get_field_index(name)
        column = pa.nulls(table.num_rows, kind)
        if pa.types.is_primitive(kind) and not pa.types.is_timestamp(kind):
            column = (
                pa.array([1] * table.num_rows).cast(kind) if kind != pa.bool_() else pa.array([True] * table.num_rows)
            )
        elif kind in (pa.string(), pa.binary()):
            column = pa.array(["x"] * table.num_rows).cast(kind)
        culprit.announce_table(table.set_column(index, name, column))

    return harm


for _field in LAKE_SCHEMA:
    for _name, _kind in _TYPES.items():
        if _kind != _field.type:
            CASES[f"type-{_field.name}-{_name}"] = _retype(_field.name, _kind)
    if not _field.nullable:
        CASES[f"no-column-{_field.name}"] = lambda culprit, name=_field.name: culprit.announce_table(
            culprit.rows().drop_columns([name])
        )


@case("a-column-twice")
def _(culprit: Culprit) -> None:
    table = culprit.rows()
    culprit.announce_table(table.append_column("SERVER", table["server"]))


@case("a-column-more")
def _(culprit: Culprit) -> None:
    table = culprit.rows()
    culprit.announce_table(table.append_column("extra\nline", table["server"]))


# nulls, foreign and extreme values


def _replace(name: str, value: object, *, first_only: bool = True, kind: pa.DataType | None = None) -> Harm:
    def harm(culprit: Culprit) -> None:
        table = culprit.rows()
        field = LAKE_SCHEMA.field(name)
        column = table[name].to_pylist()
        column = [value, *column[1:]] if first_only else [value] * len(column)
        made = pa.array(column, kind or field.type)
        culprit.announce_table(table.set_column(table.schema.get_field_index(name), pa.field(name, made.type), made))

    return harm


for _field in LAKE_SCHEMA:
    if not _field.nullable:
        CASES[f"null-{_field.name}"] = _replace(_field.name, None)
        CASES[f"all-null-{_field.name}"] = _replace(_field.name, None, first_only=False)
_FAR = dt.datetime(9999, 12, 31, tzinfo=dt.UTC)
_LONG_AGO = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
for _name, _column, _value in (
    ("rows-of-another", "server", BROKER),
    ("rows-of-nobody", "server", ""),
    ("server-with-newline", "server", f"{CULPRIT}\nproven"),
    ("server-of-a-megabyte", "server", "x" * 1_000_000),
    ("stage-unknown", "stage", "believed"),
    ("stage-with-newline", "stage", "accepted\n"),
    ("reason-unknown", "reason", "because"),
    ("counterpart-with-newline", "counterpart", "a\n\x1b[31mproven\0"),
    ("counterpart-of-a-megabyte", "counterpart", "y" * 1_000_000),
    ("seq-far", "seq", 2**63 - 1),
    ("seq-negative", "seq", -5),
    ("size-far", "size", 2**63 - 1),
    ("size-negative", "size", -1),
    ("message-short", "message", b"short"),
    ("message-long", "message", b"m" * 100_000),
    ("message-empty", "message", b""),
    ("digest-short", "digest", b"d"),
    ("leaf-empty", "leaf", b""),
    ("leaf-long", "leaf", b"l" * 5000),
    ("leaf-of-another-hop", "leaf", b"12345678"),
    ("raw-other", "raw", b"other bytes"),
    ("time-far", "at", _FAR),
    ("time-long-ago", "at", _LONG_AGO),
):
    CASES[_name] = _replace(_column, _value)
    if _name in ("rows-of-another", "time-far", "time-long-ago", "seq-far"):
        CASES[f"all-{_name}"] = _replace(_column, _value, first_only=False)


@case("text-that-is-no-text")
def _(culprit: Culprit) -> None:
    table = culprit.rows()
    bad = pa.array([b"\xff\xfe"] * table.num_rows).view(pa.string())
    culprit.announce_table(table.set_column(table.schema.get_field_index("counterpart"), "counterpart", bad))


def write_forged(path: Path, rows: pa.Table) -> None:
    """Put these rows in the place of a sealed file, each with its own leaf. That takes no key: no manifest changes."""
    leaves = pa.array([leaf[:CHECK_BYTES] for leaf in hash_rows("x", rows)], pa.binary())
    forged = rows.set_column(rows.schema.get_field_index("leaf"), LAKE_SCHEMA.field("leaf"), leaves)
    pq.write_table(forged.cast(LAKE_SCHEMA), path)


@case("forged-row-with-its-own-leaf")
def _(culprit: Culprit) -> None:
    table = culprit.rows()
    names = ["pcp://forged/agent", *table["counterpart"].to_pylist()[1:]]
    table = table.set_column(table.schema.get_field_index("counterpart"), "counterpart", pa.array(names))
    write_forged(culprit.file, table)


@case("forged-rows-that-run-back-in-time")
def _(culprit: Culprit) -> None:
    """All hops rewritten with matching leaves, one of them back in time, so that there is a harmless finding too."""
    table = culprit.rows()
    times = [
        value - dt.timedelta(seconds=1) if index == 5 else value for index, value in enumerate(table["at"].to_pylist())
    ]
    table = table.set_column(
        table.schema.get_field_index("at"), LAKE_SCHEMA.field("at"), pa.array(times, LAKE_SCHEMA.field("at").type)
    )
    write_forged(culprit.file, table)


@case("time-beyond-every-calendar")
def _(culprit: Culprit) -> None:
    table = culprit.rows()
    times = pa.array([1 << 62] * table.num_rows, pa.int64()).cast(LAKE_SCHEMA.field("at").type)
    culprit.announce_table(table.set_column(table.schema.get_field_index("at"), LAKE_SCHEMA.field("at"), times))


@case("another-stage-with-the-same-leaf")
def _(culprit: Culprit) -> None:
    """The length of a stage is one byte of the leaf: 256 bytes more of what follows it seem to belong to it."""
    table = culprit.rows()
    field = LAKE_SCHEMA.field("stage")
    stages = pa.array(["accepted" + "x" * 256, *table["stage"].to_pylist()[1:]], field.type)
    culprit.announce_table(table.set_column(table.schema.get_field_index("stage"), field, stages))


for _codec in ("brotli", "lz4"):
    CASES[f"compressed-with-{_codec}"] = lambda culprit, codec=_codec: culprit.announce_table(
        culprit.rows(), compression=codec
    )
CASES["encoded-as-streams-of-bytes"] = lambda culprit: culprit.announce_table(
    culprit.rows(), use_dictionary=False, column_encoding={"seq": "BYTE_STREAM_SPLIT"}
)


# bytes: footers, pages, sizes


def _bytes(change: Callable[[bytes], bytes], *, is_signed: bool = True) -> Harm:
    def harm(culprit: Culprit) -> None:
        data = change(culprit.file.read_bytes())
        if is_signed:
            culprit.announce(data, 16)
        else:
            culprit.file.write_bytes(data)

    return harm


def _flip(start: Callable[[bytes], int], end: Callable[[bytes], int], seed: int) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        rng = random.Random(seed)
        made = bytearray(data)
        for _ in range(1 + seed % 4):
            position = rng.randrange(start(data), end(data))
            made[position] ^= 1 << rng.randrange(8)
        return bytes(made)

    return change


def _footer(data: bytes) -> int:
    return len(data) - 8 - struct.unpack("<I", data[-8:-4])[0]


for _seed in range(60):
    CASES[f"footer-flip-{_seed}"] = _bytes(_flip(_footer, len, _seed))
    CASES[f"page-flip-{_seed}"] = _bytes(_flip(lambda data: 4, _footer, _seed))
for _share in (0, 1, 4, 8, 50, 90, 99):
    CASES[f"cut-to-{_share}-percent"] = _bytes(lambda data, share=_share: data[: len(data) * share // 100])
    CASES[f"cut-afterwards-to-{_share}-percent"] = _bytes(
        lambda data, share=_share: data[: len(data) * share // 100], is_signed=False
    )
for _name, _change in {
    "footer-length-far": lambda data: data[:-8] + struct.pack("<I", 2**32 - 1) + b"PAR1",
    "footer-length-zero": lambda data: data[:-8] + struct.pack("<I", 0) + b"PAR1",
    "footer-of-another-kind": lambda data: data[:-4] + b"PARE",
    "zeros": lambda data: bytes(len(data)),
    "noise": lambda data: random.Random(1).randbytes(len(data)),
    "text": lambda data: b"this is not Parquet at all\n" * 40,
    "a-json-object": lambda data: b"{}",
    "one-byte": lambda data: b"P",
    "bytes-behind-it": lambda data: data + b"more",
    "twice": lambda data: data + data,
}.items():
    CASES[_name] = _bytes(_change)


@case("decompression-bomb")
def _(culprit: Culprit) -> None:
    table = culprit.rows()
    huge = pa.array([bytes(300 << 20), *[None] * (table.num_rows - 1)], pa.binary())
    bomb = table.set_column(table.schema.get_field_index("raw"), "raw", huge)
    culprit.announce_table(bomb, use_dictionary=False, write_statistics=False)


@case("dictionary-bomb")
def _(culprit: Culprit) -> None:
    table = culprit.rows()
    rows = 1 << 14
    wide = pa.concat_tables([table] * (rows // table.num_rows))
    large = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([bytes(900_000)], pa.binary()))
    bomb = wide.set_column(wide.schema.get_field_index("raw"), "raw", large)
    culprit.announce_table(bomb, use_dictionary=["raw"], dictionary_pagesize_limit=4 << 20, store_schema=False)


@case("many-row-groups")
def _(culprit: Culprit) -> None:
    table = culprit.rows()
    culprit.announce_table(pa.concat_tables([table] * 128), row_group_size=1)


@case("no-rows")
def _(culprit: Culprit) -> None:
    path = culprit.lake.parent / "hostile.parquet"
    pq.write_table(LAKE_SCHEMA.empty_table(), path)
    culprit.announce(path.read_bytes(), 16)


@case("sparse")
def _(culprit: Culprit) -> None:
    with culprit.file.open("r+b") as file:
        file.truncate(1 << 40)


# objects in place of a file or manifest


def _in_place(of: str, make: Callable[[Path, Culprit], object]) -> Harm:
    def harm(culprit: Culprit) -> None:
        path = culprit.file if of == "file" else culprit.manifest_path
        path.unlink()
        make(path, culprit)

    return harm


def _honest_file(culprit: Culprit) -> Path:
    store = LocalStore(culprit.lake)
    return culprit.lake / snapshot(store, BROKER).manifests()[0].files[0].path


def _bind(path: Path, culprit: Culprit) -> None:
    directory = Path.cwd()
    os.chdir(path.parent)  # the path of a socket is limited
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("s")
        Path("s").rename(path.name)
    finally:
        os.chdir(directory)


for _of in ("file", "manifest"):
    for _name, _make in {
        "fifo": lambda path, culprit: os.mkfifo(path),
        "directory": lambda path, culprit: path.mkdir(),
        "socket": _bind,
        "link-to-nothing": lambda path, culprit: path.symlink_to("/nowhere/at/all"),
        "link-to-device": lambda path, culprit: path.symlink_to("/dev/zero"),
        "link-to-another": lambda path, culprit: path.symlink_to(_honest_file(culprit)),
        "copy-of-another": lambda path, culprit: path.write_bytes(_honest_file(culprit).read_bytes()),
        "nothing": lambda path, culprit: None,
        "empty": lambda path, culprit: path.write_bytes(b""),
    }.items():
        if (_of, _name) != ("manifest", "nothing"):
            CASES[f"{_of}-{_name}"] = _in_place(_of, _make)


def _in_place_of_manifests(make: Callable[[Path, Culprit], object]) -> Harm:
    def harm(culprit: Culprit) -> None:
        directory = culprit.manifest_path.parent
        shutil.rmtree(directory)
        make(directory, culprit)

    return harm


for _name, _make in {
    "fifo": lambda path, culprit: os.mkfifo(path),
    "socket": _bind,
    "link-to-nothing": lambda path, culprit: path.symlink_to("/nowhere/at/all"),
    "link-to-another": lambda path, culprit: path.symlink_to(culprit.lake / manifest_prefix(BROKER)),
}.items():
    CASES[f"all-manifests-{_name}"] = _in_place_of_manifests(_make)


# manifests


def _edit(change: Callable[[dict], object]) -> Harm:
    return lambda culprit: culprit.edit(lambda record: change(record))


def _of_file(**changes: object) -> Harm:
    return _edit(lambda record: record["files"][0].update(changes))


for _name, _harm in {
    "another-server": _edit(lambda record: record.update(server=BROKER)),
    "server-with-newline": _edit(lambda record: record.update(server="pcp://a\nb/server")),
    "another-fabric": _edit(lambda record: record.update(fabric="won")),
    "no-fabric": _edit(lambda record: record.update(fabric="nothing")),
    "another-key": _edit(lambda record: record.update(key=signer_of(BROKER).verifier.text())),
    "no-key": _edit(lambda record: record.update(key="")),
    "key-with-newline": _edit(lambda record: record.update(key=record["key"] + "\nx")),
    "no-checkpoint": _edit(lambda record: record.update(checkpoint="")),
    "checkpoint-cut": _edit(lambda record: record.update(checkpoint=record["checkpoint"][:-20])),
    "signature-changed": _edit(
        lambda record: record.update(checkpoint=record["checkpoint"][:-12] + "A" * 8 + record["checkpoint"][-4:])
    ),
    "no-files": _edit(lambda record: record.update(files=[])),
    "file-twice": _edit(lambda record: record["files"].append(record["files"][0])),
    "number-far": _edit(lambda record: record.update(number=2**62)),
    "number-negative": _edit(lambda record: record.update(number=-1)),
    "number-no-number": _edit(lambda record: record.update(number="0")),
    "number-beyond-64-bits": _edit(lambda record: record.update(number=10**40)),
    "replaces-itself": _edit(lambda record: record.update(replaces=[0])),
    "replaces-much": _edit(lambda record: record.update(replaces=list(range(100_000)))),
    "replaces-text": _edit(lambda record: record.update(replaces=["../../x"])),
    "unknown-field": _edit(lambda record: record.update(proven=True)),
    "format-9": _edit(lambda record: record.update(format=9)),
    "frontier-short": _edit(lambda record: record.update(frontier=[])),
    "frontier-no-hex": _edit(lambda record: record.update(frontier=["zz"] * len(record["frontier"]))),
    "file-rows-far": _of_file(rows=2**62),
    "file-rows-negative": _of_file(rows=-16),
    "file-rows-zero": _of_file(rows=0),
    "file-first-far": _of_file(first_seq=2**62),
    "file-bytes-far": _of_file(bytes=2**62),
    "file-times-later": _of_file(first_at_us=T0_US + 10**12, last_at_us=T0_US + 10**12),
    "file-times-long-ago": _of_file(first_at_us=1, last_at_us=1),
    "file-first-time-later": _of_file(first_at_us=T0_US + 1),
    "file-root-of-another": _of_file(root="00" * 32),
    "file-root-no-hex": _of_file(root="root"),
    "file-sha-of-another": _of_file(sha256="00" * 32),
    "path-absolute": _of_file(path="/etc/passwd"),
    "path-above": _of_file(path="../../etc/passwd"),
    "path-of-another": lambda culprit: culprit.edit(
        lambda record: record["files"][0].update(path=str(_honest_file(culprit).relative_to(culprit.lake)))
    ),
    "path-with-newline": _of_file(path="fabric=pcp/date=2026-11-15/a\nb.parquet"),
    "path-long": _of_file(path="x" * 100_000),
    "path-empty": _of_file(path=""),
}.items():
    CASES[f"manifest-{_name}"] = _harm
for _name, _data in {
    "no-json": b"not JSON",
    "deep": b"[" * 200_000,
    "nulls": b"\0" * 1000,
    "huge-number": b'{"format": ' + b"9" * 100_000 + b"}",
    "other-encoding": "{}".encode("utf-16"),
    "list": b"[]",
}.items():
    CASES[f"manifest-{_name}"] = lambda culprit, data=_data: culprit.manifest_path.write_bytes(data)
for _share in (10, 50, 99):
    CASES[f"manifest-cut-to-{_share}-percent"] = lambda culprit, share=_share: culprit.manifest_path.write_bytes(
        culprit.manifest_path.read_bytes()[: culprit.manifest_path.stat().st_size * share // 100]
    )


@case("manifest-sparse")
def _(culprit: Culprit) -> None:
    with culprit.manifest_path.open("r+b") as file:
        file.truncate(1 << 36)


@case("as-another-fabric")
def _(culprit: Culprit) -> None:
    """No signature commits to the field `fabric`; under another one its bytes would mean nothing."""
    old, new = culprit.file, Path(str(culprit.file).replace("fabric=pcp", "fabric=swarm"))
    new.parent.mkdir(parents=True)
    old.rename(new)
    text = culprit.manifest_path.read_text().replace("fabric=pcp", "fabric=swarm")
    culprit.manifest_path.write_text(text.replace('"fabric": "pcp"', '"fabric": "swarm"'))


@case("manifest-under-odd-names")
def _(culprit: Culprit) -> None:
    for name in ("0.json", "9" * 19 + ".json", "1\n2.json", "00.g1.json", "-1.json", "0000000000000000001.json"):
        (culprit.manifest_path.parent / name).write_bytes(b"{}")


@case("rewritten-with-another-key")
def _(culprit: Culprit) -> None:
    """Its whole part rewritten and signed with a key of another party; the first manifest keeps the old one."""
    other = Signer(culprit.server, signer_of(NODE_A).private_key)
    manifest = culprit.manifest
    forged = culprit.announce(culprit.file.read_bytes(), 16)
    tree = Frontier()
    tree.append(bytes.fromhex(forged.root), 4)
    note = sign_checkpoint(Checkpoint(culprit.server, 16, tree.root()), other).note
    record = json.loads(culprit.manifest_path.read_text())
    record |= {"checkpoint": note, "frontier": [forged.root], "key": manifest.key}
    culprit.manifest_path.write_text(json.dumps(record))


# manifests behind its own, which anybody can put there


def _somebody(server: str) -> Signer:
    """Another key under the same name."""
    return Signer(server, signer_of(NODE_A).private_key)


for _name, _make in {
    "with-another-key": lambda own: continued(own, _somebody(own.server), 1),
    "with-another-key-far": lambda own: continued(own, _somebody(own.server), 1, hops=1 << 40),
    "with-another-key-under-its-name": lambda own: msgspec.structs.replace(
        continued(own, _somebody(own.server), 1), key=own.key
    ),
    "with-another-key-from-the-start": lambda own: continued(None, _somebody(own.server), 1, like=own),
    "with-its-own-checkpoint": lambda own: msgspec.structs.replace(
        own, files=[msgspec.structs.replace(file, root="11" * 32) for file in own.files], number=1
    ),
    "with-everything-copied": lambda own: msgspec.structs.replace(own, number=1),
    "that-replaces-what-it-continues": lambda own: msgspec.structs.replace(
        continued(own, signer_of(own.server), 1), replaces=[0]
    ),
    "as-a-second-history": lambda own: continued(None, signer_of(own.server), 1, hops=16, like=own),
}.items():

    def _plant(culprit: Culprit, make: Callable[[Manifest], Manifest] = _make) -> None:
        made = make(culprit.manifest)
        (culprit.lake / manifest_key(culprit.server, made.number)).write_bytes(encode_manifest(made))

    CASES[f"manifest-behind-it-{_name}"] = _plant


def cases() -> Iterator[str]:
    """The names of all cases."""
    return iter(CASES)


# roll-ups, which anybody can put there

ROLLUPS: dict[str, Callable[[list[Manifest]], dict[str, bytes]]] = {}
"""Objects to plant in the lake of a server, of whose manifests `FAN` are in a roll-up and some are not."""


def rolled(*manifests: Manifest, **changes: object) -> bytes:
    """The content of a roll-up of these manifests, the last of them changed."""
    changed = [*manifests[:-1], msgspec.structs.replace(manifests[-1], **changes)] if manifests else []
    lines = [msgspec.json.encode((manifest_key(each.server, each.number), each)) for each in changed]
    return b"".join(line + b"\n" for line in lines)


def _other_times(manifest: Manifest) -> list[SealedFile]:
    return [msgspec.structs.replace(file, first_at_us=1, last_at_us=2) for file in manifest.files]


def _plant_rollup(level: int, first: Callable[[], int], make: Callable[[list[Manifest]], bytes]) -> Callable:
    def plant(own: list[Manifest]) -> dict[str, bytes]:
        return {rollup.rollup_key(server_slug(own[0].server), level, first()): make(own)}

    return plant


def _newest(own: list[Manifest]) -> list[Manifest]:
    return own[rollup.FAN :]


for _name, _make in {
    "empty": lambda own: b"",
    "empty-lines": lambda own: b"\n" * 100,
    "without-the-newest": lambda own: rolled(*_newest(own)[:-1]),
    "without-the-oldest": lambda own: rolled(*_newest(own)[1:]),
    "with-the-first-again": lambda own: rolled(
        *_newest(own)[:-1], msgspec.structs.replace(own[0], number=own[-1].number)
    ),
    "with-other-times": lambda own: rolled(*_newest(own), files=_other_times(own[-1])),
    "with-other-files": lambda own: rolled(*_newest(own)[:-1], continued(own[-2], _somebody(CULPRIT), own[-1].number)),
    "that-replaces-the-others": lambda own: rolled(*_newest(own), replaces=[each.number for each in own[:-1]]),
    "that-goes-on": lambda own: rolled(*_newest(own), continued(own[-1], _somebody(CULPRIT), own[-1].number + 1)),
    "of-another-server": lambda own: rolled(*_newest(own)).replace(CULPRIT.encode(), BROKER.encode()),
    "of-another-directory": lambda own: rolled(*_newest(own)).replace(server_slug(CULPRIT).encode(), b"other"),
    "too-long": lambda own: rolled(*_newest(own)) * 500,
    "cut": lambda own: rolled(*_newest(own))[:-20],
    "zeros": lambda own: bytes(1000),
    "noise": lambda own: random.Random(1).randbytes(1000),
    "deep": lambda own: b"[" * 100_000,
    "no-list": lambda own: b'{"key": 1}\n',
    "no-text": lambda own: b"[1, 2]\n",
    "no-manifest": lambda own: b'["%s", 5]\n' % manifest_key(CULPRIT, own[-1].number).encode(),
    "null": lambda own: b"null\n",
}.items():
    ROLLUPS[f"newest-{_name}"] = _plant_rollup(1, lambda: rollup.FAN, _make)
ROLLUPS["large-empty"] = _plant_rollup(2, lambda: 0, lambda own: b"")
ROLLUPS["large-of-the-first"] = _plant_rollup(2, lambda: 0, lambda own: rolled(own[0]))
ROLLUPS["altered-empty"] = _plant_rollup(1, lambda: 0, lambda own: b"")
ROLLUPS["altered-times"] = _plant_rollup(
    1, lambda: 0, lambda own: rolled(*own[1 : rollup.FAN], own[0], files=_other_times(own[0]))
)
for _exponent in (3, 9, 15):
    for _level in (1, 2):
        ROLLUPS[f"far-{_exponent}-level-{_level}"] = _plant_rollup(
            _level, lambda exponent=_exponent: rollup.FAN**2 * 10**exponent, lambda own: b""
        )
ROLLUPS["all-up-to-far"] = lambda own: {
    rollup.rollup_key(server_slug(CULPRIT), 1, number): b"" for number in range(rollup.FAN, 30 * rollup.FAN, rollup.FAN)
}
ROLLUPS["odd-names"] = lambda own: {
    f"_rollups/{server_slug(CULPRIT)}/{name}": b"x"
    for name in (
        "x",
        "1/x.jsonl",
        f"1/{1:019d}.jsonl",
        f"1/{'9' * 19}.jsonl",
        f"2/{'9' * 19}.jsonl",
        f"3/{0:019d}.jsonl",
    )
}
ROLLUPS["of-nobody"] = lambda own: {rollup.rollup_key("nobody-00000000", 1, 0): rolled(*own)}
