"""The settings of a session: the user's come last, and those that affect results are always set."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.java_gateway import JavaClass
from pyspark.sql.functions import col, lit
from pyspark.sql.types import ArrayType, StructType

from dovetail.audit import jars
from dovetail.audit.package import pack, write_package
from dovetail.audit.session import (
    LARGE_JAVA,
    SMALL_JAVA,
    SMALL_ROWS,
    SessionOptions,
    machine_memory_mb,
    partitions_for,
    settings_of,
    tune,
    use_this_python,
)
from dovetail.audit.state_tables import STORED


def test_a_laptop_gets_a_local_session_in_utc():
    settings = settings_of(SessionOptions())
    assert settings["spark.master"] == "local[*]"
    assert settings["spark.sql.session.timeZone"] == "UTC"
    assert settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.driver.memory"] == f"{machine_memory_mb()}m"


def test_a_cluster_is_not_bound_to_loopback():
    settings = settings_of(SessionOptions(master="spark://host:7077", driver_memory="3g"))
    assert settings["spark.master"] == "spark://host:7077"
    assert settings["spark.driver.memory"] == "3g"
    assert "spark.driver.bindAddress" not in settings


def test_under_spark_submit_the_master_is_left_alone(monkeypatch):
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    settings = settings_of(SessionOptions())
    assert "spark.master" not in settings
    assert "spark.driver.memory" not in settings
    assert "spark.executorEnv.PYTHONPATH" not in settings, "what --py-files gives is found first"
    assert settings["spark.sql.ansi.enabled"] == "false"


def test_executors_elsewhere_are_not_sent_to_our_directory():
    assert "spark.executorEnv.PYTHONPATH" in settings_of(SessionOptions())
    assert "spark.executorEnv.PYTHONPATH" not in settings_of(SessionOptions(master="spark://host:7077"))


def test_the_package_runs_from_its_archive(tmp_path):
    archive, *programs = write_package(tmp_path)
    assert archive.read_bytes() == pack()
    assert [path.name for path in programs] == ["run.py", "compact.py"]
    code = "import dovetail.audit.jars as jars; print(jars.__file__, len(jars.read_lock()))"
    command = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(archive)!r}); {code}"]
    out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert out.split() == [str(archive / "dovetail/audit/jars.py"), str(len(jars.read_lock()))]


def test_workers_run_our_python_unless_a_cluster_or_spark_submit_names_another(monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "/elsewhere/python")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    use_this_python()
    assert os.environ["PYSPARK_PYTHON"] == "/elsewhere/python"
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT")
    use_this_python(is_local=False)
    assert os.environ["PYSPARK_PYTHON"] == "/elsewhere/python"
    use_this_python()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_what_the_user_gives_wins():
    conf = {"spark.sql.adaptive.enabled": "false", "spark.ui.enabled": "true"}
    settings = settings_of(SessionOptions(conf=conf))
    assert settings.items() >= conf.items()


def test_only_a_small_lake_goes_without_the_optimising_compiler():
    assert settings_of(SessionOptions(rows=SMALL_ROWS))["spark.driver.extraJavaOptions"] == SMALL_JAVA
    for options in (SessionOptions(rows=SMALL_ROWS + 1), SessionOptions()):
        assert settings_of(options)["spark.driver.extraJavaOptions"] == LARGE_JAVA
    assert "TieredStopAtLevel" not in LARGE_JAVA
    assert "spark.driver.extraJavaOptions" not in settings_of(SessionOptions(master="spark://there:7077", rows=1))
    own = {"spark.driver.extraJavaOptions": "-Xss4m"}
    assert settings_of(SessionOptions(rows=1, conf=own))["spark.driver.extraJavaOptions"] == "-Xss4m"


def test_java_is_asked_for_a_function_once(spark, monkeypatch):
    col("first")
    asked = []
    ask = JavaClass.__getattr__
    monkeypatch.setattr(JavaClass, "__getattr__", lambda self, name: (asked.append(name), ask(self, name))[1])
    rows = spark.range(2).select((col("id") + lit(1)).alias("next")).filter(col("next") > lit(1)).collect()
    assert [row["next"] for row in rows] == [2]
    assert "col" not in asked


@pytest.mark.parametrize("rows", [0, SMALL_ROWS + 1])
def test_many_files_are_listed_by_few_tasks(spark, tmp_path, rows):
    """A task per file would cost more than the files: only a small lake needs no job at all."""
    paths = [tmp_path / f"{number}.parquet" for number in range(100)]
    for path in paths:
        pq.write_table(pa.table({"id": [1]}), path)
    tune(spark, rows)
    try:
        with jobs_of(spark) as tasks:
            source = spark.read.schema("id long").parquet(*map(str, paths))
        assert sum(tasks) <= (4 * (os.cpu_count() or 2) if rows else 0)
        assert source.count() == 100
    finally:
        tune(spark, 0)


@contextlib.contextmanager
def jobs_of(spark):
    """Yields a list that at the end has the number of tasks of each job run inside."""
    group, tasks = "what is asked about", []
    spark.sparkContext.setJobGroup(group, "")
    tracker = spark.sparkContext.statusTracker()
    yield tasks
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    for job in tracker.getJobIdsForGroup(group):
        stages = [tracker.getStageInfo(stage) for stage in tracker.getJobInfo(job).stageIds]
        tasks.append(sum(stage.numTasks for stage in stages))


def test_what_one_task_holds_does_not_grow_with_the_lake():
    assert partitions_for(SMALL_ROWS) == 1
    assert partitions_for(SMALL_ROWS + 1) >= 4 * (os.cpu_count() or 2)
    for rows in (100_000_000, 200_000_000):
        assert rows / partitions_for(rows) == 250_000
    assert partitions_for(1 << 40) == 1000


def test_columns_that_hardly_repeat_are_columns_of_our_tables():
    names = {name for table in STORED.values() for name in leaves_of(table.schema)}
    plain = [key.partition("#")[2] for key in settings_of(SessionOptions()) if "dictionary#" in key]
    assert plain
    assert set(plain) <= names


def leaves_of(kind, path=""):
    if isinstance(kind, StructType):
        return [leaf for field in kind for leaf in leaves_of(field.dataType, f"{path}.{field.name}")]
    if isinstance(kind, ArrayType):
        return leaves_of(kind.elementType, f"{path}.list.element")
    return [path.removeprefix(".")]


def test_no_dictionary_is_built_for_columns_that_hardly_repeat(spark, tmp_path):
    spark.range(100).selectExpr("1L AS created_us", "1L AS other").coalesce(1).write.parquet(str(tmp_path / "table"))
    (path,) = (tmp_path / "table").glob("*.parquet")
    group = pq.read_metadata(path).row_group(0)
    encodings = {group.column(i).path_in_schema: group.column(i).encodings for i in range(group.num_columns)}
    assert "PLAIN_DICTIONARY" not in encodings["created_us"]
    assert "PLAIN_DICTIONARY" in encodings["other"]
