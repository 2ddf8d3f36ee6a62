import pytest

from dovetail.demo.layout import Layout
from dovetail.errors import UsageError


def test_only_what_an_earlier_demo_made_is_removed(tmp_path):
    layout = Layout(tmp_path / "out")
    layout.prepare()
    (layout.journals / "old.journal").touch()
    mine = layout.out / "notes.txt"
    mine.write_text("precious")
    layout.prepare()
    assert list(layout.journals.iterdir()) == []
    assert mine.read_text() == "precious"
    layout.clear()
    assert list(layout.out.iterdir()) == [mine]
    mine.unlink()
    layout.prepare()
    layout.clear()
    assert not layout.out.exists()


def test_a_directory_or_file_of_somebody_else_is_refused(tmp_path):
    (tmp_path / "precious").touch()
    with pytest.raises(UsageError, match="not from an earlier demo"):
        Layout(tmp_path).prepare()
    with pytest.raises(UsageError, match="not a directory"):
        Layout(tmp_path / "precious").prepare()
    assert (tmp_path / "precious").exists()


def test_private_keys_go_and_journals_stay(tmp_path):
    layout = Layout(tmp_path / "out")
    layout.prepare()
    (layout.site / "keys").mkdir()
    (layout.site / "keys" / "node.skey").touch()
    layout.tidy()
    assert not layout.site.exists()
    assert layout.journals.is_dir()
