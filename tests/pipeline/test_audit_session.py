"""The settings of a session: what the user gives comes last, and what results depend on is always set."""

from __future__ import annotations

import os
import sys

from dovetail.pipeline.session import (
    LARGE_JAVA,
    SMALL_JAVA,
    SMALL_ROWS,
    SessionOptions,
    machine_memory_mb,
    partitions_for,
    settings_of,
    use_this_python,
)


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
    assert settings["spark.sql.ansi.enabled"] == "false"


def test_workers_run_our_python_unless_spark_submit_names_another(monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "/elsewhere/python")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    use_this_python()
    assert os.environ["PYSPARK_PYTHON"] == "/elsewhere/python"
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT")
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


def test_what_one_task_holds_does_not_grow_with_the_lake():
    assert partitions_for(SMALL_ROWS) == 1
    assert partitions_for(SMALL_ROWS + 1) >= 4 * (os.cpu_count() or 2)
    for rows in (100_000_000, 200_000_000):
        assert rows / partitions_for(rows) == 250_000
    assert partitions_for(1 << 40) == 1000
