"""swarm messages read by native expressions: the same as numpy reads, and as the codec does."""

from __future__ import annotations

import random

import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BinaryType

from audit.test_audit_decoders import batch_of, read_with_codec, swarm_raw
from dovetail.audit import schemas
from dovetail.audit.decode import DECODER_INPUT
from dovetail.audit.decode_swarm import DECODED_SWARM, SwarmDecoder
from dovetail.audit.native import big_endian, little_endian, sha256
from dovetail.audit.session import SMALL_ROWS, tune
from dovetail.audit.transforms.messages import undecoded
from dovetail.audit.transforms.swarm_messages import has_work, swarm_fields
from dovetail.model.address import address_of
from dovetail.swarm.content import Reference, work_of

EPOCHS = {"": 60_000, "slow": 3_600_000}
INPUT_SCHEMA = "fabric string, digest binary, raw binary, size bigint, swarm string, work_valid boolean"


def strange_messages():
    rng = random.Random(7)
    good = swarm_raw([Reference(b"12345678", 1), Reference(bytes(8), -3), Reference(b"\xff" * 8, -0x8000)], ttl=0)
    raws = [b"", b"y", b"\x79\x10", good, good[:25], good[:20], good[:60], swarm_raw(payload=bytes(11_000))]
    raws += [swarm_raw(ttl=0xFFFF), b"\x79\x10\x05" + bytes(12_000), b"\x79\x10\x05" + b"\xff" * 100]
    for _ in range(300):
        raw = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            raw[rng.choice([0, 1, 2, 19, rng.randrange(len(raw))])] = rng.randrange(256)
        raws.append(bytes(raw[: rng.randrange(len(raw) + 1)]))
    return raws


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
@pytest.mark.parametrize("swarm", ["", "slow"])
def test_native_numpy_and_codec_read_the_same(spark, tmp_path, swarm):
    raws = strange_messages()
    batch = batch_of("swarm", raws, swarm)
    waiting = spark.createDataFrame(batch.select(DECODER_INPUT).to_pylist(), INPUT_SCHEMA)
    waiting.write.parquet(str(tmp_path / "waiting"))  # a plan over rows in memory would be optimised away
    made = swarm_fields(spark.read.parquet(str(tmp_path / "waiting")), epochs=EPOCHS)
    assert made.schema.simpleString() == from_arrow_schema(DECODED_SWARM).simpleString()
    native = sorted((row.asDict(recursive=True) for row in made.collect()), key=lambda row: row["digest"])
    (by_columns,) = SwarmDecoder(EPOCHS)([batch])
    assert native == sorted(by_columns.to_pylist(), key=lambda row: row["digest"])
    refused = {row["digest"]: row["reject"] for row in native}
    assert [refused[address_of(raw)] for raw in raws] == [read_with_codec(raw)[0] for raw in raws]


@pytest.mark.usefixtures("codegen")
def test_work_is_that_of_the_codec(spark):
    raws = [raw for raw in strange_messages() if len(raw) > 20]
    target = (1 << 256) // 3
    rows = spark.createDataFrame([(raw, i) for i, raw in enumerate(raws)], "raw binary, i int").repartition(2)
    with_name = rows.selectExpr("*", "IF(i % 2 = 0, 'easy', 'other') AS swarm")
    judged = with_name.withColumn("valid", has_work(with_name["swarm"], {"": target, "easy": (1 << 256) - 1}))
    valid = {row["i"]: row["valid"] for row in judged.collect()}
    assert [valid[i] for i in range(len(raws))] == [
        i % 2 == 0 or int.from_bytes(work_of(raw)) < target for i, raw in enumerate(raws)
    ]
    assert len(set(valid.values())) == 2


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
    plan = swarm_fields(waiting, epochs=EPOCHS)._jdf.queryExecution().executedPlan().toString()
    assert "Python" not in plan
    assert "MapInArrow" not in plan


@pytest.mark.parametrize("targets", [{"": 1 << 255}, {"": 1 << 255, "slow": 1 << 250}])
def test_copies_of_a_message_are_moved_once_and_put_together_where_they_were_moved(spark, tmp_path, targets):
    spark.createDataFrame([], schemas.LAKE.schema).write.parquet(str(tmp_path / "lake"))
    tune(spark, SMALL_ROWS + 1)
    waiting = undecoded(spark.read.schema(schemas.LAKE.schema).parquet(str(tmp_path / "lake")), None, targets=targets)
    plan = waiting._jdf.queryExecution().executedPlan().toString()
    tune(spark, 0)
    assert waiting.columns == list(DECODER_INPUT)
    assert plan.rindex("HashAggregate(") < plan.index("Exchange "), "nothing is grouped before it is moved"
    assert plan.count("Exchange hashpartitioning(digest") == plan.count("Exchange ") == 1
