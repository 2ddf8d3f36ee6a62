import resource
from pathlib import Path

import pytest

from dovetail import fast
from dovetail.audit import jars
from dovetail.audit.java import Java, Rejected
from dovetail.site.doctor import Status, check_machine
from dovetail.site.doctor.machine import (
    EARLIEST_SANE_TIME,
    check_descriptors,
    check_fast,
    check_java,
    check_python,
    check_spark,
    check_sqlite,
    check_synchronised,
    judge_clock,
    read_clock_state,
)

UNLIMITED = resource.RLIM_INFINITY


def a_java(version: int = 21, source: str = "PATH") -> Java:
    return Java(home=Path("/jdk"), version=version, version_text=f"{version}.0.1", source=source)


def test_every_check_of_this_machine_ends_in_a_finding():
    findings = list(check_machine())
    assert [finding.check for finding in findings] == [
        "python",
        "native code",
        "java",
        "spark",
        "sqlite",
        "descriptors",
        "clock",
        "time server",
    ]
    assert all((finding.advice is None) == (finding.status is Status.OK) for finding in findings)


@pytest.mark.parametrize(("version", "status"), [((3, 10, 9), Status.FAIL), ((3, 11, 0), Status.OK)])
def test_python(version, status):
    assert check_python(version).status is status


def test_spark_without_delta_lake_fails_and_says_how_to_fetch_it():
    lacking = jars.read_lock()
    finding = check_spark(lacking)
    assert finding.status is Status.FAIL
    assert f"{lacking[0].name} is missing" in finding.detail
    assert finding.advice.endswith(" -m dovetail.audit.jars")
    assert check_spark([]).status is Status.OK


@pytest.mark.parametrize(("version", "status"), [((3, 36, 9), Status.FAIL), ((3, 37, 0), Status.OK)])
def test_sqlite(version, status):
    assert check_sqlite(version).status is status


def test_a_java_is_named_with_version_and_place():
    finding = check_java(a_java(), [], java_home=None)
    assert finding.status is Status.OK
    assert finding.detail == "Java 21.0.1 in /jdk (from PATH)"


def test_no_java_fails_and_tells_what_was_seen():
    old = Rejected(home=Path("/old"), source="PATH", why="is Java 11, needs 17 or newer")
    finding = check_java(None, [old], java_home=None)
    assert finding.status is Status.FAIL
    assert "the one in /old is Java 11, needs 17 or newer" in finding.detail


def test_no_java_is_well_where_spark_is_not_installed():
    finding = check_java(None, [], java_home=None, is_needed=False)
    assert (finding.status, finding.advice) == (Status.WARN, "only the audit needs it, which is not installed")


def test_a_useless_java_home_is_warned_of():
    old = Rejected(home=Path("/old"), source="JAVA_HOME", why="is Java 11, needs 17 or newer")
    finding = check_java(a_java(), [old], java_home="/old")
    assert finding.status is Status.WARN
    assert finding.advice == "JAVA_HOME=/old is Java 11, needs 17 or newer and is ignored: correct or unset it"
    assert check_java(a_java(source="JAVA_HOME"), [], java_home="/jdk").status is Status.OK


def test_a_java_newer_than_was_tried_is_warned_of():
    assert check_java(a_java(26), [], java_home=None).status is Status.WARN


@pytest.mark.parametrize(
    ("soft", "hard", "status", "advice"),
    [
        (UNLIMITED, UNLIMITED, Status.OK, None),
        (4096, 4096, Status.OK, None),
        (1024, UNLIMITED, Status.WARN, "ulimit -n 4096"),
        (1024, 2048, Status.WARN, "ulimit -n 2048"),
        (1024, 1024, Status.WARN, "the hard limit is as low"),
        (128, 128, Status.FAIL, "the hard limit is as low"),
    ],
)
def test_descriptors(soft, hard, status, advice):
    finding = check_descriptors(soft, hard)
    assert finding.status is status
    assert (finding.advice is None) if advice is None else (advice in finding.advice)


@pytest.mark.parametrize(
    ("wall", "step", "status"),
    [
        (EARLIEST_SANE_TIME - 1, 0.0, Status.FAIL),
        (EARLIEST_SANE_TIME, 0.0, Status.OK),
        (EARLIEST_SANE_TIME, 0.5, Status.WARN),
        (EARLIEST_SANE_TIME, -0.5, Status.WARN),
    ],
)
def test_clock(wall, step, status):
    assert judge_clock(wall, step).status is status


@pytest.mark.parametrize(
    ("state", "status"),
    [(None, Status.OK), ((True, 900), Status.OK), ((True, 5_000_000), Status.WARN), ((False, 0), Status.WARN)],
)
def test_time_server(state, status):
    assert check_synchronised(state).status is status


def test_the_kernel_is_asked_without_harm():
    state = read_clock_state()
    assert state is None or (isinstance(state[0], bool) and state[1] >= 0)


@pytest.mark.parametrize(
    ("implementation", "said"), [("native", "in use: because"), ("python", "not in use: because;")]
)
def test_the_implementation_in_use_and_why(monkeypatch, implementation, said):
    monkeypatch.setattr(fast, "IMPLEMENTATION", implementation)
    monkeypatch.setattr(fast, "REASON", "because")
    finding = check_fast()
    assert finding.status is Status.OK
    assert finding.detail.startswith(said)
