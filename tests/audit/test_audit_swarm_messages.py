"""swarm messages decoded by native columns: the same result as `Fabric.read`."""

from __future__ import annotations

import random

import pytest
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType

from audit.test_audit_decoders import batch_of, swarm_raw
from dovetail.audit import schemas
from dovetail.audit.decode import DECODED_SCHEMA, DECODER_INPUT, decode_by
from dovetail.audit.fabrics import swarm
from dovetail.audit.native import big_endian, little_endian, sha256
from dovetail.audit.session import SMALL_ROWS, tune
from dovetail.audit.transforms.messages import undecoded
from dovetail.model.address import address_of
from dovetail.model.fabric import Agreement
from dovetail.swarm.content import Reference, work_of
from swarm.vectors import of_layer

AGREEMENTS = {
    "": Agreement(epoch_ms=60_000, work_target=(1 << 256) // 3),
    "slow": Agreement(epoch_ms=3_600_000, work_target=1 << 256),
}
INPUT_SCHEMA = "fabric string, digest binary, raw binary, size bigint, community string, work_valid boolean"


def strange_messages():
    rng = random.Random(7)
    good = swarm_raw([Reference(b"12345678", 1), Reference(bytes(8), -3), Reference(b"\xff" * 8, -0x8000)], ttl=0)
    raws = [b"", b"y", b"\x79\x10", good, good[:25], good[:20], good[:60], swarm_raw(payload=bytes(11_000))]
    raws += [swarm_raw(ttl=0xFFFF), b"\x79\x10\x05" + bytes(12_000), b"\x79\x10\x05" + b"\xff" * 100]
    raws += [bytes.fromhex(vector["hex"]) for vector in of_layer("uep12")]
    for _ in range(300):
        changed = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.choice([0, 1, 2, 19, rng.randrange(len(changed))])] = rng.randrange(256)
        raws.append(bytes(changed[: rng.randrange(len(changed) + 1)]))
    raws += [rng.randbytes(rng.randrange(100)) for _ in range(50)]
    return sorted(set(raws))


@pytest.fixture(params=["interpreted", "compiled"])
def codegen(spark, request):
    """Small lakes are interpreted, large ones compiled."""
    keys = ("spark.sql.codegen.wholeStage", "spark.sql.codegen.factoryMode")
    before = [spark.conf.get(key) for key in keys]
    values = ("false", "NO_CODEGEN") if request.param == "interpreted" else ("true", "CODEGEN_ONLY")
    for key, value in zip(keys, values, strict=True):
        spark.conf.set(key, value)
    yield
    for key, value in zip(keys, before, strict=True):
        spark.conf.set(key, value)


@pytest.mark.usefixtures("codegen")
@pytest.mark.parametrize("community", ["", "slow"])
def test_native_columns_say_what_the_fabric_reads(spark, tmp_path, community):
    """Everything but the details of refusals, in Spark from the rows of the lake to the rows of `decoded`."""
    raws = strange_messages()
    peer = f"swarm://{community or 'other'}/{1:040x}"
    rows = [("swarm", peer, "accepted", address_of(one), address_of(one), one, len(one)) for one in raws]
    schema = "fabric string, server string, stage string, message binary, digest binary, raw binary, size bigint"
    # a plan over rows in memory would be optimised away
    spark.createDataFrame(rows, schema).write.parquet(str(tmp_path / "rows"))
    lake = spark.read.schema(schema).parquet(str(tmp_path / "rows"))
    waiting = undecoded(lake, None, audits=[swarm.AUDIT], agreements=AGREEMENTS)
    made = swarm.AUDIT.decode(waiting, AGREEMENTS)
    assert made.schema.simpleString() == DECODED_SCHEMA.simpleString()
    native = sorted(made.toArrow().to_pylist(), key=lambda row: row["digest"])
    (read,) = decode_by(swarm.FABRIC, AGREEMENTS, [batch_of("swarm", raws, community)])
    expected = [row | {"detail": None} for row in sorted(read.to_pylist(), key=lambda row: row["digest"])]
    assert native == expected
    assert {row["work_valid"] for row in native} == ({None, True} if community else {None, True, False})
    assert len({row["reject"] for row in native}) == 7


@pytest.mark.usefixtures("codegen")
def test_bytes_as_numbers_and_digests(spark):
    values = [b"", b"\x01", b"\x00\x80", b"\xff" * 8, bytes(range(9)), None]
    rows = spark.createDataFrame([(value,) for value in values], "data binary").repartition(1)
    made = rows.select("data", big_endian(rows["data"]), little_endian(rows["data"]), sha256(rows["data"]))
    assert isinstance(made.schema[3].dataType, BinaryType)
    for data, big, little, digest in made.collect():
        if data is None:
            assert (big, little, digest) == (None, None, None)
            continue
        head = bytes(data[:8]).ljust(8, b"\0")
        assert big == int.from_bytes(head, "big", signed=True)
        assert little == int.from_bytes(head, "little", signed=True)
        assert bytes(digest) == address_of(bytes(data))


def test_swarm_messages_are_read_without_python(spark):
    waiting = spark.createDataFrame([], INPUT_SCHEMA)
    plan = swarm.AUDIT.decode(waiting, AGREEMENTS)._jdf.queryExecution().executedPlan().toString()
    assert "Python" not in plan
    assert "MapInArrow" not in plan


@pytest.mark.parametrize("agreements", [{}, AGREEMENTS])
def test_copies_of_a_message_are_moved_once_and_put_together_where_they_were_moved(spark, tmp_path, agreements):
    spark.createDataFrame([], schemas.LAKE.schema).write.parquet(str(tmp_path / "lake"))
    tune(spark, SMALL_ROWS + 1)
    lake = spark.read.schema(schemas.LAKE.schema).parquet(str(tmp_path / "lake"))
    waiting = undecoded(lake, None, audits=[swarm.AUDIT], agreements=agreements)
    plan = waiting._jdf.queryExecution().executedPlan().toString()
    tune(spark, 0)
    assert waiting.columns == list(DECODER_INPUT)
    assert plan.rindex("HashAggregate(") < plan.index("Exchange "), "nothing is grouped before it is moved"
    assert plan.count("Exchange hashpartitioning(digest") == plan.count("Exchange ") == 1


@pytest.mark.parametrize(("more", "is_enough"), [(0, False), (1, True)])
def test_work_is_strictly_below_the_target_in_the_columns_too(spark, more, is_enough):
    raw = swarm_raw()
    agreements = {"": Agreement(epoch_ms=60_000, work_target=int.from_bytes(work_of(raw)) + more)}
    rows = spark.createDataFrame([(raw,)], "raw binary")
    assert rows.select(swarm.has_work(F.lit(""), agreements)).first()[0] is is_enough
