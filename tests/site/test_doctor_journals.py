import shutil

import pytest

from dovetail.journal.high_water import mark_path
from dovetail.lake.seal import seal_journal
from dovetail.lake.store import LocalStore
from dovetail.site.doctor.finding import Status
from dovetail.site.doctor.journals import check_journals
from journal.worlds import observe, open_writer


@pytest.fixture
def site(tmp_path):
    path = tmp_path / "journals" / "a.journal"
    with open_writer(path) as journal:
        journal.append([observe(b"one")])
        journal.checkpoint()
    shutil.copy(path, tmp_path / "old")
    with open_writer(path) as journal:
        journal.append([observe(b"two")])
        journal.checkpoint()
    seal_journal(path, LocalStore(tmp_path / "lake"))
    return tmp_path


def look(site):
    return list(check_journals(site / "journals", LocalStore(site / "lake")))


def test_whole_journals_are_well(site):
    (finding,) = look(site)
    assert finding.status is Status.OK


def test_an_old_copy_is_told_by_the_mark_and_by_the_lake(site):
    path = site / "journals" / "a.journal"
    shutil.copy(site / "old", path)
    marked, sealed = look(site)
    assert "high-water mark" in marked.detail
    assert "the lake" in sealed.detail
    assert {marked.status, sealed.status} == {Status.FAIL}
    assert "dovetail journal recover" in marked.advice
    mark_path(path).unlink()
    assert [finding.status for finding in look(site)] == [Status.FAIL, Status.FAIL]


def test_a_file_that_is_no_journal_fails_the_check(site):
    (site / "journals" / "b.journal").write_bytes(b"x" * 5000)
    assert next(finding.status for finding in look(site)) is Status.FAIL


def test_journals_that_others_may_read_are_warned_of(site):
    (site / "journals").chmod(0o755)
    (site / "journals" / "a.journal").chmod(0o644)
    warned = [finding for finding in look(site) if finding.status is Status.WARN]
    assert [finding.advice.split()[:2] for finding in warned] == [["chmod", "700"], ["chmod", "600"]]
