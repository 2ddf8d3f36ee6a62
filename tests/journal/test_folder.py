"""Finding the journals of a folder, also while others remove folders in it."""

import sys

from dovetail.journal.folder import find_journals

removed = []


def remove_when_looked_at(event, arguments):
    """Audit hooks stay for ever; this one acts only where a test has named a folder."""
    if event == "os.scandir" and removed and str(arguments[0]) == str(removed[-1]):
        removed.pop().rmdir()


def test_journals_are_found_by_name(tmp_path):
    names = ["a.journal", "deep/b.journal", "peer/journal.db", "peer/journal.db.mark", "c.journal.lock", "d.db"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [str(path.relative_to(tmp_path)) for path in find_journals(tmp_path)] == names[:3]
    assert list(find_journals(tmp_path / "d.db")) == [tmp_path / "d.db"]


def test_a_folder_that_is_removed_meanwhile_is_passed_over(tmp_path):
    (tmp_path / "a.journal").touch()
    (tmp_path / "scratch").mkdir()
    sys.addaudithook(remove_when_looked_at)
    removed.append(tmp_path / "scratch")
    assert list(find_journals(tmp_path)) == [tmp_path / "a.journal"]
    assert not removed
