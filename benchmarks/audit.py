"""How fast the audit is, end to end and per step, beside DuckDB doing the core of the work on the same lake.

    python -m benchmarks.audit [--messages N] [--dir DIR] [--threads T] [--json]

A synthetic lake of one swarm peer is written directly: N messages of about 200 bytes with up to four references to
recent ones, sealed as a journal would. Then: `first` audits it from nothing, `second` after 1 % more, `third` with
nothing new. The start of the session is not counted. DuckDB hashes every message, computes its work, takes its
references apart and looks for parents that nobody has; it makes no tables, checks no signature and no tree.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
import struct
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dovetail.hop import Fabric
from dovetail.journal.checkpoint import Checkpoint, sign_checkpoint
from dovetail.journal.lake import MANIFEST_FORMAT, Manifest, SealedFile, manifest_directory, range_name, server_slug
from dovetail.journal.merkle import Frontier, aligned_ranges, fold_perfect
from dovetail.journal.seal import LAKE_SCHEMA
from dovetail.signing import Signer

SERVER = "swarm://bench/" + "0" * 40
T0_MS = 1_763_200_000_000
DATE = "2025-11-15"
MAX_LEVEL = 18
_FIXED = struct.Struct("<BBBQHIHB")
_ENTRY = struct.Struct(">BBQq32s32sQ")
_TAIL = b"\x08accepted\x00\x00\x00"


class LakeWriter:
    """Writes a lake of one peer, message by message, as sealing would."""

    def __init__(self, lake: Path, seed: int = 1) -> None:
        self.lake = lake
        self.random = random.Random(seed)
        self.tree = Frontier()
        self.recent: list[bytes] = []
        self.signer = Signer(SERVER, Ed25519PrivateKey.from_private_bytes(bytes(32)))

    def seal(self, count: int) -> None:
        """Add `count` messages and announce them."""
        first = self.tree.size
        files = []
        for start, level in aligned_ranges(first, first + count, MAX_LEVEL):
            files.append(self._write(start, 1 << level))
            self.tree.append(bytes.fromhex(files[-1].root), level)
        checkpoint = sign_checkpoint(Checkpoint(SERVER, self.tree.size, self.tree.root()), self.signer)
        manifest = Manifest(
            format=MANIFEST_FORMAT,
            server=SERVER,
            fabric=Fabric.SWARM,
            key=self.signer.verifier.text(),
            checkpoint=checkpoint.note,
            frontier=[peak.hex() for peak in self.tree.peaks()],
            files=files,
        )
        directory = manifest_directory(self.lake, SERVER)
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{range_name(first, self.tree.size)}.json"
        path.write_bytes(msgspec.json.encode(manifest))

    def _write(self, first: int, rows: int) -> SealedFile:
        sha256, rng = hashlib.sha256, self.random
        raws, addresses, leaves = [], [], []
        for seq in range(first, first + rows):
            ms = T0_MS + seq
            count = min(len(self.recent), rng.randrange(5))
            edges = b"".join([rng.choice(self.recent) + b"\0\0" for _ in range(count)])
            fixed = _FIXED.pack(0x79, 0x10, 5, rng.getrandbits(64), ms & 0xFFFF, ms >> 16, 600, count)
            raw = fixed + edges + rng.randbytes(160)
            address = sha256(raw).digest()
            entry = _ENTRY.pack(0, 1, seq, ms * 1000, address, address, len(raw)) + _TAIL
            leaves.append(sha256(entry).digest())
            raws.append(raw)
            addresses.append(address)
            self.recent.append(address[:8])
            if len(self.recent) > 64:
                del self.recent[0]
        return self._publish(first, raws, addresses, leaves)

    def _publish(self, first: int, raws: list[bytes], addresses: list[bytes], leaves: list[bytes]) -> SealedFile:
        rows = len(raws)
        times = [(T0_MS + seq) * 1000 for seq in range(first, first + rows)]
        table = pa.table(
            [
                [SERVER] * rows,
                list(range(first, first + rows)),
                pa.array(times, pa.int64()).cast(LAKE_SCHEMA.field("at").type),
                ["accepted"] * rows,
                addresses,
                [None] * rows,
                [None] * rows,
                raws,
                [len(raw) for raw in raws],
                addresses,
                [leaf[:8] for leaf in leaves],
            ],
            schema=LAKE_SCHEMA,
        )
        name = f"{server_slug(SERVER)}.{range_name(first, first + rows)}.parquet"
        path = self.lake / "fabric=swarm" / f"date={DATE}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, compression="zstd", use_dictionary=["server", "stage"])
        return SealedFile(
            path=str(path.relative_to(self.lake)),
            first_seq=first,
            rows=rows,
            first_at_us=times[0],
            last_at_us=times[-1],
            bytes=path.stat().st_size,
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            root=fold_perfect(leaves).hex(),
        )


DUCKDB = """
CREATE TABLE decoded AS SELECT message, from_hex(left(hex(message), 16)) AS key,
    from_hex(sha256(raw)) = message AS address_valid,
    sha256(from_hex(h[27:34] || h[1:26] || h[35:])) < '{target}' AS work_valid,
    list_transform(range((('0x' || h[39:40])::INT & 7)), lambda i: from_hex(h[41 + 20 * i : 56 + 20 * i])) AS parents
FROM (SELECT message, raw, hex(raw) AS h FROM read_parquet('{files}', hive_partitioning = false));
CREATE TABLE links AS SELECT message AS child, unnest(parents) AS parent FROM decoded;
CREATE TABLE gaps AS SELECT * FROM links ANTI JOIN decoded ON links.parent = decoded.key;
"""


def run_duckdb(lake: Path, threads: int, target: int) -> tuple[float, dict[str, int]]:
    """The same core work in DuckDB; seconds, and what it found."""
    import duckdb

    connection = duckdb.connect(config={"threads": threads})
    begun = time.perf_counter()
    for statement in DUCKDB.format(files=lake / "fabric=swarm/*/*.parquet", target=f"{target:064x}").split(";\n"):
        if statement.strip():
            connection.execute(statement)
    seconds = time.perf_counter() - begun
    found = {
        "valid": connection.execute("SELECT count(*) FROM decoded WHERE address_valid").fetchone()[0],
        "links": connection.execute("SELECT count(*) FROM links").fetchone()[0],
        "gaps": connection.execute("SELECT count(*) FROM gaps").fetchone()[0],
    }
    return seconds, found


class Stopwatch:
    """A progress that notes how long each step took."""

    def __init__(self) -> None:
        self.steps: dict[str, float] = {}
        self._name, self._begun = "start", time.perf_counter()

    def step(self, name: str) -> None:
        """This step begins now."""
        now = time.perf_counter()
        self.steps[self._name] = round(self.steps.get(self._name, 0) + now - self._begun, 2)
        self._name, self._begun = name, now


def run_spark(spark, lake: Path, out: Path) -> dict[str, object]:
    from dovetail.pipeline.jobs.run import Audit
    from dovetail.pipeline.settings import AuditSettings
    from dovetail.pipeline.store import Store

    watch = Stopwatch()
    begun = time.perf_counter()
    summary = Audit(spark=spark, lake=lake, store=Store.open(out), settings=AuditSettings(), progress=watch).run()
    seconds = time.perf_counter() - begun
    watch.step("end")
    proven = [server.verdict for server in summary.servers] == ["proven"]
    return {
        "seconds": round(seconds, 1),
        "hops_per_s": round(summary.hops / seconds),
        "proven": proven,
        "steps": watch.steps,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    from dovetail.pipeline.session import SessionOptions, open_session
    from dovetail.swarm.content import POW_TARGET

    root = Path(tempfile.mkdtemp(prefix="bench-audit-", dir=arguments.dir))
    try:
        lake = root / "lake"
        writer = LakeWriter(lake)
        writer.seal(arguments.messages)
        spark = open_session(SessionOptions(master=f"local[{arguments.threads}]"))
        spark.range(10).count()
        result: dict[str, object] = {"messages": arguments.messages, "threads": arguments.threads}
        seconds, found = run_duckdb(lake, arguments.threads, POW_TARGET)
        result["duckdb"] = {"seconds": round(seconds, 1), **found}
        result["first"] = run_spark(spark, lake, root / "out")
        writer.seal(max(1, arguments.messages // 100))
        result["second"] = run_spark(spark, lake, root / "out")
        result["third"] = run_spark(spark, lake, root / "out")
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if arguments.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:<10} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
